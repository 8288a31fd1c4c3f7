"""The handlers: each translates a request, calls the view, and translates the answer (rule serve-1).

Metadata calls run inline: a hop to a thread costs 70 times an lstat (rule serve-3). Between the judgement and the act
there is no await, so no other request comes in between; against the source itself the view is safe by how it reaches.
What may block for long, fsync, goes to a thread. No handler waits for a person.
"""

from __future__ import annotations

import contextlib
import errno
import os
import stat
from collections.abc import Callable, Sequence

import pyfuse3
import trio
from pyfuse3 import EntryAttributes, FileHandleT, FileInfo, FileNameT, InodeT, RequestContext, XAttrNameT

from policyfs.audit.writer import Journal
from policyfs.fuse.content import send_content
from policyfs.fuse.directories import Listings
from policyfs.fuse.entries import file_system_for
from policyfs.fuse.guard import guarded, guarded_without_reply
from policyfs.fuse.handles import DirectoryHandle, FileHandle, Handles
from policyfs.fuse.kernel_cache import State, this_minute
from policyfs.fuse.memory import Memory
from policyfs.fuse.nodes import Node, Nodes
from policyfs.fuse.reach import Reach
from policyfs.fuse.recorder import Recorder
from policyfs.fuse.removed import RemovedObjects
from policyfs.fuse.replies import Replies
from policyfs.fuse.source_watch import Watch
from policyfs.fuse.waiting import Disk
from policyfs.policy.levels import Level, Standing
from policyfs.policy.objects import Act
from policyfs.policy.paths import Name
from policyfs.policy.refusals import Refusal
from policyfs.source.files import OpenFile, WouldBlock
from policyfs.source.tree import Identity
from policyfs.view.attributes import Attributes
from policyfs.view.location import Location
from policyfs.view.monitor import LEVEL_ATTRIBUTE, ReferenceMonitor
from policyfs.view.outcomes import Changes
from policyfs.view.refused import Refused

MAX_HANDLES = 4096
"""Open files and directories of one session (rule serve-4). The daemon's descriptor limit is raised above it."""

_PAGE = 4096
"""Bytes of the smallest page that Linux has; larger ones begin and end at the end of one, too."""
_CAPABILITY = b"security.capability"


def _is_of_a_mapping(offset: int, length: int, size: int) -> bool:
    """Whether a write by a descriptor that appends, and that may be mapped, is none, but mapped pages written back: whole
    pages inside the file, but for the last, which ends with it. What the kernel appends begins at the end of the file as
    it was last told it, `size`; where that was another a moment ago whole pages are mistaken (docs/differences.md)."""
    end = offset + length
    return offset % _PAGE == 0 and end <= size and (length % _PAGE == 0 or end == size)


class Operations(pyfuse3.Operations):
    """The requests of one mount, over one view."""

    # Rule serve-5
    supports_dot_lookup = False
    enable_writeback_cache = False
    enable_acl = False

    requests = 0
    refusals = 0
    kept = 0
    """Requests since the mount began; how many were refused, and how many answered from attributes kept."""
    journal: Journal | None = None
    catch_up: Callable[[], None] = staticmethod(lambda: None)
    """Called before each request is answered: what another changed that the answer depends on is known after it."""

    def __init__(
        self,
        view: ReferenceMonitor,
        most_handles: int = MAX_HANDLES,
        journal: Journal | None = None,
        *,
        journal_opens: bool = False,
    ) -> None:
        """`journal_opens` notes each opening to read as well, not only what changes and what is refused."""
        super().__init__()
        self.journal = journal
        self._recorder = None if journal is None else Recorder(journal)
        self._journal_opens = journal_opens
        self.view = view
        self.nodes = Nodes(view)
        self.watch = Watch(view, self.nodes)
        self.reach = Reach(view, self.nodes)
        self.replies = Replies(view, self.nodes, self.watch)
        self.memory = Memory(self.nodes)
        self.disk = Disk()
        self.files: Handles[FileHandle] = Handles(most_handles)
        self.directories: Handles[DirectoryHandle] = Handles(most_handles, first=1 << 48)
        self.removed = RemovedObjects(most_handles // 16)
        self.listings = Listings(view, self.nodes, self.watch, self.reach, self.replies)

    def close(self) -> None:
        """Let go of everything: the mount has ended."""
        self.files.close_all()
        self.directories.close_all()
        self.removed.let_go_of_all()
        self.watch.close()
        if self.journal is not None:
            self.journal.close()

    # -- telling the journal ------------------------------------------------------------------------------------------

    def refused(self, operation: str, refused: Refused, ctx: RequestContext | None) -> None:
        """Note a refusal."""
        self.refusals += 1
        if self._recorder is not None:
            self._recorder.refused(operation, refused, self.view.policy, 0 if ctx is None else ctx.pid)

    def _did(self, operation: str, location: Location, ctx: RequestContext, to: Location | None = None) -> None:
        """Note a change that the session made."""
        if self._recorder is not None:
            self._recorder.did(operation, location, ctx.pid, to)

    # -- translating ----------------------------------------------------------------------------------------------------

    def _made(self, parent: Node, name: Name, location: Location, attributes: Attributes) -> tuple[Node, EntryAttributes]:
        """Tell the kernel of an object that this session made, which changes its directory."""
        self._changed(parent)
        return self.replies.found(parent, name, location.place, attributes)

    @staticmethod
    def _changed(directory: Node) -> None:
        """The session changed a directory's entries."""
        directory.cached.entries_changed()
        if directory.watched is not None:
            directory.watched.forget_names()

    def _refreshed(self, node: Node) -> None:
        """The session changed an object's attributes in a way that no reply tells of: note what they are now."""
        node.cached.changed_without_reply(lambda: self.reach.on(node, Act.LOOK, self.view.attributes))

    # -- looking --------------------------------------------------------------------------------------------------------

    @guarded
    async def lookup(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> EntryAttributes:
        """Find a name in a directory. Safe: the rules judge the name before SOURCE is asked, and a hidden name is answered
        and kept just as a missing one."""
        parent = self.reach.node(parent_inode)
        # The watch first: what changes after the look is then noticed.
        watched = self.watch.look_into(parent)
        # That a directory is where its name leads takes a look of its own, unless its watch would have told that it is not.
        in_doubt = watched is None or self.nodes.astray
        location = self.reach.child(parent, name, parent.identity if in_doubt else None)
        try:
            attributes = self.view.attributes(location)
        except Refused as refused:
            if refused.refusal is not Refusal.MISSING:
                raise
            if not refused.absent:
                self.refused("lookup", refused, ctx)
            missing = self.replies.missing(parent, Name(name))
            if watched is not None and not refused.absent and location.place.standing is not Standing.HIDDEN:
                self.watch.unshown(watched, name)
            return missing
        _, entry = self.replies.found(parent, Name(name), location.place, attributes)
        return entry

    @guarded
    async def getattr(self, inode: InodeT, ctx: RequestContext) -> EntryAttributes:
        """The attributes of an object. Safe: they are answered from memory only while a watch vouches for them, and are
        judged again otherwise."""
        node = self.reach.node(inode)
        self.watch.read_events()
        kept = node.cached.answer(this_minute())
        if kept is not None:
            self.kept += 1
            return kept
        return self.replies.known(node, self.reach.on(node, Act.LOOK, self.view.attributes))

    @guarded_without_reply
    async def forget(self, inode_list: Sequence[tuple[InodeT, int]]) -> None:
        """Let go of what the kernel has forgotten. Safe: a node goes only when every reply that led to it was given
        back."""
        self.memory.forgetting()
        for inode, times in inode_list:
            node = self.nodes.forget(inode, times)
            if node is not None:
                self.watch.forget(node)
                self.removed.let_go(node)

    @guarded
    async def readlink(self, inode: InodeT, ctx: RequestContext) -> FileNameT:
        """The text of a symbolic link. Safe: only a link that is shown is read, and its target is shown as a path of the
        view."""
        return FileNameT(self.reach.on(self.reach.node(inode), Act.OPEN, self.view.link_text))

    @guarded
    async def access(self, inode: InodeT, mode: int, ctx: RequestContext) -> bool:
        """Whether access(2) allows something. Safe: the level decides first, then the permissions of SOURCE for this
        user."""
        self.reach.on(self.reach.node(inode), Act.LOOK, lambda location, expect: self.view.access(location, mode, expect))
        return True

    @guarded
    async def statfs(self, ctx: RequestContext) -> pyfuse3.StatvfsData:
        """The size and free space of the file system. Safe: the numbers are rounded, so that they do not count hidden
        writes."""
        return file_system_for(self.view.file_system())

    # -- directories ----------------------------------------------------------------------------------------------------

    @guarded
    async def opendir(self, inode: InodeT, ctx: RequestContext) -> FileHandleT:
        """Open a directory to list it. Safe: its level is judged at each opening, also where the names are kept."""
        node = self.reach.node(inode)
        self.directories.room()
        return FileHandleT(self.directories.add(self.listings.opened(node)))

    @guarded
    async def readdir(self, fh: FileHandleT, start_id: int, token: pyfuse3.ReaddirToken) -> None:
        """List some entries with their attributes. Safe: each name is judged by the policy in force now, and what is not
        shown leaves no gap."""
        self.listings.read(self.directories.get(fh), start_id, token)

    @guarded
    async def releasedir(self, fh: FileHandleT) -> None:
        """Close an open directory. Safe: it only gives back what the opening took."""
        size = self.directories.get(fh).names.size
        self.directories.close(fh)
        self.memory.released(size)

    @guarded
    async def fsyncdir(self, fh: FileHandleT, datasync: bool) -> None:
        """Write a directory to the disk, in a thread. Safe: it is done by the descriptor that was judged when the directory
        was opened."""
        await trio.to_thread.run_sync(self.listings.behind(self.directories.get(fh)).sync)

    # -- files ----------------------------------------------------------------------------------------------------------

    def _opened(self, node: Node, file: OpenFile) -> FileInfo:
        if node.files is None:
            node.files = [file]
        else:
            node.files.append(file)
        number = self.files.add(FileHandle(node, file, self.nodes.epoch))
        keep = node.cached.opened()
        # Around the page cache, one write is one request. Through it, one that goes over the end of a page is often two, and
        # what somebody else appends meanwhile lands between the halves of a line.
        only_appends = file.append and not file.mappable
        return FileInfo(fh=FileHandleT(number), direct_io=only_appends, keep_cache=keep)

    @guarded
    async def open(self, inode: InodeT, flags: int, ctx: RequestContext) -> FileInfo:
        """Open a file. Safe: the level is judged for what the flags ask, and the file is the one that the kernel was told
        of or none."""
        node = self.reach.node(inode)
        self.files.room()
        file = self.reach.on(node, Act.OPEN, lambda location, expect: self.view.open(location, flags, expect, lazily=True))
        if flags & os.O_TRUNC:
            node.cached.truncated(file.change_ns())
        if self._recorder is not None:
            if file.writable or flags & os.O_TRUNC:
                self._recorder.did("write-open", self.nodes.location(node), ctx.pid)
            elif self._journal_opens:
                self._recorder.opened(self.nodes.location(node), ctx.pid)
        entry = node.cached.last_told()
        if entry is not None and not file.writable:
            send_content(node, entry, file)
        return self._opened(node, file)

    @guarded
    async def create(
        self, parent_inode: InodeT, name: FileNameT, mode: int, flags: int, ctx: RequestContext
    ) -> tuple[FileInfo, EntryAttributes]:
        """Make a file and open it. Safe: it is made in the very directory that the kernel named, and the name is judged
        before SOURCE is touched."""
        parent = self.reach.node(parent_inode)
        location = self.reach.child_in(parent, name)
        self.files.room()
        file, attributes = self.view.create(location, flags, mode, ctx.umask)
        node, entry = self._made(parent, Name(name), location, attributes)
        self._did("create", location, ctx)
        return self._opened(node, file), entry

    def _judged(self, handle: FileHandle, *, write: bool) -> OpenFile:
        """The file of a handle, judged again if the policy or the tree has changed since."""
        if handle.epoch != self.nodes.epoch:
            handle.epoch = self.reach.open_file(handle.node, handle.file, judged=handle.epoch, write=write)
        return handle.file

    @guarded
    async def read(self, fh: FileHandleT, off: int, size: int) -> bytes:
        """Read from an open file. Safe: the handle is judged again after each change of policy, also where the read had to
        wait."""
        file = self._judged(self.files.get(fh), write=False)
        try:
            return file.read_cached(off, size)  # type: ignore[return-value]  # pyfuse3 takes any buffer
        except WouldBlock:
            soon = self.disk.read_soon(file, off, size)
            if soon is not None:
                return soon  # type: ignore[return-value]  # as above
            data = await self.disk.read(file, off, size)
            # The policy may have changed meanwhile, and then this is not to be answered.
            self._judged(self.files.get(fh), write=False)
            return data

    @guarded
    async def write(self, fh: FileHandleT, off: int, buf: bytes) -> int:
        """Write to an open file. Safe: the handle is judged again after each change of policy, and it was opened at a level
        that may write."""
        handle = self.files.get(fh)
        file, node = self._judged(handle, write=True), handle.node
        # The kernel writes mapped pages back by a descriptor that they were mapped by.
        mapped = file.append and file.mappable and _is_of_a_mapping(off, len(buf), node.cached.size)
        written = file.write(off, buf, mapped=mapped)
        node.cached.written(file.change_ns(), off + written)
        return written

    async def flush(self, fh: FileHandleT) -> None:
        """Answer that there is nothing to flush, once for the whole mount. Safe: every write went through before it was
        answered."""
        # One request less at each close: there is nothing to flush, every write went through. The kernel
        # takes ENOSYS from flush, unlike from open, to mean just that. So this handler is the one without the guard.
        raise pyfuse3.FUSEError(errno.ENOSYS)

    @guarded
    async def release(self, fh: FileHandleT) -> None:
        """Close an open file. Safe: it only gives back what the opening took."""
        self.files.close(fh)

    @guarded
    async def fsync(self, fh: FileHandleT, datasync: bool) -> None:
        """Write a file to the disk, in a thread. Safe: it changes no content, and goes by the descriptor that was judged at
        the opening."""
        file = self.files.get(fh).file
        # Here, not in the thread: a read that comes meanwhile would open it once more.
        file.open_now()
        await trio.to_thread.run_sync(lambda: file.sync(data_only=datasync))

    # -- names ----------------------------------------------------------------------------------------------------------

    def _make(
        self, operation: str, parent_inode: InodeT, name: bytes, ctx: RequestContext, make: Callable[[Location], Attributes]
    ) -> EntryAttributes:
        """Make a name in a directory, by the view's `make`."""
        parent = self.reach.node(parent_inode)
        location = self.reach.child_in(parent, name)
        attributes = make(location)
        for old in self.nodes.of(attributes.identity):
            # What is new has their number: what they were is gone, and what was told of it with them.
            self.nodes.ended(old)
        self._did(operation, location, ctx)
        _, entry = self._made(parent, Name(name), location, attributes)
        return entry

    @guarded
    async def mkdir(self, parent_inode: InodeT, name: FileNameT, mode: int, ctx: RequestContext) -> EntryAttributes:
        """Make a directory. Safe: the name is judged first, and the directory is made in the very one that the kernel
        named."""
        return self._make(
            "mkdir", parent_inode, name, ctx, lambda location: self.view.make_directory(location, mode, ctx.umask)
        )

    @guarded
    async def mknod(
        self, parent_inode: InodeT, name: FileNameT, mode: int, rdev: int, ctx: RequestContext
    ) -> EntryAttributes:
        """Make a file, a fifo or a socket. Safe: the name is judged first, and no device can be made."""
        return self._make("mknod", parent_inode, name, ctx, lambda location: self.view.make_node(location, mode, ctx.umask))

    @guarded
    async def symlink(
        self, parent_inode: InodeT, name: FileNameT, target: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Make a symbolic link. Safe: the name is judged first, and so is the text, since a link must not lead to what is
        hidden."""
        return self._make("symlink", parent_inode, name, ctx, lambda location: self.view.make_link(location, target))

    @guarded
    async def link(
        self, inode: InodeT, new_parent_inode: InodeT, new_name: FileNameT, ctx: RequestContext
    ) -> EntryAttributes:
        """Give a file a second name. Safe: both names are judged and must be at one level, and a moved file gets no
        name."""
        parent = self.reach.node(new_parent_inode)
        location = self.reach.child_in(parent, new_name)
        node = self.reach.node(inode)
        forgotten = node.cached.state is State.FORGOTTEN
        before_ns = 0 if forgotten else self.reach.on(node, Act.LOOK, self.view.attributes).change_ns
        attributes = self.reach.on(node, Act.NAME, lambda old, expect: self.view.link(old, location, expect))
        node.cached.changed_by_session(before_ns)
        self._did("link", self.nodes.location(node), ctx, location)
        _, entry = self._made(parent, Name(new_name), location, attributes)
        return entry

    @guarded
    async def unlink(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        """Remove a name of a file. Safe: the name is judged first, and removed from the very directory that the kernel
        named."""
        parent = self.reach.node(parent_inode)
        location = self.reach.child_in(parent, name)
        removed = self.view.unlink(location, hold=True)
        self._unnamed(parent, location, Name(name), removed.identity, removed.held)
        self._did("unlink", location, ctx)

    @guarded
    async def rmdir(self, parent_inode: InodeT, name: FileNameT, ctx: RequestContext) -> None:
        """Remove an empty directory. Safe: what a rule names stays, and so does what holds hidden entries, but for links
        that a bare mount shows to nobody (rule link-6)."""
        parent = self.reach.node(parent_inode)
        location = self.reach.child_in(parent, name)
        removed = self.view.remove_directory(location, hold=True)
        self._unnamed(parent, location, Name(name), removed.identity, removed.held)
        for link in removed.links:
            self._did("unlink", link, ctx)
        self._did("rmdir", location, ctx)

    def _unnamed(self, parent: Node, location: Location, name: Name, identity: Identity, held: OpenFile | None) -> None:
        """A name was taken away: forget it, and what its object's attributes were. A process that found the object by that
        name a moment ago still gets it: the kernel asks in two steps where other file systems answer in one."""
        self._changed(parent)
        if parent.watched is not None:
            parent.watched.forget(name)
        node = self.nodes.lost(identity, location.place.level, parent, name)
        if node is not None:
            node.cached.name_removed()
        if held is not None:
            if node is not None and node.gone:
                self.removed.hold(node, held)
            else:
                held.close()

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
        """Move an object to another name. Safe: both names are judged, and nothing gets another level by being moved."""
        old_parent, new_parent = self.reach.node(parent_inode_old), self.reach.node(parent_inode_new)
        old, new = self.reach.child_in(old_parent, name_old), self.reach.child_in(new_parent, name_new)
        renamed = self.view.rename(old, new, flags, hold=True)
        self._did("rename", old, ctx, new)
        if renamed.moved == renamed.replaced:
            if renamed.held is not None:
                renamed.held.close()
            return
        self._changed(old_parent)
        self._changed(new_parent)
        old_name, new_name = (old_parent, Name(name_old)), (new_parent, Name(name_new))
        level, directory = old.place.level, renamed.directory
        if renamed.replaced is not None and not flags:
            self._unnamed(new_parent, new, Name(name_new), renamed.replaced, renamed.held)
        elif renamed.replaced is not None:
            self._moved(renamed.replaced, level, new_name, old_name, directory=directory)
        self._moved(renamed.moved, level, old_name, new_name, directory=directory, exchanged=bool(flags & 2))

    def _moved(
        self,
        identity: Identity,
        level: Level,
        old: tuple[Node, Name],
        new: tuple[Node, Name],
        *,
        directory: bool,
        exchanged: bool = False,
    ) -> None:
        node = self.nodes.moved(identity, level, old, new, directory=directory)
        for parent, name in (new,) if exchanged else (old, new):
            if parent.watched is not None:
                parent.watched.forget(name)
        if node is not None:
            if not node.gone:
                self.watch.moved_by_session(node)
            self.watch.named(*new, node)
            self._refreshed(node)

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
        """Change attributes or the size. Safe: it needs a level that may change, and set-id bits are never set."""
        node = self.reach.node(inode)
        size: int | None = attr.st_size if fields.update_size else None
        before_ns = 0
        by_handle: OpenFile | None = None
        if size is not None and fh is not None:
            by_handle = self._judged(self.files.get(fh), write=True)
            before_ns = by_handle.change_ns()
            by_handle.truncate(size)
            size = None
        changes = Changes(
            size,
            stat.S_IMODE(attr.st_mode) if fields.update_mode else None,
            attr.st_uid if fields.update_uid else -1,
            attr.st_gid if fields.update_gid else -1,
            attr.st_atime_ns if fields.update_atime else None,
            attr.st_mtime_ns if fields.update_mtime else None,
        )
        if fields.update_mode or fields.update_uid or fields.update_gid:
            # What is open stays open, whatever may be opened from now on.
            for opened in node.files or ():
                with contextlib.suppress(OSError):
                    opened.open_now()
            if node.watched is not None:
                node.watched.forget_names()
        if by_handle is None:
            changed = self.reach.on(node, Act.CHANGE, lambda location, expect: self.view.change(location, changes, expect))
        else:
            changed = self.view.change(self.nodes.location(node), changes, by_handle)
        if self.journal is not None:
            self._did("truncate" if fields.update_size else "attributes", self.nodes.location(node), ctx)
        node.cached.changed_by_session(before_ns or changed.before_ns)
        return self.replies.known(node, changed.attributes)

    @guarded
    async def setxattr(self, inode: InodeT, name: XAttrNameT, value: bytes, ctx: RequestContext) -> None:
        """Set an extended attribute. Safe: it needs a level that may change, and a name in `user.`."""
        # XATTR_CREATE and XATTR_REPLACE do not arrive here: pyfuse3 asks getxattr first.
        node = self.reach.node(inode)
        self.reach.on(node, Act.CHANGE, lambda location, expect: self.view.set_extended(location, name, value, 0, expect))
        self._did("attributes", self.nodes.location(node), ctx)
        self._refreshed(node)

    @guarded
    async def getxattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> bytes:
        """Read an extended attribute. Safe: only names in `user.` are passed on; the level of an object is given to a
        process that may see it."""
        if name == _CAPABILITY:
            # The kernel asks this before every write. No view shows set-id programs' kin, so there is none.
            raise pyfuse3.FUSEError(errno.ENODATA)
        if name == LEVEL_ATTRIBUTE:
            return self.reach.on(self.reach.node(inode), Act.LOOK, self.view.level_of)
        return self.reach.on(
            self.reach.node(inode), Act.LOOK, lambda location, expect: self.view.extended(location, name, expect)
        )

    @guarded
    async def listxattr(self, inode: InodeT, ctx: RequestContext) -> Sequence[XAttrNameT]:
        """List extended attributes. Safe: only names in `user.` are listed."""
        names = self.reach.on(self.reach.node(inode), Act.LOOK, self.view.extended_names)
        return [XAttrNameT(name) for name in names]

    @guarded
    async def removexattr(self, inode: InodeT, name: XAttrNameT, ctx: RequestContext) -> None:
        """Remove an extended attribute. Safe: it needs a level that may change, and a name in `user.`."""
        node = self.reach.node(inode)
        self.reach.on(node, Act.CHANGE, lambda location, expect: self.view.remove_extended(location, name, expect))
        self._did("attributes", self.nodes.location(node), ctx)
        self._refreshed(node)
