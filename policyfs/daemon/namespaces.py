"""Whether another process lives where this one does."""

from __future__ import annotations

import errno
import os
import select
import socket
from typing import Protocol

_SO_PEERPIDFD = 77
"""unix(7), Linux 6.5: a descriptor of the peer, which no reuse of its number can turn into another process."""
_NAMESPACES = ("mnt", "pid", "user")


class Peer(Protocol):
    """A connected socket, of the standard library or of trio."""

    def getsockopt(self, level: int, option: int, /) -> int:
        """getsockopt(2) of a number."""


def same_namespaces(peer: Peer, pid: int) -> bool:
    """Whether the process at the other end shares our mount, pid and user namespaces, and is still there after we looked.

    Where the kernel gives no descriptor of it, its number is all there is.
    """
    try:
        descriptor = peer.getsockopt(socket.SOL_SOCKET, _SO_PEERPIDFD)
    except OSError as error:
        # Any other failure says that the peer has ended, and its number may be somebody else's by now.
        return error.errno == errno.ENOPROTOOPT and _same(pid)
    try:
        return _same(pid) and not _ended(descriptor)
    finally:
        os.close(descriptor)


def _ended(descriptor: int) -> bool:
    """Whether the process of a pidfd has ended: then what was looked at may have been somebody else. Polled, since
    select(2) cannot take the numbers that descriptors have where a session holds a thousand files open."""
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    return bool(poll.poll(0))


def _same(pid: int) -> bool:
    try:
        return all(
            os.stat(f"/proc/{pid}/ns/{kind}").st_ino == os.stat(f"/proc/self/ns/{kind}").st_ino for kind in _NAMESPACES
        )
    except OSError:
        return False
