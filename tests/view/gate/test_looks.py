"""What changes between two looks, and files that are opened at the first read."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from policyfs.policy.paths import HostPath, Name, ViewPath
from policyfs.policy.policy import CompiledPolicy
from policyfs.policy.refusals import Refusal
from policyfs.source.files import OpenFile
from policyfs.source.tree import RENAME_EXCHANGE, RENAME_NOREPLACE
from policyfs.view.monitor import ReferenceMonitor
from policyfs.view.outcomes import Changes
from policyfs.view.refused import Refused
from tests.view.gate.ground import Refuses, at, beside


def test_a_link_that_is_gone_or_another_at_the_second_look(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that went is missing; one that another took the place of is stale."""
    reach = view.root.reach

    def gone(path: ViewPath) -> int:
        os.unlink(source / "link")
        return reach(path)

    def swapped(path: ViewPath) -> int:
        if path == b"/link":
            os.symlink("hidden/f", source / "swapped")
            os.rename(source / "swapped", source / "link")
        return reach(path)

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(view.root, "reach", swapped)
    with Refuses(Refusal.STALE, "/link"):
        view.attributes(at(view, "/link"))
    monkeypatch.setattr(view.root, "reach", reach)
    os.unlink(source / "link")
    os.symlink("f", source / "link")
    monkeypatch.setattr(view.root, "reach", gone)
    with Refuses(Refusal.MISSING, "/link"):
        view.attributes(at(view, "/link"))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_root_that_is_gone_is_missing(view: ReferenceMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """As anything else that is not there."""

    def gone(_: ViewPath) -> os.stat_result:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(view.root, "stat", gone)
    with Refuses(Refusal.MISSING, "/"):
        view.attributes(view.top)


def test_a_link_is_read_from_what_was_judged(view: ReferenceMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reached once, judged and read by that."""
    reach, reached = view.root.reach, []
    monkeypatch.setattr(view.root, "reach", lambda path: (reached.append(path), reach(path))[1])
    assert view.link_text(at(view, "/link")) == b"f"
    assert reached.count(b"/link") == 1
    assert view.change(at(view, "/link"), Changes(modify_ns=20)).attributes.modify_ns == 20
    assert reached.count(b"/link") == 2


@pytest.mark.parametrize("flags", [0, RENAME_NOREPLACE])
def test_what_turned_up_where_a_rename_saw_nothing(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch, flags: int
) -> None:
    """Is judged before it is replaced: what is shown is replaced, unless that was not to be; what is not shown stays."""
    stat_name = view.root.stat_name
    for name in (b"away", b"other"):
        looks = iter([True])

        def late(directory: int, asked: Name, name: bytes = name, looks: Iterator[bool] = looks) -> os.stat_result:
            if asked == name and next(looks, False):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return stat_name(directory, asked)

        monkeypatch.setattr(view.root, "stat_name", late)
        path = "/" + name.decode()
        if name == b"away":
            with Refuses(Refusal.DENIED, path):
                view.rename(at(view, "/f"), at(view, path), flags)
            assert os.readlink(source / "away") == "/elsewhere/f"
        elif flags:
            with Refuses(Refusal.EXISTS, path):
                view.rename(at(view, "/f"), at(view, path), flags)
            assert (source / "other").read_text() == "other"
        else:
            view.rename(at(view, "/f"), at(view, path), flags)
            assert (source / "other").read_text() == "f"


def test_the_entries_of_a_listing_are_judged_one_by_one(view: ReferenceMonitor, source: Path) -> None:
    """Each by its own place, whatever the level of the directory, and as it is shown anywhere else: a credential under
    another name is nothing, at any number of names."""
    home = source.parent / "key"
    home.write_text("secret")
    for name in ("key", "key too"):
        os.link(home, source / name)
        view.take(CompiledPolicy(view.policy.session, beside(view.root.source, HostPath(os.fsencode(home)))))
        listing = view.listing(view.top)
        try:
            assert Name(os.fsencode(name)) in listing.read()
            assert {b"f", b"d", b"read", b"link", b"fifo", b"away"} <= set(listing.read())
            assert not {b"hidden", b"way"} & set(listing.read())
            for each in listing.read():
                location = view.child(view.top, each)
                assert listing.place(each) is location.place
                try:
                    # Reading a link to judge it is an access.
                    expected = view.attributes(location)._replace(access_ns=0)
                except Refused:
                    expected = None
                entry = listing.entry(each)
                assert (entry and entry._replace(access_ns=0)) == expected
            assert listing.entry(Name(os.fsencode(name))) is None
            assert listing.entry(Name(b"away")) is None
            shown = listing.entry(Name(b"read"))
            assert shown is not None
            assert not shown.mode & 0o222
        finally:
            listing.close()


def test_a_link_that_may_not_be_read_hides_nothing_beside_it(
    view: ReferenceMonitor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is not shown, as /proc/1/exe to an ordinary user; a name that may not be looked at ends the listing instead."""

    def refuses(*_: object) -> bytes:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    listing = view.listing(view.top)
    try:
        monkeypatch.setattr(view.root, "link_text", refuses)
        assert listing.entry(Name(b"link")) is None
        assert listing.entry(Name(b"f")) is not None
        monkeypatch.setattr(view.root, "stat_name", refuses)
        with pytest.raises(PermissionError):
            listing.entry(Name(b"f"))
    finally:
        listing.close()


def test_a_rename_does_what_it_was_judged_for(view: ReferenceMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """At once: a plain one replaces what was seen and nothing else, an exchange is never a move."""
    rename, done = view.root.rename, []

    def recorded(old_directory: int, old: Name, new_directory: int, new: Name, flags: int) -> None:
        done.append(flags)
        rename(old_directory, old, new_directory, new, flags)

    monkeypatch.setattr(view.root, "rename", recorded)
    view.rename(at(view, "/f"), at(view, "/new"))
    view.rename(at(view, "/new"), at(view, "/other"))
    view.rename(at(view, "/other"), at(view, "/link"), RENAME_EXCHANGE)
    view.rename(at(view, "/other"), at(view, "/free"), RENAME_NOREPLACE)
    assert done == [RENAME_NOREPLACE, 0, RENAME_EXCHANGE, RENAME_NOREPLACE]


def test_a_listing_that_fails_leaves_nothing_open(view: ReferenceMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Names that cannot be read are an error, and the directory is closed like any other."""

    def fails(_: int) -> list[Name]:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    before = len(os.listdir("/proc/self/fd"))
    monkeypatch.setattr(view.root, "names", fails)
    listing = view.listing(at(view, "/d"))
    with Refuses(errno.EIO):
        listing.read()
    listing.close()
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_listing_closes_its_own_descriptor_alone(view: ReferenceMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, however often it is asked to."""
    listing = view.listing(at(view, "/d"))
    release, closed = view.root.release, []
    monkeypatch.setattr(view.root, "release", lambda descriptor: (closed.append(descriptor), release(descriptor))[1])
    for _ in range(3):
        listing.close()
    assert len(closed) == 1
    assert closed[0] > 2


def is_only_reached(file: OpenFile) -> bool:
    return bool(fcntl.fcntl(file.descriptor, fcntl.F_GETFL) & os.O_PATH)


def test_only_what_is_only_read_is_opened_later(view: ReferenceMonitor) -> None:
    """Reached now, opened at the first read; opened at once for anything more, or where nobody asked for that."""
    here = at(view, "/f")
    file = view.open(here, os.O_RDONLY, lazily=True)
    assert (is_only_reached(file), file.writable, file.append) == (True, False, False)
    assert file.read(0, 9) == b"f"
    assert not is_only_reached(file)
    file.close()
    for flags, lazily in (
        (os.O_RDONLY, False),
        (os.O_WRONLY, True),
        (os.O_RDWR, True),
        (os.O_RDONLY | os.O_TRUNC, True),
    ):
        file = view.open(here, flags, lazily=lazily)
        assert not is_only_reached(file)
        file.close()


@pytest.mark.usefixtures("as_root")
def test_what_may_not_be_readable_is_opened_at_once(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that the source's answer comes now: root reads everything, anybody else what is theirs and readable to them."""

    def later() -> bool:
        file = view.open(at(view, "/f"), os.O_RDONLY, lazily=True)
        try:
            return is_only_reached(file)
        finally:
            file.close()

    found = {}
    for root in (True, False):
        monkeypatch.setattr("policyfs.view.monitor._IS_ROOT", root)
        for owner, bits in ((0, 0o400), (0, 0o044), (65534, 0o444)):
            os.chown(source / "f", owner, owner)
            os.chmod(source / "f", bits)
            found[root, owner, bits] = later()
    assert [asked for asked, is_later in found.items() if not is_later] == [(False, 0, 0o044), (False, 65534, 0o444)]
