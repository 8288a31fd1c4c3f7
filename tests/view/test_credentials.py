"""Credentials by identity: what of the denied places is looked at, when again, and what is so where not all can be."""

from __future__ import annotations

import errno
import logging
import os
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from policyfs.host import mounts
from policyfs.policy.paths import HostPath, Name
from policyfs.source.root import Root
from policyfs.view import credentials
from policyfs.view.credentials import Credentials

FEW = 8


@pytest.fixture(params=[0, 2, 1024], ids=["none held", "two held", "all held"])
def place(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A denied place with a key in it, whose directories are held by descriptors or reached again."""
    monkeypatch.setattr(credentials, "_MAX_HELD", request.param)
    place = tmp_path / "home/place"
    (place / "in").mkdir(parents=True)
    (place / "key").write_text("secret")
    (place / "in/key").write_text("secret")
    return place


def host(path: Path) -> HostPath:
    return HostPath(os.fsencode(path))


def of(*places: Path, unwalked: Iterable[Path] = ()) -> Credentials:
    tops = mounts.tops(host(places[0]), None, mounts.mounts())
    return Credentials(map(host, places), tops, map(host, unwalked))


def holds(held: Credentials, *files: Path) -> list[bool]:
    return [held.holds(file.stat()) for file in files]


def test_what_is_not_walked_holds_none(place: Path) -> None:
    """The files of a place are known, those of a directory in it that is not to be entered are not."""
    assert holds(of(place, unwalked=[place / "in"]), place / "key", place / "in/key") == [True, False]
    assert holds(of(place, place / "in", unwalked=[place / "in"]), place / "in/key") == [False]


def test_what_changes_is_noticed_at_once(place: Path, tmp_path: Path) -> None:
    """Files that come and go, in old directories and new; a place that goes, is replaced, or comes into being; and what
    is moved above it."""
    other, later = tmp_path / "other", tmp_path / "home/late/r"
    other.write_text("open")
    held = of(place, later)
    assert holds(held, place / "key", place / "in/key", other) == [True, True, False]
    for number, directory in enumerate((place, place / "in", place / "in/new", place / "in/new/er", later)):
        directory.mkdir(parents=True, exist_ok=True)
        (directory / "another").write_text("secret")
        assert holds(held, directory / "another", place / "key", other) == [True, True, False], number
    (place / "in/key").rename(tmp_path / "freed")
    assert holds(held, tmp_path / "freed", place / "key") == [False, True]
    (place / "in").rename(tmp_path / "away")
    assert holds(held, tmp_path / "away/another", place / "key") == [False, True]
    (tmp_path / "away").rename(place / "back")
    assert holds(held, place / "back/another") == [True]
    place.parent.rename(tmp_path / "house")
    assert holds(held, tmp_path / "house/place/key") == [False]
    other.rename(tmp_path / "house/key")
    place.parent.mkdir()
    (tmp_path / "house/key").rename(place)
    assert holds(held, place, tmp_path / "house/place/key") == [True, False]
    place.unlink()
    (tmp_path / "house/place").rename(place)
    assert holds(held, place / "key", place / "back/another") == [True, True]


def test_no_place_is_crowded_out(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each has its own bound, whichever is named first, and a directory that is known counts when it is not looked at
    again."""
    monkeypatch.setattr(credentials, "MAX_ENTRIES", FEW)
    full = [tmp_path / "a", tmp_path / "z"]
    for directory in full:
        directory.mkdir()
        for number in range(FEW):
            (directory / str(number)).touch()
    other = tmp_path / "other"
    other.touch()
    held = of(*full, place)
    assert holds(held, place / "key", full[0] / "0", full[1] / "7", other) == [True, True, True, False]


def test_what_is_absent_keeps_nothing_else_from_being_known(place: Path, tmp_path: Path) -> None:
    """A mountpoint that is gone, a place below none, a directory that goes while it is listed: the others are known."""
    held = Credentials(
        [host(tmp_path / "absent/a"), HostPath(b"/beside/all"), host(place)],
        [host(tmp_path / "absent"), host(tmp_path / "home")],
    )
    assert holds(held, place / "key", place / "in/key") == [True, True]


def test_what_goes_while_it_is_listed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A name that is gone, or leads nowhere by now, is passed over, whichever comes first."""
    for name in ("a", "b", "z"):
        (place / name).mkdir()
        (place / name / "key").write_text("secret")
    names, stat_name, reach_name = Root.names, Root.stat_name, Root.reach_name

    def listed(directory: int, most: int | None = None) -> list[Name]:
        return [Name(b"gone"), *names(directory, most)]

    monkeypatch.setattr(Root, "names", staticmethod(listed))
    assert all(holds(of(place), *(place / name / "key" for name in ("a", "b", "z")), place / "key"))

    def gone(look: Callable[[int, Name], object]) -> Callable[[int, Name], object]:
        def looked(directory: int, name: Name) -> object:
            if name.endswith(b"/b"):
                raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
            return look(directory, name)

        return staticmethod(looked)  # type: ignore[return-value]

    monkeypatch.setattr(Root, "reach_name", gone(reach_name))
    monkeypatch.setattr(Root, "stat_name", gone(stat_name))
    assert holds(of(place), *(place / name / "key" for name in ("a", "b", "z"))) == [True, False, True]


def test_the_nearest_mountpoint_is_where_a_walk_begins(tmp_path: Path, as_root: None) -> None:
    """From one above, another mount stands on the way, which no walk enters."""
    inner = tmp_path / "inner"
    inner.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", inner], check=True)
    try:
        (inner / "place").mkdir()
        (inner / "place/key").write_text("secret")
        for tops in ([tmp_path, inner], [inner, tmp_path]):
            held = Credentials([host(inner / "place")], map(host, tops))
            assert held.holds((inner / "place/key").stat())
            del held
    finally:
        subprocess.run(["umount", "-l", inner], check=True)


@pytest.mark.parametrize("below", ["", "in"])
def test_too_large_a_place_holds_all(
    place: Path, below: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What is in it is not known, so any file may be: told once, and over when it has become smaller."""
    monkeypatch.setattr(credentials, "MAX_ENTRIES", FEW)
    other = tmp_path / "other"
    other.touch()
    held = of(place)
    assert not held.holds(other.stat())
    # Beside key, in and in/key.
    for number in range(FEW - 3):
        (place / below / str(number)).touch()
    assert not held.holds(other.stat())
    (place / below / "more").touch()
    for _ in range(2):
        assert held.holds(other.stat())
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    assert f"it may be one of those in {place}, which has more than {FEW} entries; make it smaller" in record.getMessage()
    (place / below / "more").unlink()
    assert not held.holds(other.stat())
    assert of(place).holds((place / "in/key").stat())


@pytest.mark.parametrize("call", ["names", "stat_name", "reach_name"])
def test_a_place_that_cannot_be_looked_at_holds_all(
    place: Path, call: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Where that says nothing of the place: it is looked at again the next time."""
    other = tmp_path / "other"
    other.touch()

    def fails(*_: object) -> object:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patch:
        patch.setattr(Root, call, fails)
        held = of(place)
        assert holds(held, other) == [True]
    assert f"{place}, which cannot be looked at: Too many open files" in caplog.text
    assert holds(held, other, place / "key", place / "in/key") == [False, True, True]


def test_a_place_deeper_than_a_path_holds_all(place: Path, tmp_path: Path) -> None:
    """What no walk of one path reaches."""
    descriptor = os.open(place, os.O_PATH)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=descriptor)
        deeper = os.open("d" * 250, os.O_PATH, dir_fd=descriptor)
        os.close(descriptor)
        descriptor = deeper
    os.close(descriptor)
    assert holds(of(place), tmp_path) == [True]


def test_another_file_system_is_not_looked_at(place: Path) -> None:
    """No name of a file of SOURCE's can be there."""
    held = Credentials([host(place)], [HostPath(b"/proc")])
    assert holds(held, place / "key") == [False]


def test_a_place_that_is_a_mounted_file(place: Path) -> None:
    """As the secrets of a container are."""
    held = Credentials([host(place / "key")], [host(place / "key")])
    assert holds(held, place / "key", place / "in/key") == [True, False]


def test_no_descriptor_is_left(place: Path) -> None:
    """What was held is let go with the last that asks."""
    before = len(os.listdir("/proc/self/fd"))
    held = of(place)
    assert held.holds((place / "key").stat())
    del held
    assert len(os.listdir("/proc/self/fd")) == before
