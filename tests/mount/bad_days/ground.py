"""What the tests of bad days share."""

from __future__ import annotations

import os
from pathlib import Path

from policyfs.opening.load import PolicyOptions, policy_for
from policyfs.policy.paths import HostPath
from policyfs.source.root import Root
from policyfs.view.monitor import ReferenceMonitor


def view_of(source: Path, *grants: str) -> ReferenceMonitor:
    """The view of a directory, without a mount."""
    place = HostPath(os.fsencode(source))
    return ReferenceMonitor(Root(place), policy_for(place, PolicyOptions(grants=grants)))
