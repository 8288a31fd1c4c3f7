"""Random operations on a real mount at random levels, beside a model: the rules written once more, as simply as possible,
over a plain copy of the tree that is changed natively where the model permits it.

After every step the source is what the copy is, to the byte; so what the model does not permit changed nothing. And
what the view shows is what the model says of the copy. The model knows files and directories; links have tests of their
own. It shares no code with the product.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tests.adversary.answers import answer_of
from tests.mount.expecting import require_fuse
from tests.mount.harness import mounted

NONE, RO, STAGE, COMMIT = range(4)
LEVELS = {"none": NONE, "ro": RO, "stage": STAGE, "commit": COMMIT}
DENIED = ".env"

_libc = ctypes.CDLL(None, use_errno=True)

names = st.sampled_from(["a", "b", "c", "a", "b", "c", DENIED])
paths = st.lists(names, min_size=1, max_size=3).map(tuple)
granted = st.lists(st.sampled_from(["a", "b", "c"]), max_size=3).map(tuple)
policies = st.builds(
    # Often everything is open but for a few paths: a policy that opens little has little that can go wrong.
    lambda base, some: {**base, **some},
    st.sampled_from([{}, {(): "ro"}, *[{(): "stage"}] * 4]),
    st.dictionaries(granted, st.sampled_from([*LEVELS, "ro", "stage", "stage"]), min_size=1, max_size=4),
)

Path_ = tuple[str, ...]

aims = st.none() | st.integers(0, 1000) | st.integers(0, 1000)
"""Where a rule means something that is there, most of the time, rather than any path: the number picks it."""


class Refusal(Exception):
    """The model refuses; the name of an errno."""


class Model:
    """What a session may do: grants over a plain directory. Everything is by the text of a path, but for what is there."""

    def __init__(self, grants: dict[Path_, int], tree: Path) -> None:
        self.grants = grants
        self.tree = tree

    # -- by the text --

    def level(self, path: Path_) -> int:
        """The most specific grant, unless something on the way is denied."""
        if DENIED in path:
            return NONE
        for length in range(len(path), -1, -1):
            if path[:length] in self.grants:
                return self.grants[path[:length]]
        return NONE

    def below(self, path: Path_) -> list[Path_]:
        """The grants strictly below."""
        return [grant for grant in self.grants if len(grant) > len(path) and grant[: len(path)] == path]

    def visible(self, path: Path_) -> bool:
        """At ro or above."""
        return self.level(path) > NONE

    def passage(self, path: Path_) -> bool:
        """At none, with something visible below."""
        return not self.visible(path) and DENIED not in path and any(self.level(grant) for grant in self.below(path))

    # -- what is there --

    def at(self, path: Path_) -> Path:
        """Where a path is in the plain tree."""
        return self.tree.joinpath(*path)

    def there(self, path: Path_) -> bool:
        """Whether the view shows something there. What is not a directory is not a passage."""
        if self.visible(path):
            return os.path.lexists(self.at(path))
        return (path == () or self.passage(path)) and self.at(path).is_dir()

    def unseen(self, path: Path_) -> Refusal:
        """The answer for a name that is hidden or missing: by the directory that holds it."""
        return Refusal("ENOENT" if self.visible(path[:-1]) else "EACCES")

    def walk(self, path: Path_) -> None:
        """Go to the directory that holds the last name."""
        for length in range(1, len(path)):
            self.look_up(path[:length])
            if not self.at(path[:length]).is_dir():
                raise Refusal("ENOTDIR")

    def look_up(self, path: Path_) -> None:
        """The last name must be there."""
        if not self.there(path):
            raise self.unseen(path)

    def find(self, path: Path_) -> bool:
        """Go to something that is there; whether it is a directory."""
        self.walk(path)
        self.look_up(path)
        return self.at(path).is_dir()

    # -- what may be done --

    def within(self, path: Path_) -> None:
        """The columns of the table: nothing below a passage, and below ro only what is itself at stage."""
        if not self.visible(path[:-1]):
            raise Refusal("EACCES")
        if self.level(path[:-1]) == RO and self.level(path) < STAGE:
            raise Refusal("EROFS")

    def make(self, path: Path_, *, directory: bool) -> None:
        """May a free name be made. Above a rule, only for a directory."""
        self.name(path)
        if self.below(path) and not directory:
            self.crosses("EACCES", path)

    def name(self, path: Path_) -> None:
        """May a free name be taken, for whatever it is."""
        self.within(path)
        if not self.visible(path):
            raise Refusal("EACCES")
        if self.level(path) < STAGE:
            raise Refusal("EROFS")

    def change(self, path: Path_) -> None:
        """May what is there be changed."""
        if not self.visible(path):
            raise Refusal("EACCES")
        if self.level(path) < STAGE:
            raise Refusal("EROFS")

    def remove(self, path: Path_, *, directory: bool) -> None:
        """May something be removed. What a rule names something below stays, and a directory that one names."""
        self.take(path)
        if self.below(path) or (directory and path in self.grants):
            self.crosses("EBUSY", path)

    def take(self, path: Path_) -> None:
        """May a name be taken away from something."""
        if not self.visible(path[:-1]) or not self.visible(path):
            raise Refusal("EACCES")
        self.within(path)
        self.change(path)

    def crosses(self, code: str, *ends: Path_) -> None:
        """A rule is in the way; a directory at ro answers first."""
        raise Refusal("EROFS" if any(self.level(end[:-1]) == RO for end in ends) else code)

    def move(self, old: Path_, new: Path_, *, directory: bool) -> None:
        """May one thing go from the one name to the other."""
        self.take(old)
        if directory and old in self.grants:
            self.crosses("EBUSY", old)
        self.name(new)
        if self.level(old) != self.level(new) or self.below(old) or self.below(new):
            self.crosses("EXDEV", old, new)


def rename(old: Path, new: Path, flags: int) -> None:
    """renameat2(2)."""
    if _libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        raise OSError(ctypes.get_errno(), "renameat2")


def write(path: Path, flags: int, data: bytes) -> None:
    """Open for writing and write."""
    descriptor = os.open(path, os.O_WRONLY | flags, 0o644)
    try:
        os.write(descriptor, data)
    finally:
        os.close(descriptor)


def read(path: Path) -> bytes:
    """Open and read, a directory's EISDIR included."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        return os.read(descriptor, 10_000)
    finally:
        os.close(descriptor)


def tree_of(root: Path) -> dict[str, tuple[int, bytes | None]]:
    """Modes and bytes of everything below a directory, read without any view."""
    found: dict[str, tuple[int, bytes | None]] = {}
    for directory, directories, files in os.walk(root):
        for name in directories:
            found[os.path.relpath(os.path.join(directory, name), root)] = (
                os.lstat(os.path.join(directory, name)).st_mode,
                None,
            )
        for name in files:
            path = os.path.join(directory, name)
            found[os.path.relpath(path, root)] = (os.lstat(path).st_mode, Path(path).read_bytes())
    return found


class ViewBesideModel(RuleBasedStateMachine):
    """One mount, one policy, one plain copy."""

    def __init__(self) -> None:
        super().__init__()
        self.stack = contextlib.ExitStack()

    @initialize(policy=policies)
    def mount(self, policy: dict[Path_, str]) -> None:
        """Lay out a tree of every name on two levels, copy it, and mount a view of it."""
        grants = {path: LEVELS[level] for path, level in policy.items()}
        if not any(grants.values()):
            grants[()] = RO
        base = Path(self.stack.enter_context(tempfile.TemporaryDirectory()))
        self.source, plain = base / "source", base / "plain"
        for one in ("a", "b"):
            for two in ("a", "b"):
                (self.source / one / two).mkdir(parents=True)
                (self.source / one / two / "c").write_text(f"{one}/{two}/c")
                (self.source / one / two / DENIED).write_text("SECRET")
            (self.source / one / "c").write_text(f"{one}/c")
        (self.source / DENIED).mkdir()
        (self.source / DENIED / "a").write_text("SECRET")
        shutil.copytree(self.source, plain)
        self.model = Model(grants, plain)
        words = {value: key for key, value in LEVELS.items()}
        options = [f"/{'/'.join(path)}={words[level]}" for path, level in grants.items()]
        self.view = self.stack.enter_context(mounted(self.source, *options)).point

    def teardown(self) -> None:
        """Unmount."""
        self.stack.close()

    def both(self, permitted: Callable[[], None], act: Callable[[Path], Any]) -> None:
        """Ask the model; do it natively where it permits, and in the view in any case; the answers must agree."""
        try:
            permitted()
        except Refusal as refusal:
            expected: Any = str(refusal)
        else:
            expected = answer_of(act, self.model.tree)
        assert answer_of(act, self.view) == expected

    def aimed(self, path: Path_, aim: int | None) -> Path_:
        """Something that is in the tree, hidden or not; the path itself where there is no aim."""
        there = sorted(tree_of(self.model.tree))
        return path if aim is None or not there else tuple(there[aim % len(there)].split("/"))

    # -- looking --

    @rule(path=paths)
    def stat(self, path: Path_) -> None:
        """stat(2): kind, permissions as the level has them, size."""
        model = self.model

        def act(root: Path) -> tuple[int, int]:
            status = os.stat(root.joinpath(*path))
            mode = status.st_mode
            if root == model.tree:
                if model.passage(path):
                    mode = 0o040111
                elif model.level(path) == RO:
                    mode &= ~0o222
            return mode, 0 if os.path.isdir(root.joinpath(*path)) else status.st_size

        self.both(lambda: model.find(path) and None, act)

    @rule(path=paths | st.just(()))
    def listing(self, path: Path_) -> None:
        """A directory's names: those that are visible."""
        model = self.model

        def permitted() -> None:
            if path:
                model.find(path)
            if not model.visible(path):
                raise Refusal("EACCES")

        def act(root: Path) -> list[str]:
            return sorted(
                name for name in os.listdir(root.joinpath(*path)) if root == self.view or model.visible((*path, name))
            )

        self.both(permitted, act)

    @rule(path=paths, aim=aims)
    def reading(self, path: Path_, aim: int | None) -> None:
        """The bytes of a file."""
        path = self.aimed(path, aim)

        def permitted() -> None:
            if self.model.find(path) and not self.model.visible(path):
                raise Refusal("EACCES")

        self.both(permitted, lambda root: read(root.joinpath(*path)))

    # -- changing --

    @rule(path=paths, aim=aims, flags=st.sampled_from([0, os.O_TRUNC, os.O_APPEND]), data=st.binary(max_size=20))
    def writing(self, path: Path_, aim: int | None, flags: int, data: bytes) -> None:
        """Write to a file that is there."""
        path = self.aimed(path, aim)

        def permitted() -> None:
            if not self.model.find(path):
                self.model.change(path)

        self.both(permitted, lambda root: write(root.joinpath(*path), flags, data))

    @rule(path=paths, aim=aims, mode=st.sampled_from([0o600, 0o755, 0o700]))
    def mode(self, path: Path_, mode: int, aim: int | None) -> None:
        """chmod(2)."""
        path = self.aimed(path, aim)

        def permitted() -> None:
            self.model.find(path)
            self.model.change(path)

        self.both(permitted, lambda root: os.chmod(root.joinpath(*path), mode))

    # -- names --

    def free_to_make(self, path: Path_, *, directory: bool = False) -> None:
        """The kernel says that a name is taken before it asks whether it might be made."""
        self.model.walk(path)
        if not self.model.there(path):
            # Below a passage the lookup itself is refused, and so is the making: it comes to the same.
            self.model.make(path, directory=directory)

    @rule(path=paths, data=st.binary(max_size=20))
    def create(self, path: Path_, data: bytes) -> None:
        """O_CREAT | O_EXCL."""
        self.both(lambda: self.free_to_make(path), lambda root: write(root.joinpath(*path), os.O_CREAT | os.O_EXCL, data))

    @rule(path=paths)
    def make_directory(self, path: Path_) -> None:
        """mkdir(2)."""
        self.both(lambda: self.free_to_make(path, directory=True), lambda root: os.mkdir(root.joinpath(*path)))

    @rule(path=paths, aim=aims)
    def unlink(self, path: Path_, aim: int | None) -> None:
        """unlink(2)."""
        path = self.aimed(path, aim)

        def permitted() -> None:
            if not self.model.find(path):
                self.model.remove(path, directory=False)

        self.both(permitted, lambda root: os.unlink(root.joinpath(*path)))

    @rule(path=paths, aim=aims)
    def remove_directory(self, path: Path_, aim: int | None) -> None:
        """rmdir(2): ENOTEMPTY while anything is in it, hidden or not."""
        path = self.aimed(path, aim)

        def permitted() -> None:
            if self.model.find(path):
                self.model.remove(path, directory=True)

        self.both(permitted, lambda root: os.rmdir(root.joinpath(*path)))

    @rule(old=paths, new=paths, aim=aims)
    def link(self, old: Path_, new: Path_, aim: int | None) -> None:
        """link(2)."""
        old = self.aimed(old, aim)
        model = self.model

        def permitted() -> None:
            directory = model.find(old)
            model.walk(new)
            if model.there(new):
                return
            if not model.visible(new[:-1]):
                raise Refusal("EACCES")
            if directory:
                # The kernel says so before it asks anybody.
                raise Refusal("EPERM")
            model.make(new, directory=False)
            if model.level(old) != model.level(new):
                model.crosses("EXDEV", new)

        self.both(permitted, lambda root: os.link(root.joinpath(*old), root.joinpath(*new)))

    @rule(old=paths, new=paths, aim=aims, onto=aims, flags=st.sampled_from([0, 0, 1, 2]))
    def rename(self, old: Path_, new: Path_, aim: int | None, onto: int | None, flags: int) -> None:
        """renameat2(2). What the kernel refuses by what is there comes before what the policy refuses."""
        model = self.model
        old, new = self.aimed(old, aim), self.aimed(new, onto if flags == 2 else None)

        def permitted() -> None:
            model.walk(old)
            model.walk(new)
            model.look_up(old)
            replaces = model.there(new)
            if not replaces and not model.visible(new[:-1]):
                raise Refusal("EACCES")
            if replaces and flags == 1:
                return
            if not replaces and flags == 2:
                raise model.unseen(new)
            directory, replaced_directory = model.at(old).is_dir(), replaces and model.at(new).is_dir()
            nested = new[: len(old)] == old or old[: len(new)] == new
            same = replaces and model.at(old).samefile(model.at(new))
            if nested or same or (replaces and flags != 2 and directory != replaced_directory):
                return
            model.take(old)
            model.name(new)
            if flags == 2:
                model.take(new)
                model.name(old)
            model.move(old, new, directory=directory)
            if flags == 2:
                model.move(new, old, directory=replaced_directory)

        self.both(permitted, lambda root: rename(root.joinpath(*old), root.joinpath(*new), flags))

    # -- always --

    @invariant()
    def source_is_what_was_permitted(self) -> None:
        """The source has what the plain copy has, and nothing else."""
        assert tree_of(self.source) == tree_of(self.model.tree)


# Long runs on few mounts: a mount costs as much as two hundred operations. For the same reason a failure is not shrunk here,
# which would outlast any patience; the steps that led to it are printed, and --hypothesis-seed repeats them.
ViewBesideModel.TestCase.settings = settings(
    max_examples=12,
    stateful_step_count=60,
    deadline=None,
    phases=(Phase.generate,),
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
    database=None,
)


@pytest.fixture
def can_mount() -> None:
    """Skip, or fail in CI, where this machine cannot mount: once, and not in the middle of a run."""
    require_fuse()


TestModel = pytest.mark.usefixtures("can_mount")(ViewBesideModel.TestCase)


def test_model_agrees_with_the_table() -> None:
    """The model's own answers, where they can be read off the table of docs/rules.md."""
    model = Model({(): RO, ("a",): STAGE, ("b",): NONE, ("b", "c"): RO}, Path("/nowhere"))
    assert [model.level(path) for path in [("x",), ("a", "b"), ("b", "a"), ("b", "c", "d"), ("a", DENIED)]] == [
        1,
        2,
        0,
        1,
        0,
    ]
    assert [model.passage(path) for path in [(), ("b",), ("b", "a"), ("c",)]] == [False, True, False, False]
    for path, code in {("x",): "EROFS", ("a", DENIED): "EACCES", ("b", "x"): "EACCES", ("b",): "EROFS"}.items():
        with pytest.raises(Refusal, match=code):
            model.make(path, directory=True)
