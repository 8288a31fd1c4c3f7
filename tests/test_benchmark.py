"""The benchmark over a hundredth of its data: it measures what it says, and leaves nothing behind."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks.data import Sizes
from benchmarks.lines import lines
from benchmarks.measure import Row
from benchmarks.systems import Failed, is_mounted, run, write_session
from benchmarks.table import markdown
from policyfs.opening.load import PolicyOptions, session_of
from tests.mount import expecting

_TOOLS = ("bindfs", "gcc", "git", "rg", "sqlite3")


@pytest.fixture
def benchmark_tools() -> None:
    """Skip where a tool is missing that only the benchmark needs."""
    expecting.require_fuse()
    missing = [tool for tool in _TOOLS if shutil.which(tool) is None]
    if missing:
        pytest.skip(f"no {', '.join(missing)} here, which only the benchmark needs (scripts/bench installs them)")


def _words(data: Path, *words: str) -> list[str]:
    # The machine's caches are not a test's to drop.
    return [sys.executable, "-I", "-m", "benchmarks", "--scale", "0.01", "--keep-caches", "--data", str(data), *words]


def test_each_line_is_measured_on_all_three_and_nothing_stays_mounted(benchmark_tools: None, tmp_path: Path) -> None:
    """A run fills every row for every file system that can be measured there, and ends all its mounts."""
    only = "git status,create,streaming read,first answer,memory"
    done = subprocess.run(
        _words(tmp_path, "--rounds", "1", "--only", only, "--json"), capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr
    rows = json.loads(done.stdout)["lines"]
    assert [(row["name"], row["state"]) for row in rows] == [
        ("git status", "cold"),
        ("git status", "warm"),
        ("streaming read", "cold"),
        ("streaming read", "warm"),
        ("create 5 small files", ""),
        ("remove 5 small files", ""),
        ("first answer, source of 1,000 files", ""),
        ("memory of a node", ""),
    ]
    for row in rows:
        mounted_only = row["name"].startswith(("first answer", "memory"))
        for system, best in row["best"].items():
            assert (best is None) is (mounted_only and system == "native"), (row["name"], system)
            assert best is None or best > 0
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_what_the_journal_costs_is_measured_on_one_processor(benchmark_tools: None, tmp_path: Path) -> None:
    """Refusals are timed with a journal and without, side by side, by programs that stay on one processor; the journal has
    noted them, and where there is to be none there is none."""
    state = tmp_path / "state"
    words = ["--rounds", "1", "--only", "refused", "--systems", "policyfs,unjournaled", "--one-processor", "--json"]
    done = subprocess.run(
        _words(tmp_path / "data", *words), capture_output=True, text=True, timeout=100,
        env={**os.environ, "XDG_STATE_HOME": str(state)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    (row,) = told["lines"]
    assert told["processors"] == "one, for everything"
    assert row["best"]["policyfs"] > 0
    assert row["best"]["unjournaled"] > 0
    assert row["ratios"]["policyfs/unjournaled"] > 0
    journals = {file.name for file in (state / "policyfs" / "journal").iterdir()}
    assert len(journals) == 1
    assert any("policyfs" in name and "unjournaled" not in name for name in journals)


def test_a_run_that_is_ended_leaves_no_mount(benchmark_tools: None, tmp_path: Path) -> None:
    """SIGTERM in the middle of a run ends the daemons and the mounts."""
    child = subprocess.Popen(_words(tmp_path, "--rounds", "1000", "--only", "git status"), stderr=subprocess.PIPE)
    try:
        point = tmp_path / "scale-0.01" / "mounts" / "policyfs"
        expecting.until(lambda: is_mounted(point) or child.poll() is not None, "the benchmark mounts")
        child.terminate()
        _, said = child.communicate(timeout=60)
    finally:
        child.kill()
        child.wait()
    assert child.returncode == 128 + signal.SIGTERM, said
    assert str(tmp_path) not in Path("/proc/self/mountinfo").read_text()


def test_a_line_that_fails_costs_its_file_system_that_line_only(benchmark_tools: None, tmp_path: Path) -> None:
    """A measurement that could not be taken is told as failed, never as a number, and the other file systems go on."""
    words = _words(tmp_path, "--rounds", "1", "--only", "streaming write,sqlite", "--json")
    first = subprocess.run(words, capture_output=True, text=True, timeout=100)
    assert first.returncode == 0, first.stderr
    # Half a MiB at most in a file: enough for the database, not for the stream.
    limited = ["sh", "-c", 'ulimit -f 1000; exec "$@"', "sh", *words]
    done = subprocess.run(limited, capture_output=True, text=True, timeout=100)
    assert done.returncode == 1
    write, sqlite = json.loads(done.stdout)["lines"]
    assert set(write["faults"]) == {"native", "bindfs", "policyfs"}
    assert not any(write["best"].values())
    assert not sqlite["faults"]
    assert all(sqlite["best"].values())


def test_the_watchdog_ends_a_command_and_what_it_started(tmp_path: Path) -> None:
    """A command over its time fails, and none of its processes goes on."""
    with pytest.raises(Failed, match="took longer than"):
        run(["sh", "-c", f"sleep 60 & echo $! > {tmp_path}/pid; wait"], cwd=tmp_path, watchdog=1.0)
    process = int((tmp_path / "pid").read_text())
    expecting.until(lambda: not _runs(process), "the child of the command ends")


def _runs(process: int) -> bool:
    try:
        # Empty for one that has ended and waits for whoever collects it.
        return bool(Path(f"/proc/{process}/cmdline").read_bytes())
    except FileNotFoundError:
        return False


def test_the_session_of_the_benchmark_is_a_full_one(tmp_path: Path) -> None:
    """Fifty grants, floors, the built-in denylist and the data at stage: what the numbers are said to be taken with."""
    write_session(tmp_path / "session.toml", Sizes().repository_directories)
    session = session_of(PolicyOptions(session_file=str(tmp_path / "session.toml")))
    assert len(session.grants) == 50
    assert session.floors
    assert session.deny.defaults
    assert str(session.grants[b"/data"]) == "stage"  # type: ignore[index]


def test_rows_keep_the_best_and_give_no_ratio_of_what_failed() -> None:
    """The least of the measurements counts; a fault or a missing value makes no number."""
    row = Row("line", "warm")
    for system, values in {"native": (2.0, 1.0, 4.0), "policyfs": (6.0, 3.0)}.items():
        for value in values:
            row.add(system, value)
    assert row.best("native") == 1.0
    assert row.ratio("policyfs", "native") == 3.0
    assert row.spread("native") == 2.0
    assert row.median("policyfs") == 4.5
    assert row.usual_ratio("policyfs", "native") == 2.25
    assert row.ratio("policyfs", "bindfs") is None
    assert row.usual_ratio("policyfs", "bindfs") is None
    row.faults["policyfs"] = "timed out"
    assert row.ratio("policyfs", "native") is None
    assert row.usual_ratio("policyfs", "native") is None


def test_the_table_for_the_page_has_ratios_only() -> None:
    """BENCHMARKS.md gets no seconds, and every row as many cells as the head."""
    row = Row("line", "warm", values={"native": [0.5], "bindfs": [4.0, 20.0], "policyfs": [1.0, 1.5, 9.0]})
    text = markdown([row], {"rounds": 1})
    assert text.splitlines() == [
        "| line | | policyfs / native | policyfs / bindfs | policyfs / bindfs, usually | bindfs / native |",
        "|---|---|---:|---:|---:|---:|",
        "| line | warm | 2.00 | 0.25 | 0.12 | 8.00 |",
        "",
        "rounds: 1.",
    ]


def test_line_names_are_different_and_tell_the_size() -> None:
    """--only selects by name, so no two rows share one."""
    names = [name for line in lines(Sizes()) for name in line.names]
    assert len(names) == len(set(names))
    assert "list 20,000 entries" in names
