"""The control socket: what it takes, and what it makes of nonsense."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from policyfs.control import client
from policyfs.policy.paths import HostPath
from tests.mount.asked import Live, answered, ask, asking_for, connected, live
from tests.mount.control.ground import FAILED, USAGE
from tests.mount.expecting import errno_of, until
from tests.mount.harness import TIMEOUT

NONSENSE = {
    "empty": b"",
    "an empty line": b"\n",
    "no JSON": b"status\n",
    "half of it": b'{"do": "sta',
    "no object": b'["status"]\n',
    "null": b"null\n",
    "no UTF-8": b'{"do": "\xff\xfe"}\n',
    "NUL": b"\0\0\0\n",
    "no request": b"{}\n",
    "an unknown one": b'{"do": "unmount"}\n',
    "a list for a word": b'{"do": ["status"]}\n',
    "explain nothing": b'{"do": "explain"}\n',
    "explain a text": b'{"do": "explain", "paths": "/ro"}\n',
    "explain a number": b'{"do": "explain", "paths": [1]}\n',
    "an empty path": b'{"do": "explain", "paths": [""]}\n',
    "a path with NUL": b'{"do": "explain", "paths": ["/a\\u0000b"]}\n',
    "a name too long": b'{"do": "explain", "paths": ["/' + b"n" * 256 + b'"]}\n',
    "nested deeply": b"[" * 60_000 + b"\n",
    "no text": b'{"do": "explain", "paths": ["/\\ud800"]}\n',
}

ORDERS = {
    "no path": b'{"do": "grant", "level": "ro"}\n',
    "no level": b'{"do": "grant", "path": "/away"}\n',
    "a bad level": b'{"do": "grant", "path": "/away", "level": "rw"}\n',
    "no time": b'{"do": "grant", "path": "/away", "level": "ro", "seconds": 0}\n',
    "a time before now": b'{"do": "grant", "path": "/away", "level": "ro", "seconds": -1}\n',
    "a text for a time": b'{"do": "grant", "path": "/away", "level": "ro", "seconds": "1"}\n',
    "not a number": b'{"do": "grant", "path": "/away", "level": "ro", "seconds": NaN}\n',
    "revoke nothing": b'{"do": "revoke"}\n',
    "revoke a list": b'{"do": "revoke", "path": ["/ro"]}\n',
    "reload a number": b'{"do": "reload", "session_file": 1}\n',
    "a list for a level": b'{"do": "grant", "path": "/away", "level": ["ro"]}\n',
    "a time past counting": b'{"do": "grant", "path": "/away", "level": "ro", "seconds": 1' + b"0" * 400 + b"}\n",
    "a time without end": b'{"do": "grant", "path": "/away", "level": "ro", "seconds": 1e400}\n',
}


def assert_told(answer: bytes) -> None:
    """One line that says what is wrong, with an exit code; not that the daemon failed."""
    assert answer.endswith(b"\n")
    assert answer.count(b"\n") == 1
    told = json.loads(answer)
    assert set(told) == {"fault", "exit_code"}
    assert told["exit_code"] in (FAILED, USAGE)
    assert told["fault"]
    assert all(message.isprintable() for message in told["fault"])
    assert "failed at this" not in answer.decode()


@pytest.mark.parametrize("kind", NONSENSE | ORDERS)
def test_nonsense_is_told_for_what_it_is(lively: Live, asking_socket: Path, kind: str) -> None:
    """One line for each fault, on both sockets, and nothing in the log: a socket is no way to fill it."""
    before = lively.ask(do="view")
    for at in (lively.socket, asking_socket):
        assert_told(answered(at, (NONSENSE | ORDERS)[kind]))
    assert lively.ask(do="view") == before


def test_a_request_has_a_size(lively: Live, asking_socket: Path) -> None:
    """64 KiB are taken, and a byte more is told to be too much, also where no line ends."""
    request = b'{"do": "view", "x": "%s"}\n'
    fits = request % (b"x" * ((1 << 16) - len(request) + 2))
    assert len(fits) == 1 << 16
    for at in (lively.socket, asking_socket):
        assert b'"ok"' in answered(at, fits)
        for line in (fits.replace(b'x"}', b'xx"}'), b"x" * (1 << 17), b" " * (1 << 22)):
            assert b"at most 65536 bytes" in answered(at, line)


def test_a_slow_peer_is_not_waited_for(lively: Live, asking_socket: Path) -> None:
    """Who says nothing, or half, is told so when their time is over; whoever comes meanwhile is answered at once."""
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(at)) for at in (lively.socket, asking_socket) for _ in range(3)]
        for number, connection in enumerate(slow):
            connection.sendall(b'{"do": "status"'[: number % 3 * 7])
        began = time.monotonic()
        assert lively.status()["mountpoint"] == str(lively.view.point)
        assert ask(asking_socket, do="view")
        assert time.monotonic() - began < TIMEOUT
        for connection in slow:
            assert_told(connection.makefile("rb").read())


def test_a_peer_that_does_not_read_is_left(source: Path, tmp_path: Path) -> None:
    """An answer that nobody takes holds up nobody else, and ends with its connection; so does a request that is cut off.
    The mount goes on, and its log is no longer for that."""
    at = tmp_path / "ask"
    request = json.dumps({"do": "explain", "paths": ["/" + "n" * 200] * 300}).encode() + b"\n"
    with live(source, "/=ro", sabotage=asking_for(ask=str(at))) as lively:
        for place in (lively.socket, at):
            with contextlib.ExitStack() as stack:
                unread = [stack.enter_context(connected(place)) for _ in range(3)]
                for connection in unread:
                    connection.sendall(request)
                # It begins to answer, and has more to say than a socket holds.
                assert all(select.select([connection], [], [], TIMEOUT)[0] for connection in unread)
                assert lively.status()["nodes"]
                for connection in unread[1:]:
                    connection.sendall(b"more")
                with connected(place) as cut:
                    cut.sendall(b'{"do": ')
            assert lively.status()["nodes"]


def test_it_answers_while_a_session_holds_many_files_open(source: Path) -> None:
    """A thousand descriptors of the session's do not keep the person from taking away what they read."""
    for number in range(1100):
        (source / f"{number}").write_text("x")
    with live(source, "/=ro") as lively:
        with contextlib.ExitStack() as stack:
            files = []
            for number in range(1100):
                files.append(os.open(lively.view.point / f"{number}", os.O_RDONLY))
                stack.callback(os.close, files[-1])
            assert lively.status()["handles"] == 1100
            lively.revoke("/")
            assert {errno_of(os.pread, file, 1, 0) for file in files} == {"EACCES"}
        until(lambda: lively.status()["handles"] == 0, "the files to be closed")


def test_no_number_of_connections_ends_the_mount(source: Path, tmp_path: Path) -> None:
    """A program that may only ask can take neither the daemon's descriptors nor the person's way to it. Once it has left,
    the daemon has closed them all."""
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
    (source / "f").touch()
    at = tmp_path / "ask"
    with live(source, "/=ro", sabotage=limited + asking_for(ask=str(at))) as lively:
        before = sockets(lively)
        with contextlib.ExitStack() as stack:
            for _ in range(300):
                connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 0, 300_000))
                if errno_of(connection.connect, str(at)) is not None:
                    # The backlog is full and stays so: no more are taken until these have left.
                    break
            assert lively.status()["nodes"]
            assert (lively.view.point / "f").read_text() == ""
            lively.revoke("/")
            assert sockets(lively) > before
        # It takes those of the backlog one after the other.
        until(lambda: sockets(lively) <= before, "the connections to be closed")


def sockets(lively: Live) -> int:
    """How many sockets the daemon has open."""
    opened = lively.view.descriptors()
    assert opened is not None
    return sum(count for name, count in opened.items() if name.startswith("socket:"))


def test_who_asks_a_busy_daemon_waits(lively: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the daemon has no time and its backlog is full, whoever asks waits for their turn and then has their answer;
    not for ever."""
    for key, value in lively.view.person.environment.items():
        monkeypatch.setenv(key, value)
    point = HostPath(os.fsencode(lively.view.point))
    told: list[Any] = []
    waiting = threading.Thread(target=lambda: told.append(client.ask(point, {"do": "view"})))
    with contextlib.ExitStack() as stack:
        lively.view.signal(signal.SIGSTOP)
        stack.callback(lively.view.signal, signal.SIGCONT)
        before = filled(stack, lively.socket)
        waiting.start()
        with pytest.raises(TimeoutError):
            client._ask(lively.socket, {"do": "view"}, 1)
        assert not told
        lively.view.signal(signal.SIGCONT)
        for connection in before:
            connection.shutdown(socket.SHUT_WR)
            assert_told(connection.makefile("rb").read())
        waiting.join(TIMEOUT)
    assert told == [lively.ask(do="view")]


def filled(stack: contextlib.ExitStack, path: Path) -> list[socket.socket]:
    """As many connections as the backlog of a socket takes."""
    taken: list[socket.socket] = []
    while True:
        connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connection.setblocking(False)
        if errno_of(connection.connect, str(path)) == "EAGAIN":
            return taken
        connection.settimeout(TIMEOUT)
        taken.append(connection)
