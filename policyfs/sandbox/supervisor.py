"""The processes that see to the end of a run, after every kind of end.

Theory. A run leaves a mount, a daemon, a directory and the processes of a sandbox on the machine, and `policyfs run` may
be killed with SIGKILL at any time. So clearing away is done by two processes of its own, which a pipe wakes: the kernel
closes its other end whatever ends `policyfs run`. A normal end goes the same way, and `policyfs run` waits for it.

* The supervisor is forked before anything is mounted and waits for the lease, a pipe whose other end `policyfs run` and the
  reaper have. Then it tells the daemon to unmount, and removes the directory.
* The reaper is bubblewrap's parent. It ends when nothing of the sandbox is left, and with it its end of the lease, so
  that the command and everything it started is gone before the view is. What waits for a view that does not answer
  cannot be ended before that view is: after a while the reaper lets go of the lease, and waits on. The liveness pipe,
  whose other end only `policyfs run` has, tells it to kill the sandbox: when `policyfs run` ends, or asks for it. Should
  the reaper be killed, bubblewrap dies with it (--die-with-parent).

* A companion does something else for the run, the gateway of its network for instance. It ends with the lease, too.

bubblewrap is not a child of `policyfs run`, because it would die with that at any moment of its own start. Until the sandbox
is made its first process waits for it in a way that does not end with it (an eventfd that both have open), and nobody
has been told yet of that process: seen in 4 of 270 runs that were killed while they started, it stayed for good. The
reaper is a subreaper (prctl(2)): a process of the sandbox that loses its parent becomes its child, reported or not.

Processes are named by pidfd or by their parent, never by a number that may be somebody else's by then. Should the supervisor
be killed as well, the lock on the directory is free: the next run finds it and clears it away.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import subprocess
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass

from policyfs.host.errors import Exit, UserFault
from policyfs.host.harden import close_inherited, harden, prctl
from policyfs.sandbox.run_directory import RunDirectory
from policyfs.sandbox.signals import FORWARDED, children, disregard_signals

_TIMEOUT = 10.0
"""Seconds for a killed sandbox to be gone, and for a daemon to unmount, before harsher means."""

PR_SET_CHILD_SUBREAPER = 36
"""prctl(2)."""


class Supervisor:
    """The process that clears away, and the end of every other process of a run."""

    def __init__(self, directory: RunDirectory, daemon: int, log: str) -> None:
        """Fork. `daemon` is a pidfd of the mount daemon, `log` the file that an error of ours goes to."""
        self._directory = directory
        self._daemon = daemon
        self._log = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW, 0o600)
        self._lease_read, self._lease = os.pipe()
        self._process = _fork(lambda: _supervise(directory, daemon, self._lease_read, self._log))
        self._liveness_read, self._liveness = os.pipe()
        self._reaper: int | None = None
        self._companions: list[int] = []

    def hold(self, start: Callable[[], subprocess.Popen[bytes]]) -> Held:
        """Have bubblewrap started by `start`, in a process that ends with everything it started: when bubblewrap does, or
        when this process ends."""
        answer_read, answer = os.pipe()
        self._reaper = _fork(lambda: _reap(start, self._liveness_read, self._lease, answer, self._log))
        os.close(answer)
        return Held(answer_read)

    def accompany(self, work: Callable[[int, int], bool]) -> None:
        """Have something else done for the run, in a process of its own. `work` gets two descriptors: the lease, which can
        be read once the sandbox is gone, and then it is to end; and the log."""
        self._companions.append(_fork(lambda: work(self._lease_read, self._log)))

    def end_sandbox(self) -> None:
        """Have everything of the sandbox killed."""
        if self._liveness >= 0:
            os.close(self._liveness)
            self._liveness = -1

    def finish(self) -> bool:
        """Let everything be cleared away, and say whether it was. Where the supervisor is gone it is done here."""
        self.end_sandbox()
        for descriptor in (self._liveness_read, self._lease, self._lease_read, self._log):
            os.close(descriptor)
        if self._reaper is not None:
            os.waitpid(self._reaper, 0)
        for companion in self._companions:
            os.waitpid(companion, 0)
        _, status = os.waitpid(self._process, 0)
        if os.WIFSIGNALED(status):
            return _clear_away(self._directory, self._daemon) is None
        return status == 0


@dataclass(frozen=True, slots=True)
class Held:
    """bubblewrap, as its parent tells of it."""

    ended: int
    """A descriptor that can be read once nothing of the sandbox is left."""

    def wait(self) -> None:
        """Wait until `ended` can be read."""
        waiting = select.poll()
        waiting.register(self.ended, select.POLLIN)
        waiting.poll()

    def status(self) -> int:
        """Wait for the end and give bubblewrap's exit status, or the signal that ended it as a negative number. Raises
        `UserFault` where it was not started."""
        with os.fdopen(self.ended, "rb") as pipe:
            text = pipe.read()
        if not text:
            # Its parent was killed, and bubblewrap with it.
            return -signal.SIGKILL
        answer = json.loads(text)
        if isinstance(answer, str):
            raise UserFault(Exit.MACHINE, f"bubblewrap could not be started: {answer.rstrip('.')}. Nothing was run")
        return int(answer)


def _fork(work: Callable[[], bool]) -> int:
    """A process that does this and ends, with 0 where it went well. Whatever signal comes, it is not for that process: the
    handlers of this one are about clearing away, and that is its work."""
    masked = signal.pthread_sigmask(signal.SIG_BLOCK, FORWARDED)
    try:
        process = os.fork()
        if process == 0:
            status = 1
            try:
                disregard_signals()
                signal.pthread_sigmask(signal.SIG_SETMASK, masked)
                status = 0 if work() else 1
            except Exception:  # noqa: BLE001 - it is logged, and the process ends
                traceback.print_exc()
            finally:
                # Whatever happened: not on with the caller's code, of which this is a copy.
                os._exit(status)
        return process
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, masked)


def detach(keep: set[int], log: int) -> None:
    """Away from the person's terminal and descriptors: nobody waits for this process but `policyfs run`."""
    os.setsid()
    os.chdir("/")
    nothing = os.open(os.devnull, os.O_RDWR)
    for standard, descriptor in enumerate((nothing, nothing, log)):
        os.dup2(descriptor, standard)
    close_inherited(keep)
    harden()


def _supervise(directory: RunDirectory, daemon: int, lease: int, log: int) -> bool:
    detach({lease, daemon, directory.lock}, log)
    os.read(lease, 1)
    left = _clear_away(directory, daemon)
    if left is not None:
        traceback.print_exception(left)
    return left is None


def _reap(start: Callable[[], subprocess.Popen[bytes]], liveness: int, lease: int, answer: int, log: int) -> bool:
    prctl(PR_SET_CHILD_SUBREAPER, 1, "PR_SET_CHILD_SUBREAPER")
    try:
        bubblewrap = start()
    except (OSError, subprocess.SubprocessError) as error:
        os.write(answer, json.dumps(str(error)).encode())
        return False
    detach({liveness, lease, answer}, log)
    waiting = select.poll()
    waiting.register(liveness, select.POLLIN)
    waiting.register(os.pidfd_open(bubblewrap.pid), select.POLLIN)
    waiting.poll()
    status = bubblewrap.poll()
    try:
        # bubblewrap waits for the first process of the sandbox, the last to be gone; if it was killed, that is left.
        all_gone = end_children(_TIMEOUT)
    finally:
        if status is not None:
            os.write(answer, json.dumps(status).encode())
    if not all_gone:
        for descriptor in (answer, lease):
            os.close(descriptor)
        end_children(None)
    return True


def end_children(seconds: float | None) -> bool:
    """End every child, and every process that becomes our child by that, for so many seconds at most. Returns whether none
    is left. When the first process of a pid namespace ends, all others in it end too."""
    while found := children(os.getpid()):
        for child in found:
            # Ours until we wait for it: its number is nobody else's.
            os.kill(child, signal.SIGKILL)
        for child in found:
            process = os.pidfd_open(child)
            gone = _has_ended(process, seconds)
            os.close(process)
            if not gone:
                return False
            os.waitpid(child, 0)
    return True


def _clear_away(directory: RunDirectory, daemon: int) -> Exception | None:
    """First the view, then the directory. Gives what kept it from going."""
    if not _ended(daemon, signal.SIGTERM):
        _ended(daemon, signal.SIGKILL)
    deadline = time.monotonic() + _TIMEOUT
    while True:
        try:
            directory.remove()
        except (UserFault, OSError) as fault:
            if time.monotonic() > deadline:
                return fault
            time.sleep(0.05)
        else:
            return None


def _ended(process: int, with_signal: signal.Signals) -> bool:
    """End a process and wait until it has; not forever."""
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(process, with_signal)
    return _has_ended(process, _TIMEOUT)


def _has_ended(process: int, seconds: float | None) -> bool:
    """Wait for so long, or for ever, for the end of a process by its pidfd."""
    waiting = select.poll()
    waiting.register(process, select.POLLIN)
    return bool(waiting.poll(None if seconds is None else seconds * 1000))
