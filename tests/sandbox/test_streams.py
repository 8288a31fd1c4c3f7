"""What of a caller's standard descriptors is in a sandbox (nothing), and that bytes pass all the same."""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import select
import shutil
import signal
import socket
import stat
import subprocess
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.expecting import absent, until
from tests.mount.harness import TIMEOUT
from tests.sandbox.runs import PYTHON, Ground, bubblewrap_of

KINDS = ("pipe", "fifo", "stream socket", "file", "device", "terminal")


@contextlib.contextmanager
def given(kind: str, directory: Path, uid: int) -> Iterator[tuple[int, int]]:
    """A descriptor of a kind, open for reading and writing where that can be, as a caller may have it for input or output;
    and the other end, or the same."""
    opened: tuple[int, int]
    if kind == "pipe":
        opened = os.pipe()
    elif kind == "fifo":
        os.mkfifo(directory / "fifo")
        os.chown(directory / "fifo", uid, uid)
        both = os.open(directory / "fifo", os.O_RDWR)
        opened = (both, os.dup(both))
    elif kind == "stream socket":
        opened = tuple(end.detach() for end in socket.socketpair())  # type: ignore[assignment]  # it is a pair
    elif kind == "terminal":
        opened = os.openpty()
    else:
        path = directory / "file" if kind == "file" else Path("/dev/null")
        both = os.open(path, os.O_RDWR | (os.O_CREAT if kind == "file" else 0))
        opened = (both, os.dup(both))
    try:
        yield opened
    finally:
        for descriptor in opened:
            os.close(descriptor)


IDENTITIES = r"""
import os
with open("yard/seen", "w") as file:
    for standard in range(3):
        status = os.fstat(standard)
        print(status.st_dev, status.st_ino, file=file)
        os.set_blocking(standard, False)
"""


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_of_the_callers_is_in_the_sandbox(tree: Ground, kind: str) -> None:
    """Whatever the three descriptors are, the command has others: neither what is behind them nor the opening of it is the
    caller's, whose setting not to block is the same afterwards."""
    with given(kind, tree.person.home, tree.person.uid) as (one, other):
        standards = (other, other, other) if kind == "terminal" else (one, other, other)
        for descriptor in (one, other):
            os.set_blocking(descriptor, True)
        outside = {(os.fstat(each).st_dev, os.fstat(each).st_ino) for each in (one, other)}
        words = tree.words(PYTHON, "-I", "-c", IDENTITIES)
        run = tree.person.popen(*words, cwd=tree.source, stdin=standards[0], stdout=standards[1], stderr=standards[2])
        tree.started.append(run)
        assert run.wait(30) == 0
        inside = [tuple(map(int, line.split())) for line in (tree.source / "yard/seen").read_text().splitlines()]
        assert len(inside) == 3
        if kind != "device":
            # Of a device every sandbox has the node: there it counts that the opening is another.
            assert not outside & set(inside)
        assert os.get_blocking(one)
        assert os.get_blocking(other)
        if kind == "fifo":
            (tree.person.home / "fifo").unlink()


STEAL = r"""
import os
attempts = 0
opened = []
for standard in range(3):
    for how in (os.O_RDONLY, os.O_WRONLY, os.O_RDWR):
        attempts += 1
        try:
            opened.append(os.open(f"/proc/self/fd/{standard}", how | os.O_NONBLOCK))
        except OSError:
            pass
open("yard/ready", "w").close()
os.read(0, 1)
got = b""
for descriptor in opened:
    attempts += 1
    try:
        got += os.read(descriptor, 1 << 16)
    except OSError:
        pass
    try:
        os.write(descriptor, b"forged")
    except OSError:
        pass
with open("yard/stolen", "wb") as file:
    file.write(b"%d " % attempts + got)
"""


@pytest.mark.parametrize("kind", ["pipe", "stream socket"])
def test_what_others_write_where_output_goes_is_not_read(tree: Ground, kind: str) -> None:
    """A pipe or socket that several programs write into: a command that opens its standard descriptors again in every way
    gets nothing of what the others write, and their reader gets all of it."""
    with given(kind, tree.person.home, tree.person.uid) as (reading, writing):
        words = tree.words(PYTHON, "-I", "-c", STEAL)
        run = tree.person.popen(*words, cwd=tree.source, stdin=subprocess.PIPE, stdout=writing, stderr=writing)
        tree.started.append(run)
        assert run.stdin is not None
        until((tree.source / "yard/ready").exists, "the command to have opened what it can")
        os.write(writing, b"password of another program")
        run.stdin.write(b"x")
        run.stdin.close()
        assert run.wait(30) == 0
        attempts, _, stolen = (tree.source / "yard/stolen").read_bytes().partition(b" ")
        assert int(attempts) >= 12
        assert b"password" not in stolen
        os.set_blocking(reading, False)
        assert b"password of another program" in os.read(reading, 1 << 16)


def test_what_others_read_as_input_is_not_written(tree: Ground) -> None:
    """A pipe that is the command's input cannot be written into from inside: its other readers get what was sent."""
    with given("pipe", tree.person.home, tree.person.uid) as (reading, writing):
        script = "import os; os.write(os.open('/proc/self/fd/0', os.O_WRONLY), b'forged')"
        run = tree.person.popen(*tree.words(PYTHON, "-I", "-c", script), stdin=reading)
        tree.started.append(run)
        assert run.wait(30) == 0
        os.write(writing, b"sent")
        assert os.read(reading, 100) == b"sent"


def test_a_command_that_reads_its_own_output_does_not_stop_the_run(one_tree: Ground) -> None:
    """It takes away what we were told is there to read; then nothing may wait for it."""
    script = """
import os, threading
again = os.open("/proc/self/fd/1", os.O_RDONLY | os.O_NONBLOCK)
def steal():
    while True:
        try:
            os.read(again, 1 << 16)
        except BlockingIOError:
            pass
threading.Thread(target=steal, daemon=True).start()
for _ in range(20000):
    os.write(1, b"x" * 100)
os._exit(6)
"""
    assert one_tree.python(script).returncode == 6


# -- bytes pass


def test_bytes_pass_through_pipes(tree: Ground) -> None:
    """Ten million bytes of every value come out as they went in, by a pipe and by a file."""
    sent = os.urandom(1 << 20) * 10
    expected = hashlib.sha256(sent).hexdigest()
    run = tree.start("cat", stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    said, _ = run.communicate(sent, timeout=60)
    assert hashlib.sha256(said).hexdigest() == expected
    file = tree.person.home / "sent"
    file.write_bytes(sent)
    with file.open("rb") as reading, (tree.person.home / "came").open("wb") as writing:
        assert tree.start("cat", stdin=reading, stdout=writing).wait(60) == 0
    assert hashlib.sha256((tree.person.home / "came").read_bytes()).hexdigest() == expected


def test_bytes_pass_through_a_socket(one_tree: Ground) -> None:
    """A socket in both directions: its end is the end of the input, and the answer comes back."""
    mine, theirs = socket.socketpair()
    run = one_tree.start("tr", "a-z", "A-Z", stdin=theirs, stdout=theirs)
    theirs.close()
    with mine, mine.makefile("rb") as answers:
        mine.sendall(b"hello\n" * 1000)
        mine.shutdown(socket.SHUT_WR)
        assert answers.read() == b"HELLO\n" * 1000
    assert run.wait(30) == 0


def test_output_and_errors_in_one_pipe_keep_their_order(one_tree: Ground) -> None:
    """2>&1 into a pipe: the lines arrive as they were written."""
    script = "i=0; while [ $i -lt 200 ]; do echo out $i; echo err $i >&2; i=$((i + 1)); done"
    run = one_tree.start("sh", "-c", script, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    said, _ = run.communicate(timeout=30)
    assert said.decode().splitlines() == [f"{kind} {number}" for number in range(200) for kind in ("out", "err")]


def test_a_reader_that_goes_away_is_noticed_before_anything_is_written(one_tree: Ground) -> None:
    """The first write after the reader has gone answers EPIPE, as without us in between."""
    script = """
import os, select
waiting = select.poll()
waiting.register(1, 0)
assert waiting.poll(20000), "nobody told that the reader has gone"
try:
    os.write(1, b"x")
except BrokenPipeError:
    os._exit(9)
"""
    run = one_tree.start(PYTHON, "-I", "-c", script, stdout=subprocess.PIPE)
    assert run.stdout is not None
    run.stdout.close()
    assert run.wait(30) == 9


def test_what_was_written_is_delivered_to_a_reader_that_takes_its_time(one_tree: Ground) -> None:
    """A command has ended and its reader has not begun to read: everything it wrote arrives, and run ends with its
    status. The pipe is filled by somebody else before, so that nothing can be delivered early."""
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    full = 0
    with contextlib.suppress(BlockingIOError):
        while True:
            full += os.write(writing, b"-" * 4096)
    os.set_blocking(writing, True)
    run = one_tree.start("sh", "-c", "echo end; : > yard/done; exit 3", cwd=one_tree.source, stdout=writing)
    os.close(writing)
    until((one_tree.source / "yard/done").exists, "the command to write")
    until(lambda: bubblewrap_of(run) is None, "the sandbox to end")
    with pytest.raises(subprocess.TimeoutExpired):
        # Longer than a terminal that takes nothing would be waited for.
        run.wait(6)
    with os.fdopen(reading, "rb") as file:
        assert file.read() == b"-" * full + b"end\n"
    assert run.wait(30) == 3


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_the_wait_for_a_reader(one_tree: Ground, number: signal.Signals) -> None:
    """Once the command has ended a signal is for run itself, which waits for a reader that does not read: it ends."""
    script = "head -c 100000 /dev/zero & sleep 1000 & read go; exit 3"
    run = one_tree.start("sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert run.stdin is not None
    _fills_its_output(run)
    run.stdin.write(b"\n")
    run.stdin.close()
    until(lambda: bubblewrap_of(run) is None, "the sandbox to end")
    run.send_signal(number)
    assert run.wait(30) == 128 + number


def test_a_signal_that_ends_the_command_ends_the_wait_for_a_reader(one_tree: Ground) -> None:
    """A request to end that was passed on to the command is not forgotten once the command has ended: a reader that does
    not read holds the run hardly longer than the command could have."""
    run = one_tree.start("sh", "-c", "head -c 100000 /dev/zero & exec sleep 1000", stdout=subprocess.PIPE)
    _fills_its_output(run)
    run.send_signal(signal.SIGTERM)
    until(lambda: bubblewrap_of(run) is None, "the sandbox to end")
    assert run.poll() is None
    assert run.wait(30) == 128 + signal.SIGTERM


def _fills_its_output(run: subprocess.Popen[bytes]) -> None:
    assert run.stdout is not None
    pipe = run.stdout.fileno()
    full = fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ)
    until(lambda: _waiting_in(pipe) >= full, "the reader's pipe to be full")


def _waiting_in(pipe: int) -> int:
    return int.from_bytes(fcntl.ioctl(pipe, termios.FIONREAD, bytes(4)), "little")


def test_who_keeps_the_output_open_does_not_keep_the_run(one_tree: Ground) -> None:
    """A process in the background that holds the output open ends with the command, and so does the run."""
    run = one_tree.start("sh", "-c", "sleep 1000 & echo said; exit 4", stdout=subprocess.PIPE)
    said, _ = run.communicate(timeout=30)
    assert (said, run.returncode) == (b"said\n", 4)


def test_output_that_cannot_be_written_is_told_of(one_tree: Ground) -> None:
    """A full disk: the command ended well and before that was known, and run says what is lost and fails."""
    full = one_tree.person.home / "full"
    full.mkdir()
    mounting = ["mount", "-t", "tmpfs", "-o", f"size=64k,uid={one_tree.person.uid}", "none", str(full)]
    if one_tree.person.namespace is None or shutil.which("nsenter") is None:
        absent("no file system of its own to be had here")
    entering = ["nsenter", "-t", str(one_tree.person.namespace), "-m"]
    subprocess.run([*entering, *mounting], check=True)
    try:
        words = one_tree.words("sh", "-c", "head -c 70000 /dev/zero; exit 0")
        done = one_tree.person.run("sh", "-c", 'exec "$@" > full/file', "sh", *words, cwd=one_tree.person.home)
    finally:
        subprocess.run([*entering, "umount", str(full)], check=True)
    assert done.returncode == 1
    assert done.stderr.startswith("policyfs: standard output: No space left on device; ")


# -- input that is not read stays the caller's


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_a_loop_that_reads_the_names_of_its_runs(one_tree: Ground, kind: str) -> None:
    """`while read`: a command that does not read its input leaves it to the loop around it."""
    (one_tree.person.home / "names").write_text("a\nb\nc\n")
    loop = 'while read name; do "$@" $name; done'
    feed = f"cat names | {{ {loop}; }}" if kind == "pipe" else f"{loop} < names"
    done = one_tree.person.run("sh", "-c", feed, "sh", *one_tree.words("echo", "got"), cwd=one_tree.person.home)
    assert done.stdout == "got a\ngot b\ngot c\n"


@pytest.mark.parametrize("kind", ["pipe", "file"])
def test_what_a_command_leaves_of_its_input_is_there_for_the_next(one_tree: Ground, kind: str) -> None:
    """Of a short input exactly the bytes are gone that the command has read."""
    (one_tree.person.home / "input").write_text("0123456789\n")
    source = "cat input |" if kind == "pipe" else "cat /dev/null |"
    rest = "" if kind == "pipe" else "< input"
    words = one_tree.words(PYTHON, "-I", "-c", "import os; print(os.read(0, 4).decode(), flush=True)")
    done = one_tree.person.run(*("sh", "-c", f'{source} {{ "$@"; cat; }} {rest}', "sh", *words), cwd=one_tree.person.home)
    assert done.stdout == "0123\n456789\n"


def test_the_end_of_input_is_told_to_a_command_that_does_not_read_it(one_tree: Ground) -> None:
    """A command waits for the end of its input and leaves what is before it, which the next one gets."""
    script = """
import select
waiting = select.poll()
waiting.register(0, 0)
print("end" if waiting.poll(20000) else "nobody told", flush=True)
"""
    words = one_tree.words(PYTHON, "-I", "-c", script)
    assert one_tree.person.run("sh", "-c", 'echo rest | { "$@"; cat; }', "sh", *words).stdout == "end\nrest\n"


def test_input_that_comes_bit_by_bit(one_tree: Ground) -> None:
    """Each line that is sent is there to be read before the next one is sent, and the end is the end."""
    script = "while read line; do echo got $line; done; echo end"
    run = one_tree.start("sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)
    assert run.stdin is not None
    assert run.stdout is not None
    for number in range(50):
        run.stdin.write(b"%d\n" % number)
        assert select.select([run.stdout], [], [], TIMEOUT)[0]
        assert run.stdout.readline() == b"got %d\n" % number
    run.stdin.close()
    assert run.stdout.read() == b"end\n"
    assert run.wait(30) == 0


def test_a_device_is_opened_anew(tree: Ground) -> None:
    """/dev/null as input, output and error is that inside too, by an opening of its own."""
    script = "import os, stat; assert all(stat.S_ISCHR(os.fstat(n).st_mode) for n in range(3)); assert os.read(0, 1) == b''"
    nothing = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    assert stat.S_ISCHR(os.stat(os.devnull).st_mode)
    assert tree.start(PYTHON, "-I", "-c", script, **nothing).wait(30) == 0
