"""The harness finds what it is there to find."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

from tests.mount import expecting, harness
from tests.mount.expecting import refused
from tests.mount.harness import Person, mounted


def test_a_view_is_mounted_when_the_command_returns(source: Path) -> None:
    """A mount answers at once, and shows what is granted."""
    (source / "a").write_text("text")
    with mounted(source, "/=ro") as view:
        assert (view.point / "a").read_text() == "text"
        assert view.is_mounted
        with refused("EROFS"):
            (view.point / "a").write_text("other")
    assert (source / "a").read_text() == "text"


def test_a_session_file_is_handed_on(source: Path) -> None:
    """A session given as text decides."""
    (source / "a").mkdir()
    with mounted(source, session='[grants]\n"/a" = "stage"\n') as view:
        (view.point / "a/b").write_text("x")
        with refused("EACCES"):
            os.listdir(view.point)
    assert (source / "a/b").read_text() == "x"


def test_an_ordinary_user_mounts_too(ordinary_user: Person) -> None:
    """Whoever is not root has a whole mount, in a namespace that goes away with them."""
    source = ordinary_user.home / "tree"
    ordinary_user.run("mkdir", source)
    with mounted(source, "/=stage", person=ordinary_user) as view:
        assert view.run("sh", "-c", "id -u > who && cat who").stdout == f"{ordinary_user.uid}\n"
        assert (source / "who").stat().st_uid == ordinary_user.uid


def test_the_watchdog_ends_a_wedged_mount(source: Path) -> None:
    """A daemon that stands still is aborted: whoever waits gets an error, and nothing is left."""
    (source / "a").write_text("text")
    answers = []

    def wedge() -> None:
        with mounted(source, "/=ro", deadline=0.5) as view:
            view.killed = True
            view.signal(signal.SIGSTOP)
            answers.append(
                subprocess.run(["cat", view.point / "a"], capture_output=True, text=True, timeout=20, check=False)
            )
            view.ended()

    with pytest.raises(AssertionError, match="the watchdog ended it"):
        wedge()
    assert [answer.returncode for answer in answers] == [1]
    assert "connection abort" in answers[0].stderr


def test_a_leaked_descriptor_fails(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is still open at the end counts as a leak of the daemon's."""
    monkeypatch.setattr(harness, "LEAK_TIMEOUT", 0.2)
    (source / "a").write_text("text")
    opened = []

    def leave_open() -> None:
        with mounted(source, "/=ro") as view:
            opened.append(os.open(view.point / "a", os.O_RDONLY))
            os.pread(opened[0], 1, 0)

    if os.geteuid() != 0:
        pytest.skip("only root sees the descriptors of a process that is not dumpable")
    with pytest.raises(AssertionError, match="leaks descriptors"):
        leave_open()
    os.close(opened[0])


def test_a_complaint_in_the_log_fails(source: Path) -> None:
    """An error that the daemon logged fails the test, however well it went."""
    with pytest.raises(AssertionError, match="complained"), mounted(source, "/=ro") as view, view.log.open("a") as log:
        log.write("2025-01-01 ERROR policyfs.mount: read failed\n")


def test_a_busy_mount_fails_and_is_taken_away(source: Path) -> None:
    """Somebody who still stands in the mount fails the test, and the mount is gone all the same."""
    stander = []
    views = []

    def stay() -> None:
        with mounted(source, "/=ro") as view:
            views.append(view)
            stander.append(subprocess.Popen(["cat"], cwd=view.point, stdin=subprocess.PIPE))

    with pytest.raises(AssertionError, match="does not unmount"):
        stay()
    assert not views[0].is_mounted
    stander[0].communicate(b"", timeout=harness.TIMEOUT)


def test_an_ordinary_users_namespace_keeps_no_other_mount_alive(source: Path) -> None:
    """A view that was mounted when the namespace was made ends as ever."""
    with mounted(source, "/=ro") as view, harness.ordinary_user() as person:
        if person.namespace is not None:
            assert person.mount_at(view.point) is None
        assert view.unmount().returncode == 0
        view.ended()


@pytest.mark.parametrize("required", ["1", "", None])
def test_what_is_absent_is_skipped_and_fails_in_ci(monkeypatch: pytest.MonkeyPatch, required: str | None) -> None:
    """A machine that cannot mount skips, unless POLICYFS_REQUIRE_FUSE=1."""
    monkeypatch.setattr(harness.mounts, "FUSE_DEVICE", "/nowhere/fuse")
    if required is None:
        monkeypatch.delenv("POLICYFS_REQUIRE_FUSE", raising=False)
    else:
        monkeypatch.setenv("POLICYFS_REQUIRE_FUSE", required)
    expected = pytest.fail.Exception if required == "1" else pytest.skip.Exception
    with pytest.raises(expected, match="no /nowhere/fuse here"):
        expecting.require_fuse()


@pytest.mark.parametrize(
    ("script", "ci", "required"),
    [("scripts/test", None, ""), ("scripts/test", "true", "1"), (".ci/run", None, "1"), (".ci/run", "false", "1")],
)
def test_ci_requires_what_a_person_does_not(tmp_path: Path, script: str, ci: str | None, required: str) -> None:
    """`.ci/run` asks the suite to fail for want of FUSE, whatever the environment says; `scripts/test` where CI=true."""
    checkout = Path(__file__).resolve().parents[2]
    for name in (".ci/run", "scripts/test"):
        (tmp_path / name).parent.mkdir()
        shutil.copy(checkout / name, tmp_path / name)
    # In place of an environment with the suite: what says which environment variables it would have.
    (tmp_path / "scripts/environment.sh").write_text("prepare() { :; }; root=${scripts%/scripts} environment=$root\n")
    (tmp_path / "bin").mkdir()
    for name, does in (("ruff", ":"), ("python", 'echo "required=${POLICYFS_REQUIRE_FUSE:-}"')):
        (tmp_path / "bin" / name).write_text(f"#!/bin/sh\n{does}\n")
        (tmp_path / "bin" / name).chmod(0o755)
    environment = {"PATH": "/usr/bin:/bin", **({} if ci is None else {"CI": ci})}
    done = subprocess.run(["bash", tmp_path / script], env=environment, capture_output=True, check=True, timeout=60)
    assert set(done.stdout.decode().splitlines()) == {f"required={required}"}
