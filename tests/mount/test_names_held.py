"""What open directories hold of the daemon's memory, and that they give it back."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from policyfs.fuse.names import MAX_HELD, SMALL, Names, Room
from policyfs.policy.paths import Name
from tests.mount.expecting import errno_of, refused, until
from tests.mount.getdents import batches
from tests.mount.harness import MODULE_DEADLINE, mounted
from tests.mount.status import fill, resident

LARGE = 20_000
"""Files of a large directory: their names take 1.1 MB."""
STREAMS = 100
MOST_FOR_STREAMS = 16 << 20
"""Bytes that so many streams of a large directory may take: its names once, and what is open. Each with names of its own
would take 110 MB."""
MOST_KEPT = 4 << 20
"""Bytes that may stay with the daemon when all are closed."""


@contextmanager
def streams(directory: Path, count: int) -> Iterator[list[int]]:
    """A directory that is open so many times, each read from the beginning, once again and a little."""
    opened: list[int] = []
    try:
        for _ in range(count):
            opened.append(os.open(directory, os.O_RDONLY | os.O_DIRECTORY))
            next(batches(opened[-1], 400))
            os.lseek(opened[-1], 0, os.SEEK_SET)
            next(batches(opened[-1], 400))
        yield opened
    finally:
        for descriptor in opened:
            os.close(descriptor)


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source with a large directory, and smaller ones."""
    source = tmp_path_factory.mktemp("many") / "source"
    for name, count in (("large", LARGE), ("middling", 1000), ("small", 100)):
        fill(source / name, count)
    return source


def test_streams_of_one_directory_share_its_names(many: Path) -> None:
    """A hundred streams of a large directory take hardly more than one, and give it back when they are closed."""
    with mounted(many, "/=ro", deadline=MODULE_DEADLINE) as view:
        # Once before: what the interpreter and the nodes take stays.
        with streams(view.point / "large", 1):
            pass
        before = resident(view)
        with streams(view.point / "large", STREAMS):
            grown = resident(view) - before
        print(f"{STREAMS} streams take {grown >> 10} KiB")
        assert grown <= MOST_FOR_STREAMS
        until(lambda: resident(view) - before <= MOST_KEPT, "what they took is given back")


def opens_with(directory: Path, name: str, opened: list[int]) -> bool:
    """Open a directory once more, and leave it open if it has a name by now."""
    descriptor = os.open(directory, os.O_RDONLY | os.O_DIRECTORY)
    if name in os.listdir(descriptor):
        opened.append(descriptor)
        return True
    os.close(descriptor)
    return False


def test_streams_that_see_different_names_are_bounded(many: Path) -> None:
    """Where each stream has names of its own, since the directory changes all the time, opening one more fails with ENFILE
    before they take too much. Small directories can be listed all the same, and a large one again when others are closed."""
    sabotage = "from policyfs.fuse import names; names.MAX_HELD = 4 << 20"
    with mounted(many, "/=ro", sabotage=sabotage, deadline=MODULE_DEADLINE) as view:
        opened: list[int] = []
        for number in range(10):
            os.listdir(view.point / "small")
            (many / f"large/new-{number}").touch()
            try:
                until(partial(opens_with, view.point / "large", f"new-{number}", opened), "it is listed")
            except OSError as error:
                if error.errno != errno.ENFILE:
                    raise
                break
        assert 2 <= len(opened) < 6
        assert len(os.listdir(view.point / "small")) == 100
        with refused("ENFILE"):
            os.listdir(view.point / "large")
        for descriptor in opened:
            # Those that are open are still read to the end, with what was there when they were opened at least.
            assert sum(len(batch) for batch in batches(descriptor, 1 << 16)) > LARGE
            os.close(descriptor)
        assert len(os.listdir(view.point / "large")) > LARGE


def test_a_directory_that_is_larger_than_all_may_be(many: Path) -> None:
    """It can be listed all the same, as long as no other large one is open."""
    sabotage = "from policyfs.fuse import names; names.MAX_HELD = 1 << 19"
    with mounted(many, "/=ro", sabotage=sabotage, deadline=MODULE_DEADLINE) as view:
        assert len(os.listdir(view.point / "large")) >= LARGE
        assert len(os.listdir(view.point / "middling")) == 1000
        with streams(view.point / "large", 3), refused("ENFILE"):
            os.listdir(view.point / "middling")
        assert len(os.listdir(view.point / "middling")) == 1000


# -- the room itself -----------------------------------------------------------------------------------------------------


def listed(size: int) -> list[Name]:
    """Names that take so many bytes, about."""
    return [Name(b"%07d" % number) for number in range(size // 48)]


def test_what_nobody_has_any_more_takes_no_room() -> None:
    """Names count as long as somebody has them, however many do; small ones do not."""
    room = Room(lambda: None)
    names = room.take(listed(1 << 20))
    assert 0.9 < names.size / (1 << 20) < 1.1
    others = [names] * 3
    room.take(listed(SMALL // 2))
    assert room.held == names.size
    own = room.copy(names)
    assert own.listed == names.listed
    assert own.listed is not names.listed
    assert room.held == names.size + own.size
    del names, own, others
    assert room.held == 0


def test_names_that_are_only_kept_are_given_up_for_others() -> None:
    """Where there is no room, what nobody reads goes first. What is more than that is refused, and does not count."""
    kept: list[Names] = []
    room = Room(kept.clear)
    half = MAX_HELD // 2
    kept.append(room.take(listed(half)))
    held = [room.take(listed(half)), room.take(listed(half - 4 * SMALL))]
    assert kept == []
    before = room.held
    assert errno_of(room.take, listed(half)) == errno_of(room.copy, held[0]) == "ENFILE"
    assert room.held == before
    held.pop()
    assert room.copy(held[0]).listed == held[0].listed
    held.clear()
    assert room.take(listed(2 * MAX_HELD)).size > MAX_HELD
