"""What operations on names give back: which objects they met, for whoever keeps track of objects."""

from __future__ import annotations

from typing import NamedTuple

from policyfs.view.attributes import Identity
from policyfs.view.files import OpenFile


class Renamed(NamedTuple):
    """What a rename moved, and what it replaced or, exchanging, moved the other way."""

    moved: Identity
    replaced: Identity | None
    directory: bool
    """Whether a directory went elsewhere, one way or the other."""
    held: OpenFile | None
    """What was replaced, where it was to be kept in reach; the caller's to close."""


class Removed(NamedTuple):
    """What lost its name, and, where it was to be kept in reach, a hold on it that is the caller's to close."""

    identity: Identity
    held: OpenFile | None
