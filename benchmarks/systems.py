"""The three file systems: how each is mounted, run in, and ended.

Nothing here touches a mount from this process. Everything that could block goes by a child with a watchdog, so that a
hanging file system costs one line of the table and not the run.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import IO

from benchmarks.data import GIT_ENVIRONMENT

NATIVE, BINDFS, POLICYFS, UNJOURNALED, BEFORE = "native", "bindfs", "policyfs", "unjournaled", "before"

_GRANTS = 50
_READY_SECONDS = 60.0


class Failed(Exception):
    """A command did not do what it was to do; the text says which and why."""


def write_session(file: Path, directories: int) -> None:
    """A session as people have them: the tree readable, the data at stage but for the modules, rules inside the directories
    that are measured, most of them elsewhere, floors, and the built-in denylist with additions."""
    inside = [f"/data/repository/directory-{number:03}" for number in range(min(10, directories))]
    grants = {"/": "ro", "/data": "stage", "/data/modules": "ro", **dict.fromkeys(inside, "stage")}
    levels = ("ro", "stage", "none", "commit")
    for number in range(_GRANTS - len(grants)):
        grants[f"/Notes/Project {number:02}/Drafts"] = levels[number % len(levels)]
    lines = ["[grants]", *(f'"{path}" = "{level}"' for path, level in grants.items())]
    lines += ["", "[floors]", '"/Notes/Archive" = "ro"', '"/Notes/Private" = "none"']
    lines += ["", "[deny]", "defaults = true", 'names = ["secrets.*", "*.kdbx"]', 'paths = ["/Notes/keys"]']
    file.write_text("\n".join(lines) + "\n")


def run(words: list[str], *, cwd: Path, watchdog: float, output: IO[bytes] | int = subprocess.DEVNULL) -> float:
    """Run a command to its end; its seconds. A failure or a command that takes longer than `watchdog` raises."""
    return run_all([words], cwd=cwd, watchdog=watchdog, output=output)


def run_all(commands: list[list[str]], *, cwd: Path, watchdog: float, output: IO[bytes] | int = subprocess.DEVNULL) -> float:
    """Run commands side by side until the last of them ends; the seconds of all."""
    environment = {**os.environ, **GIT_ENVIRONMENT, "LC_ALL": "C"}
    started: list[subprocess.Popen[bytes]] = []
    begin = time.perf_counter()
    try:
        for words in commands:
            # The child changes to `cwd`: this process never enters a mount.
            child = subprocess.Popen(
                words,
                cwd=cwd,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            started += [child]  # one by one, so that a failing start ends those before it
        for words, child in zip(commands, started, strict=True):
            left = watchdog - (time.perf_counter() - begin)
            _, said = child.communicate(timeout=max(0.0, left))
            if child.returncode:
                reason = said.decode(errors="replace").strip().splitlines() or ["nothing said"]
                raise Failed(f"`{' '.join(words)[:120]}` ended with {child.returncode}: {reason[-1]}")
        return time.perf_counter() - begin
    except subprocess.TimeoutExpired as late:
        raise Failed(f"`{' '.join(late.cmd)[:120]}` took longer than {watchdog:g} s") from None
    finally:
        for child in started:
            _end(child)


def _end(child: subprocess.Popen[bytes], patience: float = 5.0) -> None:
    """End a child with all it started; one that the kernel holds in a hanging mount is left to the unmounting."""
    if child.poll() is None:
        os.killpg(child.pid, signal.SIGKILL)
        try:
            child.wait(patience)
        except subprocess.TimeoutExpired:
            return
    for pipe in (child.stdout, child.stderr):
        if pipe is not None:
            pipe.close()


class System:
    """One file system over a source of its own. `root` is where its data is seen. This one is native: no mount."""

    def __init__(self, name: str, directory: Path, source: Path, watchdog: float) -> None:
        self.name = name
        self.directory = directory
        self.source = source
        self.watchdog = watchdog

    @property
    def root(self) -> Path:
        return self.source / "data"

    def mount(self) -> None:
        """Mount, and wait until it answers."""

    def unmount(self) -> None:
        """End the mount and its daemon, whatever state they are in."""

    def remount(self) -> None:
        """A mount that knows nothing yet."""
        self.unmount()
        self.mount()

    def run(self, *words: str, within: str = "") -> float:
        return run(list(words), cwd=self.root / within, watchdog=self.watchdog)


class Mounted(System):
    """A file system that a daemon in the foreground serves at a mountpoint."""

    daemon: subprocess.Popen[bytes] | None = None

    @property
    def mountpoint(self) -> Path:
        return self.directory / "mounts" / self.name

    @property
    def log(self) -> Path:
        return self.directory / f"{self.name}.log"

    @property
    def root(self) -> Path:
        return self.mountpoint / "data"

    def command(self, source: Path, mountpoint: Path, *, foreground: bool) -> list[str]:
        """The command that mounts `source`. In the background it returns when the mount answers."""
        raise NotImplementedError

    def mount(self) -> None:
        self.mountpoint.mkdir(parents=True, exist_ok=True)
        with open("/proc/self/mountinfo", "rb") as table, open(self.log, "wb") as log:
            self.daemon = subprocess.Popen(
                self.command(self.source, self.mountpoint, foreground=True),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
            self._wait_until_mounted(table)
        # The table names a mount before its daemon answers; this returns when it does.
        self.run("stat", "--", ".")

    def _wait_until_mounted(self, table: IO[bytes]) -> None:
        """The kernel reports a change of the mount table as an exceptional condition of the open file (proc(5))."""
        assert self.daemon is not None
        changes = select.poll()
        changes.register(table, select.POLLPRI)
        last = time.monotonic() + _READY_SECONDS
        while not is_mounted(self.mountpoint):
            if self.daemon.poll() is not None or time.monotonic() > last:
                said = self.log.read_text(errors="replace").strip().splitlines() or ["nothing said"]
                raise Failed(f"{self.name} did not mount: {said[-1]} (all of it: {self.log})")
            changes.poll(100)

    def unmount(self) -> None:
        try:
            end_mount(self.mountpoint)
        finally:
            if self.daemon is not None:
                try:
                    self.daemon.wait(10)
                except subprocess.TimeoutExpired:
                    _end(self.daemon)
                self.daemon = None

    def first_answer(self, source: Path, file: Path) -> float:
        """The seconds from the command that mounts `source` until `file` in it has been looked at."""
        mountpoint = self.mountpoint.with_name(f"{self.name}-start")
        mountpoint.mkdir(parents=True, exist_ok=True)
        try:
            words = self.command(source, mountpoint, foreground=False)
            seconds = run(words, cwd=self.directory, watchdog=self.watchdog)
            return seconds + run(["stat", "--", str(mountpoint / file)], cwd=self.directory, watchdog=self.watchdog)
        finally:
            end_mount(mountpoint)

    def memory(self) -> int:
        """The bytes of the daemon that are its own: neither shared nor backed by a file."""
        assert self.daemon is not None
        status = Path(f"/proc/{self.daemon.pid}/status").read_text()
        return next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("RssAnon:"))


class Bindfs(Mounted):
    """Debian's bindfs with its defaults."""

    def command(self, source: Path, mountpoint: Path, *, foreground: bool) -> list[str]:
        return ["bindfs", *(["-f"] if foreground else []), str(source), str(mountpoint)]


class Policyfs(Mounted):
    """policyfs with the session of `write_session`, run by an interpreter that has it: another checkout's is measured
    by naming another interpreter."""

    python = sys.executable
    options: tuple[str, ...] = ()

    def command(self, source: Path, mountpoint: Path, *, foreground: bool) -> list[str]:
        # Isolated, as scripts/policyfs runs it.
        words = [self.python, "-I", "-c", "from policyfs.cli import main; main()", "mount"]
        words += ["-f"] if foreground else ["--log", str(self.log.with_name(f"{self.name}-start.log"))]
        return [*words, *self.options, "-s", str(self.directory / "session.toml"), str(source), str(mountpoint)]


class Unjournaled(Policyfs):
    """The same without its journal, to see what that costs."""

    options = ("--no-journal",)


KINDS: dict[str, type[System]] = {
    NATIVE: System, BINDFS: Bindfs, POLICYFS: Policyfs, UNJOURNALED: Unjournaled, BEFORE: Policyfs,
}  # fmt: skip


def is_mounted(point: Path) -> bool:
    """Whether the mount table has it. `os.path.ismount` would ask the mount itself, and wait with it."""
    with open("/proc/self/mountinfo", "rb") as table:
        return any(line.split(b" ")[4] == os.fsencode(point) for line in table)


def end_mount(point: Path) -> None:
    """Unmount, by force where it is in use: whoever is still in it was started here and has had its time."""
    plain = ["umount"] if os.geteuid() == 0 else ["fusermount3", "-u"]
    lazy = [*plain, "-l" if os.geteuid() == 0 else "-z"]
    for words in (plain, lazy):
        if not is_mounted(point):
            return
        subprocess.run([*words, str(point)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False, timeout=60)
    if is_mounted(point):
        raise Failed(f"{point} cannot be unmounted")
