"""Directories that another moves to where other rules hold."""

from __future__ import annotations

import os
import signal
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.children import child, go
from tests.mount.expecting import errno_of, until
from tests.mount.getdents import batches
from tests.mount.moved.ground import GONE, Ground, hiding
from tests.mount.places import names
from tests.mount.shuffling import exchange

found_by = pytest.mark.parametrize("by", ["lookup", "listing"])


@found_by
@pytest.mark.parametrize("with_its_parent", [False, True], ids=["alone", "with its parent"])
def test_moved_to_where_a_rule_hides_what_is_below(ground: Ground, by: str, with_its_parent: bool) -> None:
    """What the rules of the new place hide is in no listing and missing to every call, what they make a passage is one,
    and what they say nothing of is there."""
    x = "parent/x" if with_its_parent else "x"
    hiding(ground, x)
    ground.move(f"here/{x.split('/')[0]}", f"there/{x.split('/')[0]}")
    ground.found(f"there/{x.split('/')[0]}", by)
    moved = ground.inside / "there" / x
    ground.at_once(lambda: names(moved) == ["f"], "hidden names are not listed")
    for name in ("secret", "closed", "closed/g"):
        path = moved / name
        for act in (os.stat, os.listdir, Path.read_bytes, lambda path: os.open(path, os.O_PATH)):
            ground.at_once(lambda act=act, path=path: errno_of(act, path) == "ENOENT", f"{name} is missing")  # type: ignore[misc]
    ground.at_once(lambda: errno_of(os.stat, moved / "passed/g") == "EACCES", "a passage shows nothing but what is open")
    assert errno_of(os.listdir, moved / "passed") == "EACCES"
    until(lambda: stat.S_IMODE(os.stat(moved / "passed").st_mode) == 0o111, "a passage has a passage's mode")
    assert names(moved / "passed/in") == ["g"]
    for file in ("f", "passed/in/g"):
        assert (moved / file).read_text() == f"content of here/{x}/{file}"


@found_by
def test_by_descriptors_of_what_was_moved_and_is_hidden(ground: Ground, by: str) -> None:
    """Whoever holds what the new place hides gets EACCES by it, nothing by a name in the directory that was moved, and
    cannot open it once more."""
    hiding(ground)
    secret, directory, closed = ground.open("here/x/secret"), ground.open("here/x"), ground.open("here/x/closed")
    assert os.pread(secret, 7, 0) == b"content"
    assert len(names(directory)) == 4
    ground.move("here/x", "there/x")
    ground.found("there/x", by)
    until(lambda: errno_of(os.pread, secret, 1, 0) == "EACCES", "an open file that is hidden cannot be read")
    assert errno_of(os.fstat, secret) == "EACCES" == errno_of(os.listdir, closed)
    assert errno_of(os.open, f"/proc/self/fd/{secret}", os.O_RDONLY) == "EACCES"
    ground.at_once(lambda: names(directory) == ["f"], "the directory lists what it has at its new place")
    for name in ("secret", "closed", "closed/g"):
        assert errno_of(lambda name=name: os.open(name, os.O_RDONLY, dir_fd=directory)) == "ENOENT"
        assert errno_of(lambda name=name: os.stat(name, dir_fd=directory)) == "ENOENT"
    assert errno_of(lambda: os.open("g", os.O_RDONLY, dir_fd=closed)) in GONE
    assert os.stat("f", dir_fd=directory).st_size == len("content of here/x/f")


def test_a_mapped_page_of_what_was_moved_and_is_hidden(ground: Ground) -> None:
    """Touching a page of it that a process has mapped is SIGBUS."""
    hiding(ground)
    script = """
import mmap, os, sys
mapped = mmap.mmap(os.open(sys.argv[1], os.O_RDONLY), 0, mmap.MAP_SHARED, mmap.PROT_READ)
assert mapped[:7] == b"content"
print("ready", flush=True)
input()
print(mapped[:7])
"""
    other = ground.open("here/x/secret")
    with child(script, ground.inside / "here/x/secret") as process:
        ground.move("here/x", "there/x")
        ground.found("there/x")
        # Its pages and the attributes go together.
        until(lambda: errno_of(os.pread, other, 1, 0) == "EACCES", "the page is gone")
        assert go(process) == ""
        assert process.returncode == -signal.SIGBUS


def test_moved_away_from_what_hid_it(ground: Ground) -> None:
    """What the old place hid, made a passage of or made missing is there at the new one: to who knew it as missing, lists
    it, or holds the directory."""
    hiding(ground)
    ground.move("here/x", "there/x")
    ground.found("there/x")
    directory = ground.open("there/x")
    ground.at_once(lambda: names(directory) == ["f"], "hidden names are not listed")
    for name in ("secret", "closed"):
        assert not os.path.lexists(ground.inside / "there/x" / name)
    assert errno_of(os.listdir, ground.inside / "there/x/passed") == "EACCES"
    ground.move("there/x", "here/y")
    ground.found("here/y")
    ground.at_once(lambda: names(ground.inside / "here/y") == ["closed", "f", "passed", "secret"], "all is listed")
    ground.at_once(lambda: names(ground.inside / "here/y/passed") == ["g", "in"], "a passage is none any more")
    for name in ("secret", "closed/g", "passed/g", "passed/in/g"):
        path = ground.inside / "here/y" / name
        ground.at_once(lambda path=path: os.path.lexists(path), f"{name} is there")  # type: ignore[misc]
        assert path.read_text() == f"content of here/x/{name}"
    assert os.stat("secret", dir_fd=directory).st_size
    until(lambda: stat.S_IMODE(os.stat(ground.inside / "here/y/passed").st_mode) == 0o555, "its mode is its own")


@found_by
def test_moved_to_where_it_is_read_only(ground: Ground, by: str) -> None:
    """No write bits, no opening for writing, no change by a descriptor that was opened when it could be written, and what
    is hidden there is hidden to who had it open."""
    ground.rule("here/x", "stage")
    ground.rule("there/x/secret", "none")
    ground.make("here/x/f", "here/x/secret", "here/x/d/f")
    ground.warm("here", "there")
    file, below = ground.open("here/x/f", os.O_RDWR), ground.open("here/x/d/f", os.O_WRONLY | os.O_APPEND)
    secret, directory = ground.open("here/x/secret"), ground.open("here/x")
    os.pwrite(file, b"C", 0)
    ground.move("here/x", "there/x")
    ground.found("there/x", by)
    for name in ("", "f", "d", "d/f"):
        path = ground.inside / "there/x" / name
        ground.at_once(lambda path=path: os.stat(path).st_mode & 0o222 == 0, f"{name} has no write bits")  # type: ignore[misc]
    calls: dict[str, Callable[[], object]] = {
        "open": lambda: os.open(ground.inside / "there/x/f", os.O_RDWR),
        "open by the directory": lambda: os.open("f", os.O_WRONLY, dir_fd=directory),
        "create by the directory": lambda: os.open("new", os.O_WRONLY | os.O_CREAT, dir_fd=directory),
        "pwrite": lambda: os.pwrite(file, b"x", 0),
        "append": lambda: os.write(below, b"x"),
        "ftruncate": lambda: os.ftruncate(file, 1),
        "fchmod": lambda: os.fchmod(file, 0o600),
        "opened again": lambda: os.open(f"/proc/self/fd/{file}", os.O_RDWR),
    }
    until(lambda: errno_of(calls["pwrite"]) == "EROFS", "an open file cannot be written")
    assert {call: errno_of(act) for call, act in calls.items()} == dict.fromkeys(calls, "EROFS")
    until(lambda: errno_of(os.pread, secret, 1, 0) == "EACCES", "an open file that is hidden cannot be read")
    assert errno_of(lambda: os.open("secret", os.O_RDONLY, dir_fd=directory)) == "ENOENT"
    assert os.pread(file, 99, 0) == b"Content of here/x/f" == (ground.behind / "there/x/f").read_bytes()
    assert (ground.behind / "there/x/d/f").read_text() == "content of here/x/d/f"


def test_moved_to_another_level_and_back(ground: Ground) -> None:
    """What changes in a directory after it came back is seen by name and in listings, also while somebody stands in it."""
    ground.rule("here/x", "stage")
    ground.make("here/x/f", "here/x/g")
    ground.warm("here", "there")
    ground.open("here/x")
    ground.move("here/x", "there/x")
    ground.found("there/x")
    ground.warm("there")
    ground.move("there/x", "here/x")
    ground.found("here/x")
    path = ground.inside / "here/x"
    until(lambda: os.stat(path / "f").st_mode & 0o200, "it can be written again")
    (path / "f").write_text("written")
    assert not os.path.lexists(path / "new")
    ground.warm("here")
    (ground.behind / "here/x/new").touch()
    (ground.behind / "here/x/g").unlink()
    until(lambda: os.path.lexists(path / "new"), "a new name is seen")
    until(lambda: names(path) == ["f", "new"], "the listing is new")
    until(lambda: not os.path.lexists(path / "g"), "a name that went is gone")


def test_a_file_moved_to_where_it_is_read_only(ground: Ground) -> None:
    """Once a file with one name is found at its new place, a descriptor opened when it could be written changes it no
    more."""
    ground.rule("here", "stage")
    ground.make("here/f")
    ground.warm("here", "there")
    file = ground.open("here/f", os.O_RDWR)
    ground.move("here/f", "there/f")
    ground.found("there/f")
    until(lambda: errno_of(os.pwrite, file, b"x", 0) == "EROFS", "it cannot be written", 2)
    assert errno_of(os.open, f"/proc/self/fd/{file}", os.O_RDWR) == "EROFS"
    assert os.pread(file, 99, 0) == b"content of here/f"


def test_files_of_two_levels_change_places(ground: Ground) -> None:
    """Each has the content of the other and the level of its name."""
    ground.rule("here", "stage")
    ground.make("here/f", "there/f")
    ground.warm("here", "there")
    exchange(ground.behind / "here/f", ground.behind / "there/f")
    until(lambda: (ground.inside / "here/f").read_text() == "content of there/f", "one is exchanged")
    until(lambda: (ground.inside / "there/f").read_text() == "content of here/f", "the other is exchanged")
    assert errno_of(os.open, ground.inside / "there/f", os.O_RDWR) == "EROFS"
    os.close(os.open(ground.inside / "here/f", os.O_RDWR))
    assert os.stat(ground.inside / "here/f").st_mode & 0o200
    assert not os.stat(ground.inside / "there/f").st_mode & 0o200


def test_moved_to_a_place_that_is_hidden_and_back(ground: Ground) -> None:
    """It is gone: by its old name and its new one, and in the directory itself for who holds it. What came and went in it
    meanwhile is true when it is back."""
    ground.rule("there", "none")
    ground.make("here/x/f", "here/x/g")
    ground.warm("here")
    directory = ground.open("here/x")
    assert not os.path.lexists(ground.inside / "here/x/new")
    ground.move("here/x", "there/x")
    until(lambda: not os.path.lexists(ground.inside / "here/x"), "it is gone")
    assert names(ground.inside / "here") == []
    for path in ("there", "there/x", "there/x/f", "here/x/f"):
        assert errno_of(os.stat, ground.inside / path) == "ENOENT"
    until(lambda: errno_of(os.listdir, directory) in GONE, "it cannot be listed")
    for name in ("f", "g", "new"):
        assert errno_of(lambda name=name: os.stat(name, dir_fd=directory)) in GONE
        assert errno_of(lambda name=name: os.open(name, os.O_RDONLY, dir_fd=directory)) in GONE
    (ground.behind / "there/x/new").write_text("new")
    (ground.behind / "there/x/g").unlink()
    (ground.behind / "there/x/f").write_text("changed there")
    ground.move("there/x", "here/x")
    ground.found("here/x")
    for x in (ground.inside / "here/x", directory):
        until(lambda x=x: names(x) == ["f", "new"], "what came and went is listed so")  # type: ignore[misc]
    for name, content in (("f", "changed there"), ("new", "new")):
        assert os.stat(name, dir_fd=directory).st_size == len(content)
        assert (ground.inside / "here/x" / name).read_text() == content
    assert errno_of(os.stat, ground.inside / "here/x/g") == "ENOENT"


def test_moved_to_a_place_that_is_hidden_while_a_listing_is_half_read(ground: Ground) -> None:
    """What is made there afterwards is in no listing that began before, and beginning again is refused."""
    ground.rule("there", "none")
    ground.make(*(f"here/x/{number:03}-{'x' * 40}" for number in range(300)))
    ground.warm("here")
    directory = ground.open("here/x")
    listing = batches(directory, 4096)
    first = next(listing)
    ground.move("here/x", "there/x")
    until(lambda: not os.path.lexists(ground.inside / "here/x"), "it is gone")
    ground.make("there/x/new")
    try:
        rest = [name for names in listing for name in names]
    except OSError:
        rest = []
    assert first
    assert not set(rest) & {*first, b"new"}
    os.lseek(directory, 0, os.SEEK_SET)
    assert errno_of(os.listdir, directory) in GONE


def test_moved_to_a_place_that_is_hidden_before_a_listing_is_read(ground: Ground) -> None:
    """A listing that was open tells nothing of what is in the directory there, nor has the kernel keep it."""
    ground.rule("there", "none")
    ground.make("here/x/f")
    ground.warm("here")
    ground.make("here/x/g")
    until(lambda: os.path.lexists(ground.inside / "here/x/g"), "the list of names is to be made again")
    directory = ground.open("here/x")
    ground.move("here/x", "there/x")
    until(lambda: not os.path.lexists(ground.inside / "here/x"), "it is gone")
    (ground.behind / "there/x/f").write_text("longer than it was before")
    until(lambda: errno_of(lambda: os.stat("f", dir_fd=directory)) in GONE, "it is not found there")
    assert errno_of(os.listdir, directory) in GONE
    assert errno_of(lambda: os.stat("f", dir_fd=directory)) in GONE
