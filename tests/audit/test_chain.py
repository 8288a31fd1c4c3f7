"""The chain of a journal: in which every change is found that a chain without a key can show."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from policyfs.audit.journal_file import MAX_FILES, files_of
from policyfs.audit.reading import Reader, verify
from policyfs.audit.writer import Journal
from tests.audit.journals import ME, entries, found, lines, write


def test_each_line_names_the_hash_of_the_one_before(path: Path) -> None:
    """Over the files of a daemon; the next daemon begins a chain of its own."""
    for mount in range(3):
        write(path, *(b"/%d/%d" % (mount, number) for number in range(10)), max_bytes=1000)
    assert len(files_of(path)) > 6
    before, seq = b"", 0
    for line in lines(path):
        values = json.loads(line)
        if values["event"] == "file" and values["file"] == 1:
            before, seq = b"", 0
        assert values["previous"] == (hashlib.sha256(before).hexdigest() if before else "0" * 64)
        assert values["seq"] == seq + 1
        before, seq = line, seq + 1
    assert [entry["path"] for entry in entries(path)] == [f"/{mount}/{number}" for mount in range(3) for number in range(10)]
    verdict = verify(path)
    assert (verdict.findings, verdict.lines, verdict.files) == ([], len(lines(path)), len(files_of(path)))
    assert [end.seq for end in verdict.ends.values()] == [seq] * 3


@pytest.mark.parametrize("max_total", [0, 3000, 10_000])
def test_old_files_go(path: Path, max_total: int) -> None:
    """The oldest files go where all exceed the bound, none is much longer than it may be, and what stays is whole."""
    write(path, *(b"/%d" % number for number in range(200)), max_bytes=1000, max_total=max_total)
    files = files_of(path)
    assert len(files) >= 1
    assert sum(file.stat().st_size for file in files) < max_total + 1000 + 4096
    assert all(file.stat().st_size < 1000 + 4096 for file in files)
    assert entries(path)[-1]["path"] == "/199"
    assert found(path) == []


def test_a_file_that_is_written_does_not_go(path: Path) -> None:
    """The file of a daemon that was quiet for long stays, whatever others write; once it has ended it goes."""
    quiet = Journal(path, "quiet")
    quiet.event("mount")
    quiet._write(*quiet._take())
    (file,) = files_of(path)
    write(path, *(b"/%d" % number for number in range(50)), max_bytes=1000, max_total=3000)
    assert file in files_of(path)
    quiet.event("unmount")
    quiet.close()
    assert (found(path), quiet.lost) == ([], 0)
    write(path, *(b"/%d" % number for number in range(50)), max_bytes=1000, max_total=3000)
    assert file not in files_of(path)


def test_one_daemon_makes_room_at_a_time(path: Path) -> None:
    """Of two at once, one would take the file that the other looks at for one that is written, and remove a younger one
    before it: a gap in a chain."""
    write(path, *(b"/%d" % number for number in range(50)), max_bytes=1000)
    before = files_of(path)
    other = os.open(path, os.O_RDONLY)
    fcntl.flock(other, fcntl.LOCK_EX)
    write(path, b"/last", max_bytes=1000, max_total=3000)
    assert files_of(path)[:-1] == before
    os.close(other)
    write(path, b"/last", max_bytes=1000, max_total=3000)
    assert len(files_of(path)) < len(before)
    assert found(path) == []


def test_a_file_that_is_about_to_be_locked_stays(path: Path) -> None:
    """An empty file is one whose daemon has no lock on it yet, unless it is old: then the daemon was killed."""
    path.mkdir(mode=0o700, parents=True)
    new, old = path / "20200101T000000.000000001-1.jsonl", path / "20200101T000000.000000002-1.jsonl"
    new.touch()
    write(path, *(b"/%d" % number for number in range(50)), max_bytes=1000, max_total=3000)
    assert files_of(path)[0] == new
    old.touch()
    os.utime(old, (0, 0))
    write(path, *(b"/%d" % number for number in range(50)), max_bytes=1000, max_total=3000)
    assert new in files_of(path)
    assert old not in files_of(path)


def test_a_reader_can_hold_all_files_open(path: Path) -> None:
    """However many daemons there were, the number of files is bounded."""
    for number in range(MAX_FILES + 10):
        write(path, b"/%d" % number)
    assert len(files_of(path)) == MAX_FILES
    assert entries(path)[-1]["path"] == f"/{MAX_FILES + 9}"
    assert found(path) == []


def test_files_are_their_owners_alone(path: Path) -> None:
    """Whatever the umask, which a daemon has none of."""
    before = os.umask(0)
    try:
        write(path, *(b"/%d" % number for number in range(30)), max_bytes=3000)
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in path.iterdir()} == {0o600}


def test_nothing_is_made_before_there_is_an_entry(path: Path) -> None:
    """A journal is opened when it is first written."""
    journal = Journal(path, "s1")
    journal.close()
    assert not path.exists()


# -- what is found


def _change(path: Path, number: int, make: Callable[[list[bytes]], list[bytes]]) -> None:
    file = files_of(path)[number]
    file.write_bytes(b"".join(make(file.read_bytes().splitlines(keepends=True))))


def _with(place: int, line: bytes = b"") -> Callable[[list[bytes]], list[bytes]]:
    def make(had: list[bytes]) -> list[bytes]:
        had = list(had)
        had[place] = line or had[place].replace(b'"level":"none"', b'"level":"ro__"')
        return had

    return make


def _swap(one: Path, other: Path) -> None:
    had = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(had)


FOUND: dict[str, Callable[[Path], object]] = {
    "a line in the middle is changed": lambda path: _change(path, -1, _with(3)),
    "a line in an older file is changed": lambda path: _change(path, 0, _with(2)),
    "the last line of an older file is changed": lambda path: _change(path, 0, _with(-1)),
    "a blank is added in a line": lambda path: _change(path, -1, lambda had: [*had[:3], b" " + had[3], *had[4:]]),
    "a line becomes no JSON": lambda path: _change(path, -1, _with(3, b"nonsense\n")),
    "a line becomes an empty one": lambda path: _change(path, -1, _with(3, b"\n")),
    "a line becomes other JSON": lambda path: _change(path, -1, _with(3, b"[1]\n")),
    "a line becomes endless JSON": lambda path: _change(path, -1, _with(3, b"[" * 4000 + b"\n")),
    "a line becomes too long": lambda path: _change(path, -1, _with(3, b" " * 5000 + b"\n")),
    "a line is removed": lambda path: _change(path, -1, lambda had: had[:3] + had[4:]),
    "a line of an older file is removed": lambda path: _change(path, 1, lambda had: had[:3] + had[4:]),
    "the first line of a file is removed": lambda path: _change(path, -1, lambda had: had[1:]),
    "the first line of the oldest file is removed": lambda path: _change(path, 0, lambda had: had[1:]),
    "the first lines of the oldest file are removed": lambda path: _change(path, 0, lambda had: had[4:]),
    "the last line of an older file is removed": lambda path: _change(path, 0, lambda had: had[:-1]),
    "all lines of an older file are removed": lambda path: _change(path, 1, lambda had: []),
    "two lines are swapped": lambda path: _change(path, -1, lambda had: [*had[:3], had[4], had[3], *had[5:]]),
    "a line is there twice": lambda path: _change(path, -1, lambda had: [*had[:3], had[3], *had[3:]]),
    "a line is put in": lambda path: _change(path, -1, lambda had: [*had[:3], b'{"event":"grant"}\n', *had[3:]]),
    "a line is put behind": lambda path: _change(path, -1, lambda had: [*had, b'{"event":"grant"}\n']),
    "an older file is removed": lambda path: files_of(path)[1].unlink(),
    "two files are swapped": lambda path: _swap(*files_of(path)[:2]),
    "an older file stands for a later one": lambda path: shutil.copy(files_of(path)[0], files_of(path)[1]),
}

AT_THE_END: dict[str, Callable[[Path], object]] = {
    "the last line is changed": lambda path: _change(path, -1, _with(-1)),
    "the last line is removed": lambda path: _change(path, -1, lambda had: had[:-1]),
    "the end of the last line is removed": lambda path: _change(path, -1, lambda had: [*had[:-1], had[-1][:-20]]),
    "the newline at the end is removed": lambda path: _change(path, -1, lambda had: [*had[:-1], had[-1][:-1]]),
    "all lines of the last file are removed": lambda path: _change(path, -1, lambda had: []),
    "the last file is removed": lambda path: files_of(path)[-1].unlink(),
    "everything is removed": lambda path: [file.unlink() for file in files_of(path)],
}


@pytest.fixture
def three_files(path: Path) -> Journal:
    """A journal of several files, with enough lines in the first and the last."""
    journal = write(path, *(b"/%d" % number for number in range(26)), max_bytes=2500)
    assert len(files_of(path)) > 2
    assert min(len(files_of(path)[number].read_bytes().splitlines()) for number in (0, 1, -1)) > 5
    assert found(path) == []
    return journal


@pytest.mark.parametrize("what", FOUND)
def test_what_was_changed_is_found(path: Path, three_files: Journal, what: str) -> None:
    """At once, and after a later daemon has begun files of its own."""
    before = [file.read_bytes() for file in files_of(path)]
    FOUND[what](path)
    assert before != [file.read_bytes() for file in files_of(path)]
    assert found(path), "found at once"
    later = write(path, b"/later")
    assert (later.lost, later.written) == (0, 1)
    assert found(path), "found afterwards"
    assert entries(path)[-1]["path"] == "/later"


@pytest.mark.parametrize("what", AT_THE_END)
def test_what_is_missing_at_the_end_is_found_by_its_end(path: Path, three_files: Journal, what: str) -> None:
    """The files alone cannot show it; the end that the daemon reported is not where the chain ends."""
    assert list(verify(path).ends.values()) == [three_files.end]
    AT_THE_END[what](path)
    assert list(verify(path).ends.values()) != [three_files.end]


def test_a_finding_says_where(path: Path) -> None:
    """It names the file, the line in it and what is wrong, so that a person can look at it."""
    write(path, *(b"/%d" % number for number in range(9)))
    (file,) = files_of(path)
    whole = file.read_bytes()
    _change(path, 0, lambda had: had[:3] + had[4:])
    assert found(path) == [f"{file.name}, line 4: lines 4 to 4 are missing before it"]
    file.write_bytes(whole)
    _change(path, 0, _with(4))
    assert found(path) == [f"{file.name}, line 6: the line before it was changed, or another is in its place"]


@pytest.mark.parametrize("change", ["shortened", "removed", "written to"])
def test_what_is_changed_under_a_living_daemon_is_reported_by_it(path: Path, change: str) -> None:
    """A daemon that finds its file changed says so in the next, in which it goes on."""
    journal = Journal(path, "s1")
    journal.event("mount")
    journal.refusal("open", b"/a", "none", "denied", "rule", ME)
    journal._write(*journal._take())
    (file,) = files_of(path)
    if change == "shortened":
        _change(path, 0, lambda had: had[:-1])
    elif change == "removed":
        file.unlink()
    else:
        with file.open("ab") as other:
            other.write(b"x\n")
    journal.event("unmount")
    journal.close()
    assert [entry["event"] for entry in entries(path)][-2:] == ["damage", "unmount"]
    assert found(path)
    assert journal.lost == 0


# -- while it is written


WRITER = """
import sys
from policyfs.audit.writer import Journal
journal = Journal(sys.argv[1], "s1", max_bytes=20000, max_total=80000)
number = 0
while True:
    for _ in range(50):
        number += 1
        journal.change("create", b"/%d" % number, "stage", 1)
    journal._write(*journal._take())
    if number == 50:
        print(flush=True)
"""


def test_a_journal_outlives_the_killing_of_its_writers(path: Path) -> None:
    """Whenever that happens and however many write at once, the journal is unbroken, but for a line that was cut off."""
    for _ in range(6):
        writers = [subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE) for _ in range(2)]
        try:
            for writer in writers:
                assert writer.stdout is not None
                writer.stdout.readline()
            for _ in range(10):
                assert found(path) == [], "while they write"
        finally:
            for writer in writers:
                writer.kill()
                writer.communicate()
        verdict = verify(path)
        assert verdict.findings == []
        assert verdict.torn <= 12


def test_a_line_that_was_cut_off_is_counted(path: Path) -> None:
    """It is not a change: its writer was killed."""
    write(path, b"/a")
    with files_of(path)[0].open("ab") as file:
        file.write(b'{"seq":3,')
    verdict = verify(path)
    assert (verdict.findings, verdict.torn, verdict.lines) == ([], 1, 2)


def test_a_journal_is_read_as_it_grows(path: Path) -> None:
    """A reader gets every line once and in order, however often a file is begun between two looks, and no line before it is
    whole."""
    journal = Journal(path, "s1", max_bytes=2000)
    reader = Reader(path)
    assert list(reader.lines()) == []
    got: list[bytes] = []
    for number in range(60):
        for part in range(number % 7):
            journal.change("create", b"/%d/%d" % (number, part), "stage", ME)
        journal._write(*journal._take())
        if number % 3 == 0:
            got += reader.lines()
    got += reader.lines()
    assert list(reader.lines()) == []
    assert got == lines(path)
    assert [json.loads(line)["seq"] for line in got] == list(range(1, len(got) + 1))
    with files_of(path)[-1].open("ab") as file:
        file.write(b'{"half":')
        file.flush()
        assert list(reader.lines()) == []
        assert reader.begun() == b'{"half":'
        file.write(b"1}\n")
    assert list(reader.lines()) == [b'{"half":1}']
    reader.close()
    journal.close()


def test_the_lines_of_two_daemons_come_by_their_times(path: Path) -> None:
    """Two views that write at once, such as two runs of one SOURCE, are read as what happened when, to the microsecond."""
    one, other = Journal(path, "one"), Journal(path, "other")
    for number in range(20):
        before = time.time_ns() // 1000
        while time.time_ns() // 1000 == before:
            pass
        (one, other)[number % 2].change("create", b"/%d" % number, "stage", ME)
    one.close()
    other.close()
    assert [entry["path"] for entry in entries(path)] == [f"/{number}" for number in range(20)]
    assert found(path) == []
