"""The Python API without a mount: asking a policy, and reading and changing a tree through a view."""

from __future__ import annotations

import errno
import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import policyfs
from policyfs import Entry, Level, Policy, PolicyOptions, Refused, Standing, UserFault, View
from policyfs.policy.paths import HostPath
from tests.conformance.adapter import make_tree

TREE = {
    "/AGENTS.md": {"file": "root"},
    "/Notes/a.md": {"file": "a\n"},
    "/Notes/sub/AGENTS.md": {"file": "sub"},
    "/Notes/sub/c.md": {"file": "c"},
    "/Notes/Private/p.md": {"file": "secret"},
    "/b.md": {"file": "b"},
    "/way/open/x": {"file": "x"},
    "/way/shut": {"file": "shut"},
}
GRANTS = {"/AGENTS.md": "ro", "/b.md": "ro", "/Notes": "stage", "/Notes/Private": "none", "/way/open": Level.STAGE}


@pytest.fixture
def tree(source: Path) -> Path:
    """SOURCE with notes that may be changed, a private directory and a passage."""
    make_tree(HostPath(os.fsencode(source)), TREE)
    return source


@pytest.fixture
def policy(tree: Path) -> Policy:
    return Policy.load(tree, grants=GRANTS)


@pytest.fixture
def view(tree: Path, policy: Policy) -> Iterator[View]:
    with View(tree, policy) as opened:
        yield opened


def refused(act: Callable[..., Any], *arguments: Any, **named: Any) -> tuple[str, str]:
    with pytest.raises(Refused) as caught:
        act(*arguments, **named)
    assert isinstance(caught.value, OSError)
    assert caught.value.errno is not None
    return errno.errorcode[caught.value.errno], str(caught.value)


# -- a policy ------------------------------------------------------------------------------------------------------------


def test_a_policy_says_what_is_open(policy: Policy, tree: Path) -> None:
    """`granted` is every path that opens something, sorted; `level` is that of any path, there or not."""
    assert policy.granted() == {
        "/AGENTS.md": Level.RO, "/Notes": Level.STAGE, "/b.md": Level.RO, "/way/open": Level.STAGE,
    }  # fmt: skip
    assert [policy.level(path) for path in ("/Notes/new/deep", b"/b.md", Path("/Notes/Private/p.md"), "way/open")] == [
        Level.STAGE, Level.RO, Level.NONE, Level.STAGE,
    ]  # fmt: skip
    assert (policy.source, policy.start, policy.boundary, policy.notes) == (os.path.realpath(tree), "/", "/", ())


def test_a_policy_explains_in_the_words_of_the_spec(policy: Policy) -> None:
    """An explanation has the level, the standing, the rule that decided and the exact text of each refusal."""
    explained = policy.explain("Notes/../b.md")
    assert (explained.path, explained.level, explained.standing) == ("/b.md", Level.RO, Standing.VISIBLE)
    assert explained.rule == "grant /b.md = ro"
    assert explained.look is None
    assert explained.change == "Read-only: /b.md can be read in this session but not changed."
    assert explained.commit == "Nothing to commit: /b.md is not in a repository."
    hidden = policy.explain("/Notes/Private/p.md")
    assert (hidden.standing, hidden.look) == (Standing.HIDDEN, "No such file or directory: /Notes/Private/p.md")


def test_a_policy_takes_what_a_command_line_takes(tree: Path, tmp_path: Path) -> None:
    """A session file, floors, denials and a floors file, each as the options of the same names."""
    (tmp_path / "session.toml").write_text('start = "/Notes"\nboundary = "/Notes"\n[grants]\n"/" = "commit"\n')
    (tmp_path / "floors.toml").write_text(f'[floors]\n"{tree}/Notes/sub" = "ro"\n')
    policy = Policy.load(
        tree, session_file=tmp_path / "session.toml", grants={"/Notes/sub": "commit"}, floors={"/Notes": "stage"},
        floors_files=[tmp_path / "floors.toml"], deny=["*.secret", "/Notes/Private"],
    )  # fmt: skip
    paths = ["/b.md", "a.md", "sub", "x.secret", "Private"]
    assert [str(policy.level(path)) for path in paths] == ["none", "stage", "ro", "none", "none"]
    assert policy.resolve("sub/../a.md") == "/Notes/a.md"


def test_one_text_is_one_text(tree: Path, tmp_path: Path) -> None:
    """Where several texts are taken, one by itself is taken too, and never for its letters."""
    floors = tmp_path / "floors.toml"
    floors.write_text(f'[floors]\n"{tree}/Notes/sub" = "ro"\n')
    for file in (floors, str(floors), os.fsencode(floors)):
        policy = Policy.load(tree, grants={"/": "stage"}, floors_files=file, deny="*.sql")
        assert policy.options == Policy.load(tree, grants={"/": "stage"}, floors_files=[file], deny=["*.sql"]).options
        assert [str(policy.level(path)) for path in ("/b.md", "/Notes/sub", "/x.sql")] == ["stage", "ro", "none"]
    policy = Policy.load(tree, read_roots=f"{tree}/Notes", write_roots=f"{tree}/way")
    assert policy.granted() == {"/Notes": Level.RO, "/way": Level.STAGE}


def test_roots_are_places_of_the_machine(tree: Path) -> None:
    """Roots open places, one text may hold several, and what is none is told in `notes` while the others hold."""
    policy = Policy.load(tree, read_roots=f"{tree}/Notes, nowhere", write_roots=[f"{tree}/way"])
    assert policy.granted() == {"/Notes": Level.RO, "/way": Level.STAGE}
    assert len(policy.notes) == 1
    assert "`nowhere` is not a root" in policy.notes[0]


def test_every_fault_is_told_and_there_is_no_policy(tree: Path, tmp_path: Path) -> None:
    """What a person can put right is one `UserFault` with a message for each fault."""
    (tmp_path / "session.toml").write_text('bondary = "/"\n[grants]\n"/x" = "rw"\n')
    with pytest.raises(UserFault) as caught:
        Policy.load(tree, session_file=tmp_path / "session.toml", floors={"y": "ro"})
    assert len(caught.value.messages) == 3
    for nothing in ({}, {"session_file": tmp_path / "none"}, {"grants": {"/": "rw"}}):
        with pytest.raises(UserFault):
            Policy.load(tree, **nothing)
    with pytest.raises(UserFault):
        Policy.load(tree / "b.md", grants={"/": "ro"})
    with pytest.raises(ValueError, match="preset"):
        Policy.load(tree, preset="office")


def test_the_prompt_tells_what_is_open(policy: Policy) -> None:
    """`prompt` is the workspace block, in the built-in words or a caller's."""
    assert "- `/Notes`: read/write, stage" in policy.prompt()
    assert policy.prompt("{{start}}") == "/"
    assert policy.prompt("{{start}}", at="/srv/view/") == "/srv/view"
    assert "- `/srv/view/Notes`: read/write, stage" in policy.prompt(at=Path("/srv/view"))
    with pytest.raises(ValueError, match="no such field"):
        policy.prompt("{{nothing}}")
    with pytest.raises(ValueError, match="empty"):
        policy.prompt(at="")


# -- looking -------------------------------------------------------------------------------------------------------------


def test_a_listing_has_what_is_visible(view: View) -> None:
    """Directories first, then by name; what is hidden is not there."""
    assert view.list("/Notes") == [
        Entry("sub", "/Notes/sub", "directory", Level.STAGE),
        Entry("a.md", "/Notes/a.md", "file", Level.STAGE),
    ]


@pytest.mark.parametrize(
    ("path", "code", "text"),
    [
        ("/", "EACCES", "Access denied: / is not open to this session."),
        ("/way", "EACCES", "Access denied: /way is not open to this session."),
        ("/way/shut", "EACCES", "Access denied: /way/shut is not open to this session."),
        ("/nowhere", "EACCES", "Access denied: /nowhere is not open to this session."),
        ("/Notes/Private", "ENOENT", "No such file or directory: /Notes/Private"),
        ("/Notes/nowhere", "ENOENT", "No such file or directory: /Notes/nowhere"),
        ("/Notes/a.md", "ENOTDIR", "Not a directory: /Notes/a.md"),
        ("/Notes/a.md/x", "ENOTDIR", "Not a directory: /Notes/a.md/x"),
    ],
)
def test_a_refused_listing_has_errno_and_text(view: View, path: str, code: str, text: str) -> None:
    """A passage, a hidden name and a missing one, a file: errno and text of the rules error-1 and error-2."""
    assert refused(view.list, path) == (code, text)


def test_a_file_reads_whole_or_in_part(view: View, tree: Path) -> None:
    """`read` gives bytes from an offset, as many as asked or all; `read_text` a str, or UnicodeDecodeError."""
    assert view.read("/Notes/a.md") == b"a\n"
    assert [view.read("Notes/a.md", 1), view.read("/Notes/a.md", 0, 1)] == [b"\n", b"a"]
    assert [view.read("/Notes/a.md", 9), view.read("/b.md", 0, 0)] == [b"", b""]
    assert view.read_text("/b.md") == "b"
    (tree / "Notes/big").write_bytes(os.urandom(3_000_000))
    assert view.read("/Notes/big") == (tree / "Notes/big").read_bytes()
    assert view.read("/Notes/big", 1_500_000, 1_200_000) == (tree / "Notes/big").read_bytes()[1_500_000:2_700_000]
    (tree / "Notes/binary").write_bytes(b"\xff")
    with pytest.raises(UnicodeDecodeError):
        view.read_text("/Notes/binary")
    with pytest.raises(ValueError, match="from 0"):
        view.read("/b.md", -1)
    assert refused(view.read, "/Notes") == ("EISDIR", "Is a directory: /Notes")
    assert refused(view.read, "/Notes/Private/p.md") == ("ENOENT", "No such file or directory: /Notes/Private/p.md")


def test_stat_shows_what_a_mount_would(view: View, tree: Path) -> None:
    """Kind, level, mode without the write bits that the level does not give, size; a passage is an empty shell."""
    os.utime(tree / "b.md", ns=(1, 1_000_000_007))
    found = view.stat("/b.md")
    assert (found.path, found.kind, found.level, found.size, found.modified_ns) == (
        "/b.md",
        "file",
        Level.RO,
        1,
        1_000_000_007,
    )
    assert found.mode & 0o222 == 0
    passage = view.stat("/way")
    assert (passage.kind, passage.level, passage.mode, passage.modified_ns) == ("directory", Level.NONE, 0o111, 0)
    assert refused(view.stat, "/way/shut")[0] == "EACCES"


def test_a_path_that_is_none_is_a_value_error(view: View) -> None:
    """An empty text and one with a NUL are no paths; a name that is too long is refused as the kernel does."""
    for text in ("", "a\0b"):
        with pytest.raises(ValueError):
            view.read(text)
    for act in (view.read, view.explain, view.policy.explain, view.policy.level, view.policy.resolve):
        assert refused(act, "/Notes/" + "x" * 256)[0] == "ENAMETOOLONG"


def test_a_name_that_is_no_utf8_keeps_its_bytes(view: View, tree: Path) -> None:
    """What `list` gives can be read again, whatever its bytes."""
    with open(os.fsencode(tree) + b"/Notes/\xff", "wb") as file:
        file.write(b"odd")
    (odd,) = [entry for entry in view.list("/Notes") if "\udcff" in entry.name]
    assert view.read(odd.path) == b"odd"


# -- changing ------------------------------------------------------------------------------------------------------------


def test_writing_makes_replaces_and_appends(view: View, tree: Path) -> None:
    """`write` says whether the file is new; what it held is gone, or is added to."""
    assert view.write("/Notes/new.md", "é") is True
    assert view.write("/Notes/new.md", b"longer than before") is False
    assert view.write("/Notes/new.md", "x") is False
    assert view.write("/Notes/new.md", "y", append=True) is False
    assert (tree / "Notes/new.md").read_text() == "xy"
    assert view.write("/Notes/fresh", "z", append=True) is True
    assert view.write("/way/open/x", "by its own grant") is False
    big = os.urandom(2_000_000)
    view.write("/Notes/big", big)
    assert (tree / "Notes/big").read_bytes() == big


def test_what_cannot_be_encoded_changes_nothing(view: View, tree: Path) -> None:
    """A text that is not UTF-8 is found out before the file is emptied."""
    with pytest.raises(UnicodeEncodeError):
        view.write("/Notes/a.md", "\ud800")
    assert (tree / "Notes/a.md").read_text() == "a\n"


@pytest.mark.parametrize(
    ("path", "code", "text"),
    [
        ("/b.md", "EROFS", "Read-only: /b.md can be read in this session but not changed."),
        ("/new.md", "EACCES", "Access denied: /new.md is not open to this session."),
        ("/way", "EACCES", "Access denied: /way is not open to this session."),
        ("/way/new", "EACCES", "Access denied: /way/new is not open to this session."),
        ("/Notes", "EISDIR", "Is a directory: /Notes"),
        ("/Notes/Private", "EACCES", "Access denied: /Notes/Private is not open to this session."),
        ("/Notes/Private/x", "ENOENT", "No such file or directory: /Notes/Private/x"),
        ("/Notes/no/x", "ENOENT", "No such file or directory: /Notes/no/x"),
        ("/Notes/a.md/x", "ENOTDIR", "Not a directory: /Notes/a.md/x"),
        ("/b.md/x", "ENOTDIR", "Not a directory: /b.md/x"),
        ("/b.md/x/y", "ENOTDIR", "Not a directory: /b.md/x/y"),
        ("/b.md/.env", "ENOTDIR", "Not a directory: /b.md/.env"),
        ("/", "EACCES", "Access denied: / is not open to this session."),
    ],
)
def test_a_refused_write_has_errno_and_text(view: View, tree: Path, path: str, code: str, text: str) -> None:
    """At ro, in a passage, on a directory, under a name that is taken, below what is hidden, missing or a file."""
    before = sorted(tree.rglob("*"))
    assert refused(view.write, path, "x") == (code, text)
    assert sorted(tree.rglob("*")) == before
    assert (tree / "b.md").read_text() == "b"


def test_directories_are_made(view: View, tree: Path) -> None:
    """One at a time, or with those above it."""
    view.make_directory("/Notes/d")
    view.make_directory("/Notes/e/f/g", parents=True)
    view.make_directory("/Notes/e/f/g", parents=True)
    view.make_directory("/way/open/h/i", parents=True)
    assert (tree / "Notes/e/f/g").is_dir()
    assert (tree / "way/open/h/i").is_dir()
    assert refused(view.make_directory, "/Notes/d") == ("EEXIST", "Already exists: /Notes/d")
    assert refused(view.make_directory, "/Notes/a.md", parents=True) == ("EEXIST", "Already exists: /Notes/a.md")
    assert refused(view.make_directory, "/Notes/x/y") == ("ENOENT", "No such file or directory: /Notes/x/y")
    assert refused(view.make_directory, "/way/x") == ("EACCES", "Access denied: /way/x is not open to this session.")
    assert refused(view.make_directory, "/way", parents=True) == (
        "EACCES",
        "Access denied: /way is not open to this session.",
    )
    assert refused(view.make_directory, "/")[0] == "EACCES"
    assert refused(view.make_directory, "/Notes/Private/x/y", parents=True)[0] == "EACCES"


def test_things_are_moved_and_nothing_is_written_over(view: View, tree: Path) -> None:
    """A move takes a file or a directory elsewhere in its level, and never onto something."""
    view.move("/Notes/a.md", "/Notes/sub/b.md")
    assert (tree / "Notes/sub/b.md").read_text() == "a\n"
    assert refused(view.move, "/Notes/sub/b.md", "/Notes/sub/c.md") == ("EEXIST", "Already exists: /Notes/sub/c.md")
    assert refused(view.move, "/Notes/sub/b.md", "/Notes/Private")[0] == "EACCES"
    assert refused(view.move, "/b.md", "/Notes/b.md")[0] == "EACCES"
    assert refused(view.move, "/Notes", "/way/open/n")[0] == "EACCES"
    assert refused(view.move, "/Notes/none", "/Notes/x") == ("ENOENT", "No such file or directory: /Notes/none")
    assert refused(view.move, "/Notes/sub/b.md", "/b.md") == ("EEXIST", "Already exists: /b.md")
    assert refused(view.move, "/Notes/sub/b.md", "/way") == ("EACCES", "Access denied: /way is not open to this session.")
    assert refused(view.move, "/Notes/sub/b.md", "/Notes/no/x") == ("ENOENT", "No such file or directory: /Notes/no/x")
    with pytest.raises(OSError) as caught:
        view.move("/Notes", "/Notes/sub/n")
    assert caught.value.errno == errno.EINVAL


def test_things_are_removed(view: View, tree: Path) -> None:
    """A file, a link or an empty directory; one that holds something hidden is not empty, and a grant's own stays."""
    (tree / "Notes/link").symlink_to("sub")
    view.remove("/Notes/link")
    view.remove("/Notes/a.md")
    assert not (tree / "Notes/a.md").exists()
    assert (tree / "Notes/sub/c.md").exists()
    with pytest.raises(OSError) as caught:
        view.remove("/Notes/sub")
    assert caught.value.errno == errno.ENOTEMPTY
    view.remove("/Notes/sub/c.md")
    view.remove("/Notes/sub/AGENTS.md")
    view.remove("/Notes/sub")
    assert refused(view.remove, "/Notes/Private") == ("ENOENT", "No such file or directory: /Notes/Private")
    assert refused(view.remove, "/b.md")[0] == "EACCES"
    assert refused(view.remove, "/way")[0] == "EACCES"


# -- links ---------------------------------------------------------------------------------------------------------------


def test_links_are_followed_and_judged_where_they_land(view: View, tree: Path) -> None:
    """A link to what is open is followed, also on the way. One to what is hidden is shown and leads to nothing; one out of
    SOURCE is not followed, and shown only where the session lists the place."""
    notes = tree / "Notes"
    (notes / "short").symlink_to("sub")
    (notes / "to-b").symlink_to("../b.md")
    (notes / "to-private").symlink_to("Private")
    (notes / "to-p").symlink_to("Private/p.md")
    (notes / "out").symlink_to("/usr/bin/env")
    (notes / "away").symlink_to("/etc/hostname")
    (notes / "loop").symlink_to("loop")
    (notes / "dangling").symlink_to("sub/made")
    assert view.read("/Notes/short/c.md") == b"c"
    assert view.stat("/Notes/short/c.md").path == "/Notes/sub/c.md"
    assert view.stat("/Notes/short", follow=False).kind == "link"
    assert view.read("/Notes/to-b") == b"b"
    assert refused(view.write, "/Notes/to-b", "x") == (
        "EROFS",
        "Read-only: /b.md can be read in this session but not changed.",
    )
    assert refused(view.read, "/Notes/to-p") == ("ENOENT", "No such file or directory: /Notes/Private/p.md")
    assert refused(view.read, "/Notes/to-private/p.md") == ("ENOENT", "No such file or directory: /Notes/Private/p.md")
    assert view.stat("/Notes/to-p", follow=False).kind == "link"
    assert refused(view.write, "/Notes/to-p", "x")[0] == "ENOENT"
    assert (tree / "Notes/Private/p.md").read_text() == "secret"
    assert refused(view.read, "/Notes/out") == ("EACCES", "Access denied: /Notes/out is not open to this session.")
    assert refused(view.read, "/Notes/away")[0] == "ENOENT"
    with pytest.raises(OSError) as caught:
        view.read("/Notes/loop")
    assert caught.value.errno == errno.ELOOP
    assert view.write("/Notes/dangling", "made") is True
    assert (notes / "sub/made").read_text() == "made"
    names = {entry.name for entry in view.list("/Notes")}
    assert {"short", "to-b", "out", "loop", "dangling", "to-private", "to-p"} <= names
    assert "away" not in names


# -- a view as a whole ---------------------------------------------------------------------------------------------------


def test_a_rule_follows_a_link_that_is_made_meanwhile(view: View, tree: Path) -> None:
    """What the owner's programs reach through a link is closed from the next call on, and for as long as the view is open;
    a view that is opened later has it closed from the start."""
    (tree / "Notes" / "Private").rename(tree / "moved")
    (tree / "Notes" / "kept").mkdir()
    (tree / "Notes" / "Private").symlink_to("kept")
    (tree / "Notes" / "kept" / "p.md").write_text("secret")
    assert refused(view.read, "/Notes/kept/p.md")[0] == "ENOENT"
    assert [entry.name for entry in view.list("/Notes")] == ["sub", "a.md"]
    assert view.explain("/Notes/kept").rule == "floor /Notes/kept = none (session: /Notes/Private leads here)"
    (tree / "Notes" / "Private").unlink()
    assert refused(view.write, "/Notes/kept/q.md", "")[0] == "ENOENT"
    assert view.read_text("/Notes/a.md") == "a\n"
    (tree / "Notes" / "Private").symlink_to("kept")
    with View(tree, Policy.load(tree, grants=GRANTS)) as later:
        assert refused(later.read, "/Notes/kept/p.md")[0] == "ENOENT"


def test_no_link_is_made_where_a_rule_names_something_below(tree: Path) -> None:
    """A directory is, and it stays; the text says why."""
    with View(tree, Policy.load(tree, grants={"/Notes": "stage", "/Notes/new/Private": "none"})) as view:
        text = "a rule names something below /Notes/new, so nothing but a directory can be made there."
        for act in (lambda: view.write("/Notes/new", "x"), lambda: view.move("/Notes/a.md", "/Notes/new")):
            assert refused(act)[0] in ("EACCES", "EXDEV")
        assert refused(view.write, "/Notes/new", "x") == ("EACCES", f"Only a directory: {text}")
        view.make_directory("/Notes/new")
        assert refused(view.remove, "/Notes/new")[0] == "EBUSY"
        assert refused(view.make_directory, "/Notes/new/Private")[0] == "EACCES"


def test_instructions_and_what_reading_hands_over(view: View) -> None:
    """The chain is the view's; nearby files are handed over once for a view."""
    assert [(found.path, found.text) for found in view.instructions()] == [("AGENTS.md", "root")]
    assert [found.path for found in view.nearby("/Notes/sub/c.md")] == ["Notes/sub/AGENTS.md"]
    assert view.nearby("/Notes/sub/c.md") == []
    assert [(found.path, found.text) for found in view.instructions()] == [("AGENTS.md", "root")]
    assert view.nearby("/Notes/sub/c.md") == []


def test_what_instructions_gave_is_not_handed_over_again(view: View, tree: Path) -> None:
    """Nearby is what lies below the start that was asked for last, and nothing of any chain that was given."""
    deep = {"/Notes/sub/deep/AGENTS.md": {"file": "deep"}, "/Notes/sub/deep/x": {"file": "x"}}
    make_tree(HostPath(os.fsencode(tree)), deep)
    assert [found.path for found in view.instructions("/Notes/sub")] == ["AGENTS.md", "Notes/sub/AGENTS.md"]
    assert view.nearby("/Notes/sub/c.md") == []
    assert view.nearby("/way/open/x") == []
    assert [found.path for found in view.nearby("/Notes/sub/deep/x")] == ["Notes/sub/deep/AGENTS.md"]
    assert [found.path for found in view.instructions()] == ["AGENTS.md"]
    assert view.nearby("/Notes/sub/deep/x") == []


def test_a_closed_view_answers_nothing(tree: Path, policy: Policy) -> None:
    """After `close` every method is a ValueError, and never another file that has the descriptor by now."""
    with View(tree, policy) as view:
        view.nearby("/b.md")
    view.close()
    acts: list[Callable[[str], object]] = [
        view.explain, view.stat, view.list, view.read, view.read_text, view.make_directory, view.remove, view.instructions,
        view.nearby, lambda path: view.write(path, "x"), lambda path: view.move(path, path),
    ]  # fmt: skip
    for act in acts:
        with pytest.raises(ValueError, match="closed"):
            act("/b.md")
    with pytest.raises(ValueError, match="closed"):
        view.instructions()
    assert policy.level("/b.md") is Level.RO


def test_no_descriptor_is_left_open(tree: Path, policy: Policy) -> None:
    """A view that is used, refused and closed leaves no descriptor behind."""
    # What other tests left to the collector is not to go meanwhile.
    gc.collect()
    before = len(os.listdir("/proc/self/fd"))
    with View(tree, policy) as view:
        view.list("/Notes")
        view.write("/Notes/x", "x")
        view.instructions()
        for path in ("/Notes/Private", "/b.md", "/Notes"):
            with pytest.raises(OSError):
                view.write(path, "x")
    Policy.load(tree, grants={"/": "ro"})
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_view_takes_options_and_refuses_the_policy_of_another_tree(tree: Path, policy: Policy, tmp_path: Path) -> None:
    """Options make a policy of their own; the policy of another tree is a ValueError."""
    with View(tree, PolicyOptions(grants=("/b.md=ro",))) as view:
        assert view.policy.granted() == {"/b.md": Level.RO}
    with pytest.raises(ValueError, match="not of"):
        View(tmp_path, policy)


def test_a_refusal_survives_pickling(view: View) -> None:
    """It crosses to another process with its errno, text and path."""
    with pytest.raises(Refused) as caught:
        view.read("/way")
    again = pickle.loads(pickle.dumps(caught.value))
    assert (again.errno, str(again), again.path, again.refusal) == (
        errno.EACCES, "Access denied: /way is not open to this session.", b"/way", caught.value.refusal,
    )  # fmt: skip


# -- the package ---------------------------------------------------------------------------------------------------------


def test_the_package_loads_nothing_that_is_not_asked_for() -> None:
    """`import policyfs` stays as light as the command needs it, every public name is there, and FUSE is never loaded."""
    check = (
        "import sys, policyfs; assert 'policyfs.api' not in sys.modules, 'eager'; "
        "[getattr(policyfs, name) for name in policyfs.__all__]; "
        "assert set(policyfs.__all__) <= set(dir(policyfs)); "
        "assert not {'pyfuse3', 'trio', 'click'} & set(sys.modules), sorted(sys.modules)"
    )
    subprocess.run([sys.executable, "-I", "-c", check], check=True, timeout=60)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        _ = policyfs.nothing  # type: ignore[attr-defined]
