"""The command, as `policyfs run` sees it from outside the sandbox, and what starts it inside.

Theory. Nothing that the command starts may decide the exit status of a run or keep it from ending (rule run-10). The kernel
tells the exit status of a process to its parent alone, so the parent must be out of reach of the command.

That parent is the first process of the sandbox's pid namespace. bubblewrap brings one, but it has exactly the rights of
the command: any descendant may trace it, and take the eventfd by which it tells the status. So bubblewrap runs ours in its
place (--as-pid-1): a shell that starts the command, waits for it (and for every orphan, as a first process must) and ends
with its status, which bubblewrap reads by wait(2). Ours is out of reach for these reasons:

* It keeps a capability that the command gives up. Tracing a process, reading or writing its memory, taking a descriptor of
  it, and changing its priority or its processors are refused to a process that lacks a capability of it (ptrace(2),
  "Ptrace access mode checking"; sched_setaffinity(2)). The capability is CAP_SETPCAP, within the sandbox's user namespace:
  a process that has it can give up more, and nothing else.
* The kernel drops every signal from inside that the first process does not handle, SIGKILL and SIGSTOP among them
  (pid_namespaces(7)). Shells handle SIGINT; ours does nothing about it.
* Its limits can be set by any process of its user (prlimit(2)), but it opens, writes and allocates nothing after the start.

Should it not get on all the same, `policyfs run` sees the end of the command by a pidfd, and the kernel keeps the exit
status of a process that nobody has waited for where we can read it (proc_pid_stat(5)).
"""

from __future__ import annotations

import contextlib
import os
import signal

from policyfs.sandbox.signals import first_child, status_fields

CAPABILITY = b"CAP_SETPCAP"
"""What the first process keeps: capabilities(7)."""

_FIRST = b'trap : INT; exec 3>&2 2>/dev/null; (exec "$@" 2>&3 3>&-); exit "$?"'
"""A shell would write to standard error which signal ended the command. SIGINT is handled and not ignored: the command
would inherit that."""

_IS_EXITING = 0x4
"""PF_EXITING of proc_pid_stat(5), `flags`."""
_STATE, _PARENT, _FLAGS, _EXIT_CODE = 0, 1, 6, 49
"""Where they stand in `status_fields`."""


def launcher(setpriv: bytes, setsid: bytes, *, has_terminal: bool) -> list[bytes]:
    """The words before those of the command, for bubblewrap to execute as the first process.

    setpriv takes the capability away from the command, setsid gives it a session of its own, with its terminal where it
    has one. They answer 126 and 127 as shells do.
    """
    first = [b"/bin/sh", b"-c", _FIRST, b"sh"]
    without = [b"--inh-caps=-setpcap", b"--ambient-caps=-setpcap", b"--bounding-set=-setpcap"]
    return [*first, setpriv, *without, b"--", setsid, *([b"--ctty"] if has_terminal else []), b"--"]


class Command:
    """The process of the command, once it is there."""

    def __init__(self, first: int) -> None:
        """`first` is the first process of its pid namespace, by our numbering."""
        self._first = first
        self._process: int | None = None
        self.pidfd: int | None = None
        """Can be read once the command has ended, whether or not somebody has waited for it. None while the command is
        not known."""

    def find(self) -> bool:
        """Look for the command, if it is not known yet. Says whether it is."""
        if self.pidfd is None:
            process = first_child(self._first)
            if process is not None:
                with contextlib.suppress(ProcessLookupError):
                    pidfd = os.pidfd_open(process)
                    if first_child(self._first) == process:
                        self._process, self.pidfd = process, pidfd
                    else:
                        os.close(pidfd)
        return self.pidfd is not None

    def send(self, number: int, *, to_group: bool) -> None:
        """Send the command a signal, or to its process group. Nothing happens where it has ended."""
        if self.pidfd is None or self._process is None:
            return
        with contextlib.suppress(ProcessLookupError, PermissionError):
            if to_group:
                os.killpg(os.getpgid(self._process), number)
            else:
                signal.pidfd_send_signal(self.pidfd, number)

    def end_before_start(self) -> None:
        """Kill the first process, and with it the sandbox, so that the command does not start."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(self._first, signal.SIGKILL)

    @property
    def is_over(self) -> bool:
        """Whether the first process is at its end, which waits for that of every other process of the sandbox."""
        fields = status_fields(self._first)
        return fields is None or bool(int(fields[_FLAGS]) & _IS_EXITING)

    def status(self) -> int | None:
        """The exit status that the kernel keeps: of the command, if it has ended and nobody has waited for it; else of the
        first process, which ends with the command's. None where there is neither."""
        if self._process is not None:
            fields = status_fields(self._process)
            if fields is not None and fields[_STATE] == b"Z" and int(fields[_PARENT]) == self._first:
                return _exit_status(int(fields[_EXIT_CODE]))
        fields = status_fields(self._first)
        if fields is not None and int(fields[_FLAGS]) & _IS_EXITING:
            return _exit_status(int(fields[_EXIT_CODE]))
        return None


def _exit_status(code: int) -> int:
    """As shells tell it, from what wait(2) gives."""
    return 128 + os.WTERMSIG(code) if os.WIFSIGNALED(code) else os.WEXITSTATUS(code)
