"""An object that is no longer the one that was meant."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from policyfs.policy.paths import HostPath, Name, ViewPath
from policyfs.policy.refusals import Refusal
from policyfs.source.tree import RENAME_EXCHANGE
from policyfs.view.location import Location
from policyfs.view.monitor import ReferenceMonitor
from policyfs.view.outcomes import Changes
from policyfs.view.raced import TRIES, Raced
from policyfs.view.refused import Refused
from tests.view.gate.ground import Refuses, at, identity


def test_another_object_under_the_name_is_stale(view: ReferenceMonitor, source: Path) -> None:
    """Who means one object, and finds another or nothing under its name, is told so, and nothing is done to the other."""
    use: list[Callable[[Location, tuple[int, int]], object]] = [
        view.attributes,
        lambda here, meant: view.access(here, os.R_OK, meant),
        lambda here, meant: view.open(here, os.O_RDONLY, meant),
        lambda here, meant: view.open(here, os.O_RDONLY, meant, lazily=True),
        lambda here, meant: view.open(here, os.O_RDWR | os.O_TRUNC, meant),
        lambda here, meant: view.link(here, at(view, "/new"), meant),
        lambda here, meant: view.change(here, Changes(mode=0o600), meant),
        lambda here, meant: view.change(here, Changes(), meant),
        lambda here, meant: view.change(here, Changes(size=0), meant),
        lambda here, meant: view.change(here, Changes(access_ns=0, modify_ns=0), meant),
        lambda here, meant: view.extended(here, b"user.a", meant),
        view.extended_names,
        view.level_of,
        lambda here, meant: view.set_extended(here, b"user.a", b"b", 0, meant),
        lambda here, meant: view.remove_extended(here, b"user.a", meant),
    ]
    other, gone = identity(source / "other"), at(view, "/gone")
    before = os.lstat(source / "f")
    for each in use:
        with Refuses(Refusal.STALE, "/f"):
            each(at(view, "/f"), other)
        with Refuses(Refusal.STALE, "/gone"):
            each(gone, other)
    with Refuses(Refusal.STALE, "/link"):
        view.link_text(at(view, "/link"), other)
    with Refuses(Refusal.STALE, "/d"):
        view.listing(at(view, "/d"), other)
    after = os.lstat(source / "f")
    assert (after.st_mode, after.st_size, after.st_mtime_ns, after.st_nlink) == (
        before.st_mode, before.st_size, before.st_mtime_ns, 1,
    )  # fmt: skip


def acts_in(view: ReferenceMonitor) -> list[Callable[[Location], object]]:
    """Everything that looks up, makes or takes away a name in a directory."""
    return [
        view.attributes,
        lambda here: view.create(here, os.O_WRONLY, 0o644),
        lambda here: view.make_directory(here, 0o755),
        lambda here: view.make_node(here, stat.S_IFIFO | 0o644),
        lambda here: view.make_link(here, b"f"),
        lambda here: view.link(at(view, "/f"), here),
        lambda here: view.rename(at(view, "/f"), here),
        lambda here: view.rename(here, at(view, "/new")),
        lambda here: view.rename(here, at(view, "/f"), RENAME_EXCHANGE),
        view.unlink,
        view.remove_directory,
    ]


@pytest.mark.parametrize("instead", ["directory", "file", "link", "nothing"])
def test_another_directory_in_the_place_of_the_one_that_was_meant(
    view: ReferenceMonitor, source: Path, instead: str
) -> None:
    """Or anything else there is stale, and nothing is looked up, made or taken away in it, nor in the one meant."""
    meant = identity(source / "d")
    os.rename(source / "d", source / "moved")
    if instead == "directory":
        (source / "d/empty").mkdir(parents=True)
        (source / "d/full").write_text("another")
    elif instead == "file":
        (source / "d").write_text("another")
    elif instead == "link":
        (source / "d").symlink_to("moved")
    before = sorted(source.rglob("*"))
    descriptors = len(os.listdir("/proc/self/fd"))
    for name in ("full", "empty", "gone"):
        here = view.child(at(view, "/d"), Name(os.fsencode(name)), meant)
        for act in acts_in(view):
            with Refuses(Refusal.STALE, f"/d/{name}"):
                act(here)
    assert sorted(source.rglob("*")) == before
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_the_directory_that_was_meant_is_used(view: ReferenceMonitor, source: Path) -> None:
    """Who means the directory that is there looks up, makes and takes away names in it."""
    directory, meant = at(view, "/d"), identity(source / "d")

    def within(name: bytes) -> Location:
        return view.child(directory, Name(name), meant)

    assert within(b"full") == (*at(view, "/d/full")[:-1], meant)
    assert view.attributes(within(b"full")).identity == identity(source / "d/full")
    with Refuses(Refusal.MISSING, "/d/gone"):
        view.attributes(within(b"gone"))
    assert view.make_directory(within(b"made"), 0o755).identity == identity(source / "d/made")
    view.rename(within(b"made"), within(b"moved"))
    view.remove_directory(within(b"moved"))
    assert sorted(os.listdir(source / "d")) == ["empty", "full"]


def test_the_object_that_was_meant_is_used(view: ReferenceMonitor, source: Path) -> None:
    """Who means the object that is there gets it."""
    meant = identity(source / "f")
    here = at(view, "/f")
    assert view.attributes(here, meant).identity == meant
    view.access(here, os.R_OK, meant)
    view.open(here, os.O_RDONLY, meant).close()
    assert view.link(here, at(view, "/new"), meant).links == 2
    view.change(here, Changes(mode=0o600), meant)
    view.change(here, Changes(uid=os.geteuid(), gid=os.getegid()), meant)
    assert view.level_of(here, meant) == b"stage"
    assert view.link_text(at(view, "/link"), identity(source / "link")) == b"f"


def test_an_open_file_is_meant_by_itself(view: ReferenceMonitor, source: Path) -> None:
    """Whatever became of its name, and of the rights on it, what is asked of an open file is done to that file."""
    here = at(view, "/f")
    file = view.open(here, os.O_RDWR)
    (source / "f").rename(source / "moved")
    (source / "f").write_text("another")
    meant = identity(source / "moved")
    assert view.attributes(here, file).identity == meant
    view.change(here, Changes(mode=0o604), file)
    view.change(here, Changes(access_ns=1, modify_ns=2), file)
    view.change(here, Changes(size=0), file)
    view.access(here, os.R_OK, file)
    file.close()
    moved, stayed = os.lstat(source / "moved"), os.lstat(source / "f")
    assert (stat.S_IMODE(moved.st_mode), moved.st_atime_ns, moved.st_size) == (0o604, 1, 0)
    assert (stayed.st_size, stayed.st_mtime_ns > 2) == (7, True)


def test_what_loses_its_name_can_be_held(view: ReferenceMonitor, source: Path) -> None:
    """Removed or replaced, it stays in reach of who asked for that, and of nobody else."""
    meant = identity(source / "f")
    gone = view.unlink(at(view, "/f"), hold=True)
    assert gone.identity == meant
    assert gone.held is not None
    assert gone.held.read(0, 9) == b"f"
    assert (gone.held.writable, gone.held.append) == (False, False)
    gone.held.close()
    replaced_identity, moved_identity = identity(source / "other"), identity(source / "d/full/f")
    renamed = view.rename(at(view, "/d/full/f"), at(view, "/other"), hold=True)
    assert (renamed.moved, renamed.replaced, renamed.directory) == (moved_identity, replaced_identity, False)
    assert renamed.held is not None
    assert renamed.held.read(0, 9) == b"other"
    assert (renamed.held.writable, renamed.held.append) == (False, False)
    renamed.held.close()
    directory = view.remove_directory(at(view, "/d/empty"), hold=True)
    assert directory.held is not None
    assert stat.S_ISDIR(os.fstat(directory.held.descriptor).st_mode)
    directory.held.close()


def test_what_was_swapped_in_is_not_held(view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An object that took the name while a rename was judged is not handed out for the one that was judged."""
    reach_name, descriptors = view.root.reach_name, len(os.listdir("/proc/self/fd"))

    def swapped(directory: int, name: Name) -> int:
        if name == b"other":
            (source / "swapped").write_text("swapped")
            (source / "swapped").rename(source / "other")
        return reach_name(directory, name)

    monkeypatch.setattr(view.root, "reach_name", swapped)
    assert view.rename(at(view, "/f"), at(view, "/other"), hold=True).held is None
    assert len(os.listdir("/proc/self/fd")) == descriptors


def test_what_was_swapped_in_is_not_opened_for_the_one_that_was_there(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Creating what is there opens the file that had the name, or none."""
    reach = view.root.reach

    def swapped(path: ViewPath) -> int:
        (source / "swapped").write_text("swapped")
        (source / "swapped").rename(source / "f")
        return reach(path)

    monkeypatch.setattr(view.root, "reach", swapped)
    with Refuses(Refusal.STALE, "/f"):
        view.create(at(view, "/f"), os.O_RDWR | os.O_TRUNC, 0o644)
    assert (source / "f").read_text() == "swapped"


def test_an_entry_is_judged_by_what_was_reached(
    view: ReferenceMonitor, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A link that is taken away or moved is not walked to a second time to be judged."""

    reach = view.root.reach

    def once(path: ViewPath) -> int:
        assert path not in (b"/link", b"/moved")
        return reach(path)

    monkeypatch.setattr(view.root, "reach", once)
    assert view.rename(at(view, "/link"), at(view, "/moved")).moved == identity(source / "moved")
    view.unlink(at(view, "/moved"))
    assert not os.path.lexists(source / "moved")


def test_an_entry_that_is_not_shown_is_not_taken_away(view: ReferenceMonitor, source: Path) -> None:
    """By none who come with a whole path either, and what was reached of it is let go."""
    for act in (lambda here: view.unlink(here), lambda here: view.rename(here, at(view, "/new"))):
        with Refuses(Refusal.MISSING, "/away"):
            act(at(view, "/away"))
    assert os.path.lexists(source / "away")


def test_a_name_that_another_mount_has_is_taken(view: ReferenceMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing takes its place, and nothing is said of what it is: denied, or read-only in a directory at ro."""

    def elsewhere(*_: object) -> os.stat_result:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(view.root, "stat_name", elsewhere)
    with Refuses(Refusal.DENIED, "/other"):
        view.rename(at(view, "/f"), at(view, "/other"))
    with Refuses(Refusal.READ_ONLY, "/read/own"):
        view.rename(at(view, "/f"), at(view, "/read/own"))


def test_a_name_that_was_taken_for_a_moment(view: ReferenceMonitor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Taken when it was to be made, and free when it was looked at: tried again, until it is made, or a bounded number of
    times."""
    tries = 0

    def taken(*_: object) -> None:
        nonlocal tries
        tries += 1
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST))

    make_directory = view.root.make_directory

    def taken_twice(*arguments: Any) -> None:
        if tries < 2:
            taken()
        make_directory(*arguments)

    monkeypatch.setattr(view.root, "make_directory", taken_twice)
    assert view.make_directory(at(view, "/made"), 0o755).is_directory
    assert tries == 2
    for method in ("create", "make_directory"):
        monkeypatch.setattr(view.root, method, taken)
    tries = 0
    for flags in (os.O_WRONLY, os.O_WRONLY | os.O_EXCL):
        with pytest.raises(Raced):
            view.create(at(view, "/new"), flags, 0o644)
    with pytest.raises(Raced):
        view.make_directory(at(view, "/new"), 0o755)
    assert tries == 3 * TRIES


def test_links_that_are_not_shown_go_with_their_directory(view: ReferenceMonitor, source: Path) -> None:
    """If nothing else is in it; they are told, and nothing goes where anything else is."""
    directory = source / "d/empty"
    assert view.remove_directory(at(view, "/d/empty")).links == ()
    for name, make in (
        ("file", Path.touch),
        ("directory", Path.mkdir),
        ("shown", lambda path: path.symlink_to("x")),
        (".env", lambda path: path.symlink_to("/elsewhere/x")),
    ):
        directory.mkdir()
        for link in ("one", "two"):
            (directory / link).symlink_to(f"/elsewhere/{link}")
        make(directory / name)
        with Refuses(errno.ENOTEMPTY):
            view.remove_directory(at(view, "/d/empty"))
        assert sorted(os.listdir(directory)) == sorted(["one", "two", name])
        (directory / name).rmdir() if name == "directory" else (directory / name).unlink()
        removed = view.remove_directory(at(view, "/d/empty"))
        assert sorted(link.path for link in removed.links) == [b"/d/empty/one", b"/d/empty/two"]
    sandboxed = ReferenceMonitor(view.root, view.policy, at=HostPath(os.fsencode(source)), beside=[])
    directory.mkdir()
    (directory / "one").symlink_to("/elsewhere/one")
    with Refuses(errno.ENOTEMPTY):
        sandboxed.remove_directory(at(sandboxed, "/d/empty"))
    assert os.listdir(directory) == ["one"]


def test_what_is_replaced_goes_nowhere(view: ReferenceMonitor, source: Path) -> None:
    """A plain rename is not judged as if what it replaces came the other way: a link that would land on something hidden
    from the old name is replaced, and not exchanged."""
    (source / "d/l").symlink_to("hidden/f")
    with Refuses(Refusal.DENIED, "/f"):
        view.rename(at(view, "/f"), at(view, "/d/l"), RENAME_EXCHANGE)
    view.rename(at(view, "/f"), at(view, "/d/l"))
    assert (source / "d/l").read_text() == "f"


def test_a_file_that_a_grant_names_is_moved(view: ReferenceMonitor, source: Path) -> None:
    """Only a directory that a rule names stays where it is; a file is moved, exchanged and taken away."""
    (source / "named").write_text("named")
    (source / "held").mkdir()
    for old, new, flags in (
        ("/named", "/other", RENAME_EXCHANGE),
        ("/other", "/named", RENAME_EXCHANGE),
        ("/named", "/other", 0),
    ):
        view.rename(at(view, old), at(view, new), flags)
    assert (source / "other").read_text() == "named"
    view.rename(at(view, "/other"), at(view, "/named"))
    with Refuses(Refusal.NAMED_BY_RULE, "/held"):
        view.remove_directory(at(view, "/held"))
    for old, new, told in (("/held", "/new", "/held"), ("/named", "/held", "/held")):
        with Refuses(Refusal.NAMED_BY_RULE, told):
            view.rename(at(view, old), at(view, new), RENAME_EXCHANGE if new == "/held" else 0)
    view.unlink(at(view, "/named"))


def test_no_name_is_made_or_taken_through_a_link(view: ReferenceMonitor, source: Path) -> None:
    """Who comes with a whole path does not walk through a link: what lies behind it is judged under its own path."""
    (source / "to-d").symlink_to("d")
    (source / "to-hidden").symlink_to("hidden")
    act: list[Callable[[Location], object]] = [
        lambda here: view.create(here, os.O_WRONLY, 0o644),
        lambda here: view.make_directory(here, 0o755),
        lambda here: view.make_node(here, stat.S_IFIFO | 0o644),
        lambda here: view.make_link(here, b"/f"),
        lambda here: view.link(at(view, "/f"), here),
        lambda here: view.rename(at(view, "/f"), here),
        lambda here: view.rename(here, at(view, "/new")),
        view.unlink,
        view.remove_directory,
        view.attributes,
    ]
    for each in act:
        for path in ("/to-d/full", "/to-d/new", "/to-hidden/f", "/to-hidden/new"):
            with pytest.raises(Refused) as caught:
                each(at(view, path))
            assert caught.value.refusal in (Refusal.MISSING, Refusal.NOT_DIRECTORY)
    assert (sorted(os.listdir(source / "d")), os.listdir(source / "hidden")) == (["empty", "full"], ["f"])


def test_what_a_rename_tells(view: ReferenceMonitor, source: Path) -> None:
    """What moved, what was in its place, and whether a directory went elsewhere, one way or the other."""
    names = {name: identity(source / name) for name in ("f", "other", "d", "link")}
    assert view.rename(at(view, "/f"), at(view, "/g")) == (names["f"], None, False, None)
    assert view.rename(at(view, "/g"), at(view, "/other"), RENAME_EXCHANGE) == (names["f"], names["other"], False, None)
    assert view.rename(at(view, "/d"), at(view, "/e")) == (names["d"], None, True, None)
    assert view.rename(at(view, "/link"), at(view, "/e"), RENAME_EXCHANGE) == (names["link"], names["d"], True, None)
    assert view.rename(at(view, "/e"), at(view, "/link"), RENAME_EXCHANGE) == (names["link"], names["d"], True, None)
    assert os.readlink(source / "link") == "f"
