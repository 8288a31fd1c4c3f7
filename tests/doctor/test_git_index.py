"""What git tracks of hidden paths is found in its index, whatever is in it."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyfs.doctor import git_index
from policyfs.doctor.git_index import Index, NotAnIndex, parse
from tests.doctor.ground import (
    FILE,
    HOSTILE,
    Doctor,
    git,
    paths,
    repository_with_secrets,
    with_entries,
)


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
