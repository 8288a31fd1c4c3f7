"""A journal whose writer is killed, whose disk is full, that cannot be opened, and that two write at once; and that none of
it costs a handler anything."""

from __future__ import annotations

import fcntl
import gc
import json
import os
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
import trio
import trio.testing

from policyfs.audit import journal_file
from policyfs.audit import writer as module
from policyfs.audit.journal_file import Head, head_path, set_aside
from policyfs.audit.reading import Reader, files_of, verify
from policyfs.audit.writer import Journal
from tests.mount.test_journal import ME, entries, entries_that_can_be_read, found, lines, write


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a journal is to be, in a directory that is not there yet."""
    return tmp_path / "journal" / "view.jsonl"


# -- killed


WRITER = """
import sys
from policyfs.audit.writer import Journal
journal = Journal(sys.argv[1], "s1", most_bytes=20000, kept=3)
number = 0
while True:
    for _ in range(50):
        number += 1
        journal.change("create", b"/%d" % number, "stage", 1)
    journal._write(*journal._take())
    if number == 50:
        print(flush=True)
"""


def test_a_journal_outlives_the_killing_of_its_writer(path: Path) -> None:
    """Whenever that happens, setting files aside included: the journal is unbroken then and after the next went on."""
    for round_ in range(6):
        with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE) as writer:
            try:
                assert writer.stdout is not None
                writer.stdout.readline()
                head = head_path(path).read_bytes()
                # Somewhere in what it does, which differs from run to run.
                while head_path(path).read_bytes() == head:
                    assert writer.poll() is None
            finally:
                writer.kill()
        assert found(path) == []
        write(path, b"/after/%d" % round_, most_bytes=20000, kept=3)
        assert found(path) == []
        assert entries_that_can_be_read(path)[-1]["path"] == f"/after/{round_}"


@pytest.mark.parametrize("most_bytes", [1, 1 << 20])
@pytest.mark.parametrize("length", [1, 20, 200, 4000])
def test_a_torn_line_is_ended_and_told(path: Path, length: int, most_bytes: int) -> None:
    """What a killed writer left of a line, beyond the head, is no fault; the next to write says that it was found so."""
    write(path, b"/a", b"/b", most_bytes=most_bytes)
    torn = (b'{"seq":4,"time":"' + b"x" * 5000)[:length]
    with path.open("ab") as file:
        file.write(torn)
    assert (found(path), verify(path).torn) == ([], 1)
    torn_file = files_of(path)[-1].read_bytes()
    write(path, b"/c", most_bytes=most_bytes)
    assert (found(path), verify(path).torn) == ([], 1)
    values = [json.loads(line) for line in lines(path) if line != torn]
    told = [(value["event"], value.get("path"), value.get("bytes")) for value in values if value["event"] != "file"]
    assert told == [
        ("refusal", "/a", None),
        ("refusal", "/b", None),
        ("torn", None, length),
        ("refusal", "/c", None),
    ]
    # Told, it cannot be changed any more.
    (file,) = [file for file in files_of(path) if file.read_bytes().startswith(torn_file)]
    file.write_bytes(torn_file.removesuffix(torn) + b"#" * length + file.read_bytes().removeprefix(torn_file))
    assert found(path)


def test_lines_that_the_head_does_not_know_are_taken_for_what_they_are(path: Path) -> None:
    """A writer that was killed between its lines and the head has written its lines."""
    write(path, b"/a")
    head = head_path(path).read_bytes()
    write(path, b"/b", b"/c")
    head_path(path).write_bytes(head)
    assert found(path) == []
    write(path, b"/d")
    assert found(path) == []
    assert [entry["path"] for entry in entries(path)] == ["/a", "/b", "/c", "/d"]


@pytest.mark.parametrize("step", ["renamed", "made", "begun"])
def test_a_writer_is_killed_as_it_sets_a_file_aside(path: Path, step: str) -> None:
    """After each step of it the next finds its way, and nothing is a fault."""
    write(path, b"/a", b"/b")
    head = head_path(path).read_bytes()
    if step == "begun":
        write(path, b"/c", most_bytes=1)
        head_path(path).write_bytes(head)
    else:
        path.rename(path.with_name(path.name + ".1"))
        if step == "made":
            path.touch(0o600)
    assert found(path) == []
    write(path, b"/d")
    assert found(path) == []
    came = entries(path)
    assert [entry["path"] for entry in came] == [*(["/a", "/b", "/c"] if step == "begun" else ["/a", "/b"]), "/d"]
    assert [file.name for file in files_of(path)] == ["view.jsonl.1", "view.jsonl"]


class _Killed(BaseException):
    """Nothing of the writer runs any more."""


class _System:
    """`os`, which ends the writer at one of the calls that change something; a write is half done by then."""

    CHANGES = ("write", "pwrite", "rename", "link", "unlink", "open", "ftruncate", "fchmod")

    def __init__(self, after: int) -> None:
        self.left = after

    def __getattr__(self, name: str) -> Any:
        real = getattr(os, name)
        if name not in self.CHANGES:
            return real

        def call(*arguments: Any, **named: Any) -> Any:
            self.left -= 1
            if self.left < 0:
                if name == "write":
                    descriptor, text = arguments
                    real(descriptor, text[: len(text) // 2])
                raise _Killed
            return real(*arguments, **named)

        return call


@pytest.mark.parametrize("begun", [False, True])
def test_a_writer_is_killed_at_each_of_its_calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begun: bool) -> None:
    """After every single system call of a first and of a later batch that sets two files aside: never a fault, all that was
    written before is there, and the next goes on."""
    for after in range(1000):
        path = tmp_path / str(after) / "view.jsonl"
        if begun:
            write(path, b"/before", most_bytes=600, kept=2)
        system = _System(after)
        monkeypatch.setattr(journal_file, "os", system)
        journal = Journal(path, "s1", most_bytes=600, kept=2)
        for number in range(8):
            journal.change("create", b"/%d" % number, "stage", 0)
        items = journal._take()
        try:
            journal._write(*items)
        except _Killed:
            killed = True
        else:
            killed = False
        monkeypatch.undo()
        # What the kernel does for a process that is no more.
        journal._file._close()
        if path.parent.exists() and files_of(path):
            # Without a head nothing was written yet.
            assert found(path) == [] or (not begun and not head_path(path).exists()), after
        write(path, b"/after", most_bytes=600, kept=100)
        assert found(path) == [], after
        came = [entry["path"] for entry in entries_that_can_be_read(path) if "path" in entry]
        assert came[-1] == "/after"
        numbers = [int(name[1:]) for name in came if name[1:].isdigit()]
        assert numbers == list(range(min(numbers, default=0), max(numbers, default=-1) + 1))
        if not killed:
            assert after > 8
            return
    raise AssertionError("it never came to its end")


# -- more than one


def test_two_daemons_write_one_journal_in_turn(path: Path) -> None:
    """A view that was detached lives beside the one that is mounted in its place: the chain is one, and whole."""
    one = Journal(path, "one", most_bytes=4000, kept=100)
    other = Journal(path, "other", most_bytes=4000, kept=100)
    for number in range(30):
        for journal in (one, other, other, one):
            journal.change("create", b"/%d" % number, "stage", ME)
            journal._write(*journal._take())
    one.close()
    other.close()
    assert found(path) == []
    assert [entry["session"] for entry in entries(path)] == ["one", "other", "other", "one"] * 30
    assert len(files_of(path)) > 5
    assert (one.lost, other.lost) == (0, 0)


def test_two_daemons_at_the_very_same_time(path: Path) -> None:
    """From threads of their own, from the first line on: every entry is there once, and the chain is whole."""
    path.parent.mkdir(mode=0o700)
    journals = [Journal(path, str(number), most_bytes=4000, kept=1000) for number in range(3)]
    begin = threading.Barrier(3)

    def run(journal: Journal) -> None:
        begin.wait()
        for number in range(40):
            journal.change("create", b"/%d" % number, "stage", ME)
            journal._write(*journal._take())
        journal.close()

    threads = [threading.Thread(target=run, args=(journal,)) for journal in journals]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found(path) == []
    assert Counter((entry["session"], entry["path"]) for entry in entries(path)) == Counter(
        (str(session), f"/{number}") for session in range(3) for number in range(40)
    )


def test_a_journal_is_verified_while_it_is_written(path: Path) -> None:
    """Whatever the writer does meanwhile, a journal that nobody changed is never called changed."""
    with subprocess.Popen([sys.executable, "-c", WRITER, path], stdout=subprocess.PIPE) as writer:
        try:
            assert writer.stdout is not None
            writer.stdout.readline()
            seen = set()
            for _ in range(100):
                verdict = verify(path)
                assert [str(finding) for finding in verdict.findings] == []
                seen.add((verdict.files, verdict.lines))
            # How many states of the writer are met is the machine's affair; that it was met at work is not.
            assert len(seen) > 2
            assert writer.poll() is None
        finally:
            writer.kill()


def test_a_journal_is_read_as_it_grows(path: Path) -> None:
    """Whoever follows a journal gets every line once and in order, however often a file is set aside between two looks, and
    no line before it is whole."""
    journal = Journal(path, "s1", most_bytes=2000, kept=50)
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
    with path.open("ab") as file:
        file.write(b'{"half":')
        file.flush()
        assert list(reader.lines()) == []
        assert reader.begun() == b'{"half":'
        file.write(b"1}\n")
    assert list(reader.lines()) == [b'{"half":1}']
    reader.close()
    journal.close()


# -- what cannot be written


@pytest.fixture
def small(tmp_path: Path, as_root: None) -> Iterator[Path]:
    """A file system of 64 KiB."""
    point = tmp_path / "small"
    point.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64k,mode=0700", "small", point], check=True)
    try:
        yield point
    finally:
        subprocess.run(["umount", "-l", point], check=True)


@pytest.mark.parametrize("filled", ["later", "from the start"])
def test_a_full_disk(small: Path, filled: str, caplog: pytest.LogCaptureFixture) -> None:
    """What does not fit is counted and told with the first line that does; no line is torn, and the chain is whole."""
    path = small / "journal" / "view.jsonl"
    filler = small / "filler"
    journal = Journal(path, "s1")
    if filled == "later":
        journal.event("mount")
        journal._write(*journal._take())
    with filler.open("wb", buffering=0) as file:
        while file.write(b"x" * 4096) == 4096 and os.statvfs(small).f_bfree:
            pass
    told = 0
    for number in range(100):
        journal.refusal("open", b"/%d" % number, "none", "denied", "rule", ME)
        journal.refusal("open", b"/%d" % number, "none", "denied", "rule", ME)
        journal._write(*journal._take())
        told += 2
    lost = journal.lost
    assert 0 < lost <= told
    assert [record.levelname for record in caplog.records] == ["WARNING"], "told once in the daemon's log"
    caplog.clear()
    if path.exists():
        assert found(path) == []
        assert path.read_bytes().endswith(b"\n") or not path.stat().st_size
    filler.unlink()
    journal.event("unmount")
    journal.close()
    assert found(path) == []
    assert verify(path).lost == journal.lost == lost
    assert [entry["event"] for entry in entries(path)][-2:] == ["lost", "unmount"]
    assert sum(entry.get("times", 1) for entry in entries(path, "refusal")) == told - lost
    journal.event("later")
    journal.close()
    assert verify(path).lost == lost, "told once"
    assert [record.levelname for record in caplog.records] == []


@pytest.mark.parametrize("what", ["link", "directory", "fifo", "head link", "directory link", "open directory"])
def test_a_journal_that_is_none_of_ours(path: Path, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """A link, a fifo or a directory that others can write to is not written through: the mount goes on, the loss is
    counted, and told once the place is as it should be."""
    target = tmp_path / "target"
    target.write_bytes(b"")
    path.parent.mkdir(mode=0o700)
    wrong = path
    if what == "link":
        path.symlink_to(target)
    elif what == "head link":
        wrong = head_path(path)
        wrong.symlink_to(target)
    elif what == "directory":
        path.mkdir()
    elif what == "fifo":
        os.mkfifo(path, 0o600)
    elif what == "directory link":
        wrong = path.parent
        path.parent.rmdir()
        (tmp_path / "elsewhere").mkdir(mode=0o700)
        wrong.symlink_to(tmp_path / "elsewhere")
    else:
        path.parent.chmod(0o777)
    journal = write(path, b"/a", b"/b")
    assert (journal.written, journal.lost) == (0, 2)
    assert len(caplog.records) == 1
    assert target.read_bytes() == b""
    if what == "open directory":
        path.parent.chmod(0o700)
    elif wrong.is_dir() and not wrong.is_symlink():
        wrong.rmdir()
    else:
        wrong.unlink()
    journal.event("unmount")
    journal.close()
    assert [(entry["event"], entry.get("entries")) for entry in entries(path)] == [("lost", 2), ("unmount", None)]
    assert found(path) == []


def test_a_journal_that_others_could_read_is_closed_to_them(path: Path) -> None:
    """A file whose mode was widened gets its mode back with the next line."""
    write(path, b"/a")
    path.chmod(0o644)
    write(path, b"/b")
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_journal_whose_lock_is_held(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever holds the lock for long costs entries, which are counted and told, and no time without end."""
    monkeypatch.setattr(journal_file, "_PATIENCE", 0.05)
    journal = write(path, b"/a")
    with head_path(path).open("rb") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        journal.event("reload")
        journal.close()
        assert journal.lost == 1
    journal.event("unmount")
    journal.close()
    assert [entry["event"] for entry in entries(path)] == ["refusal", "lost", "unmount"]


def test_what_waits_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its size, long paths counted as such: what is too much is counted, and told in order."""
    monkeypatch.setattr(module, "MOST_WAITING", 100_000)
    journal = Journal(path, "s1")
    for number in range(10_000):
        journal.change("create", b"/%d" % number, "stage", ME)
    assert 200 < len(journal._waiting) < 400
    for number in range(100):
        journal.refusal("open", b"/%d" % number, "none", "denied", "rule", ME)
    lost = journal.lost
    assert lost == 10_100 - len(journal._waiting)
    journal.close()
    assert verify(path).lost == lost
    for _ in range(1000):
        journal.change("create", b"/" + b"x" * 4000, "stage", ME)
    assert 15 < len(journal._waiting) < 25


# -- what it costs


def _refuse(journal: Journal, distinct: int, times: int) -> None:
    """As a handler does it."""
    for number in range(times):
        path = b"/%d" % (number % distinct)
        known_as = ("open", path, "denied", ME)
        if not journal.repeated(known_as):
            journal.refusal("open", path, "none", "denied", "rule", ME, known_as)


@pytest.mark.parametrize(("distinct", "most_calls", "most_lines"), [(1, 2, 5), (1000, 9, 19)])
def test_what_a_refusal_costs_a_handler(path: Path, distinct: int, most_calls: float, most_lines: int) -> None:
    """Counted, since time is not the same from machine to machine: a handful of calls of a list, a table and the clock, and
    a few lines; no JSON, no hash, no file but the name of a process, once for all that it is refused in a gathering."""
    journal = Journal(path, "s1")
    _refuse(journal, 1, 1)
    calls: Counter[str] = Counter()
    ran = 0

    def count_calls(frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call":
            calls[argument.__name__] += 1
        elif event == "call":
            calls[frame.f_code.co_name] += 1

    def count_lines(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal ran
        ran += event == "line" and frame.f_code.co_name != "_refuse"
        return count_lines

    # A collection calls back to whoever listens to it (hypothesis does), which is no cost of a refusal.
    gc.disable()
    sys.setprofile(count_calls)
    try:
        _refuse(journal, distinct, 1000)
    finally:
        sys.setprofile(None)
        gc.enable()
    for own in ("_refuse", "setprofile"):
        calls.pop(own)
    name = {"command_of", "open", "read", "close", "removesuffix", "decode"}
    assert max(calls.pop(call, 0) for call in name) <= 1
    assert set(calls) <= {"repeated", "get", "refusal", "_note", "time_ns", "append", "len"}
    assert calls["refusal"] == distinct - 1, "one was noted before"
    assert calls.total() <= most_calls * 1000
    journal._take()
    _refuse(journal, 1, 1)
    before = sys.gettrace()
    sys.settrace(count_lines)
    try:
        _refuse(journal, distinct, 1000)
    finally:
        sys.settrace(before)
    assert 0 < ran <= most_lines * 1000
    assert not path.parent.exists()


class _Steps(trio.abc.Instrument):
    """Counts the steps of one task."""

    def __init__(self) -> None:
        self.taken = 0

    def before_task_step(self, task: trio.lowlevel.Task) -> None:
        self.taken += task.name.endswith("Journal.run")


def test_an_idle_journal_does_nothing() -> None:
    """No entry, no step of the task: a mount on which nothing happens wakes no processor."""
    steps = _Steps()

    async def main() -> None:
        journal = Journal(Path("/nowhere/view.jsonl"), "s1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            await trio.testing.wait_all_tasks_blocked()
            began = steps.taken
            assert began > 0
            await trio.sleep(10_000)
            assert steps.taken == began
            nursery.cancel_scope.cancel()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0), instruments=[steps])


def test_what_comes_is_written_soon_and_at_the_end(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A moment later, while the mount goes on; and what came in the last moment when the task is cancelled."""

    async def main() -> None:
        journal = Journal(path, "s1")
        journal.event("mount")
        append = journal._file.append

        def append_and_tell(*arguments: Any) -> None:
            append(*arguments)
            trio.from_thread.run_sync(written.set)

        monkeypatch.setattr(journal._file, "append", append_and_tell)
        async with trio.open_nursery() as nursery:
            written = trio.Event()
            nursery.start_soon(journal.run)
            for number in range(3):
                journal.refusal("open", b"/%d" % number, "none", "denied", "rule", ME)
                with trio.fail_after(30):
                    await written.wait()
                written = trio.Event()
                assert [entry["path"] for entry in entries(path, "refusal")][-1] == f"/{number}"
            journal.refusal("open", b"/last", "none", "denied", "rule", ME)
            nursery.cancel_scope.cancel()
        assert entries(path)[-1]["path"] == "/last"
        monkeypatch.undo()
        journal.event("unmount")
        journal.close()
        assert [entry["event"] for entry in entries(path)] == ["mount", *["refusal"] * 4, "unmount"]
        assert journal.written == 6

    trio.run(main)
    assert found(path) == []


def test_a_flood_is_gathered(path: Path) -> None:
    """The same refusal over and over for ten seconds is a few lines, and every time of it is counted."""

    async def main() -> None:
        journal = Journal(path, "s1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            for _ in range(1000):
                journal.refusal("open", b"/a", "none", "denied", "rule", ME)
                await trio.sleep(0.01)
            nursery.cancel_scope.cancel()
        journal.close()

    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))
    # This clock jumps over the patience for the thread that writes the last of them, which goes on by itself.
    end = time.monotonic() + 30.0
    while (told := sum(refusal.get("times", 1) for refusal in entries(path, "refusal"))) < 1000:
        assert time.monotonic() < end, f"{told} of 1000 refusals are told of"
        time.sleep(0.01)
    assert told == 1000
    assert len(entries(path, "refusal")) < 20


def test_a_disk_that_hangs_keeps_nobody(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """While a thread hangs in the disk, entries are noted at once, the end of the mount waits no longer than it is patient,
    and what could not be written is counted."""
    monkeypatch.setattr(module, "PATIENCE", 0.2)
    monkeypatch.setattr(journal_file, "_PATIENCE", 0.1)
    hanging, go_on = trio.Event(), threading.Event()
    real = journal_file._write_whole

    def hang(descriptor: int, text: bytes) -> tuple[int, OSError | None]:
        if b"/hangs" in text:
            trio.from_thread.run_sync(hanging.set)
            go_on.wait(30)
        return real(descriptor, text)

    monkeypatch.setattr(journal_file, "_write_whole", hang)

    async def main() -> Journal:
        journal = Journal(path, "s1")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(journal.run)
            journal.refusal("open", b"/hangs", "none", "denied", "rule", ME)
            with trio.fail_after(30):
                await hanging.wait()
            journal.refusal("open", b"/after", "none", "denied", "rule", ME)
            nursery.cancel_scope.cancel()
        journal.event("unmount")
        journal.close()
        return journal

    try:
        journal = trio.run(main)
        assert (journal.written, journal.lost) == (0, 2)
    finally:
        go_on.set()


def test_a_head_is_one_that_was_written() -> None:
    """What `dumps` wrote is read back, and nothing else is taken for a head."""
    head = Head(12, "a" * 64, 3, 1, 400)
    assert Head.loads(head.dumps()) == head
    assert len(head.dumps()) == len(Head().dumps()) == 256
    for text in (b"", b"{}x", b"[]", b'"', b'{"seq": true}', b'{"seq": 1.0}', b'{"hash": 1}', b'{"more": 1}', b"[" * 5000):
        assert Head.loads(text) is None
    assert set_aside(Path("/nowhere/view.jsonl")) == {}
