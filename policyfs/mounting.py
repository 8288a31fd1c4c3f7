"""`policyfs.mounted`: a mounted view for as long as a `with` block lasts."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import tempfile
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from policyfs.api import PathText, Policy, policy_for_source
from policyfs.daemon.request import MountRequest
from policyfs.daemon.start import log_file_for, named_log, start_daemon
from policyfs.host import mounts
from policyfs.host.errors import UserFault
from policyfs.opening.load import PolicyOptions
from policyfs.policy.levels import LEVELS, Level
from policyfs.policy.paths import HostPath

_TIMEOUT = 10.0
"""Seconds that a daemon has to end once its mount is gone; it takes milliseconds."""


@dataclass(frozen=True, slots=True)
class Mounted:
    """A view that is mounted. It can stand wherever a path is taken: `open(os.path.join(mounted, "Notes"))`."""

    path: Path
    """Where, as a real path."""
    process: int
    """The id of its daemon."""
    granted: dict[str, Level]
    """What is open, from path to level, as `Policy.granted` has it."""
    notes: tuple[str, ...]
    """What a person should know of this mount, a line each."""

    def __fspath__(self) -> str:
        return os.fspath(self.path)


@contextlib.contextmanager
def mounted(
    source: PathText,
    policy: Policy | PolicyOptions,
    at: PathText | None = None,
    *,
    allow_case_folding: bool = False,
    log_file: PathText | None = None,
) -> Iterator[Mounted]:
    """Mount a view of `source` for a `with` block, at the empty directory `at`, or in a temporary one that is gone
    afterwards. It answers when the block begins; when the block ends it is unmounted and its daemon has ended.

    `policy` is one that was loaded for `source`, or the options of one; the session file is read again by the daemon.
    `allow_case_folding` and `log_file` are as for `policyfs mount`. A program that still stands in the mount at the end
    keeps what it has until it leaves: the mount is detached, with a ResourceWarning.

    Raises `UserFault` where it cannot be mounted, ValueError for the policy of another tree.
    """
    mounts.require_fuse()
    checked = policy_for_source(source, policy)
    with _directory(at) as directory:
        point = mounts.mountpoint_for(directory, checked._source)
        log = log_file_for(point) if log_file is None else named_log(os.fsdecode(log_file), point)
        ready = start_daemon(MountRequest(checked.source, os.fsdecode(point), checked.options, allow_case_folding, log))
        try:
            yield Mounted(
                Path(os.fsdecode(point)),
                ready.process,
                {path: LEVELS[level] for path, level in ready.open},
                (*checked.notes, *ready.warnings),
            )
        finally:
            _end(point, ready.process)


@contextlib.contextmanager
def _directory(at: PathText | None) -> Iterator[str]:
    if at is not None:
        yield os.fsdecode(at)
        return
    directory = tempfile.mkdtemp(prefix="policyfs-")
    try:
        yield directory
    finally:
        os.rmdir(directory)


def _end(point: HostPath, process: int) -> None:
    """Unmount, and see the daemon, a child of this process, to its end."""
    mounted_here = mounts.mount_at(point)
    if mounted_here is not None and mounted_here.type == mounts.FILE_SYSTEM_TYPE:
        try:
            mounts.unmount(point)
        except UserFault as fault:
            warnings.warn(f"{fault}; detached", ResourceWarning, stacklevel=4)
            mounts.unmount(point, lazily=True)
            # It ends by itself when the last one leaves, which nobody here can wait for.
            return
    for number in (None, signal.SIGTERM, signal.SIGKILL):
        if number is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, number)
        if _ended(process):
            return


def _ended(process: int) -> bool:
    """Wait for a child to end, and take its status; True where it is gone."""
    try:
        watched = os.pidfd_open(process)
    except ProcessLookupError:
        return True
    try:
        waiting = select.poll()
        waiting.register(watched, select.POLLIN)
        if not waiting.poll(_TIMEOUT * 1000):
            return False
    finally:
        os.close(watched)
    with contextlib.suppress(ChildProcessError):
        os.waitpid(process, 0)
    return True
