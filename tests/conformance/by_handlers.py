"""The second player: the handlers of the mount, called as the kernel calls them, without a mount."""

from __future__ import annotations

import contextlib
import errno
import os
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import Any
from unittest import mock

import pyfuse3
import trio

from policyfs.fuse.handlers import Operations
from tests.conformance.by_view import view_of
from tests.conformance.cases import Case
from tests.conformance.ground import Ground
from tests.conformance.kernel import UMASK, ByKernel, Entry, FileSystem, refuse
from tests.conformance.player import Player

ROOM = 2
"""Entries that one reply of a listing has room for: few, so that listings are read in several."""


class _Context:
    """Who asks: pyfuse3's own cannot be filled in from Python."""

    uid = os.geteuid()
    gid = os.getegid()
    pid = os.getpid()
    umask = UMASK


class _Fields:
    """Which attributes a setattr is about; as above."""

    def __init__(self, *changed: str) -> None:
        names = ("size", "mode", "uid", "gid", "atime", "mtime", "ctime")
        for name in names:
            setattr(self, f"update_{name}", name in changed)


class _Reply:
    """The reply that a listing is put into, in place of pyfuse3's."""

    def __init__(self) -> None:
        self.entries: list[tuple[bytes, pyfuse3.EntryAttributes, int]] = []

    def put(self, name: bytes, entry: pyfuse3.EntryAttributes, following: int) -> bool:
        if len(self.entries) == ROOM:
            return False
        self.entries.append((name, entry, following))
        return True

    @property
    def named(self) -> list[tuple[bytes, pyfuse3.EntryAttributes]]:
        """The entries that the kernel makes names of, and counts."""
        return [(name, entry) for name, entry, _ in self.entries if name not in (b".", b"..")]


def _told(node: int, reply: pyfuse3.EntryAttributes) -> Entry:
    times = (reply.st_atime_ns, reply.st_mtime_ns, reply.st_ctime_ns)
    return Entry(node, reply.st_mode, reply.st_nlink, reply.st_size, reply.st_uid, times)


class HandlerRequests(FileSystem):
    """The requests, asked of the handlers. A node is an inode number.

    Counted as the kernel counts: each reply that tells of an inode is a lookup, and `end` forgets as many.
    """

    def __init__(self, operations: Operations) -> None:
        self.operations = operations
        self.told: Counter[int] = Counter()

    def _ask(self, handler: Callable[..., Awaitable[Any]], *arguments: Any) -> Any:
        async def asked() -> Any:
            return await handler(*arguments)

        try:
            return trio.run(asked)
        except pyfuse3.FUSEError as error:
            # The refusal behind it, if any, is in its context: `play` compares its text.
            raise OSError(error.errno, os.strerror(error.errno)) from error.__context__

    def _entry(self, reply: pyfuse3.EntryAttributes, *, counts: bool = True) -> Entry:
        if counts:
            self.told[reply.st_ino] += 1
        return _told(reply.st_ino, reply)

    def root(self) -> Entry:
        reply = self._ask(self.operations.getattr, pyfuse3.ROOT_INODE, _Context)
        return _told(pyfuse3.ROOT_INODE, reply)

    def lookup(self, directory: Entry, name: bytes) -> Entry:
        reply = self._ask(self.operations.lookup, directory.node, name, _Context)
        if reply.st_ino == 0:
            # A name that is missing, with leave to remember that. To the kernel that is ENOENT.
            raise refuse(errno.ENOENT)
        return self._entry(reply)

    def attributes(self, entry: Entry) -> Entry:
        reply = self._ask(self.operations.getattr, entry.node, _Context)
        found = _told(entry.node, reply)
        assert found == entry, f"lookup said {entry}, getattr {found}"
        return found

    def link_text(self, entry: Entry) -> bytes:
        return bytes(self._ask(self.operations.readlink, entry.node, _Context))

    def names(self, entry: Entry) -> Sequence[bytes]:
        handle = self._ask(self.operations.opendir, entry.node, _Context)
        names: list[bytes] = []
        position = 0
        try:
            while True:
                reply = _Reply()
                self._ask(self.operations.readdir, handle, position, reply)
                if not reply.entries:
                    return names
                position = reply.entries[-1][2]
                for name, attributes in reply.named:
                    names.append(name)
                    self._entry(attributes)
        finally:
            self._ask(self.operations.releasedir, handle)

    def open(self, entry: Entry, flags: int) -> int:
        return int(self._ask(self.operations.open, entry.node, flags, _Context).fh)

    def create(self, directory: Entry, name: bytes, flags: int, mode: int) -> int:
        info, reply = self._ask(
            self.operations.create, directory.node, name, mode & ~UMASK, flags & ~(os.O_CREAT | os.O_EXCL), _Context
        )
        self._entry(reply)
        return int(info.fh)

    def read(self, handle: int, offset: int, size: int) -> bytes:
        return bytes(self._ask(self.operations.read, handle, offset, size))

    def write(self, handle: int, offset: int, content: bytes) -> int:
        return int(self._ask(self.operations.write, handle, offset, content))

    def release(self, handle: int) -> None:
        try:
            self._ask(self.operations.flush, handle)
        except OSError as error:
            # To the kernel: nothing is ever to be flushed.
            if error.errno != errno.ENOSYS:
                raise
        self._ask(self.operations.release, handle)

    def make_directory(self, directory: Entry, name: bytes, mode: int) -> None:
        self._entry(self._ask(self.operations.mkdir, directory.node, name, mode & ~UMASK, _Context))

    def make_node(self, directory: Entry, name: bytes, mode: int) -> None:
        device = os.makedev(1, 3)
        self._entry(self._ask(self.operations.mknod, directory.node, name, mode & ~UMASK, device, _Context))

    def make_link(self, directory: Entry, name: bytes, text: bytes) -> None:
        self._entry(self._ask(self.operations.symlink, directory.node, name, text, _Context))

    def link(self, entry: Entry, directory: Entry, name: bytes) -> None:
        self._entry(self._ask(self.operations.link, entry.node, directory.node, name, _Context))

    def rename(self, old_directory: Entry, old: bytes, new_directory: Entry, new: bytes, flags: int) -> None:
        self._ask(self.operations.rename, old_directory.node, old, new_directory.node, new, flags, _Context)

    def unlink(self, directory: Entry, name: bytes) -> None:
        self._ask(self.operations.unlink, directory.node, name, _Context)

    def remove_directory(self, directory: Entry, name: bytes) -> None:
        self._ask(self.operations.rmdir, directory.node, name, _Context)

    def access(self, entry: Entry, wanted: int) -> None:
        self._ask(self.operations.access, entry.node, wanted, _Context)

    def _set(self, entry: Entry, wanted: pyfuse3.EntryAttributes, *changed: str) -> None:
        reply = self._ask(self.operations.setattr, entry.node, wanted, _Fields(*changed), None, _Context)
        self._entry(reply, counts=False)

    def set_size(self, entry: Entry, size: int) -> None:
        wanted = pyfuse3.EntryAttributes()
        wanted.st_size = size
        self._set(entry, wanted, "size")

    def set_mode(self, entry: Entry, mode: int) -> None:
        wanted = pyfuse3.EntryAttributes()
        wanted.st_mode = mode
        self._set(entry, wanted, "mode")

    def set_owner(self, entry: Entry, uid: int, gid: int) -> None:
        wanted = pyfuse3.EntryAttributes()
        wanted.st_uid, wanted.st_gid = uid, gid
        self._set(entry, wanted, "uid", "gid")

    def set_times(self, entry: Entry, access_ns: int, modify_ns: int) -> None:
        wanted = pyfuse3.EntryAttributes()
        wanted.st_atime_ns, wanted.st_mtime_ns = access_ns, modify_ns
        self._set(entry, wanted, "atime", "mtime")

    def set_attribute(self, entry: Entry, name: bytes, value: bytes) -> None:
        self._ask(self.operations.setxattr, entry.node, name, value, _Context)

    def attribute(self, entry: Entry, name: bytes) -> bytes:
        return bytes(self._ask(self.operations.getxattr, entry.node, name, _Context))

    def attribute_names(self, entry: Entry) -> Sequence[bytes]:
        return [bytes(name) for name in self._ask(self.operations.listxattr, entry.node, _Context)]

    def remove_attribute(self, entry: Entry, name: bytes) -> None:
        self._ask(self.operations.removexattr, entry.node, name, _Context)

    def end(self) -> None:
        """Forget all that was told; then nothing may be known any more, and nothing open."""
        self._ask(self.operations.forget, list(self.told.items()))
        assert len(self.operations.nodes) == 1, f"nodes that the kernel has forgotten: {list(self.operations.nodes)}"
        assert len(self.operations.files) == 0
        assert len(self.operations.directories) == 0


@contextlib.contextmanager
def player(case: Case, ground: Ground) -> Iterator[Player]:
    """A player for one case."""
    with view_of(case, ground) as view, mock.patch.object(pyfuse3, "readdir_reply", _Reply.put):
        requests = HandlerRequests(Operations(view))
        try:
            plays = ByKernel(requests, ground)
            plays.policy = view.policy
            yield plays
            requests.end()
        finally:
            requests.operations.close()
