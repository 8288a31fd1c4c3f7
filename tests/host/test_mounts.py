"""What is mounted where."""

from __future__ import annotations

import pytest

from policyfs.host import mounts
from policyfs.host.mounts import FILE_SYSTEM_TYPE, Mount
from policyfs.policy.paths import HostPath


@pytest.mark.parametrize(("types", "inside"), [([FILE_SYSTEM_TYPE, "tmpfs"], False), (["tmpfs", FILE_SYSTEM_TYPE], True)])
def test_a_covered_view_is_not_the_one_that_is_there(
    monkeypatch: pytest.MonkeyPatch, types: list[str], inside: bool
) -> None:
    """A path leads into a view only where nothing is mounted over it."""
    table = [Mount(HostPath(b"/"), "ext4", "8:1"), *(Mount(HostPath(b"/nowhere/v"), kind, "0:9") for kind in types)]
    monkeypatch.setattr(mounts, "mounts", lambda: table)
    assert mounts.in_view(HostPath(b"/nowhere/v/x")) == ((b"/nowhere/v", b"/x") if inside else None)
