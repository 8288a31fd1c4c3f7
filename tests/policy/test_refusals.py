"""The one table of refusals, against the texts of rule error-1 written out here."""

from __future__ import annotations

import errno

import pytest

from policyfs.policy.paths import ViewPath
from policyfs.policy.refusals import Refusal

PATH = ViewPath(b"/Notes/a.md")


@pytest.mark.parametrize(
    ("refusal", "code", "text"),
    [
        (Refusal.MISSING, errno.ENOENT, "No such file or directory: /Notes/a.md"),
        (Refusal.DENIED, errno.EACCES, "Access denied: /Notes/a.md is not open to this session."),
        (Refusal.READ_ONLY, errno.EROFS, "Read-only: /Notes/a.md can be read in this session but not changed."),
        (
            Refusal.NOT_COMMITTED,
            errno.EPERM,
            "Not committed: this session may change /Notes/a.md but not commit it; the change stays staged.",
        ),
        (Refusal.NOTHING_TO_COMMIT, errno.EINVAL, "Nothing to commit: /Notes/a.md is not in a repository."),
        (Refusal.IS_DIRECTORY, errno.EISDIR, "Is a directory: /Notes/a.md"),
        (Refusal.NOT_DIRECTORY, errno.ENOTDIR, "Not a directory: /Notes/a.md"),
        (Refusal.EXISTS, errno.EEXIST, "Already exists: /Notes/a.md"),
    ],
)
def test_the_texts_of_the_spec(refusal: Refusal, code: int, text: str) -> None:
    """Rule error-1, word for word, each with the errno of rule error-2."""
    assert refusal.text(PATH) == text
    assert refusal.errno == code


@pytest.mark.parametrize("refusal", Refusal)
def test_every_refusal_names_its_path(refusal: Refusal) -> None:
    """A text names the path it speaks of once, as it is: one with braces or undecodable bytes in it too."""
    odd = ViewPath(b"/{path}/{0}/%s/\xff")
    assert refusal.text(odd).encode("utf-8", "surrogateescape").count(odd) == 1
    assert refusal.errno in errno.errorcode
    assert "\n" not in refusal.text(PATH)


def test_refusals_with_one_errno_are_still_told_apart() -> None:
    """Two members of an enumeration with one value would be one."""
    assert len({refusal.value for refusal in Refusal}) == len(Refusal.__members__)


@pytest.mark.parametrize(
    ("refusal", "code"),
    [
        (Refusal.NAMED_BY_RULE, errno.EBUSY),
        (Refusal.RULES_BELOW, errno.EACCES),
        (Refusal.CROSSES_RULES, errno.EXDEV),
        (Refusal.MOUNT_POINT, errno.EBUSY),
        (Refusal.CROSSES_TREES, errno.EXDEV),
        (Refusal.NAME_TOO_LONG, errno.ENAMETOOLONG),
        (Refusal.NO_DEVICES, errno.EPERM),
        (Refusal.STALE, errno.ESTALE),
        (Refusal.UNSUPPORTED, errno.EOPNOTSUPP),
    ],
)
def test_what_only_a_file_system_answers(refusal: Refusal, code: int) -> None:
    """The errnos of rule error-2 that only a file system has."""
    assert refusal.errno == code
