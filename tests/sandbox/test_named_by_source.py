"""A run that is going on, named by its SOURCE: shown by status, and asked and changed by every command that takes a
MOUNTPOINT."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.mount.expecting import until
from tests.sandbox.runs import SECRET, Ground, ran


@dataclass
class Shell:
    """A shell in the view of a tree, whose words are said to it one after another."""

    run: subprocess.Popen[bytes]

    def says(self, words: str) -> str:
        """What it prints, both streams together, on some words."""
        assert self.run.stdin is not None
        assert self.run.stdout is not None
        self.run.stdin.write(f"{{ {words}; }} 2>&1; echo; echo ---\n".encode())
        self.run.stdin.flush()
        said = b""
        while not said.endswith(b"\n---\n"):
            line = self.run.stdout.readline()
            assert line, said
            said += line
        return said.decode().removesuffix("\n---\n").rstrip("\n")


@contextmanager
def shell(tree: Ground) -> Iterator[Shell]:
    """A shell in the view, until the end of the block."""
    run = tree.start("sh", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    inside = Shell(run)
    assert inside.says("cat open.txt") == "open"
    yield inside
    assert run.stdin is not None
    run.stdin.close()
    assert run.wait(30) == 0


@pytest.fixture
def inside(tree: Ground) -> Iterator[Shell]:
    """A shell in the view of the tree, in its root."""
    with shell(tree) as started:
        yield started


def mountpoints(tree: Ground) -> list[Path]:
    """Where the views of runs are mounted."""
    return sorted((tree.state / "run/runs").glob("*/view"))


def test_status_shows_a_run_at_its_source(tree: Ground, inside: Shell) -> None:
    """The table has SOURCE and `run` and nothing of the private mountpoint; JSON has both; SOURCE names it."""
    for arguments in ((), (tree.source,)):
        said = ran(tree.person.policyfs("status", *arguments))
        assert f"{tree.source}  (run)" in said
        assert str(mountpoints(tree)[0]) not in said
        (status,) = json.loads(ran(tree.person.policyfs("status", "--json", *arguments)))
        assert status["appears_at"] == status["source"] == str(tree.source)
        assert [Path(status["mountpoint"])] == mountpoints(tree)


def test_a_run_is_changed_by_its_source(tree: Ground, inside: Shell) -> None:
    """grant and revoke, then reload with another session, act on what the command sees, at once; what the command asks
    for itself tells of it."""
    assert "No such file" in inside.says("cat hidden.txt")
    ran(tree.person.policyfs("grant", tree.source, "/hidden.txt=ro"))
    assert inside.says("cat hidden.txt") == SECRET
    assert "grant /hidden.txt = ro" in inside.says("policyfs explain hidden.txt")
    ran(tree.person.policyfs("revoke", tree.source, "/hidden.txt"))
    assert "No such file" in inside.says("cat hidden.txt")
    assert "ENOENT" in inside.says("policyfs explain hidden.txt")
    session = tree.person.home / "session.toml"
    session.write_text('[floors]\n"/yard" = "ro"\n')
    ran(tree.person.policyfs("reload", tree.source, "-s", session))
    assert "Read-only" in inside.says("echo x > yard/new")
    assert inside.says("policyfs view").splitlines()[-1] == f"{tree.source}/yard  read-only"


def test_a_run_is_explained_by_its_source(tree: Ground, inside: Shell) -> None:
    """A place in SOURCE, or SOURCE and paths of its view, by the policy that is in force there; with policy options by
    those."""
    by_place = ran(tree.person.policyfs("explain", tree.source / "yard/a.txt", tree.source / "hidden.txt"))
    by_path = ran(tree.person.policyfs("explain", tree.source, "/yard/a.txt", "/hidden.txt"))
    by_options = ran(tree.person.policyfs("explain", tree.source, "/yard/a.txt", "/hidden.txt", *tree.open))
    assert "grant /yard = stage" in by_place
    assert by_place == by_path == by_options
    assert "grant / = commit" in ran(tree.person.policyfs("explain", tree.source, "/yard", "-g", "/=commit"))
    ran(tree.person.policyfs("grant", tree.source, "/hidden.txt=ro"))
    assert "grant /hidden.txt = ro" in ran(tree.person.policyfs("explain", tree.source / "hidden.txt"))
    done = tree.person.policyfs("explain", tree.source / "open.txt", "/etc/passwd")
    assert (done.returncode, done.stdout) == (1, "")
    assert "/etc/passwd is in no mounted view" in done.stderr


def test_the_journal_of_a_run_is_found_by_its_source(tree: Ground, inside: Shell) -> None:
    """`policyfs log SOURCE` prints what this run was refused, and verifies it."""
    inside.says("echo x > open.txt")
    # Entries gather for a moment before they are written.
    until(lambda: "/open.txt" in tree.person.policyfs("log", tree.source, "--denied").stdout, "the refusal in the journal")
    assert "unbroken" in ran(tree.person.policyfs("log", tree.source, "--verify"))


def test_two_runs_are_named_by_their_mountpoints(tree: Ground, inside: Shell) -> None:
    """With a second run of the same SOURCE nothing is guessed: each command refuses, naming both mountpoints, by which
    one is changed and the other is not."""
    with shell(tree) as other:
        points = mountpoints(tree)
        assert len(points) == 2
        for words in (
            ("status", tree.source),
            ("grant", tree.source, "/hidden.txt=ro"),
            ("revoke", tree.source, "/yard"),
            ("reload", tree.source),
            ("explain", tree.source / "open.txt"),
        ):
            done = tree.person.policyfs(*words)
            assert (done.returncode, done.stdout, done.stderr.count("\n")) == (4, "", 1), words
            assert "is the SOURCE of 2 runs" in done.stderr
            assert all(str(point) in done.stderr for point in points)
        ran(tree.person.policyfs("grant", points[0], "/hidden.txt=ro"))
        said = [shell.says("cat hidden.txt") for shell in (inside, other)]
        assert sorted(text == SECRET for text in said) == [False, True]


def test_a_source_that_nobody_runs_is_no_view(tree: Ground) -> None:
    """Where no run is going on, a directory is what it was: no mounted view, and explain needs a policy's options."""
    ran(tree.run("true"))
    # What happened in it can still be read.
    assert "unmount" in ran(tree.person.policyfs("log", tree.source))
    done = tree.person.policyfs("grant", tree.source, "/hidden.txt=ro")
    assert (done.returncode, done.stdout) == (4, "")
    assert done.stderr == f"policyfs: {tree.source} is not a mounted view; `policyfs status` lists the views of this user\n"
    assert tree.person.policyfs("explain", tree.source / "open.txt").returncode == 2
