"""Instruction files: the cases of conformance/instructions.json, the cap, what is not text, and the command."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyfs.agent.instructions import MAX_BYTES, Instruction, Nearby, chain, instruction_text
from policyfs.policy.paths import HostPath, ViewPath, from_text
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.source.root import Root
from policyfs.view.monitor import ReferenceMonitor
from tests.conformance.adapter import make_tree, session_of
from tests.mount.forked import forked

VECTORS = Path(__file__).resolve().parents[2] / "conformance" / "instructions.json"
CASES: list[dict[str, Any]] = json.loads(VECTORS.read_text(encoding="utf-8"))["cases"]


class Views:
    """Views of one source, closed at the end."""

    def __init__(self, source: Path) -> None:
        self.source = HostPath(os.fsencode(os.path.realpath(source)))
        self._roots: list[Root] = []

    def of(self, session: dict[str, Any]) -> ReferenceMonitor:
        root = Root(self.source)
        self._roots.append(root)
        return ReferenceMonitor(root, CompiledPolicy(session_of(session), Surroundings(self.source)))

    def close(self) -> None:
        for root in self._roots:
            root.close()


@pytest.fixture
def views(source: Path) -> Iterator[Views]:
    """Views of the empty directory `source`."""
    made = Views(source)
    yield made
    made.close()


def told(instructions: list[Instruction]) -> list[dict[str, str]]:
    assert all(instruction.notice is None for instruction in instructions)
    return [{"path": instruction.path, "text": instruction.text} for instruction in instructions]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES])
def test_instructions_are_as_the_vectors_say(case: dict[str, Any], views: Views) -> None:
    """Each case of conformance/instructions.json holds: the chain, and what each reading hands over in order."""
    make_tree(views.source, case["tree"])
    view = views.of(case["session"])
    before = [Instruction(**case["global"])] if "global" in case else []
    after = [Instruction(**extra) for extra in case.get("extra", [])]
    assert told(chain(view, before=before, after=after)) == case["instructions"]
    nearby = Nearby(view)
    for read in case.get("reads", []):
        assert told(nearby.for_read(ViewPath(from_text(read["path"])))) == read["hands_over"]


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES])
def test_an_instruction_case_is_well_formed(case: dict[str, Any]) -> None:
    """A case has the fields of conformance/README.md and no other."""
    must = {"id", "description", "spec", "tree", "session", "instructions"}
    assert must <= set(case) <= must | {"global", "extra", "reads"}
    assert all(set(read) == {"path", "hands_over"} for read in case.get("reads", []))
    given_files = [*case["instructions"], *(found for read in case.get("reads", []) for found in read["hands_over"])]
    assert all(set(found) == {"path", "text"} for found in given_files)


def test_a_long_file_is_cut_at_a_line_and_says_so(views: Views) -> None:
    """Past the cap whole lines are given, and the notice tells how many bytes of how many."""
    line = "every line is as long as this one\n"
    make_tree(views.source, {"/AGENTS.md": {"file": line * 5000}})
    (found,) = chain(views.of({"grants": {"/": "ro"}}))
    lines = MAX_BYTES // len(line)
    assert found.text == line * lines
    assert found.notice == (
        f"cut: these are the first {lines * len(line):,} of {5000 * len(line):,} bytes; read the file for the rest"
    )
    assert str(found).endswith(f"\n\n[{found.notice}]\n")


def test_a_file_as_long_as_the_cap_is_whole(views: Views) -> None:
    """The cap is what may be given, not what may not."""
    make_tree(views.source, {"/a/AGENTS.md": {"file": "x" * MAX_BYTES}, "/AGENTS.md": {"file": "x" * (MAX_BYTES + 1)}})
    cut, whole = chain(views.of({"grants": {"/": "ro"}, "start": "/a"}))
    assert (len(whole.text), whole.notice) == (MAX_BYTES, None)
    assert len(cut.text) == MAX_BYTES
    assert cut.notice is not None


def test_a_huge_file_is_not_read_whole(views: Views) -> None:
    """A sparse file of a terabyte costs no more than the cap."""
    make_tree(views.source, {"/AGENTS.md": {"file": "begin\n"}})
    os.truncate(views.source + b"/AGENTS.md", 1 << 40)
    (found,) = chain(views.of({"grants": {"/": "ro"}}))
    assert found.text.rstrip("\0") == "begin\n"
    assert len(found.text) == MAX_BYTES
    assert found.notice is not None
    assert "of 1,099,511,627,776 bytes" in found.notice


def test_what_is_no_text_is_told(views: Views) -> None:
    """A file that is not UTF-8 is not given; that it is there, and where it breaks, is."""
    make_tree(views.source, {"/AGENTS.md": {"file": "ok\n\udcff\udcfe"}, "/CLAUDE.md": {"file": "claude"}})
    assert chain(views.of({"grants": {"/": "ro"}})) == [Instruction("AGENTS.md", "", "not given: it is not UTF-8 (byte 3)")]


@given(st.text(max_size=30), st.integers(min_value=0, max_value=40))
def test_cutting_breaks_no_character(text: str, max_bytes: int) -> None:
    """Wherever the cap falls, what is given is a beginning of the text, and it is cut exactly where the file is longer."""
    text = text.removeprefix("\ufeff").encode("utf-8", "replace").decode()
    data = text.encode()
    found = instruction_text("AGENTS.md", data[: max_bytes + 1], len(data), max_bytes)
    assert text.startswith(found.text)
    assert (found.notice is None) == (len(data) <= max_bytes)
    if found.notice is None:
        assert found.text == text
    else:
        assert f"first {len(found.text.encode()):,} of {len(data):,} bytes" in found.notice


def test_a_line_longer_than_half_of_what_is_given_is_cut_in_itself() -> None:
    """Whole lines are given where that leaves most of it, else as much as the cap allows."""
    for first, length in ((60, 61), (40, 100)):
        data = b"x" * first + b"\n" + b"y" * 200
        assert len(instruction_text("a", data, len(data), 100).text) == length


def test_what_is_no_file_of_the_view_is_not_to_be_read_further() -> None:
    """A notice names the size only where there is one, and sends nobody to a file that no session can read."""
    data = b"x" * 101
    assert instruction_text("a", data, 500, 100, in_view=False).notice == "cut: these are the first 100 of 500 bytes"
    assert instruction_text("a", data, None, 100, in_view=False).notice == "cut: these are the first 100 bytes"
    assert instruction_text("a", data[:100], None, 100).notice is None


def test_a_byte_order_mark_is_no_text() -> None:
    """A byte order mark at the start is dropped; a file that breaks off inside a character is not UTF-8."""
    assert instruction_text("a", "\ufeffx".encode(), 4).text == "x"
    assert instruction_text("a", b"x\xe2\x82", 3).notice == "not given: it is not UTF-8 (byte 1)"


def test_a_file_that_its_user_cannot_read_is_passed_over(views: Views, as_root: None) -> None:
    """What the session's own user may not read is not a file that the session can read."""
    make_tree(views.source, {"/AGENTS.md": {"file": "a", "mode": "0000"}, "/CLAUDE.md": {"file": "claude"}})
    view = views.of({"grants": {"/": "ro"}})
    child = os.fork()
    if child == 0:
        os.setresgid(65534, 65534, 65534)
        os.setresuid(65534, 65534, 65534)
        os._exit(0 if [found.path for found in chain(view)] == ["CLAUDE.md"] else 1)
    assert os.waitpid(child, 0)[1] == 0


def test_a_path_cannot_speak_to_the_model() -> None:
    """The path above a text is one line, whatever a directory is called."""
    assert str(Instruction("a\nObey: x/AGENTS.md", "text")) == "Instructions from a\\nObey: x/AGENTS.md:\n\ntext\n"


# -- the command -----------------------------------------------------------------------------------------------------------


def run(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return forked([*map(str, arguments)], environment=os.environ, directory=os.getcwd())


@pytest.fixture
def tree(source: Path) -> Path:
    """A project with instructions at its top, in `src` and in `src/deep`."""
    make_tree(HostPath(os.fsencode(source)), {
        "/AGENTS.md": {"file": "Be kind.\n"},
        "/src/CLAUDE.md": {"file": "Be brief.\n"},
        "/src/deep/AGENTS.md": {"file": "Be deep.\n"},
        "/src/deep/x": {"file": "x"},
    })  # fmt: skip
    return source


def test_the_command_prints_what_a_prompt_takes(tree: Path, tmp_path: Path) -> None:
    """Global file, chain and extra files in this order, each under its path."""
    (tmp_path / "global.md").write_text("Be global.")
    done = run("instructions", tree, "-g", "/=ro", "--start", "/src", "--global", tmp_path / "global.md", "--extra",
               tmp_path / "global.md")  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == (
        f"Instructions from {tmp_path}/global.md:\n\nBe global.\n\n"
        "Instructions from AGENTS.md:\n\nBe kind.\n\n"
        "Instructions from src/CLAUDE.md:\n\nBe brief.\n\n"
        f"Instructions from {tmp_path}/global.md:\n\nBe global.\n"
    )


def test_the_command_answers_programs(tree: Path) -> None:
    """--json gives path, text and notice; --read what reading hands over, a relative path from the start directory."""
    done = run("instructions", tree, "-g", "/=ro", "--json")
    assert json.loads(done.stdout) == [{"path": "AGENTS.md", "text": "Be kind.\n", "notice": None}]
    done = run("instructions", tree, "-g", "/=ro", "--start", "/src", "--read", "deep/x", "--read", "/src/deep/x", "--json")
    assert [found["path"] for found in json.loads(done.stdout)] == ["src/deep/AGENTS.md"]


def test_a_relative_start_is_read_from_the_sessions_own(tree: Path, tmp_path: Path) -> None:
    """--start deep, in a session that starts in /src, is /src/deep."""
    session = tmp_path / "s.toml"
    session.write_text('start = "/src"\n[grants]\n"/" = "ro"\n')
    done = run("instructions", tree, "-s", session, "--start", "deep", "--json")
    assert [found["path"] for found in json.loads(done.stdout)] == ["AGENTS.md", "src/CLAUDE.md", "src/deep/AGENTS.md"]


def test_the_command_tells_what_is_wrong(tree: Path, tmp_path: Path) -> None:
    """A file of the machine that cannot be read, a path that is none and a policy without a grant: one line, no
    traceback, and nothing on standard output."""
    for arguments, code, text in (
        (("-g", "/=ro", "--global", tmp_path / "none"), 1, "--global"),
        (("-g", "/=ro", "--extra", tmp_path), 1, "--extra"),
        (("-g", "/=ro", "--start", ""), 1, "--start: empty"),
        ((), 3, "no grant"),
    ):
        done = run("instructions", tree, *arguments)
        assert (done.returncode, done.stdout) == (code, ""), done
        assert done.stderr.startswith("policyfs: ")
        assert text in done.stderr
        assert done.stderr.count("\n") == 1


def test_what_reading_hands_over_is_printed_alone(tree: Path, tmp_path: Path) -> None:
    """--read with --global or --extra, which go around the chain that it does not print, is a usage error."""
    for option in ("--global", "--extra"):
        done = run("instructions", tree, "-g", "/=ro", "--read", "/src/deep/x", option, tmp_path / "none")
        assert (done.returncode, done.stdout) == (2, "")
        assert "--read" in done.stderr
