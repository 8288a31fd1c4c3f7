"""The exit status of a run is that of the command's own process, and nothing inside keeps the run from ending."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import pytest

from policyfs.sandbox.signals import END_SECONDS, STOP_SECONDS, Arrival, EndTimer, children, status_fields
from tests.mount.expecting import until
from tests.mount.harness import PROGRAM
from tests.sandbox.runs import PYTHON, Ground, bubblewrap_of

_OPEN = """
from policyfs.cli import main
from policyfs.sandbox import layout, seccomp
seccomp.filters = lambda *_: ()
layout.FIRST_PROCESS = b"/proc/tty"
main()
"""
WITH_ONE_DOOR = (sys.executable, "-I", "-c", _OPEN)
"""`policyfs` with a sandbox in which every system call may be tried, and /proc/1 is there."""

ATTACK = r"""
import ctypes, os, resource, signal, struct, sys, time
libc = ctypes.CDLL(None, use_errno=True)
attempts, reached = 0, []

def call(name, number, *arguments):
    global attempts
    attempts += 1
    if libc.syscall(number, *arguments) >= 0:
        reached.append(name)

def act(name, do):
    global attempts
    attempts += 1
    try:
        do()
    except OSError:
        return
    reached.append(name)

PTRACE, PIDFD_OPEN, PIDFD_GETFD, PIDFD_SEND, READV, WRITEV = 101, 434, 438, 424, 310, 311
KCMP, SETNS, MADVISE, MIGRATE, MOVE, PERF, ROBUST = 312, 308, 440, 256, 279, 298, 274
for request in (16, 0x4206):  # ATTACH, SEIZE
    call("ptrace", PTRACE, request, 1, None, None)
space = ctypes.create_string_buffer(64)
vector = struct.pack("PN", ctypes.addressof(space), 64)
call("process_vm_readv", READV, 1, vector, 1, struct.pack("PN", 0x400000, 64), 1, 0)
call("process_vm_writev", WRITEV, 1, vector, 1, struct.pack("PN", 0x400000, 64), 1, 0)
first = libc.syscall(PIDFD_OPEN, 1, 0)
for descriptor in range(16):
    call("pidfd_getfd", PIDFD_GETFD, first, descriptor, 0)
for flag in (0x20000, 0x10000000, 0x20000000):
    call("setns", SETNS, first, flag)
call("process_madvise", MADVISE, first, vector, 1, 21, 0)
call("kcmp", KCMP, 1, os.getpid(), 1, 0, 0)
call("migrate_pages", MIGRATE, 1, 1, struct.pack("L", 1), struct.pack("L", 1))
call("perf_event_open", PERF, struct.pack("IIQ", 1, 112, 0) + bytes(96), 1, -1, -1, 0)
call("get_robust_list", ROBUST, 1, ctypes.create_string_buffer(8), ctypes.create_string_buffer(8))
for name in ("mem", "environ", "auxv", "maps", "io", "stack", "syscall", "personality", "map_files"):
    for how in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        act("/proc/1/" + name, lambda: os.read(os.open("/proc/1/" + name, how), 1))
for name in ("root", "cwd", "exe", *(f"fd/{number}" for number in range(16))):
    act("/proc/1/" + name, lambda: os.readlink("/proc/1/" + name))
    for how in (os.O_RDONLY, os.O_WRONLY):
        act("/proc/1/" + name, lambda: os.open("/proc/1/" + name, how))
for name in ("uid_map", "gid_map", "setgroups", "timerslack_ns", "comm"):
    act("/proc/1/" + name, lambda: os.write(os.open("/proc/1/" + name, os.O_WRONLY), b"0"))
act("sched_setscheduler", lambda: os.sched_setscheduler(1, os.SCHED_IDLE, os.sched_param(0)))
act("sched_setaffinity", lambda: os.sched_setaffinity(1, {0}))
act("setpriority", lambda: os.setpriority(os.PRIO_PROCESS, 1, 19))
print(*reached, file=sys.stderr)
# From here on some get through, and must do nothing. The limit of processor time is the one that kills what reaches it.
def try_it(do):
    global attempts
    attempts += 1
    try:
        do()
    except OSError:
        pass

for limit in ("AS", "DATA", "STACK", "NOFILE", "FSIZE", "NPROC", "MEMLOCK", "SIGPENDING", "RSS", "MSGQUEUE", "CORE"):
    try_it(lambda: resource.prlimit(1, getattr(resource, "RLIMIT_" + limit), (0, 0)))
for name in ("oom_score_adj", "coredump_filter", "clear_refs", "autogroup"):
    try_it(lambda: os.write(os.open("/proc/1/" + name, os.O_WRONLY), b"1"))
for number in range(1, 65):
    try_it(lambda: os.kill(1, number))
    attempts += 1
    libc.syscall(PIDFD_SEND, first, number, None, 0)
for _ in range(200):
    # Orphans for it to reap, without any limit left.
    if os.fork() == 0:
        if os.fork() == 0:
            os._exit(99)
        os._exit(98)
    os.wait()
    attempts += 1
with open("yard/attempts", "w") as file:
    print(attempts, file=file)
"""


@pytest.mark.parametrize("program", [PROGRAM, WITH_ONE_DOOR], ids=["as it is", "with one door"])
def test_no_descendant_decides_the_exit_status(tree: Ground, program: tuple[str, ...]) -> None:
    """A child of the command tries some 500 ways to reach the first process of the sandbox, whose status is the run's: to
    trace, stop, kill, read or write it, take its descriptors, change its priority and limits. Nothing is reached, and the
    status is the command's; also where system calls and /proc/1 are open, and the capability alone is in the way."""
    if os.uname().machine != "x86_64":
        pytest.skip("the numbers of system calls are those of x86-64")
    words = tree.words("sh", "-c", f'{PYTHON} -I -c "$0"; exit 7', ATTACK)
    done = tree.person.run(*program, *words[len(PROGRAM) :], cwd=tree.source)
    assert done.stderr.strip() == ""
    assert done.returncode == 7
    assert int((tree.source / "yard/attempts").read_text()) > 450


def test_the_command_has_no_capability(tree: Ground) -> None:
    """The first process has one that the command lacks, which is what keeps it out of reach; no process below has any."""
    script = "grep ^Cap /proc/self/status; read end"
    run = tree.start("sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert run.stdout is not None
    own = [int(run.stdout.readline().split()[1], 16) for _ in range(5)]
    status = Path(f"/proc/{_first_process(run)}/status").read_text()
    first = next(int(line.split()[1], 16) for line in status.splitlines() if line.startswith("CapPrm"))
    run.communicate(b"\n", timeout=30)
    assert own == [0] * 5
    assert first == 1 << 8


def test_a_first_process_that_stands_still(tree: Ground) -> None:
    """Stopped from outside, as nothing inside can, it reaps nobody: run ends all the same, with the command's status."""
    run = tree.start("sh", "-c", "echo ready; read go; exit 7", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    first = _first_process(run)
    os.kill(first, signal.SIGSTOP)
    # Before it stands it could still wait for the command, and keep the status to itself.
    until(lambda: (status_fields(first) or [b"gone"])[0] == b"T", "the first process to stand still")
    run.communicate(b"\n", timeout=30)
    assert run.returncode == 7
    assert not tree.leftovers()


def _is_stopped(process: int) -> bool:
    return (status_fields(process) or [b"gone"])[0] == b"T"


def _first_process(run: subprocess.Popen[bytes]) -> int:
    bubblewrap = bubblewrap_of(run)
    assert bubblewrap is not None
    (found,) = children(bubblewrap)
    return found


DEAF = "trap '' TERM HUP INT; echo ready; while :; do sleep 1; done"


def test_a_command_that_does_not_listen_is_ended(tree: Ground) -> None:
    """One that ignores the signals, and one that is stopped and hears nothing: SIGTERM, SIGHUP and SIGINT from another
    process end each run in seconds, with 137."""
    stopped = "echo ready; kill -STOP $$; sleep 1000"
    cases = [(script, number) for script in (DEAF, stopped) for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)]
    # Side by side, since each takes its time.
    runs = [tree.start("sh", "-c", script, stdout=subprocess.PIPE) for script, _ in cases]
    for run in runs:
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
    for run, (script, _) in zip(runs, cases, strict=True):
        if script is stopped:
            # Between its line and its stop it would hear.
            (command,) = children(_first_process(run))
            until(partial(_is_stopped, command), "the command to be stopped")
    begin = time.monotonic()
    for run, (_, number) in zip(runs, cases, strict=True):
        run.send_signal(number)
    assert [run.wait(60) for run in runs] == [128 + signal.SIGKILL] * len(cases)
    assert time.monotonic() - begin >= STOP_SECONDS
    until(lambda: not tree.leftovers(), "everything to be cleared away")


def test_a_command_that_ends_when_asked_is_given_its_time(tree: Ground) -> None:
    """One that handles SIGTERM ends as it likes, some seconds later."""
    script = "trap 'sleep 2; echo done; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
    run = tree.start("sh", "-c", script, stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    run.send_signal(signal.SIGTERM)
    said, _ = run.communicate(timeout=30)
    assert (said, run.returncode) == (b"done\n", 5)


# -- when it is ended


def _told(number: int, *, typed: bool = False, at: tuple[float, ...] = (0.0,)) -> float | None:
    end_timer = EndTimer()
    for now in at:
        end_timer.heard(Arrival(number, typed), now)
    return end_timer.deadline


def test_when_a_sandbox_is_ended_by_force() -> None:
    """Ten seconds after the first request to end; Ctrl-C is a key of the command's until it is pressed three times in a
    row; other signals ask for nothing."""
    for number in (signal.SIGTERM, signal.SIGHUP, signal.SIGINT):
        assert _told(number) == STOP_SECONDS
        assert _told(number, at=(0.0, 5.0)) == STOP_SECONDS
    assert _told(signal.SIGHUP, typed=True) == STOP_SECONDS
    assert _told(signal.SIGINT, typed=True, at=(0.0, 1.0)) is None
    assert _told(signal.SIGINT, typed=True, at=(0.0, 10.0, 20.0, 30.0)) is None
    assert _told(signal.SIGINT, typed=True, at=(0.0, 9.0, 10.0, 11.0)) == 11.0
    for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM, signal.SIGQUIT):
        assert _told(number, at=(0.0, 1.0, 2.0)) is None


def test_the_end_of_the_command_is_waited_for_less_long() -> None:
    """What is nearer counts."""
    end_timer = EndTimer()
    end_timer.heard(Arrival(signal.SIGTERM, typed=False), 0.0)
    end_timer.command_ended(1.0, status_known=True)
    assert end_timer.deadline == 3.0
    end_timer.command_ended(2.0, status_known=True)
    assert end_timer.deadline == 3.0
    end_timer = EndTimer()
    end_timer.command_ended(1.0, status_known=False)
    assert end_timer.deadline == 1.0 + STOP_SECONDS
    assert end_timer.output_deadline is None


def test_a_request_to_end_holds_for_the_output_too() -> None:
    """A reader is waited for a little longer than the command was given, also where the command ended at once; a request
    that comes after the command ends that wait at once. The signal that set the deadline is the one that is reported."""
    end_timer = EndTimer()
    end_timer.heard(Arrival(signal.SIGTERM, typed=False), 0.0)
    end_timer.command_ended(1.0, status_known=True)
    end_timer.ended_by_force()
    assert end_timer.deadline is None
    assert (end_timer.output_deadline, end_timer.asked_by) == (STOP_SECONDS + END_SECONDS, signal.SIGTERM)
    end_timer.heard_after_command(Arrival(signal.SIGUSR1, typed=False), 2.0)
    assert end_timer.output_deadline == STOP_SECONDS + END_SECONDS
    for number in (signal.SIGQUIT, signal.SIGHUP):
        end_timer.heard_after_command(Arrival(number, typed=False), 2.0)
        assert (end_timer.output_deadline, end_timer.asked_by) == (2.0, signal.SIGQUIT)
    assert end_timer.deadline is None
