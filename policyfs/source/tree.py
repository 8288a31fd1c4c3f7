"""A tree: what the reference monitor asks of whatever holds the objects of a part of its view.

SOURCE, written through, is one tree (`root.Root`). A working copy over another tree, or a branch of a repository, is
another. The reference monitor decides by the path in the view; only then it asks the tree that holds the path, by the path
in that tree. A tree decides nothing.

What was reached is a number that the tree gave, and that means something to this tree alone: for `Root` it is a descriptor.
It is held until it is released. Each call may raise the OSError of the system call that it is named after.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import NamedTuple, NewType, Protocol

from policyfs.policy.paths import HostPath, Name
from policyfs.source.files import OpenFile

TreePath = NewType("TreePath", bytes)
"""A path in one tree: absolute, `/` is the top of the tree. Its names are those of a `ViewPath`."""

TOP = TreePath(b"/")


def child(directory: TreePath, name: Name) -> TreePath:
    """The path of a name in a directory of a tree."""
    return TreePath(directory + name if directory == TOP else directory + b"/" + name)


SOURCE = 0
"""The number of the tree that is SOURCE."""

RENAME_NOREPLACE = 1
RENAME_EXCHANGE = 2
"""renameat2(2)."""


class Identity(NamedTuple):
    """Which object it is, whatever its name: its tree, and its device and inode number there.

    An object that two trees have in common is two objects: what may be done with it, and where it stands, is a matter of
    the tree.
    """

    tree: int
    """The number of the tree, as `st_dev` is that of a file system. It stays the same from mount to mount, so that the
    inode numbers do which are made of it."""
    device: int
    ino: int


Status = os.stat_result
"""The attributes of an object in its tree. A tree whose objects are not files of the machine makes its own."""


class Tree(Protocol):
    """What the reference monitor asks of a tree. `directory` and `reached` are what the tree itself has reached."""

    @property
    def number(self) -> int:
        """Which tree it is (`Identity.tree`)."""

    @property
    def source(self) -> HostPath | None:
        """Where programs outside of the view find what is in this tree, None where they do not. A link that is made in it
        is judged there too."""

    def close(self) -> None:
        """Let go of the tree. Nothing can be asked after it."""

    # -- reaching -----------------------------------------------------------------------------------------------------

    def reach(self, path: TreePath) -> int:
        """What is at a path, a link itself included, if it still stands there. ELOOP means that a link stands where a
        directory was walked, EXDEV that something does which the tree does not enter, ESTALE that it is moved all the
        time."""

    def reach_directory(self, path: TreePath) -> int:
        """The same for a directory; ENOTDIR for anything else. Where it stands is not asked: the caller does that after
        what it does in it."""

    def reach_name(self, directory: int, name: Name, /) -> int:
        """An entry of a directory, a link itself included."""

    def release(self, reached: int, /) -> None:
        """Let go of what was reached."""

    # -- looking ------------------------------------------------------------------------------------------------------

    def status(self, reached: int, /) -> Status:
        """The attributes of what was reached."""

    def stat(self, path: TreePath) -> Status:
        """The attributes of what is at a path. Raises OSError as `reach` does."""

    def stat_within(self, directory: int, path: TreePath) -> Status:
        """The same in a directory that was reached by the names before the last; ESTALE too where it is no longer there."""

    def stat_name(self, directory: int, name: Name, /) -> Status:
        """The attributes of an entry of a directory."""

    def identify(self, status: Status) -> Identity:
        """Which object of this tree has this status."""

    def identity(self, reached: int) -> Identity:
        """Which object was reached."""

    def names(self, directory: int, most: int | None = None) -> list[Name]:
        """The names in a directory, no more than `most`; `.` and `..` are not among them."""

    def path_of(self, reached: int) -> TreePath | None:
        """Where something stands now; None for what was removed or has left the tree, and where that cannot be told."""

    def stands_at(self, reached: int, path: TreePath) -> bool:
        """Whether something stands at a path now. False for what was removed."""

    def link_text(self, directory: int, name: bytes = b"") -> bytes:
        """What a link in a directory says, or, without a name, what the link that was reached says."""

    def accessible(self, reached: int, wanted: int) -> bool:
        """Whether the session's own user may do it, by the tree's permissions. `wanted` are the bits of access(2)."""

    def file_system(self) -> os.statvfs_result:
        """How the file system of the tree is filled."""

    # -- following changes --------------------------------------------------------------------------------------------

    def file_system_type(self) -> int:
        """f_type of statfs(2) of the file system that tells of changes in this tree."""

    def watch(self, directory: int, add: Callable[[bytes], int]) -> int:
        """Watch a directory by `add`, which is inotify_add_watch(2). Gives what that gives."""

    # -- files --------------------------------------------------------------------------------------------------------

    def open(self, reached: int, flags: int) -> OpenFile:
        """Open a regular file that was reached, with the access that `flags` ask for."""

    def open_lazily(self, reached: int, flags: int) -> OpenFile:
        """The same for a file that is only read, or held: it is opened at its first read. It takes what was reached over."""

    def open_again(self, file: OpenFile) -> int:
        """What an open file is of, reached once more."""

    def open_directory(self, reached: int) -> int:
        """A directory that was reached, to be listed. Released like everything that was reached."""

    def create(self, directory: int, name: Name, flags: int, mode: int) -> OpenFile:
        """Make a regular file that was not there, and open it."""

    def sync(self, directory: int, /) -> None:
        """fsync(2) of a directory."""

    # -- changing -----------------------------------------------------------------------------------------------------

    def make_directory(self, directory: int, name: Name, mode: int) -> None:
        """mkdirat(2)."""

    def make_node(self, directory: int, name: Name, mode: int) -> None:
        """mknodat(2), for a regular file, a fifo or a socket."""

    def make_link(self, directory: int, name: Name, text: bytes) -> None:
        """symlinkat(2)."""

    def link(self, reached: int, directory: int, name: Name) -> None:
        """Give an object one more name."""

    def unlink(self, directory: int, name: Name) -> None:
        """unlinkat(2)."""

    def remove_directory(self, directory: int, name: Name) -> None:
        """unlinkat(2) with AT_REMOVEDIR."""

    def unmake(self, directory: int, name: Name, made: Identity) -> None:
        """Take a name away again that was made a moment ago, if it still is of what was made. Does what it can."""

    def rename(self, old_directory: int, old: Name, new_directory: int, new: Name, flags: int) -> None:
        """renameat2(2)."""

    def change_mode(self, reached: int, mode: int) -> None:
        """chmod(2)."""

    def change_owner(self, reached: int, uid: int, gid: int) -> None:
        """chown(2); -1 leaves one as it is."""

    def truncate(self, reached: int, size: int) -> None:
        """truncate(2)."""

    def set_times(self, reached: int, status: Status, access_ns: int | None, modify_ns: int | None) -> None:
        """utimensat(2), in nanoseconds of the epoch; None leaves a time as it is in `status`."""

    def set_attribute(self, reached: int, attribute: bytes, value: bytes, flags: int) -> None:
        """setxattr(2)."""

    def attribute(self, reached: int, attribute: bytes) -> bytes:
        """getxattr(2)."""

    def attributes(self, reached: int) -> list[bytes]:
        """listxattr(2)."""

    def remove_attribute(self, reached: int, attribute: bytes) -> None:
        """removexattr(2)."""
