"""A refusal on its way to the caller."""

from __future__ import annotations

import os

from policyfs.policy.paths import ViewPath
from policyfs.policy.refusals import Refusal
from policyfs.policy.tree import Place


class Refused(OSError):
    """The policy refuses an operation on `path`: an OSError with the refusal's errno and its exact text.

    An OSError, so that a caller who treats a view as a file system needs to know nothing else; `refusal` tells it from
    what the source itself refused.
    """

    def __init__(self, refusal: Refusal, path: ViewPath, place: Place | None = None, *, absent: bool = False) -> None:
        """`place` is the path's, where the policy decided by it; `absent` says that nothing is there at all, which is no
        decision of the policy's."""
        self.refusal = refusal
        self.path = path
        self.place = place
        self.absent = absent
        super().__init__(refusal.errno, refusal.label)

    @property
    def strerror(self) -> str:  # type: ignore[override]  # an attribute in OSError, filled before anybody asks
        """The text. Put together when it is asked for: a mount answers with the errno alone."""
        return self.refusal.text(self.path)

    def __str__(self) -> str:
        return self.strerror

    def __reduce__(self) -> tuple[object, ...]:
        return (Refused, (self.refusal, self.path))


def explained(error: OSError) -> str:
    """The one-line text of an error from the view, of the policy or of the source."""
    return str(error) if isinstance(error, Refused) else os.strerror(error.errno or 0)
