"""The mount daemon of a run: started before its request is known, so that it comes up while everything else is checked."""

from __future__ import annotations

import contextlib
import os
import subprocess

from policyfs.host.faults import Exit, UserFault
from policyfs.mount.request import MountRequest, Ready
from policyfs.mount.start import DAEMON
from policyfs.policy.paths import display


class Daemon:
    """A mount daemon that waits for its request, then mounts and serves."""

    def __init__(self, log_file: str) -> None:
        """Start it in a session of its own: the terminal's signals are for the command. Raises `UserFault`."""
        request_read, self._request = os.pipe()
        self._answer, answer_write = os.pipe()
        try:
            log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise UserFault(Exit.PLACE, f"log {display(os.fsencode(log_file))}: {error.strerror}") from None
        self._process = subprocess.Popen(
            [*DAEMON, str(request_read), str(answer_write)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=log,
            pass_fds=(request_read, answer_write),
            start_new_session=True,
        )
        for descriptor in (log, request_read, answer_write):
            os.close(descriptor)
        self.pidfd = os.pidfd_open(self._process.pid)

    def ask(self, request: MountRequest) -> None:
        """Tell it what to mount."""
        # One that has ended already is told of by `ready`.
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
        """Take note of its end, which the keeper has seen to."""
        self._process.wait()
