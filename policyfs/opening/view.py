"""A view of SOURCE in this very process, for callers without a mount: commands, the Python API, the tools."""

from __future__ import annotations

import os
from collections.abc import Sequence

from policyfs.host.errors import Exit, UserFault
from policyfs.host.mounts import Mount
from policyfs.opening.load import NO_GRANT, PolicyOptions, policy_for
from policyfs.policy.paths import HostPath, display
from policyfs.policy.policy import CompiledPolicy
from policyfs.source.root import NoOpenat2, Root
from policyfs.view.monitor import ReferenceMonitor


def open_view(source: HostPath, options: PolicyOptions, *, named: HostPath | None = None) -> ReferenceMonitor:
    """The view of `source` (a real path) under the policy of these options; `named` is SOURCE as its owner calls it. Close
    it when done. Raises `UserFault`."""
    root = root_of(source)
    try:
        return ReferenceMonitor(root, open_policy(root, options), named=named)
    except BaseException:
        root.close()
        raise


def root_of(source: HostPath) -> Root:
    """The confined root of SOURCE. Raises `UserFault` where this machine cannot confine it (rule reach-3)."""
    try:
        return Root(source)
    except NoOpenat2:
        raise UserFault(
            Exit.MACHINE,
            "this kernel has no openat2(2), or something forbids it (Linux 5.6 or newer has it); policyfs cannot confine "
            "itself to SOURCE without it and does not try",
        ) from None
    except OSError as error:
        raise UserFault(
            Exit.PLACE, f"SOURCE {display(source)}: {os.strerror(error.errno or 0)}; name a directory you can read"
        ) from None


_MAX_CLOSED = 3
"""Grants that a message tells of."""


def nothing_open(policy: CompiledPolicy) -> UserFault:
    """The fault of a policy under which no path is visible: each grant with the rule that closes it (rule session-3)."""
    closed = [f"{display(path)} is closed by `{rule}`" for path, rule in sorted(policy.closing_rules().items())]
    some = ", ".join(closed[:_MAX_CLOSED]) + (f" and {len(closed) - _MAX_CLOSED} more" if closed[_MAX_CLOSED:] else "")
    return UserFault(
        Exit.POLICY,
        f"this policy opens nothing of {display(policy.surroundings.source)}: "
        + (f"{some}; take that rule away, or grant something else" if closed else "no grant is above none; add one with -g"),
    )


def open_policy(root: Root, options: PolicyOptions, table: Sequence[Mount] | None = None) -> CompiledPolicy:
    """As `policy_on`. Raises `UserFault` also for a policy that has no grant at all."""
    policy = policy_on(root, options, table)
    session = policy.session
    if not session.grants and not session.read_roots and not session.write_roots:
        raise UserFault(Exit.POLICY, NO_GRANT)
    return policy


def policy_on(root: Root, options: PolicyOptions, table: Sequence[Mount] | None = None) -> CompiledPolicy:
    """The policy of these options for a view on `root`; `table` is the mount table where it was read. Where the source takes
    two spellings for one name, rules ignore case too (rule source-2). Raises `UserFault`."""
    return policy_for(
        root.source, options, fold_case=root.folds_case(), mount=root.mount_number(), root=root, table=table
    )


def policy_of(source: HostPath, options: PolicyOptions, table: Sequence[Mount] | None = None) -> CompiledPolicy:
    """The policy that a mount of `source` (a real path) would have, for a caller that needs no view; `table` is the mount
    table where it was read. Raises `UserFault`."""
    root = root_of(source)
    try:
        return policy_on(root, options, table)
    finally:
        root.close()
