"""Every door: each operation tried on each standing, from one table, with what the table of docs/rules.md says it answers.

A hidden name has four sorts (hidden by a grant at none, by the denylist, because it is a link that leads out of the
mount, because it is another mount) and three places it may be in (below a directory at ro, at stage, below a passage).
The answer may depend on the place and never on the sort. After each operation the source outside `stage`, and whatever
is hidden inside it, is what it was: byte for byte, name for name, time for time.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import mmap
import os
import socket
import stat
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.adversary.source_state import State, changes, state_of
from tests.mount.harness import Mounted, mounted

Act = Callable[[Path, Path], Any]
"""Does one operation on the second path; the first is a directory at stage with a file `scratch` in it."""

_libc = ctypes.CDLL(None, use_errno=True)


def _rename(flags: int, *, to: bool) -> Act:
    def act(work: Path, path: Path) -> None:
        old, new = (work / "scratch", path) if to else (path, work / "elsewhere")
        if _libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
            raise OSError(ctypes.get_errno(), "renameat2")

    return act


def _open(flags: int) -> Act:
    return lambda work, path: os.close(os.open(path, flags | os.O_NONBLOCK, 0o644))


def _access(wanted: int) -> Act:
    def act(work: Path, path: Path) -> None:
        if _libc.access(os.fsencode(path), wanted):
            raise OSError(ctypes.get_errno(), "access")

    return act


def _map_for_writing(work: Path, path: Path) -> None:
    descriptor = os.open(path, os.O_RDWR)
    try:
        with mmap.mmap(descriptor, 1) as mapped:
            mapped[0:1] = b"m"
    finally:
        os.close(descriptor)


def _bind(work: Path, path: Path) -> None:
    with contextlib.chdir(path.parent), socket.socket(socket.AF_UNIX) as bound:
        bound.bind(path.name)


OPERATIONS: dict[str, Act] = {
    "stat": lambda work, path: os.stat(path),
    "lstat": lambda work, path: os.lstat(path),
    "stat below": lambda work, path: os.stat(path / "below"),
    "statvfs": lambda work, path: os.statvfs(path),
    "access exists": _access(os.F_OK),
    "access read": _access(os.R_OK),
    "access write": _access(os.W_OK),
    "access walk": _access(os.X_OK),
    "readlink": lambda work, path: os.readlink(path),
    "open read": _open(os.O_RDONLY),
    "open path": _open(os.O_PATH),
    "open write": _open(os.O_WRONLY),
    "open both": _open(os.O_RDWR),
    "open append": _open(os.O_WRONLY | os.O_APPEND),
    "open read truncating": _open(os.O_RDONLY | os.O_TRUNC),
    "open creating": _open(os.O_WRONLY | os.O_CREAT),
    "open creating exclusively": _open(os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "open unnamed": _open(os.O_RDWR | os.O_TMPFILE),
    "list": lambda work, path: os.listdir(path),
    "map for writing": _map_for_writing,
    "truncate": lambda work, path: os.truncate(path, 1),
    "chmod": lambda work, path: os.chmod(path, 0o700),
    "chown": lambda work, path: os.chown(path, os.getuid(), os.getgid()),
    "utime": lambda work, path: os.utime(path, (1, 1)),
    "getxattr": lambda work, path: os.getxattr(path, "user.mark"),
    "listxattr": lambda work, path: os.listxattr(path),
    "setxattr": lambda work, path: os.setxattr(path, "user.mark", b"2"),
    "removexattr": lambda work, path: os.removexattr(path, "user.mark"),
    "mkdir": lambda work, path: os.mkdir(path),
    "mkdir below": lambda work, path: os.mkdir(path / "made"),
    "mkfifo": lambda work, path: os.mkfifo(path),
    "mknod device": lambda work, path: os.mknod(path, stat.S_IFCHR | 0o600, os.makedev(1, 3)),
    "bind": _bind,
    "symlink": lambda work, path: os.symlink("scratch", path),
    "symlink that lands on it": lambda work, path: os.symlink(os.path.relpath(path, work), work / "pointer"),
    "link from": lambda work, path: os.link(path, work / "elsewhere"),
    "link to": lambda work, path: os.link(work / "scratch", path),
    "rename from": _rename(0, to=False),
    "rename to": _rename(0, to=True),
    "rename to if free": _rename(1, to=True),
    "exchange": _rename(2, to=True),
    "unlink": lambda work, path: os.unlink(path),
    "rmdir": lambda work, path: os.rmdir(path),
}

# What each answers. `ok` goes through. The columns are: a file and a directory at ro, at stage, a passage, a name that
# is free below ro and below stage, and a hidden name below ro, below stage and below a passage.
TABLE = """
                          ro        ro/       stage     stage/    passage   free ro   free stg  hid. ro   hid. stg  hid. psg
stat                      ok        ok        ok        ok        ok        ENOENT    ENOENT    ENOENT    ENOENT    EACCES
lstat                     ok        ok        ok        ok        ok        ENOENT    ENOENT    ENOENT    ENOENT    EACCES
stat below                ENOTDIR   ENOENT    ENOTDIR   ENOENT    EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
statvfs                   ok        ok        ok        ok        ok        ENOENT    ENOENT    ENOENT    ENOENT    EACCES
access exists             ok        ok        ok        ok        ok        ENOENT    ENOENT    ENOENT    ENOENT    EACCES
access read               ok        ok        ok        ok        EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
access write              EROFS     EROFS     ok        ok        EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
access walk               EACCES    ok        EACCES    ok        ok        ENOENT    ENOENT    ENOENT    ENOENT    EACCES
readlink                  EINVAL    EINVAL    EINVAL    EINVAL    EINVAL    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
open read                 ok        ok        ok        ok        EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
open path                 ok        ok        ok        ok        ok        ENOENT    ENOENT    ENOENT    ENOENT    EACCES
open write                EROFS     EISDIR    ok        EISDIR    EISDIR    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
open both                 EROFS     EISDIR    ok        EISDIR    EISDIR    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
open append               EROFS     EISDIR    ok        EISDIR    EISDIR    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
open read truncating      EROFS     EISDIR    ok        EISDIR    EISDIR    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
open creating             EROFS     EISDIR    ok        EISDIR    EISDIR    EROFS     ok        EROFS     EACCES    EACCES
open creating exclusively EEXIST    EEXIST    EEXIST    EEXIST    EEXIST    EROFS     ok        EROFS     EACCES    EACCES
open unnamed              ENOTDIR   EOPNOTSUPP ENOTDIR  EOPNOTSUPP EOPNOTSUPP ENOENT  ENOENT    ENOENT    ENOENT    EACCES
list                      ENOTDIR   ok        ENOTDIR   ok        EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
map for writing           EROFS     EISDIR    ok        EISDIR    EISDIR    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
truncate                  EROFS     EISDIR    ok        EISDIR    EISDIR    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
chmod                     EROFS     EROFS     ok        ok        EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
chown                     EROFS     EROFS     ok        ok        EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
utime                     EROFS     EROFS     ok        ok        EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
getxattr                  ok        ok        ok        ok        EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
listxattr                 ok        ok        ok        ok        EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
setxattr                  EROFS     EROFS     ok        ok        EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
removexattr               EROFS     EROFS     ok        ok        EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
mkdir                     EEXIST    EEXIST    EEXIST    EEXIST    EEXIST    EROFS     ok        EROFS     EACCES    EACCES
mkdir below               ENOTDIR   EROFS     ENOTDIR   ok        EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
mkfifo                    EEXIST    EEXIST    EEXIST    EEXIST    EEXIST    EROFS     ok        EROFS     EACCES    EACCES
mknod device              EEXIST    EEXIST    EEXIST    EEXIST    EEXIST    EROFS     EPERM     EROFS     EACCES    EACCES
bind                      EADDRINUSE EADDRINUSE EADDRINUSE EADDRINUSE EADDRINUSE EROFS ok       EROFS     EACCES    EACCES
symlink                   EEXIST    EEXIST    EEXIST    EEXIST    EEXIST    EROFS     ok        EROFS     EACCES    EACCES
symlink that lands on it  ok        ok        ok        ok        ok        ok        ok        EACCES    EACCES    EACCES
link from                 EXDEV     EPERM     ok        EPERM     EPERM     ENOENT    ENOENT    ENOENT    ENOENT    EACCES
link to                   EEXIST    EEXIST    EEXIST    EEXIST    EEXIST    EROFS     ok        EROFS     EACCES    EACCES
rename from               EROFS     EROFS     ok        ok        EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
rename to                 EROFS     EISDIR    ok        EISDIR    EISDIR    EROFS     ok        EROFS     EACCES    EACCES
rename to if free         EEXIST    EEXIST    EEXIST    EEXIST    EEXIST    EROFS     ok        EROFS     EACCES    EACCES
exchange                  EROFS     EROFS     ok        ok        EROFS     ENOENT    ENOENT    ENOENT    ENOENT    EACCES
unlink                    EROFS     EISDIR    ok        EISDIR    EISDIR    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
rmdir                     ENOTDIR   EROFS     ENOTDIR   ok        EACCES    ENOENT    ENOENT    ENOENT    ENOENT    EACCES
"""

# No device is made under any name, so whether something not shown has the name is not asked.
BY_SORT = {("mknod device", "hid. stg", "landing"): "EPERM", ("mknod device", "hid. stg", "mount"): "EPERM"}
# What a link may say is decided by its text, and no rule hides these names.
BY_SORT |= {
    ("symlink that lands on it", column, sort): "ok" for column in ("hid. ro", "hid. stg") for sort in ("landing", "mount")
}

COLUMNS = ("ro", "ro/", "stage", "stage/", "passage", "free ro", "free stg", "hid. ro", "hid. stg", "hid. psg")

SORTS = {"grant": "closed", "denylist": ".env", "landing": "pointing", "mount": "mounted"}
"""The four sorts of hidden name, and the name of each in its place."""


def table() -> dict[str, dict[str, str]]:
    """The table by operation and column."""
    rows = {}
    header, *lines = TABLE.strip("\n").splitlines()
    assert header.split() == " ".join(COLUMNS).split()
    for line in lines:
        operation, answers = line[:26].strip(), line[26:].split()
        assert len(answers) == len(COLUMNS), line
        rows[operation] = dict(zip(COLUMNS, answers, strict=True))
    assert rows.keys() == OPERATIONS.keys()
    return rows


class Doors(NamedTuple):
    """The mounted view, its source, and whether another mount stands in it."""

    view: Mounted
    source: Path
    sorts: tuple[str, ...]


def _mark(path: Path) -> None:
    os.setxattr(path, "user.mark", b"1")


@pytest.fixture(scope="module")
def doors(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Doors]:
    """One tree in which each operation has directories of its own at ro and at stage, so that none meets what another
    has left. In each, and in the passage, stands every sort of hidden name."""
    source = tmp_path_factory.mktemp("doors") / "source"
    grants = {"/": "ro", "/work": "stage", "/way": "none", "/way/open": "ro", "/secret": "none"}
    for directory in ("secret", "way/open"):
        (source / directory).mkdir(parents=True)
    (source / "secret" / "file").write_text("hidden")
    places = ["way"]
    for number in range(len(OPERATIONS)):
        places += [f"read/{number}", f"work/{number}"]
    mounted_at = []
    for place in places:
        directory = source / place
        (directory / "directory").mkdir(parents=True)
        (directory / "file").write_text("a file that is there")
        (directory / "scratch").write_text("scratch")
        (directory / "closed").write_text("hidden by a grant at none")
        (directory / ".env").write_text("hidden by the denylist")
        (directory / "pointing").symlink_to("/srv/out/of/the/mount")
        for name in ("file", "directory", "closed", ".env"):
            _mark(directory / name)
        grants[f"/{place}/closed"] = "none"
    sorts = tuple(SORTS)
    if os.geteuid() == 0:
        # One is enough for all: no operation may get at it.
        for place in ("read", "work", "way"):
            (source / place / "mounted").mkdir()
            mounted_at.append(source / place / "mounted")
    else:
        sorts = tuple(sort for sort in SORTS if sort != "mount")
    text = "[grants]\n" + "".join(f'"{path}" = "{level}"\n' for path, level in grants.items())
    with contextlib.ExitStack() as stack:
        for place in mounted_at:
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", str(place)], check=True)
            stack.callback(subprocess.run, ["umount", "-l", str(place)], check=True)
            (place / "inside").write_text("hidden in another mount")
        with mounted(source, session=text) as view:
            yield Doors(view, source, sorts)


def path_for(column: str, sort: str, number: int) -> str:
    """Where the thing of a column stands, from the root."""
    match column:
        case "passage":
            return "way"
        case "ro" | "stage":
            return f"{'read' if column == 'ro' else 'work'}/{number}/file"
        case "ro/" | "stage/":
            return f"{'read' if column == 'ro/' else 'work'}/{number}/directory"
        case "free ro" | "free stg":
            return f"{'read' if column == 'free ro' else 'work'}/{number}/free"
    place = {"hid. ro": "read", "hid. stg": "work", "hid. psg": "way"}[column]
    # Other mounts stand one level up, and the passage is shared: nothing can be changed in it.
    return f"{place}/{SORTS[sort]}" if sort == "mount" or place == "way" else f"{place}/{number}/{SORTS[sort]}"


def guarded(source: Path) -> dict[bytes, State]:
    """Everything that no operation may change: the source outside stage, and what is hidden inside it."""
    state = state_of(source, except_below=("work",))
    for directory in (source / "work", *sorted((source / "work").iterdir())):
        for name in SORTS.values():
            if os.path.lexists(directory / name):
                found = state_of(directory / name)
                state.update({os.fsencode(directory / name) + b"/" + path: value for path, value in found.items()})
    return state


def test_table_is_whole() -> None:
    """Each operation stands in the table once, and each answer is an errno."""
    for row in table().values():
        assert all(answer == "ok" or hasattr(errno, answer) for answer in row.values())


@pytest.mark.parametrize("operation", OPERATIONS)
def test_operation(doors: Doors, operation: str) -> None:
    """An operation answers what the table says for each standing, alike for each sort of hidden name, and changes nothing
    but what is at stage."""
    number = list(OPERATIONS).index(operation)
    work = doors.view.point / "work" / str(number)
    row = table()[operation]
    before = guarded(doors.source)
    wrong = []
    for column in COLUMNS:
        for sort in doors.sorts if column.startswith("hid.") else ("",):
            path = doors.view.point / path_for(column, sort, number)
            _refresh(doors.source / "work" / str(number))
            try:
                OPERATIONS[operation](work, path)
            except OSError as error:
                # Two names for one number (bits/errno.h); the table has the one of the kernel's own sources.
                answer = errno.errorcode[error.errno or 0].replace("ENOTSUP", "EOPNOTSUPP")
            else:
                answer = "ok"
            expected = BY_SORT.get((operation, column, sort), row[column])
            if answer != expected:
                wrong.append(f"{column} {sort}: {answer}, not {expected}")
    assert wrong == []
    assert changes(before, guarded(doors.source)) == []
    assert doors.view.is_mounted


def _refresh(work: Path) -> None:
    """Put back what an operation that went through has used up, in the source."""
    for name in ("elsewhere", "pointer"):
        if os.path.lexists(work / name):
            (os.rmdir if (work / name).is_dir() and not (work / name).is_symlink() else os.unlink)(work / name)
    if not (work / "scratch").is_file():
        if (work / "scratch").is_dir():
            os.rmdir(work / "scratch")
        (work / "scratch").write_text("scratch")
