"""Runs as whoever runs the tests and as an ordinary user; for root these are two."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.mount import harness
from tests.mount.harness import Person
from tests.sandbox.runs import Ground, ground, require_sandbox


@pytest.fixture(scope="module", params=harness.PEOPLE)
def person(request: pytest.FixtureRequest) -> Iterator[Person]:
    """Somebody who runs commands."""
    require_sandbox()
    with harness.one_of_people(request.param) as somebody:
        yield somebody


@pytest.fixture
def tree(person: Person) -> Iterator[Ground]:
    """A tree to run programs in."""
    with ground(person) as made:
        yield made


@pytest.fixture(scope="module")
def one_person() -> Iterator[Person]:
    """An ordinary user, where nothing depends on who it is."""
    require_sandbox()
    with harness.ordinary_user() as somebody:
        yield somebody


@pytest.fixture
def one_tree(one_person: Person) -> Iterator[Ground]:
    """A tree of the ordinary user."""
    with ground(one_person) as made:
        yield made
