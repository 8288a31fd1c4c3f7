"""An open directory of a view."""

from __future__ import annotations

import stat

from policyfs.policy.levels import Standing
from policyfs.policy.paths import Name
from policyfs.policy.refusals import Refusal
from policyfs.policy.tree import Place
from policyfs.source.tree import TOP, Status, child
from policyfs.view.attributes import Attributes, shown
from policyfs.view.judge import Judge
from policyfs.view.location import Location
from policyfs.view.refused import Refused


class Listing:
    """The entries of a directory as they were when it was opened: names judged once, in an order that does not change,
    so that a position stays valid whatever is removed meanwhile. One descriptor, until `close`. Where another tree is
    mounted at a name, the name is that tree's."""

    def __init__(self, judge: Judge, location: Location, directory: int, *, removed: bool) -> None:
        """`directory` was opened to be listed, in the tree that holds the location, and is this listing's to release.
        `removed` says that the directory itself is meant, though it has no name left; otherwise nothing of it is shown
        unless it is still at its location."""
        self._judge = judge
        self._location = location
        self._tree, self._path = judge.trees.of(location.path)
        self._mounted = frozenset(() if removed else judge.trees.names_in(location.path))
        self._directory = directory
        self._removed = removed
        self._step = judge.policy.child
        self._places: dict[Name, Place] | None = None

    def read(self) -> list[Name]:
        """The names that the rules show, as they are now. A passage is not among them (rule passage-3), and what stands
        behind a name may yet be nothing that is shown: `entries` tells. Raises STALE where the directory was moved."""
        step, place = self._step, self._location.place
        rest, places, shown_names = place.rest, {}, []
        names = self._tree.names(self._directory)
        if self._mounted:
            names += self._mounted.difference(names)
        for name in names:
            judged = step(place, name)
            if judged.standing is Standing.VISIBLE:
                shown_names.append(name)
                if judged is not rest:
                    places[name] = judged
        self._still_there()
        self._places = places
        return shown_names

    def place(self, name: Name) -> Place:
        """The place of one of the names, by the policy that the listing was made by."""
        place = self._location.place
        return self._step(place, name) if self._places is None else self._places.get(name, place.rest)

    def entries(self, names: list[Name]) -> list[Attributes | None]:
        """The attributes of each of some names, None where nothing that may be shown is there by now. Raises
        PermissionError where the source does not let this user look, STALE where the directory was moved.

        Where the directory stands is asked once for all of them. That tells nothing of what happened before, if it was
        somewhere else and came back; but then it had names only there, and each that came or went changed its time.
        """
        before = self._changed_ns()
        found = [self._entry(name) for name in names]
        self._still_there()
        if self._changed_ns() != before and not self._removed:
            found = [entry and self._entry_there(name) for name, entry in zip(names, found, strict=True)]
            self._still_there()
        return found

    def entry(self, name: Name) -> Attributes | None:
        """The same of one name."""
        return self.entries([name])[0]

    def _changed_ns(self) -> int:
        return self._tree.status(self._directory).st_ctime_ns

    def _still_there(self) -> None:
        if self._removed or self._tree.stands_at(self._directory, self._path):
            return
        # What was removed has nothing in it any more.
        if self._tree.status(self._directory).st_nlink > 0:
            raise Refused(Refusal.STALE, self._location.path, absent=True)

    def _entry(self, name: Name) -> Attributes | None:
        if name in self._mounted:
            return self._entry_mounted(name)
        try:
            return self._shown(name, self._tree.stat_name(self._directory, name))
        except PermissionError:
            # A directory that may be read and not searched: better told than shown empty.
            raise
        except OSError:
            return None

    def _entry_there(self, name: Name) -> Attributes | None:
        """An entry that stands by this very name now."""
        if name in self._mounted:
            return self._entry_mounted(name)
        try:
            status = self._tree.stat_within(self._directory, child(self._path, name))
        except OSError:
            return None
        return self._shown(name, status)

    def _entry_mounted(self, name: Name) -> Attributes | None:
        """The top of the tree that is mounted at a name."""
        location = self._judge.child(self._location, name)
        tree, _ = self._judge.trees.of(location.path)
        try:
            return self._judge.judged(location, tree.stat(TOP))
        except OSError:
            return None

    def _shown(self, name: Name, status: Status) -> Attributes | None:
        if stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1):
            return shown(self.place(name), self._tree.identify(status), status)
        try:
            return self._judge.judged(self._judge.child(self._location, name), status)
        except OSError:
            # A link whose text this user may not read is not shown, and hides nothing beside it (/proc/1/exe).
            return None

    def sync(self) -> None:
        """fsync(2) of the directory."""
        self._tree.sync(self._directory)

    def close(self) -> None:
        """Close the descriptor, once."""
        directory, self._directory = self._directory, -1
        if directory >= 0:
            self._tree.release(directory)
