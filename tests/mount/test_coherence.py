"""What the kernel keeps is true: changes in the source are seen at once, one's own always, and nothing dead-locks."""

from __future__ import annotations

import itertools
import mmap
import os
import random
import signal
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.changes import AFTER, Change, Grown, settle
from tests.mount.expecting import until
from tests.mount.hammering import hammering
from tests.mount.harness import MODULE_DEADLINE, Mounted, mounted
from tests.mount.status import counted, status_of

TRIALS = 15
MEDIAN = 0.050
MOST = 0.500
"""Seconds until a change in the source is seen, in the median of the trials and in each (rule cache-1)."""
SHORT = 1.0
"""Seconds that is kept what nothing watches."""

_numbers = itertools.count()


def trials(view: Mounted, kind: type[Change], below: str, count: int = TRIALS, *, busy: bool = False) -> list[Change]:
    """Changes of one kind, prepared and known to the kernel. In a `busy` directory something is new at any time."""
    names = [f"{kind.__name__}-{next(_numbers)}" for _ in range(count)]
    made = [kind(view.source / below / name, view.point / below / name) for name in names]
    for trial in made:
        trial.prepare()
    settle(*(trial.behind for trial in made), *([] if busy else [view.source / below]))
    # Twice: the first look at a directory is what has it watched, and only the second gets a long life.
    for _ in range(2):
        for trial in made:
            trial.warm()
    return made


def seconds_until_seen(trial: Change, most: float) -> float:
    """How long it takes until the view shows the change that has just been made; more than `most` where it does not."""
    began = time.monotonic()
    while True:
        try:
            seen = trial.seen()
        except OSError:
            seen = False
        passed = time.monotonic() - began
        if seen or passed > most:
            return passed
        time.sleep(0.0005)


def held_to_promise(made: list[Change]) -> None:
    """Make each change, and see it within the promised time."""
    took = []
    try:
        for trial in made:
            trial.change()
            took.append(seconds_until_seen(trial, MOST))
            assert took[-1] <= MOST, f"{type(trial).__name__} is not seen; the others before it: {took[:-1]}"
    finally:
        for trial in made:
            trial.close()
    assert statistics.median(took) <= MEDIAN, took


@pytest.fixture(scope="module")
def idle(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A view that nobody else uses."""
    source = tmp_path_factory.mktemp("idle")
    (source / "work").mkdir()
    with mounted(source, "/=stage", deadline=MODULE_DEADLINE) as view:
        yield view


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A view that others read and write all the time, in the directory that is looked at and in another, while somebody
    writes to the source."""
    source = tmp_path_factory.mktemp("busy")
    for directory in ("work", "other"):
        (source / directory).mkdir()
        for number in range(20):
            (source / directory / f"file-{number}").write_text("x" * 3000)
    with mounted(source, "/=stage", deadline=MODULE_DEADLINE) as view:
        work, other = view.point / "work", view.point / "other"
        parts = [("read", [work, other]), ("read", [other]), ("write", [work, other]), ("write", [source / "other"])]
        with hammering(*parts) as rounds:
            yield view
        assert min(rounds) > 20, f"it was not busy: {rounds}"


kinds = pytest.mark.parametrize("kind", Change.kinds, ids=lambda kind: kind.__name__)


@kinds
def test_a_change_in_the_source_is_seen(idle: Mounted, kind: type[Change]) -> None:
    """Whatever the kernel was told and somebody then changes in the source is seen within 50 ms, and 500 ms at worst."""
    made = trials(idle, kind, "work")
    if not kind.opens:
        # Were it not kept by the kernel, there would be nothing to see.
        with counted(idle) as count:
            for trial in made:
                trial.warm()
        assert count.requests == 0, "the kernel does not keep what is looked at, so this test would show nothing"
    held_to_promise(made)


@kinds
def test_a_change_in_the_source_of_a_busy_mount_is_seen(busy: Mounted, kind: type[Change]) -> None:
    """The same with others reading and writing beside it."""
    held_to_promise(trials(busy, kind, "work", busy=True))


def test_a_listing_shows_what_a_look_has_found(idle: Mounted) -> None:
    """A file that somebody makes in the source is in the very next listing, and one that is removed in none after it,
    though the kernel is told of neither yet."""
    behind, view = idle.source / "work", idle.point / "work"
    for number in range(50):
        name = f"listed-{number}"
        os.listdir(view)
        (behind / name).touch()
        assert os.path.exists(view / name)
        assert name in os.listdir(view)
        (behind / name).unlink()
        assert name not in os.listdir(view)


# -- where watching ends -------------------------------------------------------------------------------------------------


def all_seen(made: list[Change], seconds: float) -> None:
    """Every one of the changes that were made is seen within some time."""
    end = time.monotonic() + seconds
    waiting = list(made)
    try:
        while waiting and time.monotonic() < end:
            waiting = [trial for trial in waiting if not _seen(trial)]
            time.sleep(0.002)
        assert not waiting, f"not seen: {sorted({type(trial).__name__ for trial in waiting})}"
    finally:
        for trial in made:
            trial.close()


def _seen(trial: Change) -> bool:
    try:
        return trial.seen()
    except OSError:
        return False


def test_more_events_than_the_queue_holds(source: Path) -> None:
    """Where the source changes faster than its events can be read, everything is looked at again, and it is said."""
    most = int(Path("/proc/sys/fs/inotify/max_queued_events").read_text())
    if most > 100_000:
        pytest.skip(f"the queue of inotify holds {most} events here")
    (source / "work").mkdir()
    (source / "flood").mkdir()
    with mounted(source, "/=stage") as view:
        # All but the one that asks the view while it changes.
        made = [trial for kind in Change.kinds if kind is not Grown for trial in trials(view, kind, "work", 1)]
        os.listdir(view.point / "flood")
        view.signal(signal.SIGSTOP)
        try:
            flood = [source / "flood" / name for name in ("a", "b")]
            flood[0].touch()
            for number in range(most + 10):
                # Two events each, and no two alike beside one another, which would be one.
                flood[number % 2].rename(flood[(number + 1) % 2])
            for trial in made:
                trial.change()
        finally:
            view.signal(signal.SIGCONT)
        all_seen(made, MOST)
        assert "the source changed faster than its events could be read" in view.log_text


_FEW_WATCHES = """
import errno, os, inotify_simple
add_watch = inotify_simple.INotify.add_watch
left = 3
def limited(self, path, mask):
    global left
    if not os.fsencode(path).startswith(b"/proc/self/fd/"):
        # Of the links that rules lead through, which are watched by their paths.
        return add_watch(self, path, mask)
    if not left:
        raise OSError(errno.ENOSPC, "No space left on device")
    left -= 1
    return add_watch(self, path, mask)
inotify_simple.INotify.add_watch = limited
"""


def test_more_directories_than_watches(source: Path) -> None:
    """Where the user has no watch left, what is looked into from then on lives for a second, and it is said; what was
    looked into before is seen at once."""
    for number in range(8):
        (source / f"directory-{number}").mkdir()
    with mounted(source, "/=stage", sabotage=_FEW_WATCHES) as view:
        for number in range(8):
            os.listdir(view.point / f"directory-{number}")
        assert status_of(view)["watches"] == 3
        assert view.log_text.count("no more watches") == 1
        assert "fs.inotify.max_user_watches" in view.log_text
        held_to_promise(trials(view, Change.kinds[0], "directory-0"))
        made = [trial for kind in Change.kinds for trial in trials(view, kind, "directory-7", 3)]
        for trial in made:
            trial.change()
        all_seen(made, SHORT + MOST)


def test_a_source_without_events(source: Path) -> None:
    """On a file system that tells nothing of its changes, here another view, everything lives for a second; and it is
    said."""
    (source / "work").mkdir()
    with mounted(source, "/=stage") as lower, mounted(lower.point, "/=stage") as view:
        assert "the source is on FUSE, whose changes raise no events here" in view.log_text
        # The changes are made behind both.
        made = []
        for kind in Change.kinds:
            for _ in range(3):
                name = f"{kind.__name__}-{next(_numbers)}"
                made.append(kind(source / "work" / name, view.point / "work" / name))
        for trial in made:
            trial.prepare()
        settle(*(trial.behind for trial in made))
        for trial in made:
            trial.warm()
        with counted(view) as count:
            for _ in range(10):
                os.stat(view.point / "work")
        assert count.requests <= 2, "nothing is kept at all"
        assert status_of(view)["watches"] == 0
        for trial in made:
            trial.change()
        all_seen(made, SHORT + MOST)


def test_a_second_name_in_a_directory_that_nobody_looked_into(source: Path) -> None:
    """A write by a name that the view cannot know of is seen when a file's attributes have lived their minute, here a
    second."""
    (source / "work").mkdir()
    (source / "elsewhere").mkdir()
    with mounted(source, "/=stage", sabotage="import policyfs.fuse.kernel_cache as cache; cache.LONG_FILE = 1.0") as view:
        made = trials(view, Change.kinds[0], "work")
        for trial in made:
            other = source / "elsewhere" / trial.behind.name
            os.link(trial.behind, other)
            other.write_text(AFTER)
        # The daemon keeps them for as long as the kernel does.
        all_seen(made, 2 * 1.0 + MOST)


def test_watches_go_with_their_directories(source: Path) -> None:
    """A directory that is removed, by the session or in the source, takes its watch with it."""
    for number in range(40):
        (source / f"directory-{number}").mkdir()
    with mounted(source, "/=stage") as view:
        # By descriptors: what somebody holds the kernel does not forget of its own accord.
        held = [os.open(view.point / f"directory-{number}", os.O_RDONLY) for number in range(40)]
        for directory in held:
            os.listdir(directory)
        assert status_of(view)["watches"] == 41
        for directory in held:
            os.close(directory)
        for number in range(20):
            (view.point / f"directory-{number}").rmdir()
            (source / f"directory-{number + 20}").rmdir()
        until(lambda: status_of(view)["watches"] <= 1, "the watches of removed directories are gone")


@pytest.mark.usefixtures("as_root")
def test_watches_go_with_what_the_kernel_forgets(source: Path) -> None:
    """What the kernel has forgotten is watched no longer."""
    for number in range(200):
        (source / f"directory-{number}").mkdir()
        (source / f"directory-{number}" / "file").touch()
    with mounted(source, "/=stage") as view:
        view.run("find", ".", "-ls")
        status = status_of(view)
        assert status["watches"] >= 200
        assert status["nodes"] >= 400
        Path("/proc/sys/vm/drop_caches").write_text("2")
        until(lambda: status_of(view)["nodes"] < 20, "the kernel has forgotten nearly all")
        assert status_of(view)["watches"] < 20


# -- one's own changes ---------------------------------------------------------------------------------------------------


class Mirrored:
    """A file of the view, and the content that it must have."""

    def __init__(self, path: Path, behind: Path, seed: int) -> None:
        self.path = path
        self.behind = behind
        self.chance = random.Random(seed)
        self.content = bytearray(b"0" * 10_000)
        path.write_bytes(self.content)
        self.acts = [self.write, self.append, self.shorten, self.lengthen, self.empty, self.rename_over, self.map]

    def piece(self) -> bytes:
        return self.chance.randbytes(self.chance.choice([1, 3, 100, 4096, 9000]))

    def write(self) -> None:
        offset, piece = self.chance.randrange(len(self.content) + 1), self.piece()
        with open(self.path, "r+b") as file:
            file.seek(offset)
            file.write(piece)
        self.content[offset : offset + len(piece)] = piece

    def append(self) -> None:
        piece = self.piece()
        with open(self.path, "ab", buffering=0) as file:
            file.write(piece[:50])
            file.write(piece[50:])
        self.content += piece

    def shorten(self) -> None:
        size = self.chance.randrange(len(self.content) + 1)
        os.truncate(self.path, size)
        del self.content[size:]

    def lengthen(self) -> None:
        more = self.chance.randrange(5000)
        with open(self.path, "r+b") as file:
            file.truncate(len(self.content) + more)
        self.content += bytes(more)

    def empty(self) -> None:
        piece = self.piece()
        self.path.write_bytes(piece)
        self.content[:] = piece

    def rename_over(self) -> None:
        piece = self.piece() + b"renamed"
        other = self.path.with_name(f"{self.path.name}.new")
        other.write_bytes(piece)
        other.replace(self.path)
        self.content[:] = piece

    def map(self) -> None:
        if not self.content:
            return
        with open(self.path, "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
            piece = self.piece()[: len(self.content)]
            offset = self.chance.randrange(len(self.content) - len(piece) + 1)
            mapping[offset : offset + len(piece)] = piece
            mapping.flush()
        self.content[offset : offset + len(piece)] = piece

    def check(self, held: int) -> None:
        """It is as it must be: by stat, by a descriptor opened before, by a new one, and in the source."""
        assert os.stat(self.path).st_size == len(self.content)
        if os.fstat(held).st_ino == os.stat(self.path).st_ino:
            assert os.fstat(held).st_size == len(self.content)
            assert os.pread(held, 1 << 20, 0) == self.content
        assert self.path.read_bytes() == self.content
        assert self.behind.read_bytes() == self.content


def test_reading_after_writing_is_exact(idle: Mounted) -> None:
    """Whatever the session writes, by whatever means, it reads back at once by every way; and nothing of it is taken for
    somebody else's change."""
    file = Mirrored(idle.point / "work/mirrored", idle.source / "work/mirrored", seed=4)
    with counted(idle) as count:
        for _ in range(200):
            held = os.open(file.path, os.O_RDONLY)
            try:
                os.pread(held, 1 << 20, 0)
                for _ in range(5):
                    act = file.chance.choice(file.acts)
                    act()
                    file.check(held)
            finally:
                os.close(held)
    assert count.invalidations == 0


def test_names_after_changing_them_are_exact(idle: Mounted) -> None:
    """What the session makes, removes and renames is there and gone at once, by name and in listings."""
    chance = random.Random(5)
    directory = idle.point / "work/names"
    directory.mkdir()
    there: set[str] = set()
    with counted(idle) as count:
        for _ in range(600):
            name, other = (f"name-{chance.randrange(12)}" for _ in range(2))
            if name not in there:
                (directory / name).touch()
                there.add(name)
            elif chance.random() < 0.5:
                (directory / name).unlink()
                there.remove(name)
            elif name != other:
                (directory / name).replace(directory / other)
                there.remove(name)
                there.add(other)
            assert set(os.listdir(directory)) == there
            for asked in (name, other):
                assert os.path.lexists(directory / asked) == (asked in there)
    assert count.invalidations == 0


REPOSITORY = """
set -eu
rm -rf repository && git init -q repository && cd repository
git config user.name t && git config user.email t@example.org
for d in 1 2 3 4 5; do mkdir $d; for f in 1 2 3 4 5 6 7 8 9; do echo $d $f > $d/$f; done; done
git add . && git commit -qm one
git checkout -qb other
for d in 1 2 3; do echo changed > $d/1; rm $d/2; echo new > $d/new; done
git add -A && git commit -qm two
git checkout -q master 2>/dev/null || git checkout -q main
"""


SQLITE = """
for i in 1 2 3 4; do
  python3 -c "
import sqlite3
data = sqlite3.connect('data')
data.execute('create table if not exists t(a)')
for number in range(3):
    with data:
        data.execute('insert into t values(?)', (number,))
data.close()"
done
"""


@pytest.mark.parametrize(
    "script",
    [
        "git clone -q repository clone && cd clone && git checkout -q other && git checkout -q - && git gc -q",
        "cd repository && git rm -q -r 1 && git commit -qm gone && git reset -q --hard HEAD^ && rm -rf 2 && git stash -q",
        "tar cf packed.tar repository && mkdir unpacked && tar xf packed.tar -C unpacked && rm -rf unpacked",
        SQLITE,
        "cp -a repository copy && mv copy moved && chmod -R g-w moved && ln moved/1/1 moved/linked && rm -rf moved",
    ],
    ids=["git clone and checkout", "git rm and stash", "tar", "sqlite", "cp and mv"],
)
def test_own_changes_invalidate_nothing(source: Path, script: str) -> None:
    """What tools do through the view raises events like any other change, and none is taken for somebody else's."""
    (source / "marker").mkdir()
    (source / "marker/last").touch()
    with mounted(source, "/=stage") as view:
        last = view.point / "marker/last"
        for text in (REPOSITORY, script):
            done = view.run("bash", "-euc", text)
            assert done.returncode == 0, done.stderr
        settle(source / "marker/last")
        for _ in range(2):
            os.stat(last)
        # Events are looked at in their order: once this one is seen, all before it have been.
        os.utime(source / "marker/last", (1, 1))
        until(lambda: os.stat(last).st_mtime == 1, "the last change is seen")
        assert status_of(view)["invalidations"] == 1


# -- dead-locks ----------------------------------------------------------------------------------------------------------


def test_invalidating_under_fire(source: Path) -> None:
    """Changes in the source and requests on the very same names do not wait for each other: for five seconds everyone
    gets on, and afterwards both sides show the same."""
    for directory in ("one", "two"):
        (source / directory).mkdir()
    with mounted(source, "/=stage", deadline=40) as view:
        inside = [view.point / "one", view.point / "two"]
        behind = [source / "one", source / "two"]
        end = time.monotonic() + 5
        with hammering(("fight", inside), ("fight", inside), ("fight", inside), ("fight", behind)) as rounds:
            while time.monotonic() < end:
                began = time.monotonic()
                os.listdir(view.point)
                status_of(view)
                assert time.monotonic() - began < 2, "the daemon stood still"
                time.sleep(0.02)
        assert min(rounds) > 200, f"somebody did not get on: {rounds}"
        assert status_of(view)["invalidations"] > 100, "nothing was invalidated, so nothing was tried"
        for mine, theirs in zip(inside, behind, strict=True):
            until(lambda mine=mine, theirs=theirs: seen_in(mine) == seen_in(theirs), "both sides are the same", MOST)


def seen_in(directory: Path) -> dict[str, tuple[int, bytes | None]]:
    """The entries of a directory with size and content."""
    found = {}
    for entry in os.scandir(directory):
        file = entry.is_file()
        found[entry.name] = (entry.stat().st_size if file else 0, Path(entry.path).read_bytes() if file else None)
    return found
