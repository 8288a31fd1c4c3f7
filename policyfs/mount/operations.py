"""The handlers: each translates a request, calls the view, and translates the answer (DESIGN 6).

Metadata calls run inline: a hop to a thread costs 70 times an lstat (platform.md). Between the judgement and the act
there is no await, so no other request comes in between; against the source itself the view is safe by how it reaches.
What may block for long, fsync, goes to a thread. No handler waits for a person.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileHandleT, FileInfo, FileNameT, InodeT, RequestContext, XAttrNameT

from policyfs.mount.guard import guarded
from policyfs.mount.handles import DirectoryHandle, FileHandle, Handles
from policyfs.mount.nodes import Node, Nodes
from policyfs.policy import operations as needs
from policyfs.policy.paths import NAME_MAX, Name
from policyfs.policy.refusals import Refusal
from policyfs.view.attributes import Attributes
from policyfs.view.files import OpenFile
from policyfs.view.refused import Refused
from policyfs.view.view import Listing, Location, View

MOST_HANDLES = 4096
"""Open files and directories of one session (security.md 40). The daemon's descriptor limit is raised above it."""

UNWATCHED_LIFE = 1.0
"""Seconds for which the kernel may keep a name or attributes that nothing watches: what most network file systems take,
and little enough for a person who looks at both sides."""

Result = TypeVar("Result")


class Operations(pyfuse3.Operations):
    """The requests of one mount, over one view."""

    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    def __init__(self, view: View, most_handles: int = MOST_HANDLES) -> None:
        super().__init__()
        self.view = view
        self.nodes = Nodes(view)
        self.files: Handles[FileHandle] = Handles(most_handles)
        self.directories: Handles[DirectoryHandle] = Handles(most_handles, first=1 << 48)

    # -- translating ----------------------------------------------------------------------------------------------------

    def _node(self, ino: int) -> Node:
        """The node of a number; ESTALE for one that the kernel was never told or has forgotten."""
        node = self.nodes.get(ino)
        if node is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return node

    def _child(self, parent: Node, name: bytes) -> Location:
        """The location of a name in a directory. Length first: DESIGN 4, "Order in every handler"."""
        if len(name) > NAME_MAX:
            raise Refused(Refusal.NAME_TOO_LONG, self.nodes.path(parent))
        return self.view.child(self.nodes.location(parent), Name(name))

    def _on(self, node: Node, operation: Callable[..., Result], *arguments: Any) -> Result:
        """Do something to a node's object: under each name it may have, or, where its names are gone or lead elsewhere,
        to the file it is open by."""
        for location in self.nodes.locations(node):
            try:
                return operation(location, *arguments, expect=node.identity)
            except Refused as refused:
                if refused.refusal is not Refusal.STALE:
                    raise
        if node.files:
            return operation(self.nodes.location(node), *arguments, expect=node.files[-1])
        raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))

    def _entry(self, attributes: Attributes, ino: int, generation: int = 0) -> EntryAttributes:
        entry = EntryAttributes()
        entry.st_ino = InodeT(ino)
        entry.generation = generation
        entry.entry_timeout = UNWATCHED_LIFE
        entry.attr_timeout = UNWATCHED_LIFE
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

    def _told(self, parent: Node, location: Location, name: bytes, attributes: Attributes) -> EntryAttributes:
        """The reply that tells the kernel of an object; it counts as a lookup."""
        node = self.nodes.told(parent, Name(name), attributes.identity, location.place, directory=attributes.is_directory)
        return self._entry(attributes, node.ino, node.generation)

    # -- looking --------------------------------------------------------------------------------------------------------

    @guarded
    async def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> EntryAttributes:
        parent = self._node(parent_inode)
        location = self._child(parent, name)
        return self._told(parent, location, name, self.view.attributes(location))

    @guarded
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        node = self._node(inode)
        attributes = self._on(node, self.view.attributes)
        # The root's own number in the source, so that a listing of it from above agrees; the kernel keeps 1 for itself.
        return self._entry(attributes, node.ino if node.parent is not None else attributes.identity[1])

    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        for inode, times in inode_list:
            self.nodes.forget(inode, times)

    @guarded
    async def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        return FileNameT(self._on(self._node(inode), self.view.link_text))

    @guarded
    async def access(self, inode: InodeT, mode: int, ctx: RequestContext) -> bool:
        self._on(self._node(inode), self.view.access, mode)
        return True

    @guarded
    async def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        told = self.view.file_system()
        reply = pyfuse3.StatvfsData()
        reply.f_bsize = reply.f_frsize = told.block_size
        reply.f_blocks = told.blocks
        reply.f_bfree = told.blocks_free
        reply.f_bavail = told.blocks_available
        reply.f_files = reply.f_ffree = reply.f_favail = 0
        reply.f_namemax = told.name_max
        return reply

    # -- directories ----------------------------------------------------------------------------------------------------

    @guarded
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        node = self._node(inode)
        self.directories.room()
        listing: Listing = self._on(node, self.view.listing)
        return FileHandleT(self.directories.add(DirectoryHandle(node, listing)))

    @guarded
    async def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        handle = self.directories.get(fh)
        listing, directory = handle.listing, handle.node
        place = self.nodes.place(directory)
        if needs.look(place) is not None:
            raise Refused(Refusal.DENIED, self.nodes.path(directory))
        step = self.view.policy.child
        for position in range(start_id, len(listing.names)):
            name = listing.names[position]
            attributes = listing.entry(name)
            if attributes is None:
                continue
            child_place = step(place, name)
            known = self.nodes.known(attributes.identity, child_place.level)
            entry = self._entry(
                attributes,
                self.nodes.number(attributes.identity, child_place.level) if known is None else known.ino,
                0 if known is None else known.generation + (known.gone and not known.files),
            )
            if not pyfuse3.readdir_reply(token, FileNameT(name), entry, position + 1):
                return
            self.nodes.told(directory, name, attributes.identity, child_place, directory=attributes.is_directory)

    @guarded
    async def releasedir(self, fh: FileHandleT) -> None:
        self.directories.close(fh)

    @guarded
    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        await trio.to_thread.run_sync(self.directories.get(fh).listing.sync)

    # -- files ----------------------------------------------------------------------------------------------------------

    def _opened(self, node: Node, file: OpenFile) -> FileInfo:
        if node.files is None:
            node.files = [file]
        else:
            node.files.append(file)
        number = self.files.add(FileHandle(node, file, self.nodes.epoch))
        return FileInfo(fh=FileHandleT(number), direct_io=False, keep_cache=False)

    @guarded
    async def open(self, inode: InodeT, flags: int, ctx: RequestContext) -> FileInfo:
        node = self._node(inode)
        self.files.room()
        return self._opened(node, self._on(node, self.view.open, flags))

    @guarded
    async def create(
        self, parent_inode: InodeT, name: FileNameT, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        parent = self._node(parent_inode)
        location = self._child(parent, name)
        self.files.room()
        file, attributes = self.view.create(location, flags, mode, ctx.umask)
        node = self.nodes.told(parent, Name(name), attributes.identity, location.place, directory=False)
        return self._opened(node, file), self._entry(attributes, node.ino, node.generation)

    def _judged(self, handle: FileHandle, *, write: bool) -> OpenFile:
        """The file of a handle, judged again if the policy or the tree has changed since."""
        if handle.epoch != self.nodes.epoch:
            place = self.nodes.place(handle.node)
            refused = needs.change(place) if write else needs.look(place)
            if refused is None and place.level < 1:
                refused = Refusal.DENIED
            if refused is not None:
                raise Refused(refused, self.nodes.path(handle.node))
            if write or not handle.file.writable:
                handle.epoch = self.nodes.epoch
        return handle.file

    @guarded
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        return self._judged(self.files.get(fh), write=False).read(off, size)

    @guarded
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        return self._judged(self.files.get(fh), write=True).write(off, buf)

    async def flush(self, fh: FileHandleT) -> None:
        # One request less at each close (platform.md): there is nothing to flush, every write went through. The kernel
        # takes ENOSYS from flush, unlike from open, to mean just that. So this handler is the one without the guard.
        raise pyfuse3.FUSEError(errno.ENOSYS)

    @guarded
    async def release(self, fh: FileHandleT) -> None:
        self.files.close(fh)

    @guarded
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        file = self.files.get(fh).file
        await trio.to_thread.run_sync(lambda: file.sync(data_only=datasync))

    # -- names ----------------------------------------------------------------------------------------------------------

    @guarded
    async def mkdir(self, parent_inode: InodeT, name: FileNameT, mode: int, ctx: RequestContext) -> EntryAttributes:
        parent = self._node(parent_inode)
        location = self._child(parent, name)
        return self._told(parent, location, name, self.view.make_directory(location, mode, ctx.umask))

    @guarded
    async def mknod(
        self, parent_inode: InodeT, name: FileNameT, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        parent = self._node(parent_inode)
        location = self._child(parent, name)
        return self._told(parent, location, name, self.view.make_node(location, mode, ctx.umask))

    @guarded
    async def symlink(
        self, parent_inode: InodeT, name: FileNameT, target: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        parent = self._node(parent_inode)
        location = self._child(parent, name)
        return self._told(parent, location, name, self.view.make_link(location, target))

    @guarded
    async def link(
        self, inode: InodeT, new_parent_inode: InodeT, new_name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        parent = self._node(new_parent_inode)
        location = self._child(parent, new_name)
        attributes = self._on(self._node(inode), self.view.link, location)
        return self._told(parent, location, new_name, attributes)

    @guarded
    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        parent = self._node(parent_inode)
        location = self._child(parent, name)
        self.nodes.lost(self.view.unlink(location), location.place.level, parent, Name(name))

    @guarded
    async def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        parent = self._node(parent_inode)
        location = self._child(parent, name)
        self.nodes.lost(self.view.remove_directory(location), location.place.level, parent, Name(name))

    @guarded
    async def rename(
        self,
        parent_inode_old: InodeT,
        name_old: FileNameT,
        parent_inode_new: InodeT,
        name_new: FileNameT,
        flags: int,
        ctx: RequestContext,
    ) -> None:
        old_parent, new_parent = self._node(parent_inode_old), self._node(parent_inode_new)
        old, new = self._child(old_parent, name_old), self._child(new_parent, name_new)
        renamed = self.view.rename(old, new, flags)
        if renamed.moved == renamed.replaced:
            return
        old_name, new_name = (old_parent, Name(name_old)), (new_parent, Name(name_new))
        level, directory = old.place.level, renamed.directory
        if renamed.replaced is not None:
            if flags:
                self.nodes.moved(renamed.replaced, level, new_name, old_name, directory=directory)
            else:
                self.nodes.lost(renamed.replaced, level, *new_name)
        self.nodes.moved(renamed.moved, level, old_name, new_name, directory=directory)

    # -- attributes -----------------------------------------------------------------------------------------------------

    @guarded
    async def setattr(
        self,
        inode: InodeT,
        attr: EntryAttributes,
        fields: pyfuse3.SetattrFields,
        fh: FileHandleT | None,
        ctx: RequestContext,
    ) -> EntryAttributes:
        node = self._node(inode)
        if fields.update_size:
            if fh is not None:
                self._judged(self.files.get(fh), write=True).truncate(attr.st_size)
            else:
                self._on(node, self.view.truncate, attr.st_size)
        if fields.update_mode:
            self._on(node, self.view.change_mode, stat.S_IMODE(attr.st_mode))
        if fields.update_uid or fields.update_gid:
            uid = attr.st_uid if fields.update_uid else -1
            gid = attr.st_gid if fields.update_gid else -1
            self._on(node, self.view.change_owner, uid, gid)
        if fields.update_atime or fields.update_mtime:
            access_ns = attr.st_atime_ns if fields.update_atime else None
            modify_ns = attr.st_mtime_ns if fields.update_mtime else None
            self._on(node, self.view.set_times, access_ns, modify_ns)
        attributes = self._on(node, self.view.attributes)
        return self._entry(attributes, node.ino if node.parent is not None else attributes.identity[1])

    @guarded
    async def setxattr(self, inode: InodeT, name: XAttrNameT, value: bytes, ctx: RequestContext) -> None:
        # XATTR_CREATE and XATTR_REPLACE do not arrive here: pyfuse3 asks getxattr first.
        self._on(self._node(inode), self.view.set_extended, name, value, 0)

    @guarded
    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        return self._on(self._node(inode), self.view.extended, name)

    @guarded
    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        return [XAttrNameT(name) for name in self._on(self._node(inode), self.view.extended_names)]

    @guarded
    async def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> None:
        self._on(self._node(inode), self.view.remove_extended, name)
