"""Runs `policyfs` commands in a few milliseconds: a process that has imported what a command and a daemon need, and forks.

    python -I command_server.py SOCKET

SOCKET is the descriptor of a Unix socket. Each message is a `Request` as JSON and brings four descriptors: the command's
standard input, output and error, and a pipe that gets two lines: the number of the process, and its exit status when it has
ended. Several commands may run at once.

A forked process runs the command's own `main`, and a daemon that it starts runs the daemon's own `main`. Only the fresh
interpreters with their imports are left out, which is most of the time that a mount takes.
"""

from __future__ import annotations

import contextlib
import ctypes
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
from typing import Any, TypedDict

import policyfs.cli
from policyfs.cli import main as command
from policyfs.daemon import interpreter
from policyfs.daemon import main as daemon
from policyfs.host.harden import prctl

IMPORTED = [importlib.import_module(f"policyfs.cli.{module.name}") for module in pkgutil.iter_modules(policyfs.cli.__path__)]
"""What a command would import when it runs, so that no fork has to."""

PR_SET_DUMPABLE, PR_SET_NAME = 4, 15
"""prctl(2)."""

DESCRIPTORS = 4
"""With each request."""


class Request(TypedDict):
    """A command to run."""

    arguments: list[str]
    environment: dict[str, str]
    directory: str
    namespaces: dict[str, int]
    """The processes whose namespaces it runs in, by their names in /proc/PID/ns; those of the tests where it has none."""
    uid: int
    """The user and group it runs as."""
    name: str
    """What /proc/PID/comm says of it and of all that it forks, by which a test finds them; empty for the usual name."""


class ForkedDaemon:
    """Stands in for the `subprocess.Popen` of a daemon: the same process, forked."""

    def __init__(self, words: list[str], *, stderr: int | None, pass_fds: tuple[int, int], **_: Any) -> None:
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid:
            return
        with exiting():
            os.setsid()
            for number in signal.valid_signals():
                # As exec(2) does: what is ignored stays so. Python's own handler of Ctrl-C is that of a fresh interpreter.
                if callable(signal.getsignal(number)) and signal.getsignal(number) is not signal.default_int_handler:
                    signal.signal(number, signal.SIG_DFL)
            nothing = os.open(os.devnull, os.O_RDWR)
            errors = nothing if stderr == subprocess.DEVNULL else 2 if stderr is None else stderr
            for standard, descriptor in enumerate((nothing, nothing, errors)):
                os.dup2(descriptor, standard)
            for descriptor in pass_fds:
                os.set_inheritable(descriptor, True)
            sys.argv[1:] = words[-2:]
            daemon.main()

    def kill(self) -> None:
        """As of `subprocess.Popen`."""
        if self.poll() is None:
            os.kill(self.pid, signal.SIGKILL)

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
    """What `interpreter` uses of `subprocess`; every other module that starts a program has the real one."""

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
        for stream in (sys.stdout, sys.stderr):
            # None where the command closed it.
            if stream is not None:
                with contextlib.suppress(OSError, ValueError):
                    stream.flush()
        os._exit(status)


def enter(namespaces: dict[str, int]) -> None:
    """Go into these namespaces, as with nsenter(1)."""
    with contextlib.ExitStack() as stack:
        # All are opened first: /proc may be another one in a mount namespace.
        files = [stack.enter_context(open(f"/proc/{process}/ns/{kind}")) for kind, process in namespaces.items()]
        for file in files:
            if ctypes.CDLL(None, use_errno=True).setns(file.fileno(), 0) != 0:
                raise OSError(ctypes.get_errno(), "setns")


def become(uid: int) -> None:
    """Be another user, as with setpriv(1) and exec(2)."""
    os.setgroups([])
    os.setresgid(uid, uid, uid)
    os.setresuid(uid, uid, uid)
    # The kernel takes this away with the user id, and exec(2) gives it back.
    prctl(PR_SET_DUMPABLE, 1, "PR_SET_DUMPABLE")


def run(request: Request, streams: list[int]) -> None:
    """Be the command."""
    with exiting():
        for standard, descriptor in enumerate(streams):
            os.dup2(descriptor, standard)
        os.closerange(3, max(map(int, os.listdir("/proc/self/fd"))) + 1)
        if request["name"]:
            name = ctypes.create_string_buffer(request["name"].encode())
            ctypes.CDLL(None).prctl(PR_SET_NAME, name, 0, 0, 0)
        enter(request["namespaces"])
        if request["uid"] != os.geteuid():
            become(request["uid"])
        os.environ.clear()
        os.environ.update(request["environment"])
        os.chdir(request["directory"])
        interpreter.subprocess = ProcessModule  # type: ignore[assignment]
        sys.argv[:] = ["-c", *request["arguments"]]
        command()


def main() -> None:
    connection = socket.socket(fileno=int(sys.argv[1]))
    # What is there now stays: a collection in a forked process would copy its pages.
    gc.freeze()
    waiting = select.poll()
    waiting.register(connection, select.POLLIN)
    running: dict[int, tuple[int, int]] = {}
    while True:
        for descriptor, _ in waiting.poll():
            if descriptor != connection.fileno():
                process, status_pipe = running.pop(descriptor)
                _, status = os.waitpid(process, 0)
                waiting.unregister(descriptor)
                os.close(descriptor)
                with contextlib.suppress(BrokenPipeError):
                    os.write(status_pipe, f"{os.waitstatus_to_exitcode(status)}\n".encode())
                os.close(status_pipe)
                continue
            text, descriptors, _, _ = socket.recv_fds(connection, 1 << 20, DESCRIPTORS)
            if not text:
                return
            *streams, status_pipe = descriptors
            process = os.fork()
            if process == 0:
                run(json.loads(text), streams)
            os.write(status_pipe, f"{process}\n".encode())
            for stream in streams:
                os.close(stream)
            pidfd = os.pidfd_open(process)
            running[pidfd] = process, status_pipe
            waiting.register(pidfd, select.POLLIN)


if __name__ == "__main__":
    main()
