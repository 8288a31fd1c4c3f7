"""Ways: every path by which a place is reached, as links stand."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from policyfs.host.ways import MAX_LINKS, Walk, Way, on_the_way
from policyfs.policy.paths import HostPath


@pytest.fixture
def at(tmp_path: Path) -> Path:
    """A directory without a link on the way to it."""
    return tmp_path.resolve()


def way_to(at: Path, name: str, **options: object) -> tuple[list[str], list[str], list[str]]:
    """The way to a name below `at`: its paths, links and crossed places, below `at`."""
    way = Walk(**options).to(os.fsencode(at / name) if name else os.fsencode(at))  # type: ignore[arg-type]
    return tuple([os.path.relpath(os.fsdecode(path), at) for path in part] for part in way)  # type: ignore[return-value]


def test_a_way_without_links_is_the_path_itself(at: Path) -> None:
    """There or not, and below a file."""
    (at / "d").mkdir()
    (at / "f").write_text("")
    for name in ("d/x/y", "f/x", "nothing/at/all", "d"):
        assert way_to(at, name) == ([name], [], [])
    assert Walk().to(b"/") == Way((HostPath(b"/"),), (), ())


def test_each_link_on_the_way_gives_a_path(at: Path) -> None:
    """Relative and absolute, through one another, up to where the place is; what is missing is taken by its text."""
    (at / "one").symlink_to("two/deep")
    (at / "two").mkdir()
    (at / "two" / "deep").symlink_to(at / "three")
    assert way_to(at, "one/x/y") == (["one/x/y", "two/deep/x/y", "three/x/y"], ["one", "two/deep"], [])
    (at / "three").mkdir()
    (at / "three" / "x").symlink_to(".")
    assert way_to(at, "one/x/y")[0] == ["one/x/y", "two/deep/x/y", "three/x/y", "three/y"]


def test_a_link_at_the_place_itself_is_followed(at: Path) -> None:
    """A rule on a link is meant for what it leads to."""
    (at / "l").symlink_to("gone")
    assert way_to(at, "l") == (["l", "gone"], ["l"], [])


def test_what_is_gone_into_and_left_again_is_crossed(at: Path) -> None:
    """Of a link's text: whoever replaces it by a link changes the way, though no path of the place has it."""
    (at / "l").symlink_to("w/v/../../d")
    (at / "w").mkdir()
    assert way_to(at, "l/x") == (["l/x", "d/x"], ["l"], ["w", "w/v"])


def test_dots_go_up_from_where_a_link_leads(at: Path) -> None:
    """As the kernel goes, and not by the text."""
    (at / "deep" / "er").mkdir(parents=True)
    (at / "l").symlink_to("deep/er")
    assert way_to(at, "l/../x")[0][-1] == "deep/x"
    assert on_the_way(f"{at}/l/../x") == [HostPath(os.fsencode(at / "l")), HostPath(os.fsencode(at / "deep" / "x"))]


def test_a_loop_ends(at: Path) -> None:
    """A chain longer than the kernel's leads nowhere, and no further."""
    (at / "a").symlink_to("b/y")
    (at / "b").symlink_to("a/x")
    paths, links, _ = way_to(at, "a")
    assert links == ["a", "b"]
    assert len(paths) <= 2 * MAX_LINKS


def test_nothing_is_asked_below_a_closed_mountpoint(at: Path) -> None:
    """Names at and below it are taken by their text, and above it again by what is there."""
    (at / "m" / "in").mkdir(parents=True)
    (at / "m" / "l").symlink_to("in")
    (at / "to").symlink_to("m/l/x/../../../k")
    (at / "k").symlink_to("last")
    walk = Walk(closed=[HostPath(os.fsencode(at / "m"))])
    assert os.fsdecode(walk.to(os.fsencode(at / "m" / "l" / "x")).paths[-1]) == f"{at}/m/l/x"
    assert os.fsdecode(walk.to(os.fsencode(at / "to")).paths[-1]) == f"{at}/last"
    assert not any(directory.startswith(os.fsencode(at / "m")) for directory in walk.names)
    assert b"m" not in walk.names[HostPath(os.fsencode(at))]


def test_another_directory_is_walked_instead_of_a_mountpoint(at: Path) -> None:
    """A link that leads through the mount of a view is followed into what the view shows."""
    (at / "source" / "d").mkdir(parents=True)
    (at / "source" / "l").symlink_to("d")
    point, source = HostPath(os.fsencode(at / "v")), HostPath(os.fsencode(at / "source"))
    (at / "to").symlink_to(at / "v" / "l" / "x")
    paths = way_to(at, "to", closed=[point], instead={point: source})[0]
    assert paths == ["to", "v/l/x", "source/l/x", "source/d/x"]
    (at / "whole").symlink_to(at / "v")
    assert way_to(at, "whole", closed=[point], instead={point: source})[0][-1] == "source"
    assert way_to(at, "v", closed=[point], instead={point: source})[0] == ["v"], "the mountpoint itself is meant"


def test_the_names_that_were_looked_up_are_told(at: Path) -> None:
    """By their directories, each as the walk reached it; in what is missing nothing is looked up."""
    (at / "l").symlink_to("d")
    (at / "d").mkdir()
    walk = Walk()
    walk.to(os.fsencode(at / "l" / "x" / "y"))
    walk.to(os.fsencode(at / "l" / "z"))
    names = {os.path.relpath(os.fsdecode(directory), at): each for directory, each in walk.names.items()}
    assert {"."} == {name for name in names if not name.startswith("..")} - {"d"}
    assert (names["."], names["d"]) == ({b"l", b"d"}, {b"x", b"z"})
