"""The Python interpreter of a daemon, which may be started before it is known what it is to mount.

To load FUSE and trio takes a daemon as long as its command takes to load its own modules and to read its options, some
0.15 s each. So `policyfs run`, for which a person or a script waits each time, starts the one before it does the other.
For that to be the first act of the program, nothing of policyfs is imported here.
"""

from __future__ import annotations

import os
import subprocess
import sys

DAEMON = (sys.executable, "-I", "-c", "from policyfs.daemon.main import main; main()")
"""Isolated (-I): a `trio.py` where the person stands, or on PYTHONPATH, is never imported (rule daemon-1)."""


class Interpreter:
    """A child of this process, in a session of its own: the terminal's signals are not for it. It loads its modules, then
    waits for a request, and ends if there is none when this process closes `request` or ends."""

    def __init__(self, error_output: int | None = None) -> None:
        """Start it. It complains to the file descriptor `error_output`, or to this process's standard error, until its
        request says where to log."""
        request_read, self.request = os.pipe()
        self.answer, answer_write = os.pipe()
        self.process = subprocess.Popen(
            [*DAEMON, str(request_read), str(answer_write)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=error_output,
            pass_fds=(request_read, answer_write),
            start_new_session=True,
        )
        os.close(request_read)
        os.close(answer_write)
        self._is_taken = False

    def take(self) -> Interpreter:
        """Make it the daemon of a mount: `discard` leaves it alone from now on."""
        self._is_taken = True
        return self

    def discard(self) -> None:
        """End it, unless it is the daemon of a mount."""
        if not self._is_taken:
            self.process.kill()
            self.process.wait()
            os.close(self.request)
            os.close(self.answer)
