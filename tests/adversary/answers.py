"""What an operation answers, and what is in a tree, to be compared."""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any


def shown(status: os.stat_result) -> tuple[int, ...]:
    """What must be the same; a view tells nothing of a directory's size and links."""
    if stat.S_ISDIR(status.st_mode):
        return (status.st_mode, status.st_uid, status.st_gid)
    return (status.st_mode, status.st_nlink, status.st_uid, status.st_gid, status.st_size)


def answer_of(act: Callable[[Path], Any], root: Path) -> Any:
    """What an operation gives: its result, or the name of its errno."""
    try:
        return act(root)
    except OSError as error:
        return errno.errorcode[error.errno or 0]


def tree_of(root: Path) -> dict[str, tuple[Any, ...]]:
    """A whole tree: what each object is, what is in it, and its attributes."""
    tree: dict[str, tuple[Any, ...]] = {}
    for directory, directories, files in os.walk(root):
        for name in (*directories, *files):
            path = Path(directory, name)
            status = path.lstat()
            content: Any = None
            if stat.S_ISREG(status.st_mode):
                content = path.read_bytes()
            elif stat.S_ISLNK(status.st_mode):
                content = os.readlink(path)
            attributes = {}
            if not stat.S_ISLNK(status.st_mode):
                attributes = {attribute: os.getxattr(path, attribute) for attribute in os.listxattr(path)}
            tree[str(path.relative_to(root))] = (shown(status), content, attributes)
    return tree
