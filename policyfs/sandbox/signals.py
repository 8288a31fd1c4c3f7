"""Signals to `policyfs run` are meant for the command."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable
from types import FrameType

FORWARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
)  # fmt: skip
"""What is passed on to the command; all other signals do to `policyfs run` what they do to any program."""

_TO_ITS_GROUP = (signal.SIGINT, signal.SIGQUIT)
"""What a terminal sends to every process of its foreground, not to the first alone."""


class EndedBySignal(Exception):
    """A signal that came before there was a command."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


class Ending:
    """What a signal does while there is no command yet: it raises `EndedBySignal`, so that what was begun is cleared
    away. Until `from_now_on` it is only noted, since there is nobody yet to clear away."""

    def __init__(self) -> None:
        self._noted: int | None = None
        self._raises = False
        _handle(self._end)

    def from_now_on(self) -> None:
        """Raise, at once where a signal has come already."""
        self._raises = True
        if self._noted is not None:
            raise EndedBySignal(self._noted)

    def _end(self, number: int, _frame: FrameType | None) -> None:
        self._noted = number
        if self._raises:
            raise EndedBySignal(number)


def forward_signals(init: int) -> list[int]:
    """From now on a signal goes to the command. `init` is the first process of its pid namespace, by our numbering.
    Gives the list of the signals that ended the sandbox before there was a command, which is filled as they come."""
    too_early: list[int] = []

    def forward(number: int, _frame: FrameType | None) -> None:
        command = first_child(init)
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if command is None:
                # Not there yet: it is not to come, and bubblewrap ends with its first process.
                too_early.append(number)
                os.kill(init, signal.SIGKILL)
            elif number in _TO_ITS_GROUP:
                os.killpg(os.getpgid(command), number)
            else:
                os.kill(command, number)

    _handle(forward)
    return too_early


def ignore_signals() -> None:
    """From now on nothing keeps us from clearing away, nor what is started for it."""
    for number in FORWARDED:
        signal.signal(number, signal.SIG_IGN)


def disregard_signals() -> None:
    """From now on a signal does nothing here. A program that is started inherits none of that (execve(2))."""
    _handle(lambda _number, _frame: None)


def _handle(handler: Callable[[int, FrameType | None], None]) -> None:
    for number in FORWARDED:
        # Ignored from the start (nohup): so it is for the command, which inherits that.
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, handler)


def first_child(parent: int) -> int | None:
    """The oldest child of a process: bubblewrap's first process started the command before anything came back to it."""
    return next(iter(children(parent)), None)


def children(parent: int) -> list[int]:
    """The children of a process, the oldest first."""
    found: list[tuple[int, int]] = []
    for name in os.listdir("/proc"):
        if not name.isdigit():
            continue
        try:
            with open(f"/proc/{name}/stat", "rb") as file:
                # The command name is in parentheses and may hold anything, `)` too: proc(5).
                fields = file.read().rpartition(b")")[2].split()
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            # Gone meanwhile, or somebody else's where /proc is mounted with hidepid=1.
            continue
        if int(fields[1]) == parent:
            found.append((int(fields[19]), int(name)))
    return [process for _, process in sorted(found)]
