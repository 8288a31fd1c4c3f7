"""What is refused before anything is mounted."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import pytest

from policyfs.daemon import interpreter, start
from policyfs.daemon.request import MountRequest, Ready
from policyfs.opening.load import PolicyOptions
from tests.mount.expecting import refused
from tests.mount.harness import PROGRAM, TIMEOUT, Person
from tests.mount.lifecycle.ground import DONE, MACHINE, PLACE, POLICY, USAGE, assert_refused, mounted


def test_a_source_that_is_missing(person: Person, source: Path, point: Path) -> None:
    """Named, with what to do."""
    assert_refused(person.policyfs("mount", source / "no", point, "-g", "/=ro"), PLACE, "SOURCE", "/no", "does not exist")
    assert person.mount_at(point) is None


def test_a_source_that_is_a_file(person: Person, source: Path, point: Path) -> None:
    """A view is of a directory."""
    (source / "f").touch()
    assert_refused(person.policyfs("mount", source / "f", point, "-g", "/=ro"), PLACE, "SOURCE", "/f is a file")
    assert person.mount_at(point) is None


def test_a_mountpoint_that_is_missing(person: Person, source: Path, point: Path) -> None:
    """It is not made for the person, who is told how."""
    assert_refused(person.policyfs("mount", source, point / "no", "-g", "/=ro"), PLACE, "MOUNTPOINT", "/no", "mkdir")
    assert not (point / "no").exists()


def test_a_mountpoint_that_is_a_file(person: Person, source: Path, point: Path) -> None:
    """A view is mounted on a directory."""
    (point / "f").touch()
    assert_refused(person.policyfs("mount", source, point / "f", "-g", "/=ro"), PLACE, "MOUNTPOINT", "/f is a file")


def test_a_mountpoint_that_is_not_empty(person: Person, source: Path, point: Path) -> None:
    """What would be covered is named."""
    (point / "precious").touch()
    assert_refused(person.policyfs("mount", source, point, "-g", "/=ro"), PLACE, "not empty", "precious")
    assert person.mount_at(point) is None


def test_a_mountpoint_that_is_the_source(person: Person, source: Path) -> None:
    """SOURCE cannot cover itself."""
    assert_refused(person.policyfs("mount", source, source, "-g", "/=ro"), PLACE, "MOUNTPOINT", "around SOURCE")
    assert person.mount_at(source) is None


def test_a_mountpoint_around_the_source(person: Person, point: Path) -> None:
    """A directory above SOURCE would cover it, by any spelling of its path."""
    (point / "tree").mkdir()
    (person.home / "link").symlink_to(point / "tree")
    for spelling in (point / "tree", person.home / "link", point / "tree/../tree/."):
        assert_refused(person.policyfs("mount", spelling, point, "-g", "/=ro"), PLACE, "MOUNTPOINT", "around SOURCE")
    assert person.mount_at(point) is None


@pytest.mark.parametrize("place", [".local/state", ".config", ".run"])
def test_a_mountpoint_around_what_is_policyfss_own(person: Person, source: Path, place: str) -> None:
    """The daemon would look for its log, its socket or its configuration in the view, and wait for itself."""
    point = person.home / place
    point.mkdir(parents=True)
    assert_refused(person.policyfs("mount", source, point, "-g", "/=ro"), PLACE, "MOUNTPOINT", f"around {point}/policyfs")
    assert person.mount_at(point) is None
    assert os.listdir(point) == []


def test_a_mountpoint_that_is_a_mount_already(source: Path) -> None:
    """The first view stays and goes on."""
    (source / "f").write_text("content")
    with mounted(source, "/=ro") as view:
        again = view.person.policyfs("mount", source, view.point, "-g", "/=stage")
        assert_refused(again, PLACE, "a mount already", f"end it with `policyfs umount {view.point}`")
        assert (view.point / "f").read_text() == "content"
        with refused("EROFS"):
            (view.point / "f").write_text("x")


def test_no_grant_at_all(person: Person, source: Path, point: Path) -> None:
    """Nothing would be open: an error that shows an example."""
    assert_refused(person.policyfs("mount", source, point), POLICY, "no grant", "-g /=ro")
    empty = person.home / "empty.toml"
    empty.write_text("# nothing\n")
    assert_refused(person.policyfs("mount", source, point, "-s", empty), POLICY, "no grant")
    assert person.mount_at(point) is None


def test_a_policy_that_opens_nothing(person: Person, source: Path, point: Path) -> None:
    """Grants that floors, levels or the boundary take back altogether."""
    for words, why in (
        (("-g", "/=none"), "no grant is above none; add one with -g"),
        (("-g", "/=ro", "--floor", "/=none"), "/ is closed by `floor / = none (session)`"),
        (("-g", "/=ro", "--deny", "/"), "/ is closed by `denylist / (session)`; take that rule away"),
        (("-g", "/a=ro", "-g", "/b/c=ro", "--deny", "c", "--deny", "/a"), "/a is closed by `denylist /a (session)`, /b/c"),
    ):
        assert_refused(person.policyfs("mount", source, point, *words), POLICY, f"opens nothing of {source}: {why}")
    assert person.mount_at(point) is None


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("-g", "/a=write"), "write"),
        (("-g", "a=ro"), "a"),
        (("-g", "/a"), "/a"),
        (("-g", "/a=ro", "-g", "/a=stage"), "/a"),
        (("-g", "/=ro", "--floor", "/x=most"), "most"),
        (("-g", "/=ro", "--deny", ""), "--deny"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else value,
)
def test_a_bad_rule_on_the_command_line(
    person: Person, source: Path, point: Path, words: tuple[str, ...], said: str
) -> None:
    """A level, path or rule that is none is named, and nothing is mounted."""
    assert_refused(person.policyfs("mount", source, point, *words), POLICY, said)
    assert person.mount_at(point) is None


def test_a_session_file_with_several_faults(person: Person, source: Path, point: Path) -> None:
    """Every fault is reported at once, each with its key."""
    file = person.home / "session.toml"
    file.write_text('stray = 1\n[grants]\n"/a" = "write"\n"b" = "ro"\n[floors]\n"/c" = 3\n')
    done = person.policyfs("mount", source, point, "-s", file)
    assert_refused(done, POLICY, "stray", "/a", "write", "b", "floors", "/c", lines=4)
    assert done.stderr.count("session.toml") == 4
    assert person.mount_at(point) is None


@pytest.mark.parametrize(
    "content",
    [b"[grants\n", b'"/a" = \n', b"\xff\xfe", b'[grants]\n"/a\\u0000b" = "ro"\n', b'[grants]\n"/" = "ro"\n"/" = "ro"\n'],
    ids=["unclosed", "no value", "not UTF-8", "a NUL in a path", "a key twice"],
)
def test_a_session_file_that_is_none(person: Person, source: Path, point: Path, content: bytes) -> None:
    """Not TOML, not UTF-8, a NUL: one line that names the file."""
    file = person.home / "session.toml"
    file.write_bytes(content)
    assert_refused(person.policyfs("mount", source, point, "-s", file), POLICY, "session.toml")
    assert person.mount_at(point) is None


def test_a_session_file_that_cannot_be_read(person: Person, source: Path, point: Path) -> None:
    """Missing, or a directory."""
    assert_refused(person.policyfs("mount", source, point, "-s", person.home / "no.toml"), POLICY, "no.toml", "No such file")
    assert_refused(person.policyfs("mount", source, point, "-s", person.home), POLICY, "cannot be read")
    assert person.mount_at(point) is None


@pytest.mark.parametrize("option", ["-s", "--floors"])
@pytest.mark.parametrize("way", ["mount", "mount -f", "run", "explain", "view", "instructions", "doctor", "check"])
def test_rules_that_only_one_process_can_read(person: Person, source: Path, point: Path, way: str, option: str) -> None:
    """Standard input is another file in the daemon, where its rules would be none: no command takes it, or a FIFO."""
    deny = '[grants]\n"/a" = "none"\n' if option == "-s" else f'[floors]\n"{source}/a" = "none"\n'
    (person.home / "rules.toml").write_text(deny)
    os.mkfifo(person.home / "fifo")
    words, places, after = way.split(), [source], []
    if words[0] == "mount":
        places.append(point)
    elif words[0] == "explain":
        after = ["/a"]
    elif words[0] == "run":
        after = ["--", "ls", "a"]
    for file in ("/dev/stdin", "/dev/fd/0", person.home / "fifo"):
        rules = [file] if way == "check" else [*places, "-g", "/=ro", option, file, *after]
        with open(person.home / "rules.toml") as given:
            done = subprocess.run(
                person.command(*PROGRAM, *words, *rules),
                env=person.environment, stdin=given, capture_output=True, text=True, timeout=TIMEOUT, check=False,
            )  # fmt: skip
        assert_refused(done, POLICY, str(file), "write the rules to a file")
    assert person.mount_at(point) is None


@pytest.mark.parametrize("daemon", ["signal.pause()", "signal.signal(signal.SIGTERM, signal.SIG_IGN); signal.pause()"])
def test_an_interrupted_command_ends_its_daemon(point: Path, monkeypatch: pytest.MonkeyPatch, daemon: str) -> None:
    """Whatever the daemon is at, it does not live on to mount a view that nobody waits for."""
    started = []

    def interrupted(self: start.Daemon) -> Ready:
        started.append(self._process)
        raise KeyboardInterrupt

    monkeypatch.setattr(interpreter, "DAEMON", (sys.executable, "-I", "-c", f"import signal; {daemon}"))
    monkeypatch.setattr(start, "_END_TIMEOUT", 0.5)
    monkeypatch.setattr(start.Daemon, "ready", interrupted)
    with pytest.raises(KeyboardInterrupt):
        start.start_daemon(MountRequest("/", str(point), PolicyOptions()))
    assert not os.path.exists(f"/proc/{started[0].pid}")


def test_a_session_file_without_permission(ordinary_user: Person) -> None:
    """An ordinary user who may not read it is told so."""
    for name in ("permission-source", "permission-point"):
        ordinary_user.run("mkdir", name)
    ordinary_user.run("sh", "-c", "echo > secret.toml && chmod 000 secret.toml")
    done = ordinary_user.policyfs("mount", "permission-source", "permission-point", "-s", "secret.toml")
    assert_refused(done, POLICY, "secret.toml", "Permission denied")


def test_a_source_without_permission(ordinary_user: Person) -> None:
    """An ordinary user who may not read SOURCE is told so."""
    ordinary_user.run("mkdir", "-m", "000", "closed")
    ordinary_user.run("mkdir", "closed-point")
    done = ordinary_user.policyfs("mount", "closed", "closed-point", "-g", "/=ro")
    # Whoever is not root could not take the directory away.
    ordinary_user.run("chmod", "700", "closed")
    assert_refused(done, PLACE, "SOURCE", "cannot be read")


def test_a_command_line_that_is_wrong(person: Person, source: Path, point: Path) -> None:
    """Usage, exit code 2."""
    for words in (("mount",), ("mount", str(source)), ("mount", str(source), str(point), "--no-such"), ("no-such",)):
        done = person.policyfs(*words)
        assert done.returncode == USAGE
        assert done.stderr.startswith("policyfs: ")
        assert "--help" in done.stderr
        assert "Traceback" not in done.stderr


def test_a_log_that_cannot_be_written(person: Person, source: Path, point: Path) -> None:
    """It is named, and nothing is mounted."""
    done = person.policyfs("mount", source, point, "-g", "/=ro", "--log", person.home / "no/log")
    assert_refused(done, PLACE, "--log", "no/log")
    assert person.mount_at(point) is None


@pytest.mark.parametrize("more", [(), ("-f",)], ids=["", "-f"])
def test_a_log_that_is_no_file(person: Person, source: Path, point: Path, more: tuple[str, ...]) -> None:
    """A FIFO is not waited for, a link not followed, a device not taken; and what the view would cover is not a path."""
    os.mkfifo(person.home / "fifo")
    (person.home / "free").touch()
    (person.home / "link").symlink_to(person.home / "free")
    (person.home / "covered").symlink_to(point)
    for log, said in (
        (person.home / "fifo", "is not a regular file"),
        ("/dev/null", "is not a regular file"),
        (person.home, "Is a directory"),
        (person.home / "link", "is a link; name the file itself"),
        ("/dev/stdout", "is a link; name the file itself"),
        (point / "log", "lies in MOUNTPOINT"),
        (person.home / "covered/log", "lies in MOUNTPOINT"),
    ):
        assert_refused(
            person.policyfs("mount", source, point, "-g", "/=ro", "--log", log, *more), PLACE, f"--log {log}", said
        )
    assert person.mount_at(point) is None
    assert os.listdir(point) == []


def test_a_log_in_the_source_is_hidden(person: Person, source: Path, point: Path) -> None:
    """No session reads what the daemon tells, or writes it, under the name of a link neither; nor after a reload."""
    (source / "logs").mkdir()
    (source / "link").symlink_to("logs")
    done = person.policyfs("mount", source, point, "-g", "/=stage", "--log", source / "link/daemon.log")
    assert done.returncode == DONE, done.stderr
    try:
        for _ in range(2):
            assert (os.listdir(point), os.listdir(point / "logs")) == (["logs"], [])
            with refused("ENOENT"):
                os.stat(point / "logs/daemon.log")
            with refused("EACCES"):
                (point / "logs/daemon.log").write_text("forged")
            assert person.policyfs("reload", point).returncode == DONE
    finally:
        assert person.policyfs("umount", point).returncode == DONE
    assert "serving" in (source / "logs/daemon.log").read_text()


def in_namespace(person: Person, prepare: str, *words: str | os.PathLike[str]) -> subprocess.CompletedProcess[str]:
    """Run the policyfs command in a mount namespace of its own that `prepare` has changed."""
    script = f'set -e; {prepare}\nexec "$@"'
    return person.run("unshare", "-m", "--propagation", "private", "bash", "-c", script, "bash", *PROGRAM, *words)


def test_a_machine_without_fuse(person: Person, source: Path, point: Path, as_root: None) -> None:
    """/dev has everything but fuse: said, with how to have it, by each way to mount."""
    without = "mount -t tmpfs tmpfs /dev && mknod -m 666 /dev/null c 1 3 && mknod -m 666 /dev/urandom c 1 9"
    for words in ((), ("-f",)):
        done = in_namespace(person, without, "mount", source, point, "-g", "/=ro", *words)
        assert_refused(done, MACHINE, "/dev/fuse", "modprobe fuse")
    assert person.mount_at(point) is None


WITHOUT_OPENAT2 = """
import ctypes, struct
# A filter of seccomp(2): load the number of the call; for openat2 the errno ENOSYS, for all others leave.
program = b"".join(
    struct.pack("=HBBI", *instruction)
    for instruction in ((0x20, 0, 0, 0), (0x15, 0, 1, 437), (0x06, 0, 0, 0x50000 | {errno}), (0x06, 0, 0, 0x7FFF0000))
)
class Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))
libc = ctypes.CDLL(None)
assert libc.prctl(38, 1, 0, 0, 0) == 0
assert libc.prctl(22, 2, ctypes.byref(Filter(4, program))) == 0
from policyfs.cli import main; main()
"""


@pytest.mark.parametrize("code", [errno.ENOSYS, errno.EPERM], ids=lambda code: errno.errorcode[code])
def test_a_machine_without_openat2(person: Person, source: Path, point: Path, code: int) -> None:
    """A kernel that lacks openat2, or a container that forbids it: said, and nothing is mounted without confinement."""
    done = person.python(WITHOUT_OPENAT2.format(errno=code), "mount", str(source), str(point), "-g", "/=ro")
    assert_refused(done, MACHINE, "openat2", "5.6")
    assert person.mount_at(point) is None


def test_a_fuse_device_that_is_closed(ordinary_user: Person, as_root: None) -> None:
    """An ordinary user who may not open /dev/fuse is told how that is put right."""
    for name in ("device-source", "device-point"):
        ordinary_user.run("mkdir", name)
    device = f"/proc/{ordinary_user.namespace}/root/dev/fuse"
    os.chmod(device, 0o600)
    try:
        done = ordinary_user.policyfs("mount", "device-source", "device-point", "-g", "/=ro")
    finally:
        os.chmod(device, 0o666)
    assert_refused(done, MACHINE, "/dev/fuse", "chmod 666")


def test_a_log_that_cannot_be_written_in_the_foreground(person: Person, source: Path, point: Path) -> None:
    """The same with -f."""
    done = person.policyfs("mount", source, point, "-f", "-g", "/=ro", "--log", person.home / "no/log")
    assert_refused(done, PLACE, "--log", "no/log")
