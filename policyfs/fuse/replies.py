"""The replies that tell the kernel of an object or of a missing name, and the note of each in the kernel cache.

A reply is computed first and changes nothing (`entry_of`). It is noted when it is sent (`sent`), so that an entry which does
not fit into a listing was never told.
"""

from __future__ import annotations

import errno
import os

import pyfuse3
from pyfuse3 import EntryAttributes

from policyfs.fuse.entries import missing_for
from policyfs.fuse.kernel_cache import LONG, SHORT, Reply, reply_for, reply_for_root
from policyfs.fuse.nodes import Node, Nodes
from policyfs.fuse.source_watch import Watch
from policyfs.policy.paths import Name, child
from policyfs.policy.tree import Place
from policyfs.view.attributes import Attributes
from policyfs.view.monitor import ReferenceMonitor


class Replies:
    """Makes the replies of one mount."""

    def __init__(self, view: ReferenceMonitor, nodes: Nodes, watch: Watch) -> None:
        self._view = view
        self._nodes = nodes
        self._watch = watch

    def node_for(self, parent: Node, name: Name, place: Place, attributes: Attributes) -> Node:
        """The node of an object that was found by a name in a directory and is to be told. Raises ESTALE for a directory
        that cannot be where it was found (`Nodes.found`)."""
        if attributes.is_directory:
            self._watch.tell_apart(attributes.identity, child(self._nodes.location(parent).path, name))
        return self._nodes.found(parent, name, attributes, place)

    def entry_of(self, node: Node, attributes: Attributes, directory: Node | None) -> Reply:
        """The reply that would tell the kernel of a node; `directory` is that of its name, None where its names are gone.
        Changes nothing."""
        watched = directory is not None and directory.watched is not None
        return reply_for(
            attributes,
            node.ino,
            node.generation,
            name_watched=watched,
            # A directory's own times move with its entries, which only its own watch tells of.
            attributes_watched=node.watched is not None if attributes.is_directory else watched,
            # Whether a link is shown depends on more than its own directory.
            lasting=not attributes.is_link or self._view.links.all_shown,
        )

    def sent(self, node: Node, reply: Reply) -> EntryAttributes:
        """A reply with the attributes of a node is sent."""
        if node.cached.told(reply) and node.files:
            self._watch.drop_pages(node)
        return reply.entry

    def sent_by_name(self, parent: Node, name: Name, node: Node, reply: Reply) -> EntryAttributes:
        """A reply that leads the kernel to a node by a name is sent: it counts."""
        node.cached.remember()
        self._watch.named(parent, name, node)
        return self.sent(node, reply)

    def found(self, parent: Node, name: Name, place: Place, attributes: Attributes) -> tuple[Node, EntryAttributes]:
        """Tell the kernel of an object that was found by a name in a directory."""
        node = self.node_for(parent, name, place, attributes)
        return node, self.sent_by_name(parent, name, node, self.entry_of(node, attributes, parent))

    def missing(self, parent: Node, name: Name) -> EntryAttributes:
        """Tell the kernel that a name is missing or hidden, always alike (rule cache-2). Raises ENOENT, which the kernel
        does not keep, where there is no room to note it."""
        watched = parent.watched
        if watched is not None and not watched.told_missing(name):
            raise pyfuse3.FUSEError(errno.ENOENT)
        return missing_for(SHORT if watched is None else LONG)

    def known(self, node: Node, attributes: Attributes) -> EntryAttributes:
        """Tell the kernel the attributes of an object that it asks for by inode number. Raises ESTALE, on which the kernel
        looks the name up again, where the number is another object's by now."""
        if self._nodes.became_another(node, attributes):
            raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
        if node.parent is None:
            return self.sent(node, reply_for_root(attributes, watched=node.watched is not None))
        return self.sent(node, self.entry_of(node, attributes, None if node.gone else node.parent))
