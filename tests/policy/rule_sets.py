"""Hypothesis strategies of rule sets over so few names that the rules meet, and both readings of one set."""

from __future__ import annotations

import dataclasses

from hypothesis import strategies as st

from policyfs.policy.levels import Level
from policyfs.policy.paths import ViewPath, components, view_path
from policyfs.policy.rules import Denial, DeniedPath, Floor, Grant, Rules
from policyfs.policy.tree import Compiled, Place
from tests.policy.reference import Reference, fold

NAMES = ("a", "A", "b", ".env", "k.pem", "cacert.pem")
GLOBS = ("b", "[ab]", "?", "a*", "*.pem", ".env*", "[!a]", "CACERT.*", "c*.p?m")
SOURCES = ("session", "group", "/etc/policyfs/floors.toml")

names = st.sampled_from(NAMES)
paths = st.lists(names, max_size=4).map(lambda walked: "/" + "/".join(walked))
below_root = st.lists(names, min_size=1, max_size=4).map(lambda walked: "/" + "/".join(walked))
levels = st.sampled_from(list(Level))
levelled = st.dictionaries(paths, levels, max_size=4).map(lambda rules: list(rules.items()))


@dataclasses.dataclass(frozen=True)
class RuleSet:
    """The rules of one policy as plain lists; paths are text, absolute and resolved."""

    grants: list[tuple[str, Level]]
    floors: dict[str, list[tuple[str, Level]]]
    boundary: str
    denied_paths: list[str]
    denied_names: list[str]
    built_in_names: list[str]
    excepted_names: list[str]
    fold_case: bool = False
    unknown_missing: bool = False
    crossed: list[str] = dataclasses.field(default_factory=list)

    def rules(self) -> Rules:
        """The set as the compiled policy takes it."""
        return Rules(
            grants=[Grant(view(path), level) for path, level in self.grants],
            floors=[Floor(view(path), level, source) for source, floors in self.floors.items() for path, level in floors],
            boundary=view(self.boundary),
            denied_paths=[DeniedPath(view(path), Denial(path, "session")) for path in self.denied_paths],
            denied_names=[(glob, Denial(glob, "session")) for glob in self.denied_names],
            built_in_names=[(glob, Denial(glob, "built-in denylist")) for glob in self.built_in_names],
            excepted_names=self.excepted_names,
            crossed=[view(path) for path in self.crossed],
        )

    def compiled(self) -> Compiled:
        """The set, compiled."""
        return Compiled(self.rules(), fold_case=self.fold_case)

    def reference(self) -> Reference:
        """The set, naively. On a source that folds case every path of a rule is folded, as those asked about are."""
        spell = fold if self.fold_case else str
        return Reference(
            [(spell(path), level) for path, level in self.grants],
            {source: [(spell(path), level) for path, level in floors] for source, floors in self.floors.items()},
            spell(self.boundary),
            [spell(path) for path in self.denied_paths],
            self.denied_names,
            self.built_in_names,
            self.excepted_names,
            self.unknown_missing,
            [spell(path) for path in self.crossed],
        )

    def asked(self, path: str) -> str:
        """A path as the reference is asked about it."""
        return fold(path) if self.fold_case else path


def view(path: str) -> ViewPath:
    """A path as the policy takes it."""
    return view_path(path.encode())


def place(compiled: Compiled, path: str) -> Place:
    """The place of a path."""
    *_, found = compiled.walk(view(path))
    return found


def all_paths(depth: int, names: tuple[str, ...] = NAMES) -> list[str]:
    """Every path of at most `depth` names."""
    found, last = ["/"], [""]
    for _ in range(depth):
        last = [f"{path}/{name}" for path in last for name in names]
        found += last
    return found


def parts(path: str) -> int:
    """How many names a path walks through."""
    return len(components(path.encode()))


def _once(levels: list[tuple[str, Level]], fold_case: bool) -> list[tuple[str, Level]]:
    """Without rules that say two levels for one path under another spelling, which is a fault and not a policy."""
    return list({fold(path): (path, level) for path, level in levels}.values()) if fold_case else levels


@st.composite
def rule_sets(draw: st.DrawFn) -> RuleSet:
    """Sets of rules of every kind. The root is granted more often than not, and a boundary is rare: else most paths
    would be at none, and little would be compared."""
    fold_case = draw(st.sampled_from([False, False, True]))
    grants = draw(levelled)
    if draw(st.booleans()):
        grants = [("/", draw(levels)), *(rule for rule in grants if rule[0] != "/")]
    return RuleSet(
        grants=_once(grants, fold_case),
        floors={
            source: _once(draw(levelled), fold_case) for source in draw(st.lists(st.sampled_from(SOURCES), unique=True))
        },
        boundary=draw(st.sampled_from(["/", "/", "/", "/a", "/a/b"])),
        denied_paths=draw(st.lists(below_root, max_size=2)),
        denied_names=draw(st.lists(st.sampled_from(GLOBS), max_size=1)),
        built_in_names=draw(st.sampled_from([[], [], [".env", "*.pem"]])),
        excepted_names=draw(st.sampled_from([[], ["cacert.pem"]])),
        fold_case=fold_case,
        unknown_missing=draw(st.booleans()),
        crossed=draw(st.lists(below_root, max_size=1)),
    )
