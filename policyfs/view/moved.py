"""Directories that their owner moves while something is done by a name in them.

Theory. A name in a directory is looked up, made or taken away by the directory's descriptor, since no call takes the whole
path and promises that it held (openat2(2) can only open). The owner may move the directory in between, to a place that is
hidden. So it is asked where the directory stands: before what cannot be taken back, and after what can. What was made in
a directory that is elsewhere by then is taken away again, and the answer is STALE, as if it had been moved before
(rule reach-4).

What remains: a name that is taken away or replaced within the microsecond between the question and the act (SECURITY.md).
"""

from __future__ import annotations

from contextlib import suppress

from policyfs.policy.refusals import Refusal
from policyfs.source.tree import RENAME_NOREPLACE, Status
from policyfs.view.location import Location
from policyfs.view.refused import Refused
from policyfs.view.trees import Entry


def still_there(location: Location, entry: Entry) -> None:
    """Refuse, as STALE, what is done by a location's name in its directory, if that was moved since it was reached."""
    if not entry.is_in_place():
        raise Refused(Refusal.STALE, location.path, absent=True)


def made_there(location: Location, entry: Entry, made: Status) -> Status:
    """The same after a name was made, which is taken away again. Gives what was made."""
    try:
        still_there(location, entry)
        return made
    except Refused:
        entry.tree.unmake(entry.directory, entry.name, entry.tree.identify(made))
        raise


Ends = tuple[tuple[Location, Entry], tuple[Location, Entry]]
"""The old name and the new one of a rename, each with its entry."""


def both_still_there(ends: Ends) -> None:
    """`still_there` of both directories of a rename."""
    for location, entry in ends:
        still_there(location, entry)


def renamed_there(ends: Ends, moved: Status, flags: int) -> None:
    """The same after a rename that replaced nothing, which is taken back."""
    try:
        both_still_there(ends)
    except Refused:
        (_, old), (_, new) = ends
        tree = new.tree
        with suppress(OSError):
            again = tree.stat_name(new.directory, new.name)
            if tree.identify(again) == tree.identify(moved):
                tree.rename(new.directory, new.name, old.directory, old.name, flags or RENAME_NOREPLACE)
        raise
