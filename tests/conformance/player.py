"""What a case of `fs_access` can ask for: one method for each operation of conformance/README.md.

The signatures are the table: the keyword arguments of a method are the operation's further fields, and those without a
default are the ones it must have. `cases` loads by them, so a field that no player knows fails before anything is played.
"""

from __future__ import annotations

import inspect
import re
import stat
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from policyfs.policy import permissions
from policyfs.policy.levels import Standing
from policyfs.policy.paths import ViewPath, from_text
from policyfs.policy.policy import CompiledPolicy

Given = Mapping[str, Any]
"""What an operation that succeeds gives."""
NOTHING: Given = {}

FILE, DIRECTORY, FIFO = "0644", "0755", "0644"
"""The modes that an operation makes things with where it says none."""


class Player(ABC):
    """Somebody who does to a view what a case says. An operation that is refused raises OSError."""

    policy: CompiledPolicy

    @abstractmethod
    def stat(self, path: str, *, like: str | None = None) -> Given: ...
    @abstractmethod
    def list(self, path: str) -> Given: ...
    @abstractmethod
    def read(self, path: str) -> Given: ...
    @abstractmethod
    def write(self, path: str, *, content: str) -> Given: ...
    @abstractmethod
    def truncate(self, path: str, *, size: int) -> Given: ...
    @abstractmethod
    def open(self, path: str, *, flags: Sequence[str]) -> Given: ...
    @abstractmethod
    def create(self, path: str, *, mode: str = FILE) -> Given: ...
    @abstractmethod
    def mkdir(self, path: str, *, mode: str = DIRECTORY) -> Given: ...
    @abstractmethod
    def mkfifo(self, path: str, *, mode: str = FIFO) -> Given: ...
    @abstractmethod
    def mkdevice(self, path: str) -> Given: ...
    @abstractmethod
    def symlink(self, path: str, *, target: str) -> Given: ...
    @abstractmethod
    def readlink(self, path: str) -> Given: ...
    @abstractmethod
    def link(self, path: str, *, to: str) -> Given: ...
    @abstractmethod
    def rename(self, path: str, *, to: str, flags: Sequence[str] = ()) -> Given: ...
    @abstractmethod
    def unlink(self, path: str) -> Given: ...
    @abstractmethod
    def rmdir(self, path: str) -> Given: ...
    @abstractmethod
    def access(self, path: str, *, mode: str) -> Given: ...
    @abstractmethod
    def chmod(self, path: str, *, mode: str) -> Given: ...
    @abstractmethod
    def chown(self, path: str) -> Given: ...
    @abstractmethod
    def utimens(self, path: str) -> Given: ...
    @abstractmethod
    def setxattr(self, path: str, *, name: str, value: str) -> Given: ...
    @abstractmethod
    def getxattr(self, path: str, *, name: str) -> Given: ...
    @abstractmethod
    def listxattr(self, path: str) -> Given: ...
    @abstractmethod
    def removexattr(self, path: str, *, name: str) -> Given: ...

    def explain(self, path: str, *, in_repository: bool = False) -> Given:
        """No system call: the policy alone, whoever plays."""
        place_path = ViewPath(from_text(path))
        explanation = self.policy.explain(place_path)
        decision = explanation.decision
        given = {answer.operation: answer.text for answer in explanation.answers}
        if in_repository and decision.standing is not Standing.HIDDEN:
            refusal = permissions.commit(self.policy.place(place_path), in_repository=True)
            given["commit"] = None if refusal is None else refusal.text(place_path)
        return {
            **given,
            "level": str(decision.level),
            "standing": str(decision.standing),
            # Who set a rule stands behind it in parentheses; the contract leaves that out.
            "rule": re.sub(r" \([^)]*\)$", "", str(decision.rule)),
        }


OPERATIONS = {
    name: inspect.signature(method)
    for name, method in vars(Player).items()
    if not name.startswith("_") and inspect.isfunction(method)
}
"""The operations and what each takes."""

KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFREG: "file",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}
ACCESS = {"r": 4, "w": 2, "x": 1}
RENAME = {"NOREPLACE": 1, "EXCHANGE": 2}
ANY_TIME_NS = 10**18
ROOT_USER = 0


class Status(NamedTuple):
    """What stat(2) says of an object, as far as a case compares it."""

    mode: int
    links: int
    size: int
    owner: int
    times: tuple[int, int, int]


def status(found: Status, like: Status | None) -> Given:
    """What `stat` gives."""
    given = {"kind": KINDS[stat.S_IFMT(found.mode)], **found._asdict(), "mode": octal(found.mode)}
    if like is not None:
        given["same"] = sorted(name for name in Status._fields if getattr(found, name) == getattr(like, name))
    return given


def octal(mode: int) -> str:
    """Permission and set-id bits in four digits."""
    return f"{stat.S_IMODE(mode):04o}"


def bits(mode: str) -> int:
    """The number of four octal digits."""
    return int(mode, 8)
