"""What a model learns of the view it works in, for its prompt (rule prompt-1).

Every granted path with its level in words, what a refusal means and that hidden things read as missing.
Nothing hidden is named, and nothing is looked up: the block follows from the
policy, so it is the same whatever the tree holds.

Every path is written as the model sees it. To tools that ask the view itself it begins at `/`; a program sees the
view at a path of its machine, a mountpoint or SOURCE's own path under `policyfs run`, and there `/proj` is `PATH/proj`.

A template is text with `{{NAME}}` in it. `FIELDS` are the names; another one is a fault, since a prompt with a hole in
it tells a model something else than its author meant.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass

from policyfs.policy.levels import Level
from policyfs.policy.paths import ROOT, HostPath, ViewPath, display
from policyfs.policy.policy import CompiledPolicy
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


_ROOT_PLACE = HostPath(b"/")


class TemplateFault(ValueError):
    """A template that asks for what there is not."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a block is about: a policy, and the path of its view for the reader."""

    policy: CompiledPolicy
    at: HostPath

    def shown(self, path: ViewPath) -> str:
        """A path of the view, as it is written there."""
        if self.at == b"/":
            return display(path)
        return display(self.at if path == ROOT else self.at + path)


def workspace(policy: CompiledPolicy, template: str = TEMPLATE, at: HostPath = _ROOT_PLACE) -> str:
    """The workspace block for a policy, for a reader who sees the view at `at`. Raises `TemplateFault`."""
    unknown = sorted({name for name in _FIELD.findall(template) if name not in FIELDS})
    if unknown:
        raise TemplateFault(
            f"{', '.join('{{' + name + '}}' for name in unknown)}: no such field; there are "
            + ", ".join("{{" + name + "}}" for name in FIELDS)
        )
    # One pass: what a field gives is never read as a template, whatever a path is called.
    subject = Subject(policy, at)
    return _FIELD.sub(lambda field: FIELDS[field[1]](subject), template)


_FIELD = re.compile(r"\{\{ *([^{} ]*) *\}\}")


def _view(subject: Subject) -> str:
    granted = subject.policy.granted()
    if not granted:
        return "- none: nothing is open in this session"
    return "\n".join(f"- `{subject.shown(path)}`: {level.meaning}" for path, level in granted)


_LEVELS = {
    Level.RO: "read-only: you can list and read it. Nothing in it can be changed.",
    Level.STAGE: "read/write, stage: you can read and change it. In a repository a change stays staged; you cannot commit.",
    Level.COMMIT: "read/write, commit: you can read and change it, and in a repository commit.",
}


def _levels(subject: Subject) -> str:
    used = {level for _, level in subject.policy.granted()}
    return "\n".join(f"- {text}" for level, text in _LEVELS.items() if level in used)


def _start(subject: Subject) -> str:
    return subject.shown(subject.policy.session.start)


def _boundary(subject: Subject) -> str:
    boundary = subject.policy.session.boundary
    if subject.at == b"/":
        if boundary == ROOT:
            return "Nothing lies above `/`."
        return f"The boundary of this session is `{display(boundary)}`: nothing outside it is open to you."
    # A program has the system around its view, and of that the policy says nothing.
    tree = display(subject.at)
    if boundary == ROOT:
        return f"Your tree is `{tree}`; nothing is said here of what lies outside it, such as the system's programs."
    shown = subject.shown(boundary)
    return f"The boundary of this session is `{shown}`: nothing else of your tree, `{tree}`, is open to you."


def _text(refusal: Refusal) -> str:
    return refusal.template


def _missing(subject: Subject) -> str:
    return _text(Refusal.MISSING)


def _refusals(subject: Subject) -> str:
    lines = []
    if subject.policy.has_passages:
        in_one = "" if subject.policy.unknown_missing else ", or something in one"
        lines.append(
            f"- `{_text(Refusal.DENIED)}`: a directory on the way to an open path{in_one}. You can go "
            "through it by the full path of what is open below, and neither list it nor change anything in it."
        )
    else:
        lines.append(f"- `{_text(Refusal.DENIED)}`: the name is taken, or it is not for you to take.")
    if any(level is Level.RO for _, level in subject.policy.granted()):
        lines.append(f"- `{_text(Refusal.READ_ONLY)}`: you can read it; ask the user if it has to change.")
    return "\n".join(lines)


FIELDS: dict[str, Callable[[Subject], str]] = {
    "view": _view,
    "levels": _levels,
    "start": _start,
    "boundary": _boundary,
    "missing": _missing,
    "refusals": _refusals,
}
"""What a template can ask for, from its name to what makes it."""
