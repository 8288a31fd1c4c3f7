"""Another policy for a mount in use (rule live-1): once a change is acknowledged, nothing that it took away is
answered, whoever held it and however the kernel kept it. Both ways are tried: the epoch of Linux 6.16, and the names one
by one, as an older kernel has to."""

from __future__ import annotations

import contextlib
import errno
import mmap
import os
import platform
import re
import signal
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mount.asked import Fault, Live, asking_for, live
from tests.mount.harness import MODULE_DEADLINE, PATIENCE, errno_of, refused, until
from tests.mount.places import names
from tests.mount.test_operations import batches

POLICY = 3
"""The exit code of a policy that cannot be used."""

HAS_EPOCH = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2]) >= (6, 16)

SESSION = """
[grants]
"/" = "none"
"/own" = "ro"
"/own/below" = "stage"
[floors]
"/floored" = "ro"
"""


@pytest.fixture(scope="module", params=["epoch", "name by name"])
def lively(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One mount for most tests here, for each of the two ways to tell the kernel."""
    source = tmp_path_factory.mktemp("source")
    for directory in ("own/below", "own/more", "floored"):
        (source / directory).mkdir(parents=True)
        (source / directory / "f").write_text("content")
    for file in ("own/f", "floored/.env"):
        (source / file).write_text("content")
    sabotage = "" if request.param == "epoch" else asking_for(old_kernel=True)
    with live(source, session=SESSION, sabotage=sabotage, deadline=MODULE_DEADLINE) as lively:
        yield lively


@dataclass
class Ground:
    """A directory of one test's own, which no grant opens until the test does: `path` in the view."""

    live: Live
    path: str
    inside: Path
    behind: Path

    @property
    def by_epoch(self) -> bool:
        """Which of the two ways this is."""
        return "epoch" in self.path

    def grant(self, level: str, name: str = "", seconds: float | None = None) -> None:
        """Open it, or something in it."""
        self.live.grant(f"{self.path}/{name}", level, seconds)

    def revoke(self, name: str = "") -> None:
        """End a grant of it, or of something in it."""
        self.live.revoke(f"{self.path}/{name}")


@pytest.fixture
def ground(lively: Live, request: pytest.FixtureRequest) -> Ground:
    """A directory with the file `f` and the directory `d` of files in it."""
    name = re.sub(r"\W+", "-", request.node.name)
    behind = lively.view.source / name
    (behind / "d").mkdir(parents=True)
    for file in ("f", "g", "d/f", "d/g"):
        (behind / file).write_text("content of " + file)
    return Ground(lively, f"/{name}", lively.view.point / name, behind)


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor for the body."""
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


@contextlib.contextmanager
def child(script: str, *arguments: str | Path, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process that has said `ready`, goes on when it is told by `go`, and is gone at the end."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=cwd,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        assert process.stdout.readline() == "ready\n"
        yield process


def go(process: subprocess.Popen[str]) -> str:
    """Let a child go on to its end; what it said."""
    return process.communicate("go\n", timeout=PATIENCE)[0]


# -- what became less: names ---------------------------------------------------------------------------------------------


def test_names_that_were_revoked_are_missing(ground: Ground) -> None:
    """What was found, listed, read and held by a link a moment ago is ENOENT to every call by name, and in no listing."""
    (ground.behind / "l").symlink_to("d/f")
    ground.grant("stage")
    inside = ground.inside
    calls: dict[str, Callable[[], object]] = {
        "stat": lambda: os.stat(inside / "d/f"),
        "open": lambda: (inside / "d/f").read_text(),
        "open to write": lambda: (inside / "d/f").write_text("content of d/f"),
        "through a link": lambda: os.stat(inside / "l"),
        "list": lambda: os.listdir(inside / "d"),
        "access": lambda: os.access(inside / "d/f", os.R_OK) or refuse(),
        "chmod": lambda: os.chmod(inside / "d/f", 0o600),
        "attribute": lambda: os.getxattr(inside / "d/f", "user.policyfs.level"),
        "attributes": lambda: os.listxattr(inside / "d/f"),
    }
    assert {call: errno_of(act) for call, act in calls.items()} == dict.fromkeys(calls)
    assert names(inside) == ["d", "f", "g", "l"]
    ground.grant("none", "d")
    assert {call: errno_of(act) for call, act in calls.items()} == dict.fromkeys(calls, "ENOENT")
    assert names(inside) == ["f", "g", "l"]
    assert (inside / "f").read_text() == "content of f"
    ground.revoke()
    # The root is a passage here.
    assert errno_of(os.stat, inside / "f") == "EACCES" == errno_of(os.listdir, inside)


def refuse() -> None:
    """What os.access says by False, as the other calls say it."""
    raise FileNotFoundError(errno.ENOENT, "access")


def test_a_link_stays_when_what_it_lands_on_goes(ground: Ground) -> None:
    """Whoever follows a link finds nothing as soon as what it lands on is closed, and finds it as soon as that is opened.
    The link itself is there all the while, by its name and to whoever has reached it."""
    (ground.behind / "l").symlink_to("d/f")
    ground.grant("ro")
    link = ground.inside / "l"
    with opened(link, os.O_PATH | os.O_NOFOLLOW) as reached:
        for level in ("ro", "none") * 2:
            ground.grant(level, "d/f")
            assert errno_of(os.stat, link) == ("ENOENT" if level == "none" else None)
            assert os.readlink(link) == "d/f"
            assert os.lstat(link).st_size == 3 == os.fstat(reached).st_size
            assert names(ground.inside) == ["d", "f", "g", "l"]


def test_what_becomes_a_passage_can_only_be_walked_through(ground: Ground) -> None:
    """A directory that is closed around an open one: its listing and the descriptor of it are EACCES, its attributes are
    a passage's, what is open below goes on."""
    ground.grant("ro")
    ground.grant("ro", "d")
    with (
        opened(ground.inside, os.O_RDONLY | os.O_DIRECTORY) as directory,
        opened(ground.inside / "d/f", os.O_RDONLY) as file,
    ):
        assert sorted(os.listdir(directory)) == ["d", "f", "g"]
        ground.grant("none")
        assert errno_of(os.listdir, directory) == "EACCES" == errno_of(os.listdir, ground.inside)
        assert stat.S_IMODE(os.stat(ground.inside).st_mode) == 0o111 == stat.S_IMODE(os.fstat(directory).st_mode)
        assert errno_of(os.stat, ground.inside / "f") == "EACCES"
        assert os.read(file, 99) == b"content of d/f"
    assert names(ground.inside / "d") == ["f", "g"]


def test_a_working_directory_that_was_revoked(ground: Ground) -> None:
    """Whoever stands in it still knows where, where the kernel has the epoch; finds nothing by a name from there, and
    lists nothing."""
    ground.grant("stage")
    script = """
import errno, os
os.stat("f"), os.listdir(".")
print("ready", flush=True)
input()
def told(act, *arguments):
    try:
        return act(*arguments)
    except OSError as error:
        return error.errno
print(told(os.getcwd))
for act, name in ((os.stat, "f"), (open, "g"), (os.listdir, "."), (os.mkdir, "x"), (os.stat, "..")):
    print(errno.errorcode.get(told(act, name)))
"""
    with child(script, cwd=ground.inside / "d") as process:
        ground.revoke()
        where, *answers = go(process).splitlines()
    assert set(answers) <= {"ENOENT", "EACCES"}, answers
    assert len(answers) == 5
    if HAS_EPOCH and ground.by_epoch:
        assert where == str(ground.inside / "d")
    assert not (ground.behind / "d/x").exists()


def test_listing_by_a_directory_that_was_open(ground: Ground) -> None:
    """A listing that is half read goes on without what was revoked, and without a doubt about the rest; once the directory
    itself is revoked it is EACCES, and nothing opens from it."""
    for number in range(300):
        (ground.behind / "d" / f"{number:03}-{'x' * 40}").touch()
    ground.grant("ro")
    with opened(ground.inside / "d", os.O_RDONLY | os.O_DIRECTORY) as directory:
        listing = batches(directory, 4096)
        first = next(listing)
        there = {os.fsencode(name) for name in os.listdir(ground.behind / "d")}
        gone = sorted(there - set(first))[::2]
        for name in gone[:3]:
            ground.grant("none", "d/" + name.decode())
        rest = next(listing)
        assert first
        assert not set(rest) & set(gone[:3])
        assert not set(rest) & set(first)
        ground.revoke()
        with refused("EACCES"):
            next(listing)
        os.lseek(directory, 0, os.SEEK_SET)
        assert errno_of(os.listdir, directory) == "EACCES"
        # Its nearest ancestor that is seen is the root, which is a passage here.
        with refused("EACCES"):
            os.open("f", os.O_RDONLY, dir_fd=directory)


# -- what became less: open files ----------------------------------------------------------------------------------------


def test_an_open_file_that_was_revoked(ground: Ground) -> None:
    """By its descriptor everything is EACCES: reading what is in the page cache, attributes, writing, and each way to
    make another descriptor of it; the source stays as it was."""
    ground.grant("stage")
    with (
        opened(ground.inside / "f", os.O_RDWR) as file,
        opened(ground.inside / "f", os.O_RDONLY) as readable,
        opened(ground.inside / "f", os.O_PATH) as reached,
    ):
        for descriptor in (file, readable):
            assert os.pread(descriptor, 99, 0) == b"content of f"
        os.fstat(file)
        ground.revoke()
        calls: dict[str, Callable[[], object]] = {
            "pread": lambda: os.pread(readable, 1, 0),
            "pread of a writable one": lambda: os.pread(file, 1, 0),
            "fstat": lambda: os.fstat(readable),
            "pwrite": lambda: os.pwrite(file, b"x", 0),
            "ftruncate": lambda: os.ftruncate(file, 1),
            "fchmod": lambda: os.fchmod(file, 0o600),
            "futimens": lambda: os.utime(file),
            "fgetxattr": lambda: os.getxattr(file, "user.policyfs.level"),
            "opened anew": lambda: os.open(f"/proc/self/fd/{readable}", os.O_RDONLY),
            "copy_file_range": lambda: os.copy_file_range(readable, file, 1, 0, 4),
        }
        assert {call: errno_of(act) for call, act in calls.items()} == dict.fromkeys(calls, "EACCES")
        assert errno_of(os.open, f"/proc/self/fd/{reached}", os.O_RDONLY) in ("EACCES", "ENOENT")
    assert (ground.behind / "f").read_text() == "content of f"


def test_an_open_file_that_became_read_only(ground: Ground) -> None:
    """By a descriptor that was opened for writing every change is EROFS, and reading goes on; the mode has no write
    bits; the source stays as it was."""
    ground.grant("stage")
    with opened(ground.inside / "f", os.O_RDWR) as file, opened(ground.inside / "g", os.O_WRONLY | os.O_APPEND) as appending:
        os.pwrite(file, b"C", 0)
        os.write(appending, b"+")
        ground.grant("ro")
        calls: dict[str, Callable[[], object]] = {
            "pwrite": lambda: os.pwrite(file, b"x", 0),
            "append": lambda: os.write(appending, b"x"),
            "ftruncate": lambda: os.ftruncate(file, 1),
            "truncate": lambda: os.truncate(ground.inside / "f", 1),
            "fchmod": lambda: os.fchmod(file, 0o600),
            "futimens": lambda: os.utime(file),
            "fsetxattr": lambda: os.setxattr(file, "user.a", b"x"),
            "open to write": lambda: os.open(ground.inside / "f", os.O_WRONLY),
            "create": lambda: os.open(ground.inside / "new", os.O_CREAT | os.O_WRONLY),
            "unlink": lambda: os.unlink(ground.inside / "f"),
        }
        assert {call: errno_of(act) for call, act in calls.items()} == dict.fromkeys(calls, "EROFS")
        assert os.pread(file, 99, 0) == b"Content of f"
        assert os.fstat(file).st_mode & 0o222 == 0 == os.stat(ground.inside / "f").st_mode & 0o222
        os.fsync(file)
    assert [(ground.behind / name).read_text() for name in "fg"] == ["Content of f", "content of g+"]


# -- what became less: mapped pages --------------------------------------------------------------------------------------

_MAPPING = """
import mmap, os, sys
path, kind, act = sys.argv[1:]
descriptor = os.open(path, os.O_RDWR if kind == "dirty" else os.O_RDONLY)
protection = mmap.PROT_READ | (mmap.PROT_WRITE if kind == "dirty" else 0)
mapped = mmap.mmap(descriptor, 0, mmap.MAP_PRIVATE if kind == "private" else mmap.MAP_SHARED, protection)
assert mapped[:7] == b"content"
if kind == "dirty":
    mapped[0] = 88
print("ready", flush=True)
input()
if act == "read":
    print(mapped[:7].decode(), flush=True)
try:
    mapped.flush()
    print("flushed", flush=True)
except OSError as error:
    print(error, flush=True)
"""


@pytest.mark.parametrize("kind", ["shared", "private", "dirty"])
def test_a_mapping_of_what_was_revoked(ground: Ground, kind: str) -> None:
    """Touching a page that a process has mapped, shared or for itself, is SIGBUS; what it had changed there and the
    kernel had not written yet is not written."""
    ground.grant("stage")
    with child(_MAPPING, ground.inside / "f", kind, "read") as process:
        ground.revoke()
        assert go(process) == ""
        assert process.returncode == -signal.SIGBUS
    assert (ground.behind / "f").read_text() == "content of f"


def test_a_dirty_mapping_of_what_became_read_only(ground: Ground) -> None:
    """What was changed in a mapping and not yet written is not written any more, and msync does not say that it was; the
    page is the source's again."""
    ground.grant("stage")
    with child(_MAPPING, ground.inside / "f", "dirty", "flush") as process:
        ground.grant("ro")
        assert "flushed" not in go(process)
    assert (ground.behind / "f").read_text() == "content of f" == (ground.inside / "f").read_text()


# -- what became more ----------------------------------------------------------------------------------------------------


def test_what_becomes_more_is_seen_at_once(ground: Ground) -> None:
    """A name that was missing a moment ago is found and listed; a mode has its write bits; what was EROFS is written."""
    ground.grant("ro")
    ground.grant("none", "d")
    inside = ground.inside
    assert errno_of(os.stat, inside / "d") == "ENOENT" == errno_of(os.stat, inside / "d/f")
    assert names(inside) == ["f", "g"]
    assert os.stat(inside / "f").st_mode & 0o222 == 0
    assert errno_of((inside / "f").write_text, "x") == "EROFS"
    ground.grant("ro", "d")
    assert (inside / "d/f").read_text() == "content of d/f"
    assert names(inside) == ["d", "f", "g"]
    ground.grant("stage")
    ground.grant("stage", "d")
    assert os.stat(inside / "f").st_mode & 0o200
    assert os.access(inside / "f", os.W_OK)
    (inside / "f").write_text("more")
    os.mkdir(inside / "d/new")
    assert (ground.behind / "f").read_text() == "more"


def test_a_directory_that_was_open_lists_what_was_opened(ground: Ground) -> None:
    """Read again from its beginning, a directory that was open lists what has been opened in it since."""
    ground.grant("ro")
    ground.grant("none", "d")
    with opened(ground.inside, os.O_RDONLY | os.O_DIRECTORY) as directory:
        assert sorted(os.listdir(directory)) == ["f", "g"]
        ground.grant("ro", "d")
        assert sorted(os.listdir(directory)) == ["d", "f", "g"]


def test_a_passage_that_is_opened(ground: Ground) -> None:
    """What was a passage has its own attributes at once, and is listed."""
    ground.grant("ro", "d/f")
    assert stat.S_IMODE(os.stat(ground.inside / "d").st_mode) == 0o111
    assert errno_of(os.listdir, ground.inside / "d") == "EACCES" == errno_of(os.stat, ground.inside / "d/g")
    ground.grant("ro", "d")
    assert stat.S_IMODE(os.stat(ground.inside / "d").st_mode) == 0o555
    assert names(ground.inside / "d") == ["f", "g"]


def test_a_descriptor_serves_again_what_was_opened_again(ground: Ground) -> None:
    """What was taken away from an open file is back when the path is: nothing is cut for good."""
    ground.grant("stage")
    with opened(ground.inside / "f", os.O_RDWR) as file:
        ground.revoke()
        assert errno_of(os.pread, file, 1, 0) == "EACCES"
        ground.grant("ro")
        assert os.pread(file, 7, 0) == b"content"
        assert errno_of(os.pwrite, file, b"C", 0) == "EROFS"
        ground.grant("commit")
        assert os.pwrite(file, b"C", 0) == 1
    assert (ground.behind / "f").read_text() == "Content of f"


# -- objects with several names ------------------------------------------------------------------------------------------


def test_hard_links_at_two_levels_that_become_one(ground: Ground) -> None:
    """Two names that were two objects to the session are one: the number, the content, what a descriptor of the former
    writes."""
    (ground.behind / "h").hardlink_to(ground.behind / "d/f")
    ground.grant("stage")
    ground.grant("ro", "d")
    one, other = ground.inside / "h", ground.inside / "d/f"
    with opened(one, os.O_RDWR) as file, opened(other, os.O_RDONLY) as readable:
        # Both at once: a number that the kernel has forgotten, after the event of the second name, may be given again.
        assert os.fstat(file).st_ino != os.fstat(readable).st_ino
        ground.revoke("d")
        ground.grant("stage", "d")
        assert os.stat(one).st_ino == os.stat(other).st_ino
        os.pwrite(file, b"C", 0)
        assert os.pread(readable, 7, 0) == b"Content" == other.read_bytes()[:7]
        os.unlink(one)
        assert os.pread(file, 7, 0) == b"Content"
    assert other.read_text() == (ground.behind / "d/f").read_text() == "Content of d/f"


def test_hard_links_at_one_level_that_become_two(ground: Ground) -> None:
    """Each name goes by its own path from then on: one is written, one is not, and neither lends the other its level."""
    (ground.behind / "h").hardlink_to(ground.behind / "d/f")
    ground.grant("stage")
    for one, other in (("h", "d/f"), ("d/f", "h")):
        assert os.stat(ground.inside / one).st_ino == os.stat(ground.inside / other).st_ino
        ground.grant("ro", "d")
        assert errno_of((ground.inside / "d/f").write_text, "x") == "EROFS"
        assert errno_of(os.open, ground.inside / "d/f", os.O_RDWR) == "EROFS"
        (ground.inside / "h").write_text(one)
        assert (ground.behind / "d/f").read_text() == one
        ground.grant("stage", "d")


def test_one_of_two_names_that_was_revoked(ground: Ground) -> None:
    """The name that is closed is missing, whichever of the two was used last; the other goes on."""
    for number, order in enumerate((("h", "d/f"), ("d/f", "h"))):
        (ground.behind / "h").unlink(missing_ok=True)
        (ground.behind / "h").hardlink_to(ground.behind / "d/f")
        ground.grant("ro")
        for name in (*order, *order):
            os.stat(ground.inside / name)
        ground.grant("none", "h")
        assert errno_of(os.stat, ground.inside / "h") == "ENOENT", number
        assert errno_of((ground.inside / "h").read_text) == "ENOENT", number
        assert (ground.inside / "d/f").read_text() == "content of d/f"
        ground.grant("ro", "h")


def test_a_name_of_a_credential_that_becomes_one(tmp_path: Path) -> None:
    """A file that a new denied place holds too is missing under its other name, and what was open of it is cut."""
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d/f").write_text("content")
    with live(source, session='[grants]\n"/" = "ro"\n') as lively:
        secrets = lively.view.person.home / ".secrets"
        secrets.mkdir()
        (secrets / "key").hardlink_to(source / "d/f")
        file = lively.view.point / "d/f"
        with opened(file, os.O_RDONLY) as descriptor, child(_MAPPING, file, "shared", "read") as process:
            assert os.pread(descriptor, 7, 0) == b"content"
            lively.session_file.write_text('[grants]\n"/" = "ro"\n[deny]\npaths = ["~/.secrets"]\n')
            lively.reload()
            assert errno_of(os.stat, file) == "ENOENT" == errno_of(file.read_text)
            assert errno_of(os.pread, descriptor, 7, 0) == "EACCES"
            assert go(process) == ""
            assert process.returncode == -signal.SIGBUS


# -- grants that end -----------------------------------------------------------------------------------------------------


def test_a_grant_for_a_time(ground: Ground) -> None:
    """It opens for that time and no shorter, then closes what is open too; a longer one beside it goes on, and one that is
    given again lives as long as said last."""
    began = time.monotonic()
    ground.grant("ro", "f", 0.4)
    ground.grant("ro", "g", 3600)
    ground.grant("ro", "d", 0.2)
    ground.grant("ro", "d", 3600)
    with opened(ground.inside / "f", os.O_RDONLY) as file:
        assert os.pread(file, 7, 0) == b"content"
        until(lambda: errno_of(os.pread, file, 7, 0) == "EACCES", "the end of a grant")
        assert time.monotonic() - began >= 0.4
    assert errno_of(os.stat, ground.inside / "f") == "EACCES"
    assert (ground.inside / "g").exists()
    assert (ground.inside / "d/f").exists()
    ground.revoke("g")
    assert errno_of(os.stat, ground.inside / "g") == "EACCES"
    assert (ground.inside / "d/f").exists()


def test_a_grant_ends_whatever_became_of_the_session_file(source: Path) -> None:
    """What ends reads no file: a session file that is broken or gone by then keeps nothing open."""
    (source / "d").mkdir()
    (source / "f").touch()
    with live(source, session='[grants]\n"/" = "ro"\n"/d" = "none"\n') as lively:
        for breaks in (lambda: lively.session_file.write_text("[grants"), lively.session_file.unlink):
            lively.grant("/d", "ro", 0.2)
            assert (lively.view.point / "d").exists()
            breaks()
            until(lambda: errno_of(os.stat, lively.view.point / "d") == "ENOENT", "the end of a grant")
        assert names(lively.view.point) == ["f"]


def test_a_grant_ends_while_the_machine_sleeps(source: Path, tmp_path: Path) -> None:
    """Its time is over when it is over by the clock that a suspend does not stop, not when the daemon has been awake for
    so long."""
    (source / "f").touch()
    slept = tmp_path / "slept"
    slept.write_text("0")
    sabotage = (
        "from policyfs.live import policy as live\nnow = live.now\n"
        f"live.now = lambda: now() + float(open({str(slept)!r}).read())"
    )
    with live(source, "/=none", "/none=ro", sabotage=sabotage) as lively:
        lively.grant("/f", "ro", 3600)
        assert (lively.view.point / "f").exists()
        slept.write_text("3600")
        until(lambda: errno_of(os.stat, lively.view.point / "f") == "EACCES", "the end of a grant", 3)


# -- revoking ------------------------------------------------------------------------------------------------------------


def test_revoking_a_grant_of_the_session(lively: Live) -> None:
    """It is closed and all below it that has no grant of its own, which goes on; a grant opens it again."""
    own = lively.view.point / "own"
    assert names(own) == ["below", "f", "more"]
    lively.revoke("/own")
    assert errno_of(os.listdir, own) == "EACCES" == errno_of(os.stat, own / "f") == errno_of(os.stat, own / "more/f")
    assert (own / "below/f").read_text() == "content"
    lively.revoke("/own")
    assert errno_of(os.listdir, own) == "EACCES"
    lively.reload()
    assert errno_of(os.listdir, own) == "EACCES"
    lively.grant("/own", "ro")
    assert names(own) == ["below", "f", "more"]


def test_revoking_a_grant_at_none(ground: Ground) -> None:
    """It ends as any other does, and so does one with a time: the path is what it is without it."""
    ground.grant("ro")
    for seconds in (None, 3600):
        ground.grant("none", "d", seconds)
        assert errno_of(os.stat, ground.inside / "d") == "ENOENT"
        ground.revoke("d")
        assert names(ground.inside / "d") == ["f", "g"]


def test_a_grant_of_what_was_revoked_ends_at_closed(ground: Ground) -> None:
    """What `revoke` closed is opened by a grant for as long as that lasts, and closed again when it is over or revoked."""
    ground.grant("ro")
    ground.revoke("d")
    assert errno_of(os.stat, ground.inside / "d") == "ENOENT"
    ground.grant("ro", "d")
    assert (ground.inside / "d/f").exists()
    ground.revoke("d")
    assert errno_of(os.stat, ground.inside / "d") == "ENOENT"
    ground.grant("ro", "d", 0.2)
    assert (ground.inside / "d/f").exists()
    until(lambda: errno_of(os.stat, ground.inside / "d") == "ENOENT", "the end of a grant")
    assert (ground.inside / "f").exists()


def test_no_grant_lifts_a_floor_or_the_denylist(lively: Live) -> None:
    """Of what is granted above a floor the floor is left, of what the denylist names nothing."""
    floored = lively.view.point / "floored"
    for path in ("/floored", "/floored/f", "/floored/.env"):
        lively.grant(path, "commit")
    assert (floored / "f").read_text() == "content"
    assert errno_of((floored / "f").write_text, "x") == "EROFS"
    assert names(floored) == ["f"]
    assert errno_of(os.stat, floored / ".env") == "ENOENT"
    lively.reload()
    assert errno_of((floored / "f").write_text, "x") == "EROFS"
    assert errno_of(os.stat, floored / ".env") == "ENOENT"


def test_no_grant_opens_what_binds_the_session(source: Path) -> None:
    """The session file is at none where it lies in SOURCE, whatever is granted live; another one too, once it binds."""
    for name in ("s.toml", "other.toml"):
        (source / name).write_text('[grants]\n"/" = "stage"\n')
    with live(source, options=["-s", str(source / "s.toml")]) as lively:
        lively.grant("/s.toml", "commit")
        assert names(lively.view.point) == ["other.toml"]
        assert errno_of((lively.view.point / "s.toml").write_text, "x") == "EACCES"
        with opened(lively.view.point / "other.toml", os.O_RDWR) as file:
            lively.reload(source / "other.toml")
            assert errno_of(os.pwrite, file, b"x", 0) == "EACCES"
        assert errno_of(os.stat, lively.view.point / "other.toml") == "ENOENT"


# -- all or nothing ------------------------------------------------------------------------------------------------------

BAD = {
    "no TOML": ("[grants", 1),
    "two faults": ('[grants]\n"/" = "much"\n"x" = "ro"\nnone = 1\n', 2),
    "no UTF-8": (b'[grants]\n"/\xff" = "ro"\n', 1),
    "no grant": ("[grants]\n", 1),
    "a bad floor": ('[grants]\n"/" = "stage"\n[floors]\n"/" = 1\n', 1),
}


@pytest.mark.parametrize("way", BAD)
def test_a_bad_file_changes_nothing(lively: Live, way: str) -> None:
    """Each fault is told, with the exit code of a bad policy, and everything is as it was: names, open files, live
    grants; the command says it too."""
    content, faults = BAD[way]
    good = lively.session_file.read_bytes()
    lively.grant("/own", "stage")
    before = lively.ask(do="view")
    try:
        with opened(lively.view.point / "own/f", os.O_RDWR) as file:
            lively.session_file.write_bytes(content if isinstance(content, bytes) else content.encode())
            with pytest.raises(Fault) as caught:
                lively.reload()
            assert caught.value.exit_code == POLICY
            assert len(caught.value.messages) >= faults, caught.value
            assert way == "no grant" or all("session.toml" in message for message in caught.value.messages)
            assert os.pwrite(file, b"c", 0) == 1
            assert lively.ask(do="view") == before
        if way == "two faults":
            done = lively.view.person.policyfs("reload", lively.view.point)
            assert (done.returncode, done.stdout) == (POLICY, "")
            assert [line.removeprefix("policyfs: ") for line in done.stderr.splitlines()] == caught.value.messages
    finally:
        lively.session_file.write_bytes(good)
    lively.reload()
    assert lively.ask(do="view") == before


def test_a_grant_that_does_not_go_with_the_session(source: Path) -> None:
    """On a source that takes two spellings for one name a live grant by another spelling than the session's is told, and
    changes nothing."""
    (source / "Notes").mkdir()
    folds = "from policyfs.source.root import Root\nRoot.folds_case = lambda root: True\n"
    with live(source, "/=none", "/Notes=ro", options=["--allow-case-folding"], sabotage=folds) as lively:
        before = lively.ask(do="view")
        with pytest.raises(Fault) as caught:
            lively.grant("/NOTES", "stage")
        assert caught.value.exit_code == POLICY
        assert lively.ask(do="view") == before
        lively.grant("/Notes", "stage")


def test_rules_on_places_below_the_mountpoint(source: Path, tmp_path: Path) -> None:
    """To follow their links asks the view, which answers while it is given its session anew."""
    point = tmp_path / "view"
    point.mkdir()
    floors = tmp_path / "floors.toml"
    floors.write_text(f'[floors]\n"{point}/a" = "none"\n')
    with live(source, "/=ro", options=("--floors", str(floors)), point=point) as lively:
        lively.reload()
        assert names(point) == []


def test_a_session_that_lies_in_the_view_itself(lively: Live, source: Path) -> None:
    """The daemon would wait for its own answer. So it is told, whatever leads there, and the view goes on."""
    point = lively.view.point
    (source / "link").symlink_to(point)
    (source / "session.toml").symlink_to(point / "own/f")
    for name in (point / "own/f", point / "none", source / "link/own/f", source / "session.toml"):
        done = lively.view.person.policyfs("reload", point, "-s", name)
        assert (done.returncode, "lies in this view" in done.stderr) == (POLICY, True), done.stderr
    done = lively.view.person.policyfs("reload", point, "-s", "")
    assert (done.returncode, "`` cannot be read" in done.stderr) == (POLICY, True), done.stderr
    assert os.stat(point).st_ino


def test_a_reload_goes_by_the_file_it_was_given(source: Path) -> None:
    """`reload -s` is the session from then on, for a later reload and SIGHUP too; one that is not there changes nothing."""
    for name in "ab":
        (source / name).touch()
    with live(source, session='[grants]\n"/a" = "ro"\n') as lively:
        point, other = lively.view.point, lively.session_file.with_name("other.toml")
        with pytest.raises(Fault) as caught:
            lively.reload(other)
        assert caught.value.exit_code == POLICY
        assert names_seen(point) == ["a"]
        other.write_text('[grants]\n"/b" = "ro"\n')
        done = lively.view.person.policyfs("reload", point, "-s", "other.toml", cwd=other.parent)
        assert (done.returncode, done.stdout, done.stderr) == (0, "  /b  ro\n", "")
        assert names_seen(point) == ["b"]
        lively.session_file.unlink()
        lively.reload()
        assert names_seen(point) == ["b"]
        assert lively.status()["session_file"] == str(other)
        other.write_text('[grants]\n"/" = "ro"\n')
        lively.view.signal(signal.SIGHUP)
        until(lambda: names_seen(point) == ["a", "b"], "a reload on SIGHUP")


def names_seen(directory: Path) -> list[str]:
    """Which of a and b are found in it."""
    return [name for name in "ab" if errno_of(os.stat, directory / name) is None]


def test_a_hangup_with_a_bad_file_is_logged_and_changes_nothing(source: Path) -> None:
    """SIGHUP has nobody to answer to: the log says why the policy stays as it is, and the mount goes on."""
    (source / "a").touch()
    with live(source, session='[grants]\n"/" = "ro"\n') as lively:
        lively.view.expected.append("ERROR .*the policy stays as it is: .*session.toml")
        lively.session_file.write_text("[grants")
        lively.view.signal(signal.SIGHUP)
        until(lambda: "the policy stays" in lively.view.log_text, "the complaint")
        assert names_seen(lively.view.point) == ["a"]


# -- changes that come together ------------------------------------------------------------------------------------------


def test_changes_that_come_together_all_hold(source: Path) -> None:
    """None of several changes at once undoes another that is acknowledged: what was revoked stays closed beside grants and
    reloads, and what was granted open."""
    count = 12
    for number in range(count):
        (source / f"r{number}").touch()
        (source / f"g{number}").touch()
    session = '[grants]\n"/" = "ro"\n' + "".join(f'"/g{number}" = "none"\n' for number in range(count))
    with live(source, session=session) as lively:
        faults: list[BaseException] = []
        start = threading.Barrier(count * 2 + 2)

        def change(act: Callable[..., None], *arguments: str) -> None:
            try:
                start.wait(PATIENCE)
                act(*arguments)
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=change, args=(lively.reload,)) for _ in range(2)]
        for number in range(count):
            threads.append(threading.Thread(target=change, args=(lively.revoke, f"/r{number}")))
            threads.append(threading.Thread(target=change, args=(lively.grant, f"/g{number}", "ro")))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(PATIENCE)
        assert not faults
        assert names(lively.view.point) == sorted(f"g{number}" for number in range(count))


# -- under load ----------------------------------------------------------------------------------------------------------

_READER = """
import ctypes, mmap, os, struct, sys, time
kind, path, counters, at = sys.argv[1:]
file = os.open(counters, os.O_RDWR)
counted = mmap.mmap(file, 0)
at = int(at)
descriptor = os.open(path, os.O_RDONLY)
tries = good = 0
last = 0.0

def count(began, succeeded):
    global tries, good, last
    tries += 1
    if succeeded:
        good += 1
        last = max(last, began)
    struct.pack_into("=QQd", counted, at, tries, good, last)

def by_name():
    with open(path, "rb") as opened:
        return opened.read(7) == b"content"

def by_descriptor():
    return os.pread(descriptor, 7, 0) == b"content"

def by_mapping():
    # SIGBUS ends whoever touches the page, so a child does, and counts for itself.
    child = os.fork()
    if child == 0:
        try:
            mapped = mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        except OSError:
            os._exit(1)
        while True:
            began = time.monotonic()
            if mapped[:7] != b"content":
                os._exit(1)
            count(began, True)
    os.waitpid(child, 0)
    # What the child counted, and the try that it died of.
    global tries, good, last
    tries, good, last = struct.unpack_from("=QQd", counted, at)
    return False

read = {"name": by_name, "descriptor": by_descriptor, "mapping": by_mapping}[kind]
parent = os.getppid()
while os.getppid() == parent:
    began = time.monotonic()
    try:
        succeeded = read()
    except OSError:
        succeeded = False
    count(began, succeeded)
"""


@dataclass
class Readers:
    """Processes that read without a pause, each counting its tries, those that succeeded, and when the last of those
    began (CLOCK_MONOTONIC, one clock for all processes)."""

    counted: mmap.mmap
    kinds: tuple[str, ...]

    def now(self) -> list[tuple[int, int, float]]:
        """Tries, successes and the beginning of the last success, of each."""
        return [struct.unpack_from("=QQd", self.counted, 64 * number) for number in range(len(self.kinds))]

    def all_have(self, index: int, more: int) -> None:
        """Wait until each has tried (0) or succeeded (1) so many more times."""
        before = self.now()

        def have() -> bool:
            return all(now[index] - then[index] >= more for now, then in zip(self.now(), before, strict=True))

        until(have, f"{more} more {('tries', 'successes')[index]} of each reader, from {before}")


@contextlib.contextmanager
def readers(path: Path, directory: Path, kinds: tuple[str, ...]) -> Iterator[Readers]:
    """A process of each kind, reading a file from now on."""
    counters = directory / "counters"
    counters.write_bytes(b"\0" * 4096)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(counters.open("r+b"))
        counted = stack.enter_context(mmap.mmap(file.fileno(), 0))
        for number, kind in enumerate(kinds):
            words = [sys.executable, "-I", "-S", "-c", _READER, kind, str(path), str(counters), str(64 * number)]
            # A group of its own: the child of one that maps goes with it.
            process = stack.enter_context(subprocess.Popen(words, process_group=0))
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        yield Readers(counted, kinds)


KINDS = ("name",) * 3 + ("descriptor",) * 3 + ("mapping",) * 2


def test_no_read_that_starts_after_the_acknowledgement_succeeds(ground: Ground, tmp_path: Path) -> None:
    """Eight processes that read by name, by a descriptor and in a mapping, as fast as they can: each reads while it may,
    and of all their reads after a revocation is acknowledged none succeeds, by whatever command it came."""
    ground.grant("ro")
    session_file = ground.live.session_file
    session = session_file.read_text()

    def reload_with(text: str) -> None:
        session_file.write_text(text)
        ground.live.reload()

    closings: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "revoke": (lambda: None, ground.revoke),
        "grant": (lambda: ground.grant("ro"), lambda: ground.grant("none")),
        "revoke of the file alone": (lambda: ground.grant("stage", "f"), lambda: ground.revoke("f")),
        "reload": (
            lambda: reload_with(session.replace("[floors]", f'"{ground.path}/f" = "ro"\n[floors]')),
            lambda: reload_with(session),
        ),
    }
    with readers(ground.inside / "f", tmp_path, KINDS) as reading:
        for way, (opens, closes) in closings.items():
            opens()
            reading.all_have(1, 20)
            closes()
            acknowledged = time.monotonic()
            reading.all_have(0, 20)
            late = {
                kind: last - acknowledged
                for kind, (_, _, last) in zip(KINDS, reading.now(), strict=True)
                if last > acknowledged
            }
            assert not late, f"{way}: reads that began so many seconds after the acknowledgement succeeded: {late}"


def test_writes_that_start_after_the_acknowledgement_fail(ground: Ground) -> None:
    """A process that appends as fast as it can: once it is told that the file can only be read, the source stays as it
    is."""
    script = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
print("ready", flush=True)
while True:
    try:
        os.write(file, b"x")
    except OSError:
        pass
"""
    ground.grant("stage")

    def size() -> int:
        return (ground.behind / "f").stat().st_size

    def more_than(count: Callable[[], int], more: int, what: str) -> None:
        before = count()
        until(lambda: count() > before + more, what)

    with child(script, ground.inside / "f"):
        for level in ("ro", "none"):
            more_than(size, 20, "writes")
            ground.grant(level)
            then = size()
            more_than(lambda: ground.live.status()["refusals"], 50, "tries that are refused")
            assert size() == then
            ground.grant("stage")


MANY = 20_000


@pytest.fixture(scope="module")
def many() -> Iterator[Path]:
    """A directory with so many files; in memory where there is room for that, since making them is the most of it."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="policyfs-test-", dir=where) as directory:
        for number in range(20):
            below = os.path.join(directory, str(number))
            os.mkdir(below)
            for file in range(MANY // 20):
                os.mknod(os.path.join(below, str(file)))
        yield Path(os.path.realpath(directory))


@pytest.mark.parametrize("by_epoch", [True, False], ids=["epoch", "name by name"])
def test_a_change_with_many_known_files(many: Path, by_epoch: bool) -> None:
    """With 20,000 files that the kernel knows a change takes a time that a person does not mind, either way."""
    with live(many, "/=ro", sabotage="" if by_epoch else asking_for(old_kernel=True), deadline=MODULE_DEADLINE) as lively:
        found = lively.view.run("find", ".", "-size", "0", "-printf", "x")
        assert len(found.stdout) == MANY, found.stderr
        assert lively.status()["nodes"] > MANY
        for level, answer in (("none", "EACCES"), ("ro", None)):
            began = time.monotonic()
            lively.grant("/", level)
            took = time.monotonic() - began
            assert errno_of(os.listdir, lively.view.point / "7") in (answer, answer and "ENOENT")
            assert took < 8, f"{level}: {took:.1f} s"


def test_changes_while_find_runs(ground: Ground) -> None:
    """find over a tree whose policy changes without a pause: it ends by itself, what no change concerns is found each
    time, and of what is closed and opened it tells nothing but that it is there or not."""
    for directory in range(10):
        (ground.behind / f"d/{directory}").mkdir()
        for number in range(20):
            (ground.behind / f"d/{directory}/{number}").touch()
    ground.grant("ro")
    always = {f"d/{directory}/{number}" for directory in range(0, 10, 2) for number in range(20)}
    changes = 0
    for _ in range(3):
        with ground.live.view.person.popen(
            "bash", "-c", "for i in 1 2 3 4 5; do find d -type f -size -9 -printf '%p %s\n'; done", cwd=ground.inside,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as finding:  # fmt: skip
            assert finding.stdout is not None
            ready = threading.Event()
            said: list[str] = []

            def hear(
                finding: subprocess.Popen[str] = finding, said: list[str] = said, ready: threading.Event = ready
            ) -> None:
                said.extend(finding.communicate(timeout=PATIENCE))
                ready.set()

            hearing = threading.Thread(target=hear)
            hearing.start()
            while not ready.is_set():
                ground.grant(("none", "stage", "ro")[changes % 3], f"d/{1 + changes % 5 * 2}")
                changes += 1
            hearing.join()
        lines = said[0].splitlines()
        for file in always:
            assert lines.count(f"{file} 0") == 5, (file, said[1])
        errors = [
            line for line in said[1].splitlines() if not re.search(r"(No such file or directory|Permission denied)$", line)
        ]
        assert not errors
    assert changes > 10


def test_status_after_all_this(lively: Live) -> None:
    """After every change above no handle is left, and no node but what the kernel holds."""
    until(lambda: lively.status()["handles"] == 0, "the last handle")
