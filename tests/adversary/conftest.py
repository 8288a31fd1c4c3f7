"""Who attacks, and where: each race is run as root, where the tests are, and as an ordinary user."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount import harness

HERE = Path(__file__).parent


@pytest.fixture(scope="module", params=["root", "user"])
def person(request: pytest.FixtureRequest) -> Iterator[harness.Person]:
    """Whoever runs the tests, and an ordinary user. Where the tests run as one already, both are the same."""
    with harness.myself() if request.param == "root" else harness.ordinary_user() as somebody:
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
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")

    def program(name: str) -> Path:
        path = person.home / name
        words = [compiler, "-O2", "-Wall", "-Wno-format-truncation", "-o", path, HERE / f"{name}.c"]
        subprocess.run(words, check=True)
        return path

    return program


def give(directory: Path, person: harness.Person) -> None:
    """Make a directory and all in it that person's own."""
    for above, directories, files in os.walk(directory):
        for name in (".", *directories, *files):
            os.chown(os.path.join(above, name), person.uid, person.uid, follow_symlinks=False)
