"""Which addresses a command with a network of its own reaches, in the words of ip(8).

slirp4netns makes, in the machine's network, whatever connection the namespace asks for. That includes the machine's own
loopback: a socket that is bound to tap0 sends to 127.0.0.1 and ::1 past the loopback of the namespace. So routing rules of
the namespace refuse such addresses. Nobody in the sandbox has the right to change them. They come after the table of local
addresses, so that the namespace's own loopback works.

Where a socket is bound to a device, and a rule refuses an IPv4 address, Linux looks for the address on the link all the
same (net/ipv4/route.c, "Apparently, routing tables are wrong"). Nobody is there: slirp4netns answers such requests (ARP) for
addresses of its own network alone.
"""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
from collections.abc import Iterable
from pathlib import Path

from policyfs.policy.paths import display
from policyfs.sandbox.namespaces import CLONE_NEWNET, enter, in_a_thread

TAP = "tap0"
"""The device that slirp4netns makes, with an address and a route of IPv4."""

NETWORK = "198.51.100.0/24"
"""TEST-NET-2 of RFC 5737, which no network should use, so it hides none. Many use slirp4netns' own 10.0.2.0/24."""

_ADDRESS_6, _ROUTER_6 = "fd00::100/64", "fd00::2"
"""slirp4netns has no option for its IPv6 network."""

_REFUSED_4 = ("127.0.0.0/8", "0.0.0.0/8", "169.254.0.0/16")
"""The machine's loopback, other names of it, and link-local addresses, at which clouds hand out credentials."""
_REFUSED_6 = ("::1", "fd00:ec2::254", "fd20:ce::254")
"""The same; the last two are Amazon's and Google's."""

_PREFERENCE = 100
"""After the rule for local addresses (0) and before the others (32766)."""

_EVERYWHERE = ["0" * 32, "00"]
_RTF_REJECT = 0x200
"""/proc/net/ipv6_route, linux/route.h."""

_RTMGRP_IPV4_IFADDR = 0x10
_RTMGRP_IPV6_IFADDR = 0x100
"""rtnetlink(7)."""
_CHUNK = 1 << 16


class NotConfigured(OSError):
    """ip(8) refused something; the text is what it said."""


class Routing:
    """The devices, addresses and routes of one namespace. What is done here raises OSError, `NotConfigured` among
    them."""

    def __init__(self, program: str, namespace: int) -> None:
        """`program` is ip(8), `namespace` the descriptor of a network namespace in which this user may do everything."""
        self._program = program
        self._namespace = namespace
        self.with_ipv6 = has_default_route(_ipv6_routes())
        """Whether the machine has a way out by IPv6, and so the command."""
        self._refused: set[str] = set()
        self._changes = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW | socket.SOCK_NONBLOCK, socket.NETLINK_ROUTE)
        # Before the addresses are asked for: none is missed.
        self._changes.bind((0, _RTMGRP_IPV4_IFADDR | _RTMGRP_IPV6_IFADDR))

    def fileno(self) -> int:
        """A descriptor that can be read when addresses of the machine have changed: then call `refuse_addresses`."""
        return self._changes.fileno()

    def begin(self) -> None:
        """Bring up the loopback, and refuse what is not to be reached."""
        self._inside("-4", ["link set lo up", *self._refuse(_REFUSED_4), *self._refuse(self._addresses("-4"))])
        if self.with_ipv6:
            self._inside("-6", [*self._refuse(_REFUSED_6), *self._refuse(self._addresses("-6"))])

    def finish(self) -> None:
        """Give the device of slirp4netns, which is there now, an address and a route of IPv6."""
        if self.with_ipv6:
            # nodad: to find out whether somebody else has the address takes a second, and nobody else is on this link.
            self._inside("-6", [f"address add {_ADDRESS_6} dev {TAP} nodad", f"route add default via {_ROUTER_6} dev {TAP}"])

    def refuse_addresses(self) -> None:
        """Refuse every address that the machine has now, and has not been refused yet."""
        # ENOBUFS: some changes were lost. It does not matter which, since all addresses are asked for.
        with contextlib.suppress(OSError):
            self._changes.recv(_CHUNK)
        for family in ("-4", "-6") if self.with_ipv6 else ("-4",):
            self._inside(family, self._refuse(self._addresses(family)))

    def _addresses(self, family: str) -> list[str]:
        said = self._run([family, "-json", "route", "show", "table", "local", "type", "local"])
        return [route["dst"] for route in json.loads(said or "[]")]

    def _refuse(self, places: Iterable[str]) -> list[str]:
        new = sorted(set(places) - self._refused)
        self._refused.update(new)
        return [f"rule add to {place} preference {_PREFERENCE} unreachable" for place in new]

    def _inside(self, family: str, lines: list[str]) -> None:
        def run() -> str:
            enter(CLONE_NEWNET, self._namespace)
            return self._run([family, "-batch", "-"], "\n".join(lines))

        if lines:
            in_a_thread(run)

    def _run(self, arguments: list[str], text: str = "") -> str:
        done = subprocess.run([self._program, *arguments], input=text.encode(), capture_output=True, env={}, check=False)
        if done.returncode != 0:
            said = (done.stderr.strip().splitlines() or [b"it said nothing"])[0]
            raise NotConfigured(f"ip could not configure it: {display(said)}")
        return done.stdout.decode()


def has_default_route(routes: str) -> bool:
    """Whether these lines of /proc/net/ipv6_route have a route to everywhere. Pure."""
    fields = (line.split() for line in routes.splitlines())
    return any(field[:2] == _EVERYWHERE and not int(field[8], 16) & _RTF_REJECT for field in fields)


def _ipv6_routes() -> str:
    try:
        return Path("/proc/net/ipv6_route").read_text()
    except FileNotFoundError:
        # A kernel without IPv6.
        return ""
