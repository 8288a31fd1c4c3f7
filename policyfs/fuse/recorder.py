"""What happens in a mount, in the words of its journal."""

from __future__ import annotations

from policyfs.audit.writer import Journal
from policyfs.policy.levels import Level
from policyfs.policy.policy import CompiledPolicy
from policyfs.policy.tree import Place
from policyfs.view.location import Location
from policyfs.view.refused import Refused

MAX_PATHS_REMEMBERED = 1024
"""Paths whose level and rule are kept as texts; a session has dozens of rules, and a path for each."""

_LEVEL_NAMES = {level: str(level) for level in Level}


class Recorder:
    """Writes to a journal what handlers do. `process` is the number of the process that asked, 0 where it is not known."""

    def __init__(self, journal: Journal) -> None:
        self._journal = journal
        self._remembered: dict[Place, tuple[str, str]] = {}

    def refused(self, operation: str, refused: Refused, policy: CompiledPolicy, process: int) -> None:
        """The policy refused an operation."""
        place = refused.place or policy.place(refused.path)
        label = refused.refusal.label
        known_as = (operation, refused.path, label, place, process)
        if not self._journal.repeated(known_as):
            level, rule = self._decision(place)
            self._journal.refusal(operation, refused.path, level, label, rule, process, known_as)

    def _decision(self, place: Place) -> tuple[str, str]:
        told = self._remembered.get(place)
        if told is None:
            if len(self._remembered) > MAX_PATHS_REMEMBERED:
                self._remembered.clear()
            told = self._remembered[place] = (_LEVEL_NAMES[place.level], str(place.rule))
        return told

    def did(self, operation: str, location: Location, process: int, to: Location | None = None) -> None:
        """The session made a change."""
        level = _LEVEL_NAMES[location.place.level]
        self._journal.change(operation, location.path, level, process, to=None if to is None else to.path)

    def opened(self, location: Location, process: int) -> None:
        """A file was opened to read."""
        self._journal.opened(location.path, _LEVEL_NAMES[location.place.level], process)
