"""`policyfs run` for tests: started by the real command as a person, and looked over when it has ended."""

from __future__ import annotations

import hashlib
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from policyfs.sandbox.signals import children
from tests.mount import expecting, harness
from tests.mount.expecting import absent, until
from tests.mount.harness import PROGRAM, Person

PYTHON = "/usr/bin/python3"
"""One that stands in every sandbox."""

SECRET = "the secret of the source"


def require_sandbox() -> None:
    """Skip or fail where this machine makes no sandbox."""
    expecting.require_fuse()
    for program, package in (("bwrap", "bubblewrap"), (PYTHON, "python3")):
        if shutil.which(program) is None:
            absent(f"no {program} here (Debian: {package})")


@dataclass
class Ground:
    """A person with a tree: `open.txt` and `yard/` are open to a session, `hidden.txt` and `hidden/` are not."""

    person: Person
    source: Path
    started: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def open(self) -> tuple[str, ...]:
        """Grants for this tree."""
        return ("-g", "/=ro", "-g", "/yard=stage", "-g", "/hidden.txt=none", "-g", "/hidden=none")

    def words(self, *command: str, options: tuple[str, ...] = (), grants: tuple[str, ...] | None = None) -> list[str]:
        """The command line of a run."""
        return [*PROGRAM, "run", str(self.source), *(self.open if grants is None else grants), *options, "--", *command]

    def run(
        self,
        *command: str,
        options: tuple[str, ...] = (),
        grants: tuple[str, ...] | None = None,
        cwd: Path | None = None,
        input: str | None = None,
    ) -> subprocess.CompletedProcess[str]:
        """Run a command in the view."""
        words = self.words(*command, options=options, grants=grants)
        return self.person.policyfs(*words[len(PROGRAM) :], cwd=cwd, input=input, name=self.name)

    def python(self, script: str, *arguments: str, options: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
        """Run a Python script, given as text, in the view."""
        return self.run(PYTHON, "-I", "-c", script, *arguments, options=options)

    def start(self, *command: str, options: tuple[str, ...] = (), **how: object) -> subprocess.Popen[bytes]:
        """Start a run and do not wait for it. It is its own process: what the person's namespace takes to enter execs."""
        self.started.append(self.person.popen(*self.words(*command, options=options), **how))
        return self.started[-1]

    @property
    def name(self) -> str:
        """By which the forked processes of a run can be told, at most 15 bytes (/proc/PID/comm)."""
        return f"run-{hashlib.sha256(os.fsencode(self.source)).hexdigest()[:10]}"

    # -- what is left -----------------------------------------------------------------------------------------------

    @property
    def state(self) -> Path:
        """policyfs's own state of this person."""
        return self.person.home / ".local/state/policyfs"

    def leftovers(self) -> list[str]:
        """Mounts, directories and processes of runs that are still there."""
        found = [
            mount.point.decode() for mount in self.person.mount_table() if mount.point.startswith(os.fsencode(self.state))
        ]
        runs = self.state / "run/runs"
        if runs.is_dir():
            found += [str(entry) for entry in runs.iterdir() if entry.name != "lock"]
        return found + self.processes()

    def processes(self) -> list[str]:
        """Processes that belong to runs of this tree: they name it, have its person's home for a home, or have its name."""
        marks = (os.fsencode(self.source), b"HOME=" + os.fsencode(self.person.home) + b"\0")
        found = []
        for name in os.listdir("/proc"):
            if not name.isdigit() or int(name) in (os.getpid(), self.person.namespace):
                continue
            try:
                told = Path("/proc", name, "cmdline").read_bytes() + Path("/proc", name, "environ").read_bytes()
                name_of = Path("/proc", name, "comm").read_text(errors="replace").removesuffix("\n")
            except OSError:
                continue
            if name_of == self.name or (told and any(mark in told for mark in marks)):
                found.append(f"{name} {told[:200]!r}")
        return found

    def daemon(self) -> int:
        """The mount daemon of the run that is under way."""

        def serving() -> int | None:
            # Numbers of earlier runs are in the log too, and somebody else's by now.
            alive = {line.split(" ")[0] for line in self.processes() if "policyfs.daemon.main" in line}
            told = [number for log in self.state.glob("*.log") for number in harness._SERVING.findall(log.read_text())]
            return next((int(number) for number in told if number in alive), None)

        found: int = until(serving, "a daemon that serves")
        return found


@contextmanager
def ground(person: Person, source: Path | None = None) -> Iterator[Ground]:
    """A tree for a person; at the end nothing of any run may be left."""
    require_sandbox()
    source = source or person.home / "tree"
    for directory in (source, source / "yard", source / "hidden"):
        directory.mkdir(parents=True, exist_ok=True)
    for name, text in (("open.txt", "open\n"), ("hidden.txt", SECRET), ("hidden/deep.txt", SECRET), ("yard/a.txt", "a\n")):
        (source / name).write_text(text)
    person.take(source)
    made = Ground(person, source)
    try:
        yield made
        until(lambda: not made.leftovers(), f"nothing to be left of the runs, but there is {made.leftovers()}")
    finally:
        for run in made.started:
            if run.poll() is None:
                run.kill()
                run.wait()
            for pipe in (run.stdin, run.stdout, run.stderr):
                if pipe is not None:
                    pipe.close()
        for line in made.processes():
            # Only what names this very tree or home, which no other test has.
            os.kill(int(line.split(" ")[0]), signal.SIGKILL)
        for mount in made.person.mount_table():
            if mount.point.startswith(os.fsencode(made.state)):
                made.person.unmount(Path(os.fsdecode(mount.point)), lazily=True)
        shutil.rmtree(source, ignore_errors=True)


def bubblewrap_of(run: subprocess.Popen[bytes]) -> int | None:
    """The bubblewrap that a run's command is in, by its number; None where it is not there, or no more."""
    for aide in children(run.pid):
        for child in children(aide):
            try:
                if b"--json-status-fd" in Path(f"/proc/{child}/cmdline").read_bytes():
                    return child
            except OSError:
                continue
    return None


def ran(done: subprocess.CompletedProcess[str], status: int = 0) -> str:
    """What a run said, once its exit status is the expected one."""
    if done.returncode != status:
        pytest.fail(f"exit status {done.returncode}, not {status}; it said {done.stdout!r} and {done.stderr!r}")
    return done.stdout
