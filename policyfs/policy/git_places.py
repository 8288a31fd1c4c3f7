"""What a repository makes git read or execute, wherever it lies: followed as git follows it, and nothing executed.

`Files` is how the tree is looked at, so that the same questions are put to a tree through its confined root and to a tree
in a test.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from policyfs.policy import git_config, git_contents
from policyfs.policy.git_config import Entry, Named
from policyfs.policy.paths import HostPath, Name, PathFault, below, components, host_path, joined

_MAX_LINKS = 40
"""MAXSYMLINKS of the kernel, path_resolution(7)."""
_MAX_INCLUDES = 10
"""How deep configuration files include each other (config.c, MAX_INCLUDE_DEPTH)."""
_MAX_NAMES = 256
"""Entries of a directory of hooks, of linked worktrees or of submodules that are looked at."""

HOOKS = tuple(
    Name(name.encode())
    for name in (
        "applypatch-msg", "pre-applypatch", "post-applypatch", "pre-commit", "pre-merge-commit", "prepare-commit-msg",
        "commit-msg", "post-commit", "pre-rebase", "post-checkout", "post-merge", "pre-push", "pre-receive", "update",
        "proc-receive", "post-receive", "post-update", "reference-transaction", "push-to-checkout", "pre-auto-gc",
        "post-rewrite", "sendemail-validate", "fsmonitor-watchman", "post-index-change",
    )
)  # fmt: skip
"""githooks(5)."""

_READ = {
    "config": "git reads it as configuration",
    "config.worktree": "git reads it as configuration",
    "hooks": "git runs what is in it",
    "remotes": "git takes remotes from it",
    "branches": "git takes remotes from it",
    "commondir": "git takes configuration and hooks from where it leads",
}


class Files(Protocol):
    """A look at a machine's files. Places are walked through no link: `resolve` does that. What cannot be looked at is not
    there."""

    def kind(self, place: HostPath) -> str | None:
        """`file`, `directory`, `link` or `other`; None where nothing is."""

    def link_text(self, place: HostPath) -> bytes:
        """What a link says; b"" where there is none."""

    def content(self, place: HostPath, most: int) -> bytes | None:
        """What is in a regular file of at most so many bytes."""

    def names(self, place: HostPath, most: int) -> list[Name]:
        """The names in a directory, no more than so many."""


@dataclass(slots=True)
class Configuration:
    """Files of configuration: their lines, and every place that was read for them or is named by them, with why."""

    entries: list[Entry] = field(default_factory=list)
    places: dict[HostPath, str] = field(default_factory=dict)

    @property
    def names_work_trees(self) -> bool:
        """Whether a program is named by a path in the work tree, whichever that is."""
        return any(
            named.certain and git_config.is_in_work_tree(named.path) for named in git_config.named(self.entries)
        )


@dataclass(frozen=True, slots=True)
class Machine:
    """What is asked for a repository's places: a look at files, the configuration that holds in every repository, and the
    home that `~` stands for."""

    files: Files
    configuration: Configuration
    home: HostPath


@dataclass(slots=True)
class Repository:
    """A repository: its own directory and the one that it shares with its linked worktrees, their work trees, its
    configuration, and every place that git reads or executes because of it, with why."""

    directory: HostPath
    common: HostPath
    work_trees: list[HostPath]
    configuration: Configuration

    @property
    def places(self) -> dict[HostPath, str]:
        """The places, those that hold a work tree left out."""
        return {
            place: why
            for place, why in self.configuration.places.items()
            if not any(below(work_tree, place) is not None for work_tree in self.work_trees)
        }


def resolve(files: Files, place: HostPath) -> tuple[HostPath, list[HostPath]]:
    """Where a place really is, and the links on the way to it. What is missing is taken by its text."""
    current: list[Name] = []
    links: list[HostPath] = []
    pending: deque[bytes] = deque(place.split(b"/"))
    while pending:
        name = pending.popleft()
        if name in (b"", b"."):
            continue
        if name == b"..":
            del current[-1:]
            continue
        here = HostPath(joined([*current, Name(name)]))
        if files.kind(here) != "link" or len(links) == _MAX_LINKS:
            current.append(Name(name))
            continue
        links.append(here)
        text = files.link_text(here)
        if text.startswith(b"/"):
            current.clear()
        pending.extendleft(reversed(text.split(b"/")))
    return HostPath(joined(current)), links


def configuration(files: Files, named: Sequence[HostPath], home: HostPath) -> Configuration:
    """The configuration of a machine and its user: what holds in every repository."""
    found = Configuration()
    for file in named:
        _read(files, found, file, home, "git reads it as configuration", 0)
    for each in git_config.named(found.entries):
        if not git_config.is_in_work_tree(each.path):
            _named(files, found, each, [], home)
    return found


def repository(machine: Machine, directory: HostPath, work_tree: HostPath | None) -> Repository:
    """What git reads and executes in the repository of this directory, found from this work tree."""
    files, home = machine.files, machine.home
    real, links = resolve(files, directory)
    found = Configuration(list(machine.configuration.entries))
    for link in links:
        found.places[link] = "it leads git to a repository"
    common = _common(files, real)
    for of in dict.fromkeys((real, common)):
        for name, why in _READ.items():
            _add(files, found, _at(of, name.encode()), why)
    _hooks(files, found, _at(common, b"hooks"), "it is a hook")
    for file in (_at(common, b"config"), _at(real, b"config.worktree")):
        _read(files, found, file, home, _READ["config"], 0)
    work_trees = [] if work_tree is None else [work_tree]
    configured = git_config.work_tree(found.entries)
    if configured is not None:
        work_trees.append(_expanded(configured, real, home))
    for each_linked in files.names(_at(common, b"worktrees"), _MAX_NAMES):
        linked = _at(common, b"worktrees", each_linked)
        content = files.content(_at(linked, b"gitdir"), git_contents.LARGEST_LINK) or b""
        path = git_contents.named_path(content, b"")
        if path is not None:
            work_trees.append(_above(_expanded(path, linked, home)))
    work_trees = list(dict.fromkeys(work_trees))
    for each in git_config.named(found.entries):
        _named(files, found, each, work_trees, home)
    return Repository(real, common, work_trees, found)


def submodules(files: Files, of: Repository) -> Iterator[HostPath]:
    """The git directories of a repository's submodules, of those whose name has no slash."""
    modules = _at(of.common, b"modules")
    for name in files.names(modules, _MAX_NAMES):
        if files.kind(_at(modules, name, b"HEAD")) is not None:
            yield _at(modules, name)


def git_directory(files: Files, work_tree: HostPath) -> HostPath | None:
    """Where the `.git` of a directory leads, if it has one."""
    dot_git = _at(work_tree, b".git")
    real, _ = resolve(files, dot_git)
    kind = files.kind(real)
    if kind == "directory":
        return dot_git
    if kind != "file":
        return None
    path = git_contents.named_path((files.content(real, git_contents.LARGEST_LINK) or b"").rstrip(b"\r\n"), b"gitdir: ")
    return None if path is None else _expanded(path, work_tree, None)


def _common(files: Files, directory: HostPath) -> HostPath:
    content = files.content(_at(directory, b"commondir"), git_contents.LARGEST_LINK)
    text = (content or b"").rstrip(b"\r\n").partition(b"\0")[0]
    return directory if not text else resolve(files, _expanded(text, directory, None))[0]


def _read(files: Files, found: Configuration, file: HostPath, home: HostPath, why: str, depth: int) -> None:
    """Read a file of configuration and those that it includes, whatever the condition."""
    _add(files, found, file, why)
    content = files.content(resolve(files, file)[0], git_config.MAX_BYTES)
    try:
        entries = git_config.parse(content or b"")
    except git_config.NotAConfiguration:
        return
    found.entries += entries
    if depth < _MAX_INCLUDES:
        for path in git_config.included(entries):
            _read(files, found, _expanded(path, _above(file), home), home, "git's configuration includes it", depth + 1)


def _named(files: Files, found: Configuration, named: Named, work_trees: list[HostPath], home: HostPath) -> None:
    """What one line names, in each work tree."""
    if git_config.is_in_work_tree(named.path):
        places = [_expanded(named.path, work_tree, home) for work_tree in work_trees]
    else:
        places = [_expanded(named.path, HostPath(b"/"), home)]
    why = f"git runs it ({named.key})"
    for place in places:
        if named.key == "core.hookspath":
            _hooks(files, found, place, why)
            if any(below(work_tree, place) is not None for work_tree in work_trees):
                for hook in HOOKS:
                    _add(files, found, _at(place, hook), why)
            if place.endswith(b"/_"):
                # husky keeps its own scripts there, and they run what lies beside.
                _add(files, found, _above(place), why)
        if named.certain or files.kind(resolve(files, place)[0]) in ("file", "directory"):
            _add(files, found, place, why)


def _hooks(files: Files, found: Configuration, directory: HostPath, why: str) -> None:
    """The links in a directory of hooks."""
    real, _ = resolve(files, directory)
    for name in files.names(real, _MAX_NAMES):
        if files.kind(_at(real, name)) == "link":
            _add(files, found, _at(real, name), why)


def _add(files: Files, found: Configuration, place: HostPath, why: str) -> None:
    """A place, with every link on the way."""
    real, links = resolve(files, place)
    for each in (*links, real):
        found.places.setdefault(each, why)


def _at(directory: HostPath, *names: bytes) -> HostPath:
    return HostPath(b"/".join((directory.rstrip(b"/"), *names)))


def _above(place: HostPath) -> HostPath:
    return HostPath(place.rpartition(b"/")[0]) or HostPath(b"/")


def _expanded(path: bytes, directory: HostPath, home: HostPath | None) -> HostPath:
    """A path as a configuration has it, from a directory. What is not a path is taken for the directory."""
    try:
        if path.startswith(b"~/") and home is not None:
            return host_path(path, home)
        if path.startswith(b"/"):
            # `..` behind a link is not what its text says, so it stays for `resolve`.
            return HostPath(path)
        components(path)
    except PathFault:
        return directory
    return _at(directory, path)
