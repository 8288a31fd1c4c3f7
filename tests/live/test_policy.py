"""The policy in force: each change whole, taken over by every subscriber before it is acknowledged."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from policyfs.host import mounts
from policyfs.host.errors import UserFault
from policyfs.live.policy import LivePolicy
from policyfs.opening.load import PolicyOptions, source_of
from policyfs.opening.view import open_policy, root_of
from policyfs.policy.levels import Level
from policyfs.policy.paths import view_path
from policyfs.policy.policy import CompiledPolicy
from policyfs.source.root import Root

A = view_path(b"/a")


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Root]:
    """An empty source."""
    source = tmp_path / "source"
    source.mkdir()
    opened = root_of(source_of(str(source)))
    yield opened
    opened.close()


@pytest.fixture
def session(tmp_path: Path) -> Path:
    """A session file that opens all."""
    file = tmp_path / "session.toml"
    file.write_text('[grants]\n"/" = "ro"\n')
    return file


Live = tuple[LivePolicy, list[tuple[str, dict[str, str]]]]


@pytest.fixture
def live(root: Root, session: Path) -> Iterator[Live]:
    """A policy in force, and the events that it records."""
    events: list[tuple[str, dict[str, str]]] = []
    options = PolicyOptions(session_file=str(session))

    def record(what: str, **fields: str) -> None:
        events.append((what, fields))

    policy = LivePolicy(root, open_policy(root, options), options, record=record)
    yield policy, events
    policy.close()


def not_at_once(_: CompiledPolicy) -> None:
    raise AssertionError("no link was made")


def run(main: Callable[[], Awaitable[None]]) -> None:
    """In a clock that jumps ahead while everybody waits."""
    trio.run(main, clock=trio.testing.MockClock(autojump_threshold=0))


def test_every_subscriber_has_taken_a_change_over_when_it_returns(live: Live) -> None:
    """Each gets every policy once, in the order of the changes; the second only after the first has it."""
    policy, _ = live
    taken: list[tuple[str, Level]] = []

    def subscriber(name: str) -> Callable[[CompiledPolicy], Awaitable[None]]:
        async def take(new: CompiledPolicy) -> None:
            await trio.sleep(1)
            taken.append((name, new.place(A).level))

        return take

    async def main() -> None:
        policy.subscribe(subscriber("one"), not_at_once)
        policy.subscribe(subscriber("other"), not_at_once)
        await policy.grant(A, Level.STAGE, None)
        assert taken == [("one", Level.STAGE), ("other", Level.STAGE)]
        await policy.revoke(A)
        assert taken[2:] == [("one", Level.RO), ("other", Level.RO)]
        await policy.revoke(A)
        assert taken[4:] == [("one", Level.NONE), ("other", Level.NONE)]
        assert policy.epoch == 3

    run(main)


def test_an_error_changes_nothing(live: Live, session: Path) -> None:
    """A session file that cannot be read leaves what is in force, and no subscriber hears of it."""
    policy, events = live

    async def refuse(_: CompiledPolicy) -> None:
        raise AssertionError("nothing was to change")

    async def main() -> None:
        policy.subscribe(refuse, not_at_once)
        session.write_text("[grants]\n/ = rw\n")
        with pytest.raises(UserFault):
            await policy.reload()

    before = policy.policy
    run(main)
    assert (policy.policy, policy.epoch, events) == (before, 0, [])


def test_what_was_granted_live_outlives_a_reload(live: Live, session: Path) -> None:
    """The session is read again; grants and revocations that were given meanwhile stay in force over it."""
    policy, events = live

    async def main() -> None:
        await policy.grant(A, Level.COMMIT, None)
        session.write_text('[grants]\n"/b" = "ro"\n')
        await policy.reload()

    run(main)
    levels = {path: policy.policy.place(view_path(path)).level for path in (b"/a", b"/b", b"/c")}
    assert levels == {b"/a": Level.COMMIT, b"/b": Level.RO, b"/c": Level.NONE}
    assert [what for what, _ in events] == ["grant", "reload"]


def test_changes_at_once_come_one_after_the_other(live: Live) -> None:
    """No change undoes another that was made at the same time."""
    policy, _ = live
    at_work = 0

    async def take(_: CompiledPolicy) -> None:
        nonlocal at_work
        at_work += 1
        assert at_work == 1
        await trio.sleep(1)
        at_work -= 1

    async def main() -> None:
        policy.subscribe(take, not_at_once)
        async with trio.open_nursery() as nursery:
            for number in range(5):
                nursery.start_soon(policy.grant, view_path(b"/%d" % number), Level.STAGE, None)

    run(main)
    assert [policy.policy.place(view_path(b"/%d" % number)).level for number in range(5)] == [Level.STAGE] * 5


def test_a_reload_reads_what_was_read_before_anew(root: Root, session: Path) -> None:
    """What a command had read of the session holds when the view is opened, and not for a reload."""
    options = PolicyOptions(session_file=str(session)).read(mounts.mounts())
    session.write_text('[grants]\n"/" = "stage"\n')
    live = LivePolicy(root, open_policy(root, options), options)
    try:
        assert live.policy.place(A).level is Level.RO
        trio.run(live.reload)
        assert live.policy.place(A).level is Level.STAGE
    finally:
        live.close()
