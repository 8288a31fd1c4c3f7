"""`policyfs grant`: open a path of a mounted view."""

from __future__ import annotations

import os
import re

import click

from policyfs.cli.options import OnceEach, directories, print_open, printable, session_faults_told
from policyfs.control import client
from policyfs.policy.paths import display
from policyfs.policy.session import level_option

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}


class Duration(click.ParamType[float]):
    """A time such as 90s, 10m, 2h, 1d, in seconds."""

    name = "TIME"

    def convert(self, value: str | float, parameter: click.Parameter | None, context: click.Context | None) -> float:
        """The seconds of a text."""
        if isinstance(value, float):
            return value
        matched = re.fullmatch(r"(\d+(?:\.\d+)?)([smhd])", value)
        if matched is None or float(matched[1]) == 0:
            self.fail(f"{value!r} is not a time; write 90s, 10m, 2h or 1d", parameter, context)
        return float(matched[1]) * _UNITS[matched[2]]


@click.command("grant", cls=OnceEach)
@click.argument("mountpoint", shell_complete=directories)
@click.argument("grant", metavar="PATH=LEVEL")
@click.option("--for", "seconds", type=Duration(), help="End it after this time: 90s, 10m, 2h, 1d.")
def command(mountpoint: str, grant: str, seconds: float | None) -> None:
    """Open PATH of the view at MOUNTPOINT at LEVEL, at once. Floors and the denylist hold all the same.
    A run is named by its SOURCE.

    PATH is a path of the view, from /, or a place below the mountpoint or SOURCE.

    \b
      policyfs grant /mnt/view /Notes/Archive=stage --for 10m
    """
    point = client.mounted_view(mountpoint)
    with session_faults_told():
        named, level = level_option(grant, "PATH=LEVEL")
    path = client.path_in_view(point, named)
    text = os.fsdecode(path)
    granted = client.ask(point, {"do": "grant", "path": text, "level": str(level), "seconds": seconds})
    print_open(granted)
    (explained,) = client.ask(point, {"do": "explain", "paths": [text]})
    if explained["level"] != str(level):
        click.echo(
            f"policyfs: note: {display(path)} is at {explained['level']} all the same: {printable(explained['rule'])}",
            err=True,
        )
