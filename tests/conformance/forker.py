"""Starts mount daemons in a few milliseconds: a process that has imported all that a daemon imports, and forks.

    python -I forker.py SOCKET

SOCKET is the descriptor of a Unix socket. Each message on it is a request of `policyfs.daemon.request`, with two
descriptors: the daemon's answer goes out by the first, what it says on standard error by the second. What is forked runs
the daemon's own `main`, from protecting the process to unmounting; the one thing it is spared is a fresh interpreter and
its imports, most of the time that a mount takes. So a mount for every case is affordable, and no case sees what
the kernel kept of another.
"""

from __future__ import annotations

import os
import signal
import socket
import sys

from policyfs.daemon import main as daemon


def main() -> None:
    with socket.socket(fileno=int(sys.argv[1])) as asked:
        # What a daemon has to say it says in its answer and its log; nobody waits for its exit code.
        signal.signal(signal.SIGCHLD, signal.SIG_IGN)
        while True:
            request, descriptors, _, _ = socket.recv_fds(asked, 1 << 20, 2)
            if not request:
                return
            answer, errors = descriptors
            if os.fork() == 0:
                break
            os.close(answer)
            os.close(errors)
    serve(request, answer, errors)


def serve(request: bytes, answer: int, errors: int) -> None:
    """Be the daemon, as `policyfs mount` starts it: in a session of its own, with its request on a pipe."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    os.dup2(errors, 2)
    asks, told = os.pipe()
    os.write(told, request)
    os.close(told)
    sys.argv[1:] = [str(asks), str(answer)]
    daemon.main()


if __name__ == "__main__":
    main()
