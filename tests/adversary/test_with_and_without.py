"""The same tree with and without hidden entries in it: a session cannot tell which one it has.

One tree is looked at twice, by two mounts with one policy: first as it is, then with 300 entries added that the policy
hides, each in its way. So everything can be compared, inode numbers and change times too. What may differ is named
here: a directory's own times, which hidden entries move (SECURITY.md), and whether a name can be made that something
not shown has taken (rule make-4).
"""

from __future__ import annotations

import bisect
import contextlib
import ctypes
import errno
import math
import os
import random
import socket
import stat
import struct
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.mount.harness import Mounted, mounted

PLACES = ("read", "work", "way")
"""A directory at ro, one at stage and a passage: hidden entries are added to each."""

GRANTS = {"/read": "ro", "/work": "stage", "/way/open": "ro", "/Secret": "none"}

PER_RULE = 25
"""Hidden entries of each sort in each place: 4 sorts, 3 places, 300 in all."""


def session() -> str:
    """The session of every mount here, with a grant at none for each name that is hidden by one."""
    grants = dict(GRANTS)
    for place in ("read", "work"):
        grants.update({f"/{place}/closed-{number:02}": "none" for number in range(2 * PER_RULE)})
    return "[grants]\n" + "".join(f'"{path}" = "{level}"\n' for path, level in grants.items())


def lay_out(source: Path) -> None:
    """The visible tree, with what a tree has: files, links, directories, a second name, a fifo, a socket."""
    (source / "Secret").mkdir()
    for place in PLACES:
        directory = source / place
        for below in ("open", "open/deep", "empty"):
            (directory / below).mkdir(parents=True, exist_ok=True)
        for number in range(12):
            (directory / "open" / f"file-{number}").write_bytes(b"x" * (number * 700))
        (directory / "shown").write_text("shown")
        (directory / "near").symlink_to("shown")
        (directory / "system").symlink_to("/usr/bin/env")
        os.link(directory / "shown", directory / "open" / "again")
        os.mkfifo(directory / "fifo")
        with socket.socket(socket.AF_UNIX) as bound, contextlib.chdir(directory):
            bound.bind("socket")
    # Access times lie ahead of all others, so that reading moves none (relatime).
    ahead = time.time_ns() + 3600 * 10**9
    for path in (source, *source.rglob("*")):
        os.utime(path, ns=(ahead, path.lstat().st_mtime_ns), follow_symlinks=False)


def by_grant(place: str) -> list[str]:
    """Names that a grant at none hides; in a passage, whatever no grant opens."""
    return [f"{place}/closed-{number:02}" for number in range(PER_RULE)]


def by_denylist(place: str) -> list[str]:
    """Names that the built-in denylist hides."""
    sorts = (".env.{}", "{}.pem", "{}.KEY", "{}.p12")
    return [f"{place}/{sorts[number % 4].format(number)}" for number in range(PER_RULE)]


def by_landing(place: str) -> list[str]:
    """Links that lead out of the mount."""
    return [f"{place}/pointer-{number:02}" for number in range(PER_RULE)]


def by_kind(place: str) -> list[str]:
    """Devices."""
    return [f"{place}/device-{number:02}" for number in range(PER_RULE)]


def hide_among(source: Path) -> int:
    """Add the hidden entries, files and directories with something in them; gives how many."""
    added = 0
    for place in PLACES:
        for number, name in enumerate(by_grant(place) + by_denylist(place)):
            if number % 3 == 0:
                (source / name / "sub").mkdir(parents=True)
                (source / name / "sub" / "file").write_text("hidden")
            else:
                (source / name).write_bytes(b"hidden" * 100)
            added += 1
        for number, name in enumerate(by_landing(place)):
            (source / name).symlink_to(("/srv/secret", "/etc/passwd", "/srv/missing", "../../outside")[number % 4])
            added += 1
        for name in by_kind(place):
            if os.geteuid() == 0:
                os.mknod(source / name, stat.S_IFCHR | 0o666, os.makedev(1, 3))
            else:
                (source / name).symlink_to("/srv/secret")
            added += 1
    return added


def found(view: Mounted) -> str:
    """What find(1) tells of everything it finds, directories' own modification and change times left out."""
    done = view.run(
        "find", ".", *PLACES, "way/open", "-type", "d", "-printf", r"%p %y %Y %n %s %b %m %U %G %i %A@\n",
        "-o", "-printf", r"%p %y %Y %n %s %b %m %U %G %i %A@ %T@ %C@ %l\n",
    )  # fmt: skip
    assert "Permission denied" in done.stderr  # the passages, which cannot be listed
    return done.stdout + done.stderr


def positions(view: Mounted) -> list[tuple[str, int, int, bytes]]:
    """Each directory's entries as getdents64(2) gives them: position, kind and name, in their order."""
    libc = ctypes.CDLL(None, use_errno=True)
    told = []
    for path in ("read", "work", "read/open", "work/open/deep", "way/open", "work/empty"):
        descriptor = os.open(view.point / path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            # Small, so that the kernel asks the daemon to go on from a position.
            buffer = ctypes.create_string_buffer(512)
            while (size := libc.getdents64(descriptor, buffer, len(buffer))) > 0:
                at = 0
                while at < size:
                    _, position, length, kind = struct.unpack_from("=QqHB", buffer.raw, at)
                    name = buffer.raw[at + 19 : at + length].split(b"\0")[0]
                    told.append((path, position, kind, name))
                    at += length
            assert size == 0
        finally:
            os.close(descriptor)
    return told


def statuses(view: Mounted) -> dict[str, tuple[Any, ...]]:
    """stat(2) of the directories and passages themselves, their own times left out."""
    told = {}
    for path in (".", "read", "work", "way", "way/open", "read/empty", "work/open"):
        status = os.stat(view.point / path)
        # Each mount has a device number of its own.
        told[path] = (status.st_mode, status.st_ino, *status[3:7], status.st_blocks, status.st_blksize, status.st_rdev)
    return told


@pytest.mark.usefixtures("as_root")
def test_free_space_tells_nothing(source: Path) -> None:
    """statfs tells the same with hidden entries and without, on a file system that nobody else writes to."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4g", "tmpfs", str(source)], check=True)
    try:
        lay_out(source)
        with mounted(source, session=session()) as view:
            without = os.statvfs(view.point)
        hide_among(source)
        with open(source / "Secret" / "long", "wb") as file:
            file.write(b"x" * (1 << 20))
        with mounted(source, session=session()) as view:
            assert os.statvfs(view.point) == without
        assert without.f_files == 0
    finally:
        subprocess.run(["umount", "-l", str(source)], check=True)


# -- the errno of every operation ----------------------------------------------------------------------------------------


def _made(view: Path, path: Path) -> None:
    """Take away what an operation that went through has made."""
    try:
        os.rmdir(path)
    except NotADirectoryError:
        os.unlink(path)


def _open(flags: int) -> Callable[[Path, Path], None]:
    def act(view: Path, path: Path) -> None:
        there = os.path.lexists(path)
        os.close(os.open(path, flags | os.O_NONBLOCK, 0o644))
        if not there:
            _made(view, path)

    return act


def _then_undone(make: Callable[[Path, Path], None]) -> Callable[[Path, Path], None]:
    def act(view: Path, path: Path) -> None:
        make(view, path)
        _made(view, path)

    return act


def _rename_to(view: Path, path: Path) -> None:
    os.rename(view / "work/scratch", path)
    os.rename(path, view / "work/scratch")


def _exchange(view: Path, path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(path), -100, os.fsencode(view / "work/scratch"), 2):
        raise OSError(ctypes.get_errno(), "renameat2")


def _keep_replacing(view: Path, path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.renameat2(-100, os.fsencode(view / "work/scratch"), -100, os.fsencode(path), 1):
        raise OSError(ctypes.get_errno(), "renameat2")
    os.rename(path, view / "work/scratch")


LOOKING: dict[str, Callable[[Path, Path], Any]] = {
    "stat": lambda view, path: os.stat(path),
    "lstat": lambda view, path: os.lstat(path),
    "stat slash": lambda view, path: os.stat(f"{path}/"),
    "stat below": lambda view, path: os.stat(path / "sub"),
    "stat above": lambda view, path: os.stat(path / ".."),
    "access": lambda view, path: os.access(path, os.F_OK) or os.stat(path),
    "open": _open(os.O_RDONLY),
    "open directory": _open(os.O_RDONLY | os.O_DIRECTORY),
    "open path": _open(os.O_PATH),
    "readlink": lambda view, path: os.readlink(path),
    "listdir": lambda view, path: os.listdir(path),
    "statvfs": lambda view, path: os.statvfs(path),
    "getxattr": lambda view, path: os.getxattr(path, "user.x"),
    "listxattr": lambda view, path: os.listxattr(path),
}

CHANGING: dict[str, Callable[[Path, Path], Any]] = {
    "open write": _open(os.O_WRONLY),
    "open truncate": _open(os.O_RDONLY | os.O_TRUNC),
    "truncate": lambda view, path: os.truncate(path, 3),
    "chmod": lambda view, path: os.chmod(path, 0o600),
    "chown": lambda view, path: os.chown(path, -1, -1),
    "utime": lambda view, path: os.utime(path, (1, 1)),
    "setxattr": lambda view, path: os.setxattr(path, "user.x", b"1"),
    "removexattr": lambda view, path: os.removexattr(path, "user.x"),
    "unlink": lambda view, path: os.unlink(path),
    "rmdir": lambda view, path: os.rmdir(path),
    "rename from": lambda view, path: os.rename(path, view / "work/elsewhere"),
    "link from": lambda view, path: os.link(path, view / "work/elsewhere"),
    "exchange": _exchange,
}

MAKING: dict[str, Callable[[Path, Path], Any]] = {
    "create": _open(os.O_WRONLY | os.O_CREAT | os.O_EXCL),
    "create or open": _open(os.O_WRONLY | os.O_CREAT),
    "mkdir": _then_undone(lambda view, path: os.mkdir(path)),
    "mkdir below": lambda view, path: os.mkdir(path / "new"),
    "mkfifo": _then_undone(lambda view, path: os.mkfifo(path)),
    "symlink": _then_undone(lambda view, path: os.symlink("shown", path)),
    "link to": _then_undone(lambda view, path: os.link(view / "work/scratch", path)),
    "rename to": _rename_to,
    "rename to a free name": _keep_replacing,
}

OPERATIONS = {**LOOKING, **CHANGING, **MAKING}


def probed(place: str) -> list[str]:
    """The names that are tried in a place: the hidden ones, others that the same rules would hide, and plain ones."""
    never_there = [f"{place}/closed-{number:02}" for number in range(PER_RULE, 2 * PER_RULE)]
    never_there += [f"{place}/.env.never-{number}" for number in range(20)]
    never_there += [f"{place}/missing-{number}" for number in range(22)]
    return by_grant(place) + by_denylist(place) + by_landing(place) + by_kind(place) + never_there


def answers(view: Mounted) -> dict[tuple[str, str], str]:
    """What every operation on every probed name answers."""
    (view.point / "work/scratch").write_text("scratch")
    told = {}
    for place in PLACES:
        for name in probed(place):
            for operation, act in OPERATIONS.items():
                try:
                    act(view.point, view.point / name)
                except OSError as error:
                    told[name, operation] = errno.errorcode[error.errno or 0]
                else:
                    told[name, operation] = "done"
    os.unlink(view.point / "work/scratch")
    return told


class Seen(NamedTuple):
    """Everything that a session can see of a tree."""

    found: str
    positions: list[tuple[str, int, int, bytes]]
    statuses: dict[str, tuple[Any, ...]]
    answers: dict[tuple[str, str], str]


def look(view: Mounted) -> Seen:
    """Look at a tree in every way. The probes come last, since they change directories at stage."""
    return Seen(found(view), positions(view), statuses(view), answers(view))


@pytest.fixture(scope="module")
def seen(tmp_path_factory: pytest.TempPathFactory) -> tuple[Seen, Seen]:
    """A tree without hidden entries and with them."""
    source = tmp_path_factory.mktemp("tree") / "source"
    source.mkdir()
    lay_out(source)
    with mounted(source, session=session()) as view:
        without = look(view)
    assert hide_among(source) == 300
    with mounted(source, session=session()) as view:
        return without, look(view)


Both = tuple[Seen, Seen]


def test_listing_tells_nothing(seen: Both) -> None:
    """find sees the same names, kinds, links, sizes, blocks, modes, numbers and times."""
    without, with_hidden = seen
    assert without.found.count("\n") > 40
    assert with_hidden.found == without.found


def test_positions_tell_nothing(seen: Both) -> None:
    """The positions of getdents leave no gap where something is hidden."""
    without, with_hidden = seen
    assert len(without.positions) > 40
    assert with_hidden.positions == without.positions


def test_attributes_of_directories_tell_nothing(seen: Both) -> None:
    """A directory's links, size and blocks do not count what is hidden in it."""
    without, with_hidden = seen
    assert with_hidden.statuses == without.statuses


def test_errno_of_every_operation_tells_nothing(seen: Both) -> None:
    """Every operation on 500 names answers alike whether the hidden ones are there or not, but for one answer that
    cannot be given otherwise: a name that something not shown has taken cannot be made."""
    without, with_hidden = seen[0].answers, seen[1].answers
    assert len({name for name, _ in without}) >= 500
    # What may be done is done, and each refusal occurs: the doors are not all closed in one way.
    assert {"done", "ENOENT", "EACCES", "EROFS"} <= set(without.values())
    taken = {
        (name, operation)
        for name in by_landing("work") + by_kind("work")
        for operation in MAKING
        if operation != "mkdir below"
    }
    assert {with_hidden[key] for key in taken} == {"EACCES"}
    assert {without[key] for key in taken} == {"done"}
    different = {key: (without[key], with_hidden[key]) for key in without.keys() - taken if without[key] != with_hidden[key]}
    assert different == {}


# -- timing --------------------------------------------------------------------------------------------------------------


def area(some: list[float], others: list[float]) -> float:
    """The chance that one of `others` takes longer than one of `some` (the area under the ROC curve): 0.5 where they
    cannot be told apart, 0 or 1 where every single one can."""
    ordered = sorted(some)
    below = sum(bisect.bisect_left(ordered, one) + bisect.bisect_right(ordered, one) for one in others)
    return below / 2 / len(some) / len(others)


ATTEMPTS = 5
"""At telling two sorts of names apart."""

PER_ATTEMPT = 400
"""Names of each sort that one attempt asks for."""


def told_apart(directory: Path, one: str, two: str) -> list[float]:
    """Areas of up to five attempts at telling two sorts of names apart by how long stat(2) takes. Each name is asked for
    once: the kernel keeps the answer, and a second time it would be the kernel that is measured. Interleaved in random
    order, so that whatever else the machine does falls on both; stops when three attempts agree."""
    chance = random.Random(7)
    areas: list[float] = []
    for attempt in range(ATTEMPTS):
        numbers = range(attempt * PER_ATTEMPT, (attempt + 1) * PER_ATTEMPT)
        samples = [(os.fsencode(directory / f"{prefix}{number:04}"), which)
                   for which, prefix in enumerate((one, two)) for number in numbers]  # fmt: skip
        chance.shuffle(samples)
        times: tuple[list[float], list[float]] = ([], [])
        for name, which in samples:
            start = time.perf_counter()
            try:
                os.lstat(name)
            except (FileNotFoundError, PermissionError):
                times[which].append(time.perf_counter() - start)
        assert len(times[0]) == len(times[1]) == PER_ATTEMPT
        areas.append(area(*times))
        if max(sum(map(alike, areas)), sum(not alike(value) for value in areas)) == 3:
            break
    return areas


def alike(value: float) -> bool:
    """Whether an area is too near to chance to tell. Names of two sorts that cannot be told apart are asked for in an order
    that chance made, so that a busy machine spreads no area: that of 400 names each deviates by 0.02, and this allows for
    four times as much. A further system call for what a rule hides measured 0.61 to 0.81."""
    return abs(value - 0.5) < 4 * math.sqrt(1 / 6 / PER_ATTEMPT)


@pytest.fixture(scope="module")
def timed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A view with names of each sort, enough for all attempts and all of equal length: hidden and there, hidden and not
    there, links that lead out, missing. In a directory at ro and in a passage."""
    source = tmp_path_factory.mktemp("timed") / "source"
    for place in ("read", "way", "Secret"):
        (source / place).mkdir(parents=True)
    grants = {"/read": "ro", "/way/open": "ro"}
    for number in range(ATTEMPTS * PER_ATTEMPT):
        grants[f"/read/there-{number:04}"] = grants[f"/read/gone--{number:04}"] = "none"
        (source / "read" / f"there-{number:04}").write_text("hidden")
        (source / "read" / f".env.there-{number:04}").mkdir()
        (source / "read" / f"link--{number:04}").symlink_to("/etc")
        (source / "way" / f"there-{number:04}").write_text("hidden")
    text = "[grants]\n" + "".join(f'"{path}" = "{level}"\n' for path, level in grants.items())
    with mounted(source, session=text) as view:
        yield view.point


@pytest.mark.parametrize(
    ("place", "there", "gone"),
    [("read", "there-", "gone--"), ("read", ".env.there-", ".env.gone--"), ("way", "there-", "gone--")],
    ids=["by a grant", "by the denylist", "in a passage"],
)
def test_timing_tells_nothing(timed: Path, place: str, there: str, gone: str) -> None:
    """How long the first lookup of a name that a rule hides takes does not tell whether anything is there."""
    areas = told_apart(timed / place, there, gone)
    assert sum(map(alike, areas)) >= 3, areas


def test_timing_that_tells_is_found(timed: Path) -> None:
    """The same measurement, on the same view, finds a difference that is known and weighed (SECURITY.md): a name that a
    rule hides is answered by its text, and a link that leads out is read before it is judged."""
    areas = told_apart(timed / "read", ".env.quick-", "link--")
    assert sum(not alike(value) for value in areas) >= 3, areas


def test_measure_of_timing_tells() -> None:
    """The measure tells apart what is apart, and not what is not."""
    chance = random.Random(3)
    quick = [chance.gauss(100, 20) for _ in range(400)]
    assert area([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]) == 1
    assert area([4.0], [1.0]) == 0
    assert alike(area(quick, [chance.gauss(100, 20) for _ in range(400)]))
    assert not alike(area(quick, [chance.gauss(120, 20) for _ in range(400)]))
