"""Mounts whose policy is changed while they are used."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from tests.mount.asked import Live, asking_for, live
from tests.mount.harness import MODULE_DEADLINE
from tests.mount.live.ground import SESSION, Ground


@pytest.fixture(scope="module", params=["epoch", "name by name"])
def lively(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Live]:
    """One mount for most tests here, for each of the two ways to tell the kernel."""
    source = tmp_path_factory.mktemp("source")
    for directory in ("own/below", "own/more", "floored"):
        (source / directory).mkdir(parents=True)
        (source / directory / "f").write_text("content")
    for file in ("own/f", "floored/.env"):
        (source / file).write_text("content")
    sabotage = "" if request.param == "epoch" else asking_for(old_kernel=True)
    with live(source, session=SESSION, sabotage=sabotage, deadline=MODULE_DEADLINE) as lively:
        yield lively


@pytest.fixture
def ground(lively: Live, request: pytest.FixtureRequest) -> Ground:
    """A directory with the file `f` and the directory `d` of files in it."""
    name = re.sub(r"\W+", "-", request.node.name)
    behind = lively.view.source / name
    (behind / "d").mkdir(parents=True)
    for file in ("f", "g", "d/f", "d/g"):
        (behind / file).write_text("content of " + file)
    return Ground(lively, f"/{name}", lively.view.point / name, behind)
