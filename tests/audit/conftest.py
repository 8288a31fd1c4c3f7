"""What every test of the journal may use."""

from __future__ import annotations

from pathlib import Path

import pytest


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Where a journal is to be, in a directory that is not there yet."""
    return tmp_path / "journals" / "view"
