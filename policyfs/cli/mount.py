"""`policyfs mount`: start a daemon, wait until the mount answers, say what is open."""

from __future__ import annotations

import contextlib
import os
import sys

import click

from policyfs.cli.options import OnceEach, directories, files, policy_options, print_open, printable
from policyfs.daemon.interpreter import DAEMON
from policyfs.daemon.request import MountRequest, Ready
from policyfs.daemon.start import log_file_for, named_log, start_daemon
from policyfs.host import mounts, places
from policyfs.host.errors import Exit, UserFault
from policyfs.opening.load import PolicyOptions, source_of


@click.command("mount", cls=OnceEach)
@click.argument("source", shell_complete=directories)
@click.argument("mountpoint", shell_complete=directories)
@policy_options
@click.option("-f", "--foreground", is_flag=True, help="Stay in the foreground and log to standard error; Ctrl-C unmounts.")
@click.option("--allow-case-folding", is_flag=True, help="Mount a SOURCE that takes Name and NAME for one file.")
@click.option(
    "--log",
    "log_file",
    metavar="FILE",
    shell_complete=files,
    help="Where the daemon logs, a file that no view shows; by default below ~/.local/state/policyfs.",
)
@click.option("--journal-opens", is_flag=True, help="Note each opening to read in the journal too.")
@click.option("--no-journal", is_flag=True, help="Keep no journal: `policyfs log` has nothing to show of this view.")
def command(
    source: str,
    mountpoint: str,
    options: PolicyOptions,
    foreground: bool,
    allow_case_folding: bool,
    log_file: str | None,
    journal_opens: bool,
    no_journal: bool,
) -> None:
    """Mount a view of SOURCE at MOUNTPOINT, an empty directory.

    Returns when the mount answers, and prints what is open. At least one grant is needed, from a session file or -g.

    \b
      policyfs mount ~/tree /mnt/view -g /=ro -g /Notes=stage
      policyfs mount ~/tree /mnt/view -s session.toml
    """
    if journal_opens and no_journal:
        raise UserFault(Exit.USAGE, "--journal-opens and --no-journal exclude each other; give one of them")
    mounts.require_fuse()
    real_source = source_of(source)
    point = mounts.mountpoint_for(mountpoint, real_source)
    if log_file is not None:
        log_file = named_log(log_file, point)
    elif not foreground:
        log_file = log_file_for(point)
    request = MountRequest(
        os.fsdecode(real_source),
        os.fsdecode(point),
        options.absolute(),
        allow_case_folding,
        log_file,
        named=os.fsdecode(places.absolute(source)),
        journal=not no_journal,
        journal_opens=journal_opens,
    )
    if foreground:
        _become_daemon(request)
    else:
        ready = start_daemon(request)
        # An error is an answer too, of a source that does not tell how full it is, say.
        with contextlib.suppress(OSError):
            os.statvfs(point)
        print_ready(ready, mountpoint)


def _become_daemon(request: MountRequest) -> None:
    """Serve in this very process, so that signals and a supervisor reach the mount. The request goes by a file in
    memory: a pipe with nobody at the other end would have to hold it all."""
    request_descriptor = os.memfd_create("policyfs-request", 0)
    os.write(request_descriptor, request.dumps())
    os.lseek(request_descriptor, 0, os.SEEK_SET)
    answer_read, answer_write = os.pipe()
    os.set_inheritable(answer_write, True)
    if os.fork() == 0:
        # The child tells the person what is open, then ends; the parent becomes the daemon.
        os.close(answer_write)
        try:
            ready = Ready.receive(answer_read)
            if not ready.fault:
                print_ready(ready, request.mountpoint)
                sys.stdout.flush()
            for message in ready.fault:
                click.echo(f"policyfs: {printable(message)}", err=True)
        finally:
            os._exit(0)
    os.close(answer_read)
    sys.stdout.flush()
    os.execv(DAEMON[0], [*DAEMON, str(request_descriptor), str(answer_write)])


def print_ready(ready: Ready, mountpoint: str) -> None:
    """Say what is open, and on standard error what a person should know."""
    click.echo(f"{printable(mountpoint)} is mounted; open in it:")
    print_open([{"path": path, "level": level} for path, level in ready.open])
    for warning in ready.warnings:
        click.echo(f"policyfs: note: {printable(warning)}", err=True)
