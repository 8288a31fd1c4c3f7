"""Credentials by identity: what of the denied places is looked at, and how often."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from policyfs.policy.paths import HostPath
from policyfs.view import credentials
from policyfs.view.credentials import TRUE_FOR, Credentials


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


def test_what_was_found_is_true_for_a_moment(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files with several names that are asked for one after another cost one look at the places; a moment later what has
    changed is seen."""
    now = 1000.0
    looks = 0
    changed = credentials._changed

    def counted(path: bytes) -> int:
        nonlocal looks
        looks += 1
        return changed(path)

    monkeypatch.setattr(credentials.time, "monotonic", lambda: now)
    monkeypatch.setattr(credentials, "_changed", counted)
    held = of(place)
    assert held.holds((place / "key").stat())
    before = looks
    (place / "another").write_text("secret")
    assert not held.holds((place / "another").stat())
    assert looks == before > 0
    now += TRUE_FOR
    assert held.holds((place / "another").stat())
    assert looks > before
