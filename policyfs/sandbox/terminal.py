"""The person's terminal, and the terminal of its own that a command gets in its place.

A program that holds a terminal can type into it (TIOCSTI), read what is typed for others and change its settings. So the
command holds another one, whose keys and output are passed on. The person's is set to pass every key unchanged; what a
key means, Ctrl-C for instance, is decided by the command's terminal, where a program may change it.

What a terminal answers it types. An answer that comes after the run would be read by the person's shell, and the command
can have a hand in its text (the title of a window). So where the command may have asked, the terminal is asked something
once more in the end, and whatever comes before the answer to that is dropped (rule run-11): terminals answer in order.
"""

from __future__ import annotations

import contextlib
import os
import re
import select
import signal
import termios
import time
import tty

from policyfs.sandbox.questions import Questions

SIGNALS = (signal.SIGWINCH, signal.SIGTSTP, signal.SIGCONT)
"""By this a terminal's programs find it."""

_IUTF8 = 0o40000
"""termios(3), c_iflag: the terminal reads and writes UTF-8."""

_LAST_QUESTION = b"\x1b\\\x1b[5n"
"""The end of a string, should one be open, and DSR of ECMA-48, which terminals have answered since the VT100."""
_LAST_ANSWER = re.compile(rb"(?:\x1b\[|\x9b|\xc2\x9b)\??[03]n")

_NO_REPORTS = b"\x1b[?9;1000;1001;1002;1003;1004;1005;1006;1015;1016;2031;2048l"
"""Of the mouse, of the focus, of colours and of the size, which a terminal types for as long as they are asked for."""

_ANSWER_SECONDS = 2.0
"""For a terminal that does not answer at all."""
_QUIET_SECONDS = 0.1
"""After the last answer. The command can have asked the same before, and then its answer is not the last."""


class Terminal:
    """A pair: `outer` is the person's, as a descriptor of ours; `master` and `slave` are the command's."""

    def __init__(self, outer: int, shown_on: int, *, has_keyboard: bool) -> None:
        """`shown_on` is the same terminal, as a descriptor that output goes to. `has_keyboard`: whether the command reads
        from it, so that keys are passed on."""
        self.outer = outer
        self.master, self.slave = os.openpty()
        os.set_blocking(self.master, False)
        self._shown_on = shown_on
        self._has_keyboard = has_keyboard
        self._settings = termios.tcgetattr(outer)
        self._questions = Questions(utf8=bool(self._settings[0] & _IUTF8))
        self.shown = self._questions.shown
        """Called with everything that is shown."""
        self._is_raw = False
        settings = termios.tcgetattr(outer)
        if not has_keyboard:
            # The person's terminal stays as it is, and ends lines itself.
            settings[1] &= ~termios.OPOST
        termios.tcsetattr(self.slave, termios.TCSANOW, settings)
        self.resize()

    def resize(self) -> None:
        """Give the command's terminal the size of the person's; the kernel tells the programs in it."""
        with contextlib.suppress(termios.error):
            termios.tcsetwinsize(self.master, termios.tcgetwinsize(self.outer))

    def take(self) -> None:
        """Have the person's terminal pass every key on. Not from the background: there it belongs to another program."""
        if self._has_keyboard and not self._is_raw and self.in_foreground():
            with contextlib.suppress(termios.error):
                self._set_raw()

    def give_back(self) -> None:
        """Set the person's terminal as it was, with nothing in it that it answers to the command."""
        with contextlib.suppress(termios.error, OSError):
            asked = self._questions.asked and self.in_foreground()
            if asked:
                if not self._is_raw:
                    self._set_raw()
                self._await_answers(_NO_REPORTS + _LAST_QUESTION)
            self._restore(asked=asked)

    def stop(self) -> None:
        """SIGTSTP came: stop this process, and leave the terminal to others as long."""
        with contextlib.suppress(termios.error, OSError):
            asked = self._questions.asked and self._is_raw and self.in_foreground()
            if asked:
                self._await_answers(_LAST_QUESTION)
            self._restore(asked=asked)
        os.kill(os.getpid(), signal.SIGSTOP)

    def heard(self, number: int) -> None:
        """One of `SIGNALS` has come."""
        if number == signal.SIGTSTP:
            self.stop()
        if number == signal.SIGCONT:
            self.take()
        self.resize()

    def in_foreground(self) -> bool:
        """Whether what is typed is for us."""
        try:
            return os.tcgetpgrp(self.outer) == os.getpgrp()
        except OSError:
            # Not our controlling terminal: nobody else's foreground either.
            return True

    def _set_raw(self) -> None:
        self._settings = termios.tcgetattr(self.outer)
        tty.setraw(self.outer, termios.TCSADRAIN)
        self._is_raw = True

    def _restore(self, *, asked: bool) -> None:
        if self._is_raw:
            self._is_raw = False
            # What was typed ahead is the shell's, where it cannot be an answer.
            termios.tcsetattr(self.outer, termios.TCSAFLUSH if asked else termios.TCSADRAIN, self._settings)

    def _await_answers(self, question: bytes) -> None:
        """Ask, and drop everything until the answer; not for long."""
        if not _is_ready(self._shown_on, select.POLLOUT, 0):
            return
        os.write(self._shown_on, question)
        until = time.monotonic() + _ANSWER_SECONDS
        came = b""
        while _is_ready(self.outer, select.POLLIN, until - time.monotonic()):
            part = os.read(self.outer, 1 << 12)
            if not part:
                return
            # Enough to find an answer that was cut.
            came = came[-8:] + part
            if _LAST_ANSWER.search(came):
                until = min(until, time.monotonic() + _QUIET_SECONDS)
                came = b""


def _is_ready(descriptor: int, event: int, seconds: float) -> bool:
    waiting = select.poll()
    waiting.register(descriptor, event)
    return any(events & event for _, events in waiting.poll(max(0, seconds * 1000)))
