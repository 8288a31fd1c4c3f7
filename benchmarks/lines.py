"""What is measured: each `Line` one or more rows of the table.

A line is timed cold (on a fresh mount, the source's pages dropped), warm (repeated on the same mount), or both. One that
writes is only warm: what it makes is new each time.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass

from benchmarks.data import NEEDLE, Data, Sizes
from benchmarks.systems import Failed, Mounted, Policyfs, System, run, run_all

COLD, WARM = "cold", "warm"


@dataclass(frozen=True)
class Place:
    """A file system with what a line needs to run in it."""

    system: System
    data: Data
    loops_program: str

    def run(self, *words: str, within: str = "") -> float:
        """The seconds of one command, which must succeed."""
        return self.system.run(*words, within=within)

    def loops(self, action: str, path: str, *counts: int | str) -> tuple[float, ...]:
        """The seconds that the loops program measured inside itself."""
        return tuple(map(float, self._output(self.loops_program, action, path, *map(str, counts))))

    def counted(self, expected: int, *words: str, within: str) -> float:
        """The seconds of a command that must print so many lines: one that saw half of the tree is no measurement."""
        with tempfile.TemporaryFile(dir=self.data.directory) as output:
            seconds = run(list(words), cwd=self.system.root / within, watchdog=self.system.watchdog, output=output)
            output.seek(0)
            lines = sum(1 for _ in output)
        if lines != expected:
            raise Failed(f"`{' '.join(words)}` printed {lines} lines on {self.system.name}, not {expected}")
        return seconds

    def _output(self, *words: str) -> list[str]:
        with tempfile.TemporaryFile(dir=self.data.directory) as output:
            run(list(words), cwd=self.system.root, watchdog=self.system.watchdog, output=output)
            output.seek(0)
            return output.read().decode().split()


@dataclass(frozen=True)
class Line:
    """Rows of the table that one measurement fills, and how."""

    names: tuple[str, ...]
    measure: Callable[[Place], tuple[float, ...] | None]
    """None where it means nothing on a file system (there is no mounting of the native one)."""
    states: tuple[str, ...] = (WARM,)
    reads: tuple[str, ...] = ()
    """The parts of the data whose pages are dropped before a cold run."""
    once: bool = False
    """No run before the first that counts, and no second where one took long: nothing that it leaves would warm it."""
    large: bool = False
    """Only with --large."""
    unit: str = "s"


def _status(place: Place) -> tuple[float, ...]:
    return (place.counted(0, "git", "status", "--porcelain", within="repository"),)


def _switch(place: Place) -> tuple[float, ...]:
    seconds = place.run("git", "switch", "--quiet", "other", within="repository")
    place.run("git", "switch", "--quiet", "main", within="repository")
    return (seconds,)


def _clone(place: Place) -> tuple[float, ...]:
    clone = ("git", "clone", "--quiet", "--no-hardlinks", str(place.data.origin), "clone")
    return place.run(*clone, within="scratch"), place.run("rm", "-rf", "clone", within="scratch")


def _untar(place: Place) -> tuple[float, ...]:
    seconds = place.run("tar", "-xf", str(place.data.archive), within="scratch")
    place.run("rm", "-rf", "archived", within="scratch")
    return (seconds,)


def _search(place: Place) -> tuple[float, ...]:
    return (place.counted(1, "rg", NEEDLE, within="repository"),)


def _find(place: Place) -> tuple[float, ...]:
    sizes = place.data.sizes
    files = sizes.repository_directories * sizes.files_in_directory
    # -size asks for the attributes of each file, as most of find's tests do.
    find = ("find", ".", "-path", "./.git", "-prune", "-o", "-type", "f", "-size", "-1000k", "-print")
    return (place.counted(files, *find, within="repository"),)


def _deep_find(place: Place) -> tuple[float, ...]:
    find = ("find", ".", "-type", "f", "-size", "-1000k", "-print")
    return (place.counted(place.data.sizes.deep_files, *find, within="deep"),)


def _deep_search(place: Place) -> tuple[float, ...]:
    return (place.counted(place.data.sizes.deep_files, "rg", "--files-without-match", NEEDLE, within="deep"),)


def _ls(place: Place) -> tuple[float, ...]:
    return (place.run("ls", "-lR", within="repository"),)


def _import(place: Place) -> tuple[float, ...]:
    code = "import sys; sys.path.insert(0, '.'); import all_modules"
    return (place.run(sys.executable, "-I", "-B", "-c", code, within="modules"),)


def _create(place: Place) -> tuple[float, ...]:
    return place.loops("create", "scratch", place.data.sizes.created_files)


def _write(place: Place) -> tuple[float, ...]:
    seconds = place.loops("write", "scratch/written", place.data.sizes.written_mebibytes)
    place.run("rm", "written", within="scratch")
    return seconds


def _refuse(place: Place) -> tuple[float, ...] | None:
    """Only a policy refuses what the permissions allow."""
    return place.loops("refuse", "modules", 20_000) if isinstance(place.system, Policyfs) else None


_salt = iter(range(1, sys.maxsize))


def _miss_new(place: Place) -> tuple[float, ...]:
    """Names that nobody has asked for before."""
    return place.loops("miss", "narrow", 1_000, 1_000, str(next(_salt)))


_INSERTS = "CREATE TABLE rows (number INTEGER PRIMARY KEY, text TEXT);\n" + "".join(
    "BEGIN;\n" + f"INSERT INTO rows (text) VALUES ('{'x' * 100}');\n" * 10 + "COMMIT;\n" for _ in range(50)
)


def _sqlite(place: Place) -> tuple[float, ...]:
    seconds = place.run("sqlite3", "rows.db", _INSERTS, within="scratch")
    place.run("rm", "rows.db", within="scratch")
    return (seconds,)


def _two(place: Place) -> tuple[float, ...]:
    commands = [["rg", NEEDLE, "."], ["git", "status", "--porcelain"]]
    return (run_all(commands, cwd=place.system.root / "repository", watchdog=place.system.watchdog),)


def _start(source: str) -> Callable[[Place], tuple[float, ...] | None]:
    def measure(place: Place) -> tuple[float, ...] | None:
        if not isinstance(place.system, Mounted):
            return None
        return (place.system.first_answer(place.data.filled(source), place.data.first_file(source)),)

    return measure


def _memory(part: str) -> Callable[[Place], tuple[float, ...] | None]:
    """What the daemon grows by while find asks for every node of a part that it does not know yet, for each node."""

    def measure(place: Place) -> tuple[float, ...] | None:
        if not isinstance(place.system, Mounted):
            return None
        place.system.remount()
        before = place.system.memory()
        place.run("find", ".", "-size", "-1000k", within=part)
        counted = subprocess.run(["find", "."], cwd=place.system.source / "data" / part, capture_output=True, check=True)
        return ((place.system.memory() - before) / len(counted.stdout.splitlines()),)

    return measure


_BOTH = (COLD, WARM)


def lines(sizes: Sizes) -> list[Line]:
    """All lines, in the order of the table, named after how much they measure."""
    return [
        Line(("git status",), _status, _BOTH, ("repository",)),
        Line(("rg over the repository",), _search, _BOTH, ("repository",)),
        Line(("find with stat",), _find, _BOTH, ("repository",)),
        Line(("ls -lR",), _ls, _BOTH, ("repository",)),
        Line((f"python imports {sizes.modules} modules",), _import, _BOTH, ("modules",)),
        Line(("open and close",), lambda place: place.loops("open", "narrow", 2_000)),
        Line(("refused open",), _refuse),
        Line(("stat hit",), lambda place: place.loops("stat", "narrow", 20_000)),
        Line(("stat miss",), lambda place: place.loops("miss", "narrow", 5_000, 100)),
        Line(("stat miss, new names",), _miss_new),
        Line((f"list {sizes.narrow_entries} entries",), lambda place: place.loops("list", "narrow", 50), _BOTH),
        Line((f"list {sizes.wide_entries:,} entries",), lambda place: place.loops("list", "wide", 1), _BOTH),
        Line(("streaming read",), lambda place: place.loops("read", "large"), _BOTH, ("large",)),
        Line(("4 KiB random reads",), lambda place: place.loops("random", "large", 2_000), _BOTH, ("large",)),
        Line(("streaming write",), _write, once=True),
        Line((f"create {sizes.created_files} small files", f"remove {sizes.created_files} small files"), _create, once=True),
        Line((f"git switch of {sizes.switched_files} files",), _switch, once=True),
        Line(("git clone into the view", "rm -rf of the clone"), _clone, once=True),
        Line((f"untar of {sizes.archived_files:,} files",), _untar, once=True),
        Line(("sqlite inserts",), _sqlite, once=True),
        Line(("two clients at once",), _two),
        Line((f"first answer, source of {sizes.small_source:,} files",), _start("small"), once=True),
        Line((f"first answer, source of {sizes.huge_source:,} files",), _start("huge"), once=True, large=True),
        Line(("memory of a node",), _memory("repository"), once=True, unit="bytes"),
        Line(("find, deep tree",), _deep_find, _BOTH, ("deep",), large=True),
        Line(("rg, deep tree",), _deep_search, _BOTH, ("deep",), large=True),
        Line(("memory of a node, deep tree",), _memory("deep"), once=True, large=True, unit="bytes"),
    ]
