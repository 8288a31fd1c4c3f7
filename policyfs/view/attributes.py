"""What an object's attributes look like in a view (rules attribute-1 to attribute-4, and attribute-7 of their file system).

Almost everything is the source's. What is not: numbers that would count what is hidden (a directory's links and size),
rights that the level does not give, and set-id bits, which no view passes on.
"""

from __future__ import annotations

import os
import stat
from typing import NamedTuple

from policyfs.policy.levels import Level, Standing
from policyfs.policy.tree import Place
from policyfs.source.tree import Identity, Status

DIRECTORY_LINKS = 1
"""find(1) and fts(3) take one link to mean that a directory's subdirectories are not counted (btrfs has it so)."""
DIRECTORY_SIZE = 4096
DIRECTORY_BLOCKS = 8
"""As an empty directory of ext4."""
PASSAGE_MODE = stat.S_IFDIR | 0o111
_WRITE_BITS = 0o222
_SET_ID_BITS = stat.S_ISUID | stat.S_ISGID


class Attributes(NamedTuple):
    """An object as a view shows it: the fields of stat(2), times in nanoseconds of the epoch."""

    identity: Identity
    mode: int
    links: int
    uid: int
    gid: int
    device: int
    size: int
    blocks: int
    access_ns: int
    modify_ns: int
    change_ns: int
    block_size: int

    @property
    def is_directory(self) -> bool:
        """Whether it is a directory."""
        return stat.S_ISDIR(self.mode)

    @property
    def is_link(self) -> bool:
        """Whether it is a symbolic link."""
        return stat.S_ISLNK(self.mode)


def shown(place: Place, identity: Identity, status: Status, link_size: int | None = None) -> Attributes:
    """The attributes of an object at a place that is not hidden. `link_size` is the length of a link's text where the
    view shows another than the source has."""
    mode = status.st_mode
    if stat.S_ISDIR(mode):
        if place.standing is Standing.PASSAGE:
            return Attributes(
                identity, PASSAGE_MODE, DIRECTORY_LINKS, os.geteuid(), os.getegid(), 0,
                DIRECTORY_SIZE, DIRECTORY_BLOCKS, 0, 0, 0, status.st_blksize,
            )  # fmt: skip
        if place.level is Level.RO:
            mode &= ~_WRITE_BITS
        return Attributes(
            identity, mode, DIRECTORY_LINKS, status.st_uid, status.st_gid, 0,
            DIRECTORY_SIZE, DIRECTORY_BLOCKS, status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns,
            status.st_blksize,
        )  # fmt: skip
    if not stat.S_ISLNK(mode):
        mode &= ~(_SET_ID_BITS | _WRITE_BITS) if place.level is Level.RO else ~_SET_ID_BITS
    return Attributes(
        identity, mode, status.st_nlink, status.st_uid, status.st_gid, 0,
        status.st_size if link_size is None else link_size, status.st_blocks,
        status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns, status.st_blksize,
    )  # fmt: skip


def settable_mode(mode: int, *, directory: bool) -> int:
    """The permission bits of a mode that a session may set: a directory keeps its setgid bit, which only passes the
    group on; a file gets no set-id bit (rule attribute-2)."""
    return mode & (0o1777 | (stat.S_ISGID if directory else 0))


class FileSystem(NamedTuple):
    """The numbers of statfs(2) that a view tells; blocks are of `block_size` bytes. How many inodes there are is not
    told (0, as btrfs does): the number of free ones counts hidden files."""

    block_size: int
    blocks: int
    blocks_free: int
    blocks_available: int
    name_max: int


_ROUNDED_TO = 1 << 30
"""Bytes: free space is told by the GiB, or by the MiB where there is less than one."""


def _rounded(blocks: int, block_size: int) -> int:
    step = _ROUNDED_TO if blocks * block_size >= _ROUNDED_TO else 1 << 20
    return blocks * block_size // step * step // block_size


def shown_file_system(status: os.statvfs_result) -> FileSystem:
    """What statfs(2) tells of the source's file system."""
    unit = status.f_frsize or 4096
    return FileSystem(
        unit, status.f_blocks, _rounded(status.f_bfree, unit), _rounded(status.f_bavail, unit), status.f_namemax
    )
