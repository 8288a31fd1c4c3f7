"""The private directory of one run, and its end after every kind of end.

Theory. A run leaves a mount, a daemon and a directory on the machine, and `policyfs run` may be killed with SIGKILL at
any time. So the clearing away is done by a process of its own, the keeper, forked before anything is mounted. It holds
one end of a pipe, the lease, whose other end only `policyfs run` holds: the kernel closes that end whatever ends it. Then
the keeper goes on in the one right order: the command and everything it started is stopped first, then the daemon is
told to unmount, then the directory goes. A normal end goes the same way, and `policyfs run` waits for it.

* What the keeper waits for and kills it names by pidfd, never by a number that may be somebody else's by then.
* bubblewrap tells the keeper its process through a pipe of their own, and waits until the keeper has hold of it.
* Should the keeper be killed as well, the lock on the directory is free: the next run finds it and clears it away.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import select
import signal
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from policyfs.host import mounts, places
from policyfs.host.faults import Exit, UserFault
from policyfs.host.harden import close_inherited, harden
from policyfs.policy.paths import HostPath
from policyfs.sandbox.signals import ignore_signals

_PATIENCE = 10.0
"""Seconds for a killed sandbox to be gone, and for a daemon to unmount, before harsher means."""

_LOCK = "lock"
_VIEW = "view"
_DEVICES = "devices"
_ASK = "ask.sock"


@dataclass(frozen=True, slots=True)
class RunDirectory:
    """A directory that only this user enters, with the view's mountpoint in it; locked as long as it is used."""

    path: Path
    lock: int

    @property
    def view(self) -> HostPath:
        """Where the view is mounted."""
        return HostPath(os.fsencode(self.path / _VIEW))

    @property
    def devices(self) -> HostPath:
        """An empty directory, for a mount that nobody outside sees."""
        return HostPath(os.fsencode(self.path / _DEVICES))

    @property
    def ask(self) -> HostPath:
        """Where the daemon makes the socket that the command may ask."""
        return HostPath(os.fsencode(self.path / _ASK))

    @staticmethod
    def make() -> RunDirectory:
        """A new one; what earlier runs could not clear away is cleared away by the way. Raises `UserFault`."""
        try:
            places.private_directory(places.runtime_directory())
            above = places.private_directory(places.runs_directory())
            above = Path(os.fsdecode(places.real(HostPath(os.fsencode(above)))))
            with _locked(above / _LOCK):
                for old in above.iterdir():
                    if old.is_dir():
                        _clear_if_left(old)
                path = above / f"{os.getpid()}-{os.urandom(4).hex()}"
                path.mkdir(mode=0o700)
                lock = _lock(path / _LOCK)
                for name in (_VIEW, _DEVICES):
                    (path / name).mkdir(mode=0o700)
        except OSError as error:
            raise UserFault(
                Exit.PLACE, f"no private directory for the view: {error}; set XDG_RUNTIME_DIR to one of yours"
            ) from None
        return RunDirectory(path, lock)

    def remove(self) -> None:
        """End what may still be mounted, and the directory. Raises `UserFault` or OSError."""
        _clear(self.path)


def _lock(path: Path) -> int:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _clear_if_left(path: Path) -> None:
    """Clear away a directory whose run and keeper are both gone. What resists is left for the next time: it is in
    nobody's way."""
    try:
        lock = _lock(path / _LOCK)
    except OSError:
        return
    try:
        with contextlib.suppress(UserFault, OSError):
            _clear(path)
    finally:
        os.close(lock)


def _clear(path: Path) -> None:
    """Never more than the names that a run makes: whatever else is found is not ours to remove."""
    view = HostPath(os.fsencode(path / _VIEW))
    if mounts.mount_at(view) is not None:
        # Lazily: nothing of ours is in it any more, and a person who looks into it is not to keep it alive.
        mounts.unmount(view, lazily=True)
    # The daemon takes its socket away itself, unless it was killed.
    for remove, name in ((os.unlink, _ASK), (os.rmdir, _VIEW), (os.rmdir, _DEVICES), (os.unlink, _LOCK)):
        with contextlib.suppress(FileNotFoundError):
            remove(path / name)
    with contextlib.suppress(FileNotFoundError):
        path.rmdir()


class Keeper:
    """The process that clears away. `info` is for bubblewrap to name its process, `go` to wait on until that is known."""

    def __init__(self, directory: RunDirectory, daemon: int) -> None:
        """Fork. `daemon` is a pidfd of the mount daemon."""
        self._directory = directory
        self._daemon = daemon
        lease_read, self._lease = os.pipe()
        info_read, self.info = os.pipe()
        self.go, go_write = os.pipe()
        self._process = os.fork()
        if self._process == 0:
            status = 1
            try:
                _detach({lease_read, info_read, go_write, daemon, directory.lock})
                status = _keep(directory, daemon, lease_read, info_read, go_write)
            finally:
                os._exit(status)
        for descriptor in (lease_read, info_read, go_write):
            os.close(descriptor)

    def sandbox_started(self) -> None:
        """bubblewrap has its ends of the pipes; ours are no longer needed."""
        for descriptor in (self.info, self.go):
            os.close(descriptor)
        self.info = self.go = -1

    def finish(self) -> bool:
        """Let everything be cleared away, and say whether it was. Where the keeper is gone it is done here."""
        if self.info >= 0:
            self.sandbox_started()
        os.close(self._lease)
        _, status = os.waitpid(self._process, 0)
        if os.WIFSIGNALED(status):
            return clear_away(self._directory, None, self._daemon)
        return status == 0


def _detach(keep: set[int]) -> None:
    """Away from the person's terminal and descriptors: nobody waits for the keeper but `policyfs run`."""
    ignore_signals()
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard in range(3):
        os.dup2(nothing, standard)
    close_inherited(keep)
    harden()


def _keep(directory: RunDirectory, daemon: int, lease: int, info: int, go: int) -> int:
    waiting = select.poll()
    waiting.register(lease, select.POLLIN)
    waiting.register(info, select.POLLIN)
    text = b""
    sandbox: int | None = None
    ended = False
    informed = False
    while not ended or not informed:
        # Once the lease is over, whoever could still tell of a sandbox is about to end too: that is waited for.
        ready = waiting.poll(_PATIENCE * 1000 if ended else None)
        if not ready:
            break
        for descriptor, _ in ready:
            if descriptor == lease:
                ended = True
                waiting.unregister(lease)
                continue
            part = os.read(info, 4096)
            text += part
            if not part:
                informed = True
                waiting.unregister(info)
                sandbox = _opened(text)
                if not ended:
                    with contextlib.suppress(OSError):
                        os.write(go, b"g")
    return 0 if clear_away(directory, sandbox, daemon) else 1


def _opened(text: bytes) -> int | None:
    """The first process of the sandbox by pidfd, from what bubblewrap says of it."""
    if not text:
        return None
    with contextlib.suppress(ProcessLookupError):
        return os.pidfd_open(json.loads(text)["child-pid"])
    return None


def clear_away(directory: RunDirectory, sandbox: int | None, daemon: int) -> bool:
    """The command first, with everything it started: the first process of a pid namespace takes all others with it. Then
    the view. Then the directory. Says whether all of it is gone."""
    if sandbox is not None:
        _ended(sandbox, signal.SIGKILL)
    if not _ended(daemon, signal.SIGTERM):
        _ended(daemon, signal.SIGKILL)
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            directory.remove()
        except (UserFault, OSError):
            if time.monotonic() > deadline:
                return False
            time.sleep(0.05)
        else:
            return True


def _ended(process: int, with_signal: signal.Signals) -> bool:
    """End a process and wait until it has; not forever."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, with_signal)
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    return bool(waiting.poll(_PATIENCE * 1000))
