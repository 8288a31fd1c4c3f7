"""The four levels (rule level-1), and the three standings that follow from them."""

from __future__ import annotations

import enum


class Level(enum.IntEnum):
    """What a session may do with a path; each level includes the ones below it, so the least of two is `min`."""

    NONE = 0
    RO = 1
    STAGE = 2
    COMMIT = 3

    def __str__(self) -> str:
        return self.name.lower()

    @property
    def meaning(self) -> str:
        """The name of the level, as an agent reads it."""
        return _MEANING[self]


_MEANING = {
    Level.NONE: "no access",
    Level.RO: "read-only",
    Level.STAGE: "read/write, stage",
    Level.COMMIT: "read/write, commit",
}

LEVELS = {str(level): level for level in Level}
"""From the word in a session file to the level."""


class Standing(enum.Enum):
    """How a path stands in the view.

    A `PASSAGE` is at none with something granted below it: denied, but it can be walked through. What is neither visible
    nor a passage is `HIDDEN`, and reads as missing.
    """

    VISIBLE = "visible"
    PASSAGE = "passage"
    HIDDEN = "hidden"

    def __str__(self) -> str:
        return self.value
