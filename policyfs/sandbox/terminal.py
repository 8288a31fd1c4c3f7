"""The person's terminal, and the terminal of its own that a command gets in its place.

A program that holds a terminal can type into it (TIOCSTI), read what is typed for others and change its settings. So the
command holds another one, whose keys and output are passed on. The person's is set to pass every key unchanged; what a
key means, Ctrl-C for instance, is decided by the command's terminal, where a program may change it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import termios
import tty
from types import FrameType


class Terminal:
    """A pair: `outer` is the person's, as a descriptor of ours; `master` and `slave` are the command's."""

    def __init__(self, outer: int, *, has_keyboard: bool) -> None:
        """`has_keyboard`: whether the command reads from it, so that keys are passed on."""
        self.outer = outer
        self.master, self.slave = os.openpty()
        os.set_blocking(self.master, False)
        self._has_keyboard = has_keyboard
        self._settings = termios.tcgetattr(outer)
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
                self._settings = termios.tcgetattr(self.outer)
                tty.setraw(self.outer, termios.TCSADRAIN)
                self._is_raw = True

    def give_back(self) -> None:
        """Set the person's terminal as it was."""
        if self._is_raw:
            self._is_raw = False
            with contextlib.suppress(termios.error):
                termios.tcsetattr(self.outer, termios.TCSADRAIN, self._settings)

    def follow(self) -> None:
        """From now on follow the window's size, and leave the terminal to others while this process is stopped."""
        signal.signal(signal.SIGWINCH, self._resized)
        signal.signal(signal.SIGTSTP, self._stopped)
        signal.signal(signal.SIGCONT, self._continued)
        self.take()

    def in_foreground(self) -> bool:
        """Whether what is typed is for us."""
        try:
            return os.tcgetpgrp(self.outer) == os.getpgrp()
        except OSError:
            # Not our controlling terminal: nobody else's foreground either.
            return True

    def _resized(self, _number: int, _frame: FrameType | None) -> None:
        self.resize()

    def _stopped(self, _number: int, _frame: FrameType | None) -> None:
        self.give_back()
        os.kill(os.getpid(), signal.SIGSTOP)

    def _continued(self, _number: int, _frame: FrameType | None) -> None:
        self.take()
        self.resize()
