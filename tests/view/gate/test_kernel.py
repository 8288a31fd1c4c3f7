"""What the kernel would have answered first, and what a refusal carries."""

from __future__ import annotations

import dataclasses
import errno
import os
import socket
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, ViewPath
from policyfs.policy.policy import CompiledPolicy
from policyfs.policy.refusals import Refusal
from policyfs.policy.session import Session
from policyfs.source.files import OpenFile
from policyfs.source.tree import RENAME_EXCHANGE, RENAME_NOREPLACE
from policyfs.view.location import Location
from policyfs.view.monitor import ReferenceMonitor
from policyfs.view.outcomes import Changes
from policyfs.view.refused import Refused
from tests.view.gate.ground import Refuses, at, beside, identity


def test_opening_what_is_no_file(view: ReferenceMonitor) -> None:
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


def test_what_only_a_link_or_a_directory_can_be_asked(view: ReferenceMonitor) -> None:
    """readlink(2) of anything else is EINVAL, link(2) of a directory EPERM, a listing of anything else ENOTDIR."""
    with Refuses(errno.EINVAL):
        view.link_text(at(view, "/f"))
    with Refuses(errno.EPERM):
        view.link(at(view, "/d"), at(view, "/new"))
    with Refuses(Refusal.NOT_DIRECTORY, "/f"):
        view.listing(at(view, "/f"))


def test_what_the_source_does_not_allow(view: ReferenceMonitor, source: Path) -> None:
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


def test_the_file_system(view: ReferenceMonitor, source: Path) -> None:
    """Is that of SOURCE."""
    status, told = os.statvfs(source), view.file_system()
    assert (told.block_size, told.blocks, told.name_max) == (status.f_frsize, status.f_blocks, status.f_namemax)


def test_removing_the_other_kind(view: ReferenceMonitor, source: Path) -> None:
    """rmdir(2) of a file and unlink(2) of a directory say what it is, and take nothing away."""
    with Refuses(Refusal.NOT_DIRECTORY, "/f"):
        view.remove_directory(at(view, "/f"))
    with Refuses(Refusal.IS_DIRECTORY, "/d/empty"):
        view.unlink(at(view, "/d/empty"))
    assert (source / "f").exists()
    assert (source / "d/empty").exists()


def test_making_a_name_that_is_taken(view: ReferenceMonitor) -> None:
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


def test_creating_what_is_there_opens_it(view: ReferenceMonitor, source: Path) -> None:
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


def test_a_path_through_a_file(view: ReferenceMonitor) -> None:
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


def test_the_root_has_no_name_to_lose(view: ReferenceMonitor) -> None:
    """`/` is neither made nor removed nor moved: EBUSY, or what the rules say of it first."""
    root = at(view, "/")
    for remove in (view.remove_directory, view.unlink):
        with Refuses(Refusal.NAMED_BY_RULE, "/"):
            remove(root)
    with Refuses(errno.EBUSY):
        view.make_directory(root, 0o755)
    with Refuses(Refusal.RULES_BELOW, "/"):
        view.make_link(root, b"f")


def test_flags_of_rename_that_mean_nothing(view: ReferenceMonitor) -> None:
    """Any flag but the two, and the two together, are EINVAL; an exchange needs both."""
    for flags in (4, RENAME_NOREPLACE | RENAME_EXCHANGE, RENAME_EXCHANGE | 4):
        with Refuses(errno.EINVAL):
            view.rename(at(view, "/f"), at(view, "/other"), flags)
    with Refuses(Refusal.MISSING, "/gone"):
        view.rename(at(view, "/f"), at(view, "/gone"), RENAME_EXCHANGE)
    with Refuses(Refusal.MISSING, "/gone"):
        view.rename(at(view, "/gone"), at(view, "/f"))


def test_nothing_is_held_unasked(view: ReferenceMonitor) -> None:
    """Nobody would close it."""
    assert view.unlink(at(view, "/f")).held is None
    assert view.remove_directory(at(view, "/d/empty")).held is None
    assert view.rename(at(view, "/d/full/f"), at(view, "/other")).held is None
    assert view.rename(at(view, "/other"), at(view, "/free"), hold=True).held is None
    assert view.rename(at(view, "/free"), at(view, "/link"), RENAME_EXCHANGE, hold=True).held is None


def test_no_descriptor_stays_open(view: ReferenceMonitor) -> None:
    """Whatever is refused or done, every descriptor is closed again that the caller was not given."""
    before = len(os.listdir("/proc/self/fd"))
    for test in (
        test_opening_what_is_no_file, test_what_only_a_link_or_a_directory_can_be_asked, test_making_a_name_that_is_taken,
        test_flags_of_rename_that_mean_nothing, test_a_path_through_a_file, test_nothing_is_held_unasked,
    ):  # fmt: skip
        test(view)
        assert len(os.listdir("/proc/self/fd")) == before, test.__name__


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
    view: ReferenceMonitor, source: Path, path: str, refusal: Refusal, absent: bool
) -> None:
    """The place whose rule decided, and that nothing is there where nothing is: which is no decision."""
    (source / "via").write_text("a file where the rules have a passage")
    home = source.parent / "key"
    home.write_text("secret")
    os.link(home, source / "key")
    session = Session(grants={**view.policy.session.grants, ViewPath(b"/via"): Level.NONE, ViewPath(b"/via/x"): Level.RO})
    view.take(CompiledPolicy(session, beside(view.root.source, HostPath(os.fsencode(home)))))
    location = at(view, path)
    with pytest.raises(Refused) as caught:
        view.attributes(location)
    error = caught.value
    place = None if refusal is Refusal.NOT_DIRECTORY else location.place
    assert (error.refusal, error.path, error.absent) == (refusal, location.path, absent)
    assert error.place is place


@pytest.mark.parametrize(("further_names", "is_credential"), [(0, False), (1, True), (2, True)])
def test_an_open_file_that_is_a_credential(
    view: ReferenceMonitor, source: Path, further_names: int, is_credential: bool
) -> None:
    """Is known by what it is, if it has another name; another file with several names is none."""
    home = source.parent / "key"
    home.write_text("secret")
    for number in range(further_names):
        os.link(home, source / f"key{number}")
    os.link(source / "f", source / "second")
    with open(home, "rb") as opened, open(source / "f", "rb") as other:
        view.take(CompiledPolicy(view.policy.session, beside(view.root.source, HostPath(os.fsencode(home)))))
        assert view.is_credential(OpenFile(opened.fileno())) is is_credential
        assert not view.is_credential(OpenFile(other.fileno()))


def test_a_refused_change_tells_its_place(view: ReferenceMonitor) -> None:
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


def test_what_is_unknown_under_a_passage_can_be_missing(view: ReferenceMonitor) -> None:
    """By the session's switch, to who looks and to who takes away; what is made there stays denied."""
    here = "/way/unknown"
    for unknown_missing, refusal in ((False, Refusal.DENIED), (True, Refusal.MISSING)):
        session = dataclasses.replace(view.policy.session, unknown_missing=unknown_missing)
        view.take(CompiledPolicy(session, view.policy.surroundings))
        for act in (view.attributes, view.unlink, lambda location: view.open(location, os.O_RDONLY)):
            with Refuses(refusal, here):
                act(at(view, here))
        with Refuses(Refusal.DENIED, here):
            view.make_directory(at(view, here), 0o755)


@pytest.mark.parametrize("path", ["/way/x", "/way/x/y", "/way/x/y/z"])
def test_what_lies_below_what_is_not_seen(view: ReferenceMonitor, path: str) -> None:
    """Is answered by the nearest directory that is seen."""
    with Refuses(Refusal.DENIED, path):
        view.attributes(at(view, path))
    below_visible = path.replace("/way/x", "/hidden")
    with Refuses(Refusal.MISSING, below_visible):
        view.attributes(at(view, below_visible))


def test_a_passage_is_a_directory(view: ReferenceMonitor, source: Path) -> None:
    """Anything else where the rules have a passage is missing; a fifo or a socket elsewhere is shown."""
    connected = socket.socket(socket.AF_UNIX)
    connected.bind(os.fsencode(source / "socket"))
    connected.close()
    session = Session(grants={**view.policy.session.grants, ViewPath(b"/via"): Level.NONE, ViewPath(b"/via/x"): Level.RO})
    view.take(CompiledPolicy(session, view.policy.surroundings))
    for name in ("f", "fifo", "socket", "link"):
        assert view.attributes(at(view, "/" + name)).identity == identity(source / name)
        os.rename(source / name, source / "via")
        with Refuses(Refusal.MISSING, "/via"):
            view.attributes(at(view, "/via"))
        os.unlink(source / "via")


def test_links_by_every_name_of_source(view: ReferenceMonitor, source: Path) -> None:
    """SOURCE's owner may call it otherwise, and it may be mounted elsewhere: both names lead inside."""
    named, mounted = HostPath(b"/owner/tree"), HostPath(b"/mnt/view")
    for name, text in (("a", b"/owner/tree/f"), ("b", b"/mnt/view/f"), ("c", os.fsencode(source) + b"/f")):
        os.symlink(text, source / name)

    def told(of: ReferenceMonitor) -> list[bytes | None]:
        found: list[bytes | None] = []
        for name in "abc":
            try:
                found.append(of.link_text(at(of, "/" + name)))
            except Refused:
                found.append(None)
        return found

    assert told(ReferenceMonitor(view.root, view.policy, named=named, at=mounted)) == [b"f", b"/mnt/view/f", b"f"]
    assert told(ReferenceMonitor(view.root, view.policy, at=mounted)) == [None, b"/mnt/view/f", b"f"]
    assert told(ReferenceMonitor(view.root, view.policy, named=named)) == [b"f", None, b"f"]
