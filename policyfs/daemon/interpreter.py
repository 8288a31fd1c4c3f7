"""The Python interpreter of a daemon, which may be started before it is known what it is to mount.

To load FUSE and trio takes a daemon as long as its command takes to load its own modules and to read its options, some
0.15 s each. So `policyfs run`, for which a person or a script waits each time, starts the one before it does the other.
For that to be the first act of the program, nothing of policyfs is imported here, nor subprocess, which takes as long to
load as an interpreter takes to start.
"""

from __future__ import annotations

import fcntl
import os
import signal
import sys

DAEMON = (sys.executable, "-I", "-c", "import gc; gc.disable(); from policyfs.daemon.main import main; main()")
"""Isolated (-I): a `trio.py` where the person stands, or on PYTHONPATH, is never imported (rule daemon-1). Without looking
for garbage until it serves: modules leave next to none, and looking takes a tenth of the time to load them."""


class Process:
    """A child of this process."""

    def __init__(self, pid: int) -> None:
        """`pid` is one that nothing else waits for."""
        self.pid = pid
        self.returncode: int | None = None
        """Its exit status, or minus the signal that ended it, once it has ended and was waited for."""

    def poll(self) -> int | None:
        """Its return code, if it has ended."""
        return self._waited(os.WNOHANG)

    def wait(self) -> int | None:
        """Its return code, once it has ended."""
        return self._waited(0)

    def _waited(self, options: int) -> int | None:
        if self.returncode is None:
            try:
                ended, status = os.waitpid(self.pid, options)
            except ChildProcessError:
                # Where a program ignores SIGCHLD the kernel tells nobody how a child ended: waitpid(2), "ECHILD".
                ended, status = self.pid, 0
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode


class Interpreter:
    """A child of this process, in a session of its own: the terminal's signals are not for it. It loads its modules, then
    waits for a request, and ends if there is none when this process closes `request` or ends."""

    def __init__(self, error_output: int | None = None) -> None:
        """Start it. It complains to the file descriptor `error_output`, or to this process's standard error, until its
        request says where to log. Raises OSError."""
        request_read, self.request = _pipe()
        self.answer, answer_write = _pipe()
        nothing = ((0, os.O_RDONLY), (1, os.O_WRONLY))
        errors = [] if error_output is None else [(os.POSIX_SPAWN_DUP2, error_output, 2)]
        try:
            pid = os.posix_spawn(
                DAEMON[0],
                [*DAEMON, str(request_read), str(answer_write)],
                os.environ,
                # Onto itself: the child keeps it, and no other that is started meanwhile does (posix_spawn(3)).
                file_actions=[
                    *((os.POSIX_SPAWN_DUP2, descriptor, descriptor) for descriptor in (request_read, answer_write)),
                    *((os.POSIX_SPAWN_OPEN, number, os.devnull, flags, 0) for number, flags in nothing),
                    *errors,
                ],
                setsid=True,
            )
        finally:
            os.close(request_read)
            os.close(answer_write)
        self.process = Process(pid)
        self._is_taken = False

    def take(self) -> Interpreter:
        """Make it the daemon of a mount: `discard` leaves it alone from now on."""
        self._is_taken = True
        return self

    def discard(self) -> None:
        """End it, unless it is the daemon of a mount."""
        if not self._is_taken:
            os.kill(self.process.pid, signal.SIGKILL)
            self.process.wait()
            os.close(self.request)
            os.close(self.answer)


def _pipe() -> tuple[int, int]:
    """A pipe (pipe(2)) whose ends are not numbers 0 to 2, which a program that embeds us may have closed."""
    ends = os.pipe()
    if min(ends) > 2:
        return ends
    reading, writing = (fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 3) for end in ends)
    for end in ends:
        os.close(end)
    return reading, writing
