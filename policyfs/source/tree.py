"""What every tree has in common: the objects in it, and their identities."""

from __future__ import annotations

from typing import NamedTuple

SOURCE = 0
"""The number of the tree that is SOURCE."""


class Identity(NamedTuple):
    """Which object it is, whatever its name: its tree, and its device and inode number there.

    An object that two trees have in common is two objects: what may be done with it, and where it stands, is a matter of
    the tree.
    """

    tree: int
    """The number of the tree, as `st_dev` is that of a file system. It stays the same from mount to mount, so that the
    inode numbers do which are made of it."""
    device: int
    ino: int
