"""The program as a person runs it, and what holds of everything it says."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import NamedTuple

from tests.mount.forked import forked
from tests.mount.harness import PROGRAM

DONE, FAILED, USAGE, POLICY, PLACE, MACHINE = range(6)
"""The exit codes, as `policyfs --help` has them."""


class Said(NamedTuple):
    """How a run ended and what it printed."""

    code: int
    output: str
    errors: list[str]

    def fault(self, code: int) -> list[str]:
        """The messages of a run that failed with this code: a line each, and nothing on standard output."""
        assert (self.code, self.output) == (code, ""), self
        assert self.errors, self
        assert all(line.startswith("policyfs: ") for line in self.errors), self
        return [line.removeprefix("policyfs: ") for line in self.errors]


def policyfs(*arguments: str | bytes | Path, home: Path, output: int = subprocess.PIPE) -> Said:
    """Run the program. No run may end in a traceback or print a control character, and none may take long."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("XDG_", "PYTHON"))}
    environment["HOME"] = str(home)
    words = [os.fsdecode(argument) for argument in arguments]
    done: subprocess.CompletedProcess[str]
    if output == subprocess.PIPE:
        done = forked(words, environment=environment, directory=str(home))
    else:
        done = subprocess.run(
            [*PROGRAM, *words],
            stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.PIPE, text=True, errors="surrogateescape",
            cwd=home, env=environment, check=False, timeout=60,
        )  # fmt: skip
    out, errors = done.stdout or "", done.stderr
    assert "Traceback" not in errors, errors
    assert all(character.isprintable() or character == "\n" for character in out + errors), (out, errors)
    return Said(done.returncode, out, errors.splitlines())
