"""The confined root of the source tree: every system call that reaches it, each confined by the kernel.

Theory. An object is reached by one openat2(2) from the root's descriptor, with RESOLVE_BENEATH, NO_SYMLINKS,
NO_MAGICLINKS and NO_XDEV, to an O_PATH descriptor, and is used through that descriptor alone. So the names that were
judged are the names that were walked: a link swapped in between fails the walk instead of leading it elsewhere
(rule reach-1: 0 of 201,245 raced reads landed outside, against 4,954 of 47,544 for check-then-open), another
mount is never entered, and no device or fifo is opened by looking at it. The root decides nothing; `view` does.

That the names were walked does not say that they still lead there: the owner of the tree may move a directory to a hidden
place while a walk is in it, or between the walk and what is then done by a name in it. So what a walk reached is asked
where it stands (`stands_at`), after it was looked at and before anything is told of it: what is told was true of that very
path at one moment. Making and removing names have no such moment after the act; `view` says what follows.

Nothing outside this module opens, stats or lists the source by path: tests/test_architecture.py checks it.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import functools
import os
import stat
import struct
import time
import unicodedata
from collections import deque
from collections.abc import Callable, Iterator
from itertools import islice

from policyfs.policy.paths import HostPath, Name, below
from policyfs.source.files import OpenFile
from policyfs.source.tree import SOURCE, TOP, Identity, Status, TreePath, child

_SYS_OPENAT2 = 437
"""The number is the same on every architecture: Linux has numbered new calls alike since 5.0 (openat2(2) is of 5.6)."""
_RESOLVE_NO_XDEV = 0x01
_RESOLVE_NO_MAGICLINKS = 0x02
_RESOLVE_NO_SYMLINKS = 0x04
_RESOLVE_BENEATH = 0x08
_CONFINED = _RESOLVE_NO_XDEV | _RESOLVE_NO_MAGICLINKS | _RESOLVE_NO_SYMLINKS | _RESOLVE_BENEATH

_PIECE = 4000
"""Longest path given to the kernel at once, in bytes. PATH_MAX is 4096 with the NUL; a longer path is walked in pieces."""

_RETRIES = 128
"""How often a walk that raced a rename (EAGAIN, openat2(2)) or a signal is tried again before it is given up."""

_MAX_ASKED_FOR_CASE = 64
"""Directories of a source, and names of one, that are asked whether it tells `README` and `readme` apart."""

_JUST_NOW_NS = 10**9
"""Nanoseconds within which a time that is to be set is taken to be that of the request."""

_FS_IOC_GETFLAGS = 0x80086601
_FS_CASEFOLD_FL = 0x40000000
"""ioctl_iflags(2); EXT4_CASEFOLD_FL is the same bit on ext4 and f2fs."""

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_get_errno = ctypes.get_errno
_new = tuple.__new__
"""Makes a named tuple in half the time: each look at an object makes one."""


class _OpenHow(ctypes.Structure):
    """struct open_how of openat2(2)."""

    _fields_ = (("flags", ctypes.c_uint64), ("mode", ctypes.c_uint64), ("resolve", ctypes.c_uint64))


_HOW_SIZE = ctypes.c_size_t(ctypes.sizeof(_OpenHow))
_OPENAT2 = ctypes.c_long(_SYS_OPENAT2)


def _how(flags: int) -> tuple[_OpenHow, object]:
    how = _OpenHow(flags | os.O_CLOEXEC, 0, _CONFINED)
    return how, ctypes.byref(how)


# Made once: building the structure costs as much as the call. The structures stay referenced beside their pointers.
_REACH_HOW, _REACH = _how(os.O_PATH | os.O_NOFOLLOW)
_REACH_DIRECTORY_HOW, _REACH_DIRECTORY = _how(os.O_PATH | os.O_NOFOLLOW | os.O_DIRECTORY)
_LIST_HOW, _LIST = _how(os.O_RDONLY | os.O_NOFOLLOW | os.O_DIRECTORY | os.O_NONBLOCK)


class _Descriptors:
    """This process's own directory of descriptors (proc(5)), from the first look at it; another one after a fork."""

    def __init__(self) -> None:
        self.directory = -1
        os.register_at_fork(after_in_child=self._after_fork)

    def hold(self) -> None:
        """Open it, if nobody has yet."""
        if self.directory < 0:
            self.directory = os.open(b"/proc/self/fd", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)

    def _after_fork(self) -> None:
        if self.directory >= 0:
            os.close(self.directory)
            self.directory = -1
            self.hold()


_descriptors = _Descriptors()


class NoOpenat2(OSError):
    """The kernel has no openat2(2), or something forbids it: nothing here can be confined."""


def _openat2(directory: int, path: bytes, how: object) -> int:
    for _ in range(_RETRIES):
        descriptor: int = _syscall(_OPENAT2, directory, path, how, _HOW_SIZE)
        if descriptor >= 0:
            return descriptor
        code = _get_errno()
        if code not in (errno.EAGAIN, errno.EINTR):
            break
    raise OSError(code, os.strerror(code))


class Root:
    """A directory tree (`tree.Tree`), reached beneath one descriptor. What it reaches is a descriptor each time, which
    is the caller's to release, and closes on exec."""

    def __init__(self, source: HostPath, number: int = SOURCE) -> None:
        """`number` is the tree's (`Identity`). Raises `NotADirectoryError`, `FileNotFoundError` and the like for what
        SOURCE is, `NoOpenat2` for a kernel that cannot confine."""
        self.source = source
        self.number = number
        self.descriptor = os.open(source, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        _descriptors.hold()
        self._above = b""
        """What the kernel puts before the paths of this tree, as it was last asked (`stands_at`)."""
        try:
            os.close(self.reach(TOP))
        except OSError as error:
            os.close(self.descriptor)
            if error.errno in (errno.ENOSYS, errno.EPERM):
                raise NoOpenat2(error.errno, "no openat2(2)") from None
            raise

    def close(self) -> None:
        """Let go of the tree."""
        os.close(self.descriptor)

    # -- reaching -----------------------------------------------------------------------------------------------------

    def reach(self, path: TreePath) -> int:
        """An O_PATH descriptor of what is at `path`, a link itself included. Raises OSError; ELOOP means that a link
        stands where a directory was walked, EXDEV that another mount does, ESTALE that it is moved all the time."""
        for _ in range(_RETRIES):
            reached = self._walked(path)
            try:
                there = self.stands_at(reached, path)
            except BaseException:
                os.close(reached)
                raise
            if there:
                return reached
            os.close(reached)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def _walked(self, path: TreePath) -> int:
        if len(path) <= _PIECE:
            return _openat2(self.descriptor, path[1:] or b".", _REACH)
        return self._reach_in_pieces(path, _REACH)

    def reach_directory(self, path: TreePath) -> int:
        """The same for a directory; ENOTDIR for anything else. Where it stands is not asked: the caller does that after
        what it does in it."""
        if len(path) <= _PIECE:
            return _openat2(self.descriptor, path[1:] or b".", _REACH_DIRECTORY)
        return self._reach_in_pieces(path, _REACH_DIRECTORY)

    def _reach_in_pieces(self, path: TreePath, how: object) -> int:
        """Beneath the last piece each, so that the whole is beneath the root."""
        names = path[1:].split(b"/")
        directory = self.descriptor
        try:
            while True:
                piece = [names.pop(0)]
                length = len(piece[0])
                while names and length + 1 + len(names[0]) <= _PIECE:
                    length += 1 + len(names[0])
                    piece.append(names.pop(0))
                descriptor = _openat2(directory, b"/".join(piece), _REACH_DIRECTORY if names else how)
                if directory != self.descriptor:
                    os.close(directory)
                directory = descriptor
                if not names:
                    return directory
        except OSError:
            if directory != self.descriptor:
                os.close(directory)
            raise

    @staticmethod
    def reach_name(directory: int, name: Name) -> int:
        """An O_PATH descriptor of an entry of an open directory. Raises OSError as `reach` does."""
        return _openat2(directory, name, _REACH)

    @staticmethod
    def hold(place: HostPath) -> int:
        """An O_PATH descriptor of a place of the host, a link itself included: a mountpoint beside SOURCE, beneath which
        `reach_name` goes on. It is walked to by its path, so only what stands in the table of mounts is to be named."""
        return os.open(place, os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC)

    release = staticmethod(os.close)
    """Close what was reached."""

    def mount_number(self) -> int:
        """The number of the mount that SOURCE was reached through, as the table of mounts has it."""
        with open(f"/proc/self/fdinfo/{self.descriptor}", "rb") as lines:
            return next(int(line.split()[1]) for line in lines if line.startswith(b"mnt_id:"))

    # -- looking ------------------------------------------------------------------------------------------------------

    status = staticmethod(os.fstat)
    """The attributes of what was reached."""

    def stat(self, path: TreePath) -> os.stat_result:
        """The attributes of what is at `path`, a link itself included. Raises OSError as `reach` does."""
        for _ in range(_RETRIES):
            descriptor = self._walked(path)
            try:
                status = os.fstat(descriptor)
                if self.stands_at(descriptor, path):
                    return status
            finally:
                os.close(descriptor)
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def stat_within(self, directory: int, path: TreePath) -> os.stat_result:
        """The same in an open directory that was reached by the names before the last; ESTALE too where it is no longer
        there."""
        above, _, name = path.rpartition(b"/")
        for _ in range(_RETRIES):
            descriptor = _openat2(directory, name, _REACH)
            try:
                status = os.fstat(descriptor)
                if self.stands_at(descriptor, path):
                    return status
            finally:
                os.close(descriptor)
            if not self.stands_at(directory, TreePath(above or TOP)):
                break
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    @staticmethod
    def stat_name(directory: int, name: Name) -> os.stat_result:
        """The attributes of an entry of an open directory, without entering another mount. (os.stat with a dir_fd
        would: on the view's own mount point that is a dead-lock of the daemon with itself.)"""
        descriptor = _openat2(directory, name, _REACH)
        try:
            return os.fstat(descriptor)
        finally:
            os.close(descriptor)

    @staticmethod
    def names(directory: int, most: int | None = None) -> list[Name]:
        """The names in a directory, in the order in which the source has them, no more than `most`; `.` and `..` are not
        among them."""
        listing = _openat2(directory, b".", _LIST)
        try:
            with os.scandir(listing) as entries:
                return [Name(os.fsencode(entry.name)) for entry in islice(entries, most)]
        finally:
            os.close(listing)

    def path_of(self, descriptor: int) -> TreePath | None:
        """Where something that is open stands now (proc(5)): None for what was removed or moved out of SOURCE, and where the
        path is too long to be told."""
        try:
            path, top = (os.readlink(_magic(number)) for number in (descriptor, self.descriptor))
        except OSError:
            return None
        rest = below(path, top)
        return None if rest is None else TreePath(b"/" + rest)

    def stands_at(self, descriptor: int, path: TreePath) -> bool:
        """Whether something that is open stands at `path` now. The kernel knows it by its descriptor (proc(5)), consistently
        while things are renamed. False for what was removed."""
        try:
            # Beneath the directory of descriptors, which takes three quarters of the time of a walk from the root.
            told = os.readlink(b"%d" % descriptor, dir_fd=_descriptors.directory)
        except OSError as error:
            if error.errno != errno.ENAMETOOLONG:
                return False
            # Too long to be told. That another walk leads to the same thing is nearly as good.
            return self._leads_to(descriptor, path)
        return told == self._above + path or self._stands_all_the_same(descriptor, told, path)

    def _stands_all_the_same(self, descriptor: int, told: bytes, path: TreePath) -> bool:
        """The same for what is not told by the text that was expected: SOURCE itself, SOURCE moved, or another spelling of a
        name on a file system that takes both for one."""
        if path == TOP:
            return self.identity(descriptor) == self.identity(self.descriptor)
        top = os.readlink(_magic(self.descriptor))
        self._above = b"" if top == b"/" else top
        expected = self._above + path
        return told == expected or (_spelled_alike(told, expected) and self._leads_to(descriptor, path))

    def _leads_to(self, descriptor: int, path: TreePath) -> bool:
        try:
            again = self._walked(path)
        except OSError:
            return False
        try:
            return self.identity(again) == self.identity(descriptor)
        finally:
            os.close(again)

    @staticmethod
    def link_text(directory: int, name: bytes = b"") -> bytes:
        """What a link in an open directory says, or, without a name, what the link that was reached says."""
        return os.readlink(name, dir_fd=directory)

    @staticmethod
    def accessible(reached: int, wanted: int) -> bool:
        """Whether the daemon's own user may do it, by the source's permissions. `wanted` are the bits of access(2)."""
        return os.access(_magic(reached), wanted, effective_ids=True)

    def file_system(self) -> os.statvfs_result:
        """How the file system of SOURCE is filled."""
        return os.fstatvfs(self.descriptor)

    def folds_case(self) -> bool:
        """Whether the source takes `README` and `readme` for one name, as far as a look from the top shows: at the first
        directory that has a name with letters, or whose flags say so."""
        waiting: deque[TreePath] = deque([TOP])
        for _ in range(_MAX_ASKED_FOR_CASE):
            if not waiting:
                break
            path = waiting.popleft()
            try:
                directory = self.reach_directory(path)
            except OSError:
                if path == TOP:
                    raise
                continue
            try:
                names = self.names(directory)
                folds = True if self.directory_folds(directory) else self._folds_names(directory, names)
            except OSError:
                continue
            finally:
                os.close(directory)
            if folds is not None:
                return folds
            waiting += (child(path, name) for name in names[:_MAX_ASKED_FOR_CASE])
        return False

    @staticmethod
    def directory_folds(directory: int) -> bool:
        """Whether a directory's flags say that it folds case, as ext4 and f2fs do it: a directory at a time."""
        try:
            with _listing(directory) as listing:
                flags: int = struct.unpack("=q", fcntl.ioctl(listing, _FS_IOC_GETFLAGS, b"\0" * 8))[0]
                return bool(flags & _FS_CASEFOLD_FL)
        except OSError:
            # A file system without such flags cannot fold a directory at a time.
            return False

    def _folds_names(self, directory: int, listed: list[Name]) -> bool | None:
        """Whether names of a directory are found in the other case too: one object under both spellings, of which one is
        listed. None where no name can tell."""
        present = set(listed)
        told = None
        for name in [name for name in listed if name.swapcase() != name][:_MAX_ASKED_FOR_CASE]:
            other = Name(name.swapcase())
            if other in present:
                return False
            try:
                one = self.stat_name(directory, name)
            except OSError:
                continue
            told = False
            try:
                two = self.stat_name(directory, other)
            except OSError:
                continue
            if self.identify(one) == self.identify(two):
                return True
        return told

    def identify(self, status: Status) -> Identity:
        """Which object of this tree has this status."""
        return _new(Identity, (self.number, status.st_dev, status.st_ino))

    def identity(self, reached: int) -> Identity:
        """Which object was reached."""
        return self.identify(os.fstat(reached))

    @staticmethod
    def watch(reached: int, add: Callable[[bytes], int]) -> int:
        """Hand a reached directory to inotify_add_watch(2), which takes a path and nothing else."""
        return add(_magic(reached))

    def file_system_type(self) -> int:
        """f_type of statfs(2), which tells a network file system from one of this machine."""
        buffer = ctypes.create_string_buffer(256)
        if _libc.fstatfs(self.descriptor, buffer) != 0:
            code = _get_errno()
            raise OSError(code, os.strerror(code))
        kind: int = ctypes.c_long.from_buffer(buffer).value
        return kind & 0xFFFFFFFF

    # -- opening ------------------------------------------------------------------------------------------------------

    @staticmethod
    def reopen(reached: int, flags: int) -> int:
        """Open a reached regular file, or list a reached directory, with the access that `flags` ask for. The caller
        has made sure of the kind: opening a fifo or a device has effects."""
        return os.open(_magic(reached), flags | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)

    def open(self, reached: int, flags: int) -> OpenFile:
        """Open a reached regular file."""
        return OpenFile(self.reopen(reached, flags), flags)

    def open_lazily(self, reached: int, flags: int) -> OpenFile:
        """A reached regular file that is opened at its first read. `reached` is the file's to close."""
        return OpenFile(reached, unopened=functools.partial(self.reopen, reached, flags))

    @staticmethod
    def open_again(file: OpenFile) -> int:
        """What an open file is of, reached once more."""
        return os.dup(file.descriptor)

    def open_directory(self, reached: int) -> int:
        """A reached directory, to be listed."""
        return self.reopen(reached, os.O_RDONLY | os.O_DIRECTORY)

    @staticmethod
    def create(directory: int, name: Name, flags: int, mode: int) -> OpenFile:
        """Make a regular file that was not there, and open it."""
        made = os.open(
            name,
            flags | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC,
            mode,
            dir_fd=directory,
        )
        return OpenFile(made, flags)

    sync = staticmethod(os.fsync)
    """fsync(2) of a reached directory that is open to be listed."""

    # -- changing -----------------------------------------------------------------------------------------------------

    @staticmethod
    def make_directory(directory: int, name: Name, mode: int) -> None:
        """mkdirat(2)."""
        os.mkdir(name, mode, dir_fd=directory)

    @staticmethod
    def make_node(directory: int, name: Name, mode: int) -> None:
        """mknodat(2), for a regular file, a fifo or a socket."""
        os.mknod(name, mode, 0, dir_fd=directory)

    @staticmethod
    def make_link(directory: int, name: Name, text: bytes) -> None:
        """symlinkat(2)."""
        os.symlink(text, name, dir_fd=directory)

    @staticmethod
    def link(reached: int, directory: int, name: Name) -> None:
        """Give a reached object one more name."""
        os.link(_magic(reached), name, dst_dir_fd=directory, follow_symlinks=True)

    @staticmethod
    def unlink(directory: int, name: Name) -> None:
        """unlinkat(2)."""
        os.unlink(name, dir_fd=directory)

    @staticmethod
    def remove_directory(directory: int, name: Name) -> None:
        """unlinkat(2) with AT_REMOVEDIR."""
        os.rmdir(name, dir_fd=directory)

    def unmake(self, directory: int, name: Name, made: Identity) -> None:
        """Take a name away again that was made a moment ago, if it still is of what was made. Does what it can."""
        with contextlib.suppress(OSError):
            status = self.stat_name(directory, name)
            if self.identify(status) == made:
                (os.rmdir if stat.S_ISDIR(status.st_mode) else os.unlink)(name, dir_fd=directory)

    @staticmethod
    def rename(old_directory: int, old: Name, new_directory: int, new: Name, flags: int) -> None:
        """renameat2(2)."""
        if _libc.renameat2(old_directory, old, new_directory, new, flags) != 0:
            code = _get_errno()
            raise OSError(code, os.strerror(code))

    @staticmethod
    def change_mode(reached: int, mode: int) -> None:
        """chmod(2). A link has no mode of its own: EOPNOTSUPP, as everywhere on Linux."""
        if stat.S_ISLNK(os.fstat(reached).st_mode):
            raise OSError(errno.EOPNOTSUPP, os.strerror(errno.EOPNOTSUPP))
        os.chmod(_magic(reached), mode)

    @staticmethod
    def change_owner(reached: int, uid: int, gid: int) -> None:
        """chown(2); -1 leaves one as it is."""
        os.chown(_magic(reached), uid, gid)

    @staticmethod
    def truncate(reached: int, size: int) -> None:
        """truncate(2)."""
        os.truncate(_magic(reached), size)

    @staticmethod
    def set_times(reached: int, status: Status, access_ns: int | None, modify_ns: int | None) -> None:
        """utimensat(2), in nanoseconds of the epoch; None leaves a time as it is in `status`."""
        try:
            times = (
                status.st_atime_ns if access_ns is None else access_ns,
                status.st_mtime_ns if modify_ns is None else modify_ns,
            )
            os.utime(_magic(reached), ns=times)
        except PermissionError:
            # A user who may write a file of another user may set its times to now, and to nothing else (utimensat(2)). A
            # request does not say that it means now, only what time it was.
            now = time.time_ns()
            if any(at is None or abs(now - at) > _JUST_NOW_NS for at in (access_ns, modify_ns)):
                raise
            os.utime(_magic(reached))

    @staticmethod
    def set_attribute(reached: int, attribute: bytes, value: bytes, flags: int) -> None:
        """setxattr(2)."""
        os.setxattr(_magic(reached), attribute, value, flags)

    @staticmethod
    def attribute(reached: int, attribute: bytes) -> bytes:
        """getxattr(2)."""
        return os.getxattr(_magic(reached), attribute)

    @staticmethod
    def attributes(reached: int) -> list[bytes]:
        """listxattr(2)."""
        return [os.fsencode(attribute) for attribute in os.listxattr(_magic(reached))]

    @staticmethod
    def remove_attribute(reached: int, attribute: bytes) -> None:
        """removexattr(2)."""
        os.removexattr(_magic(reached), attribute)


def _spelled_alike(one: bytes, other: bytes) -> bool:
    """Whether a file system that is known may take both for one path."""

    def folded(path: bytes) -> str:
        return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", os.fsdecode(path)).casefold())

    return folded(one) == folded(other)


def _magic(descriptor: int) -> bytes:
    """The name under which an O_PATH descriptor can be used where a call takes no descriptor: proc(5)."""
    return b"/proc/self/fd/%d" % descriptor


@contextlib.contextmanager
def _listing(directory: int) -> Iterator[int]:
    listing = _openat2(directory, b".", _LIST)
    try:
        yield listing
    finally:
        os.close(listing)
