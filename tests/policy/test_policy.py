"""The policy of one view: what it tells of a path, and how rules of the machine become rules of the view."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from policyfs.policy.denylist import in_view
from policyfs.policy.levels import Level, Standing
from policyfs.policy.paths import HostPath, ViewPath
from policyfs.policy.policy import Answer, CompiledPolicy, Surroundings, Verdict, homes_of, named_places
from policyfs.policy.refusals import Refusal
from policyfs.policy.rules import Boundary, Decision, Denial, Floor, Grant, NoGrant
from policyfs.policy.session import Deny, Fault, Session, SessionFaults

HOME = HostPath(b"/home/ada")
OTHER_HOME = HostPath(b"/srv/home/ada")
SOURCE = HostPath(b"/srv/tree")
NOWHERE = Surroundings(SOURCE)


def view(text: str) -> ViewPath:
    return ViewPath(text.encode("utf-8", "surrogateescape"))


def opening(grants: Mapping[str, Level], surroundings: Surroundings = NOWHERE, **fields: object) -> CompiledPolicy:
    return CompiledPolicy(Session(grants={view(path): level for path, level in grants.items()}, **fields), surroundings)


# -- what it tells of a path ---------------------------------------------------------------------------------------------


def test_a_decision_has_all_that_was_considered() -> None:
    """The path, its level and standing, the rule that decided and every rule that applied, in the order of the design."""
    policy = opening({"/p": Level.STAGE}, boundary=view("/p"), floors={view("/p"): Level.RO}, deny=Deny(names=("shy",)))
    grant, floor, denial = Grant(view("/p"), Level.STAGE), Floor(view("/p"), Level.RO), Denial("shy", "session")
    boundary = Boundary(view("/p"))
    inside, denied, outside = view("/p/a"), view("/p/shy"), view("/q")
    assert policy.decide(inside) == Decision(inside, Level.RO, Standing.VISIBLE, floor, (grant, floor))
    assert policy.decide(denied) == Decision(denied, Level.NONE, Standing.HIDDEN, denial, (grant, floor, denial))
    assert policy.decide(outside) == Decision(outside, Level.NONE, Standing.HIDDEN, boundary, (NoGrant(), boundary))


@pytest.mark.parametrize(
    ("path", "refusals"),
    [
        ("/p/staged", (None, None, Refusal.NOTHING_TO_COMMIT)),
        ("/p/read", (None, Refusal.READ_ONLY, Refusal.NOTHING_TO_COMMIT)),
        ("/p", (Refusal.DENIED,) * 3),
        ("/p/hidden", (Refusal.DENIED,) * 3),
        ("/p/read/hidden/below", (Refusal.MISSING,) * 3),
    ],
)
def test_an_explanation_answers_for_each_kind_of_operation(path: str, refusals: tuple[Refusal | None, ...]) -> None:
    """Look, change and commit, in this order, each with its refusal and the refusal's own text for the path."""
    policy = opening({"/p/staged": Level.STAGE, "/p/read": Level.RO, "/p/read/hidden": Level.NONE})
    at = view(path)
    assert policy.explain(at) == Verdict(
        policy.decide(at),
        tuple(
            Answer(operation, refused, None if refused is None else refused.text(at))
            for operation, refused in zip(("look", "change", "commit"), refusals, strict=True)
        ),
    )


def test_what_is_told_of_a_view_names_every_grant_and_every_change_of_level() -> None:
    """A grant that only repeats what lies above it is told too, since its author wrote it; a directory on the way, at the
    level of what lies above it, is not."""
    policy = opening(
        {"/": Level.RO, "/again": Level.RO, "/way/to/write": Level.STAGE, "/off": Level.NONE, "/off/on": Level.RO}
    )
    told = {"/": Level.RO, "/again": Level.RO, "/off/on": Level.RO, "/way/to/write": Level.STAGE}
    assert policy.granted() == [(view(path), level) for path, level in told.items()]


def test_what_is_told_of_a_view_that_folds_case() -> None:
    """A folded name is told as bytes, those that are not UTF-8 among them."""
    session = Session(grants={ViewPath("/\u00c4\udcff".encode("utf-8", "surrogateescape")): Level.RO})
    assert CompiledPolicy(session, NOWHERE, fold_case=True).granted() == [(ViewPath("/\u00e4".encode() + b"\xff"), Level.RO)]


def test_where_a_link_may_land_outside() -> None:
    """On a listed place or below it, by whole names, unless a denied place or name is on the way."""
    policy = opening(
        {"/": Level.RO},
        Surroundings(SOURCE, homes=(HOME,)),
        links_outside=(HostPath(b"/usr"), HOME, HostPath(b"/opt/tools")),
        deny=Deny(paths=("~/quiet",), names=("shy",)),
    )
    shown = {b"/usr", b"/usr/bin/python3", b"/home/ada", b"/home/ada/notes", b"/home/ada/quieter", b"/opt/tools/a"}
    kept = {
        b"/", b"/us", b"/usrlocal", b"/opt", b"/opt/a", b"/home", b"/home/ada/.ssh", b"/home/ada/.ssh/id",
        b"/home/ada/quiet", b"/home/ada/quiet/a/b", b"/usr/shy", b"/usr/shy/a", b"/usr/server.key",
    }  # fmt: skip
    assert {place for place in shown | kept if policy.shown_outside(HostPath(place))} == shown


def test_credentials_of_other_homes_are_closed() -> None:
    """The built-in places hold in every home that is named, told by their paths; a session's `~` is one of them."""
    other = HostPath(b"/home/bob")
    surroundings = Surroundings(HostPath(b"/home"), homes=(HOME,), other_homes=(other,))
    policy = opening({"/": Level.RO}, surroundings, deny=Deny(paths=("~/quiet",)))
    closed = {
        b"/ada/.ssh/id": "~/.ssh", b"/bob/.ssh/id": "/home/bob/.ssh", b"/bob/.netrc": "/home/bob/.netrc",
        b"/ada/quiet": "~/quiet", b"/bob/quiet": None, b"/bob/notes": None, b"/eve/.ssh": None,
    }  # fmt: skip
    for path, rule in closed.items():
        decision = policy.decide(view(path.decode()))
        assert decision.level is (Level.RO if rule is None else Level.NONE)
        assert rule is None or rule in str(decision.rule)
    odd = Surroundings(HostPath(b"/home"), other_homes=(HostPath(b"/home/\xff"),))
    decision = opening({"/": Level.RO}, odd).decide(ViewPath(b"/\xff/.ssh"))
    assert "/home/\udcff/.ssh" in str(decision.rule) or "/home/\\xff/.ssh" in str(decision.rule)
    undefended = opening({"/": Level.RO}, surroundings, deny=Deny(defaults=False))
    assert undefended.place(view("/bob/.ssh")).level is Level.RO


# -- rules of the machine ------------------------------------------------------------------------------------------------


def test_a_place_of_the_home_needs_a_home() -> None:
    """A rule from `~` is a fault, told at its key, where there is no home; what else is wrong is told with it."""
    session = Session(deny=Deny(paths=("~/x", "/y")), read_roots=("~/r", "/" + "n" * 256), write_roots=("~",))
    with pytest.raises(SessionFaults) as caught:
        CompiledPolicy(session, NOWHERE)
    assert caught.value.where == "session"
    assert caught.value.faults == [
        Fault("deny.paths", '"~/x" needs a home, and there is none; set HOME'),
        Fault("roots.read", '"~/r" needs a home, and there is none; set HOME'),
        Fault("roots.read", f"name too long: `{'n' * 256}`"),
        Fault("roots.write", '"~" needs a home, and there is none; set HOME'),
    ]


def test_who_denies_is_told() -> None:
    """Each denial with its rule as it was written, and who wrote it."""
    session = Session(grants={ViewPath(b"/"): Level.RO}, deny=Deny(paths=("/a", "~/b"), names=("c*",), extensions=(".d",)))
    protected = (HostPath(b"/srv/tree/e\xff"),)
    policy = CompiledPolicy(session, Surroundings(SOURCE, homes=(SOURCE,), protected=protected))
    denials = {
        b"/a": Denial("/a", "session"),
        b"/b": Denial("~/b", "session"),
        b"/x/cc": Denial("c*", "session"),
        b"/x/a.d": Denial("*.d", "session"),
        b"/e\xff": Denial("/srv/tree/e\udcff", "policyfs itself"),
        b"/.ssh/id": Denial("~/.ssh", "built-in denylist"),
        b"/x/.env": Denial(".env", "built-in denylist"),
        b"/x/a.pem": Denial("*.pem", "built-in denylist"),
    }
    assert {path: policy.decide(ViewPath(path)).rule for path in denials} == denials


def test_what_is_excepted_from_the_built_in_names() -> None:
    """`cacert.pem` (docs/decisions/0002-cacert.md), or what the session says in its place; its own rules hold."""

    def denied(deny: Deny) -> set[bytes]:
        names = (b"/cacert.pem", b"/public.pem", b"/id.key")
        policy = opening({"/": Level.RO}, deny=deny)
        return {name for name in names if policy.decide(ViewPath(name)).level is Level.NONE}

    assert denied(Deny()) == {b"/public.pem", b"/id.key"}
    assert denied(Deny(exceptions=("public.*",))) == {b"/cacert.pem", b"/id.key"}
    assert denied(Deny(exceptions=())) == {b"/cacert.pem", b"/public.pem", b"/id.key"}
    assert denied(Deny(extensions=(".pem",))) == {b"/cacert.pem", b"/public.pem", b"/id.key"}
    assert denied(Deny(defaults=False)) == set()


@pytest.mark.parametrize("fold_case", [False, True])
def test_a_policy_remembers_what_it_was_made_of(fold_case: bool) -> None:
    """So that the same can be made again with another session."""
    session = Session()
    policy = CompiledPolicy(session, NOWHERE, fold_case=fold_case)
    assert (policy.session, policy.surroundings, policy.fold_case) == (session, NOWHERE, fold_case)


def test_a_place_behind_a_link_is_where_the_link_leads() -> None:
    """A denied place, a root and a floor hold where a link leads, and under the name that was written."""
    inside = {name: HostPath(b"/srv/tree/" + name) for name in (b"keys", b"read", b"write", b"low")}
    ways = {HostPath(HOME + b"/" + name): (place,) for name, place in inside.items()}
    surroundings = Surroundings(
        SOURCE, homes=(HOME,), ways=ways, floors={"site": {HostPath(b"/home/ada/low"): Level.NONE}}
    )
    roots = {"read_roots": ("~/read",), "write_roots": ("~/write",)}
    policy = opening({"/low": Level.RO, "/keys": Level.RO}, surroundings, deny=Deny(paths=("~/keys",)), **roots)
    levels = {b"/keys": Level.NONE, b"/read": Level.RO, b"/write": Level.STAGE, b"/low": Level.NONE}
    assert {path: policy.decide(ViewPath(path)).level for path in levels} == levels
    assert {HOME + b"/keys", inside[b"keys"]} <= set(policy.denied_places)


def test_a_rule_that_closes_holds_wherever_links_lead() -> None:
    """A denied path, a floor, and a grant of less than what is above it hold on every further path of what they name. A
    grant of more opens nothing there, a floor of more raises nothing, and the reason says where the link leads from."""
    ways = {
        HostPath(SOURCE + rule): tuple(HostPath(led_to + rule) for led_to in (SOURCE + b"/pub", b"/out", SOURCE + b"/w"))
        for rule in (b"/none", b"/less", b"/more", b"/floor", b"/denied", b"/low/high")
    }
    policy = opening(
        {"/": Level.RO, "/pub": Level.STAGE, "/none": Level.NONE, "/pub/x": Level.STAGE, "/more": Level.COMMIT}
        | {"/w": Level.STAGE, "/w/less": Level.COMMIT, "/less": Level.NONE, "/less/open": Level.COMMIT},
        Surroundings(SOURCE, ways=ways, floors={"site": {HostPath(b"/srv/tree/low"): Level.NONE}}),
        floors={view("/floor"): Level.RO, view("/low"): Level.RO, view("/low/high"): Level.COMMIT},
        deny=Deny(paths=("/denied",)),
    )
    expected = {"/none": 0, "/less": 0, "/denied": 0, "/floor": 1, "/low/high": 2, "/more": 2}
    for led_to in ("/pub", "/w"):
        for below in ("", "/x", "/open"):
            levels = {rule: policy.place(view(f"{led_to}{rule}{below}")).level for rule in expected}
            assert levels == expected
    assert str(policy.decide(view("/pub/none/k")).rule) == "floor /pub/none = none (session: /none leads here)"
    assert str(policy.decide(view("/pub/denied")).rule) == "denylist /denied (session)"


def test_a_rule_that_opens_follows_no_link_inside_the_source() -> None:
    """A root, and a higher floor of a floors file, mean the first path of a place that the view has: a home that is a link.
    Whoever could put a link there later would choose what else is opened."""
    linked, home, led_to = HostPath(b"/l/x"), HostPath(b"/srv/tree/x"), HostPath(b"/srv/tree/elsewhere")
    ways = {linked: (home, led_to), home: (led_to,)}
    floors = {"site": {SOURCE: Level.RO, linked: Level.COMMIT}}
    for place in ("/l/x", "/srv/tree/x"):
        policy = opening({}, Surroundings(SOURCE, ways=ways), write_roots=(place,))
        assert [policy.place(view(path)).level for path in ("/x", "/elsewhere")] == [2, 0]
    capped = opening({"/": Level.COMMIT}, Surroundings(SOURCE, ways=ways, floors=floors))
    assert [capped.place(view(path)).level for path in ("/x", "/elsewhere", "/other")] == [3, 1, 1]


def test_a_rule_led_to_holds_by_every_path_that_a_mount_gives_it() -> None:
    """A link may lead to a part of SOURCE by another path that a mount gives it."""
    ways = {HostPath(SOURCE + b"/a"): (HostPath(b"/other/k"),)}
    elsewhere = ((ViewPath(b"/part"), HostPath(b"/other")),)
    for rules in ({"deny": Deny(paths=("/a",))}, {"floors": {view("/a"): Level.NONE}}):
        policy = opening({"/": Level.RO}, Surroundings(SOURCE, ways=ways, elsewhere=elsewhere), **rules)
        assert [policy.place(view(path)).level for path in ("/a", "/part/k/x", "/part", "/k")] == [0, 0, 1, 1]


def test_what_a_way_crosses_stays() -> None:
    """What is walked through and left by `..` is not a path of a rule, and yet holds like what leads to one, for itself and
    not for what is below it."""
    policy = opening({"/": Level.STAGE}, Surroundings(SOURCE, crossed=(HostPath(b"/srv/tree/a/b"), HostPath(b"/out"))))
    leads = {path: policy.place(view(path)).leads for path in ("/", "/a", "/a/b", "/a/b/c", "/a/c", "/out")}
    assert leads == {"/": True, "/a": True, "/a/b": True, "/a/b/c": False, "/a/c": False, "/out": False}
    assert policy.place(view("/a/b")).level is Level.STAGE
    assert policy.granted() == [(b"/", Level.STAGE)]


def test_the_nearest_floor_above_the_source_holds() -> None:
    """Of one source's floors at and above SOURCE the nearest holds for the whole view, one at `/` being the farthest."""

    def level(floors: Mapping[bytes, Level]) -> Level:
        places = {HostPath(place): level for place, level in floors.items()}
        policy = opening({"/": Level.COMMIT}, Surroundings(SOURCE, floors={"site": places}))
        return policy.decide(view("/a")).level

    assert level({b"/": Level.NONE, b"/srv": Level.STAGE}) is Level.STAGE
    assert level({b"/srv": Level.STAGE, b"/": Level.NONE}) is Level.STAGE
    assert level({b"/srv": Level.NONE, b"/srv/tree": Level.RO}) is Level.RO
    assert level({b"/": Level.RO, b"/srv/other": Level.NONE}) is Level.RO


@pytest.mark.parametrize("first", [Level.NONE, Level.STAGE])
def test_two_floors_of_one_source_on_one_path(first: Level) -> None:
    """Where two places of the machine are one path of the view, the lower level holds, whichever comes first."""
    second = Level.STAGE if first is Level.NONE else Level.NONE
    inside, alias = HostPath(b"/srv/tree/a"), HostPath(b"/alias")
    surroundings = Surroundings(SOURCE, ways={alias: (inside,)}, floors={"site": {inside: first, alias: second}})
    assert opening({"/": Level.COMMIT}, surroundings).decide(view("/a")).level is Level.NONE


def test_a_place_that_a_mount_shows_elsewhere_too() -> None:
    """What is denied by another path to SOURCE or to a part of it is denied in the view, whole where SOURCE lies in it; a
    root opens by its own path alone."""

    def levels(part: bytes, other: bytes, *paths: str) -> list[Level]:
        surroundings = Surroundings(
            SOURCE, homes=(HOME,), elsewhere=((ViewPath(part), HostPath(other)),), own=(HostPath(HOME + b"/own"),)
        )
        policy = opening({"/": Level.RO}, surroundings, write_roots=("~/root",), deny=Deny(paths=("~/keys",)))
        return [policy.decide(view(path)).level for path in paths]

    assert levels(b"/", HOME, "/", "/.ssh/id", "/keys", "/own/a", "/.sshd", "/root") == [1, 0, 0, 0, 1, 1]
    assert levels(b"/", b"/home", "/ada/.ssh/id", "/ada", "/.ssh") == [0, 1, 1]
    assert levels(b"/a/b", HOME, "/a/b/.ssh/id", "/a/b", "/.ssh", "/a/.ssh") == [0, 1, 1, 1]
    assert levels(b"/a/b", HOME + b"/.ssh/inner", "/a/b", "/a/b/x", "/a", "/a/bc") == [0, 0, 1, 1]
    assert levels(b"/", HOME + b"/own/inner", "/", "/x") == [0, 0]


def test_places_that_mounts_show_elsewhere_add_up() -> None:
    """What is denied by one of several other paths is denied, beside what the session denies by the view's own."""
    elsewhere = ((ViewPath(b"/one"), HOME), (ViewPath(b"/two"), OTHER_HOME), (ViewPath(b"/three"), HostPath(b"/mnt")))
    surroundings = Surroundings(SOURCE, homes=(HOME, OTHER_HOME), elsewhere=elsewhere)
    policy = opening({"/": Level.RO}, surroundings, deny=Deny(paths=("/own",)))
    levels = {"/own": 0, "/one/.ssh": 0, "/two/.ssh": 0, "/three/.ssh": 1, "/one": 1, "/two": 1, "/": 1}
    assert {path: policy.decide(view(path)).level for path in levels} == levels


def test_a_place_in_a_part_of_a_view() -> None:
    """Is below the part by what is left of it below what the part shows, whatever the part is called; where the part lies
    in it, it is all of the part."""
    other = HostPath(b"/other")
    for part in (b"/", b"/a", b"/X", b"/a/boX"):
        below = part.rstrip(b"/")
        assert in_view(HostPath(b"/other/c/d"), other, ViewPath(part)) == below + b"/c/d"
        for above in (b"/other", b"/"):
            assert in_view(HostPath(above), other, ViewPath(part)) == part
        assert in_view(HostPath(b"/others"), other, ViewPath(part)) is None


def test_a_floor_holds_by_every_path_to_a_place() -> None:
    """By another path to SOURCE or to a part of it a floor lowers, and none raises; what lies above both paths is said of
    the view by its own, under which a nearer floor may stand."""

    def levels(part: bytes, other: bytes, floors: Mapping[bytes, Level], *paths: str) -> list[Level]:
        site = {HostPath(place): level for place, level in floors.items()}
        elsewhere = ((ViewPath(part), HostPath(other)), (ViewPath(b"/two"), HostPath(other)))
        policy = opening({"/": Level.COMMIT}, Surroundings(SOURCE, elsewhere=elsewhere, floors={"site": site}))
        return [policy.decide(view(path)).level for path in paths]

    none, ro, stage = Level.NONE, Level.RO, Level.STAGE
    assert levels(b"/", b"/o", {b"/o/a": none, b"/o": stage}, "/a", "/b", "/two/a", "/two/b") == [0, 2, 0, 2]
    assert levels(b"/", b"/o/p", {b"/o/p/q": stage, b"/o": ro}, "/", "/q", "/two/q/r") == [1, 2, 1]
    assert levels(b"/c", b"/o", {b"/o": ro}, "/c/x", "/c", "/cd", "/") == [1, 1, 3, 3]
    # Each lowers what the other says.
    assert levels(b"/", b"/o", {b"/srv/tree": ro, b"/o/a": stage}, "/a", "/b") == [1, 1]
    assert levels(b"/", b"/o", {b"/srv/tree/a": stage, b"/o": ro}, "/a", "/b") == [1, 1]
    # The root of the machine, and the directory that both are in.
    assert levels(b"/", b"/o", {b"/": none, b"/srv": stage}, "/a") == [2]
    assert levels(b"/", b"/srv/o", {b"/srv": none, b"/srv/tree": stage}, "/a") == [2]
    assert levels(b"/c", b"/srv/tree/o", {b"/srv/tree": ro, b"/srv/tree/c": stage}, "/c/a", "/two/a") == [2, 1]


def test_who_floors_by_another_path_is_told() -> None:
    """The source of floors, and which place the path is too, whatever bytes that has."""
    for other, told in ((b"/o", "/o"), (b"/\xff", "/\\xff")):
        surroundings = Surroundings(
            SOURCE, elsewhere=((ViewPath(b"/c"), HostPath(other)),), floors={"site": {HostPath(other + b"/a"): Level.RO}}
        )
        rule = opening({"/": Level.COMMIT}, surroundings).decide(view("/c/a")).rule
        assert str(rule) == f"floor /c/a = ro (site; /c is {told})"


def test_the_names_of_a_home() -> None:
    """A home has two where a link leads to it, one where none does."""
    assert homes_of(HOME, HOME) == (HOME,)
    assert homes_of(HOME, OTHER_HOME) == (HOME, OTHER_HOME)


def test_the_places_that_a_session_speaks_of() -> None:
    """Every place of every home that a rule names, built in or the session's own, and every other place of the host."""
    session = Session(
        grants={view("/"): Level.STAGE, view("/a"): Level.STAGE, view("/a/b/c"): Level.RO, view("/a/b/c/d"): Level.COMMIT},
        floors={view("/f"): Level.COMMIT},
        deny=Deny(defaults=False, paths=("~/d", "/v")),
        read_roots=("~/r",),
        write_roots=("relative", "/w"),
    )
    homes = Surroundings(SOURCE, homes=(HOME, OTHER_HOME), own=(HostPath(b"/o"),), floors={"site": {HOME: Level.RO}})
    assert named_places(session, homes) == {
        *(home + below for home in (HOME, OTHER_HOME) for below in (b"/d", b"/r")),
        *(SOURCE + below for below in (b"/v", b"/f", b"/a/b/c")),
        HOME, b"/o", b"/w",
    }  # fmt: skip
    built_in = named_places(Session(), homes)
    assert {home + below for home in (HOME, OTHER_HOME) for below in (b"/.ssh", b"/.config/gh")} <= built_in
