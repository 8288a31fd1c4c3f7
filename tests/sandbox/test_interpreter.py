"""The interpreter that is started for a run's daemon before the options are read."""

from __future__ import annotations

import os
import subprocess
import sys

from policyfs.daemon.interpreter import Interpreter

RUN_WITHOUT_GRANT = """
import subprocess, sys
from policyfs.daemon import interpreter
started = []
class Noted(interpreter.Interpreter):
    def __init__(self):
        super().__init__()
        started.append(self.process)
interpreter.Interpreter = Noted
sys.argv = ["policyfs", "run", *sys.argv[1:]]
from policyfs.cli import main
try:
    main()
finally:
    print(len(started), [process.returncode for process in started])
"""


def test_one_that_gets_no_request_ends() -> None:
    """Its command ended before it had anything to mount."""
    interpreter = Interpreter().take()
    os.close(interpreter.request)
    assert interpreter.process.wait() == 0
    assert os.read(interpreter.answer, 1) == b""
    os.close(interpreter.answer)


def test_one_that_was_not_taken_is_ended() -> None:
    """By the command that started it, which waits for that."""
    interpreter = Interpreter()
    interpreter.discard()
    assert interpreter.process.returncode == -9


def test_a_run_that_cannot_be_leaves_none() -> None:
    """A fault in the options ends the interpreter too, before the command ends."""
    for words in (["/nonexistent", "-g", "/=ro", "--", "true"], ["--no-such-option"], ["--help"], []):
        done = subprocess.run(
            [sys.executable, "-I", "-c", RUN_WITHOUT_GRANT, *words], capture_output=True, text=True, timeout=60, check=False
        )
        assert done.stdout.endswith("1 [-9]\n"), (words, done)
