"""Somebody moves things in the source behind the mount's back, to where other rules hold: whatever was judged, listed or
kept by the old place is not answered any more, once it is found at the new one. Both ways to tell the kernel are tried:
the epoch of Linux 6.16, and the names one by one, as an older kernel has to."""

from __future__ import annotations

import os
import re
import shutil
import signal
import stat
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from policyfs.opening.load import PolicyOptions
from policyfs.opening.view import open_view
from policyfs.policy.paths import HostPath
from tests.mount.asked import Live, asking_for, live
from tests.mount.harness import MODULE_DEADLINE, errno_of, until
from tests.mount.places import names
from tests.mount.shuffling import SESSION, Shuffled, exchange, told
from tests.mount.test_coherence import settle
from tests.mount.test_live import HAS_EPOCH, child, go
from tests.mount.test_operations import batches

GONE = ("ENOENT", "ESTALE", "EACCES")
"""What may be answered in a directory that is no longer where it was found."""

TO_KEEP = 0.1
"""Seconds that is kept what nothing watches, here: a link, which a second is for otherwise."""


@pytest.fixture(scope="module", params=["epoch", "name by name"])
def lively(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One mount for the tests here, for each of the two ways to tell the kernel."""
    sabotage = f"import policyfs.fuse.kernel_cache as cache; cache.SHORT = {TO_KEEP}\n"
    if request.param != "epoch":
        sabotage += asking_for(old_kernel=True)
    with live(tmp_path_factory.mktemp("source"), "/=ro", sabotage=sabotage, deadline=MODULE_DEADLINE) as lively:
        yield lively


@dataclass
class Ground:
    """A directory of one test's own. In it, `here` is free of rules and `there` has those that the test gives it."""

    live: Live
    path: str
    inside: Path
    behind: Path
    opened: list[int] = field(default_factory=list)

    def rule(self, name: str, level: str) -> None:
        """Put something at a level, whether it is there or not."""
        self.live.grant(f"{self.path}/{name}", level)

    def make(self, *files: str) -> None:
        """Make files in the source, and the directories above them."""
        for file in files:
            (self.behind / file).parent.mkdir(parents=True, exist_ok=True)
            (self.behind / file).write_text("content of " + file)

    def warm(self, *paths: str) -> None:
        """Have the kernel keep whatever it may of these, and of what is below them."""
        everything = [path for name in paths for path in (self.behind / name, *(self.behind / name).rglob("*"))]
        settle(*everything)
        for _ in range(2):
            for behind in everything:
                path = self.inside / behind.relative_to(self.behind)
                if os.path.lexists(path) and path.is_file():
                    path.read_bytes()
                elif os.path.lexists(path):
                    names(path)

    def open(self, name: str, flags: int = os.O_RDONLY) -> int:
        """A descriptor, of a directory too; closed with the test."""
        self.opened.append(os.open(self.inside / name, flags))
        return self.opened[-1]

    def move(self, old: str, new: str) -> None:
        """Rename in the source."""
        assert not os.path.lexists(self.inside / new)
        (self.behind / old).rename(self.behind / new)

    def at_once(self, holds: Callable[[], bool], what: str) -> None:
        """What the epoch makes true before anything else is answered; name by name it takes a moment."""
        if HAS_EPOCH and "epoch" in self.path:
            assert holds(), what
        else:
            until(lambda: told(holds) is True, what)

    def found(self, name: str, by: str = "lookup") -> None:
        """Wait until the view shows it: to who looks it up, or lists its directory."""
        path = self.inside / name
        if by == "lookup":
            until(lambda: os.path.lexists(path), f"{name} is found")
        else:
            until(lambda: path.name in names(path.parent), f"{name} is listed")


@pytest.fixture
def ground(lively: Live, request: pytest.FixtureRequest) -> Iterator[Ground]:
    """The directories `here` and `there`."""
    name = re.sub(r"\W+", "-", request.node.name)
    for directory in ("here", "there"):
        (lively.view.source / name / directory).mkdir(parents=True)
    ground = Ground(lively, f"/{name}", lively.view.point / name, lively.view.source / name)
    with ExitStack() as stack:
        stack.callback(lambda: [os.close(descriptor) for descriptor in ground.opened])
        yield ground


found_by = pytest.mark.parametrize("by", ["lookup", "listing"])


# -- to where a rule hides what is below ---------------------------------------------------------------------------------


def hiding(ground: Ground, x: str = "x") -> None:
    """A directory in `here` that is known to the kernel, and rules for what it has when it is in `there`."""
    ground.make(f"here/{x}/secret", f"here/{x}/f", f"here/{x}/closed/g", f"here/{x}/passed/in/g", f"here/{x}/passed/g")
    for name, level in (("secret", "none"), ("closed", "none"), ("passed", "none"), ("passed/in", "ro")):
        ground.rule(f"there/{x}/{name}", level)
    ground.warm("here", "there")


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


# -- to another level ----------------------------------------------------------------------------------------------------


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
        "opened anew": lambda: os.open(f"/proc/self/fd/{file}", os.O_RDWR),
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


# -- to where nothing is seen --------------------------------------------------------------------------------------------


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
    """What is made there afterwards is in no listing that began before, and beginning anew is refused."""
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
    until(lambda: os.path.lexists(ground.inside / "here/x/g"), "the list of names is to be made anew")
    directory = ground.open("here/x")
    ground.move("here/x", "there/x")
    until(lambda: not os.path.lexists(ground.inside / "here/x"), "it is gone")
    (ground.behind / "there/x/f").write_text("longer than it was before")
    until(lambda: errno_of(lambda: os.stat("f", dir_fd=directory)) in GONE, "it is not found there")
    assert errno_of(os.listdir, directory) in GONE
    assert errno_of(lambda: os.stat("f", dir_fd=directory)) in GONE


# -- another in its place ------------------------------------------------------------------------------------------------


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


# -- by who has it open --------------------------------------------------------------------------------------------------


def reaching(file: int, path: Path) -> dict[str, Callable[[], object]]:
    """What makes more of an open file than a handle: opened anew, changed or given a name by its descriptor."""
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
    """It may be read on and looked at by the handle. By it no process gets the file anew: what would open it, change its
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


# -- at random -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5017, 6029, 6050])
def test_whatever_is_moved_the_mount_shows_what_a_new_one_would(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes at random, several before anyone looks, and looks at random, also by directories held open: once the events
    have been seen, the mount shows what the view gives that knows of nothing before."""
    source = tmp_path / "source"
    (source / "marker").mkdir(parents=True)
    (source / "marker/last").touch()
    sabotage = f"import policyfs.fuse.kernel_cache as cache; cache.SHORT = {TO_KEEP}\n"
    if seed % 2:
        sabotage += asking_for(old_kernel=True)
    with live(source, session=SESSION, sabotage=sabotage) as lively, ExitStack() as stack:
        monkeypatch.setenv("HOME", str(lively.view.person.home))
        view = open_view(HostPath(os.fsencode(source)), PolicyOptions(session_file=str(lively.session_file)))
        stack.callback(view.root.close)
        tree = Shuffled(source, lively.view.point, view, seed, patience=TO_KEEP + 0.5)
        stack.callback(tree.close)
        for _ in range(40):
            tree.outside()
        last = lively.view.point / "marker/last"
        for turn in range(1, 16):
            for _ in range(tree.chance.randrange(12)):
                tree.inside()
            for _ in range(tree.chance.randrange(1, 7)):
                tree.outside()
                for _ in range(tree.chance.choice([0, 0, 1, 3])):
                    tree.inside()
            # Events are looked at in their order: once this one is seen, all before it have been.
            settle(source / "marker/last")
            for _ in range(2):
                os.stat(last)
            os.utime(source / "marker/last", (turn, turn))
            until(lambda turn=turn: os.stat(last).st_mtime == turn, "the last change is seen")  # type: ignore[misc]
            tree.check()
