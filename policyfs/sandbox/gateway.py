"""The process that makes a network for a command, and keeps it up.

It goes into a user namespace of its own, and makes a network namespace that belongs to that: so it takes no right of the
machine. It stays in the machine's network namespace itself, where it starts slirp4netns, in a sandbox without a file of
the machine's; passes questions on to the machine's name servers (`name_servers`); and refuses addresses that the machine
gets later (`routing`). It ends with the lease of the run, or when any of this fails: then there is no network any more.
slirp4netns ends with it, and with the lease.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass

from policyfs.host.harden import prctl
from policyfs.policy.paths import display
from policyfs.sandbox import confine, resolv_conf
from policyfs.sandbox.keeper import PR_SET_CHILD_SUBREAPER, detach, end_children
from policyfs.sandbox.layout import SystemPlace
from policyfs.sandbox.name_servers import NameServer, passing_on
from policyfs.sandbox.namespaces import CLONE_NEWNET, enter, in_a_thread, own_user_namespace, unshare
from policyfs.sandbox.routing import NETWORK, TAP, Routing

_TUN = b"/dev/net/tun"
_MTU = 65520
"""podman's, and almost the largest there is: each packet costs as much as any other."""
_START_SECONDS = 10.0
LONGEST_ANSWER = 1 << 12
"""Bytes."""

_NAMESPACES = (b"--unshare-pid", b"--unshare-ipc", b"--unshare-uts", b"--unshare-cgroup-try")

_NO_ROUTERS = (("accept_ra", "0"), ("autoconf", "0"))
"""No address or route that a router announces: Linux' ip-sysctl.rst. They would come a second after the command."""


class Unavailable(Exception):
    """This machine makes no such network; the text says why."""


@dataclass(frozen=True, slots=True)
class Work:
    """What the process needs to know."""

    bubblewrap: bytes
    slirp: str
    ip: str
    system: Sequence[SystemPlace]
    """What slirp4netns needs to be executed."""
    servers: int
    """How many name servers there are."""

    def run(self, lease: int, log: int, answers: socket.socket) -> bool:
        """Make the network, answer with its user and network namespaces, or with what is wrong, and keep it up until the
        lease ends."""
        try:
            # Asked for itself, since slirp4netns does not tell it well.
            os.close(os.open(_TUN, os.O_RDWR | os.O_CLOEXEC))
            own_user_namespace(0, 0)
            detach({lease, answers.fileno()}, log)
            prctl(PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")
            network = in_a_thread(_make_namespace)
            routing = Routing(self.ip, network)
            routing.begin()
            listening = in_a_thread(lambda: _listen(network, self.servers))
            slirp = self._start_slirp(network, lease, with_ipv6=routing.with_ipv6)
            routing.finish()
            user = os.open("/proc/self/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            socket.send_fds(answers, [b"ready"], [user, network])
            self._keep_up(lease, slirp, routing, passing_on(listening))
        except (Unavailable, OSError, subprocess.SubprocessError) as error:
            answers.send(str(error).encode(errors="replace")[:LONGEST_ANSWER])
            return False
        finally:
            end_children(None)
        return True

    def _start_slirp(self, network: int, lease: int, *, with_ipv6: bool) -> subprocess.Popen[bytes]:
        """Start slirp4netns and wait until it is ready. Raises `Unavailable` or OSError."""
        ready, tell = os.pipe()
        complaints, complain = os.pipe()
        slirp = subprocess.Popen(
            [self.bubblewrap, *_sandbox(self.system), b"--", *self._command(network, tell, lease, with_ipv6=with_ipv6)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=complain,
            env={},
            cwd="/",
            pass_fds=(network, tell, lease),
            preexec_fn=self._confine,
        )
        os.close(tell)
        os.close(complain)
        # It says so, or ends, and with it its end of the pipe.
        if not select.select([ready], [], [], _START_SECONDS)[0] or not os.read(ready, 1):
            slirp.kill()
            said = [line for line in os.read(complaints, LONGEST_ANSWER).splitlines() if not line.startswith(b"WARNING")]
            raise Unavailable(f"slirp4netns did not start: {display(b'; '.join(said) or b'it said nothing')}")
        os.close(ready)
        # What it says later, at the command's wish, goes nowhere.
        os.close(complaints)
        return slirp

    def _command(self, network: int, ready: int, lease: int, *, with_ipv6: bool) -> list[str]:
        return [
            *(self.slirp, "--configure", f"--mtu={_MTU}", f"--cidr={NETWORK}"),
            *("--disable-host-loopback", "--disable-dns", "--enable-sandbox", "--enable-seccomp"),
            *(["--enable-ipv6"] if with_ipv6 else []),
            *(f"--ready-fd={ready}", f"--exit-fd={lease}", "--netns-type=path", f"/proc/self/fd/{network}", TAP),
        ]

    def _confine(self) -> None:
        confine.leave_session_keyring()
        if confine.abstract_sockets_can_be_closed(self.bubblewrap):
            confine.close_abstract_sockets()

    def _keep_up(self, lease: int, slirp: subprocess.Popen[bytes], routing: Routing, servers: list[NameServer]) -> None:
        """Pass on what is for the name servers, and refuse what addresses come, until the lease ends. Raises `Unavailable`
        or OSError where that cannot go on."""
        by_descriptor = {server.fileno(): server for server in servers}
        process = os.pidfd_open(slirp.pid)
        waiting = select.poll()
        for descriptor in (lease, process, routing.fileno(), *by_descriptor):
            waiting.register(descriptor, select.POLLIN)
        while True:
            happened = {descriptor for descriptor, _ in waiting.poll()}
            if lease in happened:
                return
            if process in happened:
                raise Unavailable("slirp4netns ended")
            if routing.fileno() in happened:
                routing.refuse_addresses()
            for descriptor in happened & by_descriptor.keys():
                by_descriptor[descriptor].handle_request()


def _make_namespace() -> int:
    """A network namespace, which is this thread's, as a descriptor. Raises OSError."""
    unshare(CLONE_NEWNET)
    for setting, value in _NO_ROUTERS:
        # Not where a container keeps /proc/sys read-only. Then there are two routes, to the same router.
        with contextlib.suppress(OSError), open(f"/proc/sys/net/ipv6/conf/default/{setting}", "w") as file:
            file.write(value)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _listen(network: int, servers: int) -> list[tuple[socket.socket, socket.socket]]:
    """What listens in a network namespace whose loopback is up, in which this thread then is, for so many name servers.
    Raises OSError."""
    enter(CLONE_NEWNET, network)
    return resolv_conf.listen(servers)


def _sandbox(system: Sequence[SystemPlace]) -> list[bytes]:
    """bubblewrap's arguments for slirp4netns, which leaves this for a directory with an empty /etc and /run as soon as it
    has begun (--enable-sandbox)."""
    made = [*_NAMESPACES, b"--as-pid-1", b"--die-with-parent", b"--new-session"]
    for place in system:
        made += (b"--symlink", place.link, place.path) if place.link is not None else (b"--ro-bind", place.path, place.path)
    for directory in (b"/etc", b"/run", b"/tmp"):
        made += (b"--dir", directory)
    made += (b"--ro-bind-try", b"/etc/ld.so.cache", b"/etc/ld.so.cache")
    return [*made, b"--proc", b"/proc", b"--dev-bind", _TUN, _TUN]
