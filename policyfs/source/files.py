"""An open file of the source: one descriptor, and the access it was opened with."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Callable

Guard = Callable[[int, int, bytes | None], None]
"""What is asked before a file changes, with its descriptor: may these bytes be written at this offset, or, without bytes,
may it be cut to this length. Raises OSError where not."""

LARGEST_READ = 1 << 20
"""Bytes of one read request: FUSE_MAX_MAX_PAGES (256) pages of 4 KiB, the most the kernel asks for."""

_buffer = bytearray(LARGEST_READ)
_whole = memoryview(_buffer)


class WouldBlock(Exception):
    """The page cache does not hold what was asked for: a read would wait for the disk."""


class OpenFile:
    """One real descriptor. Reads and writes go to it whatever becomes of the name.

    A file that is only read may be unopened at first: reached by an O_PATH descriptor, and opened at the first read.
    Where the kernel has the pages, that read never comes.
    """

    __slots__ = ("_unopened", "append", "descriptor", "guard", "mappable", "writable")

    def __init__(self, descriptor: int, flags: int = os.O_RDONLY, *, unopened: Callable[[], int] | None = None) -> None:
        """`flags` are those of open(2) that it was opened with, `unopened` opens a file that the descriptor only
        reaches. `mappable` is what may be mapped shared and writable: mmap(2) wants it open for both."""
        self.descriptor = descriptor
        self.writable = flags & os.O_ACCMODE != os.O_RDONLY
        self.mappable = flags & os.O_ACCMODE == os.O_RDWR
        self.append = bool(flags & os.O_APPEND)
        self.guard: Guard | None = None
        self._unopened = unopened

    def open_now(self) -> None:
        """Open what was only reached; nothing to do for what is open. Not from two threads at once."""
        if self._unopened is None:
            return
        reached, self.descriptor = self.descriptor, self._unopened()
        self._unopened = None
        os.close(reached)

    def read_cached(self, offset: int, size: int) -> memoryview:
        """Up to `size` bytes at `offset`, fewer only at the end of the file, if that takes no waiting for the disk.

        The view is of one buffer that the next read uses again: a fresh object for every read costs more than the copy
        into it. Raises `WouldBlock`.
        """
        self.open_now()
        size = min(size, LARGEST_READ)
        have = 0
        try:
            while have < size:
                count = os.preadv(self.descriptor, [_whole[have:size]], offset + have, os.RWF_NOWAIT)
                if count == 0:
                    break
                have += count
        except OSError as error:
            # EOPNOTSUPP: a file system that cannot tell. It may wait, so it does that in a thread as well.
            if error.errno in (errno.EAGAIN, errno.EOPNOTSUPP):
                raise WouldBlock from None
            raise
        return _whole[:have]

    def read(self, offset: int, size: int) -> bytes:
        """The same, waiting for the disk where need be."""
        self.open_now()
        pieces = []
        have = 0
        while have < size:
            piece = os.pread(self.descriptor, size - have, offset + have)
            if not piece:
                break
            pieces.append(piece)
            have += len(piece)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def write(self, offset: int, data: bytes, *, mapped: bool = False) -> int:
        """Write all of `data`; with O_APPEND the kernel puts it at the end, whatever the offset, but for what was `mapped`:
        the kernel writes mapped pages back by the descriptor that they were mapped by. Gives the count."""
        if self.guard is not None:
            at = os.fstat(self.descriptor).st_size if self.append and not mapped else offset
            self.guard(self.descriptor, at, bytes(data))
        if not self.append:
            return self._put(offset, data)
        if not mapped:
            return os.write(self.descriptor, data)
        flags = fcntl.fcntl(self.descriptor, fcntl.F_GETFL)
        fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags & ~os.O_APPEND)
        try:
            return self._put(offset, data)
        finally:
            fcntl.fcntl(self.descriptor, fcntl.F_SETFL, flags)

    def _put(self, offset: int, data: bytes) -> int:
        written = os.pwrite(self.descriptor, data, offset)
        while written < len(data):
            more = os.pwrite(self.descriptor, memoryview(data)[written:], offset + written)
            if not more:
                break
            written += more
        return written

    def status(self) -> os.stat_result:
        """The attributes of the file."""
        return os.fstat(self.descriptor)

    def is_removed(self) -> bool:
        """Whether the last of its names is gone."""
        return os.fstat(self.descriptor).st_nlink == 0

    def change_ns(self) -> int:
        """When it last changed, in nanoseconds of the epoch."""
        return os.fstat(self.descriptor).st_ctime_ns

    def truncate(self, size: int) -> None:
        """ftruncate(2)."""
        if self.guard is not None:
            self.guard(self.descriptor, size, None)
        os.ftruncate(self.descriptor, size)

    def sync(self, *, data_only: bool) -> None:
        """fsync(2) or fdatasync(2), of a file that is open. May block for long."""
        if data_only:
            os.fdatasync(self.descriptor)
        else:
            os.fsync(self.descriptor)

    def close(self) -> None:
        """Close the descriptor, once."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
