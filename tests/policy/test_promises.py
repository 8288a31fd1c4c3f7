"""What the policy promises of every set of rules."""

from __future__ import annotations

import dataclasses
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyfs.policy import permissions
from policyfs.policy.levels import Level, Standing
from policyfs.policy.paths import HostPath, Name, ViewPath, below, child
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.refusals import Refusal
from policyfs.policy.rules import Boundary, Denial, Floor, Grant, NoGrant, Rules
from policyfs.policy.session import Deny, Session
from policyfs.policy.tree import Compiled, ConflictingRules
from tests.policy.reference import above
from tests.policy.rule_sets import (
    GLOBS,
    NAMES,
    SOURCES,
    RuleSet,
    all_paths,
    below_root,
    levels,
    parts,
    paths,
    place,
    rule_sets,
    view,
)

SOME = all_paths(3, ("a", "b", ".env"))
"""The paths over which a promise about all paths is asked."""


def answers(rules: RuleSet) -> dict[str, tuple[Level, Standing]]:
    """The level and standing of some paths."""
    compiled = rules.compiled()
    found = {path: place(compiled, path) for path in SOME}
    return {path: (at.level, at.standing) for path, at in found.items()}


@given(rule_sets(), st.randoms(use_true_random=False))
def test_order_and_repetition_of_rules_do_not_matter(rules: RuleSet, chance: random.Random) -> None:
    """Rules shuffled and given twice answer as before."""

    def shuffled(items: list[object]) -> list[object]:
        return chance.sample([*items, *items], 2 * len(items))

    again = dataclasses.replace(
        rules,
        grants=shuffled(rules.grants),
        floors={source: shuffled(floors) for source, floors in chance.sample(list(rules.floors.items()), len(rules.floors))},
        **{
            name: shuffled(getattr(rules, name))
            for name in ("denied_paths", "denied_names", "built_in_names", "excepted_names")
        },
    )
    assert answers(again) == answers(rules)


@given(rule_sets(), paths, levels)
def test_one_more_floor_source_never_widens(rules: RuleSet, path: str, level: Level) -> None:
    """Whatever a floor of a further source says, no path has more than it had."""
    floored = dataclasses.replace(rules, floors={**rules.floors, "one more": [(path, level)]})
    before, after = answers(rules), answers(floored)
    assert all(after[path][0] <= before[path][0] for path in SOME)


@given(rule_sets())
def test_no_floor_widens_what_is_granted(rules: RuleSet) -> None:
    """Floors together leave no path more than it would have without any."""
    without, with_floors = answers(dataclasses.replace(rules, floors={})), answers(rules)
    assert all(with_floors[path][0] <= without[path][0] for path in SOME)


@given(rule_sets(), st.sampled_from(SOURCES), paths)
def test_no_grant_lifts_a_floor(rules: RuleSet, source: str, granted: str) -> None:
    """Granting the most there is, anywhere, gives nothing that a floor caps: the floor's level holds at its path."""
    lifted = dataclasses.replace(
        rules, grants=[*[rule for rule in rules.grants if rule[0] != granted], (granted, Level.COMMIT)]
    )
    if rules.fold_case:
        lifted = dataclasses.replace(lifted, grants=[(granted, Level.COMMIT)])
    compiled = lifted.compiled()
    for path, level in rules.floors.get(source, []):
        assert place(compiled, path).level <= level


@given(rule_sets(), paths, levels)
def test_a_grant_of_as_much_takes_nothing_away(rules: RuleSet, path: str, level: Level) -> None:
    """A grant at least as high as what grants give its path already takes nothing from any path. (What floors leave is
    not enough: a more specific floor of the same source may leave more further down.)"""
    rules = dataclasses.replace(rules, fold_case=False)
    granted = place(Compiled(Rules(grants=rules.rules().grants)), path).level
    others = [rule for rule in rules.grants if rule[0] != path]
    more = dataclasses.replace(rules, grants=[*others, (path, max(level, granted))])
    before, after = answers(rules), answers(more)
    assert all(after[path][0] >= before[path][0] for path in SOME)


@given(rule_sets(), below_root, st.sampled_from(GLOBS), st.sampled_from(["path", "name", "built-in"]))
def test_one_more_denial_never_opens(rules: RuleSet, path: str, glob: str, kind: str) -> None:
    """A denial takes away or changes nothing; what it names, and all below, is at none."""
    field, rule = {
        "path": ("denied_paths", path),
        "name": ("denied_names", glob),
        "built-in": ("built_in_names", glob),
    }[kind]
    denied = dataclasses.replace(rules, **{field: [*getattr(rules, field), rule]})
    before, after = answers(rules), answers(denied)
    assert all(after[path][0] in (before[path][0], Level.NONE) for path in SOME)
    if kind == "path":
        compiled = denied.compiled()
        assert all(place(compiled, path.rstrip("/") + under).level is Level.NONE for under in ("", "/a", "/b/a"))


@given(rule_sets())
def test_nothing_outside_the_boundary_is_open(rules: RuleSet) -> None:
    """Outside the boundary every path is at none; inside, it changes nothing."""
    unbounded, bounded = answers(dataclasses.replace(rules, boundary="/")), answers(rules)
    for path in SOME:
        inside = below(view(path), view(rules.boundary)) is not None
        if not rules.fold_case:
            assert bounded[path][0] is (unbounded[path][0] if inside else Level.NONE)


@given(rule_sets(), below_root, st.lists(st.sampled_from(NAMES), max_size=2))
def test_hidden_and_missing_answer_alike(rules: RuleSet, hidden: str, further: list[str]) -> None:
    """A name that a rule hides and a name beside it that no rule knows, also at none, have the same answers, and so has
    everything below the two."""
    compiled = rules.compiled()
    directory, _, _ = hidden.rpartition("/")
    parent = place(compiled, directory or "/")
    one, other = place(compiled, hidden), compiled.child(parent, Name(b"no rule knows this"))
    if one.standing is Standing.HIDDEN and parent.standing is Standing.VISIBLE:
        # The source answers ENOENT for a visible name that is not there.
        assert permissions.lookup(parent, one, unknown_missing=False) is Refusal.MISSING
        assert permissions.remove(parent, one, directory=False, unknown_missing=False) is Refusal.MISSING
    if one.standing is not Standing.HIDDEN or other.standing is not Standing.HIDDEN:
        return
    for name in (None, *further):
        if name is not None:
            one, other = (compiled.child(at, Name(name.encode())) for at in (one, other))
        for unknown_missing in (False, True):
            assert permissions.lookup(parent, one, unknown_missing=unknown_missing) is permissions.lookup(
                parent, other, unknown_missing=unknown_missing
            )
            for directory_too in (False, True):
                assert permissions.remove(
                    parent, one, directory=directory_too, unknown_missing=unknown_missing
                ) is permissions.remove(parent, other, directory=directory_too, unknown_missing=unknown_missing)
        for directory_too in (False, True):
            assert permissions.create(parent, one, directory=directory_too) is permissions.create(
                parent, other, directory=directory_too
            )
        assert permissions.link(compiled.root, parent, one) is permissions.link(compiled.root, parent, other)


@given(rule_sets(), below_root, below_root, st.booleans())
def test_where_a_rule_names_something_below_a_directory_stays_and_nothing_else_comes(
    rules: RuleSet, path: str, other: str, directory: bool
) -> None:
    """At a path that leads to what a rule names, every call but mkdir is refused that would make, put, move or remove
    something there."""
    compiled = rules.compiled()
    (parent, at), (other_parent, beside) = (
        (place(compiled, above(each)), place(compiled, each)) for each in (path, other)
    )
    if not at.leads or path == other:
        return
    assert permissions.create(parent, at, directory=False)
    assert permissions.link(beside, parent, at)
    assert permissions.remove(parent, at, directory=directory, unknown_missing=False)
    assert permissions.move(other_parent, beside, parent, at)
    assert permissions.move(parent, at, other_parent, beside)


@given(rule_sets(), paths)
def test_a_decision_names_its_rule(rules: RuleSet, path: str) -> None:
    """The rule that a decision names is one of the rules given, applies to the path and has the path's level; and the
    rules considered are all that apply, none higher than needed to decide."""
    found = place(rules.compiled(), path)
    given_rules = rules.rules()
    asked = view(rules.asked(path))

    def applies(where: ViewPath) -> bool:
        return below(asked, view(rules.asked(where.decode()))) is not None

    rule = found.rule
    assert rule in found.considered
    match rule:
        case Grant() | Floor():
            assert rule in given_rules.grants or rule in given_rules.floors
            assert applies(rule.path)
            assert rule.level is found.level
        case Denial():
            assert found.level is Level.NONE
            walked = [at.rule for at in rules.compiled().walk(view(path))]
            assert any(isinstance(above, Denial) for above in walked)
            assert rule.text in rules.denied_names + rules.built_in_names or applies(view(rule.text))
        case Boundary():
            assert found.level is Level.NONE
            assert not applies(rule.path)
        case NoGrant():
            assert found.level is Level.NONE
            assert not any(applies(grant.path) for grant in given_rules.grants)
    floors = [considered for considered in found.considered if isinstance(considered, Floor)]
    assert {floor.source for floor in floors} <= set(rules.floors)
    assert len({floor.source for floor in floors}) == len(floors)
    levels = [considered.level for considered in found.considered if isinstance(considered, Grant | Floor)]
    assert found.level <= min(levels, default=Level.COMMIT)


@given(rule_sets(), paths)
def test_a_child_follows_from_its_parent(rules: RuleSet, path: str) -> None:
    """The step from a directory's place by a name is the place of the path, the very same object each time."""
    compiled = rules.compiled()
    parent = place(compiled, path)
    for name in NAMES:
        stepped = compiled.child(parent, Name(name.encode()))
        assert stepped is place(compiled, path.rstrip("/") + "/" + name)
        assert stepped is compiled.child(parent, Name(name.encode()))


@given(rule_sets())
def test_passages_are_exactly_where_something_below_is_visible(rules: RuleSet) -> None:
    """Over every path of four names: a directory at none is a passage if one below it is visible, and only then; the
    root is one also where nothing is open. Rules have at most four names, so nothing is beyond what is looked at."""
    names = ("a", "A", "b", ".env", "k.pem", "cacert.pem")
    compiled = rules.compiled()
    visible_below: set[str] = set()
    waiting = [("/", compiled.root)]
    seen = []
    while waiting:
        path, at = waiting.pop()
        seen.append((path, at))
        # Where no rule is left below, all that lies below is at one level or denied: one more step shows it.
        if parts(path) < 4 and (at.children or parts(path) < 2):
            for name in names:
                below_path = path.rstrip("/") + "/" + name
                waiting.append((below_path, compiled.child(at, Name(name.encode()))))
        if at.level is not Level.NONE:
            while path != "/":
                path = path.rpartition("/")[0] or "/"
                visible_below.add(path)
    for path, at in seen:
        if at.level is not Level.NONE:
            assert at.standing is Standing.VISIBLE
        elif path in visible_below or path == "/":
            assert at.standing is Standing.PASSAGE
        else:
            assert at.standing is Standing.HIDDEN


@given(rule_sets())
def test_the_root_is_a_passage_at_least(rules: RuleSet) -> None:
    """A mount has something to stand on, whatever the rules; and it alone where nothing is open."""
    compiled = rules.compiled()
    assert compiled.root.standing is not Standing.HIDDEN


def test_where_nothing_is_open_only_the_root_is_a_passage() -> None:
    """The root's exception is not inherited: with no rule at all, what lies below is hidden."""
    compiled = Compiled(Rules())
    assert compiled.root.standing is Standing.PASSAGE
    assert place(compiled, "/a").standing is Standing.HIDDEN
    assert place(compiled, "/a/b").standing is Standing.HIDDEN


def test_names_have_their_case_unless_the_source_folds_it() -> None:
    """Two spellings are two names, but for a source that takes them for one."""
    rules = Rules(grants=[Grant(ViewPath(b"/a"), Level.RO)])
    assert place(Compiled(rules), "/A").standing is Standing.HIDDEN
    assert place(Compiled(rules, fold_case=True), "/A").standing is Standing.VISIBLE


def test_rules_that_contradict_are_refused() -> None:
    """Two levels for one path, of one kind and source, are a fault and not a choice."""
    path = ViewPath(b"/a")
    with pytest.raises(ConflictingRules, match=r"^grant /a = ro and grant /a = stage$"):
        Compiled(Rules(grants=[Grant(path, Level.RO), Grant(path, Level.STAGE)]))
    with pytest.raises(ConflictingRules, match=r"^floor /a = ro \(session\) and floor /a = stage \(session\)$"):
        Compiled(Rules(floors=[Floor(path, Level.RO), Floor(path, Level.STAGE)]))
    with pytest.raises(ConflictingRules):
        Compiled(Rules(grants=[Grant(path, Level.RO), Grant(ViewPath(b"/A"), Level.STAGE)]), fold_case=True)
    Compiled(Rules(floors=[Floor(path, Level.RO, "one"), Floor(path, Level.STAGE, "other")]))


@given(
    st.dictionaries(paths.map(view), levels, max_size=4),
    st.dictionaries(paths.map(view), levels, max_size=2),
    st.lists(st.sampled_from(GLOBS), max_size=1).map(tuple),
)
def test_what_a_session_is_told_is_what_it_has(
    grants: dict[ViewPath, Level], floors: dict[ViewPath, Level], denied: tuple[str, ...]
) -> None:
    """`granted` lists visible paths alone, each with its level, and every visible path has the level of the nearest
    listed path on it or above it."""
    policy = CompiledPolicy(Session(grants=grants, floors=floors, deny=Deny(names=denied)), Surroundings(_SOURCE))
    told = dict(policy.granted())
    assert policy.opens_nothing == (not told)
    for path, level in told.items():
        assert policy.place(path).level is level
        assert level is not Level.NONE
    for text in SOME:
        at = policy.place(view(text))
        if at.level is not Level.NONE:
            nearest = max((path for path in told if below(view(text), path) is not None), key=len)
            assert told[nearest] is at.level


_SOURCE = HostPath(b"/srv/tree")


def test_a_path_of_two_thousand_names() -> None:
    """Rules may be as deep as paths: nothing recurses."""
    deep = ViewPath(b"/n" * 2000)
    compiled = Compiled(Rules(grants=[Grant(deep, Level.RO)]))
    *_, above, found = compiled.walk(deep)
    assert (above.standing, found.standing) == (Standing.PASSAGE, Standing.VISIBLE)
    *_, further = compiled.walk(child(deep, Name(b"x")))
    assert further.level is Level.RO
