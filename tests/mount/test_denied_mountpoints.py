"""Denied places in which something is mounted: whoever answers there is never asked, or two daemons, or one alone, would
wait for an answer for ever."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.mount.harness import Mounted, Person, mounted, ordinary_user

SESSION = '[grants]\n"/" = "ro"\n[deny]\npaths = ["~/.views"]\n'


@pytest.fixture
def person(as_root: None) -> Iterator[Person]:
    """Somebody with mounts of their own, and a tree of files with two names each, one of them a credential's."""
    with ordinary_user(0) as person:
        (person.home / ".views").mkdir()
        (person.home / "tree").mkdir()
        (person.home / ".ssh").mkdir()
        (person.home / ".ssh/key").write_text("secret")
        os.link(person.home / ".ssh/key", person.home / "tree/alias")
        (person.home / "tree/a").write_text("open")
        os.link(person.home / "tree/a", person.home / "tree/b")
        yield person


def entered(person: Person, *words: str | Path) -> None:
    """Run something in the mounts of a person."""
    subprocess.run(["nsenter", "-t", str(person.namespace), "-m", "--", *words], check=True, timeout=10)


def view_at(person: Person, name: str, stack: ExitStack, session: str = SESSION) -> Mounted:
    point = person.home / ".views" / name
    point.mkdir()
    return stack.enter_context(mounted(person.home / "tree", session=session, person=person, point=point))


def asked_all(view: Mounted) -> str:
    return view.run("stat", "-c", "%n %s", "a", "b", "alias", timeout=10).stdout


def test_views_in_each_others_denied_places(person: Person) -> None:
    """Two views, each in a place that the other denies; and one of them by a bind mount in its own."""
    with ExitStack() as stack:
        views = [view_at(person, name, stack) for name in "ab"]
        entered(person, "mkdir", person.home / ".views/c")
        entered(person, "mount", "--bind", views[0].point, person.home / ".views/c")
        stack.callback(entered, person, "umount", person.home / ".views/c")
        for view in views:
            assert asked_all(view) == "a 4\nb 4\n"
            done = person.policyfs("reload", view.point)
            assert done.returncode == 0, done.stderr
        for view in views:
            assert asked_all(view) == "a 4\nb 4\n"


def test_a_view_that_denies_its_own_mountpoint(person: Person) -> None:
    """At a reload it does not ask itself where that leads."""
    with ExitStack() as stack:
        view = view_at(person, "a", stack, SESSION.replace("~/.views", "~/.views/a"))
        for _ in range(2):
            done = person.policyfs("reload", view.point)
            assert done.returncode == 0, done.stderr
            assert asked_all(view) == "a 4\nb 4\n"


def test_a_stopped_view_in_a_denied_place(person: Person) -> None:
    """It answers nobody, and keeps nobody from an answer."""
    with ExitStack() as stack:
        stopped, view = (view_at(person, name, stack) for name in "ab")
        stopped.signal(signal.SIGSTOP)
        stack.callback(stopped.signal, signal.SIGCONT)
        assert asked_all(view) == "a 4\nb 4\n"


def test_a_credential_on_another_mount_of_the_file_system(person: Person) -> None:
    """Is known all the same: a bind mount of the home leaves the file system one."""
    with ExitStack() as stack:
        entered(person, "mount", "--bind", person.home / ".ssh", person.home / ".ssh")
        stack.callback(entered, person, "umount", person.home / ".ssh")
        assert asked_all(view_at(person, "a", stack)) == "a 4\nb 4\n"
