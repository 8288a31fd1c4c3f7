"""A journal whose disk is full or hangs, or that cannot be opened; and that none of it costs a handler anything."""

from __future__ import annotations

import gc
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
from policyfs.audit.journal_file import files_of
from policyfs.audit.reading import verify
from policyfs.audit.writer import Journal
from tests.audit.journals import ME, entries, found, write

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
    path = small / "journal"
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
    assert found(path) == []
    assert all(file.read_bytes().endswith(b"\n") for file in files_of(path))
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


@pytest.mark.parametrize("what", ["link", "open directory", "file"])
def test_a_place_that_is_not_ours(path: Path, tmp_path: Path, what: str, caplog: pytest.LogCaptureFixture) -> None:
    """A link, a file or a directory that others can write to, where the journal should be, is not written through: the mount
    goes on, the loss is counted, and told once the place is as it should be."""
    path.parent.mkdir(mode=0o700)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir(mode=0o700)
    if what == "link":
        path.symlink_to(elsewhere)
    elif what == "file":
        path.write_bytes(b"")
    else:
        path.mkdir()
        path.chmod(0o777)
    journal = write(path, b"/a", b"/b")
    assert (journal.written, journal.lost) == (0, 2)
    assert len(caplog.records) == 1
    assert list(elsewhere.iterdir()) == []
    if what == "open directory":
        path.chmod(0o700)
    else:
        path.unlink()
    journal.event("unmount")
    journal.close()
    assert [(entry["event"], entry.get("entries")) for entry in entries(path)] == [("lost", 2), ("unmount", None)]
    assert found(path) == []


def test_what_waits_is_bounded(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """By its size, long paths counted as such: what is too much is counted, and told in order."""
    monkeypatch.setattr(module, "MAX_WAITING", 100_000)
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
        gc.enable()
    assert 0 < ran <= most_lines * 1000
    assert not path.exists()


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
        journal = Journal(Path("/nowhere/view"), "s1")
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
    monkeypatch.setattr(module, "END_TIMEOUT", 0.2)
    monkeypatch.setattr(journal_file, "_MUTEX_TIMEOUT", 0.1)
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
