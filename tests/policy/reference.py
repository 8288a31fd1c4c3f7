"""The policy, naively: docs/rules.md read aloud, for paths given as text and rules given as lists.

Nothing is compiled, kept or shared with policyfs/policy: every answer looks through every rule again. It is what the
compiled policy is compared with, so it must be right by being read. Levels are the numbers 0 to 3.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import unicodedata

NONE, RO, STAGE = 0, 1, 2


def fold(text: str) -> str:
    """A name or a glob without its case."""
    return unicodedata.normalize("NFKC", text).casefold()


def covers(rule: str, path: str) -> bool:
    """A rule on a path covers it and everything below it."""
    return rule == "/" or path == rule or path.startswith(rule + "/")


def most_specific(rules: list[tuple[str, int]], path: str) -> int | None:
    """The level of the longest path among the rules that cover this one."""
    covering = [(len(rule), level) for rule, level in rules if covers(rule, path)]
    return max(covering)[1] if covering else None


@dataclasses.dataclass
class Reference:
    """A session's rules as lists, and what they answer. An answer is the name of an errno, or None: allowed."""

    grants: list[tuple[str, int]]
    floors: dict[str, list[tuple[str, int]]]
    boundary: str
    denied_paths: list[str]
    denied_names: list[str]
    built_in_names: list[str]
    excepted_names: list[str]
    unknown_missing: bool = False
    crossed: list[str] = dataclasses.field(default_factory=list)

    def denied(self, path: str) -> bool:
        """The denylist matches the path or any directory above it."""

        def matches(name: str, globs: list[str]) -> bool:
            return any(fnmatch.fnmatchcase(fold(name), fold(glob)) for glob in globs)

        return any(covers(rule, path) for rule in self.denied_paths) or any(
            matches(name, self.denied_names)
            or (matches(name, self.built_in_names) and not matches(name, self.excepted_names))
            for name in path.split("/")[1:]
        )

    def level(self, path: str) -> int:
        """Rule level-4: the least of grant, floors, boundary and denylist."""
        caps = [most_specific(floors, path) for floors in self.floors.values()]
        return min(
            most_specific(self.grants, path) or NONE,
            *(cap for cap in caps if cap is not None),
            3 if covers(self.boundary, path) else NONE,
            NONE if self.denied(path) else 3,
        )

    def rules_below(self, path: str) -> list[str]:
        """The paths strictly below this one that a rule names."""
        named = [rule for rule, _ in [*self.grants, *(floor for floors in self.floors.values() for floor in floors)]]
        return [rule for rule in [*named, self.boundary, *self.denied_paths] if rule != path and covers(path, rule)]

    def leads(self, path: str) -> bool:
        """Rule move-5: whether only a directory stands here, since a rule names something below, or since the way to what
        a rule names goes by here or below."""
        return bool(self.rules_below(path)) or any(covers(path, crossed) for crossed in self.crossed)

    def standing(self, path: str) -> str:
        """Visible, a passage (none, with something visible below, or the root), or hidden. Were a path without a rule
        of its own visible below, the nearest rule above it and below here would be, too."""
        if self.level(path) >= RO:
            return "visible"
        return "passage" if path == "/" or any(self.level(rule) >= RO for rule in self.rules_below(path)) else "hidden"

    def unseen(self, path: str) -> str:
        """Spec, "A granted path under a path that is not": by the nearest ancestor that is visible or a passage."""
        while True:
            path = above(path)
            if self.standing(path) != "hidden":
                return "EACCES" if self.standing(path) == "passage" and not self.unknown_missing else "ENOENT"

    def lookup(self, path: str) -> str | None:
        """Whether the path may be looked up; whether it is there the source says."""
        return self.unseen(path) if self.standing(path) == "hidden" else None

    def look(self, path: str) -> str | None:
        """Spec, "What each operation needs": `ro`; a passage is denied."""
        return self.lookup(path) or ("EACCES" if self.standing(path) == "passage" else None)

    def change(self, path: str) -> str | None:
        """The same: `stage`."""
        return self.look(path) or ("EROFS" if self.level(path) < STAGE else None)

    def create(self, path: str, *, directory: bool) -> str | None:
        """Rules make-1 to make-3 and make-6."""
        refused = self.new_name(path)
        return refused or (self.outranked("EACCES", path) if self.leads(path) and not directory else None)

    def new_name(self, path: str) -> str | None:
        """Making a name, whatever it is to be the name of."""
        parent = above(path)
        if self.standing(parent) != "visible":
            return self.lookup(parent) or "EACCES"
        if self.level(path) == NONE:
            return "EROFS" if self.level(parent) == RO else "EACCES"
        return "EROFS" if self.level(path) < STAGE else None

    def remove(self, path: str, *, directory: bool) -> str | None:
        """Rules remove-1, remove-2, remove-4 and remove-5."""
        stays = self.leads(path) or (directory and self.is_named(path))
        return self.old_name(path) or (self.outranked("EBUSY", path) if stays else None)

    def old_name(self, path: str) -> str | None:
        """Taking a name away, whatever it is the name of."""
        if self.lookup(path) or "passage" in (self.standing(path), self.standing(above(path))):
            return self.lookup(path) or "EACCES"
        return "EROFS" if self.level(path) < STAGE else None

    def is_named(self, path: str) -> bool:
        """Whether a grant or a floor names exactly this path."""
        return path in [rule for rules in [self.grants, *self.floors.values()] for rule, _ in rules]

    def link(self, old: str, new: str) -> str | None:
        """Rule move-3."""
        refused = self.look(old) or self.create(new, directory=False)
        return refused or (self.outranked("EXDEV", new) if self.level(old) != self.level(new) else None)

    def rename(self, old: str, new: str, *, directory: bool) -> str | None:
        """Rules remove-4 and move-1 to move-3."""
        refused = self.old_name(old) or self.new_name(new)
        if refused:
            return refused
        if directory and self.is_named(old):
            return self.outranked("EBUSY", old)
        crosses = self.level(old) != self.level(new) or self.leads(old) or self.leads(new)
        return self.outranked("EXDEV", old, new) if crosses else None

    def outranked(self, code: str, *paths: str) -> str:
        """In a parent at ro the answer is EROFS instead."""
        return "EROFS" if any(self.level(above(path)) == RO for path in paths) else code


def above(path: str) -> str:
    """The directory that holds a path."""
    return path.rpartition("/")[0] or "/"
