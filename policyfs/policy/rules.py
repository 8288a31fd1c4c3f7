"""The rules a person writes, as values, and the decision they lead to."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from policyfs.policy.git import SOURCE, Part
from policyfs.policy.levels import Level, Standing
from policyfs.policy.paths import ROOT, HostPath, ViewPath, display, from_text


@dataclass(frozen=True, slots=True)
class Grant:
    """A path and everything below it, at a level; the most specific grant wins."""

    path: ViewPath
    level: Level

    def __str__(self) -> str:
        return f"grant {display(self.path)} = {self.level}"


@dataclass(frozen=True, slots=True)
class Floor:
    """A maximum level for a path and everything below it, that no grant lifts. `source` names its author."""

    path: ViewPath
    level: Level
    source: str = "session"

    def __str__(self) -> str:
        return f"floor {display(self.path)} = {self.level} ({display(from_text(self.source))})"


@dataclass(frozen=True, slots=True)
class Boundary:
    """What a session may see at all: nothing outside `path`."""

    path: ViewPath

    def __str__(self) -> str:
        return f"boundary {display(self.path)}"


@dataclass(frozen=True, slots=True)
class Denial:
    """A denylist rule: what it names, and everything below, is at none whatever is granted.

    `text` is the rule as its author wrote it (`~/.ssh`, `.env.*`, `*.pem`); `source` names the author.
    """

    text: str
    source: str

    def __str__(self) -> str:
        return f"denylist {display(from_text(self.text))} ({display(from_text(self.source))})"


@dataclass(frozen=True, slots=True)
class GitProtection:
    """What git executes or reads as configuration is at most at `ro`, whatever is granted."""

    def __str__(self) -> str:
        return f"{SOURCE} (git runs it, or reads it as configuration)"


@dataclass(frozen=True, slots=True)
class NoGrant:
    """The absence of a grant on the path or above it, which is a reason too."""

    def __str__(self) -> str:
        return "no grant on it or above it"


Rule = Grant | Floor | GitProtection | Boundary | Denial | NoGrant


@dataclass(frozen=True, slots=True)
class DeniedPath:
    """A denial of one exact path of the view, and everything below it."""

    path: ViewPath
    denial: Denial


@dataclass(frozen=True, slots=True)
class DeniedHostPath:
    """A denial of a place on the host, translated into the view once SOURCE is known."""

    path: HostPath
    denial: Denial


@dataclass(frozen=True, slots=True)
class Rules:
    """Everything a compiled policy is made of. Floors carry their source, so several sources are one sequence."""

    grants: Sequence[Grant] = ()
    floors: Sequence[Floor] = ()
    boundary: ViewPath = ROOT
    denied_paths: Sequence[DeniedPath] = ()
    denied_names: Sequence[tuple[str, Denial]] = ()
    """Globs on a basename in any directory, compared without regard to case."""
    built_in_names: Sequence[tuple[str, Denial]] = ()
    """The same of the built-in denylist, less the names that `excepted_names` match."""
    excepted_names: Sequence[str] = ()

    git: Mapping[ViewPath, Part] | None = None
    """The parts of paths that their text does not tell: of `/` where SOURCE lies in a git directory, and of git directories
    by another name than `.git`. None where git is not protected."""
    crossed: Sequence[ViewPath] = ()
    """What the way to a denied path, or to one with a floor, leads through: what stands there stays, and is a directory."""

    denied_places: Sequence[DeniedHostPath] = ()
    """The host's places behind `denied_paths`, the view's or not: no link may lead out to one."""


@dataclass(frozen=True, slots=True)
class Decision:
    """What the policy says of one path, and why.

    `rule` is the one that set the level. `considered` are all that applied, in the order of the design: grant, floors by
    source, protection of git, boundary, denylist.
    """

    path: ViewPath
    level: Level
    standing: Standing
    rule: Rule
    considered: tuple[Rule, ...]
