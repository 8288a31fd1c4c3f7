"""What the tests of the sockets share."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from typing import Any

from tests.mount.asked import ask

FAILED, USAGE, PLACE, MACHINE = 1, 2, 4, 5
"""The exit codes that `policyfs --help` documents."""

LEVEL = "user.policyfs.level"

SESSION = """
start = "/ro"
[grants]
"/ro" = "ro"
"/ro/stage" = "stage"
"/ro/hidden" = "none"
"/ro/hidden/open" = "commit"
[floors]
"/ro/stage/floored" = "ro"
"""


def told_of(at: Path, *paths: str) -> list[dict[str, Any]]:
    """What a socket explains of paths."""
    explained: list[dict[str, Any]] = ask(at, do="explain", paths=list(paths))
    return explained


def told(connection: socket.socket) -> Any:
    """The answer to a request that was sent."""
    return json.loads(connection.makefile("rb").read())["ok"]
