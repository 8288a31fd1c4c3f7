"""The name servers of this machine, for a command that has a network of its own.

The command asks at addresses of its own loopback; what comes there is passed on to the machine's name servers, at port 53
and nowhere else, and their answers are passed back. So it does not matter where those are: on the machine's loopback
(systemd-resolved, dnsmasq), on a link with a scope (fe80::1%eth0), or behind a virtual private network. Bytes are passed
on, not read. Which servers these are is read again for each question: a laptop changes networks.

slirp4netns has a forwarder too. It asks the first server alone, and reads the machine's /etc/resolv.conf, which our
confinement of slirp4netns does not show to it.
"""

from __future__ import annotations

import select
import socket
import socketserver
import threading
from collections.abc import Iterable
from typing import Any

from policyfs.sandbox.resolv_conf import PORT, name_servers, outside

_MAX_REQUESTS = 256
"""Questions, and connections, at a time. More are dropped, as if they had been lost on the way."""
_SECONDS = 10.0
"""For an answer, or the next part of one: twice what glibc's resolver waits (RES_TIMEOUT)."""
_CHUNK = 1 << 16
_STACK = 1 << 18


class NameServer(socketserver.ThreadingMixIn, socketserver.BaseServer):
    """What listens for one name server, in the command's network namespace."""

    daemon_threads = True
    timeout = 0

    def __init__(self, number: int, listening: socket.socket, kind: type[socketserver.BaseRequestHandler]) -> None:
        """`number` is that of the machine's server. Call `handle_request` whenever `listening` can be read."""
        super().__init__(listening.getsockname(), kind)
        self.number = number
        self.socket = listening
        """The name that the base class knows it by."""
        self._room = threading.BoundedSemaphore(_MAX_REQUESTS)

    def fileno(self) -> int:
        """What is listened at."""
        return self.socket.fileno()

    def get_request(self) -> tuple[Any, Any]:
        """A datagram with the socket to answer at, or a connection, and the address of the client."""
        if self.socket.type == socket.SOCK_STREAM:
            return self.socket.accept()
        data, asker = self.socket.recvfrom(_CHUNK)
        return (data, self.socket), asker

    def process_request(self, request: Any, client_address: Any) -> None:
        """Answer it in a thread of its own, where there is room."""
        if not self._room.acquire(blocking=False):
            self.shutdown_request(request)
            return
        try:
            super().process_request(request, client_address)
        except RuntimeError:
            # No thread can be started.
            self._room.release()
            raise

    def process_request_thread(self, request: Any, client_address: Any) -> None:
        """The same, in that thread."""
        try:
            super().process_request_thread(request, client_address)
        finally:
            self._room.release()

    def close_request(self, request: Any) -> None:
        """Close a connection."""
        if isinstance(request, socket.socket):
            request.close()

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Say nothing of a server that cannot be reached or does not answer: the command learns it as on any network."""


class _Question(socketserver.BaseRequestHandler):
    """One datagram."""

    server: NameServer

    def handle(self) -> None:
        data, listening = self.request
        with _connected(self.server.number, socket.SOCK_DGRAM) as server:
            server.send(data)
            listening.sendto(server.recv(_CHUNK), self.client_address)


class _Connection(socketserver.BaseRequestHandler):
    """A long answer, or DNS over TCP."""

    server: NameServer

    def handle(self) -> None:
        with _connected(self.server.number, socket.SOCK_STREAM) as server:
            self.request.settimeout(_SECONDS)
            other = {self.request: server, server: self.request}
            still_sent = set(other)
            while still_sent and (readable := select.select(still_sent, [], [], _SECONDS)[0]):
                for end in readable:
                    data = end.recv(_CHUNK)
                    if data:
                        other[end].sendall(data)
                    else:
                        still_sent.discard(end)
                        other[end].shutdown(socket.SHUT_WR)


def _connected(number: int, kind: socket.SocketKind) -> socket.socket:
    """A socket to the machine's server of this number, in the network namespace of this thread. The kernel takes datagrams
    from nobody else. Raises OSError."""
    servers = name_servers(outside())
    flags = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV
    family, _, _, _, address = socket.getaddrinfo(servers[number % len(servers)], PORT, type=kind, flags=flags)[0]
    made = socket.socket(family, kind)
    try:
        made.settimeout(_SECONDS)
        made.connect(address)
    except BaseException:
        made.close()
        raise
    return made


def passing_on(listening: Iterable[tuple[socket.socket, socket.socket]]) -> list[NameServer]:
    """What passes on, for each server a datagram and a stream socket."""
    # It needs little of its stack, and there may be many.
    threading.stack_size(_STACK)
    return [
        NameServer(number, each, kind)
        for number, pair in enumerate(listening)
        for each, kind in zip(pair, (_Question, _Connection), strict=True)
    ]
