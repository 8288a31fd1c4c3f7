"""The state machine of what the kernel was told: every pair of a state and an event, read from the table that opens it."""

from __future__ import annotations

import stat
from collections.abc import Callable, Iterator

import pytest

from policyfs.fuse import kernel_cache
from policyfs.fuse.kernel_cache import CachedDirectory, CachedInode, Reply, Stale, State, reply_for, this_minute
from policyfs.fuse.names import Names
from policyfs.policy.paths import Name
from policyfs.source.tree import Identity
from policyfs.view.attributes import Attributes

TOLD_CTIME, OTHER_CTIME, SIZE = 1_000_000, 2_000_000, 10


def attributes(ctime: int = TOLD_CTIME, size: int = SIZE, mode: int = stat.S_IFREG | 0o644) -> Attributes:
    """An object as SOURCE has it."""
    return Attributes(Identity(0, 1, 2), mode, 1, 0, 0, 0, size, 8, 0, 5, ctime, 4096)


def reply(ctime: int = TOLD_CTIME, *, watched: bool = True, size: int = SIZE) -> Reply:
    """A reply that tells an old change, so that the kernel may keep it."""
    return reply_for(attributes(ctime, size), 2, 0, name_watched=watched, attributes_watched=watched)


def in_state(state: State) -> CachedInode:
    """An inode in a state, whose pages are true."""
    inode = CachedInode()
    if state is not State.FORGOTTEN:
        inode.told(reply(watched=state is not State.TOLD))
    if state is State.SUSPECTED:
        inode.suspect()
    assert (inode.state, inode.pages_suspect) == (state, False)
    return inode


EVENTS: dict[str, Callable[[CachedInode], object]] = {
    "told, watched": lambda inode: inode.told(reply()),
    "told, not watched": lambda inode: inode.told(reply(watched=False)),
    "told with another ctime than before": lambda inode: inode.told(reply(OTHER_CTIME)),
    "suspected": lambda inode: inode.suspect(),
    "compared, as told": lambda inode: inode.compare(attributes()),
    "compared, changed by somebody else": lambda inode: inode.compare(attributes(OTHER_CTIME)),
    "compared, out of reach": lambda inode: inode.out_of_reach(),
    "written by the session": lambda inode: inode.written(OTHER_CTIME, SIZE + 1),
    "changed by the session, a reply follows": lambda inode: inode.changed_by_session(TOLD_CTIME),
    "the same, after somebody else changed it": lambda inode: inode.changed_by_session(OTHER_CTIME),
    "changed by the session, no reply follows": lambda inode: inode.changed_without_reply(lambda: attributes(OTHER_CTIME)),
    "entries changed by the session": lambda inode: inode.entries_changed(),
    "name removed by the session": lambda inode: inode.name_removed(),
    "policy changed": lambda inode: inode.policy_changed(),
    "opened": lambda inode: inode.opened(),
}


def table(first: str) -> Iterator[tuple[str, list[str], list[str]]]:
    """The rows of a table of the module: the event, the names of the columns, and the cells."""
    assert kernel_cache.__doc__
    columns: list[str] = []
    for line in kernel_cache.__doc__.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []
        if not cells:
            columns = []
        elif cells[:2] == ["event", first]:
            columns = cells[1:]
        elif columns and not cells[0].startswith("-"):
            yield cells[0], columns, cells[1:]


INODE_ROWS = list(table("FORGOTTEN"))
INODE_CASES = [
    (event, State[state], State[after], pages)
    for event, columns, cells in INODE_ROWS
    for state, after, pages in zip(columns[:-1], cells[:-1], cells[-1:] * len(cells), strict=False)
]


def test_the_table_has_every_event_and_every_state() -> None:
    """No event and no state is left out of the table, nor any method of the class that changes something."""
    assert [event for event, _, _ in INODE_ROWS] == list(EVENTS)
    assert {tuple(columns) for _, columns, _ in INODE_ROWS} == {(*State.__members__, "pages")}
    facts = {"state", "pages_suspect", "size", "nlookup", "answer", "last_told", "may_be_pushed"}
    changes = {name for name in vars(CachedInode) if not name.startswith("_")} - facts
    played = {name for event in EVENTS.values() for name in event.__code__.co_names}
    # A truncation is a write, but for the size; the others do not touch the state (below).
    assert changes - played == {"truncated", "remember", "forget", "pushed"}


@pytest.mark.parametrize(("event", "state", "after", "pages"), INODE_CASES)
@pytest.mark.parametrize("suspect", [False, True], ids=["pages true", "pages suspect"])
def test_every_event_in_every_state(event: str, state: State, after: State, pages: str, suspect: bool) -> None:
    """An event leads to the state that the table gives, and makes of the pages what the table says."""
    inode = in_state(state)
    if suspect:
        inode = CachedInode()
        inode.name_removed()
        if state is not State.FORGOTTEN:
            inode.told(reply(watched=state is not State.TOLD))
        if state is State.SUSPECTED:
            inode.suspect()
        assert (inode.state, inode.pages_suspect) == (state, True)
    EVENTS[event](inode)
    assert inode.state is after
    unknown_before = state is State.FORGOTTEN and event in (
        "told with another ctime than before",
        "compared, changed by somebody else",
    )
    becomes = "-" if unknown_before else pages
    assert inode.pages_suspect is {"-": suspect, "suspect": True, "true": False}[becomes]


@pytest.mark.parametrize("state", State)
def test_only_what_a_watch_vouches_for_is_answered(state: State) -> None:
    """The daemon answers from what it told in the state VOUCHED alone, and there for the minute in which it was told."""
    inode, now = in_state(state), this_minute()
    assert (inode.answer(now) is not None) is (state is State.VOUCHED)
    assert inode.answer(now + 1) is None


def test_what_was_told_again_is_no_longer_suspected() -> None:
    """A reply is made of what SOURCE has now, so that it ends a suspicion; one that came to nothing ends with the next."""
    inode = in_state(State.TOLD)
    inode.suspect()
    inode.told(reply())
    assert inode.state is State.VOUCHED


def test_a_change_of_ctime_alone_makes_pages_suspect_once() -> None:
    """The reply that tells another ctime says so, for the pages of an open file are to go at once."""
    inode = CachedInode()
    assert [inode.told(reply(ctime)) for ctime in (TOLD_CTIME, TOLD_CTIME, OTHER_CTIME, OTHER_CTIME)] == [
        False,
        False,
        True,
        False,
    ]
    assert [inode.opened(), inode.opened()] == [False, True]


def test_the_first_opening_of_what_is_forgotten_drops_the_pages() -> None:
    """Where nothing was told nothing says that the pages are true."""
    assert not in_state(State.FORGOTTEN).opened()
    assert in_state(State.TOLD).opened()


@pytest.mark.parametrize(
    ("state", "now", "stale"),
    [
        (State.VOUCHED, attributes(OTHER_CTIME), Stale.ATTRIBUTES_AND_PAGES),
        # With another size, the kernel drops the pages by itself.
        (State.VOUCHED, attributes(OTHER_CTIME, SIZE + 1), Stale.ATTRIBUTES),
        (State.SUSPECTED, attributes(OTHER_CTIME, SIZE + 1), Stale.ATTRIBUTES),
        # What size was told is not known any more.
        (State.TOLD, attributes(OTHER_CTIME, SIZE + 1), Stale.ATTRIBUTES_AND_PAGES),
        (State.TOLD, attributes(OTHER_CTIME, mode=stat.S_IFDIR | 0o755), Stale.ATTRIBUTES),
        (State.VOUCHED, None, Stale.ATTRIBUTES_AND_PAGES),
        (State.FORGOTTEN, attributes(OTHER_CTIME), Stale.NOTHING),
        (State.FORGOTTEN, None, Stale.NOTHING),
        (State.VOUCHED, attributes(), Stale.NOTHING),
    ],
)
def test_what_a_comparison_has_the_kernel_forget(state: State, now: Attributes | None, stale: Stale) -> None:
    """Nothing where it is as told, and pages only where the kernel would not drop them by itself."""
    assert in_state(state).compare(now) is stale


def test_a_change_of_somebody_else_is_not_taken_for_ones_own() -> None:
    """Where the session changes a mode and another has just written, size or time differ: the ctime told stays the old one,
    so that the event finds the difference."""
    inode = in_state(State.VOUCHED)
    inode.changed_without_reply(lambda: attributes(OTHER_CTIME, SIZE + 1))
    assert inode.compare(attributes(OTHER_CTIME, SIZE + 1)) is not Stale.NOTHING
    inode = in_state(State.VOUCHED)
    inode.changed_without_reply(lambda: attributes(OTHER_CTIME))
    assert inode.compare(attributes(OTHER_CTIME)) is Stale.NOTHING


def test_what_is_forgotten_is_not_looked_at() -> None:
    """A change without a reply takes no look at SOURCE where the kernel has nothing."""
    in_state(State.FORGOTTEN).changed_without_reply(lambda: pytest.fail("it looked"))


def test_sizes() -> None:
    """The size is what was told, grows with what the session writes, and ends with a truncation."""
    inode = in_state(State.TOLD)
    inode.written(OTHER_CTIME, 3)
    assert inode.size == SIZE
    inode.written(OTHER_CTIME, SIZE + 5)
    assert inode.size == SIZE + 5
    inode.truncated(OTHER_CTIME)
    assert (inode.size, inode.state) == (0, State.TOLD)


def test_nlookup() -> None:
    """An inode is let go once every count was given back, and no count touches the state."""
    inode = in_state(State.VOUCHED)
    for _ in range(3):
        inode.remember()
    assert [inode.forget(2), inode.forget(0), inode.forget(1)] == [False, False, True]
    assert (inode.nlookup, inode.state) == (0, State.VOUCHED)


def test_content_is_pushed_once_for_each_state() -> None:
    """Content is put into the page cache once for each state of a file, and never while anything is suspect."""
    inode = in_state(State.VOUCHED)
    assert inode.may_be_pushed()
    inode.pushed()
    assert not inode.may_be_pushed()
    inode.written(OTHER_CTIME, 1)
    assert inode.may_be_pushed()
    inode.suspect()
    assert not inode.may_be_pushed()
    inode.name_removed()
    inode.told(reply())
    assert not inode.may_be_pushed()


def test_a_reply_changes_nothing_until_it_is_sent() -> None:
    """To make a reply takes no inode, and says how long it may be kept: long only where both watches are there."""
    kept = [
        reply_for(attributes(), 2, 0, name_watched=name, attributes_watched=own, lasting=lasting).vouched
        for name, own, lasting in ((True, True, True), (False, True, True), (True, False, True), (True, True, False))
    ]
    assert kept == [True, False, False, False]


# -- names

NAME = Name(b"name")
NAME_EVENTS: dict[str, Callable[[CachedDirectory[str]], object]] = {
    "told an object": lambda directory: directory.told(NAME, "node"),
    "told that it is missing": lambda directory: directory.told_missing(NAME),
    "removed by the session, or invalidated": lambda directory: directory.forget(NAME),
    "policy changed": lambda directory: directory.forget_negative(),
}
NAME_ROWS = list(table("UNKNOWN"))


def named(state: str) -> CachedDirectory[str]:
    """A directory with one name in a state."""
    directory: CachedDirectory[str] = CachedDirectory()
    if state == "POSITIVE":
        directory.told(NAME, "node")
    elif state == "NEGATIVE":
        directory.told_missing(NAME)
    return directory


def state_of(directory: CachedDirectory[str]) -> str:
    """The state of the name."""
    if NAME not in directory.dentries:
        return "UNKNOWN"
    return "NEGATIVE" if directory.is_negative(NAME) else "POSITIVE"


@pytest.mark.parametrize(
    ("event", "state", "after"),
    [(event, *pair) for event, columns, cells in NAME_ROWS for pair in zip(columns, cells, strict=True)],
)
def test_every_event_of_a_name_in_every_state(event: str, state: str, after: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event leads to the state that the table gives, and the room for negative dentries is counted right."""
    directory = named(state)
    assert state_of(directory) == state
    NAME_EVENTS[event](directory)
    assert state_of(directory) == after
    monkeypatch.setattr(kernel_cache, "MAX_NEGATIVE", 2)
    room = 1 if after == "NEGATIVE" else 2
    assert [directory.told_missing(name) for name in (b"1", b"2", b"3")] == [number < room for number in range(3)]


def test_the_table_has_every_event_of_a_name() -> None:
    """No event is left out."""
    assert [event for event, _, _ in NAME_ROWS] == list(NAME_EVENTS)


def test_another_object_under_a_name_is_told() -> None:
    """Who tells another object under a name learns which one it displaced."""
    directory = named("POSITIVE")
    assert directory.told(NAME, "node") is None
    assert directory.told(NAME, "other") == "node"
    assert named("NEGATIVE").told(NAME, "node") is None


def test_names_that_were_read_are_kept_until_they_may_have_changed() -> None:
    """The names of the last reading are there until somebody takes them away."""
    directory: CachedDirectory[str] = CachedDirectory()
    names = Names([NAME], 1)
    directory.read(names)
    assert directory.names is names
    directory.forget_names()
    assert directory.names is None
