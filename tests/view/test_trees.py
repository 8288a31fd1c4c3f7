"""A view with two trees: SOURCE at `/`, and a directory of its own at `/extra` (rules tree-1 to tree-3)."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, Name, ViewPath
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.session import Session
from policyfs.source.root import Root
from policyfs.source.tree import RENAME_EXCHANGE, RENAME_NOREPLACE, SOURCE
from policyfs.view.location import Location
from policyfs.view.monitor import ReferenceMonitor
from policyfs.view.refused import Refused
from policyfs.view.trees import Trees
from policyfs.view.whole_path import follow

EXTRA = 1
"""The number of the second tree."""


def host(path: Path) -> HostPath:
    return HostPath(os.fsencode(path))


@pytest.fixture
def extra(tmp_path: Path) -> Path:
    """The second tree: a file `f`, a directory `d` with a file in it, a hidden file, and a directory at `ro`."""
    place = tmp_path / "beside"
    for directory in ("d", "ro"):
        (place / directory).mkdir(parents=True)
    for file in ("f", "d/f", "hidden", "ro/f"):
        (place / file).write_text(f"extra {file}")
    return place


@pytest.fixture
def view(source: Path, extra: Path) -> Iterator[ReferenceMonitor]:
    """The view. SOURCE has an `extra` of its own, which is covered; `above/second` is in neither tree."""
    (source / "extra").mkdir()
    (source / "extra/covered").write_text("covered")
    (source / "d").mkdir()
    (source / "f").write_text("source f")
    (source / "above").mkdir()
    grants = {
        ViewPath(b"/"): Level.STAGE,
        ViewPath(b"/extra/hidden"): Level.NONE,
        ViewPath(b"/extra/ro"): Level.RO,
        ViewPath(b"/ro"): Level.RO,
    }
    second = extra.parent / "second"
    second.mkdir()
    mounted = {
        ViewPath(b"/extra"): Root(host(extra), EXTRA),
        ViewPath(b"/above/second"): Root(host(second), 2),
    }
    view = ReferenceMonitor(
        Root(host(source)), CompiledPolicy(Session(grants=grants), Surroundings(host(source))), mounted=mounted
    )
    yield view
    view.close()


def at(view: ReferenceMonitor, path: str) -> Location:
    return view.locate(ViewPath(os.fsencode(path)))


def answer(act: Callable[[], Any]) -> str:
    """The name of the errno that an act fails with, `done` where it goes through."""
    try:
        act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]
    return "done"


def listed(view: ReferenceMonitor, path: str) -> dict[str, int]:
    """The names that a listing shows, each with the number of the tree that it is in."""
    listing = view.listing(at(view, path))
    try:
        names = listing.read()
        entries = listing.entries(names)
        return {os.fsdecode(name): entry.identity.tree for name, entry in zip(names, entries, strict=True) if entry}
    finally:
        listing.close()


def read(view: ReferenceMonitor, path: str) -> bytes:
    file = view.open(at(view, path), os.O_RDONLY)
    try:
        return file.read(0, 100)
    finally:
        file.close()


def test_the_longest_mount_point_holds_a_path(source: Path, extra: Path) -> None:
    """By whole names: `/extra` holds nothing of `/extras`."""
    trees = [Root(host(place), number) for number, place in enumerate((source, extra, extra))]
    table = Trees(trees[0], {ViewPath(b"/a"): trees[1], ViewPath(b"/a/b/c"): trees[2]})
    held = {
        b"/": (0, b"/"), b"/a": (1, b"/"), b"/ab": (0, b"/ab"), b"/a/b": (1, b"/b"), b"/a/b/c": (2, b"/"),
        b"/a/b/c/d/e": (2, b"/d/e"), b"/a/b/cd": (1, b"/b/cd"), b"/b/a": (0, b"/b/a"),
    }  # fmt: skip
    for path, (number, within) in held.items():
        assert table.of(ViewPath(path)) == (trees[number], within), path
    assert table.of_name(ViewPath(b"/a/b/c")) == (trees[1], b"/b/c")
    assert [table.names_in(ViewPath(path)) for path in (b"/", b"/a", b"/a/b", b"/a/b/c")] == [[b"a"], [], [b"c"], []]
    assert [table.in_view(tree, table.of(ViewPath(b"/a/b/c/d"))[1]) for tree in trees] == [b"/d", b"/a/d", b"/a/b/c/d"]
    table.close()


@pytest.mark.parametrize(("point", "number"), [(b"/", EXTRA), (b"/extra", SOURCE)])
def test_a_tree_has_a_mount_point_and_a_number_of_its_own(source: Path, extra: Path, point: bytes, number: int) -> None:
    """Two at `/`, or two of one number, could not be told apart."""
    root, other = Root(host(source)), Root(host(extra), number)
    with pytest.raises(ValueError, match="of its own"):
        Trees(root, {ViewPath(point): other})
    root.close()
    other.close()


def test_a_tree_covers_what_is_below_it(view: ReferenceMonitor, source: Path) -> None:
    """What SOURCE has at a mount point is not reached, and nothing changes it."""
    assert read(view, "/extra/f") == b"extra f"
    assert answer(lambda: view.attributes(at(view, "/extra/covered"))) == "ENOENT"
    view.make_directory(at(view, "/extra/covered"), 0o755)
    assert (source / "extra/covered").read_text() == "covered"


def test_a_listing_has_the_mount_points(view: ReferenceMonitor) -> None:
    """Whether or not the tree below has the name, once, and as the top of its own tree."""
    assert listed(view, "/") == {"extra": EXTRA, "d": SOURCE, "f": SOURCE, "above": SOURCE}
    assert listed(view, "/above") == {"second": 2}
    assert listed(view, "/extra") == {"f": EXTRA, "d": EXTRA, "ro": EXTRA}


def test_an_object_is_told_by_its_tree(view: ReferenceMonitor, source: Path, extra: Path) -> None:
    """A file that two trees have in common is two objects: one is not taken for the other."""
    os.link(source / "f", extra / "same")
    one, other = (view.attributes(at(view, path)).identity for path in ("/f", "/extra/same"))
    assert one != other
    assert one[1:] == other[1:]
    with pytest.raises(Refused, match="Moved away"):
        view.attributes(at(view, "/f"), other)
    assert view.attributes(at(view, "/extra/same"), other).links == 2


def test_a_mount_point_is_looked_up_in_its_directory(view: ReferenceMonitor) -> None:
    """As a name in the very directory that the caller knows, whatever that has there."""
    for path, name in (("/", b"extra"), ("/above", b"second")):
        directory = at(view, path)
        within = view.attributes(directory).identity
        assert view.attributes(view.child(directory, Name(name), within)).is_directory


def test_levels_go_by_the_path_in_the_view(view: ReferenceMonitor) -> None:
    """A second tree has no rules of its own."""
    assert answer(lambda: view.attributes(at(view, "/extra/hidden"))) == "ENOENT"
    assert answer(lambda: view.unlink(at(view, "/extra/ro/f"))) == "EROFS"
    assert view.level_of(at(view, "/extra/d")) == b"stage"
    assert answer(lambda: view.attributes(at(view, "/hidden"))) == "ENOENT"


@pytest.mark.parametrize("flags", [0, RENAME_NOREPLACE, RENAME_EXCHANGE])
@pytest.mark.parametrize(
    ("old", "new"), [("/f", "/extra/new"), ("/extra/d", "/new"), ("/extra/f", "/above/second/f"), ("/f", "/extra/f")]
)
def test_nothing_is_renamed_between_trees(view: ReferenceMonitor, old: str, new: str, flags: int) -> None:
    """Whatever is there, and in no direction."""
    assert answer(lambda: view.rename(at(view, old), at(view, new), flags)) == "EXDEV"
    assert read(view, "/extra/f") == b"extra f"
    assert read(view, "/f") == b"source f"


def test_nothing_is_linked_between_trees(view: ReferenceMonitor) -> None:
    """By name, and by a file that is open."""
    assert answer(lambda: view.link(at(view, "/f"), at(view, "/extra/new"))) == "EXDEV"
    assert answer(lambda: view.link(at(view, "/extra/f"), at(view, "/new"))) == "EXDEV"
    file = view.open(at(view, "/extra/f"), os.O_RDONLY)
    assert answer(lambda: view.link(at(view, "/extra/f"), at(view, "/new"), file)) == "EXDEV"
    file.close()
    assert answer(lambda: view.link(at(view, "/extra/f"), at(view, "/extra/new"))) == "done"
    assert answer(lambda: view.rename(at(view, "/extra/new"), at(view, "/extra/d/new"))) == "done"


@pytest.mark.parametrize("path", ["/extra", "/above", "/above/second"])
def test_a_mount_point_and_what_is_above_it_stay(view: ReferenceMonitor, source: Path, path: str) -> None:
    """They are not removed, renamed, exchanged or replaced."""
    held = at(view, path)
    assert answer(lambda: view.remove_directory(held)) == "EBUSY"
    for flags in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
        beside = path.rpartition("/")[0] + "/beside"
        view.make_directory(at(view, beside), 0o755)
        assert answer(lambda flags=flags, beside=beside: view.rename(held, at(view, beside + "2"), flags & ~2)) == "EBUSY"
        assert answer(lambda flags=flags, beside=beside: view.rename(at(view, beside), held, flags)) == "EBUSY"
        view.remove_directory(at(view, beside))
    assert answer(lambda: view.unlink(held)) == "EBUSY"
    assert view.attributes(held).is_directory


def test_nothing_but_a_directory_is_made_above_a_mount_point(view: ReferenceMonitor, source: Path) -> None:
    """The way to it leads through directories."""
    (source / "above").rmdir()
    above = at(view, "/above")
    assert answer(lambda: view.create(above, os.O_CREAT | os.O_WRONLY, 0o644)) == "EBUSY"
    assert answer(lambda: view.make_link(above, b"d")) == "EBUSY"
    assert answer(lambda: view.link(at(view, "/f"), above)) == "EBUSY"
    assert answer(lambda: view.rename(at(view, "/d"), above)) == "EBUSY"
    assert answer(lambda: view.make_directory(above, 0o755)) == "done"
    assert listed(view, "/above") == {"second": 2}


def test_a_mount_point_is_a_name_that_is_taken(view: ReferenceMonitor) -> None:
    """By a directory, as where any directory stands."""
    point = at(view, "/above/second")
    assert answer(lambda: view.make_directory(point, 0o755)) == "EEXIST"
    assert answer(lambda: view.make_link(point, b"d")) == "EEXIST"
    assert answer(lambda: view.create(point, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)) == "EEXIST"
    assert answer(lambda: view.create(point, os.O_CREAT | os.O_WRONLY, 0o644)) == "EISDIR"


@pytest.mark.parametrize("act", ["rename", "link", "remove_directory"])
def test_a_directory_at_ro_answers_first(source: Path, extra: Path, act: str) -> None:
    """What the policy refuses it refuses as anywhere, and EROFS comes before EXDEV and EBUSY."""
    grants = {ViewPath(b"/"): Level.RO, ViewPath(b"/extra"): Level.STAGE, ViewPath(b"/f"): Level.STAGE}
    (source / "f").write_text("f")
    policy = CompiledPolicy(Session(grants=grants), Surroundings(host(source)))
    view = ReferenceMonitor(Root(host(source)), policy, mounted={ViewPath(b"/extra"): Root(host(extra), EXTRA)})
    acts = {
        "rename": lambda: view.rename(at(view, "/f"), at(view, "/extra/new")),
        "link": lambda: view.link(at(view, "/extra/f"), at(view, "/new")),
        "remove_directory": lambda: view.remove_directory(at(view, "/extra")),
    }
    assert answer(acts[act]) == "EROFS"
    view.close()


def test_links_lead_from_tree_to_tree(view: ReferenceMonitor, source: Path, extra: Path) -> None:
    """They are followed by the names of the view: into a tree, out of it with `..`, and not to what is covered."""
    (source / "in").symlink_to("extra/d")
    (extra / "up").symlink_to("../f")
    (extra / "absolute").symlink_to(extra / "d/f")
    assert follow(view, ViewPath(b"/in/f")).path == b"/extra/d/f"
    assert follow(view, ViewPath(b"/in/../f")).path == b"/extra/f"
    assert follow(view, ViewPath(b"/extra/up")).path == b"/f"
    assert view.link_text(at(view, "/extra/absolute")) == b"../extra/d/f"
    assert follow(view, ViewPath(b"/extra/absolute")).path == b"/extra/d/f"


def test_no_link_is_made_to_what_is_hidden_in_another_tree(view: ReferenceMonitor, extra: Path) -> None:
    """Neither by the path in the view nor by the path on the machine, where the owner's programs would follow it."""
    here, there = at(view, "/new"), at(view, "/extra/new")
    assert answer(lambda: view.make_link(here, b"extra/hidden")) == "EACCES"
    assert answer(lambda: view.make_link(here, os.fsencode(extra / "hidden"))) == "EACCES"
    assert answer(lambda: view.make_link(there, b"hidden")) == "EACCES"
    # From where the tree lies on the machine, this leads out of it.
    assert answer(lambda: view.make_link(there, b"../f")) == "EACCES"
    assert answer(lambda: view.make_link(there, b"d/f")) == "done"
    assert answer(lambda: view.make_link(here, b"extra/d/f")) == "done"


def test_a_credential_is_known_in_every_tree(source: Path, extra: Path, tmp_path: Path) -> None:
    """Under another name in a second tree it is as hidden as in SOURCE."""
    home = tmp_path / "home"
    (home / ".ssh").mkdir(parents=True)
    (home / ".ssh/key").write_text("secret")
    os.link(home / ".ssh/key", extra / "notes")
    os.link(extra / "f", extra / "harmless")
    surroundings = Surroundings(host(source), homes=(host(home),), tops=(HostPath(b"/"), host(tmp_path)))
    policy = CompiledPolicy(Session(grants={ViewPath(b"/"): Level.STAGE}), surroundings)
    view = ReferenceMonitor(Root(host(source)), policy, mounted={ViewPath(b"/extra"): Root(host(extra), EXTRA)})
    assert answer(lambda: view.attributes(at(view, "/extra/notes"))) == "ENOENT"
    assert answer(lambda: view.attributes(at(view, "/extra/harmless"))) == "done"
    assert "notes" not in listed(view, "/extra")
    view.close()
