"""The journal: each entry on a line of its own whatever its names, a chain in which every change is found, and no cost or
fault of it in a handler."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from policyfs.audit import event, journal_file
from policyfs.audit.journal_file import head_path, set_aside
from policyfs.audit.reading import Reader, files_of, verify
from policyfs.audit.writer import Journal

ME = os.getpid()
NOBODY = 2**22 + 1
"""A process number that Linux never gives: beyond PID_MAX_LIMIT."""

HOSTILE = [
    b"/a\x1b[2J",
    b'/x\n{"event":"grant"}',
    "/right\u202eleft".encode(),
    b"/\xff\xfe",
    b"/\xed\xb3\xbf",
    b'/"\\\\"',
    b"/\x7f\xc2\x85\xe2\x80\xa8\xe2\x80\x8b",
    b"/" + bytes(range(1, 0x2F)),
    b"/" + "\U0001f600".encode() * 60,
]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a journal is to be, in a directory that is not there yet."""
    return tmp_path / "journal" / "view.jsonl"


def lines(path: Path) -> list[bytes]:
    """Every whole line of a journal, over all its files."""
    reader = Reader(path)
    try:
        return list(reader.lines())
    finally:
        reader.close()


def entries(path: Path, *events: str) -> list[dict[str, Any]]:
    """The entries of these events; all but where a file begins where none is named."""
    values = [json.loads(line) for line in lines(path)]
    return [value for value in values if (value["event"] in events if events else value["event"] != "file")]


def write(path: Path, *names: bytes, most_bytes: int = 1 << 20, kept: int = 4) -> Journal:
    """A journal with a refusal for each name, closed."""
    journal = Journal(path, "s1", most_bytes=most_bytes, kept=kept)
    for name in names:
        journal.refusal("open", name, "none", "denied", 'grant "/" = none', ME)
    journal.close()
    return journal


def found(path: Path) -> list[str]:
    """What is wrong with a journal, in words."""
    return [str(finding) for finding in verify(path).findings]


# -- what a line says


def test_an_entry_of_each_kind(path: Path) -> None:
    """A refusal, a change, an opening and an event each have their fields and no other, in the order they came."""
    journal = Journal(path, "session-1")
    journal.event("mount", source="/tree", process=7)
    journal.refusal("lookup", b"/Notes/a", "none", "denied", "floor", ME)
    journal.change("rename", b"/a", "stage", NOBODY, to=b"/b")
    journal.change("create", b"/c", "commit", ME)
    journal.opened(b"/d", "ro", ME)
    journal.close()
    came = entries(path)
    mine = Path(f"/proc/{ME}/comm").read_text().strip()
    common = {"seq", "time", "session", "event", "previous"}
    assert [{key: value for key, value in entry.items() if key not in common} for entry in came] == [
        {"source": "/tree", "process": 7},
        {"operation": "lookup", "path": "/Notes/a", "level": "none", "refusal": "denied", "rule": "floor"}
        | {"pid": ME, "command": mine},
        {"operation": "rename", "path": "/a", "to": "/b", "level": "stage", "pid": NOBODY, "command": None},
        {"operation": "create", "path": "/c", "level": "commit", "pid": ME, "command": mine},
        {"operation": "open", "path": "/d", "level": "ro", "pid": ME, "command": mine},
    ]
    assert [entry["event"] for entry in came] == ["mount", "refusal", "change", "change", "open"]
    assert {entry["session"] for entry in came} == {"session-1"}
    assert [entry["seq"] for entry in came] == [2, 3, 4, 5, 6]
    assert all(common <= entry.keys() for entry in came)
    assert (journal.written, journal.lost) == (5, 0)


@pytest.mark.parametrize("name", HOSTILE)
def test_no_name_breaks_a_line(path: Path, name: bytes) -> None:
    """Whatever bytes a name has, as a path, a target, a rule or a field of an event: one line of printable ASCII, and the
    bytes can be had back."""
    journal = Journal(path, "s\n1")
    text = name.decode("utf-8", "surrogateescape")
    journal.refusal("open", name, "none", "denied", text, ME)
    journal.change("rename", b"/from", "stage", ME, to=name)
    journal.event("grant", path=text)
    journal.close()
    written = path.read_bytes()
    assert written.count(b"\n") == len(lines(path)) == 4
    assert all(line.decode("ascii").isprintable() for line in lines(path))
    refusal, change, grant = entries(path)
    for had, field in ((refusal, "path"), (change, "to"), (refusal, "rule"), (grant, "path")):
        assert had[field].encode("utf-8", "surrogateescape") == name
    try:
        name.decode()
    except UnicodeDecodeError:
        assert base64.b64decode(refusal["path_bytes"]) == base64.b64decode(change["to_bytes"]) == name
    else:
        assert "path_bytes" not in refusal
    assert [grant["event"], grant["session"]] == ["grant", "s\n1"]
    assert found(path) == []


def test_an_event_cannot_pass_for_another(path: Path) -> None:
    """Fields that are called as the journal's own do not take their place."""
    journal = Journal(path, "s1")
    journal.event("grant", seq=99, previous="0", session="other", event="unmount", time="never")
    journal.close()
    (grant,) = entries(path)
    assert (grant["seq"], grant["session"], grant["event"]) == (2, "s1", "grant")
    assert grant["time"] != "never"
    assert found(path) == []


@pytest.mark.parametrize("piece", [b"/abcdefg", b"/\x1b\xff", "/\U0001f600".encode()])
@pytest.mark.parametrize("length", [3000, 4095, 100_000])
def test_a_line_has_at_most_4096_bytes(path: Path, piece: bytes, length: int) -> None:
    """A path that is too long for a line is cut, with its length and the hash of all of it; so is a long rule."""
    name = (piece * length)[:length]
    journal = Journal(path, "s1")
    journal.change("rename", name, "stage", ME, to=name)
    journal.refusal("open", name, "none", "denied", "r" * length, ME)
    journal.event("grant", path="p" * length)
    journal.close()
    assert all(len(line) < 4096 for line in lines(path))
    change, refusal, grant = entries(path)
    for entry, field, whole in (
        (change, "path", name),
        (change, "to", name),
        (refusal, "path", name),
        (refusal, "rule", b"r" * length),
        (grant, "path", b"p" * length),
    ):
        if f"{field}_length" in entry or length > 4000:
            assert entry[f"{field}_length"] == length
            assert entry[f"{field}_sha256"] == hashlib.sha256(whole).hexdigest()
            assert whole.startswith(entry[field].encode("utf-8", "surrogateescape"))
            assert len(entry[field]) >= 64 or field == "rule"
        else:
            assert entry[field].encode("utf-8", "surrogateescape") == whole
    assert found(path) == []


def test_what_cannot_be_cut_to_a_line_is_told_as_such(path: Path) -> None:
    """More fields than a line can hold leave a line that says so, and the chain goes on."""
    journal = Journal(path, "s1")
    journal.event("many", **{f"field_{number}": number for number in range(1000)})
    journal.event("unmount")
    journal.close()
    assert [entry["event"] for entry in entries(path)] == ["too long", "unmount"]
    assert found(path) == []


def test_the_name_of_a_process_is_one_it_may_have_chosen(path: Path) -> None:
    """A process can call itself what it likes: the name breaks no line. It is read while
    the process waits, which may be gone when the line is written; one that was gone before has none."""
    program = "open('/proc/self/comm','wb').write(b'\\x1b[2J\\xff\\n{\"a'); print(flush=True); input()"
    process = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        process.stdout.readline()
        journal = Journal(path, "s1")
        journal.opened(b"/a", "ro", process.pid)
        process.communicate(b"\n")
        journal.close()
    journal = Journal(path, "s1")
    journal.opened(b"/a", "ro", process.pid)
    journal.opened(b"/a", "ro", 0)
    journal.close()
    assert [entry["command"] for entry in entries(path)] == ['\x1b[2J\udcff\n{"a', None, None]
    assert found(path) == []


def test_a_repeated_refusal_is_counted(path: Path) -> None:
    """The same for the same process is one line with how many times; another process, path, operation, rule or refusal is
    another, and changes are told one by one."""
    journal = Journal(path, "s1")
    same = ("open", b"/a", "none", "denied", "rule", ME)
    others = [
        ("stat", *same[1:]),
        (same[0], b"/b", *same[2:]),
        (*same[:3], "missing", *same[4:]),
        (*same[:4], "other rule", same[5]),
        (*same[:5], NOBODY),
    ]
    for _ in range(1000):
        journal.refusal(*same)
    for other in others:
        journal.refusal(*other)
        journal.refusal(*same)
    for _ in range(3):
        journal.change("create", b"/a", "stage", ME)
    journal.close()
    refusals = entries(path, "refusal")
    assert [refusal.get("times") for refusal in refusals] == [1005, None, None, None, None, None]
    assert len(entries(path, "change")) == 3
    journal.refusal(*same)
    journal.close()
    assert len(entries(path, "refusal")) == 7, "a new gathering counts anew"


def test_a_refusal_is_counted_by_what_it_is_known_as(path: Path) -> None:
    """Nothing is counted before it was noted, and what is known as something is counted by that alone, for one
    gathering."""
    journal = Journal(path, "s1")
    assert not journal.repeated("a")
    for name in ("a", "b"):
        journal.refusal("open", b"/" + name.encode(), "none", "denied", "rule", ME, name)
    for _ in range(4):
        assert journal.repeated("b")
    journal.close()
    assert not journal.repeated("b")
    assert [(entry["path"], entry.get("times")) for entry in entries(path, "refusal")] == [("/a", None), ("/b", 5)]


# -- the chain


def test_each_line_names_the_hash_of_the_one_before(path: Path) -> None:
    """From the first line of all, over files that were set aside and from one mount of a place to the next."""
    for mount in range(4):
        write(path, *(b"/%d/%d" % (mount, number) for number in range(10)), most_bytes=3000, kept=100)
    assert len(files_of(path)) > 3
    before = b""
    for number, line in enumerate(lines(path), 1):
        values = json.loads(line)
        assert values["previous"] == (hashlib.sha256(before).hexdigest() if before else "0" * 64)
        assert values["seq"] == number
        before = line
    assert [entry["path"] for entry in entries(path)] == [f"/{mount}/{number}" for mount in range(4) for number in range(10)]
    verdict = verify(path)
    assert (verdict.findings, verdict.lines, verdict.files) == ([], number, len(files_of(path)))


@pytest.mark.parametrize("kept", [0, 1, 4])
def test_old_files_go(path: Path, kept: int) -> None:
    """Of the files that were set aside the last few stay, none much longer than it may be, and the chain from the oldest is
    whole all the same."""
    write(path, *(b"/%d" % number for number in range(200)), most_bytes=3000, kept=kept)
    assert len(set_aside(path)) == kept
    assert all(file.stat().st_size < 3000 + 4096 for file in files_of(path))
    first = [json.loads(file.read_bytes().partition(b"\n")[0]) for file in files_of(path)]
    last = first[-1]["file"]
    assert [line["file"] for line in first] == list(range(last - kept, last + 1))
    assert entries(path)[-1]["path"] == "/199"
    assert found(path) == []


def test_files_are_their_owners_alone(path: Path) -> None:
    """Whatever the umask, which a daemon has none of."""
    before = os.umask(0)
    try:
        write(path, *(b"/%d" % number for number in range(30)), most_bytes=3000)
    finally:
        os.umask(before)
    assert path.parent.stat().st_mode & 0o777 == 0o700
    assert {file.stat().st_mode & 0o777 for file in path.parent.iterdir()} == {0o600}
    assert {file.name for file in path.parent.iterdir()} == {
        path.name,
        head_path(path).name,
        *(file.name for file in set_aside(path).values()),
    }


def test_nothing_is_made_before_there_is_an_entry(path: Path) -> None:
    """A journal is opened when it is first written."""
    journal = Journal(path, "s1")
    journal.close()
    assert not path.parent.exists()


# -- what is found


def _change(path: Path, number: int, make: Callable[[list[bytes]], list[bytes]]) -> None:
    file = files_of(path)[number]
    text = make(file.read_bytes().splitlines(keepends=True))
    file.write_bytes(b"".join(text))


def _with(place: int, line: bytes) -> Callable[[list[bytes]], list[bytes]]:
    def make(had: list[bytes]) -> list[bytes]:
        had = list(had)
        had[place] = line or had[place].replace(b'"level":"none"', b'"level":"ro__"')
        return had

    return make


def _swapped(had: list[bytes]) -> list[bytes]:
    return [*had[:3], had[4], had[3], *had[5:]]


TAMPERINGS: dict[str, Callable[[Path], object]] = {
    "a line in the middle is changed": lambda path: _change(path, -1, _with(3, b"")),
    "the last line is changed": lambda path: _change(path, -1, _with(-1, b"")),
    "a line in an older file is changed": lambda path: _change(path, 0, _with(2, b"")),
    "the last line of an older file is changed": lambda path: _change(path, 0, _with(-1, b"")),
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
    "the last line is removed": lambda path: _change(path, -1, lambda had: had[:-1]),
    "the last line of an older file is removed": lambda path: _change(path, 0, lambda had: had[:-1]),
    "the end of the last line is removed": lambda path: _change(path, -1, lambda had: [*had[:-1], had[-1][:-20]]),
    "the newline at the end is removed": lambda path: _change(path, -1, lambda had: [*had[:-1], had[-1][:-1]]),
    "all lines of the last file are removed": lambda path: _change(path, -1, lambda had: []),
    "all lines of an older file are removed": lambda path: _change(path, 1, lambda had: []),
    "all lines of the oldest file are removed": lambda path: _change(path, 0, lambda had: []),
    "two lines are swapped": lambda path: _change(path, -1, _swapped),
    "a line is there twice": lambda path: _change(path, -1, lambda had: [*had[:3], had[3], *had[3:]]),
    "a line is put in": lambda path: _change(path, -1, lambda had: [*had[:3], b'{"event":"grant"}\n', *had[3:]]),
    "a line is put behind": lambda path: _change(path, -1, lambda had: [*had, b'{"event":"grant"}\n']),
    "a torn line is put in": lambda path: _change(path, -1, lambda had: [*had[:3], b'{"event":\n', *had[3:]]),
    "an older file is removed": lambda path: files_of(path)[1].unlink(),
    "the oldest file is removed": lambda path: files_of(path)[0].unlink(),
    "the last file is removed": lambda path: path.unlink(),
    "two files are swapped": lambda path: _swap(*files_of(path)[:2]),
    "an older file stands for a later one": lambda path: shutil.copy(files_of(path)[0], files_of(path)[1]),
    "the head is removed": lambda path: head_path(path).unlink(),
    "the head is emptied": lambda path: head_path(path).write_bytes(b""),
    "the head is nonsense": lambda path: head_path(path).write_bytes(b'{"seq": -1}'),
    "everything but the head is removed": lambda path: [file.unlink() for file in files_of(path)],
    "everything but the last file is removed": lambda path: [
        file.unlink() for file in [*set_aside(path).values(), head_path(path)]
    ],
}


def _swap(one: Path, other: Path) -> None:
    had = one.read_bytes()
    one.write_bytes(other.read_bytes())
    other.write_bytes(had)


@pytest.mark.parametrize("kept", [2, 100])
@pytest.mark.parametrize("what", TAMPERINGS)
def test_what_was_changed_is_found(path: Path, what: str, kept: int) -> None:
    """At once, and after a later mount has gone on with the journal."""
    names = [b"/%d" % number for number in range(40)]
    write(path, *names, most_bytes=3000, kept=kept)
    assert len(files_of(path)) > 2
    assert len(path.read_bytes().splitlines()) > 5
    assert found(path) == []
    before = {file: file.read_bytes() for file in path.parent.iterdir()}
    TAMPERINGS[what](path)
    assert before != {file: file.read_bytes() for file in path.parent.iterdir()}
    assert found(path), "found at once"
    journal = write(path, b"/later", kept=kept, most_bytes=1 << 20)
    assert (journal.lost, journal.written) == (0, 1), "the journal goes on"
    assert found(path), "found after somebody went on"
    assert entries_that_can_be_read(path)[-1]["path"] == "/later"


def entries_that_can_be_read(path: Path) -> list[dict[str, Any]]:
    """The entries of a journal that was changed."""
    return [values for line in lines(path) if (values := journal_file.parsed(line)) is not None]


def test_a_finding_says_where(path: Path) -> None:
    """It names the file, the line in it and what is wrong, so that a person can look at it."""
    write(path, *(b"/%d" % number for number in range(9)))
    _change(path, 0, lambda had: had[:3] + had[4:])
    assert found(path) == ["view.jsonl, line 4: lines 4 to 4 are missing before it"]
    write(path.with_name("other.jsonl"), *(b"/%d" % number for number in range(9)))
    _change(path.with_name("other.jsonl"), 0, _with(4, b""))
    assert found(path.with_name("other.jsonl")) == [
        "other.jsonl, line 5: line 5 was changed, or another stands in its place"
    ]


def test_what_is_changed_under_a_living_daemon_is_told_by_it(path: Path) -> None:
    """A daemon that finds the end of its journal changed says so in the journal, and goes on behind it."""
    journal = Journal(path, "s1")
    journal.event("mount")
    journal.refusal("open", b"/a", "none", "denied", "rule", ME)
    journal._write(*journal._take())
    _change(path, 0, lambda had: had[:-1])
    journal.event("unmount")
    journal.close()
    assert [entry["event"] for entry in entries(path)] == ["mount", "damage", "unmount"]
    assert found(path)


@pytest.mark.parametrize("when", [0, 999, 1_000_000_000, 1795955196072328123, 2**63 - 1])
def test_the_time_of_a_line(when: int) -> None:
    """UTC, to the microsecond, whatever the clock says."""
    lines_of = event.Lines("s1")
    for moment in (when, when + 1, when):
        line = json.loads(lines_of.line(1, event.BEGINNING, (moment, event.Event("mount"), 1), None))
        told = datetime.fromisoformat(line["time"])
        assert told == datetime.fromtimestamp(moment // 1_000_000_000, UTC) + timedelta(
            microseconds=moment // 1000 % 1_000_000
        )
