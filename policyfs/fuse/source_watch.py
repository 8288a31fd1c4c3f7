"""The watch of SOURCE: reports to the kernel cache what others change in it (rule cache-1).

Theory. The kernel may keep what it was told for as long as it is true (`kernel_cache`). So the daemon watches what it has
handed out: one inotify watch for each source directory it has looked into, made before the look. An event names a directory
and an entry, and says little of what happened to it. So what is there now is compared with what the kernel was told last,
and only a difference is invalidated. That is how the session's own changes, which raise events like any other, invalidate
nothing.

The kernel queues an event within the call that makes the change. What an event may concern is suspected as soon as the event
is read, and events are read before anything is answered from memory (`read_events`). So the daemon itself never answers by
what was changed before it was asked. The comparison follows a few milliseconds later, so that a burst on one name is one
look (`_GATHER`).

Not all can be watched. A file with several names changes without an event in the directory it was seen in; a file
system on another machine changes without any event; the watches of a user are limited. There the lifetime is a second, as
with most network file systems, and the log says so. So a stale answer is bounded everywhere, and where it is longer than
an event takes, it is known.
"""

from __future__ import annotations

import errno
import logging
import os
import select
from collections.abc import Iterable

import inotify_simple
import trio
from inotify_simple import flags as events

from policyfs.fuse import kernel_cache
from policyfs.fuse.kernel_cache import Invalidation, Stale, State, forget_dentry, forget_inode, invalidate_and_log
from policyfs.fuse.nodes import Node, Nodes, Watched
from policyfs.policy.paths import Name, ViewPath
from policyfs.source.tree import Identity
from policyfs.view.attributes import Attributes
from policyfs.view.monitor import ReferenceMonitor

log = logging.getLogger("policyfs")

MAX_UNSHOWN = 256
"""Names that are missing to the kernel although something is there. Beyond it the first of them are asked for again."""
_GATHER = 0.004
"""Seconds for which events gather before they are looked at: a burst on one name is then one look."""

# Plain numbers: an operation on an enumeration's member costs as much as a system call.
_NAMES_COME = int(events.CREATE | events.MOVED_TO)
_NAMES_CHANGE = int(_NAMES_COME | events.DELETE | events.MOVED_FROM)
# CLOSE_WRITE: what is written through a mapping raises no event until it is closed (inotify(7)).
_EVENTS = int(
    _NAMES_CHANGE
    | events.MODIFY
    | events.CLOSE_WRITE
    | events.ATTRIB
    | events.MOVE_SELF
    | events.ONLYDIR
    | events.EXCL_UNLINK
)
_MOVED = int(events.MOVE_SELF)
_OVERFLOW = int(events.Q_OVERFLOW)
_IGNORED = int(events.IGNORED)

_SILENT_FILE_SYSTEMS = {
    0x6969: "NFS",
    0x517B: "SMB",
    0xFF534D42: "CIFS",
    0xFE534D42: "SMB2",
    0x65735546: "FUSE",
    0x01021997: "9P",
    0x00C36400: "Ceph",
    0x5346414F: "AFS",
    0x01161970: "GFS2",
    0x7461636F: "OCFS2",
    0x0BD00BD0: "Lustre",
}
"""f_type of statfs(2) of file systems that others can change without an event here."""


class Watch:
    """The watches of one mount."""

    def __init__(self, view: ReferenceMonitor, nodes: Nodes) -> None:
        self._view = view
        self._nodes = nodes
        self._by_descriptor: dict[int, Watched] = {}
        self._inotify: inotify_simple.INotify | None = None
        self.invalidations = 0
        """How often the kernel was told to forget something, for `status` and the tests."""
        self._readable = select.poll()
        """Asks whether events have come: a third of the time of trying to read them."""
        self._pending: list[inotify_simple.Event] = []
        """Events that were read and not looked at."""
        self._waiting = trio.CancelScope()
        """Around waiting for events: cancelled where a handler has read them."""
        self._unshown: dict[tuple[Watched, bytes], None] = {}
        self._unshown_any = trio.Event()
        self._displaced: list[Node] = []
        """Directories in whose place something else was found, for the events that will tell of it."""
        self._pages_suspect: list[Node] = []
        self._any_pages_suspect = trio.Event()
        try:
            kinds = [_SILENT_FILE_SYSTEMS.get(tree.file_system_type()) for _, tree in view.trees]
            silent = next(filter(None, kinds), None)
        except OSError:
            silent = "a file system that does not tell its type"
        if silent is not None:
            log.info("the source is on %s, whose changes raise no events here: names are kept for one second", silent)
            return
        try:
            self._inotify = inotify_simple.INotify(nonblocking=True)
            self._readable.register(self._inotify.fileno(), select.POLLIN)
        except OSError as error:
            log.info("no inotify (%s): names are kept for one second", error.strerror)

    def __len__(self) -> int:
        return len(self._by_descriptor)

    def close(self) -> None:
        """Watch nothing any more."""
        if self._inotify is not None:
            self._inotify.close()
            self._inotify = None
        self._by_descriptor.clear()

    # -- what handlers ask ----------------------------------------------------------------------------------------------

    def look_into(self, node: Node) -> Watched | None:
        """Watch a directory, before it is looked into; None where it cannot be watched."""
        if node.watched is not None or self._inotify is None or node.unwatchable:
            return node.watched
        if node.gone:
            # Where it was there may be another by now, of its inode number: that one's watch is not to be this one's.
            return None
        tree, path = self._view.trees.of(self._nodes.path(node))
        try:
            reached = tree.reach_directory(path)
        except OSError:
            return None
        try:
            if tree.identity(reached) != node.identity:
                return None
            descriptor = tree.watch(reached, self._add)
            other = self._by_descriptor.get(descriptor)
            if other is not None and other.node.identity.tree != node.identity.tree:
                # Two trees have the directory in common. One watch is not to be two nodes'.
                node.unwatchable = True
                return None
        except OSError as error:
            node.unwatchable = True
            if error.errno == errno.ENOSPC:
                self._full()
            return None
        finally:
            tree.release(reached)
        node.watched = self._by_descriptor[descriptor] = Watched(node, descriptor)
        return node.watched

    def read_events(self) -> None:
        """Read the events that have come, and suspect what they may concern. Before anything is answered from memory: it is
        true then, though the kernel is not told yet. It takes a microsecond where nothing has come."""
        if self._inotify is None or not self._readable.poll(0):
            return
        for event in self._inotify.read(timeout=0):
            self._pending.append(event)
            self._suspect(event)
        self._waiting.cancel()

    def _suspect(self, event: inotify_simple.Event) -> None:
        if event.mask & _OVERFLOW:
            self.give_up_names()
            for node in self._nodes:
                node.cached.suspect()
        watched = self._by_descriptor.get(event.wd)
        if watched is None or event.mask & (_MOVED | _IGNORED):
            return
        if event.mask & _NAMES_CHANGE:
            watched.forget_names()
        watched.node.cached.suspect()
        child = watched.dentries.get(os.fsencode(event.name))
        if child is not None:
            child.cached.suspect()

    def give_up_names(self) -> None:
        """Keep no directory's names for the next opening, for the sake of the memory that they take."""
        for watched in self._by_descriptor.values():
            watched.forget_names()

    def named(self, directory: Node, name: Name, node: Node) -> None:
        """A reply tells the kernel of a node under a name in a directory, or the session moved it there."""
        if directory.watched is not None:
            before = directory.watched.told(name, node)
            if before is not None and before.watched is not None:
                self._displaced.append(before)

    @staticmethod
    def moved_by_session(node: Node) -> None:
        """The session moved a directory: the event of that tells nothing new."""
        if node.watched is not None:
            node.watched.moves += 1

    def tell_apart(self, identity: Identity, path: ViewPath) -> None:
        """Before the kernel is told of a directory: a known one of this inode number may have been removed, the event still
        to come, and this be another. A watch of the same directory is the same watch (inotify_add_watch(2))."""
        for node in self._nodes.of(identity):
            if node.watched is None or self._inotify is None:
                continue
            tree, place = self._view.trees.of(path)
            try:
                reached = tree.reach_directory(place)
            except OSError:
                return
            try:
                descriptor = tree.watch(reached, self._add)
                if descriptor not in self._by_descriptor:
                    self._inotify.rm_watch(descriptor)
                if descriptor != node.watched.descriptor and tree.identity(reached) == identity:
                    self._nodes.ended(node)
            except OSError:
                # No more watches, or it is gone again.
                return
            finally:
                tree.release(reached)

    def _add(self, path: bytes) -> int:
        assert self._inotify is not None  # noqa: S101 - for the type checker
        descriptor: int = self._inotify.add_watch(path, _EVENTS)
        return descriptor

    _said_full = False

    def _full(self) -> None:
        if not self._said_full:
            self._said_full = True
            log.info(
                "no more watches (%d taken): what is looked into from now on is kept for one second; "
                "raise fs.inotify.max_user_watches with sysctl",
                len(self._by_descriptor),
            )

    def forget(self, node: Node) -> None:
        """A node is let go: its names are no longer the kernel's, and a directory is no longer watched."""
        if node.parent is not None:
            for parent, name in ((node.parent, node.name), *(node.others or ())):
                watched = parent.watched
                if watched is not None and watched.dentries.get(name) is node:
                    watched.forget(name)
        watched = node.watched
        if watched is not None:
            node.watched = None
            if self._by_descriptor.get(watched.descriptor) is watched:
                del self._by_descriptor[watched.descriptor]
                try:
                    assert self._inotify is not None  # noqa: S101 - for the type checker
                    self._inotify.rm_watch(watched.descriptor)
                except OSError:
                    pass  # The directory is gone, and its watch went with it.

    # -- what happens outside -------------------------------------------------------------------------------------------

    def drop_pages(self, node: Node) -> None:
        """The pages of a file that somebody has open are suspect: have the kernel drop them at once."""
        self._pages_suspect.append(node)
        self._any_pages_suspect.set()

    def unshown(self, watched: Watched, name: bytes) -> None:
        """Note that a name was told as missing since what is there is not shown. It is kept as long as any that is missing,
        or its life would tell of it; but it may come to be shown by what happens elsewhere: on the way of a link, or with
        the other names of a credential."""
        self._unshown[watched, name] = None
        self._unshown_any.set()

    async def look_at_unshown(self) -> None:
        """Look now and then whether what was not shown is to be shown by now. Runs until cancelled."""
        while True:
            await self._unshown_any.wait()
            await trio.sleep(kernel_cache.SHORT)
            found: list[Invalidation] = []
            for watched, name in list(self._unshown):
                if not watched.is_negative(name) or watched.node.watched is not watched:
                    del self._unshown[watched, name]
                elif len(self._unshown) > MAX_UNSHOWN or self._is_shown(watched, name):
                    del self._unshown[watched, name]
                    self._forget_name(watched, Name(name), found)
            if not self._unshown:
                self._unshown_any = trio.Event()
            if found:
                self.invalidations += len(found)
                await trio.to_thread.run_sync(invalidate_and_log, found)

    def _is_shown(self, watched: Watched, name: bytes) -> bool:
        try:
            self._view.attributes(self._view.child(self._nodes.location(watched.node), Name(name)))
        except OSError:
            return False
        return True

    async def drop_suspect_pages(self) -> None:
        """Have the kernel drop suspect pages of open files, as soon as they are suspect. Runs until cancelled."""
        while True:
            await self._any_pages_suspect.wait()
            self._any_pages_suspect = trio.Event()
            suspects, self._pages_suspect = self._pages_suspect, []
            self.invalidations += len(suspects)
            await trio.to_thread.run_sync(invalidate_and_log, [forget_inode(node.ino) for node in suspects])

    async def run(self) -> None:
        """Follow the source until cancelled."""
        if self._inotify is None:
            return
        while True:
            if not self._pending:
                with trio.CancelScope() as self._waiting:
                    await trio.lowlevel.wait_readable(self._inotify.fileno())
            await trio.sleep(_GATHER)
            self.read_events()
            pending, self._pending = self._pending, []
            invalidations = self._noticed(pending)
            if invalidations:
                self.invalidations += len(invalidations)
                await trio.to_thread.run_sync(invalidate_and_log, invalidations)

    def _noticed(self, happened: Iterable[inotify_simple.Event]) -> list[Invalidation]:
        """What the kernel must forget after these events."""
        touched: dict[tuple[int, bytes], int] = {}
        directories: dict[int, None] = {}
        moved: dict[Node, None] = {}
        found: list[Invalidation] = []
        for event in happened:
            if event.mask & _OVERFLOW:
                log.info("the source changed faster than its events could be read: everything is looked at again")
                return self._everything()
            watched = self._by_descriptor.get(event.wd)
            if watched is None:
                continue
            if event.mask & _IGNORED:
                self._lost(watched, found)
                continue
            if event.mask & _MOVED:
                if watched.moves:
                    watched.moves -= 1
                else:
                    moved[watched.node] = None
                continue
            directories[event.wd] = None
            if event.name:
                key = event.wd, os.fsencode(event.name)
                touched[key] = touched.get(key, 0) | event.mask
        for (descriptor, name), mask in touched.items():
            watched = self._by_descriptor.get(descriptor)
            if watched is None:
                continue
            if name in watched.dentries:
                self._look_at_name(watched, Name(name), found)
            elif mask & _NAMES_COME:
                self._look_at_new_name(watched, Name(name), found)
        # After the names that led there: with those the kernel drops the most of what is below.
        moved.update(dict.fromkeys(self._displaced))
        self._displaced.clear()
        for node in moved:
            self._look_where_it_is(node, found)
        for descriptor in directories:
            watched = self._by_descriptor.get(descriptor)
            if watched is not None:
                self._look_at_object(watched.node, found)
        return found

    def _look_at_name(self, watched: Watched, name: Name, found: list[Invalidation]) -> None:
        node = watched.dentries[name]
        location = self._view.child(self._nodes.location(watched.node), name)
        try:
            attributes = self._view.attributes(location)
        except OSError:
            if node is not None:
                self._displace(watched, name, node, found)
            return
        if node is None or node.identity != attributes.identity or node.level is not location.place.level:
            self._displace(watched, name, node, found)
        else:
            self._compare(node, attributes, found)

    def _displace(self, watched: Watched, name: Name, node: Node | None, found: list[Invalidation]) -> None:
        self._forget_name(watched, name, found)
        if node is None:
            return
        if node.watched is not None:
            self._displaced.append(node)
        else:
            # A program that has it open sees by its link count that it was removed.
            self._compare(node, None, found)

    def _look_at_new_name(self, watched: Watched, name: Name, found: list[Invalidation]) -> None:
        """A name that the kernel does not know may be another one of a file that it does know: a hard link, of which its
        first directory is told nothing."""
        try:
            attributes = self._view.attributes(self._view.child(self._nodes.location(watched.node), name))
        except OSError:
            return
        if attributes.links > 1 and not attributes.is_directory:
            for node in self._nodes.of(attributes.identity):
                self._compare(node, attributes, found)

    def _forget_name(self, watched: Watched, name: Name, found: list[Invalidation]) -> None:
        watched.forget(name)
        found.append(forget_dentry(watched.node.ino, name))

    def _look_at_object(self, node: Node, found: list[Invalidation]) -> None:
        """A directory itself: its times move with its entries."""
        if node.cached.state is State.FORGOTTEN:
            return
        try:
            attributes = self._view.attributes(self._nodes.location(node), node.identity)
        except OSError:
            node.cached.out_of_reach()
            return
        self._compare(node, attributes, found)

    def _look_where_it_is(self, node: Node, found: list[Invalidation]) -> None:
        """A directory was moved by another, or removed while somebody had it open. What was asked in it since was answered
        by its old path, even where it has been found again or is back. Where it is not, nothing more is asked by it."""
        if self._nodes.get(node.ino) is not node:
            return
        self._forget_below(node, found)
        try:
            self._view.attributes(self._nodes.location(node), node.identity)
        except OSError:
            self._nodes.astray.add(node)

    def _forget_below(self, node: Node, found: list[Invalidation]) -> None:
        """Forget what was told of names in a directory and below it."""
        waiting = [node]
        while waiting:
            watched = waiting.pop().watched
            if watched is not None:
                watched.forget_names()
                for name, child in list(watched.dentries.items()):
                    if child is not None and child.parent is watched.node and child.watched is not None:
                        waiting.append(child)
                    self._forget_name(watched, Name(name), found)

    @staticmethod
    def _compare(node: Node, attributes: Attributes | None, found: list[Invalidation]) -> None:
        """Have the kernel forget what it was told of a node, if that is not what is there now (None: not known)."""
        stale = node.cached.compare(attributes)
        if stale is not Stale.NOTHING:
            found.append(forget_inode(node.ino, attributes_only=stale is Stale.ATTRIBUTES))

    def _lost(self, watched: Watched, found: list[Invalidation]) -> None:
        """The kernel took a watch away: its directory is gone, or its file system was unmounted. Another directory may
        have its inode number already: it is not to be taken for this one, nor this one's names for its."""
        for name in list(watched.dentries):
            self._forget_name(watched, Name(name), found)
        del self._by_descriptor[watched.descriptor]
        node = watched.node
        if node.watched is not watched:
            return
        node.watched = None
        self._nodes.ended(node)
        above = None if node.parent is None else node.parent.watched
        if above is not None and above.dentries.get(node.name) is node:
            # Where the other has its name too, that name shows no difference.
            self._forget_name(above, node.name, found)

    def _everything(self) -> list[Invalidation]:
        """Forget all that was told: every name and every attribute."""
        found: list[Invalidation] = []
        for watched in list(self._by_descriptor.values()):
            watched.forget_names()
            for name in list(watched.dentries):
                self._forget_name(watched, Name(name), found)
            watched.moves = 0
            self._look_where_it_is(watched.node, found)
        for node in self._nodes:
            self._compare(node, None, found)
        return found
