"""Moves at random, compared with the view."""

from __future__ import annotations

import os
from contextlib import ExitStack
from pathlib import Path

import pytest

from policyfs.opening.load import PolicyOptions
from policyfs.opening.view import open_view
from policyfs.policy.paths import HostPath
from tests.mount.asked import asking_for, live
from tests.mount.changes import settle
from tests.mount.expecting import until
from tests.mount.moved.ground import TO_KEEP
from tests.mount.shuffling import SESSION, Shuffled


@pytest.mark.parametrize("seed", [0, 1, 2, 3, 5017, 6029, 6050])
def test_whatever_is_moved_the_mount_shows_what_a_new_one_would(
    seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Changes at random, several before anyone looks, and looks at random, also by directories held open: once the events
    have been seen, the mount shows what the view gives that knows of nothing before."""
    source = tmp_path / "source"
    (source / "marker").mkdir(parents=True)
    (source / "marker/last").touch()
    sabotage = f"import policyfs.fuse.kernel_cache as cache; cache.SHORT = {TO_KEEP}\n"
    if seed % 2:
        sabotage += asking_for(old_kernel=True)
    with live(source, session=SESSION, sabotage=sabotage) as lively, ExitStack() as stack:
        monkeypatch.setenv("HOME", str(lively.view.person.home))
        view = open_view(HostPath(os.fsencode(source)), PolicyOptions(session_file=str(lively.session_file)))
        stack.callback(view.root.close)
        tree = Shuffled(source, lively.view.point, view, seed, patience=TO_KEEP + 0.5)
        stack.callback(tree.close)
        for _ in range(40):
            tree.outside()
        last = lively.view.point / "marker/last"
        for turn in range(1, 16):
            for _ in range(tree.chance.randrange(12)):
                tree.inside()
            for _ in range(tree.chance.randrange(1, 7)):
                tree.outside()
                for _ in range(tree.chance.choice([0, 0, 1, 3])):
                    tree.inside()
            # Events are looked at in their order: once this one is seen, all before it have been.
            settle(source / "marker/last")
            for _ in range(2):
                os.stat(last)
            os.utime(source / "marker/last", (turn, turn))
            until(lambda turn=turn: os.stat(last).st_mtime == turn, "the last change is seen")  # type: ignore[misc]
            tree.check()
