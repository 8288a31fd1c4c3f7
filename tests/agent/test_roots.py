"""Roots: the text of conformance/roots.json, and what session files and options make of it."""

from __future__ import annotations

import doctest
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyfs.host.errors import Exit, UserFault
from policyfs.opening.load import PolicyOptions, policy_for, root_notes, session_of, source_of
from policyfs.policy import roots
from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, ViewPath, from_text
from policyfs.policy.policy import CompiledPolicy
from policyfs.policy.roots import NoRoot, split_roots

VECTORS = Path(__file__).resolve().parents[2] / "conformance" / "roots.json"
CASES: list[dict[str, Any]] = json.loads(VECTORS.read_text(encoding="utf-8"))["cases"]
ADA = HostPath(b"/home/ada")


@pytest.mark.parametrize("case", [pytest.param(case, id=case["id"]) for case in CASES])
def test_a_text_of_roots_reads_as_the_vectors_say(case: dict[str, Any]) -> None:
    """Each case of conformance/roots.json holds."""
    assert set(case) == {"id", "description", "spec", "text", "home", "roots", "reported"}
    found = split_roots(case["text"], HostPath(from_text(case["home"])))
    assert [root.decode("utf-8", "surrogateescape") for root in found.roots] == case["roots"]
    assert [bad.entry for bad in found.reported] == case["reported"]


def test_the_docstring_is_true() -> None:
    """The example in the docstring of `split_roots` holds."""
    assert doctest.testmod(roots).failed == 0
    assert doctest.testmod(roots).attempted > 0


@given(st.text(alphabet="/~a.,\n \t\0é\udcff", max_size=40))
def test_splitting_is_total_and_settled(text: str) -> None:
    """Any text gives absolute, resolved roots, each once; splitting what came out changes nothing, and every entry that
    is neither empty nor a root is reported."""
    found = split_roots(text, ADA)
    assert len(set(found.roots)) == len(found.roots)
    assert all(root.startswith(b"/") and b".." not in root.split(b"/") for root in found.roots)
    again = split_roots("\n".join(root.decode("utf-8", "surrogateescape") for root in found.roots), ADA)
    if not any(root != root.strip() for root in (root.decode("utf-8", "surrogateescape") for root in found.roots)):
        assert again == (found.roots, ())
    entries = {entry.strip() for entry in text.replace(",", "\n").split("\n")} - {""}
    assert {bad.entry for bad in found.reported} <= entries
    assert bool(entries) == bool(found.roots or found.reported)
    assert all(" is not a root (" in str(bad) for bad in found.reported)


def test_an_entry_that_stands_for_no_bytes_is_told_like_any_other() -> None:
    """A surrogate that is no byte, which only a caller in Python can write, is reported and can be shown."""
    found = split_roots("\ud800\udcff, /srv", ADA)
    assert found.roots == (b"/srv",)
    assert [str(bad) for bad in found.reported] == [
        r"`\xed\xa0\x80\xed\xb3\xbf` is not a root (no text); write /like/this or ~/like/this"
    ]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with something in it, and nobody's configuration."""
    directory = tmp_path / "ada"
    for name in ("Downloads", "Documents/Lam Agent", "Documents/taxes", ".ssh"):
        (directory / name).mkdir(parents=True)
    monkeypatch.setenv("HOME", str(directory))
    for name in ("XDG_CONFIG_HOME", "XDG_STATE_HOME", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    return directory


def policy_of(source: Path, **options: Any) -> CompiledPolicy:
    return policy_for(source_of(str(source)), PolicyOptions(**options))


def levels(policy: CompiledPolicy, *paths: str) -> dict[str, str]:
    return {path: str(policy.place(ViewPath(path.encode())).level) for path in paths}


def test_the_home_preset_is_the_model_of_the_document(home: Path) -> None:
    """`--preset home`: the home readable minus the denylist, ~/Downloads and ~/Documents/Lam Agent writable."""
    policy = policy_of(home, preset="home")
    assert levels(
        policy, "/", "/notes", "/Downloads", "/Downloads/x/y", "/Downloads-evil", "/Documents", "/Documents/Lam Agent/a",
        "/Documents/Lam Agents", "/.ssh", "/.ssh/id_ed25519", "/Downloads/.env", "/x/server.key",
    ) == {
        "/": "ro", "/notes": "ro", "/Downloads": "stage", "/Downloads/x/y": "stage", "/Downloads-evil": "ro",
        "/Documents": "ro", "/Documents/Lam Agent/a": "stage", "/Documents/Lam Agents": "ro", "/.ssh": "none",
        "/.ssh/id_ed25519": "none", "/Downloads/.env": "none", "/x/server.key": "none",
    }  # fmt: skip


def test_the_preset_holds_in_a_view_of_a_part_of_the_home(home: Path) -> None:
    """A view of a directory of the home is opened as the home has it: by the root above it, or the one inside it."""
    assert levels(policy_of(home / "Documents", preset="home"), "/", "/taxes", "/Lam Agent") == {
        "/": "ro", "/taxes": "ro", "/Lam Agent": "stage",
    }  # fmt: skip
    assert levels(policy_of(home / "Downloads", preset="home"), "/", "/x") == {"/": "stage", "/x": "stage"}


def test_a_session_and_a_preset_add_up(home: Path, tmp_path: Path) -> None:
    """Roots of a session file and of options come on top of the preset's, and a grant outranks a root at its path."""
    file = tmp_path / "session.toml"
    file.write_text('[roots]\nwrite = ["~/work"]\n[grants]\n"/Downloads" = "ro"\n')
    policy = policy_of(home, preset="home", session_file=str(file), write_roots=("~/extra",))
    assert levels(policy, "/x", "/work", "/extra", "/Downloads", "/Documents/Lam Agent") == {
        "/x": "ro", "/work": "stage", "/extra": "stage", "/Downloads": "ro", "/Documents/Lam Agent": "stage",
    }  # fmt: skip


def test_an_option_is_a_text_of_roots_of_which_the_good_hold(home: Path) -> None:
    """An option holds as many roots as its text, a bad entry is told and takes nothing away, and nobody else's home or
    relative name opens anything."""
    options = PolicyOptions(read_roots=("~/a, ~/b\nc",), write_roots=("~root/x,~/d",))
    assert [level for _, level in policy_for(source_of(str(home)), options).granted()] == [Level.RO, Level.RO, Level.STAGE]
    assert levels(policy_for(source_of(str(home)), options), "/a", "/b", "/c", "/d") == {
        "/a": "ro", "/b": "ro", "/c": "none", "/d": "stage",
    }  # fmt: skip
    assert root_notes(options) == [
        "--read-root: `c` is not a root (not absolute); write /like/this or ~/like/this; the other roots hold",
        "--write-root: `~root/x` is not a root (not absolute); write /like/this or ~/like/this; the other roots hold",
    ]
    assert root_notes(PolicyOptions(read_roots=("~/a",))) == []


@pytest.mark.parametrize("bad", ["c", "", "~root/x", "a/../b"])
def test_a_session_file_with_a_bad_root_is_refused_whole(home: Path, tmp_path: Path, bad: str) -> None:
    """In a session file a bad root is a fault like any other, told with its key."""
    file = tmp_path / "session.toml"
    file.write_text(f"[roots]\nread = [{json.dumps(bad)}, '/srv']\nwrite = '~/x'\n")
    with pytest.raises(UserFault) as caught:
        session_of(PolicyOptions(session_file=str(file)))
    assert caught.value.exit_code == Exit.POLICY
    assert any("roots.read" in message for message in caught.value.messages)
    assert any("roots.write" in message for message in caught.value.messages)


def test_a_root_of_a_session_file_may_hold_a_comma(home: Path, tmp_path: Path) -> None:
    """In a session file each root is a text of its own, so that a place with a comma in its name can be opened too."""
    file = tmp_path / "session.toml"
    file.write_text('[roots]\nread = ["~/a, b"]\n')
    assert levels(policy_of(home, session_file=str(file)), "/a, b", "/a", "/b") == {
        "/a, b": "ro",
        "/a": "none",
        "/b": "none",
    }


def test_a_root_follows_no_link_inside_source(home: Path) -> None:
    """A root that is a link in SOURCE opens the path that is written, not where it leads: a session that plants the link
    would choose what the next one may change."""
    (home / "real").mkdir()
    (home / "link").symlink_to("real")
    assert levels(policy_of(home, write_roots=("~/link",)), "/real", "/link") == {"/real": "none", "/link": "stage"}


def test_a_home_behind_a_link(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where HOME is a link, roots with a ~ hold in a view of the real home."""
    (tmp_path / "by-link").symlink_to(home)
    monkeypatch.setenv("HOME", str(tmp_path / "by-link"))
    assert levels(policy_of(home, preset="home"), "/x", "/Downloads") == {"/x": "ro", "/Downloads": "stage"}
    assert levels(policy_of(home, write_roots=("~/a,~/b",)), "/a", "/b") == {"/a": "stage", "/b": "stage"}


def test_a_root_and_the_rest_of_the_policy(home: Path) -> None:
    """A floor caps a write root, a denial closes what it names in one, and a root outside SOURCE opens nothing."""
    policy = policy_of(home, write_roots=("~/a,/elsewhere",), floors=("/a/old=ro",), deny=("/a/keys",))
    assert levels(policy, "/a", "/a/old", "/a/keys", "/elsewhere", "/") == {
        "/a": "stage", "/a/old": "ro", "/a/keys": "none", "/elsewhere": "none", "/": "none",
    }  # fmt: skip


def test_a_read_root_in_a_write_root_is_read_only(home: Path) -> None:
    """Roots are grants, so the most specific wins, and of one place in both lists the higher level."""
    policy = policy_of(home, read_roots=("~/a/b", "~/c"), write_roots=("~/a", "~/c"))
    assert levels(policy, "/a", "/a/b", "/c") == {"/a": "stage", "/a/b": "ro", "/c": "stage"}


def test_an_entry_that_is_no_root_is_shown_by_its_bytes() -> None:
    """As they are where it stands for some, as it was written where it stands for none."""
    assert str(NoRoot("\udcffx", "not absolute")).startswith("`\\xffx` is not a root (not absolute); ")
    assert "\\xed\\xa0\\x80" in str(NoRoot("\ud800", "no text"))
