"""Plays a case and tells the differences, and which layer they come from.

Three players play each case, each with one layer more beneath it: the policy and the view (`by_view`), the handlers
without a mount (`by_handlers`), a real mount (`by_mount`). So the first of them that goes wrong names the layer at fault.
"""

from __future__ import annotations

import errno
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import NamedTuple

from policyfs.policy.paths import ViewPath, below, from_text
from policyfs.view.refused import Refused
from tests.conformance.cases import Case, Operation
from tests.conformance.ground import Ground, after, laid
from tests.conformance.player import Player


class Layer(NamedTuple):
    """How a player plays, and what it has beneath it that the one before has not."""

    played: str
    adds: str


LAYERS = {
    "view": Layer("on the policy and the view", "policyfs/policy or policyfs/view"),
    "handlers": Layer(
        "on the handlers without a mount", "policyfs/fuse, where handlers translate (handlers, nodes, handles)"
    ),
    "mount": Layer(
        "on a real mount",
        "what a mount adds: what the kernel keeps (policyfs/fuse/kernel_cache, lives of names and attributes), the daemon, "
        "files read by policyfs/opening, or tests/conformance/kernel.py, which does for the other players what the "
        "kernel does",
    ),
}
"""The players in the order of their layers."""

Opens = Callable[[Case, Ground], AbstractContextManager[Player]]
"""Opens a player for a case on its ground."""


def differences(case: Case, opens: Opens) -> list[str]:
    """What comes out otherwise than the case says, in the order played."""
    with laid(case) as ground:
        with opens(case, ground) as player:
            found = [
                f"operation {number}, {operation}:\n    {difference}"
                for number, operation in enumerate(case.operations, 1)
                if (difference := _difference(player, operation)) is not None
            ]
        for path, expected in case.source_after.items():
            got = after(ground, path)
            if got != expected:
                found.append(f"source_after, {path!r}:\n    expected {expected!r}, got {got!r}")
    return found


def _difference(player: Player, operation: Operation) -> str | None:
    try:
        given = getattr(player, operation.do)(operation.path, **operation.further)
    except OSError as error:
        return _difference_of_refusal(operation, error)
    if operation.gives is None:
        return f"expected {operation.errno}, but it went through and gave {dict(given)!r}"
    other = {name: given.get(name) for name in operation.gives if given.get(name) != operation.gives[name]}
    if other:
        return f"expected { {name: operation.gives[name] for name in other}!r}, got {other!r}"
    return None


def _difference_of_refusal(operation: Operation, error: OSError) -> str | None:
    got = errno.errorcode.get(error.errno or 0, str(error.errno))
    if operation.errno is None:
        return f"expected that it goes through, got {got} ({error})"
    # By number: EOPNOTSUPP and ENOTSUP are one.
    if error.errno != getattr(errno, operation.errno):
        return f"expected {operation.errno}, got {got} ({error})"
    texts = _texts(operation, error)
    if operation.text is not None and texts and operation.text not in texts:
        return f"expected the text {operation.text!r}, got {' or '.join(map(repr, texts))}"
    return None


def _texts(operation: Operation, error: OSError) -> list[str]:
    """The texts that the refusal behind an error has for the operation; none where the kernel itself refused, or keeps
    the text to itself.

    The contract names the whole path of the operation. A refusal on the way names what was being walked through.
    """
    refused = error if isinstance(error, Refused) else error.__cause__
    if not isinstance(refused, Refused):
        return []
    named = [ViewPath(from_text(path)) for path in (operation.path, operation.further.get("to")) if path]
    on_the_way = [path for path in named if below(path, refused.path) is not None]
    return [refused.refusal.text(path) for path in on_the_way or named]


def report(case: Case, layer: str, found: list[str], beneath: Mapping[str, Opens]) -> str:
    """What to say of differences. Whoever plays with fewer layers plays the case again, to tell which is at fault."""
    lines = [f"{case.id} ({case.spec}): {case.description}", f"played {LAYERS[layer].played}:"]
    lines += [f"  {difference}" for difference in found]
    for name, opens in beneath.items():
        if differences(case, opens):
            lines.append(f"The case goes wrong already {LAYERS[name].played}: look there first.")
            break
    else:
        lines.append(f"At fault is {LAYERS[layer].adds}; or the case itself is.")
    return "\n".join(lines)
