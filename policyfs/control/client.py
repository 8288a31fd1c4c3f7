"""Ask a mount by its control socket: for the commands, which never load FUSE."""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from policyfs.host import mounts, places
from policyfs.host.errors import Exit, UserFault
from policyfs.policy.paths import ROOT, HostPath, PathFault, ViewPath, display, for_shell

TIMEOUT = 60
"""Seconds to wait for an answer: a change of policy looks at every node of a mount."""
_STATUS_TIMEOUT = 5
"""Seconds to wait for the status of one mount among others."""
_LEASE_TRIES = 10
"""How often a lease is asked for that each time a change of policy ends while it is told."""


def ask(point: HostPath, request: dict[str, Any]) -> Any:
    """What the mount at `point` answers. Raises `UserFault` for what it refuses, and where it cannot be asked."""
    with _reasons_told(point):
        return _ask(places.control_socket(point), request)


def lease(point: HostPath) -> tuple[dict[str, Any], socket.socket]:
    """The policy in force at `point` and what else a view of it needs, and a connection: the policy holds as long as that is
    open at the other end. Raises `UserFault`."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        with _reasons_told(point):
            for remaining in reversed(range(_LEASE_TRIES)):
                try:
                    return _asked(connection, places.control_socket(point), {"do": "follow"}, TIMEOUT), connection
                except ConnectionResetError:
                    # Ended by another change of policy before it was told whole, or the daemon has: the next try tells.
                    if not remaining:
                        raise
                    connection.close()
                    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    except BaseException:
        connection.close()
        raise
    raise AssertionError("the last try returns or raises")


@contextlib.contextmanager
def _reasons_told(point: HostPath) -> Iterator[None]:
    """Why the mount at `point` cannot be asked, for a message. Raises `UserFault`."""
    try:
        yield
        return
    except FileNotFoundError:
        reason = "it has no control socket of yours; was it mounted by another user, or with another XDG_RUNTIME_DIR?"
    except ConnectionRefusedError:
        reason = f"its daemon is gone; clean up with `policyfs umount {for_shell(point)}`"
    except ConnectionResetError:
        reason = "its daemon ended while it was asked; see its log"
    except TimeoutError:
        reason = f"it did not answer within {TIMEOUT} s; see the daemon's log"
    except OSError as error:
        reason = f"its control socket cannot be reached: {os.strerror(error.errno or 0)}"
    raise UserFault(Exit.FAILED, f"{display(point)}: {reason}")


def mounted_view(text: str) -> HostPath:
    """The mountpoint that a command line names: by itself or a place in it, or by the SOURCE of the one `policyfs run` whose
    command sees a view there. Raises `UserFault` where there is none, or more than one.

    Not by a place in that SOURCE: it may be a whole home, and what is changed another view than was meant."""
    try:
        named = places.absolute(text)
    except PathFault as fault:
        raise UserFault(Exit.PLACE, f"MOUNTPOINT: {fault}; name a mounted view") from None
    inside = mounts.in_view(named)
    if inside is not None:
        return inside[0]
    found = _only(named, runs().get(places.real(named), []))
    if found is None:
        refuse_detached(named)
        shown = display(named)
        raise UserFault(Exit.PLACE, f"{shown} is not a mounted view; `policyfs status` lists the views of this user")
    return found


def mounted_root(text: str) -> HostPath:
    """As `mounted_view`, but for a text that names the root of a view, by its mountpoint or by the SOURCE of a run."""
    point = mounted_view(text)
    inside = mounts.in_view(places.absolute(text))
    if inside is not None and inside[1] != ROOT:
        raise UserFault(Exit.PLACE, f"{display(places.absolute(text))} lies in the view at {display(point)}; name that")
    return point


def view_around(place: HostPath) -> tuple[HostPath, ViewPath] | None:
    """The mountpoint of the run whose SOURCE a place lies in, and the path in its view; None for a place in none. Raises
    `UserFault` where there is more than one."""
    running = runs()
    inside = mounts.in_one_of(running, place)
    if inside is None:
        return None
    source, path = inside
    point = _only(source, running[source])
    return None if point is None else (point, path)


def refuse_detached(place: HostPath) -> None:
    """Raise `UserFault` where a place lies in a view that is not a mount here any more, and that goes on all the same."""
    gone = {HostPath(os.fsencode(status["mountpoint"])): status for status in all_status()[0] if status["detached"]}
    inside = mounts.in_one_of(gone, place)
    if inside is not None:
        point = inside[0]
        raise UserFault(
            Exit.PLACE,
            f"{display(point)} was detached; its daemon goes on until every process in it, or in a copy of the mount, "
            f"leaves, or until `kill {gone[point]['process']}`",
        )


def path_in_view(point: HostPath, path: ViewPath) -> ViewPath:
    """The path of the view at `point` that a person means by an absolute one: itself, or, where it leads into the mountpoint
    or SOURCE on this machine, the one that is seen there. Raises `UserFault` for one that the view has too, and for the
    mountpoint or SOURCE itself, since a mistake would open all: nothing is guessed, and a session that makes a path turns
    no order to another."""
    status = ask(point, {"do": "status"})
    source = HostPath(os.fsencode(status["source"]))
    place = HostPath(path)
    inside = mounts.in_one_of([point], place) or mounts.in_one_of([source], place)
    if inside is None or inside[1] == path:
        return path
    root, meant = inside
    behind = HostPath(source.rstrip(b"/") + path)
    ruled = [*(entry["path"] for entry in (*status["open"], *status["live"])), *status["closed"]]
    # A view shows nothing of a mountpoint, its own among them, that lies in SOURCE.
    there = os.path.lexists(behind) and mounts.in_one_of([point], behind) is None
    if there or meant == ROOT or os.fsdecode(path) in ruled:
        whole = HostPath(root.rstrip(b"/") + path)
        raise UserFault(
            Exit.PLACE,
            f"{display(path)} may be a path of the view, or the place on this machine of {display(meant)} in it; "
            f"write {display(whole)} for the one, {display(meant)} for the other",
        )
    return meant


def runs() -> dict[HostPath, list[HostPath]]:
    """The runs of this user that answer: by the place where their commands see the view, the mountpoints."""
    found: dict[HostPath, list[HostPath]] = {}
    for status in all_status()[0]:
        if status.get("appears_at") is not None:
            place = HostPath(os.fsencode(status["appears_at"]))
            found.setdefault(place, []).append(HostPath(os.fsencode(status["mountpoint"])))
    return found


def _only(named: HostPath, points: list[HostPath]) -> HostPath | None:
    if len(points) > 1:
        listed = ", ".join(display(point) for point in points)
        raise UserFault(
            Exit.PLACE,
            f"{display(named)} is the SOURCE of {len(points)} runs; name one by where its view is mounted: {listed}",
        )
    return points[0] if points else None


def all_status() -> tuple[list[dict[str, Any]], list[HostPath]]:
    """The status of every mount of this user that answers, with whether it is a mount here no more, and the mountpoints of
    those that do not. Sockets that nobody serves any more are cleaned away with their mounts."""
    found: list[dict[str, Any]] = []
    silent: list[HostPath] = []
    views = {places.control_socket(point): point for point in _points()}
    with contextlib.suppress(OSError):
        for path in sorted(places.runtime_directory().glob("*.sock")):
            try:
                status = _ask(path, {"do": "status"}, _STATUS_TIMEOUT)
                # By the table as it is after the answer: a view that has just been mounted is in it.
                found.append({**status, "detached": os.fsencode(status["mountpoint"]) not in _points()})
            except UserFault:
                continue
            except OSError as error:
                if path in views:
                    silent.append(views[path])
                elif isinstance(error, ConnectionRefusedError):
                    path.unlink(missing_ok=True)
    return found, silent


def _points() -> set[HostPath]:
    """Where views are mounted."""
    return {mount.point for mount in mounts.mounts() if mount.type == mounts.FILE_SYSTEM_TYPE}


def _ask(path: Path, request: dict[str, Any], timeout: int = TIMEOUT) -> Any:
    """The answer of a socket. Raises as `_asked`."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        return _asked(connection, path, request, timeout)


def _asked(connection: socket.socket, path: Path, request: dict[str, Any], timeout: int) -> Any:
    """The answer of the socket at `path`, by a connection that is made here. Raises `ConnectionRefusedError` where nobody
    serves it, `ConnectionResetError` where that process is gone, `TimeoutError`, another `OSError`, and `UserFault` for a
    refusal."""
    # Limits of the kernel's rather than of Python's: a socket with the latter does not wait for room in a backlog.
    for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
        connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", timeout, 0))
    try:
        _connect(connection, path)
        with contextlib.suppress(BrokenPipeError):
            # Refused before it was read: the answer, which is there, says why.
            connection.sendall(json.dumps(request).encode("ascii") + b"\n")
        text = bytearray()
        while not text.endswith(b"\n"):
            piece = connection.recv(1 << 16)
            if not piece:
                raise ConnectionResetError(errno.ECONNRESET, os.strerror(errno.ECONNRESET))
            text += piece
    except BlockingIOError:
        raise TimeoutError(errno.ETIMEDOUT, os.strerror(errno.ETIMEDOUT)) from None
    answer = json.loads(text)
    if "fault" in answer:
        raise UserFault(Exit(answer["exit_code"]), *answer["fault"])
    return answer["ok"]


def _connect(connection: socket.socket, path: Path) -> None:
    """Connect by the directory's descriptor: a socket's path has 107 bytes, unix(7), and a home may have more."""
    directory = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{directory}/{path.name}")
    finally:
        os.close(directory)
