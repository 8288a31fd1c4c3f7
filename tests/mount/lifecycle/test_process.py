"""The process of the daemon: what nobody sees of it, its descriptors, and an ordinary user's whole day."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
from pathlib import Path

from tests.mount.expecting import errno_of, until
from tests.mount.harness import PROGRAM, Person
from tests.mount.lifecycle.ground import DONE, mounted


def test_rules_are_not_on_the_daemons_command_line(source: Path) -> None:
    """Everybody may read /proc/PID/cmdline and environ; the rules tell what is hidden."""
    with mounted(source, "/=ro", "/covert-place=none", options=["--deny", "covert-name"]) as view:
        command_line = Path(f"/proc/{view.process}/cmdline").read_bytes()
        assert b"policyfs" in command_line
        for word in (b"covert", b"/=ro", os.fsencode(source)):
            assert word not in command_line
        assert "covert" not in view.log_text


def test_the_mount_table_does_not_name_the_source(source: Path) -> None:
    """Type fuse.policyfs, source policyfs, nosuid and nodev."""
    with mounted(source, "/=ro") as view:
        lines = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if f" {view.point} " in line]
        assert len(lines) == 1
        assert str(source) not in lines[0]
        options = lines[0].split()[5].split(",")
        assert {"nosuid", "nodev"} <= set(options)
        assert " - fuse.policyfs policyfs " in lines[0]
        assert "allow_other" not in lines[0]


def test_another_process_of_the_same_user_cannot_look_into_the_daemon(ordinary_user: Person) -> None:
    """Its descriptors, memory, environment, root and working directory are closed to whoever runs it, and so is ptrace."""
    source = ordinary_user.home / "guarded"
    ordinary_user.run("mkdir", source)
    script = """
import ctypes, errno, os, sys
pid = int(sys.argv[1])
libc = ctypes.CDLL(None, use_errno=True)
def attempt(act, *arguments):
    try:
        return act(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
def call(function, *arguments):
    return errno.errorcode[ctypes.get_errno()] if function(*arguments) < 0 else None
print(attempt(os.listdir, f"/proc/{pid}/fd"), attempt(os.listdir, f"/proc/{pid}/root/"))
print(attempt(os.readlink, f"/proc/{pid}/cwd"))
print(attempt(os.open, f"/proc/{pid}/mem", os.O_RDONLY), attempt(os.open, f"/proc/{pid}/environ", os.O_RDONLY))
print(attempt(os.readlink, f"/proc/{pid}/exe"))
print(call(libc.ptrace, 0x4206, pid, 0, 0), call(libc.syscall, 438, os.pidfd_open(pid), 0, 0))
"""
    with mounted(source, "/=stage", person=ordinary_user) as view:
        assert f"Uid:\t{ordinary_user.uid}\t{ordinary_user.uid}" in Path(f"/proc/{view.process}/status").read_text()
        said = ordinary_user.python(script, str(view.process))
        assert said.stderr == ""
        assert said.stdout.split() == ["EACCES"] * 6 + ["EPERM"] * 2
    with ordinary_user.popen("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        # The same of a process that has not closed itself: so it is the daemon's doing, and this test can fail.
        other.stdin.write(b"started\n")
        other.stdin.flush()
        assert other.stdout.readline() == b"started\n"
        assert "EACCES" not in ordinary_user.python(script, str(other.pid)).stdout
        other.communicate(b"")


def test_the_daemon_leaves_no_core(source: Path) -> None:
    """A daemon that dies of a fault writes no memory out: RLIMIT_CORE is 0 and stays so."""
    with mounted(source, "/=ro") as view:
        limits = Path(f"/proc/{view.process}/limits").read_text()
        line = next(line for line in limits.splitlines() if line.startswith("Max core file size"))
        assert line.split()[4:6] == ["0", "0"]
        view.killed = True
        view.signal(signal.SIGABRT)
        view.ended()
        assert [name for name in os.listdir(view.person.home) if name.startswith("core")] == []


def test_what_lies_in_the_working_directory_is_never_imported(person: Person, source: Path, point: Path) -> None:
    """A trio.py, a policyfs package or a sitecustomize.py where the person stands, or on PYTHONPATH, does not run."""
    trap = person.home / "trap"
    trap.mkdir()
    for name in ("trio", "pyfuse3", "policyfs", "click", "sitecustomize", "os", "logging"):
        (trap / f"{name}.py").write_text(f"open({str(trap / 'sprung')!r}, 'w')\nraise SystemExit('sprung')\n")
    done = person.run("env", f"PYTHONPATH={trap}", *PROGRAM, "mount", source, point, "-g", "/=ro", cwd=trap)
    assert done.returncode == DONE, done.stderr
    try:
        assert not (trap / "sprung").exists()
    finally:
        assert person.unmount(point).returncode == 0


def test_the_daemon_inherits_no_descriptor(person: Person, source: Path, point: Path, as_root: None) -> None:
    """A file that the caller left open, inheritable, is not open in the daemon, in the background and with -f."""
    secret = person.home / "secret"
    secret.write_text("secret")
    script = f'exec 7<{secret} 8>{person.home}/other; exec "$@"'
    log = person.home / "log"
    done = person.run("bash", "-c", script, "bash", *PROGRAM, "mount", source, point, "-g", "/=ro", "--log", log)
    assert done.returncode == DONE, done.stderr
    process = int(log.read_text().split("serving, process ")[1].split()[0])
    try:
        links = [os.readlink(f"/proc/{process}/fd/{name}") for name in os.listdir(f"/proc/{process}/fd")]
        assert {link for link in links if not os.path.isdir(link)} & {str(secret), f"{person.home}/other"} == set()
        assert os.readlink(f"/proc/{process}/cwd") == "/"
    finally:
        assert person.unmount(point).returncode == 0


def test_the_log_is_its_owners_alone(person: Person, source: Path, point: Path) -> None:
    """The default log lies in the state directory, closed to others, and no view shows it."""
    done = person.policyfs("mount", person.home.parent, point, "-g", "/=ro")
    point_in_source = person.mount_at(point)
    try:
        assert done.returncode == DONE, done.stderr
        assert point_in_source is not None
        state = person.home / ".local/state/policyfs"
        (log,) = state.glob("*.log")
        assert (state.stat().st_mode & 0o777, log.stat().st_mode & 0o077) == (0o700, 0)
        assert errno_of(os.lstat, point / person.home.name / ".local/state/policyfs") == "ENOENT"
    finally:
        assert person.unmount(point).returncode == 0


def test_a_low_descriptor_limit_is_told_and_kept(person: Person, source: Path, point: Path) -> None:
    """With few descriptors to be had, a note says how many files can be open; beyond that opening is ENFILE, and the
    mount goes on as soon as one is closed."""
    for number in range(40):
        (source / str(number)).write_text(str(number))
    limited = ["prlimit", "--nofile=128:128"]
    done = person.run(*limited, *PROGRAM, "mount", source, point, "-g", "/=ro")
    assert done.returncode == DONE, done.stderr
    opened: list[int] = []
    try:
        assert "only 128 descriptors are allowed here, so 23 files can be open at once" in done.stderr
        answer = None
        while answer is None and len(opened) < 40:
            answer = errno_of(lambda: opened.append(os.open(point / str(len(opened)), os.O_RDONLY)))
        assert (answer, len(opened)) == ("ENFILE", 23)
        assert os.pread(opened[22], 10, 0) == b"22"
        assert (point / "39").stat().st_size == 2
        assert len(os.listdir(point)) == 40
        os.close(opened.pop())
        until(lambda: errno_of(lambda: (point / "39").read_text()) is None, "room for one file")
        while opened:
            os.close(opened.pop())
        answer = None
        while answer is None and len(opened) < 40:
            answer = errno_of(lambda: opened.append(os.open(point, os.O_RDONLY | os.O_DIRECTORY)))
        assert (answer, len(opened)) == ("ENFILE", 23)
        assert (point / "1").read_text() == "1"
    finally:
        for descriptor in opened:
            os.close(descriptor)
        assert person.unmount(point).returncode == 0


def test_the_descriptor_limit_is_raised_to_what_the_machine_gives(person: Person, source: Path, point: Path) -> None:
    """A soft limit of 100 does not bind the daemon where the hard limit is higher, and nothing is noted."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    log = person.home / "log"
    limited = ["prlimit", f"--nofile=100:{hard}"]
    done = person.run(*limited, *PROGRAM, "mount", source, point, "-g", "/=ro", "--log", log)
    assert (done.returncode, done.stderr) == (DONE, "")
    try:
        process = log.read_text().split("serving, process ")[1].split()[0]
        limits = Path(f"/proc/{process}/limits").read_text()
        line = next(line for line in limits.splitlines() if line.startswith("Max open files"))
        assert int(line.split()[3]) == min(hard, 1 << 20)
    finally:
        assert person.unmount(point).returncode == 0


def test_an_ordinary_user_works_in_a_view(ordinary_user: Person) -> None:
    """Mount, look, be refused, write, and unmount, as uid 1000 with fusermount3: every answer is the same as root's."""
    source = ordinary_user.home / "day"
    made = ordinary_user.run(
        "sh",
        "-c",
        f"mkdir -p {source}/notes/private {source}/work && echo n > {source}/notes/n && echo s > {source}/notes/private/s",
    )
    assert made.returncode == 0, made.stderr
    with mounted(source, "/=ro", "/work=stage", "/notes/private=none", person=ordinary_user) as view:
        assert view.run("ls", "-R").stdout == ".:\nnotes\nwork\n\n./notes:\nn\n\n./work:\n"
        assert view.run("cat", "notes/n").stdout == "n\n"
        assert "No such file" in view.run("cat", "notes/private/s").stderr
        assert "Read-only file system" in view.run("sh", "-c", "echo x > notes/n").stderr
        assert "Read-only file system" in view.run("mkdir", "notes/private").stderr
        assert (
            view.run(
                "sh", "-c", "umask 022; echo w > work/w && mkdir work/d && mv work/w work/d/ && ln work/d/w work/h"
            ).returncode
            == 0
        )
        assert view.run("stat", "-c", "%u %a %h", "work/h").stdout == "1000 644 2\n"
        assert (source / "work/d/w").read_text() == "w\n"
        assert (source / "work/d/w").stat().st_uid == ordinary_user.uid
        assert "Operation not permitted" in view.run("chown", "0", "work/h").stderr
        assert view.run("git", "init", "-q", "work/repo").returncode == 0
        assert view.run("git", "-C", "work/repo", "status", "--porcelain").stdout == ""
        assert view.person.policyfs("umount", view.point).returncode == DONE
        view.ended()
        assert not view.is_mounted


def test_another_user_does_not_get_into_a_view(source: Path, ordinary_user: Person, as_root: None) -> None:
    """There is no allow_other: whoever did not mount it gets EACCES for everything in it."""
    (source / "f").write_text("content")
    source.chmod(0o755)
    with mounted(source, "/=ro") as view:
        done = subprocess.run(
            ["setpriv", "--reuid=1000", "--regid=1000", "--clear-groups", "cat", view.point / "f"],
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 1
        assert "Permission denied" in done.stderr
