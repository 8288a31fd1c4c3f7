"""The table: for people, for programs, and for BENCHMARKS.md."""

from __future__ import annotations

import functools
import json
import os
import platform
from collections.abc import Callable
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Row
from benchmarks.systems import BEFORE, BINDFS, NATIVE, POLICYFS, UNJOURNALED

_RATIOS = ((POLICYFS, NATIVE), (POLICYFS, BINDFS), (BINDFS, NATIVE), (POLICYFS, UNJOURNALED), (POLICYFS, BEFORE))
_USUAL = ((POLICYFS, BINDFS), (POLICYFS, UNJOURNALED), (POLICYFS, BEFORE))
"""Of which the ratio of the medians is shown as well."""
_SHOWN = (NATIVE, BINDFS, POLICYFS)
"""Always in the table for BENCHMARKS.md."""


def conditions(rounds: int, scale: float, *, drops_caches: bool, one_processor: bool) -> dict[str, Any]:
    """Under what the numbers were taken."""
    return {
        "kernel": platform.release(),
        "processors": "one, for everything" if one_processor else os.cpu_count(),
        "python": platform.python_version(),
        "rounds": rounds,
        "scale": scale,
        "cold": "a fresh mount, all caches dropped"
        if drops_caches
        else "a fresh mount, the source's pages dropped, its names and attributes not",
    }


def as_json(rows: list[Row], systems: list[str], said: dict[str, Any]) -> str:
    """Everything, each measurement too."""
    return json.dumps(
        {
            **said,
            "lines": [
                {
                    "name": row.name,
                    "state": row.state,
                    "unit": row.unit,
                    "best": {system: row.best(system) for system in systems},
                    "spread": {system: row.spread(system) for system in systems},
                    "ratios": {f"{one}/{other}": row.ratio(one, other) for one, other in _RATIOS},
                    "usual ratios": {f"{one}/{other}": row.usual_ratio(one, other) for one, other in _RATIOS},
                    "values": row.values,
                    "faults": row.faults,
                }
                for row in rows
            ],
        },
        indent=1,
    )


def print_table(rows: list[Row], systems: list[str], said: dict[str, Any]) -> None:
    """The table as text; what policyfs does not win against bindfs stands out."""
    table = Table(box=None, pad_edge=False)
    table.add_column("line")
    table.add_column("")
    for system in systems:
        table.add_column(system, justify="right")
    columns = _columns(systems)
    for head, _ in columns:
        table.add_column(head.replace(" / ", "\n/ "), justify="right")
    for row in rows:
        cells = [_amount(row.best(system), row.unit) if system not in row.faults else "failed" for system in systems]
        ratios = [_text(ratio(row)) for _, ratio in columns]
        against = row.usual_ratio(POLICYFS, BINDFS)
        table.add_row(row.name, row.state, *cells, *ratios, style="bold" if against is not None and against > 1 else "")
    console = Console(width=None if os.isatty(1) else 140, highlight=False)
    console.print(table)
    console.print("; ".join(f"{key} {value}" for key, value in said.items()), soft_wrap=True)
    for row in rows:
        for system, fault in row.faults.items():
            console.print(f"failed: {row.name} {row.state} on {system}: {fault}", markup=False, soft_wrap=True)


def markdown(rows: list[Row], said: dict[str, Any]) -> str:
    """Ratios only, for BENCHMARKS.md: seconds say more about the machine than about what is measured."""
    columns = _columns([*_SHOWN, *(system for row in rows for system in row.values)])
    lines = [f"| line | | {' | '.join(head for head, _ in columns)} |", f"|---|---|{'---:|' * len(columns)}"]
    lines += [f"| {row.name} | {row.state} | {' | '.join(_text(ratio(row)) for _, ratio in columns)} |" for row in rows]
    return "\n".join([*lines, "", "; ".join(f"{key}: {value}" for key, value in said.items()) + "."])


def _columns(systems: list[str]) -> list[tuple[str, Callable[[Row], float | None]]]:
    """The ratios that are shown of these file systems: what to write above each, and how a row has it."""
    columns: list[tuple[str, Callable[[Row], float | None]]] = []
    for one, other in _RATIOS:
        if one in systems and other in systems:
            columns.append((f"{one} / {other}", functools.partial(Row.ratio, system=one, to=other)))
            if (one, other) in _USUAL:
                columns.append((f"{one} / {other}, usually", functools.partial(Row.usual_ratio, system=one, to=other)))
    return columns


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "s":
        return f"{value * 1000:,.2f} ms"
    return f"{value:,.0f} {unit}"


def _text(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"
