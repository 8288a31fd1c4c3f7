"""The memory of the daemon: what requests take, it has again afterwards."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mount.expecting import c_compiler, until
from tests.mount.harness import Mounted, mounted
from tests.mount.status import status_of

REQUESTS = 200_000
"""Requests between the two looks at the daemon's memory."""
ROUNDS_FIRST = 30
"""Rounds of each requester before the first look: 45,000 requests, after which every table and cache is as large as it
gets."""
ROUNDS_AT_ONCE = 30
REQUESTERS = 4
"""How many make requests at once: so the daemon need not wait for the processor between two of them on a busy machine."""
DEADLINE = 240.0
"""Seconds that it may take on a machine with much else to do; where there is not, it takes twenty."""
MOST_GROWN = 2 << 20
"""Bytes by which the daemon may have grown after `REQUESTS`: ten bytes for each."""

_TELL_WHAT_IS_HELD = """
import ctypes, gc, mmap
from policyfs.daemon import control
from policyfs.fuse import kernel_cache
from policyfs.policy import globs
kernel_cache.MAX_NEGATIVE = globs.MAX_REMEMBERED = 100
status = control.Control._status
async def telling(self, request):
    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    with open("/proc/self/statm") as pages:
        _, resident, shared, *_ = map(int, pages.read().split())
    return {**await status(self, request), "anonymous": (resident - shared) * mmap.PAGESIZE}
control.Control._status = telling
"""
"""`status` also tells the daemon's anonymous memory, in bytes, after it has collected garbage and given back what is free.
What it remembers of names is bounded by thousands of them; by a hundred here, so that the first rounds fill it."""


class Held(NamedTuple):
    """What a daemon holds, and after how many requests."""

    requests: int
    memory: int


@pytest.fixture(scope="module")
def soak(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The program that makes requests, compiled."""
    program = tmp_path_factory.mktemp("soak") / "soak"
    subprocess.run([c_compiler(), "-O2", "-Wall", "-o", program, Path(__file__).with_name("soak.c")], check=True)
    return program


def held(view: Mounted) -> Held:
    """What the daemon holds at rest: it has nothing open and its journal is written."""

    def at_rest() -> Held | None:
        before, after = status_of(view), status_of(view)
        quiet = before["journal"] == after["journal"] and after["handles"] == 0
        return Held(after["requests"], after["anonymous"]) if quiet else None

    found: Held = until(at_rest, "the daemon rests")
    return found


@pytest.mark.soak
@pytest.mark.timeout(DEADLINE + 30)
def test_memory_does_not_grow_with_the_number_of_requests(soak: Path, source: Path) -> None:
    """After 200,000 requests of every kind, granted and refused, with changes from outside among them, the daemon holds no
    more memory than before them."""
    trees = [str(number) for number in range(REQUESTERS)]
    for tree in trees:
        for name in ("work", "read/many", "hidden"):
            (source / tree / name).mkdir(parents=True)
        for name in ("read/file", "read/other", *(f"read/many/{number}" for number in range(40))):
            (source / tree / name).write_text("content")
    grants = [grant for tree in trees for grant in (f"/{tree}/work=stage", f"/{tree}/hidden=none")]
    with mounted(source, "/=ro", *grants, deadline=DEADLINE, sabotage=_TELL_WHAT_IS_HELD) as view:

        def make_requests(rounds: int) -> Held:
            requesters = [subprocess.Popen([soak, view.point / tree, source / tree, str(rounds)]) for tree in trees]
            assert [requester.wait() for requester in requesters] == [0] * REQUESTERS
            return held(view)

        before = after = make_requests(ROUNDS_FIRST)
        while after.requests - before.requests < REQUESTS:
            after = make_requests(ROUNDS_AT_ONCE)
        grown = after.memory - before.memory
        print(f"{after.requests - before.requests} requests: {grown >> 10} KiB more than {before.memory >> 10}")
        assert grown <= MOST_GROWN
