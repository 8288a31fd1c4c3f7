"""Waiting for the disk, without the mount waiting too.

Theory. A read that the page cache cannot answer runs in a thread, so that one slow disk does not stop the mount. But to
be given to a thread and woken by it takes 150 to 200 microseconds, and a solid-state disk has brought a page in 50 to 100.
So the handler first looks again for up to `SPIN_SECONDS`: the first attempt has started the disk. That stops the mount no
longer than a listing of twenty entries does.

Where looking is in vain it is left off, at first for one read and twice as long each time, up to `LONGEST_REST`: on a slow
disk, and on a file system that cannot tell what is in the page cache (tmpfs and FUSE give EOPNOTSUPP), the mount is stopped
for 0.3 microseconds a read. How quickly a thread was answered says nothing here: it is at once where the file system cannot
tell, and where the look before has waited for the most of it.

Measured on a virtual disk, 4 KiB random reads of a file that is in no cache: from 2.0 of bindfs's time to 0.9; for 100
microseconds 1.1, for 1000 as for 300.
"""

from __future__ import annotations

import time

import trio

from policyfs.source.files import OpenFile, WouldBlock

SPIN_SECONDS = 300e-6
"""Seconds to look again."""

LONGEST_REST = 1024
"""Reads: what a disk that has become quick costs at most, at 150 microseconds each, is a sixth of a second."""


class Disk:
    """The disk behind one mount, and whether it is quick."""

    def __init__(self) -> None:
        self._resting = 0
        """Reads that are yet to come before the next look."""
        self._rest = 1
        """For how many reads looking is left off the next time."""

    def read_soon(self, file: OpenFile, offset: int, size: int) -> memoryview | None:
        """What `OpenFile.read_cached` gives once the disk has brought it; None if that takes longer than it is worth
        waiting here."""
        if self._resting:
            self._resting -= 1
            return None
        until = time.perf_counter() + SPIN_SECONDS
        while True:
            try:
                data = file.read_cached(offset, size)
            except WouldBlock:
                if time.perf_counter() >= until:
                    break
            else:
                self._rest = 1
                return data
        self._resting = self._rest
        self._rest = min(2 * self._rest, LONGEST_REST)
        return None

    async def read(self, file: OpenFile, offset: int, size: int) -> bytes:
        """What `OpenFile.read` gives, from a thread."""
        return await trio.to_thread.run_sync(file.read, offset, size)
