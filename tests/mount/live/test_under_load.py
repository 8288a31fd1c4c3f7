"""A change of policy while the mount is in use."""

from __future__ import annotations

import contextlib
import mmap
import os
import re
import signal
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mount.asked import Live, asking_for, live
from tests.mount.children import child
from tests.mount.expecting import errno_of, until
from tests.mount.harness import MODULE_DEADLINE, TIMEOUT
from tests.mount.live.ground import Ground

_READER = """
import ctypes, mmap, os, struct, sys, time
kind, path, counters, at = sys.argv[1:]
file = os.open(counters, os.O_RDWR)
counted = mmap.mmap(file, 0)
at = int(at)
descriptor = os.open(path, os.O_RDONLY)
tries = good = 0
last = 0.0

def count(began, succeeded):
    global tries, good, last
    tries += 1
    if succeeded:
        good += 1
        last = max(last, began)
    struct.pack_into("=QQd", counted, at, tries, good, last)

def by_name():
    with open(path, "rb") as opened:
        return opened.read(7) == b"content"

def by_descriptor():
    return os.pread(descriptor, 7, 0) == b"content"

def by_mapping():
    # SIGBUS ends whoever touches the page, so a child does, and counts for itself.
    child = os.fork()
    if child == 0:
        try:
            mapped = mmap.mmap(descriptor, 0, mmap.MAP_SHARED, mmap.PROT_READ)
        except OSError:
            os._exit(1)
        while True:
            began = time.monotonic()
            if mapped[:7] != b"content":
                os._exit(1)
            count(began, True)
    os.waitpid(child, 0)
    # What the child counted, and the try that it died of.
    global tries, good, last
    tries, good, last = struct.unpack_from("=QQd", counted, at)
    return False

read = {"name": by_name, "descriptor": by_descriptor, "mapping": by_mapping}[kind]
parent = os.getppid()
while os.getppid() == parent:
    began = time.monotonic()
    try:
        succeeded = read()
    except OSError:
        succeeded = False
    count(began, succeeded)
"""


@dataclass
class Readers:
    """Processes that read without a pause, each counting its tries, those that succeeded, and when the last of those
    began (CLOCK_MONOTONIC, one clock for all processes)."""

    counted: mmap.mmap
    kinds: tuple[str, ...]

    def now(self) -> list[tuple[int, int, float]]:
        """Tries, successes and the beginning of the last success, of each."""
        return [struct.unpack_from("=QQd", self.counted, 64 * number) for number in range(len(self.kinds))]

    def all_have(self, index: int, more: int) -> None:
        """Wait until each has tried (0) or succeeded (1) so many more times."""
        before = self.now()

        def have() -> bool:
            return all(now[index] - then[index] >= more for now, then in zip(self.now(), before, strict=True))

        until(have, f"{more} more {('tries', 'successes')[index]} of each reader, from {before}")


@contextlib.contextmanager
def readers(path: Path, directory: Path, kinds: tuple[str, ...]) -> Iterator[Readers]:
    """A process of each kind, reading a file from now on."""
    counters = directory / "counters"
    counters.write_bytes(b"\0" * 4096)
    with contextlib.ExitStack() as stack:
        file = stack.enter_context(counters.open("r+b"))
        counted = stack.enter_context(mmap.mmap(file.fileno(), 0))
        for number, kind in enumerate(kinds):
            words = [sys.executable, "-I", "-S", "-c", _READER, kind, str(path), str(counters), str(64 * number)]
            # A group of its own: the child of one that maps goes with it.
            process = stack.enter_context(subprocess.Popen(words, process_group=0))
            stack.callback(os.killpg, process.pid, signal.SIGKILL)
        yield Readers(counted, kinds)


KINDS = ("name",) * 3 + ("descriptor",) * 3 + ("mapping",) * 2


def test_no_read_that_starts_after_the_acknowledgement_succeeds(ground: Ground, tmp_path: Path) -> None:
    """Eight processes that read by name, by a descriptor and in a mapping, as fast as they can: each reads while it may,
    and of all their reads after a revocation is acknowledged none succeeds, by whatever command it came."""
    ground.grant("ro")
    session_file = ground.live.session_file
    session = session_file.read_text()

    def reload_with(text: str) -> None:
        session_file.write_text(text)
        ground.live.reload()

    closings: dict[str, tuple[Callable[[], None], Callable[[], None]]] = {
        "revoke": (lambda: None, ground.revoke),
        "grant": (lambda: ground.grant("ro"), lambda: ground.grant("none")),
        "revoke of the file alone": (lambda: ground.grant("stage", "f"), lambda: ground.revoke("f")),
        "reload": (
            lambda: reload_with(session.replace("[floors]", f'"{ground.path}/f" = "ro"\n[floors]')),
            lambda: reload_with(session),
        ),
    }
    with readers(ground.inside / "f", tmp_path, KINDS) as reading:
        for way, (opens, closes) in closings.items():
            opens()
            reading.all_have(1, 20)
            closes()
            acknowledged = time.monotonic()
            reading.all_have(0, 20)
            late = {
                kind: last - acknowledged
                for kind, (_, _, last) in zip(KINDS, reading.now(), strict=True)
                if last > acknowledged
            }
            assert not late, f"{way}: reads that began so many seconds after the acknowledgement succeeded: {late}"


def test_writes_that_start_after_the_acknowledgement_fail(ground: Ground) -> None:
    """A process that appends as fast as it can: once it is told that the file can only be read, the source stays as it
    is."""
    script = """
import os, sys
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)
print("ready", flush=True)
while True:
    try:
        os.write(file, b"x")
    except OSError:
        pass
"""
    ground.grant("stage")

    def size() -> int:
        return (ground.behind / "f").stat().st_size

    def more_than(count: Callable[[], int], more: int, what: str) -> None:
        before = count()
        until(lambda: count() > before + more, what)

    with child(script, ground.inside / "f"):
        for level in ("ro", "none"):
            more_than(size, 20, "writes")
            ground.grant(level)
            then = size()
            more_than(lambda: ground.live.status()["refusals"], 50, "tries that are refused")
            assert size() == then
            ground.grant("stage")


MANY = 20_000


@pytest.fixture(scope="module")
def many() -> Iterator[Path]:
    """A directory with so many files; in memory where there is room for that, since making them is the most of it."""
    memory = Path("/dev/shm")
    where = memory if os.access(memory, os.W_OK) else None
    with tempfile.TemporaryDirectory(prefix="policyfs-test-", dir=where) as directory:
        for number in range(20):
            below = os.path.join(directory, str(number))
            os.mkdir(below)
            for file in range(MANY // 20):
                os.mknod(os.path.join(below, str(file)))
        yield Path(os.path.realpath(directory))


@pytest.mark.parametrize("by_epoch", [True, False], ids=["epoch", "name by name"])
def test_a_change_with_many_known_files(many: Path, by_epoch: bool) -> None:
    """With 20,000 files that the kernel knows a change takes a time that a person does not mind, either way."""
    with live(many, "/=ro", sabotage="" if by_epoch else asking_for(old_kernel=True), deadline=MODULE_DEADLINE) as lively:
        found = lively.view.run("find", ".", "-size", "0", "-printf", "x")
        assert len(found.stdout) == MANY, found.stderr
        assert lively.status()["nodes"] > MANY
        for level, answer in (("none", "EACCES"), ("ro", None)):
            began = time.monotonic()
            lively.grant("/", level)
            took = time.monotonic() - began
            assert errno_of(os.listdir, lively.view.point / "7") in (answer, answer and "ENOENT")
            assert took < 8, f"{level}: {took:.1f} s"


def test_changes_while_find_runs(ground: Ground) -> None:
    """find over a tree whose policy changes without a pause: it ends by itself, what no change concerns is found each
    time, and of what is closed and opened it tells nothing but that it is there or not."""
    for directory in range(10):
        (ground.behind / f"d/{directory}").mkdir()
        for number in range(20):
            (ground.behind / f"d/{directory}/{number}").touch()
    ground.grant("ro")
    always = {f"d/{directory}/{number}" for directory in range(0, 10, 2) for number in range(20)}
    changes = 0
    for _ in range(3):
        with ground.live.view.person.popen(
            "bash", "-c", "for i in 1 2 3 4 5; do find d -type f -size -9 -printf '%p %s\n'; done", cwd=ground.inside,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        ) as finding:  # fmt: skip
            assert finding.stdout is not None
            ready = threading.Event()
            said: list[str] = []

            def hear(
                finding: subprocess.Popen[str] = finding, said: list[str] = said, ready: threading.Event = ready
            ) -> None:
                said.extend(finding.communicate(timeout=TIMEOUT))
                ready.set()

            hearing = threading.Thread(target=hear)
            hearing.start()
            while not ready.is_set():
                ground.grant(("none", "stage", "ro")[changes % 3], f"d/{1 + changes % 5 * 2}")
                changes += 1
            hearing.join()
        lines = said[0].splitlines()
        for file in always:
            assert lines.count(f"{file} 0") == 5, (file, said[1])
        errors = [
            line for line in said[1].splitlines() if not re.search(r"(No such file or directory|Permission denied)$", line)
        ]
        assert not errors
    assert changes > 10


def test_status_after_all_this(lively: Live) -> None:
    """After every change above no handle is left, and no node but what the kernel holds."""
    until(lambda: lively.status()["handles"] == 0, "the last handle")
