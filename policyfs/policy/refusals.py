"""The refusals, each with its errno and its exact text: the one table that the mount, the tools and `explain` share.

Rule error-1 has the texts, rule error-2 the errnos and the refusals that only a file system has. Each names the path in full
(rule path-9).
"""

from __future__ import annotations

import enum
import errno

from policyfs.policy.paths import ViewPath


class Refusal(enum.Enum):
    """Why an operation is refused. The value is the errno a tool sees and the text a person reads."""

    MISSING = (errno.ENOENT, "No such file or directory: {path}")
    DENIED = (errno.EACCES, "Access denied: {path} is not open to this session.")
    READ_ONLY = (errno.EROFS, "Read-only: {path} can be read in this session but not changed.")
    # EPERM stands for "this session may not", as for any operation that no level gives; tools only.
    NOT_COMMITTED = (
        errno.EPERM,
        "Not committed: this session may change {path} but not commit it; the change stays staged.",
    )
    NOTHING_TO_COMMIT = (errno.EINVAL, "Nothing to commit: {path} is not in a repository.")
    IS_DIRECTORY = (errno.EISDIR, "Is a directory: {path}")
    NOT_DIRECTORY = (errno.ENOTDIR, "Not a directory: {path}")
    EXISTS = (errno.EEXIST, "Already exists: {path}")

    # What only a file system answers (rule error-2).
    NAMED_BY_RULE = (errno.EBUSY, "Held by a rule: a rule names {path} or something below it, so it stays where it is.")
    RULES_BELOW = (
        errno.EACCES,
        "Only a directory: a rule names something below {path}, so nothing but a directory can be made there.",
    )
    CROSSES_RULES = (
        errno.EXDEV,
        (
            "Crosses a rule: {path} cannot be moved or linked as it is, since its level or that of something below it "
            "would change; copy it."
        ),
    )
    MOUNT_POINT = (errno.EBUSY, "Mount point: a tree is mounted at {path} or below it, so it stays where it is.")
    CROSSES_TREES = (errno.EXDEV, "Crosses trees: {path} cannot be moved or linked from one tree into another; copy it.")
    NAME_TOO_LONG = (errno.ENAMETOOLONG, "Name too long: {path}")
    NO_DEVICES = (errno.EPERM, "No devices: {path} cannot be made in a session view.")
    STALE = (errno.ESTALE, "Moved away: {path} is no longer what it was.")
    UNSUPPORTED = (errno.EOPNOTSUPP, "Not supported: {path} holds only user.* attributes.")
    GIT_PROTECTED = (
        errno.EACCES,
        "Protected: {path} as it would be could make git run a program outside this session ([git] protect).",
    )
    SET_ID = (errno.EACCES, "Access denied: {path} runs with another user's rights and is not written here.")

    def __init__(self, code: int, text: str) -> None:
        # Plain attributes: those that an Enum makes of its own cost ten times as much, and a refusal is a hot path.
        self.errno = code
        """The errno a tool sees on a mount."""
        self.label = self._name_
        """The name, for the journal."""
        self.template = text
        """The text, with `{path}` for the path."""

    def text(self, path: ViewPath) -> str:
        """The exact text for `path`, which is named absolute and resolved. Undecodable bytes become surrogates."""
        return self.template.replace("{path}", path.decode("utf-8", "surrogateescape"))
