"""What a process is called."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterable

_KEPT = 2.0
"""Seconds for which a name stands for a number: numbers are used again, and a program becomes another by execve."""


class Commands:
    """The command names of processes, each read once in a while. For any thread."""

    def __init__(self) -> None:
        self._known: dict[int, tuple[float, str | None]] = {}
        self._mutex = threading.Lock()

    def look_up(self, processes: Iterable[int]) -> None:
        """Read the names of these processes, unless they were read a moment ago, and forget what is older."""
        now = time.monotonic()
        with self._mutex:
            self._known = {process: known for process, known in self._known.items() if known[0] > now - _KEPT}
            for process in processes:
                if process not in self._known:
                    self._known[process] = (now, command_of(process))

    def __getitem__(self, process: int) -> str | None:
        """The name of a process that was looked up, None where it had ended by then."""
        return self._known.get(process, (0.0, None))[1]


def command_of(process: int) -> str | None:
    """The name that a process has by /proc/PID/comm, at most 15 bytes that it may have chosen itself; those that are no
    UTF-8 become surrogates. None for a process that is gone or not ours to see."""
    # Number 0 is a process that this one's PID namespace does not have.
    if process <= 0:
        return None
    try:
        descriptor = os.open(f"/proc/{process}/comm", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        return os.read(descriptor, 64).removesuffix(b"\n").decode("utf-8", "surrogateescape")
    except OSError:
        return None
    finally:
        os.close(descriptor)
