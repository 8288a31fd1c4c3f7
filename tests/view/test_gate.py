"""The gate, asked directly: what it answers where a kernel in front of it would have answered first, what it does to an
object that is no longer the one that was meant, and what it leaves in the source.

What a whole session is told stands in conformance/; here is what its cases cannot see.
"""

from __future__ import annotations

import dataclasses
import errno
import fcntl
import os
import socket
import stat
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from policyfs.host import mounts
from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, Name, ViewPath
from policyfs.policy.policy import Policy, Surroundings
from policyfs.policy.refusals import Refusal
from policyfs.policy.session import Session
from policyfs.source.files import OpenFile
from policyfs.source.root import RENAME_EXCHANGE, RENAME_NOREPLACE, Root
from policyfs.source.tree import SOURCE, Identity
from policyfs.view.location import Location
from policyfs.view.outcomes import Changes
from policyfs.view.raced import TRIES, Raced
from policyfs.view.refused import Refused
from policyfs.view.view import LEVEL_ATTRIBUTE, View

GRANTS = {
    b"/": Level.STAGE,
    b"/read": Level.RO,
    b"/hidden": Level.NONE,
    b"/way": Level.NONE,
    b"/way/open": Level.STAGE,
    b"/read/own": Level.STAGE,
    b"/named": Level.STAGE,
    b"/held": Level.STAGE,
}


def policy(source: Path, grants: dict[bytes, Level] = GRANTS) -> Policy:
    session = Session(grants={ViewPath(path): level for path, level in grants.items()})
    return Policy(session, Surroundings(HostPath(os.fsencode(source))))


def beside(source: HostPath, place: HostPath) -> Surroundings:
    """SOURCE with a denied place beside it."""
    return Surroundings(source, protected=(place,), tops=mounts.tops(source, None, mounts.mounts()))


@pytest.fixture
def view(source: Path) -> Iterator[View]:
    """A view of a small tree, with the umask of a daemon, which has none."""
    before = os.umask(0)
    for directory in ("d/full", "d/empty", "read", "hidden", "way/open"):
        (source / directory).mkdir(parents=True)
    for file in ("f", "other", "d/full/f", "read/f", "hidden/f", "way/open/f"):
        (source / file).write_text(file)
    (source / "link").symlink_to("f")
    (source / "away").symlink_to("/elsewhere/f")
    os.mkfifo(source / "fifo")
    root = Root(HostPath(os.fsencode(source)))
    try:
        yield View(root, policy(source))
    finally:
        root.close()
        os.umask(before)


def at(view: View, path: str) -> Location:
    return view.locate(ViewPath(os.fsencode(path)))


def identity(place: Path) -> Identity:
    status = os.lstat(place)
    return Identity(SOURCE, status.st_dev, status.st_ino)


class Refuses:
    """What is expected of an operation: a refusal of the policy's with its path, or an errno of the source's."""

    def __init__(self, expected: Refusal | int, path: str = "") -> None:
        self.expected, self.path = expected, path
        self._raises = pytest.raises(OSError)

    def __enter__(self) -> None:
        self._caught = self._raises.__enter__()

    def __exit__(self, *about: object) -> bool:
        if not self._raises.__exit__(*about):
            return False
        error = self._caught.value
        if isinstance(self.expected, Refusal):
            assert isinstance(error, Refused), repr(error)
            assert (error.refusal, error.path) == (self.expected, os.fsencode(self.path))
            assert (error.errno, str(error)) == (self.expected.errno, self.expected.text(ViewPath(os.fsencode(self.path))))
            # Whatever is elsewhere by now, the policy decided nothing, and no journal is to say that it did.
            assert error.absent or self.expected is not Refusal.STALE
        else:
            assert (type(error), error.args) == (
                type(OSError(self.expected, "")),
                (self.expected, os.strerror(self.expected)),
            )
        return True


# -- what a kernel would have answered first -----------------------------------------------------------------------------


def test_opening_what_is_no_file(view: View) -> None:
    """A directory is a directory, a link a loop to who opens the link itself, a fifo or a socket nothing to open; the
    same for truncate(2)."""
    for flags in (os.O_RDONLY, os.O_WRONLY):
        with Refuses(Refusal.IS_DIRECTORY, "/d"):
            view.open(at(view, "/d"), flags)
        with Refuses(errno.ELOOP):
            view.open(at(view, "/link"), flags)
        with Refuses(errno.ENXIO):
            view.open(at(view, "/fifo"), flags)
        for path, expected in (("/d", Refusal.IS_DIRECTORY), ("/link", errno.ELOOP), ("/fifo", errno.ENXIO)):
            with Refuses(expected, path):
                view.open(at(view, path), flags, lazily=True)
    with Refuses(Refusal.IS_DIRECTORY, "/d"):
        view.change(at(view, "/d"), Changes(size=0))
    with Refuses(errno.ENXIO):
        view.change(at(view, "/fifo"), Changes(size=0))


def test_what_only_a_link_or_a_directory_can_be_asked(view: View) -> None:
    """readlink(2) of anything else is EINVAL, link(2) of a directory EPERM, a listing of anything else ENOTDIR."""
    with Refuses(errno.EINVAL):
        view.link_text(at(view, "/f"))
    with Refuses(errno.EPERM):
        view.link(at(view, "/d"), at(view, "/new"))
    with Refuses(Refusal.NOT_DIRECTORY, "/f"):
        view.listing(at(view, "/f"))


def test_what_the_source_does_not_allow(view: View, source: Path) -> None:
    """access(2) of what the policy allows is the source's to answer; of a passage or a link it is not asked."""
    os.chmod(source / "f", 0o600)
    view.access(at(view, "/f"), os.R_OK | os.W_OK)
    with Refuses(errno.EACCES):
        view.access(at(view, "/f"), os.X_OK)
    view.access(at(view, "/link"), os.X_OK)
    view.access(at(view, "/way"), os.X_OK)
    with Refuses(Refusal.DENIED, "/way"):
        view.access(at(view, "/way"), os.R_OK)
    with Refuses(Refusal.READ_ONLY, "/read/f"):
        view.access(at(view, "/read/f"), os.W_OK)


def test_the_file_system(view: View, source: Path) -> None:
    """Is that of SOURCE."""
    status, told = os.statvfs(source), view.file_system()
    assert (told.block_size, told.blocks, told.name_max) == (status.f_frsize, status.f_blocks, status.f_namemax)


def test_removing_the_other_kind(view: View, source: Path) -> None:
    """rmdir(2) of a file and unlink(2) of a directory say what it is, and take nothing away."""
    with Refuses(Refusal.NOT_DIRECTORY, "/f"):
        view.remove_directory(at(view, "/f"))
    with Refuses(Refusal.IS_DIRECTORY, "/d/empty"):
        view.unlink(at(view, "/d/empty"))
    assert (source / "f").exists()
    assert (source / "d/empty").exists()


def test_making_a_name_that_is_taken(view: View) -> None:
    """Whatever is made, a name that something shown has taken exists; one that something not shown has taken is denied."""
    make: list[Callable[[Location], object]] = [
        lambda new: view.create(new, os.O_WRONLY | os.O_EXCL, 0o644),
        lambda new: view.make_directory(new, 0o755),
        lambda new: view.make_node(new, stat.S_IFREG | 0o644),
        lambda new: view.make_link(new, b"f"),
        lambda new: view.link(at(view, "/f"), new),
        lambda new: view.rename(at(view, "/f"), new, RENAME_NOREPLACE),
    ]
    for each in make:
        for taken in ("/other", "/d/empty", "/link", "/fifo"):
            with Refuses(Refusal.EXISTS, taken):
                each(at(view, taken))
        with Refuses(Refusal.DENIED, "/away"):
            each(at(view, "/away"))


def test_creating_what_is_there_opens_it(view: View, source: Path) -> None:
    """Without O_EXCL the file that has the name is opened, with the access asked for, emptied if asked, its mode kept."""
    os.chmod(source / "f", 0o640)
    file, attributes = view.create(at(view, "/f"), os.O_RDWR, 0o777)
    assert file.read(0, 9) == b"f"
    assert file.write(1, b"g") == 1
    file.close()
    assert (attributes.identity, attributes.mode) == (identity(source / "f"), stat.S_IFREG | 0o640)
    file, _ = view.create(at(view, "/f"), os.O_WRONLY | os.O_TRUNC, 0o777)
    file.close()
    assert (source / "f").read_bytes() == b""
    with Refuses(Refusal.IS_DIRECTORY, "/d"):
        view.create(at(view, "/d"), os.O_WRONLY, 0o644)


def test_a_path_through_a_file(view: View) -> None:
    """A path through a visible file is in no directory, at any depth; through one that is not seen, or a name that is
    not there, it is missing."""
    for path in ("/f/a", "/f/a/b/c", "/d/full/f/a"):
        with Refuses(Refusal.NOT_DIRECTORY, path):
            view.attributes(at(view, path))
        with Refuses(Refusal.NOT_DIRECTORY, path):
            view.open(at(view, path), os.O_RDONLY)
    for path in ("/hidden/f/a", "/away/a", "/gone/a/b"):
        with Refuses(Refusal.MISSING, path):
            view.attributes(at(view, path))
    with Refuses(Refusal.NOT_DIRECTORY, "/f/new"):
        view.make_directory(at(view, "/f/new"), 0o755)


def test_the_root_has_no_name_to_lose(view: View) -> None:
    """`/` is neither made nor removed nor moved: EBUSY, or what the rules say of it first."""
    root = at(view, "/")
    for remove in (view.remove_directory, view.unlink):
        with Refuses(Refusal.NAMED_BY_RULE, "/"):
            remove(root)
    with Refuses(errno.EBUSY):
        view.make_directory(root, 0o755)
    with Refuses(Refusal.RULES_BELOW, "/"):
        view.make_link(root, b"f")


def test_flags_of_rename_that_mean_nothing(view: View) -> None:
    """Any flag but the two, and the two together, are EINVAL; an exchange needs both."""
    for flags in (4, RENAME_NOREPLACE | RENAME_EXCHANGE, RENAME_EXCHANGE | 4):
        with Refuses(errno.EINVAL):
            view.rename(at(view, "/f"), at(view, "/other"), flags)
    with Refuses(Refusal.MISSING, "/gone"):
        view.rename(at(view, "/f"), at(view, "/gone"), RENAME_EXCHANGE)
    with Refuses(Refusal.MISSING, "/gone"):
        view.rename(at(view, "/gone"), at(view, "/f"))


# -- an object that is no longer the one that was meant -------------------------------------------------------------------


def test_another_object_under_the_name_is_stale(view: View, source: Path) -> None:
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


def acts_in(view: View) -> list[Callable[[Location], object]]:
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
def test_another_directory_in_the_place_of_the_one_that_was_meant(view: View, source: Path, instead: str) -> None:
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


def test_the_directory_that_was_meant_is_used(view: View, source: Path) -> None:
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


def test_the_object_that_was_meant_is_used(view: View, source: Path) -> None:
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


def test_an_open_file_is_meant_by_itself(view: View, source: Path) -> None:
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


def test_what_loses_its_name_can_be_held(view: View, source: Path) -> None:
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


def test_what_was_swapped_in_is_not_held(view: View, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
    view: View, source: Path, monkeypatch: pytest.MonkeyPatch
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


def test_an_entry_is_judged_by_what_was_reached(view: View, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A link that is taken away or moved is not walked to a second time to be judged."""

    reach = view.root.reach

    def once(path: ViewPath) -> int:
        assert path not in (b"/link", b"/moved")
        return reach(path)

    monkeypatch.setattr(view.root, "reach", once)
    assert view.rename(at(view, "/link"), at(view, "/moved")).moved == identity(source / "moved")
    view.unlink(at(view, "/moved"))
    assert not os.path.lexists(source / "moved")


def test_an_entry_that_is_not_shown_is_not_taken_away(view: View, source: Path) -> None:
    """By none who come with a whole path either, and what was reached of it is let go."""
    for act in (lambda here: view.unlink(here), lambda here: view.rename(here, at(view, "/new"))):
        with Refuses(Refusal.MISSING, "/away"):
            act(at(view, "/away"))
    assert os.path.lexists(source / "away")


def test_a_name_that_another_mount_has_is_taken(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing takes its place, and nothing is said of what it is: denied, or read-only in a directory at ro."""

    def elsewhere(*_: object) -> os.stat_result:
        raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))

    monkeypatch.setattr(view.root, "stat_name", elsewhere)
    with Refuses(Refusal.DENIED, "/other"):
        view.rename(at(view, "/f"), at(view, "/other"))
    with Refuses(Refusal.READ_ONLY, "/read/own"):
        view.rename(at(view, "/f"), at(view, "/read/own"))


def test_a_name_that_was_taken_for_a_moment(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_nothing_is_held_unasked(view: View) -> None:
    """Nobody would close it."""
    assert view.unlink(at(view, "/f")).held is None
    assert view.remove_directory(at(view, "/d/empty")).held is None
    assert view.rename(at(view, "/d/full/f"), at(view, "/other")).held is None
    assert view.rename(at(view, "/other"), at(view, "/free"), hold=True).held is None
    assert view.rename(at(view, "/free"), at(view, "/link"), RENAME_EXCHANGE, hold=True).held is None


def test_links_that_are_not_shown_go_with_their_directory(view: View, source: Path) -> None:
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
    sandboxed = View(view.root, view.policy, at=HostPath(os.fsencode(source)), beside=[])
    directory.mkdir()
    (directory / "one").symlink_to("/elsewhere/one")
    with Refuses(errno.ENOTEMPTY):
        sandboxed.remove_directory(at(sandboxed, "/d/empty"))
    assert os.listdir(directory) == ["one"]


def test_what_is_replaced_goes_nowhere(view: View, source: Path) -> None:
    """A plain rename is not judged as if what it replaces came the other way: a link that would land on something hidden
    from the old name is replaced, and not exchanged."""
    (source / "d/l").symlink_to("hidden/f")
    with Refuses(Refusal.DENIED, "/f"):
        view.rename(at(view, "/f"), at(view, "/d/l"), RENAME_EXCHANGE)
    view.rename(at(view, "/f"), at(view, "/d/l"))
    assert (source / "d/l").read_text() == "f"


def test_a_file_that_a_grant_names_is_moved(view: View, source: Path) -> None:
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


def test_no_name_is_made_or_taken_through_a_link(view: View, source: Path) -> None:
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


def test_what_a_rename_tells(view: View, source: Path) -> None:
    """What moved, what was in its place, and whether a directory went elsewhere, one way or the other."""
    names = {name: identity(source / name) for name in ("f", "other", "d", "link")}
    assert view.rename(at(view, "/f"), at(view, "/g")) == (names["f"], None, False, None)
    assert view.rename(at(view, "/g"), at(view, "/other"), RENAME_EXCHANGE) == (names["f"], names["other"], False, None)
    assert view.rename(at(view, "/d"), at(view, "/e")) == (names["d"], None, True, None)
    assert view.rename(at(view, "/link"), at(view, "/e"), RENAME_EXCHANGE) == (names["link"], names["d"], True, None)
    assert view.rename(at(view, "/e"), at(view, "/link"), RENAME_EXCHANGE) == (names["link"], names["d"], True, None)
    assert os.readlink(source / "link") == "f"


def test_no_descriptor_stays_open(view: View) -> None:
    """Whatever is refused or done, every descriptor is closed again that the caller was not given."""
    before = len(os.listdir("/proc/self/fd"))
    for test in (
        test_opening_what_is_no_file, test_what_only_a_link_or_a_directory_can_be_asked, test_making_a_name_that_is_taken,
        test_flags_of_rename_that_mean_nothing, test_a_path_through_a_file, test_nothing_is_held_unasked,
    ):  # fmt: skip
        test(view)
        assert len(os.listdir("/proc/self/fd")) == before, test.__name__


# -- what it leaves in the source ----------------------------------------------------------------------------------------


def mode(place: Path) -> int:
    return stat.S_IMODE(os.lstat(place).st_mode)


def test_the_modes_of_what_is_made(view: View, source: Path) -> None:
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


def test_the_modes_that_are_set(view: View, source: Path) -> None:
    """A file gets no set-id bit, a directory keeps its setgid bit and gets no setuid bit."""
    view.change(at(view, "/f"), Changes(mode=0o6755))
    view.change(at(view, "/d"), Changes(mode=0o7755))
    assert (mode(source / "f"), mode(source / "d")) == (0o755, 0o3755)


def test_a_program_with_another_users_rights_is_not_written(view: View, source: Path) -> None:
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
def test_an_open_file_has_the_access_asked_for(view: View, made: bool, access: int, append: int) -> None:
    """Found or made: what it says of itself, and what its descriptor can do. A flag that is the kernel's stays there."""
    if made:
        file, _ = view.create(at(view, "/new"), access | append | os.O_DIRECT | os.O_CREAT, 0o644)
    else:
        file = view.open(at(view, "/f"), access | append | os.O_DIRECT)
    flags = fcntl.fcntl(file.descriptor, fcntl.F_GETFL)
    assert (file.writable, file.append) == (access != os.O_RDONLY, bool(append))
    assert (flags & os.O_ACCMODE, flags & os.O_APPEND, flags & os.O_DIRECT) == (access, append, 0)
    file.close()


def test_everything_is_changed_at_once(view: View, source: Path) -> None:
    """Size, mode and times, and what came of it: when the object changed last before, and what it is like now."""
    before = os.lstat(source / "f")
    changed = view.change(at(view, "/f"), Changes(size=3, mode=0o4640, access_ns=10, modify_ns=20))
    assert changed.before_ns == before.st_ctime_ns
    assert changed.attributes == view.attributes(at(view, "/f"))
    after = os.lstat(source / "f")
    assert (after.st_size, mode(source / "f"), after.st_atime_ns, after.st_mtime_ns) == (3, 0o640, 10, 20)
    assert view.change(at(view, "/d"), Changes(mode=0o2750)).attributes.mode == stat.S_IFDIR | 0o2750
    assert (source / "f").read_bytes() == b"f\0\0"


def test_nothing_is_changed_unasked(view: View, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_an_owner_or_a_group_alone_is_changed(view: View, source: Path) -> None:
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


def test_times_left_as_they_are(view: View, source: Path) -> None:
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
    view: View, source: Path, monkeypatch: pytest.MonkeyPatch, access: int, modify: int
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
    view: View, source: Path, monkeypatch: pytest.MonkeyPatch, access: int | None, modify: int | None
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


def test_attributes_that_are_the_users(view: View, source: Path) -> None:
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


def test_another_policy_from_now_on(view: View, source: Path) -> None:
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
    view.take(Policy(session, beside(view.root.source, place)))
    for path in ("/notes", "/f"):
        with Refuses(Refusal.MISSING, path):
            view.attributes(at(view, path))
    assert view.link_text(at(view, "/away")) == b"/elsewhere/f"
    assert view.link_text(at(view, "/link")) == b"f"
    with Refuses(Refusal.READ_ONLY, "/other"):
        view.open(at(view, "/other"), os.O_WRONLY)


def test_a_listing_can_be_synced_and_closed_once(view: View) -> None:
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


# -- what a refusal carries, for the journal -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "refusal", "absent"),
    [
        ("/hidden/f", Refusal.MISSING, False),
        ("/read/gone", Refusal.MISSING, True),
        ("/way/x", Refusal.DENIED, False),
        ("/away", Refusal.MISSING, False),
        ("/key", Refusal.MISSING, False),
        ("/via", Refusal.MISSING, False),
        ("/fifo/x", Refusal.NOT_DIRECTORY, False),
    ],
)
def test_a_refusal_tells_its_place_and_whether_anything_is_there(
    view: View, source: Path, path: str, refusal: Refusal, absent: bool
) -> None:
    """The place whose rule decided, and that nothing is there where nothing is: which is no decision."""
    (source / "via").write_text("a file where the rules have a passage")
    home = source.parent / "key"
    home.write_text("secret")
    os.link(home, source / "key")
    session = Session(grants={**view.policy.session.grants, ViewPath(b"/via"): Level.NONE, ViewPath(b"/via/x"): Level.RO})
    view.take(Policy(session, beside(view.root.source, HostPath(os.fsencode(home)))))
    location = at(view, path)
    with pytest.raises(Refused) as caught:
        view.attributes(location)
    error = caught.value
    place = None if refusal is Refusal.NOT_DIRECTORY else location.place
    assert (error.refusal, error.path, error.absent) == (refusal, location.path, absent)
    assert error.place is place


@pytest.mark.parametrize(("further_names", "is_credential"), [(0, False), (1, True), (2, True)])
def test_an_open_file_that_is_a_credential(view: View, source: Path, further_names: int, is_credential: bool) -> None:
    """Is known by what it is, if it has another name; another file with several names is none."""
    home = source.parent / "key"
    home.write_text("secret")
    for number in range(further_names):
        os.link(home, source / f"key{number}")
    os.link(source / "f", source / "second")
    with open(home, "rb") as opened, open(source / "f", "rb") as other:
        view.take(Policy(view.policy.session, beside(view.root.source, HostPath(os.fsencode(home)))))
        assert view.is_credential(OpenFile(opened.fileno())) is is_credential
        assert not view.is_credential(OpenFile(other.fileno()))


def test_a_refused_change_tells_its_place(view: View) -> None:
    """The place that is not to be changed, and for a name in a hidden directory that of the name."""
    for path, refusal in (("/read/f", Refusal.READ_ONLY), ("/way", Refusal.DENIED)):
        with pytest.raises(Refused) as caught:
            view.change(at(view, path), Changes(mode=0o600))
        assert (caught.value.refusal, caught.value.place) == (refusal, at(view, path).place)
    for act in (lambda here: view.make_directory(here, 0o755), view.unlink):
        with Refuses(Refusal.MISSING, "/hidden/sub/new"):
            act(at(view, "/hidden/sub/new"))
        with pytest.raises(Refused) as caught:
            act(at(view, "/hidden/f"))
        assert caught.value.place is at(view, "/hidden/f").place


def test_what_is_unknown_under_a_passage_can_be_missing(view: View) -> None:
    """By the session's switch, to who looks and to who takes away; what is made there stays denied."""
    here = "/way/unknown"
    for unknown_missing, refusal in ((False, Refusal.DENIED), (True, Refusal.MISSING)):
        session = dataclasses.replace(view.policy.session, unknown_missing=unknown_missing)
        view.take(Policy(session, view.policy.surroundings))
        for act in (view.attributes, view.unlink, lambda location: view.open(location, os.O_RDONLY)):
            with Refuses(refusal, here):
                act(at(view, here))
        with Refuses(Refusal.DENIED, here):
            view.make_directory(at(view, here), 0o755)


@pytest.mark.parametrize("path", ["/way/x", "/way/x/y", "/way/x/y/z"])
def test_what_lies_below_what_is_not_seen(view: View, path: str) -> None:
    """Is answered by the nearest directory that is seen."""
    with Refuses(Refusal.DENIED, path):
        view.attributes(at(view, path))
    below_visible = path.replace("/way/x", "/hidden")
    with Refuses(Refusal.MISSING, below_visible):
        view.attributes(at(view, below_visible))


def test_a_passage_is_a_directory(view: View, source: Path) -> None:
    """Anything else where the rules have a passage is missing; a fifo or a socket elsewhere is shown."""
    connected = socket.socket(socket.AF_UNIX)
    connected.bind(os.fsencode(source / "socket"))
    connected.close()
    session = Session(grants={**view.policy.session.grants, ViewPath(b"/via"): Level.NONE, ViewPath(b"/via/x"): Level.RO})
    view.take(Policy(session, view.policy.surroundings))
    for name in ("f", "fifo", "socket", "link"):
        assert view.attributes(at(view, "/" + name)).identity == identity(source / name)
        os.rename(source / name, source / "via")
        with Refuses(Refusal.MISSING, "/via"):
            view.attributes(at(view, "/via"))
        os.unlink(source / "via")


def test_links_by_every_name_of_source(view: View, source: Path) -> None:
    """SOURCE's owner may call it otherwise, and it may be mounted elsewhere: both names lead inside."""
    named, mounted = HostPath(b"/owner/tree"), HostPath(b"/mnt/view")
    for name, text in (("a", b"/owner/tree/f"), ("b", b"/mnt/view/f"), ("c", os.fsencode(source) + b"/f")):
        os.symlink(text, source / name)

    def told(of: View) -> list[bytes | None]:
        found: list[bytes | None] = []
        for name in "abc":
            try:
                found.append(of.link_text(at(of, "/" + name)))
            except Refused:
                found.append(None)
        return found

    assert told(View(view.root, view.policy, named=named, at=mounted)) == [b"f", b"/mnt/view/f", b"f"]
    assert told(View(view.root, view.policy, at=mounted)) == [None, b"/mnt/view/f", b"f"]
    assert told(View(view.root, view.policy, named=named)) == [b"f", None, b"f"]


# -- what changes between two looks ----------------------------------------------------------------------------------------


def test_a_link_that_is_gone_or_another_at_the_second_look(
    view: View, source: Path, monkeypatch: pytest.MonkeyPatch
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


def test_a_root_that_is_gone_is_missing(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    """As anything else that is not there."""

    def gone(_: ViewPath) -> os.stat_result:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(view.root, "stat", gone)
    with Refuses(Refusal.MISSING, "/"):
        view.attributes(view.top)


def test_a_link_is_read_from_what_was_judged(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    """Reached once, judged and read by that."""
    reach, reached = view.root.reach, []
    monkeypatch.setattr(view.root, "reach", lambda path: (reached.append(path), reach(path))[1])
    assert view.link_text(at(view, "/link")) == b"f"
    assert reached.count(b"/link") == 1
    assert view.change(at(view, "/link"), Changes(modify_ns=20)).attributes.modify_ns == 20
    assert reached.count(b"/link") == 2


@pytest.mark.parametrize("flags", [0, RENAME_NOREPLACE])
def test_what_turned_up_where_a_rename_saw_nothing(
    view: View, source: Path, monkeypatch: pytest.MonkeyPatch, flags: int
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


def test_the_entries_of_a_listing_are_judged_one_by_one(view: View, source: Path) -> None:
    """Each by its own place, whatever the level of the directory, and as it is shown anywhere else: a credential under
    another name is nothing, at any number of names."""
    home = source.parent / "key"
    home.write_text("secret")
    for name in ("key", "key too"):
        os.link(home, source / name)
        view.take(Policy(view.policy.session, beside(view.root.source, HostPath(os.fsencode(home)))))
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


def test_a_link_that_may_not_be_read_hides_nothing_beside_it(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_rename_does_what_it_was_judged_for(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_listing_that_fails_leaves_nothing_open(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
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


def test_a_listing_closes_its_own_descriptor_alone(view: View, monkeypatch: pytest.MonkeyPatch) -> None:
    """Once, however often it is asked to."""
    listing = view.listing(at(view, "/d"))
    close, closed = os.close, []
    monkeypatch.setattr(os, "close", lambda descriptor: (closed.append(descriptor), close(descriptor))[1])
    for _ in range(3):
        listing.close()
    assert len(closed) == 1
    assert closed[0] > 2


# -- opened at the first read ----------------------------------------------------------------------------------------------


def is_only_reached(file: OpenFile) -> bool:
    return bool(fcntl.fcntl(file.descriptor, fcntl.F_GETFL) & os.O_PATH)


def test_only_what_is_only_read_is_opened_later(view: View) -> None:
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
def test_what_may_not_be_readable_is_opened_at_once(view: View, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the source's answer comes now: root reads everything, anybody else what is theirs and readable to them."""

    def later() -> bool:
        file = view.open(at(view, "/f"), os.O_RDONLY, lazily=True)
        try:
            return is_only_reached(file)
        finally:
            file.close()

    found = {}
    for root in (True, False):
        monkeypatch.setattr("policyfs.view.view._IS_ROOT", root)
        for owner, bits in ((0, 0o400), (0, 0o044), (65534, 0o444)):
            os.chown(source / "f", owner, owner)
            os.chmod(source / "f", bits)
            found[root, owner, bits] = later()
    assert [asked for asked, is_later in found.items() if not is_later] == [(False, 0, 0o044), (False, 65534, 0o444)]
