"""A view at `stage` beside a plain directory: the same operations, by the thousand, give the same answers and the same
tree; and one file under overlapping reads, writes, truncates and mappings is what a byte array says it is (as fsx does).

Everything is drawn from a seed, which a failure names.
"""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import random
import shutil
import subprocess
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.adversary.answers import answer_of, shown, tree_of
from tests.mount.harness import mounted
from tests.mount.second_tree import with_second_tree

OPERATIONS = 2500
"""For each seed."""

_NAMES = ("a", "b", "c", "d", "a name", "\u00e4", "x" * 255)
_libc = ctypes.CDLL(None, use_errno=True)


class Drawn:
    """Random operations on two trees at once."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.drawn = ("", "", "")
        """The operation that was drawn last: its name and its two paths."""
        self.answers: Counter[str] = Counter()

    def path(self) -> str:
        """A path of one to three names, often one that was used before: there are few."""
        return "/".join(
            self.chance.choices(_NAMES[:4] if self.chance.random() < 0.9 else _NAMES, k=self.chance.randint(1, 3))
        )

    def operation(self) -> tuple[str, Callable[[Path], Any]]:
        """An operation as something to do at the root of either tree."""
        chance = self.chance
        one, two = self.path(), self.path()
        data = chance.randbytes(chance.choice((0, 1, 100, 4096, 5000)))
        number = chance.randrange(6000)
        mode = chance.choice((0o600, 0o644, 0o755, 0o700))
        flags = chance.choice((0, 0, 1, 2))
        choices: dict[str, Callable[[Path], Any]] = {
            "mkdir": lambda root: os.mkdir(root / one, mode),
            "create": lambda root: _write(root / one, os.O_CREAT | os.O_EXCL, data, 0),
            "create or write": lambda root: _write(root / one, os.O_CREAT | os.O_TRUNC, data, 0),
            "write": lambda root: _write(root / one, 0, data, number),
            "append": lambda root: _write(root / one, os.O_APPEND, data, 0),
            "read": lambda root: _read(root / one),
            "truncate": lambda root: os.truncate(root / one, number),
            "unlink": lambda root: os.unlink(root / one),
            "rmdir": lambda root: os.rmdir(root / one),
            "rename": lambda root: _rename(root / one, root / two, flags),
            "link": lambda root: os.link(root / one, root / two, follow_symlinks=False),
            # Relative to the link and downwards, so that it lands in the tree wherever the link is moved to.
            "symlink": lambda root: os.symlink(two, root / one),
            "readlink": lambda root: os.readlink(root / one),
            "fifo": lambda root: os.mkfifo(root / one, mode),
            "chmod": lambda root: os.chmod(root / one, mode),
            "utime": lambda root: os.utime(root / one, ns=(number, number * 10**9 + 7)),
            "list": lambda root: sorted(os.listdir(root / one)),
            "stat": lambda root: shown(os.stat(root / one)),
            "lstat": lambda root: shown(os.lstat(root / one)),
            "access": lambda root: [os.access(root / one, wanted) for wanted in (os.R_OK, os.W_OK, os.X_OK)],
            "setxattr": lambda root: os.setxattr(root / one, b"user.%d" % (number % 3), data[:100]),
            "getxattr": lambda root: os.getxattr(root / one, b"user.%d" % (number % 3)),
            "listxattr": lambda root: sorted(os.listxattr(root / one)),
            "removexattr": lambda root: os.removexattr(root / one, b"user.%d" % (number % 3)),
        }
        # Trees grow only if more is made than is taken away.
        name = chance.choices(list(choices), [3, 3, 3, *[1] * (len(choices) - 3)])[0]
        self.drawn = name, one, two
        return f"{name} {one} {two}", choices[name]


def _write(path: Path, flags: int, data: bytes, offset: int) -> int:
    # Without O_NONBLOCK, opening a fifo would wait for its other end.
    descriptor = os.open(path, os.O_WRONLY | os.O_NONBLOCK | flags, 0o644)
    try:
        return os.write(descriptor, data) if flags & os.O_APPEND else os.pwrite(descriptor, data, offset)
    finally:
        os.close(descriptor)


def _read(path: Path) -> bytes:
    descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        return os.read(descriptor, 20_000)
    finally:
        os.close(descriptor)


def _rename(old: Path, new: Path, flags: int) -> None:
    if _libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        raise OSError(ctypes.get_errno(), "renameat2")


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_same_operations_give_the_same_tree(source: Path, tmp_path: Path, seed: int) -> None:
    """Thousands of operations answer alike on a view at stage and on a plain directory, and leave the same tree."""
    plain = tmp_path / "plain"
    plain.mkdir()
    drawn = Drawn(seed)
    with mounted(source, "/=stage", deadline=100) as view:
        for number in range(OPERATIONS):
            said, act = drawn.operation()
            expected, given = answer_of(act, plain), answer_of(act, view.point)
            if isinstance(expected, list) and not said.startswith("access"):
                drawn.answers["list"] += 1
            drawn.answers[expected if isinstance(expected, str) and expected.startswith("E") else "done"] += 1
            assert given == expected, f"seed {seed}, operation {number}: {said[:120]}"
        tree = tree_of(plain)
        assert tree_of(view.point) == tree
        assert tree_of(source) == tree
    # Neither tree was so poor, nor so full of refusals, that there was nothing to tell apart.
    assert len(tree) > 5
    assert drawn.answers["done"] > OPERATIONS / 10
    assert len(drawn.answers) > 8, drawn.answers


class Plain:
    """A plain directory that answers as a view with a second tree at `b` must: as a plain directory everywhere, but that `b`
    stays where it is, and nothing is linked or renamed into or out of it."""

    POINT = "b"

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / self.POINT).mkdir(parents=True)

    def _place(self, path: str) -> tuple[bool, bool]:
        """Whether a name is in the second tree, once all links before it are followed, and whether it is its mount point."""
        above = os.path.realpath((self.root / path).parent)
        place = os.path.relpath(os.path.join(above, os.path.basename(path)), self.root)
        return place.startswith(f"{self.POINT}/"), place == self.POINT

    def answer(self, said: str, one: str, two: str, act: Callable[[Path], Any]) -> Any:
        """What an operation on one path, or two, must give. What the trees refuse is tried on a copy: whatever else is
        wrong with it the kernel finds out first."""
        refused = ""
        if said in ("rename", "link") and self._place(one)[0] is not self._place(two)[0]:
            refused = "EXDEV"
        elif (said == "rmdir" and self._place(one)[1]) or (
            said == "rename" and (self._place(one)[1] or self._place(two)[1])
        ):
            refused = "EBUSY"
        if not refused:
            return answer_of(act, self.root)
        copy = self.root.with_name("copy")
        subprocess.run(["cp", "-a", self.root, copy], check=True)
        given = answer_of(act, copy)
        shutil.rmtree(copy)
        # The kernel itself answers for a directory that is to replace one which it lies in, and for two names of one object.
        above = given == "ENOTEMPTY" and self._holds(two, one)
        by_kernel = said == "rename" and (above or self._are_one(one, two))
        return given if by_kernel or given not in (None, "ENOTEMPTY") else refused

    def _are_one(self, one: str, two: str) -> bool:
        """Whether two names have one object."""
        with contextlib.suppress(OSError):
            return os.path.samestat(os.lstat(self.root / one), os.lstat(self.root / two))
        return False

    def move(self, chance: random.Random) -> tuple[str, str, str, Callable[[Path], Any]]:
        """A rename or a link of something that is there to a name in some directory."""
        places = sorted(self.root.rglob("*"))
        directories = [self.root, *(place for place in places if place.is_dir() and not place.is_symlink())]
        one = str(chance.choice(places).relative_to(self.root))
        two = str((chance.choice(directories) / chance.choice(_NAMES[:4])).relative_to(self.root))
        if chance.random() < 0.5:
            return "link", one, two, lambda root: os.link(root / one, root / two, follow_symlinks=False)
        flags = chance.choice((0, 0, 1, 2))
        return "rename", one, two, lambda root: _rename(root / one, root / two, flags)

    def _holds(self, above: str, below: str) -> bool:
        """Whether a directory holds a name, at any depth."""
        place = os.path.realpath((self.root / below).parent)
        return f"{place}/".startswith(f"{os.path.realpath(self.root / above)}/")


@pytest.mark.parametrize("covered", [False, True], ids=["nothing covered", "a directory covered"])
@pytest.mark.parametrize("seed", [6, 7])
def test_a_view_of_two_trees_is_one_tree_but_for_moves_between_them(
    source: Path, tmp_path: Path, seed: int, covered: bool
) -> None:
    """Thousands of operations over two trees answer as one plain directory does, but for EXDEV between the two and EBUSY for
    the mount point (rules tree-1 to tree-3); what is covered stays as it was."""
    plain, second = Plain(tmp_path / "plain"), tmp_path / "second"
    second.mkdir()
    if covered:
        (source / Plain.POINT).mkdir()
        (source / Plain.POINT / "a").write_text("covered")
    drawn = Drawn(seed)
    crossed = 0
    with mounted(source, "/=stage", deadline=200, sabotage=with_second_tree(Plain.POINT, second)) as view:
        for number in range(OPERATIONS):
            if drawn.chance.random() < 0.2:
                name, one, two, act = plain.move(drawn.chance)
            else:
                act = drawn.operation()[1]
                name, one, two = drawn.drawn
            expected, given = plain.answer(name, one, two, act), answer_of(act, view.point)
            crossed += expected == "EXDEV"
            assert given == expected, f"seed {seed}, operation {number}: {name} {one} {two}"[:200]
        tree = tree_of(plain.root)
        assert tree_of(view.point) == tree
    inside = {path for path in tree if path.startswith(f"{Plain.POINT}/")}
    assert {f"{Plain.POINT}/{path}" for path in tree_of(second)} == inside
    behind = tree_of(source)
    assert {path for path in behind if path.partition("/")[0] != Plain.POINT} == set(tree) - inside - {Plain.POINT}
    assert not covered or (source / Plain.POINT / "a").read_text() == "covered"
    # Something went on in both trees, and much was tried between them.
    assert len(inside) > 2
    assert len(tree) - len(inside) > 2
    assert crossed > 20


@pytest.mark.parametrize("text", ["a/a", "a/../b", "./a/", "b/a/c"])
def test_link_through_itself_is_made(source: Path, text: str) -> None:
    """A link whose text leads through the link itself is made and shown; following it gives ELOOP, as anywhere."""
    (source / "b").mkdir()
    (source / "b" / "a").symlink_to("../a/x")
    with mounted(source, "/=stage") as view:
        os.symlink(text, view.point / "a")
        assert os.readlink(view.point / "a") == text
        assert answer_of(os.stat, view.point / "a") == "ELOOP"


class OneFile:
    """One file under everything that reads and writes, beside a byte array that says what is in it."""

    MOST = 300_000

    def __init__(self, path: Path, chance: random.Random) -> None:
        self.path = path
        self.chance = chance
        self.content = bytearray()
        self.descriptors = [os.open(path, os.O_RDWR | os.O_CREAT, 0o644), os.open(path, os.O_RDWR)]
        self.appending = os.open(path, os.O_WRONLY | os.O_APPEND)

    def close(self) -> None:
        """Close what is open."""
        for descriptor in (*self.descriptors, self.appending):
            os.close(descriptor)

    def range(self, most: int) -> tuple[int, int]:
        """An offset and a size within the first `most` bytes, often around the edge of a page."""
        offset = self.chance.randrange(max(1, most))
        if self.chance.random() < 0.5:
            offset = min(max(0, most - 1), offset // 4096 * 4096 + self.chance.choice((0, 1, 4095)))
        return offset, self.chance.choice((1, 7, 4096, 4097, 20_000, 70_000))

    def _put(self, offset: int, data: bytes) -> None:
        if data:
            self.content.extend(b"\0" * (offset - len(self.content)))
            self.content[offset : offset + len(data)] = data

    def read(self) -> None:
        """pread(2)."""
        offset, size = self.range(len(self.content) + 5000)
        assert os.pread(self.chance.choice(self.descriptors), size, offset) == self.content[offset : offset + size]

    def write(self) -> None:
        """pwrite(2), beyond the end too."""
        offset, size = self.range(self.MOST)
        data = self.chance.randbytes(size)
        assert os.pwrite(self.chance.choice(self.descriptors), data, offset) == size
        self._put(offset, data)

    def append(self) -> None:
        """write(2) with O_APPEND."""
        if len(self.content) < self.MOST:
            data = self.chance.randbytes(self.chance.randrange(1, 9000))
            assert os.write(self.appending, data) == len(data)
            self._put(len(self.content), data)

    def truncate(self) -> None:
        """truncate(2) and ftruncate(2), both ways."""
        size, _ = self.range(self.MOST)
        if self.chance.random() < 0.5:
            os.ftruncate(self.descriptors[0], size)
        else:
            os.truncate(self.path, size)
        self.content = self.content[:size].ljust(size, b"\0")

    def map_read(self) -> None:
        """A private or shared mapping of it all, read."""
        if self.content:
            flags = self.chance.choice((mmap.MAP_SHARED, mmap.MAP_PRIVATE))
            with mmap.mmap(self.descriptors[1], len(self.content), flags, mmap.PROT_READ) as mapped:
                offset, size = self.range(len(self.content))
                assert mapped[offset : offset + size] == self.content[offset : offset + size]

    def map_write(self) -> None:
        """A shared mapping, written to, flushed or not."""
        if self.content:
            with mmap.mmap(self.descriptors[0], len(self.content)) as mapped:
                offset, size = self.range(len(self.content))
                data = self.chance.randbytes(min(size, len(self.content) - offset))
                mapped[offset : offset + len(data)] = data
                self._put(offset, data)
                if self.chance.random() < 0.5:
                    mapped.flush()

    def reopen(self) -> None:
        """Close one descriptor and open another."""
        os.close(self.descriptors.pop(0))
        self.descriptors.append(os.open(self.path, os.O_RDWR))

    def size(self) -> None:
        """The size that stat(2) and lseek(2) tell."""
        assert os.stat(self.path).st_size == len(self.content)
        assert os.lseek(self.descriptors[1], 0, os.SEEK_END) == len(self.content)

    def sync(self) -> None:
        """fsync(2)."""
        os.fsync(self.descriptors[0])


@pytest.mark.parametrize("seed", [4, 5])
def test_one_file_holds_what_was_written(source: Path, seed: int) -> None:
    """Overlapping reads, writes, appends, truncates and mappings by several descriptors leave exactly what they wrote."""
    chance = random.Random(seed)
    with mounted(source, "/=stage", deadline=100) as view, contextlib.closing(OneFile(view.point / "file", chance)) as file:
        acts = [file.read, file.write, file.append, file.truncate, file.map_read, file.map_write, file.size]
        for number in range(1500):
            act = chance.choice(acts) if chance.random() < 0.97 else chance.choice((file.reopen, file.sync))
            try:
                act()
            except (AssertionError, OSError) as fault:
                raise AssertionError(f"seed {seed}, step {number}: {act.__name__}") from fault
        assert (view.point / "file").read_bytes() == file.content
        # What a mapping wrote reaches the source with this at the latest.
        file.sync()
        assert (source / "file").read_bytes() == file.content
