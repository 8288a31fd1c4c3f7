"""The policy in force: what a view was opened with, and what was granted, revoked or reloaded since.

Theory. A change builds a new policy whole; an error in it changes nothing. Then the new policy is in force, and each
subscriber takes it over in turn: the mount, which makes the kernel forget what was revoked, and whatever else answers by
this policy. Only when all of them have taken it is the change acknowledged. So nothing answers by the old policy once
`grant`, `revoke` or `reload` has returned. One change happens at a time.

The owner changes it too, by a link on the way to what a rule names (`live.links`). Such a change is taken over at once, in
the middle of a request, and nobody waits for an acknowledgement.
"""

from __future__ import annotations

import dataclasses
import logging
import math
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass

import trio

from policyfs.host.errors import Exit, UserFault
from policyfs.live.links import LinkWatch
from policyfs.opening.load import PolicyOptions
from policyfs.opening.view import open_policy
from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, ViewPath, display
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.session import Session, SessionFaults
from policyfs.policy.tree import ConflictingRules
from policyfs.source.root import Root

log = logging.getLogger("policyfs")


MAX_WAIT = 1.0
"""Seconds between two looks at the clock while a grant is to end: how much later than said it may end after a suspend."""

Subscriber = Callable[[CompiledPolicy], Awaitable[None]]
"""Takes a policy over: when it returns, nothing of it answers by the old one."""

SubscriberAtOnce = Callable[[CompiledPolicy], None]
"""The same without waiting: no request that comes later is answered by the old one."""


def no_record(what: str, **fields: str) -> None:
    """Where no journal is kept."""


@dataclass(frozen=True, slots=True)
class LiveGrant:
    """A grant given while the mount runs; `until` is a time of `now`, None for as long as the mount lasts."""

    level: Level
    until: float | None

    @property
    def left(self) -> float | None:
        """The seconds that are left of it, None where it has no end."""
        return None if self.until is None else max(0.0, self.until - now())


def now() -> float:
    """Seconds on a clock that goes on while the machine sleeps and that nobody can set: a grant for ten minutes is over
    after ten minutes."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class LivePolicy:
    """The policy in force over one source, and every way to change it, each all or nothing. Granting and revoking read no
    file: in force is what was read whole, whatever happened to the file since."""

    def __init__(
        self,
        root: Root,
        policy: CompiledPolicy,
        options: PolicyOptions,
        *,
        record: Callable[..., None] = no_record,
        at: HostPath | None = None,
    ) -> None:
        """`policy` is that of `options` on `root`. `record` takes each change as an event with its fields. `at` is where the
        view is mounted."""
        self._root = root
        self._session = policy.session
        self._fold_case = policy.fold_case
        self._record = record
        self._subscribers: list[tuple[Subscriber, SubscriberAtOnce]] = []
        self._links = LinkWatch(root.source, at)
        self.policy = self._links.applied(policy)
        """In force now."""
        self._surroundings = self.policy.surroundings
        """As they are now: with every place that a link has led to since the session was read."""
        self.epoch = 0
        """How often it has changed."""
        self.options = options.unread()
        """What the next reload reads, or the last one read."""
        self.grants: dict[ViewPath, LiveGrant] = {}
        self.closed: frozenset[ViewPath] = frozenset()
        """Revoked where there was no live grant: closed as long as the view lasts, except while a live grant opens it."""
        self._grants_changed = trio.Event()
        self._one_at_a_time = trio.Lock()
        """Held from reading what is in force until the change is acknowledged: two changes at once would undo each other."""
        self._one_reload = trio.Lock()
        """Held while a session is read, too, so that the one that was asked for last is in force at last."""

    def subscribe(self, subscriber: Subscriber, at_once: SubscriberAtOnce) -> None:
        """Call `subscriber` with every later policy before its change is acknowledged, or `at_once` for a change that the
        owner's links make."""
        self._subscribers.append((subscriber, at_once))

    def close(self) -> None:
        """Watch no link any more."""
        self._links.close()

    def catch_up(self) -> None:
        """Follow the links that the owner has made since the last call. To be called before anything is answered."""
        if not self._links.may_have_changed():
            return
        policy = self._links.followed(self.policy)
        if policy is not None:
            self._surroundings = policy.surroundings
            self.policy, self.epoch = policy, self.epoch + 1
            for _, take_at_once in self._subscribers:
                take_at_once(policy)

    async def follow_links(self) -> None:
        """Catch up also while nothing is asked: the kernel may answer by itself. Runs until cancelled."""
        descriptor = self._links.fileno()
        while descriptor is not None:
            await trio.lowlevel.wait_readable(descriptor)
            self.catch_up()

    async def reload(self, session_file: str | None = None) -> None:
        """Read the session again, or another session file. Grants given live stay. Raises `UserFault`."""
        async with self._one_reload:
            options = self.options
            if session_file is not None:
                options = dataclasses.replace(options, session_file=session_file)
            # In a thread: a place that the rules name may lie below the mountpoint, and then this very view is asked for it,
            # or behind a server that does not answer. What was granted ends in its time meanwhile, and can be revoked.
            base = await trio.to_thread.run_sync(open_policy, self._root, options, abandon_on_cancel=True)
            async with self._one_at_a_time:
                if base.fold_case != self._fold_case:
                    raise UserFault(Exit.PLACE, "SOURCE has begun or ceased to fold case; mount it again")
                await self._go_to(base.session, base.surroundings, self.grants, self.closed, options)
                self._record("reload", session_file=options.session_file or "command line")

    async def grant(self, path: ViewPath, level: Level, seconds: float | None) -> None:
        """Open a path at a level, for so long. Floors and the denylist hold all the same. Raises `UserFault`."""
        async with self._one_at_a_time:
            until = None if seconds is None else now() + seconds
            grants = {**self.grants, path: LiveGrant(level, until)}
            await self._go_to(self._session, self._surroundings, grants, self.closed, self.options)
            lasts = {} if seconds is None else {"seconds": f"{seconds:.10g}"}
            self._record("grant", path=_text(path), level=str(level), **lasts)

    async def revoke(self, path: ViewPath) -> None:
        """End a grant that was given live; where there is none, close the path. Raises `UserFault`."""
        async with self._one_at_a_time:
            grants = dict(self.grants)
            ended = grants.pop(path, None)
            closed = self.closed if ended else self.closed | {path}
            await self._go_to(self._session, self._surroundings, grants, closed, self.options)
            self._record("revoke", path=_text(path))

    async def expire(self) -> None:
        """End each grant when its time is over. Runs until cancelled."""
        while True:
            self._grants_changed = trio.Event()
            ends = [grant.until for grant in self.grants.values() if grant.until is not None]
            # trio's clock stands still while the machine sleeps, and `now` does not: so look again now and then.
            wait = min(max(0.0, min(ends) - now()), MAX_WAIT) if ends else math.inf
            with trio.move_on_after(wait):
                await self._grants_changed.wait()
                continue
            async with self._one_at_a_time:
                left = {path: grant for path, grant in self.grants.items() if grant.until is None or grant.until > now()}
                over = [path for path in self.grants if path not in left]
                if over:
                    await self._go_to(self._session, self._surroundings, left, self.closed, self.options)
                    for path in over:
                        self._record("expire", path=_text(path))
                    log.info("the time of %s is over", ", ".join(display(path) for path in over))

    def shut(self) -> list[ViewPath]:
        """What is at none by what was granted and revoked live."""
        return sorted(
            {path for path in self.closed if path not in self.grants}
            | {path for path, grant in self.grants.items() if grant.level is Level.NONE}
        )

    async def _go_to(
        self,
        session: Session,
        surroundings: Surroundings,
        grants: dict[ViewPath, LiveGrant],
        closed: frozenset[ViewPath],
        options: PolicyOptions,
    ) -> None:
        levels = dict.fromkeys(closed, Level.NONE) | {path: grant.level for path, grant in grants.items()}
        changed = session.with_options(levels)
        surroundings = self._links.look(changed, surroundings)
        try:
            policy = CompiledPolicy(changed, surroundings, fold_case=self._fold_case)
        except (SessionFaults, ConflictingRules) as error:
            raise UserFault(Exit.POLICY, f"this does not go with the session: {error}") from None
        # From here on the new policy is in force, even if a subscriber fails.
        self._session, self._surroundings = session, surroundings
        self.grants, self.closed, self.options = grants, closed, options
        self.policy, self.epoch = policy, self.epoch + 1
        self._grants_changed.set()
        for subscriber, _ in self._subscribers:
            # The one in force: the owner may have made another link meanwhile.
            await subscriber(self.policy)


def _text(path: ViewPath) -> str:
    return path.decode("utf-8", "surrogateescape")
