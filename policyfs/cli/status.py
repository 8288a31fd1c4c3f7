"""`policyfs status`: every mounted view of this user."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

import click

from policyfs.cli.options import OnceEach, directories, printable
from policyfs.control import client
from policyfs.policy.paths import HostPath, display, for_shell

_EVERY = 1.0
"""Seconds between two looks of --watch."""
_ANY_WIDTH = 1 << 20
"""Columns that no table needs: a table is as wide as what is in it."""


@click.command("status", cls=OnceEach)
@click.argument("mountpoint", required=False, shell_complete=directories)
@click.option("--json", "as_json", is_flag=True, help="A JSON list, for programs.")
@click.option("--watch", is_flag=True, help="Stay, and look again every second; Ctrl-C ends it.")
def command(mountpoint: str | None, as_json: bool, watch: bool) -> None:
    """Show the views that you have mounted, or the one at MOUNTPOINT: what is open in each, and what it is doing. A run
    is shown at its SOURCE, and named by it.
    """
    if as_json and watch:
        raise click.UsageError("--watch is for a person; ask with --json as often as you like")
    point = None if mountpoint is None else client.mounted_view(mountpoint)

    def look() -> tuple[list[dict[str, Any]], list[HostPath]]:
        return client.all_status() if point is None else ([{**client.ask(point, {"do": "status"}), "detached": False}], [])

    if watch:
        _watch(look)
        return
    found, silent = look()
    if as_json:
        click.echo(json.dumps(found, indent=1))
    elif found:
        from rich.console import Console

        # Where nobody's terminal ends a line, none ends within a name: 80 columns would.
        Console(width=None if sys.stdout.isatty() else _ANY_WIDTH).print(_table(found))
    elif not silent:
        click.echo("no view is mounted")
    for view in silent:
        click.echo(
            f"policyfs: note: {display(view)} does not answer: its daemon is gone or stuck; end it with "
            f"`policyfs umount --lazy {for_shell(view)}`",
            err=True,
        )


def _watch(look: Callable[[], tuple[list[dict[str, Any]], list[HostPath]]]) -> None:
    from rich.live import Live

    with Live(_table(look()[0]), auto_refresh=False) as live:
        while True:
            time.sleep(_EVERY)
            live.update(_table(look()[0]), refresh=True)


def _table(found: list[dict[str, Any]]) -> Any:
    from rich import box
    from rich.table import Table
    from rich.text import Text

    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for title in ("view", "open"):
        table.add_column(title, overflow="fold")
    for title in ("age", "req/s", "cached", "refused", "nodes", "files"):
        table.add_column(title, justify="right", no_wrap=True)
    for mount in found:
        if mount["appears_at"] is not None:
            # Where the session sees it: the mountpoint of a run is a private directory that says nothing to a person.
            view = [f"{printable(mount['appears_at'])}  (run)"]
        else:
            view = [printable(mount["mountpoint"]), f"of {printable(mount['source'])}"]
        if mount["detached"]:
            view[0] += "  (detached)"
        if mount["session_file"]:
            view.append(f"by {printable(mount['session_file'])}")
        levels = [(entry["path"], entry["level"]) for entry in mount["open"]] + [(path, "none") for path in mount["closed"]]
        cells = (
            "\n".join(view),
            "\n".join(f"{printable(path)}  {level}" for path, level in sorted(levels)),
            _age(mount["age"]),
            f"{mount['requests_per_second']:.0f}",
            str(mount["answered_from_cache"]),
            str(mount["refusals"]),
            str(mount["nodes"]),
            str(mount["handles"]),
        )
        table.add_row(*(Text(cell) for cell in cells))
    return table


def _age(seconds: float) -> str:
    whole = int(seconds)
    for unit, size in (("d", 86400), ("h", 3600), ("m", 60)):
        if whole >= size:
            return f"{whole // size}{unit}"
    return f"{whole}s"
