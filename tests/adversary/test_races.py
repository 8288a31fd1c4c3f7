"""Races: what is swapped while somebody reads and writes through the mount leads nobody to anything hidden.

Each runs for `--race-seconds` and prints what it tried. The hidden files say SECRET; hidden names begin with `hidden-`.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.adversary.source_state import changes, state_of
from tests.mount.harness import Person, mounted

HIDDEN_SIZE = 4242
"""As in races.c: no file that is shown is as long."""


class Counts(NamedTuple):
    """What one actor did."""

    actor: str
    tried: int
    through: int
    hidden_bytes: int
    hidden_names: int


@pytest.fixture(scope="module")
def races(compiled: Callable[[str], Path]) -> Path:
    """The attacking program."""
    return compiled("races")


@pytest.fixture
def seconds(request: pytest.FixtureRequest) -> float:
    """How long a race runs."""
    value: float = request.config.getoption("--race-seconds")
    return value


def hide_something_in(directory: Path) -> None:
    """Files of which neither a byte nor a name may ever be seen. `plain` is a name that is open elsewhere."""
    directory.mkdir()
    for name in ("hidden-secret", "hidden-other", "plain"):
        (directory / name).write_text(("SECRET" * HIDDEN_SIZE)[:HIDDEN_SIZE])


def attack(person: Person, races: Path, seconds: float, view: Path, source: Path, mode: str) -> list[Counts]:
    """Run the attack, print its counts and prove that each actor did something."""
    done = person.run(races, str(seconds), view, source, mode, timeout=seconds + 60)
    assert done.returncode == 0, done.stderr
    counts = []
    for line in done.stdout.splitlines():
        actor, *numbers = line.split()
        counts.append(Counts(actor, *map(int, numbers)))
        print(f"{actor}: {counts[-1].tried} tried, {counts[-1].through} went through")
    assert counts
    for one in counts:
        assert one.tried > 40 * seconds, f"{one.actor} tried next to nothing"
        assert one.through > 0, f"nothing went through for {one.actor}: it attacked a closed door"
    return counts


def saw_nothing_hidden(counts: list[Counts]) -> None:
    """No byte of a hidden file and no name of a hidden entry, although each actor stood before closed doors too."""
    for one in counts:
        assert one.actor == "swap" or one.through < one.tried, f"{one.actor} met nothing that was swapped"
    assert {one.actor: (one.hidden_bytes, one.hidden_names) for one in counts} == {one.actor: (0, 0) for one in counts}


def test_swaps_in_the_source_lead_nowhere(races: Path, seconds: float, ground: Path, person: Person) -> None:
    """A directory or a file that its owner swaps for a link to a hidden one, again and again, never leads a session's
    reader to a hidden byte or name, nor a writer out of what it may change."""
    hide_something_in(ground / "hidden")
    (ground / "fixed").mkdir()
    (ground / "fixed" / "hidden-secret").write_text("read me")
    for place in ("open", "stage"):
        (ground / place).mkdir()
        (ground / place / "dir").mkdir()
        (ground / place / "dir" / "plain").write_text("open")
        (ground / place / "dirlink").symlink_to("../hidden")
        (ground / place / "file").write_text("open")
        (ground / place / "filelink").symlink_to("../hidden/plain")
    (ground / "stage" / "mixed").mkdir()
    # Not hidden, but not to be changed either: whoever walks through this link must be judged by where it leads.
    (ground / "stage" / "mixedlink").symlink_to("../fixed")
    # The swapped names themselves change, by their owner's hand; what they stand for may not.
    kept = [ground / "hidden", ground / "fixed"]
    person.take(ground)
    before = [state_of(place) for place in kept]
    with mounted(ground, "/=ro", "/stage=stage", "/hidden=none", deadline=seconds + 60, person=person) as view:
        counts = attack(person, races, seconds, view.point, ground, "source")
    saw_nothing_hidden(counts)
    assert [changes(old, state_of(place)) for old, place in zip(before, kept, strict=True)] == [[], []]
    assert sorted(os.listdir(ground)) == ["fixed", "hidden", "open", "stage"]
    assert set(os.listdir(ground / "open")) == {"dir", "dirlink", "file", "filelink"}
    for name in ("file", "filelink"):
        path = ground / "open" / name
        assert path.is_symlink() or path.read_text() == "open"


def test_swaps_through_the_mount_lead_nowhere(races: Path, seconds: float, ground: Path, person: Person) -> None:
    """A session that swaps its own directories, so that the links in them land elsewhere from one moment to the next,
    reads and changes nothing beyond what it may."""
    hide_something_in(ground / "target")
    stage = ground / "stage"
    for place in ("target", "one", "deep", "deep/two", "dir", "deep/dir"):
        (stage / place).mkdir(parents=True)
    for place in ("target/plain", "file", "deep/file"):
        (stage / place).write_text("open")
    # Where each stands now both land on /stage/target; in each other's place, on /target and on nothing.
    (stage / "deep/two/link").symlink_to("../../target/plain")
    (stage / "deep/two/up").symlink_to("../../target")
    (stage / "one/link").symlink_to("../target/plain")
    (stage / "one/up").symlink_to("../target")
    person.take(ground)
    before = state_of(ground, except_below=("stage",))
    with mounted(ground, "/=ro", "/stage=stage", "/target=none", deadline=seconds + 60, person=person) as view:
        counts = attack(person, races, seconds, view.point, ground, "mount")
    saw_nothing_hidden(counts)
    assert changes(before, state_of(ground, except_below=("stage",))) == []


def test_attack_finds_what_is_open(races: Path, ground: Path, person: Person) -> None:
    """The attack itself works: on the plain tree, without a view, it finds what the view has to keep from it."""
    hide_something_in(ground / "hidden")
    for place in ("open", "stage"):
        (ground / place / "dir").mkdir(parents=True)
        (ground / place / "dirlink").symlink_to("../hidden")
        (ground / place / "file").write_text("open")
        (ground / place / "filelink").symlink_to("../hidden/plain")
    (ground / "stage" / "mixed").mkdir()
    (ground / "stage" / "mixedlink").symlink_to("../hidden")
    before = state_of(ground / "hidden")
    person.take(ground)
    counts = attack(person, races, 0.5, ground, ground, "source")
    assert sum(one.hidden_bytes for one in counts) > 0
    assert sum(one.hidden_names for one in counts) > 0
    assert changes(before, state_of(ground / "hidden"))
