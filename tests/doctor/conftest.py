"""A tree, and the doctor that looks at it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.doctor.ground import Doctor, told


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The directory that the doctor looks at."""
    tree = tmp_path / "tree"
    tree.mkdir()
    return tree


@pytest.fixture
def doctor(tree: Path, home: Path) -> Doctor:
    """Run the doctor on the tree; gives the findings of one kind, and checks that the exit code agrees."""

    def run(kind: str | None, *options: str) -> list[dict[str, Any]]:
        done = told(tree, home, "--json", *options)
        findings: list[dict[str, Any]] = json.loads(done.stdout)
        assert done.returncode == (1 if findings else 0), done.stderr
        for finding in findings:
            assert finding["advice"], finding
        return [finding for finding in findings if kind in (None, finding["kind"])]

    return run
