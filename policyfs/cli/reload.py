"""`policyfs reload`: another policy for a mounted view."""

from __future__ import annotations

import os

import click

from policyfs.cli.options import directories, files, print_open
from policyfs.host import asking, places
from policyfs.host.faults import Exit, UserFault
from policyfs.policy.paths import PathFault


@click.command("reload")
@click.argument("mountpoint", shell_complete=directories)
@click.option(
    "-s", "--session", "session_file", metavar="FILE", shell_complete=files,
    help="Another session file; else the same one, read anew.",
)  # fmt: skip
def command(mountpoint: str, session_file: str | None) -> None:
    """Read the session of the view at MOUNTPOINT anew, all or nothing. (SIGHUP to the daemon does the same.)

    When this returns, what the new policy does not open is out of reach: names, attributes, open files, mapped pages.
    A file with a fault changes nothing. A run is named by its SOURCE.
    """
    point = asking.mounted_view(mountpoint)
    if session_file is not None:
        try:
            session_file = os.fsdecode(places.absolute(session_file))
        except PathFault as fault:
            raise UserFault(Exit.POLICY, f"--session: {fault}; name a session file") from None
    print_open(asking.ask(point, {"do": "reload", "session_file": session_file}))
