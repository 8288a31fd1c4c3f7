"""What the kernel was told, and whether it is still true.

Rule: everything that says what the kernel keeps stands in this file, and only this file changes it. The handlers, the
directory streams, the watch of SOURCE and the switch of policies report events to it (`tests/test_architecture.py` holds
them to that). Who adds an event adds a row to the table below; `tests/fuse/test_kernel_cache.py` reads the table and checks
every pair of a state and an event.

Theory. The kernel's side of FUSE answers by itself for as long as it may. It keeps five things:

- Inodes. An inode stays while anything in the kernel uses it. `nlookup` counts the replies that led to it (lookup, create,
  mkdir, each entry of READDIRPLUS ...). FORGET gives counts back; at none left, the number may serve for another object.
- Dentries: a name in a directory, and the inode it leads to. It is answered without a request for `entry_timeout` seconds.
- Negative dentries: a name that leads to nothing, told by inode number 0. They live as long.
- Attributes of an inode, for `attr_timeout` seconds.
- Pages of a file's content. They have no lifetime. They go when a reply tells another size or modification time than the
  kernel has (FUSE_AUTO_INVAL_DATA), and when the file is opened without FOPEN_KEEP_CACHE.

What takes them back before their time:

- FUSE_NOTIFY_INVAL_ENTRY (`forget_dentry`) takes one dentry, and blocks while a request in its directory is in flight.
- FUSE_NOTIFY_INVAL_INODE (`forget_inode`) takes an inode's attributes and, unless it is asked not to, its pages.
- FUSE_NOTIFY_INC_EPOCH (`policy_switch`) takes every dentry, and blocks for nothing.
- The kernel's own requests: what it writes, truncates or renames, and a directory in which it makes or removes a name,
  loses its attributes without being told.

So nothing is invalidated that the kernel has dropped or learned by itself. The change time (ctime) decides: every change of
content or attributes moves it, and nobody can set it. What the kernel was told last is known by the ctime it had then. An
object with another ctime now was changed by somebody else, unless the session changed it and that was noted.

The state of an inode:

- FORGOTTEN: the kernel is taken to have no attributes of it, and is told nothing when they change.
- TOLD: the kernel has attributes. They may change unnoticed until their lifetime ends.
- VOUCHED: the kernel has attributes, and a watch reports when they change. The daemon may answer with them, too.
- SUSPECTED: as VOUCHED, but an event has come that may concern it. The daemon asks SOURCE before it answers.

Beside the state its pages are true or suspect. Suspect pages are dropped when the file is next opened, or at once by the
reporter of the event where the file is open. The columns are the state before, the cells the state after, and the last
column what becomes of the pages (`-`: they stay what they were).

| event                                         | FORGOTTEN | TOLD      | VOUCHED   | SUSPECTED | pages   |
|-----------------------------------------------|-----------|-----------|-----------|-----------|---------|
| told, watched                                 | VOUCHED   | VOUCHED   | VOUCHED   | VOUCHED   | -       |
| told, not watched                             | TOLD      | TOLD      | TOLD      | TOLD      | -       |
| told with another ctime than before           | VOUCHED   | VOUCHED   | VOUCHED   | VOUCHED   | suspect |
| suspected                                     | FORGOTTEN | TOLD      | SUSPECTED | SUSPECTED | -       |
| compared, as told                             | FORGOTTEN | TOLD      | VOUCHED   | VOUCHED   | -       |
| compared, changed by somebody else            | FORGOTTEN | FORGOTTEN | FORGOTTEN | FORGOTTEN | suspect |
| compared, out of reach                        | FORGOTTEN | TOLD      | TOLD      | TOLD      | -       |
| written by the session                        | TOLD      | TOLD      | TOLD      | TOLD      | -       |
| changed by the session, a reply follows       | FORGOTTEN | FORGOTTEN | FORGOTTEN | FORGOTTEN | -       |
| the same, after somebody else changed it      | FORGOTTEN | TOLD      | TOLD      | TOLD      | -       |
| changed by the session, no reply follows      | FORGOTTEN | TOLD      | TOLD      | TOLD      | -       |
| entries changed by the session                | FORGOTTEN | FORGOTTEN | FORGOTTEN | FORGOTTEN | -       |
| name removed by the session                   | FORGOTTEN | FORGOTTEN | FORGOTTEN | FORGOTTEN | suspect |
| policy changed                                | FORGOTTEN | FORGOTTEN | FORGOTTEN | FORGOTTEN | -       |
| opened                                        | FORGOTTEN | TOLD      | VOUCHED   | SUSPECTED | true    |

Two exceptions: a FORGOTTEN inode has no ctime to differ from, so its pages stay what they were when it is told or compared.

The state of a name in a watched directory:

| event                                         | UNKNOWN   | POSITIVE  | NEGATIVE  |
|-----------------------------------------------|-----------|-----------|-----------|
| told an object                                | POSITIVE  | POSITIVE  | POSITIVE  |
| told that it is missing                       | NEGATIVE  | NEGATIVE  | NEGATIVE  |
| removed by the session, or invalidated        | UNKNOWN   | UNKNOWN   | UNKNOWN   |
| policy changed                                | UNKNOWN   | POSITIVE  | UNKNOWN   |

The names of a directory as they were last read (`CachedDirectory.names`) are the daemon's, not the kernel's. Any event that
may change them takes them away.
"""

from __future__ import annotations

import enum
import errno
import logging
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Generic, NamedTuple, TypeVar

import pyfuse3
from pyfuse3 import EntryAttributes, FileNameT, InodeT

from policyfs.fuse.entries import entry_for
from policyfs.fuse.names import Names
from policyfs.policy.paths import Name
from policyfs.view.attributes import Attributes

log = logging.getLogger("policyfs")

LONG = 86400.0
"""Seconds that something watched may be kept: until it changes, in effect. A day, so that even a lost event ends."""
LONG_FILE = 60.0
"""Seconds that a file's attributes may be kept although it is watched. It may have a second name in a directory that was
never looked into, and no event tells of a write by that name. This costs one request a minute for a file in use."""
SHORT = 1.0
"""Seconds for what nothing watches: what most network file systems take."""
RACY_NS = 20_000_000
"""The age of a change, in nanoseconds, below which another change may bear the same ctime: the kernel's clock tick is at
most 10 ms (CONFIG_HZ=100), and this is two of them."""
MAX_NEGATIVE = 4096
"""Negative dentries of one directory. Beyond it a missing name, like a hidden one, is not cached at all."""


class State(enum.Enum):
    """What the kernel is taken to know of an inode's attributes; the module says what each means."""

    FORGOTTEN = enum.auto()
    TOLD = enum.auto()
    VOUCHED = enum.auto()
    SUSPECTED = enum.auto()


class Reply(NamedTuple):
    """The attributes of an object for a reply, not sent yet. `vouched` says that a watch reports when they change."""

    entry: EntryAttributes
    vouched: bool


def reply_for(
    attributes: Attributes, ino: int, generation: int, *, name_watched: bool, attributes_watched: bool, lasting: bool = True
) -> Reply:
    """The reply that would tell the kernel of an object. It changes nothing: `CachedInode.told` does, once it is sent.

    `name_watched` says that the directory of its name is watched, `attributes_watched` that the directory which reports a
    change of its attributes is. Without `lasting`, more than these decide whether it is shown, and it lives for a second.
    """
    attributes_life = lifetime(attributes, watched=attributes_watched) if lasting else SHORT
    name_life = LONG if name_watched and lasting else SHORT
    entry = entry_for(attributes, ino, generation, name_life, attributes_life)
    return Reply(entry, attributes_life > SHORT < name_life)


def reply_for_root(attributes: Attributes, *, watched: bool) -> Reply:
    """The same for the root. It goes by its own number in SOURCE, so that a listing of the directory above the mountpoint
    agrees with it; the kernel uses number 1."""
    life = lifetime(attributes, watched=watched)
    return Reply(entry_for(attributes, attributes.identity.ino, 0, LONG, life), vouched=False)


def lifetime(attributes: Attributes, *, watched: bool) -> float:
    """Seconds that attributes may be kept. They are kept long where a watch reports a change, the object has no other name,
    and its last change is old enough to be told from the next."""
    if not watched or attributes.links != 1 or time.time_ns() - attributes.change_ns < RACY_NS:
        return SHORT
    return LONG if attributes.is_directory else LONG_FILE


def this_minute() -> int:
    """Which minute it is, by a clock that nobody sets: attributes of files are kept for one (`LONG_FILE`)."""
    return int(time.monotonic() // LONG_FILE)


class Stale(enum.Enum):
    """What a comparison found the kernel to keep that is no longer true."""

    NOTHING = enum.auto()
    ATTRIBUTES = enum.auto()
    ATTRIBUTES_AND_PAGES = enum.auto()


class CachedInode:
    """What the kernel was told of one inode. Each method is an event, a row of the table above, or asks for a fact."""

    __slots__ = ("_ctime", "_entry", "_minute", "_nlookup", "_pages_suspect", "_pushed", "_size", "_suspected")

    def __init__(self) -> None:
        self._nlookup = 0
        self._ctime = 0
        """The change time of what was told last, in nanoseconds; 0 where the kernel has nothing (FORGOTTEN)."""
        self._entry: EntryAttributes | None = None
        """The attributes as they were told last, while a watch reports when they change."""
        self._minute = 0
        """The minute in which `_entry` was told."""
        self._suspected = False
        self._size = 0
        """The size that the kernel has: as told last, and as the session has written since."""
        self._pushed = 0
        """The state, by its ctime, whose content was put into the kernel's page cache."""
        self._pages_suspect = False

    # -- facts ----------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> State:
        """The state of the attributes."""
        if not self._ctime:
            return State.FORGOTTEN
        if self._entry is None:
            return State.TOLD
        return State.SUSPECTED if self._suspected else State.VOUCHED

    @property
    def pages_suspect(self) -> bool:
        """Whether the kernel may have pages that are no longer true although size and time do not show it."""
        return self._pages_suspect

    @property
    def size(self) -> int:
        """The size of a file as the kernel has it, in bytes."""
        return self._size

    @property
    def nlookup(self) -> int:
        """The replies that led to this inode and that the kernel has not given back."""
        return self._nlookup

    def answer(self, minute: int) -> EntryAttributes | None:
        """The attributes that may be answered without asking SOURCE in this minute, None where it has to be asked."""
        if self._minute != minute or self._suspected:
            return None
        return self._entry

    def last_told(self) -> EntryAttributes | None:
        """The attributes that were told last, if a watch reports when they change. They may be more than a minute old."""
        return self._entry

    # -- nlookup --------------------------------------------------------------------------------------------------------

    def remember(self) -> None:
        """A reply leads to this inode."""
        self._nlookup += 1

    def forget(self, times: int) -> bool:
        """The kernel gives back so many counts. Returns whether none is left."""
        self._nlookup -= times
        return self._nlookup <= 0

    # -- attributes -----------------------------------------------------------------------------------------------------

    def told(self, reply: Reply) -> bool:
        """A reply is sent. Returns whether it told another ctime than before, so that the pages became suspect: size and
        modification time may be as they were (utimensat(2)), and then the kernel keeps pages of another content."""
        entry = reply.entry
        ctime = entry.st_ctime_ns
        changed = self._ctime not in (0, ctime)
        if changed:
            self._pages_suspect = True
        self._ctime = ctime
        self._size = entry.st_size
        self._entry = entry if reply.vouched else None
        self._minute = this_minute()
        self._suspected = False
        return changed

    def suspect(self) -> None:
        """An event has come that may concern it and was not looked at yet."""
        self._suspected = True

    def compare(self, attributes: Attributes | None) -> Stale:
        """Compare what was told with what is there now; None means that this is not known and counts as changed. Returns
        what the kernel is to forget. Attributes with another size or modification time make the kernel drop the pages by
        itself."""
        ctime, entry = self._ctime, self._entry
        if ctime == 0 or (attributes is not None and ctime == attributes.change_ns):
            self._suspected = False
            return Stale.NOTHING
        self._ctime, self._entry, self._pages_suspect = 0, None, True
        if attributes is None:
            return Stale.ATTRIBUTES_AND_PAGES
        shows = entry is not None and (entry.st_size, entry.st_mtime_ns) != (attributes.size, attributes.modify_ns)
        return Stale.ATTRIBUTES if attributes.is_directory or shows else Stale.ATTRIBUTES_AND_PAGES

    def out_of_reach(self) -> None:
        """It could not be compared: nothing vouches for it any more."""
        self._entry = None

    def written(self, ctime: int, end: int) -> None:
        """The session wrote to the file, up to `end`; `ctime` is the change time after it."""
        self._entry, self._ctime = None, ctime
        self._size = max(self._size, end)

    def truncated(self, ctime: int) -> None:
        """The session emptied the file as it opened it."""
        self._entry, self._ctime, self._size = None, ctime, 0

    def changed_by_session(self, ctime_before: int) -> None:
        """The session changed the object, and the reply will tell what it is like now. `ctime_before` is the change time
        just before it: where that is the one told, the next ctime is of the session's own change."""
        self._entry = None
        if self._ctime == ctime_before:
            self._ctime = 0

    def changed_without_reply(self, look: Callable[[], Attributes]) -> None:
        """The session changed the object's attributes, and no reply tells it. `look` gives what they are now; it is not
        called where the kernel has nothing. Where size or modification time differ too, somebody else changed it a moment
        ago as well, and the event of that is to find a difference."""
        entry, self._entry = self._entry, None
        if self._ctime:
            now = look()
            if entry is None or (entry.st_size, entry.st_mtime_ns) == (now.size, now.modify_ns):
                self._ctime = now.change_ns

    def entries_changed(self) -> None:
        """The session made, removed or renamed an entry of this directory. The kernel drops its attributes by itself."""
        self._entry, self._ctime = None, 0

    def name_removed(self) -> None:
        """The session removed a name of the object. The kernel counts its links down by itself; what else it keeps is to be
        asked for again."""
        self._entry, self._ctime, self._pages_suspect = None, 0, True

    def policy_changed(self) -> None:
        """It is judged differently now, and the kernel is made to forget its attributes and pages."""
        self._entry, self._ctime = None, 0

    # -- pages ----------------------------------------------------------------------------------------------------------

    def opened(self) -> bool:
        """The file is being opened. Returns whether the kernel may keep its pages (FOPEN_KEEP_CACHE)."""
        keep = self._ctime != 0 and not self._pages_suspect
        self._pages_suspect = False
        return keep

    def may_be_pushed(self) -> bool:
        """Whether content may be put into the page cache: not where anything is suspect, and once for each state of the
        file, since the kernel asks for what it drops later."""
        return not self._pages_suspect and not self._suspected and self._pushed != self._ctime

    def pushed(self) -> None:
        """The content was put into the kernel's page cache."""
        self._pushed = self._ctime


Node = TypeVar("Node")
"""What a name leads to."""


class CachedDirectory(Generic[Node]):
    """What the kernel was told of the names in one watched directory, and the names as they were last read."""

    __slots__ = ("_dentries", "_names", "_negative")

    def __init__(self) -> None:
        self._dentries: dict[bytes, Node | None] = {}
        self._negative = 0
        self._names: Names | None = None

    @property
    def dentries(self) -> Mapping[bytes, Node | None]:
        """The names that the kernel was told, each with what it leads to; None for a negative dentry."""
        return self._dentries

    def is_negative(self, name: bytes) -> bool:
        """Whether the kernel was told that this name is missing."""
        return self._dentries.get(name, self) is None

    @property
    def names(self) -> Names | None:
        """The names as they were last read, while nothing has changed them."""
        return self._names

    def told(self, name: bytes, node: Node) -> Node | None:
        """A reply tells the kernel that this name leads to a node. Returns another node that it led to before."""
        before = self._dentries.get(name, node)
        self._dentries[name] = node
        if before is None:
            self._negative -= 1
        return None if before is node else before

    def told_missing(self, name: bytes) -> bool:
        """A reply tells the kernel that this name is missing. Returns False where there is no room to note it: then the
        kernel must not keep it."""
        if name not in self._dentries or self._dentries[name] is not None:
            if self._negative >= MAX_NEGATIVE:
                return False
            self._negative += 1
            self._dentries[name] = None
        return True

    def forget(self, name: bytes) -> None:
        """The kernel has nothing under this name any more, or is being told to forget it."""
        if name in self._dentries and self._dentries.pop(name) is None:
            self._negative -= 1

    def forget_negative(self) -> list[bytes]:
        """The policy changed, and names that were missing may be there now. Returns those that the kernel has."""
        missing = [name for name, node in self._dentries.items() if node is None]
        for name in missing:
            del self._dentries[name]
        self._negative = 0
        return missing

    def read(self, names: Names) -> None:
        """The names were read, after the watch was made."""
        self._names = names

    def forget_names(self) -> None:
        """The names may have changed, or may not be read any more, or take room that others need."""
        self._names = None


Invalidation = Callable[[], None]
"""Makes the kernel forget something. It may block until a request in flight is answered, so it is called in a thread and
never in a handler (pyfuse3, `invalidate_entry`)."""


def forget_dentry(parent: int, name: Name) -> Invalidation:
    """Make the kernel forget a name in the directory of an inode number."""
    return partial(pyfuse3.invalidate_entry, InodeT(parent), FileNameT(name))


def forget_inode(ino: int, *, attributes_only: bool = False) -> Invalidation:
    """Make the kernel forget an inode's attributes and, unless `attributes_only`, its pages."""
    return partial(pyfuse3.invalidate_inode, InodeT(ino), attr_only=attributes_only)


_HAS_NOTHING = (errno.ENOENT, errno.ENOTDIR, errno.ENOTCONN, errno.EBADF)
"""ENOENT, ENOTDIR: the kernel did not have it. ENOTCONN, EBADF: the mount is ending, and with it every answer."""


def invalidate(invalidations: list[Invalidation]) -> None:
    """Carry them out, in a thread. Raises OSError where the kernel does not take one."""
    for each in invalidations:
        try:
            each()
        except OSError as error:
            if error.errno not in _HAS_NOTHING:
                raise


def invalidate_and_log(invalidations: list[Invalidation]) -> None:
    """The same where nobody waits for it: what the kernel does not take is logged, and the others are carried out."""
    for each in invalidations:
        try:
            invalidate([each])
        except OSError as error:
            log.warning("the kernel did not take an invalidation: %s", error)
