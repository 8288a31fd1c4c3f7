"""Removed objects, kept in reach for the programs that have them.

Theory. What a session removes may be in use without a handle here: a directory that is open or that a process works in, a
fifo, what was opened by O_PATH. And the kernel opens in two steps where other file systems do it in one: it finds an object
by its name, then opens it by its number, so that a reader who races two renames over a name would meet ESTALE. So the object
is kept until the kernel forgets it, which it does within microseconds of its last user. (FUSE drops an inode as soon as
nobody has it: `generic_delete_inode`.)
"""

from __future__ import annotations

from policyfs.fuse.nodes import Node
from policyfs.source.files import OpenFile


class RemovedObjects:
    """Objects that were removed and that the kernel has not forgotten yet, at most `most`: each takes a descriptor of the
    daemon. A request for one that was removed before these is answered ESTALE."""

    def __init__(self, most: int) -> None:
        self._most = most
        self._held: dict[Node, None] = {}

    def hold(self, node: Node, held: OpenFile) -> None:
        """Keep the object of a node in reach, by a descriptor that is the node's from now on."""
        self.let_go(node)
        node.held = held
        self._held[node] = None
        if len(self._held) > self._most:
            self.let_go(next(iter(self._held)))

    def let_go(self, node: Node) -> None:
        """Keep a node's object in reach no longer, if it was."""
        self._held.pop(node, None)
        node.let_go()

    def let_go_of_all(self) -> bool:
        """Let go of everything: the mount has ended, or the source has no room for what is new. Gives whether there was
        anything."""
        held = list(self._held)
        for node in held:
            self.let_go(node)
        return bool(held)
