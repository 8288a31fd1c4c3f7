"""The compiled policy against the naive one: level for level, standing for standing, errno for errno."""

from __future__ import annotations

import errno
from collections.abc import Callable

from hypothesis import event, given
from hypothesis import strategies as st

from policyfs.policy import permissions
from policyfs.policy.levels import Level, Standing
from policyfs.policy.paths import components
from policyfs.policy.refusals import Refusal
from policyfs.policy.tree import Compiled, Place
from tests.policy.reference import above
from tests.policy.rule_sets import NAMES, RuleSet, all_paths, below_root, paths, place, rule_sets, view


class Asked:
    """The compiled policy asked as the kernel asks: name by name from the root, the answer of the first that refuses."""

    def __init__(self, rules: RuleSet) -> None:
        self.compiled: Compiled = rules.compiled()
        self.unknown_missing = rules.unknown_missing

    def place(self, path: str) -> Place:
        return place(self.compiled, path)

    def lookup(self, path: str) -> str | None:
        parent = self.compiled.root
        for name in components(view(path)):
            child = self.compiled.child(parent, name)
            refused = permissions.lookup(parent, child, unknown_missing=self.unknown_missing)
            if refused is not None:
                return code(refused)
            parent = child
        return None

    def look(self, path: str) -> str | None:
        return self.lookup(path) or code(permissions.look(self.place(path)))

    def change(self, path: str) -> str | None:
        return self.lookup(path) or code(permissions.change(self.place(path)))

    def create(self, path: str, *, directory: bool) -> str | None:
        parent = above(path)
        refused = permissions.create(self.place(parent), self.place(path), directory=directory)
        return self.lookup(parent) or code(refused)

    def remove(self, path: str, *, directory: bool) -> str | None:
        refused = permissions.remove(
            self.place(above(path)), self.place(path), directory=directory, unknown_missing=self.unknown_missing
        )
        return self.lookup(above(path)) or code(refused)

    def link(self, old: str, new: str) -> str | None:
        refused = permissions.link(self.place(old), self.place(above(new)), self.place(new))
        return self.look(old) or self.lookup(above(new)) or code(refused)

    def rename(self, old: str, new: str, *, directory: bool) -> str | None:
        old_parent, old_place = self.place(above(old)), self.place(old)
        new_parent, new_place = self.place(above(new)), self.place(new)
        refused = (
            permissions.old_name(old_parent, old_place, unknown_missing=self.unknown_missing),
            permissions.new_name(new_parent, new_place),
            permissions.move_away(old_parent, old_place, directory=directory),
            permissions.move(old_parent, old_place, new_parent, new_place),
        )
        making = code(refused[1] or refused[2] or refused[3])
        return self.lookup(above(old)) or code(refused[0]) or self.lookup(above(new)) or making


def code(refusal: Refusal | None) -> str | None:
    """A refusal as the name of its errno."""
    return None if refusal is None else errno.errorcode[refusal.errno]


def seen(answer: str | None) -> str | None:
    """Tell hypothesis's statistics which answers the examples reach."""
    event(str(answer))
    return answer


@given(rule_sets(), paths)
def test_levels_and_standings(rules: RuleSet, path: str) -> None:
    """A path has the level and the standing that the rules, read aloud, give it."""
    reference, found = rules.reference(), place(rules.compiled(), path)
    assert found.level == reference.level(rules.asked(path))
    assert str(found.standing) == seen(reference.standing(rules.asked(path)))


@given(rule_sets())
def test_every_path_of_two_names(rules: RuleSet) -> None:
    """The same for all paths of up to two names at once, so that no path is left to chance."""
    reference, compiled = rules.reference(), rules.compiled()
    for path in all_paths(2):
        found = place(compiled, path)
        expected = (reference.level(rules.asked(path)), reference.standing(rules.asked(path)))
        assert (found.level, str(found.standing)) == expected, path


@given(rule_sets(), paths)
def test_look_change_and_lookup(rules: RuleSet, path: str) -> None:
    """What is there, or may be: asked name by name, the answer is that of the nearest ancestor that is seen."""
    asked, reference, spelt = Asked(rules), rules.reference(), rules.asked(path)
    assert asked.lookup(path) == reference.lookup(spelt)
    assert asked.look(path) == seen(reference.look(spelt))
    assert asked.change(path) == seen(reference.change(spelt))


@given(rule_sets(), below_root, st.booleans())
def test_create_and_remove(rules: RuleSet, path: str, directory: bool) -> None:
    """Making a name and taking it away."""
    asked, reference, spelt = Asked(rules), rules.reference(), rules.asked(path)
    assert asked.create(path, directory=directory) == seen(reference.create(spelt, directory=directory))
    assert asked.remove(path, directory=directory) == seen(reference.remove(spelt, directory=directory))


@given(rule_sets(), below_root, below_root, st.booleans())
def test_link_and_rename(rules: RuleSet, old: str, new: str, directory: bool) -> None:
    """Giving a second name, and moving."""
    asked, reference = Asked(rules), rules.reference()
    spelt_old, spelt_new = rules.asked(old), rules.asked(new)
    assert asked.link(old, new) == seen(reference.link(spelt_old, spelt_new))
    assert asked.rename(old, new, directory=directory) == seen(reference.rename(spelt_old, spelt_new, directory=directory))


def test_the_examples_reach_every_answer() -> None:
    """The strategies are worth something: on one fixed set of rules each standing and each errno of the table comes up,
    in the compiled policy as in the naive one."""
    rules = RuleSet(
        grants=list(zip(("/a", "/a/b", "/a/b/b", "/A", "/A/b", "/b/a"), map(Level, (1, 2, 0, 2, 3, 2)), strict=True)),
        floors={"session": [("/A/a", Level.RO), ("/A/b/a", Level.STAGE)]},
        boundary="/",
        denied_paths=["/A/.env"],
        denied_names=[],
        built_in_names=["*.pem"],
        excepted_names=["cacert.pem"],
        crossed=["/A/a/b"],
    )
    asked, reference = Asked(rules), rules.reference()
    answers: dict[str, set[str | None]] = {}

    def both(name: str, of: Callable[[Asked], str | None], expected: str | None) -> None:
        assert of(asked) == expected, name
        answers.setdefault(name, set()).add(expected)

    some = [path for path in all_paths(3, ("a", "A", "b", "k.pem")) if path != "/"]
    for path in some:
        both("look", lambda it, path=path: it.look(path), reference.look(path))
        both("change", lambda it, path=path: it.change(path), reference.change(path))
        for kind in (False, True):
            both(
                f"create {kind}",
                lambda it, path=path, kind=kind: it.create(path, directory=kind),
                reference.create(path, directory=kind),
            )
            both(
                f"remove {kind}",
                lambda it, path=path, kind=kind: it.remove(path, directory=kind),
                reference.remove(path, directory=kind),
            )
        for other in [path for path in some if path.count("/") < 3]:
            both("link", lambda it, old=path, new=other: it.link(old, new), reference.link(path, other))
            for kind in (False, True):
                both(
                    f"rename {kind}",
                    lambda it, old=path, new=other, kind=kind: it.rename(old, new, directory=kind),
                    reference.rename(path, other, directory=kind),
                )
    assert answers == {
        "look": {None, "ENOENT", "EACCES"},
        "change": {None, "ENOENT", "EACCES", "EROFS"},
        "create False": {None, "ENOENT", "EACCES", "EROFS"},
        "create True": {None, "ENOENT", "EACCES", "EROFS"},
        "remove False": {None, "ENOENT", "EACCES", "EROFS", "EBUSY"},
        "remove True": {None, "ENOENT", "EACCES", "EROFS", "EBUSY"},
        "link": {None, "ENOENT", "EACCES", "EROFS", "EXDEV"},
        "rename False": {None, "ENOENT", "EACCES", "EROFS", "EXDEV"},
        "rename True": {None, "ENOENT", "EACCES", "EROFS", "EBUSY", "EXDEV"},
    }
    assert {asked.place(path).standing for path in some} == set(Standing)
    assert set(NAMES) > {"a", "A", "b", "k.pem"}
