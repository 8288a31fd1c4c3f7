"""Keep the table of nodes bounded: ask the kernel to forget what it has not used for long.

Theory. A node lives as long as the kernel knows it, and the kernel forgets by its own needs, which know nothing of this
process: a walk over a million files leaves a million nodes here. Linux 6.18 takes FUSE_NOTIFY_PRUNE, a list of nodes that
the daemon would rather have forgotten; it drops those that nothing uses, and sends the FORGETs as for any other. Nodes are
kept in the order in which the kernel was told of them, so the oldest are asked for first. What is open, a working directory
or a directory with known entries stays.

Where the kernel does not know the message nothing happens, and the table is as large as the kernel's caches.
"""

from __future__ import annotations

import itertools
import logging
import os
import struct

import trio

from policyfs.fuse.nodes import Nodes

log = logging.getLogger("policyfs")

SOFT_LIMIT = 200_000
"""Nodes above which the oldest are asked to be forgotten: some 200 MB at the most that a node may take."""
_PRUNE_TO = 0.9
_BATCH = 500
"""Nodes of one message, which is then 4 KB long."""
_EVERY = 1.0
"""Seconds between two looks at the number of nodes."""
_FUSE_NOTIFY_PRUNE = 9
"""enum fuse_notify_code of linux/fuse.h, since protocol 7.45. libfuse has no call for it."""
_OUT_HEADER = struct.Struct("=IiQ")
_PRUNE_OUT = struct.Struct("=IIQ")


async def prune_cold(nodes: Nodes, device: int | None) -> None:
    """Keep the number of nodes near `SOFT_LIMIT`, until cancelled. `device` is the descriptor of /dev/fuse."""
    if device is None:
        return
    while True:
        await trio.sleep(_EVERY)
        surplus = len(nodes) - int(SOFT_LIMIT * _PRUNE_TO)
        if len(nodes) <= SOFT_LIMIT:
            continue
        cold = [node.ino for node in itertools.islice(nodes.oldest(), surplus) if not node.files and not node.listings]
        try:
            await trio.to_thread.run_sync(_ask, device, cold)
        except OSError as error:
            log.info("the kernel does not prune (%s): nodes are forgotten when it needs the room", error.strerror)
            return


def _ask(device: int, inos: list[int]) -> None:
    """In a thread: the kernel may have to wait for a request in flight."""
    for first in range(0, len(inos), _BATCH):
        batch = inos[first : first + _BATCH]
        body = _PRUNE_OUT.pack(len(batch), 0, 0) + struct.pack(f"={len(batch)}Q", *batch)
        os.write(device, _OUT_HEADER.pack(_OUT_HEADER.size + len(body), _FUSE_NOTIFY_PRUNE, 0) + body)
