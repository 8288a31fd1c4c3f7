"""The executable contract: `policyfs conformance` answers every case, and the runner believes nothing it is not shown."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
RUNNER = REPOSITORY / "scripts" / "conformance"
EXPECTED_FAILURES = REPOSITORY / "conformance" / "expected-failures.txt"
Fake = Callable[[str], str]
OURS = shlex.join([sys.executable, "-I", "-c", "from policyfs.cli import main; main()", "conformance"])


def load_runner() -> ModuleType:
    """The runner as a module: it has no .py, being a program."""
    loader = importlib.machinery.SourceFileLoader("conformance_runner", str(RUNNER))
    spec = importlib.util.spec_from_loader("conformance_runner", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["conformance_runner"] = module
    loader.exec_module(module)
    return module


runner = load_runner()


def run(entrypoint: str, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-I", RUNNER, "--entrypoint", entrypoint, *map(str, arguments)],
        capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip


def test_policyfs_answers_every_case() -> None:
    """Every case of every area is as conformance/ says, but for those that expected-failures.txt names."""
    done = run(OURS, "--expected-failures", EXPECTED_FAILURES)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.splitlines()[-1].endswith(", 0 are not as expected")


def test_every_area_has_cases() -> None:
    """No area is empty, none of the files is passed over, and every explanation of fs_access is asked."""
    found = list(runner.cases(runner.CONFORMANCE, list(runner.AREAS)))
    assert {case.request["area"] for case in found} == set(runner.AREAS)
    assert len({case.id for case in found}) == len(found)
    explained = sum(
        operation["do"] == "explain"
        for file in runner.CONFORMANCE.glob("fs_access/*.json")
        for case in json.loads(file.read_text(encoding="utf-8"))["cases"]
        for operation in case["operations"]
    )
    assert sum(case.request["area"] == "explain" for case in found) == explained > 50


def test_no_request_holds_its_answer() -> None:
    """An implementation is not told what is expected of it."""
    for case in runner.cases(runner.CONFORMANCE, list(runner.AREAS)):
        assert not {"id", "gives", "fault", "holds", "roots", "reported", "instructions", "denied"} & set(case.request)
        for part in (*case.request.get("paths", []), *case.request.get("reads", [])):
            assert isinstance(part, str)


FAKE = """
import json, sys
for line in sys.stdin:
    request = json.loads(line)
    {body}
"""


@pytest.fixture
def fake(tmp_path: Path) -> Fake:
    """An implementation that does what a line of Python says with each request."""

    def make(body: str) -> str:
        file = tmp_path / "fake.py"
        file.write_text(FAKE.format(body=body))
        return shlex.join([sys.executable, "-I", str(file)])

    return make


SMALL = {"area": "roots", "cases": [
    {"id": "roots-one", "description": "One.", "spec": "s", "text": "/a", "home": "/h", "roots": ["/a"], "reported": []},
    {"id": "roots-two", "description": "Two.", "spec": "s", "text": "/b", "home": "/h", "roots": ["/b"], "reported": []},
]}  # fmt: skip
ECHO = 'print(json.dumps({"roots": [request["text"]], "reported": []}), flush=True)'
ONE_WRONG = 'print(json.dumps({"roots": ["/a"], "reported": []}), flush=True)'


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A directory of two cases."""
    directory = tmp_path / "cases"
    directory.mkdir()
    (directory / "roots.json").write_text(json.dumps(SMALL))
    return directory


def failures(tmp_path: Path, text: str) -> Path:
    file = tmp_path / "expected-failures.txt"
    file.write_text(text)
    return file


def test_a_wrong_answer_fails_the_run(fake: Fake, small: Path) -> None:
    """A case that fails is named with its request, what is expected and what was answered."""
    done = run(fake(ONE_WRONG), "--cases", small)
    assert done.returncode == 1
    assert "FAILS: roots-two" in done.stdout
    assert '"/b"' in done.stdout
    assert "FAILS: roots-one" not in done.stdout
    assert done.stdout.splitlines()[-1] == "2 cases: 1 pass, 0 fail as expected, 1 are not as expected"


def test_an_expected_failure_is_no_failure(fake: Fake, small: Path, tmp_path: Path) -> None:
    """A case that the file names, with a reason, may fail."""
    named = failures(tmp_path, "# the two\n\nroots-two  # not done yet\n")
    done = run(fake(ONE_WRONG), "--cases", small, "--expected-failures", named)
    assert (done.returncode, done.stdout) == (0, "2 cases: 1 pass, 1 fail as expected, 0 are not as expected\n")


def test_an_unexpected_pass_fails_the_run(fake: Fake, small: Path, tmp_path: Path) -> None:
    """The file is strict: what it names must fail."""
    named = failures(tmp_path, "roots-two # not done yet\n")
    done = run(fake(ECHO), "--cases", small, "--expected-failures", named)
    assert done.returncode == 1
    assert done.stdout.startswith("PASSES, but is expected to fail (not done yet): roots-two")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("roots-three # gone\n", "no case has this id"),
        ("roots-two\n", "no reason"),
        ("roots-two # a\nroots-two # b\n", "named twice"),
    ],
)
def test_a_wrong_line_of_expected_failures_is_refused(fake: Fake, small: Path, tmp_path: Path, text: str, said: str) -> None:
    """A name that no case has, or one without a reason, or one twice: nothing is run."""
    done = run(fake(ECHO), "--cases", small, "--expected-failures", failures(tmp_path, text))
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(0)", "ended before it answered"),
        ("print('no', flush=True)", "no JSON: no"),
        ("print('[]', flush=True)", "no JSON object"),
        ("pass", "no answer in 0.5 s"),
    ],
)
def test_an_entrypoint_that_does_not_answer_ends_the_run(fake: Fake, small: Path, body: str, said: str) -> None:
    """Ending early, answering no object and answering nothing are told with the request, and count as no pass."""
    done = run(fake(body), "--cases", small, "--patience", "0.5" if body == "pass" else "30")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


def test_an_entrypoint_that_is_none_is_told(small: Path) -> None:
    """A command that does not exist is one line."""
    done = run("/nowhere/at-all", "--cases", small)
    assert (done.returncode, done.stderr) == (2, "conformance: /nowhere/at-all: No such file or directory\n")


def test_no_cases_are_no_pass(fake: Fake, tmp_path: Path) -> None:
    """A run of nothing is a failure."""
    done = run(fake(ECHO), "--cases", tmp_path)
    assert done.returncode == 2
    assert "no case" in done.stderr


@pytest.mark.parametrize(
    ("expected", "answered", "agree"),
    [
        ({"rule": "floor / = ro"}, {"rule": "floor / = ro (session)"}, True),
        ({"rule": "floor / = ro"}, {"rule": "floor / = rough"}, False),
        ({"look": None}, {}, False),
        ({"look": None}, {"look": None, "more": 1}, True),
        ({"holds": True}, {"holds": False}, False),
    ],
)
def test_agreement(expected: dict[str, object], answered: dict[str, object], agree: bool) -> None:
    """An answer may have more than is expected and a rule may say who set it; nothing may be missing or differ."""
    assert runner.agrees(expected, answered) is agree
