"""`policyfs umount`."""

from __future__ import annotations

import click

from policyfs.cli.options import OnceEach, directories
from policyfs.control import client
from policyfs.host import mounts, places
from policyfs.host.errors import Exit, UserFault
from policyfs.policy.paths import PathFault, display


@click.command("umount", cls=OnceEach)
@click.argument("mountpoint", shell_complete=directories)
@click.option("--lazy", is_flag=True, help="Detach now; programs still inside go on until they leave.")
def command(mountpoint: str, lazy: bool) -> None:
    """End the view mounted at MOUNTPOINT. (fusermount3 -u and umount do the same.)"""
    try:
        named = places.absolute(mountpoint)
    except PathFault as fault:
        raise UserFault(Exit.PLACE, f"MOUNTPOINT: {fault}; name a mounted view") from None
    point = mounts.real_mountpoint(named)
    mounted = mounts.mount_at(point)
    if mounted is None:
        client.refuse_detached(named)
        raise UserFault(Exit.PLACE, f"{display(named)} is not a mount; `findmnt -t fuse.policyfs` lists the views")
    if mounted.type != mounts.FILE_SYSTEM_TYPE:
        raise UserFault(Exit.PLACE, f"{display(named)} is a mount of type {mounted.type}, not a view; use umount")
    mounts.unmount(point, lazily=lazy)
