"""A view at `stage` beside a plain directory, through what stays open: descriptors, directories, mappings. The same system
calls give the same answers and leave the same tree. `tests/adversary/test_differential.py` does it by whole paths.
"""

from __future__ import annotations

import mmap
import os
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.answers import answer_of, tree_of
from tests.mount.expecting import until
from tests.mount.harness import MODULE_DEADLINE, Mounted, Person, mounted
from tests.mount.places import Place, place_for
from tests.mount.system_calls import Drawn, Tree

CALLS = 400
"""For each tree; a fresh one finds more than a long life does."""


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """One view at stage for all tests here."""
    with mounted(tmp_path_factory.mktemp("source"), "/=stage", deadline=MODULE_DEADLINE) as view:
        yield view


@pytest.fixture
def place(view: Mounted, request: pytest.FixtureRequest) -> Place:
    """A directory of this test's own."""
    return place_for(view, request)


def both(plain: Path, place: Place, seed: int, told: Counter[str]) -> None:
    """The calls of a seed on a plain directory and in a view, each compared, and the trees in the end."""
    drawn = Drawn(seed)
    plain.mkdir()
    (place.inside / plain.name).mkdir()
    there, here = Tree(plain), Tree(place.inside / plain.name)
    try:
        calls = drawn.first() + [drawn.call() for _ in range(CALLS)]
        for number, call in enumerate(calls):
            expected, given = there.answer(call), here.answer(call)
            assert given == expected, f"seed {seed}, call {number}: {str(call)[:200]}"
            told[expected if isinstance(expected, str) and expected.isupper() else call[0]] += 1
    finally:
        there.close_all()
        here.close_all()
    tree = tree_of(plain)
    assert tree_of(place.inside / plain.name) == tree, f"seed {seed}"
    assert tree_of(place.behind / plain.name) == tree, f"seed {seed}"


@pytest.mark.parametrize("seeds", [range(40), range(40, 80), range(80, 120)], ids=["0-39", "40-79", "80-119"])
def test_the_same_calls_answer_alike(place: Place, tmp_path: Path, seeds: range) -> None:
    """Calls through descriptors, directories and mappings answer on a view at stage as on a plain directory."""
    told: Counter[str] = Counter()
    for seed in seeds:
        both(tmp_path / f"seed{seed}", place, seed, told)
    # Neither were all refused, nor did all go through.
    assert len(told) > 40, told


# -- what it found ---------------------------------------------------------------------------------------------------------


def _mapped_to_append(top: Path) -> Any:
    """What a mapping of a file that was opened to append leaves."""
    file = os.open(top / "f", os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(file, b"a" * 5000)
        with mmap.mmap(file, 5000) as mapping:
            mapping[4500:4503] = b"XYZ"
            mapping.flush()
        os.write(file, b"end")
    finally:
        os.close(file)
    return (top / "f").read_bytes()


def _made_after_opening(top: Path) -> Any:
    """What a directory lists that was opened before there was anything in it."""
    directory = os.open(top, os.O_RDONLY)
    try:
        os.mkdir("one", dir_fd=directory)
        os.listdir(top)
        os.mkdir("two", dir_fd=directory)
        return sorted(os.listdir(directory))
    finally:
        os.close(directory)


def _removed_long_ago(top: Path) -> Any:
    """What can be done with a directory, a fifo and a file by O_PATH that are open, once they and much else were removed."""
    (top / "d").mkdir()
    os.mkfifo(top / "fifo")
    (top / "f").write_text("text")
    opened = [
        os.open(top / "d", os.O_RDONLY),
        os.open(top / "fifo", os.O_RDWR),
        os.open(top / "f", os.O_PATH),
    ]
    try:
        os.rmdir(top / "d")
        for name in ("fifo", "f", *(f"other{number}" for number in range(100))):
            (top / name).touch()
            os.unlink(top / name)
        os.fchmod(opened[0], 0o700)
        again = os.open(f"/proc/self/fd/{opened[2]}", os.O_RDONLY)
        try:
            read = os.read(again, 10)
        finally:
            os.close(again)
        return [os.fstat(descriptor).st_mode for descriptor in opened], read, os.listdir(opened[0])
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _long_names_in_a_link(top: Path) -> Any:
    """A link whose text has a name that no file system could have."""
    os.symlink("x" * 256, top / "l")
    return os.readlink(top / "l"), answer_of(os.stat, top / "l")


@pytest.mark.parametrize(
    "what",
    [_mapped_to_append, _made_after_opening, _removed_long_ago, _long_names_in_a_link],
    ids=lambda what: what.__name__,
)
def test_it_answers_as_a_plain_directory(place: Place, tmp_path: Path, what: Callable[[Path], Any]) -> None:
    """Each of these once was otherwise on a view."""
    (tmp_path / "plain").mkdir()
    assert answer_of(what, place.inside) == answer_of(what, tmp_path / "plain")


def test_an_open_file_that_another_removed_has_no_links(place: Place) -> None:
    """Whoever holds a lock file open finds out by its links that somebody else removed it."""
    (place.behind / "lock").write_text("")
    file = os.open(place.inside / "lock", os.O_RDONLY)
    try:
        # Only what has not changed for some time is told for longer than a second.
        os.utime(place.behind / "lock", ns=(0, 0))
        until(lambda: os.stat(place.behind / "lock").st_ctime_ns < time.time_ns() - 50_000_000, "the change to be old")
        assert os.fstat(file).st_nlink == 1
        os.unlink(place.behind / "lock")
        until(lambda: os.fstat(file).st_nlink == 0, "its links to be none", 2)
    finally:
        os.close(file)


# -- as somebody whom permissions bind -------------------------------------------------------------------------------------

_OPEN_AND_CLOSED = r"""
import os, sys
top = sys.argv[1]

def answer(act, *arguments):
    try:
        return act(*arguments)
    except OSError as error:
        return type(error).__name__

def opened(path, size):
    with open(path, "wb") as file:
        file.write(b"x" * size)
    return os.open(path, os.O_RDONLY)

for size in (1000, 200_000):
    file = opened(f"{top}/f{size}", size)
    os.fchmod(file, 0)
    print("its mode taken away", answer(os.pread, file, 10, size - 5), answer(os.fsync, file))
os.mkdir(f"{top}/d")
file = opened(f"{top}/d/f", 200_000)
os.chmod(f"{top}/d", 0)
print("its directory closed", answer(os.pread, file, 10, 0), answer(lambda: os.fstat(file).st_size))
print("its directory closed", answer(os.fchmod, file, 0o600))
os.chmod(f"{top}/d", 0o700)
os.listdir(f"{top}/d")
os.chmod(f"{top}/d", 0o300)
print("a directory not to be listed", answer(os.listdir, f"{top}/d"))
for name in ("writable", "readable"):
    path = f"{top}/{name}"
    print(name, answer(os.utime, path), answer(os.utime, path, (1, 2)), os.stat(path).st_mtime > 10)
"""


def test_permissions_bind_as_in_a_plain_directory(ordinary_user: Person) -> None:
    """What is open stays open whatever becomes of permissions; another's file that may be written may be touched."""
    source, plain = ordinary_user.home / "source", ordinary_user.home / "plain"
    for top in (source, plain):
        top.mkdir()
        for name, mode in (("writable", 0o666), ("readable", 0o444)):
            (top / name).write_text("another's")
            (top / name).chmod(mode)
        os.chown(top, ordinary_user.uid, -1)
    expected = ordinary_user.python(_OPEN_AND_CLOSED, plain)
    with mounted(source, "/=stage", person=ordinary_user) as view:
        given = view.python(_OPEN_AND_CLOSED, view.point)
    assert (given.stdout, given.stderr) == (expected.stdout, "")
