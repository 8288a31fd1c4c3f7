"""The private directory of one run: the mountpoint of its view, and the socket that the command may ask.

It is locked as long as anybody of the run is there to clear it away. One whose lock is free is what a run and its supervisor
left that were both killed: the next run clears it away.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from policyfs.host import mounts, places
from policyfs.host.errors import Exit, UserFault
from policyfs.policy.paths import HostPath

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
    """Clear away a directory whose run and supervisor are both gone. What resists is left for the next time: it is in
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
