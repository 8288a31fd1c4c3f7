"""`policyfs log`: a journal as a person reads it, as a program does, as it grows, and whether it is as it was written."""

from __future__ import annotations

import contextlib
import json
import os
import re
import select
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from policyfs.audit.journal_file import files_of
from policyfs.audit.writer import Journal
from policyfs.cli import log
from policyfs.host.places import mount_name
from policyfs.policy.paths import HostPath
from tests.cli.program import DONE, FAILED, PLACE, PROGRAM, USAGE, policyfs

TIMEOUT = 30
"""Seconds to wait for what takes milliseconds."""

HOSTILE = [b"/a\x1b[2J", b'/x\n{"event":"grant"}', "/right\u202eleft".encode(), b"/\xff\xfe", b"/\xc2\x9b31m"]


@pytest.fixture
def point(tmp_path: Path) -> Path:
    """Where a view was mounted; nothing stands there any more."""
    return tmp_path / "view"


@pytest.fixture
def path(home: Path, point: Path) -> Path:
    """Where the journal of that view is."""
    return home / ".local/state/policyfs/journal" / mount_name(HostPath(os.fsencode(point)))


def filled(path: Path, count: int = 1, max_bytes: int = 1 << 20) -> Journal:
    """A journal with so many refusals, changes and openings, between a mount and an unmount."""
    journal = Journal(path, "s1", max_bytes=max_bytes)
    journal.event("mount", source="/tree")
    for number in range(count):
        for _ in range(number + 1):
            journal.refusal("lookup", b"/Notes/%d" % number, "none", "NOT_A_WORD", 'grant "/Notes" = none', os.getpid())
        journal.change("rename", b"/a%d" % number, "stage", os.getpid(), to=b"/b")
        journal.opened(b"/c%d" % number, "ro", 0)
    journal.event("unmount")
    journal.close()
    return journal


def test_a_line_for_each_entry(home: Path, point: Path, path: Path) -> None:
    """When, what, where, the refusal and the rule that decided, and who; for a view that has long ended."""
    filled(path, 2)
    said = policyfs("log", point, home=home)
    assert (said.code, said.errors) == (DONE, [])
    lines = said.output.splitlines()
    assert all(re.match(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d  ", line) for line in lines)
    command = Path(f"/proc/{os.getpid()}/comm").read_text().strip()
    me = f"{command}[{os.getpid()}]"
    assert [re.split(r" {2,}", line)[1:] for line in lines] == [
        ["file", "format=2", f"daemon={files_of(path)[0].stem}", "file=1"],
        ["mount", "source=/tree"],
        ["refused", "lookup", "/Notes/0", 'not-a-word by grant "/Notes" = none', me],
        ["changed", "rename", "/a0 to /b", "stage", me],
        ["opened", "open", "/c0", "ro", "?[0]"],
        ["refused", "lookup", "/Notes/1", 'not-a-word by grant "/Notes" = none', me, "2 times"],
        ["changed", "rename", "/a1 to /b", "stage", me],
        ["opened", "open", "/c1", "ro", "?[0]"],
        ["unmount"],
    ]


def test_what_is_asked_for(home: Path, point: Path, path: Path) -> None:
    """--denied gives the refusals alone, -n the last so many of what is asked for, --json the lines as they are."""
    filled(path, 5, max_bytes=700)
    whole = [json.loads(line) for line in policyfs("log", point, "--json", home=home).output.splitlines()]
    assert [entry["seq"] for entry in whole] == list(range(1, len(whole) + 1))
    denied = policyfs("log", point, "--denied", home=home).output.splitlines()
    assert len(denied) > 2
    assert all("  refused  " in line for line in denied)
    assert policyfs("log", point, "--denied", "-n", "2", home=home).output.splitlines() == denied[-2:]
    assert policyfs("log", point, "-n", "0", home=home).output == ""
    last = policyfs("log", point, "--denied", "--json", "-n", "1", home=home).output
    assert json.loads(last) == [entry for entry in whole if entry["event"] == "refusal"][-1]


def test_a_name_cannot_pass_for_a_refusal(home: Path, point: Path, path: Path) -> None:
    """--denied goes by what a line is, whatever stands in its names."""
    journal = Journal(path, "s1")
    journal.change("create", b'/"event":"refusal"', "stage", 0)
    journal.event("grant", path='"event":"refusal"')
    journal.close()
    assert policyfs("log", point, "--denied", home=home).output == ""


@pytest.mark.parametrize("name", HOSTILE)
@pytest.mark.parametrize("options", [[], ["--json"], ["--denied"]])
def test_no_name_breaks_a_line_or_a_terminal(home: Path, point: Path, path: Path, name: bytes, options: list[str]) -> None:
    """Each entry is one line of printable characters (`policyfs` looks at every one), whatever the names, the names of
    processes and the fields of events are."""
    journal = Journal(path, "s1")
    text = name.decode("utf-8", "surrogateescape")
    for _ in range(3):
        journal.change("rename", name, "stage", 0, to=name)
        journal.event("grant", path=text, to=text)
    journal.refusal("open", name, text, text, text, 0)
    journal.close()
    said = policyfs("log", point, *options, home=home)
    assert (said.code, said.errors) == (DONE, [])
    assert len(said.output.splitlines()) == (1 if options == ["--denied"] else 8)


FOREIGN = [
    b"\x1b[2J\xff nonsense",
    b'{"seq":1}',
    b"[" * 3000,
    b'{"seq":2,"event":"refusal","previous":"","path":["\\u001b[2J"],"time":12,"rule":{"a":[]},"pid":"\\u202e","times":1e999}',
    b'{"seq":2,"event":"change","previous":"","time":"9999-12-31T23:59:59Z","to":null,"path_length":"\\n"}',
    b'{"seq":2,"event":"\\u001b[2J","previous":"","\\u001b[2J":"\\u001b[2J","time":"\\u001b[2J"}',
    b'{"seq":2,\r"event":"x","previous":"","x":' + b"1" * 4000 + b"}",
    b"",
]


@pytest.mark.parametrize("options", [[], ["--json"], ["--denied"], ["--json", "--denied"]])
def test_a_line_that_somebody_else_wrote(home: Path, point: Path, path: Path, options: list[str]) -> None:
    """Whatever stands in the file is printed as printable lines or as JSON, and ends nothing."""
    filled(path)
    with files_of(path)[-1].open("ab") as file:
        file.write(b"\n".join([*FOREIGN, b'{"half']))
    said = policyfs("log", point, *options, home=home)
    assert (said.code, said.errors) == (DONE, [])
    if "--json" in options:
        assert all(isinstance(json.loads(line), dict) for line in said.output.splitlines())
    if "--denied" not in options:
        assert len(said.output.splitlines()) == 6 + len(FOREIGN) + 1


# -- whether it is as it was written


def test_a_journal_as_it_was_written(home: Path, point: Path, path: Path) -> None:
    """--verify says so, with how much it looked at, and what the journal itself tells of."""
    filled(path, 10, max_bytes=1500)
    said = policyfs("log", point, "--verify", home=home)
    assert (said.code, said.errors) == (DONE, [])
    first, last = said.output.splitlines()
    assert re.fullmatch(r"unbroken: \d+ lines in \d files", first)
    assert re.fullmatch(r"the last daemon, \S+, ends with line \d+, sha256 \w{64}", last)
    with files_of(path)[-1].open("ab") as file:
        file.write(b'{"torn')
    said = policyfs("log", point, "--verify", home=home)
    assert "1 cut off when the daemon was killed, or being written" in said.output.splitlines()


@pytest.mark.parametrize("change", ["changed", "removed", "nonsense"])
def test_a_journal_that_was_changed(home: Path, point: Path, path: Path, change: str) -> None:
    """--verify names each fault, and ends with 1."""
    filled(path, 3)
    (file,) = files_of(path)
    lines = file.read_bytes().splitlines(keepends=True)
    if change == "changed":
        lines[2] = lines[2].replace(b"NOT_A_WORD", b"IS_A_WORD")
    elif change == "nonsense":
        lines[3] = b"\x1b[2J\n"
    else:
        del lines[3]
    file.write_bytes(b"".join(lines))
    messages = policyfs("log", point, "--verify", home=home).fault(FAILED)
    assert len(messages) == 1
    assert messages[0].startswith(f"{file.name}, line ")


@pytest.mark.parametrize("what", ["link", "directory", "fifo"])
@pytest.mark.parametrize("which", [0, -1])
def test_what_is_not_a_file_where_one_was(home: Path, point: Path, path: Path, what: str, which: int) -> None:
    """A link, a directory or a fifo in the place of a file of the journal is named, neither followed nor waited for, and
    never taken for a file that is as it was written."""
    filled(path, 3, max_bytes=1500)
    place, elsewhere = files_of(path)[which], home / "elsewhere"
    place.rename(elsewhere)
    if what == "link":
        place.symlink_to(elsewhere)
    elif what == "directory":
        place.mkdir()
    else:
        os.mkfifo(place)
    (message,) = policyfs("log", point, "--verify", home=home).fault(FAILED)
    assert str(place) in message


def test_what_cannot_be_asked(home: Path, point: Path, path: Path) -> None:
    """A view that never was has no journal, which is told as such; --verify goes with nothing else."""
    assert "you have mounted no view there" in policyfs("log", point, home=home).fault(PLACE)[0]
    assert str(point) in policyfs("log", point, "--verify", home=home).fault(PLACE)[0]
    filled(path)
    for option in (["-f"], ["--denied"], ["--json"], ["-n", "1"]):
        assert policyfs("log", point, "--verify", *option, home=home).code == USAGE
    assert policyfs("log", point, "-n", "-1", home=home).code == USAGE
    assert policyfs("log", "", home=home).fault(PLACE)


# -- as it grows


class Following:
    """A run of `policyfs log -f`."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._come = b""

    def lines(self, count: int) -> list[str]:
        """The next so many lines."""
        assert self.process.stdout is not None
        while self._come.count(b"\n") < count:
            ready, _, _ = select.select([self.process.stdout], [], [], TIMEOUT)
            assert ready, f"{count} lines did not come, but {self._come!r}"
            text = os.read(self.process.stdout.fileno(), 1 << 16)
            assert text, f"it ended with {self._come!r}"
            self._come += text
        *lines, self._come = self._come.split(b"\n", count)
        return [line.decode() for line in lines]


@contextlib.contextmanager
def following(home: Path, *arguments: str | Path, wrapped: tuple[str, ...] = ()) -> Iterator[Following]:
    """Follow a journal; ended with Ctrl-C where it has not ended."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PYTHON"))}
    process = subprocess.Popen(
        [*wrapped, *PROGRAM, "log", *arguments, "-f"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        env={**environment, "HOME": str(home)},
    )
    with process:
        try:
            yield Following(process)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            try:
                process.wait(TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                raise


def append(journal: Journal, *names: bytes) -> None:
    """Write a change for each name, now."""
    for name in names:
        journal.change("create", name, "stage", 0)
    journal.close()


@pytest.mark.parametrize(
    "wrapped", [(), ("unshare", "-Ur", "sh", "-c", 'echo 0 >/proc/sys/user/max_inotify_instances; exec "$@"', "sh")]
)
def test_a_journal_is_followed(home: Path, point: Path, path: Path, wrapped: tuple[str, ...]) -> None:
    """-f begins with the last ten lines and goes on with each that comes, also after the file was set aside, until Ctrl-C.
    Where the kernel gives no watch it looks once a second."""
    if wrapped and subprocess.run([*wrapped, "true"], check=False, capture_output=True).stderr:
        pytest.skip("a user namespace of its own cannot be had here")
    journal = filled(path, 20)
    with following(home, point, wrapped=wrapped) as run:
        assert len(run.lines(10)) == 10
        append(journal, b"/one")
        assert "  /one  " in run.lines(2)[1], "behind the line with which the next file begins"
        small = Journal(path, "s2", max_bytes=500)
        for number in range(2 if wrapped else 20):
            append(small, b"/%d" % number, b"/%d/x" % number)
            seen: list[str] = []
            while len(seen) < 2:
                seen += [line for line in run.lines(1) if "  changed  " in line]
            assert [f"  /{number}  " in seen[0], f"  /{number}/x  " in seen[1]] == [True, True]
        assert len(files_of(path)) > 3
        run.process.send_signal(signal.SIGINT)
        assert run.process.wait(TIMEOUT) == 130
        assert run.process.stderr is not None
        assert run.process.stderr.read() == b""


def test_only_what_is_asked_for_is_followed(home: Path, point: Path, path: Path) -> None:
    """-f with -n, --denied and --json gives what these give."""
    journal = filled(path, 20)
    with following(home, point, "-n", "1", "--denied", "--json") as run:
        assert json.loads(run.lines(1)[0])["path"] == "/Notes/19"
        append(journal, b"/changed")
        journal.refusal("open", b"/refused", "none", "denied", "rule", 0)
        journal.close()
        assert json.loads(run.lines(1)[0])["path"] == "/refused"


def test_following_ends_when_nobody_reads(home: Path, point: Path, path: Path) -> None:
    """Whoever reads the output leaves: it ends at once, and does not wait for a line that it could not print."""
    filled(path)
    with following(home, point) as run:
        run.lines(2)
        assert run.process.stdout is not None
        run.process.stdout.close()
        assert run.process.wait(TIMEOUT) == FAILED
        assert run.process.stderr is not None
        assert run.process.stderr.read() == b""


@pytest.mark.parametrize(("status", "comes"), [({"written": 0, "lost": 0}, True), (None, False)])
def test_the_first_lines_of_a_new_view_are_waited_for(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, status: dict[str, int] | None, comes: bool
) -> None:
    """Where a view that keeps a journal is mounted and has written nothing yet, its journal is one that comes."""
    journal = tmp_path / "view"
    journal.mkdir()
    monkeypatch.setattr(log.client, "mounted_view", lambda text: HostPath(os.fsencode(text)))
    monkeypatch.setattr(log.client, "ask", lambda point, request: {"journal": status})
    monkeypatch.setattr(log.time, "sleep", lambda seconds: (journal / "a.jsonl").touch())
    assert log._comes("/view", journal) is comes
