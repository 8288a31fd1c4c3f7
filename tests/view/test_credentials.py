"""Credentials by identity: what of the denied places is looked at."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from policyfs.policy.paths import HostPath
from policyfs.view.credentials import Credentials


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A denied place with a key in it, and with a directory that is not to be entered."""
    place = tmp_path / "place"
    (place / "unwalked").mkdir(parents=True)
    (place / "key").write_text("secret")
    (place / "unwalked/code").write_text("code")
    return place


def of(place: Path) -> Credentials:
    return Credentials([HostPath(os.fsencode(place))], [HostPath(os.fsencode(place / "unwalked"))])


def test_what_is_not_walked_holds_none(place: Path) -> None:
    """The files of a place are known, those of a directory in it that is not to be entered are not."""
    held = of(place)
    assert held.holds((place / "key").stat())
    assert not held.holds((place / "unwalked/code").stat())
