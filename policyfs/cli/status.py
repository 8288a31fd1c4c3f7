"""`policyfs status`: every mounted view of this user."""

from __future__ import annotations

import json
import time
from typing import Any

import click

from policyfs.host import asking
from policyfs.policy.paths import display, from_text

_EVERY = 1.0
"""Seconds between two looks of --watch."""


@click.command("status")
@click.argument("mountpoint", required=False)
@click.option("--json", "as_json", is_flag=True, help="A JSON list, for programs.")
@click.option("--watch", is_flag=True, help="Stay, and look again every second; Ctrl-C ends it.")
def command(mountpoint: str | None, as_json: bool, watch: bool) -> None:
    """Show the views that you have mounted, or the one at MOUNTPOINT: what is open in each, and what it is doing."""
    point = None if mountpoint is None else asking.mounted_view(mountpoint)

    def look() -> list[dict[str, Any]]:
        return list(asking.all_status()) if point is None else [asking.ask(point, {"do": "status"})]

    if as_json:
        click.echo(json.dumps(look(), indent=1))
    elif watch:
        _watch(look)
    else:
        from rich.console import Console

        found = look()
        if not found:
            click.echo("no view is mounted")
            return
        Console().print(_table(found))


def _watch(look: Any) -> None:
    from rich.live import Live

    with Live(_table(look()), auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY)
            live.update(_table(look()), refresh=True)


def _table(found: list[dict[str, Any]]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("view", "open"):
        table.add_column(title, overflow="fold")
    for title in ("age", "req/s", "refused", "nodes", "files"):
        table.add_column(title, justify="right", no_wrap=True)
    for mount in found:
        session = f"\nby {mount['session_file']}" if mount["session_file"] else ""
        cells = (
            f"{mount['mountpoint']}\nof {mount['source']}{session}",
            "\n".join(f"{entry['path']}  {entry['level']}" for entry in mount["open"]),
            _age(mount["age"]),
            f"{mount['requests_per_second']:.0f}",
            str(mount["refusals"]),
            str(mount["nodes"]),
            str(mount["handles"]),
        )
        table.add_row(*(Text("\n".join(display(from_text(line)) for line in cell.split("\n"))) for cell in cells))
    return table


def _age(seconds: float) -> str:
    whole = int(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"
