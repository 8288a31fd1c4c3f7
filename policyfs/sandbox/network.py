"""Which network a command has, and one of its own: what `policyfs run` does for it (rule run-8).

Theory. A network namespace of its own keeps the command from this machine's loopback, abstract sockets and names of sockets
(/proc/net/unix). slirp4netns plays a router behind it: it makes the connections that the command asks for in the machine's
network, except those that routing rules of the namespace refuse (`routing`). A process of the run, the gateway, makes all
this and keeps it up (`gateway`). The command starts once the network is ready.
"""

from __future__ import annotations

import enum
import errno
import os
import select
import shutil
import socket
from collections.abc import Callable, Sequence

from policyfs.host.errors import Exit, UserFault
from policyfs.sandbox import machine, resolv_conf
from policyfs.sandbox.gateway import LONGEST_ANSWER, Unavailable, Work
from policyfs.sandbox.layout import SystemPlace
from policyfs.sandbox.namespaces import CLONE_NEWNET, CLONE_NEWUSER, enter, own_user_namespace
from policyfs.sandbox.supervisor import Supervisor


class Network(enum.StrEnum):
    """Which network a command has."""

    INTERNET = "internet"
    """One of its own, with a way out."""
    NONE = "none"
    """One of its own, with a loopback."""
    HOST = "host"
    """This machine's."""


_WHERE = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
"""An ordinary user's PATH may lack some of these."""


def _found(program: str, package: str) -> str:
    path = shutil.which(program, path=f"{os.environ.get('PATH', '')}:{_WHERE}")
    if path is None:
        raise Unavailable(f"{program} is not installed (Debian: {package})")
    return os.path.realpath(path)


class Gateway:
    """The gateway of a run, as `policyfs run` knows it."""

    def __init__(self, supervisor: Supervisor, bubblewrap: bytes, system: Sequence[SystemPlace]) -> None:
        """Begin to make a network. `system` are the places of the system's programs. Raises `Unavailable`."""
        slirp, ip = _found("slirp4netns", "slirp4netns"), _found("ip", "iproute2")
        configuration = resolv_conf.outside()
        self.resolv_conf = resolv_conf.inside(configuration).encode()
        """The command's /etc/resolv.conf."""
        work = Work(bubblewrap, slirp, ip, system, len(resolv_conf.name_servers(configuration)))
        self._answers, answers = socket.socketpair()
        supervisor.accompany(lambda lease, log: work.run(lease, log, answers))
        answers.close()
        self._namespaces: list[int] = []

    def ready(self) -> None:
        """Wait until the network is. Raises `Unavailable`."""
        said, self._namespaces, _, _ = socket.recv_fds(self._answers, LONGEST_ANSWER, 2)
        if not self._namespaces:
            raise Unavailable(said.decode() or "the process that makes it ended, see the log")

    def enter(self) -> None:
        """Go into the network, before this process becomes bubblewrap. Raises OSError."""
        user, network = self._namespaces
        try:
            enter(CLONE_NEWNET, network)
        except OSError as error:
            if error.errno != errno.EPERM:
                raise
            # An ordinary user has the right in the user namespace that the network belongs to. Then they enter one more, in
            # which they have their own number again: bubblewrap is to have no right over this network.
            uid, gid = os.geteuid(), os.getegid()
            enter(CLONE_NEWUSER, user)
            enter(CLONE_NEWNET, network)
            own_user_namespace(uid, gid)

    def lost(self) -> str | None:
        """Why the network is down, though the run goes on; None where it is up."""
        if not select.select([self._answers], [], [], 0)[0]:
            return None
        return self._answers.recv(LONGEST_ANSWER).decode() or "the process that keeps it up ended"


def begin(asked: Network | None, supervisor: Supervisor, bubblewrap: bytes, tell: Callable[[str], None]) -> Gateway | None:
    """Begin to make a network of the command's own, where it is to have one. Where it cannot be made: None, and `tell`
    gets the reason, if nothing was `asked`. Raises `UserFault` if it was."""
    if asked not in (None, Network.INTERNET):
        return None
    try:
        return Gateway(supervisor, bubblewrap, machine.program_places())
    except Unavailable as reason:
        _unavailable(asked, reason, tell)
        return None


def ready(asked: Network | None, begun: Gateway | None, tell: Callable[[str], None]) -> Gateway | None:
    """The same, once it is ready."""
    try:
        if begun is not None:
            begun.ready()
    except Unavailable as reason:
        _unavailable(asked, reason, tell)
        return None
    return begun


def _unavailable(asked: Network | None, reason: Unavailable, tell: Callable[[str], None]) -> None:
    if asked is not None:
        raise UserFault(
            Exit.MACHINE, f"--network {asked}: {reason}. Nothing was run; --network none and --network host do without"
        )
    tell(
        "note: the command shares this machine's network, and reaches all that listens on localhost, since no network of "
        f"its own could be made: {reason}. Choose with --network none or --network host"
    )
