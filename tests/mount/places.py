"""Directories for tests that share one mount: one for each test, seen from both sides."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mount.harness import Mounted


@dataclass(frozen=True)
class Place:
    """A directory of a view, and the same directory in the source."""

    view: Mounted
    inside: Path
    behind: Path

    def shell(self, script: str) -> str:
        """Run a bash script there that must succeed; what it said."""
        done = self.view.run("bash", "-euo", "pipefail", "-c", script, cwd=self.inside)
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout

    def python(self, script: str, *arguments: str) -> str:
        """Run a Python script there that must succeed; what it said."""
        done = self.view.python(script, *arguments, cwd=self.inside)
        assert done.returncode == 0, f"exit code {done.returncode}: {done.stdout}{done.stderr}"
        return done.stdout


def place_for(view: Mounted, request: pytest.FixtureRequest, below: str = "") -> Place:
    """A new directory named after the test, made in the source."""
    name = re.sub(r"\W+", "-", request.node.name)
    (view.source / below / name).mkdir(parents=True)
    return Place(view, view.point / below / name, view.source / below / name)


def names(directory: str | os.PathLike[str]) -> list[str]:
    """The names in a directory, sorted."""
    return sorted(os.listdir(directory))
