"""A policy that is leased: nothing is answered by one that does not hold any more, whatever goes wrong in between."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from policyfs.host.errors import Exit, UserFault
from policyfs.live.followed import FollowedPolicy, open_followed
from policyfs.opening.load import PolicyOptions, source_of
from policyfs.opening.view import policy_of, root_of
from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, view_path
from policyfs.policy.values import policy_values

A = view_path(b"/a")
POINT = HostPath(b"/mnt/view")


class Daemon:
    """Leases what it is told to, and ends leases."""

    def __init__(self, source: Path) -> None:
        self.source = source
        self.fault: UserFault | None = None
        self.values: dict[str, Any] = {}
        self.ends: list[socket.socket] = []
        self.grant("/=ro")

    def grant(self, *grants: str) -> None:
        """The policy that is given from now on."""
        root = root_of(source_of(str(self.source)))
        identity = list(root.identity(root.descriptor))
        root.close()
        self.values = {
            "mount": "one",
            "source": str(self.source),
            "identity": identity,
            "named": None,
            "at": "/mnt/view",
            "beside": None,
            "options": {},
            **policy_values(policy_of(source_of(str(self.source)), PolicyOptions(grants=grants))),
        }

    def ask(self) -> tuple[dict[str, Any], socket.socket]:
        """As `client.lease`."""
        if self.fault is not None:
            raise self.fault
        mine, theirs = socket.socketpair()
        self.ends.append(mine)
        return self.values, theirs

    def end_leases(self) -> None:
        """As the daemon before it acknowledges a change, or by its own end."""
        while self.ends:
            self.ends.pop().close()


@pytest.fixture
def daemon(source: Path) -> Iterator[Daemon]:
    daemon = Daemon(source)
    yield daemon
    daemon.end_leases()


@pytest.fixture
def followed(daemon: Daemon) -> Iterator[FollowedPolicy]:
    policy, view = open_followed(POINT, daemon.ask)
    yield policy
    policy.close()
    view.close()


def level(followed: FollowedPolicy) -> Level:
    return followed.current().place(A).level


def test_a_lease_is_asked_for_once(daemon: Daemon, followed: FollowedPolicy) -> None:
    """As long as it holds the daemon is not asked again; when it has ended, the policy in force is."""
    daemon.fault = UserFault(Exit.FAILED, "asked again")
    assert [level(followed) for _ in range(3)] == [Level.RO] * 3
    daemon.fault = None
    daemon.grant("/=stage")
    assert level(followed) is Level.RO
    daemon.end_leases()
    assert level(followed) is Level.STAGE


def test_a_policy_that_could_not_be_asked_for_is_asked_for_again(daemon: Daemon, followed: FollowedPolicy) -> None:
    """Until then nothing is answered, and not by the old one."""
    daemon.end_leases()
    daemon.fault = UserFault(Exit.FAILED, "busy")
    for _ in range(2):
        with pytest.raises(OSError, match="busy") as caught:
            level(followed)
        assert caught.value.errno == errno.ENOTCONN
    daemon.fault = None
    daemon.grant("/=stage")
    assert level(followed) is Level.STAGE


@pytest.mark.parametrize("gone", ["session", "surroundings", "fold_case"])
def test_a_policy_that_cannot_be_built_is_not_replaced_by_the_old_one(
    daemon: Daemon, followed: FollowedPolicy, gone: str
) -> None:
    """The daemon answers, and what it says is no policy: nothing is answered, however often it is asked."""
    daemon.end_leases()
    del daemon.values[gone]
    for _ in range(2):
        with pytest.raises(UserFault, match="another version of policyfs"):
            level(followed)


def test_a_policy_whose_links_could_not_be_followed_is_not_taken(
    daemon: Daemon, followed: FollowedPolicy, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor is the old one, though the new lease holds."""

    def fail(*_: object) -> None:
        raise UserFault(Exit.MACHINE, "no mount table")

    daemon.grant("/=stage")
    daemon.end_leases()
    with monkeypatch.context() as patch:
        patch.setattr(followed._links, "applied", fail)
        for _ in range(2):
            with pytest.raises(UserFault, match="no mount table"):
                level(followed)
    assert level(followed) is Level.STAGE


def test_a_link_on_the_way_to_what_a_rule_names_is_followed(
    daemon: Daemon, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By this process itself, and again under the next policy."""
    home = tmp_path / "home"
    (home / ".docker").mkdir(parents=True)
    monkeypatch.setenv("HOME", str(home))
    daemon.grant("/=ro")
    policy, view = open_followed(POINT, daemon.ask)
    assert level(policy) is Level.RO
    (home / ".docker/config.json").symlink_to(daemon.source / "a")
    assert level(policy) is Level.NONE
    daemon.grant("/=stage")
    daemon.end_leases()
    assert level(policy) is Level.NONE
    policy.close()
    view.close()
