"""Which places of the machine a sandbox may show beside the view. Pure: facts in, a reason to refuse out.

A place is judged as the whole subtree it is, by every path at which mounts show it. It may not hold, nor lie in, SOURCE
(which is to be seen through the view alone), anything that the denylist, a floor or policyfs itself closes, or what the
sandbox makes for itself. Names that the denylist closes in any directory (`.env`, `*.pem`) are judged on the way to the
place, not below it: what is to be judged name by name goes through a view.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from policyfs.host.mounts import Origin
from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, ViewPath, below, display
from policyfs.policy.policy import CompiledPolicy
from policyfs.policy.tree import Place as PolicyPlace

MADE_HERE = (HostPath(b"/tmp"), HostPath(b"/var/tmp"), HostPath(b"/run"))
"""Not to be added whole: the sandbox has its own, and the machine's are full of other programs' sockets."""

KERNEL = (HostPath(b"/proc"), HostPath(b"/sys"), HostPath(b"/dev"))
"""Not to be added at all: ways to the machine, not places of files."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the judgement needs to know.

    `policy` is that of the whole machine with everything granted: it says what denylist, floors and policyfs's own
    places leave. `origins` holds, for SOURCE and each place asked about, the origins of it and of all mounts below it;
    `aliases`, for each place, the other paths at which mounts show it or a part of it. `kernel` are the mounts of file
    systems that are the kernel's, wherever they are.
    """

    source: HostPath
    policy: CompiledPolicy
    origins: Mapping[HostPath, Sequence[Origin]]
    system: Sequence[HostPath]
    aliases: Mapping[HostPath, Sequence[HostPath]] = field(default_factory=dict)
    kernel: Sequence[HostPath] = ()


def unfit_source(source: HostPath) -> str | None:
    """Why SOURCE cannot stand in a sandbox at its own path."""
    if source == b"/":
        return (
            "SOURCE / cannot be run in: its view would stand where the sandbox has its own /proc, /dev and programs; "
            "name a directory in it, such as /home or /srv"
        )
    for place in KERNEL:
        if below(source, place) is not None:
            return f"SOURCE {display(source)} is the kernel's, not a tree of files; name another directory"
    return None


def refused(place: HostPath, facts: Facts, *, writable: bool) -> str | None:
    """Why this place (a real path) may not be shown, None where it may."""
    source = display(facts.source)
    if below(place, facts.source) is not None:
        return f"lies in SOURCE {source}, which is seen through its view alone; grant it with -g"
    if below(facts.source, place) is not None:
        return f"holds SOURCE {source}, which is seen through its view alone; name something beside it"
    if _meet(facts.origins.get(place, ()), facts.origins.get(facts.source, ())[:1]):
        return f"is SOURCE {source}, or a part of it, under the path of another mount; grant it with -g"
    for kernel in (*KERNEL, *facts.kernel):
        if below(place, kernel) is not None:
            return (
                f"lies in {display(kernel)}, which is the kernel's or of which a sandbox has its own; name a place of files"
            )
        # Root's own in a sandbox too: /proc/sys/kernel/core_pattern names a program that the machine's root runs.
        if writable and below(kernel, place) is not None:
            return f"holds {display(kernel)}, which is the kernel's; name something beside it, or use --ro-bind"
    for made in MADE_HERE:
        if below(made, place) is not None:
            return f"is or holds {display(made)}, of which a sandbox has its own; name what you need in it"
    reason = _by_its_path(place, facts, writable=writable)
    for alias in facts.aliases.get(place, ()):
        if reason is None:
            other = _by_its_path(alias, facts, writable=writable)
            reason = None if other is None else f"is {display(alias)} too, by another mount, and that {other}"
    return reason


def _by_its_path(place: HostPath, facts: Facts, *, writable: bool) -> str | None:
    """What one path of a place says of it; a place may have several."""
    if writable:
        for system in facts.system:
            if below(place, system) is not None or below(system, place) is not None:
                return f"is the system's ({display(system)}), which is read-only in every sandbox; use --ro-bind"
    return _closed(place, facts.policy, Level.STAGE if writable else Level.RO)


def alias_of_source(facts: Facts, shown: Sequence[HostPath]) -> HostPath | None:
    """A place among those `shown` in every sandbox that holds SOURCE under another path than its own."""
    source = facts.origins.get(facts.source, ())[:1]
    for place in shown:
        by_path = below(facts.source, place) is not None or below(place, facts.source) is not None
        if not by_path and _meet(facts.origins.get(place, ()), source):
            return place
    return None


def _meet(some: Sequence[Origin], others: Sequence[Origin]) -> bool:
    """Whether one of these lies in one of those, or around it."""
    return any(
        device == other_device and (below(path, other) is not None or below(other, path) is not None)
        for device, path in some
        for other_device, other in others
    )


def _closed(place: HostPath, policy: CompiledPolicy, needed: Level) -> str | None:
    """What the machine's policy says against a place, or against something that it names below it."""
    doing = "changed" if needed > Level.RO else "shown"
    at = policy.place(ViewPath(place))
    if at.level < needed:
        return f"may not be {doing}: {at.rule}"
    waiting: list[PolicyPlace] = [at]
    while waiting:
        for below_place in waiting.pop().children.values():
            if below_place.level < needed:
                return f"holds what may not be {doing}: {below_place.rule}; name something beside it"
            waiting.append(below_place)
    return None
