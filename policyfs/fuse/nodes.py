"""The nodes: what the kernel knows of the view, by inode number.

Theory. A node stands for one object of a tree at one level: (tree, device, inode, level), reached by one or more names.
Hard links at one level share a node, as they share an inode; at two levels they do not, since a request that comes by
inode number alone must have one answer (rule file-1).

A node lives from the reply that leads the kernel to it until the kernel has given back every such reply (nlookup,
`kernel_cache`). A directory's children hold on to it, so that a path can be made of names as long as the kernel knows any.

The inode number is the source's own, so that git's index and hard-link detection agree on both sides of the mount. Only
where that number is taken (number 1 is the root's in FUSE; a second device; a hard link at another level) it is
replaced by a hash, which is the same from mount to mount.

A node reached again under an old number after its last name went away is another object with a used inode, unless it was
open or held all the time: it gets the next generation, so that the kernel does not take the one for the other.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator

from policyfs.fuse.kernel_cache import CachedDirectory, CachedInode
from policyfs.policy.levels import Level, Standing
from policyfs.policy.paths import ROOT, Name, ViewPath, child
from policyfs.policy.tree import Place
from policyfs.source.files import OpenFile
from policyfs.source.tree import Identity
from policyfs.view.attributes import Attributes
from policyfs.view.location import Location
from policyfs.view.monitor import ReferenceMonitor

ROOT_INO = 1
"""FUSE_ROOT_ID of linux/fuse.h."""

MAX_NAMES = 16
"""Further names kept of one object. One that is dropped costs its next user a second lookup (ESTALE), no more."""

_LINK = stat.S_IFLNK >> 12

Key = tuple[int, int, int, Level]


class Watched(CachedDirectory["Node"]):
    """A directory under watch, with what the kernel was told of the names in it."""

    __slots__ = ("descriptor", "location", "location_epoch", "moves", "node")

    def __init__(self, node: Node, descriptor: int) -> None:
        """`descriptor` is inotify's."""
        super().__init__()
        self.node = node
        self.descriptor = descriptor
        self.moves = 0
        """How often the session moved it since the last event that told of a move. Assigned by the watch."""
        self.location: Location | None = None
        """Where the directory is, as of `location_epoch` (`Nodes.location`)."""
        self.location_epoch = -1


class Node:
    """One object the kernel knows. `parent` and `name` are its latest name, kept after the name is gone, since they say
    where it stood; `others` are further names."""

    __slots__ = (
        "cached",
        "denied",
        "files",
        "generation",
        "gone",
        "held",
        "identity",
        "ino",
        "kind",
        "level",
        "listings",
        "name",
        "others",
        "parent",
        "place",
        "place_epoch",
        "unwatchable",
        "watched",
    )

    def __init__(self, ino: int, identity: Identity, level: Level, parent: Node | None, name: Name) -> None:
        self.ino = ino
        self.identity = identity
        self.level = level
        self.parent = parent
        self.name = name
        self.others: list[tuple[Node, Name]] | None = None
        self.cached = CachedInode()
        self.generation = 0
        self.gone = False
        self.files: list[OpenFile] | None = None
        self.place: Place | None = None
        self.place_epoch = -1
        self.held: OpenFile | None = None
        """The object itself, kept in reach after its last name was taken away (`fuse.removed`)."""
        self.kind = 0
        """Its file type, the upper four bits of st_mode; 0 for the root. A number so small that all nodes share it."""
        self.listings = 0
        """How many open directories there are of it."""
        self.denied = False
        """Whether it is known for a credential although its place is open: by a policy that came while it was open."""
        self.watched: Watched | None = None
        """Its watch, where it is a directory that was looked into. Assigned by the watch of SOURCE, as `unwatchable` is."""
        self.unwatchable = False

    @property
    def key(self) -> Key:
        """What it is looked up by."""
        return (*self.identity, self.level)

    def let_go(self) -> None:
        """Keep the object in reach no longer."""
        if self.held is not None:
            self.held.close()
            self.held = None

    def __repr__(self) -> str:
        return f"<Node {self.ino} {self.level} nlookup={self.cached.nlookup}>"


class Nodes:
    """The table of nodes. Every method is synchronous: between two awaits the table is always whole."""

    def __init__(self, view: ReferenceMonitor) -> None:
        self._view = view
        self._by_ino: dict[int, Node] = {}
        self._by_key: dict[Key, Node] = {}
        self._salt = hashlib.blake2b(view.root.source, digest_size=16, person=b"policyfs-ino").digest()
        tree, top = view.trees.of(ROOT)
        identity = tree.identify(tree.stat(top))
        self._device = identity.device
        self.root = Node(ROOT_INO, identity, view.policy.root.level, None, Name(b""))
        self.root.cached.remember()
        self._by_ino[ROOT_INO] = self.root
        self._by_key[self.root.key] = self.root
        self.epoch = 0
        self.astray: set[Node] = set()
        """Directories that another moved and that were not found since: their names lead elsewhere, or nowhere."""
        self.on_judged: Callable[[list[Node]], None] = lambda changed: None
        """Called with the nodes that are judged differently than the kernel was told, since a handler found a directory at
        another place, before anything else is answered."""

    def __len__(self) -> int:
        return len(self._by_ino)

    def shrink(self) -> None:
        """Make the tables as small as they can be: a dict does not shrink by itself."""
        self._by_ino = dict(self._by_ino)
        self._by_key = dict(self._by_key)

    def __iter__(self) -> Iterator[Node]:
        return iter(list(self._by_ino.values()))

    def oldest(self) -> Iterator[Node]:
        """The nodes in the order in which the kernel was told of them. Not to be awaited in."""
        return iter(self._by_ino.values())

    def get(self, ino: int) -> Node | None:
        """The node of an inode number, None for one that was forgotten."""
        return self._by_ino.get(ino)

    def of(self, identity: Identity) -> list[Node]:
        """The nodes of an object, one for each level that it is known at."""
        found = (self._by_key.get((*identity, level)) for level in Level)
        return [node for node in found if node is not None]

    # -- where a node stands --------------------------------------------------------------------------------------------

    def place(self, node: Node) -> Place:
        """The place of a node, worked out again after a directory moved or the policy changed (`epoch`)."""
        if node.place_epoch == self.epoch and node.place is not None:
            return node.place
        chain = []
        above = node
        while above.parent is not None and (above.place_epoch != self.epoch or above.place is None):
            chain.append(above)
            above = above.parent
        if above.parent is None:
            place = self._view.policy.root
        else:
            assert above.place is not None  # noqa: S101 - for the type checker
            place = above.place
        step = self._view.policy.child
        for below in reversed(chain):
            place = step(place, below.name)
            below.place = place
            below.place_epoch = self.epoch
        node.place, node.place_epoch = place, self.epoch
        return place

    def path(self, node: Node) -> ViewPath:
        """The path of a node by its latest name."""
        names = []
        above = node
        while above.parent is not None:
            names.append(above.name)
            above = above.parent
        names.reverse()
        return ViewPath(b"/" + b"/".join(names))

    def location(self, node: Node) -> Location:
        """The location of a node by its latest name. That of a directory under watch is kept until something moves."""
        unknown = []
        above = node
        while True:
            watched = above.watched
            if watched is not None and watched.location_epoch == self.epoch and watched.location is not None:
                location = watched.location
                break
            if above.parent is None:
                place = self.place(above)
                location = self._kept(above, Location(ROOT, place, place, place))
                break
            unknown.append(above)
            above = above.parent
        for below in reversed(unknown):
            parent = location.place
            nearest = location.above if parent.standing is Standing.HIDDEN else parent
            location = self._kept(below, Location(child(location.path, below.name), self.place(below), parent, nearest))
        return location

    def _kept(self, node: Node, location: Location) -> Location:
        if node.watched is not None:
            node.watched.location, node.watched.location_epoch = location, self.epoch
        return location

    def other_locations(self, node: Node) -> Iterator[Location]:
        """The locations of a node's further names."""
        if not node.gone:
            for parent, name in node.others or ():
                yield self._view.child(self.location(parent), name)

    # -- knowing --------------------------------------------------------------------------------------------------------

    def _free_number(self, identity: Identity, level: Level) -> int:
        tree, device, ino = identity
        if ino > ROOT_INO and device == self._device and ino not in self._by_ino:
            return ino
        salt = 0
        while True:
            text = b"%d %d %d %d %d" % (tree, device, ino, level, salt)
            digest = hashlib.blake2b(text, digest_size=8, key=self._salt).digest()
            # Below 2**63 for programs that take ino_t to be signed; above 2**32 to stay clear of common numbers.
            number = int.from_bytes(digest, "big") >> 1 | 1 << 40
            if number not in self._by_ino:
                return number
            salt += 1

    def found(self, parent: Node, name: Name, attributes: Attributes, place: Place) -> Node:
        """The node of an object that was found under a name. No reply has led to it yet: where none does, `forget` by 0 lets
        it go again. Raises ESTALE for what cannot be where it was found (`_not_below_itself`)."""
        identity, directory = attributes.identity, attributes.is_directory
        key = (*identity, place.level)
        node = self._by_key.get(key)
        if directory:
            # It has one name and so one level: where it is known at another, it came from there.
            node = node or next(iter(self.of(identity)), None)
            if node is not None:
                if node.parent is not parent:
                    self._not_below_itself(node, parent)
                self.astray.discard(node)
        elif node is None and attributes.links == 1:
            # The same for a file, if somebody has it open: what may be done by that, its new place says.
            known = self._by_ino.get(identity.ino)
            if known is not None and known.files and known.identity == identity:
                node = known
        if node is not None and self.became_another(node, attributes):
            node = None
        if node is None:
            node = Node(self._free_number(identity, place.level), identity, place.level, parent, name)
            node.kind = attributes.mode >> 12
            node.place, node.place_epoch = place, self.epoch
            self._by_key[key] = self._by_ino[node.ino] = node
        elif node.parent is not parent or node.name != name or node.gone:
            if node.level is not place.level or (directory and self.place(node) is not place):
                # It goes by other rules from now on, and so does what is below it.
                self.on_judged(self.judge_again(lambda: self._named(node, parent, name, only=True)))
            else:
                self._named(node, parent, name, only=directory)
                self.epoch += directory
            node.place, node.place_epoch = place, self.epoch
        return node

    @staticmethod
    def _not_below_itself(node: Node, parent: Node) -> None:
        """Where a directory would come to be below itself, names above it were moved and are not known yet: ESTALE, by
        which the kernel asks for them again. (A ring of nodes would be walked for ever.)"""
        above: Node | None = parent
        while above is not None:
            if above is node:
                raise OSError(errno.ESTALE, os.strerror(errno.ESTALE))
            above = above.parent

    def judge_again(self, change: Callable[[], None]) -> list[Node]:
        """Make a change by which nodes may get another place, and give those that are judged differently after it: what the
        kernel was told of them is no longer true, and the caller tells it."""
        before = {node: self.place(node) for node in self._by_ino.values()}
        change()
        self.epoch += 1
        changed = []
        for node, old in before.items():
            new = self.place(node)
            denied = any(self._view.is_credential(file) for file in node.files or ())
            same = new.level is old.level and new.standing is old.standing and denied is node.denied
            # What a link shows depends on more than its own place.
            if not same or node.kind == _LINK:
                changed.append(node)
                self.change_level(node, new.level)
                node.denied = denied
                node.cached.policy_changed()
            if node.watched is not None:
                node.watched.forget_names()
        return changed

    @staticmethod
    def _named(node: Node, parent: Node, name: Name, *, only: bool = False) -> None:
        """Make this the latest of a node's names, and a directory's only one."""
        if node.parent is None:
            return
        if node.gone:
            node.gone = False
            node.others = None
            if not node.files and node.held is None:
                # Nothing has kept the number from being used again.
                node.generation += 1
            node.let_go()
        else:
            others = [other for other in node.others or () if other != (parent, name)]
            others.append((node.parent, node.name))
            node.others = None if only else others[-MAX_NAMES:]
        node.parent, node.name = parent, name

    def change_level(self, node: Node, level: Level) -> None:
        """A node is at another level now. Where the object has a node there already, this one is not found again: the
        kernel lets go of it once its names are looked up again."""
        if level is node.level:
            return
        if self._by_key.get(node.key) is node:
            del self._by_key[node.key]
        node.level = level
        if not node.gone:
            self._by_key.setdefault(node.key, node)

    def forget(self, ino: int, times: int) -> Node | None:
        """The kernel forgets a node this many times; at none left it is let go, and given back."""
        node = self._by_ino.get(ino)
        if node is None or node.parent is None or not node.cached.forget(times):
            return None
        del self._by_ino[ino]
        self.astray.discard(node)
        if self._by_key.get(node.key) is node:
            del self._by_key[node.key]
        return node

    def became_another(self, node: Node, attributes: Attributes) -> bool:
        """Whether an object is of another kind than the one that the kernel was told of, whose number it was given: that one
        is ended. Told as what it was, the kernel would take it for broken and answer EIO by its name from then on."""
        another = node.kind not in (0, attributes.mode >> 12)
        if another:
            self.ended(node)
        return another

    def ended(self, node: Node) -> None:
        """An object is no more, though the kernel may still have it in use. What bears its inode number next is another."""
        node.gone = True
        if self._by_key.get(node.key) is node:
            del self._by_key[node.key]

    # -- names that come and go -----------------------------------------------------------------------------------------

    def lost(self, identity: Identity, level: Level, parent: Node, name: Name) -> Node | None:
        """A name was taken away from an object. Gives its node, if the kernel knows it."""
        node = self._by_key.get((*identity, level))
        if node is None or node.parent is None:
            return None
        if node.others and (parent, name) in node.others:
            node.others.remove((parent, name))
            node.others = node.others or None
        elif node.parent is parent and node.name == name:
            if node.others:
                node.parent, node.name = node.others.pop()
                node.others = node.others or None
                node.place_epoch = -1
                self.epoch += node.watched is not None
            else:
                node.gone = True
        return node

    def moved(
        self, identity: Identity, level: Level, old: tuple[Node, Name], new: tuple[Node, Name], *, directory: bool
    ) -> Node | None:
        """An object went from one name to another. What lies below a directory is told by `epoch` to look again."""
        node = self._by_key.get((*identity, level))
        if node is not None and node.parent is not None and not node.gone:
            if node.others and old in node.others:
                node.others.remove(old)
                node.others = node.others or None
                self._named(node, *new)
            elif (node.parent, node.name) == old:
                node.parent, node.name = new
            else:
                self._named(node, *new)
            node.place_epoch = -1
        if directory:
            self.epoch += 1
        return node
