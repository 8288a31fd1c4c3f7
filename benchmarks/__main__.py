"""The command line of the benchmark."""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import site
import stat
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Iterator
from pathlib import Path

import click

from benchmarks import table
from benchmarks.data import Data, Sizes
from benchmarks.lines import Line, lines
from benchmarks.measure import Bench, Row, can_drop_caches
from benchmarks.systems import BEFORE, BINDFS, KINDS, NATIVE, POLICYFS, UNJOURNALED, Failed, Policyfs, System, write_session

_USUAL = (NATIVE, BINDFS, POLICYFS)
_KNOWN = (*_USUAL, UNJOURNALED)
_QUICK_SCALE, _QUICK_ROUNDS = 0.1, 2


@click.command()
@click.option("--only", metavar="WORDS", help="Lines whose name holds one of these words, separated by commas.")
@click.option("--systems", default=",".join(_USUAL), show_default=True, help="The file systems to measure.")
@click.option("--before", metavar="CHECKOUT", help="Measure the policyfs of another checkout too, in the same rounds.")
@click.option("--rounds", type=click.IntRange(1), help="How often. [default: 5]")
@click.option("--quick", is_flag=True, help="A tenth of the data and two rounds: under a minute.")
@click.option("--large", is_flag=True, help="Also a tree of 100,000 files and a source of 1,000,000.")
@click.option("--scale", type=click.FloatRange(0.001, 1.0), help="So much of the data (0.1 is a tenth).")
@click.option("--data", "place", type=click.Path(path_type=Path), help="Where the data is built and kept.")
@click.option("--watchdog", default=120.0, show_default=True, help="The most seconds that one command may take.")
@click.option("--keep-caches", is_flag=True, help="Leave the machine's caches alone: drop only the source's pages.")
@click.option("--one-processor", is_flag=True, help="Clients and daemons share one: nobody waits for one to wake.")
@click.option("--json", "as_json", is_flag=True, help="Every measurement, for programs.")
@click.option("--markdown", "as_markdown", is_flag=True, help="Ratios only, as BENCHMARKS.md has them.")
@click.option("--list", "listing", is_flag=True, help="Name the lines and end.")
def main(
    only: str | None,
    systems: str,
    before: str | None,
    rounds: int | None,
    quick: bool,
    large: bool,
    scale: float | None,
    place: Path | None,
    watchdog: float,
    keep_caches: bool,
    one_processor: bool,
    as_json: bool,
    as_markdown: bool,
    listing: bool,
) -> None:
    """Time native, bindfs and policyfs side by side.

    \b
      scripts/bench --quick
      scripts/bench --only 'git status,rg' --rounds 5
      scripts/bench --before ../other-checkout
      POLICYFS_BENCH_PYTHON=/other/venv/bin/python scripts/bench    # measure another one in place of this
    """
    rounds = rounds or (_QUICK_ROUNDS if quick else 5)
    scale = scale or (_QUICK_SCALE if quick else 1.0)
    sizes = Sizes().scaled(scale)
    chosen = _chosen(sizes, only, large)
    if listing:
        click.echo("\n".join(name for line in chosen for name in line.names))
        return
    if not chosen:
        raise click.UsageError(f"no line holds {only!r}; --list names them, and --large measures more")
    names = systems.split(",")
    unknown = sorted(set(names) - set(_KNOWN))
    if unknown:
        raise click.UsageError(f"no file system {', '.join(unknown)}; there are {', '.join(_KNOWN)}")
    if before:
        names.append(BEFORE)
        if not Path(before, "policyfs", "__init__.py").exists():
            raise click.UsageError(f"--before {before}: no checkout of policyfs")
    # Either would end this process without its finally, and leave mounts.
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, lambda number, _: sys.exit(128 + number))
    if one_processor:
        # What is started inherits it.
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
    drops_caches = not keep_caches and can_drop_caches()
    rows: list[Row] = []
    whole = False
    try:
        with _benched(place or _usual_place(), scale, names, before, watchdog, large) as (mounted, data, loops):
            bench = Bench(mounted, data, loops, rounds, watchdog, drops_caches, _say)
            for line in chosen:
                begin = time.monotonic()
                rows += bench.line(line)
                _say(f"{', '.join(line.names)} ({time.monotonic() - begin:.1f} s)")
            whole = True
    except KeyboardInterrupt:
        _say("interrupted")
    except (Failed, subprocess.CalledProcessError, OSError) as fault:
        _say(str(fault))
    if not rows:
        sys.exit(1)
    said = table.conditions(rounds, scale, drops_caches=drops_caches, one_processor=one_processor)
    if as_json:
        click.echo(table.as_json(rows, names, said))
    elif as_markdown:
        click.echo(table.markdown(rows, said))
    else:
        table.print_table(rows, names, said)
    if not whole or any(row.faults for row in rows):
        sys.exit(1)


def _chosen(sizes: Sizes, only: str | None, large: bool) -> list[Line]:
    words = [word.strip() for word in (only or "").split(",")]
    return [
        line
        for line in lines(sizes)
        if (large or not line.large) and any(word in name for word in words for name in line.names)
    ]


def _say(text: str) -> None:
    click.echo(f"bench: {text}", err=True)


def _usual_place() -> Path:
    """Below the temporary directory, ours alone: a place of another user there could be a trap."""
    place = Path(tempfile.gettempdir()) / f"policyfs-benchmark-{os.getuid()}"
    place.mkdir(mode=0o700, exist_ok=True)
    found = place.lstat()
    if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
        raise click.UsageError(f"{place} is not a directory of yours; name another with --data")
    return place


@contextlib.contextmanager
def _benched(
    place: Path, scale: float, names: list[str], before: str | None, watchdog: float, large: bool
) -> Iterator[tuple[list[System], Data, str]]:
    """Data built, loops compiled, file systems mounted; everything ended however it goes."""
    # Data of different scales side by side: a quick run does not throw a full one's away.
    directory = place.resolve() / f"scale-{scale:g}"
    directory.mkdir(parents=True, exist_ok=True)
    with open(directory / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Failed(
                f"another benchmark runs over {directory}; wait for it, or name another place with --data"
            ) from None
        data = Data(directory, Sizes().scaled(scale), _say)
        data.build(names, large=large)
        write_session(directory / "session.toml", data.sizes.repository_directories)
        loops = directory / "loops"
        subprocess.run(["gcc", "-O2", "-o", loops, Path(__file__).with_name("loops.c")], check=True)
        pythons = {
            POLICYFS: os.environ.get("POLICYFS_BENCH_PYTHON") or sys.executable,
            UNJOURNALED: os.environ.get("POLICYFS_BENCH_PYTHON") or sys.executable,
            BEFORE: _python_with(Path(before).resolve(), directory / "before") if before else "",
        }
        # Unwinds every mount, also where one of them does not want to end.
        with contextlib.ExitStack() as mounts:
            systems: list[System] = []
            for name in names:
                system = KINDS[name](name, directory, data.source(name), watchdog)
                if isinstance(system, Policyfs):
                    system.python = pythons[name]
                mounts.callback(system.unmount)
                # What a run that was killed has left.
                system.remount()
                systems.append(system)
            yield systems, data, str(loops)


def _python_with(checkout: Path, place: Path) -> str:
    """An interpreter with this one's packages, but for the policyfs of a checkout. PYTHONPATH would not do: it is
    isolated, and starts its daemon by its own path."""
    venv.create(place, clear=True, with_pip=False)
    packages = place / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    (packages / "before.pth").write_text("\n".join([str(checkout), *site.getsitepackages()]) + "\n")
    return str(place / "bin" / "python")


main(prog_name="scripts/bench")
