"""What the reference monitor leaves in the source."""

from __future__ import annotations

import errno
import fcntl
import os
import stat
import time
from pathlib import Path
from typing import Any

import pytest

from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, Name, ViewPath
from policyfs.policy.policy import CompiledPolicy
from policyfs.policy.refusals import Refusal
from policyfs.policy.session import Session
from policyfs.view.monitor import LEVEL_ATTRIBUTE, ReferenceMonitor
from policyfs.view.outcomes import Changes
from tests.view.gate.ground import Refuses, at, beside, identity


def mode(place: Path) -> int:
    return stat.S_IMODE(os.lstat(place).st_mode)


def test_the_modes_of_what_is_made(view: ReferenceMonitor, source: Path) -> None:
    """As asked for, less the umask of who asks, which is nothing where none is told; never with a set-id bit, and a
    directory takes its setgid bit from where it is made alone."""
    view.create(at(view, "/a"), os.O_WRONLY, 0o6777)[0].close()
    view.create(at(view, "/b"), os.O_WRONLY, 0o6777, 0o027)[0].close()
    view.make_node(at(view, "/c"), stat.S_IFIFO | 0o6777)
    view.make_node(at(view, "/e"), stat.S_IFREG | 0o6777, 0o027)
    view.make_directory(at(view, "/g"), 0o7777)
    view.make_directory(at(view, "/h"), 0o7777, 0o027)
    modes = {"a": 0o777, "b": 0o750, "c": 0o777, "e": 0o750, "g": 0o1777, "h": 0o1750}
    assert {name: mode(source / name) for name in modes} == modes
    assert stat.S_ISFIFO(os.lstat(source / "c").st_mode)


def test_the_modes_that_are_set(view: ReferenceMonitor, source: Path) -> None:
    """A file gets no set-id bit, a directory keeps its setgid bit and gets no setuid bit."""
    view.change(at(view, "/f"), Changes(mode=0o6755))
    view.change(at(view, "/d"), Changes(mode=0o7755))
    assert (mode(source / "f"), mode(source / "d")) == (0o755, 0o3755)


def test_a_program_with_another_users_rights_is_not_written(view: ReferenceMonitor, source: Path) -> None:
    """Neither opened for writing, by whatever flags, nor cut; reading it is no matter. A set-id bit without any execute
    bit makes no program, and neither does an execute bit alone."""
    for bits in (0o4755, 0o2711, 0o2010, 0o4001):
        os.chmod(source / "f", bits)
        for flags in (os.O_WRONLY, os.O_RDWR, os.O_RDONLY | os.O_TRUNC, os.O_WRONLY | os.O_APPEND):
            with Refuses(Refusal.SET_ID, "/f"):
                view.open(at(view, "/f"), flags)
        with Refuses(Refusal.SET_ID, "/f"):
            view.change(at(view, "/f"), Changes(size=0))
    os.chmod(source / "f", 0o4755)
    view.open(at(view, "/f"), os.O_RDONLY).close()
    assert (source / "f").read_text() == "f"
    for bits in (0o6644, 0o755, 0o666):
        os.chmod(source / "f", bits)
        view.open(at(view, "/f"), os.O_RDWR).close()


@pytest.mark.parametrize("made", [False, True])
@pytest.mark.parametrize("append", [0, os.O_APPEND])
@pytest.mark.parametrize("access", [os.O_RDONLY, os.O_WRONLY, os.O_RDWR])
def test_an_open_file_has_the_access_asked_for(view: ReferenceMonitor, made: bool, access: int, append: int) -> None:
    """Found or made: what it says of itself, and what its descriptor can do. A flag that is the kernel's stays there."""
    if made:
        file, _ = view.create(at(view, "/new"), access | append | os.O_DIRECT | os.O_CREAT, 0o644)
    else:
        file = view.open(at(view, "/f"), access | append | os.O_DIRECT)
    flags = fcntl.fcntl(file.descriptor, fcntl.F_GETFL)
    assert (file.writable, file.append) == (access != os.O_RDONLY, bool(append))
    assert (flags & os.O_ACCMODE, flags & os.O_APPEND, flags & os.O_DIRECT) == (access, append, 0)
    file.close()


def test_everything_is_changed_at_once(view: ReferenceMonitor, source: Path) -> None:
    """Size, mode and times, and what came of it: when the object changed last before, and what it is like now."""
    before = os.lstat(source / "f")
    changed = view.change(at(view, "/f"), Changes(size=3, mode=0o4640, access_ns=10, modify_ns=20))
    assert changed.before_ns == before.st_ctime_ns
    assert changed.attributes == view.attributes(at(view, "/f"))
    after = os.lstat(source / "f")
    assert (after.st_size, mode(source / "f"), after.st_atime_ns, after.st_mtime_ns) == (3, 0o640, 10, 20)
    assert view.change(at(view, "/d"), Changes(mode=0o2750)).attributes.mode == stat.S_IFDIR | 0o2750
    assert (source / "f").read_bytes() == b"f\0\0"


def test_nothing_is_changed_unasked(view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of what is not given, and of an owner of -1, the source is not asked: the asking alone takes a set-id bit away."""
    os.utime(source / "f", ns=(10, 20))
    before = os.lstat(source / "f")
    for method in ("truncate", "change_mode", "change_owner", "set_times"):
        monkeypatch.delattr(type(view.root), method)
    assert view.change(at(view, "/f"), Changes()).before_ns == before.st_ctime_ns
    assert os.lstat(source / "f") == before
    with Refuses(Refusal.IS_DIRECTORY, "/d"):
        view.change(at(view, "/d"), Changes(size=0, mode=0o700))
    with Refuses(Refusal.STALE, "/f"):
        view.change(at(view, "/f"), Changes(size=0), identity(source / "other"))
    assert (os.lstat(source / "f"), mode(source / "d")) == (before, 0o777)


@pytest.mark.usefixtures("as_root")
def test_an_owner_or_a_group_alone_is_changed(view: ReferenceMonitor, source: Path) -> None:
    """Each by itself, or both."""
    for uid, gid, owners in (
        (12, -1, (12, 0)),
        (-1, 34, (12, 34)),
        (56, 78, (56, 78)),
        (1, -1, (1, 78)),
        (-1, 1, (1, 1)),
    ):
        view.change(at(view, "/f"), Changes(uid=uid, gid=gid))
        status = os.lstat(source / "f")
        assert (status.st_uid, status.st_gid) == owners
        attributes = view.change(at(view, "/f"), Changes(uid=uid, gid=gid)).attributes
        assert (attributes.uid, attributes.gid) == owners


def test_times_left_as_they_are(view: ReferenceMonitor, source: Path) -> None:
    """None leaves a time as it is; each is set by itself."""
    here, place = at(view, "/f"), source / "f"
    os.utime(place, ns=(10, 20))
    view.change(here, Changes())
    assert (os.lstat(place).st_atime_ns, os.lstat(place).st_mtime_ns) == (10, 20)
    view.change(here, Changes(access_ns=30))
    assert (os.lstat(place).st_atime_ns, os.lstat(place).st_mtime_ns) == (30, 20)
    view.change(here, Changes(modify_ns=40))
    assert (os.lstat(place).st_atime_ns, os.lstat(place).st_mtime_ns) == (30, 40)


SECOND = 10**9


@pytest.mark.parametrize(("access", "modify"), [(0, 0), (-SECOND, SECOND), (SECOND, -SECOND), (5, -7)])
def test_the_times_of_what_may_only_be_written(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch, access: int, modify: int
) -> None:
    """Are set to now where now is asked for, as far as a request tells: both times within a second of it."""
    place = source / "f"
    os.utime(place, ns=(10, 20))
    now = not_its_owner(monkeypatch)
    view.change(at(view, "/f"), Changes(access_ns=now + access, modify_ns=now + modify))
    status = os.lstat(place)
    # The clock of a file system may be behind by a tick.
    assert min(status.st_atime_ns, status.st_mtime_ns) > now - SECOND


@pytest.mark.parametrize(
    ("access", "modify"), [(None, 0), (0, None), (SECOND + 1, 0), (0, SECOND + 1), (-SECOND - 1, 0), (0, -SECOND - 1)]
)
def test_other_times_of_what_may_only_be_written(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch, access: int | None, modify: int | None
) -> None:
    """Are not set: one that is not now, or one of the two alone."""
    place = source / "f"
    os.utime(place, ns=(10, 20))
    now = not_its_owner(monkeypatch)
    with Refuses(errno.EPERM):
        times = Changes(
            access_ns=None if access is None else now + access, modify_ns=None if modify is None else now + modify
        )
        view.change(at(view, "/f"), times)
    assert (os.lstat(place).st_atime_ns, os.lstat(place).st_mtime_ns) == (10, 20)


def not_its_owner(monkeypatch: pytest.MonkeyPatch) -> int:
    """Have the source refuse any times but now, as it does to who may write a file that is another's. Gives that now."""
    now, utime = time.time_ns(), os.utime

    def refused(path: str | bytes, **times: Any) -> None:
        if times and os.fsencode(path).startswith(b"/proc/self/fd/"):
            raise PermissionError(errno.EPERM, os.strerror(errno.EPERM))
        utime(path, **times)

    monkeypatch.setattr(os, "utime", refused)
    monkeypatch.setattr("policyfs.source.root.time.time_ns", lambda: now)
    return now


def test_attributes_that_are_the_users(view: ReferenceMonitor, source: Path) -> None:
    """Only `user.*` attributes are named, read, set and removed, and the one that tells the level only read."""
    try:
        os.setxattr(source / "f", "user.a", b"b")
    except OSError:
        pytest.skip("the temporary directory keeps no attributes")
    if os.geteuid() == 0:
        os.setxattr(source / "f", "trusted.a", b"b")
    os.setxattr(source / "f", LEVEL_ATTRIBUTE, b"forged")
    here = at(view, "/f")
    assert view.extended_names(here) == [b"user.a"]
    assert view.extended(here, b"user.a") == b"b"
    assert view.level_of(here) == b"stage"
    assert view.level_of(at(view, "/read/f")) == b"ro"
    view.set_extended(here, b"user.a", b"c")
    view.set_extended(here, b"user.new", b"d", os.XATTR_CREATE)
    with Refuses(errno.EEXIST):
        view.set_extended(here, b"user.a", b"e", os.XATTR_CREATE)
    with Refuses(errno.ENODATA):
        view.set_extended(here, b"user.none", b"e", os.XATTR_REPLACE)
    assert os.getxattr(source / "f", "user.a") == b"c"
    for name in (b"trusted.a", b"security.capability", LEVEL_ATTRIBUTE):
        with Refuses(Refusal.UNSUPPORTED, "/f"):
            view.set_extended(here, name, b"e")
        with Refuses(Refusal.UNSUPPORTED, "/f"):
            view.remove_extended(here, name)
    view.remove_extended(here, b"user.new")
    assert view.extended_names(at(view, "/link")) == []
    for path, refusal in (("/hidden/f", Refusal.MISSING), ("/way", Refusal.DENIED)):
        with Refuses(refusal, path):
            view.level_of(at(view, path))
    with Refuses(Refusal.MISSING, "/away"):
        view.level_of(at(view, "/away"))


def test_another_policy_from_now_on(view: ReferenceMonitor, source: Path) -> None:
    """`take` changes what is shown at once: paths, links that lead out, and the files that are credentials."""
    elsewhere = source.parent / "home"
    elsewhere.mkdir()
    (elsewhere / "key").write_text("secret")
    os.link(elsewhere / "key", source / "notes")
    assert view.attributes(at(view, "/notes")).links == 2
    with Refuses(Refusal.MISSING, "/away"):
        view.attributes(at(view, "/away"))
    place = HostPath(os.fsencode(elsewhere / "key"))
    grants = {ViewPath(b"/"): Level.RO, ViewPath(b"/f"): Level.NONE}
    session = Session(grants=grants, links_outside=(HostPath(b"/elsewhere"),))
    view.take(CompiledPolicy(session, beside(view.root.source, place)))
    for path in ("/notes", "/f"):
        with Refuses(Refusal.MISSING, path):
            view.attributes(at(view, path))
    assert view.link_text(at(view, "/away")) == b"/elsewhere/f"
    assert view.link_text(at(view, "/link")) == b"f"
    with Refuses(Refusal.READ_ONLY, "/other"):
        view.open(at(view, "/other"), os.O_WRONLY)


def test_a_listing_can_be_synced_and_closed_once(view: ReferenceMonitor) -> None:
    """fsync(2) of a directory, and a second close, are no matter; a closed listing shows nothing more."""
    listing = view.listing(at(view, "/d"))
    listing.sync()
    assert sorted(listing.read()) == [b"empty", b"full"]
    assert listing.entry(Name(b"full")) is not None
    assert listing.entry(Name(b"gone")) is None
    listing.close()
    listing.close()
    with pytest.raises(OSError):
        listing.entry(Name(b"full"))
