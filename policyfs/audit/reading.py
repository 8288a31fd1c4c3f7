"""Read a journal: its lines by time, over its files and while they grow, and whether its chains are unbroken.

What is read may have been changed by anyone who can write there: nothing here trusts a line. docs/journal.md says what a
chain without a key can show.
"""

from __future__ import annotations

import errno
import heapq
import os
import re
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO

from policyfs.audit.event import MAX_LINE, hash_of
from policyfs.audit.journal_file import End, files_of, parsed

_CHUNK = 1 << 20
_TIME = re.compile(rb'^\{"seq":\d+,"time":"([0-9TZ:.-]{1,40})"')


class Reader:
    """The lines of a journal. `lines` may be called again, for what was written since."""

    def __init__(self, journal: Path) -> None:
        self._journal = journal
        self._files: dict[str, _Growing] = {}

    def lines(self) -> Iterator[bytes]:
        """The whole lines that have come since the last call, without their newlines. Those of daemons that wrote at
        the same time come by their times. Raises OSError where a file is not a regular one."""
        for path in files_of(self._journal):
            if path.name not in self._files:
                try:
                    self._files[path.name] = _Growing(_open(path))
                except FileNotFoundError:
                    # Removed as the oldest between the two looks.
                    continue
        for _, line in heapq.merge(*(file.lines() for file in self._files.values()), key=lambda timed: timed[0]):
            yield line

    def begun(self) -> bytes:
        """What is behind the last whole line of the newest file: a line that is being written, or never was to its end."""
        return next(reversed(self._files.values())).begun if self._files else b""

    def close(self) -> None:
        """Close the files."""
        for file in self._files.values():
            file.close()


class _Growing:
    """A file that may still be written."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        self._time = b""
        self.begun = b""
        self.close = file.close

    def lines(self) -> Iterator[tuple[bytes, bytes]]:
        """Each whole line that has come, after its time; the time of a line that has none is that of the line before."""
        while text := self._file.read(_CHUNK):
            *lines, self.begun = (self.begun + text).split(b"\n")
            if len(self.begun) > _CHUNK:
                # Not a line of ours, and not to be gathered until memory ends.
                lines, self.begun = [*lines, self.begun], b""
            for line in lines:
                found = _TIME.match(line)
                if found is not None:
                    self._time = found[1]
                yield self._time, line


def _open(path: Path) -> BinaryIO:
    """Open a file, neither through a link nor waiting for a writer of a fifo: either could be the work of another."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise OSError(errno.EINVAL, "not a regular file", os.fspath(path))
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
    """Lines at the end of a file that were cut off when their writer was killed, or are being written."""
    lost: int = 0
    """Entries that could not be written, as the journal itself says."""
    ends: dict[str, End] = field(default_factory=dict)
    """Where the chain of each daemon ends, to be compared with what it sent to syslog."""


def verify(journal: Path) -> Verdict:
    """Follow the chain of each daemon over its files, while daemons go on writing. Raises OSError."""
    verdict = Verdict()
    chains: dict[str, _Chain] = {}
    for path in files_of(journal):
        try:
            file = _open(path)
        except FileNotFoundError:
            # Removed as the oldest since the listing.
            continue
        with file:
            verdict.files += 1
            _follow(path, file, chains, verdict)
    verdict.ends = {daemon: chain.end for daemon, chain in chains.items() if chain.end is not None}
    return verdict


@dataclass(slots=True)
class _Chain:
    """The chain of one daemon, as far as it was read."""

    number: int
    """Of the file that was read last, 0 for none."""
    name: str
    """Its name."""
    end: End | None
    """None where it is not known what must follow."""


def _follow(path: Path, file: BinaryIO, chains: dict[str, _Chain], verdict: Verdict) -> None:
    def find(line: int, what: str) -> None:
        verdict.findings.append(Finding(path, line, what))

    chain = _Chain(0, path.name, None)
    number = 0
    while line := file.readline(_CHUNK):
        number += 1
        if not line.endswith(b"\n"):
            if len(line) < MAX_LINE:
                verdict.torn += 1
            else:
                find(number, "it is too long for a line")
            return
        verdict.lines += 1
        line = line[:-1]
        values = parsed(line)
        if values is None:
            find(number, "it is too long for a line" if len(line) >= MAX_LINE else "it is not a line of a journal")
            chain.end = None
            continue
        if number == 1:
            begun = _begun(path, values, chains)
            if isinstance(begun, str):
                find(1, begun)
            else:
                chain = begun
        if chain.end is not None:
            wrong = _compared(values, chain.end)
            if wrong is not None:
                find(number, wrong)
        chain.end = End(values["seq"], hash_of(line))
        if values["event"] == "damage":
            find(number, f"the daemon found that {values.get('what')}")
        lost = values.get("entries")
        if values["event"] == "lost" and type(lost) is int and lost > 0:
            verdict.lost += lost
    if not number:
        # Begun a moment ago, or emptied: then the next file of the daemon misses it, or the end is not where it was.
        verdict.torn += 1


def _begun(path: Path, values: dict[str, Any], chains: dict[str, _Chain]) -> _Chain | str:
    """The chain that a file goes on with, by its first line; or what is wrong with that line."""
    daemon, number = values.get("daemon"), values.get("file")
    if values["event"] != "file" or not isinstance(daemon, str) or type(number) is not int or number < 1:
        return "it does not begin as a file does: its first lines are missing"
    chain = chains.setdefault(daemon, _Chain(0, f"{daemon}.jsonl", None))
    if number == 1:
        if chain.number or f"{daemon}.jsonl" != path.name:
            return f"it begins as another file, {daemon}.jsonl, does"
        chain.end = End()
    elif number <= chain.number:
        return f"file {number} comes after file {chain.number}"
    elif chain.number != number - 1:
        chain.end = None
        # A daemon's oldest file goes first: while an older one is there, the missing one was removed by somebody else.
        if chain.number and path.with_name(chain.name) in files_of(path.parent):
            chain.number, chain.name = number, path.name
            return f"file {number - 1} of {daemon} is missing before it"
    chain.number, chain.name = number, path.name
    return chain


def _compared(values: dict[str, Any], end: End) -> str | None:
    """What is wrong with a line that follows this end of a chain."""
    seq = values["seq"]
    if seq > end.seq + 1:
        return f"lines {end.seq + 1} to {seq - 1} are missing before it"
    if seq <= end.seq:
        return f"line {seq} comes after line {end.seq}"
    if values["previous"] != end.hash:
        return "the line before it was changed, or another is in its place" if end.seq else "it is not the first line"
    return None

