"""The way to an object that the kernel asks for by its inode number: by a name, by what is open, or not at all.

Which state the object is in is found here; what may be done to it in that state is the table of `policy.objects`.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from typing import TypeVar

from policyfs.fuse.nodes import Node, Nodes
from policyfs.policy import objects
from policyfs.policy.objects import Act, State, Way
from policyfs.policy.paths import NAME_MAX, Name
from policyfs.policy.refusals import Refusal
from policyfs.policy.tree import Place
from policyfs.source.files import OpenFile
from policyfs.source.tree import Identity
from policyfs.view.location import Location, Target
from policyfs.view.monitor import ReferenceMonitor
from policyfs.view.refused import Refused

Result = TypeVar("Result")


class Reach:
    """Reaches the objects of one mount."""

    def __init__(self, view: ReferenceMonitor, nodes: Nodes) -> None:
        self._view = view
        self._nodes = nodes

    def node(self, ino: int) -> Node:
        """The node of an inode number. Raises ESTALE for one that the kernel was never told or has forgotten."""
        node = self._nodes.get(ino)
        if node is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return node

    def child(self, parent: Node, name: bytes, within: Identity | None = None) -> Location:
        """The location of a name in a directory. Raises NAME_TOO_LONG before anything else (rule error-4)."""
        if len(name) > NAME_MAX:
            raise Refused(Refusal.NAME_TOO_LONG, self._nodes.path(parent))
        if parent.gone:
            # Its number may be another directory's by now.
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return self._view.child(self._nodes.location(parent), Name(name), within)

    def child_in(self, parent: Node, name: bytes) -> Location:
        """The same for an act that changes names: in this directory, not in another that was put in its place."""
        return self.child(parent, name, parent.identity)

    def on(self, node: Node, act: Act, do: Callable[[Location, Target], Result]) -> Result:
        """Do something to a node's object. It is reached by each name that it may have. Where the names are gone or lead
        elsewhere, or the way is closed, it is reached as the table of `policy.objects` says. Raises `Refused`, and
        PermissionError where the source's own permissions decide."""
        if not node.gone:
            try:
                return do(self._nodes.location(node), node.identity)
            except Refused as refused:
                if refused.refusal is Refusal.MISSING and (node.files or node.listings):
                    return self._as(State.REVOKED, node, act, do, refused.place)
                if refused.refusal is not Refusal.STALE:
                    raise
            except PermissionError:
                if not node.files:
                    raise
                tree, path = self._view.trees.of(self._nodes.path(node))
                at_its_name = tree.stands_at(node.files[-1].descriptor, path)
                state = State.BLOCKED if at_its_name else State.BLOCKED_MOVED
                if objects.still(state, act) is Way.AS_SOURCE_ANSWERS:
                    raise
                return self._as(state, node, act, do)
        for location in self._nodes.other_locations(node):
            try:
                return do(location, node.identity)
            except Refused as refused:
                if refused.refusal is not Refusal.STALE:
                    raise
        return self._as(self._state_without_name(node), node, act, do)

    @staticmethod
    def _state_without_name(node: Node) -> State:
        """The state of an object that none of its names leads to."""
        if node.denied:
            return State.REVOKED
        if node.held is not None or (node.files and node.files[-1].is_removed()):
            return State.REMOVED
        return State.MOVED if node.files else State.LOST

    def _as(
        self, state: State, node: Node, act: Act, do: Callable[[Location, Target], Result], place: Place | None = None
    ) -> Result:
        """Do something to an object in a state, by what is open or held. `place` is the one that was judged, if any."""
        answer = objects.still(state, act)
        if isinstance(answer, Refusal):
            # STALE is no decision on what exists: it is not a refusal to be noted.
            raise Refused(answer, self._nodes.path(node), place, absent=answer is Refusal.STALE)
        open_by = node.files[-1] if node.files else node.held
        if open_by is None:
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        return do(self._nodes.location(node), open_by)

    def open_file(self, node: Node, file: OpenFile, *, judged: int, write: bool) -> int:
        """Judge an open file again, if the policy or the tree has changed since. Takes the epoch of the last judgement and
        returns that of this one. Raises `Refused`."""
        if judged == self._nodes.epoch:
            return judged
        self.go_on(node, Act.WRITE if write else Act.READ)
        if file.writable:
            file.guard = self._view.repositories.guard(self._nodes.location(node))
        # A reading is judged by less than a writing.
        return self._nodes.epoch if write or not file.writable else judged

    def go_on(self, node: Node, act: Act) -> Place:
        """Judge whether something open may go on, by the place where it stands now, which is returned. Raises `Refused`."""
        place = self._nodes.place(node)
        refused = objects.go_on(act, place, credential=node.denied)
        if refused is not None:
            raise Refused(refused, self._nodes.path(node), place)
        return place
