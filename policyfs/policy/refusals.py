"""The refusals, each with its errno and its exact text: the one table that the mount, the tools and `explain` share.

Spec: session-file-system.md, "Errors"; DESIGN 4 for the errnos, and for the refusals that only a file system has.
"""

from __future__ import annotations

import enum
import errno
from typing import NamedTuple

from policyfs.policy.paths import ViewPath


class _Answer(NamedTuple):
    errno: int
    text: str


class Refusal(enum.Enum):
    """Why an operation is refused. The value is the errno a tool sees and the text a person reads."""

    MISSING = _Answer(errno.ENOENT, "No such file or directory: {path}")
    DENIED = _Answer(errno.EACCES, "Access denied: {path} is not open to this session.")
    READ_ONLY = _Answer(errno.EROFS, "Read-only: {path} can be read in this session but not changed.")
    # EPERM stands for "this session may not", as for any operation that no level gives; tools only, DESIGN 4.
    NOT_COMMITTED = _Answer(
        errno.EPERM,
        "Not committed: this session may change {path} but not commit it; the change stays staged.",
    )
    NOTHING_TO_COMMIT = _Answer(errno.EINVAL, "Nothing to commit: {path} is not in a repository.")
    IS_DIRECTORY = _Answer(errno.EISDIR, "Is a directory: {path}")
    NOT_DIRECTORY = _Answer(errno.ENOTDIR, "Not a directory: {path}")
    EXISTS = _Answer(errno.EEXIST, "Already exists: {path}")

    # What only a file system answers; the spec has no text for these.
    NAMED_BY_RULE = _Answer(errno.EBUSY, "Held by a rule: {path} is named by a grant or a floor and stays where it is.")
    CROSSES_RULES = _Answer(
        errno.EXDEV,
        "Crosses a rule: {path} cannot be moved or linked as it is, since its level or that of something below it "
        "would change; copy it.",
    )
    NAME_TOO_LONG = _Answer(errno.ENAMETOOLONG, "Name too long: {path}")
    NO_DEVICES = _Answer(errno.EPERM, "No devices: {path} cannot be made in a session view.")
    STALE = _Answer(errno.ESTALE, "Moved away: {path} is no longer what it was.")
    UNSUPPORTED = _Answer(errno.EOPNOTSUPP, "Not supported: {path} holds only user.* attributes.")
    NO_ATTRIBUTE = _Answer(errno.ENODATA, "No such attribute: {path}")
    SET_ID = _Answer(errno.EACCES, "Access denied: {path} runs with another user's rights and is not written here.")

    @property
    def errno(self) -> int:
        """The errno a tool sees on a mount."""
        return self.value.errno

    def text(self, path: ViewPath) -> str:
        """The exact text for `path`, which is named absolute and resolved. Undecodable bytes become surrogates."""
        return self.value.text.replace("{path}", path.decode("utf-8", "surrogateescape"))
