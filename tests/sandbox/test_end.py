"""`policyfs run` ends, whatever ends it and whenever, and leaves nothing behind."""

from __future__ import annotations

import os
import select
import shutil
import signal
import subprocess
from pathlib import Path

from policyfs.sandbox.signals import children
from tests.mount import expecting, harness
from tests.mount.expecting import until
from tests.sandbox.runs import Ground, ground, ran

_HALT = """
#include <fcntl.h>
#include <unistd.h>
#include <sys/syscall.h>

/* bubblewrap lets its first process go on by eight bytes in an eventfd. */
ssize_t write(int descriptor, const void *bytes, size_t count) {
    if (count == 8) {
        close(open(HALTED, O_CREAT | O_WRONLY, 0600));
        sleep(SECONDS);
    }
    return syscall(SYS_write, descriptor, bytes, count);
}
"""


def halting(tree: Ground, *, probe: bool, seconds: int) -> tuple[str, Path]:
    """A PATH on which bubblewrap, the real one, halts where its first process is made and waits to be told to go on: the
    one that tries whether there are sandboxes, or the one of the command. And the file that tells that it has halted."""
    directory = tree.person.home / ("halting-the-trial" if probe else "halting")
    directory.mkdir()
    os.chown(directory, tree.person.uid, tree.person.uid)
    (directory / "halt.c").write_text(_HALT)
    library, halted = directory / "halt.so", directory / "halted"
    defined = (f'-DHALTED="{halted}"', f"-DSECONDS={seconds}")
    subprocess.run(["gcc", "-shared", "-fPIC", *defined, "-o", library, directory / "halt.c"], check=True)
    real = shutil.which("bwrap")
    program = directory / "bwrap"
    program.write_text(
        f'#!/bin/sh\n[ "$1" {"=" if probe else "!="} --args ] && exec {real} "$@"\nLD_PRELOAD={library} exec {real} "$@"\n'
    )
    program.chmod(0o755)
    return f"{directory}:{os.environ['PATH']}", halted


def test_a_run_killed_while_its_sandbox_is_made_leaves_nothing(tree: Ground) -> None:
    """bubblewrap's first process waits for bubblewrap, which a killed run takes with it: that process goes too."""
    path, halted = halting(tree, probe=False, seconds=1000)
    words = ("env", f"PATH={path}", *tree.words("true"))
    run = tree.person.popen(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    tree.started.append(run)
    until(halted.exists, "bubblewrap to halt")
    below = children(run.pid)
    below += [each for child in below for each in children(child)]
    (bubblewrap,) = [process for process in below if b"--args" in _cmdline(process)]
    (first,) = children(bubblewrap)
    gone = os.pidfd_open(first)
    run.kill()
    until(lambda: select.select([gone], [], [], 0)[0], "the first process to end")
    os.close(gone)
    until(lambda: not tree.leftovers(), "everything to be cleared away")


def test_a_sandbox_ends_with_its_parent(tree: Ground) -> None:
    """Where the process that holds the sandbox is killed, the command ends, the run with 137, and nothing is left."""
    run = tree.start("sh", "-c", "echo ready; exec sleep 1000", stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    os.kill(_aide(run, holds_sandbox=True), signal.SIGKILL)
    run.communicate(timeout=30)
    assert run.returncode == 128 + 9
    assert not tree.leftovers()


def test_what_a_killed_run_and_its_keeper_left_is_cleared_away_by_the_next(one_tree: Ground) -> None:
    """Where the supervisor is killed with the run, the command ends, and the next run ends the mount and removes the
    directory."""
    run = one_tree.start("sh", "-c", "echo ready; exec sleep 1000", stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    os.kill(_aide(run, holds_sandbox=False), signal.SIGKILL)
    run.kill()
    assert run.stdout.read() == b"", "the command holds its output as long as it lives"
    run.communicate(timeout=30)
    assert one_tree.leftovers()
    ran(one_tree.run("true"))
    until(lambda: not one_tree.leftovers(), "the next run to clear away")


def _aide(run: subprocess.Popen[bytes], *, holds_sandbox: bool) -> int:
    """The process of a run that is bubblewrap's parent, or the one that clears away."""
    aides = [child for child in children(run.pid) if b"policyfs.daemon.main" not in _cmdline(child)]
    started = {aide: b"".join(_cmdline(child) for child in children(aide)) for aide in aides}
    (found,) = [
        aide for aide in aides if b"slirp4netns" not in started[aide] and (b"bwrap" in started[aide]) == holds_sandbox
    ]
    return found


def _cmdline(process: int) -> bytes:
    return Path(f"/proc/{process}/cmdline").read_bytes()


def test_ctrl_c_while_sandboxes_are_tried_ends_the_run(tree: Ground) -> None:
    """A terminal sends it to every process of its foreground: that which is tried ends by itself, and nothing stays."""
    path, halted = halting(tree, probe=True, seconds=1)
    words = ("env", f"PATH={path}", *tree.words("true"))
    run = tree.person.popen(*words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, process_group=0)
    tree.started.append(run)
    until(halted.exists, "bubblewrap to halt")
    tried = [child for child in children(run.pid) if b"bwrap" in _cmdline(child)]
    assert tried
    gone = [os.pidfd_open(process) for each in tried for process in (each, *children(each))]
    os.killpg(run.pid, signal.SIGINT)
    assert run.wait(30) == 128 + signal.SIGINT
    for process in gone:
        until(lambda process=process: select.select([process], [], [], 0)[0], "what was tried to end")  # type: ignore[misc]
        os.close(process)
    assert not tree.leftovers()


def test_where_the_processes_of_others_cannot_be_seen() -> None:
    """/proc with hidepid=1: the exit status and the signals are the command's."""
    with harness.ordinary_user() as person, ground(person) as tree:
        hiding = ["mount", "-t", "proc", "-o", "hidepid=1", "proc", "/proc"]
        if person.namespace is None or subprocess.run(["nsenter", "-t", str(person.namespace), "-m", *hiding]).returncode:
            expecting.absent("no /proc with hidepid=1 to be had here")
        assert tree.run("sh", "-c", "sleep 100 & exit 7").returncode == 7
        script = "trap 'echo got; exit 5' TERM; echo ready; while :; do sleep 0.05; done"
        run = tree.start("sh", "-c", script, stdout=subprocess.PIPE)
        assert run.stdout is not None
        assert run.stdout.readline() == b"ready\n"
        run.send_signal(signal.SIGTERM)
        said, _ = run.communicate(timeout=30)
        assert (said, run.returncode) == (b"got\n", 5)


def test_a_caller_that_does_not_wait_for_its_children(one_tree: Ground) -> None:
    """SIGCHLD ignored, as a program may leave it to what it starts: the status is the command's."""
    words = one_tree.words("sh", "-c", "exit 7")
    assert one_tree.person.run("sh", "-c", "trap '' CHLD; exec \"$@\"", "sh", *words).returncode == 7


def test_a_view_that_hangs_is_cleared_away(one_tree: Ground) -> None:
    """SOURCE lies on a file system that answers no more, and a process of the sandbox waits for it in the view, which no
    signal ends: mount and directory go all the same, after SIGKILL to the run and after the command's end."""
    person = one_tree.person
    with harness.mounted(one_tree.source, "/=stage", person=person, deadline=120) as below:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        runs = []
        # Side by side, since what is killed gets ten seconds, and the daemon ten, before harsher means.
        for file in ("a", "b"):
            (one_tree.source / "yard" / file).write_text(file)
            script = f"echo ready; read go; cat yard/{file} & read end"
            words = (*harness.PROGRAM, "run", str(below.point), "-g", "/=stage", "--", "sh", "-c", script)
            runs.append(person.popen(*words, cwd=below.point, bufsize=0, **pipes))
            one_tree.started.append(runs[-1])
            assert runs[-1].stdout.readline() == b"ready\n"
        directories = [each for each in (one_tree.state / "run/runs").iterdir() if each.is_dir()]
        assert len(directories) == 2
        below.signal(signal.SIGSTOP)
        try:
            for run, file in zip(runs, ("a", "b"), strict=True):
                run.stdin.write(b"\n")
                until(lambda file=file: _waits_for_fuse(b"cat\0yard/%s\0" % file.encode()), "a process to wait for the view")  # type: ignore[misc]
            killed, ended = runs
            killed.kill()
            ended.stdin.write(b"\n")
            until(lambda: not any(directory.exists() for directory in directories), "the directories of the runs to go", 60)
            assert not [mount for mount in person.mount_table() if b"/run/runs/" in mount.point]
        finally:
            below.signal(signal.SIGCONT)
        for run in runs:
            run.wait(30)


def _waits_for_fuse(cmdline: bytes) -> bool:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if Path("/proc", name, "cmdline").read_bytes() == cmdline:
                    return Path("/proc", name, "wchan").read_text() in ("request_wait_answer", "fuse_simple_request")
            except OSError:
                continue
    return False
