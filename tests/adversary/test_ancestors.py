"""What a rule names is reached by no other path: neither by what a session puts on the way to it, nor by a link that its
owner makes there.

The view is of a home, and what the rules name is not there yet. The session tries every call on every directory of each
way. Then the owner's programs write a token, or a file that is executed, by the path of the rule, and the session looks for
it in the whole view.
"""

from __future__ import annotations

import contextlib
import ctypes
import itertools
import os
import shutil
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from policyfs.source.tree import RENAME_EXCHANGE, RENAME_NOREPLACE
from tests.mount.expecting import errno_of, until
from tests.mount.harness import Mounted, Person, mounted

SECRET = "the token"


class Guarded(NamedTuple):
    """A file that a rule guards, and what removing a link tells that stands for the first or the second name of its path.
    EBUSY: only a directory may stand there. Where the rule names the link itself, what the level of the rule tells."""

    kind: str
    told: tuple[str, str]
    is_shown: bool = False
    """Whether it may be read, and not written; the rest may not even be found."""


GUARDED = {
    "a/b/none/k": Guarded("a grant of none", ("EBUSY", "EBUSY")),
    "m/less/f": Guarded("a grant of ro", ("EBUSY", "EROFS"), is_shown=True),
    "p/.vscode/tasks.json": Guarded("a floor", ("EBUSY", "EBUSY"), is_shown=True),
    "q/r/floored": Guarded("a floor of another source", ("EBUSY", "EBUSY"), is_shown=True),
    "d/e/denied": Guarded("a denied path", ("EBUSY", "EBUSY")),
    ".docker/config.json": Guarded("a built-in place", ("EBUSY", "EBUSY")),
    ".config/gh/hosts.yml": Guarded("a built-in place with others beside it", ("EBUSY", "ENOENT")),
}
"""What the rules name, by its path."""

_libc = ctypes.CDLL(None, use_errno=True)


def rename(old: Path, new: Path, flags: int = 0) -> None:
    """renameat2(2)."""
    if _libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags):
        raise OSError(ctypes.get_errno(), "renameat2")


@pytest.fixture
def view(source: Path, tmp_path: Path) -> Iterator[Mounted]:
    """A home of which everything is at stage but for what the rules name."""
    (tmp_path / "floors.toml").write_text(f'[floors]\n"{source}/q/r/floored" = "ro"\n')
    (source / "w").mkdir()
    grants = ("/=stage", "/a/b/none=none", "/m/less=ro")
    options = ("--floor", "/p/.vscode/tasks.json=ro", "--deny", "/d/e/denied", "--floors", str(tmp_path / "floors.toml"))
    with mounted(source, *grants, options=options, person=Person(source)) as mount:
        yield mount


CLOSED_WAYS = {"a/b/none", "m/less", ".config/gh"}
"""Directories of the ways that a rule closes itself: only their owner makes them."""


def ways() -> list[str]:
    """The directories above what the rules guard, the outermost first."""
    return sorted({"/".join(names[:length]) for names in map(split, GUARDED) for length in range(1, len(names))})


def split(path: str) -> list[str]:
    """The names of a path."""
    return path.split("/")


def pieces(view: Mounted, number: int) -> dict[str, Path]:
    """One of each kind of thing that a session can make in a directory of its own."""
    here = view.source / "yard" / str(number)
    here.mkdir()
    (here / "file").write_text("decoy")
    (here / "link").symlink_to("../nothing" if number % 2 else "../..")
    os.mkfifo(here / "fifo")
    os.mknod(here / "socket", stat.S_IFSOCK | 0o600)
    (here / "directory").mkdir()
    for name in {split(way)[-1] for way in ways()}:
        # Wherever it is moved, the next name of a way is a link.
        (here / "directory" / name).symlink_to("../w")
    return {piece.name: view.point / "yard" / str(number) / piece.name for piece in here.iterdir()}


def attacks(at: Path, made: dict[str, Path]) -> Iterator[Callable[[], object]]:
    """Every call that could put something else than a directory of its own at a path, or take away what is there."""
    for text in ("w", "../w", str(made["directory"]), "..", "gone"):
        yield lambda text=text: os.symlink(text, at)
    yield lambda: os.close(os.open(at, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
    yield lambda: os.close(os.open(at, os.O_CREAT | os.O_WRONLY))
    yield lambda: os.mkfifo(at)
    yield lambda: os.mknod(at, stat.S_IFSOCK | 0o600)
    yield lambda: os.mknod(at, stat.S_IFREG | 0o600)
    for name in ("file", "link", "fifo", "socket"):
        yield lambda name=name: os.link(made[name], at, follow_symlinks=False)
    for piece in made.values():
        for flags in (0, RENAME_NOREPLACE, RENAME_EXCHANGE):
            yield lambda piece=piece, flags=flags: rename(piece, at, flags)
            yield lambda piece=piece, flags=flags: rename(at, piece, flags)
    yield lambda: os.rmdir(at)
    yield lambda: os.unlink(at)
    yield lambda: rename(at, made["directory"] / "taken")
    yield lambda: rename(at.parent, made["directory"] / "above")


def found_in(view: Mounted) -> dict[str, str]:
    """What can be read of regular files in the whole view, through every link, by its path.

    Each directory is read once: a link leads to the path of what it lands on.
    """
    found = {}
    seen = set()
    for directory, inner, files in os.walk(view.point, followlinks=True):
        status = os.stat(directory)
        if (status.st_dev, status.st_ino) in seen:
            inner.clear()
            continue
        seen.add((status.st_dev, status.st_ino))
        for name in files:
            path = Path(directory, name)
            if path.is_file():
                with contextlib.suppress(OSError):
                    found[str(path.relative_to(view.point))] = path.read_text()
    return found


def assert_guarded(view: Mounted, where: dict[str, Path]) -> None:
    """What the owner wrote by the paths of the rules is neither read nor written by any path of the view."""
    found = found_in(view)
    assert "w/proof" in found, "nothing at all is found in the view"
    for path, place in where.items():
        content = SECRET + path
        shown = [name for name, text in found.items() if text == content]
        if GUARDED[path].is_shown:
            assert shown, f"{path} may be read, and is not found"
            assert {errno_of(os.truncate, view.point / name, 0) for name in shown} == {"EROFS"}, path
            assert {errno_of(os.unlink, view.point / name) for name in shown} == {"EROFS"}, path
        else:
            assert shown == [], path
        assert place.read_text() == content


@pytest.mark.parametrize("state", ["absent", "empty", "holding"])
def test_nothing_that_a_session_does_on_the_way_evades_a_rule(view: Mounted, source: Path, state: str) -> None:
    """Where a directory on the way is missing, empty or holds something else: after every call, made there by the session,
    the way is as the owner's programs take it."""
    (source / "yard").mkdir()
    (source / "w" / "proof").write_text("")
    numbers = itertools.count()
    tried = through = 0
    for way in ways():
        side = source if way in CLOSED_WAYS else view.point
        if state != "absent":
            (side / way).mkdir(exist_ok=True)
        if state == "holding":
            (side / way / "other").write_text("other")
        for attack in itertools.count():
            number = next(numbers)
            acts = list(attacks(view.point / way, pieces(view, number)))
            if attack == len(acts):
                break
            tried += 1
            with contextlib.suppress(OSError):
                acts[attack]()
                through += 1
            there = (source / way).is_dir() and not (source / way).is_symlink()
            assert there or (state == "absent" and not os.path.lexists(source / way)), (way, attack)
            shutil.rmtree(source / "yard" / str(number))
        (side / way).mkdir(exist_ok=True)
    print(f"{tried} tried, {through} went through")
    assert tried > 40 * len(ways())
    for path in GUARDED:
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(SECRET + path)
    assert_guarded(view, {path: source / path for path in GUARDED})


def test_attack_finds_what_is_open(view: Mounted, source: Path) -> None:
    """The attack itself works: where no rule names anything, it puts links and files, and takes away what is there."""
    (source / "yard").mkdir()
    (source / "free").mkdir()
    through = set()
    for attack in itertools.count():
        at = view.point / "free" / str(attack)
        acts = list(attacks(at, pieces(view, attack)))
        if attack == len(acts):
            break
        if attack % 2:
            at.mkdir()
        with contextlib.suppress(OSError):
            acts[attack]()
            status = os.lstat(at) if os.path.lexists(at) else None
            through.add("nothing" if status is None else stat.filemode(status.st_mode)[0])
    assert through >= {"nothing", "l", "-", "p", "s", "d"}


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("later", ["stays", "goes", "replaced"])
def test_a_link_that_the_owner_makes_on_the_way_takes_the_rule_along(
    view: Mounted, source: Path, depth: int, later: str
) -> None:
    """Whichever directory of the way it stands for, through a further link or not, also after it is gone: what the owner's
    programs have written through it is guarded where it is."""
    (source / "w" / "proof").write_text("")
    where = {}
    for number, path in enumerate(GUARDED):
        names = split(path)
        length = min(depth, len(names) - 1)
        link = source.joinpath(*names[:length])
        led_to = source / "w" / str(number)
        led_to.mkdir()
        (source / f"hop{number}").symlink_to(f"w/{number}")
        link.parent.mkdir(parents=True, exist_ok=True)
        link.symlink_to(source / f"hop{number}" if number % 2 else os.path.relpath(led_to, link.parent))
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        (source / path).write_text(SECRET + path)
        where[path] = (source / path).resolve()
        assert errno_of(os.unlink, view.point.joinpath(*names[:length])) == GUARDED[path].told[length - 1], path
        if later == "goes":
            link.unlink()
        elif later == "replaced":
            (source / "other").mkdir(exist_ok=True)
            (source / "new").symlink_to(source / "other")
            os.replace(source / "new", link)
    assert_guarded(view, where)


TRIES = 300

READER = """
import os, sys
point, found, tried = sys.argv[1], 0, 0
for number in range(int(sys.argv[2])):
    print(number, flush=True)
    is_written = False
    while not is_written:
        is_written = os.path.exists(f"{point}/w/{number}/next")
        tried += 1
        try:
            found += open(f"{point}/w/{number}/config.json").read() != ""
        except OSError:
            pass
print(tried, found)
"""


def test_no_read_comes_between_a_link_and_the_rule(view: Mounted, source: Path) -> None:
    """A session that does nothing but try to read where the owner's next link leads gets no token: the rule is there before
    the owner's call has returned."""
    for number in range(TRIES):
        (source / "w" / str(number)).mkdir()
    reader = subprocess.Popen(
        [sys.executable, "-I", "-c", READER, str(view.point), str(TRIES)], stdout=subprocess.PIPE, text=True
    )
    assert reader.stdout is not None
    with reader:
        for number in range(TRIES):
            assert reader.stdout.readline() == f"{number}\n"
            led_to = source / "w" / str(number)
            (source / "new").symlink_to(f"w/{number}")
            os.replace(source / "new", source / ".docker")
            (source / ".docker" / "config.json").write_text(SECRET)
            (led_to / "next").write_text("")
        tried, found = map(int, reader.stdout.read().split())
    assert tried >= TRIES
    assert found == 0


def test_the_kernel_forgets_what_a_link_has_closed(view: Mounted, source: Path) -> None:
    """A file that was open to the session and comes to be a token by a link is missing a moment later, also to a caller
    that asks only the kernel."""
    (source / "w" / "hosts.yml").write_text("nothing yet")
    (source / ".config").mkdir()
    assert (view.point / "w" / "hosts.yml").read_text() == "nothing yet"
    (source / ".config" / "gh").symlink_to("../w")
    (source / "w" / "hosts.yml").write_text(SECRET)
    assert errno_of(os.open, view.point / "w" / "hosts.yml", os.O_RDONLY) in ("ENOENT", "EACCES")
    until(lambda: not os.path.lexists(view.point / "w" / "hosts.yml"), "the kernel has forgotten the name")
