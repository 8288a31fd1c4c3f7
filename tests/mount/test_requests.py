"""How many requests reach the daemon: what the kernel can answer alone it does. Counts, not times, so that a lost cache
fails on any machine."""

from __future__ import annotations

import compileall
import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.mount.changes import settle
from tests.mount.expecting import until
from tests.mount.harness import Mounted, mounted
from tests.mount.status import counted, status_of

DIRECTORIES = 20
FILES = 15
MODULES = 50

A_FILE = 2
"""Requests of opening a file whose pages the kernel has, and closing it: OPEN and RELEASE. No READ, no FLUSH."""
A_LISTING = 4
"""Requests of listing a small directory: OPENDIR, READDIR twice (the second finds the end), RELEASEDIR."""
A_STAT_AFTER = 1
"""GETATTR of who stats what was listed before: listing may have changed the time of last access."""

REPOSITORY = f"""
git init -q . && git config user.name t && git config user.email t@example.org
for d in $(seq {DIRECTORIES}); do
  mkdir directory-$d
  for f in $(seq {FILES}); do echo $d $f > directory-$d/file-$f; done
done
mkdir modules
touch modules/__init__.py
for m in $(seq {MODULES}); do echo "number = $m" > modules/module_$m.py; done
echo __pycache__ > .gitignore
git add . && git commit -qm one && git gc -q
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A view of a repository of a few hundred files."""
    source = tmp_path_factory.mktemp("repository")
    subprocess.run(["bash", "-euc", REPOSITORY], cwd=source, check=True, stdin=subprocess.DEVNULL)
    # What an interpreter would write when it first imports them.
    compileall.compile_dir(source / "modules", quiet=2)
    settle(*source.rglob("*"))
    with mounted(source, "/=stage") as view:
        yield view


def requests_when_warm(view: Mounted, act: Callable[[], object]) -> int:
    """The requests of doing something that has been done before: the fewer of two times, since what is kept for a minute
    may end in one of them."""

    def quiet() -> bool:
        # The kernel tells of closed files after it has closed them.
        return status_of(view)["handles"] == 0

    for _ in range(3):
        act()
    until(quiet, "everything is closed")
    taken = []
    for _ in range(2):
        with counted(view) as count:
            act()
            until(quiet, "everything is closed")
        taken.append(count.requests)
    return min(taken)


def succeeds(view: Mounted, *argv: str) -> str:
    """What a command in the view says that must succeed."""
    done = view.run(*argv)
    assert done.returncode == 0, done.stderr
    return done.stdout


def some_files(view: Mounted, name: str) -> list[Path]:
    """A hundred paths of one spelling."""
    return [view.point / f"directory-{d}" / name.format(f) for d in range(1, 11) for f in range(1, 11)]


def test_stat(repository: Mounted) -> None:
    """A file that was looked at takes no request to be looked at again."""
    files = some_files(repository, "file-{}")
    assert requests_when_warm(repository, lambda: [os.stat(file) for file in files]) == 0


def test_stat_of_what_is_missing(repository: Mounted) -> None:
    """A name that was missing takes no request to be missing still."""
    files = some_files(repository, "missing-{}")

    def look() -> None:
        assert not any(os.path.exists(file) for file in files)

    assert requests_when_warm(repository, look) == 0


def test_stat_of_what_is_hidden(tmp_path: Path) -> None:
    """Nor does a name that the policy hides: it is kept as missing, like any other."""
    for number in range(100):
        (tmp_path / f"{number}.pem").touch()
    settle(tmp_path)
    with mounted(tmp_path, "/=stage") as view:

        def look() -> None:
            assert not any(os.path.exists(view.point / f"{number}.pem") for number in range(100))

        assert requests_when_warm(view, look) == 0


def test_reading_again(repository: Mounted) -> None:
    """A file that was read is opened and closed to be read again; its pages are in the kernel."""
    files = some_files(repository, "file-{}")
    requests = requests_when_warm(repository, lambda: [file.read_bytes() for file in files])
    assert requests == len(files) * A_FILE


def test_reading_what_was_written(repository: Mounted) -> None:
    """The same of files that the session wrote itself."""
    directory = repository.point / "written"
    directory.mkdir()
    files = [directory / str(number) for number in range(100)]
    for file in files:
        file.write_text("text")
    settle(*files)

    def kept() -> bool:
        # What the kernel was told while they were new it keeps for a second.
        return requests_when_warm(repository, lambda: [file.stat() for file in files]) == 0

    until(kept, "the kernel keeps the attributes of what is no longer new")
    requests = requests_when_warm(repository, lambda: [file.read_bytes() for file in files])
    assert requests == len(files) * A_FILE


def test_listing(repository: Mounted) -> None:
    """A directory that was listed takes no look at its entries to be listed again."""
    directories = [repository.point / f"directory-{number}" for number in range(1, DIRECTORIES + 1)]

    def sizes() -> None:
        for directory in directories:
            assert sum(entry.stat().st_size > 0 for entry in os.scandir(directory)) == FILES

    requests = requests_when_warm(repository, sizes)
    assert requests <= DIRECTORIES * (A_LISTING + A_STAT_AFTER)


def test_find(repository: Mounted) -> None:
    """`find -ls`, which stats everything, lists each directory and asks no more."""
    directories = sum(1 for path in [repository.source, *repository.source.rglob("*")] if path.is_dir())
    requests = requests_when_warm(repository, lambda: succeeds(repository, "find", ".", "-ls"))
    # 10 for starting there: ACCESS of the working directory, the root's own attributes.
    assert requests <= directories * (A_LISTING + A_STAT_AFTER) + 10


def test_git_status(repository: Mounted) -> None:
    """`git status` lists the directories that may hold untracked files, and opens some twenty files of its own."""

    def status() -> None:
        assert succeeds(repository, "git", "status", "--porcelain") in ("", "?? written/\n")

    # Its stats of all 350 files take none. It lists the tree (23 directories with its root, `modules` and `__pycache__`,
    # or `written`), opens .gitignore and a file of its own in each, reads config, HEAD, index and packed-refs, asks
    # ACCESS of eight of them, and makes index.lock and removes it. Measured with git 2.39: 166.
    directories = DIRECTORIES + 4
    assert requests_when_warm(repository, status) <= directories * (A_LISTING + A_STAT_AFTER) + 70


def test_importing_modules(repository: Mounted) -> None:
    """An interpreter that imports modules opens and closes what it has compiled, and lists their directory."""
    script = f"""
import sys
sys.dont_write_bytecode = True
sys.path.insert(0, ".")
import importlib
for number in range(1, {MODULES + 1}):
    assert importlib.import_module(f"modules.module_{{number}}").number == number
"""

    def run() -> None:
        assert repository.python(script).returncode == 0

    # One more file for the package; the view's root and the package are listed; 5 for starting there.
    assert requests_when_warm(repository, run) <= (MODULES + 1) * A_FILE + 2 * (A_LISTING + A_STAT_AFTER) + 5


def test_closing_takes_no_flush(repository: Mounted) -> None:
    """Who writes a file and closes it asks for creating, one write, and releasing; the name is looked up by creating it."""
    name = repository.point / "created"

    def write() -> None:
        descriptor = os.open(name, os.O_CREAT | os.O_WRONLY)
        os.write(descriptor, b"text")
        os.close(descriptor)
        os.unlink(name)

    # LOOKUP, CREATE, GETXATTR (security.capability, once for each new file), WRITE, RELEASE, UNLINK.
    assert requests_when_warm(repository, write) <= 6
