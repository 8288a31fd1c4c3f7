"""The API and a real mount of the same view say the same of every path, links and all."""

from __future__ import annotations

import ctypes
import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import policyfs
from policyfs import Level, Mounted, Policy, View
from policyfs.policy.paths import HostPath
from policyfs.source.tree import RENAME_NOREPLACE
from tests.conformance.adapter import make_tree
from tests.mount import expecting, harness

TREE: dict[str, Any] = {
    "/open/file": {"file": "file"},
    "/open/dir/deep": {"file": "deep"},
    "/open/private/p": {"file": "p"},
    "/open/.env": {"file": "secret"},
    "/way/in/x": {"file": "x"},
    "/way/shut/y": {"file": "y"},
    "/closed/z": {"file": "z"},
    "/open/up": {"link": ".."},
    "/open/in": {"link": "../way/in"},
    "/open/to-way": {"link": "../way"},
    "/open/to-private": {"link": "private"},
    "/open/to-p": {"link": "private/p"},
    "/open/to-shut": {"link": "../way/shut/y"},
    "/open/to-dir": {"link": "dir"},
    "/open/to-link": {"link": "to-dir"},
    "/open/to-closed": {"link": "../closed"},
    "/open/no": {"link": "nowhere"},
    "/open/no-private": {"link": "private/nowhere"},
    "/open/loop": {"link": "loop"},
    "/open/abs": {"link": "{source}/open/dir"},
    "/open/abs-private": {"link": "{source}/open/private"},
    "/open/out": {"link": "/etc/hostname"},
    "/open/round": {"link": "private/../file"},
    "/open/slash": {"link": "file/"},
    "/open/dir-slash": {"link": "dir/."},
    "/open/file-up": {"link": "file/../dir"},
    "/open/no-up": {"link": "nowhere/../file"},
    "/open/no-slash": {"link": "nowhere/"},
    "/open/to-x": {"link": "../way/in/x"},
    "/way/in/deep/z": {"file": "z"},
    "/way/in/back": {"link": "../../open"},
    "/way/in/x-again": {"link": "x"},
    "/open/fifo": {"fifo": True},
}
GRANTS = {"/open": "stage", "/open/private": "none", "/way/in": "ro", "/way/late/here": "stage"}
NAMES = sorted({name for path in TREE for name in path.split("/")[1:]} | {"nowhere", "late", "here", ".."})


FREE = "/open/free"
"""A name that nothing has."""

SLASHED = {"slash": "ENOTDIR", "no-slash": "ENOENT"}
"""Links that say `name/`: the kernel makes no file of one and looks no further, the API says what is there."""

_libc = ctypes.CDLL(None, use_errno=True)


@pytest.fixture(scope="module", params=["denied", "missing"])
def both(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[View, Mounted]]:
    """A view and a mount of one tree under one policy, for each answer that what is not seen in a passage can have."""
    expecting.require_fuse()
    source = tmp_path_factory.mktemp("both") / "source"
    source.mkdir()
    make_tree(HostPath(os.fsencode(source)), TREE)
    session_file = source.parent / "session.toml"
    session_file.write_text(f'[passages]\nunknown = "{request.param}"\n')
    policy = Policy.load(source, session_file=session_file, grants=GRANTS)
    with (
        policyfs.mounted(source, policy) as mount,
        harness.watchdog(mount.path, harness.Person(mount.path.parent), mount.process, harness.MODULE_DEADLINE),
        View(source, policy) as view,
    ):
        yield view, mount


def outcome(act: Callable[[], Any]) -> Any:
    """What an act gives, or the name of its errno."""
    try:
        return act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def paths() -> list[str]:
    """Every name in every directory and behind every link that there is, and in some that are not there; dots resolved by
    their text (rule path-2), where the kernel would go by the tree."""
    asked = {*NAMES, *("/".join(names) for names in itertools.product(("open", "way", "closed", "nowhere", ".."), NAMES))}
    asked |= {f"open/{second}/{third}" for second, third in itertools.product(NAMES, NAMES)}
    # What is missing or no directory in `open` is so here.
    below = ("deep", "back", "x", "x-again", "nowhere", "..")
    asked |= {f"way/in/{second}/{third}" for second, third in itertools.product(below, NAMES)}
    last = ("private", "dir", "deep", "p", "nowhere", "..")
    asked |= {f"way/in/back/{second}/{third}" for second, third in itertools.product(NAMES, last)}
    resolved = {os.path.normpath(f"/{path}") for path in asked}
    return sorted(resolved)


def is_passage(view: View, path: str, *, follow: bool) -> bool:
    """Whether a passage is there. Whatever is asked of one, the text is that it is not open (rule passage-1); the kernel
    finds the name before it asks."""
    return outcome(lambda: view.stat(path, follow=follow).level) is Level.NONE


def rename(path: str, to: str) -> None:
    """renameat2(2) that replaces nothing."""
    if _libc.renameat2(-100, os.fsencode(path), -100, os.fsencode(to), RENAME_NOREPLACE):
        raise OSError(ctypes.get_errno(), "renameat2")


def appended(path: str) -> None:
    """open(2) as for writing a file again, but that nothing is lost."""
    os.close(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND))


def test_every_path_is_seen_alike(both: tuple[View, Mounted]) -> None:
    """stat of every path: the same kind, or the same errno; where a link is at the end, of the link too."""
    view, mount = both
    assert len(paths()) > 1000
    for path in paths():
        on_mount = f"{mount.path}{path}"
        for follow in (True, False):
            expected = outcome(lambda: os.stat(on_mount, follow_symlinks=follow).st_size)  # noqa: B023
            assert outcome(lambda: view.stat(path, follow=follow).size) == expected, (path, follow)  # noqa: B023


def test_every_path_reads_alike(both: tuple[View, Mounted]) -> None:
    """The contents of every file and the names of every directory, or the same errno."""
    view, mount = both
    for path in paths():
        on_mount = f"{mount.path}{path}"
        expected = outcome(lambda: sorted(os.listdir(on_mount)))  # noqa: B023
        assert outcome(lambda: sorted(entry.name for entry in view.list(path))) == expected, path  # noqa: B023
        if path.endswith("fifo"):
            continue
        expected = outcome(lambda: Path(on_mount).read_bytes())  # noqa: B023
        assert outcome(lambda: view.read(path)) == expected, path  # noqa: B023


def test_every_refused_change_is_refused_alike(both: tuple[View, Mounted]) -> None:
    """Where a directory cannot be made, or a name not be removed, the errno is the mount's. What could be is left alone."""
    view, mount = both
    for path in paths()[1:]:
        on_mount = f"{mount.path}{path}"
        if isinstance(outcome(lambda: view.stat(path, follow=False)), str):  # noqa: B023
            expected = outcome(lambda: os.unlink(on_mount))  # noqa: B023
            assert outcome(lambda: view.remove(path)) == expected, path  # noqa: B023
        made = outcome(lambda: os.mkdir(on_mount))  # noqa: B023
        if made is None:
            os.rmdir(on_mount)
        ours = outcome(lambda: view.make_directory(path))  # noqa: B023
        if ours is None:
            view.remove(path)
        if is_passage(view, path, follow=False):
            made = "EACCES"
        assert ours == made, (path, ours, made)


def test_every_path_is_written_alike(both: tuple[View, Mounted]) -> None:
    """A file is opened or made, or the errno is the mount's."""
    view, mount = both
    for path in paths()[1:]:
        on_mount = f"{mount.path}{path}"
        if path.endswith("fifo"):
            continue
        there = os.path.exists(on_mount)
        written = outcome(lambda: appended(on_mount))  # noqa: B023
        if written is None and not there:
            os.unlink(f"{mount.path}{view.stat(path).path}")
        ours = outcome(lambda: view.write(path, b"", append=True))  # noqa: B023
        if ours is True:
            view.remove(view.stat(path).path)
        if is_passage(view, path, follow=True):
            written = "EACCES"
        if written == "EISDIR":
            written = SLASHED.get(path.rpartition("/")[2], written)
        assert ours == (written or not there), (path, ours, written)


def test_every_path_is_moved_alike(both: tuple[View, Mounted]) -> None:
    """What is at a path is moved away, and something is moved to it, or the errno is the mount's."""
    view, mount = both
    sources, targets = ("/open/file", "/open/dir", "/way/in/x"), (FREE, "/way/in/free")
    some = [path for path in paths()[1:] if path.count("/") < 3 or path.endswith(("/nowhere", "/x", "/private"))]
    moves = {(path, to) for path in some for to in targets} | {(path, to) for path in sources for to in some}
    for path, to in sorted(moves):
        on_mount, to_on_mount = f"{mount.path}{path}", f"{mount.path}{to}"
        moved = outcome(lambda: rename(on_mount, to_on_mount))  # noqa: B023
        if moved is None:
            rename(to_on_mount, on_mount)
        ours = outcome(lambda: view.move(path, to))  # noqa: B023
        if ours is None:
            view.move(to, path)
        if moved == "EEXIST" and is_passage(view, to, follow=False):
            moved = "EACCES"
        assert ours == moved, (path, to, ours, moved)
