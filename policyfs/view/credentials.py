"""Which objects are credentials, whatever their name: the files of the denied places, by identity.

A path tells nothing of a file's other names. `ln ~/.ssh/id_ed25519 project/notes.txt` puts a key under an allowed name,
and a package manager's store does such things by the thousand (security.md 7). So the files that lie in a place of the
host which the denylist names are known by device and inode number, and a file with more names than one is looked up
among them before it is shown.

What was found is held to be true as long as the directories it was found in have not changed: a file that comes or goes
moves its directory's times. Looking at those is a stat for each denied place and its directories, and it is done only
for files with several names.

A file that a grant or a pattern hides, and that has another name where it is open, is not found by this; `policyfs
doctor` lists files with several names (SECURITY.md).
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable

from policyfs.policy.paths import HostPath
from policyfs.view.attributes import Identity

MOST_ENTRIES = 50_000
"""Entries of denied places that are looked at. Credential directories hold dozens; a place with more is cut there, and
the files met first are the ones known."""


class Credentials:
    """The identities of the regular files at and below some places of the host.

    `unwalked` directories are not entered. policyfs has denied places of its own, and the view of a run is in one: to look
    there would be to ask this very daemon, which would wait for its own answer. Its code, in another, is a thousand
    directories, which made each stat of a file with two names take 3 milliseconds (`git gc` a minute).
    """

    def __init__(self, places: Iterable[HostPath], unwalked: Iterable[HostPath] = ()) -> None:
        self._places = tuple(dict.fromkeys(places))
        self._unwalked = frozenset(unwalked)
        self._found: set[Identity] = set()
        self._looked_in: dict[bytes, int] = {}

    def holds(self, status: os.stat_result) -> bool:
        """Whether an object is one of them. Asked of every file with several names."""
        if not self._still_true():
            self._look()
        return (status.st_dev, status.st_ino) in self._found

    def _still_true(self) -> bool:
        # A place that is a file, or is not there, is as cheap to look at as to remember.
        return bool(self._looked_in) and all(_changed(path) == at for path, at in self._looked_in.items())

    def _look(self) -> None:
        self._found.clear()
        self._looked_in.clear()
        waiting: list[bytes] = list(self._places)
        left = MOST_ENTRIES
        while waiting and left > 0:
            path = waiting.pop()
            if path in self._unwalked:
                continue
            left -= 1
            # Before the look, so that what changes during it is noticed next time.
            self._looked_in[path] = _changed(path)
            try:
                status = os.lstat(path)
                if stat.S_ISREG(status.st_mode):
                    self._found.add((status.st_dev, status.st_ino))
                elif stat.S_ISDIR(status.st_mode):
                    with os.scandir(path) as entries:
                        for entry in entries:
                            left -= 1
                            if entry.is_dir(follow_symlinks=False):
                                waiting.append(entry.path)
                            elif entry.is_file(follow_symlinks=False):
                                known = entry.stat(follow_symlinks=False)
                                self._found.add((known.st_dev, known.st_ino))
            except OSError:
                # Not there, or not ours to read: then no alias of it can be read through this daemon either.
                continue


def _changed(path: bytes) -> int:
    """A directory's or file's change time; 0 for one that is not there."""
    try:
        return os.lstat(path).st_ctime_ns
    except OSError:
        return 0
