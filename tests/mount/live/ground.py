"""What the tests of a changing policy share: a directory of its own for each, and what is tried there."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.mount.asked import Live

SESSION = """
[grants]
"/" = "none"
"/own" = "ro"
"/own/below" = "stage"
[floors]
"/floored" = "ro"
"""


@dataclass
class Ground:
    """A directory of one test's own, which no grant opens until the test does: `path` in the view."""

    live: Live
    path: str
    inside: Path
    behind: Path

    @property
    def by_epoch(self) -> bool:
        """Which of the two ways this is."""
        return "epoch" in self.path

    def grant(self, level: str, name: str = "", seconds: float | None = None) -> None:
        """Open it, or something in it."""
        self.live.grant(f"{self.path}/{name}", level, seconds)

    def revoke(self, name: str = "") -> None:
        """End a grant of it, or of something in it."""
        self.live.revoke(f"{self.path}/{name}")


@contextlib.contextmanager
def opened(path: Path, flags: int) -> Iterator[int]:
    """A descriptor for the body."""
    descriptor = os.open(path, flags)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


_MAPPING = """
import mmap, os, sys
path, kind, act = sys.argv[1:]
descriptor = os.open(path, os.O_RDWR if kind == "dirty" else os.O_RDONLY)
protection = mmap.PROT_READ | (mmap.PROT_WRITE if kind == "dirty" else 0)
mapped = mmap.mmap(descriptor, 0, mmap.MAP_PRIVATE if kind == "private" else mmap.MAP_SHARED, protection)
assert mapped[:7] == b"content"
if kind == "dirty":
    mapped[0] = 88
print("ready", flush=True)
input()
if act == "read":
    print(mapped[:7].decode(), flush=True)
try:
    mapped.flush()
    print("flushed", flush=True)
except OSError as error:
    print(error, flush=True)
"""
