"""What a source tree is, to the byte and the nanosecond: taken before and after an attack, and compared."""

from __future__ import annotations

import hashlib
import os
import stat
from pathlib import Path
from typing import NamedTuple


class State(NamedTuple):
    """One object. Access times are left out: reading what may be read moves them."""

    kind: int
    mode: int
    links: int
    uid: int
    gid: int
    size: int
    modified: int
    changed: int
    inode: int
    content: str
    attributes: tuple[tuple[str, bytes], ...]


def state_of(tree: Path, *, except_below: tuple[str, ...] = ()) -> dict[bytes, State]:
    """Every object below a directory, itself included, by its path from there. `except_below` are directories whose
    inside is left out, and whose own links, size and times with it."""
    left_out = {os.path.join(os.fsencode(tree), os.fsencode(path)) for path in except_below}
    found: dict[bytes, State] = {}
    waiting = [os.fsencode(tree)]
    while waiting:
        path = waiting.pop()
        if path in left_out:
            continue
        status = os.lstat(path)
        content = ""
        if stat.S_ISLNK(status.st_mode):
            content = repr(os.readlink(path))
        elif stat.S_ISREG(status.st_mode):
            with open(path, "rb") as file:
                content = hashlib.sha256(file.read()).hexdigest()
        elif stat.S_ISDIR(status.st_mode):
            names = sorted(os.listdir(path))
            content = repr(names)
            waiting += [os.path.join(path, name) for name in names]
        follows = not stat.S_ISLNK(status.st_mode)
        attributes = os.listxattr(path, follow_symlinks=follows)
        found[os.path.relpath(path, os.fsencode(tree))] = State(
            stat.S_IFMT(status.st_mode), stat.S_IMODE(status.st_mode), status.st_nlink, status.st_uid, status.st_gid,
            status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino, content,
            tuple((name, os.getxattr(path, name, follow_symlinks=follows)) for name in sorted(attributes)),
        )  # fmt: skip
    return found


def changes(before: dict[bytes, State], after: dict[bytes, State]) -> list[str]:
    """What differs, an object a line; empty where nothing does."""
    said = []
    for path in sorted(before.keys() | after.keys()):
        old, new = before.get(path), after.get(path)
        if old is None or new is None:
            said.append(f"{path!r} {'appeared' if old is None else 'is gone'}")
        elif old != new:
            fields = [
                f"{field} {was!r} -> {now!r}" for field, was, now in zip(State._fields, old, new, strict=True) if was != now
            ]
            said.append(f"{path!r}: {', '.join(fields)}")
    return said
