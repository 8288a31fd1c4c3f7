"""Attributes as pyfuse3 wants them, with how long the kernel may keep them. Every life is said: pyfuse3's own are 300 s."""

from __future__ import annotations

import pyfuse3
from pyfuse3 import EntryAttributes, InodeT

from policyfs.view.attributes import Attributes, FileSystem


def entry_for(attributes: Attributes, ino: int, generation: int, name_life: float, life: float) -> EntryAttributes:
    """The entry of an object under an inode number. Lives are in seconds."""
    entry = EntryAttributes()
    entry.st_ino = InodeT(ino)
    entry.generation = generation
    entry.entry_timeout = name_life
    entry.attr_timeout = life
    entry.st_mode = attributes.mode
    entry.st_nlink = attributes.links
    entry.st_uid = attributes.uid
    entry.st_gid = attributes.gid
    entry.st_rdev = attributes.device
    entry.st_size = attributes.size
    entry.st_blksize = attributes.block_size
    entry.st_blocks = attributes.blocks
    entry.st_atime_ns = attributes.access_ns
    entry.st_mtime_ns = attributes.modify_ns
    entry.st_ctime_ns = attributes.change_ns
    return entry


def missing_for(name_life: float) -> EntryAttributes:
    """The entry of a name that is not there: inode number 0, which the kernel keeps as a name that is missing."""
    entry = EntryAttributes()
    entry.st_ino = InodeT(0)
    entry.entry_timeout = name_life
    return entry


def file_system_for(told: FileSystem) -> pyfuse3.StatvfsData:
    """What statfs(2) is answered."""
    reply = pyfuse3.StatvfsData()
    reply.f_bsize = reply.f_frsize = told.block_size
    reply.f_blocks = told.blocks
    reply.f_bfree = told.blocks_free
    reply.f_bavail = told.blocks_available
    reply.f_files = reply.f_ffree = reply.f_favail = 0
    reply.f_namemax = told.name_max
    return reply
