"""What the doctor reports: findings, each with what to do about it."""

from __future__ import annotations

import enum
from dataclasses import dataclass
from typing import Any

from policyfs.policy.levels import Level
from policyfs.policy.paths import ViewPath, display


class Kind(enum.Enum):
    """The kinds of finding, the worst first. The value is the word for programs; `title` is what a person reads."""

    TRACKED = "tracked-hidden"
    NAMES = "many-names"
    LINK = "link-above-rule"
    FOLDING = "case-folding"
    EXECUTED = "executed"
    SET_ID = "set-id"
    MOUNT = "nested-mount"
    NOT_EXAMINED = "not-examined"

    @property
    def title(self) -> str:
        """One line that says what is dangerous about it."""
        return _TITLES[self]


_TITLES = {
    Kind.TRACKED: "git holds what the policy hides: its names and its contents can be read from the repository",
    Kind.NAMES: "a file with more names than one is hidden, or protected, under some of them only",
    Kind.LINK: "a link stands where rules name something below it: your own programs follow it away from what they name",
    Kind.FOLDING: "the source takes `Name` and `NAME` for one file, so a hidden name has many spellings",
    Kind.EXECUTED: "a session may change what your own tools execute outside the view",
    Kind.SET_ID: "programs that run with another user's rights; a view shows no set-id bit and lets nobody write to them",
    Kind.MOUNT: "other mounts, which a view does not enter: they are hidden",
    Kind.NOT_EXAMINED: "could not be looked at, so nothing is known of it",
}


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing found: where, how far the policy opens it, what is wrong, and what to do. `more` are the paths that
    belong to it: what a repository tracks, a file's other names."""

    kind: Kind
    path: ViewPath
    level: Level
    text: str
    advice: str
    more: tuple[bytes, ...] = ()

    def as_values(self) -> dict[str, Any]:
        """As JSON has it; undecodable bytes of a path are surrogates."""
        return {
            "kind": self.kind.value,
            "path": self.path.decode("utf-8", "surrogateescape"),
            "level": str(self.level),
            "text": self.text,
            "advice": self.advice,
            "more": [path.decode("utf-8", "surrogateescape") for path in self.more],
        }


def several(paths: list[bytes], most: int = 3) -> str:
    """The first few of some paths, and how many more there are."""
    shown = ", ".join(display(path) for path in paths[:most])
    return shown if len(paths) <= most else f"{shown} and {len(paths) - most} more"
