"""The executable contract: our adapter answers every case, and the runner believes nothing that it is not shown."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
RUNNER = REPOSITORY / "scripts" / "conformance"
EXPECTED_FAILURES = REPOSITORY / "conformance" / "expected-failures.txt"
Fake = Callable[[str], str]
OURS = shlex.join([sys.executable, "-I", str(REPOSITORY / "tests" / "conformance" / "adapter.py")])


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
    assert f"\n    {done.stdout}" in (REPOSITORY / "docs/conformance.md").read_text(encoding="utf-8")


def test_every_area_has_cases() -> None:
    """No area is empty, none of the files is passed over, and every explanation of fs_access is asked."""
    found = list(runner.cases(runner.CONFORMANCE))
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
    for case in runner.cases(runner.CONFORMANCE):
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


Json = dict[str, Any]
SMALL: Json = {"area": "roots", "cases": [
    {"id": "roots-one", "description": "One.", "spec": "s-1", "text": "/a", "home": "/h", "roots": ["/a"], "reported": []},
    {"id": "roots-two", "description": "Two.", "spec": "s-1", "text": "/b", "home": "/h", "roots": ["/b"], "reported": []},
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
        ("print('[' * 100_000, flush=True)", "no JSON: [["),
        (r"sys.stdout.buffer.write(b'{\xff}\n'); sys.stdout.flush()", r"no UTF-8: {\xff}"),
        ("pass", "no answer in 0.5 s"),
    ],
)
def test_an_entrypoint_that_does_not_answer_ends_the_run(fake: Fake, small: Path, body: str, said: str) -> None:
    """Ending early, answering no object and answering nothing are told with the request, and count as no pass."""
    done = run(fake(body), "--cases", small, "--timeout", "0.5" if body == "pass" else "30")
    assert (done.returncode, done.stdout) == (2, "")
    assert said in done.stderr


@pytest.mark.parametrize(
    ("entrypoint", "said"),
    [
        ("/nowhere/at-all", "/nowhere/at-all: No such file or directory"),
        ("", "--entrypoint: no command; write the one that starts the implementation"),
        ("a 'b", "--entrypoint: No closing quotation: a 'b"),
    ],
)
def test_an_entrypoint_that_is_none_is_told(small: Path, entrypoint: str, said: str) -> None:
    """A command that does not exist, none and one that a shell could not split are one line."""
    done = run(entrypoint, "--cases", small)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"conformance: {said}\n")


AT_THE_END = f"import atexit; atexit.unregister(print); atexit.register(print, '{{}}'); {ECHO}"


@pytest.mark.parametrize("body", [f"{ECHO}; {ECHO}", AT_THE_END], ids=["two for each", "one at the end"])
def test_an_answer_that_nothing_asked_for_ends_the_run(fake: Fake, small: Path, body: str) -> None:
    """One answer for each request: what says more has not answered the requests that it seems to."""
    done = run(fake(body), "--cases", small)
    assert done.returncode == 2
    assert "more than one answer to a request: {" in done.stderr
    assert "2 pass" not in done.stdout


def test_text_that_is_no_utf8_may_come_as_it_is(fake: Fake, small: Path) -> None:
    """A lone surrogate in an answer may be an escape or the three bytes that stand for it (docs/conformance.md)."""
    text, root = "/\udcff", {"roots": ["/\udcff"], "reported": []}
    write(small, {"area": "roots", "cases": [{**SMALL["cases"][0], "text": text, **root}]})
    for ascii_only in (True, False):
        body = f"answer = json.dumps({root!a}, ensure_ascii={ascii_only}).encode('utf-8', 'surrogatepass')"
        done = run(fake(f"{body}; sys.stdout.buffer.write(answer + b'\\n'); sys.stdout.flush()"), "--cases", small)
        assert (done.returncode, done.stderr) == (0, "")


def write(directory: Path, *files: Any) -> None:
    """Cases in place of those that are there; bytes as they are."""
    for number, content in enumerate(files):
        text = content if isinstance(content, bytes) else json.dumps(content).encode()
        (directory / ("roots.json" if number == 0 else f"more-{number}.json")).write_bytes(text)


CASE = {"id": "a-b", "description": "One.", "spec": "s-1"}


def one(area: str, **case: Any) -> Json:
    """A file of one case."""
    return {"area": area, "cases": [{**CASE, **case}]}


def played(**operation: Any) -> Json:
    """A file of one operation."""
    return one("fs_access", **{**FS, "operations": [operation]})


PATHS = {"text": "a", "start": "/", "path": "/a"}
DENYLIST = {"home": "/h", "source": "/s", "paths": [{"path": "/a", "denied": False}]}
EXPLAIN = {"do": "explain", "path": "/", "gives": {"level": "ro"}}
FS = {"tree": {"/a": {"file": "a"}}, "session": {"grants": {"/": "ro"}}, "operations": [EXPLAIN]}
INSTRUCTIONS = {"tree": {}, "session": {"grants": {}}, "instructions": [], "reads": [{"path": "/a", "hands_over": []}]}
RIGHT = [
    one("roots", text="/a", home="/h", roots=["/a"], reported=[]),
    one("paths", **PATHS),
    {**one("paths", **PATHS), "containment": [{**CASE, "id": "c", "path": "/", "within": "/", "holds": True}]},
    one("denylist", **DENYLIST, deny={"names": []}),
    one("fs_access", **FS, floors=[{"/": "ro"}], opens_nothing=True),
    one("instructions", **INSTRUCTIONS, **{"global": {"path": "g", "text": ""}}, extra=[{"path": "e", "text": ""}]),
]  # fmt: skip
WRONG = {
    "no JSON": (b"{", "no JSON"),
    "nested too deep": (b"[" * 100_000, "no JSON"),
    "no UTF-8": (b"\xff", "no UTF-8 at byte 0"),
    "no object": ([], "$: [] is not of type 'object'"),
    "no area": ({"cases": []}, "$: 'area' is a required property"),
    "an area misspelt": (one("rots"), "$.area: 'rots' is not one of"),
    "an area of requests": (one("explain"), "$.area: 'explain' is not one of"),
    "an area that is not text": ({"area": ["roots"], "cases": []}, "$.area: ['roots'] is not one of"),
    "no cases": ({"area": "roots"}, "$: 'cases' is a required property"),
    "cases that are none": ({"area": "roots", "cases": 1}, "$.cases: 1 is not of type 'array'"),
    "a field of a file": ({**SMALL, "more": 1}, "$: Additional properties are not allowed ('more' was unexpected)"),
    "containment elsewhere": (
        {**SMALL, "containment": []},
        "$: Additional properties are not allowed ('containment' was unexpected)",
    ),
    "a case that is none": ({"area": "roots", "cases": [1]}, "$.cases[0]: 1 is not of type 'object'"),
    "no id": ({"area": "roots", "cases": [{}]}, "$.cases[0]: 'description' is a required property"),
    "an id with a reason": ({"area": "roots", "cases": [{"id": "a # b"}]}, "$.cases[0] (a # b): "),
    "an id twice": ({"area": "roots", "cases": SMALL["cases"] * 2}, "has a case of this id too"),
    "a field of a case": (
        one("paths", **PATHS, surprise=1),
        "$.cases[0] (a-b): Additional properties are not allowed ('surprise' was unexpected)",
    ),
    "a field of a case missing": (
        one("roots", text="", home="/h", roots=[]),
        "$.cases[0] (a-b): 'reported' is a required property",
    ),
    "a path and a fault": (
        one("paths", **PATHS, fault="nul"),
        "$.cases[0] (a-b): Additional properties are not allowed ('path' was unexpected)",
    ),
    "a field of a path asked": (one("denylist", **{**DENYLIST, "paths": [{"path": "/", "denied": False, "x": 1}]}), "x"),
    "a field of deny": (
        one("denylist", **DENYLIST, deny={"name": []}),
        "$.cases[0].deny (a-b): Additional properties are not allowed ('name' was unexpected)",
    ),
    "an operation misspelt": (
        played(**{**EXPLAIN, "do": "explian"}),
        "$.cases[0].operations[0].do (a-b): 'explian' is not one of",
    ),
    "an operation that is none": (
        one("fs_access", **{**FS, "operations": [1]}),
        "$.cases[0].operations[0] (a-b): 1 is not of type 'object'",
    ),
    "a field of an operation": (
        played(**{**EXPLAIN, "x": 1}),
        "$.cases[0].operations[0] (a-b): Additional properties are not allowed ('x' was unexpected)",
    ),
    "an explanation without one": (
        played(do="explain", path="/"),
        "$.cases[0].operations[0] (a-b): 'gives' is a required property",
    ),
    "a field of a gift": (
        played(**{**EXPLAIN, "gives": {"rules": ""}}),
        "operations[0].gives (a-b): Additional properties are not allowed ('rules' was unexpected)",
    ),
    "a field of a session": (
        one("fs_access", **{**FS, "session": {"grants": {}, "grant": {}}}),
        "$.cases[0].session (a-b): Additional properties are not allowed ('grant' was unexpected)",
    ),
    "a field of links": (
        one("fs_access", **{**FS, "session": {"grants": {}, "links": {"x": 1}}}),
        "session.links (a-b): Additional properties are not allowed ('x' was unexpected)",
    ),
    "a field of passages": (
        one("fs_access", **{**FS, "session": {"grants": {}, "passages": {"unknown": "denied", "x": 1}}}),
        "session.passages (a-b): Additional properties are not allowed ('x' was unexpected)",
    ),
    "a field of a tree": (
        one("instructions", **{**INSTRUCTIONS, "tree": {"/a": {"fil": ""}}}),
        "tree['/a'] (a-b): Additional properties are not allowed ('fil' was unexpected)",
    ),
    "a tree that is none": (one("instructions", **{**INSTRUCTIONS, "tree": []}), "tree (a-b): [] is not of type 'object'"),
    "a field of a read": (
        one("instructions", **{**INSTRUCTIONS, "reads": [{"path": "/"}]}),
        "reads[0] (a-b): 'hands_over' is a required property",
    ),
    "a field of a global one": (
        one("instructions", **INSTRUCTIONS, **{"global": {"path": "/"}}),
        "global (a-b): 'text' is a required property",
    ),
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "said"), WRONG.values(), ids=WRONG.keys())
def test_a_file_that_the_runner_does_not_know_is_refused(fake: Fake, tmp_path: Path, wrong: Any, said: str) -> None:
    """What conformance/README.md does not define is an error: it is told, nothing is run, and no case is passed over."""
    write(tmp_path, wrong)
    done = run(fake(ECHO), "--cases", tmp_path)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"conformance: {tmp_path}/roots.json: ")
    assert said in done.stderr
    assert done.stderr.count("\n") == 1


@pytest.mark.parametrize("right", RIGHT, ids=lambda right: right["area"])
def test_what_the_refusals_start_from_is_right(tmp_path: Path, right: Json) -> None:
    """Each file that is refused above is so for one thing."""
    write(tmp_path, right)
    assert list(runner.cases(tmp_path))


def test_an_id_is_one_over_all_files(fake: Fake, small: Path) -> None:
    """A line of the expected failures means one case."""
    write(small, SMALL, {"area": "roots", "cases": SMALL["cases"][1:]})
    done = run(fake(ECHO), "--cases", small)
    assert (done.returncode, done.stdout) == (2, "")
    assert "roots-two: " in done.stderr
    assert "has a case of this id too" in done.stderr


def test_expected_failures_that_are_no_text_are_told(fake: Fake, small: Path, tmp_path: Path) -> None:
    """A file that is not there and one that is not UTF-8 are one line each."""
    file = failures(tmp_path, "")
    file.write_bytes(b"# \xff\n")
    done = run(fake(ECHO), "--cases", small, "--expected-failures", file)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"conformance: {file}: no UTF-8 at byte 2\n")
    file.unlink()
    done = run(fake(ECHO), "--cases", small, "--expected-failures", file)
    assert (done.returncode, done.stdout, done.stderr) == (2, "", f"conformance: {file}: No such file or directory\n")


@pytest.mark.parametrize("timeout", ["0", "-1", "nan", "inf", "1e300", "soon"])
def test_a_time_to_wait_is_one(fake: Fake, small: Path, timeout: str) -> None:
    """`--timeout` that no clock can count is refused, with the status of a run that could not be made."""
    done = run(fake(ECHO), "--cases", small, f"--timeout={timeout}")
    assert (done.returncode, done.stdout) == (2, "")
    assert re.search(r"^conformance: error: argument --timeout: ", done.stderr, re.MULTILINE)


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
        ({"holds": True}, {"holds": 1}, False),
        ({"holds": False}, {"holds": 0.0}, False),
        ({"paths": [{"denied": True}]}, {"paths": [{"denied": 1}]}, False),
        ({"paths": [{"path": "/a", "denied": True}]}, {"paths": [{"denied": True, "path": "/a"}]}, True),
    ],
)
def test_agreement(expected: dict[str, object], answered: dict[str, object], agree: bool) -> None:
    """An answer may have more than is expected and a rule may say who set it; nothing may be missing or differ."""
    assert runner.agrees(expected, answered) is agree
