"""A source that others turn upside down, and what a mount of it must show then: all that the view itself gives, which
keeps nothing from one look to the next."""

from __future__ import annotations

import ctypes
import errno
import os
import random
import shutil
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from policyfs.policy.paths import ViewPath
from policyfs.view.monitor import ReferenceMonitor
from tests.mount.expecting import until

SESSION = """
[grants]
"/" = "ro"
"/staged" = "stage"
"/hidden" = "none"
"/passed" = "none"
"/passed/in" = "ro"
"/open/x/f" = "none"
"/open/x/y" = "none"
"/staged/y" = "ro"
"/other/y/f" = "stage"
"/other/x" = "none"
"/other/x/y" = "ro"
"/passed/in/x/g" = "none"
[floors]
"/staged/d/f" = "ro"
"""
TOP = ("open", "other", "staged", "hidden", "passed/in")
NAMES = ("x", "y", "d", "f", "g", ".env", "l")

_RENAME_EXCHANGE = 2
_AT_FDCWD = -100
_libc = ctypes.CDLL(None, use_errno=True)


def exchange(one: Path, other: Path) -> None:
    """renameat2(2) with RENAME_EXCHANGE."""
    if _libc.renameat2(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def told(act: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
    """What a call gives, or the name of its errno."""
    try:
        return act(*arguments, **named)
    except OSError as error:
        return errno.errorcode[error.errno or 0]


class Shuffled:
    """A tree in the source and the view of it, changed at random from outside and looked at from inside. `log` has what was
    done, `held` the directories of the view that are held open, by descriptors."""

    def __init__(self, source: Path, point: Path, view: ReferenceMonitor, seed: int, *, patience: float) -> None:
        """`patience` is how many seconds something may be kept that nothing watches."""
        self.source = source
        self.point = point
        self.view = view
        self.chance = random.Random(seed)
        self.patience = patience
        self.log: list[str] = []
        self.held: list[int] = []
        self._open: list[int] = []
        self._made = 0
        for name in TOP:
            (source / name).mkdir(parents=True)
        self._outside = [self.move] * 6 + [self.exchange] * 3 + [self.replace, self.remove, self.empty, self.change_mode]
        self._outside += [self.make_directory, self.make_file] * 2 + [self.make_link, self.write]

    def close(self) -> None:
        """Let go of all that is held."""
        for descriptor in self.held + self._open:
            os.close(descriptor)

    # -- from outside -----------------------------------------------------------------------------------------------------

    def outside(self) -> None:
        """One change. What cannot be done is not."""
        act = self.chance.choice(self._outside)
        told(act)

    def _all(self, *, directories: bool) -> list[Path]:
        found = []
        for above, directory_names, file_names in os.walk(self.source):
            for name in directory_names + file_names:
                path = Path(above, name)
                below = str(path.relative_to(self.source))
                ours = below.startswith(tuple(f"{top}/" for top in TOP))
                if ours and (path.is_dir() and not path.is_symlink()) is directories:
                    found.append(path)
        return sorted(found)

    def _directory(self) -> Path:
        return self.chance.choice(self._all(directories=True) or [self.source / "nothing"])

    def _file(self) -> Path:
        return self.chance.choice(self._all(directories=False) or [self.source / "nothing"])

    def _parent(self) -> Path:
        return self.chance.choice([*(self.source / name for name in TOP), *self._all(directories=True)])

    def _spot(self) -> Path:
        return self._parent() / self.chance.choice(NAMES)

    def _did(self, *words: object) -> None:
        self.log.append(" ".join(str(word).replace(str(self.source), "") for word in words))

    def _fill(self, path: Path) -> None:
        self._made += 1
        path.write_text(f"{self._made}" + "x" * self.chance.randrange(1, 40))

    def move(self) -> None:
        """A directory or, now and then, a file goes elsewhere."""
        old = self._directory() if self.chance.random() < 0.8 else self._file()
        new = self._spot()
        self._did("mv", old, new)
        old.rename(new)

    def exchange(self) -> None:
        """Two things change places."""
        one, other = (self.chance.choice([self._directory(), self._file()]) for _ in range(2))
        self._did("exchange", one, other)
        exchange(one, other)

    def replace(self) -> None:
        """A directory goes elsewhere, and another is in its place."""
        old, new = self._directory(), self._spot()
        self._did("replace", old, new)
        old.rename(new)
        old.mkdir()
        self._fill(old / "f")

    def remove(self) -> None:
        """A file is gone."""
        path = self._file()
        self._did("rm", path)
        path.unlink()

    def empty(self) -> None:
        """A directory is gone and, mostly, there again."""
        path = self._directory()
        self._did("rm -r", path)
        shutil.rmtree(path)
        if self.chance.random() < 0.7:
            path.mkdir()

    def change_mode(self) -> None:
        """chmod."""
        path = self.chance.choice([self._directory(), self._file()])
        self._did("chmod", path)
        path.chmod(self.chance.choice([0o644, 0o755, 0o700, 0o600]))

    def make_directory(self) -> None:
        """A directory with something in it."""
        path = self._spot()
        self._did("mkdir", path)
        path.mkdir()
        for name in self.chance.sample(["f", "g", ".env"], 2):
            self._fill(path / name)
        if self.chance.random() < 0.6:
            (path / "y").mkdir()
            self._fill(path / "y/f")

    def make_file(self) -> None:
        """A file, or another content of one."""
        path = self._spot()
        self._did("write", path)
        self._fill(path)

    def write(self) -> None:
        """Another content of a file."""
        path = self._file()
        self._did("write", path)
        self._fill(path)

    def make_link(self) -> None:
        """A symbolic link to anything, or nothing."""
        path = self._spot()
        text = "../" * self.chance.randrange(3) + self.chance.choice(["open/", "hidden/", "x/", "y/", ""])
        text += self.chance.choice(NAMES)
        self._did("ln -s", text, path)
        path.symlink_to(text)

    # -- from inside ------------------------------------------------------------------------------------------------------

    def inside(self) -> None:
        """One look at something, by its path or by a directory that is held."""
        where, name = self._parent().relative_to(self.source), self.chance.choice(NAMES)
        what = self.chance.choice(["stat", "stat", "list", "walk", "read", "hold", "open", *["at"] * 4, "list at", "let go"])
        self._did(" ", what, where, name)
        told(self._look, what, self.point / where, name)

    def _look(self, what: str, where: Path, name: str) -> None:
        held = self.chance.choice(self.held) if self.held else None
        if what == "stat":
            os.lstat(where / name)
        elif what == "list":
            os.listdir(where)
        elif what == "walk":
            for entry in os.scandir(where):
                os.lstat(entry.path)
        elif what == "read":
            (where / name).read_bytes()
        elif what == "hold":
            self.held.append(os.open(where, os.O_RDONLY | os.O_DIRECTORY))
        elif what == "open":
            self._open.append(os.open(where / name, os.O_RDONLY | os.O_NOFOLLOW))
        elif what == "at" and held is not None:
            os.lstat(name, dir_fd=held)
        elif what == "list at" and held is not None:
            os.listdir(held)
        elif what == "let go" and len(self.held) > 5:
            os.close(self.held.pop(0))

    # -- what is true -----------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Everything is as the view has it: names in listings, attributes, contents, what may be opened to write; by path,
        and by the directories held."""
        looks = [self._named, self._listed]
        self.chance.shuffle(looks)
        for look in looks:
            for where in [Path(), Path("passed"), Path("hidden"), *self._seen_directories()]:
                look(where)
        where_is = {os.lstat(self.point / path).st_ino: path for path in self._seen_directories()}
        for held in self.held:
            status = told(os.fstat, held)
            real = None if isinstance(status, str) else where_is.get(status.st_ino)
            for name in NAMES:
                path = None if real is None else real / name
                if path is not None:
                    self._same(
                        lambda name=name, held=held: _shown(name, held), lambda path=path: self._attributes(path), path
                    )
                else:
                    self._same(lambda name=name, held=held: isinstance(_shown(name, held), str), lambda: True, name)

    def _seen_directories(self) -> Iterator[Path]:
        for path in [*(self.source / name for name in TOP), *self._all(directories=True)]:
            below = path.relative_to(self.source)
            if not isinstance(self._attributes(below), str):
                yield below

    def _same(self, mount: Callable[[], Any], view: Callable[[], Any], what: object) -> None:
        until(lambda: mount() == view(), _Difference(what, mount, view, self.log), self.patience)  # type: ignore[arg-type]

    def _attributes(self, path: Path) -> Any:
        """By the view, name by name as the kernel asks."""

        def walked() -> Any:
            location = self.view.top
            attributes = self.view.attributes(location)
            for name in path.parts:
                if not attributes.is_directory:
                    raise NotADirectoryError(errno.ENOTDIR, "walk")
                location = self.view.child(location, os.fsencode(name))  # type: ignore[arg-type]
                attributes = self.view.attributes(location)
            size = 0 if attributes.is_directory else attributes.size
            return oct(attributes.mode), size, attributes.links, attributes.modify_ns

        return told(walked)

    def _named(self, where: Path) -> None:
        for name in NAMES:
            path = where / name
            self._same(lambda path=path: _shown(self.point / path), lambda path=path: self._attributes(path), path)
            location = self.view.locate(ViewPath(b"/" + os.fsencode(path)))
            if not (self.source / path).is_symlink() and (self.source / path).is_file():
                # What is not shown is missing to the kernel, which asks for the name first.
                shown = self._attributes(path)
                opened = told(lambda location=location: self.view.open(location, os.O_RDWR).close())
                opened = shown if isinstance(shown, str) else opened
                self._same(lambda path=path: told(_open_and_close, self.point / path), lambda opened=opened: opened, path)
                if isinstance(shown, str):
                    continue
                content = (self.source / path).read_bytes()
                self._same(lambda path=path: told((self.point / path).read_bytes), lambda content=content: content, path)

    def _listed(self, where: Path) -> None:
        def by_the_view() -> list[str]:
            listing = self.view.listing(self.view.locate(ViewPath(b"/" + os.fsencode(where) if where.parts else b"/")))
            try:
                return sorted(os.fsdecode(name) for name in listing.read() if listing.entry(name) is not None)
            finally:
                listing.close()

        self._same(lambda: told(lambda: sorted(os.listdir(self.point / where))), lambda: told(by_the_view), f"in {where}")


class _Difference:
    """What to say of a difference, put together only when there is one."""

    def __init__(self, what: object, mount: Callable[[], Any], view: Callable[[], Any], log: list[str]) -> None:
        self._what, self._mount, self._view, self._log = what, mount, view, log

    def __str__(self) -> str:
        return "\n".join([f"{self._what}: the mount has {self._mount()}, the view {self._view()}; after", *self._log[-40:]])


def _shown(path: str | Path, directory: int | None = None) -> Any:
    status = told(os.lstat, path, dir_fd=directory)
    if isinstance(status, str):
        return status
    size = 0 if stat.S_ISDIR(status.st_mode) else status.st_size
    return oct(status.st_mode), size, status.st_nlink, status.st_mtime_ns


def _open_and_close(path: Path) -> None:
    os.close(os.open(path, os.O_RDWR))
