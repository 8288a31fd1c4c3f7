"""Another object at a path, and what a program has open."""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.changes import settle
from tests.mount.expecting import errno_of, until
from tests.mount.moved.ground import GONE, Ground, hiding
from tests.mount.places import names
from tests.mount.shuffling import told


def swapped(ground: Ground) -> int:
    """A descriptor of a directory that has been moved to `here/old`, while another stands in its place."""
    ground.rule("here", "stage")
    ground.make("here/x/f", "here/x/kept", "here/new/f", "here/new/only")
    (ground.behind / "here/new/f").write_text("the content of the new one")
    ground.warm("here")
    directory = ground.open("here/x")
    # Inside, `old` is known as missing.
    ground.move("here/x", "here/old")
    (ground.behind / "here/new").rename(ground.behind / "here/x")
    until(lambda: os.path.lexists(ground.inside / "here/x/only"), "the other is seen")
    return directory


def test_changes_by_a_directory_that_another_replaced(ground: Ground) -> None:
    """Whoever stands in a directory that was moved away changes nothing in the one that is in its place."""
    directory = swapped(ground)
    acts: dict[str, Callable[[], object]] = {
        "create": lambda: os.open("made", os.O_CREAT | os.O_WRONLY, dir_fd=directory),
        "mkdir": lambda: os.mkdir("made", dir_fd=directory),
        "symlink": lambda: os.symlink("f", "made", dir_fd=directory),
        "mknod": lambda: os.mknod("made", 0o600 | stat.S_IFIFO, dir_fd=directory),
        "unlink": lambda: os.unlink("f", dir_fd=directory),
        "rename": lambda: os.rename("f", "made", src_dir_fd=directory, dst_dir_fd=directory),
        "rename to": lambda: os.rename(ground.inside / "here/x/only", "made", dst_dir_fd=directory),
        "link": lambda: os.link(ground.inside / "here/x/only", "made", dst_dir_fd=directory),
    }
    assert {act for act, do in acts.items() if errno_of(do) is None} == set()
    assert names(ground.behind / "here/x") == ["f", "only"]
    assert names(ground.behind / "here/old") == ["f", "kept"]
    # Once it is found where it is, it is as good as any.
    ground.found("here/old")
    os.unlink("f", dir_fd=directory)
    assert names(ground.behind / "here/x") == ["f", "only"]
    assert names(ground.behind / "here/old") == ["kept"]


def test_names_by_a_directory_that_another_replaced(ground: Ground) -> None:
    """What is asked in a directory that was moved away is not answered by the one that is in its place, and nothing that
    was asked meanwhile is kept when it is found again."""
    directory = swapped(ground)
    own = {"f": [len("content of here/x/f")], "kept": [len("content of here/x/kept")], "only": [], "nothing": []}
    until(lambda: errno_of(lambda: os.stat("only", dir_fd=directory)) in GONE, "the one in its place does not answer")
    for name in ("only", "nothing", "f", "kept"):
        assert told(lambda name=name: os.stat(name, dir_fd=directory).st_size) in (*GONE, *own[name])
    ground.found("here/old")
    for where in (None, directory):
        at = "" if where is not None else f"{ground.inside}/here/old/"
        assert os.stat(f"{at}f", dir_fd=where).st_size == len("content of here/x/f")
        assert os.stat(f"{at}kept", dir_fd=where).st_size
        assert errno_of(lambda at=at, where=where: os.stat(f"{at}only", dir_fd=where)) == "ENOENT"
    assert (ground.inside / "here/old/f").read_text() == "content of here/x/f"
    assert (ground.inside / "here/x/f").read_text() == "the content of the new one"


def test_names_asked_at_the_old_place_while_a_directory_is_moved(ground: Ground) -> None:
    """A name that was missing only because its directory had just been moved is there when that is found again."""
    for _ in range(5):
        ground.make("here/x/f", "here/x/g")
        ground.warm("here/x/g")
        directory = ground.open("here/x")
        (ground.behind / "here/x").rename(ground.behind / "here/y")
        for _ in range(20):
            errno_of(lambda: os.stat("f", dir_fd=directory))  # noqa: B023 - called at once
            errno_of(os.stat, ground.inside / "here/x/f")
        ground.found("here/y")
        until(lambda: os.path.lexists(ground.inside / "here/y/f"), "it is there", 1)
        assert names(ground.inside / "here/y") == ["f", "g"]
        shutil.rmtree(ground.behind / "here/y")
        until(lambda: not os.path.lexists(ground.inside / "here/y"), "it is gone")


def test_removed_and_made_anew_at_once(ground: Ground) -> None:
    """A directory with the name, and often the inode number, of one that was just removed has nothing of it."""
    ground.make("here/x/f", "here/x/d/f")
    for number in range(10):
        assert not os.path.lexists(ground.inside / "here/x/new")
        ground.warm("here")
        shutil.rmtree(ground.behind / "here/x")
        (ground.behind / "here/x").mkdir()
        gone = [ground.inside / "here/x" / name for name in ("f", f"f{number}", "d/f", "d")]
        until(lambda: not any(os.path.lexists(path) for path in gone), "what was in it is gone", 2)  # noqa: B023
        (ground.behind / "here/x/new").touch()
        until(lambda: os.path.lexists(ground.inside / "here/x/new"), "a new name is seen", 2)
        (ground.behind / "here/x/new").unlink()
        ground.make(f"here/x/f{number + 1}", "here/x/f", "here/x/d/f")
        until(lambda: not os.path.lexists(ground.inside / "here/x/new"), "it is gone")


@pytest.mark.parametrize("looked_at_once", [False, True], ids=["looked at later", "looked at once"])
@pytest.mark.parametrize("where", ["here/x", "there/y"], ids=["in its place", "elsewhere"])
def test_removed_while_somebody_stands_in_it(ground: Ground, where: str, looked_at_once: bool) -> None:
    """In a directory that was removed nothing is found and nothing is made, whatever is made in its place, or has its inode
    number."""
    ground.rule("there", "stage")
    ground.rule("here", "stage")
    ground.make("here/x/f")
    ground.warm("here")
    directory = ground.open("here/x")
    os.listdir(directory)
    shutil.rmtree(ground.behind / "here/x")
    ground.make(f"{where}/f", f"{where}/new")
    if looked_at_once:
        # So that the new one is known before any event has been looked at.
        names((ground.inside / where).parent)
    until(lambda: errno_of(lambda: os.stat("f", dir_fd=directory)) in GONE, "what was in it is gone", 2)
    until(lambda: os.path.lexists(ground.inside / where / "new"), "the new one is seen", 2)
    assert names(ground.inside / where) == ["f", "new"]
    for name in ("f", "new", "nothing"):
        assert errno_of(lambda name=name: os.stat(name, dir_fd=directory)) in GONE
    assert errno_of(lambda: os.open("f", os.O_RDONLY, dir_fd=directory)) in GONE
    assert errno_of(lambda: os.open("made", os.O_CREAT | os.O_WRONLY, dir_fd=directory)) in GONE
    assert errno_of(lambda: os.unlink("f", dir_fd=directory)) in GONE
    assert names(ground.behind / where) == ["f", "new"] == names(ground.inside / where)
    assert (ground.inside / where / "f").read_text() == f"content of {where}/f"


def test_a_directory_that_comes_to_be_below_what_was_in_it(ground: Ground) -> None:
    """Two directories that change places, one in the other, while somebody stands in the inner one: no request is left
    without an answer, and what is there is seen."""
    ground.make("here/x/y/f")
    ground.warm("here")
    inner = ground.open("here/x/y")
    (ground.behind / "here/x/y").rename(ground.behind / "here/y")
    (ground.behind / "here/x").rename(ground.behind / "here/y/x")
    (ground.behind / "here/x").mkdir()
    (ground.behind / "here/y").rename(ground.behind / "here/x/y")
    for _ in range(3):
        errno_of(lambda: os.stat("x", dir_fd=inner))
        errno_of(lambda: os.stat("nothing", dir_fd=inner))
    until(lambda: os.path.lexists(ground.inside / "here/x/y/x"), "it is seen where it is")
    assert names(ground.inside / "here/x") == ["y"]
    until(lambda: names(ground.inside / "here/x/y") == ["f", "x"] == names(inner), "it is listed")


def test_a_directory_replaced_by_a_link(ground: Ground) -> None:
    """Its old path leads where the link does, by the rules of where that is."""
    hiding(ground)
    directory = ground.open("here/x")
    ground.move("here/x", "there/x")
    (ground.behind / "here/x").symlink_to("../there/x")
    path = ground.inside / "here/x"
    until(lambda: os.path.islink(path), "the link is seen")
    # The kernel was told that there/x is missing; it hears that this is no longer so a moment after the link is seen.
    until(path.exists, "what it leads to is seen")
    ground.at_once(lambda: names(path) == ["f"], "what it leads to is listed by the rules of its place")
    assert errno_of(os.stat, path / "secret") == "ENOENT"
    until(lambda: errno_of(lambda: os.stat("secret", dir_fd=directory)) in GONE, "nor by the directory")


def test_a_link_whose_way_is_moved(ground: Ground) -> None:
    """A link leads to nothing when a directory on its way was replaced by one that leads to what is hidden, and is gone when
    it was replaced by one that leads it out of the mount."""
    ground.rule("there/closed", "none")
    ground.make("there/closed/f", "here/way/f", "here/f")
    (ground.behind / "there/way").symlink_to("closed")
    (ground.behind / "here/link").symlink_to("way/f")
    (ground.behind / "here/up").symlink_to("way/../f")
    ground.warm("here")
    link, up = ground.inside / "here/link", ground.inside / "here/up"
    assert (os.readlink(link), errno_of(os.stat, link), errno_of(os.stat, up)) == ("way/f", None, None)
    (ground.behind / "here/way").rename(ground.behind / "here/old")
    (ground.behind / "here/way").symlink_to("../there/way")
    until(lambda: errno_of(os.stat, link) == "ENOENT", "it leads to nothing")
    assert os.readlink(link) == "way/f"
    (ground.behind / "here/way").unlink()
    # Listed, so that it is shown; what is beside it is not.
    (ground.behind / "here/way").symlink_to("/usr")
    until(lambda: errno_of(os.lstat, up) == "ENOENT", "the link is gone")
    until(lambda: names(up.parent) == ["f", "link", "old", "way"], "it is not listed")


def test_a_credential_linked_in_where_it_is_watched(ground: Ground) -> None:
    """A name that was missing, or another file's, is missing when it is made a name of a credential."""
    ground.make("here/f")
    assert not os.path.lexists(ground.inside / "here/new")
    ground.warm("here")
    secrets = ground.live.view.person.home / ".ssh"
    secrets.mkdir(exist_ok=True)
    key = secrets / re.sub(r"\W", "", ground.path)
    key.write_text("secret")
    os.link(key, ground.behind / "here/new")
    os.link(key, ground.behind / "here/other")
    (ground.behind / "here/other").rename(ground.behind / "here/f.new")
    os.link(key, ground.behind / "here/again")
    (ground.behind / "here/f").unlink()
    os.link(key, ground.behind / "here/f")
    until(lambda: not os.path.lexists(ground.inside / "here/f"), "it is gone")
    for name in ("f", "new", "f.new", "again", "other"):
        assert errno_of(os.lstat, ground.inside / "here" / name) == "ENOENT"
    until(lambda: names(ground.inside / "here") == [], "none is listed")


def test_what_is_not_shown_and_then_is(ground: Ground) -> None:
    """A link that led out of the mount, and a file that was a credential, are there when they are that no longer, though
    nothing happened where they are."""
    ground.make("there/open/f", "there/f", "here/other")
    (ground.behind / "there/way").symlink_to("/usr")
    (ground.behind / "here/link").symlink_to("../there/way/../f")
    secrets = ground.live.view.person.home / ".ssh"
    secrets.mkdir(exist_ok=True)
    key = secrets / re.sub(r"\W", "", ground.path)
    key.write_text("not secret any more")
    os.link(key, ground.behind / "here/linked")
    link, linked = ground.inside / "here/link", ground.inside / "here/linked"
    for _ in range(2):
        assert errno_of(os.lstat, link) == "ENOENT" == errno_of(os.lstat, linked)
    key.unlink()
    (ground.behind / "there/way").unlink()
    (ground.behind / "there/way").symlink_to("open")
    until(lambda: os.path.lexists(link), "the link is there", 3)
    until(lambda: os.path.lexists(linked), "the file is there", 3)
    assert link.read_text() == "content of there/f"
    assert linked.read_text() == "not secret any more"


def reaching(file: int, path: Path) -> dict[str, Callable[[], object]]:
    """What makes more of an open file than a handle: opened again, changed or given a name by its descriptor."""
    magic = f"/proc/self/fd/{file}"
    return {
        "open": lambda: os.close(os.open(magic, os.O_RDONLY)),
        "open to write": lambda: os.close(os.open(magic, os.O_WRONLY | os.O_TRUNC)),
        "truncate": lambda: os.truncate(magic, 1),
        "chmod": lambda: os.fchmod(file, 0o777),
        "chown": lambda: os.fchown(file, os.geteuid(), os.getegid()),
        "utime": lambda: os.utime(magic, (1, 1)),
        "setxattr": lambda: os.setxattr(file, "user.a", b"b"),
        # With a descriptor, however needless, it is linkat(2) with AT_SYMLINK_FOLLOW.
        "link": lambda: os.link(magic, path.parent / "back", src_dir_fd=file),
    }


@pytest.mark.parametrize("to", ["hidden", "read-only", "credential", "outside"])
@pytest.mark.parametrize("above", [False, True], ids=["alone", "with its directory"])
def test_an_open_file_that_another_moved_is_only_what_its_handle_is(
    ground: Ground, tmp_path: Path, to: str, above: bool
) -> None:
    """It may be read on and looked at by the handle. By it no process gets the file again: what would open it, change its
    attributes or give it a name in the view is ESTALE, at once and later, and the source stays as it was."""
    ground.make("here/x/f", "there/g")
    ground.rule("there", {"hidden": "none", "read-only": "ro"}.get(to, "stage"))
    ground.rule("here", "stage")
    ground.warm("here")
    file = ground.open("here/x/f")
    moved = {"credential": ground.behind / "there/.env", "outside": tmp_path / "away"}.get(to, ground.behind / "there/y")
    (ground.behind / ("here/x" if above else "here/x/f")).rename(moved)
    # At its new place a directory that is a credential hides what is in it by its name, as a hidden one does.
    stands = moved / "f" if above else moved
    before = os.stat(stands)
    for turn in range(2):
        for act, reach in reaching(file, ground.inside / "here/x").items():
            assert errno_of(reach) in ("ESTALE", "ENOENT", "EROFS", "EACCES"), act
        now = os.stat(stands)
        # Not the access time, which reading by the handle moves.
        assert (now[:7], now.st_mtime_ns) == (before[:7], before.st_mtime_ns)
        assert os.listxattr(stands) == []
        assert not {"back", "f"} & {*names(ground.behind / "here"), *names(ground.inside / "here")}
        if turn == 0:
            assert os.pread(file, 7, 0) == b"content"
            assert os.fstat(file).st_size == before.st_size
            settle(ground.behind / "here")


def test_opening_a_name_that_leads_elsewhere_finds_what_is_there_now(ground: Ground) -> None:
    """While the file that had the name is open still, and its new place read-only: neither is it written by the old name
    (of 1500 that were opened so, all were), nor is what took its name passed over."""
    ground.rule("here", "stage")
    ground.make("here/f")
    ground.warm("here")
    for turn in range(50):
        file = os.open(ground.inside / "here/f", os.O_RDONLY)
        try:
            (ground.behind / "here/f").rename(ground.behind / f"there/{turn}")
            (ground.behind / "here/f").write_text("another")
            (ground.inside / "here/f").write_text(str(turn))
        finally:
            os.close(file)
        assert (ground.behind / f"there/{turn}").read_text() in ("content of here/f", str(turn - 1))
        assert (ground.behind / "here/f").read_text() == str(turn)
