"""What a method of the gate is asked about: a path with its places, and which object is meant."""

from __future__ import annotations

from typing import NamedTuple

from policyfs.policy.paths import ViewPath
from policyfs.policy.tree import Place
from policyfs.source.files import OpenFile
from policyfs.source.tree import Identity

Target = Identity | OpenFile | None
"""Which object a caller means: one it knows by its identity, one it holds open, or whatever is there."""


class Location(NamedTuple):
    """A path with what the policy says of it. `above` is the place of its nearest ancestor that is seen; `parent` that
    of its directory. `within` is the directory that is meant, where a caller knows it: nothing is looked up, made or taken
    away in another that stands there by now (STALE)."""

    path: ViewPath
    place: Place
    parent: Place
    above: Place
    within: Identity | None = None
