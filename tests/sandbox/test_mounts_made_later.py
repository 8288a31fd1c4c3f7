"""What is mounted or unmounted while a command runs: nothing comes in, nothing goes out, nothing is kept in use
(rule run-6)."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount import expecting, harness
from tests.sandbox.runs import PYTHON, SECRET, Ground, ground, ran

LOOK = r"""
import os, sys
places = sys.argv[1:]
def table():
    return open("/proc/self/mountinfo").read().splitlines()
before = table()
print("ready", flush=True)
sys.stdin.readline()
for place in places:
    if "secret" in os.listdir(place):
        print(place, "shows the mount")
    for how in "rw":
        try:
            open(place + "/secret", how)
            print(place, how)
        except OSError:
            pass
if table() != before:
    print("mounts have changed", sorted(set(table()) ^ set(before)))
print(*[line for line in before if " - " not in line or set("".join(line.split(" - ")[0].split()[6:]))], sep="\n")
"""
"""Says what is new in some places, which mounts are new, and which mounts are propagated to or from others: those that
have anything between the mount options and the dash (proc(5), mountinfo)."""


@pytest.fixture(params=harness.PEOPLE)
def shared(request: pytest.FixtureRequest) -> Iterator[Ground]:
    """A tree of somebody in a mount namespace where mounts are shared, as systemd makes them on every machine."""
    if os.geteuid() != 0:
        expecting.absent("only root can mount something beside a run")
    with harness.ordinary_user(0 if request.param == "root" else 1000) as person, ground(person) as tree:
        _outside(tree, "mount", "--make-rshared", "/")
        yield tree


def _outside(tree: Ground, *command: str) -> str:
    """Do something as root beside the run."""
    enter = ["nsenter", "-t", str(tree.person.namespace), "-m", "--"]
    return subprocess.run([*enter, *command], check=True, capture_output=True, text=True).stdout


def test_what_the_machine_mounts_later_does_not_come_in(shared: Ground) -> None:
    """Below the system's directories, below a place that is shown and on a device: a mount that is made beside a run is
    neither seen nor written to in it, and no mount of it takes part in any propagation."""
    added = shared.person.home / "added"
    (added / "below").mkdir(parents=True)
    places = ["/usr/local/share", "/etc/alternatives", str(added / "below"), "/proc/sys/kernel"]
    options = ("--ro-bind", str(added))
    look = (PYTHON, "-I", "-c", LOOK, *places)
    run = shared.start(*look, options=options, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    for place in places:
        _outside(shared, "mount", "-t", "tmpfs", "later", place)
        _outside(shared, "sh", "-c", f"echo '{SECRET}' > {place}/secret; chmod 777 {place}")
    device = shared.person.home / "device"
    device.write_text(SECRET)
    _outside(shared, "mount", "--bind", str(device), "/dev/full")
    said, _ = run.communicate(b"\n", timeout=60)
    try:
        assert _outside(shared, "cat", f"{added}/below/secret").strip() == SECRET
        for place in places:
            assert _outside(shared, "ls", place).split() == ["secret"]
    finally:
        for place in ("/dev/full", *places):
            _outside(shared, "umount", place)
    assert said.decode() == "\n"


def test_nothing_that_is_mounted_for_a_sandbox_is_seen_outside(shared: Ground) -> None:
    """Beside the run there is one mount more: the view."""
    before = {mount.point for mount in shared.person.mount_table()}
    run = shared.start("sh", "-c", "echo ready; read line", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    (view,) = {mount.point for mount in shared.person.mount_table()} - before
    assert view.endswith(b"/view")
    run.communicate(b"\n", timeout=60)


def test_what_is_unmounted_during_a_run_is_not_kept_in_use(shared: Ground) -> None:
    """A disk that the run does not show can be unmounted and unplugged: no process of the run has it mounted still."""
    disk = shared.person.home / "disk"
    disk.mkdir()
    name = f"policyfs-disk-{os.getpid()}"
    _outside(shared, "mount", "-t", "tmpfs", name, str(disk))
    run = shared.start("sh", "-c", "echo ready; read line", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    assert len(_mounted_by(name)) > 2
    _outside(shared, "umount", str(disk))
    assert _mounted_by(name) == []
    run.communicate(b"\n", timeout=60)


def _mounted_by(name: str) -> list[str]:
    """The processes that have a file system of this name among their mounts."""
    found = []
    for process in filter(str.isdigit, os.listdir("/proc")):
        try:
            table = Path("/proc", process, "mountinfo").read_text(errors="replace")
        except OSError:
            continue
        if f" {name} " in table:
            found.append(process)
    return found


def test_an_automount_is_neither_triggered_nor_shown(shared: Ground) -> None:
    """The settings of the kernel are the sandbox's own: what is mounted below the machine's, before or later, is not
    there, as the register of binfmt_misc is not, by which root starts programs."""
    _outside(shared, "mount", "-t", "tmpfs", "binfmt", "/proc/sys/fs/binfmt_misc")
    try:
        _outside(shared, "touch", "/proc/sys/fs/binfmt_misc/register")
        said = ran(shared.run("ls", "-A", "/proc/sys/fs/binfmt_misc", "/proc/sys/kernel/ostype"))
    finally:
        _outside(shared, "umount", "/proc/sys/fs/binfmt_misc")
    assert said.split() == ["/proc/sys/kernel/ostype", "/proc/sys/fs/binfmt_misc:"]
