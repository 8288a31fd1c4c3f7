"""Read a journal: its lines in order, over its files and while it grows, and whether its chain is unbroken.

What is read may have been changed by anyone who could: nothing here trusts a line. What a chain without a key can tell is
said in docs/journal.md: it finds a change by who does not make all hashes anew, from the change to the head.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from policyfs.audit.event import BEGINNING, MOST_LINE, hash_of
from policyfs.audit.journal_file import Head, head_path, lock, parsed, set_aside
from policyfs.host.errors import Exit, UserFault
from policyfs.policy.paths import display

_CHUNK = 1 << 20


def files_of(journal: Path) -> list[Path]:
    """The files of a journal that are there, the oldest first."""
    # This one first: set aside between two looks in the other order, it would be in neither.
    current = [journal] if os.path.lexists(journal) else []
    return [*set_aside(journal).values(), *current]


class Reader:
    """The lines of a journal from its oldest file on. After `lines` has come to its end it may be called again, for what
    was written since; that a file was set aside meanwhile makes no difference."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._file: BinaryIO | None = None
        self._number = 0
        self._begun = b""

    def lines(self) -> Iterator[bytes]:
        """The whole lines that have come, without their newlines."""
        while self._file is not None or self._advance():
            set_aside_before = not self._is_written()
            yield from self._rest(set_aside_before)
            # Only what was set aside before its end was seen is at its end.
            if not set_aside_before or not self._advance():
                return

    def begun(self) -> bytes:
        """What stands behind the last whole line: a line that is being written, or that never was to its end."""
        return self._begun

    def close(self) -> None:
        """Let go of the file."""
        if self._file is not None:
            self._file.close()

    def _rest(self, is_whole: bool) -> Iterator[bytes]:
        file = self._file
        while file is not None and (text := file.read(_CHUNK)):
            *lines, self._begun = (self._begun + text).split(b"\n")
            yield from lines
            if len(self._begun) > _CHUNK:
                # No line of ours; not to be gathered until memory ends.
                yield self._begun
                self._begun = b""
        if self._begun and is_whole:
            yield self._begun
            self._begun = b""

    def _is_written(self) -> bool:
        """Whether this file is the one that is written, and not set aside."""
        return self._file is not None and _is_file_at(self._file, self._journal)

    def _advance(self) -> bool:
        """Go on to the next file, if there is one."""
        while True:
            aside = set_aside(self._journal)
            for number, path in aside.items():
                # The one that is read got its number when it was set aside.
                if self._file is not None and _is_file_at(self._file, path):
                    self._number = number
            following = {number: path for number, path in aside.items() if number > self._number}
            number, path = next(iter(following.items()), (self._number + 1, self._journal))
            try:
                file = _open(path)
            except FileNotFoundError:
                file = None
            # Else what follows may have been set aside, and this be one behind it, or removed as the oldest.
            if set_aside(self._journal) == aside:
                break
            if file is not None:
                file.close()
        if file is None:
            return False
        self.close()
        self._file, self._number = file, number
        return True


def _is_file_at(file: BinaryIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.lstat(path))
    except FileNotFoundError:
        return False


def _open(path: Path) -> BinaryIO:
    """Neither through a link nor waiting for who writes into a fifo: either would be another's work."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "no regular file stands here", os.fspath(path))
    return os.fdopen(descriptor, "rb")


# -- whether it is unbroken


@dataclass(frozen=True, slots=True)
class Finding:
    """Something in a journal that is not as it was written."""

    file: Path
    line: int
    """The line of the file, from 1; 0 for the file as a whole."""
    what: str

    def __str__(self) -> str:
        place = f"{self.file.name}, line {self.line}" if self.line else self.file.name
        return f"{place}: {self.what}"


@dataclass(slots=True)
class Verdict:
    """What a look through a journal found."""

    findings: list[Finding] = field(default_factory=list)
    files: int = 0
    lines: int = 0
    torn: int = 0
    """Lines that were cut off as their writer was killed."""
    lost: int = 0
    """Entries that could not be written, as the journal itself tells."""


@dataclass(frozen=True, slots=True)
class _Opened:
    number: int
    path: Path
    file: BinaryIO
    size: int
    """How long it was when it was seen: what is written behind that, the head that was seen with it does not know."""


def verify(journal: Path) -> Verdict:
    """Follow the chain from the oldest line to the head, as they are at one moment, whoever writes meanwhile. Raises
    `UserFault` where that moment cannot be had."""
    with contextlib.ExitStack() as opened:
        head, files = _as_of_now(journal, opened)
        return _Chain(journal, head).follow(files)


def _as_of_now(journal: Path, opened: contextlib.ExitStack) -> tuple[Head | None, list[_Opened]]:
    """The head and the files of one moment, from the oldest with their numbers.

    Under the lock of those who write. Without it not even the head is one that was written: read while it is written, it
    had the number of one line and half of the hash of another in 1 of 1300 reads (ext4, Linux 6), and the line was called
    changed. Once seen, the files may be set aside, removed and appended to: what was seen of them stays as it is."""
    with contextlib.ExitStack() as locked:
        head = _locked_head(journal, locked)
        aside = set_aside(journal)
        number = max([*aside, head.file - 1 if head is not None else 0], default=0) + 1
        files = []
        for number_of_it, path in [*aside.items(), (number, journal)]:
            with contextlib.suppress(FileNotFoundError):
                file = opened.enter_context(_open(path))
                files.append(_Opened(number_of_it, path, file, os.fstat(file.fileno()).st_size))
    return head, files


def _locked_head(journal: Path, locked: contextlib.ExitStack) -> Head | None:
    """The head, which nobody writes until the lock is given back."""
    try:
        file = locked.enter_context(_open(head_path(journal)))
    except FileNotFoundError:
        # Then nobody writes: whoever does makes it before any other file, and never takes it away.
        return None
    try:
        lock(file.fileno(), fcntl.LOCK_SH)
    except BlockingIOError:
        raise UserFault(
            Exit.FAILED,
            f"{display(os.fsencode(journal))} was not verified: whoever writes it does not let go of it, which is no sign "
            "of a change; verify it again, or once its view is unmounted",
        ) from None
    return Head.loads(file.read(_CHUNK))


class _Chain:
    """One look through the files of a journal."""

    def __init__(self, journal: Path, head: Head | None) -> None:
        self._journal = journal
        self._head = head
        self._verdict = Verdict()
        self._file = journal
        self._number = 0
        # The last line: its number and hash, and where it stands; None where it is not known what must follow.
        self._seq: int | None = None
        self._hash = BEGINNING
        self._before = (journal, 0)
        self._highest = 0
        # What is no line, and may be the torn one that the next line tells of.
        self._doubtful: bytes | None = None

    def follow(self, files: list[_Opened]) -> Verdict:
        """Look through these files."""
        head = self._head
        self._find_missing({file.number for file in files})
        for file in files:
            # One that is older should be gone; who was to remove it was killed.
            if head is None or file.number >= head.oldest:
                self._verdict.files += 1
                self._read(file)
        self._settle_doubt(None)
        if head is None:
            self._find(
                head_path(self._journal), 0, "missing or changed: lines missing at the end cannot be found without it"
            )
        elif head.seq > self._highest:
            self._find(self._file, self._number, f"lines {self._highest + 1} to {head.seq} are missing behind it")
        return self._verdict

    def _find_missing(self, numbers: set[int]) -> None:
        head = self._head
        if head is not None:
            for number in range(head.oldest, head.file + 1):
                if number not in numbers:
                    name = self._journal.name if number == head.file else f"{self._journal.name}.{number}"
                    self._find(self._journal.with_name(name), 0, f"file {number} is missing")

    def _read(self, seen: _Opened) -> None:
        self._file, self._number = seen.path, 0
        offset = 0
        while line := seen.file.readline(min(_CHUNK, seen.size - offset)):
            self._number += 1
            if line.endswith(b"\n"):
                self._line(line[:-1], seen.number)
            elif seen.path == self._journal and self._is_beyond_head(offset, seen.number):
                self._verdict.torn += 1
            else:
                self._doubt(line)
            offset += len(line)
        if not seen.size and seen.path != self._journal:
            self._find(seen.path, 0, "it is empty, and none is set aside before it is full")

    def _is_beyond_head(self, offset: int, number: int) -> bool:
        return self._head is None or number > self._head.file or offset >= self._head.size

    def _line(self, line: bytes, number: int) -> None:
        self._verdict.lines += 1
        values = parsed(line)
        if values is None:
            self._doubt(line)
            return
        self._settle_doubt(values)
        seq = values["seq"]
        if self._number == 1 and (values["event"] != "file" or values.get("file") != number):
            self._find(
                self._file, 1, f"it does not begin as file {number} does: its first lines are missing, or it is another's"
            )
        if self._verdict.files == 1 and self._number == 1 and number == 1 and (seq, values["previous"]) != (1, BEGINNING):
            self._find(self._file, 1, "it is not the first line that was written")
        self._compare(seq, values["previous"])
        self._seq, self._hash, self._before = seq, hash_of(line), (self._file, self._number)
        self._highest = max(self._highest, seq)
        head = self._head
        if head is not None and seq == head.seq and self._hash != head.hash:
            self._find(self._file, self._number, f"line {seq} was changed")
        if values["event"] == "damage":
            self._find(self._file, self._number, f"whoever went on here found that {values.get('what')}")
        lost = values.get("entries")
        if values["event"] == "lost" and type(lost) is int and lost > 0:
            self._verdict.lost += lost

    def _compare(self, seq: int, previous: str) -> None:
        """Whether this line may follow the last one."""
        if self._seq is None:
            return
        if seq > self._seq + 1:
            self._find(self._file, self._number, f"lines {self._seq + 1} to {seq - 1} are missing before it")
        elif seq <= self._seq:
            self._find(self._file, self._number, f"line {seq} stands behind line {self._seq}")
        elif previous != self._hash:
            self._find(*self._before, f"line {self._seq} was changed, or another stands in its place")

    def _doubt(self, line: bytes) -> None:
        self._settle_doubt(None)
        self._doubtful = line
        self._doubt_place = (self._file, self._number)

    def _settle_doubt(self, values: dict[str, Any] | None) -> None:
        """What is no line is as it should be only where the next one tells that it was torn."""
        if self._doubtful is None:
            return
        digest = hash_of(self._doubtful)
        if values is not None and values["event"] == "torn" and values.get("sha256") == digest:
            self._hash = digest
            self._verdict.torn += 1
            self._verdict.lines -= 1
        else:
            long = len(self._doubtful) >= MOST_LINE
            self._find(*self._doubt_place, "it is too long for a line" if long else "it is no line of a journal")
            self._seq = None
        self._doubtful = None

    def _find(self, file: Path, line: int, what: str) -> None:
        self._verdict.findings.append(Finding(file, line, what))
