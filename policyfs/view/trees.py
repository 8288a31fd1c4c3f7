"""The trees of one view, and which of them holds a path.

Theory. A view shows one tree at `/` and may show others below it, each at a mount point. The tree with the longest mount
point that leads to a path holds the path. What the tree below has at a mount point, or what lies beneath it there, is
covered: no path of the view leads to it.

The table does not change while the view is there. So a mount point stays where it is: what stands at it or above it is not
removed, renamed or replaced, and nothing but a directory is made above it. No call takes a name or an object from one tree
to another: a program has to copy (rules tree-1 to tree-3).

What the rules say of a path they say by its text in the view, whatever tree holds it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import NamedTuple

from policyfs.policy.paths import ROOT, HostPath, Name, ViewPath, below
from policyfs.source.tree import TOP, Tree, TreePath

NO_TREES: Mapping[ViewPath, Tree] = {}


class Entry(NamedTuple):
    """A name in a directory that was reached: the tree, the path of the name in it, the directory, and the name."""

    tree: Tree
    path: TreePath
    directory: int
    name: Name

    def is_in_place(self) -> bool:
        """Whether the directory stands where it was reached."""
        return self.tree.stands_at(self.directory, TreePath(self.path.rpartition(b"/")[0]) or TOP)


class _Mounted(NamedTuple):
    point: ViewPath
    prefix: bytes
    tree: Tree


class Trees:
    """The table. `first` is at `/`; the keys of `mounted` are mount points below."""

    def __init__(self, first: Tree, mounted: Mapping[ViewPath, Tree] = NO_TREES) -> None:
        """Raises `ValueError` where two trees have one number, or one is to be at `/` too."""
        if ROOT in mounted or len({first.number, *(tree.number for tree in mounted.values())}) != len(mounted) + 1:
            raise ValueError("each tree of a view has a mount point and a number of its own")
        self._first = first
        self._mounted = tuple(
            _Mounted(point, point + b"/", mounted[point]) for point in sorted(mounted, key=len, reverse=True)
        )

    def __iter__(self) -> Iterator[tuple[ViewPath, Tree]]:
        """Each tree with where it is, the first one first."""
        yield ROOT, self._first
        yield from ((point, tree) for point, _, tree in self._mounted)

    def of(self, path: ViewPath) -> tuple[Tree, TreePath]:
        """The tree that holds a path, and the path in it."""
        for point, prefix, tree in self._mounted:
            if path.startswith(prefix):
                return tree, TreePath(path[len(point) :])
            if path == point:
                return tree, TOP
        return self._first, TreePath(path)

    def of_name(self, path: ViewPath) -> tuple[Tree, TreePath]:
        """The tree in which the name of a path is an entry, and the path of that name in it: for a mount point, those of
        what it covers."""
        for point, prefix, tree in self._mounted:
            if path.startswith(prefix):
                return tree, TreePath(path[len(point) :])
        return self._first, TreePath(path)

    def is_point(self, path: ViewPath) -> bool:
        """Whether a tree is mounted at a path."""
        return any(path == point for point, _, _ in self._mounted)

    def hold(self, path: ViewPath) -> bool:
        """Whether a tree is mounted at a path or below it."""
        return any(below(point, path) is not None for point, _, _ in self._mounted)

    def names_in(self, path: ViewPath) -> list[Name]:
        """The names in a directory at which trees are mounted."""
        inside = path if path.endswith(b"/") else path + b"/"
        rests = (point[len(inside) :] for point, _, _ in self._mounted if point.startswith(inside))
        return [Name(rest) for rest in rests if b"/" not in rest]

    def in_view(self, tree: Tree, path: TreePath) -> ViewPath:
        """Where a path of a tree is in the view. Something may cover it there."""
        for point, _, mounted in self._mounted:
            if mounted is tree:
                return point if path == TOP else ViewPath(point + path)
        return ViewPath(path)

    def places(self) -> tuple[tuple[HostPath, ViewPath], ...]:
        """Where programs outside of the view find the trees that are mounted, each with its mount point."""
        return tuple((tree.source, point) for point, _, tree in self._mounted if tree.source is not None)

    def close(self) -> None:
        """Let go of all trees."""
        for _, tree in self:
            tree.close()


def inside(point: ViewPath, rest: bytes) -> ViewPath:
    """What lies at `rest` below a path, the path itself where `rest` is empty."""
    if not rest:
        return point
    return ViewPath(b"/" + rest if point == ROOT else point + b"/" + rest)
