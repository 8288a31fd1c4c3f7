"""Links that the owner makes while a view is open: the rule follows before anything else is answered."""

from __future__ import annotations

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio
import trio.testing

from policyfs.host import mounts
from policyfs.live import links
from policyfs.live.links import LinkWatch
from policyfs.live.policy import LivePolicy
from policyfs.opening.load import PolicyOptions, policy_for, source_of
from policyfs.opening.view import open_policy, root_of
from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, view_path
from policyfs.policy.policy import CompiledPolicy
from policyfs.source.root import Root

DENIED = "/.docker/config.json"
OPTIONS = PolicyOptions(grants=("/=stage", "/a/secret=none"), floors=("/p/.vscode/tasks.json=ro",), deny=(DENIED,))


@pytest.fixture
def source(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A tree with some directories to lead to; the home is beside it."""
    home = tmp_path.resolve() / "home"
    home.mkdir()
    monkeypatch.setenv("HOME", str(home))
    source = tmp_path.resolve() / "source"
    for name in ("w", "dot/docker", "p"):
        (source / name).mkdir(parents=True)
    return source


@pytest.fixture
def root(source: Path) -> Iterator[Root]:
    opened = root_of(source_of(str(source)))
    yield opened
    opened.close()


@pytest.fixture
def live(root: Root) -> Iterator[LivePolicy]:
    """The policy in force of a tree in which no link stands yet."""
    policy = LivePolicy(root, open_policy(root, OPTIONS), OPTIONS)
    yield policy
    policy.close()


def level(live: LivePolicy, path: str) -> Level:
    """What is answered next for a path."""
    live.catch_up()
    return live.policy.place(view_path(os.fsencode(path))).level


def test_a_rule_follows_a_link_before_the_next_answer(live: LivePolicy, source: Path) -> None:
    """Each kind of rule, as soon as the call that makes the link has returned; a link that is replaced too."""
    assert level(live, "/dot/docker/config.json") is Level.STAGE
    (source / ".docker").symlink_to("dot/docker")
    assert level(live, "/dot/docker/config.json") is Level.NONE
    (source / "a").symlink_to("w")
    assert level(live, "/w/secret/k") is Level.NONE
    (source / "p" / ".vscode").symlink_to("../w")
    assert level(live, "/w/tasks.json") is Level.RO
    (source / "new").symlink_to("dot")
    os.rename(source / "new", source / ".docker")
    assert level(live, "/dot/config.json") is Level.NONE
    assert live.epoch == 4


def test_what_was_guarded_stays_guarded(live: LivePolicy, source: Path) -> None:
    """A link that is gone, or replaced, opens nothing again before a reload."""
    (source / ".docker").symlink_to("dot/docker")
    assert level(live, "/dot/docker/config.json") is Level.NONE
    (source / ".docker").unlink()
    assert level(live, "/dot/docker/config.json") is Level.NONE
    (source / ".docker").mkdir()
    assert level(live, "/dot/docker/config.json") is Level.NONE
    assert level(live, DENIED) is Level.NONE
    trio.run(live.reload)
    assert level(live, "/dot/docker/config.json") is Level.STAGE


def test_a_way_that_comes_into_being_piece_by_piece_is_followed(live: LivePolicy, source: Path) -> None:
    """Directories that are made, moved here and filled later are watched from when they come."""
    shutil.rmtree(source / "p")
    assert level(live, "/w/tasks.json") is Level.STAGE
    (source / "elsewhere").mkdir()
    assert level(live, "/w/tasks.json") is Level.STAGE
    os.rename(source / "elsewhere", source / "p")
    assert level(live, "/w/tasks.json") is Level.STAGE
    (source / "p" / ".vscode").symlink_to("../w/vs")
    assert level(live, "/w/vs/tasks.json") is Level.RO
    (source / "w" / "vs").symlink_to("../dot")
    assert level(live, "/dot/tasks.json") is Level.RO


def test_a_directory_that_was_put_in_place_of_another_is_watched(live: LivePolicy, source: Path) -> None:
    """The old one is not, under whatever name it goes on."""
    os.rename(source / "p", source / "old")
    (source / "p").mkdir()
    assert level(live, "/w/tasks.json") is Level.STAGE
    (source / "old" / ".vscode").symlink_to("../w")
    assert level(live, "/w/tasks.json") is Level.STAGE
    (source / "p" / ".vscode").symlink_to("../w")
    assert level(live, "/w/tasks.json") is Level.RO


def test_a_link_above_the_home_or_beside_the_source_is_followed(root: Root, source: Path, tmp_path: Path) -> None:
    """A place of the home that is not in SOURCE may come to lead into it."""
    options = PolicyOptions(grants=("/=stage",))
    live = LivePolicy(root, open_policy(root, options), options)
    try:
        (tmp_path / "home" / ".config").symlink_to(source / "w")
        assert level(live, "/w/gh/hosts.yml") is Level.NONE
        assert level(live, "/w/gcloud") is Level.NONE
        assert level(live, "/w/other") is Level.STAGE
    finally:
        live.close()


def test_grants_and_revocations_keep_what_links_led_to(live: LivePolicy, source: Path) -> None:
    """A change of policy forgets no link, and what it closes itself is followed as well."""
    (source / ".docker").symlink_to("dot/docker")
    assert level(live, "/dot/docker/config.json") is Level.NONE
    (source / ".docker").unlink()
    trio.run(live.grant, view_path(b"/dot"), Level.COMMIT, None)
    assert level(live, "/dot/docker/config.json") is Level.NONE
    (source / "later").symlink_to("w")
    assert level(live, "/w/closed") is Level.STAGE
    trio.run(live.revoke, view_path(b"/later/closed"))
    assert level(live, "/w/closed") is Level.NONE


def test_what_no_rule_leads_through_changes_nothing(live: LivePolicy, source: Path) -> None:
    """Names beside the way, links elsewhere, and a directory on the way that is not a link."""
    before = live.policy
    (source / "b").symlink_to("w")
    (source / "w" / "l").symlink_to("..")
    (source / "file").write_text("x")
    (source / ".docker").mkdir()
    (source / ".docker" / "other").symlink_to("../w")
    live.catch_up()
    assert (live.policy, live.epoch) == (before, 0)


def refuses(*_: object, **__: object) -> None:
    """As inotify does where all watches or instances of a user are taken."""
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    "stand_ins",
    [
        [(links.inotify_simple, "INotify", refuses)],
        [(links.inotify_simple.INotify, "add_watch", refuses)],
        # A network file system: watched, but nothing that another machine does is told.
        [(mounts, "is_local", lambda *_: False), (links, "_EVENTS", int(links.events.DELETE_SELF))],
    ],
    ids=["no-inotify", "no-watch-left", "served"],
)
def test_a_way_is_looked_at_once_a_second_where_nothing_tells_of_changes(
    root: Root, source: Path, monkeypatch: pytest.MonkeyPatch, stand_ins: list[tuple[object, str, object]]
) -> None:
    """A look holds for a second, and no longer."""
    for owner, name, stand_in in stand_ins:
        monkeypatch.setattr(owner, name, stand_in)
    live = LivePolicy(root, open_policy(root, OPTIONS), OPTIONS)
    looked_at = links.time.monotonic()
    try:
        (source / ".docker").symlink_to("dot/docker")
        monkeypatch.setattr(links.time, "monotonic", lambda: looked_at + links.SHORT / 2)
        assert level(live, "/dot/docker/config.json") is Level.STAGE
        monkeypatch.setattr(links.time, "monotonic", lambda: looked_at + links.SHORT * 1.1)
        assert level(live, "/dot/docker/config.json") is Level.NONE
    finally:
        live.close()


def test_events_that_were_lost_are_made_up_for(live: LivePolicy, source: Path) -> None:
    """A queue that ran over says nothing of what was in it."""
    with open("/proc/sys/fs/inotify/max_queued_events", encoding="ascii") as limit:
        most = int(limit.read())
    for number in range(most + 1):
        os.close(os.open(source / f"n{number}", os.O_CREAT))
        os.unlink(source / f"n{number}")
    (source / ".docker").symlink_to("dot/docker")
    assert level(live, "/dot/docker/config.json") is Level.NONE


def test_a_link_through_the_mount_itself_is_followed(source: Path, tmp_path: Path) -> None:
    """Into SOURCE, without asking the mount: the daemon would wait for its own answer."""
    (tmp_path / "view").mkdir()
    place = source_of(str(source))
    policy = policy_for(place, OPTIONS)
    watch = LinkWatch(place, HostPath(os.fsencode(tmp_path.resolve() / "view")))
    try:
        watch.look(policy.session, policy.surroundings)
        (source / ".docker").symlink_to(tmp_path.resolve() / "view" / "dot" / "docker")
        now = watch.followed(policy)
        assert isinstance(now, CompiledPolicy)
        assert now.place(view_path(b"/dot/docker/config.json")).level is Level.NONE
    finally:
        watch.close()


def test_a_task_follows_while_nothing_is_asked(live: LivePolicy, source: Path) -> None:
    """The kernel may answer by itself: it is told, by whoever took the subscription."""
    told = trio.Event()

    async def never(_: CompiledPolicy) -> None:
        raise AssertionError("nobody changed the session")

    def take(policy: CompiledPolicy) -> None:
        assert policy.place(view_path(b"/dot/docker/config.json")).level is Level.NONE
        told.set()

    async def main() -> None:
        live.subscribe(never, take)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(live.follow_links)
            await trio.testing.wait_all_tasks_blocked()
            (source / ".docker").symlink_to("dot/docker")
            with trio.fail_after(30):
                await told.wait()
            nursery.cancel_scope.cancel()

    trio.run(main)
