"""The API and a real mount of the same view say the same of every path, links and all."""

from __future__ import annotations

import errno
import itertools
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import policyfs
from policyfs import Level, Mounted, Policy, View
from policyfs.cli.conformance import make_tree
from policyfs.policy.paths import HostPath
from tests.mount import harness

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
    "/way/in/back": {"link": "../../open"},
    "/way/in/x-again": {"link": "x"},
    "/open/fifo": {"fifo": True},
}
GRANTS = {"/open": "stage", "/open/private": "none", "/way/in": "ro", "/way/late/here": "stage"}
NAMES = sorted({name for path in TREE for name in path.split("/")[1:]} | {"nowhere", "late", "here", ".."})


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[View, Mounted]]:
    """A view and a mount of one tree under one policy."""
    harness.require_fuse()
    source = tmp_path_factory.mktemp("both") / "source"
    source.mkdir()
    make_tree(HostPath(os.fsencode(source)), TREE)
    policy = Policy.load(source, grants=GRANTS)
    with (
        policyfs.mounted(source, policy) as mount,
        harness.watchdog(mount.path, harness.Person(mount.path.parent), mount.process),
        View(source, policy) as view,
    ):
        yield view, mount


def outcome(act: Callable[[], Any]) -> Any:
    """What an act gives, or the name of its errno."""
    try:
        return act()
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def alike(ours: Any, on_mount: Any, path: str, *, making: bool = False) -> bool:
    """Whether two outcomes are one. Where a hidden name is asked for in what is no directory, the kernel stops at that,
    and the policy decides by the text before anything is looked up: two answers, of which neither tells anything."""
    if ours == on_mount:
        return True
    by_rule = path.endswith(("/.env", "/private"))
    return by_rule and on_mount in ("ENOENT", "ENOTDIR") and ours == ("EACCES" if making else "ENOENT")


def paths() -> list[str]:
    """Every path of up to two names, and the longer ones that begin in a directory or a link; dots resolved by their
    text, as the spec has it, where the kernel would go by the tree."""
    asked = {"/".join(names) for length in (1, 2) for names in itertools.product(NAMES, repeat=length)}
    for second, third in itertools.product(NAMES, NAMES):
        asked |= {f"open/{second}/{third}", f"way/in/back/{second}/{third}"}
    resolved = {os.path.normpath(f"/{path}") for path in asked}
    return sorted(resolved)


def test_every_path_is_seen_alike(both: tuple[View, Mounted]) -> None:
    """stat of every path: the same kind, or the same errno; where a link is at the end, of the link too."""
    view, mount = both
    assert len(paths()) > 1000
    for path in paths():
        on_mount = f"{mount.path}{path}"
        for follow in (True, False):
            expected = outcome(lambda: os.stat(on_mount, follow_symlinks=follow).st_size)  # noqa: B023
            assert alike(outcome(lambda: view.stat(path, follow=follow).size), expected, path), (path, follow)  # noqa: B023


def test_every_path_reads_alike(both: tuple[View, Mounted]) -> None:
    """The contents of every file and the names of every directory, or the same errno."""
    view, mount = both
    for path in paths():
        on_mount = f"{mount.path}{path}"
        expected = outcome(lambda: sorted(os.listdir(on_mount)))  # noqa: B023
        assert alike(outcome(lambda: sorted(entry.name for entry in view.list(path))), expected, path), path  # noqa: B023
        if path.endswith("fifo"):
            continue
        expected = outcome(lambda: Path(on_mount).read_bytes())  # noqa: B023
        assert alike(outcome(lambda: view.read(path)), expected, path), path  # noqa: B023


def test_every_refused_change_is_refused_alike(both: tuple[View, Mounted]) -> None:
    """Where a directory cannot be made, or a name not be removed, the errno is the mount's. What could be is left alone."""
    view, mount = both

    for path in paths()[1:]:
        on_mount = f"{mount.path}{path}"
        if isinstance(outcome(lambda: view.stat(path, follow=False)), str):  # noqa: B023
            expected = outcome(lambda: os.unlink(on_mount))  # noqa: B023
            assert alike(outcome(lambda: view.remove(path)), expected, path), path  # noqa: B023
        made = outcome(lambda: os.mkdir(on_mount))  # noqa: B023
        if made is None:
            os.rmdir(on_mount)
        ours = outcome(lambda: view.make_directory(path))  # noqa: B023
        if ours is None:
            view.remove(path)
        if made == "EEXIST" and view.stat(path, follow=False).level is Level.NONE:
            # The kernel finds the name; the spec's text for whatever is asked of a passage is that it is not open.
            made = "EACCES"
        assert alike(ours, made, path, making=True), (path, ours, made)
