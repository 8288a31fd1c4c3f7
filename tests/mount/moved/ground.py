"""What the tests of moves by others share."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from tests.mount.asked import HAS_EPOCH, Live
from tests.mount.changes import settle
from tests.mount.expecting import until
from tests.mount.places import names
from tests.mount.shuffling import told

GONE = ("ENOENT", "ESTALE", "EACCES")
"""What may be answered in a directory that is no longer where it was found."""

TO_KEEP = 0.1
"""Seconds that is kept what nothing watches, here: a link, which a second is for otherwise."""


@dataclass
class Ground:
    """A directory of one test's own. In it, `here` is free of rules and `there` has those that the test gives it."""

    live: Live
    path: str
    inside: Path
    behind: Path
    opened: list[int] = field(default_factory=list)

    def rule(self, name: str, level: str) -> None:
        """Put something at a level, whether it is there or not."""
        self.live.grant(f"{self.path}/{name}", level)

    def make(self, *files: str) -> None:
        """Make files in the source, and the directories above them."""
        for file in files:
            (self.behind / file).parent.mkdir(parents=True, exist_ok=True)
            (self.behind / file).write_text("content of " + file)

    def warm(self, *paths: str) -> None:
        """Have the kernel keep whatever it may of these, and of what is below them."""
        everything = [path for name in paths for path in (self.behind / name, *(self.behind / name).rglob("*"))]
        settle(*everything)
        for _ in range(2):
            for behind in everything:
                path = self.inside / behind.relative_to(self.behind)
                if os.path.lexists(path) and path.is_file():
                    path.read_bytes()
                elif os.path.lexists(path):
                    names(path)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor, of a directory too; closed with the test."""
        self.opened.append(os.open(self.inside / name, flags))
        return self.opened[-1]

    def move(self, old: str, new: str) -> None:
        """Rename in the source."""
        assert not os.path.lexists(self.inside / new)
        (self.behind / old).rename(self.behind / new)

    def at_once(self, holds: Callable[[], bool], what: str) -> None:
        """What the epoch makes true before anything else is answered; name by name it takes a moment."""
        if HAS_EPOCH and "epoch" in self.path:
            assert holds(), what
        else:
            until(lambda: told(holds) is True, what)

    def found(self, name: str, by: str = "lookup") -> None:
        """Wait until the view shows it: to who looks it up, or lists its directory."""
        path = self.inside / name
        if by == "lookup":
            until(lambda: os.path.lexists(path), f"{name} is found")
        else:
            until(lambda: path.name in names(path.parent), f"{name} is listed")


def hiding(ground: Ground, x: str = "x") -> None:
    """A directory in `here` that is known to the kernel, and rules for what it has when it is in `there`."""
    ground.make(f"here/{x}/secret", f"here/{x}/f", f"here/{x}/closed/g", f"here/{x}/passed/in/g", f"here/{x}/passed/g")
    for name, level in (("secret", "none"), ("closed", "none"), ("passed", "none"), ("passed/in", "ro")):
        ground.rule(f"there/{x}/{name}", level)
    ground.warm("here", "there")
