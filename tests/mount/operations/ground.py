"""What the tests of the operations share."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path

_libc = ctypes.CDLL(None, use_errno=True)

SESSION = """
[grants]
"/" = "none"
"/stage" = "stage"
"/ro" = "ro"
"/ro/open" = "stage"
"/stage/ro" = "ro"
"/stage/hidden" = "none"
"/far/away" = "ro"
"""


class Opened:
    """Descriptors that are closed at the end of a test."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def __call__(self, path: Path | str, flags: int, mode: int = 0o666, dir_fd: int | None = None) -> int:
        descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
        self._descriptors.append(descriptor)
        return descriptor

    def close(self) -> None:
        """Close them all."""
        for descriptor in self._descriptors:
            os.close(descriptor)
