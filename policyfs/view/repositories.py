"""What `[git] protect` needs of the tree itself, where the text of a path is not enough.

Three things are asked here, each before the act:

* *What git takes for a git directory by what is in it.* In one by any name the same parts are kept as in `.git`, and none
  comes to be: the last name of its signature is not made. (A bare repository that was there can be pushed to.)
* *What is written at a name that is judged.* The content as it would be is looked at for each write, whichever way it
  comes, by where the file stands at that moment. So a file that was opened under another name is judged too.
* *What is moved to such a name.* It is judged whole, and has no second name under which it could be changed.

Two sessions that work together through two views of one tree could each make one of two names at once. That is not
excluded, and neither is a view of the same tree that does not protect git.
"""

from __future__ import annotations

import functools
import os
import re
import stat
from collections.abc import Callable

from policyfs.policy import git, git_config, git_contents
from policyfs.policy.git import How, Judged, Part
from policyfs.policy.paths import (
    ROOT,
    HostPath,
    Name,
    PathFault,
    ViewPath,
    below,
    child,
    components,
    host_path,
    joined,
    view_path,
)
from policyfs.policy.policy import CompiledPolicy
from policyfs.policy.refusals import Refusal
from policyfs.source.files import LARGEST_READ, Guard
from policyfs.source.tree import Status, Tree
from policyfs.view.location import Location
from policyfs.view.refused import Refused
from policyfs.view.trees import Entry, Trees, inside

_REVEALING = re.compile(
    rb"/(?:" + b"|".join(re.escape(name.encode()) for name in sorted(git.REVEALING)) + rb")[^/]*(?:/|\Z)", re.IGNORECASE
)
"""A path with a name in it at which a part begins; some more paths too."""

_SIGNATURE: dict[bytes, Name] = {name.lower(): name for name in git.SIGNATURE}

_BY_CONTENT = frozenset({git.OUTSIDE, git.DATA, git.LOOSE, git.MODULE})
"""Parts at which a git directory can stand that the text of its path does not tell."""


class Repositories:
    """The git directories of one view. `bases` are the paths of the machine under which paths of the view are found, each
    with its path in the view: for `/` SOURCE's own, the one that its owner has for it, the mountpoint."""

    def __init__(
        self, trees: Trees, policy: Callable[[], CompiledPolicy], bases: tuple[tuple[HostPath, ViewPath], ...]
    ) -> None:
        self._trees = trees
        self._policy = policy
        self._bases = bases

    def keeps(self, location: Location) -> bool:
        """Whether a path is kept as it is: by its text, or by what is in a directory above it."""
        part = self._found(location)
        return location.place.git.kept or (part is not None and part.kept)

    # -- before a change ------------------------------------------------------------------------------------------------

    def may_change(self, location: Location) -> None:
        """Refuse to change what is kept or judged in a git directory that only its content tells."""
        part = self._found(location)
        if part is not None:
            raise Refused(Refusal.READ_ONLY if part.kept else Refusal.GIT_PROTECTED, location.path, location.place)

    def may_write(self, location: Location, size: int = 0) -> None:
        """Refuse to open to write what is only ever replaced, and to cut what is judged to anything but nothing."""
        part = location.place.git
        refused = git.write(part) or (Refusal.GIT_PROTECTED if size and part.judged is not None else None)
        if refused is not None:
            raise Refused(refused, location.path, location.place)
        self.may_change(location)

    def may_make(self, location: Location, how: How) -> None:
        """Refuse a name that is not made so in a git directory."""
        part = location.place.git
        if part is git.UNPROTECTED:
            return
        refused = git.make(location.parent.git, part, how)
        if refused is None and how is How.SYMBOLIC_LINK and self._is_within(location.path):
            refused = Refusal.GIT_PROTECTED
        if refused is not None:
            raise Refused(refused, location.path, location.place)
        self.may_change(location)

    def may_complete(self, location: Location, entry: Entry) -> None:
        """Refuse to make a name in a directory that would be a git directory with it."""
        made = self._signed(entry.name)
        if made is None or location.parent.git not in _BY_CONTENT:
            return
        there = _signature(entry.tree, entry.directory)
        if git.is_git_directory({*there, made}) and not git.is_git_directory(there):
            raise Refused(Refusal.GIT_PROTECTED, location.path, location.place)

    def may_take_away(self, location: Location, entry: Entry) -> None:
        """Refuse to make what is a git directory by its content none, and so to open what is kept in it."""
        self.may_change(location)
        taken = self._signed(entry.name)
        if taken is None or location.parent.git not in (git.OUTSIDE, git.DATA, git.LOOSE):
            return
        there = _signature(entry.tree, entry.directory)
        if git.is_git_directory(there) and not git.is_git_directory(there - {taken}):
            raise Refused(Refusal.GIT_PROTECTED, location.path, location.place)

    def may_move(self, old: Location, new: Location, entry: Entry, status: Status) -> None:
        """Refuse to move an entry of a directory to a place where git would find it unjudged."""
        if new.place.git is git.UNPROTECTED:
            return
        self.may_take_away(old, entry)
        is_directory, is_link = stat.S_ISDIR(status.st_mode), stat.S_ISLNK(status.st_mode)
        refused = False
        if is_link or is_directory:
            # Links come along with a directory.
            refused = new.place.git.inside and is_link
            refused = refused or (new.place.git is git.OUTSIDE and self._is_within(new.path))
        if is_directory and old.place.git in _BY_CONTENT:
            # A relative path in its configuration would begin elsewhere.
            refused = refused or _is_repository_in(entry)
        if new.place.git.judged is not None:
            refused = refused or not self._may_stand(new, entry)
        if refused:
            raise Refused(Refusal.GIT_PROTECTED, new.path, new.place)

    # -- what is written --------------------------------------------------------------------------------------------------

    def guard(self, location: Location) -> Guard | None:
        """What is to be asked before each write to a file that is opened at this location; None where nothing is."""
        part = location.place.git
        if not part.inside or part is git.DATA:
            return None
        return functools.partial(self._judge, location)

    def _judge(self, opened: Location, descriptor: int, offset: int, data: bytes | None) -> None:
        """Refuse a write of `data` at `offset`, or the cutting to a length of `offset`, by what the file would hold where it
        stands now."""
        tree, _ = self._trees.of(opened.path)
        if tree.status(descriptor).st_nlink == 0:
            return
        stands_at = tree.path_of(descriptor)
        if stands_at is None:
            # Moved out of the tree, or too deep to be named: where it stands, git may find it.
            raise Refused(Refusal.GIT_PROTECTED, opened.path, opened.place)
        path = self._trees.in_view(tree, stands_at)
        place = self._policy().place(path)
        judged = place.git.judged
        if judged is None or (data is None and offset == 0 and judged.small):
            return
        fine = data is not None and judged.small and offset + len(data) <= git_contents.MAX_BYTES
        if fine and data is not None:
            content = _content(tree, descriptor, git_contents.MAX_BYTES)
            fine = content is not None and self._is_fine(
                path, judged, content[:offset].ljust(offset, b"\0") + data + content[offset + len(data) :]
            )
        if not fine:
            raise Refused(Refusal.GIT_PROTECTED, path, place)

    def _may_stand(self, new: Location, entry: Entry) -> bool:
        """Whether an entry of a directory may be found by git at a location that is judged."""
        judged = new.place.git.judged
        tree = entry.tree
        reached = tree.reach_name(entry.directory, entry.name)
        try:
            status = tree.status(reached)
            if judged is None or not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                return False
            content = _content(tree, reached, git_contents.MAX_BYTES if judged.small else git_contents.MAX_INDEX_BYTES)
            return content is not None and self._is_fine(new.path, judged, content)
        finally:
            tree.release(reached)

    def _is_fine(self, path: ViewPath, judged: Judged, content: bytes) -> bool:
        """Whether git may find this content at a path."""
        if not content and judged.small:
            return True
        above = _above(path)
        if judged is Judged.GIT_FILE:
            target = self._named(git_contents.named_path(content, b"gitdir: "), above)
            return (
                target is not None
                and self._policy().place(target).git is git.WORKTREE
                and not self._uses_programs_of_work_trees(_above(_above(target)))
            )
        if judged is Judged.BACKLINK:
            target = self._named(git_contents.named_path(content, b""), above)
            return target is not None and target.endswith(b"/.git")
        if judged is not Judged.INDEX:
            return git_contents.fault(judged, content) is None
        linked = self._policy().place(above).git is git.WORKTREE
        configuration = self._configuration(_above(_above(above)) if linked else above)
        sha256 = configuration is not None and git_config.is_sha256(configuration)
        return git_contents.fault(judged, content, sha256=sha256) is None

    def _named(self, text: bytes | None, directory: ViewPath) -> ViewPath | None:
        """A path that a file in a directory names, as one of the view; None where it is none."""
        if text is None:
            return None
        try:
            if not text.startswith(b"/"):
                return view_path(text, directory)
            place = host_path(text)
        except PathFault:
            return None
        for base, point in self._bases:
            rest = below(place, base)
            if rest is not None:
                return inside(point, rest)
        return None

    def _uses_programs_of_work_trees(self, directory: ViewPath) -> bool:
        """Whether git, in a repository, executes what lies at some path in the work tree: then no work tree is to be a
        session's. True where that cannot be known."""
        configuration = self._configuration(directory)
        if configuration is None or any(git_config.included(configuration)):
            return True
        if self._policy().surroundings.git_programs_of_work_trees:
            return True
        for named in git_config.named(configuration):
            if git_config.is_in_work_tree(named.path) and (named.certain or self._is_there(_above(directory), named.path)):
                return True
        return False

    def _is_there(self, work_tree: ViewPath, path: bytes) -> bool:
        try:
            tree, place = self._trees.of(view_path(path, work_tree))
            tree.stat(place)
        except (OSError, PathFault):
            return False
        return True

    def _configuration(self, directory: ViewPath) -> list[git_config.Entry] | None:
        """The configuration of a repository, None where it cannot be read."""
        tree, path = self._trees.of(child(directory, Name(b"config")))
        try:
            reached = tree.reach(path)
        except OSError:
            return None
        try:
            content = _content(tree, reached, git_config.MAX_BYTES)
            return None if content is None else git_config.parse(content)
        except (OSError, git_config.NotAConfiguration):
            return None
        finally:
            tree.release(reached)

    # -- what is there ----------------------------------------------------------------------------------------------------

    def _found(self, location: Location) -> Part | None:
        """The part that a path has in a git directory which only its content tells, where it is one that matters."""
        if location.place.git not in (git.OUTSIDE, git.DATA) or _REVEALING.search(location.path) is None:
            return None
        names = components(location.path)
        for depth in range(len(names)):
            part = git.part_below(git.REPOSITORY, names[depth:])
            if (part.kept or part.judged is not None) and self._is_repository(ViewPath(joined(names[:depth]))):
                return part
        return None

    def _is_within(self, path: ViewPath) -> bool:
        """Whether a path lies in a git directory, known by its text or its content."""
        names = components(path)
        return any(self._is_repository(ViewPath(joined(names[:depth]))) for depth in range(len(names)))

    def _is_repository(self, path: ViewPath) -> bool:
        tree, place = self._trees.of(path)
        try:
            directory = tree.reach_directory(place)
        except OSError:
            return False
        try:
            return _is_repository_at(tree, directory)
        finally:
            tree.release(directory)

    def _signed(self, name: Name) -> Name | None:
        """The name of the signature that a name is to the source."""
        found = _SIGNATURE.get(name.lower())
        return found if found is None or found == name or self._policy().fold_case else None


def _content(tree: Tree, reached: int, most: int) -> bytes | None:
    """What is in a regular file, None for anything else and for one with more bytes than `most`."""
    if not stat.S_ISREG(tree.status(reached).st_mode):
        return None
    content = bytearray()
    file = tree.open(reached, os.O_RDONLY)
    try:
        while len(content) <= most and (piece := file.read(len(content), LARGEST_READ)):
            content += piece
    finally:
        file.close()
    return bytes(content) if len(content) <= most else None


def _is_repository_in(entry: Entry) -> bool:
    reached = entry.tree.reach_name(entry.directory, entry.name)
    try:
        return _is_repository_at(entry.tree, reached)
    finally:
        entry.tree.release(reached)


def _is_repository_at(tree: Tree, directory: int) -> bool:
    # Hardly any directory has the first of the names.
    return _has(tree, directory, git.SIGNATURE[0]) and git.is_git_directory(_signature(tree, directory))


def _signature(tree: Tree, directory: int) -> set[Name]:
    """Which names of a git directory's signature a directory has."""
    return {name for name in git.SIGNATURE if _has(tree, directory, name)}


def _has(tree: Tree, directory: int, name: Name) -> bool:
    try:
        tree.stat_name(directory, name)
    except FileNotFoundError:
        return False
    except OSError:
        # Something stands there that no view enters.
        return True
    return True


def _above(path: ViewPath) -> ViewPath:
    return ViewPath(path.rpartition(b"/")[0]) or ROOT
