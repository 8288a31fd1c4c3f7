"""Directories that their owner moves while something is done by a name in them.

Theory. A name in a directory is looked up, made or taken away by the directory's descriptor, since no call takes the whole
path and promises that it held (openat2(2) can only open). The owner may move the directory in between, to a place that is
hidden. So it is asked where the directory stands: before what cannot be taken back, and after what can. What was made in
a directory that is elsewhere by then is taken away again, and the answer is STALE, as if it had been moved before
(rule reach-4).

What remains: a name that is taken away or replaced within the microsecond between the question and the act (SECURITY.md).
"""

from __future__ import annotations

import os
from contextlib import suppress

from policyfs.policy.paths import ROOT, Name, ViewPath
from policyfs.policy.refusals import Refusal
from policyfs.source.root import RENAME_NOREPLACE, Root
from policyfs.view.location import Location
from policyfs.view.refused import Refused


def still_there(root: Root, location: Location, directory: int) -> None:
    """Refuse, as STALE, what is done by a location's name in its directory, if that was moved since it was reached."""
    if not root.stands_at(directory, ViewPath(location.path.rpartition(b"/")[0] or ROOT)):
        raise Refused(Refusal.STALE, location.path, absent=True)


def made_there(root: Root, location: Location, directory: int, name: Name, made: os.stat_result) -> os.stat_result:
    """The same after a name was made, which is taken away again. Gives what was made."""
    try:
        still_there(root, location, directory)
        return made
    except Refused:
        root.unmake(directory, name, root.identify(made))
        raise


Parents = tuple[tuple[Location, int], tuple[Location, int]]
"""The old name and the new one of a rename, each with its directory."""


def all_still_there(root: Root, parents: Parents) -> None:
    """`still_there` of both directories of a rename."""
    for location, directory in parents:
        still_there(root, location, directory)


def renamed_there(root: Root, parents: Parents, moved: os.stat_result, flags: int) -> None:
    """The same after a rename that replaced nothing, which is taken back."""
    try:
        all_still_there(root, parents)
    except Refused:
        (old, old_parent), (new, new_parent) = parents
        old_name, new_name = (Name(at.path.rpartition(b"/")[2]) for at in (old, new))
        with suppress(OSError):
            again = root.stat_name(new_parent, new_name)
            if root.identify(again) == root.identify(moved):
                root.rename(new_parent, new_name, old_parent, old_name, flags or RENAME_NOREPLACE)
        raise
