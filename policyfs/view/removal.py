"""What removing a name takes along, and what it keeps."""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING

from policyfs.policy import permissions
from policyfs.policy.paths import Name, components
from policyfs.policy.refusals import Refusal
from policyfs.source.files import OpenFile
from policyfs.source.root import Root
from policyfs.view.refused import Refused

if TYPE_CHECKING:
    from policyfs.view.location import Location
    from policyfs.view.view import View


def remove_directory(view: View, location: Location, parent: int, reached: int) -> tuple[Location, ...]:
    """Remove a directory from its `parent`, which may be removed, and with it the links that a bare mount does not show
    (rule link-6): a session that sees none of them can remove none. Gives those links. `reached` is the directory itself."""
    name = _name(location)
    try:
        view.root.remove_directory(parent, name)
        return ()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
    links = _left_alone(view, location, reached)
    for link in links:
        view.repositories.may_take_away(link, reached, _name(link))
    if not view.root.stands_at(reached, location.path):
        raise Refused(Refusal.STALE, location.path, absent=True)
    for link in links:
        view.root.unlink(reached, _name(link))
    view.root.remove_directory(parent, name)
    return links


def _left_alone(view: View, location: Location, directory: int) -> tuple[Location, ...]:
    """What is in a directory, if each is a link that is not shown though its level would let it be removed; else nothing."""
    if view.links.all_shown:
        return ()
    links: tuple[Location, ...] = ()
    # The first alone tells that most directories hold something else.
    for most in (1, None):
        links = tuple(view.child(location, name) for name in view.root.names(directory, most))
        if not all(_is_left_alone(view, link, directory) for link in links):
            return ()
    return links


def _is_left_alone(view: View, link: Location, directory: int) -> bool:
    if permissions.remove(link.parent, link.place, directory=False, unknown_missing=view.policy.unknown_missing):
        return False
    try:
        reached = view.root.reach_name(directory, _name(link))
    except OSError:
        return False
    try:
        is_link = stat.S_ISLNK(os.fstat(reached).st_mode)
        return is_link and not view.links.shows(link.path, view.root.link_text(reached))
    finally:
        os.close(reached)


def kept(root: Root, directory: int, name: Name, status: os.stat_result) -> OpenFile | None:
    """An entry of a directory kept in reach, if it is still the one of this status."""
    try:
        reached = root.reach_name(directory, name)
    except OSError:
        return None
    if root.identity(reached) != root.identify(status):
        os.close(reached)
        return None
    return OpenFile(reached, unopened=os.O_RDONLY)


def _name(location: Location) -> Name:
    return components(location.path)[-1]
