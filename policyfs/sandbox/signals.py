"""Signals to `policyfs run` are meant for the command."""

from __future__ import annotations

import ctypes
import os
import signal
import struct
from collections.abc import Callable
from dataclasses import dataclass
from types import FrameType

FORWARDED = (
    signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
)  # fmt: skip
"""What is passed on to the command; all other signals do to `policyfs run` what they do to any program."""

TO_ITS_GROUP = (signal.SIGINT, signal.SIGQUIT)
"""What a terminal sends to every process of its foreground, not to the first alone."""

ASK_TO_END = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)
"""The sender of one of these wants the end. The command gets the signal, and `STOP_SECONDS`."""

ENDING = (*ASK_TO_END, signal.SIGQUIT)
"""What ends the wait for a reader of the output, once the command itself has ended."""

STOP_SECONDS = 10.0
"""As `docker stop` and `podman stop` wait before they kill."""

INSIST_TIMES, INSIST_SECONDS = 3, 3.0
"""Ctrl-C at a terminal is a key of the command's, which may go on. Pressed so often in so many seconds it ends the run
(`docker run` gives up at the third)."""

END_SECONDS = 2.0
"""For the sandbox to be gone once the command has ended and its status is known, before it is ended by force; and for a
reader to take the rest of the output once the time of the command is over."""

_SIGSET_SIZE = 128
"""sizeof(sigset_t) of glibc and musl."""
_SIGINFO_SIZE = 128
"""sizeof(struct signalfd_siginfo): signalfd(2)."""
_SI_KERNEL = 0x80
"""sigaction(2)."""


class EndedBySignal(Exception):
    """A signal that came before there was a command."""

    def __init__(self, number: int) -> None:
        self.number = number
        super().__init__(signal.Signals(number).name)


class Ending:
    """What a signal does while there is no command yet: it raises `EndedBySignal`, so that what was begun is cleared
    away. Until `from_now_on` it is only noted: there is nothing to clear away yet."""

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


@dataclass(frozen=True, slots=True)
class Arrival:
    """A signal that has come."""

    number: int
    typed: bool
    """Whether the kernel sent it, as it does when somebody presses Ctrl-C at a terminal, and not another process."""


class Arrivals:
    """The signals to `policyfs run`, from now on to be read from a descriptor (signalfd(2)). A signal that comes just before
    a wait ends that wait, and it names the sender; a handler can do neither."""

    def __init__(self, *more: signal.Signals) -> None:
        """Take those that are forwarded, and `more`. What is ignored from the start (nohup) stays so."""
        taken = {number for number in FORWARDED if signal.getsignal(number) is not signal.SIG_IGN} | set(more)
        signal.pthread_sigmask(signal.SIG_BLOCK, taken)
        library = ctypes.CDLL(None, use_errno=True)
        wanted = ctypes.create_string_buffer(_SIGSET_SIZE)
        library.sigemptyset(wanted)
        for number in taken:
            library.sigaddset(wanted, int(number))
        self.descriptor: int = library.signalfd(-1, wanted, os.O_CLOEXEC | os.O_NONBLOCK)
        if self.descriptor < 0:
            raise OSError(ctypes.get_errno(), "signalfd")

    def read(self) -> list[Arrival]:
        """What has come since the last time."""
        try:
            text = os.read(self.descriptor, _SIGINFO_SIZE * 64)
        except BlockingIOError:
            return []
        found = (struct.unpack_from("=Iii", text, at) for at in range(0, len(text), _SIGINFO_SIZE))
        return [Arrival(number, typed=code == _SI_KERNEL) for number, _, code in found]


class EndTimer:
    """When a run that was asked to end is ended by force. Pure: the caller says what happens, and when, by a clock in
    seconds that only goes forward.

    There are two deadlines, since a run can be held up twice: by what is in the sandbox, and by a reader of the output. A
    request to end sets both: the command may end at once, and its output still wait for a reader that does not read.
    """

    def __init__(self) -> None:
        self.deadline: float | None = None
        """When the sandbox is ended by force."""
        self.output_deadline: float | None = None
        """When no reader of the output is waited for any longer; None while nobody has asked for the end."""
        self.asked_by: int | None = None
        """The signal that set it."""
        self._typed: list[float] = []

    def heard(self, arrival: Arrival, now: float) -> None:
        """A signal has come, and was forwarded to the command."""
        if arrival.number == signal.SIGINT and arrival.typed:
            self._typed = [*(then for then in self._typed if now - then < INSIST_SECONDS), now]
            if len(self._typed) >= INSIST_TIMES:
                self._asked(arrival.number, now)
        elif arrival.number in ASK_TO_END:
            self._asked(arrival.number, now + STOP_SECONDS)

    def heard_after_command(self, arrival: Arrival, now: float) -> None:
        """A signal has come once the command had ended, so it is for the run itself."""
        if arrival.number in ENDING:
            self._stop_output(arrival.number, now)

    def command_ended(self, now: float, *, status_known: bool) -> None:
        """The command has ended. What it started is killed with it, which takes a moment. If only the first process of the
        sandbox knows the status, it is given more time to tell it: on a busy machine it may have to wait for its turn."""
        self._wait_until(now + (END_SECONDS if status_known else STOP_SECONDS))

    def ended_by_force(self) -> None:
        """The sandbox was killed, which needs no second time."""
        self.deadline = None

    def _asked(self, number: int, then: float) -> None:
        self._wait_until(then)
        # What a sandbox that is ended by force has left is still passed on to a reader that reads.
        self._stop_output(number, then + END_SECONDS)

    def _wait_until(self, then: float) -> None:
        self.deadline = then if self.deadline is None else min(self.deadline, then)

    def _stop_output(self, number: int, then: float) -> None:
        if self.output_deadline is None or then < self.output_deadline:
            self.output_deadline, self.asked_by = then, number


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
    """The oldest child of a process."""
    try:
        with open(f"/proc/{parent}/task/{parent}/children", "rb") as file:
            listed = file.read().split()
    except ProcessLookupError:
        return None
    except OSError:
        # A kernel without CONFIG_PROC_CHILDREN, or no such process.
        return next(iter(children(parent)), None)
    return int(listed[0]) if listed else None


def children(parent: int) -> list[int]:
    """The children of a process, the oldest first."""
    found: list[tuple[int, int]] = []
    for name in os.listdir("/proc"):
        fields = status_fields(int(name)) if name.isdigit() else None
        if fields is not None and int(fields[1]) == parent:
            found.append((int(fields[19]), int(name)))
    return [process for _, process in sorted(found)]


def status_fields(process: int) -> list[bytes] | None:
    """/proc/PID/stat from the third field on, the state; None where there is no such process, or it may not be seen (/proc
    mounted with hidepid=1)."""
    try:
        with open(f"/proc/{process}/stat", "rb") as file:
            # The name of the program is in parentheses and may hold anything, `)` too: proc_pid_stat(5).
            return file.read().rpartition(b")")[2].split()
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None
