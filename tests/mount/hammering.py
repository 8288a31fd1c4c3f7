"""Others who use a view, or its source, all the time: so that it is busy while something else is measured."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.mount.harness import TIMEOUT

_SCRIPT = r"""
import errno, os, random, select, sys
role, directories = sys.argv[1], sys.argv[2:]
pid = os.getpid()
rounds = 0

def read(directory):
    for entry in list(os.scandir(directory))[:50]:
        entry.stat(follow_symlinks=False)
        if entry.is_file(follow_symlinks=False):
            with open(entry.path, "rb") as file:
                file.read()

def write(directory):
    name = f"{directory}/hammered-{pid}-{rounds % 20}"
    with open(name, "w") as file:
        file.write("x" * 5000)
    os.rename(name, f"{name}.new")
    os.stat(f"{name}.new")
    os.unlink(f"{name}.new")

def fight(directory):
    # On names that everybody uses.
    name = f"{directory}/fought-{random.randrange(6)}"
    match random.randrange(8):
        case 0:
            with open(name, "w") as file:
                file.write("y" * random.randrange(20000))
        case 1:
            with open(name, "r+b") as file:
                file.seek(4000)
                file.write(b"z" * 3000)
                file.truncate(5000)
        case 2 | 3:
            with open(name, "rb") as file:
                file.read()
                os.fstat(file.fileno())
                file.seek(0)
                file.read()
        case 4:
            os.replace(name, f"{directory}/fought-{random.randrange(6)}")
        case 5:
            os.unlink(name)
        case 6:
            for entry in os.scandir(directory):
                entry.stat(follow_symlinks=False)
        case 7:
            below = f"{directory}/directory-{random.randrange(2)}"
            match random.randrange(3):
                case 0: os.mkdir(below)
                case 1: os.rename(below, f"{directory}/directory-{random.randrange(2)}")
                case 2: os.listdir(below); os.rmdir(below)

act = {"read": read, "write": write, "fight": fight}[role]
print("begun", flush=True)
while not select.select([0], [], [], 0)[0]:
    rounds += 1
    try:
        act(directories[rounds % len(directories)])
    except OSError as error:
        # What is used by others goes away, or becomes another, while one looks at it. Nothing else may happen.
        harmless = errno.ENOENT, errno.ESTALE, errno.EEXIST, errno.ENOTEMPTY, errno.EISDIR, errno.ENOTDIR
        if error.errno not in harmless:
            raise
print(rounds)
"""


@contextmanager
def hammering(*parts: tuple[str, Sequence[Path]]) -> Iterator[list[int]]:
    """A process for each part, which reads, writes or fights in its directories by turns until the body has ended. How
    many rounds each has made is there after it."""
    rounds: list[int] = []
    processes: list[subprocess.Popen[str]] = []
    try:
        for role, directories in parts:
            command = [sys.executable, "-I", "-S", "-c", _SCRIPT, role, *map(str, directories)]
            pipe = subprocess.PIPE
            processes.append(subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True))
        for process in processes:
            assert process.stdout is not None
            assert process.stdout.readline() == "begun\n"
        yield rounds
    finally:
        said = [_ended(process) for process in processes]
    faults = [fault for _, fault in said if fault]
    assert not faults, "somebody who hammered met an error: " + "; ".join(faults)
    rounds += [int(told) for told, _ in said]


def _ended(process: subprocess.Popen[str]) -> tuple[str, str]:
    """End one, by its standard input, and give what it said on standard output, and of what went wrong."""
    try:
        return process.communicate(timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        process.kill()
        process.communicate()
        return "", f"it did not end within {TIMEOUT:g} s"
