"""The memory of what the kernel has forgotten, given back to the machine; and how seldom garbage is looked for.

Theory. Nodes are born by the thousand and live long, which is what a generational collector takes for its sign to look at
everything: a first listing of 20,000 entries was a tenth slower for it, and a pause grows with all that is known. But
nodes make no garbage, since `Watch.forget` takes apart what refers to each other. So the collector looks seldom, and never
at what was there before the mount began.

After a walk over 100,000 files and the forgetting of them, 76 of 86 MB stayed with the daemon. Three things hold
it: the tables of nodes, since a dict never shrinks (10 MB); the free lists of the interpreter, whose odd tuple keeps a
whole arena (32 MB), and which a collection empties; and the C library's heap (20 MB), which malloc_trim(3) gives back.
"""

from __future__ import annotations

import ctypes
import gc

import trio

from policyfs.fuse.nodes import Nodes

MANY = 10_000
"""Nodes below which there is nothing worth giving back."""
MUCH = 1 << 20
"""Bytes of names that were let go, from which on it is worth while."""
_SETTLE = 1.0
"""Seconds after much was let go: the kernel forgets in many small portions."""


_COLLECT_AFTER = (50_000, 20, 100)
"""Objects between two looks at the youngest, and looks between those at the older generations (`gc.set_threshold`)."""


def collect_seldom() -> None:
    """Have the interpreter look for garbage seldom, and not at what is there now: modules, and what was made to serve. Not
    looking through it once more lets a mount begin 12 ms earlier."""
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)
    gc.enable()


class Memory:
    """Watches how many nodes there have been and what names were let go, and gives back when a quarter of the nodes is left
    or the names were many."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self._most = 0
        self._released = 0
        self._much_let_go = trio.Event()

    def forgetting(self) -> None:
        """The kernel is about to forget nodes."""
        now = len(self._nodes)
        if now > self._most:
            self._most = now
        elif self._most > MANY and now < self._most // 4:
            self._much_let_go.set()

    def released(self, size: int) -> None:
        """Names that take so many bytes are let go by one of those who have them."""
        self._released += size
        if self._released >= MUCH:
            self._much_let_go.set()

    async def run(self) -> None:
        """Give back, now and then. Runs until cancelled."""
        while True:
            await self._much_let_go.wait()
            await trio.sleep(_SETTLE)
            self._much_let_go = trio.Event()
            self._released = 0
            if self._most > MANY and len(self._nodes) < self._most // 4:
                self._most = len(self._nodes)
                self._nodes.shrink()
                gc.collect()
            await trio.to_thread.run_sync(_trim)


def _trim() -> None:
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc has it, musl gives back by itself
    if trim is not None:
        trim(0)
