"""Where things are on this machine: the home, policyfs's own state, places behind links."""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path

from policyfs.policy.paths import HostPath, PathFault, host_path

ADMIN_FLOORS = HostPath(b"/etc/policyfs/floors.toml")
"""Floors that the administrator sets for every session of the machine; used where it exists (DESIGN 3)."""


def home() -> HostPath:
    """The user's home, from HOME or the password database."""
    return host_path(os.fsencode(os.path.abspath(os.path.expanduser("~"))))


def real(place: HostPath) -> HostPath:
    """The place with every link followed, as far as it exists."""
    return HostPath(os.path.realpath(place))


def real_of(places: Iterable[HostPath]) -> dict[HostPath, HostPath]:
    """Those of the places whose real path is another, with that path."""
    return {place: behind for place in places if (behind := real(place)) != place}


def absolute(text: str | os.PathLike[str], user_home: HostPath | None = None) -> HostPath:
    """A place as a command line names it, relative ones from the working directory. Raises `PathFault`."""
    written = os.fsencode(text)
    if written.startswith(b"~") and user_home is not None:
        return host_path(written, user_home)
    if not written:
        raise PathFault("empty", written)
    return host_path(written if written.startswith(b"/") else os.getcwdb() + b"/" + written)


def _base(variable: str, otherwise: str) -> Path:
    """A directory of the XDG base directory specification; a relative value is to be ignored, it says."""
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else Path(os.fsdecode(home())) / otherwise


def state_directory() -> Path:
    """policyfs's own state: journals and daemon logs."""
    return _base("XDG_STATE_HOME", ".local/state") / "policyfs"


def own_places() -> tuple[HostPath, ...]:
    """What no view shows, whatever is granted: state, configuration, and the cache that holds policyfs's own code as
    scripts/policyfs installs it. No session may edit what binds it (DESIGN 3)."""
    directories = [
        state_directory(),
        _base("XDG_CONFIG_HOME", ".config") / "policyfs",
        _base("XDG_CACHE_HOME", ".cache") / "policyfs",
        runtime_directory(),
    ]
    return (HostPath(b"/etc/policyfs"), *(HostPath(os.fsencode(directory)) for directory in directories))


def runtime_directory() -> Path:
    """Where control sockets are: `$XDG_RUNTIME_DIR/policyfs`, or the state directory, which is as private, where the
    machine has no runtime directory for the user."""
    value = os.environ.get("XDG_RUNTIME_DIR", "")
    if value.startswith("/") and os.path.isdir(value):
        return Path(value) / "policyfs"
    return state_directory() / "run"


def private_directory(path: Path) -> Path:
    """Make a directory that only its owner can enter; refuse one that is somebody else's or open to others.

    Raises `PermissionError`.
    """
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not a directory of yours alone; run: chmod 700 {path}")
    return path
