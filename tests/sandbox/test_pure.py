"""The decisions of `policyfs run`, without running anything."""

from __future__ import annotations

import os
import stat

import pytest

from policyfs.host.mounts import Mount
from policyfs.policy.levels import Level
from policyfs.policy.paths import ROOT, HostPath
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.session import Session
from policyfs.sandbox import machine
from policyfs.sandbox.admission import Facts, alias_of_source, refused, unfit_source
from policyfs.sandbox.environment import EnvironmentFault, environment
from policyfs.sandbox.layout import NAMESPACES, Place, Sandbox, SystemPlace, arguments, links_to, private_home
from policyfs.sandbox.streams import Treatment, treatment

HOME = HostPath(b"/home/me")
TREE = HostPath(b"/home/me/tree")


def _sandbox(source: bytes = TREE, **others: object) -> Sandbox:
    values: dict[str, object] = {
        "source": HostPath(source),
        "view": HostPath(b"/run/view"),
        "home": HOME,
        "home_is_private": True,
        "directory": HostPath(source),
        "environment": {},
        "system": [SystemPlace(HostPath(b"/usr")), SystemPlace(HostPath(b"/bin"), link=b"usr/bin")],
        **others,
    }
    return Sandbox(**values)  # type: ignore[arg-type] # whatever a test gives


def _index(made: list[bytes], *words: bytes) -> int:
    """Where these words stand one after another."""
    for start in range(len(made) - len(words) + 1):
        if tuple(made[start : start + len(words)]) == words:
            return start
    raise AssertionError(f"{words} is not in {made}")


# -- the layout


@pytest.mark.parametrize("network", [True, False])
def test_namespaces_and_rights(network: bool) -> None:
    """Every namespace is its own, the network's on request, and no right is kept."""
    made = arguments(_sandbox(network=network), {}, [])
    assert made[: len(NAMESPACES)] == list(NAMESPACES)
    assert {b"--unshare-all", b"--disable-userns", b"--new-session", b"--die-with-parent", b"--cap-drop"} <= set(made)
    assert (b"--share-net" in made) is network


def test_the_view_comes_last() -> None:
    """After every other mount, so that nothing covers it; then the root is closed."""
    places = [Place(HostPath(b"/opt/tools"), writable=False), Place(HostPath(b"/home/me/data"), writable=True)]
    made = arguments(_sandbox(places=places), {HostPath(b"/etc/passwd"): 7}, [])
    view = _index(made, b"--bind", b"/run/view", TREE)
    for earlier in (
        (b"--ro-bind", b"/usr", b"/usr"),
        (b"--ro-bind-data", b"7", b"/etc/passwd"),
        (b"--proc", b"/proc"),
        (b"--tmpfs", b"/tmp"),
        (b"--tmpfs", HOME),
        (b"--ro-bind", b"/opt/tools", b"/opt/tools"),
        (b"--bind", b"/home/me/data", b"/home/me/data"),
    ):
        assert _index(made, *earlier) < view
    assert _index(made, b"--remount-ro", b"/") > view


@pytest.mark.parametrize(
    ("source", "left_out"),
    [
        (b"/tmp", (b"--tmpfs", b"/tmp")),
        (b"/var", (b"--tmpfs", b"/var/tmp")),
        (b"/usr", (b"--ro-bind", b"/usr", b"/usr")),
        (b"/etc", (b"--ro-bind-data", b"7", b"/etc/passwd")),
    ],
)
def test_of_what_lies_in_the_source_only_the_view_is_shown(source: bytes, left_out: tuple[bytes, ...]) -> None:
    """What would stand in SOURCE otherwise is left out; with another SOURCE it is there."""
    files = {HostPath(b"/etc/passwd"): 7}
    with pytest.raises(AssertionError):
        _index(arguments(_sandbox(source), files, []), *left_out)
    _index(arguments(_sandbox(), files, []), *left_out)


def test_a_place_above_another_comes_first() -> None:
    """Or it would cover it."""
    places = [Place(HostPath(b"/data/a/b"), writable=True), Place(HostPath(b"/data"), writable=False)]
    made = arguments(_sandbox(places=places), {}, [])
    assert _index(made, b"--ro-bind", b"/data", b"/data") < _index(made, b"--bind", b"/data/a/b", b"/data/a/b")


@pytest.mark.parametrize(
    ("home", "taken", "expected"),
    [
        (b"/home/me", [b"/home/me/tree"], b"/home/me"),
        (b"/home/me", [b"/home/me"], b"/run/home"),
        (b"/home/me", [b"/home"], b"/run/home"),
        (b"/home/me", [b"/home", b"/run"], b"/mnt/home"),
        (b"/", [b"/home/me"], b"/run/home"),
        (b"/tmp", [b"/srv"], b"/run/home"),
        (b"/usr/games", [b"/usr"], b"/run/home"),
        (b"/home/me", [b"/"], None),
    ],
)
def test_where_an_empty_home_stands(home: bytes, taken: list[bytes], expected: bytes | None) -> None:
    """At the user's own path unless that lies in what is taken."""
    assert private_home(HostPath(home), [HostPath(place) for place in taken]) == expected


def test_other_names_become_links_where_nothing_is() -> None:
    """A name in the home is made a link; one in a place, around one, or the real one is not."""
    named = {b"/home/me/name": TREE, b"/data/name": TREE, b"/srv": b"/data/srv", b"/home": b"/data/home", TREE: TREE}
    made = links_to({HostPath(name): HostPath(real) for name, real in named.items()}, [HostPath(b"/data"), TREE], [HOME])
    assert made == {b"/home/me/name": TREE, b"/srv": b"/data/srv"}


def test_below_a_name_that_is_a_link_no_link_is_made() -> None:
    """There the place that the upper one leads to already has what the lower one names."""
    named = {b"/home/me/d": b"/data", b"/home/me/d/sub": b"/data/sub", b"/home/me/d2": b"/data/2"}
    made = links_to({HostPath(name): HostPath(real) for name, real in named.items()}, [HostPath(b"/data"), TREE], [HOME])
    assert made == {b"/home/me/d": b"/data", b"/home/me/d2": b"/data/2"}


# -- the environment


def _inside(outside: dict[bytes, bytes], *named: str) -> dict[bytes, bytes]:
    return environment(outside, named, HOME, b"me", b"/bin/sh")


def test_what_passes_is_listed() -> None:
    """Variables that are not on the list stay outside, whatever they are called."""
    made = _inside({b"TERM": b"xterm", b"LC_ALL": b"C", b"NEW_TOKEN": b"x", b"SSH_AUTH_SOCK": b"y", b"LD_PRELOAD": b"z"})
    assert set(made) == {b"TERM", b"LC_ALL", b"HOME", b"USER", b"LOGNAME", b"SHELL", b"PATH"}


def test_relative_entries_of_the_path_stay_outside() -> None:
    """An empty or relative entry of PATH would run what lies in the tree."""
    assert _inside({b"PATH": b":.:/a:b:/usr/bin"})[b"PATH"] == b"/a:/usr/bin:/usr/local/bin:/bin"


def test_values_are_bytes() -> None:
    """A value that is not UTF-8 passes as it is."""
    assert _inside({b"X": b"\xff"}, "X", "Y=\udcfe=1")[b"X"] == b"\xff"
    assert _inside({}, "Y=\udcfe=1")[b"Y"] == b"\xfe=1"


@pytest.mark.parametrize("text", ["", "=", "MISSING", "HOME", "HOME=/x", "A\0=b"])
def test_a_variable_that_cannot_be_had(text: str) -> None:
    """No name, a name that is not set, a NUL, and HOME are faults."""
    with pytest.raises(EnvironmentFault, match="--env"):
        _inside({b"HOME": b"/home/me"}, text)


# -- places


def _facts(origins: dict[bytes, list[tuple[str, bytes]]] | None = None, source: bytes = TREE) -> Facts:
    surroundings = Surroundings(source=HostPath(b"/"), homes=(HOME,), protected=(HostPath(b"/etc/policyfs"),))
    return Facts(
        HostPath(source),
        CompiledPolicy(Session(grants={ROOT: Level.COMMIT}), surroundings),
        {HostPath(place): [(d, HostPath(p)) for d, p in found] for place, found in (origins or {}).items()},
        (HostPath(b"/usr"), HostPath(b"/etc")),
    )


@pytest.mark.parametrize(
    ("place", "writable", "reason"),
    [
        (b"/opt/tools", False, None),
        (b"/opt/tools", True, None),
        (b"/home/me/other", True, None),
        (b"/usr/lib/x", False, None),
        (b"/usr/lib/x", True, "read-only in every sandbox"),
        (b"/home/me/tree", False, "lies in SOURCE"),
        (b"/home/me/tree/deep", False, "lies in SOURCE"),
        (b"/home/me/tree2", False, None),
        (b"/home", False, "holds SOURCE"),
        (b"/home/me/.aws", False, "denylist ~/.aws"),
        (b"/home/me/.docker", False, "denylist ~/.docker/config.json"),
        (b"/opt/x/id_rsa", False, "denylist id_rsa"),
        (b"/opt/key.pem/in", False, "denylist *.pem"),
        (b"/etc", False, "policyfs itself"),
        (b"/etc/policyfs/floors.toml", False, "policyfs itself"),
        (b"/proc/1/root", False, "lies in /proc"),
        (b"/dev/sda", False, "lies in /dev"),
        (b"/var", False, "is or holds /var/tmp"),
        (b"/tmp", True, "is or holds /tmp"),
        (b"/tmp/mine", True, None),
    ],
)
def test_a_place_is_judged_as_a_whole(place: bytes, writable: bool, reason: str | None) -> None:
    """Each kind of refusal with its near miss."""
    said = refused(HostPath(place), _facts(), writable=writable)
    assert said is None if reason is None else reason in (said or "")


@pytest.mark.parametrize(
    ("found", "is_source"),
    [
        ([("8:1", b"/home/me/tree")], True),
        ([("8:1", b"/home/me/tree/in")], True),
        ([("8:1", b"/home/me")], True),
        ([("8:2", b"/home/me/tree")], False),
        ([("8:1", b"/home/me/tree2")], False),
        ([("8:2", b"/"), ("8:1", b"/home/me/tree/in")], True),
    ],
)
def test_the_source_is_known_under_another_mount(found: list[tuple[str, bytes]], is_source: bool) -> None:
    """By device and path in its file system, also where it is mounted below the place."""
    facts = _facts({TREE: [("8:1", TREE)], b"/mnt/x": found, b"/usr": found})
    assert (refused(HostPath(b"/mnt/x"), facts, writable=False) is not None) is is_source
    assert (alias_of_source(facts, [HostPath(b"/usr")]) is not None) is is_source


@pytest.mark.parametrize(
    ("source", "fits"), [(b"/", False), (b"/proc", False), (b"/sys/x", False), (b"/home", True), (b"/system", True)]
)
def test_which_sources_fit(source: bytes, fits: bool) -> None:
    """The root and what is the kernel's do not."""
    assert (unfit_source(HostPath(source)) is None) is fits


def test_the_other_paths_of_a_place() -> None:
    """Those at which a mount shows all of it, a part of it or what is around it; none below its own."""
    table = [
        Mount(HostPath(b"/"), "ext4", "8:1"),
        Mount(HostPath(b"/mnt/home"), "ext4", "8:1", HostPath(b"/home")),
        Mount(HostPath(b"/keys"), "ext4", "8:1", HostPath(b"/home/me/.ssh")),
        Mount(HostPath(b"/home/me/here"), "ext4", "8:1", HostPath(b"/home/me/there")),
        Mount(HostPath(b"/other"), "ext4", "8:2", HostPath(b"/home/me")),
    ]
    assert machine.aliases(HOME, table) == [b"/mnt/home/me", b"/keys", b"/mnt/home/me/there"]
    assert machine.aliases(HostPath(b"/keys/inner"), table) == [b"/home/me/.ssh/inner", b"/mnt/home/me/.ssh/inner"]
    assert machine.aliases(HostPath(b"/other"), table) == []


# -- standard descriptors


@pytest.mark.parametrize(
    ("kind", "is_terminal", "expected"),
    [
        (stat.S_IFCHR, True, Treatment.TERMINAL),
        (stat.S_IFCHR, False, Treatment.PIPE),
        (stat.S_IFIFO, False, Treatment.PIPE),
        (stat.S_IFSOCK, False, Treatment.PIPE),
        (stat.S_IFREG, False, Treatment.PIPE),
        (stat.S_IFDIR, False, Treatment.REFUSED),
        (stat.S_IFBLK, False, Treatment.REFUSED),
        (stat.S_IFLNK, False, Treatment.REFUSED),
        (0, False, Treatment.REFUSED),
    ],
)
def test_what_a_standard_descriptor_becomes(kind: int, is_terminal: bool, expected: Treatment) -> None:
    """A terminal, a file and a device are replaced, a pipe passes, whatever opens more than itself is refused."""
    assert treatment(kind | 0o600, is_terminal=is_terminal) is expected


@pytest.mark.parametrize("name", ["null", "zero", "full", "random", "urandom"])
def test_a_device_that_every_sandbox_has_is_handed_on(name: str) -> None:
    """Input from /dev/null and its like is no pipe, which would have to be filled."""
    status = os.stat(f"/dev/{name}")
    assert treatment(status.st_mode, status.st_rdev, is_terminal=False) is Treatment.DEVICE
