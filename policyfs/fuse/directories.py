"""Listings: the names of an open directory, told with what they stand for (FUSE_READDIRPLUS)."""

from __future__ import annotations

import stat
from typing import TYPE_CHECKING

import pyfuse3
from pyfuse3 import EntryAttributes, FileNameT, InodeT

from policyfs.fuse.handles import DirectoryHandle
from policyfs.fuse.nodes import Node
from policyfs.fuse.source_watch import this_minute
from policyfs.policy.levels import Standing
from policyfs.policy.paths import Name, child
from policyfs.policy.refusals import Refusal
from policyfs.policy.tree import Place
from policyfs.view.attributes import Attributes
from policyfs.view.listing import Listing
from policyfs.view.refused import Refused

if TYPE_CHECKING:
    from policyfs.fuse.handlers import Operations

_DOTS = 2
"""Entries of a listing before the names: `.` and `..`."""


class Listings:
    """The part of the handlers that lists directories."""

    def __init__(self, operations: Operations) -> None:
        self._operations = operations
        self._nodes = operations.nodes
        self._view = operations.view

    def opened(self, node: Node) -> DirectoryHandle:
        """An open directory, with its names as they are now."""
        names, listing = self._names(node)
        return DirectoryHandle(node, names, listing, self._nodes.epoch)

    def _names(self, node: Node) -> tuple[list[Name], Listing | None]:
        """The names in a directory as they are now, and the listing where it had to be made."""
        watched = self._operations.watch.look_into(node)
        if watched is not None and watched.names is not None:
            # Nothing has changed since it was last read, and it was judged then. Whether it may be read is asked anew.
            self._operations.on(node, self._view.may_list)
            return watched.names, None
        listing = self._operations.on(node, self._view.listing)
        if watched is not None:
            watched.names = listing.names
        return listing.names, listing

    def behind(self, handle: DirectoryHandle) -> Listing:
        """The listing of an open directory, made where it was not needed yet."""
        if handle.listing is None:
            handle.listing = self._operations.on(handle.node, self._view.listing)
        return handle.listing

    def read(self, handle: DirectoryHandle, start: int, token: pyfuse3.ReaddirToken) -> None:
        """Fill a reply with the entries from a position on, as many as it takes."""
        place = self._bring_up_to_date(handle, start)
        directory, names = handle.node, handle.names
        judge = self._view.policy.child
        known = {} if directory.watched is None else directory.watched.known
        minute = this_minute()
        position = start
        try:
            while position < _DOTS:
                if not pyfuse3.readdir_reply(token, *_dot(directory, position), position + 1):
                    return
                position += 1
            while position < len(names) + _DOTS:
                name = names[position - _DOTS]
                # A position that was given is kept whatever became of its name, for the sake of those behind it: telldir(3).
                again = position < handle.given
                if again and judge(place, name).standing is not Standing.VISIBLE:
                    position += 1
                    continue
                node = known.get(name)
                if node is not None and node.entry is not None and node.kept_in == minute:
                    if not pyfuse3.readdir_reply(token, FileNameT(name), node.entry, position + 1):
                        return
                    node.lookups += 1
                else:
                    listing = self.behind(handle)
                    attributes = listing.entry(name)
                    if attributes is None:
                        # Nothing that may be shown: it takes no position, or the gap would tell of it.
                        if again:
                            position += 1
                        else:
                            del names[position - _DOTS]
                        continue
                    if not self._told(token, directory, name, listing.place(name), attributes, position + 1):
                        return
                position += 1
                handle.given = max(handle.given, position)
        except OSError:
            # What is in the reply was counted, and is to be sent: the next request meets the error first.
            if position == start:
                raise

    def _bring_up_to_date(self, handle: DirectoryHandle, start: int) -> Place:
        directory = handle.node
        place = self._nodes.place(directory)
        if place.standing is not Standing.VISIBLE:
            raise Refused(Refusal.DENIED, self._nodes.path(directory), place)
        if self._nodes.astray and not directory.gone:
            # A listing stays with its directory wherever that goes; what is in it there is not to be told.
            self._operations.on(directory, self._view.attributes)
        as_read = directory.watched is not None and directory.watched.names is handle.as_read
        if start == 0 and (handle.given or not as_read):
            # rewinddir(3): the stream is to show what is there now. The kernel does not say that it rewound what nobody
            # has read from; then what was changed since it was opened counts.
            handle.close_listing()
            names, handle.listing = self._names(directory)
            handle.as_read, handle.names, handle.epoch, handle.given = names, list(names), self._nodes.epoch, 0
        if handle.epoch != self._nodes.epoch:
            # Judged by a policy that is gone.
            judge = self._view.policy.child
            given = max(0, max(start, handle.given) - _DOTS)
            handle.names[given:] = [name for name in handle.names[given:] if judge(place, name).standing is Standing.VISIBLE]
            handle.close_listing()
            handle.epoch = self._nodes.epoch
        return place

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
        if attributes.is_directory:
            path = child(self._nodes.location(directory).path, name)
            self._operations.watch.tell_apart(attributes.identity, path)
        node = self._nodes.about_to_tell(directory, name, attributes, place)
        stamp, size, kept = node.stamp, node.size, node.entry
        entry = self._operations.entry_of(node, attributes, directory.watched)
        if not pyfuse3.readdir_reply(token, FileNameT(name), entry, position):
            node.stamp, node.size, node.entry = stamp, size, kept
            self._nodes.forget(node.ino, 0)
            return False
        node.lookups += 1
        if directory.watched is not None:
            directory.watched.tell(name, node)
        return True


def _dot(directory: Node, position: int) -> tuple[FileNameT, EntryAttributes]:
    """The entry of a directory for itself or for the one above, of which the kernel takes the number alone: it makes no name
    of it, and counts nothing."""
    above = directory if position == 0 else directory.parent or directory
    entry = EntryAttributes()
    entry.st_ino = InodeT(above.ino if above.parent is not None else above.identity[1])
    entry.st_mode = stat.S_IFDIR
    return FileNameT(b"." * (position + 1)), entry
