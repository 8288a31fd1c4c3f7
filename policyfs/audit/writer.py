"""Writes what happens in a mount to its journal; no handler ever waits for that.

Theory. A handler only notes what it did: a tuple on a list, in about a microsecond. A task gathers for a moment and hands
what has come to a thread, which makes lines of it and writes them (`audit/journal_file.py`). What is noted is bounded by its
size: where the disk is slower than the session, what does not fit is counted, and the journal tells how much is missing.

The same refusal for the same process again and again is noted once and counted, for as long as one gathering lasts: from
`GATHER` when nothing was going on to `GATHER_MAX` while something goes on all the time.

The name of a process is read when its first entry in a gathering is noted, and nowhere later: `cat` that was refused is
gone in less time than a thread takes to begin, while the process that waits for this handler is there. It is read from
/proc in some 10 microseconds, which is a fiftieth of what starting a process takes, and nothing in it waits.

All but `lost` and `written` belong to the thread that runs trio.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Hashable

import trio

from policyfs.audit.event import Deed, Event, Item
from policyfs.audit.journal_file import MAX_BYTES, MAX_TOTAL, End, JournalFile, Names
from policyfs.host.processes import command_of

log = logging.getLogger("policyfs")

GATHER = 0.2
"""Seconds for which entries gather before they are written, when none came for a while."""
GATHER_MAX = 1.0
"""The same while they keep coming."""

MAX_WAITING = 16 * 1024 * 1024
"""Bytes that may wait to be written, about: 40,000 entries with paths of a hundred bytes."""
_WEIGHT = 300
"""Bytes that an entry takes besides its path: two tuples, two numbers, a place on the list and one in the table."""

_ONCE = [1]

END_TIMEOUT = 5.0
"""Seconds that the end of a mount waits for a disk that does not answer."""


class Journal:
    """The journal of one mount. No method but `run` waits, and none raises."""

    def __init__(
        self, journal: os.PathLike[str], session: str, *, max_bytes: int = MAX_BYTES, max_total: int = MAX_TOTAL
    ) -> None:
        """`journal` is the directory of its files. Nothing is opened before the first entry is written. A file that has
        grown to `max_bytes` is left for a new one, and the oldest are removed where all exceed `max_total`."""
        self._file = JournalFile(journal, session, max_bytes=max_bytes, max_total=max_total)
        self._waiting: list[tuple[int, Deed | Event, list[int]]] = []
        self._times: dict[Hashable, list[int]] = {}
        """How often each refusal of this gathering was met: the very lists that `_waiting` holds."""
        self._names: dict[int, str | None] = {}
        self._weight = 0
        self._dropped = 0
        self._news = trio.Event()
        self._asleep = False

    @property
    def lost(self) -> int:
        """How many entries could not be written, each time of a repeated one counted."""
        return self._dropped + self._file.lost

    @property
    def written(self) -> int:
        """How many entries were written, a repeated one counted once."""
        return self._file.written

    @property
    def end(self) -> End:
        """Where the chain of what was written ends."""
        return self._file.end

    def repeated(self, refusal: Hashable) -> bool:
        """Count a refusal that this gathering has already, by what it was noted as; False for one that it has not."""
        times = self._times.get(refusal)
        if times is None:
            return False
        times[0] += 1
        return True

    def refusal(
        self, operation: str, path: bytes, level: str, refusal: str, rule: str, pid: int, known_as: Hashable = None
    ) -> None:
        """The policy refused an operation. `known_as` is what it is known by when it is `repeated`, which is asked first:
        by default whatever is told of it here."""
        deed = ("refusal", operation, path, level, refusal, rule, pid, None)
        known_as = deed if known_as is None else known_as
        if not self.repeated(known_as):
            times = [1]
            if self._note(deed, len(path), pid, times):
                self._times[known_as] = times

    def change(self, operation: str, path: bytes, level: str, pid: int, *, to: bytes | None = None) -> None:
        """Something was created, opened to write, renamed, removed, or its attributes changed."""
        self._note(("change", operation, path, level, None, None, pid, to), len(path), pid)

    def opened(self, path: bytes, level: str, pid: int) -> None:
        """A file was opened to read."""
        self._note(("open", "open", path, level, None, None, pid, None), len(path), pid)

    def event(self, what: str, **fields: str | int) -> None:
        """Something befell the mount: `mount`, `unmount`, `reload`, `grant`, `revoke`. Texts may hold surrogates."""
        self._note(Event(what, fields), 0, 0)

    def _note(self, what: Deed | Event, length: int, process: int, times: list[int] = _ONCE) -> bool:
        weight = self._weight + length + _WEIGHT
        if weight > MAX_WAITING:
            self._dropped += 1
            return False
        self._weight = weight
        self._waiting.append((time.time_ns(), what, times))
        if process not in self._names:
            self._names[process] = command_of(process)
        if self._asleep:
            self._asleep = False
            self._news.set()
        return True

    async def run(self) -> None:
        """Write what comes, until cancelled; what has come by then is written too."""
        gather, written_at = GATHER, -GATHER_MAX
        try:
            while True:
                if not self._waiting:
                    self._news, self._asleep = trio.Event(), True
                    await self._news.wait()
                # As long again as there was quiet for less: what comes all the time is gathered for longer each time.
                quiet = trio.current_time() - written_at
                gather = min(gather * 2, GATHER_MAX) if quiet < gather else GATHER
                await trio.sleep(gather)
                await trio.to_thread.run_sync(self._write, *self._take(), abandon_on_cancel=True)
                written_at = trio.current_time()
        finally:
            self._asleep = False
            # An abandoned thread still writes, and this one waits for it; a disk that hangs is not waited for for ever.
            with trio.move_on_after(END_TIMEOUT, shield=True):
                await trio.to_thread.run_sync(self._write, *self._take(), abandon_on_cancel=True)

    def close(self) -> None:
        """Write what has come since `run` ended, and close the file. Entries that come afterwards begin another."""
        self._write(*self._take())
        self._file.close()

    def _take(self) -> tuple[list[Item], int, Names]:
        waiting, names = self._waiting, self._names
        self._waiting, self._times, self._names, self._weight = [], {}, {}, 0
        return [(when, what, times[0]) for when, what, times in waiting], self._dropped, names

    def _write(self, items: list[Item], dropped: int, names: Names) -> None:
        """In the thread. The file tells what it lost by itself."""
        try:
            self._file.append(items, dropped, names)
        except Exception:
            log.exception("the journal failed; the mount goes on")
