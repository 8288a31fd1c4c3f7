"""The life of a mount: what keeps it from beginning, what ends it, what is left, and what nobody sees of its daemon."""

from __future__ import annotations

import errno
import functools
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from policyfs.daemon import interpreter, start
from policyfs.daemon.request import MountRequest, Ready
from policyfs.opening.load import PolicyOptions
from tests.mount import harness
from tests.mount.harness import PATIENCE, PROGRAM, Person, errno_of, refused, until, watchdog

mounted = functools.partial(harness.mounted, fresh=True)
"""The command and the daemon as a person starts them."""

DONE, FAILED, USAGE, POLICY, PLACE, MACHINE = range(6)
"""The exit codes that `policyfs --help` documents, by number: scripts compare numbers."""


@pytest.fixture
def person() -> Iterator[Person]:
    """Whoever runs the tests, with a home of their own."""
    harness.require_fuse()
    with harness.myself() as person:
        yield person


@pytest.fixture
def point(person: Person) -> Path:
    """An empty directory to mount at."""
    directory = person.home / "view"
    directory.mkdir()
    return directory


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *words: str, lines: int = 1) -> None:
    """The command ended with this code, one line on standard error for each fault, and no traceback."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    said = done.stderr.splitlines()
    assert len(said) == lines, done.stderr
    assert all(line.startswith("policyfs: ") for line in said), done.stderr
    for word in words:
        assert word in done.stderr


# -- what is refused before anything is mounted --------------------------------------------------------------------------


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
                env=person.environment, stdin=given, capture_output=True, text=True, timeout=PATIENCE, check=False,
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


# -- inside SOURCE -------------------------------------------------------------------------------------------------------


def test_a_mountpoint_inside_the_source_never_enters_itself(source: Path) -> None:
    """A walk of the view ends, finds everything else, and neither lists nor finds the mount point by its name. A link that
    leads there is shown, as every link is at its own level (rule link-3), and leads to nothing."""
    point = source / "inside/view"
    point.mkdir(parents=True)
    (source / "inside/f").write_text("content")
    (source / "link").symlink_to("inside/view")
    (source / "around").symlink_to("inside/../inside/view/inside/f")
    with mounted(source, "/=stage", point=point, deadline=20) as view:
        found = view.run("find", ".", "-printf", "%P\n", timeout=15).stdout.split()
        assert sorted(found) == ["around", "inside", "inside/f", "link"]
        assert (point / "inside/f").read_text() == "content"
        for name in ("inside/view", "inside/view/inside/f"):
            assert errno_of(os.lstat, point / name) == "ENOENT", name
        for name in ("link", "around"):
            for act in (os.stat, os.listdir):
                assert errno_of(act, point / name) == "ENOENT", (name, act)
        assert errno_of(os.mkdir, point / "inside/view") == "EACCES"
        assert errno_of(os.rmdir, point / "inside/view") == "ENOENT"
        assert view.run("du", "-s", ".", timeout=15).returncode == 0


def test_the_view_of_a_whole_file_system_holds_itself(tmp_path: Path, as_root: None) -> None:
    """SOURCE is /: the mount below it is not entered, nor any other mount."""
    with mounted(Path("/"), f"{tmp_path}=stage", deadline=20) as view:
        (tmp_path / "f").write_text("content")
        assert (view.point / str(tmp_path)[1:] / "f").read_text() == "content"
        with refused("EACCES"):
            os.listdir(view.point)
        assert errno_of(os.lstat, view.point / "proc/self") == "EACCES"


def test_other_mounts_in_the_source_are_hidden_and_told(source: Path, as_root: None) -> None:
    """A file system mounted inside SOURCE is not entered, before or after the view is mounted, and a note names it."""
    for name in ("before", "after"):
        (source / name).mkdir()
        (source / name / "beneath").touch()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", source / "before"], check=True)
    try:
        (source / "before/inner").touch()
        with mounted(source, "/=stage") as view:
            assert f"{source}/before is another mount (tmpfs)" in view.notes
            assert os.listdir(view.point) == ["after"]
            assert os.listdir(view.point / "after") == ["beneath"]
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", source / "after"], check=True)
            try:
                (source / "after/inner").touch()
                until(lambda: os.listdir(view.point) == [], "the mount made meanwhile to be hidden", 4)
                for name in ("before", "before/inner", "after/inner"):
                    assert errno_of(os.lstat, view.point / name) in ("ENOENT", "ESTALE"), name
                assert errno_of(os.mkdir, view.point / "before") == "EACCES"
            finally:
                subprocess.run(["umount", source / "after"], check=True)
    finally:
        subprocess.run(["umount", source / "before"], check=True)


def test_where_another_mount_stood_its_directory_is_found_again(source: Path, as_root: None) -> None:
    """An unmounting raises no event: the name that was missing is asked for again within a second."""
    (source / "d").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", source / "d"], check=True)
    try:
        with mounted(source, "/=stage") as view:
            assert errno_of(os.lstat, view.point / "d") == "ENOENT"
            subprocess.run(["umount", source / "d"], check=True)
            until(lambda: errno_of(os.lstat, view.point / "d") is None, "the directory to be found", 4)
    finally:
        subprocess.run(["umount", source / "d"], stderr=subprocess.DEVNULL, check=False)


# -- the end -------------------------------------------------------------------------------------------------------------


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


# -- in the foreground ---------------------------------------------------------------------------------------------------


@contextmanager
def foreground(person: Person, source: Path, point: Path, *words: str) -> Iterator[subprocess.Popen[str]]:
    """`policyfs mount -f`, mounted and told so. Nothing of it is left in the end."""
    daemon = person.popen(
        *PROGRAM, "mount", source, point, "-f", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert daemon.stdout is not None
    try:
        assert "is mounted" in daemon.stdout.readline(), daemon.communicate(timeout=PATIENCE)
        with watchdog(point, person, daemon.pid):
            yield daemon
    finally:
        if daemon.poll() is None:
            daemon.kill()
        daemon.communicate(timeout=PATIENCE)
        if person.mount_at(point) is not None:
            person.unmount(point, lazily=True)
            pytest.fail("the mount was left behind")


def test_it_stays_in_the_foreground_until_ctrl_c(person: Person, source: Path, point: Path) -> None:
    """The very process that was started serves, logs to standard error, and ends with 0 on SIGINT, unmounted."""
    with foreground(person, source, point, "-g", "/=stage") as daemon:
        (point / "f").write_text("x")
        assert daemon.poll() is None
        daemon.send_signal(signal.SIGINT)
        _, said = daemon.communicate(timeout=PATIENCE)
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
        daemon.communicate(timeout=PATIENCE)
        assert daemon.returncode == DONE


def test_a_fault_in_the_foreground_is_one_line_too(person: Person, source: Path, point: Path) -> None:
    """What the daemon finds wrong is said once, with the same exit code as in the background."""
    for words in (("-g", "/=none"), ("-g", "/=ro", "--floors", str(person.home / "no.toml"))):
        background = person.policyfs("mount", source, point, *words)
        daemon = person.popen(
            *PROGRAM, "mount", source, point, "-f", *words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        told, said = daemon.communicate(timeout=PATIENCE)
        assert (daemon.returncode, told, said) == (POLICY, "", background.stderr)


# -- what nobody sees of the daemon --------------------------------------------------------------------------------------


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


# -- descriptors ---------------------------------------------------------------------------------------------------------


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


# -- an ordinary user's whole day ----------------------------------------------------------------------------------------


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
