"""A second tree in a view, before any option can ask for one."""

from __future__ import annotations

from pathlib import Path

_SECOND_TREE = """
import policyfs.daemon.main as daemon
from policyfs.source.root import Root
from policyfs.view.monitor import ReferenceMonitor

class ViewOfTwoTrees(ReferenceMonitor):
    def __init__(self, *arguments, **named):
        super().__init__(*arguments, mounted=dict([({point!r}, Root({place!r}, 1))]), **named)

daemon.ReferenceMonitor = ViewOfTwoTrees
"""


def with_second_tree(point: str, place: Path) -> str:
    """Text for `mounted(sabotage=...)`: the daemon's view has the directory `place` as a second tree at `/POINT`."""
    return _SECOND_TREE.format(point=f"/{point}".encode(), place=bytes(place))
