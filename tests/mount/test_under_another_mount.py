"""What the denylist, floors and policyfs itself close is closed by every path that a mount gives it, as is all that
SOURCE holds of it: for root and for somebody who is not, at the opening of a view and again at a reload."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount.harness import Person, mounted, ordinary_user

SECRET = "an invented key\n"


@pytest.fixture(scope="module", params=[0, 1000], ids=["root", "user"])
def somebody(request: pytest.FixtureRequest, as_root: None) -> Iterator[Person]:
    """Somebody with a mount namespace of their own, in which bind mounts come and go."""
    with ordinary_user(request.param) as person:
        yield person


@pytest.fixture
def person(somebody: Person) -> Person:
    """The same with a home that has something to hide and something to show."""
    for name in (".ssh/inner/key", ".ssh/config", "keys/key", "notes/text", "closed/text", ".local/share/text"):
        (somebody.home / name).parent.mkdir(parents=True, exist_ok=True)
        (somebody.home / name).write_text(SECRET)
    (somebody.home / "other").mkdir(exist_ok=True)
    for place in (somebody.home, *somebody.home.rglob("*")):
        if ".namespace" not in place.parts:
            os.lchown(place, somebody.uid, somebody.uid)
    return somebody


@contextmanager
def bound(person: Person, place: str, at: str) -> Iterator[Path]:
    """A place of the home, shown at another of its places too."""
    enter = ("nsenter", "-t", str(person.namespace), "-m", "--")
    shown = person.home / at
    subprocess.run([*enter, "mount", "--bind", person.home / place, shown], check=True)
    try:
        yield shown
    finally:
        # A view that looks for credentials there keeps it busy.
        subprocess.run([*enter, "umount", "--lazy", shown], check=True)


def seen(view_point: Path, person: Person, *paths: str) -> list[bool]:
    """Whether each path of a view is there for a person."""
    return [person.run("test", "-e", view_point / path).returncode == 0 for path in paths]


def test_a_home_under_another_mount(person: Person) -> None:
    """A view of a bind mount of the home is as closed as a view of the home."""
    with bound(person, "", "other") as other, mounted(other, "/=ro", "/.ssh=commit", person=person) as view:
        assert seen(view.point, person, "notes/text", ".local/state") == [True, True]
        assert seen(view.point, person, ".ssh", ".ssh/config", ".local/state/policyfs", ".run/policyfs") == [False] * 4
        listed = set(view.run("ls", "-A").stdout.split())
        assert "notes" in listed
        assert ".ssh" not in listed
        assert view.run("ls", "-A", ".local/state").stdout == ""


def test_a_directory_of_a_home_under_another_mount(person: Person) -> None:
    """So is a view of what holds policyfs's own state, by that path."""
    with bound(person, "", "other") as other, mounted(other / ".local", "/=ro", person=person) as view:
        assert seen(view.point, person, "share/text", "state/policyfs") == [True, False]


@pytest.mark.parametrize("place", [".ssh", ".ssh/inner"])
def test_a_credential_place_under_another_mount(person: Person, place: str) -> None:
    """A view of the place itself, or of what lies in it, would open nothing, whatever path it has; it is told why."""
    with bound(person, place, "other") as other:
        point = person.home / "view"
        point.mkdir(exist_ok=True)
        done = person.policyfs("mount", other, point, "-g", "/=commit")
        assert done.returncode == 3, done.stderr
        assert "opens nothing" in done.stderr
        told = person.policyfs("explain", other, "/", "-g", "/=commit")
        assert "denylist ~/.ssh (built-in denylist)" in told.stdout


def test_what_is_mounted_on_a_credential_place(person: Person) -> None:
    """Where ~/.ssh is a bind mount of another directory, that directory is closed too, and nothing else of the view."""
    with bound(person, "keys", ".ssh"), mounted(person.home, "/=ro", person=person) as view:
        assert seen(view.point, person, "keys", "keys/key", ".ssh", "notes/text") == [False, False, False, True]


def test_a_floor_under_another_mount(person: Person) -> None:
    """A floors file's places are capped by every path; by none of them does a floor of another place fall on them."""
    floors = person.home / "floors.toml"
    floors.write_text(f'[floors]\n"/" = "ro"\n"{person.home}" = "stage"\n"~/closed" = "none"\n')
    with bound(person, "", "other") as other:
        with mounted(other, "/=commit", options=("--floors", str(floors)), person=person) as view:
            assert seen(view.point, person, "closed", "closed/text", "notes/text") == [False, False, True]
        with mounted(person.home / "notes", "/=commit", options=("--floors", str(floors)), person=person) as view:
            assert view.run("touch", "text").returncode == 0


def reload(person: Person, point: Path) -> None:
    """`policyfs reload`, by who mounted and from where they live."""
    done = person.policyfs("reload", point)
    assert done.returncode == 0, done.stderr


def test_a_source_that_is_covered_when_the_view_is_reloaded(person: Person) -> None:
    """A mount over SOURCE takes nothing from an open view, and none of the paths to what it shows."""
    with bound(person, "", "other") as other, mounted(other / ".local", "/=ro", person=person) as view:
        assert seen(view.point, person, "share/text", "state/policyfs") == [True, False]
        with bound(person, "notes", "other/.local"):
            reload(person, view.point)
            assert seen(view.point, person, "share/text", "state/policyfs") == [True, False]


def test_a_mount_that_is_made_later_counts_from_the_next_reload(person: Person) -> None:
    """The table of mounts is read at the opening and at each reload (SECURITY.md)."""
    with mounted(person.home, "/=ro", person=person) as view:
        assert seen(view.point, person, "keys/key", "notes/text") == [True, True]
        with bound(person, "keys", ".ssh"):
            reload(person, view.point)
            assert seen(view.point, person, "keys/key", "notes/text") == [False, True]
        reload(person, view.point)
        assert seen(view.point, person, "keys/key", "notes/text") == [True, True]
