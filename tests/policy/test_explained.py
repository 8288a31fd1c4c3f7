"""What an explanation is as plain values, for JSON and over a socket."""

from __future__ import annotations

import errno

import pytest

from policyfs.control.explained import OPERATIONS, errno_name, explanation_values, unseen_values
from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, ViewPath
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.session import Session

PATH = ViewPath(b"/p/\xff")
TEXT = "/p/\udcff"


def test_an_explanation_as_values() -> None:
    """All of it, each rule as its line, each refusal as the errno's name and its text, None for what is allowed."""
    session = Session(grants={ViewPath(b"/p"): Level.STAGE}, floors={PATH: Level.RO})
    explanation = CompiledPolicy(session, Surroundings(HostPath(b"/srv/tree"))).explain(PATH)
    assert tuple(answer.operation for answer in explanation.answers) == OPERATIONS
    assert explanation_values(explanation) == {
        "path": TEXT,
        "level": "ro",
        "standing": "visible",
        "rule": r"floor /p/\xff = ro (session)",
        "considered": ["grant /p = stage", r"floor /p/\xff = ro (session)"],
        "look": None,
        "change": {"errno": "EROFS", "text": f"Read-only: {TEXT} can be read in this session but not changed."},
        "commit": {"errno": "EINVAL", "text": f"Nothing to commit: {TEXT} is not in a repository."},
    }


def test_what_is_not_seen_as_values() -> None:
    """To every operation alike what the file system answers, and nothing of the policy."""
    answer = {"errno": "ENOENT", "text": "a text"}
    assert unseen_values(PATH, errno.ENOENT, "a text") == {"path": TEXT, "look": answer, "change": answer, "commit": answer}


@pytest.mark.parametrize(("code", "name"), [(errno.EACCES, "EACCES"), (errno.EROFS, "EROFS"), (errno.EXDEV, "EXDEV")])
def test_the_name_of_an_errno(code: int, name: str) -> None:
    """As errno(3) has it."""
    assert errno_name(code) == name
