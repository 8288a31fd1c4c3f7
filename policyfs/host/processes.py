"""What a process is called, and what every process is to have."""

from __future__ import annotations

import os


def command_of(process: int) -> str | None:
    """The name that a process, or a thread, has by /proc/PID/comm: at most 15 bytes that it may have chosen itself; those
    that are not UTF-8 become surrogates. None for a process that is gone or not ours to see."""
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


def ensure_standard_streams() -> None:
    """Have something behind numbers 0, 1 and 2. Where one is closed the next file or pipe that is opened would get it, and
    be taken for input or output by whatever is started then."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        # Like those that a process is given, for its children.
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
