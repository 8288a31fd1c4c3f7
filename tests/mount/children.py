"""Programs that a test starts, lets go on, and ends."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

from tests.mount.harness import TIMEOUT


@contextlib.contextmanager
def child(script: str, *arguments: str | Path, cwd: Path | None = None) -> Iterator[subprocess.Popen[str]]:
    """A process that has said `ready`, goes on when it is told by `go`, and is gone at the end."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", script, *map(str, arguments)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=cwd,
        text=True,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process, contextlib.ExitStack() as stack:
        stack.callback(process.kill)
        assert process.stdout.readline() == "ready\n"
        yield process


def go(process: subprocess.Popen[str]) -> str:
    """Let a child go on to its end; what it said."""
    return process.communicate("go\n", timeout=TIMEOUT)[0]
