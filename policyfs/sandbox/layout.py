"""What a sandbox looks like, as a value, and that value as bubblewrap's arguments. Pure.

Theory. Everything stands at the place where the machine has it, so that no path means one thing inside and another outside.
Mounts are made in an order in which what is later may cover what is earlier: the system's directories, the private ones, the
places a person adds, and last the view, at SOURCE's own path. Inside SOURCE only the view shows anything: any other place
that would be there is left out, also /tmp, the home or /usr. The root is an empty file system in memory, closed for writing
once all is in place.

What may be shown beside the view is decided in `admission`; here everything is trusted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policyfs.policy.paths import HostPath, below
from policyfs.sandbox import command, inside

NAMESPACES = (
    *(b"--unshare-all", b"--unshare-user", b"--disable-userns", b"--new-session"),
    *(b"--as-pid-1", b"--cap-drop", b"ALL", b"--cap-add", command.CAPABILITY),
)
"""Own user, mount, pid, ipc, uts and cgroup namespaces; the network's too, unless it is given back. No second user
namespace in which capabilities could be had again. bubblewrap sets no_new_privs itself. What is executed is the first
process, which keeps one capability that the command does not have: see `command`."""

PRIVATE = (HostPath(b"/tmp"), HostPath(b"/var/tmp"))
"""Empty, in memory, gone at the end."""

DEVICES = ("null", "zero", "full", "random", "urandom", "tty")
"""The nodes that bubblewrap's --dev takes from the machine."""

FIRST_PROCESS = HostPath(b"/proc/1")
"""Closed, so that nobody reads or writes the memory and the descriptors of the process that tells how the command ended."""

_ETC = HostPath(b"/etc")

CLIENT = HostPath(inside.PLACE.encode())
"""Where what the command asks its view with stands."""
CLIENT_PROGRAM = HostPath(inside.PROGRAM.encode())
CLIENT_SOURCE = HostPath(inside.SOURCE.encode())
CLIENT_PROGRAMS = HostPath(CLIENT_PROGRAM.rpartition(b"/")[0])
"""First in PATH: it holds one program, and another of that name would load, find nothing to ask, and answer by no policy
at all."""
_CLIENT_SOCKET = HostPath(inside.SOCKET.encode())


@dataclass(frozen=True, slots=True)
class SystemPlace:
    """A directory or file of the system that every sandbox shows read-only; a link is made again as it is."""

    path: HostPath
    link: bytes | None = None
    content: HostPath | None = None
    """Where it really is, when not at `path`."""


@dataclass(frozen=True, slots=True)
class Place:
    """A place of the machine that a person adds, at its own path (its real one)."""

    path: HostPath
    writable: bool


@dataclass(frozen=True, slots=True)
class Sandbox:
    """Everything that a command gets to see."""

    source: HostPath
    view: HostPath
    """Where the view is mounted outside."""
    home: HostPath
    home_is_private: bool
    """An empty directory in memory at `home`; where not, one of `places` stands there."""
    directory: HostPath
    """Where the command starts."""
    environment: Mapping[bytes, bytes]
    system: Sequence[SystemPlace]
    closed_files: Sequence[HostPath] = ()
    """Files of /proc that cannot be opened."""
    closed_directories: Sequence[HostPath] = ()
    """Directories of /proc that are empty."""
    places: Sequence[Place] = ()
    names: Mapping[HostPath, HostPath] = field(default_factory=dict)
    """Other names of places, made links: a person says ~/tree, and it really is /data/tree."""
    network: bool = True
    """Whether the command has the network in which bubblewrap is started, or no more than a loopback."""
    devices: HostPath | None = None
    """A directory of nodes made for this sandbox, in the place of the machine's."""
    ask: HostPath | None = None
    """The socket that the command may ask; None where nothing of the client is shown."""


def arguments(sandbox: Sandbox, files: Mapping[HostPath, int], filters: Sequence[int]) -> list[bytes]:
    """bubblewrap's arguments up to the command. `files` are small files of our making, as descriptors to read from, and
    so are `filters`, the programs of `seccomp`."""
    return [
        *NAMESPACES,
        *(part for descriptor in filters for part in (b"--add-seccomp-fd", b"%d" % descriptor)),
        b"--die-with-parent",
        *([b"--share-net"] if sandbox.network else []),
        *_system(sandbox),
        *_files(sandbox, files),
        *_kernel(sandbox),
        *_private(sandbox),
        *_client(sandbox, files),
        *_places(sandbox),
        *(argument for at, to in sorted(sandbox.names.items()) for argument in (b"--symlink", to, at)),
        *(b"--bind", sandbox.view, sandbox.source),
        *(b"--remount-ro", b"/"),
        *(b"--chdir", sandbox.directory),
        b"--clearenv",
        *(part for name, value in sorted(sandbox.environment.items()) for part in (b"--setenv", name, value)),
    ]


def shown(sandbox: Sandbox) -> list[HostPath]:
    """The places of the machine that `arguments` shows something of, none in another."""
    found = {HostPath(b"/dev"), sandbox.view, *(place.path for place in sandbox.places)}
    if sandbox.ask is not None:
        found.add(sandbox.ask)
    for place in sandbox.system:
        if place.link is None and _outside(place.path, sandbox):
            path = place.content or place.path
            found.add(_ETC if below(path, _ETC) is not None else path)
    return sorted(path for path in found if not any(path != other and below(path, other) is not None for other in found))


def _outside(path: bytes, sandbox: Sandbox) -> bool:
    return below(path, sandbox.source) is None


def _system(sandbox: Sandbox) -> list[bytes]:
    made: list[bytes] = []
    if _outside(b"/etc", sandbox):
        # Made on the way to a file in it, it would be closed to all but its owner.
        made += (b"--perms", b"0755", b"--dir", b"/etc")
    for place in sandbox.system:
        if not _outside(place.path, sandbox):
            continue
        if place.link is not None:
            made += (b"--symlink", place.link, place.path)
        else:
            made += (b"--ro-bind", place.content or place.path, place.path)
    return made


def _files(sandbox: Sandbox, files: Mapping[HostPath, int]) -> list[bytes]:
    made: list[bytes] = []
    for path, descriptor in files.items():
        if _outside(path, sandbox) and below(path, CLIENT) is None:
            made += (b"--perms", b"0644", b"--ro-bind-data", b"%d" % descriptor, path)
    return made


def _kernel(sandbox: Sandbox) -> list[bytes]:
    made = [b"--proc", b"/proc", b"--dev", b"/dev"]
    for path in (*sandbox.closed_directories, FIRST_PROCESS):
        made += (b"--perms", b"0555", b"--tmpfs", path, b"--remount-ro", path)
    for path in sandbox.closed_files:
        # Opening it is refused: bubblewrap shows devices by --dev-bind alone.
        made += (b"--ro-bind", b"/dev/null", path)
    # Root in a sandbox owns the files of the kernel's settings, without any capability, and a mode that is
    # changed here (chmod 0 /proc/meminfo) is changed for the whole machine.
    made += (b"--remount-ro", b"/proc")
    if sandbox.devices is not None:
        for name in map(str.encode, DEVICES):
            made += (b"--dev-bind", sandbox.devices + b"/" + name, b"/dev/" + name)
    return made


def _private(sandbox: Sandbox) -> list[bytes]:
    made: list[bytes] = []
    for path in PRIVATE:
        if _outside(path, sandbox):
            made += (b"--perms", b"1777", b"--tmpfs", path)
    if sandbox.home_is_private:
        made += (b"--perms", b"0700", b"--tmpfs", sandbox.home)
    return made


def _client(sandbox: Sandbox, files: Mapping[HostPath, int]) -> list[bytes]:
    if sandbox.ask is None:
        return []
    made = [b"--perms", b"0755", b"--dir", CLIENT, b"--perms", b"0755", b"--dir", CLIENT_PROGRAMS]
    for path, mode in ((CLIENT_PROGRAM, b"0555"), (CLIENT_SOURCE, b"0444")):
        made += (b"--perms", mode, b"--ro-bind-data", b"%d" % files[path], path)
    return [*made, b"--ro-bind", sandbox.ask, _CLIENT_SOCKET]


def client_fits(taken: Sequence[HostPath]) -> bool:
    """Whether the client can stand in its place: in nothing that is shown of the machine, and around none of it."""
    return all(below(CLIENT, place) is None and below(place, CLIENT) is None for place in taken)


def _places(sandbox: Sandbox) -> list[bytes]:
    """A place above another comes first, or it would cover it."""
    made: list[bytes] = []
    for place in sorted(sandbox.places, key=lambda place: place.path.count(b"/")):
        made += (b"--bind" if place.writable else b"--ro-bind", place.path, place.path)
    return made


HOMES_ELSEWHERE = (HostPath(b"/run/home"), HostPath(b"/home/session"), HostPath(b"/mnt/home"))
"""Where a private home stands when its own place is SOURCE's or taken."""


def private_home(home: HostPath, taken: Sequence[HostPath]) -> HostPath | None:
    """Where an empty home stands: where the user's is, since programs know it by that path, or else where it lies in
    nothing that is `taken`. SOURCE is taken: in it only the view shows anything."""
    for candidate in (home, *HOMES_ELSEWHERE):
        if candidate not in (b"/", *PRIVATE) and all(below(candidate, place) is None for place in taken):
            return candidate
    return None


def links_to(
    named: Mapping[HostPath, HostPath], taken: Sequence[HostPath], made: Sequence[HostPath]
) -> dict[HostPath, HostPath]:
    """Those other names that can be made links. In what is `taken` already nothing is to be made: it is the machine's or
    somebody's; and no link is to stand where a directory on the way to `taken` or `made` does."""
    links = {
        name: real
        for name, real in named.items()
        if name != real
        and all(below(name, place) is None for place in taken)
        and all(below(place, name) is None for place in (*taken, *made))
    }
    # What is below a name leads through it: there the place behind the link has the rest, links too.
    return {name: real for name, real in links.items() if not any(below(name, other) for other in links)}
