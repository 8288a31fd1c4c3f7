"""Start the daemon of a mount and wait for its answer: for the commands and the Python API, which never load FUSE."""

from __future__ import annotations

import os
import subprocess
import sys

from policyfs.host import places
from policyfs.host.faults import Exit, UserFault
from policyfs.host.places import mount_name
from policyfs.mount.request import MountRequest, Ready
from policyfs.policy.paths import HostPath, display

DAEMON = (sys.executable, "-I", "-c", "from policyfs.mount.daemon import main; main()")
"""Isolated (-I): a `trio.py` where the person stands, or on PYTHONPATH, is never imported (security.md P16)."""


def log_file_for(point: HostPath) -> str:
    """Where the daemon of a mount logs unless a person says otherwise. Makes the directory. Raises `UserFault`."""
    try:
        directory = places.private_directory(places.state_directory())
    except OSError as error:
        raise UserFault(Exit.MACHINE, f"no place for the log: {error}; name one with --log") from None
    return str(directory / f"{mount_name(point)}.log")


def start_daemon(request: MountRequest) -> Ready:
    """Start the daemon of a mount in a session of its own, and wait for its answer: the mount answers when this returns.
    The daemon is a child of this process that nobody waits for here; `Ready.process` is its id. Raises `UserFault`."""
    error_output = _error_output(request)
    request_read, request_write = os.pipe()
    answer_read, answer_write = os.pipe()
    with subprocess.Popen(
        [*DAEMON, str(request_read), str(answer_write)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=error_output,
        pass_fds=(request_read, answer_write),
        start_new_session=True,
    ) as daemon:
        os.close(request_read)
        os.close(answer_write)
        if error_output >= 0:
            os.close(error_output)
        with os.fdopen(request_write, "wb") as pipe:
            pipe.write(request.dumps())
        try:
            ready = Ready.receive(answer_read)
            ready.raise_fault()
        except BaseException:
            daemon.wait()
            raise
        # The daemon outlives this block; `Popen` would wait for it at the end.
        daemon.returncode = 0
    return ready


def _error_output(request: MountRequest) -> int:
    """Where the interpreter itself would complain: into the log as well."""
    if request.log_file is None:
        return subprocess.DEVNULL
    try:
        return os.open(request.log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    except OSError as error:
        shown = display(os.fsencode(request.log_file))
        raise UserFault(Exit.PLACE, f"--log {shown}: {error.strerror}; name a file you can write") from None
