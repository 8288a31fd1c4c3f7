"""A directory that its owner moves to a hidden place while a request is on its way.

Each race runs for `--race-seconds` and prints what it tried. See moves.c for what the owner and the session do.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mount.harness import mounted

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
def moves(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The attacking program, compiled."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    program = tmp_path_factory.mktemp("moves") / "moves"
    subprocess.run([compiler, "-O2", "-Wall", "-o", program, Path(__file__).with_name("moves.c")], check=True)
    return program


def attack(moves: Path, seconds: float, view: Path, source: Path, mode: str, least: int = LEAST) -> Raced:
    """Run the attack and print its counts."""
    words = [moves, str(seconds), view, source, mode, str(least)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=seconds + 60, check=True)
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


def test_nothing_is_seen_where_a_directory_was_moved_to(moves: Path, source: Path, request: pytest.FixtureRequest) -> None:
    """What is in a directory only while it is in a hidden place is never found, listed, opened or taken away by whoever has
    the directory from where it was open."""
    seconds: float = request.config.getoption("--race-seconds")
    lay_out(source)
    with mounted(source, "/=stage", "/hidden=none", deadline=seconds + 60) as view:
        raced = attack(moves, seconds, view.point, source, "look")
    assert_raced(raced, seconds)
    assert raced.seen == 0
    assert (source / "hidden" / "hidden-secret").read_text() == "secret"


def test_nothing_is_made_where_a_directory_was_moved_to(moves: Path, source: Path, request: pytest.FixtureRequest) -> None:
    """No name that is made in a directory stays there if it was in a hidden place by then; that one is taken away in there
    is as rare as is said."""
    seconds: float = request.config.getoption("--race-seconds")
    lay_out(source)
    with mounted(source, "/=stage", "/hidden=none", deadline=seconds + 60) as view:
        raced = attack(moves, seconds, view.point, source, "change")
    assert_raced(raced, seconds)
    assert raced.stayed == 0
    assert raced.removed <= 1 + raced.moves * MOST_REMOVED


def test_attack_finds_what_is_open(moves: Path, source: Path) -> None:
    """The attack itself works: on the plain tree, without a view, it finds and changes what the view has to keep from it."""
    lay_out(source)
    assert attack(moves, 0.5, source, source, "look", least=0).seen > 0
    (source / "again").mkdir()
    lay_out(source / "again")
    raced = attack(moves, 0.5, source / "again", source / "again", "change", least=0)
    assert raced.made > 0
    assert raced.removed > 0
