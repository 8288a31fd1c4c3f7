"""How a mount ends."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount import harness
from tests.mount.expecting import errno_of, refused
from tests.mount.harness import PROGRAM, TIMEOUT, Person, watchdog
from tests.mount.lifecycle.ground import DONE, FAILED, PLACE, POLICY, assert_refused, mounted


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT], ids=lambda number: number.name)
def test_a_signal_ends_the_mount_in_order(source: Path, number: int) -> None:
    """SIGTERM and SIGINT unmount, the daemon ends, and says so in its log; what was written is there."""
    with mounted(source, "/=stage") as view:
        (view.point / "f").write_text("content")
        view.signal(number)
        view.ended()
        assert not view.is_mounted
        assert f"ends on {signal.Signals(number).name}" in view.log_text
        assert "unmounted" in view.log_text
    assert (source / "f").read_text() == "content"


@pytest.mark.parametrize("way", ["umount", "fusermount3 -u", "policyfs umount", "policyfs umount --lazy", "relative"])
def test_it_is_unmounted_from_outside(source: Path, way: str) -> None:
    """By each of the ways that people know; the daemon ends by itself."""
    with mounted(source, "/=ro") as view:
        match way:
            case "policyfs umount":
                done = view.person.policyfs("umount", view.point)
            case "policyfs umount --lazy":
                done = view.person.policyfs("umount", view.point, "--lazy")
            case "relative":
                done = view.person.policyfs("umount", view.point.name, cwd=view.point.parent)
            case _:
                done = view.person.run(*way.split(), view.point)
        assert (done.returncode, done.stdout, done.stderr) == (DONE, "", "")
        view.ended()
        assert not view.is_mounted
        assert "unmounted" in view.log_text


def test_a_busy_mount_is_not_unmounted_and_stays(source: Path) -> None:
    """Somebody stands in it: one line says so and how to see who; --lazy detaches it, and the daemon ends as they leave."""
    with mounted(source, "/=ro") as view:
        with subprocess.Popen(["cat"], cwd=view.point, stdin=subprocess.PIPE) as stander:
            try:
                assert_refused(view.person.policyfs("umount", view.point), FAILED, "in use", "fuser -vm", "--lazy")
                assert view.is_mounted
                assert os.listdir(view.point) == []
                assert view.person.policyfs("umount", view.point, "--lazy").returncode == DONE
                assert not view.is_mounted
                assert not view.has_ended
            finally:
                stander.communicate(b"")
        view.ended()


def test_umount_of_what_is_no_view(person: Person, point: Path) -> None:
    """A plain directory, a missing one and somebody else's mount are each told apart."""
    assert_refused(person.policyfs("umount", point), PLACE, "is not a mount")
    assert_refused(person.policyfs("umount", point / "no"), PLACE, "is not a mount")
    assert_refused(person.policyfs("umount", "/proc"), PLACE, "mount of type proc", "not a view")


def test_after_kill_9_the_next_mount_cleans_up(source: Path) -> None:
    """A dead mount answers ENOTCONN to all and uncovers nothing; the next mount of the place takes it away by itself."""
    (source / "f").write_text("content")
    with mounted(source, "/=ro") as view:
        opened = os.open(view.point / "f", os.O_RDONLY)
        view.kill()
        assert view.is_mounted
        for act in (os.statvfs, os.listdir):
            assert errno_of(act, view.point) == "ENOTCONN", act
        for path in (view.point / "f", view.point / "other"):
            assert errno_of(os.open, path, os.O_RDONLY) == "ENOTCONN", path
        # What the kernel has of an open file it may still give; what it has not is out of reach.
        assert errno_of(os.pread, opened, 1, 0) in (None, "ENOTCONN")
        assert errno_of(os.fsync, opened) == "ENOTCONN"
        assert errno_of(os.close, opened) in ("ENOTCONN", None)
        with mounted(source, "/=stage", point=view.point, person=view.person) as again:
            (again.point / "f").write_text("by the second")
        assert not view.is_mounted
    assert (source / "f").read_text() == "by the second"


def test_a_dead_mount_is_unmounted_by_the_command(source: Path) -> None:
    """policyfs umount takes a dead mount away, though nobody stands behind it."""
    with mounted(source, "/=ro") as view:
        view.kill()
        done = view.person.policyfs("umount", view.point)
        assert (done.returncode, done.stderr) == (DONE, "")
        assert not view.is_mounted


def test_after_an_abort_the_daemon_ends(source: Path, as_root: None) -> None:
    """A connection that the administrator aborts ends the daemon; its dead mount uncovers nothing until it is unmounted."""
    with mounted(source, "/=ro") as view:
        view.killed = True
        harness.abort(view)
        view.ended()
        with refused("ENOTCONN"):
            os.listdir(view.point)
        assert view.person.policyfs("umount", view.point).returncode == DONE
        assert not view.is_mounted


@contextmanager
def foreground(person: Person, source: Path, point: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`policyfs mount -f`, mounted and told so. Nothing of it is left in the end."""
    daemon = person.popen(
        *PROGRAM, "mount", source, point, "-f", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert daemon.stdout is not None
    try:
        assert "is mounted" in daemon.stdout.readline(), daemon.communicate(timeout=TIMEOUT)
        with watchdog(point, person, daemon.pid):
            yield daemon
    finally:
        if daemon.poll() is None:
            daemon.kill()
        daemon.communicate(timeout=TIMEOUT)
        if person.mount_at(point) is not None:
            person.unmount(point, lazily=True)
            pytest.fail("the mount was left behind")


def test_it_stays_in_the_foreground_until_ctrl_c(person: Person, source: Path, point: Path) -> None:
    """The very process that was started serves, logs to standard error, and ends with 0 on SIGINT, unmounted."""
    with foreground(person, source, point, "-g", "/=stage") as daemon:
        (point / "f").write_text("x")
        assert daemon.poll() is None
        daemon.send_signal(signal.SIGINT)
        _, said = daemon.communicate(timeout=TIMEOUT)
        assert daemon.returncode == DONE
        assert person.mount_at(point) is None
        assert f"serving, process {daemon.pid}" in said
        assert "ends on SIGINT" in said
        assert "Traceback" not in said
    assert (source / "f").read_text() == "x"


def test_in_the_foreground_it_ends_when_it_is_unmounted(person: Person, source: Path, point: Path) -> None:
    """umount from elsewhere ends the process with 0."""
    with foreground(person, source, point, "-g", "/=ro") as daemon:
        assert person.policyfs("umount", point).returncode == DONE
        daemon.communicate(timeout=TIMEOUT)
        assert daemon.returncode == DONE


def test_a_fault_in_the_foreground_is_one_line_too(person: Person, source: Path, point: Path) -> None:
    """What the daemon finds wrong is said once, with the same exit code as in the background."""
    for words in (("-g", "/=none"), ("-g", "/=ro", "--floors", str(person.home / "no.toml"))):
        background = person.policyfs("mount", source, point, *words)
        daemon = person.popen(
            *PROGRAM, "mount", source, point, "-f", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        told, said = daemon.communicate(timeout=TIMEOUT)
        assert (daemon.returncode, told, said) == (POLICY, "", background.stderr)
