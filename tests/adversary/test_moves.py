"""A directory that its owner moves to a hidden place while a request is on its way.

Each race runs for `--race-seconds` and prints what it tried. See moves.c for what the owner and the session do.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mount.harness import Person, mounted

MOST_REMOVED = 1 / 20
"""Removals that fall into a hidden place, for each time that the directory was moved there: 5 in 18,311 were measured on a
busy machine (SECURITY.md)."""

LEAST = 10
"""Moves of the directory, for each second of a race, and ten times as many tries of the session: on a busy machine the race
goes on until then."""


class Raced(NamedTuple):
    """How often the directory was moved; how many names were made in it where it was hidden, how many of these stayed and
    how many were taken away there; and what the session tried, what went through, and what it saw of the secret."""

    moves: int
    made: int
    stayed: int
    removed: int
    tried: int
    through: int
    seen: int


@pytest.fixture(scope="module")
def moves(compiled: Callable[[str], Path]) -> Path:
    """The attacking program."""
    return compiled("moves")


def attack(person: Person, moves: Path, seconds: float, view: Path, source: Path, mode: str, least: int = LEAST) -> Raced:
    """Run the attack and print its counts."""
    done = person.run(moves, str(seconds), view, source, mode, str(least), timeout=seconds + 60)
    assert done.returncode == 0, done.stderr

    lines = [line.split() for line in done.stdout.splitlines()]
    ((_, *by_owner),) = [line for line in lines if line[0] == "owner"]
    by_session = zip(*([int(number) for number in numbers] for who, *numbers in lines if who == "session"), strict=True)
    raced = Raced(*map(int, by_owner), *map(sum, by_session))
    print(raced)
    assert 0 < raced.through <= raced.tried, "it never met the directory"
    return raced


def assert_raced(raced: Raced, seconds: float) -> None:
    """The session met the directory in the open and elsewhere, and often."""
    assert raced.moves > LEAST * seconds, "the directory was hardly moved"
    assert raced.tried > 10 * LEAST * seconds, "the session tried next to nothing"
    assert raced.through < raced.tried, "it never met the directory elsewhere"


def lay_out(source: Path) -> None:
    """A directory in the open, and a secret in a hidden place."""
    (source / "open" / "d").mkdir(parents=True)
    (source / "open" / "d" / "there").write_text("open")
    (source / "hidden").mkdir()
    (source / "hidden" / "hidden-secret").write_text("secret")


def test_nothing_is_seen_where_a_directory_was_moved_to(
    moves: Path, ground: Path, person: Person, request: pytest.FixtureRequest
) -> None:
    """What is in a directory only while it is in a hidden place is never found, listed, opened or taken away by whoever has
    the directory from where it was open."""
    seconds: float = request.config.getoption("--race-seconds")
    lay_out(ground)
    person.take(ground)
    with mounted(ground, "/=stage", "/hidden=none", deadline=seconds + 60, person=person) as view:
        raced = attack(person, moves, seconds, view.point, ground, "look")
    assert_raced(raced, seconds)
    assert raced.seen == 0
    assert (ground / "hidden" / "hidden-secret").read_text() == "secret"


def test_nothing_is_made_where_a_directory_was_moved_to(
    moves: Path, ground: Path, person: Person, request: pytest.FixtureRequest
) -> None:
    """No name that is made in a directory stays there if it was in a hidden place by then; that one is taken away in there
    is as rare as is said."""
    seconds: float = request.config.getoption("--race-seconds")
    lay_out(ground)
    person.take(ground)
    with mounted(ground, "/=stage", "/hidden=none", deadline=seconds + 60, person=person) as view:
        raced = attack(person, moves, seconds, view.point, ground, "change")
    assert_raced(raced, seconds)
    assert raced.stayed == 0
    assert raced.removed <= 1 + raced.moves * MOST_REMOVED


def test_attack_finds_what_is_open(moves: Path, ground: Path, person: Person) -> None:
    """The attack itself works: on the plain tree, without a view, it finds and changes what the view has to keep from it."""
    lay_out(ground)
    person.take(ground)
    assert attack(person, moves, 0.5, ground, ground, "look", least=0).seen > 0
    (ground / "again").mkdir()
    lay_out(ground / "again")
    person.take(ground)
    made = removed = 0
    for _ in range(30):
        raced = attack(person, moves, 0.5, ground / "again", ground / "again", "change", least=0)
        made, removed = made + raced.made, removed + raced.removed
        if made and removed:
            return
    pytest.fail(f"{made} names made and {removed} taken away in the hidden place, without a view")
