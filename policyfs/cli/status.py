"""`policyfs status`: every mounted view of this user."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from typing import Any

import click

from policyfs.cli.options import directories, printable
from policyfs.host import asking, mounts
from policyfs.policy.paths import HostPath, display

_EVERY = 1.0
"""Seconds between two looks of --watch."""


@click.command("status")
@click.argument("mountpoint", required=False, shell_complete=directories)
@click.option("--json", "as_json", is_flag=True, help="A JSON list, for programs.")
@click.option("--watch", is_flag=True, help="Stay, and look again every second; Ctrl-C ends it.")
def command(mountpoint: str | None, as_json: bool, watch: bool) -> None:
    """Show the views that you have mounted, or the one at MOUNTPOINT: what is open in each, and what it is doing."""
    if as_json and watch:
        raise click.UsageError("--watch is for a person; ask with --json as often as you like")
    point = None if mountpoint is None else asking.mounted_view(mountpoint)

    def look() -> list[dict[str, Any]]:
        return list(asking.all_status()) if point is None else [asking.ask(point, {"do": "status"})]

    if watch:
        _watch(look)
        return
    found = look()
    silent = [] if point is not None else _silent(found)
    if as_json:
        click.echo(json.dumps(found, indent=1))
    elif found:
        from rich.console import Console

        Console().print(_table(found))
    elif not silent:
        click.echo("no view is mounted")
    for view in silent:
        click.echo(
            f"policyfs: note: {display(view)} does not answer here: its daemon is gone or stuck (`policyfs umount --lazy` "
            "ends it), or it was mounted with another XDG_RUNTIME_DIR or home",
            err=True,
        )


def _silent(found: list[dict[str, Any]]) -> list[HostPath]:
    """The views of this user in the mount table that gave no status."""
    answered = {os.fsencode(mount["mountpoint"]) for mount in found}
    return [
        mount.point
        for mount in mounts.mounts()
        if mount.type == mounts.FILE_SYSTEM_TYPE and mount.owner == os.geteuid() and mount.point not in answered
    ]


def _watch(look: Callable[[], list[dict[str, Any]]]) -> None:
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
    for title in ("age", "req/s", "cached", "refused", "nodes", "files"):
        table.add_column(title, justify="right", no_wrap=True)
    for mount in found:
        view = [printable(mount["mountpoint"]), f"of {printable(mount['source'])}"]
        if mount["session_file"]:
            view.append(f"by {printable(mount['session_file'])}")
        cells = (
            "\n".join(view),
            "\n".join(f"{printable(entry['path'])}  {entry['level']}" for entry in mount["open"]),
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
