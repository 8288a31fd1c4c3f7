"""`policyfs run` at a terminal: a person at the keyboard, played through a pseudo-terminal."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import select
import shlex
import shutil
import signal
import subprocess
import termios
import time
import tty
from collections.abc import Iterator
from dataclasses import dataclass, field

import pytest

from policyfs.sandbox.questions import Questions
from tests.mount.expecting import absent, until
from tests.mount.harness import TIMEOUT
from tests.sandbox.runs import PYTHON, Ground

CTRL_C, CTRL_D, CTRL_Z, ESCAPE = "\x03", "\x04", "\x1a", "\x1b"


@dataclass
class Person:
    """Somebody who types and reads."""

    keyboard: int
    run: subprocess.Popen[bytes]
    terminal: int
    """The other end, held open so that its settings can be looked at."""
    seen: str = ""
    _read: int = field(default=0)

    def types(self, text: str) -> None:
        """Press keys."""
        os.write(self.keyboard, text.encode())

    def sees(self, pattern: str) -> re.Match[str]:
        """Wait until this shows up after what was seen last."""
        end = time.monotonic() + TIMEOUT
        while True:
            found = re.compile(pattern).search(self.seen, self._read)
            if found is not None:
                self._read = found.end()
                return found
            if not select.select([self.keyboard], [], [], max(0, end - time.monotonic()))[0]:
                pytest.fail(f"waited in vain for {pattern!r} in {self.seen[self._read :]!r}")
            try:
                part = os.read(self.keyboard, 4096)
            except OSError:
                part = b""
            if not part:
                pytest.fail(f"it ended without {pattern!r}, after {self.seen[self._read :]!r}")
            self.seen += part.decode(errors="replace")

    def ended(self) -> int:
        """Wait for the end of the run, reading on, and give its exit status."""
        end = time.monotonic() + TIMEOUT
        while self.run.poll() is None:
            if time.monotonic() > end:
                pytest.fail(f"it did not end; last {self.seen[self._read :]!r}")
            if select.select([self.keyboard], [], [], 0.02)[0]:
                with contextlib.suppress(OSError):
                    self.seen += os.read(self.keyboard, 4096).decode(errors="replace")
        return self.run.returncode

    @property
    def is_raw(self) -> bool:
        """Whether the terminal passes every key on."""
        return not termios.tcgetattr(self.terminal)[3] & termios.ISIG


@contextlib.contextmanager
def at_terminal(
    tree: Ground, *command: str, options: tuple[str, ...] = (), standards: tuple[bool, bool, bool] = (True, True, True)
) -> Iterator[Person]:
    """A run whose standard descriptors (those that are asked for) and controlling terminal are a person's."""
    keyboard, terminal = pty.openpty()
    termios.tcsetwinsize(keyboard, (30, 100))

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    given = [terminal if is_terminal else subprocess.PIPE for is_terminal in standards]
    run = tree.person.popen(
        *tree.words(*command, options=("--env", "PS1=ready> ", *options)),
        cwd=tree.source,
        stdin=given[0],
        stdout=given[1],
        stderr=given[2],
        preexec_fn=own_terminal,
    )
    tree.started.append(run)
    try:
        yield Person(keyboard, run, terminal)
    finally:
        _leave(tree, run, keyboard, terminal)


@contextlib.contextmanager
def at_shell(tree: Ground) -> Iterator[Person]:
    """A shell with job control at a person's terminal, outside of any run."""
    keyboard, terminal = pty.openpty()

    def own_terminal() -> None:
        os.setsid()
        fcntl.ioctl(terminal, termios.TIOCSCTTY, 0)

    shell = tree.person.popen(
        *("bash", "--norc", "--noprofile", "-i"), stdin=terminal, stdout=terminal, stderr=terminal, preexec_fn=own_terminal
    )
    tree.started.append(shell)
    try:
        yield Person(keyboard, shell, terminal)
    finally:
        _leave(tree, shell, keyboard, terminal)


def _leave(tree: Ground, run: subprocess.Popen[bytes], keyboard: int, terminal: int) -> None:
    if run.poll() is None:
        run.kill()
    run.communicate()
    tree.started.remove(run)
    for descriptor in (keyboard, terminal):
        with contextlib.suppress(OSError):
            os.close(descriptor)


def test_an_interactive_shell(tree: Ground) -> None:
    """A shell prompts, runs what is typed, and gives its exit status; the terminal is as it was afterwards."""
    with at_terminal(tree, "sh") as person:
        before = termios.tcgetattr(person.terminal)
        person.sees("ready> ")
        assert person.is_raw
        person.types("cat open.txt hidden.txt; echo is-$((40 + 2))\n")
        person.sees("open\r\n(?s:.*)No such file(?s:.*)is-42")
        person.sees("ready> ")
        person.types("exit 9\n")
        assert person.ended() == 9
        assert termios.tcgetattr(person.terminal) == before


def test_job_control(tree: Ground) -> None:
    """Ctrl-Z suspends a job of the shell, fg goes on with it, Ctrl-C ends it and leaves the shell, Ctrl-D leaves."""
    with at_terminal(tree, "bash", "--norc", "-i") as person:
        person.sees("ready> ")
        assert "job control" not in person.seen
        person.types("sleep 1000\n")
        person.sees("sleep 1000\r\n")
        until(lambda: _foreground_of(person) == "sleep", "sleep to be in the foreground")
        person.types(CTRL_Z)
        person.sees("Stopped")
        person.types("jobs\n")
        person.sees(r"\[1\]\+\s+Stopped\s+sleep 1000")
        person.types("fg\n")
        person.sees("sleep 1000\r\n")
        until(lambda: _foreground_of(person) == "sleep", "sleep to be in the foreground again")
        person.types(CTRL_C)
        person.sees("ready> ")
        person.types("echo still-$?\n")
        person.sees("still-130")
        person.sees("ready> ")
        person.types(CTRL_D)
        assert person.ended() == 0


def _foreground_of(person: Person) -> str | None:
    """The name of the process in the foreground of the command's own terminal."""
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                before, _, after = file.read().rpartition(") ")
            if "sleep" in before and after.split()[0] == "S" and after.split()[2] == after.split()[5]:
                with open(f"/proc/{name}/environ") as file:
                    return "sleep" if "PS1=ready> " in file.read() else None
        except OSError:
            continue
    return None


def test_ctrl_c_is_the_commands(tree: Ground) -> None:
    """Ctrl-C raises KeyboardInterrupt in a Python that handles it: neither bubblewrap nor run end by it."""
    script = """
import time
try:
    print("ready", flush=True)
    time.sleep(60)
except KeyboardInterrupt:
    print("interrupted", flush=True)
"""
    with at_terminal(tree, PYTHON, "-c", script) as person:
        person.sees("ready")
        person.types(CTRL_C)
        person.sees("interrupted")
        assert person.ended() == 0


def test_ctrl_c_ends_a_command_that_does_not_handle_it(tree: Ground) -> None:
    """It ends by SIGINT, and run with 130."""
    with at_terminal(tree, "sh", "-c", "echo ready; exec sleep 60") as person:
        person.sees("ready")
        person.types(CTRL_C)
        assert person.ended() == 130


def test_ctrl_z_does_not_hang_a_command_without_a_shell(tree: Ground) -> None:
    """Nobody inside could wake it, so it is not suspended and goes on."""
    with at_terminal(tree, "sh", "-c", "echo ready; read line; echo got-$line") as person:
        person.sees("ready")
        person.types(CTRL_Z)
        person.types("x\n")
        person.sees("got-")
        assert person.ended() == 0


def test_the_window_size_follows(tree: Ground) -> None:
    """The command's terminal has the size of the person's, from the start and when it changes."""
    script = "stty size; trap 'stty size; exit' WINCH; echo ready; while :; do sleep 0.05; done"
    with at_terminal(tree, "sh", "-c", script) as person:
        person.sees("30 100")
        person.sees("ready")
        termios.tcsetwinsize(person.keyboard, (41, 123))
        person.sees("41 123")
        assert person.ended() == 0


def test_a_full_screen_editor(tree: Ground) -> None:
    """vim edits and writes a file of the view, which arrives in the source."""
    if shutil.which("vim") is None:
        absent("no vim here")
    with at_terminal(tree, "vim", "-u", "NONE", "yard/a.txt", options=("--env", "TERM=xterm")) as person:
        person.sees("a.txt")
        person.types("itext of the person " + ESCAPE)
        person.sees("person")
        person.types(":wq\r")
        assert person.ended() == 0
    assert (tree.source / "yard/a.txt").read_text() == "text of the person a\n"


def test_the_persons_terminal_is_not_among_the_descriptors(tree: Ground) -> None:
    """Whichever descriptors are a terminal, the command has another one there, and cannot type into the person's."""
    script = """
import fcntl, os, sys, termios
devices = []
for standard in range(3):
    if os.isatty(standard):
        devices.append(os.fstat(standard).st_rdev)
        try:
            for byte in b"typed-by-the-command\\n":
                fcntl.ioctl(standard, termios.TIOCSTI, bytes([byte]))
        except OSError:
            pass
os.write(2 if os.isatty(2) else 1, b"devices" + repr(devices).encode() + b"end\\n")
"""
    for standards in ((True, True, True), (False, True, True), (True, False, True), (False, True, False)):
        with at_terminal(tree, PYTHON, "-c", script, standards=standards) as person:
            device = os.fstat(person.terminal).st_rdev
            devices = person.sees(r"devices\[([0-9, ]*)\]end")[1].split(", ")
            assert len(devices) == sum(standards)
            assert str(device) not in devices
            assert person.ended() == 0
            # What was typed would now wait at the person's terminal for whoever reads next: the shell.
            assert _waiting_at(person.terminal) == b""


def _waiting_at(terminal: int) -> bytes:
    os.set_blocking(terminal, False)
    try:
        return os.read(terminal, 1000)
    except BlockingIOError:
        return b""


def test_stopping_run_itself_gives_the_terminal_back(one_tree: Ground) -> None:
    """SIGTSTP to run sets the terminal as it was while it is stopped; SIGCONT takes it again."""
    with at_terminal(one_tree, "sh", "-c", "echo ready; read line; echo got-$line") as person:
        person.sees("ready")
        until(lambda: person.is_raw, "the terminal to pass keys on")
        person.run.send_signal(signal.SIGTSTP)
        until(lambda: not person.is_raw, "the terminal to be given back")
        until(lambda: _state_of(person.run.pid) == "T", "run to be stopped")
        person.run.send_signal(signal.SIGCONT)
        until(lambda: person.is_raw, "the terminal to be taken again")
        person.types("x\n")
        person.sees("got-x")
        assert person.ended() == 0


def _state_of(process: int) -> str:
    with open(f"/proc/{process}/stat") as file:
        return file.read().rpartition(") ")[2].split()[0]


def test_a_closed_window_ends_everything(tree: Ground) -> None:
    """When the person's terminal goes away the command gets SIGHUP, and nothing is left."""
    with at_terminal(tree, "sh", "-c", "echo ready; while :; do sleep 0.05; done") as person:
        person.sees("ready")
        os.close(person.terminal)
        os.close(person.keyboard)
        assert person.run.wait(TIMEOUT) == 128 + signal.SIGHUP
    until(lambda: not tree.leftovers(), "everything to be cleared away")


def test_a_pipe_into_a_command_at_a_terminal(one_tree: Ground) -> None:
    """Input from a pipe, output to the terminal: Ctrl-C at the person's terminal reaches the command."""
    # No shell: a SIGINT that dash gets as it is about to fork waits for the child's end (without any sandbox: 13 of 66).
    script = "import signal, time; signal.signal(2, signal.SIG_DFL); print('got-' + input()); time.sleep(60)"
    with at_terminal(one_tree, PYTHON, "-c", script, standards=(False, True, True)) as person:
        assert person.run.stdin is not None
        person.run.stdin.write(b"x\n")
        person.run.stdin.flush()
        person.sees("^got-x\r\n")
        person.types(CTRL_C)
        assert person.ended() == 130


def test_ctrl_c_again_and_again_ends_a_command_that_goes_on(one_tree: Ground) -> None:
    """Where the command's input is not the terminal, Ctrl-C is forwarded and not more; three in a row end the run."""
    script = "trap 'echo got' INT; echo ready; while :; do sleep 0.05; done"
    with at_terminal(one_tree, "sh", "-c", script, standards=(False, True, True)) as person:
        person.sees("ready")
        for _ in range(2):
            person.types(CTRL_C)
            person.sees("got")
        person.types(CTRL_C)
        assert person.ended() == 128 + signal.SIGKILL


def test_in_the_background_the_keyboard_is_the_shells(tree: Ground) -> None:
    """A run that a shell has put in the background goes on while the person types to the shell, and has the keyboard once
    it is brought to the foreground."""
    with at_shell(tree) as person:
        script = "touch yard/up; read line; echo got-$line"
        person.types(shlex.join(tree.words("sh", "-c", script)) + " &\n")
        until(lambda: (tree.source / "yard/up").exists(), "a command that runs")
        person.types("echo ty''ped\n")
        person.sees("typed")
        person.types("jobs\n")
        person.sees(r"\[1\]\+ +Running")
        person.types("fg\n")
        person.types("hello\n")
        # Not before the prompt: what is typed while the run is there is the run's.
        person.sees(r"got-hello\s+[^\n]*[$#] ")
        person.types("exit 0\n")
        assert person.ended() == 0


# -- what the terminal answers

LAST_QUESTION = re.escape("\x1b\\\x1b[5n")
TITLE = "\x1b]l; id > /tmp/x #\x1b\\"
"""The answer to a question for the title of the window, in the command's own words."""


def _left_at(person: Person) -> bytes:
    """What whoever reads from the terminal next would get."""
    tty.setraw(person.terminal, termios.TCSANOW)
    return _waiting_at(person.terminal)


@pytest.mark.parametrize("standards", [(True, True, True), (False, True, True)])
def test_a_late_answer_is_not_left_to_the_shell(tree: Ground, standards: tuple[bool, bool, bool]) -> None:
    """A terminal that answers after the command's end: run waits for it, and nothing of it is there afterwards."""
    with at_terminal(tree, "printf", r"\033[21t\033[c", standards=standards) as person:
        before = termios.tcgetattr(person.terminal)
        person.sees(LAST_QUESTION)
        # Not all at once, and cut anywhere.
        for part in (TITLE[:5], TITLE[5:], "\x1b[?62;c", "\x1b[", "0n"):
            person.types(part)
        assert person.ended() == 0
        assert termios.tcgetattr(person.terminal) == before
        assert _left_at(person) == b""


def test_an_answer_that_looks_like_the_last_one(tree: Ground) -> None:
    """The command has asked the same just before: what comes right after its answer is dropped as well."""
    with at_terminal(tree, "printf", r"\033[5n\033[21t") as person:
        person.sees(LAST_QUESTION)
        person.types("\x1b[0n" + TITLE + "\x1b[0n")
        assert person.ended() == 0
        assert _left_at(person) == b""


def test_a_terminal_that_does_not_answer(tree: Ground) -> None:
    """It does not hold the run, and what comes meanwhile is dropped."""
    with at_terminal(tree, "printf", r"\033[21t") as person:
        person.sees(LAST_QUESTION)
        person.types(TITLE)
        assert person.ended() == 0
        assert _left_at(person) == b""


def test_a_terminal_that_was_not_asked_is_not_asked_in_the_end(tree: Ground) -> None:
    """Colours, cursor and titles: nothing is written after them."""
    with at_terminal(tree, "printf", r"\033[1;31mred\033[0m\033[2J\033]0;title?\007\303\251 end") as person:
        person.sees("end")
        assert person.ended() == 0
        assert "[5n" not in person.seen


def test_reports_that_were_asked_for_end_with_the_run(tree: Ground) -> None:
    """A mouse that reports where it is types into whatever comes next."""
    with at_terminal(tree, "printf", r"\033[?1003h\033[?1006h") as person:
        person.sees(r"\x1b\[\?[0-9;]*1003;[0-9;]*l")
        person.sees(LAST_QUESTION)
        person.types("\x1b[<35;1;1M\x1b[0n")
        assert person.ended() == 0
        assert _left_at(person) == b""


def _asked(text: bytes, *, utf8: bool = True) -> bool:
    """Whether this counts as a question; it must not depend on where it is cut."""
    found = set()
    for cut in range(len(text) + 1):
        questions = Questions(utf8=utf8)
        questions.shown(text[:cut])
        questions.shown(text[cut:])
        # Something that begins and does not end is one only once it has gone on.
        questions.shown(b" the rest")
        found.add(questions.asked)
    assert len(found) == 1
    return found.pop()


def _texts(listed: str) -> list[bytes]:
    r"""Words in which \e, \a and \s stand for ESC, BEL and a space."""
    return [word.replace("\\e", "\x1b").replace("\\a", "\a").replace("\\s", " ").encode() for word in listed.split()]


@pytest.mark.parametrize(
    "text",
    [
        *_texts(
            r"\e[c \e[>c \e[=c \e[0c \eZ \e[5n \e[6n \e[?6n \e[?996n \e[21t \e[14t \e[18;1t \e[?2026$p \e[4$p \e[>q \e[?u"
        ),
        *_texts(r"\e[x \e[1$w \e]11;?\a \e]4;1;?\e\ \e]52;c;?\a \ePq\e\ \eP$qm\e\ \eP+q544e\e\ \e_Gi=1,a=q\e\ "),
        *_texts(r"\e[?1003h \e[?25;1004h \e[?9h \e[?2031h \e[?2048;25h \e[?1003r \e[3\e[5n \e]0;\e[5n\a"),
        *(b"\x05", b"\x1b[\n5n", b"\xc2\x9b5n", b"\x9b5n", b"\xff", b"\x1b]0;" + b"x" * 5000),
    ],
)
def test_what_a_terminal_may_answer(text: bytes) -> None:
    """Questions for its kind, state, colours, title and contents, reports from now on, and what is not known."""
    assert _asked(text)


@pytest.mark.parametrize(
    "text",
    [
        *(b"text \t\r\n\a\b", "é — 漢字".encode()),
        *_texts(
            r"\e[m \e[1;38:2:1:2:3m \e[10;20H \e[2J \e[K \e[?25l \e[?1049h \e[?2004h \e[?1003l \e(B \e7 \e8 \e= \eM \e[!p"
        ),
        *_texts(
            r"\e[2\sq \e]0;title?\a \e]2;title\e\ \e]8;;http://x/?y\e\link\e]8;;\e\ \e[22;0t \e[>4;1m \e[>1u \e[<u \e[?7r"
        ),
    ],
)
def test_what_a_terminal_does_not_answer(text: bytes) -> None:
    """What ordinary output and full-screen programs write."""
    assert not _asked(text)


def test_a_terminal_without_utf8() -> None:
    """To it the second byte of a letter can begin a question."""
    assert not _asked("ě".encode())
    assert _asked("ě".encode(), utf8=False)
