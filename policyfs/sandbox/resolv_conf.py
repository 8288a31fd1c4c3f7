"""resolv.conf(5): the machine's, and the one of a command that has a network of its own."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from policyfs.policy.paths import HostPath

RESOLV_CONF = HostPath(b"/etc/resolv.conf")

PORT = 53
"""DNS, of datagrams and of streams."""

LISTENING = ("127.0.0.53", "127.0.0.54", "127.0.0.55")
"""Where the command asks, of as many as there are servers. The first is where systemd-resolved is asked."""

_MAX_SERVERS = len(LISTENING)
"""MAXNS of glibc's resolver."""

_BACKLOG = 16


def name_servers(configuration: str) -> list[str]:
    """The addresses that resolv.conf(5) names, as glibc takes them: three at most, and the machine itself if there is
    none. Pure."""
    words = (line.split() for line in configuration.splitlines())
    found = [word[1] for word in words if len(word) > 1 and word[0] == "nameserver"]
    return found[:_MAX_SERVERS] or ["127.0.0.1"]


def inside(configuration: str) -> str:
    """The resolv.conf(5) of the command: the machine's, with the addresses that are listened at. Pure."""
    kept = [line for line in configuration.splitlines() if line.split()[:1] in (["search"], ["domain"], ["options"])]
    listening = [f"nameserver {address}" for address, _ in zip(LISTENING, name_servers(configuration), strict=False)]
    return "".join(f"{line}\n" for line in (*listening, *kept))


def outside() -> str:
    """The machine's resolv.conf(5) as it is now; empty where there is none, which means its own loopback."""
    try:
        return Path(os.fsdecode(RESOLV_CONF)).read_text(errors="replace")
    except OSError:
        return ""


def listen(count: int) -> list[tuple[socket.socket, socket.socket]]:
    """A datagram and a stream socket for each of so many servers, in the network namespace of this thread. Raises
    OSError."""
    made = []
    for address in LISTENING[:count]:
        datagrams = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        streams = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        for each in (datagrams, streams):
            each.setblocking(False)
            each.bind((address, PORT))
        streams.listen(_BACKLOG)
        made.append((datagrams, streams))
    return made
