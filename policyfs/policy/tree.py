"""Rules compiled into a tree, in which a child's answer follows from its parent's.

Theory. A level depends on the text of the whole path, but a file system asks name by name. So the rules are laid out as
a tree of `Place`s keyed by name, holding only the paths that some rule names and the directories above them. Each place
already carries its answer. A name without a place of its own continues its parent: `rest` is the place of all such
names, one object for a whole subtree. A step down is therefore one dictionary lookup and one match of the name against
the denylist, whatever the number of rules.

Invariants:

* `place.rest` has its level, its rule and no children; `rest.rest is rest`. Below the names that `policy.git` knows the part
  changes, and with it perhaps the level: such a place is made when it is first asked for, from the rest of the place above.
* There are no entries below a denied path: nothing lifts a denial (rule deny-5), so all of them are alike.
* `standing` is PASSAGE exactly where the level is none and some place below is visible, or at a root with nothing open.
  The names below `rest` share its level, so they can make no passage.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from policyfs.policy.git import OUTSIDE, UNPROTECTED, Part
from policyfs.policy.globs import NameDenials
from policyfs.policy.levels import Level, Standing
from policyfs.policy.paths import Name, ViewPath, components, folded
from policyfs.policy.rules import Boundary, Denial, Floor, GitProtection, Grant, NoGrant, Rule, Rules


class ConflictingRules(ValueError):
    """Two rules of one kind and source give one path two levels."""


class Place:
    """Where a path stands in the tree of rules, with the answer for it. Compared by identity, never changed once built.

    `named` is true where a grant or floor names exactly this path; a rule strictly below shows as `children`. `leads` is
    true where a rule names something below, and where the way to what a rule names leads through: only a directory stands
    there, and what stands there stays. `git` is the part that the path has in a git directory, `base` the place that it
    would be if that part capped nothing.
    """

    __slots__ = ("base", "children", "considered", "git", "leads", "level", "named", "rest", "rule", "standing")

    level: Level
    standing: Standing
    rule: Rule
    considered: tuple[Rule, ...]
    named: bool
    git: Part
    base: Place
    leads: bool
    children: dict[str | bytes, Place]
    rest: Place

    def __init__(
        self, level: Level, rule: Rule, considered: tuple[Rule, ...], *, named: bool, git: Part = UNPROTECTED
    ) -> None:
        self.git = git
        self.base = self
        self.level = level
        self.rule = rule
        self.considered = considered
        self.named = named
        self.leads = False
        self.children = {}
        self.standing = Standing.HIDDEN if level is Level.NONE else Standing.VISIBLE
        self.rest = self

    def __repr__(self) -> str:
        return f"<Place {self.level} {self.standing} by {self.rule}>"


class _Branch:
    """What the rules say of one path, before it is known what it inherits. `name` is the last of the path, as written."""

    __slots__ = ("boundary", "children", "crossed", "denial", "floors", "git", "grant", "name")

    def __init__(self, name: bytes) -> None:
        self.name = name
        self.children: dict[str | bytes, _Branch] = {}
        self.grant: Grant | None = None
        self.floors: dict[str, Floor] = {}
        self.boundary = False
        self.crossed = False
        self.denial: Denial | None = None
        self.git: Part | None = None


class _Inherited:
    """What a path takes from the directories above it."""

    __slots__ = ("boundary", "denial", "floors", "git", "grant", "inside")

    def __init__(
        self,
        grant: Grant | None,
        floors: dict[str, Floor],
        boundary: Boundary,
        *,
        inside: bool,
        denial: Denial | None,
        git: Part,
    ) -> None:
        self.grant = grant
        self.floors = floors
        self.boundary = boundary
        self.inside = inside
        self.denial = denial
        self.git = git

    def at(self, branch: _Branch, denial: Denial | None) -> _Inherited:
        return _Inherited(
            branch.grant or self.grant,
            {**self.floors, **branch.floors} if branch.floors else self.floors,
            self.boundary,
            inside=self.inside or branch.boundary,
            denial=self.denial or denial,
            git=branch.git or self.git.child(branch.name),
        )

    def place(self, *, named: bool) -> Place:
        """The level (rule level-4): the least of grant, floors, git, boundary and denylist; the first of these that is least
        is the rule that decided."""
        considered: list[tuple[Level, Rule]] = [
            (self.grant.level, self.grant) if self.grant else (Level.NONE, NoGrant()),
            *((floor.level, floor) for floor in self.floors.values()),
        ]
        if self.git.kept:
            considered.append((Level.RO, _GIT_PROTECTION))
        if not self.inside:
            considered.append((Level.NONE, self.boundary))
        if self.denial is not None:
            considered.append((Level.NONE, self.denial))
        level, rule = min(considered, key=lambda pair: pair[0])
        # A denial or the boundary is the better reason for what would be at none anyway: no grant can change it.
        if self.denial is not None:
            rule = self.denial
        elif not self.inside:
            rule = self.boundary
        return Place(level, rule, tuple(rule for _, rule in considered), named=named, git=self.git)


_GIT_PROTECTION = GitProtection()


class Compiled:
    """The tree, and the step down it. `fold_case` is for a source that takes two spellings for one name."""

    def __init__(self, rules: Rules, *, fold_case: bool = False) -> None:
        """Raises `ConflictingRules`."""
        self._key: Callable[[bytes], str | bytes] | None = folded if fold_case else None
        self._denials = NameDenials(rules.denied_names, rules.built_in_names, rules.excepted_names)
        self.denied_name = self._denials.match
        self._denied: dict[tuple[Place, Denial], Place] = {}
        self._parts: dict[tuple[Place, Part], Place] = {}
        self.root = self._placed(self._planted(rules), rules)

    def child(self, place: Place, name: Name) -> Place:
        """The place of a name in a directory at `place`. Constant time, whatever the number of rules."""
        children = place.children
        if children:
            found = children.get(self._key(name) if self._key else name)
            if found is not None:
                return found
        denial = self._denials.match(name)
        rest = place.rest
        if denial is None:
            if place.git is UNPROTECTED:
                return rest
            part = place.git.child(name)
            return rest if part is rest.git else self._at(rest, part)
        if isinstance(rest.rule, Denial):
            return rest
        key = (rest, denial)
        denied = self._denied.get(key)
        if denied is None:
            denied = self._denied[key] = Place(Level.NONE, denial, (*rest.considered, denial), named=False)
        return denied

    def _at(self, rest: Place, part: Part) -> Place:
        """The place of a name that has a part of its own, where the other names are at `rest`."""
        base = rest.base
        if base.git is part or base.level is Level.NONE:
            return base
        place = self._parts.get((base, part))
        if place is None:
            level, rule, considered = base.level, base.rule, base.considered
            if part.kept:
                # In the order in which rules are reported, this comes after grants and floors, which are all there are here.
                considered = (*considered, _GIT_PROTECTION)
                if level > Level.RO:
                    level, rule = Level.RO, _GIT_PROTECTION
            place = self._parts[base, part] = Place(level, rule, considered, named=False, git=part)
            place.base = base
            if part.otherwise is not part:
                place.rest = self._at(base, part.otherwise)
        return place

    def walk(self, path: ViewPath) -> Iterator[Place]:
        """The places from the root down to `path`, the root included."""
        place = self.root
        yield place
        for name in components(path):
            place = self.child(place, name)
            yield place

    def _planted(self, rules: Rules) -> _Branch:
        """The rules as a tree of branches."""
        root = _Branch(b"")

        def at(path: ViewPath) -> _Branch:
            branch = root
            for name in components(path):
                key = self._key(name) if self._key else name
                below = branch.children.get(key)
                if below is None:
                    below = branch.children[key] = _Branch(name)
                branch = below
            return branch

        for grant in rules.grants:
            branch = at(grant.path)
            if branch.grant is not None and branch.grant.level != grant.level:
                raise ConflictingRules(f"{branch.grant} and {grant}")
            branch.grant = grant
        for floor in rules.floors:
            branch = at(floor.path)
            other = branch.floors.get(floor.source)
            if other is not None and other.level != floor.level:
                raise ConflictingRules(f"{other} and {floor}")
            branch.floors[floor.source] = floor
        for denied in rules.denied_paths:
            at(denied.path).denial = denied.denial
        for crossed in rules.crossed:
            at(crossed).crossed = True
        at(rules.boundary).boundary = True
        for path, part in (rules.git or {}).items():
            at(path).git = part
        return root

    def _placed(self, root: _Branch, rules: Rules) -> Place:
        """The branches with what they inherit, from the root down; then the passages, from the leaves up.

        Without recursion: a path may have two thousand components, and Python's stack may not.
        """
        outside = UNPROTECTED if rules.git is None else OUTSIDE
        inherited = _Inherited(None, {}, Boundary(rules.boundary), inside=False, denial=None, git=outside)
        top = inherited.at(root, root.denial)
        place = top.place(named=root.grant is not None or bool(root.floors))
        waiting = [(root, top, place)]
        built = [place]
        while waiting:
            branch, state, place = waiting.pop()
            place.leads = branch.crossed or bool(branch.children)
            # The root is never its own rest: it can be a passage where nothing below it is open.
            if place.leads or place.named or branch is root or place.git.otherwise is not place.git:
                rest = place.git.otherwise
                place.rest = Place(place.level, place.rule, place.considered, named=False, git=rest)
            if state.denial is not None:
                continue
            for key, below in branch.children.items():
                below_state = state.at(below, below.denial or self._denials.match(below.name))
                below_place = below_state.place(named=below.grant is not None or bool(below.floors))
                place.children[key] = below_place
                built.append(below_place)
                waiting.append((below, below_state, below_place))
        for place in reversed(built):
            if place.level is Level.NONE and any(below.standing is not Standing.HIDDEN for below in place.children.values()):
                place.standing = Standing.PASSAGE
        if built[0].standing is Standing.HIDDEN:
            # Rule passage-5: the root counts as a passage when nothing else does, so that a mount has something to stand on.
            built[0].standing = Standing.PASSAGE
        return built[0]
