"""Where things are on this machine: the home, policyfs's own state, places behind links."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pwd
from pathlib import Path

from policyfs.host.errors import Exit, UserFault
from policyfs.policy.paths import HostPath, PathFault, below, for_shell, host_path

ADMIN_FLOORS = HostPath(b"/etc/policyfs/floors.toml")
"""Floors that the administrator sets for every session of the machine; used where it exists (rule floor-3)."""


def home() -> HostPath:
    """The user's home: HOME where it is an absolute path, else from the password database. Raises `UserFault`: rules on
    places of the home would guard another place, or none."""
    written = os.environb.get(b"HOME", b"")
    try:
        if not written.startswith(b"/"):
            written = os.fsencode(pwd.getpwuid(os.geteuid()).pw_dir)
        return host_path(written)
    except (KeyError, PathFault):
        raise UserFault(Exit.MACHINE, "no home directory: HOME is not an absolute path; set it to your home") from None


_NO_HOMES = (b"/usr", b"/bin", b"/sbin", b"/dev")
"""Where the password database has accounts live that nobody logs in with (daemon, bin, sys, games)."""


def account_homes() -> set[HostPath]:
    """The homes of the password database, as it has them."""
    found: set[HostPath] = set()
    for account in pwd.getpwall():
        # An entry that is empty or relative is not a home.
        with contextlib.suppress(PathFault):
            if account.pw_dir.startswith("/"):
                named = host_path(os.fsencode(account.pw_dir))
                if all(below(named, place) is None for place in _NO_HOMES):
                    found.add(named)
    return found


def real(place: HostPath) -> HostPath:
    """The place with every link followed, as far as it exists."""
    return HostPath(os.path.realpath(place))


def is_there(place: HostPath) -> bool:
    """Whether anything has this name. What cannot be known counts as there: opening it shows what is wrong."""
    try:
        os.lstat(place)
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True
    return True


def working_directory() -> bytes:
    """Where relative names start. Raises `UserFault` where it was removed."""
    try:
        return os.getcwdb()
    except FileNotFoundError:
        raise UserFault(Exit.PLACE, "the working directory was removed; change to another with cd") from None


def absolute(text: str | os.PathLike[str], user_home: HostPath | None = None) -> HostPath:
    """A place as a command line names it, relative ones from the working directory. `..` leads up from where a link leads,
    as for every other command. Raises `PathFault`."""
    written = os.fsencode(text)
    if written.startswith(b"~") and user_home is not None:
        if not written.startswith(b"~/") and written != b"~":
            raise PathFault("not absolute", written)
        written = user_home + written[1:]
    elif written and not written.startswith(b"/"):
        written = working_directory() + b"/" + written
    place = host_path(written)
    names = written.split(b"/")
    if b".." not in names:
        return place
    walked = b"/"
    for name in names:
        walked = os.path.dirname(real(HostPath(walked))) if name == b".." else os.path.join(walked, name)
    return host_path(walked)


def _base(variable: str, otherwise: str) -> Path:
    """A directory of the XDG base directory specification; a relative value is to be ignored, it says."""
    value = os.environ.get(variable, "")
    return Path(value) if value.startswith("/") else Path(os.fsdecode(home())) / otherwise


def state_directory() -> Path:
    """policyfs's own state: journals and daemon logs."""
    return _base("XDG_STATE_HOME", ".local/state") / "policyfs"


def mount_name(point: HostPath) -> str:
    """A name for a mountpoint that a file can have."""
    readable = "".join(character if character.isalnum() else "-" for character in os.fsdecode(point).strip("/"))
    return f"{readable[-40:]}-{hashlib.blake2b(point, digest_size=4).hexdigest()}"


def journal_directory(point: HostPath) -> Path:
    """The directory of the journal of the mount at `point`, whether it is mounted or not."""
    return state_directory() / "journal" / mount_name(point)


def own_places() -> tuple[HostPath, ...]:
    """What no view shows, whatever is granted: state, configuration, and the cache that holds policyfs's own code as
    scripts/policyfs installs it. No session may edit what binds it (rule deny-13)."""
    directories = [
        state_directory(),
        _base("XDG_CONFIG_HOME", ".config") / "policyfs",
        code_directory(),
        runtime_directory(),
    ]
    return (HostPath(b"/etc/policyfs"), *(HostPath(os.fsencode(directory)) for directory in directories))


def code_directory() -> Path:
    """Where scripts/policyfs installs policyfs's own code."""
    return _base("XDG_CACHE_HOME", ".cache") / "policyfs"


def unwalked_places() -> tuple[HostPath, ...]:
    """What of `own_places` is not looked through for files that have another name elsewhere: where runs come and go, each
    of which would have it looked through again; and policyfs's code, thousands of files that are nobody's secret."""
    places = [HostPath(os.fsencode(directory)) for directory in (runs_directory(), code_directory())]
    return tuple(dict.fromkeys([*places, *map(real, places)]))


def runtime_directory() -> Path:
    """Where control sockets are: `$XDG_RUNTIME_DIR/policyfs`, or the state directory, which is as private, where the
    machine has no runtime directory for the user."""
    value = os.environ.get("XDG_RUNTIME_DIR", "")
    if value.startswith("/") and os.path.isdir(value):
        return Path(value) / "policyfs"
    return state_directory() / "run"


def runs_directory() -> Path:
    """Where the views of runs are mounted."""
    return runtime_directory() / "runs"


def control_socket(point: HostPath) -> Path:
    """Where the control socket of the mount at `point` is. A short name: a socket's path has 107 bytes, unix(7)."""
    return runtime_directory() / f"{hashlib.blake2b(point, digest_size=8).hexdigest()}.sock"


def private_directory(path: Path) -> Path:
    """Make a directory that only its owner can enter; refuse one that is somebody else's or open to others.

    Raises `PermissionError`.
    """
    # Each directory on the way too: `parents=True` makes those by the umask, and the daemon of a mount has none.
    for directory in (*reversed(path.parents), path):
        if not directory.exists():
            directory.mkdir(mode=0o700, exist_ok=True)
    status = path.lstat()
    if status.st_uid != os.geteuid() or status.st_mode & 0o077:
        raise PermissionError(f"{path} is not a directory of yours alone; run: chmod 700 {for_shell(os.fsencode(path))}")
    return path
