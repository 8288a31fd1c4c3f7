"""`policyfs run`: what a command sees, how it ends, and what is left of it."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
from pathlib import Path

import pytest

from tests.mount.expecting import until
from tests.mount.harness import Person
from tests.sandbox.runs import Ground, ground, ran


def test_the_view_stands_in_the_place_of_the_source(tree: Ground) -> None:
    """A command sees the tree at its own path, as the policy opens it, and its changes reach the source."""
    said = ran(tree.run("sh", "-c", f"cat {tree.source}/open.txt; ls {tree.source}; echo new > {tree.source}/yard/new"))
    assert said.split() == ["open", "open.txt", "yard"]
    assert (tree.source / "yard/new").read_text() == "new\n"


@pytest.mark.parametrize(
    ("script", "status"),
    [("exit 0", 0), ("exit 7", 7), ("kill -TERM $$", 128 + 15), ("kill -KILL $$", 128 + 9), ("exec /tree/none", 127)],
)
def test_the_exit_status_is_the_commands(tree: Ground, script: str, status: int) -> None:
    """The status of the command, 128 and the number where a signal ended it."""
    ran(tree.run("sh", "-c", script), status)


def test_a_command_that_is_not_there(one_tree: Ground) -> None:
    """127 for a program that does not exist, 126 for one that cannot be run, as a shell says it."""
    assert one_tree.run("no-such-program").returncode == 127
    assert one_tree.run(f"{one_tree.source}/open.txt").returncode == 126


def test_words_of_the_command_pass_untouched(one_tree: Ground) -> None:
    """What follows `--` belongs to the command: options, `--`, blanks, and bytes that are not UTF-8."""
    words = ["-g", "--", "--env", "a b", "", os.fsdecode(b"\xff"), "*"]
    assert ran(one_tree.run("printf", "<%s>", *words)) == "".join(f"<{word}>" for word in words)


def test_streams_pass(one_tree: Ground) -> None:
    """A pipeline through a run keeps input, output and error apart, and a large amount whole."""
    done = one_tree.run("sh", "-c", "cat; echo err >&2", input="x" * 300_000)
    assert (ran(done), done.stderr) == ("x" * 300_000, "err\n")


def test_a_reader_that_has_seen_enough_ends_the_command(one_tree: Ground) -> None:
    """`policyfs run ... -- yes | head` ends: the writer gets SIGPIPE."""
    run = one_tree.start("yes", stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.read(2) == b"y\n"
    run.stdout.close()
    assert run.wait(30) == 128 + signal.SIGPIPE


# -- where it starts


def test_it_starts_where_the_person_stands(one_tree: Ground) -> None:
    """In a directory of SOURCE that is open the command starts there; elsewhere in the session's start directory."""
    inside = one_tree.source / "yard"
    assert ran(one_tree.run("pwd", cwd=inside)).strip() == str(inside)
    for elsewhere in (one_tree.source / "hidden", Path("/")):
        assert ran(one_tree.run("pwd", cwd=elsewhere)).strip() == str(one_tree.source)


def test_it_starts_in_the_start_directory(one_tree: Ground) -> None:
    """`start` of the session file is the working directory."""
    session = one_tree.person.home / "session.toml"
    session.write_text('start = "/yard"\n[grants]\n"/" = "ro"\n')
    said = ran(one_tree.run("pwd", grants=("-s", str(session)), cwd=Path("/")))
    assert said.strip() == f"{one_tree.source}/yard"


@pytest.fixture(params=["tmp", "root", "link", "home", "usr"])
def elsewhere(request: pytest.FixtureRequest, person: Person, tmp_path: Path) -> Path:
    """A directory for a tree at a place where a sandbox has something of its own."""
    if request.param == "tmp":
        return Path(f"/tmp/policyfs-tree-{os.getpid()}")
    if request.param == "root":
        if os.geteuid() != 0:
            pytest.skip("only root makes directories there")
        return Path(f"/policyfs-tree-{os.getpid()}/deep")
    if request.param == "usr":
        if os.geteuid() != 0:
            pytest.skip("only root makes directories there")
        return Path(f"/usr/local/policyfs-tree-{os.getpid()}")
    if request.param == "link":
        (person.home / "real").mkdir(exist_ok=True)
        link = person.home / "name"
        if not link.is_symlink():
            link.symlink_to("real")
        return link / "tree"
    return person.home


def test_the_source_may_lie_anywhere(person: Person, elsewhere: Path) -> None:
    """A tree below /tmp, in a directory of its own, in the system's, behind a link, or the home itself: the view is
    there, the source is not, and the home is private and can be written."""
    is_home = elsewhere == person.home
    source = elsewhere if not is_home else elsewhere / "as-home"
    if is_home:
        source.mkdir()
        person = Person(source, person.namespace, person.uid)
    with ground(person, source) as tree:
        script = f"cat {source}/open.txt; cat {source}/hidden.txt || echo hidden; ls -A ~ | wc -l; echo x >~/x && cat ~/x"
        said = ran(tree.run("sh", "-c", script)).split()
        # A link as the name of the tree, or the way to it, is made in the home; else the home is empty.
        assert said[:2] == ["open", "hidden"]
        assert said[-1] == "x"
    for made in (Path(f"/policyfs-tree-{os.getpid()}"),):
        if made.exists():
            made.rmdir()


@pytest.mark.parametrize("source", ["/", "/proc", "/sys/kernel", "/dev"])
def test_a_source_that_cannot_stand_in_a_sandbox_is_refused(one_tree: Ground, source: str) -> None:
    """The root and the kernel's trees are refused with the reason."""
    done = one_tree.person.policyfs("run", source, "-g", "/=ro", "--", "true")
    assert (done.returncode, len(done.stderr.splitlines())) == (4, 1)
    assert done.stderr.startswith(f"policyfs: SOURCE {source} ")


# -- signals and the end


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGUSR1, signal.SIGINT])
def test_a_signal_reaches_the_command(tree: Ground, number: signal.Signals) -> None:
    """A signal to `policyfs run` is the command's, which may handle it and end as it likes."""
    script = f"trap 'echo got; exit 5' {number.name[3:]}; echo ready; while :; do sleep 0.05; done"
    run = tree.start("sh", "-c", script, stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    run.send_signal(number)
    said, _ = run.communicate(timeout=30)
    assert (said, run.returncode) == (b"got\n", 5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_when_run_itself_is_ended(tree: Ground, number: signal.Signals) -> None:
    """The command, what it started, the daemon, the mount and the directory are gone, after SIGKILL too."""
    run = tree.start("sh", "-c", "sleep 1000 & echo ready; wait", stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    run.send_signal(number)
    run.communicate(timeout=30)
    assert run.returncode == (-9 if number == signal.SIGKILL else 128 + 15)
    until(lambda: not tree.leftovers(), "everything to be cleared away")


def test_nothing_is_left_when_the_command_is_killed(tree: Ground) -> None:
    """A command killed from outside ends the run with 137, and all of it is cleared away."""
    run = tree.start("sleep", "987654", stdout=subprocess.DEVNULL)
    sleeper = until(lambda: _process_of(b"sleep\x00987654\x00"), "the command")
    os.kill(sleeper, signal.SIGKILL)
    assert run.wait(30) == 128 + 9
    assert not tree.leftovers()


def _process_of(cmdline: bytes) -> int | None:
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                if Path("/proc", name, "cmdline").read_bytes() == cmdline:
                    return int(name)
            except OSError:
                continue
    return None


def test_a_signal_before_the_command_is_there_clears_away(one_tree: Ground) -> None:
    """SIGTERM while the daemon mounts ends the run with 143, nothing is run and nothing is left."""
    witness = one_tree.source / "yard/ran"
    run = one_tree.start("touch", str(witness), stderr=subprocess.DEVNULL)
    until(lambda: list((one_tree.state / "run/runs").glob("*/view")), "the private directory")
    run.send_signal(signal.SIGTERM)
    assert run.wait(30) == 128 + 15
    assert not one_tree.leftovers()
    assert not witness.exists()


def test_a_daemon_that_dies_is_told_of(tree: Ground) -> None:
    """When the daemon is killed the command sees a dead mount, never the source, and the person is told."""
    script = "echo ready; read go; cat hidden.txt open.txt; ls /; exit 3"
    run = tree.start(
        "sh", "-c", script, cwd=tree.source, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    os.kill(tree.daemon(), signal.SIGKILL)
    said, complaint = run.communicate(b"go\n", timeout=30)
    assert run.returncode == 3
    assert b"secret" not in said
    assert b"not connected" in complaint
    assert b"the mount daemon ended before the command did" in complaint


def test_two_runs_of_one_tree(one_tree: Ground) -> None:
    """Runs do not disturb each other, and each ends for itself."""
    first = one_tree.start(
        "sh", "-c", "echo ready; read end; cat open.txt", cwd=one_tree.source, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert first.stdout is not None
    assert first.stdout.readline() == b"ready\n"
    assert ran(one_tree.run("cat", f"{one_tree.source}/open.txt")) == "open\n"
    said, _ = first.communicate(b"end\n", timeout=30)
    assert said == b"open\n"


@pytest.mark.parametrize("closed", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_standard_descriptors(one_tree: Ground, closed: str) -> None:
    """Where a standard descriptor is closed the command has one that leads nowhere, and runs and ends as ever."""
    script = "cat; echo out; echo err >&2; echo ran > yard/ran; exit 3"
    done = one_tree.person.run("sh", "-c", f"exec {shlex.join(one_tree.words('sh', '-c', script))} {closed}", input="")
    assert done.returncode == 3
    assert done.stdout == ("" if ">&-" in closed.split() else "out\n")
    assert done.stderr == ("" if "2>&-" in closed.split() else "err\n")
    assert (one_tree.source / "yard/ran").exists()
