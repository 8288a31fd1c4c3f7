"""The third player: system calls on a real mount, one mount for each case."""

from __future__ import annotations

import contextlib
import ctypes
import os
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from policyfs.daemon.request import MountRequest, Ready
from policyfs.opening.load import PolicyOptions
from policyfs.policy.paths import from_text
from tests.conformance.cases import Case
from tests.conformance.ground import Ground, floors_files, policy_of, session_file
from tests.conformance.kernel import UMASK
from tests.conformance.player import (
    ACCESS,
    ANY_TIME_NS,
    DIRECTORY,
    FIFO,
    FILE,
    NOTHING,
    RENAME,
    ROOT_USER,
    Given,
    Player,
    Status,
    bits,
    status,
)
from tests.mount import expecting, harness
from tests.mount.harness import Mounted, Person

_FORKER = Path(__file__).with_name("forker.py")
_AT_FDCWD = -100
_libc = ctypes.CDLL(None, use_errno=True)


def _must(result: int) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


class ByMount(Player):
    """Plays by system calls. Paths of the view are below the mountpoint."""

    def __init__(self, ground: Ground) -> None:
        self.ground = ground

    def _at(self, path: str) -> bytes:
        return from_text(str(self.ground.point) + ("" if path == "/" else path))

    def stat(self, path: str, *, like: str | None = None) -> Given:
        return status(self._status(path), None if like is None else self._status(like))

    def _status(self, path: str) -> Status:
        found = os.lstat(self._at(path))
        times = (found.st_atime_ns, found.st_mtime_ns, found.st_ctime_ns)
        return Status(found.st_mode, found.st_nlink, found.st_size, found.st_uid, times)

    def list(self, path: str) -> Given:
        return {"names": [os.fsdecode(name) for name in sorted(os.listdir(self._at(path)))]}

    def read(self, path: str) -> Given:
        file = os.open(self._at(path), os.O_RDONLY)
        content = b""
        try:
            while more := os.read(file, 1 << 16):
                content += more
        finally:
            os.close(file)
        return {"text": content.decode("utf-8", "surrogateescape")}

    def write(self, path: str, *, content: str) -> Given:
        file = os.open(self._at(path), os.O_WRONLY)
        try:
            rest = from_text(content)
            while rest:
                rest = rest[os.write(file, rest) :]
        finally:
            os.close(file)
        return NOTHING

    def truncate(self, path: str, *, size: int) -> Given:
        os.truncate(self._at(path), size)
        return NOTHING

    def open(self, path: str, *, flags: Sequence[str]) -> Given:
        os.close(os.open(self._at(path), sum(getattr(os, flag) for flag in flags)))
        return NOTHING

    def create(self, path: str, *, mode: str = FILE) -> Given:
        os.close(os.open(self._at(path), os.O_CREAT | os.O_EXCL | os.O_WRONLY, bits(mode)))
        return NOTHING

    def mkdir(self, path: str, *, mode: str = DIRECTORY) -> Given:
        os.mkdir(self._at(path), bits(mode))
        return NOTHING

    def mkfifo(self, path: str, *, mode: str = FIFO) -> Given:
        os.mkfifo(self._at(path), bits(mode))
        return NOTHING

    def mkdevice(self, path: str) -> Given:
        os.mknod(self._at(path), stat.S_IFCHR | bits(FILE), os.makedev(1, 3))
        return NOTHING

    def symlink(self, path: str, *, target: str) -> Given:
        os.symlink(self.ground.text(target), self._at(path))
        return NOTHING

    def readlink(self, path: str) -> Given:
        return {"target": os.fsdecode(os.readlink(self._at(path)))}

    def link(self, path: str, *, to: str) -> Given:
        os.link(self._at(path), self._at(to), follow_symlinks=False)
        return NOTHING

    def rename(self, path: str, *, to: str, flags: Sequence[str] = ()) -> Given:
        number = sum(RENAME[flag] for flag in flags)
        _must(_libc.renameat2(_AT_FDCWD, self._at(path), _AT_FDCWD, self._at(to), number))
        return NOTHING

    def unlink(self, path: str) -> Given:
        os.unlink(self._at(path))
        return NOTHING

    def rmdir(self, path: str) -> Given:
        os.rmdir(self._at(path))
        return NOTHING

    def access(self, path: str, *, mode: str) -> Given:
        # os.access keeps the errno to itself.
        _must(_libc.access(self._at(path), sum(ACCESS[letter] for letter in mode)))
        return NOTHING

    def chmod(self, path: str, *, mode: str) -> Given:
        os.chmod(self._at(path), bits(mode))
        return NOTHING

    def chown(self, path: str) -> Given:
        os.chown(self._at(path), ROOT_USER, ROOT_USER, follow_symlinks=False)
        return NOTHING

    def utimens(self, path: str) -> Given:
        os.utime(self._at(path), ns=(ANY_TIME_NS, ANY_TIME_NS), follow_symlinks=False)
        return NOTHING

    def setxattr(self, path: str, *, name: str, value: str) -> Given:
        os.setxattr(self._at(path), from_text(name), from_text(value), follow_symlinks=False)
        return NOTHING

    def getxattr(self, path: str, *, name: str) -> Given:
        return {"value": os.fsdecode(os.getxattr(self._at(path), from_text(name), follow_symlinks=False))}

    def listxattr(self, path: str) -> Given:
        return {"names": sorted(os.listxattr(self._at(path), follow_symlinks=False))}

    def removexattr(self, path: str, *, name: str) -> Given:
        os.removexattr(self._at(path), from_text(name), follow_symlinks=False)
        return NOTHING


# -- mounts --------------------------------------------------------------------------------------------------------------

Daemons = socket.socket


@contextlib.contextmanager
def daemons() -> Iterator[Daemons]:
    """A process that starts daemons (see `forker`), with a home of its own."""
    expecting.require_fuse()
    with harness.myself() as person:
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with ours:
            with theirs:
                forker = subprocess.Popen(
                    [sys.executable, "-I", str(_FORKER), str(theirs.fileno())],
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    env=person.environment,
                    pass_fds=[theirs.fileno()],
                )
            yield ours
        forker.wait(harness.TIMEOUT)


def _request(case: Case, ground: Ground) -> MountRequest:
    session = ground.directory / "session.toml"
    session.write_text(session_file(case.session), encoding="utf-8")
    files = []
    for number, text in enumerate(floors_files(case, ground)):
        file = ground.directory / f"floors-{number}.toml"
        file.write_text(text, encoding="utf-8")
        files.append(str(file))
    options = PolicyOptions(session_file=str(session), floors_files=tuple(files))
    return MountRequest(str(ground.source), str(ground.point), options, log_file=str(_log(ground)))


def _log(ground: Ground) -> Path:
    return ground.directory / "daemon.log"


def _start(started_by: Daemons, case: Case, ground: Ground) -> Ready:
    """Start the daemon for a case, and wait for its answer."""
    request = _request(case, ground).dumps()
    with _log(ground).open("ab") as log:
        answer, told = os.pipe()
        socket.send_fds(started_by, [request], [told, log.fileno()])
        os.close(told)
    return Ready.receive(answer)


@contextlib.contextmanager
def player(started_by: Daemons, case: Case, ground: Ground) -> Iterator[Player]:
    """A player for one case, on a mount that ends with the body."""
    ready = _start(started_by, case, ground)
    ready.raise_fault()
    # As the command does: the first request is answered when all is set up.
    os.statvfs(ground.point)
    view = Mounted(ground.source, ground.point, Person(ground.home), ready.process, _log(ground), "", "")
    with harness.overseen(view):
        before = os.umask(UMASK)
        try:
            plays = ByMount(ground)
            plays.policy = policy_of(case, ground)
            yield plays
        finally:
            os.umask(before)


def refusal_to_mount(started_by: Daemons, case: Case, ground: Ground) -> Ready:
    """The daemon's answer where nothing is to be mounted."""
    ready = _start(started_by, case, ground)
    assert Person(ground.home).mount_at(ground.point) is None
    return ready
