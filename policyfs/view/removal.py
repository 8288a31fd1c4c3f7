"""What removing a name takes along, and what it keeps."""

from __future__ import annotations

import errno
import os
import stat

from policyfs.policy import permissions
from policyfs.policy.paths import Name, components
from policyfs.policy.refusals import Refusal
from policyfs.source.files import OpenFile
from policyfs.source.tree import Status, Tree, child
from policyfs.view.judge import Judge
from policyfs.view.location import Location
from policyfs.view.refused import Refused
from policyfs.view.trees import Entry


def remove_directory(judge: Judge, location: Location, entry: Entry, reached: int) -> tuple[Location, ...]:
    """Remove a directory, which may be removed, and with it the links that a bare mount does not show (rule link-6): a
    session that sees none of them can remove none. Gives those links. `reached` is the directory itself."""
    tree = entry.tree
    try:
        tree.remove_directory(entry.directory, entry.name)
        return ()
    except OSError as error:
        if error.errno != errno.ENOTEMPTY:
            raise
    links = _left_alone(judge, location, tree, reached)
    for link in links:
        name = _name(link)
        judge.repositories.may_take_away(link, Entry(tree, child(entry.path, name), reached, name))
    if not tree.stands_at(reached, entry.path):
        raise Refused(Refusal.STALE, location.path, absent=True)
    for link in links:
        tree.unlink(reached, _name(link))
    tree.remove_directory(entry.directory, entry.name)
    return links


def _left_alone(judge: Judge, location: Location, tree: Tree, directory: int) -> tuple[Location, ...]:
    """What is in a directory, if each is a link that is not shown though its level would let it be removed; else nothing."""
    if judge.links.all_shown:
        return ()
    links: tuple[Location, ...] = ()
    # The first alone tells that most directories hold something else.
    for most in (1, None):
        links = tuple(judge.child(location, name) for name in tree.names(directory, most))
        if not all(_is_left_alone(judge, link, tree, directory) for link in links):
            return ()
    return links


def _is_left_alone(judge: Judge, link: Location, tree: Tree, directory: int) -> bool:
    unknown_missing = judge.policy.unknown_missing
    if permissions.remove(link.parent, link.place, directory=False, unknown_missing=unknown_missing):
        return False
    try:
        reached = tree.reach_name(directory, _name(link))
    except OSError:
        return False
    try:
        is_link = stat.S_ISLNK(tree.status(reached).st_mode)
        return is_link and not judge.links.shows(link.path, tree.link_text(reached))
    finally:
        tree.release(reached)


def kept(entry: Entry, status: Status) -> OpenFile | None:
    """An entry of a directory kept in reach, if it is still the one of this status."""
    tree = entry.tree
    try:
        reached = tree.reach_name(entry.directory, entry.name)
    except OSError:
        return None
    if tree.identity(reached) != tree.identify(status):
        tree.release(reached)
        return None
    return tree.open_lazily(reached, os.O_RDONLY)


def _name(location: Location) -> Name:
    return components(location.path)[-1]
