"""A read that the page cache cannot answer: looked for once more while that pays, and else left to a thread."""

from __future__ import annotations

import errno
import os
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest
import trio

from policyfs.fuse import waiting
from policyfs.fuse.waiting import LONGEST_REST, Disk
from policyfs.source.files import OpenFile, WouldBlock
from tests.mount.expecting import absent
from tests.mount.harness import mounted

PAGE = b"page" * 1024


class Page(OpenFile):
    """A file of one page on a disk that brings it once it was looked for so many times; by itself never."""

    def __init__(self, comes_after: int | None, fault: OSError | None = None) -> None:
        super().__init__(-1)
        self.comes_after = comes_after
        self.fault = fault
        self.looks = 0
        self.threads: list[threading.Thread] = []

    def read_cached(self, offset: int, size: int) -> memoryview:
        """The page, or the fault, if it has come."""
        self.looks += 1
        if self.comes_after is None or self.looks < self.comes_after:
            raise WouldBlock
        if self.fault is not None:
            raise self.fault
        return memoryview(PAGE)[offset : offset + size]

    def read(self, offset: int, size: int) -> bytes:
        """The page, or the fault."""
        self.threads.append(threading.current_thread())
        if self.fault is not None:
            raise self.fault
        return PAGE[offset : offset + size]


def read(disk: Disk, file: OpenFile, offset: int = 0, size: int = len(PAGE)) -> bytes:
    """What a read is answered that the page cache did not answer, as the handler does it."""

    async def main() -> bytes:
        soon = disk.read_soon(file, offset, size)
        return bytes(soon) if soon is not None else await disk.read(file, offset, size)

    return trio.run(main)


def looked(disk: Disk, file: Page) -> bool:
    """Whether a read of this page looks for it before anything else."""
    before = file.looks
    disk.read_soon(file, 0, 1)
    return file.looks > before


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """A look is one try."""
    monkeypatch.setattr(waiting, "SPIN_SECONDS", 0.0)


@pytest.mark.parametrize("comes_after", [1, 2, 50])
def test_what_the_disk_brings_soon_takes_no_thread(monkeypatch: pytest.MonkeyPatch, comes_after: int) -> None:
    """It is answered by the look that finds it, and the next is looked for again."""
    monkeypatch.setattr(waiting, "SPIN_SECONDS", 60.0)
    disk = Disk()
    for _ in range(3):
        file = Page(comes_after)
        assert read(disk, file, 4, 8) == PAGE[4:12]
        assert (file.looks, file.threads) == (comes_after, [])


def test_what_does_not_come_goes_to_a_thread(impatient: None) -> None:
    """Once, and not to the one that the mount runs in."""
    file = Page(None)
    assert read(Disk(), file, 4, 8) == PAGE[4:12]
    assert file.looks == 1
    (thread,) = file.threads
    assert thread is not threading.current_thread()


def test_how_long_a_look_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    """It ends with the first try that comes back after `SPIN_SECONDS`; at least one is made, however late it is by then."""
    for step, tries in ((waiting.SPIN_SECONDS / 3.5, 4), (1.0, 1)):
        now = 0.0

        class Clock:
            @staticmethod
            def perf_counter(step: float = step) -> float:
                nonlocal now
                now += step
                return now

        monkeypatch.setattr(waiting, "time", Clock)
        file = Page(None)
        assert Disk().read_soon(file, 0, 1) is None
        assert file.looks == tries


def test_looking_in_vain_is_left_off(impatient: None) -> None:
    """For one read, then for two, and so on: a disk that is never quick stops the mount once in `LONGEST_REST` reads, also
    one whose threads are answered at once."""
    disk, file = Disk(), Page(None)
    looks = [number for number in range(6000) if looked(disk, file)]
    rests = [later - earlier - 1 for earlier, later in pairwise(looks)]
    doubling = [2**power for power in range(20) if 2**power < LONGEST_REST]
    assert rests[: len(doubling)] == doubling
    assert set(rests[len(doubling) :]) == {LONGEST_REST}


def test_a_disk_that_has_become_quick_is_looked_at_each_time(impatient: None) -> None:
    """The first look that is answered ends the rests, and the next one in vain costs one read again."""
    disk = Disk()
    for _ in range(20):
        looked(disk, Page(None))
    assert [looked(disk, Page(1)) for _ in range(30)] == [False] * 16 + [True] * 14
    assert [looked(disk, Page(None)) for _ in range(3)] == [True, False, True]


@pytest.mark.parametrize("comes_after", [1, None])
def test_a_fault_of_the_source_is_the_answer(impatient: None, comes_after: int | None) -> None:
    """Whether the look or the thread meets it; it says nothing of how quick the disk is."""
    disk = Disk()
    for _ in range(3):
        file = Page(comes_after, OSError(errno.EIO, "a bad sector"))
        with pytest.raises(OSError, match="a bad sector") as fault:
            read(disk, file)
        assert fault.value.errno == errno.EIO
        assert len(file.threads) == (file.comes_after is None)
        if comes_after is not None:
            assert file.looks == 1


def test_a_file_system_that_cannot_tell(impatient: None) -> None:
    """Where no look can be answered (tmpfs gives EOPNOTSUPP), reads are exact, and few of them are looked for."""
    descriptor = os.memfd_create("page")
    os.write(descriptor, PAGE)
    looks = 0

    class File(OpenFile):
        def read_cached(self, offset: int, size: int) -> memoryview:
            nonlocal looks
            looks += 1
            return super().read_cached(offset, size)

    file = File(descriptor)
    try:
        try:
            file.read_cached(0, 1)
        except WouldBlock:
            pass
        else:
            absent("tmpfs of this kernel tells what it has")
        looks = 0
        disk = Disk()
        for number in range(100):
            assert read(disk, file, number, 8) == PAGE[number : number + 8]
        assert 0 < looks < 10
    finally:
        file.close()


# -- on a real disk

CONTENT = Random(7).randbytes((1 << 21) + 1234)

NOTED = """
from policyfs.fuse import waiting
soon, thread = waiting.Disk.read_soon, waiting.Disk.read
def note(text):
    with open({noted!r}, "a") as noted:
        noted.write(text)
def read_soon(disk, file, offset, size):
    data = {read_soon}
    note("." if data is None else "s")
    return data
async def read(disk, file, offset, size):
    note("t")
    return await thread(disk, file, offset, size)
waiting.Disk.read_soon, waiting.Disk.read = read_soon, read
{more}
"""


def _drop(path: Path) -> None:
    """Write to the disk what the page cache has of a file, and drop it there."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


def _can_tell(path: Path) -> bool:
    """Whether the file system of a file whose pages were dropped says of a read that it would wait."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.preadv(descriptor, [bytearray(4096)], 0, os.RWF_NOWAIT)
    except OSError as error:
        return error.errno == errno.EAGAIN
    finally:
        os.close(descriptor)
    return False


@pytest.fixture
def cold(tmp_path: Path) -> Iterator[Path]:
    """A file that is in no cache, on a disk that can tell so."""
    reasons = []
    for base in (tmp_path, Path("/var/tmp")):
        with tempfile.TemporaryDirectory(dir=base) as directory:
            file = Path(directory, "source", "file")
            file.parent.mkdir()
            file.write_bytes(CONTENT)
            _drop(file)
            if _can_tell(file):
                _drop(file)
                yield file
                return
            reasons.append(str(base))
    absent(f"no file system at {' or '.join(reasons)} that says of a read that it would wait")


@pytest.mark.parametrize("way", ["as it is", "by looking", "by a thread"])
def test_a_file_that_is_in_no_cache_is_read_exactly(cold: Path, tmp_path: Path, way: str) -> None:
    """By four readers at once, each with pieces of its own; whichever way the daemon takes."""
    noted = tmp_path / "noted"
    read_soon = "None" if way == "by a thread" else "soon(disk, file, offset, size)"
    more = "waiting.SPIN_SECONDS = 10.0" if way == "by looking" else ""
    sabotage = NOTED.format(noted=str(noted), read_soon=read_soon, more=more)
    size = 4096 * 3 + 17
    with mounted(cold.parent, "/=ro", sabotage=sabotage) as view:
        descriptor = os.open(view.point / cold.name, os.O_RDONLY)
        try:
            # Each read comes to the daemon as it is, rather than as the kernel reads ahead.
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_RANDOM)
            offsets = list(range(0, len(CONTENT) + size, size))
            Random(1).shuffle(offsets)
            with ThreadPoolExecutor(4) as readers:
                pieces = list(readers.map(lambda offset: os.pread(descriptor, size, offset), offsets))
        finally:
            os.close(descriptor)
        assert [len(piece) for piece in pieces] == [len(CONTENT[offset : offset + size]) for offset in offsets]
        assert pieces == [CONTENT[offset : offset + size] for offset in offsets]
    ways = noted.read_text()
    assert ways.count(".") == ways.count("t")
    assert ways
    if way == "by looking":
        assert set(ways) == {"s"}
    elif way == "by a thread":
        assert set(ways) == {".", "t"}
