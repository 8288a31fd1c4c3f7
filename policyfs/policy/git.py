"""What `[git] protect` keeps a session from: making the owner's git execute anything new.

Theory. git trusts whatever stands in a git directory: its configuration and hooks, but also state that leads to a program
or to a write elsewhere. So each path has a `Part`, the place it has in a git directory, which follows from the part of its
directory and its name alone. A part says three things:

* whether it is *kept*: git executes it or reads it as configuration, so it is at most at `ro` (`hooks`, `config`);
* whether what is written there is *judged*: git needs to write it, and only some contents are harmless (`index`, the list of
  a rebase, a `.git` file). `git_contents` judges the bytes, and `view.repositories` asks it;
* from which parts something may be moved there. A file that was written under another name has not been judged, and a
  directory that moves takes everything below it to other parts.

Names are compared without regard to case, as those of the denylist are.

A directory is a git directory to git by what is in it, whatever its name. That no text can tell: `view.repositories` looks
for the names in `SIGNATURE`, and applies the same parts to what it finds.

gitrepository-layout(5) describes the layout; what git does with each file was read in its source and tried with 2.39.
"""

from __future__ import annotations

import enum
from collections.abc import Iterable

from policyfs.policy.paths import Name, folded
from policyfs.policy.refusals import Refusal

SOURCE = "[git] protect"
"""Who sets the floors that come of what the owner's git configuration names in the tree."""


class Judged(enum.Enum):
    """The kinds of content that is judged before git may find it."""

    GIT_FILE = "a .git file may only name a linked worktree of a repository in this view"
    COMMON = "a linked worktree belongs to the repository that holds it"
    BACKLINK = "a linked worktree lies in this view"
    INDEX = "an index may only hold paths inside the work tree, and git replaces it whole"
    CONFLICTS = "the list of conflicts may only hold paths inside the work tree"
    COMMANDS = "the list of a rebase may not hold exec"
    STRATEGY = "a merge strategy is one of git's own"
    OPTIONS = "a merge strategy is one of git's own, as an option too"

    @property
    def small(self) -> bool:
        """Whether it may be written where it stands. An index is only ever moved into place."""
        return self is not Judged.INDEX


class How(enum.Enum):
    """How a name is made."""

    FILE = "file"
    DIRECTORY = "directory"
    SYMBOLIC_LINK = "symbolic link"
    HARD_LINK = "hard link"
    SPECIAL = "fifo or socket"
    MOVED = "moved"


class Part:
    """The place of a path in a git directory. Compared by identity; there are as many as this module names."""

    __slots__ = ("_sources", "_steps", "inside", "judged", "kept", "name", "otherwise")

    name: str
    kept: bool
    judged: Judged | None
    inside: bool
    otherwise: Part

    def __init__(self, name: str, *, kept: bool = False, judged: Judged | None = None, inside: bool = True) -> None:
        self.name = name
        self.kept = kept
        self.judged = judged
        self.inside = inside
        self.otherwise = self
        self._steps: dict[bytes, Part] = {}
        self._sources: frozenset[Part] = frozenset()

    def __repr__(self) -> str:
        return f"<Part {self.name}>"

    def _leads(self, steps: dict[str, Part], otherwise: Part | None = None) -> None:
        self._steps = {name.encode(): part for name, part in steps.items()}
        self.otherwise = otherwise or self

    def _takes(self, *sources: Part) -> None:
        self._sources = frozenset(sources)

    def child(self, name: bytes) -> Part:
        """The part of a name in a directory that is this part. Constant time."""
        steps = self._steps
        if not steps:
            return self.otherwise
        key = name.lower() if name.isascii() else folded(name).encode("utf-8", "surrogateescape")
        found = steps.get(key)
        if found is None and key.startswith(_SHARED_INDEX):
            found = steps.get(_SHARED_INDEX)
        return found or self.otherwise

    def may_become(self, other: Part) -> bool:
        """Whether what is at this part may be moved to the other."""
        return self is other or self in other._sources


_SHARED_INDEX = b"sharedindex."
"""The beginning of the name of what a split index builds on (git-update-index(1), "Split index")."""

UNPROTECTED = Part("unprotected", inside=False)
"""Every path of a view without this protection."""
OUTSIDE = Part("outside", inside=False)
"""What lies in no git directory."""
REPOSITORY = Part("git directory", judged=Judged.GIT_FILE)
"""`.git` itself. Where it is a file, what it names is judged."""
KEPT = Part("kept", kept=True)
"""What git executes or reads as configuration, with everything below it."""
LOOSE = Part("loose")
"""Any other name directly in a git directory, or in the state of a rebase: it may be moved to a name that is judged."""
DATA = Part("data")
"""What lies deeper: objects, references, logs. git takes it for data."""
MODULES = Part("modules")
MODULE = Part("module")
"""`modules` and what belongs to one submodule. The name of a submodule may hold slashes, so that a directory below may be a
git directory or only lead to one."""
WORKTREES = Part("worktrees")
WORKTREE = Part("worktree")
"""`worktrees` and what belongs to one linked worktree."""
OBJECTS = Part("objects")
OBJECTS_INFO = Part("objects info")
REBASE = Part("rebase")
SEQUENCER = Part("sequencer")
COMMON = Part("commondir", judged=Judged.COMMON)
BACKLINK = Part("gitdir", judged=Judged.BACKLINK)
INDEX = Part("index", judged=Judged.INDEX)
CONFLICTS = Part("MERGE_RR", judged=Judged.CONFLICTS)
COMMANDS = Part("git-rebase-todo", judged=Judged.COMMANDS)
STRATEGY = Part("strategy", judged=Judged.STRATEGY)
OPTIONS = Part("opts", judged=Judged.OPTIONS)

_CONFIGURATION = dict.fromkeys(
    (
        "config",
        "config.worktree",
        "hooks",
        # Remotes of old, with their URLs (gitrepository-layout(5)).
        "remotes",
        "branches",
        # `git instaweb` starts a server by what it finds here.
        "gitweb",
    ),
    KEPT,
)
_STATE = {
    ".git": REPOSITORY,
    "modules": MODULES,
    "objects": OBJECTS,
    "index": INDEX,
    "sharedindex.": INDEX,
    # git rerere copies what the paths in it name into the repository.
    "merge_rr": CONFLICTS,
    "rebase-merge": REBASE,
    "sequencer": SEQUENCER,
}
_OF_A_MODULE = dict.fromkeys(("refs", "logs", "info", "lfs", "rr-cache", "rebase-apply"), DATA)
"""In the git directory of a submodule these lead to no further one. Where a submodule is named so all the same (`a/logs`),
it is found by what is in it."""

OUTSIDE._leads({".git": REPOSITORY})
REPOSITORY._leads({**_CONFIGURATION, **_STATE, "commondir": KEPT, "worktrees": WORKTREES}, LOOSE)
MODULES._leads({".git": REPOSITORY}, MODULE)
MODULE._leads({**_CONFIGURATION, **_STATE, "commondir": KEPT, "worktrees": WORKTREES, **_OF_A_MODULE})
WORKTREES._leads({".git": REPOSITORY}, WORKTREE)
WORKTREE._leads({**_CONFIGURATION, **_STATE, "commondir": COMMON, "gitdir": BACKLINK}, LOOSE)
LOOSE._leads({".git": REPOSITORY}, DATA)
DATA._leads({".git": REPOSITORY})
OBJECTS._leads({".git": REPOSITORY, "info": OBJECTS_INFO}, DATA)
OBJECTS_INFO._leads({".git": REPOSITORY, "alternates": KEPT, "http-alternates": KEPT}, DATA)
REBASE._leads({".git": REPOSITORY, "git-rebase-todo": COMMANDS, "strategy": STRATEGY}, LOOSE)
SEQUENCER._leads({".git": REPOSITORY, "todo": COMMANDS, "opts": OPTIONS}, LOOSE)
for _part in (COMMON, BACKLINK, INDEX, CONFLICTS, COMMANDS, STRATEGY, OPTIONS):
    _part._leads({".git": REPOSITORY}, DATA)

_REPLACED = (INDEX, CONFLICTS, COMMANDS, STRATEGY, OPTIONS)
for _part in _REPLACED:
    _part._takes(LOOSE, MODULE)
# What has been judged may be put aside: editors do, before they write it again.
LOOSE._takes(*_REPLACED)
MODULE._takes(*_REPLACED)

SIGNATURE = (Name(b"HEAD"), Name(b"commondir"), Name(b"objects"), Name(b"refs"))
"""The names by which git takes a directory for a git directory (setup.c, `is_git_directory`)."""

REVEALING = frozenset({*_CONFIGURATION, *_STATE, "commondir", "worktrees"} - {".git"})
"""Names in a git directory at which another part begins, without regard to case."""


def is_git_directory(there: Iterable[bytes]) -> bool:
    """Whether git may take a directory for a git directory that has these of the names in `SIGNATURE`. What they are it
    looks at too, so it takes fewer."""
    names = set(there)
    return b"HEAD" in names and (b"commondir" in names or {b"objects", b"refs"} <= names)


def part_below(part: Part, names: Iterable[bytes]) -> Part:
    """The part of a path below a directory that is `part`."""
    for name in names:
        part = part.child(name)
    return part


def make(parent: Part, part: Part, how: How) -> Refusal | None:
    """Whether a name at `part` may be made in a directory at `parent`, once its level allows it."""
    refused = False
    if how is How.SYMBOLIC_LINK:
        # The owner's git writes through it (COMMIT_EDITMSG, logs), to a place that the session may not change.
        refused = part.inside
    elif how is How.HARD_LINK:
        refused = part.inside and part is not DATA
    elif part is REPOSITORY:
        refused = how is not How.FILE
    elif parent is WORKTREES:
        refused = how not in (How.DIRECTORY, How.MOVED)
    elif part.judged is not None:
        refused = how is not How.MOVED and (how is not How.FILE or not part.judged.small)
    return Refusal.GIT_PROTECTED if refused else None


def write(part: Part) -> Refusal | None:
    """Whether a file at `part` may be written where it stands. What is written is judged besides."""
    return Refusal.GIT_PROTECTED if part.judged is not None and not part.judged.small else None
