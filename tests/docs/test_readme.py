"""README.md: what it shows happens, and the tree that it mounts is there."""

from __future__ import annotations

import subprocess

from tests.docs import console
from tests.mount.expecting import absent
from tests.mount.harness import Person

README = console.CHECKOUT / "README.md"


def test_what_the_readme_shows_happens() -> None:
    """Each command of the README, run in its order, says what stands below it."""
    console.assert_as_it_happens(README)


def test_what_the_readme_shows_happens_to_an_ordinary_user(ordinary_user: Person) -> None:
    """The same for somebody who is not root."""
    console.assert_as_it_happens(README, ordinary_user)


def test_the_example_tree_ships_whole() -> None:
    """What the README mounts is in the repository, the `.env` too, which ignore lists like to leave out."""
    if not (console.CHECKOUT / ".git").exists():
        absent("no git repository around the tests")
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", console.CHECKOUT, "ls-files", "examples/tree"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    there = [
        str(path.relative_to(console.CHECKOUT)) for path in (console.CHECKOUT / "examples/tree").rglob("*") if path.is_file()
    ]
    assert sorted(listed) == sorted(there)
    assert "examples/tree/.env" in listed
