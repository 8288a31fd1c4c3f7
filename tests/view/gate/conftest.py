"""A view for the tests of the reference monitor."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from policyfs.policy.paths import HostPath
from policyfs.source.root import Root
from policyfs.view.monitor import ReferenceMonitor
from tests.view.gate.ground import policy


@pytest.fixture
def view(source: Path) -> Iterator[ReferenceMonitor]:
    """A view of a small tree, with the umask of a daemon, which has none."""
    before = os.umask(0)
    for directory in ("d/full", "d/empty", "read", "hidden", "way/open"):
        (source / directory).mkdir(parents=True)
    for file in ("f", "other", "d/full/f", "read/f", "hidden/f", "way/open/f"):
        (source / file).write_text(file)
    (source / "link").symlink_to("f")
    (source / "away").symlink_to("/elsewhere/f")
    os.mkfifo(source / "fifo")
    root = Root(HostPath(os.fsencode(source)))
    try:
        yield ReferenceMonitor(root, policy(source))
    finally:
        root.close()
        os.umask(before)
