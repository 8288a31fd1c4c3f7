"""The policy that a view without a mount answers by: one of its own, or the one in force in a mount (rule live-4).

Theory. A mount gives its policy as a lease: an answer that holds as long as the connection it came by is open at the other
end (`daemon.control`). The daemon closes it before it acknowledges a change, and the kernel closes it where the daemon ends,
however it ends. So one poll(2) before each use tells whether the policy still holds, also in a process that was stopped
meanwhile or forked. Where it does not hold, the policy in force is asked for; where nobody can be asked, nothing is allowed.

Both kinds follow the links that the owner makes (`live.links`).
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import select
import socket
from collections.abc import Callable
from typing import Any

from policyfs.host.errors import Exit, UserFault
from policyfs.live.links import LinkWatch
from policyfs.opening.load import PolicyOptions
from policyfs.opening.view import root_of
from policyfs.policy.paths import HostPath, display
from policyfs.policy.policy import CompiledPolicy
from policyfs.policy.values import policy_from
from policyfs.source.root import Root
from policyfs.view.monitor import ReferenceMonitor

log = logging.getLogger("policyfs")

AskLease = Callable[[], tuple[dict[str, Any], socket.socket]]
"""Gives the values of a lease and its connection. Raises `UserFault`."""


class OwnPolicy:
    """A policy that nothing changes but the owner's links."""

    def __init__(self, policy: CompiledPolicy, links: LinkWatch) -> None:
        """`links` is closed with this."""
        self._links = links
        self._policy = links.applied(policy)

    def close(self) -> None:
        """Follow nothing any more."""
        self._links.close()

    def current(self) -> CompiledPolicy:
        """What holds now. One thread at a time may ask."""
        if self._links.may_have_changed():
            self._policy = self._links.followed(self._policy) or self._policy
        return self._policy


class Lease:
    """The policy of one mount as its daemon last gave it."""

    def __init__(self, point: HostPath, ask: AskLease) -> None:
        """`ask` leases the policy of the mount at `point`. Raises `UserFault`."""
        self._point = point
        self._ask = ask
        self.values, self._connection = ask()
        """What the mount says of itself and its policy, as `daemon.control` puts it."""
        self._poll = select.poll()
        self._poll.register(self._connection, 0)

    def close(self) -> None:
        """Give it back."""
        self._connection.close()

    @property
    def holds(self) -> bool:
        """Whether the policy is still in force: whether its connection is open at the other end."""
        return not self._poll.poll(0)

    @property
    def at(self) -> HostPath:
        """Where the session sees the view."""
        return _place(self.values["at"])

    @property
    def options(self) -> PolicyOptions:
        """The options that the policy was read by, the last time that it was."""
        return PolicyOptions.from_values(self.values["options"])

    def opened(self) -> Root:
        """SOURCE, the same directory as the mount's. Raises `UserFault`."""
        root = root_of(_place(self.values["source"]))
        if list(root.identity(root.descriptor)) != self.values["identity"]:
            root.close()
            text = "is another directory than when it was mounted"
            raise UserFault(Exit.PLACE, f"{display(root.source)} {text}; unmount {display(self._point)} and mount it again")
        return root

    @property
    def policy(self) -> CompiledPolicy:
        """The policy of these values. Raises `UserFault` for a daemon of another version of policyfs."""
        return self._policy_of(self.values)

    def renewed(self) -> CompiledPolicy:
        """Ask for the policy in force now. Raises `OSError` with ENOTCONN where the mount is gone, and so does every later
        call: another mount at the same place is not meant."""
        try:
            values, connection = self._ask()
        except UserFault as fault:
            raise OSError(errno.ENOTCONN, f"the policy of the mount cannot be known: {fault}") from None
        try:
            if values["mount"] != self.values["mount"]:
                text = "the mount that this view follows has ended, and another took its place; open a new View"
                raise OSError(errno.ENOTCONN, f"{display(self._point)}: {text}")
            policy = self._policy_of(values)
        except BaseException:
            connection.close()
            raise
        self._poll.unregister(self._connection)
        self._connection.close()
        self.values, self._connection = values, connection
        self._poll.register(connection, 0)
        return policy

    def _policy_of(self, values: dict[str, Any]) -> CompiledPolicy:
        try:
            return policy_from(values)
        except (KeyError, TypeError, ValueError) as error:
            log.info("the policy of %s: %s", display(self._point), error)
            text = "is mounted by another version of policyfs; unmount it and mount it again"
            raise UserFault(Exit.FAILED, f"{display(self._point)} {text}") from None


class FollowedPolicy(OwnPolicy):
    """The policy in force in a mount, with the owner's links as this process sees them."""

    def __init__(self, lease: Lease, links: LinkWatch) -> None:
        """Both are closed with this. Raises `UserFault`."""
        self._lease = lease
        self._known = True
        """Whether the last change was taken over whole."""
        super().__init__(lease.policy, links)

    def close(self) -> None:
        """Follow the mount no more."""
        super().close()
        self._lease.close()

    def current(self) -> CompiledPolicy:
        """What holds now. One thread at a time may ask. Raises `OSError` with ENOTCONN where that cannot be known."""
        while not (self._known and self._lease.holds):
            self._known = False
            self._policy = self._links.applied(self._lease.renewed())
            self._known = True
        return super().current()

    @property
    def options(self) -> PolicyOptions:
        """The options that the policy in force was read by."""
        return self._lease.options


def open_followed(point: HostPath, ask: AskLease) -> tuple[FollowedPolicy, ReferenceMonitor]:
    """A view of what is mounted at `point` under the policy in force there, which `ask` leases. Before each use of the view
    its user asks for the policy. Both are to be closed. Raises `UserFault`."""
    with contextlib.ExitStack() as on_failure:
        lease = Lease(point, ask)
        on_failure.callback(lease.close)
        root = lease.opened()
        on_failure.callback(root.close)
        links = LinkWatch(root.source, lease.at)
        on_failure.callback(links.close)
        followed = FollowedPolicy(lease, links)
        values = lease.values
        view = ReferenceMonitor(
            root,
            followed.current(),
            named=root.source if values["named"] is None else _place(values["named"]),
            at=lease.at,
            beside=None if values["beside"] is None else [_place(place) for place in values["beside"]],
        )
        on_failure.pop_all()
    return followed, view


def _place(text: str) -> HostPath:
    return HostPath(os.fsencode(text))
