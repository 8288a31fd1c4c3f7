"""What a command asks a daemon to mount, and what the daemon answers: plain values that cross a pipe as JSON.

The request crosses a pipe rather than the command line, since everyone may read another process's command line, and the
rules tell what is hidden (rule daemon-2).
"""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from policyfs.host.errors import Exit, UserFault
from policyfs.opening.load import PolicyOptions


@dataclass(frozen=True, slots=True)
class MountRequest:
    """SOURCE and MOUNTPOINT as absolute host paths (undecodable bytes as surrogates), and the policy's options."""

    source: str
    mountpoint: str
    options: PolicyOptions
    allow_case_folding: bool = False
    log_file: str | None = None
    """Where the daemon logs; None for standard error."""
    appears_at: str | None = None
    """Where the session sees the view, if not at `mountpoint`: what absolute links are read and rewritten for."""
    beside: tuple[str, ...] | None = None
    """In a sandbox: the places of the machine that the session sees beside the view, and may make links to. None in a bare
    mount, where every other place is in reach as well."""
    named: str | None = None
    """SOURCE as its owner calls it, where that is another name than its real path: absolute links may use it."""
    old_kernel: bool = False
    """Do without what only newer kernels have (FUSE_NOTIFY_INC_EPOCH), so that the other way is tested too."""
    journal: bool = True
    """Whether a journal is kept, at `places.journal_directory`."""
    journal_opens: bool = False
    """Whether it has each opening to read, too."""
    control: bool = True
    """Whether a control socket is made, at `places.control_socket`."""
    ask: str | None = None
    """The path of the socket that the command of a run may ask; None for no socket."""

    @property
    def policy_options(self) -> PolicyOptions:
        """The options of the policy, which hides the log too, wherever it lies."""
        return self.options if self.log_file is None else replace(self.options, own_files=(self.log_file,))

    def dumps(self) -> bytes:
        """The request as one line of JSON."""
        return json.dumps(asdict(self)).encode("ascii") + b"\n"

    @staticmethod
    def loads(text: bytes) -> MountRequest:
        """The request that `dumps` wrote."""
        values: dict[str, Any] = json.loads(text)
        beside = values["beside"]
        return MountRequest(
            **{
                **values,
                "options": PolicyOptions.from_values(values["options"]),
                "beside": None if beside is None else tuple(beside),
            }
        )


@dataclass(frozen=True, slots=True)
class Ready:
    """The daemon's answer: what is open and what a person should know; or the fault that kept it from mounting."""

    open: tuple[tuple[str, str], ...] = ()
    warnings: tuple[str, ...] = ()
    fault: tuple[str, ...] = ()
    exit_code: int = 0
    process: int = field(default_factory=os.getpid)

    def send(self, descriptor: int) -> None:
        """Write the answer and close the pipe."""
        with os.fdopen(descriptor, "wb") as pipe:
            pipe.write(json.dumps(asdict(self)).encode("ascii"))

    @staticmethod
    def receive(descriptor: int) -> Ready:
        """Wait for the answer. A daemon that ended without one is a fault too."""
        with os.fdopen(descriptor, "rb") as pipe:
            text = pipe.read()
        if not text:
            raise UserFault(Exit.FAILED, "the mount daemon ended before it was ready; see its log, or use -f")
        values = json.loads(text)
        return Ready(
            tuple((path, level) for path, level in values["open"]),
            tuple(values["warnings"]),
            tuple(values["fault"]),
            values["exit_code"],
            values["process"],
        )

    def raise_fault(self) -> None:
        """Raise the `UserFault` that the daemon reported, if any."""
        if self.fault:
            raise UserFault(Exit(self.exit_code), *self.fault)
