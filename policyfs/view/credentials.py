"""Which objects are credentials, whatever their name: the files of the denied places, by identity.

A path tells nothing of a file's other names. `ln ~/.ssh/id_ed25519 project/notes.txt` puts a key under an allowed name,
and a package manager's store does such things by the thousand (rule deny-12). So the files that lie in a place of the
host which the denylist names are known by device and inode number, and a file with more names than one is looked up
among them before it is shown.

*Where is looked.* A hard link never leaves its file system, so only what is on SOURCE's is looked at: each place is
walked from the top of a mount of that file system, by the confined root, which enters no other mount. Whatever serves
one, another view, this very view or a server that is gone, is never asked, and so cannot keep anybody waiting.

*What is held to be true.* What was found holds as long as the directories that lead to a place, and those in it, have
not changed: whatever comes, goes or is moved changes the times of the directory it does so in. The directories are held
by descriptor, as far as the machine's limit goes well, since to ask one that is held takes a fifth of finding it again.

*Where it ends.* Each place has a bound of its own, so that none is left out because another is large. What lies beyond
it is not known; so while a place is too large, or cannot be looked at for a reason that says nothing of it (no
descriptor left), any file with several names may be one of its files, and counts as one. The log says so.

A file that a grant or a pattern hides, and that has another name where it is open, is not found by this; `policyfs
doctor` lists files with several names (SECURITY.md).
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import stat
import weakref
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field

from policyfs.policy.paths import HostPath, Name, below, display, host_path
from policyfs.source.root import Root

log = logging.getLogger("policyfs")

_FileId = tuple[int, int]
"""Device and inode number of a file of the host, in whatever tree it is found."""

MAX_ENTRIES = 50_000
"""Entries of one denied place that are looked at. Credential directories hold dozens."""

HELD_SHARE = 16
_MAX_HELD = 1024
"""Directories are held by one in sixteen of the descriptors that the process may have, and no more than so many. Further
ones are reached again each time, which takes four times as long."""

_LONGEST = 4000
"""Bytes of a path below the top of a mount: what the confined root reaches in one walk."""

_NOT_THERE = frozenset(
    {errno.ENOENT, errno.ENOTDIR, errno.ELOOP, errno.EXDEV, errno.EACCES, errno.EPERM, errno.ENAMETOOLONG}
)
"""What a walk answers where nothing is, or a link or another mount, or what its owner keeps from this user."""


class _TooLarge(Exception):
    """A place has more in it than is looked at."""


class _Held:
    """A descriptor of the confined root's, which closes with its last user."""

    __slots__ = ("__weakref__", "descriptor")

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        weakref.finalize(self, Root.release, descriptor)


@dataclass(slots=True)
class _Directory:
    """A directory that was looked at, by the path `rest` below a descriptor, b"" where it is held itself; and for one in a
    place, what was in it then."""

    base: _Held
    rest: bytes
    identity: _FileId
    changed_at: int
    entries: int = 0
    files: list[_FileId] = field(default_factory=list)
    directories: list[tuple[bytes, _FileId]] = field(default_factory=list)

    def is_as_it_was(self) -> bool:
        try:
            status = _status(self.base, self.rest)
        except OSError:
            return False
        return status.st_ctime_ns == self.changed_at and _identity(status) == self.identity


@dataclass(slots=True)
class _Place:
    """A denied place, `rest` below the top of a mount, and what is known of it."""

    path: HostPath
    top: _Held
    rest: bytes
    status: os.stat_result | None = None
    directories: dict[bytes, _Directory] = field(default_factory=dict)
    is_known: bool = True


class Credentials:
    """The identities of the regular files at and below some places of the host.

    `tops` are the mountpoints of SOURCE's file system. `unwalked` directories are not entered: policyfs's own code, which
    is in one of its denied places, is a thousand directories, which made each stat of a file with two names take 3
    milliseconds (`git gc` a minute), and in another its runs come and go.
    """

    def __init__(self, places: Iterable[HostPath], tops: Iterable[HostPath], unwalked: Iterable[HostPath] = ()) -> None:
        """Looks at once, so that a path that is too large is reported when a view is opened."""
        self._unwalked = frozenset(unwalked)
        self._places = list(_reachable(frozenset(places) - self._unwalked, tops))
        self._most_held = min(_MAX_HELD, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // HELD_SHARE)
        self._above: dict[tuple[int, bytes], _Directory | None] = {}
        self._told: set[HostPath] = set()
        self._look()

    def holds(self, status: os.stat_result) -> bool:
        """Whether an object is one of them, or may be. Asked of every file with several names."""
        if not self._is_still_true():
            self._look()
        return not self._all_known or (status.st_dev, status.st_ino) in self._found

    def _is_still_true(self) -> bool:
        if self._look_again:
            return False
        for descriptor, changed_at in self._held:
            if os.fstat(descriptor).st_ctime_ns != changed_at:
                return False
        return all(directory.is_as_it_was() for directory in self._reached)

    def _look(self) -> None:
        # Whatever keeps this from its end, nothing is taken to be true after it.
        self._look_again = True
        failed = False
        self._room = self._most_held - sum(not directory.rest for directory in self._directories())
        if not self._above or not all(directory.is_as_it_was() for directory in self._above.values() if directory):
            self._above.clear()
            for place in self._places:
                place.status = None
                failed |= not self._guarded(place, self._find)
        for place in self._places:
            if place.status is None or not stat.S_ISDIR(place.status.st_mode):
                place.directories.clear()
            else:
                failed |= not self._guarded(place, self._look_in)
        if failed:
            self._above.clear()
        looked_at = list(self._directories())
        self._held = [(directory.base.descriptor, directory.changed_at) for directory in looked_at if not directory.rest]
        self._reached = [directory for directory in looked_at if directory.rest]
        self._found = {identity for directory in looked_at for identity in directory.files}
        self._found.update(_identity(place.status) for place in self._places if place.status is not None)
        self._all_known = all(place.is_known for place in self._places)
        self._look_again = failed

    def _directories(self) -> Iterator[_Directory]:
        yield from (directory for directory in self._above.values() if directory is not None)
        for place in self._places:
            yield from place.directories.values()

    def _guarded(self, place: _Place, look: Callable[[_Place], None]) -> bool:
        """Look, and tell what keeps a place from being known. False where another look may do better, though nothing
        changed."""
        place.is_known = False
        try:
            look(place)
        except _TooLarge as error:
            self._tell(place, f"{error}; make it smaller, or deny it by its path in the view")
            return True
        except OSError as error:
            self._tell(place, f"cannot be looked at: {error.strerror}; see what is wrong with it")
            return False
        place.is_known = True
        return True

    def _tell(self, place: _Place, what: str) -> None:
        if place.path not in self._told:
            self._told.add(place.path)
            log.warning(
                "every file with several names is hidden, since it may be one of those in %s, which %s",
                display(place.path),
                what,
            )

    # -- looking ------------------------------------------------------------------------------------------------------

    def _find(self, place: _Place) -> None:
        """What is at a place, and the directories that lead there, the uppermost first."""
        names = place.rest.split(b"/") if place.rest else []
        for length in range(len(names)):
            rest = b"/".join(names[:length])
            key = (place.top.descriptor, rest)
            if key not in self._above:
                self._above[key] = self._directory(place.top, rest)
            if self._above[key] is None:
                return
        try:
            place.status = _status(place.top, place.rest)
        except OSError as error:
            if error.errno not in _NOT_THERE:
                raise

    def _look_in(self, place: _Place) -> None:
        """What is in a place. Only what has changed is listed again."""
        if place.status is None:
            return
        before, place.directories = place.directories, {}
        left = MAX_ENTRIES
        waiting = [(place.rest, _identity(place.status))]
        while waiting:
            rest, identity = waiting.pop()
            if len(rest) > _LONGEST:
                raise _TooLarge(f"goes deeper than {_LONGEST} bytes of a path")
            directory = before.get(rest)
            if directory is None or directory.identity != identity or not directory.is_as_it_was():
                directory = self._directory(place.top, rest, place, left)
                if directory is None:
                    continue
            place.directories[rest] = directory
            left -= directory.entries
            if left < 0:
                raise _TooLarge(f"has more than {MAX_ENTRIES:,} entries")
            waiting += directory.directories

    def _directory(self, top: _Held, rest: bytes, place: _Place | None = None, most: int = 0) -> _Directory | None:
        """A directory with what is in it, if it is one of a `place`; None where there is none."""
        try:
            reached = Root.reach_name(top.descriptor, Name(rest or b"."))
        except OSError as error:
            if error.errno in _NOT_THERE:
                return None
            raise
        held = _Held(reached)
        status = os.fstat(reached)
        if not stat.S_ISDIR(status.st_mode):
            return None
        # The times before the look, so that what changes during it is noticed next time.
        directory = _Directory(top, rest, _identity(status), status.st_ctime_ns)
        if place is not None:
            self._list(directory, reached, place, most)
        if rest and self._room > 0:
            self._room -= 1
            directory.base, directory.rest = held, b""
        return directory

    def _list(self, directory: _Directory, reached: int, place: _Place, most: int) -> None:
        try:
            names = Root.names(reached, most + 1)
        except PermissionError:
            return
        directory.entries = len(names)
        if len(names) > most:
            return
        for name in names:
            try:
                status = Root.stat_name(reached, name)
            except OSError as error:
                if error.errno in _NOT_THERE:
                    continue
                raise
            if stat.S_ISREG(status.st_mode):
                directory.files.append(_identity(status))
            elif stat.S_ISDIR(status.st_mode):
                rest = directory.rest + b"/" + name if directory.rest else bytes(name)
                if host_path(place.path + b"/" + rest[len(place.rest) :]) not in self._unwalked:
                    directory.directories.append((rest, _identity(status)))


def _reachable(places: Iterable[HostPath], tops: Iterable[HostPath]) -> Iterator[_Place]:
    """Those of the places that lie below one of these mountpoints, each with the nearest."""
    nearest_first = sorted(tops, key=len, reverse=True)
    held: dict[HostPath, _Held] = {}
    for path in sorted(places):
        top = next((top for top in nearest_first if below(path, top) is not None), None)
        if top is None:
            continue
        try:
            if top not in held:
                held[top] = _Held(Root.hold(top))
        except OSError as error:
            if error.errno in _NOT_THERE:
                continue
            raise
        yield _Place(path, held[top], below(path, top) or b"")


def _status(base: _Held, rest: bytes) -> os.stat_result:
    return Root.stat_name(base.descriptor, Name(rest)) if rest else os.fstat(base.descriptor)


def _identity(status: os.stat_result) -> _FileId:
    return status.st_dev, status.st_ino
