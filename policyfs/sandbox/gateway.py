"""The process that makes a network for a command, and keeps it up.

It enters a user namespace of its own and makes a network namespace that belongs to it, so it needs no right on the machine.
It stays in the machine's network namespace. There it starts slirp4netns, in a sandbox that holds the system's programs and
no other file; it passes questions on to the machine's name servers (`name_servers`); and it refuses addresses that the
machine gets later (`routing`). It ends with the lease of the run. Should any of this fail, it ends at once, and the network
with it. slirp4netns ends with the gateway, and with the lease.
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
from policyfs.sandbox.layout import SystemPlace
from policyfs.sandbox.name_servers import NameServer, passing_on
from policyfs.sandbox.namespaces import CLONE_NEWNET, enter, in_a_thread, own_user_namespace, unshare
from policyfs.sandbox.routing import NETWORK, TAP, Routing
from policyfs.sandbox.supervisor import PR_SET_CHILD_SUBREAPER, detach, end_children

_TUN = b"/dev/net/tun"
_MTU = 65520
"""As podman's. A packet costs slirp4netns the same whatever its size."""
_START_SECONDS = 10.0
LONGEST_ANSWER = 1 << 12
"""Bytes."""

_NAMESPACES = (b"--unshare-pid", b"--unshare-ipc", b"--unshare-uts", b"--unshare-cgroup-try")

_NO_ROUTERS = (("accept_ra", "0"), ("autoconf", "0"))
"""Take no address and no route that a router announces (ip-sysctl.rst of Linux): they come a second too late."""


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
            # Tried first: the error of slirp4netns says less.
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
            with contextlib.suppress(BrokenPipeError):
                answers.send(_told(error).encode(errors="replace")[:LONGEST_ANSWER])
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
        # It writes a byte when it is ready. If it ends before, its end of the pipe is closed.
        if not select.select([ready], [], [], _START_SECONDS)[0] or not os.read(ready, 1):
            slirp.kill()
            said = [line for line in os.read(complaints, LONGEST_ANSWER).splitlines() if not line.startswith(b"WARNING")]
            raise Unavailable(f"slirp4netns did not start: {display(b'; '.join(said) or b'it said nothing')}")
        os.close(ready)
        # The command can make it write more. Nobody keeps that.
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
        """Pass questions on and refuse new addresses until the lease ends. Raises `Unavailable` or OSError where that cannot
        go on."""
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


def _told(error: Exception) -> str:
    """What an error says to a person."""
    if isinstance(error, OSError) and error.strerror and error.filename:
        return f"{os.fsdecode(error.filename)}: {error.strerror}"
    return str(error)


def _make_namespace() -> int:
    """Enter a new network namespace with this thread, and give a descriptor of it. Raises OSError."""
    unshare(CLONE_NEWNET)
    for setting, value in _NO_ROUTERS:
        # A container may keep /proc/sys read-only. Then there are two routes, to the same router.
        with contextlib.suppress(OSError), open(f"/proc/sys/net/ipv6/conf/default/{setting}", "w") as file:
            file.write(value)
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def _listen(network: int, servers: int) -> list[tuple[socket.socket, socket.socket]]:
    """Enter a network namespace whose loopback is up with this thread, and listen in it for so many name servers. Raises
    OSError."""
    enter(CLONE_NEWNET, network)
    return resolv_conf.listen(servers)


def _sandbox(system: Sequence[SystemPlace]) -> list[bytes]:
    """bubblewrap's arguments for slirp4netns. Once it has begun it leaves these files behind: the root of its own sandbox
    (--enable-sandbox) has no other directories than /etc and /run."""
    made = [*_NAMESPACES, b"--as-pid-1", b"--die-with-parent", b"--new-session"]
    for place in system:
        made += (b"--symlink", place.link, place.path) if place.link is not None else (b"--ro-bind", place.path, place.path)
    for directory in (b"/etc", b"/run", b"/tmp"):
        made += (b"--dir", directory)
    made += (b"--ro-bind-try", b"/etc/ld.so.cache", b"/etc/ld.so.cache")
    return [*made, b"--proc", b"/proc", b"--dev-bind", _TUN, _TUN]
