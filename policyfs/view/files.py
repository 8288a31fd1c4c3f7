"""An open file of the source: one descriptor, and the access it was opened with."""

from __future__ import annotations

import os

RWF_NOWAIT = os.RWF_NOWAIT
"""preadv2(2): answer only what the page cache holds."""


class OpenFile:
    """One real descriptor. Reads and writes go to it whatever becomes of the name."""

    __slots__ = ("append", "descriptor", "writable")

    def __init__(self, descriptor: int, *, writable: bool, append: bool) -> None:
        self.descriptor = descriptor
        self.writable = writable
        self.append = append

    def read(self, offset: int, size: int) -> bytes:
        """Up to `size` bytes at `offset`; fewer only at the end of the file."""
        data = os.pread(self.descriptor, size, offset)
        if len(data) == size or not data:
            return data
        pieces = [data]
        have = len(data)
        while have < size:
            more = os.pread(self.descriptor, size - have, offset + have)
            if not more:
                break
            pieces.append(more)
            have += len(more)
        return b"".join(pieces)

    def write(self, offset: int, data: bytes) -> int:
        """Write all of `data`; with O_APPEND the kernel puts it at the end, whatever the offset. Gives the count."""
        if self.append:
            return os.write(self.descriptor, data)
        written = os.pwrite(self.descriptor, data, offset)
        if written == len(data):
            return written
        view = memoryview(data)
        while written < len(data):
            more = os.pwrite(self.descriptor, view[written:], offset + written)
            if not more:
                break
            written += more
        return written

    def truncate(self, size: int) -> None:
        """ftruncate(2)."""
        os.ftruncate(self.descriptor, size)

    def sync(self, *, data_only: bool) -> None:
        """fsync(2) or fdatasync(2). May block for long."""
        if data_only:
            os.fdatasync(self.descriptor)
        else:
            os.fsync(self.descriptor)

    def close(self) -> None:
        """Close the descriptor, once."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
