"""What the daemon of a mount says of itself. Asking makes no request of the file system, so that requests can be counted."""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.mount.harness import TIMEOUT, Mounted


def status_of(view: Mounted) -> dict[str, Any]:
    """The status of a mount, as `policyfs status --json` gives it, in a hundredth of the time."""
    for path in (view.person.home / ".local/state/policyfs/run").glob("*.sock"):
        answer = bytearray()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(TIMEOUT)
            connection.connect(str(path))
            connection.sendall(b'{"do": "status"}\n')
            while piece := connection.recv(1 << 16):
                answer += piece
        status: dict[str, Any] = json.loads(answer)["ok"]
        if status["mountpoint"] == str(view.point):
            return status
    raise AssertionError(f"the daemon of {view.point} has no control socket")


@dataclass
class Counted:
    """How many requests reached the daemon, and how many times it told the kernel to forget something."""

    requests: int = -1
    invalidations: int = -1


@contextmanager
def counted(view: Mounted) -> Iterator[Counted]:
    """Count what happens in the body. What is counted is there after it."""
    before = status_of(view)
    count = Counted()
    yield count
    after = status_of(view)
    count.requests = after["requests"] - before["requests"]
    count.invalidations = after["invalidations"] - before["invalidations"]


def fill(directory: Path, count: int) -> None:
    """Make many empty files."""
    directory.mkdir(parents=True)
    for number in range(count):
        os.close(os.open(directory / f"file-{number}", os.O_CREAT | os.O_WRONLY, 0o644))


def resident(view: Mounted) -> int:
    """Bytes of memory that the daemon has."""
    text = Path(f"/proc/{view.process}/statm").read_text()
    return int(text.split()[1]) * os.sysconf("SC_PAGE_SIZE")
