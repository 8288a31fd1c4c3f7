"""The first player: the policy and the view, in a temporary directory."""

from __future__ import annotations

import contextlib
import errno
import os
from collections.abc import Iterator, Sequence

from policyfs.policy.paths import HostPath, PathFault, name
from policyfs.source.files import OpenFile
from policyfs.source.root import Root
from policyfs.view.attributes import Attributes
from policyfs.view.location import Location
from policyfs.view.monitor import ReferenceMonitor
from policyfs.view.outcomes import Changes
from tests.conformance.cases import Case
from tests.conformance.ground import Ground, policy_of
from tests.conformance.kernel import UMASK, ByKernel, Entry, FileSystem, refuse
from tests.conformance.player import Player


def _entry(location: Location, attributes: Attributes) -> Entry:
    times = (attributes.access_ns, attributes.modify_ns, attributes.change_ns)
    return Entry(location, attributes.mode, attributes.links, attributes.size, attributes.uid, times)


class ViewRequests(FileSystem):
    """The requests, asked of the gate. A node is a `Location`."""

    def __init__(self, view: ReferenceMonitor) -> None:
        self.view = view

    def _child(self, directory: Entry, of: bytes) -> Location:
        try:
            return self.view.child(directory.node, name(of))
        except PathFault:
            raise refuse(errno.ENAMETOOLONG) from None

    def root(self) -> Entry:
        return _entry(self.view.top, self.view.attributes(self.view.top))

    def lookup(self, directory: Entry, of: bytes) -> Entry:
        location = self._child(directory, of)
        return _entry(location, self.view.attributes(location))

    def attributes(self, entry: Entry) -> Entry:
        return _entry(entry.node, self.view.attributes(entry.node))

    def link_text(self, entry: Entry) -> bytes:
        return self.view.link_text(entry.node)

    def names(self, entry: Entry) -> Sequence[bytes]:
        listing = self.view.listing(entry.node)
        try:
            return [each for each in listing.read() if listing.entry(each) is not None]
        finally:
            listing.close()

    def open(self, entry: Entry, flags: int) -> OpenFile:
        return self.view.open(entry.node, flags)

    def create(self, directory: Entry, of: bytes, flags: int, mode: int) -> OpenFile:
        file, _ = self.view.create(self._child(directory, of), flags, mode, UMASK)
        return file

    def read(self, handle: OpenFile, offset: int, size: int) -> bytes:
        return handle.read(offset, size)

    def write(self, handle: OpenFile, offset: int, content: bytes) -> int:
        return handle.write(offset, content)

    def release(self, handle: OpenFile) -> None:
        handle.close()

    def make_directory(self, directory: Entry, of: bytes, mode: int) -> None:
        self.view.make_directory(self._child(directory, of), mode, UMASK)

    def make_node(self, directory: Entry, of: bytes, mode: int) -> None:
        self.view.make_node(self._child(directory, of), mode, UMASK)

    def make_link(self, directory: Entry, of: bytes, text: bytes) -> None:
        self.view.make_link(self._child(directory, of), text)

    def link(self, entry: Entry, directory: Entry, of: bytes) -> None:
        self.view.link(entry.node, self._child(directory, of))

    def rename(self, old_directory: Entry, old: bytes, new_directory: Entry, new: bytes, flags: int) -> None:
        self.view.rename(self._child(old_directory, old), self._child(new_directory, new), flags)

    def unlink(self, directory: Entry, of: bytes) -> None:
        self.view.unlink(self._child(directory, of))

    def remove_directory(self, directory: Entry, of: bytes) -> None:
        self.view.remove_directory(self._child(directory, of))

    def access(self, entry: Entry, wanted: int) -> None:
        self.view.access(entry.node, wanted)

    def set_size(self, entry: Entry, size: int) -> None:
        self.view.change(entry.node, Changes(size=size))

    def set_mode(self, entry: Entry, mode: int) -> None:
        self.view.change(entry.node, Changes(mode=mode))

    def set_owner(self, entry: Entry, uid: int, gid: int) -> None:
        self.view.change(entry.node, Changes(uid=uid, gid=gid))

    def set_times(self, entry: Entry, access_ns: int, modify_ns: int) -> None:
        self.view.change(entry.node, Changes(access_ns=access_ns, modify_ns=modify_ns))

    def set_attribute(self, entry: Entry, of: bytes, value: bytes) -> None:
        self.view.set_extended(entry.node, of, value)

    def attribute(self, entry: Entry, of: bytes) -> bytes:
        return self.view.extended(entry.node, of)

    def attribute_names(self, entry: Entry) -> Sequence[bytes]:
        return self.view.extended_names(entry.node)

    def remove_attribute(self, entry: Entry, of: bytes) -> None:
        self.view.remove_extended(entry.node, of)


@contextlib.contextmanager
def view_of(case: Case, ground: Ground) -> Iterator[ReferenceMonitor]:
    """The view of a case, with the umask of a daemon, which has none of its own."""
    root = Root(HostPath(os.fsencode(ground.source)))
    before = os.umask(0)
    try:
        yield ReferenceMonitor(root, policy_of(case, ground), at=HostPath(os.fsencode(ground.point)))
    finally:
        os.umask(before)
        root.close()


@contextlib.contextmanager
def player(case: Case, ground: Ground) -> Iterator[Player]:
    """A player for one case."""
    with view_of(case, ground) as view:
        plays = ByKernel(ViewRequests(view), ground)
        plays.policy = view.policy
        yield plays
