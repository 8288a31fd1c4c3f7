"""Mounts for the tests of the sockets."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.asked import Live, asking_for, live
from tests.mount.control.ground import SESSION
from tests.mount.harness import MODULE_DEADLINE


@pytest.fixture(scope="module")
def asking_socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ask-only socket of the mount below is."""
    return tmp_path_factory.mktemp("ask") / "ask"


@pytest.fixture(scope="module")
def lively(tmp_path_factory: pytest.TempPathFactory, asking_socket: Path) -> Iterator[Live]:
    """One mount for most tests here, with an ask-only socket; a peer of either has a quarter of a second."""
    source = tmp_path_factory.mktemp("source")
    for directory in ("ro/stage/floored", "ro/hidden/open", "ro/hidden/d", "away"):
        (source / directory).mkdir(parents=True)
        (source / directory / "f").write_text("content")
    for file in ("ro/f", "ro/.env", "ro/stage/f", "ro/stage/.env"):
        (source / file).write_text("content")
    (source / "ro/link").symlink_to("stage")
    (source / "ro/to-hidden").symlink_to("hidden/d/f")
    (source / "ro/dangling").symlink_to("nothing")
    os.symlink("f/", source / "ro/slash")
    (source / "ro/file-up").symlink_to("f/../f")
    sabotage = asking_for(ask=str(asking_socket)) + "from policyfs.daemon import control\ncontrol.REQUEST_TIMEOUT = 0.25\n"
    with live(source, session=SESSION, sabotage=sabotage, deadline=MODULE_DEADLINE) as lively:
        yield lively
