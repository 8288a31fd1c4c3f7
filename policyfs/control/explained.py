"""An explanation as plain values, for JSON and for a client of a socket."""

from __future__ import annotations

import errno
from typing import Any

from policyfs.policy.paths import NAME_MAX, PathFault, ViewPath, from_text
from policyfs.policy.policy import Verdict
from policyfs.policy.refusals import Refusal

OPERATIONS = ("look", "change", "commit")
"""The kinds of operation that an explanation answers for (rule level-7)."""


def explanation_values(explanation: Verdict) -> dict[str, Any]:
    """Everything, for the person whose policy it is; undecodable bytes of a path are surrogates."""
    decision = explanation.decision
    return {
        "path": decision.path.decode("utf-8", "surrogateescape"),
        "level": str(decision.level),
        "standing": str(decision.standing),
        "rule": str(decision.rule),
        "considered": [str(rule) for rule in decision.considered],
        **_answers(explanation),
    }


def unseen_values(path: ViewPath, code: int, text: str) -> dict[str, Any]:
    """The answer to a session for a path that it does not see, hidden or missing: what the file system answers, to every
    operation alike."""
    answer = {"errno": errno_name(code), "text": text}
    return {
        "path": path.decode("utf-8", "surrogateescape"),
        **dict.fromkeys(("look", "change", "commit"), answer),
    }


def path_fault_text(fault: PathFault, text: str) -> str:
    """The message about a text that is not a path of a view. That a name is too long is what a file system answers
    too, so it is said as it is in every explanation."""
    if fault.fault != "name too long":
        return f"PATH: {fault}; write a path of the view, from / or from the start directory"
    told = Refusal.NAME_TOO_LONG.text(ViewPath(from_text(text)))
    return f"{errno_name(Refusal.NAME_TOO_LONG.errno)}: {told}; a name has at most {NAME_MAX} bytes"


def errno_name(code: int) -> str:
    """The name of an errno, as errno(3) has it."""
    return errno.errorcode[code]


def _answers(explanation: Verdict) -> dict[str, Any]:
    return {
        answer.operation: None
        if answer.refusal is None
        else {"errno": errno_name(answer.refusal.errno), "text": answer.text}
        for answer in explanation.answers
    }
