"""`policyfs doctor` on real trees, its findings read back as JSON."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyfs.doctor import git_index
from policyfs.doctor.examine import Examination
from policyfs.doctor.executed import has_scripts
from policyfs.doctor.git_index import Index, NotAnIndex, parse
from policyfs.opening.load import PolicyOptions, git_machine, policy_for
from policyfs.policy.paths import HostPath, Name
from policyfs.source.root import Root
from tests.mount.forked import forked
from tests.mount.harness import PROGRAM

IDENTITY = {
    "GIT_AUTHOR_NAME": "Somebody", "GIT_AUTHOR_EMAIL": "somebody@example.invalid",
    "GIT_COMMITTER_NAME": "Somebody", "GIT_COMMITTER_EMAIL": "somebody@example.invalid",
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
}  # fmt: skip

WITHOUT_PRIVILEGES = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
"""Root without the capabilities that pass every mode, and not another user, whom a root's home at 0700 keeps from the
interpreter as well."""

Doctor = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of the test's own, so that nobody's real one is in any answer."""
    home = tmp_path / "home"
    home.mkdir()
    return home


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The directory that the doctor looks at."""
    tree = tmp_path / "tree"
    tree.mkdir()
    return tree


@pytest.fixture
def doctor(tree: Path, home: Path) -> Doctor:
    """Run the doctor on the tree; gives the findings of one kind, and proves that the exit code tells of any."""

    def run(kind: str | None, *options: str) -> list[dict[str, Any]]:
        done = told(tree, home, "--json", *options)
        findings: list[dict[str, Any]] = json.loads(done.stdout)
        assert done.returncode == (1 if findings else 0), done.stderr
        for finding in findings:
            assert finding["advice"], finding
        return [finding for finding in findings if kind in (None, finding["kind"])]

    return run


def told(tree: Path, home: Path, *options: str, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """What the command says, started through `without`: a command that takes privileges away."""
    environment = {**os.environ, "HOME": str(home)}
    for variable in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        environment.pop(variable, None)
    if not without:
        return forked(["doctor", str(tree), *options], environment=environment, directory=os.getcwd())
    return subprocess.run(
        [*without, *PROGRAM, "doctor", str(tree), *options],
        capture_output=True, text=True, check=False, timeout=60, env=environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def git(tree: Path, *arguments: str) -> str:
    """Run git in the tree, with nobody's configuration."""
    done = subprocess.run(
        ["git", *arguments], cwd=tree, env={**os.environ, **IDENTITY}, check=True, capture_output=True, text=True
    )
    return done.stdout


def paths(findings: list[dict[str, Any]]) -> set[str]:
    """Where they were found."""
    return {finding["path"] for finding in findings}


def repository_with_secrets(tree: Path) -> None:
    """A repository that tracks things which a policy may hide."""
    git(tree, "init", "-q")
    (tree / "Private").mkdir()
    (tree / "Private" / "diary.txt").write_text("a secret")
    (tree / ".env").write_text("TOKEN=1")
    (tree / "open.txt").write_text("open")
    git(tree, "add", "-f", ".")
    git(tree, "commit", "-q", "-m", "everything")


def test_tree_without_danger_ends_with_nothing_found(tree: Path, home: Path) -> None:
    """A plain tree ends with exit code 0 and says that nothing was found."""
    (tree / "a.txt").write_text("a")
    done = told(tree, home, "-g", "/=ro")
    assert (done.returncode, done.stdout) == (0, f"nothing found in {tree}\n")


@pytest.mark.parametrize("version", [2, 3, 4])
def test_index_that_tracks_hidden_paths_is_found(tree: Path, doctor: Doctor, version: int) -> None:
    """A repository in the view whose index holds hidden paths is found, whatever the index's version."""
    repository_with_secrets(tree)
    (tree / "new.txt").write_text("")
    # An entry added only by name needs the extended flags, which make git write version 3 where 2 would do.
    git(tree, "add", "--intent-to-add", "new.txt") if version == 3 else git(
        tree, "update-index", "--index-version", str(version)
    )
    assert parse((tree / ".git" / "index").read_bytes()).version == version
    found = doctor("tracked-hidden", "-g", "/=stage", "-g", "/Private=none")
    assert [finding["path"] for finding in found] == ["/.git"]
    assert found[0]["more"] == [".env", "Private/diary.txt"]


def test_index_of_visible_paths_is_no_finding(tree: Path, doctor: Doctor) -> None:
    """A repository that tracks only what the view shows is not reported."""
    repository_with_secrets(tree)
    git(tree, "rm", "-q", "-r", "--cached", ".env", "Private")
    assert doctor("tracked-hidden", "-g", "/=stage", "-g", "/Private=none") == []


def test_hidden_repository_is_no_finding(tree: Path, doctor: Doctor) -> None:
    """A repository that the view hides cannot tell what it tracks."""
    repository_with_secrets(tree)
    assert doctor("tracked-hidden", "-g", "/=stage", "-g", "/Private=none", "-g", "/.git=none") == []


def test_tracked_link_out_of_the_tree_is_found(tree: Path, doctor: Doctor) -> None:
    """A tracked link that a bare mount does not show is deleted for git there; one to a hidden place is shown."""
    git(tree, "init", "-q")
    (tree / "inside").symlink_to("Private/diary.txt")
    (tree / "out").symlink_to("/srv/x")
    git(tree, "add", "inside", "out")
    assert doctor("tracked-hidden", "-g", "/=stage", "-g", "/Private=none")[0]["more"] == ["out"]


def test_split_index_is_read_whole(tree: Path, doctor: Doctor) -> None:
    """Entries that a split index leaves in its shared file are found."""
    repository_with_secrets(tree)
    git(tree, "update-index", "--split-index")
    (tree / "later.txt").write_text("later")
    git(tree, "add", "later.txt")
    assert parse((tree / ".git" / "index").read_bytes()).shared is not None
    assert doctor("tracked-hidden", "-g", "/=stage", "-g", "/Private=none")[0]["more"] == [".env", "Private/diary.txt"]


def test_linked_work_tree_has_its_own_index(tree: Path, doctor: Doctor) -> None:
    """The index of a linked work tree is found by the `.git` file that names it, and judged by where that tree lies."""
    (tree / "main").mkdir()
    repository_with_secrets(tree / "main")
    git(tree / "main", "worktree", "add", "-q", "../second")
    found = doctor("tracked-hidden", "-g", "/=stage", "-g", "/second/Private=none")
    by_path = {finding["path"]: finding["more"] for finding in found}
    assert by_path["/main/.git/worktrees/second"] == [".env", "Private/diary.txt"]


def test_sha256_repository_is_read(tree: Path, doctor: Doctor) -> None:
    """An index with SHA-256 names is told from one with SHA-1 names."""
    git(tree, "init", "-q", "--object-format=sha256")
    (tree / ".env").write_text("TOKEN=1")
    git(tree, "add", "-f", ".env")
    assert doctor("tracked-hidden", "-g", "/=stage")[0]["more"] == [".env"]


def test_index_agrees_with_git(tree: Path) -> None:
    """The parser gives the paths that git lists, odd names and a deep tree among them, in every version."""
    git(tree, "init", "-q")
    for name in (b"a\nb", b"\xff\xfe", b"x" * 200, b"dir/" + b"y" * 255, b"dir/sub/z", "ü/ö".encode()):
        path = os.fsencode(tree) + b"/" + name
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb"):
            pass
    git(tree, "add", "-A")
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=tree, capture_output=True, check=True).stdout.split(b"\0")[:-1]
    for version in ("2", "4"):
        git(tree, "update-index", "--index-version", version)
        index = parse((tree / ".git" / "index").read_bytes())
        assert [entry.path for entry in index.entries] == listed


def test_index_that_is_cut_off_is_no_index(tree: Path) -> None:
    """Every shorter piece of an index is refused or gives fewer extensions, never an entry that was not there."""
    repository_with_secrets(tree)
    content = (tree / ".git" / "index").read_bytes()
    whole = set(parse(content).entries)
    refused = 0
    for length in range(len(content)):
        try:
            piece: Index = parse(content[:length])
        except NotAnIndex:
            refused += 1
        else:
            assert set(piece.entries) <= whole
    assert refused > len(content) // 2


def test_index_that_cannot_be_read_is_told(tree: Path, doctor: Doctor) -> None:
    """A broken index is a finding of its own: nothing is known of that repository."""
    repository_with_secrets(tree)
    (tree / ".git" / "index").write_bytes(b"DIRC\0\0\0\x09")
    assert paths(doctor("not-examined", "-g", "/=stage")) == {"/.git/index"}


def with_entries(version: int, *entries: tuple[int, bytes]) -> bytes:
    """An index as somebody who knows the format could write it: each entry's mode, and what follows its flags."""
    body = b"".join(bytes(24) + mode.to_bytes(4, "big") + bytes(32) + b"\0\0" + rest for mode, rest in entries)
    return b"DIRC" + version.to_bytes(4, "big") + len(entries).to_bytes(4, "big") + body + b"\1" * 20


FILE = 0o100644

HOSTILE = {
    "an offset without end": with_entries(4, (FILE, b"\xff" * (1 << 20))),
    "a path longer than any": with_entries(4, (FILE, b"\0" + b"x" * 5000 + b"\0")),
    "a path that grows": with_entries(4, *[(FILE, b"\0" + b"x" * 100 + b"\0")] * 100),
    "an entry of no kind": with_entries(4, (0, b"\0a\0")),
    "zeros for entries": b"DIRC\0\0\0\2\xff\xff\xff\xff" + bytes(1000) + b"\1" * 20,
}


def test_index_written_by_hand_is_read() -> None:
    """What the hostile ones are made with makes good ones too."""
    assert [entry.path for entry in parse(with_entries(4, (FILE, b"\0a\0"), (FILE, b"\1b\0"))).entries] == [b"a", b"b"]


@pytest.mark.parametrize("content", HOSTILE.values(), ids=list(HOSTILE))
def test_index_that_is_made_to_be_endless_is_no_index(content: bytes) -> None:
    """An index whose numbers or paths grow beyond what git can use is refused where they begin to."""
    with pytest.raises(NotAnIndex):
        parse(content)


def test_few_bytes_cannot_stand_for_many_paths(monkeypatch: pytest.MonkeyPatch) -> None:
    """All paths of an index together have a bound: of version 4 each takes the one before for nothing."""
    content = with_entries(4, (FILE, b"\0" + b"x" * 4000 + b"\0"), *[(FILE, b"\0\0")] * 300)
    assert len(parse(content).entries) == 301
    monkeypatch.setattr(git_index, "_MAX_BYTES_OF_PATHS", 1 << 20)
    with pytest.raises(NotAnIndex):
        parse(content)


@given(data=st.data())
def test_any_bytes_are_an_index_or_none(data: st.DataObject) -> None:
    """An index that somebody has written into, cut and added to is read or refused, never anything else."""
    version = data.draw(st.sampled_from([2, 3, 4]))
    rest = b"\0a\0" if version == 4 else b"a" + bytes(9)
    content = bytearray(with_entries(version, *[(FILE, rest)] * 4))
    for _ in range(data.draw(st.integers(1, 8))):
        start = data.draw(st.integers(0, len(content)))
        content[start : start + data.draw(st.integers(0, 8))] = data.draw(st.binary(max_size=8))
    with contextlib.suppress(NotAnIndex):
        parse(bytes(content))


@given(st.one_of(st.binary(max_size=64), st.text(alphabet='[{}]":,scripts', max_size=64).map(str.encode)))
def test_any_bytes_are_a_package_or_count_as_one_with_scripts(content: bytes) -> None:
    """A package.json is read or counts; none ends the doctor."""
    assert has_scripts(content) in (True, False)


@pytest.mark.parametrize("encoding", ["utf-8", "utf-16", "utf-32"])
@pytest.mark.parametrize("nested", ["[", '{"scripts":', '[{"a":'])
def test_package_nested_without_end_counts_as_one_with_scripts(nested: str, encoding: str) -> None:
    """A nesting deeper than Python follows cannot be read, so it counts."""
    assert has_scripts((nested * 100_000).encode(encoding))


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


def examined(tree: Path) -> set[tuple[str, bytes]]:
    """What is found in a tree at stage, by an examination in this process."""
    root = Root(HostPath(os.fsencode(tree)))
    try:
        policy = policy_for(root.source, PolicyOptions(grants=("/=stage",)), fold_case=False)
        findings = Examination(root, policy, git_machine(root, policy)).findings()
        return {(finding.kind.value, finding.path) for finding in findings}
    finally:
        root.close()


def test_index_that_shares_one_which_is_missing_is_told(tree: Path, doctor: Doctor) -> None:
    """Of a split index without its other half what is left is judged, and that half is missing is told."""
    repository_with_secrets(tree)
    git(tree, "config", "splitIndex.maxPercentChange", "100")
    git(tree, "update-index", "--split-index")
    (tree / "later.pem").write_text("later")
    git(tree, "add", "-f", "later.pem")
    (shared,) = (tree / ".git").glob("sharedindex.*")
    shared.unlink()
    found = doctor(None, "-g", "/=ro")
    assert {(finding["kind"], finding["path"]) for finding in found} == {
        ("tracked-hidden", "/.git"), ("not-examined", "/.git/index"),
    }  # fmt: skip
    assert next(finding["more"] for finding in found if finding["kind"] == "tracked-hidden") == ["later.pem"]


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
    (tree / "work").mkdir()
    (tree / "p").mkdir()
    (tree / "p" / ".vscode").symlink_to("../work")
    (tree / "out").symlink_to("/nonexistent")
    (tree / "named").symlink_to("work")
    floors = [f"--floor={path}=ro" for path in ("/p/.vscode/tasks.json", "/p/.vscode/launch.json", "/out/x", "/named")]
    (found,) = doctor("link-above-rule", "-g", "/=stage", *floors)
    assert (found["path"], found["level"]) == ("/p/.vscode", "stage")
    assert found["more"] == ["/p/.vscode/launch.json", "/p/.vscode/tasks.json"]
    assert "/work/launch.json, /work/tasks.json" in found["text"]


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


EXECUTED = {
    ".envrc": "use nix", "conftest.py": "", "Makefile": "all:", "package.json": '{"scripts": {"test": "true"}}',
    ".vscode/tasks.json": "{}", ".idea/run.xml": "", ".husky/pre-commit": "", ".mcp.json": "{}",
    ".claude/settings.json": "{}",
}  # fmt: skip


@pytest.mark.parametrize("name", EXECUTED)
def test_file_that_tools_execute_is_found_inside_stage_only(tree: Path, doctor: Doctor, name: str) -> None:
    """What the person's tools execute is found where a session may change it, and not where it may only read it."""
    for place in ("work", "fixed"):
        (tree / place / name).parent.mkdir(parents=True)
        (tree / place / name).write_text(EXECUTED[name])
    found = paths(doctor("executed", "-g", "/=ro", "-g", "/work=stage"))
    assert found == {f"/work/{name.partition('/')[0]}"}


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
