"""What is open: opaque numbers the kernel holds, each for one open file or one directory listing.

Numbers start at 2**32 and are never used twice in a mount: a handle of 0, which the kernel sends when something told it
that opens need no handle, can therefore never be taken for a descriptor (rule serve-4).
"""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator
from typing import Generic, TypeVar

from policyfs.fuse.names import Names
from policyfs.fuse.nodes import Node
from policyfs.source.files import OpenFile
from policyfs.view.listing import Listing

FIRST = 1 << 32


class FileHandle:
    """An open regular file of a node. `epoch` is the policy it was last judged by."""

    __slots__ = ("epoch", "file", "node")

    def __init__(self, node: Node, file: OpenFile, epoch: int) -> None:
        self.node = node
        self.file = file
        self.epoch = epoch

    def close(self) -> None:
        """Close the file; its node no longer has it."""
        if self.node.files:
            self.node.files.remove(self.file)
        self.file.close()


class DirectoryHandle:
    """An open directory of a node: its names as they were when it was opened, and the listing behind them, which is
    only needed where attributes must be looked up. `epoch` is the policy they were judged by, `given` the positions that
    were given so far, and `fitted` how many entries the last full reply took. `as_read` are the names as they were read,
    which other streams have too: as long as the directory's watch has these very ones, nothing has changed."""

    __slots__ = ("as_read", "epoch", "fitted", "given", "listing", "names", "node")

    def __init__(self, node: Node, names: Names, listing: Listing | None, epoch: int) -> None:
        self.node = node
        self.as_read = self.names = names
        self.listing = listing
        self.epoch = epoch
        self.given = self.fitted = 0
        node.listings += 1

    def close(self) -> None:
        """Close the directory."""
        self.node.listings -= 1
        self.close_listing()

    def close_listing(self) -> None:
        """Close what stands behind the names; the directory stays open."""
        if self.listing is not None:
            self.listing.close()
            self.listing = None


Opened = TypeVar("Opened", FileHandle, DirectoryHandle)


class Handles(Generic[Opened]):
    """A table of handles, with room for `most` of them: beyond it opening fails with ENFILE, so that a session cannot
    take the daemon's last descriptor."""

    def __init__(self, most: int, first: int = FIRST) -> None:
        self._most = most
        self._next = first
        self._open: dict[int, Opened] = {}

    def __len__(self) -> int:
        return len(self._open)

    def close_all(self) -> None:
        """Close whatever is still open: the mount has ended."""
        while self._open:
            _, opened = self._open.popitem()
            with contextlib.suppress(OSError):
                opened.close()

    def __iter__(self) -> Iterator[Opened]:
        return iter(list(self._open.values()))

    def room(self) -> None:
        """Raise ENFILE where there is none."""
        if len(self._open) >= self._most:
            raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))

    def add(self, opened: Opened) -> int:
        """The number of what was opened."""
        number = self._next
        self._next += 1
        self._open[number] = opened
        return number

    def get(self, number: int) -> Opened:
        """What a number stands for; EBADF for one that stands for nothing."""
        try:
            return self._open[number]
        except KeyError:
            raise OSError(errno.EBADF, os.strerror(errno.EBADF)) from None

    def close(self, number: int) -> None:
        """Close what a number stands for, once."""
        opened = self._open.pop(number, None)
        if opened is not None:
            opened.close()
