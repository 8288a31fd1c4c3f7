"""What the daemon answers from memory while events of SOURCE wait: no mount, and no task that looks at them.

So these tests are exact: an answer is true because the events were read before it, not because time went by.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import trio

from policyfs.fuse.handlers import Operations
from policyfs.opening.load import PolicyOptions, policy_for, source_of
from policyfs.opening.view import root_of
from policyfs.view.monitor import ReferenceMonitor
from tests.mount.expecting import until

ROOT = 1
"""The inode number of the root."""


@pytest.fixture
def operations(source: Path) -> Iterator[Operations]:
    """Handlers over a directory with one file."""
    (source / "old").write_text("old")
    place = source_of(str(source))
    view = ReferenceMonitor(root_of(place), policy_for(place, PolicyOptions(grants=("/=stage",))))
    made = Operations(view)
    yield made
    made.close()
    view.close()


def asked(handler: Callable[..., Any], *arguments: Any) -> Any:
    """What a handler answers."""

    async def ask() -> Any:
        return await handler(*arguments)

    return trio.run(ask)


def listed(operations: Operations) -> set[str]:
    """The names in the root, as an opening of it takes them."""
    handle = asked(operations.opendir, ROOT, None)
    try:
        return {os.fsdecode(name) for name in operations.directories.get(handle).names.listed}
    finally:
        asked(operations.releasedir, handle)


def keeps_names(operations: Operations) -> bool:
    """Whether the names are kept for the next opening."""
    watched = operations.nodes.root.watched
    return watched is not None and watched.names is not None


CHANGES: dict[str, tuple[Callable[[Path], object], set[str]]] = {
    "made": (lambda source: (source / "new").touch(), {"old", "new"}),
    "removed": (lambda source: (source / "old").unlink(), set()),
    "renamed": (lambda source: (source / "old").rename(source / "new"), {"new"}),
    "a directory made": (lambda source: (source / "new").mkdir(), {"old", "new"}),
}


@pytest.mark.parametrize(("change", "names"), CHANGES.values(), ids=CHANGES)
def test_a_listing_shows_what_was_changed_before_it(
    operations: Operations, source: Path, change: Callable[[Path], object], names: set[str]
) -> None:
    """A directory that is opened right after somebody changed it in SOURCE has its names as they are."""
    assert listed(operations) == {"old"}
    assert keeps_names(operations), "nothing is kept, so that nothing could be out of date"
    change(source)
    assert listed(operations) == names
    assert keeps_names(operations)


def test_names_that_were_read_after_ones_own_change_are_kept(operations: Operations, source: Path) -> None:
    """The event of what the session made is older than the names that are read next, and does not take them away."""
    asked(operations.mkdir, ROOT, b"new", 0o755, _Context())
    assert listed(operations) == {"old", "new"}
    operations.watch.read_events()
    assert keeps_names(operations)


class _Context:
    pid = uid = gid = umask = 0


def test_attributes_are_those_of_what_was_changed_before(operations: Operations, source: Path) -> None:
    """Attributes that are asked for right after somebody wrote to the file in SOURCE are those of what it is now, and what
    nobody changed is answered from memory."""
    file = source / "old"
    until(lambda: time.time() - file.stat().st_ctime > 0.05, "the file is no longer new")
    ino = asked(operations.lookup, ROOT, b"old", None).st_ino
    for kept in (1, 2):
        assert asked(operations.getattr, ino, None).st_size == 3
        assert operations.kept == kept, "nothing is kept, so that nothing could be out of date"
    file.write_text("longer")
    assert asked(operations.getattr, ino, None).st_size == 6
