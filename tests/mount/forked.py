"""Commands of policyfs without a fresh interpreter: see `command_server`, the process that forks them."""

from __future__ import annotations

import atexit
import contextlib
import functools
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

DEADLINE = 60.0
"""Seconds that a command may take, or a mount live, unless the test says otherwise."""

TIMEOUT = 15.0
"""Seconds to wait for what takes milliseconds, on a machine that has much else to do."""

_COMMAND_SERVER = Path(__file__).with_name("command_server.py")


@functools.cache
def _command_server() -> socket.socket:
    """The process that runs commands for this test process. It ends with it."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        server = subprocess.Popen(
            [sys.executable, "-I", str(_COMMAND_SERVER), str(theirs.fileno())],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            pass_fds=[theirs.fileno()],
        )

    def end() -> None:
        ours.close()
        server.wait(TIMEOUT)

    atexit.register(end)
    return ours


def forked(
    arguments: Sequence[str],
    *,
    environment: Mapping[str, str],
    directory: str,
    namespaces: Mapping[str, int] | None = None,
    uid: int | None = None,
    name: str = "",
    input: str | None = None,
    timeout: float = DEADLINE,
) -> subprocess.CompletedProcess[str]:
    """Run the `policyfs` command and give what it said and its exit code, as `subprocess.run` does. `namespaces` are
    the processes whose namespaces it enters, by their names in /proc/PID/ns, `uid` is the user it runs as, and `name` what
    /proc/PID/comm is to say of it."""
    request = {
        "arguments": list(arguments),
        "environment": dict(environment),
        "directory": directory,
        "namespaces": dict(namespaces or {}),
        "uid": os.geteuid() if uid is None else uid,
        "name": name,
    }
    ends = [os.pipe() for _ in range(4)]
    theirs = [ends[0][0], *(write for _, write in ends[1:])]
    ours = [ends[0][1], *(read for read, _ in ends[1:])]
    try:
        socket.send_fds(_command_server(), [json.dumps(request).encode()], theirs)
    finally:
        for descriptor in theirs:
            os.close(descriptor)
    output, errors, status = _communicate(ours, (input or "").encode(errors="surrogateescape"), timeout)
    number, *ended = status.split()
    if not ended:
        os.kill(int(number), signal.SIGKILL)
        raise subprocess.TimeoutExpired(list(arguments), timeout, output, errors)
    return subprocess.CompletedProcess(list(arguments), int(ended[0]), _text(output), _text(errors))


def _communicate(descriptors: Sequence[int], input: bytes, timeout: float) -> list[bytes]:
    """Write `input` to the first descriptor and read from the others, until their ends or for `timeout` seconds."""
    end = time.monotonic() + timeout
    with contextlib.ExitStack() as stack, selectors.DefaultSelector() as selector:
        feed, *outputs = [stack.enter_context(os.fdopen(number, "r+b", buffering=0)) for number in descriptors]
        received = dict.fromkeys(outputs, b"")
        os.set_blocking(feed.fileno(), False)
        if input:
            selector.register(feed, selectors.EVENT_WRITE)
        else:
            feed.close()
        for file in outputs:
            selector.register(file, selectors.EVENT_READ)
        while selector.get_map():
            ready = selector.select(max(0.0, end - time.monotonic()))
            if not ready:
                break
            for key, _ in ready:
                file = key.fileobj
                if file is feed:
                    try:
                        input = input[feed.write(input) or 0 :]
                    except BrokenPipeError:
                        input = b""
                    over = not input
                else:
                    text = file.read(1 << 16)
                    received[file] += text
                    over = not text
                if over:
                    selector.unregister(file)
                    file.close()
        return [*received.values()]


def _text(output: bytes) -> str:
    """As `subprocess` gives it with `text=True`."""
    return output.decode(errors="surrogateescape").replace("\r\n", "\n").replace("\r", "\n")
