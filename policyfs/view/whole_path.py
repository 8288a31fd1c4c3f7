"""Whole paths, as the kernel would walk them for a tool on a mount: links followed, and what they lead to is judged.

A view takes locations whose names are the names walked; a link on the way ends the walk there. The kernel follows links
for a mount, name by name. A caller with a whole path and no kernel follows them here.
"""

from __future__ import annotations

import errno
import os

from policyfs.policy.levels import Standing
from policyfs.policy.paths import ROOT, ViewPath
from policyfs.policy.refusals import Refusal
from policyfs.view.links import Landing
from policyfs.view.location import Location
from policyfs.view.monitor import ReferenceMonitor
from policyfs.view.refused import Refused


def follow(view: ReferenceMonitor, path: ViewPath) -> Location:
    """Where a path leads, a link at its end followed too. Nothing need be there. Raises `Refused`; OSError with ELOOP
    for a link that leads back to itself."""
    location = name_at(view, path)
    if location.place.standing is Standing.HIDDEN:
        return location
    return _landed(view, view.links.resolve(location.path, follow_last=True), location.path)


def name_at(view: ReferenceMonitor, path: ViewPath) -> Location:
    """The location of a path's last name in the directory that the rest leads to. Raises as `follow` does."""
    if path == ROOT:
        return view.top
    above, _, name = path.rpartition(b"/")
    directory = ViewPath(above or b"/")
    reached = _landed(view, view.links.resolve(directory, follow_last=True), path)
    return view.locate(ViewPath((b"" if reached.path == ROOT else reached.path) + b"/" + name))


def in_directory(view: ReferenceMonitor, location: Location) -> Location:
    """The same location, if the directory that it names something in is there. The kernel looks that up first: what is
    missing there, or is not a directory, is answered before the name itself is judged."""
    if location.path != ROOT:
        above = location.path.rpartition(b"/")[0]
        try:
            directory = view.attributes(view.locate(ViewPath(above or b"/"))).is_directory
        except Refused as refused:
            raise Refused(refused.refusal, location.path, refused.place, absent=refused.absent) from None
        if not directory:
            raise Refused(Refusal.NOT_DIRECTORY, location.path)
    return location


def _landed(view: ReferenceMonitor, landing: ViewPath | Landing, path: ViewPath) -> Location:
    if landing is Landing.LOOP:
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP))
    if landing is Landing.MISSING or landing is Landing.NOT_DIRECTORY:
        # What a link's text goes on after, as with a last `/`.
        raise Refused(Refusal[landing.name], path, absent=True)
    if isinstance(landing, Landing):
        # A link out of the view is shown where the session lists the place, but a view reads its source and no more.
        raise Refused(Refusal.DENIED, path)
    return view.locate(landing)
