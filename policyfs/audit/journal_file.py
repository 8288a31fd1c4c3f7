"""The files of a journal: each written by one daemon, appended to, chained, and rotated when full.

A journal is a directory. A daemon writes files of its own in it, `TIME-PROCESS.jsonl`, named by when each was begun, so
that the names sort by time; nobody else writes to them. A file that has grown to `max_bytes` is left and the next begun.
The oldest files are removed once all of them together exceed `max_total` bytes or `MAX_FILES`, but no file that a daemon
still writes: it holds a lock on it.

Theory. The lines of one daemon form one chain over its files: each names the hash of the line before (`event.py`). A
daemon knows the end of its chain, so it needs no record of it on disk. Before each batch it looks whether its file is as
long as it left it; if not, somebody else changed it, and a new file begins with an event that says so (`damage`). What a
killed daemon leaves is at most one line that is cut off at the end of its last file.

Lines missing at the end of a chain cannot be found from the files alone. So the number and the hash of the last line go to
syslog when the daemon ends (`JournalFile.end`), where a person can compare them with what `policyfs log --verify` prints.

Nothing is synced: what the kernel has survives the daemon, and a journal that waits for a disk would lose more.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policyfs.audit.event import BEGINNING, FORMAT, MAX_LINE, Event, Item, Lines, hash_of
from policyfs.host import places

log = logging.getLogger("policyfs")

Names = Mapping[int, str | None]
"""The names of processes, by their numbers."""

MAX_BYTES = 16 << 20
"""Bytes at which a file is left and the next begun."""
MAX_TOTAL = 5 * MAX_BYTES
"""Bytes of all files of one journal, beyond which the oldest are removed."""
MAX_FILES = 200
"""Files of one journal, beyond which the oldest are removed: a reader holds them all open, and 1024 is the usual limit."""

_MUTEX_TIMEOUT = 2.0
"""Seconds to wait for another thread, which only a disk that hangs holds for longer."""
_NEW = 60.0
"""Seconds for which a file without a line is taken for one whose daemon is about to write its first."""
_AT_ONCE = 64
_PAUSE = 0.0001
"""After so many lines made, so many seconds of rest. Python's lock is otherwise kept for 5 ms (`sys.setswitchinterval`)
from a handler that came back from a system call: a flood would slow down those who take no part in it."""
_FLAGS = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


def files_of(journal: Path) -> list[Path]:
    """The files of a journal, the oldest first; none where there is no journal."""
    try:
        names = os.listdir(journal)
    except (FileNotFoundError, NotADirectoryError):
        return []
    return [journal / name for name in sorted(names) if name.endswith(".jsonl")]


def parsed(line: bytes) -> dict[str, Any] | None:
    """The values of a line; None for what is not a line of a journal."""
    if len(line) >= MAX_LINE or not line.isascii():
        return None
    try:
        values = json.loads(line)
    except (ValueError, RecursionError):
        return None
    if not isinstance(values, dict) or type(values.get("seq")) is not int:
        return None
    return values if isinstance(values.get("previous"), str) and isinstance(values.get("event"), str) else None


@dataclass(frozen=True, slots=True)
class End:
    """Where the chain of a daemon ends: the number and the hash of its last line."""

    seq: int = 0
    hash: str = BEGINNING


class JournalFile:
    """A journal as one daemon writes it. Its methods may be called from any thread; none raises an OSError."""

    def __init__(
        self, journal: os.PathLike[str], session: str, *, max_bytes: int = MAX_BYTES, max_total: int = MAX_TOTAL
    ) -> None:
        self._journal = Path(journal)
        self._lines = Lines(session)
        self._max_bytes = max_bytes
        self._max_total = max_total
        self._mutex = threading.Lock()
        self._descriptor = -1
        self._size = 0
        self._number = 0
        self._daemon = ""
        self._reported = 0
        self._in_trouble = False
        self.end = End()
        self.lost = 0
        """Entries that could not be written, each time of a repeated one counted."""
        self.written = 0
        """Entries that were written."""

    def append(self, items: list[Item], dropped: int, names: Names) -> None:
        """Write the items. `dropped` is how many in all never came here; they are reported with those that are lost here."""
        if not self._mutex.acquire(timeout=_MUTEX_TIMEOUT):
            # A thread that waits for the disk holds it.
            self.lost += sum(times for _, _, times in items)
            return
        try:
            missing = dropped + self.lost - self._reported
            if items or missing:
                self._append(items, missing, names)
        finally:
            self._mutex.release()

    def close(self) -> None:
        """Close the file, unless a thread hangs in it. What comes afterwards begins another."""
        if self._mutex.acquire(timeout=_MUTEX_TIMEOUT):
            self._close()
            self._mutex.release()

    def _append(self, items: list[Item], missing: int, names: Names) -> None:
        own = 1 if missing else 0
        if missing:
            items = [(_time_of(items), Event("lost", {"entries": missing}), 1), *items]
        done = 0
        try:
            self._check(_time_of(items))
            while done < len(items):
                done += self._write(items[done:] if done else items, names)
            self._in_trouble = False
        except OSError as error:
            if not self._in_trouble:
                self._in_trouble = True
                log.warning("%s cannot be written (%s); the mount goes on, and the loss is counted", self._journal, error)
        if own and done:
            self._reported += missing
        written = max(0, done - own)
        self.written += written
        self.lost += sum(times for _, _, times in items[own + written :])

    def _check(self, when: int) -> None:
        """Leave a file that is not as it was left, for another that begins at this time."""
        if self._descriptor < 0:
            return
        status = os.fstat(self._descriptor)
        if status.st_nlink and status.st_size == self._size:
            return
        changed = f"was {self._size} bytes long and is {status.st_size}" if status.st_nlink else "was removed"
        self._close()
        self._begin(when, Event("damage", {"what": f"file {self._number} {changed}"}))

    def _begin(self, when: int, *events: Event) -> None:
        """Begin the next file, with the events after its first line. `when`, nanoseconds since 1970, is the time of the
        entry that comes next: the times of a file never go back, so that a reader can merge files by them."""
        places.private_directory(self._journal)
        seconds, rest = divmod(time.time_ns(), 10**9)
        name = f"{time.strftime('%Y%m%dT%H%M%S', time.gmtime(seconds))}.{rest:09d}-{os.getpid()}.jsonl"
        self._descriptor = os.open(self._journal / name, _FLAGS, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        os.fchmod(self._descriptor, 0o600)
        self._size = 0
        self._number += 1
        if self._number == 1:
            self._daemon = name.removesuffix(".jsonl")
        first = Event("file", {"format": FORMAT, "daemon": self._daemon, "file": self._number})
        try:
            self._write([(when, event, 1) for event in (first, *events)], {})
        except OSError:
            # A file without its first line would be one that somebody cut off.
            self._number -= 1
            os.unlink(self._journal / name)
            self._close()
            raise
        self._make_room(name)

    def _make_room(self, current: str) -> None:
        """Make room, unless another daemon does so: of two at once, one would meet the file that the other looks at, take
        it for one that is written, and remove a younger one before it."""
        directory = os.open(self._journal, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            fcntl.flock(directory, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        else:
            _remove_oldest(self._journal, current, self._max_total - self._max_bytes)
        finally:
            os.close(directory)

    def _write(self, items: list[Item], names: Names) -> int:
        """Write as many items as this file takes, at least one, and give how many these were. Raises OSError where not even
        one could be written."""
        if self._descriptor < 0 or self._size >= self._max_bytes:
            self._close()
            self._begin(_time_of(items))
        room = self._max_bytes - self._size
        added = bytearray()
        # After each line: how much is to be written by then, and where the chain ends.
        ends: list[tuple[int, End]] = [(0, self.end)]
        for item in items:
            what = item[1]
            end = ends[-1][1]
            line = self._lines.line(end.seq + 1, end.hash, item, names.get(what[6]) if isinstance(what, tuple) else None)
            added += line
            added += b"\n"
            ends.append((len(added), End(end.seq + 1, hash_of(line))))
            if len(ends) % _AT_ONCE == 0:
                time.sleep(_PAUSE)
            if len(added) >= room:
                break
        length, error = _write_whole(self._descriptor, added)
        whole = max(number for number, end in enumerate(ends) if end[0] <= length)
        if error is not None:
            os.ftruncate(self._descriptor, self._size + ends[whole][0])
        self._size += ends[whole][0]
        self.end = ends[whole][1]
        if error is not None and not whole:
            raise error
        return whole

    def _close(self) -> None:
        if self._descriptor >= 0:
            os.close(self._descriptor)
        self._descriptor = -1


def _remove_oldest(journal: Path, current: str, most: int) -> None:
    """Remove the oldest files until all but the current one have no more than `most` bytes and no more than `MAX_FILES` are
    left. Files that are written stay. Raises OSError."""
    sizes = {}
    for file in files_of(journal):
        with contextlib.suppress(FileNotFoundError):
            sizes[file] = file.lstat().st_size
    sizes.pop(journal / current, None)
    total, count = sum(sizes.values()), len(sizes) + 1
    for file, size in sizes.items():
        if total <= most and count <= MAX_FILES:
            return
        # A person who removes files meanwhile is not a problem.
        with contextlib.suppress(FileNotFoundError):
            if _is_written(file):
                continue
            os.unlink(file)
        total, count = total - size, count - 1


def _is_written(file: Path) -> bool:
    """Whether a daemon still writes a file: it holds a lock on it, flock(2), which ends with it; or the file is empty and
    new, and the daemon is about to take the lock."""
    descriptor = os.open(file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        status = os.fstat(descriptor)
    except BlockingIOError:
        return True
    finally:
        os.close(descriptor)
    return status.st_size == 0 and abs(time.time() - status.st_mtime) < _NEW


def _time_of(items: list[Item]) -> int:
    """When the first of these was, now where there is none."""
    return items[0][0] if items else time.time_ns()


def _write_whole(descriptor: int, text: bytes | bytearray) -> tuple[int, OSError | None]:
    """How much was written, and what kept the rest from it."""
    written = 0
    try:
        while written < len(text):
            written += os.write(descriptor, memoryview(text)[written:])
    except OSError as error:
        return written, error
    return written, None
