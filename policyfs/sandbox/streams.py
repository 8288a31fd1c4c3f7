"""Standard input, output and error of a command: what it is given in their place, and the passing on between.

Whoever holds a descriptor can open the file behind it again through /proc/self/fd, with every right that the file's mode
gives, whatever the descriptor itself allows. So a command holds none of the machine's files: a terminal is replaced by
one of its own, a file by a pipe, and so is a device, unless every sandbox has one of its kind. Pipes and sockets are
handed on: nothing but their own ends can be had through them.
"""

from __future__ import annotations

import os
import select
import signal
import stat
from dataclasses import dataclass, field
from enum import Enum

from policyfs.sandbox.terminal import Terminal

_CHUNK = 1 << 16
_TERMINAL_CHUNK = 1 << 10
"""A terminal takes at least so much when it says that it is ready; more could block, since the person's terminal is not
ours to make non-blocking."""

_BACKGROUND_SECONDS = 1.0
"""Between two looks whether the person's shell has given its terminal to us: not every shell tells of it (SIGCONT)."""

_DRAIN_SECONDS = 5.0
"""For what is still under way when all who could write are gone; a terminal that takes nothing does not hold us longer."""


class Treatment(Enum):
    """What is done with a standard descriptor."""

    TERMINAL = "a terminal of the command's own"
    PIPE = "a pipe, copied from or to the file or device"
    PASSED = "handed on"
    REFUSED = "refused: the tree around it could be reached"


_HARMLESS = {os.makedev(1, minor) for minor in (3, 5, 7, 8, 9)}
"""null, zero, full, random and urandom, by the kernel's devices.txt."""


def treatment(mode: int, device: int = 0, *, is_terminal: bool) -> Treatment:
    """What is done with a descriptor, by the kind of what is behind it (st_mode, st_rdev)."""
    if is_terminal:
        return Treatment.TERMINAL
    if stat.S_ISREG(mode) or (stat.S_ISCHR(mode) and device not in _HARMLESS):
        return Treatment.PIPE
    if stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode) or stat.S_ISCHR(mode):
        return Treatment.PASSED
    return Treatment.REFUSED


class RefusedStream(ValueError):
    """A standard descriptor that no command may have."""


@dataclass(slots=True)
class _Flow:
    """Bytes on their way from one descriptor to another."""

    source: int
    sink: int
    chunk: int = _CHUNK
    close_sink: bool = False
    """A pipe's reader must see its end; a terminal and a file stay."""
    from_command: bool = True
    is_terminal: bool = False
    """A terminal that nobody reads would stop its programs: what cannot be shown is dropped."""
    is_keyboard: bool = False
    """What a person types is ours as long as their terminal is: read in the background it would stop this process."""
    held: bytearray = field(default_factory=bytearray)
    source_ended: bool = False
    sink_ended: bool = False

    @property
    def over(self) -> bool:
        return (self.sink_ended and not self.is_terminal) or (self.source_ended and not self.held)

    def read(self) -> None:
        try:
            part = os.read(self.source, self.chunk)
        except BlockingIOError:
            return
        except OSError:
            # The master of a terminal that nobody has open any more answers EIO; a terminal that went away, too.
            part = b""
        if not part:
            self.source_ended = True
        elif not self.sink_ended:
            self.held += part

    def write(self) -> None:
        try:
            written = os.write(self.sink, memoryview(self.held)[: self.chunk].tobytes())
        except BlockingIOError:
            return
        except OSError:
            # Nobody reads, or the disk is full: whoever writes is to hear of it as they would without us.
            self.sink_ended = True
            self.held.clear()
            return
        del self.held[:written]


class Streams:
    """The three descriptors for a command, and what is copied while it runs."""

    def __init__(self) -> None:
        """Look at what this process has, all three of them open. Raises `RefusedStream`."""
        kinds = []
        for standard, name in enumerate(("input", "output", "error")):
            status = os.fstat(standard)
            kind = treatment(status.st_mode, status.st_rdev, is_terminal=os.isatty(standard))
            if kind is Treatment.REFUSED:
                raise RefusedStream(f"standard {name} is a directory or a disk, through which more could be reached than it")
            kinds.append(kind)
        self.terminal: Terminal | None = None
        self.given = [0, 1, 2]
        """What the command gets as 0, 1 and 2."""
        self._flows: list[_Flow] = []
        self._own: list[int] = []
        """Those of them that are ours to close once the command has them."""
        self._woken = -1
        self._for_terminals([standard for standard in range(3) if kinds[standard] is Treatment.TERMINAL])
        if kinds[0] is Treatment.PIPE:
            read, write = os.pipe()
            self._own.append(read)
            self.given[0] = read
            os.set_blocking(write, False)
            self._flows.append(_Flow(0, write, close_sink=True, from_command=False))
        self._for_files([standard for standard in (1, 2) if kinds[standard] is Treatment.PIPE])

    @property
    def controls(self) -> bool:
        """Whether the command's terminal is to control it: where its keyboard is, there Ctrl-C is typed."""
        return self.terminal is not None and self.given[0] == self.terminal.slave

    def _for_terminals(self, standards: list[int]) -> None:
        if not standards:
            return
        shown_on = next((standard for standard in (1, 2, 0) if standard in standards), 0)
        self.terminal = terminal = Terminal(standards[0], has_keyboard=0 in standards)
        for standard in standards:
            self.given[standard] = terminal.slave
        if 0 in standards:
            self._flows.append(_Flow(0, terminal.master, from_command=False, is_keyboard=True))
        self._flows.append(_Flow(terminal.master, shown_on, _TERMINAL_CHUNK, is_terminal=True))

    def _for_files(self, standards: list[int]) -> None:
        """One pipe for output and error where both are one file, or their order would be lost."""
        pipes: dict[tuple[int, int], int] = {}
        for standard in standards:
            status = os.fstat(standard)
            file = (status.st_dev, status.st_ino)
            if file not in pipes:
                read, pipes[file] = os.pipe()
                self._own.append(pipes[file])
                self._flows.append(_Flow(read, standard))
            self.given[standard] = pipes[file]

    def started(self) -> None:
        """The command has its descriptors; ours are closed, so that the end of its output can be seen."""
        for descriptor in self._own:
            os.close(descriptor)
        self._own = []
        # Python runs a handler between two of its own steps. A signal just before `poll` would wait for whatever ends
        # that; the interpreter's own C handler writes here at once.
        self._woken, waking = os.pipe()
        for descriptor in (self._woken, waking):
            os.set_blocking(descriptor, False)
        signal.set_wakeup_fd(waking, warn_on_full_buffer=False)
        if self.terminal is not None:
            self.terminal.follow()

    def pass_on_until(self, ended: int) -> None:
        """Copy until this descriptor can be read, which tells that the command has ended."""
        while not self._turn(None, ended):
            pass

    def drain(self) -> None:
        """Copy what is left, once nobody is there to write more."""
        if self.terminal is not None:
            # Held until now, so that a program may close its terminal and open it again.
            os.close(self.terminal.slave)
        for flow in self._flows:
            if not flow.from_command:
                flow.source_ended = True
                flow.held.clear()
        while any(not flow.over for flow in self._flows):
            if self._turn(_DRAIN_SECONDS, None):
                break

    def give_back(self) -> None:
        """Leave the person's terminal as it was."""
        if self.terminal is not None:
            self.terminal.give_back()

    def _turn(self, seconds: float | None, ended: int | None) -> bool:
        """Wait for something to copy, and copy it. True where `ended` has, or where nothing came in time."""
        away = self._keyboard_is_away()
        waiting = select.poll()
        waiting.register(self._woken, select.POLLIN)
        if ended is not None:
            waiting.register(ended, select.POLLIN)
        readers = {
            flow.source: flow
            for flow in self._flows
            if not flow.source_ended and len(flow.held) < _CHUNK and not (away and flow.is_keyboard)
        }
        writers = {flow.sink: flow for flow in self._flows if flow.held}
        for descriptor in readers.keys() | writers.keys():
            wanted = (select.POLLIN if descriptor in readers else 0) | (select.POLLOUT if descriptor in writers else 0)
            waiting.register(descriptor, wanted)
        limit = _BACKGROUND_SECONDS if seconds is None and away else seconds
        happened = dict(waiting.poll(None if limit is None else limit * 1000))
        if self._woken in happened:
            os.read(self._woken, _CHUNK)
        for descriptor, events in happened.items():
            if descriptor in readers and events & (select.POLLIN | select.POLLHUP | select.POLLERR):
                readers[descriptor].read()
            if descriptor in writers and events & (select.POLLOUT | select.POLLERR | select.POLLHUP):
                writers[descriptor].write()
        for flow in [flow for flow in self._flows if flow.over]:
            self._end(flow)
        return ended in happened or (seconds is not None and not happened)

    def _keyboard_is_away(self) -> bool:
        """Whether the person types for another program. Where they do not, their terminal is taken."""
        if self.terminal is None or not any(flow.is_keyboard and not flow.source_ended for flow in self._flows):
            return False
        self.terminal.take()
        return not self.terminal.in_foreground()

    def _end(self, flow: _Flow) -> None:
        self._flows.remove(flow)
        if flow.close_sink:
            os.close(flow.sink)
        if flow.from_command and not flow.is_terminal:
            # A pipe of ours that can be written no further: its writer gets SIGPIPE.
            os.close(flow.source)
