"""Mounts for the tests of moves by others."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.mount.asked import Live, asking_for, live
from tests.mount.harness import MODULE_DEADLINE
from tests.mount.moved.ground import TO_KEEP, Ground


@pytest.fixture(scope="module", params=["epoch", "name by name"])
def lively(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One mount for the tests here, for each of the two ways to tell the kernel."""
    sabotage = f"import policyfs.fuse.kernel_cache as cache; cache.SHORT = {TO_KEEP}\n"
    if request.param != "epoch":
        sabotage += asking_for(old_kernel=True)
    with live(tmp_path_factory.mktemp("source"), "/=ro", sabotage=sabotage, deadline=MODULE_DEADLINE) as lively:
        yield lively


@pytest.fixture
def ground(lively: Live, request: pytest.FixtureRequest) -> Iterator[Ground]:
    """The directories `here` and `there`."""
    name = re.sub(r"\W+", "-", request.node.name)
    for directory in ("here", "there"):
        (lively.view.source / name / directory).mkdir(parents=True)
    ground = Ground(lively, f"/{name}", lively.view.point / name, lively.view.source / name)
    with ExitStack() as stack:
        stack.callback(lambda: [os.close(descriptor) for descriptor in ground.opened])
        yield ground
