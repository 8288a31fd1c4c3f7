"""Who attacks, and where: each race is run as the user of the tests and as an ordinary user; for root these are two."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount import harness
from tests.mount.expecting import c_compiler

HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=harness.PEOPLE)
def person(request: pytest.FixtureRequest) -> Iterator[harness.Person]:
    """Somebody who attacks."""
    with harness.one_of_people(request.param) as somebody:
        yield somebody


@pytest.fixture
def ground(person: harness.Person, tmp_path: Path) -> Path:
    """An empty directory of that person's, to make views of."""
    directory = person.home / tmp_path.name
    directory.mkdir()
    return directory


@pytest.fixture(scope="module")
def compiled(person: harness.Person) -> Callable[[str], Path]:
    """Compiles an attacking program of this directory, for that person to run."""
    compiler = c_compiler()

    def program(name: str) -> Path:
        path = person.home / name
        words = [compiler, "-O2", "-Wall", "-Wno-format-truncation", "-o", path, HERE / f"{name}.c"]
        subprocess.run(words, check=True)
        return path

    return program
