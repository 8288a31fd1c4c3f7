"""Faults of a person or a machine, each with the exit code it ends a command with. Never shown with a traceback."""

from __future__ import annotations

import enum


class Exit(enum.IntEnum):
    """The exit codes of every command, documented in `policyfs --help` and docs/commands.md."""

    DONE = 0
    FAILED = 1
    """The operation was understood and could not be done."""
    USAGE = 2
    """The command line is wrong: click's own code, and what shells use."""
    POLICY = 3
    """A session file, a floors file or a rule is wrong; nothing was mounted."""
    PLACE = 4
    """SOURCE or MOUNTPOINT is wrong; nothing was mounted."""
    MACHINE = 5
    """The machine lacks something: /dev/fuse, fusermount3, a kernel with openat2, bubblewrap."""
    INTERRUPTED = 130
    """Ctrl-C: what a shell says of a program that SIGINT ended."""


class UserFault(Exception):
    """Something a person can put right. The message says what happened, to what, and what to do, in one line each."""

    def __init__(self, exit_code: Exit, *messages: str) -> None:
        self.exit_code = exit_code
        self.messages = messages
        super().__init__("; ".join(messages))
