"""Large trees and many users: nobody waits for long, the start does not depend on what is there, memory stays bounded."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mount.expecting import until
from tests.mount.harness import MODULE_DEADLINE, Mounted, mounted
from tests.mount.status import fill, resident, status_of

BYTES_A_NODE = 1024
"""Memory of the daemon for one node that the kernel knows."""


_READERS = """
import mmap, os, sys, time
directory, readers = sys.argv[1], int(sys.argv[2])
counts = memoryview(mmap.mmap(-1, 8 * (readers + 1))).cast("Q")
children = []
for reader in range(readers):
    child = os.fork()
    if not child:
        while not counts[readers]:
            # A name that is never asked twice, and an opening: each takes requests, however warm.
            os.path.exists(f"{directory}/small/missing-{reader}-{counts[reader]}")
            with open(f"{directory}/small/file-{reader}", "rb") as file:
                file.read()
            counts[reader] += 1
        os._exit(0)
    children.append(child)
while not all(counts[:readers]):
    time.sleep(0.001)
before = list(counts[:readers])
end = time.monotonic() + 1
listings = 0
while not listings or time.monotonic() < end:
    assert sum(entry.stat().st_size == 0 for entry in os.scandir(f"{directory}/large")) == 20_000
    listings += 1
print(listings, *(now - then for now, then in zip(counts, before)))
counts[readers] = 1
for child in children:
    assert os.waitpid(child, 0)[1] == 0
"""


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A source of 30,000 files: 20,000 in one directory, 10,000 at the top, and 50."""
    source = tmp_path_factory.mktemp("many") / "source"
    fill(source, 10_000)
    fill(source / "large", 20_000)
    fill(source / "small", 50)
    return source


def test_readers_get_on_while_a_large_directory_is_listed(many: Path) -> None:
    """While a directory of 20,000 is listed, fifty readers all get on, and alike."""
    with mounted(many, "/=ro") as view:
        done = view.python(_READERS, str(view.point), "50")
        assert done.returncode == 0, done.stderr
        listings, *rounds = map(int, done.stdout.split())
        rounds.sort()
        middle = rounds[len(rounds) // 2]
        assert middle >= 5, f"they hardly got on during {listings} listings: {rounds}"
        assert rounds[0] >= middle / 4, f"somebody stood still: {rounds}"
        assert rounds[-1] <= middle * 4, f"somebody got much more than the others: {rounds}"


def seconds_to_first_answer(source: Path) -> float:
    """How long it takes from the command until a file can be read, at best."""
    best = float("inf")
    for _ in range(3):
        began = time.monotonic()
        with mounted(source, "/=ro") as view:
            os.stat(view.point / "file-0")
            best = min(best, time.monotonic() - began)
    return best


def test_the_start_does_not_depend_on_the_number_of_files(source: Path, many: Path) -> None:
    """A view of 30,000 files answers as soon as a view of ten: what nobody asked for is not looked at."""
    for number in range(10):
        (source / f"file-{number}").touch()
    # Looking at 30,000 entries takes 0.1 s and more; the start of an interpreter varies by less.
    assert seconds_to_first_answer(many) <= 1.5 * seconds_to_first_answer(source) + 0.1


_TELL_WHAT_IS_REACHED = """
from policyfs.source import root
openat2 = root._openat2
def telling(directory, path, how):
    with open({record!r}, "ab") as record:
        record.write(path + b"\\n")
    return openat2(directory, path, how)
root._openat2 = telling
"""


def test_the_start_looks_at_nothing_below(source: Path) -> None:
    """Of what lies in the source, the daemon reaches one name and nothing below before it is asked."""
    fill(source / "directory", 10)
    record = source.parent / "record"
    record.touch()
    with mounted(source, "/=ro", sabotage=_TELL_WHAT_IS_REACHED.format(record=str(record))) as view:
        # It asks for the first name that has a letter in another spelling too (case), and looks where credentials are.
        reached = set(record.read_bytes().splitlines())
        assert {b"directory", b"DIRECTORY"} <= reached
        assert not [path for path in reached if b"file-" in path]
        os.stat(view.point / "directory/file-1")
        assert b"directory/file-1" in record.read_bytes(), "what is reached is not recorded"


# -- a hundred thousand files: --slow -----------------------------------------------------------------------------------


@dataclass
class Walked:
    """A view of 100,000 files that `find` has walked, and how the daemon was before."""

    view: Mounted
    resident: int
    nodes: int


@pytest.fixture(scope="module")
def walked(tmp_path_factory: pytest.TempPathFactory, as_root: None) -> Iterator[Walked]:
    """The view of 100,000 files."""
    source = tmp_path_factory.mktemp("large") / "source"
    for number in range(100):
        fill(source / f"directory-{number}", 1000)
    with mounted(source, "/=ro", deadline=MODULE_DEADLINE) as view:
        os.listdir(view.point)
        before = Walked(view, resident(view), status_of(view)["nodes"])
        walk(view)
        yield before


def walk(view: Mounted) -> None:
    """`find`, which stats everything."""
    found = view.run("find", ".", "-size", "0", "-type", "f", timeout=100)
    assert found.stdout.count("\n") == 100_000


@pytest.mark.slow
def test_a_node_takes_at_most_a_kilobyte(walked: Walked) -> None:
    """`find` over 100,000 files takes at most a kilobyte of the daemon for each, and no more the second time."""
    nodes = status_of(walked.view)["nodes"] - walked.nodes
    assert nodes > 90_000, "the kernel has forgotten many of them already"
    grown = resident(walked.view) - walked.resident
    print(f"{grown / nodes:.0f} bytes a node")
    assert grown <= nodes * BYTES_A_NODE
    walk(walked.view)
    assert resident(walked.view) - walked.resident <= grown * 1.2


@pytest.mark.slow
def test_what_the_kernel_forgets_is_given_back(walked: Walked) -> None:
    """Once the kernel has forgotten the nodes, their memory is given back."""
    grown = resident(walked.view) - walked.resident
    # All clean entries and inodes of the machine, these among them.
    Path("/proc/sys/vm/drop_caches").write_text("2")
    until(lambda: status_of(walked.view)["nodes"] < 1000, "the kernel has forgotten what nobody uses")
    until(lambda: resident(walked.view) - walked.resident <= grown / 4, "the memory is given back", 5)
