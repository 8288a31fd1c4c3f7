"""Random system calls on a tree, through descriptors and mappings that live on: what `tests/adversary/test_differential.py`,
which goes by whole paths, does not reach.

A call is drawn as plain values (its name and its arguments), so that the same one can be made on two trees, and its answer
is plain too: what must be the same on both.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import random
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

Call = tuple[Any, ...]
"""The name of a method of `Tree`, and its arguments."""

SLOTS = 6
"""Descriptors that are open at once."""

_libc = ctypes.CDLL(None, use_errno=True)
_libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
_AT_EMPTY_PATH = 0x1000
_FACCESSAT2 = 439
_OFD_SETLK = 37
"""linkat(2), faccessat2(2), fcntl(2)."""
_SET_BY_HAND = 10**18
"""Times before this, in nanoseconds of the epoch, were set by a call; later ones are when something happened."""


class NothingThere(Exception):
    """The slot holds no descriptor: the call is not made."""


def _done(result: int) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return result


def shown(status: os.stat_result) -> tuple[Any, ...]:
    """What must be the same of a status; a view tells nothing of a directory's size and links."""
    size_and_links: tuple[int, ...] = () if stat.S_ISDIR(status.st_mode) else (status.st_size, status.st_nlink)
    # The times of a fifo or socket are the kernel's own matter: what goes through one never comes by here.
    set_by_hand = None
    if not stat.S_ISFIFO(status.st_mode) and status.st_mtime_ns < _SET_BY_HAND:
        set_by_hand = status.st_mtime_ns
    return (status.st_mode, status.st_uid, status.st_gid, set_by_hand, *size_and_links)


class Tree:
    """One tree, and what is open in it. Each method is a call; `at` is a slot to go by, None for the top."""

    def __init__(self, top: Path) -> None:
        self.top = top
        self._top = os.open(top, os.O_RDONLY | os.O_DIRECTORY)
        self._open: dict[int, int] = {}
        self._maps: dict[int, mmap.mmap] = {}

    def close_all(self) -> None:
        """Close whatever is open."""
        for mapping in self._maps.values():
            mapping.close()
        for descriptor in (*self._open.values(), self._top):
            os.close(descriptor)

    def answer(self, call: Call) -> Any:
        """Make a call: its result, or the name of its errno."""
        name, *arguments = call
        try:
            return getattr(self, name)(*arguments)
        except NothingThere:
            return "nothing there"
        except OSError as error:
            return errno.errorcode[error.errno or 0]

    def _slot(self, slot: int | None) -> int:
        if slot is None:
            return self._top
        if slot not in self._open:
            raise NothingThere
        return self._open[slot]

    def _file(self, slot: int) -> int:
        """The descriptor in a slot, if it is of a regular file: what the others answer differs from one file system to
        another."""
        descriptor = self._slot(slot)
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise NothingThere
        return descriptor

    def _directory(self, slot: int) -> int:
        descriptor = self._slot(slot)
        if not stat.S_ISDIR(os.fstat(descriptor).st_mode):
            raise NothingThere
        return descriptor

    def _put(self, slot: int, descriptor: int) -> None:
        if slot in self._open:
            os.close(self._open[slot])
        self._open[slot] = descriptor

    # -- descriptors --------------------------------------------------------------------------------------------------

    def open(self, slot: int, at: int | None, path: str, flags: int, mode: int) -> int:
        """openat(2) into a slot. Without O_NONBLOCK, opening a fifo would wait for its other end."""
        self._put(slot, os.open(path, flags | os.O_NONBLOCK, mode, dir_fd=self._slot(at)))
        return fcntl.fcntl(self._slot(slot), fcntl.F_GETFL)

    def open_again(self, slot: int, other: int, flags: int) -> None:
        """Open what is in a slot again, by its name in /proc."""
        self._put(other, os.open(f"/proc/self/fd/{self._slot(slot)}", flags | os.O_NONBLOCK))

    def dup(self, slot: int, other: int) -> None:
        """dup(2)."""
        self._put(other, os.dup(self._slot(slot)))

    def close(self, slot: int) -> None:
        """close(2)."""
        descriptor = self._slot(slot)
        del self._open[slot]
        os.close(descriptor)

    def path_of(self, slot: int) -> str:
        """Where the kernel says that a descriptor leads, below the top."""
        return os.readlink(f"/proc/self/fd/{self._slot(slot)}").removeprefix(str(self.top))

    # -- contents -----------------------------------------------------------------------------------------------------

    def read(self, slot: int, size: int) -> bytes:
        """read(2), from where the descriptor is."""
        return os.read(self._file(slot), size)

    def pread(self, slot: int, size: int, offset: int) -> bytes:
        """pread(2)."""
        return os.pread(self._file(slot), size, offset)

    def write(self, slot: int, data: bytes) -> int:
        """write(2)."""
        return os.write(self._file(slot), data)

    def pwrite(self, slot: int, data: bytes, offset: int) -> int:
        """pwrite(2)."""
        return os.pwrite(self._file(slot), data, offset)

    def seek(self, slot: int, offset: int, whence: int) -> int:
        """lseek(2), but for holes, which a view does not tell of."""
        return os.lseek(self._file(slot), offset, whence)

    def truncate(self, slot: int, size: int) -> None:
        """ftruncate(2)."""
        os.ftruncate(self._file(slot), size)

    def copy(self, slot: int, other: int, size: int, offset: int) -> int:
        """copy_file_range(2)."""
        return os.copy_file_range(self._file(slot), self._file(other), size, offset)

    def send(self, slot: int, other: int, size: int, offset: int) -> int:
        """sendfile(2)."""
        return os.sendfile(self._file(other), self._file(slot), offset, size)

    def sync(self, slot: int) -> None:
        """fsync(2)."""
        os.fsync(self._slot(slot))

    def map(self, slot: int, number: int) -> int:
        """A shared mapping of a whole file, kept whatever becomes of the descriptor."""
        descriptor = self._file(slot)
        size = os.fstat(descriptor).st_size
        if not size:
            raise NothingThere
        mapping = mmap.mmap(descriptor, size)
        if number in self._maps:
            self._maps.pop(number).close()
        self._maps[number] = mapping
        return size

    def use_map(self, number: int, offset: int, data: bytes) -> bytes:
        """Read a mapping at a place, write there, and have it written: a plain file's time moves with the first touch of a
        page, a view's when the page is written."""
        mapping = self._maps.get(number)
        if mapping is None or mapping.size() < len(mapping):
            # Beyond the end of the file there is SIGBUS.
            raise NothingThere
        before = mapping[offset : offset + len(data)]
        mapping[offset : offset + len(before)] = data[: len(before)]
        mapping.flush()
        return before

    # -- names --------------------------------------------------------------------------------------------------------

    def mkdir(self, at: int | None, path: str, mode: int) -> None:
        """mkdirat(2)."""
        os.mkdir(path, mode, dir_fd=self._slot(at))

    def mknod(self, at: int | None, path: str, mode: int) -> None:
        """mknodat(2) of a regular file, a fifo or a socket."""
        os.mknod(path, mode, dir_fd=self._slot(at))

    def symlink(self, text: str, at: int | None, path: str) -> None:
        """symlinkat(2)."""
        os.symlink(text, path, dir_fd=self._slot(at))

    def link(self, at: int | None, path: str, other: int | None, other_path: str) -> None:
        """linkat(2)."""
        os.link(path, other_path, src_dir_fd=self._slot(at), dst_dir_fd=self._slot(other), follow_symlinks=False)

    def link_descriptor(self, slot: int, at: int | None, path: str) -> None:
        """linkat(2) of what is open, by AT_EMPTY_PATH."""
        _done(_libc.linkat(self._slot(slot), b"", self._slot(at), os.fsencode(path), _AT_EMPTY_PATH))

    def unlink(self, at: int | None, path: str) -> None:
        """unlinkat(2)."""
        os.unlink(path, dir_fd=self._slot(at))

    def rmdir(self, at: int | None, path: str) -> None:
        """unlinkat(2) with AT_REMOVEDIR."""
        os.rmdir(path, dir_fd=self._slot(at))

    def rename(self, at: int | None, path: str, other: int | None, other_path: str, flags: int) -> None:
        """renameat2(2)."""
        old, new = os.fsencode(path), os.fsencode(other_path)
        _done(_libc.renameat2(self._slot(at), old, self._slot(other), new, flags))

    def list(self, slot: int) -> list[str]:
        """What getdents(2) gives of an open directory from its beginning."""
        return sorted(os.listdir(self._directory(slot)))

    def enter(self, slot: int, path: str) -> None:
        """Stand in an open directory and make another in it."""
        os.fchdir(self._slot(slot))
        try:
            os.mkdir(path)
        finally:
            os.chdir("/")

    # -- attributes ---------------------------------------------------------------------------------------------------

    def stat(self, at: int | None, path: str, follow: bool) -> tuple[Any, ...]:
        """newfstatat(2)."""
        return shown(os.stat(path, dir_fd=self._slot(at), follow_symlinks=follow))

    def stat_descriptor(self, slot: int) -> tuple[Any, ...]:
        """fstat(2), of what was removed too."""
        return shown(os.fstat(self._slot(slot)))

    def access(self, at: int | None, path: str, wanted: int) -> None:
        """faccessat2(2)."""
        _done(_libc.syscall(_FACCESSAT2, self._slot(at), os.fsencode(path), wanted, 0))

    def chmod(self, slot: int, mode: int) -> None:
        """fchmod(2)."""
        os.fchmod(self._slot(slot), mode)

    def set_times(self, slot: int, times: tuple[int, int]) -> None:
        """futimens(3)."""
        os.utime(self._slot(slot), ns=times)

    def set_attribute(self, slot: int, name: str, value: bytes, flags: int) -> None:
        """fsetxattr(2)."""
        os.setxattr(self._slot(slot), name, value, flags)

    def attribute(self, slot: int, name: str, room: int) -> tuple[int, bytes]:
        """fgetxattr(2) into so many bytes; into none, it tells how many there are."""
        buffer = ctypes.create_string_buffer(max(1, room))
        size = _done(_libc.fgetxattr(self._slot(slot), os.fsencode(name), buffer, room))
        return size, buffer.raw[: size if room else 0]

    def attributes(self, slot: int) -> Any:
        """flistxattr(2)."""
        return sorted(os.listxattr(self._slot(slot)))

    def remove_attribute(self, slot: int, name: str) -> None:
        """fremovexattr(2)."""
        os.removexattr(self._slot(slot), name)

    def lock(self, slot: int, how: int) -> None:
        """flock(2)."""
        fcntl.flock(self._file(slot), how | fcntl.LOCK_NB)

    def lock_range(self, slot: int, kind: int, offset: int, size: int) -> None:
        """A lock of fcntl(2) that belongs to the open file, so that two of one process exclude each other."""
        fcntl.fcntl(self._file(slot), _OFD_SETLK, struct.pack("hhqqi4x", kind, 0, offset, size, 0))


_NAMES = ("a", "b", "c", "d")
_ODD_NAMES = ("a name", "new\nline", "\udcff\udcfe", "\u00e4", "x" * 255, "x" * 256, "...", "-r")
_FLAGS = (os.O_CREAT, os.O_CREAT, os.O_EXCL, os.O_TRUNC, os.O_APPEND, os.O_DIRECTORY, os.O_NOFOLLOW, os.O_PATH, os.O_SYNC)
_MODES = (0o600, 0o644, 0o755, 0o700, 0o777, 0o400, 0o000, 0o1777)


class Drawn:
    """Calls drawn from a seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)

    def name(self) -> str:
        """A name, often one that was used before: there are few."""
        return self.chance.choice(_NAMES if self.chance.random() < 0.93 else _ODD_NAMES)

    def path(self) -> str:
        """A path of one to three names, which may go back and forth."""
        path = "/".join(self.name() for _ in range(self.chance.choices((1, 2, 3), (5, 4, 1))[0]))
        return self.chance.choices((path, f"{path}/", f"{path}/.", f"{self.name()}/../{path}", ""), (90, 3, 2, 3, 1))[0]

    def at(self) -> int | None:
        """Where a path starts: mostly at the top."""
        return None if self.chance.random() < 0.7 else self.chance.randrange(SLOTS)

    def data(self) -> bytes:
        """Bytes to write."""
        return self.chance.randbytes(self.chance.choice((0, 1, 10, 100, 4096, 5000, 9000)))

    def offset(self) -> int:
        """An offset, often about the edge of a page."""
        return self.chance.choice((0, 0, 1, 100, 4095, 4096, 5000, 8192, self.chance.randrange(20_000)))

    def flags(self) -> int:
        """The flags of open(2)."""
        flags = self.chance.choice((os.O_RDONLY, os.O_WRONLY, os.O_RDWR, os.O_RDWR))
        for flag in self.chance.sample(_FLAGS, self.chance.choice((0, 0, 1, 1, 2, 3))):
            flags |= flag
        return flags

    def first(self) -> list[Call]:
        """Calls that make a few things and open them, so that the others find something."""
        calls: list[Call] = [("mkdir", None, path, 0o755) for path in ("a", "b", "a/c", "b/d")]
        for slot in range(4):
            calls.append(
                ("open", slot, None, f"{self.chance.choice(('a', 'b', '.'))}/{self.name()}", os.O_RDWR | os.O_CREAT, 0o644)
            )
            calls.append(("write", slot, self.data()))
        return [*calls, ("open", 4, None, "a/c", os.O_DIRECTORY, 0), ("open", 5, None, ".", os.O_DIRECTORY, 0)]

    def call(self) -> Call:
        """One call."""
        chance = self.chance
        slot, other = chance.randrange(SLOTS), chance.randrange(SLOTS)
        number, size = chance.randrange(2), chance.choice((0, 1, 100, 4096, 10_000))
        attribute = f"user.{chance.choice('ab')}"
        times = (chance.randrange(10**17), chance.randrange(10**17))
        kind = chance.choice((stat.S_IFREG, stat.S_IFIFO, stat.S_IFSOCK)) | chance.choice(_MODES)
        draws: dict[str, tuple[int, Callable[[], Call]]] = {
            "open": (14, lambda: (slot, self.at(), self.path(), self.flags(), chance.choice(_MODES))),
            "open_again": (2, lambda: (slot, other, self.flags() & ~(os.O_CREAT | os.O_NOFOLLOW))),
            "dup": (1, lambda: (slot, other)),
            "close": (1, lambda: (slot,)),
            "path_of": (2, lambda: (slot,)),
            "read": (3, lambda: (slot, size)),
            "pread": (3, lambda: (slot, size, self.offset())),
            "write": (4, lambda: (slot, self.data())),
            "pwrite": (4, lambda: (slot, self.data(), self.offset())),
            "seek": (2, lambda: (slot, chance.choice((self.offset(), -1)), chance.randrange(3))),
            "truncate": (3, lambda: (slot, self.offset())),
            "copy": (2, lambda: (slot, other, size, self.offset())),
            "send": (1, lambda: (slot, other, size, self.offset())),
            "sync": (1, lambda: (slot,)),
            "map": (2, lambda: (slot, number)),
            "mkdir": (7, lambda: (self.at(), self.path(), chance.choice(_MODES))),
            "mknod": (2, lambda: (self.at(), self.path(), kind)),
            # Downwards, so that it lands in the tree wherever the link is moved to.
            "symlink": (3, lambda: ("/".join(chance.choices(_NAMES, k=2)), self.at(), self.path())),
            "link": (4, lambda: (self.at(), self.path(), self.at(), self.path())),
            "link_descriptor": (1, lambda: (slot, self.at(), self.path())),
            "unlink": (4, lambda: (self.at(), self.path())),
            "rmdir": (3, lambda: (self.at(), self.path())),
            "rename": (7, lambda: (self.at(), self.path(), self.at(), self.path(), chance.choice((0, 0, 0, 1, 2)))),
            "list": (5, lambda: (slot,)),
            "enter": (2, lambda: (slot, self.name())),
            "stat_descriptor": (5, lambda: (slot,)),
            "access": (2, lambda: (self.at(), self.path(), chance.randrange(8))),
            "chmod": (2, lambda: (slot, chance.choice(_MODES))),
            "set_times": (2, lambda: (slot, times)),
            "set_attribute": (3, lambda: (slot, attribute, self.data()[:200], chance.randrange(3))),
            "attribute": (2, lambda: (slot, attribute, chance.choice((0, 1, 100, 70_000)))),
            "attributes": (1, lambda: (slot,)),
            "remove_attribute": (1, lambda: (slot, attribute)),
            "lock": (2, lambda: (slot, chance.choice((fcntl.LOCK_SH, fcntl.LOCK_EX, fcntl.LOCK_UN)))),
            "lock_range": (2, lambda: (slot, chance.randrange(3), self.offset(), size)),
        }
        name = chance.choices([*draws, "stat", "use_map"], [*(weight for weight, _ in draws.values()), 8, 3])[0]
        if name == "stat":
            at, path, follow = self.at(), self.path(), chance.random() < 0.5
            return ("stat", at, path, follow)
        if name == "use_map":
            return ("use_map", number, self.offset(), self.data())
        return (name, *draws[name][1]())
