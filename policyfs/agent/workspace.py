"""What a model is told of the view it works in: `{{view}}` of the spec's workspace block.

Every granted path with its level in words, what a refusal means and that hidden things read as missing
(session-file-system.md, "Access levels"). Nothing hidden is named, and nothing is looked up: the block follows from the
policy, so it is the same whatever the tree holds.

A template is text with `{{NAME}}` in it. `FIELDS` are the names; another one is a fault, since a prompt with a hole in
it tells a model something else than its author meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable

from policyfs.policy.levels import Level
from policyfs.policy.paths import display
from policyfs.policy.policy import Policy
from policyfs.policy.refusals import Refusal

TEMPLATE = """\
# Your file system

These paths are open to you in this session, each with everything below it unless a longer path says otherwise:

{{view}}

{{levels}}

Paths are absolute from `/`; a relative one is read from your start directory, `{{start}}`. {{boundary}}

What is not open to you reads as missing: `{{missing}}` can mean that there is nothing, or that you are not to see it. Do \
not look for a way around it. The other refusals:

{{refusals}}

A refusal is final for this session: trying again, another spelling of the path or another tool gets the same answer. Say \
what you could not do, and go on with what you can.
"""
"""The block that `policyfs view --prompt` prints unless a person gives another."""


class TemplateFault(ValueError):
    """A template that asks for what there is not."""


def workspace(policy: Policy, template: str = TEMPLATE) -> str:
    """The workspace block for a policy. Raises `TemplateFault`."""
    unknown = sorted({name for name in _FIELD.findall(template) if name not in FIELDS})
    if unknown:
        raise TemplateFault(
            f"{', '.join('{{' + name + '}}' for name in unknown)}: no such field; there are "
            + ", ".join("{{" + name + "}}" for name in FIELDS)
        )
    # One pass: what a field gives is never read as a template, whatever a path is called.
    return _FIELD.sub(lambda field: FIELDS[field[1]](policy), template)


_FIELD = re.compile(r"\{\{ *([^{} ]*) *\}\}")


def _view(policy: Policy) -> str:
    granted = policy.granted()
    if not granted:
        return "- none: nothing is open in this session"
    return "\n".join(f"- `{display(path)}`: {level.meaning}" for path, level in granted)


_LEVELS = {
    Level.RO: "read-only: you can list and read it. Nothing in it can be changed.",
    Level.STAGE: "read/write, stage: you can read and change it. In a repository a change stays staged; you cannot commit.",
    Level.COMMIT: "read/write, commit: you can read and change it, and in a repository commit.",
}


def _levels(policy: Policy) -> str:
    used = {level for _, level in policy.granted()}
    return "\n".join(f"- {text}" for level, text in _LEVELS.items() if level in used)


def _start(policy: Policy) -> str:
    return display(policy.session.start)


def _boundary(policy: Policy) -> str:
    boundary = display(policy.session.boundary)
    if boundary == "/":
        return "Nothing lies above `/`."
    return f"The boundary of this session is `{boundary}`: nothing outside it is open to you."


def _text(refusal: Refusal) -> str:
    return refusal.template


def _missing(policy: Policy) -> str:
    return _text(Refusal.MISSING)


def _refusals(policy: Policy) -> str:
    lines = []
    if policy.has_passages:
        in_one = "" if policy.unknown_missing else ", or something in one"
        lines.append(
            f"- `{_text(Refusal.DENIED)}`: a directory on the way to an open path{in_one}. You can go "
            "through it by the full path of what is open below, and neither list it nor change anything in it."
        )
    else:
        lines.append(f"- `{_text(Refusal.DENIED)}`: the name is taken, or it is not for you to take.")
    if any(level is Level.RO for _, level in policy.granted()):
        lines.append(f"- `{_text(Refusal.READ_ONLY)}`: you can read it; ask the user if it has to change.")
    return "\n".join(lines)


FIELDS: dict[str, Callable[[Policy], str]] = {
    "view": _view,
    "levels": _levels,
    "start": _start,
    "boundary": _boundary,
    "missing": _missing,
    "refusals": _refusals,
}
"""What a template can ask for, from its name to what makes it."""
