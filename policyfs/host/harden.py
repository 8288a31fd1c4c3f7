"""What a process that holds the source does for itself before it holds it (rule daemon-1)."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource

_PR_SET_DUMPABLE = 4
"""prctl(2)."""


def prctl(option: int, value: int, name: str) -> None:
    """prctl(2) of an option that takes a number. Raises OSError, which tells the option's name."""
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({name})")


def harden() -> None:
    """Close the ways around the view through this process: no other process of the user may read its memory or its
    descriptors through /proc, trace it or take a descriptor from it; no core file is left of it."""
    prctl(_PR_SET_DUMPABLE, 0, "PR_SET_DUMPABLE")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def raise_descriptor_limit() -> int:
    """Take as many descriptors as the machine gives, and tell how many."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    # More than 2**20 costs memory in programs that walk all numbers and serves nobody here.
    wanted = 1 << 20 if hard == resource.RLIM_INFINITY else min(hard, 1 << 20)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def close_inherited(keep: set[int]) -> None:
    """Close every descriptor above 2 that is not to be kept."""
    for name in os.listdir("/proc/self/fd"):
        descriptor = int(name)
        if descriptor > 2 and descriptor not in keep:
            with contextlib.suppress(OSError):
                os.close(descriptor)
