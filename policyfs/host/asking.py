"""Ask a mount by its control socket: for the commands, which never load FUSE."""

from __future__ import annotations

import contextlib
import json
import os
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from policyfs.host import mounts, places
from policyfs.host.faults import Exit, UserFault
from policyfs.policy.paths import HostPath, PathFault, display

PATIENCE = 60.0
"""Seconds to wait for an answer: a change of policy looks at every node of a mount."""


def ask(point: HostPath, request: dict[str, Any]) -> Any:
    """What the mount at `point` answers. Raises `UserFault` for what it refuses, and where it cannot be asked."""
    try:
        return _ask(places.control_socket(point), request)
    except FileNotFoundError:
        reason = "it has no control socket of yours; was it mounted by another user, or with another XDG_RUNTIME_DIR?"
    except ConnectionRefusedError:
        reason = "its daemon is gone; clean up with `policyfs umount`"
    except TimeoutError:
        reason = f"it did not answer within {PATIENCE:.0f} s; see the daemon's log"
    except OSError as error:
        reason = f"its control socket cannot be reached: {os.strerror(error.errno or 0)}"
    raise UserFault(Exit.FAILED, f"{display(point)}: {reason}")


def mounted_view(text: str) -> HostPath:
    """The mountpoint that a command line names. Raises `UserFault` where no view is mounted there."""
    try:
        named = places.absolute(text)
    except PathFault as fault:
        raise UserFault(Exit.PLACE, f"MOUNTPOINT: {fault}; name a mounted view") from None
    point = mounts.real_mountpoint(named)
    mounted = mounts.mount_at(point)
    if mounted is None or mounted.type != mounts.FILE_SYSTEM_TYPE:
        raise UserFault(Exit.PLACE, f"{display(named)} is no mounted view; `policyfs status` lists the views of this user")
    return point


def all_status() -> Iterator[dict[str, Any]]:
    """The status of every mount of this user that answers. Sockets that nobody serves any more are cleaned away."""
    directory = places.runtime_directory()
    with contextlib.suppress(OSError):
        for path in sorted(directory.glob("*.sock")):
            try:
                yield _ask(path, {"do": "status"})
            except ConnectionRefusedError:
                path.unlink(missing_ok=True)
            except (OSError, UserFault):
                continue


def _ask(path: Path, request: dict[str, Any]) -> Any:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(os.fsencode(path))
        connection.sendall(json.dumps(request).encode("ascii") + b"\n")
        text = bytearray()
        while piece := connection.recv(1 << 16):
            text += piece
    if not text:
        raise ConnectionRefusedError
    answer = json.loads(text)
    if "fault" in answer:
        raise UserFault(Exit(answer["exit_code"]), *answer["fault"])
    return answer["ok"]
