"""The walk over the real tree. It goes through the confined root of the view (`Root`), so that a tree that changes
meanwhile can lead it nowhere else, and decides nothing but what the policy says of a path.

What is in the tree may have been left by a session that would rather not be found out. So nothing is read without a
bound, and what cannot be looked at is a finding of its own and keeps nothing else from being looked at."""

from __future__ import annotations

import errno
import os
import stat
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from policyfs.doctor import executed, git_index
from policyfs.doctor.findings import Finding, Kind, several
from policyfs.policy import git, git_contents, git_places
from policyfs.policy.denylist import in_view
from policyfs.policy.git import UNPROTECTED
from policyfs.policy.git_places import Machine
from policyfs.policy.levels import Level, Standing
from policyfs.policy.paths import (
    ROOT,
    HostPath,
    Name,
    PathFault,
    ViewPath,
    below,
    child,
    components,
    for_shell,
    host_path,
    joined,
    view_path,
)
from policyfs.policy.policy import CompiledPolicy
from policyfs.policy.tree import Place
from policyfs.source.root import Root
from policyfs.source.tree import TreePath
from policyfs.view.monitor import ReferenceMonitor

_LONGEST_PATH = 2 * 4096
"""Bytes of a directory's path, twice what a system call takes. A deeper one, which can only be made step by step, is
a finding and not looked into: each directory is reached from the root, so the time grows with the square of the depth."""
_GIT = Name(b".git")
_OBJECTS = b"/.git/objects/"
"""git never changes a file in there, so that all of them are one finding."""
_MAX_PACKAGE_BYTES = 1 << 20
"""Bytes of a package.json that are read; one that is longer counts as having scripts."""
_MAX_GIT_FILE_BYTES = 1 << 20
"""Bytes of a `.git` file; git takes none that is longer (setup.c, `read_gitfile_gently`)."""

Notice = Callable[[int, ViewPath], None]
"""Told of each directory: how many entries were looked at, and which one is next."""


@dataclass(slots=True)
class _Names:
    """A regular file with several names: those found."""

    count: int
    names: list[tuple[ViewPath, Place]] = field(default_factory=list)


class Examination:
    """One look at a tree under a policy."""

    def __init__(
        self, root: Root, policy: CompiledPolicy, machine: Machine, notice: Notice = lambda looked, path: None
    ) -> None:
        """`machine` is how git is looked at: what holds in every repository, and a look at files."""
        self._root = root
        self._policy = policy
        self._machine = machine
        self._view = ReferenceMonitor(root, policy)
        self._notice = notice
        self._looked = 0
        self._findings: list[Finding] = []
        self._several: dict[tuple[int, int], _Names] = {}
        self._open_repositories: list[ViewPath] = []
        self.protected_repositories: set[ViewPath] = set()
        """The git directories whose data a session may change, and nothing that git executes; filled by `findings`."""
        self._git_places: dict[ViewPath, str] = {}

    def findings(self) -> list[Finding]:
        """Everything found, by kind and then by path, once where two `.git` name one repository."""
        if self._root.folds_case():
            self._fold(ROOT, self._policy.root.level)
        self._home()
        self._note(self._machine.configuration.places)
        for above in self._above_source():
            self._found_from(above)
        self._links_above_rules()
        waiting: list[tuple[ViewPath, Place, bool]] = [(ROOT, self._policy.root, False)]
        while waiting:
            path, place, installed = waiting.pop()
            self._notice(self._looked, path)
            waiting += self._directory(path, place, installed)
        self._many_names()
        self._of_git()
        order = list(Kind)
        return sorted(dict.fromkeys(self._findings), key=lambda finding: (order.index(finding.kind), finding.path))

    def _find(
        self, kind: Kind, path: ViewPath, level: Level, text: str, advice: str, more: list[bytes] | None = None
    ) -> None:
        self._findings.append(Finding(kind, path, level, text, advice, tuple(more or ())))

    # -- walking --------------------------------------------------------------------------------------------------------

    def _directory(self, path: ViewPath, place: Place, installed: bool) -> list[tuple[ViewPath, Place, bool]]:
        """Look at one directory's entries; gives the directories among them, the first to look at last. Hidden ones are
        walked too: a file's other name may be there."""
        if len(path) > _LONGEST_PATH:
            if place.standing is not Standing.HIDDEN:
                self._find(
                    Kind.NOT_EXAMINED, path, place.level, f"lies deeper than is looked at: its path has {len(path)} bytes",
                    "move what is in it up, or remove it",
                )  # fmt: skip
            return []
        try:
            directory = self._root.reach_directory(TreePath(path))
        except OSError as error:
            self._closed(path, place, error)
            return []
        try:
            if path != ROOT and self._root.directory_folds(directory):
                self._fold(path, place.level)
            names = sorted(self._root.names(directory))
            if git.is_git_directory(names) and _GIT not in path.split(b"/"):
                self._open_repository(path, place, executed.GIT_REASON)
                self._note(git_places.repository(self._machine, self._on_host(path), None).places)
            return [
                found
                for name in reversed(names)
                if (found := self._entry(directory, path, place, name, installed)) is not None
            ]
        except OSError as error:
            self._closed(path, place, error)
            return []
        finally:
            os.close(directory)

    def _entry(
        self, directory: int, above: ViewPath, above_place: Place, name: Name, installed: bool
    ) -> tuple[ViewPath, Place, bool] | None:
        path, place = child(above, name), self._policy.child(above_place, name)
        self._looked += 1
        try:
            status = self._root.stat_name(directory, name)
        except OSError as error:
            if error.errno == errno.EXDEV:
                self._mount(path, place)
            else:
                self._closed(path, place, error)
            return None
        if name == _GIT:
            # Where the repository is hidden its configuration may yet name what is not.
            self._found_from(self._on_host(above))
            if place.standing is not Standing.HIDDEN:
                self._repository(directory, path, place, status)
        text = name.decode("utf-8", "surrogateescape")
        if stat.S_ISDIR(status.st_mode):
            if not installed and text in executed.DIRECTORIES:
                self._executed(path, place, executed.DIRECTORIES[text])
            return path, place, installed or text in executed.INSTALLED
        if stat.S_ISREG(status.st_mode):
            self._file(directory, path, place, name, status, installed)
        elif stat.S_ISLNK(status.st_mode) and not installed:
            self._link(path, place, executed.LINKED.get(text))
        return None

    def _link(self, path: ViewPath, place: Place, reason: str | None) -> None:
        """A link under a name that tools execute: they follow it."""
        if reason is not None:
            self._executed(path, place, reason)

    def _link_text(self, directory: int, path: ViewPath, place: Place, name: Name) -> bytes | None:
        """What a link says."""
        try:
            return self._root.link_text(directory, name)
        except OSError as error:
            self._closed(path, place, error)
            return None

    def _file(
        self, directory: int, path: ViewPath, place: Place, name: Name, status: os.stat_result, installed: bool
    ) -> None:
        if status.st_nlink > 1:
            key = (status.st_dev, status.st_ino)
            self._several.setdefault(key, _Names(status.st_nlink)).names.append((path, place))
        if place.level is Level.NONE:
            return
        if status.st_mode & (stat.S_ISUID | stat.S_ISGID) and status.st_mode & 0o111:
            self._find(
                Kind.SET_ID, path, place.level,
                f"is mode {stat.S_IMODE(status.st_mode):04o}, owned by user {status.st_uid} and group {status.st_gid}",
                f"if it need not be: chmod a-s on it; to hide it: -g {for_shell(path)}=none",
            )  # fmt: skip
        text = name.decode("utf-8", "surrogateescape")
        if installed or place.level < Level.STAGE:
            return
        if text in executed.FILES:
            self._executed(path, place, executed.FILES[text])
        elif text == executed.PACKAGE:
            try:
                content = self._content(directory, name, _MAX_PACKAGE_BYTES)
            except FileNotFoundError:
                return
            except OSError:
                content = None
            if content is None or executed.has_scripts(content):
                self._executed(path, place, executed.PACKAGE_REASON)

    def _content(self, directory: int, name: Name, most: int) -> bytes | None:
        """What is in a regular file, None for anything else and for one that is longer than `most`. Raises OSError."""
        reached = self._root.reach_name(directory, name)
        try:
            status = os.fstat(reached)
            if not stat.S_ISREG(status.st_mode) or status.st_size > most:
                return None
            with os.fdopen(self._root.reopen(reached, os.O_RDONLY), "rb") as file:
                # It may have grown since it was asked for its size.
                content = file.read(most + 1)
                return content if len(content) <= most else None
        finally:
            os.close(reached)

    def _closed(self, path: ViewPath, place: Place, error: OSError) -> None:
        if place.standing is Standing.HIDDEN or error.errno == errno.ENOENT:
            return
        self._find(
            Kind.NOT_EXAMINED, path, place.level, (error.strerror or "it cannot be read").lower(),
            f"run the doctor as a user who can read it, or hide it: -g {for_shell(path)}=none",
        )  # fmt: skip

    # -- what is found ----------------------------------------------------------------------------------------------------

    def _mount(self, path: ViewPath, place: Place) -> None:
        if place.standing is not Standing.HIDDEN:
            self._find(
                Kind.MOUNT, path, place.level, "is another mount",
                "if a session needs it, mount a view of it on its own, at a place of its own",
            )  # fmt: skip

    def _fold(self, path: ViewPath, level: Level) -> None:
        self._find(
            Kind.FOLDING, path, level, "does not tell the case of names apart",
            "mount with --allow-case-folding, so that rules compare names without regard to case, or move the tree",
        )  # fmt: skip

    def _executed(self, path: ViewPath, place: Place, reason: str) -> None:
        if place.level >= Level.STAGE:
            self._find(
                Kind.EXECUTED, path, place.level, reason,
                f"keep it from being changed: --floor {for_shell(path)}=ro; or look at it before you run the tool",
            )  # fmt: skip

    def _home(self) -> None:
        """Places of the home that are executed, there or not: a session could make them."""
        found: dict[ViewPath, str] = {}
        for home in self._policy.surroundings.homes:
            for text, reason in executed.HOME.items():
                path = in_view(host_path(text.encode(), home), self._policy.surroundings.source)
                if path is not None:
                    found.setdefault(path, reason)
        for path, reason in found.items():
            self._executed(path, self._policy.place(path), reason)

    def _links_above_rules(self) -> None:
        """Links on the way to what rules name, where they lead to a place that the view has."""
        surroundings = self._policy.surroundings
        found: dict[ViewPath, dict[bytes, ViewPath]] = {}
        for place, further in surroundings.ways.items():
            paths = [path for each in (place, *further) if (path := in_view(each, surroundings.source)) is not None]
            for path in paths[:-1]:
                link = self._link_above(path)
                if link is not None:
                    found.setdefault(link, {})[path] = paths[-1]
        for link, rules in found.items():
            self._find(
                Kind.LINK, link, self._policy.place(link).level,
                f"is a link on the way to what rules name: {several(sorted(rules))}; they hold where it leads, too: "
                f"{several(sorted(set(rules.values())))}",
                "put a directory in its place, or name in the rules where it leads; if it is not you who made it, look at "
                "what is there before you work with it",
                sorted(rules),
            )  # fmt: skip

    def _link_above(self, path: ViewPath) -> ViewPath | None:
        """The first link on the way to a path, the path itself not counted."""
        names = components(path)
        for length in range(1, len(names)):
            above = ViewPath(joined(names[:length]))
            try:
                if stat.S_ISLNK(self._root.stat(TreePath(above)).st_mode):
                    return above
            except OSError:
                return None
        return None

    def _many_names(self) -> None:
        objects: Counter[ViewPath] = Counter()
        for several_names in self._several.values():
            names = several_names.names
            shown = [(path, place) for path, place in names if place.level is not Level.NONE]
            hidden = [path for path, place in names if place.level is Level.NONE]
            elsewhere = several_names.count - len(names)
            if not shown or (len({place.level for _, place in shown}) == 1 and not hidden and elsewhere <= 0):
                continue
            path, place = max(shown, key=lambda one: one[1].level)
            repository, is_object, _ = path.partition(_OBJECTS)
            if is_object and not hidden and len({place.level for _, place in shown}) == 1:
                objects[ViewPath(repository)] += 1
                continue
            others = [other for other, _ in names if other != path]
            said = []
            if hidden:
                said.append(f"is hidden as {several(list(hidden))}")
            said += [
                f"is at {level} as {several([other for other, its in shown if its.level is level])}"
                for level in sorted({other.level for _, other in shown} - {place.level})
            ]
            if elsewhere > 0:
                said.append(f"has {elsewhere} more name{'s' if elsewhere > 1 else ''} outside this tree")
            effect = "changes under each of them when one is changed" if place.level >= Level.STAGE else "can be read"
            self._find(
                Kind.NAMES, path, place.level, f"{', '.join(said)}; {effect}",
                f"make it a file of its own (cp -p, then mv the copy over it), or hide it: -g {for_shell(path)}=none",
                list(others),
            )  # fmt: skip
        for repository, count in objects.items():
            path = ViewPath(repository + _OBJECTS.rstrip(b"/"))
            self._find(
                Kind.NAMES, path, self._policy.place(path).level,
                f"holds {count:,} files with more names outside this tree, as a local `git clone` makes them",
                "make them files of its own: git repack -ad, in the repository; or hide it: "
                f"-g {for_shell(ViewPath(repository + b'/.git'))}=none",
            )  # fmt: skip

    # -- git --------------------------------------------------------------------------------------------------------------

    def _repository(self, directory: int, path: ViewPath, place: Place, status: os.stat_result) -> None:
        """A `.git`: the repository itself, or a file (of a submodule, of a linked work tree) or a link that names it."""
        if stat.S_ISDIR(status.st_mode):
            repository: ViewPath | None = path
        elif stat.S_ISREG(status.st_mode) or stat.S_ISLNK(status.st_mode):
            # Whatever it names now: a session that may change it can name a repository of its own making.
            self._open_repository(path, place, executed.GIT_FILE_REASON)
            repository = self._named_repository(directory, path, place, status)
        else:
            return
        if repository is None:
            return
        self._open_repository(repository, self._policy.place(repository), executed.GIT_REASON)
        if self._policy.place(repository).level is Level.NONE:
            return
        hidden = self._tracked_hidden(repository, ViewPath(path.rpartition(b"/")[0] or b"/"), place)
        if hidden:
            self._find(
                Kind.TRACKED, repository, self._policy.place(repository).level,
                f"tracks {len(hidden)} hidden path{'s' if len(hidden) > 1 else ''}: {several(list(hidden))}",
                f"hide the repository: -g {for_shell(repository)}=none; or take them out of it with `git rm --cached` and "
                "out of its history; a session that runs `git commit -a` commits that they are deleted",
                list(hidden),
            )  # fmt: skip

    def _open_repository(self, path: ViewPath, place: Place, reason: str) -> None:
        """A git directory, or what leads git to one, that a session may write to."""
        if place.level < Level.STAGE:
            return
        if place.git is not UNPROTECTED:
            self.protected_repositories.add(path)
        else:
            self._open_repositories.append(path)
            self._find(
                Kind.EXECUTED, path, place.level, reason,
                "protect git: `[git] protect = true` in the session file, or --protect-git; floors inside it are not enough",
            )  # fmt: skip

    def _found_from(self, work_tree: HostPath) -> None:
        """What git reads and executes in a directory that has a `.git`."""
        directory = git_places.git_directory(self._machine.files, work_tree)
        if directory is not None:
            self._note(git_places.repository(self._machine, directory, work_tree).places)

    def _note(self, places: Mapping[HostPath, str]) -> None:
        """Keep those of git's places that are in the tree."""
        for place, why in places.items():
            rest = below(place, self._policy.surroundings.source)
            if rest:
                self._git_places.setdefault(ViewPath(b"/" + rest), why)

    def _of_git(self) -> None:
        """The places of git that a session may change, but for those in a repository which is a finding as a whole."""
        for path, why in self._git_places.items():
            location = self._view.locate(path)
            if self._view.repositories.keeps(location):
                continue
            if not any(below(path, repository) is not None for repository in self._open_repositories):
                self._executed(path, location.place, why)

    def _on_host(self, path: ViewPath) -> HostPath:
        return HostPath(self._policy.surroundings.source.rstrip(b"/") + path)

    def _above_source(self) -> Iterator[HostPath]:
        """The directories above SOURCE: a repository may be there whose work tree it is in."""
        names = components(self._policy.surroundings.source)
        for depth in range(len(names)):
            yield HostPath(joined(names[:depth]))

    def _named_repository(self, directory: int, path: ViewPath, place: Place, status: os.stat_result) -> ViewPath | None:
        """The repository that a `.git` file or link names, if it is in the tree: gitrepository-layout(5)."""
        if stat.S_ISLNK(status.st_mode):
            target = self._link_text(directory, path, place, _GIT)
        else:
            try:
                target = git_index.named_by(self._content(directory, _GIT, _MAX_GIT_FILE_BYTES) or b"")
            except OSError as error:
                self._closed(path, place, error)
                return None
        if target is None:
            return None
        try:
            if not target.startswith(b"/"):
                return view_path(target, ViewPath(path.rpartition(b"/")[0] or b"/"))
            rest = below(host_path(target), HostPath(self._policy.surroundings.source))
        except PathFault:
            return None
        return None if rest is None else ViewPath(b"/" + rest)

    def _tracked_hidden(self, repository: ViewPath, work_tree: ViewPath, place: Place) -> list[bytes]:
        """What a repository tracks and the view hides; where its index, or the one that it shares, cannot be read, that is
        found as well."""
        hidden: set[bytes] = set()
        index = child(repository, Name(b"index"))
        try:
            for entries in self._tracked(repository):
                hidden.update(entry.path for entry in entries if self._is_hidden(work_tree, entry))
                if git_contents.leads_away([entry.path for entry in entries if entry.path]):
                    self._find(
                        Kind.EXECUTED, index, place.level,
                        "holds a path that leads out of the work tree or into .git: `git checkout .` writes there",
                        "git did not write it: remove it, and let `git reset` make another",
                    )  # fmt: skip
        except OSError as error:
            self._closed(index, place, error)
        except git_index.NotAnIndex as error:
            self._find(
                Kind.NOT_EXAMINED, index, place.level, f"is not an index that can be read: {error}",
                "see `git status` there, and hide the repository until it works",
            )  # fmt: skip
        return sorted(hidden)

    def _tracked(self, repository: ViewPath) -> Iterator[tuple[git_index.Entry, ...]]:
        """What a repository's index tracks, then what the one tracks that it builds on. Raises OSError, `NotAnIndex`."""
        try:
            directory = self._root.reach_directory(TreePath(repository))
        except FileNotFoundError:
            return
        try:
            try:
                index = self._index(directory, Name(b"index"))
            except FileNotFoundError:
                return
            yield index.entries
            if index.shared is not None:
                try:
                    yield self._index(directory, Name(b"sharedindex." + index.shared.encode())).entries
                except FileNotFoundError:
                    raise git_index.NotAnIndex(f"it builds on sharedindex.{index.shared}, which is missing") from None
        finally:
            os.close(directory)

    def _index(self, directory: int, name: Name) -> git_index.Index:
        content = self._content(directory, name, git_index.MAX_BYTES)
        if content is None:
            raise git_index.NotAnIndex(f"{name.decode()} is not a regular file of at most {git_index.MAX_BYTES >> 20} MiB")
        return git_index.parse(content)

    def _is_hidden(self, work_tree: ViewPath, entry: git_index.Entry) -> bool:
        """Whether a view hides what is tracked: by its path, or, in a bare mount, as a link that leads out of it."""
        try:
            path = view_path(entry.path, work_tree)
        except PathFault:
            return False
        if self._policy.place(path).standing is Standing.HIDDEN:
            return True
        if not entry.is_link:
            return False
        try:
            reached = self._root.reach(TreePath(path))
        except OSError:
            return False
        try:
            if not stat.S_ISLNK(os.fstat(reached).st_mode):
                return False
            return not self._view.links.shows(path, self._root.link_text(reached))
        except OSError:
            return False
        finally:
            os.close(reached)
