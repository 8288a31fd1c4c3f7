"""Which contents git may find at the names that `policy.git` has judged. Pure: bytes in, a reason or None out.

git takes its own state for true. This was tried with git 2.39: a session writes an index that holds `.git/hooks/x`, and the
owner's `git checkout .` makes the hook, or any other file by an absolute path. A merge strategy `x/y` in the state of a
rebase or of a cherry-pick runs the program `git-merge-x/y` of the work tree at the owner's `--continue`. `exec` in the list
of a rebase runs anything.

An index is read here as git reads it, by its lengths and in blocks, so that there is no second reading of the same bytes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from policyfs.policy.git import Judged
from policyfs.policy.git_config import NotAConfiguration, parse

MAX_BYTES = 4 << 20
"""Bytes of a small file that is judged. The list of a rebase of thirty thousand commits has less."""

MAX_INDEX_BYTES = 256 << 20
"""Bytes of an index: of some three million files."""

LARGEST_LINK = 1 << 16
"""Bytes of a file that only names a path; a path has at most 4,096."""


def fault(judged: Judged, content: bytes, *, sha256: bool = False) -> str | None:
    """Why git may not find this content, None where it may. `sha256` is the repository's object format. A file that names a
    path is judged by `named_path` and by what that path is."""
    if judged is Judged.INDEX:
        return index_fault(content, 32 if sha256 else 20)
    if judged is Judged.CONFLICTS:
        return _conflicts_fault(content)
    if judged is Judged.COMMANDS:
        return "it holds exec" if _EXECUTES.search(content) else None
    if judged is Judged.STRATEGY:
        return "its strategy is a path" if b"/" in content else None
    if judged is Judged.OPTIONS:
        return _options_fault(content)
    if judged is Judged.COMMON:
        return None if content in (b"", b"../..", b"../..\n") else "it is not ../.."
    return None


_EXECUTES = re.compile(rb"^[ \t]*(?:x|exec)(?![^ \t\r\n\0])", re.MULTILINE)
"""A command that runs a program (sequencer.c, `parse_insn_line`)."""

_LEADS_AWAY = re.compile(rb"[\0/](?:[\0/]|\.(?:[\0/]|\.[\0/]|git[\0/]))", re.IGNORECASE)
"""A component that no path in a work tree has, in paths with a NUL before and after each: none, `.`, `..` and `.git`."""


def named_path(content: bytes, prefix: bytes) -> bytes | None:
    """The path that a file of one line names after `prefix`, as git reads it; None where it is anything else."""
    if not content.startswith(prefix):
        return None
    path = content[len(prefix) :].removesuffix(b"\n")
    return path if path and not re.search(rb"[\0\r\n]", path) and len(path) <= LARGEST_LINK else None


def _conflicts_fault(content: bytes) -> str | None:
    """Of MERGE_RR: an identifier, a tab and a path, each record ended by NUL (rerere.c, `read_rr`)."""
    if not content:
        return None
    paths = [record.partition(b"\t")[2] for record in content.removesuffix(b"\0").split(b"\0")]
    return _paths_fault(paths)


def _options_fault(content: bytes) -> str | None:
    try:
        entries = parse(content)
    except NotAConfiguration as error:
        return str(error)
    if any(entry.name == "options.strategy" and b"/" in (entry.value or b"") for entry in entries):
        return "its strategy is a path"
    return None


def leads_away(paths: Sequence[bytes]) -> bool:
    """Whether one of some paths leads out of the work tree, or into a .git."""
    return _LEADS_AWAY.search(b"\0".join((b"", *paths, b""))) is not None


def _paths_fault(paths: Sequence[bytes]) -> str | None:
    return "a path in it leads out of the work tree, or into .git" if leads_away(paths) else None


class _Odd(ValueError):
    """An index that git would not have written. The text says what is odd."""


def index_fault(content: bytes, hash_size: int) -> str | None:
    """Why an index may not be git's, None where it may: gitformat-index(5). `hash_size` is 20, or 32 with SHA-256."""
    try:
        paths = _index_paths(content, hash_size)
    except _Odd as odd:
        return str(odd)
    except IndexError:
        return "it ends before its last entry"
    return _paths_fault(paths) if paths else None


_HEADER = 12
_MODE_AT = 24
_FIELDS = 40
_NAME_LENGTH = 0x0FFF
_EXTENDED = 0x4000
_SPARSE_DIRECTORY = 0o040000
_LONGEST_PATH = 4096
_MAX_BYTES_OF_PATHS = 512 << 20
"""Bytes of a path, and of all together: of version 4 a few bytes can stand for a path of any length."""
_KNOWN_AND_REQUIRED = frozenset({b"link", b"sdir"})


def _index_paths(content: bytes, hash_size: int) -> list[bytes]:
    """The paths of all entries. Those of a split index that stand for an entry of the other one have none."""
    if content[:4] != b"DIRC" or len(content) < _HEADER + hash_size:
        raise _Odd("it does not begin as an index does")
    version, count = int.from_bytes(content[4:8], "big"), int.from_bytes(content[8:12], "big")
    if version not in (2, 3, 4):
        raise _Odd("its version is unknown")
    end = len(content) - hash_size
    if count > end // (_FIELDS + hash_size + 2):
        raise _Odd("it ends before its last entry")
    read = _paths_with_what_goes_before if version == 4 else _whole_paths
    paths, starts, taken_over, position = read(content, count, hash_size, end, version)
    if position > end:
        raise _Odd("it ends before its last entry")
    is_split = _extensions(content, position, end, hash_size, starts, taken_over)
    return [path for path in paths if path] if is_split else paths


_Read = tuple[list[bytes], list[int], list[int], int]
"""The paths of all entries, where each entry begins, how much of a path is the one before's, and where the entries end."""


def _whole_paths(content: bytes, count: int, hash_size: int, end: int, version: int) -> _Read:
    """The entries of version 2 and 3: each path whole, and NULs to a multiple of eight bytes. The loop is written to be
    fast: it is gone through for each `git add`."""
    paths: list[bytes] = []
    starts: list[int] = []
    find, fixed, position = content.find, _FIELDS + hash_size + 2, _HEADER
    for _ in range(count):
        name_at = position + fixed
        high, low = content[name_at - 2], content[name_at - 1]
        if high & _EXTENDED >> 8:
            if version == 2:
                raise _Odd("an entry of version 2 has flags of version 3")
            name_at += 2
        close = find(b"\0", name_at, end)
        length = close - name_at
        if close < 0 or length > _LONGEST_PATH:
            raise _Odd(_TOO_LONG)
        if ((high & _NAME_LENGTH >> 8) << 8 | low) != min(length, _NAME_LENGTH):
            raise _Odd("a path has another length than its entry says")
        path = content[name_at:close]
        if path[-1:] == b"/":
            path = _without_slash(path, content, position)
        paths.append(path)
        starts.append(position)
        position += name_at - position + length + 8 & ~7
    return paths, starts, [], position


def _paths_with_what_goes_before(content: bytes, count: int, hash_size: int, end: int, version: int) -> _Read:
    """The entries of version 4: of each path what differs from the one before."""
    paths: list[bytes] = []
    starts: list[int] = []
    taken_over: list[int] = []
    position, previous, of_all = _HEADER, b"", 0
    for _ in range(count):
        starts.append(position)
        name_at = position + _FIELDS + hash_size + 2
        high, low = content[name_at - 2], content[name_at - 1]
        name_at, dropped = _offset(content, name_at + 2 if high & _EXTENDED >> 8 else name_at)
        kept = len(previous) - dropped
        close = content.find(b"\0", name_at, end)
        if kept < 0 or close < 0:
            raise _Odd("a path drops more of the one before than that has, or does not end")
        taken_over.append(kept)
        previous = previous[:kept] + content[name_at:close]
        of_all += len(previous)
        if len(previous) > _LONGEST_PATH or of_all > _MAX_BYTES_OF_PATHS:
            raise _Odd(_TOO_LONG)
        if ((high & _NAME_LENGTH >> 8) << 8 | low) != min(len(previous), _NAME_LENGTH):
            raise _Odd("a path has another length than its entry says")
        paths.append(_without_slash(previous, content, position) if previous[-1:] == b"/" else previous)
        position = close + 1
    return paths, starts, taken_over, position


_TOO_LONG = "a path in it does not end, or is longer than any file system has it"


def _without_slash(path: bytes, content: bytes, position: int) -> bytes:
    """The path of a directory in a sparse index."""
    mode = int.from_bytes(content[position + _MODE_AT : position + _MODE_AT + 4], "big")
    return path[:-1] if mode == _SPARSE_DIRECTORY else path


def _extensions(
    content: bytes, position: int, end: int, hash_size: int, starts: list[int], taken_over: list[int]
) -> bool:
    """Look through what follows the entries; gives whether another index is built on. git finds the extensions by one of
    them, at a fixed place before the end, and reads entries in blocks where another tells it to: both must say what the
    bytes say in order, or git would read another index than was judged."""
    for told_at in (end - (8 + 4 + 20), end - (8 + 4 + hash_size)):
        # git looks for 20 bytes of hash here whatever the format.
        if content[told_at : told_at + 4] == b"EOIE" and content[told_at + 8 : told_at + 12] != position.to_bytes(4, "big"):
            raise _Odd("it names a wrong end of its entries")
    is_split = False
    while position < end:
        name, size = content[position : position + 4], int.from_bytes(content[position + 4 : position + 8], "big")
        position += 8
        if position + size > end:
            raise _Odd("an extension goes over its end")
        if not b"A" <= name[:1] <= b"Z" and name not in _KNOWN_AND_REQUIRED:
            raise _Odd("it needs an extension that is unknown")
        if name == b"link":
            is_split = True
        elif name == b"IEOT":
            _blocks(content[position : position + size], starts, taken_over)
        position += size
    return is_split


def _blocks(table: bytes, starts: list[int], taken_over: list[int]) -> None:
    """The table of blocks of entries: each begins where an entry does, one that builds on none before."""
    first = 0
    for at in range(4, len(table) - 7, 8):
        offset, count = int.from_bytes(table[at : at + 4], "big"), int.from_bytes(table[at + 4 : at + 8], "big")
        if first >= len(starts) or starts[first] != offset or (taken_over and taken_over[first] != 0):
            raise _Odd("it names blocks that begin where no entry does")
        first += count
    if first != len(starts):
        raise _Odd("it names blocks that are not all of its entries")


def _offset(content: bytes, position: int) -> tuple[int, int]:
    """A number as version 4 writes it, and where it ends: seven bits a byte, high ones first, and one added for each byte
    that follows (gitformat-pack(5), "offset encoding")."""
    byte = content[position]
    number = byte & 0x7F
    while byte & 0x80:
        position += 1
        byte = content[position]
        number = (number + 1 << 7) + (byte & 0x7F)
        if number > MAX_INDEX_BYTES:
            raise _Odd("a path drops more of the one before than that has")
    return position + 1, number
