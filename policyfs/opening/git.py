"""What the owner's git reads and executes of the tree (rule git-6), looked for when a view is opened.

Not the whole tree is walked: repositories are looked for at SOURCE, above it, at the start directory, at what is granted
and between. What only a full walk finds, `policyfs doctor` finds.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policyfs.policy import git, git_places
from policyfs.policy.git_places import Files, Machine, Repository
from policyfs.policy.levels import Level
from policyfs.policy.paths import ROOT, HostPath, Name, ViewPath, below, components, joined
from policyfs.source.root import Root
from policyfs.source.tree import TreePath

_MAX_LOOKED_AT = 256
"""Directories in which a repository is looked for."""

SYSTEM_CONFIGURATION = HostPath(b"/etc/gitconfig")


@dataclass(frozen=True, slots=True)
class Found:
    """What was found: `floors` on places in SOURCE, git directories by another name than `.git`, and whether the owner's
    own configuration names programs by a path in the work tree."""

    floors: dict[HostPath, Level]
    directories: tuple[HostPath, ...] = ()
    programs_of_work_trees: bool = False


class HostFiles:
    """The files of this machine as `git_places.Files` wants them; those of SOURCE through its confined root. Nothing is
    asked of `avoided` places: behind them is a daemon, perhaps the very one that asks."""

    def __init__(self, root: Root, avoided: Sequence[HostPath] = ()) -> None:
        self._root = root
        self._avoided = tuple(avoided)

    def _in_source(self, place: HostPath) -> TreePath | None:
        rest = below(place, self._root.source)
        return None if rest is None else TreePath(b"/" + rest)

    def _status(self, place: HostPath) -> os.stat_result | None:
        path = self._in_source(place)
        try:
            if path is not None:
                return self._root.stat(path)
            if any(below(place, avoided) is not None for avoided in self._avoided):
                return None
            return os.lstat(place)
        except OSError:
            return None

    def kind(self, place: HostPath) -> str | None:
        """As `git_places.Files` has it."""
        status = self._status(place)
        if status is None:
            return None
        if stat.S_ISDIR(status.st_mode):
            return "directory"
        if stat.S_ISREG(status.st_mode):
            return "file"
        return "link" if stat.S_ISLNK(status.st_mode) else "other"

    def link_text(self, place: HostPath) -> bytes:
        """As `git_places.Files` has it."""
        path = self._in_source(place)
        try:
            if path is None:
                return os.readlink(place)
            reached = self._root.reach(path)
            try:
                return self._root.link_text(reached)
            finally:
                os.close(reached)
        except OSError:
            return b""

    def content(self, place: HostPath, most: int) -> bytes | None:
        """As `git_places.Files` has it."""
        if self.kind(place) != "file":
            return None
        path = self._in_source(place)
        try:
            with os.fdopen(os.open(place, _READING) if path is None else self._opened(path), "rb") as file:
                # It may be another by now.
                if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                    return None
                content = file.read(most + 1)
        except OSError:
            return None
        return content if len(content) <= most else None

    def _opened(self, path: TreePath) -> int:
        reached = self._root.reach(path)
        try:
            if not stat.S_ISREG(os.fstat(reached).st_mode):
                raise OSError
            return self._root.reopen(reached, os.O_RDONLY)
        finally:
            os.close(reached)

    def names(self, place: HostPath, most: int) -> list[Name]:
        """As `git_places.Files` has it."""
        if self.kind(place) != "directory":
            return []
        path = self._in_source(place)
        try:
            if path is None:
                with os.scandir(place) as entries:
                    return [Name(os.fsencode(entry.name)) for entry, _ in zip(entries, range(most), strict=False)]
            directory = self._root.reach_directory(path)
            try:
                return self._root.names(directory, most)
            finally:
                os.close(directory)
        except OSError:
            return []


_READING = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


def machine_of(root: Root, homes: Sequence[HostPath], avoided: Sequence[HostPath]) -> Machine:
    """This machine, with the configuration of the users whose homes these are, the first the caller's own (git-config(1),
    "FILES")."""
    files = HostFiles(root, avoided)
    home = homes[0] if homes else HostPath(b"/")
    named = [place for place, _ in _machine_files(homes)]
    return Machine(files, git_places.configuration(files, named, home), home)


def _machine_files(homes: Sequence[HostPath]) -> list[tuple[HostPath, HostPath]]:
    """Each file of configuration, with the place that holds it and what else git reads there."""
    said = [os.environb.get(variable, b"") for variable in (b"GIT_CONFIG_SYSTEM", b"GIT_CONFIG_GLOBAL")]
    files = [HostPath(place) for place in (SYSTEM_CONFIGURATION, *said) if place.startswith(b"/")]
    found = [(file, file) for file in files]
    directories = [HostPath(home + b"/.config/git") for home in homes]
    xdg = os.environb.get(b"XDG_CONFIG_HOME", b"")
    if xdg.startswith(b"/"):
        directories.append(HostPath(xdg.rstrip(b"/") + b"/git"))
    found += [(HostPath(directory + b"/config"), directory) for directory in directories]
    return found + [(HostPath(home + b"/.gitconfig"), HostPath(home + b"/.gitconfig")) for home in homes]


def look(root: Root, paths: Iterable[ViewPath], homes: Sequence[HostPath], avoided: Sequence[HostPath]) -> Found:
    """What the git of these homes' users reads and executes of the tree, as far as repositories at and above these paths of
    the view tell."""
    source = root.source
    machine = machine_of(root, homes, avoided)
    files = machine.files
    places = set(machine.configuration.places)
    for _, held in _machine_files(homes):
        real, links = git_places.resolve(files, held)
        places |= {held, real, *links}
    directories: list[HostPath] = []
    waiting: list[tuple[HostPath | None, HostPath]] = [
        (work_tree, found) for work_tree in _looked_at(source, paths) for found in _git_directories(files, work_tree)
    ]
    seen: set[HostPath] = set()
    for work_tree, directory in waiting:
        repository = git_places.repository(machine, directory, work_tree)
        places |= set(repository.places)
        if repository.common in seen:
            continue
        seen.add(repository.common)
        directories += _by_another_name(files, repository, source)
        waiting += [(None, submodule) for submodule in git_places.submodules(files, repository)]
    floors = {
        place: Level.RO
        for place in places
        if below(place, source) not in (None, b"") and not _is_kept(place, directories)
    }
    return Found(floors, tuple(directories), machine.configuration.names_work_trees)


def _looked_at(source: HostPath, paths: Iterable[ViewPath]) -> list[HostPath]:
    """The directories in which a repository is looked for: each path and every directory above it, SOURCE's own too."""
    found: dict[HostPath, None] = {}
    for place in (source, *(HostPath(joined(components(source + path))) for path in sorted({ROOT, *paths}))):
        names = components(place)
        for depth in range(len(names), -1, -1):
            found.setdefault(HostPath(joined(names[:depth])))
        if len(found) > _MAX_LOOKED_AT:
            break
    return [*found][:_MAX_LOOKED_AT]


def _git_directories(files: Files, work_tree: HostPath) -> list[HostPath]:
    found = [] if (named := git_places.git_directory(files, work_tree)) is None else [named]
    if git.is_git_directory(name for name in git.SIGNATURE if files.kind(HostPath(work_tree + b"/" + name)) is not None):
        found.append(work_tree)
    return found


def _by_another_name(files: Files, repository: Repository, source: HostPath) -> list[HostPath]:
    """Of a repository's directories those in SOURCE that their text does not tell."""
    return [
        place
        for place in dict.fromkeys((repository.directory, repository.common))
        if below(place, source) is not None
        and not git.part_below(git.OUTSIDE, components(place)).inside
        and files.kind(HostPath(place + b"/HEAD")) is not None
    ]


def _is_kept(place: HostPath, directories: Sequence[HostPath]) -> bool:
    """Whether a place is kept as it is without a floor."""
    if git.part_below(git.OUTSIDE, components(place)).kept:
        return True
    return any(
        git.part_below(git.REPOSITORY, components(b"/" + rest)).kept
        for directory in directories
        if (rest := below(place, directory))
    )
