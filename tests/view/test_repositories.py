"""What a view asks of the tree so that git finds nothing there that was not judged."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, ViewPath
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.refusals import Refusal
from policyfs.policy.session import Session
from policyfs.source.root import Root
from policyfs.view.location import Location
from policyfs.view.monitor import ReferenceMonitor
from policyfs.view.outcomes import Changes
from policyfs.view.refused import Refused

HARMLESS = b"pick 1\n"
HARMFUL = b"exec x\n"


@pytest.fixture
def tree(source: Path) -> Path:
    """A repository, a bare one, and one that lies in a directory by another name."""
    for repository in ("p/.git", "bare", "p/.git/modules/sub"):
        for directory in ("hooks", "objects", "refs"):
            (source / repository / directory).mkdir(parents=True)
        (source / repository / "HEAD").write_text("ref: refs/heads/main\n")
        (source / repository / "config").write_text("[core]\n")
    (source / "p/.git/rebase-merge").mkdir()
    (source / "p/.git/rebase-merge/git-rebase-todo").write_bytes(HARMLESS)
    return source


@contextmanager
def viewed(source: Path, *, protect: bool = True, git_directories: tuple[str, ...] = ()) -> Iterator[ReferenceMonitor]:
    place = HostPath(os.fsencode(source))
    directories = tuple(HostPath(place + os.fsencode(name)) for name in git_directories)
    surroundings = Surroundings(place, git_directories=directories)
    session = Session(grants={ViewPath(b"/"): Level.STAGE}, protect_git=protect)
    root = Root(place)
    try:
        yield ReferenceMonitor(root, CompiledPolicy(session, surroundings))
    finally:
        root.close()


@pytest.fixture
def view(tree: Path) -> Iterator[ReferenceMonitor]:
    """A view of the tree that protects git."""
    with viewed(tree) as made:
        yield made


def at(view: ReferenceMonitor, path: str) -> Location:
    return view.locate(ViewPath(path.encode()))


@contextmanager
def protected(refusal: Refusal = Refusal.GIT_PROTECTED) -> Iterator[None]:
    with pytest.raises(Refused) as caught:
        yield
    assert caught.value.refusal is refusal


TODO = "/p/.git/rebase-merge/git-rebase-todo"


def test_a_file_that_is_open_is_judged_by_where_it_stands(view: ReferenceMonitor, tree: Path) -> None:
    """A file that was opened under a name that is free and is moved to one that is judged, by the session or by anybody,
    takes no other content from then on; once it is moved away again it does."""
    scratch = at(view, "/p/.git/rebase-merge/scratch")
    file, _ = view.create(scratch, os.O_RDWR, 0o644)
    assert file.write(0, HARMFUL) == len(HARMFUL)
    with protected():
        view.rename(scratch, at(view, TODO))
    file.truncate(0)
    file.write(0, HARMLESS)
    view.rename(scratch, at(view, TODO))
    with protected():
        file.write(0, HARMFUL)
    with protected():
        file.write(len(HARMLESS), b"x y")
    with protected():
        file.truncate(1)
    file.write(len(HARMLESS), b"drop 2\n")
    (tree / TODO[1:]).rename(tree / "p/.git/elsewhere")
    assert file.write(0, HARMFUL) == len(HARMFUL)
    (tree / "p/.git/elsewhere").rename(tree / TODO[1:])
    with protected():
        file.write(0, HARMFUL)
    (tree / TODO[1:]).unlink()
    assert file.write(0, HARMFUL) == len(HARMFUL)
    file.close()


def test_another_view_of_the_tree_opens_no_way(view: ReferenceMonitor, tree: Path) -> None:
    """A file that is held open in one view and moved into place in another is judged in the first, too."""
    with viewed(tree) as other:
        file, _ = other.create(at(other, "/p/.git/rebase-merge/scratch"), os.O_WRONLY, 0o644)
        file.write(0, HARMLESS)
        view.rename(at(view, "/p/.git/rebase-merge/scratch"), at(view, TODO))
        with protected():
            file.write(0, HARMFUL)
        file.close()


def test_a_file_that_stands_too_deep_to_be_told_is_not_written(view: ReferenceMonitor, tree: Path) -> None:
    """Where the kernel does not say where an open file stands, nothing is written to it."""
    file, _ = view.create(at(view, "/p/.git/scratch"), os.O_WRONLY, 0o644)
    directory = os.open(tree, os.O_PATH)
    for _ in range(20):
        os.mkdir("d" * 250, dir_fd=directory)
        below = os.open("d" * 250, os.O_PATH, dir_fd=directory)
        os.close(directory)
        directory = below
    os.rename(tree / "p/.git/scratch", "scratch", dst_dir_fd=directory)
    os.close(directory)
    with protected():
        file.write(0, b"x")
    file.close()


def test_appending_is_judged_at_the_end(view: ReferenceMonitor) -> None:
    """A write by a descriptor that appends lands at the end, whatever offset it says."""
    file = view.open(at(view, TODO), os.O_WRONLY | os.O_APPEND)
    file.write(0, b"pick 2\nlabel ")
    with protected():
        file.write(0, b"x\nexec y\n")
    file.close()


def test_a_file_in_pieces_is_judged_whole(view: ReferenceMonitor, tree: Path) -> None:
    """Two writes, each harmless, that make a command together; and a hole, which is NULs."""
    file = view.open(at(view, TODO), os.O_RDWR)
    file.write(len(HARMLESS), b"ex")
    with protected():
        file.write(len(HARMLESS) + 2, b"ec x\n")
    file.write(100, b"x")
    file.close()
    assert (tree / TODO[1:]).read_bytes() == HARMLESS + b"ex" + bytes(100 - len(HARMLESS) - 2) + b"x"


def test_without_protection_nothing_is_asked(tree: Path) -> None:
    """A view that does not protect git lets all of it through."""
    with viewed(tree, protect=False) as view:
        file = view.open(at(view, TODO), os.O_WRONLY)
        assert file.guard is None
        assert file.write(0, HARMFUL) == len(HARMFUL)
        file.close()
        view.make_link(at(view, "/p/.git/COMMIT_EDITMSG"), b"hooks/x")
        view.rename(at(view, "/p/.git"), at(view, "/p/g"))
        view.change(at(view, "/bare/config"), Changes(size=0))


def test_objects_cost_no_question(view: ReferenceMonitor) -> None:
    """What git writes most is written without one."""
    file, _ = view.create(at(view, "/p/.git/objects/tmp"), os.O_WRONLY, 0o644)
    assert file.guard is None
    file.close()


@pytest.mark.parametrize("repository", ["bare", "p/.git/modules/sub", "p/.git"])
def test_every_way_to_change_what_is_kept(view: ReferenceMonitor, tree: Path, repository: str) -> None:
    """In a repository by its name and by its content nothing that changes a kept path goes through."""
    config, hook = f"/{repository}/config", f"/{repository}/hooks/x"
    for act in (
        lambda: view.open(at(view, config), os.O_WRONLY),
        lambda: view.open(at(view, config), os.O_RDONLY | os.O_TRUNC),
        lambda: view.change(at(view, config), Changes(size=0)),
        lambda: view.change(at(view, config), Changes(mode=0o755)),
        lambda: view.set_extended(at(view, config), b"user.x", b"y"),
        lambda: view.unlink(at(view, config)),
        lambda: view.create(at(view, hook), os.O_WRONLY, 0o755),
        lambda: view.make_directory(at(view, hook), 0o755),
        lambda: view.make_node(at(view, hook), 0o100755),
        lambda: view.remove_directory(at(view, f"/{repository}/hooks")),
        lambda: view.rename(at(view, f"/{repository}/HEAD"), at(view, config)),
        lambda: view.rename(at(view, f"/{repository}/hooks"), at(view, "/h")),
    ):
        with protected(Refusal.READ_ONLY):
            act()
    assert (tree / repository / "config").read_text() == "[core]\n"


def test_a_directory_with_links_is_not_moved_into_a_bare_repository(view: ReferenceMonitor, tree: Path) -> None:
    """Its links would be where git writes through them."""
    (tree / "logs").mkdir()
    (tree / "logs/HEAD").symlink_to("../hooks/x")
    (tree / "link").symlink_to("hooks/x")
    for name in ("logs", "link"):
        with protected():
            view.rename(at(view, f"/{name}"), at(view, f"/bare/{name}"))


def test_a_git_directory_by_another_name_works_where_it_is_known(tree: Path) -> None:
    """One that was found when the view was opened has the parts of a .git: its index can be replaced."""
    (tree / "bare/index.lock").write_bytes(b"DIRC" + bytes([0, 0, 0, 2, 0, 0, 0, 0]) + bytes(20))
    with viewed(tree) as view, protected():
        view.rename(at(view, "/bare/index.lock"), at(view, "/bare/index"))
    with viewed(tree, git_directories=("/bare",)) as view:
        view.rename(at(view, "/bare/index.lock"), at(view, "/bare/index"))
        with protected(Refusal.READ_ONLY):
            view.unlink(at(view, "/bare/config"))


def test_a_source_in_a_git_directory(tree: Path) -> None:
    """A view of a git directory itself, or of a part of it, keeps what the view of the whole does."""
    with viewed(tree / "bare") as view, protected(Refusal.READ_ONLY):
        view.unlink(at(view, "/config"))
    with viewed(tree / "p/.git/hooks") as view, protected(Refusal.READ_ONLY):
        view.create(at(view, "/x"), os.O_WRONLY, 0o755)
