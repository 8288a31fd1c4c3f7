"""What operations take and give back where that is more than one thing."""

from __future__ import annotations

from typing import NamedTuple

from policyfs.source.files import OpenFile
from policyfs.source.tree import Identity
from policyfs.view.attributes import Attributes
from policyfs.view.location import Location


class Renamed(NamedTuple):
    """What a rename moved, and what it replaced or, exchanging, moved the other way."""

    moved: Identity
    replaced: Identity | None
    directory: bool
    """Whether a directory went elsewhere, one way or the other."""
    held: OpenFile | None
    """What was replaced, where it was to be kept in reach; the caller's to close."""


class Removed(NamedTuple):
    """What lost its name, and, where it was to be kept in reach, a hold on it that is the caller's to close; with a
    directory, the links that were removed along with it."""

    identity: Identity
    held: OpenFile | None
    links: tuple[Location, ...] = ()


class Changes(NamedTuple):
    """Attributes to be changed: None, and -1 for an owner, leave one as it is. Times are in nanoseconds of the epoch."""

    size: int | None = None
    mode: int | None = None
    uid: int = -1
    gid: int = -1
    access_ns: int | None = None
    modify_ns: int | None = None


class Changed(NamedTuple):
    """What came of a change: when the object had last changed before, in nanoseconds, and what it is like now."""

    before_ns: int
    attributes: Attributes
