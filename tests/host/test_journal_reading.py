"""A journal that is read while somebody writes it: after each step of who reads, one step of who writes."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any, TypeVar

import pytest

from policyfs.audit import journal_file, reading
from policyfs.audit.event import Event
from policyfs.audit.journal_file import JournalFile, head_path
from policyfs.audit.reading import Reader, files_of, verify
from policyfs.host.errors import Exit, UserFault

T = TypeVar("T")

PATIENCE = 30.0

STEPS = 60
"""Of the writer while a reader reads: where each entry has a file of its own, six files are set aside in them."""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a journal is to be, in a directory that is not there yet."""
    return tmp_path / "journal" / "view.jsonl"


def write(journal: JournalFile, *numbers: int) -> None:
    """Append an entry for each number."""
    journal.append([(time.time_ns(), Event("reload", {"number": number}), 1) for number in numbers], 0, {})


class Writer:
    """Writes a journal without end in a thread of its own, one call of the system for each `step`; a write is two."""

    CALLS = ("write", "pwrite", "rename", "unlink", "open", "flock", "sleep")

    def __init__(self, path: Path, most_bytes: int, kept: int) -> None:
        self._journal = JournalFile(path, "s1", most_bytes=most_bytes, kept=kept)
        self._turn, self._done = threading.Semaphore(0), threading.Semaphore(0)
        self._ended = False
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def step(self) -> None:
        """Let it go on to its next call."""
        self._turn.release()
        assert self._done.acquire(timeout=PATIENCE)

    def end(self) -> None:
        """Let it write what it has begun to its end."""
        self._ended = True
        self._turn.release()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()
        assert self._journal.lost == 0

    def _run(self) -> None:
        self._turn.acquire(timeout=PATIENCE)
        while not self._ended:
            write(self._journal, 1, 2)
        self._journal.close()

    def _wait(self) -> None:
        if not self._ended:
            self._done.release()
            self._turn.acquire(timeout=PATIENCE)

    def module(self, real: Any) -> Any:
        """The module, as `journal_file` is to see it."""
        writer = self

        class Module:
            def __getattr__(self, name: str) -> Any:
                call = getattr(real, name)
                return call if name not in writer.CALLS else lambda *arguments: writer._call(name, call, arguments)

        return Module()

    def _call(self, name: str, call: Callable[..., Any], arguments: tuple[Any, ...]) -> Any:
        if threading.current_thread() is not self._thread:
            # Who reads waits for the lock.
            return self.step() if name == "sleep" else call(*arguments)
        self._wait()
        if name == "sleep":
            return None
        if name not in ("write", "pwrite"):
            return call(*arguments)
        descriptor, text, *offset = arguments
        # Of a head that is as far as the middle of its hash; of two lines, the middle of the first.
        part = len(text) // 4
        call(descriptor, text[:part], *offset)
        self._wait()
        call(descriptor, text[part:], *(begin + part for begin in offset))
        return len(text)


@contextlib.contextmanager
def written(path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int, kept: int) -> Iterator[Writer]:
    """Somebody who writes the journal at `path`, until the end of the block."""
    writer = Writer(path, most_bytes, kept)
    with monkeypatch.context() as patch:
        for module in (os, fcntl, time):
            patch.setattr(journal_file, module.__name__, writer.module(module))
        try:
            yield writer
        finally:
            writer.end()


def interleaved(read: Callable[[], T], step: Callable[[], None], begin: int) -> tuple[T, int]:
    """What `read` gives while another makes a step before each line of `journal_reading` and `journal_file` that it runs,
    `STEPS` in all from line `begin` on; and how many lines it ran."""
    files = {reading.__file__, journal_file.__file__}
    lines = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal lines
        if frame.f_code.co_filename not in files:
            return None
        if event == "line":
            lines += 1
            if 0 <= lines - begin < STEPS:
                step()
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        result = read()
    finally:
        sys.settrace(before)
    return result, lines


def begun(path: Path, most_bytes: int, kept: int) -> None:
    """A journal of three entries."""
    journal = JournalFile(path, "s1", most_bytes=most_bytes, kept=kept)
    for number in range(3):
        write(journal, number)
    journal.close()


def read_on(reader: Reader) -> list[bytes]:
    """What has come since it read last."""
    return list(reader.lines())


def each_beginning(path: Path, most_bytes: int, kept: int) -> Iterator[tuple[Path, int]]:
    """For each line that a reader may have come to when a writer begins: a journal, as `begun`, and that line. Whoever takes
    them ends this when the reader runs no more lines than that."""
    begun(path, most_bytes, kept)
    for begin in range(10_000):
        copy = path.parent.with_name(str(begin)) / path.name
        shutil.copytree(path.parent, copy.parent)
        yield copy, begin
        shutil.rmtree(copy.parent)
    raise AssertionError("it never came to its end")


SIZES = pytest.mark.parametrize("most_bytes", [1, 500, 1 << 20])
"""Of a file: one entry each, a few, all."""


@SIZES
@pytest.mark.parametrize("changed", [False, True])
def test_a_change_is_found_and_nothing_else_whatever_is_written_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int, changed: bool
) -> None:
    """Heads and lines half written, files set aside and removed between any two steps of the look: a journal that nobody
    changed is unbroken, and in one that somebody did the change is found, and no other."""
    # One that is changed keeps all its files: the change is not to go away with the oldest.
    kept = 1000 if changed else 2
    for copy, begin in each_beginning(path, most_bytes, kept):
        if changed:
            oldest = files_of(copy)[0]
            oldest.write_bytes(oldest.read_bytes().replace(b'"number":0', b'"number":7'))
        with written(copy, monkeypatch, most_bytes, kept) as writer:
            verdict, lines = interleaved(partial(verify, copy), writer.step, begin)
        told = [str(finding) for finding in verdict.findings]
        name = copy.name if most_bytes == 1 << 20 else f"{copy.name}.1"
        assert told == ([f"{name}, line 2: line 2 was changed, or another stands in its place"] if changed else []), begin
        assert (verdict.torn, verdict.lost) == (0, 0), begin
        if begin >= lines:
            assert begin > 100
            return


@SIZES
def test_every_line_is_read_once_whatever_is_written_meanwhile(
    path: Path, monkeypatch: pytest.MonkeyPatch, most_bytes: int
) -> None:
    """Whoever follows a journal gets whole lines, each once and in order, whatever is set aside between any two steps."""
    for copy, begin in each_beginning(path, most_bytes, 1000):
        reader = Reader(copy)
        with contextlib.closing(reader):
            with written(copy, monkeypatch, most_bytes, 1000) as writer:
                got, lines = interleaved(partial(read_on, reader), writer.step, begin)
            got += read_on(reader)
        whole = b"".join(file.read_bytes() for file in files_of(copy)).splitlines()
        assert got == whole, begin
        assert [json.loads(line)["seq"] for line in got] == list(range(1, len(got) + 1))
        if begin >= lines:
            assert begin > 30
            return


def test_a_line_is_read_whole_whenever_it_is_ended(path: Path) -> None:
    """The second half of a line is written, and its file set aside, all at once between two steps of who follows: it gets
    the line, never its first half."""
    begun(path, 1 << 20, 2)
    whole = path.read_bytes()
    aside = path.with_name(f"{path.name}.1")
    lines = 1
    begin = 0
    while begin <= lines:
        path.write_bytes(whole[:-20])

        def end_line() -> None:
            if path.exists():
                with path.open("ab") as file:
                    file.write(whole[-20:])
                path.rename(aside)

        reader = Reader(path)
        with contextlib.closing(reader):
            got, lines = interleaved(partial(read_on, reader), end_line, begin)
            end_line()
            got += read_on(reader)
        assert got == whole.splitlines(), begin
        aside.rename(path)
        begin += 1
    assert begin > 30


def test_a_journal_that_cannot_be_seen_at_rest(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where who writes does not let go of it, that is told as what it is, and not as a change."""
    monkeypatch.setattr(journal_file, "_PATIENCE", 0.05)
    begun(path, 1 << 20, 2)
    with head_path(path).open("rb") as head:
        fcntl.flock(head, fcntl.LOCK_EX)
        with pytest.raises(UserFault, match=r"was not verified: .* no sign of a change") as fault:
            verify(path)
        assert fault.value.exit_code == Exit.FAILED
    assert verify(path).findings == []
