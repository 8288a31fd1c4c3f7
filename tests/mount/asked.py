"""Mounts that are asked by their sockets: the plain protocol, so that what a command makes of it hides nothing."""

from __future__ import annotations

import contextlib
import json
import os
import platform
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mount.harness import TIMEOUT, Mounted, Person, mounted

_REQUEST = """
import dataclasses
from policyfs.daemon.request import MountRequest
loads = MountRequest.loads
MountRequest.loads = staticmethod(lambda text: dataclasses.replace(loads(text), **{values!r}))
"""


def asking_for(**values: Any) -> str:
    """A sabotage (`harness.mounted`) by which the daemon gets these values of a `MountRequest` that no command sets."""
    return _REQUEST.format(values=values)


class Fault(Exception):
    """What a socket answered instead: the messages and the exit code."""

    def __init__(self, messages: list[str], exit_code: int) -> None:
        super().__init__(exit_code, *messages)
        self.messages = messages
        self.exit_code = exit_code


def connected(path: Path) -> socket.socket:
    """A connection, with a limit on every wait. By the directory's descriptor, since a test's path may be long."""
    directory = os.open(path.parent, os.O_PATH)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        connection.settimeout(TIMEOUT)
        connection.connect(f"/proc/self/fd/{directory}/{path.name}")
    except BaseException:
        connection.close()
        raise
    finally:
        os.close(directory)
    return connection


def answered(path: Path, line: bytes) -> bytes:
    """What a socket answers to these bytes, byte for byte, until it has closed the connection."""
    text = b""
    with connected(path) as connection:
        # Who is refused before their words were read is cut off from saying more; the answer is there all the same.
        with contextlib.suppress(BrokenPipeError):
            connection.sendall(line)
        with contextlib.suppress(ConnectionResetError):
            while piece := connection.recv(1 << 16):
                text += piece
    return text


def ask(at: Path, /, **request: Any) -> Any:
    """What a socket answers to a request. Raises `Fault`."""
    answer = json.loads(answered(at, json.dumps(request).encode("ascii") + b"\n"))
    if "fault" in answer:
        raise Fault(answer["fault"], answer["exit_code"])
    return answer["ok"]


def sockets(person: Person) -> list[Path]:
    """The sockets in a person's runtime directory."""
    home, environment = person.home, person.environment
    runtime, state = environment["XDG_RUNTIME_DIR"], environment["XDG_STATE_HOME"]
    directory = Path(runtime, "policyfs") if os.path.isdir(runtime) else Path(state, "policyfs/run")
    assert directory.is_relative_to(home)
    return sorted(directory.glob("*.sock"))


@dataclass
class Live:
    """A mount whose policy is changed while it is used. Every change has been acknowledged when its method returns."""

    view: Mounted
    socket: Path

    def ask(self, **request: Any) -> Any:
        """What the control socket answers. Raises `Fault`."""
        return ask(self.socket, **request)

    def grant(self, path: str, level: str, seconds: float | None = None) -> None:
        """As `policyfs grant`."""
        self.ask(do="grant", path=path, level=level, seconds=seconds)

    def revoke(self, path: str) -> None:
        """As `policyfs revoke`."""
        self.ask(do="revoke", path=path)

    def reload(self, session_file: Path | None = None) -> None:
        """As `policyfs reload`."""
        self.ask(do="reload", session_file=None if session_file is None else str(session_file))

    @property
    def session_file(self) -> Path:
        """The session file that `mounted` wrote."""
        return self.view.log.with_name("session.toml")

    def status(self) -> dict[str, Any]:
        """As `policyfs status --json` has it of this mount."""
        status: dict[str, Any] = self.ask(do="status")
        return status


@contextmanager
def live(source: Path, *grants: str, **options: Any) -> Iterator[Live]:
    """A mount (`harness.mounted`) with its control socket."""
    with mounted(source, *grants, **options) as view:
        (control,) = sockets(view.person)
        yield Live(view, control)


HAS_EPOCH = tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2]) >= (6, 16)
