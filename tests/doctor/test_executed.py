"""What the owner's own tools execute and a session may change is found: by name, in git's configuration, in a repository."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyfs.doctor.executed import has_scripts
from tests.doctor.ground import (
    FILE,
    Doctor,
    git,
    paths,
    told,
    with_entries,
)


@given(st.one_of(st.binary(max_size=64), st.text(alphabet='[{}]":,scripts', max_size=64).map(str.encode)))
def test_any_bytes_are_a_package_or_count_as_one_with_scripts(content: bytes) -> None:
    """A package.json is read or counts; none ends the doctor."""
    assert has_scripts(content) in (True, False)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
@pytest.mark.parametrize("nested", ["[", '{"scripts":', '[{"a":'])
def test_package_nested_without_end_counts_as_one_with_scripts(nested: str, encoding: str) -> None:
    """A nesting deeper than Python follows cannot be read, so it counts."""
    assert has_scripts((nested * 100_000).encode(encoding))


@pytest.mark.parametrize(
    "content", [b"gitdir: own\n", b"gitdir: own\r\n", b"gitdir: own\0/x", b"gitdir: ./own/../own", None]
)
def test_repository_that_a_file_or_a_link_names_is_found(tree: Path, doctor: Doctor, content: bytes | None) -> None:
    """The repository that `.git` names is found as git reads the name, and `.git` itself, which can name another."""
    (tree / "own").mkdir()
    (tree / "own" / "index").write_bytes(with_entries(4, (FILE, b"\0.env\0")))
    if content is None:
        (tree / ".git").symlink_to("own")
    else:
        (tree / ".git").write_bytes(content)
    found = doctor(None, "-g", "/=stage")
    assert {(finding["kind"], finding["path"]) for finding in found} == {
        ("executed", "/.git"), ("executed", "/own"), ("tracked-hidden", "/own"),
    }  # fmt: skip


def test_repository_that_two_name_is_told_once(tree: Path, doctor: Doctor) -> None:
    """What is found of one repository in two ways is one finding."""
    for place in ("a", "b"):
        (tree / place).mkdir()
        (tree / place / ".git").write_text("gitdir: ../own\n")
    (tree / "own").mkdir()
    found = [finding["path"] for finding in doctor("executed", "-g", "/=stage")]
    assert found == ["/a/.git", "/b/.git", "/own"]


@pytest.mark.parametrize("content", [b"gitdir: /proc/self/root/tmp/own", b"gitdir: " + b"/" * (1 << 20), b"", b"gitdir: "])
def test_git_file_is_found_whatever_it_names(tree: Path, doctor: Doctor, content: bytes) -> None:
    """A `.git` that is a file is itself an order, since what it names can be anywhere."""
    (tree / ".git").write_bytes(content)
    assert "/.git" in paths(doctor("executed", "-g", "/=stage"))


@pytest.mark.parametrize("name", ["Makefile", ".envrc", "package.json", ".vscode", ".git"])
def test_link_that_tools_follow_is_found(tree: Path, doctor: Doctor, name: str) -> None:
    """What is executed under a known name is found where that name is a link, wherever it leads: a sandbox shows it."""
    for place, target in (("yard", "other"), ("fixed", "other"), ("yard/out", "/etc/other")):
        (tree / place).mkdir(exist_ok=True)
        (tree / place / name).symlink_to(target)
    named = {"/yard/other"} if name == ".git" else set()
    assert paths(doctor("executed", "-g", "/=ro", "-g", "/yard=stage")) == {f"/yard/{name}", f"/yard/out/{name}"} | named


EXECUTED = {
    ".envrc": "use nix", "conftest.py": "", "Makefile": "all:", "package.json": '{"scripts": {"test": "true"}}',
    ".vscode/tasks.json": "{}", ".idea/run.xml": "", ".husky/pre-commit": "", ".mcp.json": "{}",
    ".claude/settings.json": "{}",
}  # fmt: skip


@pytest.mark.parametrize("name", EXECUTED)
def test_file_that_tools_execute_is_found_inside_stage_only(tree: Path, doctor: Doctor, name: str) -> None:
    """What the person's tools execute is found where a session may change it, and not where it may only read it."""
    for place in ("yard", "fixed"):
        (tree / place / name).parent.mkdir(parents=True)
        (tree / place / name).write_text(EXECUTED[name])
    found = paths(doctor("executed", "-g", "/=ro", "-g", "/yard=stage"))
    assert found == {f"/yard/{name.partition('/')[0]}"}


def test_package_without_scripts_and_installed_packages_are_no_finding(tree: Path, doctor: Doctor) -> None:
    """npm has nothing to run in a package without scripts, and installed packages are not listed one by one."""
    (tree / "package.json").write_text('{"name": "plain"}')
    (tree / "node_modules" / "a").mkdir(parents=True)
    (tree / "node_modules" / "a" / "package.json").write_text('{"scripts": {"test": "true"}}')
    assert doctor(None, "-g", "/=stage") == []


def test_a_repository_that_can_be_written_is_found(tree: Path, home: Path, doctor: Doctor) -> None:
    """A repository inside stage is found as a whole, since no floors inside it are enough; what the advice names takes the
    finding away, the protection of git and a floor on all of it. Under the protection a line says what is left open."""
    git(tree, "init", "-q")
    (finding,) = doctor("executed", "-g", "/=stage")
    assert finding["path"] == "/.git"
    assert "[git] protect" in finding["advice"]
    inside = ("--floor", "/.git/hooks=ro", "--floor", "/.git/config=ro")
    assert paths(doctor("executed", "-g", "/=stage", *inside)) == {"/.git"}
    assert doctor("executed", "-g", "/=stage", "--floor", "/.git=ro") == []
    done = told(tree, home, "-g", "/=stage", "--protect-git")
    note = "a session changes nothing that git executes, but may still rewrite branches, commits and the index"
    assert (done.returncode, done.stdout) == (0, f"nothing found in {tree}\nnote: git is protected in /.git: {note}\n")
    done = told(tree, home, "-g", "/=stage", "--floor", "/.git=ro", "--protect-git")
    assert (done.returncode, done.stdout) == (0, f"nothing found in {tree}\n")


def test_a_bare_repository_is_found_by_what_is_in_it(tree: Path, doctor: Doctor) -> None:
    """A git directory by another name than .git is found as one."""
    git(tree, "init", "-q", "--bare", "deep/store")
    assert paths(doctor("executed", "-g", "/=stage")) == {"/deep/store"}
    assert doctor("executed", "-g", "/=stage", "--protect-git") == []


CONFIGURED = {
    "core.hooksPath": (".githooks", "/.githooks"),
    "include.path": ("../.shared", "/.shared"),
    "core.fsmonitor": ("./tools/watch", "/tools/watch"),
    "filter.x.clean": ("sh tools/clean.sh", "/tools/clean.sh"),
    "alias.x": ("!./tools/x", "/tools/x"),
}


@pytest.mark.parametrize("deep", ["", "a/b/"])
@pytest.mark.parametrize("key", CONFIGURED)
def test_what_a_configuration_names_is_found(tree: Path, doctor: Doctor, key: str, deep: str) -> None:
    """What a repository's configuration has git execute is found where a session may change it. The protection of git takes
    it in where the repository is looked at when a view is opened; elsewhere only the doctor knows of it."""
    value, named = CONFIGURED[key]
    repository = tree / deep
    repository.mkdir(parents=True, exist_ok=True)
    git(repository, "init", "-q")
    git(repository, "config", key, value)
    (repository / "tools").mkdir()
    (repository / "tools/clean.sh").write_text("cat")
    place = f"/{deep}{named[1:]}"
    assert place in paths(doctor("executed", "-g", "/=stage"))
    found = paths(doctor("executed", "-g", "/=stage", "--protect-git"))
    assert found == ({place} if deep else set())
    assert doctor("executed", "-g", "/=stage", "--protect-git", "--floor", f"{place}=ro") == []
    assert doctor("executed", "-g", "/=stage", "-g", f"/{deep}tools=stage", "--protect-git") == []
    # A repository that the session does not see still has the owner's git do so.
    assert place in paths(doctor("executed", "-g", "/=stage", "-g", f"/{deep}.git=none"))


def test_links_of_hooks_are_followed(tree: Path, doctor: Doctor) -> None:
    """A hook that is a link into the tree is found where it leads, and so is a directory of hooks that is one."""
    for place in ("a/b", "a/c"):
        (tree / place).mkdir(parents=True)
        git(tree / place, "init", "-q")
    (tree / "a/b/.git/hooks/pre-commit").symlink_to("../../tools/check")
    shutil.rmtree(tree / "a/c/.git/hooks")
    (tree / "a/c/.git/hooks").symlink_to("../hooks")
    assert paths(doctor("executed", "-g", "/=stage", "--protect-git")) == {"/a/b/tools/check", "/a/c/hooks"}


def test_a_repository_above_the_source_is_read(tree: Path, home: Path) -> None:
    """A source that is a part of a work tree is named by the configuration of the repository above it."""
    git(tree, "init", "-q")
    git(tree, "config", "core.hooksPath", "part/hooks")
    (tree / "part").mkdir()
    done = told(tree / "part", home, "--json", "-g", "/=stage")
    assert paths(json.loads(done.stdout)) == {"/hooks"}
    done = told(tree / "part", home, "--json", "-g", "/=stage", "--protect-git")
    assert json.loads(done.stdout) == []


def test_the_owners_configuration_is_read(tree: Path, home: Path) -> None:
    """What the owner's own configuration names in the tree is found."""
    (home / ".gitconfig").write_text(f"[core]\n\thooksPath = {tree}/hooks\n[include]\n\tpath = {tree}/shared\n")
    (tree / "shared").write_text("[alias]\n\tx = !~/x\n")
    done = told(tree, home, "--json", "-g", "/=stage")
    assert paths(json.loads(done.stdout)) == {"/hooks", "/shared"}
    done = told(tree, home, "--json", "-g", "/=stage", "--protect-git")
    assert json.loads(done.stdout) == []


def test_what_a_session_left_in_a_repository_is_found(tree: Path, doctor: Doctor) -> None:
    """A commondir that leads into the tree is followed, and an index with a path that git would not have written is told,
    under a policy that protects git too."""
    (tree / "a/b").mkdir(parents=True)
    git(tree / "a/b", "init", "-q")
    (tree / "a/b/.git/commondir").write_text("../../../evil\n")
    (tree / "a/b/.git/index").write_bytes(with_entries(4, (FILE, b"\0.git/hooks/post-checkout\0")))
    found = paths(doctor("executed", "-g", "/=stage", "--protect-git"))
    assert {"/evil/config", "/evil/hooks", "/a/b/.git/index"} <= found


def test_startup_files_of_the_home_are_found_before_they_exist(tree: Path, home: Path) -> None:
    """A session that may make the home's startup files leaves an order for the next shell."""
    done = told(home, home, "-g", "/=stage", "--json")
    assert {"/.bashrc", "/.config/autostart"} <= paths(json.loads(done.stdout))
