"""A file system that takes two spellings for one name: /1/Private/secret, as CIFS or exFAT would have it.

    python -I folding.py MOUNTPOINT

Prints `ready` when it answers. The name at its top has no letters.
"""

import errno
import os
import stat
import sys

import pyfuse3
import trio

TREE = {1: {b"1": 2}, 2: {b"Private": 3}, 3: {b"secret": 4}}
CONTENT = b"the secret of the source"


class Folding(pyfuse3.Operations):
    """The handlers."""

    def _entry(self, inode: int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = pyfuse3.InodeT(inode)
        entry.st_mode = stat.S_IFDIR | 0o755 if inode in TREE else stat.S_IFREG | 0o644
        entry.st_size = len(CONTENT)
        entry.st_nlink = 1
        entry.st_uid, entry.st_gid = os.getuid(), os.getgid()
        entry.entry_timeout = entry.attr_timeout = 0
        return entry

    async def getattr(self, inode, ctx):
        return self._entry(inode)

    async def lookup(self, parent_inode, name, ctx):
        for known, inode in TREE.get(parent_inode, {}).items():
            if known.lower() == name.lower():
                return self._entry(inode)
        raise pyfuse3.FUSEError(errno.ENOENT)

    async def opendir(self, inode, ctx):
        return pyfuse3.FileHandleT(inode)

    async def readdir(self, fh, start_id, token):
        for position, (name, inode) in list(enumerate(TREE[fh].items()))[start_id:]:
            if not pyfuse3.readdir_reply(token, name, self._entry(inode), position + 1):
                return

    async def open(self, inode, flags, ctx):
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(inode), direct_io=True)

    async def read(self, fh, off, size):
        return CONTENT[off : off + size]

    async def statfs(self, ctx):
        told = pyfuse3.StatvfsData()
        told.f_bsize = told.f_frsize = 4096
        told.f_blocks = told.f_bfree = told.f_bavail = 1000
        told.f_namemax = 255
        return told


async def serve() -> None:
    """Answer, and say so."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pyfuse3.main)
        print("ready", flush=True)


pyfuse3.init(Folding(), sys.argv[1], {"fsname=folding"})
try:
    trio.run(serve)
finally:
    pyfuse3.close(unmount=True)
