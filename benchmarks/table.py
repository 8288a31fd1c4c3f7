"""The table: for people, for programs, and for BENCHMARKS.md."""

from __future__ import annotations

import json
import os
import platform
from typing import Any

from rich.console import Console
from rich.table import Table

from benchmarks.measure import Row
from benchmarks.systems import BEFORE, BINDFS, NATIVE, POLICYFS

_RATIOS = ((POLICYFS, NATIVE), (POLICYFS, BINDFS), (BINDFS, NATIVE), (POLICYFS, BEFORE))


def conditions(rounds: int, scale: float, *, drops_caches: bool) -> dict[str, Any]:
    """Under what the numbers were taken."""
    return {
        "kernel": platform.release(),
        "processors": os.cpu_count(),
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
    pairs = [pair for pair in _RATIOS if pair[0] in systems and pair[1] in systems]
    for one, other in pairs:
        table.add_column(f"{one}\n/ {other}", justify="right")
    for row in rows:
        cells = [_amount(row.best(system), row.unit) if system not in row.faults else "failed" for system in systems]
        ratios = [_ratio(row.ratio(*pair)) for pair in pairs]
        against = row.ratio(POLICYFS, BINDFS)
        table.add_row(row.name, row.state, *cells, *ratios, style="bold" if against is not None and against > 1 else "")
    console = Console(width=None if os.isatty(1) else 140, highlight=False)
    console.print(table)
    console.print("; ".join(f"{key} {value}" for key, value in said.items()), soft_wrap=True)
    for row in rows:
        for system, fault in row.faults.items():
            console.print(f"failed: {row.name} {row.state} on {system}: {fault}", markup=False, soft_wrap=True)


def markdown(rows: list[Row], said: dict[str, Any]) -> str:
    """Ratios only, for BENCHMARKS.md: seconds say more about the machine than about what is measured."""
    pairs = _RATIOS[:3]
    lines = [f"| line | | {' | '.join(' / '.join(pair) for pair in pairs)} |", f"|---|---|{'---:|' * len(pairs)}"]
    lines += [f"| {row.name} | {row.state} | {' | '.join(_ratio(row.ratio(*pair)) for pair in pairs)} |" for row in rows]
    return "\n".join([*lines, "", "; ".join(f"{key}: {value}" for key, value in said.items()) + "."])


def _amount(value: float | None, unit: str) -> str:
    if value is None:
        return "-"
    if unit == "s":
        return f"{value * 1000:,.2f} ms"
    return f"{value:,.0f} {unit}"


def _ratio(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}" if value < 10 else f"{value:.0f}"
