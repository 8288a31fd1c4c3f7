"""The names of directories, and how much memory is held for them.

Theory. An open directory keeps its names, since a position in it is to stay valid whatever comes and goes (telldir(3)).
A hundred thousand names take 8 MB, and a session may have thousands of directories open. So all streams of a directory have
one list, which is the one that the directory's watch keeps for the next opening; a stream that must leave something out gets
a list of its own. What all lists take is bounded. Where one more would be too much, those that nobody reads are given up
first; then opening fails with ENFILE, as where there are too many handles.
"""

from __future__ import annotations

import errno
import os
import weakref
from collections.abc import Callable

from policyfs.policy.paths import Name

MAX_HELD = 64 << 20
"""Bytes of all large lists together: 800,000 names of the usual length."""
SMALL = 16 << 10
"""Bytes of a list that is not counted: two hundred names. As many as there can be handles take as much as the large ones."""
_A_SLOT = 8
_A_NAME = _A_SLOT + 33
"""Bytes that a name takes besides its own: a place on the list, and what every object has in front."""


class Names:
    """The names of a directory at one time. The caller that changes them makes a copy first (`Room.copy`)."""

    __slots__ = ("__weakref__", "listed", "size")

    def __init__(self, listed: list[Name], size: int) -> None:
        """`size` is what they take, in bytes."""
        self.listed = listed
        self.size = size


class Room:
    """What all lists of one mount may take. `give_up` makes the watches keep no names."""

    def __init__(self, give_up: Callable[[], None]) -> None:
        self._give_up = give_up
        self._large: weakref.WeakSet[Names] = weakref.WeakSet()

    @property
    def held(self) -> int:
        """Bytes that large lists take now."""
        return sum(names.size for names in self._large)

    def take(self, listed: list[Name]) -> Names:
        """Names that were read. Raises ENFILE where there is no room; one large directory at a time always has it."""
        return self._counted(Names(listed, sum(map(len, listed)) + _A_NAME * len(listed)))

    def copy(self, names: Names) -> Names:
        """The same names, on a list of its own. Raises ENFILE where there is no room."""
        return self._counted(Names(list(names.listed), _A_SLOT * len(names.listed)))

    def _counted(self, names: Names) -> Names:
        if names.size > SMALL:
            if self.held + names.size > MAX_HELD:
                self._give_up()
                held = self.held
                if held and held + names.size > MAX_HELD:
                    raise OSError(errno.ENFILE, os.strerror(errno.ENFILE))
            self._large.add(names)
        return names
