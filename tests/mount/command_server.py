"""Runs `policyfs` commands in a few milliseconds: a process that has imported what a command and a daemon need, and forks.

    python -I command_server.py SOCKET

SOCKET is the descriptor of a Unix socket. Each message is JSON, `{"arguments", "environment", "directory"}`, and brings two
descriptors, standard output and standard error. The answer, one message, is the exit status of the command. What is forked
runs the command's own `main`, and a daemon that it starts runs the daemon's own `main`. The only thing that is left out is
two fresh interpreters with their imports, which is most of the time that a mount takes.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from typing import Any

import policyfs.cli.mount
from policyfs.cli import main as command
from policyfs.daemon import main as daemon
from policyfs.daemon import interpreter


class ForkedDaemon:
    """Stands in for the `subprocess.Popen` of a daemon: the same process, forked."""

    def __init__(self, words: list[str], *, stderr: int, pass_fds: tuple[int, int], **_: Any) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        with exiting():
            os.setsid()
            nothing = os.open(os.devnull, os.O_RDWR)
            for standard, descriptor in enumerate((nothing, nothing, nothing if stderr < 0 else stderr)):
                os.dup2(descriptor, standard)
            for descriptor in pass_fds:
                os.set_inheritable(descriptor, True)
            sys.argv[1:] = words[-2:]
            daemon.main()

    def poll(self) -> int | None:
        """As of `subprocess.Popen`."""
        if self.returncode is None:
            process, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if process else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """As of `subprocess.Popen`, without a timeout: the caller ends the daemon first."""
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


class ProcessModule:
    """What `interpreter` uses of `subprocess`; whoever else starts a program gets the real one."""

    Popen = ForkedDaemon
    DEVNULL = subprocess.DEVNULL


@contextlib.contextmanager
def exiting() -> Any:
    """The body is all that this process still does."""
    status = 1
    try:
        yield
        status = 0
    except SystemExit as end:
        status = end.code if isinstance(end.code, int) else int(end.code is not None)
    except BaseException:
        sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)


def run(request: dict[str, Any], descriptors: list[int], connection: socket.socket) -> None:
    """Be the command."""
    with exiting():
        connection.close()
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["directory"])
        nothing = os.open(os.devnull, os.O_RDONLY)
        for standard, descriptor in enumerate((nothing, *descriptors)):
            os.dup2(descriptor, standard)
        os.closerange(3, max(descriptors[-1], nothing) + 1)
        interpreter.subprocess = ProcessModule  # type: ignore[assignment]
        sys.argv[1:] = request["arguments"]
        command()


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        while True:
            text, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, 2)
            if not text:
                return
            process = os.fork()
            if process == 0:
                run(json.loads(text), descriptors, connection)
            for descriptor in descriptors:
                os.close(descriptor)
            _, status = os.waitpid(process, 0)
            connection.send(str(os.waitstatus_to_exitcode(status)).encode())


IMPORTED = (policyfs.cli.mount,)
"""What the command would import when it runs, so that no fork has to."""

if __name__ == "__main__":
    main()
