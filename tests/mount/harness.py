"""Real mounts for tests: started by the real command, watched, and looked over when they end.

    with mounted(source, "/=ro", "/work=stage") as view:
        (view.point / "work/a").write_text("x")

What holds for every mount made here:

- `policyfs mount` itself starts it, with a home of its own, and its return is the readiness: nothing sleeps. The command
  and the daemon are forked from a process that has imported them, unless a test asks for fresh interpreters.
- A watchdog, a process of its own (a thread would wait for the interpreter's lock beside a test that hangs in a page
  fault), ends a mount that outlives its deadline or the test run: it aborts the FUSE connection, detaches the mount and
  kills the daemon by its own pidfd.
- At the end the mount must still answer, the daemon hold no more descriptors than at the start, the mount go away
  without being busy, the daemon end, and its log hold no warning, error or traceback.

`ordinary_user()` gives somebody who is not root, with a mount namespace of their own, for the same and for commands.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from policyfs.host import mounts
from policyfs.host.mounts import Mount
from policyfs.policy.paths import HostPath
from tests.mount.expecting import absent, require_fuse
from tests.mount.forked import DEADLINE, TIMEOUT, forked
from tests.mount.watchdog import abort_connection

PROGRAM = (sys.executable, "-I", "-c", "from policyfs.cli import main; main()")
"""The `policyfs` command of the interpreter that runs the tests."""

MODULE_DEADLINE = 300.0
"""The same for one that all tests of a module share, which take up to a minute on a machine that has nothing else to do."""

LEAK_TIMEOUT = 5.0
"""Seconds until a descriptor that the daemon holds more than at the start is a leak: it keeps what was removed until the
kernel forgets it."""

_WATCHDOG = Path(__file__).with_name("watchdog.py")
_COMPLAINT = re.compile(r" (WARNING|ERROR|CRITICAL) |^Traceback|^Exception|Warning:")
_LED_TO = re.compile(r"a link leads from .* to (.*): the rule holds there too$", re.MULTILINE)
_SERVING = re.compile(r"serving, process (\d+)$", re.MULTILINE)


# -- who acts ------------------------------------------------------------------------------------------------------------

PEOPLE = ["root", "user"] if os.geteuid() == 0 else ["user"]
"""Whoever runs the tests, and an ordinary user; for root these are two."""


def _mount_of(line: bytes) -> Mount:
    """A line of mountinfo (proc(5)). A reading of our own, so that a fault in the product's does not hide itself."""
    before, _, after = line.partition(b" - ")
    _, _, device, _, point, *_ = before.split(b" ")
    unescaped = re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), point)
    return Mount(HostPath(unescaped), after.split(b" ")[0].decode(), device.decode())


@dataclass
class Person:
    """Somebody who runs commands: whoever runs the tests, or an ordinary user in a mount namespace of their own.
    `home` and all below it is theirs; it goes away with them."""

    home: Path
    namespace: int | None = None
    """The process that holds the mount namespace; None for the tests' own."""
    uid: int = field(default_factory=os.geteuid)
    program: tuple[str, ...] | None = None
    """The words that run another installation of policyfs, with an interpreter of its own."""

    @property
    def environment(self) -> dict[str, str]:
        """The tests' environment with this home; `python3` is the interpreter that runs the tests."""
        return {
            **{key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "GIT_"))},
            "HOME": str(self.home),
            "PATH": f"{os.path.dirname(sys.executable)}:{os.environ['PATH']}",
            "XDG_CACHE_HOME": str(self.home / ".cache"),
            "XDG_CONFIG_HOME": str(self.home / ".config"),
            "XDG_RUNTIME_DIR": str(self.home / ".run"),
            "XDG_STATE_HOME": str(self.home / ".local/state"),
            "GIT_CONFIG_GLOBAL": os.devnull,
        }

    @property
    def namespaces(self) -> dict[str, int]:
        """The processes whose namespaces this person is in, by their names in /proc/PID/ns."""
        return {} if self.namespace is None else {"mnt": self.namespace}

    def command(self, *argv: str | os.PathLike[str], cwd: str | os.PathLike[str] | None = None) -> list[str]:
        """The argument vector that does this as this person, in `cwd`, their home unless said otherwise."""
        words = ["env", "-C", os.fspath(cwd or self.home), *(os.fspath(word) for word in argv)]
        if self.namespace is None:
            return words
        enter = ["nsenter", "-t", str(self.namespace), "-m", "--"]
        return [*enter, "setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups", *words]

    def take(self, directory: Path) -> None:
        """Make a directory and all in it this person's own."""
        for above, directories, files in os.walk(directory):
            for name in (".", *directories, *files):
                os.chown(os.path.join(above, name), self.uid, self.uid, follow_symlinks=False)

    def popen(
        self, *argv: str | os.PathLike[str], cwd: str | os.PathLike[str] | None = None, **options: Any
    ) -> subprocess.Popen[Any]:
        """Start a command as this person."""
        return subprocess.Popen(self.command(*argv, cwd=cwd), env=self.environment, **options)

    def run(
        self,
        *argv: str | os.PathLike[str],
        cwd: str | os.PathLike[str] | None = None,
        input: str | None = None,
        timeout: float = DEADLINE,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command as this person and give what it said and its exit code, whatever that is."""
        return subprocess.run(
            self.command(*argv, cwd=cwd),
            env=self.environment,
            input=input,
            stdin=subprocess.DEVNULL if input is None else None,
            capture_output=True,
            text=True,
            errors="surrogateescape",
            timeout=timeout,
            check=False,
        )

    def python(
        self, script: str, *arguments: str | os.PathLike[str], cwd: str | os.PathLike[str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a Python script, given as text, as this person."""
        return self.run(sys.executable, "-I", "-c", script, *arguments, cwd=cwd)

    def policyfs(
        self,
        *arguments: str | os.PathLike[str],
        cwd: str | os.PathLike[str] | None = None,
        input: str | None = None,
        timeout: float = DEADLINE,
        name: str = "",
    ) -> subprocess.CompletedProcess[str]:
        """Run the `policyfs` command as this person, without a fresh interpreter; `run(*PROGRAM, ...)` has one."""
        if self.program is not None:
            return self.run(*self.program, *arguments, cwd=cwd, input=input, timeout=timeout)
        return forked(
            [os.fspath(word) for word in arguments],
            environment=self.environment,
            directory=os.fspath(cwd or self.home),
            namespaces=self.namespaces,
            uid=self.uid,
            name=name,
            input=input,
            timeout=timeout,
        )

    def mount_table(self) -> list[Mount]:
        """The mounts that this person sees."""
        with open(f"/proc/{self.namespace or 'self'}/mountinfo", "rb") as table:
            return [_mount_of(line) for line in table]

    def mount_at(self, point: Path) -> Mount | None:
        """The uppermost mount at this place, as this person sees it."""
        return next((mount for mount in reversed(self.mount_table()) if mount.point == os.fsencode(point)), None)

    def unmount(self, point: Path, *, lazily: bool = False) -> subprocess.CompletedProcess[str]:
        """umount, or fusermount3 -u for somebody who is not root."""
        if self.uid == 0:
            return self.run("umount", *(["-l"] if lazily else []), point, cwd="/")
        return self.run("fusermount3", "-u", *(["-z"] if lazily else []), "--", point, cwd="/")


@contextlib.contextmanager
def myself() -> Iterator[Person]:
    """Whoever runs the tests, with a home of their own."""
    with _directory() as home:
        yield Person(home)


def one_of_people(who: str) -> contextlib.AbstractContextManager[Person]:
    """One of `PEOPLE`."""
    return myself() if who == "root" else ordinary_user()


@contextlib.contextmanager
def ordinary_user(uid: int = 1000) -> Iterator[Person]:
    """Somebody who is not root. Where the tests run as root: uid 1000 in a private mount namespace with a /dev/fuse
    that is open to all, as on a person's machine (here it may be 0600), and with the interpreter and the checkout in
    reach even where they lie in root's home."""
    require_fuse()
    if os.geteuid() != 0:
        with myself() as person:
            yield person
        return
    for tool in ("nsenter", "setpriv", "unshare"):
        if shutil.which(tool) is None:
            absent(f"no {tool} here (Debian: util-linux)")
    with _directory() as home:
        os.chown(home, uid, uid)
        holder = subprocess.Popen(
            ["unshare", "-m", "--propagation", "private", "bash", "-euc", _NAMESPACE, "namespace", home, *_needed_places()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )
        assert holder.stdin is not None
        assert holder.stdout is not None
        try:
            if holder.stdout.readline() != b"ready\n":
                absent("no private mount namespace to be had here (unshare -m, mknod)")
            yield Person(home, holder.pid, uid)
        finally:
            holder.stdin.close()
            holder.wait(TIMEOUT)
            holder.stdout.close()


_NAMESPACE = r"""
home=$1; shift
# The copies of other tests' views in this namespace would keep their daemons alive after they were unmounted.
umount -a -l -t fuse.policyfs
mkdir "$home/.namespace"
mount -t tmpfs -o mode=755 tmpfs "$home/.namespace"
mknod -m 666 "$home/.namespace/fuse" c 10 229
mount --bind "$home/.namespace/fuse" /dev/fuse
# So is the device of user-mode networking, where there is one.
if [ -e /dev/net/tun ]; then
  mknod -m 666 "$home/.namespace/tun" c 10 200
  mount --bind "$home/.namespace/tun" /dev/net/tun
fi
# A place that lies behind a directory closed to others is bound to where it is, over an empty stand-in for what is closed.
number=0
for place; do
  number=$((number + 1))
  mkdir "$home/.namespace/$number"
  mount --bind "$place" "$home/.namespace/$number"
done
number=0
for place; do
  number=$((number + 1))
  above=
  IFS=/ read -ra names <<<"${place#/}"
  for name in "${names[@]}"; do
    above=$above/$name
    [ -e "$above" ] || break
    if [ -d "$above" ] && (( (0$(stat -Lc %a "$above") & 1) == 0 )); then mount -t tmpfs -o mode=755 tmpfs "$above"; fi
  done
  mkdir -p "$place"
  mount --bind "$home/.namespace/$number" "$place"
done
echo ready
exec cat
"""


def _needed_places() -> list[str]:
    """What the ordinary user runs: the interpreter with its packages, and the checkout."""
    checkout = str(Path(__file__).resolve().parents[2])
    places = sorted({os.path.realpath(sys.base_prefix), os.path.realpath(sys.prefix), checkout})
    return [place for place in places if not any(place.startswith(f"{other}/") for other in places)]


@contextlib.contextmanager
def _directory() -> Iterator[Path]:
    """A directory for one mount or person. What a mount still covers is never deleted through it."""
    path = Path(os.path.realpath(tempfile.mkdtemp(prefix="policyfs-test-")))
    path.chmod(0o755)
    try:
        yield path
    finally:
        if any(mount.point.startswith(os.fsencode(path) + b"/") for mount in mounts.mounts()):
            pytest.fail(f"a mount was left behind below {path}")
        # A daemon whose end nobody watched writes the last line of its journal meanwhile, and removes its socket.
        end = time.monotonic() + TIMEOUT
        while True:
            try:
                shutil.rmtree(path)
            except OSError as error:
                if error.errno not in (errno.ENOTEMPTY, errno.ENOENT) or time.monotonic() > end:
                    raise
                time.sleep(0.01)
            else:
                break


# -- mounts --------------------------------------------------------------------------------------------------------------


@dataclass
class Mounted:
    """A view that is mounted. `told` and `notes` are what `policyfs mount` said on standard output and error."""

    source: Path
    point: Path
    person: Person
    process: int
    """The daemon's."""
    log: Path
    told: str
    notes: str
    expected: list[str] = field(default_factory=list)
    """Patterns for the complaints that this test provokes in the daemon's log: each must be there, and no other."""
    killed: bool = False
    _daemon: int = -1

    @property
    def log_text(self) -> str:
        """What the daemon has logged so far."""
        return self.log.read_text(errors="surrogateescape")

    @property
    def is_mounted(self) -> bool:
        """Whether it is still in the mount table."""
        return self.person.mount_at(self.point) is not None

    @property
    def has_ended(self) -> bool:
        """Whether the daemon has ended."""
        return bool(select.select([self._daemon], [], [], 0)[0])

    def run(self, *argv: str | os.PathLike[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command in the view, at its root unless `cwd` says otherwise."""
        return self.person.run(*argv, **{"cwd": self.point, **options})

    def python(
        self, script: str, *arguments: str | os.PathLike[str], cwd: str | os.PathLike[str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """Run a Python script, given as text, in the view."""
        return self.person.python(script, *arguments, cwd=cwd or self.point)

    def descriptors(self) -> Counter[str] | None:
        """What the daemon's descriptors lead to; None where only root may know, since the daemon is not dumpable."""
        directory = f"/proc/{self.process}/fd"
        if os.geteuid() != 0:
            return None
        found: Counter[str] = Counter()
        for name in os.listdir(directory):
            with contextlib.suppress(FileNotFoundError):
                found[os.readlink(f"{directory}/{name}")] += 1
        return found

    def unmount(self, *, lazily: bool = False) -> subprocess.CompletedProcess[str]:
        """umount, or fusermount3 -u for somebody who is not root."""
        return self.person.unmount(self.point, lazily=lazily)

    def signal(self, number: int) -> None:
        """Send the daemon a signal."""
        signal.pidfd_send_signal(self._daemon, number)

    def kill(self) -> None:
        """kill -9, and wait. The mount stays, dead: every request gets ENOTCONN."""
        self.killed = True
        self.signal(signal.SIGKILL)
        self.ended()

    def ended(self, seconds: float = TIMEOUT) -> None:
        """Wait until the daemon has ended; fail if it does not."""
        if not select.select([self._daemon], [], [], seconds)[0]:
            pytest.fail(f"the daemon did not end within {seconds:g} s{self._held()}")

    def _held(self) -> str:
        """Which other mount namespaces still have the mount, which keeps its daemon alive: a copy was made for them while
        it was there."""
        holders = []
        for table in Path("/proc").glob("[0-9]*/mountinfo"):
            with contextlib.suppress(OSError):
                if f" {self.point} " in table.read_text(errors="surrogateescape"):
                    holders.append(table.parent.name)
        return f"; it is mounted in the namespaces of processes {', '.join(holders)}" if holders else ""


@contextlib.contextmanager
def mounted(
    source: Path,
    *grants: str,
    session: str | None = None,
    options: Sequence[str] = (),
    point: Path | None = None,
    person: Person | None = None,
    deadline: float = DEADLINE,
    sabotage: str = "",
    fresh: bool = False,
) -> Iterator[Mounted]:
    """A view of `source`, mounted by the real command at `point` (a new directory unless given).

    `grants` are `PATH=LEVEL`, `session` is the text of a session file, `options` further words of the command line.
    `sabotage` is Python text that the daemon runs before anything else: for faults that no source can be made to have.
    `fresh` starts the command and the daemon in interpreters of their own, as a person does, where otherwise both are
    forked from a process that has imported them: for tests of how a daemon starts, lives and ends.
    """
    require_fuse()
    with _directory() as directory:
        if person is None:
            (directory / "home").mkdir(mode=0o700)
            person = Person(directory / "home")
        if point is None:
            point = directory / "view"
            point.mkdir()
        words = [word for grant in grants for word in ("-g", grant)]
        if session is not None:
            (directory / "session.toml").write_text(session)
            words += ["-s", str(directory / "session.toml")]
        if person.uid != os.geteuid():
            for place in (directory, point):
                os.chown(place, person.uid, person.uid)
        log = directory / "daemon.log"
        program = _sabotaged(sabotage) if sabotage else PROGRAM
        with _taken_away_on_failure(person, point):
            arguments = ("mount", source, point, *words, *options, "--log", log)
            done = person.run(*program, *arguments) if fresh or sabotage else person.policyfs(*arguments)
            assert done.returncode == 0, f"policyfs mount gave {done.returncode}: {done.stderr}{_text_of(log)}"
            # A request is answered only after the daemon has logged who it is.
            told_of = _SERVING.search(log.read_text())
            assert told_of, f"the daemon's log does not say that it serves:\n{_text_of(log)}"
            process = int(told_of[1])
            if sabotage:
                assert sabotage.encode() in Path(f"/proc/{process}/cmdline").read_bytes(), "the daemon is not sabotaged"
        view = Mounted(source, point, person, process, log, done.stdout, done.stderr)
        with overseen(view, deadline):
            yield view


@contextlib.contextmanager
def _taken_away_on_failure(person: Person, point: Path) -> Iterator[None]:
    """A command that fails and has mounted all the same leaves nothing behind."""
    before = person.mount_at(point)
    try:
        yield
    except BaseException:
        if before is None and person.mount_at(point) is not None:
            person.unmount(point, lazily=True)
        raise


@contextlib.contextmanager
def overseen(view: Mounted, deadline: float = DEADLINE) -> Iterator[None]:
    """What holds for every mount, for one that has been started: watched, looked over, and gone at the end."""
    with _watched(view, deadline):
        before = view.descriptors()
        yield
        _look_over(view, before)


def _sabotaged(sabotage: str) -> tuple[str, ...]:
    """The `policyfs` command with a daemon that starts with that text."""
    daemon = (sys.executable, "-I", "-c", f"{sabotage}\nfrom policyfs.daemon.main import main; main()")
    text = f"from policyfs.daemon import interpreter; interpreter.DAEMON = {daemon!r}; from policyfs.cli import main; main()"
    return (sys.executable, "-I", "-c", text)


def _text_of(log: Path) -> str:
    return log.read_text(errors="replace") if log.exists() else ""


@contextlib.contextmanager
def _watched(view: Mounted, deadline: float) -> Iterator[None]:
    """Nothing of the mount remains after this, whatever the body does."""
    view._daemon = os.pidfd_open(view.process)
    try:
        with watchdog(view.point, view.person, view.process, deadline):
            try:
                yield
            finally:
                end_by_force(view)
    finally:
        os.close(view._daemon)
    complaints = [line for line in view.log_text.splitlines() if _COMPLAINT.search(line)]
    surprising = [line for line in complaints if not any(re.search(pattern, line) for pattern in view.expected)]
    assert not surprising, f"the daemon complained:\n{view.log_text}"
    lacking = [pattern for pattern in view.expected if not any(re.search(pattern, line) for line in complaints)]
    assert not lacking, f"the daemon's log lacks {lacking}:\n{view.log_text}"


@contextlib.contextmanager
def watchdog(point: Path, person: Person, process: int, deadline: float = DEADLINE) -> Iterator[None]:
    """A watchdog over the mount at `point`, served by `process`. Fails the test if it had to act."""
    mount = person.mount_at(point)
    assert mount is not None, f"nothing is mounted at {point}"
    minor = mount.device.partition(":")[2]
    # A descriptor of the daemon, not its number: by the time the watchdog runs, a short test may be over, and the daemon.
    daemon = os.pidfd_open(process)
    try:
        words = [str(deadline), minor, str(daemon), str(person.namespace or 0), str(point)]
        dog = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_WATCHDOG), *words],
            stdin=subprocess.PIPE,
            start_new_session=True,
            pass_fds=[daemon],
        )
    finally:
        os.close(daemon)
    assert dog.stdin is not None
    try:
        yield
    finally:
        with contextlib.suppress(BrokenPipeError):
            dog.stdin.write(b"\n")
            dog.stdin.flush()
        with contextlib.suppress(BrokenPipeError):
            dog.stdin.close()
        acted = dog.wait(TIMEOUT)
    assert acted == 0, f"the mount at {point} outlived {deadline:g} s, and the watchdog ended it"


def abort(view: Mounted) -> None:
    """Abort the FUSE connection of a mount, as an administrator does with one that is wedged."""
    mount = view.person.mount_at(view.point)
    assert mount is not None
    assert abort_connection(mount.device.partition(":")[2]), "the connection could not be aborted"


def _look_over(view: Mounted, before: Counter[str] | None) -> None:
    """What must hold at the end of every test."""
    if view.killed:
        return
    if view.is_mounted:
        if before is not None:
            # The kernel tells the daemon of closed files by and by; a request in between pushes them along. It may fail:
            # the source may be gone.
            def leaked() -> Counter[str]:
                if view.person.namespace is None:
                    with contextlib.suppress(OSError):
                        os.statvfs(view.point)
                else:
                    view.run("stat", "-f", ".")
                after = view.descriptors()
                assert after is not None
                # A journal is opened with its first entry, and stays open.
                for name in [name for name in after if "/policyfs/journal/" in name and name not in before]:
                    del after[name]
                # So do the directories of denied places, from when they come into being: policyfs's own state among them.
                for counted in (after, before):
                    for name in [name for name in counted if name.startswith(f"{view.person.home}/.")]:
                        del counted[name]
                # And the directories to which the owner's links have led a rule, of which the log tells: each at most twice,
                # as one in which a denied place is, and as one of those in it.
                for led_to in map(Path, _LED_TO.findall(view.log_text)):
                    for directory in map(str, (led_to, *led_to.parents)):
                        if after[directory] <= before[directory] + 2:
                            del after[directory]
                # How many, not which: a source that was moved meanwhile has another name.
                return after - before if after.total() > before.total() else Counter()

            end = time.monotonic() + LEAK_TIMEOUT
            while leaked() and time.monotonic() < end:
                time.sleep(0.005)
            assert not leaked(), f"the daemon leaks descriptors: {dict(leaked())}"
        done = view.unmount()
        assert done.returncode == 0, f"it does not unmount: {done.stderr}"
    view.ended()
    assert not view.is_mounted, "the daemon has ended and left its mount behind"


def end_by_force(view: Mounted) -> None:
    """Whatever of the mount is left after a failure, taken away."""
    while view.is_mounted:
        if view.unmount(lazily=True).returncode != 0:
            break
    if not select.select([view._daemon], [], [], 0.5)[0]:
        view.signal(signal.SIGKILL)
        view.ended()
