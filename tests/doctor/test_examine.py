"""`policyfs doctor` on real trees, its findings read back as JSON: links, names, mounts, and what cannot be looked at."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from policyfs.policy.paths import Name
from policyfs.source.root import Root
from tests.doctor.ground import (
    HOSTILE,
    WITHOUT_PRIVILEGES,
    Doctor,
    examined,
    git,
    paths,
    repository_with_secrets,
    told,
)
from tests.mount.harness import PROGRAM


def test_tree_without_danger_ends_with_nothing_found(tree: Path, home: Path) -> None:
    """A plain tree ends with exit code 0 and says that nothing was found."""
    (tree / "a.txt").write_text("a")
    done = told(tree, home, "-g", "/=ro")
    assert (done.returncode, done.stdout) == (0, f"nothing found in {tree}\n")


def left_by_a_session(tree: Path) -> set[str]:
    """Everything we know that ends a reader or keeps it waiting, each beside a Makefile; gives where the Makefiles are."""

    def made(name: str) -> Path:
        (tree / name / ".git").mkdir(parents=True)
        (tree / name / "Makefile").write_text("all:")
        return tree / name

    (made("nested") / "package.json").write_text("[" * 100_000)
    with open(made("endless") / "package.json", "wb") as file:
        file.truncate(20 << 30)
    with open(made("endless-index") / ".git/index", "wb") as file:
        file.truncate(20 << 30)
    for number, content in enumerate(HOSTILE.values()):
        (made(f"index-{number}") / ".git/index").write_bytes(content)
    os.mkfifo(made("pipe") / ".git/index")
    os.mkfifo(made("pipes") / "package.json")
    (made("link") / ".git/index").symlink_to("/dev/zero")
    (made("links") / "package.json").symlink_to("package.json")
    (made("directory") / ".git/index").mkdir()
    (made("closed") / "package.json").touch(mode=0)
    (made("closed-index") / ".git/index").touch(mode=0)
    return {f"/{place.name}/Makefile" for place in tree.iterdir()}


def test_what_a_session_left_keeps_nothing_from_being_found(tree: Path, home: Path) -> None:
    """Whatever stands beside it, every file that is executed is found, by a doctor with 2 GB; what cannot be read is
    told."""
    expected = left_by_a_session(tree)
    done = told(tree, home, "-g", "/=stage", "--json", without=(*WITHOUT_PRIVILEGES, "prlimit", f"--as={2 << 30}"))
    assert done.returncode == 1, done.stderr
    assert done.stderr == ""
    findings = json.loads(done.stdout)
    executed = {finding["path"] for finding in findings if finding["kind"] == "executed"}
    unread = {finding["path"] for finding in findings if finding["kind"] == "not-examined"}
    assert expected <= executed
    assert {f"/{place}/package.json" for place in ("nested", "endless", "links", "closed")} <= executed
    assert {f"/{place}/.git/index" for place in ("endless-index", "pipe", "link", "directory", "closed-index")} <= unread
    assert {f"/index-{number}/.git/index" for number in range(len(HOSTILE))} <= unread


def test_file_that_grows_while_it_is_read_has_the_same_bound(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The bound is on what is read, not on the size that a file once had."""
    (tree / "package.json").write_text("{}")
    reopen = Root.reopen

    def grown(reached: int, flags: int) -> int:
        os.truncate(tree / "package.json", 20 << 30)
        return reopen(reached, flags)

    monkeypatch.setattr(Root, "reopen", staticmethod(grown))
    assert ("executed", b"/package.json") in examined(tree)


def test_file_that_is_gone_by_the_time_it_is_read_takes_nothing_along(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that a running session takes away between two looks keeps its neighbours from nothing."""
    (tree / "Makefile").write_text("all:")
    (tree / "a").mkdir()
    (tree / "a" / "package.json").write_text("{}")
    (tree / "a" / "Makefile").write_text("all:")
    reach_name = Root.reach_name

    def gone(directory: int, name: Name) -> int:
        with contextlib.suppress(FileNotFoundError):
            (tree / "a" / "package.json").unlink()
        return reach_name(directory, name)

    monkeypatch.setattr(Root, "reach_name", staticmethod(gone))
    assert examined(tree) == {("executed", b"/Makefile"), ("executed", b"/a/Makefile")}


def test_directory_deeper_than_is_looked_at_is_told(tree: Path, doctor: Doctor) -> None:
    """A tree that is made deep to keep the doctor busy is looked into as far as it costs little, and then told."""
    above = os.open(tree, os.O_PATH)
    for _ in range(6000):
        os.mkdir("d", dir_fd=above)
        below = os.open("d", os.O_PATH, dir_fd=above)
        os.close(above)
        above = below
    os.close(above)
    try:
        (found,) = doctor(None, "-g", "/=stage")
        assert (found["kind"], found["path"]) == ("not-examined", "/d" * 4097)
    finally:
        # pytest, which clears away old trees, goes no deeper than Python does.
        subprocess.run(["rm", "-rf", str(tree)], check=True)


def test_second_name_of_a_hidden_file_is_found(tree: Path, doctor: Doctor) -> None:
    """A file that is hidden under one name and shown under another is found under the one that is shown."""
    (tree / "Private").mkdir()
    (tree / "Private" / "diary.txt").write_text("a secret")
    os.link(tree / "Private" / "diary.txt", tree / "copy.txt")
    (found,) = doctor("many-names", "-g", "/=ro", "-g", "/Private=none")
    assert (found["path"], found["more"]) == ("/copy.txt", ["/Private/diary.txt"])
    assert "hidden as /Private/diary.txt" in found["text"]


def test_second_name_outside_the_tree_is_found(tree: Path, home: Path, doctor: Doctor) -> None:
    """A file with a name that is not in the tree is found: what a session writes to it changes it there."""
    (home / "store.txt").write_text("shared")
    os.link(home / "store.txt", tree / "linked.txt")
    (found,) = doctor("many-names", "-g", "/=stage")
    assert "1 more name outside this tree" in found["text"]


def test_the_objects_of_a_local_clone_are_one_finding(tree: Path, home: Path, doctor: Doctor) -> None:
    """`git clone` gives each object of a repository beside it a second name; what is advised takes them away."""
    repository_with_secrets(home)
    git(tree, "clone", "-q", "--local", str(home), "clone")
    (found,) = doctor("many-names", "-g", "/=stage")
    assert found["path"] == "/clone/.git/objects"
    assert "with more names outside this tree" in found["text"]
    assert "git repack -ad" in found["advice"]
    git(tree / "clone", "repack", "-adq")
    assert doctor("many-names", "-g", "/=stage") == []


def test_names_at_two_levels_are_found(tree: Path, doctor: Doctor) -> None:
    """A file that is protected under one name and can be changed under another is found."""
    (tree / "Notes").mkdir()
    (tree / "fixed.txt").write_text("x")
    os.link(tree / "fixed.txt", tree / "Notes" / "same.txt")
    (found,) = doctor("many-names", "-g", "/=ro", "-g", "/Notes=stage")
    assert (found["path"], found["level"]) == ("/Notes/same.txt", "stage")
    assert "at ro as /fixed.txt" in found["text"]


def test_names_that_are_all_at_one_level_are_no_finding(tree: Path, doctor: Doctor) -> None:
    """Names that can all be seen at the same level keep nothing from anybody."""
    (tree / "one.txt").write_text("x")
    os.link(tree / "one.txt", tree / "two.txt")
    assert doctor("many-names", "-g", "/=ro") == []


def test_a_link_above_what_a_rule_names_is_found(tree: Path, doctor: Doctor) -> None:
    """With the rules that it leads away from and where they hold too; not where it leads out of the tree, nor where the
    rule names the link itself."""
    (tree / "yard").mkdir()
    (tree / "p").mkdir()
    (tree / "p" / ".vscode").symlink_to("../yard")
    (tree / "out").symlink_to("/nonexistent")
    (tree / "named").symlink_to("yard")
    floors = [f"--floor={path}=ro" for path in ("/p/.vscode/tasks.json", "/p/.vscode/launch.json", "/out/x", "/named")]
    (found,) = doctor("link-above-rule", "-g", "/=stage", *floors)
    assert (found["path"], found["level"]) == ("/p/.vscode", "stage")
    assert found["more"] == ["/p/.vscode/launch.json", "/p/.vscode/tasks.json"]
    assert "/yard/launch.json, /yard/tasks.json" in found["text"]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount a file system of its own")
def test_nested_mount_is_found(tree: Path, doctor: Doctor) -> None:
    """Another mount inside the tree is found where it would otherwise be shown, and nothing in it is looked at."""
    (tree / "data").mkdir()
    (tree / "Private").mkdir()
    mounted = []
    try:
        for place in (tree / "data", tree / "Private"):
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=True)
            mounted.append(place)
        (tree / "data" / "Makefile").write_text("all:")
        assert paths(doctor(None, "-g", "/=stage", "-g", "/Private=none")) == {"/data"}
    finally:
        for place in mounted:
            subprocess.run(["umount", "-l", str(place)], check=True)


def test_set_id_program_is_found(tree: Path, doctor: Doctor) -> None:
    """A set-id program is found; a directory's setgid bit is nothing to tell of."""
    (tree / "program").write_text("#!/bin/sh\n")
    (tree / "program").chmod(0o4755)
    (tree / "shared").mkdir()
    (tree / "shared").chmod(0o2775)
    assert paths(doctor("set-id", "-g", "/=ro")) == {"/program"}


def test_directory_that_cannot_be_read_is_told(tree: Path, home: Path) -> None:
    """Where the doctor cannot look it says so, rather than that there is nothing."""
    (tree / "closed").mkdir(mode=0)
    done = told(tree, home, "-g", "/=ro", "--json", without=WITHOUT_PRIVILEGES)
    assert [(finding["kind"], finding["path"]) for finding in json.loads(done.stdout)] == [("not-examined", "/closed")]


def test_without_a_grant_it_says_what_it_assumes(tree: Path, home: Path) -> None:
    """Without any grant the tree is looked at as if all of it were at stage, and that is said."""
    (tree / "Makefile").write_text("all:")
    done = told(tree, home)
    assert done.returncode == 1
    assert "/Makefile (stage)" in done.stdout
    assert "as if it were mounted with -g /=stage" in done.stderr


def test_policy_that_opens_nothing_is_refused(tree: Path, home: Path) -> None:
    """A policy that opens nothing is a mistake, not a clean bill."""
    done = told(tree, home, "-g", "/=none")
    assert done.returncode == 3
    assert done.stdout == ""


def test_odd_names_are_shown_on_one_line(tree: Path, home: Path) -> None:
    """A name with a newline and one that is not UTF-8 cannot forge a line of the report."""
    directory = os.fsencode(tree) + b"/a\n\xff\x1b[2J"
    os.mkdir(directory)
    with open(directory + b"/Makefile", "wb"):
        pass
    done = told(tree, home, "-g", "/=stage")
    assert "  /a\\n\\xff\\x1b[2J/Makefile (stage): make runs it" in done.stdout.splitlines()


def test_name_that_the_terminal_has_no_letters_for_is_shown(tree: Path, home: Path) -> None:
    """Where the output is Latin-1, a name in Greek is written as escapes, and the report goes on."""
    (tree / "λ").mkdir()
    (tree / "λ" / "Makefile").write_text("all:")
    program = (*PROGRAM[:-1], f"import sys; sys.stdout.reconfigure(encoding='latin-1', errors='strict'); {PROGRAM[-1]}")
    done = subprocess.run(
        [*program, "doctor", str(tree), "-g", "/=stage"],
        capture_output=True, check=False, timeout=60, env={**os.environ, "HOME": str(home)},
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (1, b"")
    assert rb"/\u03bb/Makefile (stage): make runs it" in done.stdout


def test_long_lists_are_cut_and_say_so(tree: Path, home: Path) -> None:
    """A person sees ten findings of a kind and how many more there are; --all shows them."""
    for number in range(13):
        (tree / f"{number:02}").mkdir()
        (tree / f"{number:02}" / "Makefile").write_text("")
    short, whole = told(tree, home, "-g", "/=stage"), told(tree, home, "-g", "/=stage", "--all")
    assert short.stdout.count("make runs it") == 10
    assert "and 3 more; --all shows them" in short.stdout
    assert whole.stdout.count("make runs it") == 13


def test_doctor_changes_nothing_and_runs_nothing(tree: Path, doctor: Doctor, tmp_path: Path) -> None:
    """Looking runs no program that the tree names, and leaves its times as they are."""
    repository_with_secrets(tree)
    ran = tmp_path / "ran"
    git(tree, "config", "core.fsmonitor", f"touch {ran}; false")
    before = {path: path.lstat().st_mtime_ns for path in tree.rglob("*")}
    assert doctor("tracked-hidden", "-g", "/=stage")
    assert {path: path.lstat().st_mtime_ns for path in tree.rglob("*")} == before
    assert not ran.exists()


def test_progress_is_shown_on_a_terminal_only(tree: Path, home: Path) -> None:
    """Long work tells on a terminal how far it is; what a program reads holds no trace of it."""
    (tree / "a.txt").write_text("a")
    master, slave = os.openpty()
    try:
        done = subprocess.run(
            [*PROGRAM, "doctor", str(tree), "-g", "/=ro"],
            stdout=subprocess.PIPE, stderr=slave, text=True, check=False, timeout=60,
            env={**os.environ, "HOME": str(home), "TERM": "xterm"},
        )  # fmt: skip
        shown = os.read(master, 65536)
    finally:
        os.close(slave)
        os.close(master)
    # On a busy machine the first line that is drawn is already a later one.
    assert b"looking through SOURCE" in shown or b"looked at " in shown
    assert done.stdout == f"nothing found in {tree}\n"
