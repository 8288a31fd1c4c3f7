"""`policyfs mount`: start a daemon, wait until the mount answers, say what is open."""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys

import click

from policyfs.cli.options import policy_options, printable
from policyfs.host import mounts, places
from policyfs.host.faults import Exit, UserFault
from policyfs.host.load import PolicyOptions, source_of
from policyfs.mount.request import MountRequest, Ready

_DAEMON = (sys.executable, "-I", "-c", "from policyfs.mount.daemon import main; main()")
"""Isolated (-I): a `trio.py` where the person stands, or on PYTHONPATH, is never imported (security.md P16)."""


@click.command("mount")
@click.argument("source")
@click.argument("mountpoint")
@policy_options
@click.option("-f", "--foreground", is_flag=True, help="Stay in the foreground and log to standard error; Ctrl-C unmounts.")
@click.option("--allow-case-folding", is_flag=True, help="Mount a SOURCE that takes Name and NAME for one file.")
@click.option("--log", "log_file", metavar="FILE", help="Where the daemon logs; by default below ~/.local/state/policyfs.")
def command(
    source: str,
    mountpoint: str,
    options: PolicyOptions,
    foreground: bool,
    allow_case_folding: bool,
    log_file: str | None,
) -> None:
    """Mount a view of SOURCE at MOUNTPOINT, an empty directory.

    Returns when the mount answers, and prints what is open. At least one grant is needed, from a session file or -g.

    \b
      policyfs mount ~/tree /mnt/view -g /=ro -g /Notes=stage
      policyfs mount ~/tree /mnt/view -s session.toml
    """
    mounts.require_fuse()
    real_source = source_of(source)
    point = mounts.mountpoint_for(mountpoint, real_source)
    if log_file is None and not foreground:
        log_file = str(places.private_directory(places.state_directory()) / f"{mount_name(point)}.log")
    request = MountRequest(
        os.fsdecode(real_source),
        os.fsdecode(point),
        options.absolute(),
        allow_case_folding,
        None if log_file is None else os.fsdecode(places.absolute(log_file)),
    )
    if foreground:
        _become_daemon(request)
    else:
        ready = start_daemon(request)
        os.statvfs(point)
        print_ready(ready, mountpoint)


def mount_name(point: bytes) -> str:
    """A name for a mountpoint that a file can have."""
    readable = "".join(character if character.isalnum() else "-" for character in os.fsdecode(point).strip("/"))
    return f"{readable[-40:]}-{hashlib.blake2b(point, digest_size=4).hexdigest()}"


def start_daemon(request: MountRequest) -> Ready:
    """Start the daemon of a mount in a session of its own, and wait for its answer. Raises `UserFault`."""
    request_read, request_write = os.pipe()
    answer_read, answer_write = os.pipe()
    with subprocess.Popen(
        [*_DAEMON, str(request_read), str(answer_write)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=_error_output(request),
        pass_fds=(request_read, answer_write),
        start_new_session=True,
    ) as daemon:
        os.close(request_read)
        os.close(answer_write)
        with os.fdopen(request_write, "wb") as pipe:
            pipe.write(request.dumps())
        try:
            ready = Ready.receive(answer_read)
            ready.raise_fault()
        except BaseException:
            daemon.wait()
            raise
        # The daemon outlives this process; nothing waits for it here.
        daemon.returncode = 0
    return ready


def _error_output(request: MountRequest) -> int:
    """Where the interpreter itself would complain: into the log as well."""
    if request.log_file is None:
        return subprocess.DEVNULL
    try:
        return os.open(request.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        raise UserFault(Exit.PLACE, f"--log {printable(request.log_file)}: {error.strerror}") from None


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
    os.execv(_DAEMON[0], [*_DAEMON, str(request_descriptor), str(answer_write)])


def print_ready(ready: Ready, mountpoint: str) -> None:
    """Say what is open, and on standard error what a person should know."""
    click.echo(f"{printable(mountpoint)} is mounted; open in it:")
    width = max((len(path) for path, _ in ready.open), default=0)
    for path, level in ready.open:
        click.echo(f"  {printable(path).ljust(width)}  {level}")
    for warning in ready.warnings:
        click.echo(f"policyfs: note: {printable(warning)}", err=True)
