"""`policyfs reload`: another policy for a mounted view."""

from __future__ import annotations

import click

from policyfs.cli.options import OnceEach, directories, files, print_open
from policyfs.control import client
from policyfs.opening.load import PolicyOptions


@click.command("reload", cls=OnceEach)
@click.argument("mountpoint", shell_complete=directories)
@click.option(
    "-s", "--session", "session_file", metavar="FILE", shell_complete=files,
    help="Another session file; else the same one, read again.",
)  # fmt: skip
def command(mountpoint: str, session_file: str | None) -> None:
    """Read the session of the view at MOUNTPOINT again, all or nothing. (SIGHUP to the daemon does the same.)

    When this returns, what the new policy does not open is out of reach: names, attributes, open files, mapped pages.
    A file with a fault changes nothing. A run is named by its SOURCE.
    """
    point = client.mounted_view(mountpoint)
    options = PolicyOptions(session_file=session_file).absolute()
    print_open(client.ask(point, {"do": "reload", "session_file": options.session_file}))
