"""The policy of one view: a session, translated to one SOURCE and compiled, with its answers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from policyfs.policy import denylist, git, permissions
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
    from_text,
    host_path,
    joined,
    view_path,
)
from policyfs.policy.refusals import Refusal
from policyfs.policy.rules import Decision, Denial, DeniedHostPath, DeniedPath, Floor, Grant, Rule, Rules
from policyfs.policy.session import Fault, Session, SessionFaults
from policyfs.policy.tree import Compiled, Place

PROTECTED = "policyfs itself"
"""Who denies the session file, the floors files and policyfs's own state: no session may edit what binds it."""


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a policy must know of the machine, as values.

    `source` is SOURCE's real path. `homes` are the home's names: as the user has it, and its real path where that
    differs. `other_homes` are homes that `~` does not mean, whose credentials are closed all the same: somebody who mounts
    /home as root, or by sudo, has HOME=/root. `floors` are the floor sources beyond the session, by name. `elsewhere` are
    the parts of SOURCE, by their paths in the view, that mounts show at other places too, with those places: what closes
    a place closes it by every path to it, what opens it only by its own. `own` are policyfs's own places, which no view
    shows. `files` are the session file and the files of floors, as they were named; `protected` are further places that
    no view shows: those files, and each link that leads to one. `tops` are the mountpoints of SOURCE's file system,
    beneath which credentials are looked for that have another name in SOURCE, and `unwalked` the places where none is.
    `git_directories` are git directories by another name than `.git`, and `git_programs_of_work_trees` says that the owner's
    own git configuration, which holds in every repository, names programs by a path in the work tree.

    `ways` gives, for places that are reached through symbolic links, the further paths by which they are, in the order in
    which a walk comes by them; the last is the real path. `crossed` are the places that such a walk goes into and leaves
    again. Both are only ever added to while a view is open: what was guarded once stays guarded.
    """

    source: HostPath
    homes: tuple[HostPath, ...] = ()
    other_homes: tuple[HostPath, ...] = ()
    floors: Mapping[str, Mapping[HostPath, Level]] = field(default_factory=dict)
    elsewhere: tuple[tuple[ViewPath, HostPath], ...] = ()
    own: tuple[HostPath, ...] = ()
    files: tuple[bytes, ...] = ()
    protected: tuple[HostPath, ...] = ()
    tops: tuple[HostPath, ...] = (HostPath(b"/"),)
    unwalked: tuple[HostPath, ...] = ()
    git_directories: tuple[HostPath, ...] = ()
    git_programs_of_work_trees: bool = False
    ways: Mapping[HostPath, tuple[HostPath, ...]] = field(default_factory=dict)
    crossed: tuple[HostPath, ...] = ()

    def led_from(self, place: HostPath) -> tuple[HostPath, tuple[HostPath, ...]]:
        """The path of a place that a rule on it means, and the further ones to which links lead from there.

        Links outside SOURCE are taken for other names of the place: a home that is a link, a mountpoint. A link inside is
        another matter. What stands there may change, and a rule that opens a path does not open what the path leads to.
        """
        paths = (place, *self.ways.get(place, ()))
        meant = next((at for at, path in enumerate(paths) if denylist.in_view(path, self.source) is not None), 0)
        return paths[meant], paths[meant + 1 :]


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer to one kind of operation: allowed where `refusal` is None, else the refusal's text."""

    operation: str
    refusal: Refusal | None
    text: str | None


@dataclass(frozen=True, slots=True)
class Verdict:
    """A decision and what it means: the answers to look, change and commit."""

    decision: Decision
    answers: tuple[Answer, ...]


class CompiledPolicy:
    """The policy of one view. Built once, never changed: a new policy is a new object."""

    def __init__(self, session: Session, surroundings: Surroundings, *, fold_case: bool = False) -> None:
        """Raises `SessionFaults` where a rule cannot be translated."""
        self.session = session
        self.surroundings = surroundings
        self.unknown_missing = session.unknown_missing
        self.fold_case = fold_case
        rules = _rules(session, surroundings)
        self.compiled = Compiled(rules, fold_case=fold_case)
        self._denied_places = tuple(rules.denied_places)
        self.child = self.compiled.child

    @property
    def root(self) -> Place:
        """The place of `/`."""
        return self.compiled.root

    @property
    def opens_nothing(self) -> bool:
        """Whether no path at all is visible."""
        return next(self._visible_named(), None) is None

    def closing_rules(self) -> dict[ViewPath, Rule]:
        """For each path at `none` that a grant would open: the rule that keeps it closed."""
        return {
            path: place.rule
            for path, place in self._named()
            if place.level is Level.NONE
            and any(isinstance(rule, Grant) and rule.path == path and rule.level > place.level for rule in place.considered)
        }

    @property
    def has_passages(self) -> bool:
        """Whether some directory is a passage."""
        return any(place.standing is Standing.PASSAGE for _, place in self._named())

    def place(self, path: ViewPath) -> Place:
        """The place of a path."""
        *_, place = self.compiled.walk(path)
        return place

    def nearest_seen(self, path: ViewPath) -> Place:
        """The place of the nearest ancestor that is visible or a passage, the path itself not counted."""
        *ancestors, _ = self.compiled.walk(path)
        for place in reversed(ancestors):
            if place.standing is not Standing.HIDDEN:
                return place
        return self.root

    def decide(self, path: ViewPath) -> Decision:
        """The level and standing of a path, and the rules that led there."""
        place = self.place(path)
        return Decision(path, place.level, place.standing, place.rule, place.considered)

    def refusal(self, path: ViewPath, operation: str) -> Refusal | None:
        """The answer to `look`, `change` or `commit` of a path, by its text alone."""
        place = self.place(path)
        if place.standing is Standing.HIDDEN:
            return permissions.unseen(self.nearest_seen(path), unknown_missing=self.unknown_missing)
        if operation == "look":
            return permissions.look(place)
        if operation == "change":
            return permissions.change(place)
        return permissions.commit(place, in_repository=False)

    def explain(self, path: ViewPath) -> Verdict:
        """The decision on a path with the answers to look, change and commit, in the words of rule error-1."""
        answers = []
        for operation in ("look", "change", "commit"):
            refused = self.refusal(path, operation)
            answers.append(Answer(operation, refused, None if refused is None else refused.text(path)))
        return Verdict(self.decide(path), tuple(answers))

    def granted(self) -> list[tuple[ViewPath, Level]]:
        """Every path that opens something or opens it differently than what lies above it, sorted: what a session is
        told of its view (rule prompt-1). Nothing hidden is among them."""
        return sorted((path, place.level) for path, place in self._visible_named())

    @property
    def denied_places(self) -> tuple[HostPath, ...]:
        """The places of the host that the denylist names, whether the view holds them or not."""
        return tuple(denied.path for denied in self._denied_places)

    def shown_outside(self, place: HostPath, beside: Sequence[HostPath] = ()) -> bool:
        """Whether a link may lead to this place outside SOURCE (rule link-4): one that the session lists, or that is shown
        `beside` the view, and that the denylist does not name."""
        if not any(below(place, listed) is not None for listed in (*self.session.links_outside, *beside)):
            return False
        if any(below(place, denied.path) is not None for denied in self._denied_places):
            return False
        return all(self.compiled.denied_name(name) is None for name in components(place))

    def _visible_named(self) -> Iterator[tuple[ViewPath, Place]]:
        for path, place, above in self._named_below():
            if place.level is Level.NONE:
                continue
            # A grant of its own counts though it changes nothing; a floor that changes nothing opens nothing.
            if above is None or place.considered[0] is not above.considered[0] or place.level is not above.level:
                yield path, place

    def _named(self) -> Iterator[tuple[ViewPath, Place]]:
        for path, place, _ in self._named_below():
            yield path, place

    def _named_below(self) -> Iterator[tuple[ViewPath, Place, Place | None]]:
        waiting: list[tuple[ViewPath, Place, Place | None]] = [(ViewPath(b"/"), self.root, None)]
        while waiting:
            path, place, above = waiting.pop()
            yield path, place, above
            for key, below_place in place.children.items():
                name = key if isinstance(key, bytes) else key.encode("utf-8", "surrogateescape")
                waiting.append((child(path, Name(name)), below_place, place))


def _rules(session: Session, surroundings: Surroundings) -> Rules:
    """A session's rules as paths of the view: places of the host translated, roots made grants."""
    faults: list[Fault] = []
    led_from = [_protected(place) for place in surroundings.own]
    if session.deny.defaults:
        for home in surroundings.homes:
            led_from += denylist.built_in_places(home)
        for home in surroundings.other_homes:
            led_from += denylist.built_in_places_of_another(home)
    denied_paths: list[DeniedPath] = []
    led_to: list[DeniedHostPath] = []
    for text in session.deny.paths:
        denial = Denial(text, "session")
        if text.startswith("/"):
            path = view_path(from_text(text))
            denied_paths.append(DeniedPath(path, denial))
            led_to += [DeniedHostPath(further, denial) for further in _led_from(path, surroundings)]
        else:
            led_from += [DeniedHostPath(place, denial) for place in _home_places(text, surroundings, faults, "deny.paths")]
    # What a file of policyfs's own leads through is closed as it is: a directory behind such a link is not closed whole.
    denied = [_protected(place) for place in surroundings.protected] + led_from
    denied += [
        DeniedHostPath(further, place.denial) for place in led_from for further in surroundings.ways.get(place.path, ())
    ]
    names = [(glob, Denial(glob, "session")) for glob in session.deny.names]
    names += [(f"*{extension}", Denial(f"*{extension}", "session")) for extension in session.deny.extensions]
    grants = {**_root_grants(session, surroundings, faults), **session.grants}
    floors = [Floor(path, level) for path, level in session.floors.items()]
    for path, level in [*session.floors.items(), *_lowering(grants)]:
        floors += _floors_led_to("session", path, _led_from(path, surroundings), level, surroundings)
    for author, places in surroundings.floors.items():
        floors += _translated_floors(author, places, surroundings)
    if faults:
        raise SessionFaults("session", faults)
    crossed: list[ViewPath] = []
    for source, part in reversed(_seen(surroundings)):
        denied_paths += denylist.translated(led_to + denied, source, part)
        seen = (denylist.in_view(place, source, part) for place in surroundings.crossed)
        crossed += [path for path in seen if path is not None]
    return Rules(
        grants=[Grant(path, level) for path, level in grants.items()],
        floors=floors,
        boundary=session.boundary,
        denied_paths=denied_paths,
        denied_names=names,
        built_in_names=denylist.built_in_names() if session.deny.defaults else (),
        excepted_names=session.deny.exceptions,
        git=_git_parts(surroundings) if session.protect_git else None,
        denied_places=denied,
        crossed=crossed,
    )


def _git_parts(surroundings: Surroundings) -> dict[ViewPath, git.Part]:
    """The parts in a git directory that paths of the view have by what stands on the host: those that begin in SOURCE's own
    path, or in another path to a part of it, and those of git directories by another name."""
    parts: dict[ViewPath, git.Part] = {}
    for path, place in ((ROOT, surroundings.source), *surroundings.elsewhere):
        part = git.part_below(git.OUTSIDE, components(place))
        if part.inside:
            parts[path] = part
    for directory in surroundings.git_directories:
        rest = below(directory, surroundings.source)
        if rest is not None:
            parts.setdefault(ViewPath(b"/" + rest), git.REPOSITORY)
    return parts
def _protected(place: HostPath) -> DeniedHostPath:
    return DeniedHostPath(place, Denial(place.decode("utf-8", "surrogateescape"), PROTECTED))


def _seen(surroundings: Surroundings) -> list[tuple[HostPath, ViewPath]]:
    """The places of the host that a view shows something of, each with the path in the view at which it is seen."""
    return [(surroundings.source, ROOT), *((other, part) for part, other in surroundings.elsewhere)]


def _led_from(path: ViewPath, surroundings: Surroundings) -> tuple[HostPath, ...]:
    """The further paths to which links lead from a path of the view."""
    return surroundings.ways.get(_on_host(path, surroundings), ())


def _on_host(path: ViewPath, surroundings: Surroundings) -> HostPath:
    return host_path(surroundings.source + path)


def _lowering(grants: Mapping[ViewPath, Level]) -> Iterator[tuple[ViewPath, Level]]:
    """The grants that give less than the one above them."""
    for path, level in grants.items():
        names = components(path)
        nearest = (ViewPath(joined(names[:length])) for length in range(len(names) - 1, -1, -1))
        above = next((grants[each] for each in nearest if each in grants), None)
        if above is not None and level < above:
            yield path, level


def _floors_led_to(
    author: str, rule: bytes, led_to: Sequence[HostPath], level: Level, surroundings: Surroundings
) -> list[Floor]:
    """Floors for what a rule leads to by links. Each is a source of floors of its own: it lowers, and raises nothing."""
    reason = f"{author}: {rule.decode('utf-8', 'surrogateescape')} leads here"
    return [
        Floor(path, level, reason)
        for source, part in _seen(surroundings)
        for place in led_to
        if (path := denylist.in_view(place, source, part)) is not None
    ]


def _home_places(text: str, surroundings: Surroundings, faults: list[Fault], key: str) -> list[HostPath]:
    if text.startswith("~") and not surroundings.homes:
        faults.append(Fault(key, f'"{text}" needs a home, and there is none; set HOME'))
        return []
    try:
        return [host_path(from_text(text), home) for home in surroundings.homes or (None,)]
    except PathFault as fault:
        faults.append(Fault(key, str(fault)))
        return []


def _root_grants(session: Session, surroundings: Surroundings, faults: list[Fault]) -> dict[ViewPath, Level]:
    """Read and write roots as grants (rule root-1): places of the host at `ro` and `stage`. One that the view
    does not hold opens nothing here, since roots are of the machine and the view is of one tree."""
    grants: dict[ViewPath, Level] = {}
    for roots, level, key in (
        (session.read_roots, Level.RO, "roots.read"),
        (session.write_roots, Level.STAGE, "roots.write"),
    ):
        for text in roots:
            for place in _home_places(text, surroundings, faults, key):
                path = denylist.in_view(surroundings.led_from(place)[0], surroundings.source)
                if path is not None:
                    grants[path] = max(level, grants.get(path, level))
    return grants


def _translated_floors(author: str, places: Mapping[HostPath, Level], surroundings: Surroundings) -> list[Floor]:
    """One floor source in the view. By what other paths say of SOURCE or a part of it, a level is only ever lowered."""
    meant, spelled, floors = [], [], []
    for place, level in places.items():
        path, led_to = surroundings.led_from(place)
        meant.append((path, level))
        spelled += [(each, level) for each in (place, *surroundings.ways.get(place, ()))]
        floors += _floors_led_to(author, place, led_to, level, surroundings)
    floors += _floors_below(author, meant, surroundings.source, ROOT)
    for part, other in surroundings.elsewhere:
        here = host_path(surroundings.source + part)
        # A place above both paths has been heard by the view's own, under which a nearer one may stand.
        apart = [(place, level) for place, level in spelled if below(here, place) is None or below(other, place) is None]
        # A source of its own, by its name too: beside the others it lowers, among them it could raise.
        same = " is ".join(path.decode("utf-8", "surrogateescape") for path in (part, other))
        floors += _floors_below(f"{author}; {same}", apart, other, part)
    return floors


def _floors_below(author: str, spelled: list[tuple[HostPath, Level]], source: HostPath, part: ViewPath) -> list[Floor]:
    """The floors of what is seen at `part` of a view: a place above `source` holds for all of it, where no nearer does."""
    nearest: tuple[int, Level] | None = None
    floors: dict[ViewPath, Level] = {}
    for place, level in spelled:
        path = denylist.in_view(place, source, part)
        if path is None:
            continue
        if path != part:
            floors[path] = min(level, floors.get(path, level))
            continue
        depth = 0 if place == b"/" else place.count(b"/")
        if nearest is None or depth > nearest[0]:
            nearest = (depth, level)
        elif depth == nearest[0]:
            nearest = (depth, min(level, nearest[1]))
    if nearest is not None:
        floors[part] = nearest[1]
    return [Floor(path, level, author) for path, level in floors.items()]


def homes_of(home: HostPath, real: HostPath) -> tuple[HostPath, ...]:
    """A home under the name the user has for it and its real path, once where they are one."""
    return (home,) if home == real else (home, real)


def named_places(session: Session, surroundings: Surroundings) -> set[HostPath]:
    """Every place of the host that the rules of a view name, and that is to be guarded wherever links lead from it: the
    keys of `Surroundings.ways`. A rule that is not a path is left out: a policy tells what is wrong with it."""
    places = {*surroundings.own, *(place for floors in surroundings.floors.values() for place in floors)}
    faults: list[Fault] = []
    if session.deny.defaults:
        for home in (*surroundings.homes, *surroundings.other_homes):
            places |= {denied.path for denied in denylist.built_in_places(home)}
    for text in session.deny.paths:
        if text.startswith("/"):
            places.add(_on_host(view_path(from_text(text)), surroundings))
        else:
            places.update(_home_places(text, surroundings, faults, "deny.paths"))
    for text in (*session.read_roots, *session.write_roots):
        places.update(_home_places(text, surroundings, faults, "roots"))
    grants = {**_root_grants(session, surroundings, faults), **session.grants}
    return places | {_on_host(path, surroundings) for path, _ in (*session.floors.items(), *_lowering(grants))}
