"""A policy that gives less: names, open files and mapped pages."""

from __future__ import annotations

import errno
import os
import signal
import stat
from collections.abc import Callable

import pytest

from tests.mount.asked import HAS_EPOCH
from tests.mount.children import child, go
from tests.mount.expecting import errno_of, refused
from tests.mount.getdents import batches
from tests.mount.live.ground import _MAPPING, Ground, opened
from tests.mount.places import names


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
            "opened again": lambda: os.open(f"/proc/self/fd/{readable}", os.O_RDONLY),
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
