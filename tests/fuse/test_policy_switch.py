"""What the kernel is told of a change of policy, counted: no mount, a pipe in the place of /dev/fuse."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from policyfs.fuse.handlers import Operations
from policyfs.fuse.policy_switch import PolicySwitch
from policyfs.opening.load import PolicyOptions, policy_for, source_of
from policyfs.opening.view import root_of
from policyfs.view.monitor import ReferenceMonitor

EPOCH_BYTES = 16
"""Of one FUSE_NOTIFY_INC_EPOCH."""


@pytest.fixture
def device() -> Iterator[tuple[int, int]]:
    """Both ends of a pipe: what is written to the kernel can be read."""
    read, write = os.pipe()
    yield read, write
    os.close(read)
    os.close(write)


def test_a_change_of_policy_writes_one_epoch(source: Path, device: tuple[int, int]) -> None:
    """Also where a task follows what handlers find by themselves: it has nothing to add."""
    read, write = device
    place = source_of(str(source))
    view = ReferenceMonitor(root_of(place), policy_for(place, PolicyOptions(grants=("/=ro",))))
    operations = Operations(view)
    switch = PolicySwitch(operations, device=write)

    async def main() -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(switch.follow)
            await trio.testing.wait_all_tasks_blocked()
            for level in ("none", "stage", "ro"):
                await switch.take(policy_for(place, PolicyOptions(grants=("/=ro", f"/a={level}"))))
                await trio.testing.wait_all_tasks_blocked()
                assert len(os.read(read, 4096)) == EPOCH_BYTES
            nursery.cancel_scope.cancel()

    try:
        trio.run(main)
    finally:
        operations.close()
        view.close()
