"""The files of a journal: appended to, chained, set aside when they are full.

`NAME.jsonl` is written; full ones become `NAME.jsonl.1`, `NAME.jsonl.2` and so on, of which the last few are kept.
`NAME.jsonl.head` says where the chain ends (`Head`), so that lines missing at the end are found as well.

Theory. Under a lock on the head file, a batch of lines is appended and then the head is written in place. So whatever the
head says was written, and what a file holds beyond it was written by somebody who was killed in between: lines that
continue the chain are taken for what they are, and a torn one at the end is ended and told (`torn`). A file that is
shorter than the head says, or holds something else, was changed by somebody else: that is told (`damage`), and the chain
goes on from the head, so that the fault stays to be found. The lock is taken for each batch, and the head compared, since
the daemon of a view that was detached may live beside the one that is mounted in its place.

Nothing is synced: what the kernel has survives the daemon, and a journal that waits for a disk would lose more.
"""

from __future__ import annotations

import errno
import fcntl
import json
import logging
import os
import re
import stat
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from policyfs.audit.event import BEGINNING, FORMAT, MOST_LINE, Event, Item, Lines, hash_of
from policyfs.host import places

log = logging.getLogger("policyfs")

Names = Mapping[int, str | None]
"""The names of processes, by their numbers."""

_HEAD_SIZE = 256
"""Bytes of the head file: always the same, so that one write in place replaces it."""
_PATIENCE = 2.0
"""Seconds to wait for the lock, which others hold for milliseconds."""
_RETRY = 0.005
"""Seconds between two attempts to get it."""
_AT_ONCE = 64
_PAUSE = 0.0001
"""After so many lines made, so many seconds of rest. Python's lock is otherwise kept for 5 ms (`sys.setswitchinterval`)
from a handler that came back from a system call: a flood would slow down those who take no part in it."""
_FLAGS = os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


@dataclass(frozen=True, slots=True)
class Head:
    """Where a chain ends."""

    seq: int = 0
    """The last line's number."""
    hash: str = BEGINNING
    """The last line's hash."""
    file: int = 1
    """The number of the file that is written: the one that it gets when it is set aside."""
    oldest: int = 1
    """The number of the oldest file that is kept."""
    size: int = 0
    """How long the file that is written is."""

    def dumps(self) -> bytes:
        """The text of the head file."""
        return json.dumps(asdict(self)).encode("ascii").ljust(_HEAD_SIZE - 1) + b"\n"

    @staticmethod
    def loads(text: bytes) -> Head | None:
        """The head that `dumps` wrote; None for anything else."""
        try:
            values = json.loads(text)
            head = Head(**values)
        except (ValueError, TypeError, RecursionError):
            return None
        numbers = (head.seq, head.file, head.oldest, head.size)
        if not all(type(number) is int and number >= 0 for number in numbers) or not isinstance(head.hash, str):
            return None
        return head


def head_path(path: Path) -> Path:
    """Where the head of a journal is."""
    return path.with_name(path.name + ".head")


def set_aside(path: Path) -> dict[int, Path]:
    """The files that were set aside, by their numbers, the oldest first."""
    pattern = re.compile(re.escape(path.name) + r"\.([1-9][0-9]{0,17})")
    try:
        names = os.listdir(path.parent)
    except FileNotFoundError:
        return {}
    found = {int(match[1]): path.parent / name for name in names if (match := pattern.fullmatch(name))}
    return dict(sorted(found.items()))


def lock(head: int, kind: int) -> None:
    """Lock the head file, as flock(2) does, to write the journal or to see it as it is at one moment. Raises
    `BlockingIOError` where somebody else holds it for longer than anyone should."""
    until = time.monotonic() + _PATIENCE
    while True:
        try:
            fcntl.flock(head, kind | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() > until:
                raise
            time.sleep(_RETRY)


def parsed(line: bytes) -> dict[str, Any] | None:
    """A line's values; None for what is no line of a journal."""
    if len(line) >= MOST_LINE or not line.isascii():
        return None
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or type(values.get("seq")) is not int:
        return None
    return values if isinstance(values.get("previous"), str) and isinstance(values.get("event"), str) else None


class JournalFile:
    """A journal as one process writes it. Its methods may be called from any thread; none raises an OSError."""

    def __init__(self, path: os.PathLike[str], session: str, *, most_bytes: int, kept: int) -> None:
        self._path = Path(path)
        self._lines = Lines(session)
        self._most = most_bytes
        self._kept = kept
        self._mutex = threading.Lock()
        self._head = Head()
        self._descriptor = -1
        self._head_descriptor = -1
        self._unended = False
        self._told = 0
        self._in_trouble = False
        self.lost = 0
        """Entries that could not be written, each time of a repeated one counted."""
        self.written = 0
        """Entries that were written."""

    def append(self, items: list[Item], dropped: int, names: Names) -> None:
        """Write the items. `dropped` is how many in all never came here, which is told with those that are lost here."""
        if not self._mutex.acquire(timeout=_PATIENCE):
            # A thread that waits for the disk holds it.
            self.lost += sum(times for _, _, times in items)
            return
        try:
            missing = dropped + self.lost - self._told
            if items or missing:
                self._append(items, missing, names)
        finally:
            self._mutex.release()

    def close(self) -> None:
        """Let go of the files, unless a thread hangs in them."""
        if self._mutex.acquire(timeout=_PATIENCE):
            self._close()
            self._mutex.release()

    def _append(self, items: list[Item], missing: int, names: Names) -> None:
        lines = own = 0
        try:
            self._lock()
            first = [(time.time_ns(), event, 1) for event in self._take_up()]
            if missing:
                first.append((time.time_ns(), Event("lost", {"entries": missing}), 1))
            own = len(first)
            items = first + items
            while lines < len(items):
                count, fault = self._write(items[lines:] if lines else items, names)
                lines += count
                if fault is not None:
                    raise fault
            self._in_trouble = False
            fcntl.flock(self._head_descriptor, fcntl.LOCK_UN)
        except OSError as error:
            # Closing gives the lock back too, and what is there is looked at anew the next time.
            self._close()
            if not self._in_trouble:
                self._in_trouble = True
                log.warning("%s cannot be written (%s); the mount goes on, and the loss is counted", self._path, error)
        if missing and lines >= own > 0:
            self._told += missing
        written = max(0, lines - own)
        self.written += written
        self.lost += sum(times for _, _, times in items[own + written :])

    # -- what is there

    def _lock(self) -> None:
        """Hold the head file, making it where there is none."""
        head = head_path(self._path)
        if self._head_descriptor >= 0 and not _is_at(self._head_descriptor, head):
            self._close()
        if self._head_descriptor < 0:
            places.private_directory(self._path.parent)
            try:
                self._head_descriptor = _opened(head, _FLAGS & ~(os.O_APPEND | os.O_CREAT))
            except FileNotFoundError:
                self._make_head(head)
                self._head_descriptor = _opened(head, _FLAGS & ~(os.O_APPEND | os.O_CREAT))
        lock(self._head_descriptor, fcntl.LOCK_EX)

    def _make_head(self, path: Path) -> None:
        """Make a head file that is never seen without what belongs in it: an empty one is one that was emptied."""
        text = Head().dumps()
        if set_aside(self._path) or _holds_something(self._path):
            # Files without a head: nobody who writes leaves them so. `_take_up` tells it.
            text = b"?".ljust(_HEAD_SIZE)
        made = path.with_name(f"{path.name}.{os.getpid()}.{time.time_ns()}")
        descriptor = os.open(made, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        try:
            _, fault = _write_whole(descriptor, text)
            if fault is not None:
                raise fault
            os.link(made, path)
        except FileExistsError:
            # Another daemon was first, and its head is as good.
            pass
        finally:
            os.close(descriptor)
            os.unlink(made)

    def _take_up(self) -> list[Event]:
        """Find the end of the chain. What is wrong with what is there comes back, to be told."""
        text = os.pread(self._head_descriptor, _HEAD_SIZE + 1, 0)
        if self._descriptor >= 0:
            as_left = text == self._head.dumps() and _is_at(self._descriptor, self._path)
            if as_left and os.fstat(self._descriptor).st_size == self._head.size:
                return []
            os.close(self._descriptor)
            self._descriptor = -1
        self._descriptor = _opened(self._path, _FLAGS)
        self._unended = False
        size = os.fstat(self._descriptor).st_size
        events: list[Event] = []
        head = Head.loads(text)
        if head is None:
            events.append(_damage("the head file was missing or changed"))
            head = self._head_by_files(size)
        if head.size and not size and head.file in set_aside(self._path):
            # Killed while setting the file aside.
            head = self._after_setting_aside(head)
        first = parsed(os.pread(self._descriptor, MOST_LINE, 0).partition(b"\n")[0]) if size else None
        if first is not None and first.get("file") == head.file + 1 and head.file in set_aside(self._path):
            # Killed after setting the file aside and before writing the head.
            head = self._after_setting_aside(head)
        if size < head.size:
            events.append(_damage(f"file {head.file} was {head.size} bytes long and is {size}"))
            head = replace(head, size=size)
        elif head.size and hash_of(self._line_before(head.size)) != head.hash:
            events.append(_damage(f"line {head.seq}, the last one, was changed"))
            head = replace(head, size=size)
        elif size > head.size:
            head = self._adopt(head, os.pread(self._descriptor, size - head.size, head.size), events)
        self._unended = size > 0 and os.pread(self._descriptor, 1, size - 1) != b"\n"
        self._head = head
        return events

    def _head_by_files(self, size: int) -> Head:
        """The best that the files tell where no head does: before the first line of the last file."""
        aside = set_aside(self._path)
        oldest = min(aside, default=1)
        first = parsed(os.pread(self._descriptor, MOST_LINE, 0).partition(b"\n")[0]) if size else None
        if first is not None and type(number := first.get("file")) is int and number > 0:
            return Head(first["seq"] - 1, first["previous"], number, min(oldest, number) if aside else number)
        if aside:
            last, file = max(aside.items())
            lines = file.read_bytes().split(b"\n")
            whole = [line for line in lines if parsed(line) is not None]
            if whole:
                return Head(json.loads(whole[-1])["seq"], hash_of(whole[-1]), last + 1, oldest)
            return Head(file=last + 1, oldest=oldest)
        return Head()

    def _adopt(self, head: Head, text: bytes, events: list[Event]) -> Head:
        """Go on behind what a file holds beyond its head."""
        *lines, torn = text.split(b"\n")
        for line in lines:
            values = parsed(line)
            if values is None or values["seq"] != head.seq + 1 or values["previous"] != head.hash:
                events.append(_damage(f"somebody else wrote behind line {head.seq}"))
                return replace(head, size=head.size + len(text))
            head = replace(head, seq=head.seq + 1, hash=hash_of(line), size=head.size + len(line) + 1)
            text = text[len(line) + 1 :]
        if torn:
            events.append(Event("torn", {"bytes": len(torn), "sha256": hash_of(torn)}))
            head = replace(head, hash=hash_of(torn), size=head.size + len(torn))
        return head

    def _line_before(self, end: int) -> bytes:
        begin = max(0, end - MOST_LINE - 1)
        text = os.pread(self._descriptor, end - begin, begin)
        return text.removesuffix(b"\n").rpartition(b"\n")[2]

    # -- what is written

    def _write(self, items: list[Item], names: Names) -> tuple[int, OSError | None]:
        """Write as many items as this file takes, at least one: how many were, and what kept the next from it."""
        head, added = self._head, bytearray(b"\n" if self._unended else b"")
        # A torn line and the line that tells of it stay in one file.
        if head.size >= self._most and not self._unended:
            head = self._set_aside(head)
        # After each line: how much is to be written by then, and where the chain ends.
        ends = [(0, head.seq, head.hash)]
        count = 0
        if head.size + len(added) == 0:
            file = Event("file", {"format": FORMAT, "file": head.file, "kept": self._kept})
            items = [(time.time_ns(), file, 1), *items]
            count = -1
        room = self._most - head.size
        seq, previous = head.seq, head.hash
        for item in items:
            what = item[1]
            line = self._lines.line(seq + 1, previous, item, names.get(what[6]) if isinstance(what, tuple) else None)
            seq, previous = seq + 1, hash_of(line)
            added += line
            added += b"\n"
            ends.append((len(added), seq, previous))
            if len(ends) % _AT_ONCE == 0:
                time.sleep(_PAUSE)
            if len(added) >= room and len(ends) > 2:
                break
        length, fault = _write_whole(self._descriptor, added)
        whole = len(ends) - 1
        if fault is not None:
            whole = max(number for number, end in enumerate(ends) if end[0] <= length)
            # Half a line would be ended and told by whoever writes next; better none.
            os.ftruncate(self._descriptor, head.size + ends[whole][0])
        end, seq, previous = ends[whole]
        self._unended = self._unended and whole == 0
        self._head = replace(head, seq=seq, hash=previous, size=head.size + end)
        try:
            os.pwrite(self._head_descriptor, self._head.dumps(), 0)
        except OSError as error:
            # The lines are there all the same, and the next to look finds them behind the head.
            fault = error
        return max(0, count + whole), fault

    def _set_aside(self, head: Head) -> Head:
        os.rename(self._path, self._path.with_name(f"{self._path.name}.{head.file}"))
        os.close(self._descriptor)
        self._descriptor = -1
        self._descriptor = _opened(self._path, _FLAGS | os.O_EXCL)
        return self._after_setting_aside(head)

    def _after_setting_aside(self, head: Head) -> Head:
        head = replace(head, file=head.file + 1, oldest=max(head.oldest, head.file + 1 - self._kept), size=0)
        os.pwrite(self._head_descriptor, head.dumps(), 0)
        for number, file in set_aside(self._path).items():
            if number < head.oldest:
                os.unlink(file)
        return head

    def _close(self) -> None:
        for descriptor in (self._descriptor, self._head_descriptor):
            if descriptor >= 0:
                os.close(descriptor)
        self._descriptor = self._head_descriptor = -1


def _damage(what: str) -> Event:
    return Event("damage", {"what": what})


def _is_at(descriptor: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(descriptor), os.lstat(path))
    except FileNotFoundError:
        return False


def _holds_something(path: Path) -> bool:
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return False
    return stat.S_ISREG(status.st_mode) and status.st_size > 0


def _opened(path: Path, flags: int) -> int:
    """A descriptor of a regular file of our own, for nobody else to read."""
    descriptor = os.open(path, flags, 0o600)
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode) or status.st_uid != os.geteuid():
        os.close(descriptor)
        raise PermissionError(errno.EPERM, "not a file of yours alone", os.fspath(path))
    if status.st_mode & 0o077:
        os.fchmod(descriptor, 0o600)
    return descriptor


def _write_whole(descriptor: int, text: bytes | bytearray) -> tuple[int, OSError | None]:
    """How much was written, and what kept the rest from it."""
    written = 0
    try:
        while written < len(text):
            written += os.write(descriptor, memoryview(text)[written:])
    except OSError as error:
        return written, error
    return written, None
