"""Persons and mountpoints for the tests of a mount's life."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount import expecting, harness
from tests.mount.harness import Person


@pytest.fixture
def person() -> Iterator[Person]:
    """Whoever runs the tests, with a home of their own."""
    expecting.require_fuse()
    with harness.myself() as person:
        yield person


@pytest.fixture
def point(person: Person) -> Path:
    """An empty directory to mount at."""
    directory = person.home / "view"
    directory.mkdir()
    return directory
