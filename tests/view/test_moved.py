"""A directory that its owner moves to a hidden place between two steps of one request: what is told of it, and what is left
in it. The steps are met here one by one; tests/adversary/test_moves.py races for them."""

from __future__ import annotations

import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, Name, ViewPath
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.refusals import Refusal
from policyfs.policy.session import Session
from policyfs.source import root as root_module
from policyfs.source.root import Root
from policyfs.source.tree import RENAME_EXCHANGE, SOURCE, Identity
from policyfs.view.location import Location
from policyfs.view.monitor import ReferenceMonitor
from policyfs.view.outcomes import Changes
from policyfs.view.refused import Refused


@pytest.fixture
def view(source: Path) -> Iterator[ReferenceMonitor]:
    """A view in which `d` is open, `elsewhere` too, and `hidden` is not."""
    for directory in ("d/empty", "elsewhere", "hidden"):
        (source / directory).mkdir(parents=True)
    for file in ("d/file", "d/other", "elsewhere/file"):
        (source / file).write_text(file)
    host = HostPath(os.fsencode(source))
    root = Root(host)
    grants = {ViewPath(b"/"): Level.STAGE, ViewPath(b"/hidden"): Level.NONE}
    yield ReferenceMonitor(root, CompiledPolicy(Session(grants=grants), Surroundings(host)))
    root.close()


def at(view: ReferenceMonitor, path: str, *, within: bool = False) -> Location:
    location = view.locate(ViewPath(os.fsencode(path)))
    if not within:
        return location
    status = os.stat(os.path.dirname(os.fsdecode(view.root.source) + path))
    return location._replace(within=Identity(SOURCE, status.st_dev, status.st_ino))


def refusal_of(act: Callable[[], Any]) -> Refusal:
    """How an act is refused. That something was moved is no decision of the policy's, for no journal to tell."""
    with pytest.raises(Refused) as raised:
        act()
    assert raised.value.absent
    return raised.value.refusal


def tree(place: Path) -> dict[str, tuple[int, str]]:
    """What is below a place: each file with its inode number and its content."""
    files = sorted(path for path in place.rglob("*"))
    return {
        str(path.relative_to(place)): (path.lstat().st_ino, path.read_text() if path.is_file() else "") for path in files
    }


def before(
    view: ReferenceMonitor, monkeypatch: pytest.MonkeyPatch, call: str, happens: Callable[[], Any], times: int = 1
) -> None:
    """Have something happen right before a call of the door's, the first time."""
    original, left = getattr(view.root, call), [happens] * times

    def late(*arguments: Any) -> Any:
        if left:
            left.pop()()
        return original(*arguments)

    monkeypatch.setattr(view.root, call, late)


def away(source: Path) -> Callable[[], None]:
    """The owner moves `d`."""
    return lambda: os.rename(source / "d", source / "hidden" / "d")


MAKING: dict[str, tuple[str, Callable[[ReferenceMonitor], Any]]] = {
    "create": ("create", lambda view: view.create(at(view, "/d/new"), os.O_WRONLY | os.O_CREAT, 0o644)),
    "create exclusively": ("create", lambda view: view.create(at(view, "/d/new"), os.O_WRONLY | os.O_EXCL, 0o644)),
    "mkdir": ("make_directory", lambda view: view.make_directory(at(view, "/d/new"), 0o755)),
    "mknod": ("make_node", lambda view: view.make_node(at(view, "/d/new"), stat.S_IFIFO | 0o644)),
    "symlink": ("make_link", lambda view: view.make_link(at(view, "/d/new"), b"file")),
    "link": ("link", lambda view: view.link(at(view, "/elsewhere/file"), at(view, "/d/new"))),
    "rename": ("rename", lambda view: view.rename(at(view, "/d/file"), at(view, "/d/new"))),
    "rename in": ("rename", lambda view: view.rename(at(view, "/elsewhere/file"), at(view, "/d/new"))),
    "rename out": ("rename", lambda view: view.rename(at(view, "/d/file"), at(view, "/elsewhere/new"))),
    "exchange": ("rename", lambda view: view.rename(at(view, "/d/file"), at(view, "/elsewhere/file"), RENAME_EXCHANGE)),
}
"""What can be taken back, each with the call of the door's that does it."""


@pytest.mark.parametrize("act", MAKING)
def test_what_is_made_in_a_directory_that_was_moved_is_taken_back(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """The name is gone again, everything else is as it was, and the answer is that the directory is not there."""
    call, make = MAKING[act]
    kept, elsewhere, descriptors = tree(source / "d"), tree(source / "elsewhere"), os.listdir("/proc/self/fd")
    before(view, monkeypatch, call, away(source))
    assert refusal_of(lambda: make(view)) is Refusal.STALE
    assert (tree(source / "hidden/d"), tree(source / "elsewhere")) == (kept, elsewhere)
    assert os.listdir("/proc/self/fd") == descriptors


@pytest.mark.parametrize("act", [act for act in MAKING if act != "create"])
def test_whether_a_name_is_taken_there_is_not_told(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch, act: str
) -> None:
    """A name that something has where the directory is by now is answered as one that is free."""

    def moved() -> None:
        away(source)()
        for directory in ("hidden/d", "elsewhere"):
            (source / directory / "new").write_text("taken")

    call, make = MAKING[act]
    before(view, monkeypatch, call, moved)
    assert refusal_of(lambda: make(view)) is Refusal.STALE
    assert (source / "hidden/d/new").read_text() == "taken"


def test_what_took_the_place_of_what_was_made_stays(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only what was made is taken away: not what its owner has put in its place since."""

    def replaced() -> None:
        away(source)()
        (source / "another").write_text("the owner's")
        os.rename(source / "another", source / "hidden/d/new")

    stands_at = view.root.stands_at

    def late(descriptor: int, path: ViewPath) -> bool:
        if (source / "d/new").exists():
            replaced()
        return stands_at(descriptor, path)

    monkeypatch.setattr(view.root, "stands_at", late)
    assert refusal_of(lambda: view.create(at(view, "/d/new"), os.O_WRONLY, 0o644)) is Refusal.STALE
    assert (source / "hidden/d/new").read_text() == "the owner's"


REMOVING: dict[str, Callable[[ReferenceMonitor], Any]] = {
    "unlink": lambda view: view.unlink(at(view, "/d/file")),
    "rmdir": lambda view: view.remove_directory(at(view, "/d/empty")),
    "replace": lambda view: view.rename(at(view, "/elsewhere/file"), at(view, "/d/file")),
    "rename": lambda view: view.rename(at(view, "/d/file"), at(view, "/d/new")),
    "symlink": lambda view: view.make_link(at(view, "/d/new"), b"other"),
}


@pytest.mark.parametrize("act", REMOVING)
@pytest.mark.parametrize("is_there", [True, False])
def test_nothing_is_taken_away_in_a_directory_that_was_moved(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch, act: str, is_there: bool
) -> None:
    """Where it was moved after it was reached, nothing is done in it, and whether the name is there is not told."""
    reach_directory = view.root.reach_directory

    def late(path: ViewPath) -> int:
        reached = reach_directory(path)
        if path == b"/d" and (source / "d").exists():
            away(source)()
            if not is_there:
                os.unlink(source / "hidden/d/file")
                os.rmdir(source / "hidden/d/empty")
        return reached

    monkeypatch.setattr(view.root, "reach_directory", late)
    assert refusal_of(lambda: REMOVING[act](view)) is Refusal.STALE
    assert set(tree(source / "hidden/d")) == ({"empty", "file", "other"} if is_there else {"other"})
    assert (source / "elsewhere/file").read_text() == "elsewhere/file"


def walks(monkeypatch: pytest.MonkeyPatch, happens: Callable[[], Any]) -> None:
    """Have something happen when a walk has reached its end and nothing is known of it yet."""
    openat2, left = root_module._openat2, [happens]

    def late(directory: int, path: bytes, how: object) -> int:
        reached = openat2(directory, path, how)
        if path.endswith(b"secret") and left:
            left.pop()()
        return reached

    monkeypatch.setattr(root_module, "_openat2", late)


LOOKING: dict[str, tuple[Refusal, Callable[[ReferenceMonitor, tuple[int, int]], Any]]] = {
    "lookup": (Refusal.MISSING, lambda view, _: view.attributes(at(view, "/d/secret"))),
    "lookup in a directory": (Refusal.STALE, lambda view, _: view.attributes(at(view, "/d/secret", within=True))),
    "stat": (Refusal.STALE, lambda view, known: view.attributes(at(view, "/d/secret"), known)),
    "access": (Refusal.STALE, lambda view, known: view.access(at(view, "/d/secret"), os.R_OK, known)),
    "open": (Refusal.STALE, lambda view, known: view.open(at(view, "/d/secret"), os.O_RDONLY, known)),
    "open to write": (Refusal.MISSING, lambda view, _: view.open(at(view, "/d/secret"), os.O_WRONLY | os.O_TRUNC)),
    "attribute": (Refusal.STALE, lambda view, known: view.extended_names(at(view, "/d/secret"), known)),
    "chmod": (Refusal.STALE, lambda view, known: view.change(at(view, "/d/secret"), Changes(mode=0o777), known)),
}


@pytest.mark.parametrize("act", LOOKING)
@pytest.mark.parametrize("is_there", [True, False])
def test_what_is_found_in_a_directory_that_was_moved_is_not_told(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch, act: str, is_there: bool
) -> None:
    """What is asked for is answered alike where it is in the directory that was moved and where it is not."""
    expected, look = LOOKING[act]
    (source / "d/secret").write_text("secret")
    known = os.stat(source / "d/secret")
    if is_there:
        walks(monkeypatch, away(source))
    else:
        os.unlink(source / "d/secret")
        reach_directory = view.root.reach_directory

        def late(path: ViewPath) -> int:
            reached = reach_directory(path)
            away(source)()
            return reached

        monkeypatch.setattr(view.root, "reach_directory", late)
    assert refusal_of(lambda: look(view, view.root.identify(known))) is expected
    if is_there:
        secret = source / "hidden/d/secret"
        assert (secret.read_text(), stat.S_IMODE(secret.stat().st_mode)) == ("secret", stat.S_IMODE(known.st_mode))


def test_a_file_that_is_replaced_all_the_time_is_found(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What took its place in the meantime is looked at: a file that is written again is never missing."""
    replaced = 0

    def replace() -> None:
        nonlocal replaced
        replaced += 1
        (source / "new").write_text("new")
        os.rename(source / "new", source / "d/secret")

    (source / "d/secret").write_text("old")
    for within in (False, True):
        walks(monkeypatch, replace)
        attributes = view.attributes(at(view, "/d/secret", within=within))
        assert attributes.identity.ino == (source / "d/secret").stat().st_ino
    assert replaced == 2


def test_names_are_not_listed_where_a_directory_was_moved_to(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither when its names are read nor when it is asked what they are."""
    listing = view.listing(at(view, "/d"))
    assert sorted(listing.read()) == [b"empty", b"file", b"other"]
    before(view, monkeypatch, "names", away(source))
    assert refusal_of(listing.read) is Refusal.STALE
    assert refusal_of(lambda: listing.entries([Name(b"file")])) is Refusal.STALE
    assert refusal_of(lambda: listing.entries([Name(b"missing")])) is Refusal.STALE
    os.rename(source / "hidden/d", source / "d")
    assert listing.entry(Name(b"file")) is not None
    listing.close()


def test_names_that_were_there_only_while_it_was_elsewhere(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A directory that was moved and is back by the time that this is asked: what came and went meanwhile is not shown."""
    (source / "hidden/secret").write_text("secret")
    stat_name, stands_at = view.root.stat_name, view.root.stands_at

    def goes(directory: int, name: Name) -> os.stat_result:
        if name == b"secret" and (source / "d").exists():
            away(source)()
            os.rename(source / "hidden/secret", source / "hidden/d/secret")
        return stat_name(directory, name)

    def comes_back(descriptor: int, path: ViewPath) -> bool:
        if (source / "hidden/d").exists():
            os.rename(source / "hidden/d/secret", source / "hidden/secret")
            os.rename(source / "hidden/d", source / "d")
        return stands_at(descriptor, path)

    monkeypatch.setattr(view.root, "stat_name", goes)
    monkeypatch.setattr(view.root, "stands_at", comes_back)
    listing = view.listing(at(view, "/d"))
    found = listing.entries([Name(b"file"), Name(b"secret"), Name(b"other")])
    assert [entry is not None for entry in found] == [True, False, True]
    listing.close()


_IN_A_CHILD = """
import os, sys
from policyfs.source.root import Root
root = Root(os.fsencode(sys.argv[1]))
reached = root.reach(b"/d/file")
child = os.fork()
if not child:
    os.dup2(root.reach(b"/d/other"), reached)
    os._exit(root.stands_at(reached, b"/d/file") or not root.stands_at(reached, b"/d/other"))
assert os.waitpid(child, 0)[1] == 0
assert root.stands_at(reached, b"/d/file")
"""


def test_where_something_stands_after_a_fork(view: ReferenceMonitor) -> None:
    """A process that was forked looks at its own descriptors, not at those of the one that it comes from."""
    subprocess.run([sys.executable, "-I", "-c", _IN_A_CHILD, view.root.source], check=True)


def test_where_something_stands(view: ReferenceMonitor, source: Path) -> None:
    """By its path in SOURCE, however that is called, at any depth; by no other path, and by none once it is removed."""
    root = view.root
    deep = Path("d").joinpath(*["x" * 200] * 30)
    here = os.open(source / "d", os.O_RDONLY)
    for name in deep.parts[1:]:
        os.mkdir(name, dir_fd=here)
        here, above = os.open(name, os.O_RDONLY, dir_fd=here), here
        os.close(above)
    os.close(here)
    paths = ["/", "/d", "/d/file", "/d/empty", f"/{deep}"]
    for _ in range(2):
        for path in paths:
            reached = root.reach(ViewPath(os.fsencode(path)))
            assert [other for other in paths if root.stands_at(reached, ViewPath(os.fsencode(other)))] == [path]
            os.close(reached)
        os.rename(source, source.with_name("renamed"))
        source = source.with_name("renamed")
    reached = root.reach(ViewPath(b"/d/file"))
    os.unlink(source / "d/file")
    assert not root.stands_at(reached, ViewPath(b"/d/file"))
    (source / "d/file").write_text("another")
    assert not root.stands_at(reached, ViewPath(b"/d/file"))
    os.close(reached)
