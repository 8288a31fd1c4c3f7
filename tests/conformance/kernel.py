"""What the kernel itself does between a system call and a file system, for players that have no kernel beneath them.

Theory. A path is walked name by name from `/`; each step is one lookup, and links on the way are followed. Only then
comes the request that the call is about, and the kernel answers by itself what it can tell from the lookups: a name that
is there is not made (EEXIST), one that is not is not removed (ENOENT), kinds that do not fit are refused (EISDIR,
ENOTDIR, EPERM). So what a hidden name answers depends on the lookup first. The order here is that of fs/namei.c,
fs/open.c and fs/xattr.c of Linux 6; nothing is kept from one operation to the next.

`FileSystem` is what the kernel asks, `ByKernel` plays a case on it.
"""

from __future__ import annotations

import errno
import os
import stat
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, NamedTuple

from policyfs.policy.paths import from_text
from tests.conformance.ground import Ground
from tests.conformance.player import (
    ACCESS,
    ANY_TIME_NS,
    DIRECTORY,
    FIFO,
    FILE,
    NOTHING,
    RENAME,
    ROOT_USER,
    Given,
    Player,
    Status,
    bits,
    status,
)

MAX_LINKS = 40
"""MAXSYMLINKS of include/linux/namei.h."""
UMASK = 0o022
"""The session's, as the README says."""


class Entry(NamedTuple):
    """What a lookup gives: something by which the file system knows the object, and its attributes."""

    node: Any
    mode: int
    links: int
    size: int
    owner: int
    times: tuple[int, int, int]

    @property
    def is_directory(self) -> bool:
        return stat.S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        return stat.S_ISLNK(self.mode)


class FileSystem(ABC):
    """The requests of a kernel. A request that fails raises OSError."""

    @abstractmethod
    def root(self) -> Entry: ...
    @abstractmethod
    def lookup(self, directory: Entry, name: bytes) -> Entry: ...
    @abstractmethod
    def attributes(self, entry: Entry) -> Entry: ...
    @abstractmethod
    def link_text(self, entry: Entry) -> bytes: ...
    @abstractmethod
    def names(self, entry: Entry) -> Sequence[bytes]: ...
    @abstractmethod
    def open(self, entry: Entry, flags: int) -> Any: ...
    @abstractmethod
    def create(self, directory: Entry, name: bytes, flags: int, mode: int) -> Any: ...
    @abstractmethod
    def read(self, handle: Any, offset: int, size: int) -> bytes: ...
    @abstractmethod
    def write(self, handle: Any, offset: int, content: bytes) -> int: ...
    @abstractmethod
    def release(self, handle: Any) -> None: ...
    @abstractmethod
    def make_directory(self, directory: Entry, name: bytes, mode: int) -> None: ...
    @abstractmethod
    def make_node(self, directory: Entry, name: bytes, mode: int) -> None: ...
    @abstractmethod
    def make_link(self, directory: Entry, name: bytes, text: bytes) -> None: ...
    @abstractmethod
    def link(self, entry: Entry, directory: Entry, name: bytes) -> None: ...
    @abstractmethod
    def rename(self, old_directory: Entry, old: bytes, new_directory: Entry, new: bytes, flags: int) -> None: ...
    @abstractmethod
    def unlink(self, directory: Entry, name: bytes) -> None: ...
    @abstractmethod
    def remove_directory(self, directory: Entry, name: bytes) -> None: ...
    @abstractmethod
    def access(self, entry: Entry, wanted: int) -> None: ...
    @abstractmethod
    def set_size(self, entry: Entry, size: int) -> None: ...
    @abstractmethod
    def set_mode(self, entry: Entry, mode: int) -> None: ...
    @abstractmethod
    def set_owner(self, entry: Entry, uid: int, gid: int) -> None: ...
    @abstractmethod
    def set_times(self, entry: Entry, access_ns: int, modify_ns: int) -> None: ...
    @abstractmethod
    def set_attribute(self, entry: Entry, name: bytes, value: bytes) -> None: ...
    @abstractmethod
    def attribute(self, entry: Entry, name: bytes) -> bytes: ...
    @abstractmethod
    def attribute_names(self, entry: Entry) -> Sequence[bytes]: ...
    @abstractmethod
    def remove_attribute(self, entry: Entry, name: bytes) -> None: ...


def refuse(code: int) -> OSError:
    """The kernel's own refusal."""
    return OSError(code, os.strerror(code))


class LedOut(Exception):
    """A link led out of the view: only a real mount can go on there."""


class Walked(NamedTuple):
    """Where a walk ended: the directory, the last name, and what has it, or why nothing has."""

    directory: Entry
    name: bytes
    entry: Entry | None
    absent: OSError | None

    def there(self) -> Entry:
        """What is there."""
        if self.entry is None:
            assert self.absent is not None
            raise self.absent
        return self.entry

    def free(self) -> tuple[Entry, bytes]:
        """Where something may be made."""
        if self.entry is not None:
            raise refuse(errno.EEXIST)
        return self.directory, self.name


class ByKernel(Player):
    """Plays on a file system, as the kernel does."""

    def __init__(self, system: FileSystem, ground: Ground) -> None:
        self.system = system
        self.ground = ground

    # -- walking --------------------------------------------------------------------------------------------------------

    def _walk(self, path: str, *, follow: bool = False) -> Walked:
        root = self.system.root()
        above: list[Entry] = [root]
        waiting = _names(from_text(path))
        links = 0
        if not waiting:
            return Walked(root, b"", root, None)
        while True:
            name = waiting.pop(0)
            directory = above[-1]
            if not directory.is_directory:
                raise refuse(errno.ENOTDIR)
            last = not waiting
            if name == b"..":
                if len(above) == 1:
                    raise LedOut(f"a link on {path} leads above the root of the view")
                above.pop()
                if last:
                    return Walked(directory, name, above[-1], None)
                continue
            try:
                entry = self.system.lookup(directory, name)
            except OSError as error:
                if last and error.errno == errno.ENOENT:
                    return Walked(directory, name, None, error)
                raise
            if entry.is_link and (follow or not last):
                links += 1
                if links > MAX_LINKS:
                    raise refuse(errno.ELOOP)
                text = self.system.link_text(entry)
                if text.startswith(b"/"):
                    raise LedOut(f"a link on {path} leads to {os.fsdecode(text)}")
                waiting = _names(text) + waiting
                if not waiting:
                    return Walked(directory, name, directory, None)
                continue
            if last:
                return Walked(directory, name, entry, None)
            above.append(entry)

    def _there(self, path: str, *, follow: bool = False) -> Entry:
        return self._walk(path, follow=follow).there()

    # -- looking --------------------------------------------------------------------------------------------------------

    def stat(self, path: str, *, like: str | None = None) -> Given:
        return status(self._status(path), None if like is None else self._status(like))

    def _status(self, path: str) -> Status:
        entry = self.system.attributes(self._there(path))
        return Status(entry.mode, entry.links, entry.size, entry.owner, entry.times)

    def list(self, path: str) -> Given:
        entry = self._there(path, follow=True)
        if not entry.is_directory:
            raise refuse(errno.ENOTDIR)
        return {"names": [os.fsdecode(name) for name in sorted(self.system.names(entry))]}

    def readlink(self, path: str) -> Given:
        entry = self._there(path)
        if not entry.is_link:
            raise refuse(errno.EINVAL)
        return {"target": os.fsdecode(self.system.link_text(entry))}

    def access(self, path: str, *, mode: str) -> Given:
        entry = self._there(path, follow=True)
        if mode:
            self.system.access(entry, sum(ACCESS[letter] for letter in mode))
        return NOTHING

    # -- files ----------------------------------------------------------------------------------------------------------

    def _opened(self, path: str, flags: int) -> Any:
        """The handle of a file that is there, None for a directory, which was opened and closed again."""
        entry = self._there(path, follow=not flags & os.O_NOFOLLOW)
        writes = flags & os.O_ACCMODE != os.O_RDONLY or flags & os.O_TRUNC
        if entry.is_link:
            raise refuse(errno.ELOOP)
        if entry.is_directory:
            if writes:
                raise refuse(errno.EISDIR)
            self.system.names(entry)
            return None
        if flags & os.O_DIRECTORY:
            raise refuse(errno.ENOTDIR)
        return self.system.open(entry, flags)

    def open(self, path: str, *, flags: Sequence[str]) -> Given:
        handle = self._opened(path, sum(getattr(os, flag) for flag in flags))
        if handle is not None:
            self.system.release(handle)
        return NOTHING

    def read(self, path: str) -> Given:
        handle = self._opened(path, os.O_RDONLY)
        if handle is None:
            raise refuse(errno.EISDIR)
        content = b""
        try:
            while more := self.system.read(handle, len(content), 1 << 16):
                content += more
        finally:
            self.system.release(handle)
        return {"text": content.decode("utf-8", "surrogateescape")}

    def write(self, path: str, *, content: str) -> Given:
        handle = self._opened(path, os.O_WRONLY)
        rest, offset = from_text(content), 0
        try:
            while rest:
                written = self.system.write(handle, offset, rest)
                rest, offset = rest[written:], offset + written
        finally:
            self.system.release(handle)
        return NOTHING

    def truncate(self, path: str, *, size: int) -> Given:
        entry = self._there(path, follow=True)
        if not stat.S_ISREG(entry.mode):
            raise refuse(errno.EISDIR if entry.is_directory else errno.EINVAL)
        self.system.set_size(entry, size)
        return NOTHING

    def create(self, path: str, *, mode: str = FILE) -> Given:
        directory, name = self._walk(path).free()
        self.system.release(self.system.create(directory, name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, bits(mode)))
        return NOTHING

    # -- names ----------------------------------------------------------------------------------------------------------

    def mkdir(self, path: str, *, mode: str = DIRECTORY) -> Given:
        self.system.make_directory(*self._walk(path).free(), bits(mode))
        return NOTHING

    def mkfifo(self, path: str, *, mode: str = FIFO) -> Given:
        self.system.make_node(*self._walk(path).free(), stat.S_IFIFO | bits(mode))
        return NOTHING

    def mkdevice(self, path: str) -> Given:
        self.system.make_node(*self._walk(path).free(), stat.S_IFCHR | bits(FILE))
        return NOTHING

    def symlink(self, path: str, *, target: str) -> Given:
        self.system.make_link(*self._walk(path).free(), self.ground.text(target))
        return NOTHING

    def link(self, path: str, *, to: str) -> Given:
        entry = self._there(path)
        directory, name = self._walk(to).free()
        if entry.is_directory:
            raise refuse(errno.EPERM)
        self.system.link(entry, directory, name)
        return NOTHING

    def rename(self, path: str, *, to: str, flags: Sequence[str] = ()) -> Given:
        old, new = self._walk(path), self._walk(to)
        if not old.name or not new.name:
            raise refuse(errno.EBUSY)
        moved = old.there()
        if "EXCHANGE" in flags:
            new.there()
        elif new.entry is not None and "NOREPLACE" in flags:
            raise refuse(errno.EEXIST)
        if _holds(path, to):
            raise refuse(errno.EINVAL)
        if _holds(to, path):
            raise refuse(errno.EINVAL if "EXCHANGE" in flags else errno.ENOTEMPTY)
        if new.entry is not None and "EXCHANGE" not in flags:
            _fit(new.entry, directory=moved.is_directory)
        self.system.rename(old.directory, old.name, new.directory, new.name, sum(RENAME[flag] for flag in flags))
        return NOTHING

    def unlink(self, path: str) -> Given:
        walked = self._walk(path)
        _fit(walked.there(), directory=False)
        self.system.unlink(walked.directory, walked.name)
        return NOTHING

    def rmdir(self, path: str) -> Given:
        walked = self._walk(path)
        if not walked.name:
            raise refuse(errno.EBUSY)
        _fit(walked.there(), directory=True)
        self.system.remove_directory(walked.directory, walked.name)
        return NOTHING

    # -- attributes -----------------------------------------------------------------------------------------------------

    def chmod(self, path: str, *, mode: str) -> Given:
        self.system.set_mode(self._there(path, follow=True), bits(mode))
        return NOTHING

    def chown(self, path: str) -> Given:
        self.system.set_owner(self._there(path), ROOT_USER, ROOT_USER)
        return NOTHING

    def utimens(self, path: str) -> Given:
        self.system.set_times(self._there(path), ANY_TIME_NS, ANY_TIME_NS)
        return NOTHING

    def setxattr(self, path: str, *, name: str, value: str) -> Given:
        entry = self._there(path)
        if name.startswith("user.") and not (stat.S_ISREG(entry.mode) or entry.is_directory):
            raise refuse(errno.EPERM)
        self.system.set_attribute(entry, from_text(name), from_text(value))
        return NOTHING

    def getxattr(self, path: str, *, name: str) -> Given:
        entry = self._there(path)
        if name.startswith("user.") and not (stat.S_ISREG(entry.mode) or entry.is_directory):
            raise refuse(errno.ENODATA)
        return {"value": os.fsdecode(self.system.attribute(entry, from_text(name)))}

    def listxattr(self, path: str) -> Given:
        return {"names": sorted(os.fsdecode(name) for name in self.system.attribute_names(self._there(path)))}

    def removexattr(self, path: str, *, name: str) -> Given:
        entry = self._there(path)
        if name.startswith("user.") and not (stat.S_ISREG(entry.mode) or entry.is_directory):
            raise refuse(errno.EPERM)
        self.system.remove_attribute(entry, from_text(name))
        return NOTHING


def _names(path: bytes) -> list[bytes]:
    return [name for name in path.split(b"/") if name not in (b"", b".")]


def _holds(directory: str, path: str) -> bool:
    return path.startswith(directory + "/")


def _fit(entry: Entry, *, directory: bool) -> None:
    """may_delete of fs/namei.c: what is removed or replaced is of the kind that was asked for."""
    if entry.is_directory != directory:
        raise refuse(errno.ENOTDIR if directory else errno.EISDIR)
