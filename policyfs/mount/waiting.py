"""Waiting for the disk, without the mount waiting too.

Theory. A read that the page cache cannot answer runs in a thread, so that one slow disk does not stop the mount. But to
be given to a thread and woken by it takes 150 to 200 microseconds, and a solid-state disk has brought a page in 50 to 100.
So the handler first looks again for up to `PATIENCE`: the attempt that would have waited has started the disk. That stops
the mount no longer than a listing of twenty entries does, and is given up while the disk is slow: from a look that was in
vain until a thread was answered within `PATIENCE`.

Measured on a virtual disk, 4 KiB random reads of a file that is in no cache: from 2.0 of bindfs's time to 0.9; for 100
microseconds 1.1, for 1000 as for 300.
"""

from __future__ import annotations

import time

import trio

from policyfs.view.files import OpenFile, WouldBlock

PATIENCE = 300e-6
"""Seconds to look again."""


class Disk:
    """The disk behind one mount, and whether it is quick."""

    def __init__(self) -> None:
        self._quick = True

    def read_soon(self, file: OpenFile, offset: int, size: int) -> memoryview | None:
        """What `OpenFile.read_cached` gives once the disk has brought it; None if that takes longer than it is worth
        waiting here."""
        if not self._quick:
            return None
        until = time.perf_counter() + PATIENCE
        while time.perf_counter() < until:
            try:
                return file.read_cached(offset, size)
            except WouldBlock:
                pass
        self._quick = False
        return None

    async def read(self, file: OpenFile, offset: int, size: int) -> bytes:
        """What `OpenFile.read` gives, from a thread."""

        def read() -> tuple[bytes, float]:
            began = time.perf_counter()
            return file.read(offset, size), time.perf_counter() - began

        data, seconds = await trio.to_thread.run_sync(read)
        self._quick = seconds < PATIENCE
        return data
