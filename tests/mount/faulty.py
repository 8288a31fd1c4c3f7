"""A file system of a few files, some of which fail with EIO: a disk on a bad day.

    python -I faulty.py MOUNTPOINT [no-statfs | folding]

Prints `ready` when it answers. `good` is fine. `bad-read` opens and cannot be read, `bad-write` opens and cannot be
written, `bad-listing` is a directory that cannot be listed, and `bad-stat` is listed and cannot be looked up.

`folding`, it is another: /1/Private/secret, which takes two spellings for one name, as CIFS or exFAT would.
"""

import errno
import os
import stat
import sys

import pyfuse3
import trio

FILES = {2: b"good", 3: b"bad-read", 4: b"bad-write", 5: b"bad-listing", 6: b"bad-stat"}
CONTENT = b"good"
LISTING = 5
FOLDED = {1: {b"1": 2}, 2: {b"Private": 3}, 3: {b"secret": 4}}


class Faulty(pyfuse3.Operations):
    """The handlers."""

    def _entry(self, inode: int) -> pyfuse3.EntryAttributes:
        entry = pyfuse3.EntryAttributes()
        entry.st_ino = pyfuse3.InodeT(inode)
        entry.st_mode = stat.S_IFDIR | 0o755 if inode in (1, LISTING) else stat.S_IFREG | 0o644
        entry.st_size = len(CONTENT)
        entry.st_uid, entry.st_gid = os.getuid(), os.getgid()
        entry.entry_timeout = entry.attr_timeout = 0
        return entry

    async def getattr(self, inode, ctx):
        return self._entry(inode)

    async def lookup(self, parent_inode, name, ctx):
        for inode, known in FILES.items():
            if known == name and parent_inode == 1:
                if name == b"bad-stat":
                    raise pyfuse3.FUSEError(errno.EIO)
                return self._entry(inode)
        raise pyfuse3.FUSEError(errno.ENOENT)

    async def opendir(self, inode, ctx):
        if inode == LISTING:
            raise pyfuse3.FUSEError(errno.EIO)
        return pyfuse3.FileHandleT(inode)

    async def readdir(self, fh, start_id, token):
        for position, (inode, name) in list(enumerate(FILES.items()))[start_id:]:
            if not pyfuse3.readdir_reply(token, name, self._entry(inode), position + 1):
                return

    async def open(self, inode, flags, ctx):
        return pyfuse3.FileInfo(fh=pyfuse3.FileHandleT(inode), direct_io=True)

    async def read(self, fh, off, size):
        if FILES[fh] == b"bad-read":
            raise pyfuse3.FUSEError(errno.EIO)
        return CONTENT[off : off + size]

    async def write(self, fh, off, buf):
        raise pyfuse3.FUSEError(errno.EIO)

    async def mkdir(self, parent_inode, name, mode, ctx):
        raise pyfuse3.FUSEError(errno.EIO)


class Telling(Faulty):
    """The same, and tells how full it is, as most file systems do."""

    async def statfs(self, ctx):
        told = pyfuse3.StatvfsData()
        told.f_bsize = told.f_frsize = 4096
        told.f_blocks = told.f_bfree = told.f_bavail = 1000
        told.f_namemax = 255
        return told


class Folding(Telling):
    """Where no two names differ by case alone. The name at its top has no letters."""

    def _entry(self, inode: int) -> pyfuse3.EntryAttributes:
        entry = super()._entry(inode)
        entry.st_mode = stat.S_IFDIR | 0o755 if inode in FOLDED else stat.S_IFREG | 0o644
        entry.st_nlink = 1
        return entry

    async def lookup(self, parent_inode, name, ctx):
        for known, inode in FOLDED.get(parent_inode, {}).items():
            if known.lower() == name.lower():
                return self._entry(inode)
        raise pyfuse3.FUSEError(errno.ENOENT)

    async def opendir(self, inode, ctx):
        return pyfuse3.FileHandleT(inode)

    async def readdir(self, fh, start_id, token):
        for position, (name, inode) in list(enumerate(FOLDED[fh].items()))[start_id:]:
            if not pyfuse3.readdir_reply(token, name, self._entry(inode), position + 1):
                return

    async def read(self, fh, off, size):
        return CONTENT[off : off + size]


async def serve() -> None:
    """Answer, and say so."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(pyfuse3.main)
        print("ready", flush=True)


served = {"no-statfs": Faulty, "folding": Folding}.get(sys.argv[-1], Telling)
pyfuse3.init(served(), sys.argv[1], {"fsname=faulty"})
try:
    trio.run(serve)
finally:
    pyfuse3.close(unmount=True)
