"""`policyfs revoke`: close a path of a mounted view."""

from __future__ import annotations

import os

import click

from policyfs.cli.options import OnceEach, directories, print_open, session_faults_told
from policyfs.control import client
from policyfs.policy.session import path_option


@click.command("revoke", cls=OnceEach)
@click.argument("mountpoint", shell_complete=directories)
@click.argument("path")
def command(mountpoint: str, path: str) -> None:
    """End the grant of PATH that `policyfs grant` gave; where it gave none, close PATH and all below it that no grant
    of its own opens, until `policyfs grant` opens it. When this returns, what nothing else opens is out of reach.
    A run is named by its SOURCE.

    PATH is a path of the view, from /, or a place below the mountpoint or SOURCE.
    """
    point = client.mounted_view(mountpoint)
    with session_faults_told():
        named = path_option(path, "PATH")
    print_open(client.ask(point, {"do": "revoke", "path": os.fsdecode(client.path_in_view(point, named))}))
