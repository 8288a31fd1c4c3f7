"""The lines of a journal: each entry on a line of its own, whatever its names are."""

from __future__ import annotations

import base64
import hashlib
import json
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from policyfs.audit import event
from policyfs.audit.writer import Journal
from tests.audit import journals
from tests.audit.journals import ME, entries, found, lines

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
    written = journals.text(path)
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
    assert len(entries(path, "refusal")) == 7, "a new gathering counts again"


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
