"""An open directory of a view."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

from policyfs.policy.levels import Standing
from policyfs.policy.paths import Name
from policyfs.policy.tree import Place
from policyfs.view.attributes import Attributes, shown

if TYPE_CHECKING:
    from policyfs.view.location import Location
    from policyfs.view.view import View


class Listing:
    """The entries of a directory as they were when it was opened: names judged once, in an order that does not change,
    so that a position stays valid whatever is removed meanwhile. One descriptor, until `close`."""

    def __init__(self, view: View, location: Location, directory: int) -> None:
        self._view = view
        self._location = location
        self._directory = directory
        step, place = view.policy.child, location.place
        self._rest = place.rest
        self._places: dict[Name, Place] = {}
        self.names: list[Name] = []
        """The names that the rules show. A passage is not among them (rule passage-3), and what stands behind a name may yet
        be nothing that is shown: `entry` tells."""
        for name in view.root.names(directory):
            judged = step(place, name)
            if judged.standing is Standing.VISIBLE:
                self.names.append(name)
                if judged is not self._rest:
                    self._places[name] = judged

    def place(self, name: Name) -> Place:
        """The place of one of the names, by the policy that the listing was made by."""
        return self._places.get(name, self._rest)

    def entry(self, name: Name) -> Attributes | None:
        """The attributes of one of the names, None where nothing that may be shown is there by now. Raises PermissionError
        where the source does not let this user look."""
        try:
            status = self._view.root.stat_name(self._directory, name)
        except PermissionError:
            # A directory that may be read and not searched: better told than shown empty.
            raise
        except OSError:
            return None
        if stat.S_ISDIR(status.st_mode) or (stat.S_ISREG(status.st_mode) and status.st_nlink == 1):
            return shown(self.place(name), status)
        try:
            return self._view.judged(self._view.child(self._location, name), status)
        except OSError:
            # A link whose text this user may not read is not shown, and hides nothing beside it (/proc/1/exe).
            return None

    def sync(self) -> None:
        """fsync(2) of the directory."""
        os.fsync(self._directory)

    def close(self) -> None:
        """Close the descriptor, once."""
        directory, self._directory = self._directory, -1
        if directory >= 0:
            os.close(directory)
