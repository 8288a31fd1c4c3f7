"""Removed objects, kept in reach for those who found them a moment ago.

Theory. The kernel opens in two steps where other file systems do it in one: it finds an object by its name, then opens it by
its number. Without this a reader who races two renames over a name would meet ESTALE. The kernel forgets a removed object
within microseconds, unless somebody is between the two.
"""

from __future__ import annotations

from collections import deque

import trio

from policyfs.mount.nodes import Node
from policyfs.view.files import OpenFile

MOST_HELD = 32
HOLD_SECONDS = 1.0
"""So many, for so long."""


class Removed:
    """What was removed a moment ago."""

    def __init__(self) -> None:
        self._held: deque[Node] = deque()
        self._holding = trio.Event()

    def hold(self, node: Node, held: OpenFile) -> None:
        """Keep the object of a node in reach, by a descriptor that is this one's to close from now on."""
        node.let_go()
        node.held = held
        self._held.append(node)
        self._holding.set()
        if len(self._held) > MOST_HELD:
            self._held.popleft().let_go()

    def let_go(self) -> bool:
        """Let go of every one of them, which take room in the source. Gives whether there were any."""
        any_held = bool(self._held)
        while self._held:
            self._held.popleft().let_go()
        return any_held

    async def let_go_in_time(self) -> None:
        """Let go of each some time after it was removed. Runs until cancelled."""
        while True:
            await self._holding.wait()
            self._holding = trio.Event()
            held = len(self._held)
            await trio.sleep(HOLD_SECONDS)
            for _ in range(min(held, len(self._held))):
                self._held.popleft().let_go()
            if self._held:
                self._holding.set()
