"""Rounds: every line on every file system in turn, so that what else the machine does hits all of them alike."""

from __future__ import annotations

import functools
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.data import Data
from benchmarks.lines import COLD, Line, Place
from benchmarks.systems import Failed, System, run

_REPEAT_SECONDS = 0.2
_MAX_REPEATS = 10
"""A warm measurement is repeated back to back within a round, at least twice, until it has taken this long: caches with
a life of one second (bindfs) must not have ended only because the other two had their turn in between."""

_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


@dataclass
class Row:
    """One row of the table: the best that each file system did. `values` keeps every measurement."""

    name: str
    state: str
    unit: str = "s"
    values: dict[str, list[float]] = field(default_factory=dict)
    faults: dict[str, str] = field(default_factory=dict)

    def add(self, system: str, value: float) -> None:
        self.values.setdefault(system, []).append(value)

    def best(self, system: str) -> float | None:
        """The least: what is above it, the rest of the machine has added. None where a measurement failed."""
        if system in self.faults or system not in self.values:
            return None
        return min(self.values[system])

    def spread(self, system: str) -> float | None:
        """How far the median lies above the best, as a ratio: what a reader may take for noise."""
        return _ratio(self.median(system), self.best(system))

    def median(self, system: str) -> float | None:
        """What is met as often bettered as not. Further above the best than noise lies, it tells of luck: see
        "Two ways to wake" in BENCHMARKS.md."""
        best = self.best(system)
        return None if best is None else statistics.median(self.values[system])

    def ratio(self, system: str, to: str) -> float | None:
        """By the best."""
        return _ratio(self.best(system), self.best(to))

    def usual_ratio(self, system: str, to: str) -> float | None:
        """By the medians."""
        return _ratio(self.median(system), self.median(to))


def _ratio(one: float | None, other: float | None) -> float | None:
    return None if one is None or not other else one / other


@dataclass
class Bench:
    """The file systems under measurement, mounted."""

    systems: list[System]
    data: Data
    loops_program: str
    rounds: int
    watchdog: float
    drops_caches: bool
    say: Callable[[str], None]

    def line(self, line: Line) -> list[Row]:
        """All rows of a line."""
        rows: list[Row] = []
        for state in line.states:
            made = [Row(name, state if len(line.states) > 1 else "", line.unit) for name in line.names]
            if state == COLD:
                self._cold(line, made)
            else:
                self._warm(line, made)
            rows += made
        return rows

    def _cold(self, line: Line, rows: list[Row]) -> None:
        for number in range(self.rounds):
            for system in self._in_turn(number):
                self._guarded(system, rows, functools.partial(self._cold_once, line, system, rows))

    def _cold_once(self, line: Line, system: System, rows: list[Row]) -> None:
        system.unmount()
        self.drop([system.source / "data" / part for part in line.reads])
        system.mount()
        self._take(line, system, rows)

    def _warm(self, line: Line, rows: list[Row]) -> None:
        for system in self.systems:
            if not line.once:
                self._guarded(system, rows, functools.partial(line.measure, self._place(system)))
        for number in range(self.rounds):
            for system in self._in_turn(number):
                self._guarded(system, rows, functools.partial(self._warm_round, line, system, rows))

    def _warm_round(self, line: Line, system: System, rows: list[Row]) -> None:
        begin = time.perf_counter()
        for repeat in range(_MAX_REPEATS):
            self._take(line, system, rows)
            if time.perf_counter() - begin > _REPEAT_SECONDS and (repeat or line.once):
                return

    def _take(self, line: Line, system: System, rows: list[Row]) -> None:
        measured = line.measure(self._place(system))
        if measured is not None:
            for row, value in zip(rows, measured, strict=True):
                row.add(system.name, value)

    def _guarded(self, system: System, rows: list[Row], step: Callable[[], object]) -> None:
        """A fault costs its file system the line, not the run: it is told, and a fresh mount goes on."""
        if any(system.name in row.faults for row in rows):
            return
        try:
            step()
        except Failed as fault:
            self.say(f"{system.name}: {fault}")
            for row in rows:
                row.faults[system.name] = str(fault)
            system.remount()

    def _place(self, system: System) -> Place:
        return Place(system, self.data, self.loops_program)

    def _in_turn(self, number: int) -> list[System]:
        first = number % len(self.systems)
        return self.systems[first:] + self.systems[:first]

    def drop(self, paths: list[Path]) -> None:
        """Make the source cold: its pages, and where the kernel lets us its names and attributes as well."""
        if self.drops_caches:
            run(["sync"], cwd=self.data.directory, watchdog=self.watchdog)
            _DROP_CACHES.write_text("3")
            for file in _tool_files():
                file.read_bytes()
            # Reads its own modules.
            run([sys.executable, "-I", "-c", ""], cwd=self.data.directory, watchdog=self.watchdog)
        elif paths:
            run([self.loops_program, "drop", *map(str, paths)], cwd=self.data.directory, watchdog=self.watchdog)


@functools.cache
def _tool_files() -> list[Path]:
    """The tools and their libraries. Dropping the caches drops them too, and loading them again from the disk would
    drown what is measured."""
    programs = [program for tool in ("git", "rg", "find", "ls", sys.executable) if (program := shutil.which(tool))]
    files = {Path(program).resolve() for program in programs}
    for program in programs:
        # What is not dynamic has no libraries: an answer as well.
        told = subprocess.run(["ldd", program], capture_output=True, text=True, check=False).stdout
        files.update(Path(word).resolve() for word in told.split() if word.startswith("/"))
    return sorted(files)


def can_drop_caches() -> bool:
    """Only root can, and not in every container."""
    try:
        with open(_DROP_CACHES, "w"):
            return True
    except OSError:
        return False
