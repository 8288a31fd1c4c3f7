"""What happens between the start of a command and its end: bytes and signals pass, and it is seen to that it ends."""

from __future__ import annotations

import time
from collections.abc import Callable

from policyfs.sandbox import terminal
from policyfs.sandbox.command import Command
from policyfs.sandbox.signals import FORWARDED, TO_ITS_GROUP, Arrival, Arrivals, EndTimer
from policyfs.sandbox.streams import Streams

_FIRST_LOOK_SECONDS, _LONGEST_LOOK_SECONDS = 0.005, 0.5
"""Between two looks whether the sandbox is made and the command started, of which nothing tells: at first, and at most."""

_DRAIN_SECONDS = 5.0
"""A terminal that takes nothing does not hold us longer once the command has ended. A reader of a pipe may take their
time: what the command has written is theirs."""


class Course:
    """The course of one command."""

    def __init__(self, streams: Streams) -> None:
        self._streams = streams
        self._arrivals = Arrivals(*(terminal.SIGNALS if streams.terminal is not None else ()))
        self._end_timer = EndTimer()
        self._look_seconds = _FIRST_LOOK_SECONDS
        self._command_ended = False
        self.ended_by: int | None = None
        """The signal that ended the sandbox before there was a command, or the passing on after its end."""
        self.status: int | None = None
        """The exit status of the command as the kernel keeps it, where it had to be asked for."""

    def until_ended(self, command: Command, gone: int, end_sandbox: Callable[[], None]) -> None:
        """Pass bytes and signals on until nothing of the sandbox is left, of which `gone` tells, a descriptor that can be
        read then. `end_sandbox` kills what is left."""
        while True:
            watched = {gone, self._arrivals.descriptor}
            if command.pidfd is not None and not self._command_ended:
                watched.add(command.pidfd)
            ready = self._streams.turn(self._limit(command), watched) or set()
            if gone in ready:
                return
            if not self._command_ended:
                self._look_at(command, ended=command.pidfd in ready)
            if self._arrivals.descriptor in ready:
                for arrival in self._arrivals.read():
                    self._heard(arrival, command)
            if self._end_timer.deadline is not None and time.monotonic() >= self._end_timer.deadline:
                self.status = command.status() if self.status is None else self.status
                end_sandbox()
                self._end_timer.ended_by_force()

    def deliver(self) -> None:
        """Pass on what is left of the output, now that nobody is there to write more. A reader may take its time, unless a
        signal asks for the end of the run or has asked for it while the command was there."""
        self._streams.command_is_gone()
        while True:
            left, to_terminal_only = self._streams.left()
            if not left:
                return
            limits = [_DRAIN_SECONDS] if to_terminal_only else []
            deadline, now = self._end_timer.output_deadline, time.monotonic()
            if deadline is not None:
                if now >= deadline:
                    self.ended_by = self._end_timer.asked_by
                    return
                limits.append(deadline - now)
            ready = self._streams.turn(min(limits, default=None), {self._arrivals.descriptor})
            if ready is None and to_terminal_only:
                return
            for arrival in self._arrivals.read():
                self._end_timer.heard_after_command(arrival, time.monotonic())
                self._tell_terminal(arrival)

    def _limit(self, command: Command) -> float | None:
        limits = []
        if command.pidfd is None and not self._command_ended:
            limits.append(self._look_seconds)
        if self._end_timer.deadline is not None:
            limits.append(max(0.0, self._end_timer.deadline - time.monotonic()))
        return min(limits, default=None)

    def _heard(self, arrival: Arrival, command: Command) -> None:
        if arrival.number not in FORWARDED:
            self._tell_terminal(arrival)
        elif self._command_ended:
            self._end_timer.heard_after_command(arrival, time.monotonic())
        elif command.find():
            command.send(arrival.number, to_group=arrival.number in TO_ITS_GROUP)
            self._end_timer.heard(arrival, time.monotonic())
        else:
            self.ended_by = self.ended_by or arrival.number
            command.end_before_start()

    def _tell_terminal(self, arrival: Arrival) -> None:
        if self._streams.terminal is not None:
            self._streams.terminal.heard(arrival.number)

    def _look_at(self, command: Command, *, ended: bool) -> None:
        if command.find():
            self._command_ended = ended
        else:
            # It may have ended between two looks.
            self._command_ended = command.is_over
            self._look_seconds = min(2 * self._look_seconds, _LONGEST_LOOK_SECONDS)
        if self._command_ended:
            self.status = command.status()
            self._end_timer.command_ended(time.monotonic(), status_known=self.status is not None)
