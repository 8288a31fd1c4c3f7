"""What may still be done to an object that is asked for by its inode number or by something open: one table (rule file-4).

Theory. A name leads to an object once. After that the kernel and the programs that have the object open ask for the object
itself. Meanwhile its name may have gone, may lead elsewhere, or may be closed by the policy. The table says for each state
of the object and each act how the act is answered. It was judged by the object's place when it was first reached; what the
table allows is judged by that place again (`permissions`).

A moved object stands under the rules of a place that is not known. So it may be looked at, and be read and written by what
is open, as on any file system. Nothing more is made of it: no new opening, no change of attributes, and no new name.
STALE makes the kernel look the name up again, so that the next program to open it finds what is there now.
"""

from __future__ import annotations

import enum

from policyfs.policy import permissions
from policyfs.policy.levels import Standing
from policyfs.policy.refusals import Refusal
from policyfs.policy.tree import Place


class State(enum.Enum):
    """Where an object stands, seen from here."""

    NAMED = enum.auto()
    """One of its names leads to it."""
    BLOCKED = enum.auto()
    """It stands at its name and is open, and the source's own permissions close a directory on the way to it."""
    BLOCKED_MOVED = enum.auto()
    """It is open and not at its name, and the source's own permissions close a directory on the way there."""
    MOVED = enum.auto()
    """It is open, and its names lead elsewhere."""
    REMOVED = enum.auto()
    """It has no name left, and is open or held here (`fuse.removed`)."""
    REVOKED = enum.auto()
    """It was reached while the policy showed it, and the policy hides it now."""
    LOST = enum.auto()
    """Its names lead elsewhere or are gone, and nothing here holds it."""


class Act(enum.Enum):
    """What is to be done."""

    LOOK = enum.auto()
    """Read attributes or the level, or ask for access, by inode number."""
    OPEN = enum.auto()
    """Open or list it, or read a link, by inode number."""
    CHANGE = enum.auto()
    """Change attributes by inode number."""
    NAME = enum.auto()
    """Give it another name."""
    READ = enum.auto()
    """Go on reading by an open file."""
    WRITE = enum.auto()
    """Go on writing by an open file."""
    LIST = enum.auto()
    """Go on listing by an open directory."""


class Way(enum.Enum):
    """How an act that is allowed reaches the object."""

    BY_NAME = enum.auto()
    """By its name, and only if that leads to this very object."""
    BY_HANDLE = enum.auto()
    """By what is open or held."""
    AS_SOURCE_ANSWERS = enum.auto()
    """Not at all: the error of the source's own permissions stands."""


_NAME, _HANDLE, _SOURCE = Way.BY_NAME, Way.BY_HANDLE, Way.AS_SOURCE_ANSWERS
_STALE, _DENIED = Refusal.STALE, Refusal.DENIED

# fmt: off
_TABLE: dict[State, tuple[Way | Refusal, ...]] = {
    #                     LOOK     OPEN     CHANGE   NAME     READ     WRITE    LIST
    State.NAMED:         (_NAME,   _NAME,   _NAME,   _NAME,   _HANDLE, _HANDLE, _HANDLE),
    State.BLOCKED:       (_HANDLE, _HANDLE, _HANDLE, _HANDLE, _HANDLE, _HANDLE, _HANDLE),
    State.BLOCKED_MOVED: (_HANDLE, _SOURCE, _SOURCE, _SOURCE, _HANDLE, _HANDLE, _SOURCE),
    State.MOVED:         (_HANDLE, _STALE,  _STALE,  _STALE,  _HANDLE, _HANDLE, _STALE),
    State.REMOVED:       (_HANDLE, _HANDLE, _HANDLE, _HANDLE, _HANDLE, _HANDLE, _HANDLE),
    State.REVOKED:       (_DENIED, _DENIED, _DENIED, _DENIED, _DENIED, _DENIED, _DENIED),
    State.LOST:          (_STALE,  _STALE,  _STALE,  _STALE,  _STALE,  _STALE,  _STALE),
}
# fmt: on
_ANSWERS = {(state, act): answer for state, row in _TABLE.items() for act, answer in zip(Act, row, strict=True)}


def still(state: State, act: Act) -> Way | Refusal:
    """How an act on an object in this state is answered: the way to do it, or why it is refused."""
    return _ANSWERS[state, act]


def go_on(act: Act, place: Place, *, credential: bool) -> Refusal | None:
    """Whether something open may go on after the policy or the tree changed. `place` is where the object stands now,
    `credential` says that the denylist hides it under another name. What is hidden was open, so that it is denied rather
    than missing."""
    answer = still(State.REVOKED if credential or place.standing is Standing.HIDDEN else State.NAMED, act)
    if isinstance(answer, Refusal):
        return answer
    return permissions.change(place) if act is Act.WRITE else permissions.look(place)
