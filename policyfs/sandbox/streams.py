"""Standard input, output and error of a command: what it is given in their place, and the passing on between.

A process that has a descriptor can open its file again through /proc/self/fd, with every right that its mode gives,
whatever the descriptor itself allows: a file that was open for appending can be cut, and of a pipe that was open for
writing, what others write into it can be read. So a command holds nothing of its caller's (rule run-9): a terminal is
replaced by one of its own, a device of which every sandbox has one by another descriptor of it, and everything else by
a pipe.
"""

from __future__ import annotations

import fcntl
import os
import select
import stat
from enum import Enum

from policyfs.sandbox.flows import Copy, Flow, ToTerminal, from_caller, to_caller
from policyfs.sandbox.terminal import Terminal

_BACKGROUND_SECONDS = 1.0
"""Between two looks whether the person's shell has given its terminal to us: not every shell tells of it (SIGCONT)."""

_NAMES = ("standard input", "standard output", "standard error")


class Treatment(Enum):
    """What is done with a standard descriptor."""

    TERMINAL = "a terminal of the command's own"
    DEVICE = "the same device, opened again"
    PIPE = "a pipe, to which or from which bytes are passed on"
    REFUSED = "refused: the tree around it could be reached"


_DEVICES = {
    os.makedev(1, 3): "/dev/null",
    os.makedev(1, 5): "/dev/zero",
    os.makedev(1, 7): "/dev/full",
    os.makedev(1, 8): "/dev/random",
    os.makedev(1, 9): "/dev/urandom",
}
"""Those that every sandbox has, by the kernel's devices.txt."""


def treatment(mode: int, device: int = 0, *, is_terminal: bool) -> Treatment:
    """What is done with a descriptor, by the kind of what is behind it (st_mode, st_rdev)."""
    if is_terminal:
        return Treatment.TERMINAL
    if stat.S_ISCHR(mode) and device in _DEVICES:
        return Treatment.DEVICE
    if stat.S_ISREG(mode) or stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode):
        return Treatment.PIPE
    return Treatment.REFUSED


class RefusedStream(ValueError):
    """A standard descriptor that no command may have."""


class Streams:
    """The three descriptors for a command, and what is passed on while it runs."""

    def __init__(self) -> None:
        """Look at what this process has, all three of them open. Raises `RefusedStream`."""
        kinds = []
        for standard, name in enumerate(_NAMES):
            status = os.fstat(standard)
            kind = treatment(status.st_mode, status.st_rdev, is_terminal=os.isatty(standard))
            if kind is Treatment.REFUSED:
                raise RefusedStream(f"{name} is a directory or a disk, through which more could be reached than it")
            kinds.append(kind)
        self.terminal: Terminal | None = None
        self.given = [0, 1, 2]
        """What the command gets as 0, 1 and 2."""
        self._flows: list[Flow] = []
        self._over: list[Flow] = []
        self._keyboard: Copy | None = None
        self._own: list[int] = []
        """Those of `given` that are to be closed once the command has them."""
        for standard in range(3):
            if kinds[standard] is Treatment.DEVICE:
                self._reopen(standard)
        self._for_terminals([standard for standard in range(3) if kinds[standard] is Treatment.TERMINAL])
        if kinds[0] is Treatment.PIPE:
            self._for_input()
        self._for_output([standard for standard in (1, 2) if kinds[standard] is Treatment.PIPE])

    @property
    def controls(self) -> bool:
        """Whether the command's terminal is to control it: where its keyboard is, there Ctrl-C is typed."""
        return self.terminal is not None and self.given[0] == self.terminal.slave

    def _reopen(self, standard: int) -> None:
        how = fcntl.fcntl(standard, fcntl.F_GETFL) & os.O_ACCMODE
        self.given[standard] = os.open(_DEVICES[os.fstat(standard).st_rdev], how)
        self._own.append(self.given[standard])

    def _for_terminals(self, standards: list[int]) -> None:
        if not standards:
            return
        shown_on = next((standard for standard in (1, 2, 0) if standard in standards), 0)
        self.terminal = terminal = Terminal(standards[0], shown_on, has_keyboard=0 in standards)
        for standard in standards:
            self.given[standard] = terminal.slave
        if 0 in standards:
            self._keyboard = Copy(0, terminal.master)
            self._flows.append(self._keyboard)
        self._flows.append(ToTerminal(terminal.master, shown_on, terminal.shown))

    def _for_input(self) -> None:
        # The reading end stays open: it tells what the command has left in the pipe.
        self.given[0], write = os.pipe()
        os.set_blocking(write, False)
        self._flows.append(from_caller(0, write, self.given[0]))

    def _for_output(self, standards: list[int]) -> None:
        """One pipe for output and error where both lead to the same place, or their order would be lost."""
        pipes: dict[tuple[int, int], int] = {}
        for standard in standards:
            status = os.fstat(standard)
            place = (status.st_dev, status.st_ino)
            if place not in pipes:
                # The command may open its end again and read from it: a read of ours that finds nothing may not wait.
                read, pipes[place] = os.pipe()
                os.set_blocking(read, False)
                self._own.append(pipes[place])
                self._flows.append(to_caller(read, standard))
            self.given[standard] = pipes[place]

    def started(self) -> None:
        """The command has its descriptors; ours are closed, so that the end of its output can be seen."""
        for descriptor in self._own:
            os.close(descriptor)
        self._own = []
        if self.terminal is not None:
            self.terminal.take()

    def turn(self, seconds: float | None, watched: set[int]) -> set[int] | None:
        """Wait, for so long at most, for something to pass on or for one of `watched` to be readable; pass on what there is;
        give those of `watched` that are readable. None where nothing happened in that time."""
        if self._is_away():
            seconds = _BACKGROUND_SECONDS if seconds is None else min(seconds, _BACKGROUND_SECONDS)
        wanted = dict.fromkeys(watched, select.POLLIN)
        asking = [(flow, flow.wanted()) for flow in self._flows]
        for _, of_flow in asking:
            for descriptor, events in of_flow.items():
                wanted[descriptor] = wanted.get(descriptor, 0) | events
        waiting = select.poll()
        for descriptor, events in wanted.items():
            waiting.register(descriptor, events)
        happened = dict(waiting.poll(None if seconds is None else seconds * 1000))
        for flow, of_flow in asking:
            if not happened.keys().isdisjoint(of_flow):
                flow.happened(happened)
        self._close_ended()
        return watched & happened.keys() if happened else None

    def command_is_gone(self) -> None:
        """Nobody is there to write more, or to read."""
        if self.terminal is not None:
            # Held until now, so that a program may close its terminal and open it again.
            os.close(self.terminal.slave)
        self._keyboard = None
        for flow in [*self._flows, *self._over]:
            flow.settle()
        self._flows = [flow for flow in self._flows if self._is_from_command(flow)]

    def left(self) -> tuple[bool, bool]:
        """Whether something is still to be passed on to the caller, and whether that is to a terminal only."""
        # What a terminal has left shows in its end, not in what can be read now: the kernel passes it on by and by.
        to_terminal = any(isinstance(flow, ToTerminal) for flow in self._flows)
        others = any(flow.has_more for flow in self._flows if not isinstance(flow, ToTerminal))
        return to_terminal or others, not others

    def give_back(self) -> None:
        """Leave the person's terminal as it was."""
        if self.terminal is not None:
            self.terminal.give_back()

    def errors(self) -> list[str]:
        """What the caller's descriptors did not take, and why."""
        return [f"{_NAMES[flow.sink]}: {flow.error.strerror}" for flow in self._over if flow.error and flow.sink in (1, 2)]

    def _is_from_command(self, flow: Flow) -> bool:
        return flow.sink in (1, 2) or isinstance(flow, ToTerminal)

    def _is_away(self) -> bool:
        """Whether the person types for another program. Where they do not, their terminal is taken."""
        if self.terminal is None or self._keyboard is None or self._keyboard.over:
            return False
        self.terminal.take()
        self._keyboard.paused = not self.terminal.in_foreground()
        return self._keyboard.paused

    def _close_ended(self) -> None:
        for flow in [flow for flow in self._flows if flow.over]:
            self._flows.remove(flow)
            self._over.append(flow)
            flow.close()
