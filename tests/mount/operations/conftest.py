"""A mount for the tests of the operations."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mount.harness import MODULE_DEADLINE, Mounted, mounted
from tests.mount.operations.ground import SESSION, Opened
from tests.mount.places import Place, place_for


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """One view for all tests here, with each standing in it: /stage, /ro, hidden directories, the passage /far."""
    source = tmp_path_factory.mktemp("source")
    for name in ("stage/ro", "stage/hidden", "ro/open", "far/away", "far/hidden", "hidden"):
        (source / name).mkdir(parents=True)
        (source / name / "f").write_text(name)
    with mounted(source, session=SESSION, deadline=MODULE_DEADLINE) as view:
        yield view


@pytest.fixture
def place(view: Mounted, request: pytest.FixtureRequest) -> Place:
    """A directory at stage of this test's own."""
    return place_for(view, request, "stage")


@pytest.fixture
def readable(view: Mounted, request: pytest.FixtureRequest) -> Place:
    """A directory at ro of this test's own."""
    return place_for(view, request, "ro")


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Open files for one test."""
    files = Opened()
    yield files
    files.close()
