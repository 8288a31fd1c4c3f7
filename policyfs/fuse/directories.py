"""Listings: the names of an open directory, told with what they stand for (FUSE_READDIRPLUS)."""

from __future__ import annotations

import errno
import stat
from collections.abc import Mapping

import pyfuse3
from pyfuse3 import EntryAttributes, FileNameT, InodeT

from policyfs.fuse.handles import DirectoryHandle
from policyfs.fuse.kernel_cache import this_minute
from policyfs.fuse.names import Names, Room
from policyfs.fuse.nodes import Node, Nodes
from policyfs.fuse.reach import Reach
from policyfs.fuse.replies import Replies
from policyfs.fuse.source_watch import Watch
from policyfs.policy.levels import Standing
from policyfs.policy.objects import Act
from policyfs.policy.paths import Name
from policyfs.policy.tree import Place
from policyfs.view.attributes import Attributes
from policyfs.view.listing import Listing
from policyfs.view.monitor import ReferenceMonitor

_DOTS = 2
"""Entries of a listing before the names: `.` and `..`."""
_AT_ONCE = 16
"""Entries looked up before it is asked where their directory stands. To ask takes as long as to look one up; what was looked
up and does not fit into the reply was in vain."""


class Listings:
    """The part of the handlers that lists directories."""

    def __init__(self, view: ReferenceMonitor, nodes: Nodes, watch: Watch, reach: Reach, replies: Replies) -> None:
        self._view = view
        self._nodes = nodes
        self._watch = watch
        self._reach = reach
        self._replies = replies
        self._room = Room(watch.give_up_names)

    def opened(self, node: Node) -> DirectoryHandle:
        """An open directory, with its names as they are now."""
        names, listing = self._names(node)
        return DirectoryHandle(node, names, listing, self._nodes.epoch)

    def _names(self, node: Node) -> tuple[Names, Listing | None]:
        """The names in a directory as they are now, and the listing where it had to be made."""
        watched = self._watch.look_into(node)
        self._watch.read_events()
        if watched is not None and watched.names is not None:
            # Nothing has changed since it was last read, and it was judged then. Whether it may be read is asked again.
            self._reach.on(node, Act.OPEN, self._view.may_list)
            return watched.names, None
        listing = self._reach.on(node, Act.OPEN, self._view.listing)
        try:
            names = self._room.take(listing.read())
        except BaseException:
            listing.close()
            raise
        if watched is not None:
            watched.read(names)
        return names, listing

    def behind(self, handle: DirectoryHandle) -> Listing:
        """The listing of an open directory, made where it was not needed yet."""
        if handle.listing is None:
            handle.listing = self._reach.on(handle.node, Act.OPEN, self._view.listing)
        return handle.listing

    def read(self, handle: DirectoryHandle, start: int, token: pyfuse3.ReaddirToken) -> None:
        """Fill a reply with the entries from a position on, as many as it takes."""
        self._watch.read_events()
        place = self._bring_up_to_date(handle, start)
        directory, listed = handle.node, handle.names.listed
        judge = self._view.policy.child
        dentries: Mapping[bytes, Node | None] = {} if directory.watched is None else directory.watched.dentries
        minute = this_minute()
        looked_up: dict[Name, Attributes | None] = {}
        position = start
        try:
            while position < _DOTS:
                if not pyfuse3.readdir_reply(token, *_dot(directory, position), position + 1):
                    return
                position += 1
            while position < len(listed) + _DOTS:
                name = listed[position - _DOTS]
                # A position that was given is kept whatever became of its name, for the sake of those behind it: telldir(3).
                again = position < handle.given
                if again and judge(place, name).standing is not Standing.VISIBLE:
                    position += 1
                    continue
                node = dentries.get(name)
                entry = None if node is None else node.cached.answer(minute)
                if node is not None and entry is not None:
                    if not pyfuse3.readdir_reply(token, FileNameT(name), entry, position + 1):
                        handle.fitted = position - start
                        return
                    node.cached.remember()
                else:
                    if name not in looked_up:
                        looked_up = self._looked_up(handle, position, position - start, minute)
                        listed = handle.names.listed
                        continue
                    attributes = looked_up[name]
                    if attributes is not None and not self._told(
                        token, directory, name, self.behind(handle).place(name), attributes, position + 1
                    ):
                        handle.fitted = position - start
                        return
                position += 1
                handle.given = max(handle.given, position)
        except OSError:
            # What is in the reply was counted, and is to be sent: the next request meets the error first.
            if position == start:
                raise

    def _looked_up(
        self, handle: DirectoryHandle, position: int, in_reply: int, minute: int
    ) -> dict[Name, Attributes | None]:
        """What the names from a position on stand for now, about as many as the reply still takes; those that are not kept.
        What nothing stands behind that may be shown is taken off the list, where its position was not given yet: a gap
        would tell of it."""
        many = _AT_ONCE if handle.fitted <= in_reply else min(_AT_ONCE, handle.fitted - in_reply)
        again = position < handle.given
        first = position - _DOTS
        last = min(first + many, handle.given - _DOTS) if again else first + many
        names = handle.names.listed[first:last]
        dentries: Mapping[bytes, Node | None] = {} if handle.node.watched is None else handle.node.watched.dentries
        asked = []
        for name in names:
            node = dentries.get(name)
            if node is None or node.cached.answer(minute) is None:
                asked.append(name)
        found = dict(zip(asked, self.behind(handle).entries(asked), strict=True))
        if not again and None in found.values():
            self._own(handle)[first:last] = [name for name in names if name not in found or found[name] is not None]
        return found

    def _own(self, handle: DirectoryHandle) -> list[Name]:
        """A handle's names, to be changed: no other stream has them then."""
        if handle.names is handle.as_read:
            handle.names = self._room.copy(handle.as_read)
        return handle.names.listed

    def _bring_up_to_date(self, handle: DirectoryHandle, start: int) -> Place:
        directory = handle.node
        place = self._reach.go_on(directory, Act.LIST)
        if self._nodes.astray and not directory.gone:
            # A listing stays with its directory wherever that goes; what is in it there is not to be told.
            self._reach.on(directory, Act.LIST, self._view.attributes)
        as_read = directory.watched is not None and directory.watched.names is handle.as_read
        if start == 0 and (handle.given or not as_read):
            # rewinddir(3): the stream is to show what is there now. The kernel does not say that it rewound what nobody
            # has read from; then what was changed since it was opened counts.
            self._read_again(handle)
        if handle.epoch != self._nodes.epoch:
            # Judged by a policy that is gone.
            judge = self._view.policy.child
            given = max(0, max(start, handle.given) - _DOTS)
            to_come = handle.names.listed[given:]
            left = [name for name in to_come if judge(place, name).standing is Standing.VISIBLE]
            if len(left) < len(to_come):
                self._own(handle)[given:] = left
            handle.close_listing()
            handle.epoch = self._nodes.epoch
        return place

    def _read_again(self, handle: DirectoryHandle) -> None:
        try:
            names, listing = self._names(handle.node)
        except OSError as error:
            if error.errno != errno.ENFILE:
                raise
            # No room for other names: those that it has are still true but for what has come since.
        else:
            handle.close_listing()
            handle.names = handle.as_read = names
            handle.listing = listing
            handle.epoch = self._nodes.epoch
        handle.given = 0

    def _told(
        self,
        token: pyfuse3.ReaddirToken,
        directory: Node,
        name: Name,
        place: Place,
        attributes: Attributes,
        position: int,
    ) -> bool:
        """Put an entry into the reply. Only if it fits is the kernel told of it, and only then it counts."""
        replies = self._replies
        node = replies.node_for(directory, name, place, attributes)
        reply = replies.entry_of(node, attributes, directory)
        if not pyfuse3.readdir_reply(token, FileNameT(name), reply.entry, position):
            self._nodes.forget(node.ino, 0)
            return False
        replies.sent_by_name(directory, name, node, reply)
        return True


def _dot(directory: Node, position: int) -> tuple[FileNameT, EntryAttributes]:
    """The entry of a directory for itself or for the one above, of which the kernel takes the number alone: it makes no name
    of it, and counts nothing."""
    above = directory if position == 0 else directory.parent or directory
    entry = EntryAttributes()
    entry.st_ino = InodeT(above.ino if above.parent is not None else above.identity.ino)
    entry.st_mode = stat.S_IFDIR
    return FileNameT(b"." * (position + 1)), entry
