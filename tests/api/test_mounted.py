"""`policyfs.mounted`: a real mount for as long as a `with` block lasts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import policyfs
from policyfs import Level, Mounted, Policy, PolicyOptions, UserFault
from policyfs.host import mounts
from tests.mount import expecting, harness


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own: logs and floors are not anybody's."""
    expecting.require_fuse()
    directory = tmp_path / "home"
    directory.mkdir(mode=0o700)
    monkeypatch.setenv("HOME", str(directory))
    for name in list(os.environ):
        if name.startswith("XDG_"):
            monkeypatch.delenv(name)
    return directory


@pytest.fixture
def tree(source: Path) -> Path:
    (source / "Notes/Private").mkdir(parents=True)
    (source / "Notes/a.md").write_text("a\n")
    (source / "b.md").write_text("b\n")
    return source


@pytest.fixture
def policy(tree: Path) -> Policy:
    return Policy.load(tree, grants={"/": "ro", "/Notes": "stage", "/Notes/Private": "none"})


@contextmanager
def watched(view: Mounted) -> Iterator[Mounted]:
    """A mount that hangs is ended by the watchdog of the mount tests, and fails the test."""
    with harness.watchdog(view.path, harness.Person(view.path.parent), view.process):
        yield view


def is_mounted(path: Path) -> bool:
    return mounts.mount_at(mounts.HostPath(os.fsencode(path))) is not None


def has_ended(process: int) -> bool:
    return not os.path.exists(f"/proc/{process}")


def test_a_mount_lasts_as_long_as_its_block(tree: Path, policy: Policy) -> None:
    """Any tool sees what the policy opens; afterwards mount, daemon and temporary directory are gone."""
    with policyfs.mounted(tree, policy) as view, watched(view):
        assert is_mounted(view.path)
        assert view.granted == {"/": Level.RO, "/Notes": Level.STAGE} == policy.granted()
        assert sorted(os.listdir(view)) == ["Notes", "b.md"]
        listed = subprocess.run(["ls", view.path / "Notes"], capture_output=True, text=True, check=True)
        assert listed.stdout == "a.md\n"
        (view.path / "Notes/new").write_text("new")
        with expecting.refused("EROFS"):
            (view.path / "b.md").write_text("x")
    assert (tree / "Notes/new").read_text() == "new"
    assert not is_mounted(view.path)
    assert not view.path.exists()
    assert has_ended(view.process)


def test_a_mount_stands_where_it_is_asked_to(tree: Path, policy: Policy, tmp_path: Path) -> None:
    """`at` is an empty directory, which stays; options make a policy as `load` does."""
    point = tmp_path / "point"
    point.mkdir()
    with policyfs.mounted(tree, PolicyOptions(grants=("/b.md=ro",)), at=point) as view, watched(view):
        assert view.path == point.resolve()
        assert (point / "b.md").read_text() == "b\n"
        assert any("passages" in note for note in view.notes)
    assert point.is_dir()
    assert list(point.iterdir()) == []


def test_an_error_in_the_block_ends_the_mount_too(tree: Path, policy: Policy) -> None:
    """The mount does not outlive what the block raises."""
    with pytest.raises(LookupError), policyfs.mounted(tree, policy) as view, watched(view):
        raise LookupError
    assert not is_mounted(view.path)
    assert has_ended(view.process)


def test_a_mount_that_is_in_use_is_detached(tree: Path, policy: Policy) -> None:
    """Who still has a file open keeps it, nobody finds the mount any more, and a warning says so."""
    with pytest.warns(ResourceWarning, match="in use"), policyfs.mounted(tree, policy) as view:
        file = open(view.path / "b.md")  # noqa: SIM115 - held open beyond the block on purpose
    try:
        assert not is_mounted(view.path)
        assert file.read() == "b\n"
        assert not has_ended(view.process)
    finally:
        file.close()
        expecting.until(lambda: os.waitpid(view.process, os.WNOHANG)[0], "the daemon ends when the last one leaves")


def test_a_mount_that_is_gone_already_is_no_fault(tree: Path, policy: Policy) -> None:
    """Unmounted from outside, or its daemon killed: the block ends as ever, and nothing is left."""
    with policyfs.mounted(tree, policy) as view:
        subprocess.run([*harness.PROGRAM, "umount", view.path], check=True, timeout=60)
    assert has_ended(view.process)
    with policyfs.mounted(tree, policy) as view:
        os.kill(view.process, signal.SIGKILL)
    assert not is_mounted(view.path)
    assert not view.path.exists()
    assert has_ended(view.process)


def test_what_cannot_be_mounted_leaves_nothing(tree: Path, policy: Policy, tmp_path: Path) -> None:
    """A mountpoint that is not empty, the policy of another tree, a policy that opens nothing: told, and no
    descriptor is left open."""
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(UserFault, match="not empty"), policyfs.mounted(tree, policy, at=tree / "Notes"):
        pass
    with pytest.raises(ValueError, match="not of"), policyfs.mounted(tmp_path, policy):
        pass
    closed = Policy.load(tree, grants={"/": "none"})
    with pytest.raises(UserFault, match="opens nothing"), policyfs.mounted(tree, closed):
        pass
    assert len(os.listdir("/proc/self/fd")) == before


def test_mounts_leave_no_descriptor_and_no_child(tree: Path, policy: Policy) -> None:
    """A program may mount again and again."""
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with policyfs.mounted(tree, policy) as view, watched(view):
            assert (view.path / "b.md").read_text() == "b\n"
    assert len(os.listdir("/proc/self/fd")) == before
    with pytest.raises(ChildProcessError):
        os.waitpid(view.process, os.WNOHANG)


def test_a_program_that_mounts_needs_no_fuse_of_its_own() -> None:
    """pyfuse3 and trio are the daemon's: whoever mounts from Python does not load them."""
    check = "import sys, policyfs; policyfs.mounted; assert not {'pyfuse3', 'trio', 'click'} & set(sys.modules)"
    subprocess.run([sys.executable, "-I", "-c", check], check=True, timeout=60)
