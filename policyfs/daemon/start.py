"""Start the daemon of a mount and wait for its answer: for the commands and the Python API, which never load FUSE."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import signal
import stat

from policyfs.daemon.interpreter import Interpreter
from policyfs.daemon.request import MountRequest, Ready
from policyfs.host import mounts, places
from policyfs.host.errors import Exit, UserFault
from policyfs.host.places import mount_name
from policyfs.policy.paths import HostPath, PathFault, below, display

_END_TIMEOUT = 10.0
"""Seconds that a daemon has to end in order; it takes milliseconds."""


def log_file_for(point: HostPath) -> str:
    """Where the daemon of a mount logs unless a person says otherwise. Makes the directory. Raises `UserFault`."""
    try:
        directory = places.private_directory(places.state_directory())
    except OSError as error:
        raise UserFault(Exit.MACHINE, f"no place for the log: {error}; name one with --log") from None
    return str(directory / f"{mount_name(point)}.log")


def named_log(text: str, point: HostPath) -> str:
    """Where the daemon of a mount logs, as a person says. Raises `UserFault`."""
    try:
        file = places.absolute(text)
    except PathFault as fault:
        raise UserFault(Exit.PLACE, f"--log: {fault}; name a file you can write") from None
    if below(places.real(file), point) is not None:
        raise UserFault(
            Exit.PLACE, f"--log {display(file)} lies in MOUNTPOINT, where the view covers it; name one elsewhere"
        )
    return os.fsdecode(file)


class Daemon:
    """A mount daemon that waits for its request, then mounts and serves. A child of this process, in a session of its own:
    the terminal's signals are not for it."""

    def __init__(self, log_file: str | None, interpreter: Interpreter | None = None) -> None:
        """Start it, or take an interpreter that was started for it. Where it logs is also where a new interpreter would
        complain. Raises `UserFault`."""
        error_output = os.open(os.devnull, os.O_WRONLY) if log_file is None else open_log(log_file)
        try:
            interpreter = (interpreter or Interpreter(error_output)).take()
        finally:
            os.close(error_output)
        self._request, self._answer, self._process = interpreter.request, interpreter.answer, interpreter.process
        self.pidfd = os.pidfd_open(self._process.pid)

    def ask(self, request: MountRequest) -> None:
        """Tell it what to mount."""
        # `ready` reports one that has ended already.
        with contextlib.suppress(BrokenPipeError), os.fdopen(self._request, "wb") as pipe:
            pipe.write(request.dumps())

    def ready(self) -> Ready:
        """Wait until the view answers. Raises the `UserFault` that kept it from mounting."""
        ready = Ready.receive(self._answer)
        ready.raise_fault()
        return ready

    def ended(self) -> bool:
        """Whether it has ended; asked while it should not have."""
        return self._process.poll() is not None

    def forget(self) -> None:
        """Wait for its end, which somebody has seen to."""
        self._process.wait()

    def end(self) -> None:
        """End it, whatever it is at, and wait for that."""
        signal.pidfd_send_signal(self.pidfd, signal.SIGTERM)
        ended = select.poll()
        ended.register(self.pidfd, select.POLLIN)
        if not ended.poll(_END_TIMEOUT * 1000):
            signal.pidfd_send_signal(self.pidfd, signal.SIGKILL)
        self._process.wait()

    def leave(self) -> None:
        """Let it live on without this process, which does not wait for it."""
        os.close(self.pidfd)


def start_daemon(request: MountRequest) -> Ready:
    """Start the daemon of a mount and wait for its answer: the mount answers when this returns. Nobody waits for its end
    here; `Ready.process` is its id. Raises `UserFault`."""
    daemon = Daemon(request.log_file)
    try:
        daemon.ask(request)
        ready = daemon.ready()
    except UserFault:
        # It ends by itself.
        daemon.forget()
        raise
    except BaseException:
        daemon.end()
        # One that is ended while it mounts leaves a mount that nobody answers.
        point = HostPath(os.fsencode(request.mountpoint))
        left = mounts.mount_at(point)
        if left is not None and left.type == mounts.FILE_SYSTEM_TYPE:
            mounts.unmount(point, lazily=True)
        raise
    finally:
        daemon.leave()
    return ready


def open_log(file: str) -> int:
    """The file that a daemon logs to, by a descriptor that writes at its end. Raises `UserFault`."""
    shown = f"--log {display(os.fsencode(file))}"
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW
    try:
        # A FIFO is not waited for, a terminal not taken.
        descriptor = os.open(file, flags | os.O_NONBLOCK | os.O_NOCTTY, 0o600)
    except OSError as error:
        reasons = {errno.ELOOP: " is a link; name the file itself", errno.ENXIO: _NO_FILE}
        reason = reasons.get(error.errno or 0, f": {error.strerror}; name a file you can write")
        raise UserFault(Exit.PLACE, shown + reason) from None
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise UserFault(Exit.PLACE, shown + _NO_FILE)
    return descriptor


_NO_FILE = " is not a regular file; name one, or a name that is free"
