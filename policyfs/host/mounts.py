"""The mount table, and whether SOURCE and MOUNTPOINT can be what they are asked to be."""

from __future__ import annotations

import contextlib
import errno
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from policyfs.host import places
from policyfs.host.errors import Exit, UserFault
from policyfs.policy.paths import HostPath, PathFault, ViewPath, below, components, display, for_shell, joined

FILE_SYSTEM_TYPE = "fuse.policyfs"
FUSE_DEVICE = "/dev/fuse"

_WHOLE = HostPath(b"/")


@dataclass(frozen=True, slots=True)
class Mount:
    """One line of /proc/self/mountinfo (proc(5)): where, of what type, on which device, and which directory of that
    device's file system is seen there; its number, and that of the mount it is mounted on."""

    point: HostPath
    type: str
    device: str
    root: HostPath = _WHOLE
    number: int = 0
    on: int = -1


def mounts() -> list[Mount]:
    """The mounts that this process sees, the latest last. Raises `UserFault`: what is closed depends on them."""
    try:
        with open("/proc/self/mountinfo", "rb") as table:
            lines = table.readlines()
    except OSError as error:
        raise UserFault(
            Exit.MACHINE,
            f"/proc/self/mountinfo cannot be read: {error.strerror}; mount /proc with `mount -t proc proc /proc`",
        ) from None
    found = []
    for line in lines:
        fields = line.split(b" ")
        after = fields.index(b"-")
        point, root = _unescaped(fields[4]), _unescaped(fields[3])
        found.append(Mount(point, fields[after + 1].decode(), fields[2].decode(), root, int(fields[0]), int(fields[1])))
    return found


def _unescaped(field: bytes) -> HostPath:
    """mountinfo writes blanks, newlines and backslashes in a path as three octal digits."""
    return HostPath(re.sub(rb"\\([0-7]{3})", lambda octal: bytes([int(octal[1], 8)]), field))


Origin = tuple[str, HostPath]
"""Where something is whatever it is mounted as: a device, and the path in its file system."""


def origin(mount: Mount, place: HostPath) -> Origin:
    """Where a place that lies in a mount is, as far as that mount shows it."""
    rest = below(place, mount.point)
    return (mount.device, HostPath(mount.root.rstrip(b"/") + b"/" + rest if rest else mount.root))


def shown_at(where: Origin, table: Sequence[Mount]) -> Iterator[tuple[bytes, HostPath]]:
    """Where mounts show something, each with what of it is seen there: the path below it, b"" for the whole. A mount that
    another covers is among them: what covers it may go."""
    device, path = where
    for mount in table:
        if mount.device != device:
            continue
        rest = below(path, mount.root)
        if rest is not None:
            yield b"", HostPath(mount.point.rstrip(b"/") + b"/" + rest) if rest else mount.point
        elif part := below(mount.root, path):
            yield part, mount.point


def elsewhere(source: HostPath, table: Sequence[Mount]) -> tuple[tuple[ViewPath, HostPath], ...]:
    """The other paths by which the machine reaches what a view of SOURCE shows: each with the path in the view of what is
    seen there. Mounts below SOURCE show nothing in a view, which does not enter them.

    Every mount over SOURCE counts, not only the uppermost: one that came to cover it takes nothing from an open view.
    """
    found: dict[tuple[ViewPath, HostPath], None] = {}
    for over in table:
        if below(source, over.point) is None:
            continue
        for part, place in shown_at(origin(over, source), table):
            if place != HostPath(source.rstrip(b"/") + b"/" + part if part else source):
                found[ViewPath(b"/" + part), place] = None
    return tuple(found)


def seen_at(place: HostPath, table: Sequence[Mount]) -> Mount | None:
    """The mount that a walk to a place, a real path, ends in. By the table alone: nothing is touched."""
    numbers = {mount.number for mount in table}
    mount = next((mount for mount in table if mount.point == _WHOLE and mount.on not in numbers), None)
    while mount is not None:
        nearer = [over for over in table if over.on == mount.number and below(place, over.point) is not None]
        # On the way down the uppermost is met first.
        next_one = min(reversed(nearer), key=lambda over: len(over.point), default=None)
        if next_one is None:
            break
        mount = next_one
    return mount


_SERVED = {
    "9p", "afs", "autofs", "ceph", "cifs", "coda", "gfs2", "glusterfs", "lustre", "nfs", "nfs4", "ocfs2", "smb3",
}  # fmt: skip
"""File systems that somebody else answers for, besides those of FUSE."""


def is_served(mount: Mount) -> bool:
    """Whether somebody else than this kernel answers for a file system: a server, or a process."""
    return mount.type in _SERVED or mount.type.startswith("fuse")


def is_local(place: HostPath, table: Sequence[Mount]) -> bool:
    """Whether a walk to a place asks this machine alone, by the table of mounts and the text of the path."""
    over = [mount for mount in table if below(place, mount.point) is not None]
    return bool(over) and not any(map(is_served, over))


def tops(source: HostPath, number: int | None, table: Sequence[Mount]) -> tuple[HostPath, ...]:
    """The mountpoints at which the file system of SOURCE is seen, whichever directory of it. `number` is that of the mount
    in which SOURCE was opened, if it was: by now another may stand over it.

    None below a view: to go there is to ask a daemon, perhaps the very one that asks.
    """
    mine = next((mount for mount in table if mount.number == number), None) or seen_at(source, table)
    if mine is None:
        return (_WHOLE,)
    views = [mount.point for mount in table if mount.type == FILE_SYSTEM_TYPE and mount.device != mine.device]
    return tuple(
        mount.point
        for mount in table
        if mount.device == mine.device
        and seen_at(mount.point, table) is mount
        and all(below(mount.point, view) is None for view in views)
    )


def mount_at(point: HostPath, table: Sequence[Mount] | None = None) -> Mount | None:
    """The uppermost mount at exactly this place, by the mount table, which is read where it is not given."""
    return next((mount for mount in reversed(mounts() if table is None else table) if mount.point == point), None)


def in_view(place: HostPath, table: Sequence[Mount] | None = None) -> tuple[HostPath, ViewPath] | None:
    """The mountpoint of the view that a place lies in, and the path there; None for a place in no view. By the mount table,
    which is read where it is not given."""
    # Of mounts on one place the latest is the one that is seen.
    seen = {mount.point: mount.type for mount in (mounts() if table is None else table)}
    return in_one_of({point for point, kind in seen.items() if kind == FILE_SYSTEM_TYPE}, place)


def in_one_of(roots: Collection[HostPath], place: HostPath) -> tuple[HostPath, ViewPath] | None:
    """Which of these (real paths) a place lies in, the innermost, and the path there; None for a place in none of them.

    Links are followed as far as there; below nothing is looked up, which a wedged view would not survive.
    """
    if not roots:
        return None
    current = HostPath(b"/")
    names = components(place)
    for number, name in enumerate(names, 1):
        step = HostPath(current + name if current == b"/" else current + b"/" + name)
        if step not in roots and not places.is_there(step):
            return None
        current = step if step in roots else places.real(step)
        inside = [point for point in roots if below(current, point) is not None]
        if inside:
            point = max(inside, key=len)
            rest = [*components(b"/" + (below(current, point) or b"")), *names[number:]]
            return point, ViewPath(joined(rest))
    return None


def nested_in(source: HostPath, table: Sequence[Mount]) -> list[Mount]:
    """The mounts inside SOURCE, which a view does not enter (rule source-1)."""
    return [mount for mount in table if below(mount.point, source)]


def require_fuse() -> None:
    """Raise `UserFault` where this machine cannot mount."""
    if not os.path.exists(FUSE_DEVICE):
        raise UserFault(
            Exit.MACHINE, f"no {FUSE_DEVICE}: this machine cannot mount; load it with `modprobe fuse`, or give it to the "
            "container with `--device /dev/fuse --cap-add SYS_ADMIN`"
        )  # fmt: skip
    if not os.access(FUSE_DEVICE, os.R_OK | os.W_OK):
        raise UserFault(
            Exit.MACHINE, f"{FUSE_DEVICE} cannot be opened by you; it is usually open to all: `sudo chmod 666 {FUSE_DEVICE}`"
        )
    if os.geteuid() != 0 and shutil.which("fusermount3") is None:
        raise UserFault(Exit.MACHINE, "no fusermount3: install Debian's package fuse3")


def mountpoint_for(text: str, source: HostPath) -> HostPath:
    """MOUNTPOINT as a command line names it, as its real path: a directory that is empty, not a mount, and not around
    SOURCE. A dead mount of ours that stands there is cleaned away. Raises `UserFault`."""
    try:
        named = places.absolute(text)
    except PathFault as fault:
        raise UserFault(Exit.PLACE, f"MOUNTPOINT: {fault}; name an empty directory") from None
    shown = display(named)
    table = mounts()
    point = real_mountpoint(named, table)
    mounted = mount_at(point, table)
    if mounted is not None and mounted.type == FILE_SYSTEM_TYPE and _is_dead(point):
        unmount(point, lazily=True)
        mounted = mount_at(point)
    if below(source, point) is not None:
        raise UserFault(Exit.PLACE, f"MOUNTPOINT {shown} is around SOURCE, which would cover it; name a directory elsewhere")
    if mounted is not None:
        # A mount that is not a view, such as a disk or /proc, is somebody else's: the message does not say how to end it.
        view = mounted.type == FILE_SYSTEM_TYPE
        advice = f"end it with `policyfs umount {for_shell(named)}`" if view else "name another directory"
        raise UserFault(Exit.PLACE, f"MOUNTPOINT {shown} is a mount already ({mounted.type}); {advice}")
    try:
        entries = os.listdir(point)
    except FileNotFoundError:
        advice = f"make it with `mkdir -p {for_shell(named)}`"
        raise UserFault(Exit.PLACE, f"MOUNTPOINT {shown} does not exist; {advice}") from None
    except NotADirectoryError:
        raise UserFault(Exit.PLACE, f"MOUNTPOINT {shown} is a file; name an empty directory") from None
    except OSError as error:
        raise UserFault(Exit.PLACE, f"MOUNTPOINT {shown}: {error.strerror}; name an empty directory of yours") from None
    if entries:
        raise UserFault(
            Exit.PLACE,
            f"MOUNTPOINT {shown} is not empty ({display(os.fsencode(entries[0]))} is in it); name an empty directory",
        )
    for own in places.own_places():
        # The daemon would look for its own files in the view, and wait for its own answer.
        if below(places.real(own), point) is not None:
            raise UserFault(
                Exit.PLACE, f"MOUNTPOINT {shown} is around {display(own)}, where policyfs has files of its own; name another"
            )
    return point


def real_mountpoint(named: HostPath, table: Sequence[Mount] | None = None) -> HostPath:
    """The real path, without touching a mount at that path: one that hangs would hang the caller. By the mount
    table, which is read where it is not given."""
    parent, _, name = named.rpartition(b"/")
    above = places.real(HostPath(parent or b"/"))
    candidate = HostPath(b"/" + name if above == b"/" else above + b"/" + name)
    return candidate if mount_at(candidate, table) is not None else places.real(named)


def _is_dead(point: HostPath) -> bool:
    """Whether the daemon behind a mount is gone: every request is answered with ENOTCONN."""
    try:
        os.statvfs(point)
    except OSError as error:
        return error.errno == errno.ENOTCONN
    return False


READ_AHEAD_KIB = 512
"""What the kernel reads ahead through a view, in KiB. Measured on a file of 512 MiB: from the disk 340 to 1300 MB/s with
the kernel's default of 128, 1500 with 512, 700 to 1000 with 1024, where too few requests are under way at once; from the
source's page cache 1.7 GB/s, 2.0 and 2.0."""


def read_ahead(point: HostPath) -> None:
    """Let the kernel read further ahead in the mount at `point`. Only root may; for other users nothing happens."""
    mount = mount_at(point)
    if mount is None:
        return
    with contextlib.suppress(OSError), open(f"/sys/class/bdi/{mount.device}/read_ahead_kb", "w") as setting:
        setting.write(str(READ_AHEAD_KIB))


def unmount(point: HostPath, *, lazily: bool = False) -> None:
    """End a mount. `lazily` lets programs that still stand in it go on until they leave. Raises `UserFault`."""
    if os.geteuid() == 0:
        command = ["umount", *(["-l"] if lazily else []), "--", os.fsdecode(point)]
    else:
        command = ["fusermount3", "-u", *(["-z"] if lazily else []), "--", os.fsdecode(point)]
    try:
        done = subprocess.run(command, capture_output=True, check=False)
    except FileNotFoundError:
        raise UserFault(Exit.MACHINE, f"no {command[0]}: install Debian's package fuse3") from None
    if done.returncode == 0:
        return
    said = display((done.stderr or done.stdout).strip().splitlines()[-1] if (done.stderr or done.stdout).strip() else b"")
    shown = display(point)
    if b"busy" in done.stderr:
        raise UserFault(
            Exit.FAILED,
            f"{shown} is in use; leave it, or see who is in it with `fuser -vm {for_shell(point)}`, or end it with --lazy",
        )
    raise UserFault(Exit.FAILED, f"{shown} could not be unmounted: {said}")
