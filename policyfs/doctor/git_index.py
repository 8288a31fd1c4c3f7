"""The paths that a git index tracks, read from its bytes: git itself is not run on a tree that a session may change,
since a repository's configuration names programs for git to run (rule doctor-2).

The format is that of gitformat-index(5): a header, entries sorted by path, extensions, and a checksum of it all.
Versions 2 and 3 pad each entry to a multiple of eight bytes; version 4 writes a path as what differs from the one before.

The author of the bytes may want nobody to read on. So a number, a path, and all paths together have a bound: of version 4
a few bytes of an entry can stand for a path of any length.
"""

from __future__ import annotations

import hashlib
import struct
from dataclasses import dataclass

LINK = 0o120000
"""The kind of an entry that is a symbolic link, in the upper bits of its mode."""

MAX_BYTES = 256 << 20
"""Bytes of an index that is read: of some three million files."""

_SIGNATURE = b"DIRC"
_HEADER = struct.Struct(">4sII")
_MODE_AT = 24
"""Ten four-byte fields come first: two times of two, device, inode number, mode, owner, group, size."""
_FIELDS = 40
_EXTENDED = 0x4000
_NAME_LENGTH = 0x0FFF
_KINDS = frozenset({0o100000, LINK, 0o160000, 0o040000})
"""The kinds of entry: a file, a link, a submodule, and of a sparse index a directory."""
_LONGEST_PATH = 4096
"""PATH_MAX: git can make no file at a longer one."""
_MAX_BYTES_OF_PATHS = 512 << 20
"""Bytes of all paths together."""


class NotAnIndex(ValueError):
    """The bytes are not an index of a version that is known, or one that was cut off."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One tracked path, relative to the work tree. Of a sparse index, a directory of which nothing is checked out."""

    path: bytes
    mode: int

    @property
    def is_link(self) -> bool:
        """Whether a symbolic link is tracked there."""
        return self.mode & 0o170000 == LINK


@dataclass(frozen=True, slots=True)
class Index:
    """What an index tracks. `shared` is the hexadecimal name of the index that a split one builds on, if it is one: the
    rest of its entries are in `sharedindex.NAME` beside it."""

    version: int
    entries: tuple[Entry, ...]
    shared: str | None


def parse(content: bytes) -> Index:
    """The index that these bytes are. Raises `NotAnIndex`."""
    try:
        return _parse(content)
    except (struct.error, IndexError):
        raise NotAnIndex("it ends before its last entry") from None


def named_by(git_file: bytes) -> bytes | None:
    """The path of the repository that a `.git` file names, as git reads it: to the last line's end or the first NUL."""
    if not git_file.startswith(b"gitdir: "):
        return None
    return git_file[len(b"gitdir: ") :].rstrip(b"\r\n").partition(b"\0")[0]


def _parse(content: bytes) -> Index:
    signature, version, count = _HEADER.unpack_from(content)
    if signature != _SIGNATURE:
        raise NotAnIndex("it does not begin as an index does")
    if version not in (2, 3, 4):
        raise NotAnIndex(f"its version is {version}, and only 2, 3 and 4 are known")
    hash_size = _hash_size(content)
    end = len(content) - hash_size
    entries = []
    position = _HEADER.size
    path = b""
    room = _MAX_BYTES_OF_PATHS
    for _ in range(count):
        start = position
        (mode,) = struct.unpack_from(">I", content, start + _MODE_AT)
        if mode & 0o170000 not in _KINDS:
            raise NotAnIndex("an entry is of no kind that git knows")
        position += _FIELDS + hash_size
        (flags,) = struct.unpack_from(">H", content, position)
        position += 2
        if flags & _EXTENDED:
            position += 2
        if version == 4:
            dropped, position = _offset(content, position)
            if dropped > len(path):
                raise NotAnIndex("a path drops more of the one before than that has")
            close = _nul(content, position, end)
            path = path[: len(path) - dropped] + content[position:close]
            position = close + 1
        else:
            close = _nul(content, position + (flags & _NAME_LENGTH), end)
            path = content[position:close]
            # At least one NUL, then as many as make the entry a multiple of eight bytes.
            position = start + (close - start + 8) // 8 * 8
        room -= len(path)
        if len(path) > _LONGEST_PATH or room < 0:
            raise NotAnIndex("its paths are longer than is looked at")
        if path:
            # An entry of a split index that replaces one of the shared index has that one's path and none of its own.
            entries.append(Entry(path.rstrip(b"/"), mode))
    return Index(version, tuple(entries), _shared(content, position, end, hash_size))


def _hash_size(content: bytes) -> int:
    """20 bytes for SHA-1, 32 for SHA-256: the one whose checksum ends the file. With index.skipHash the checksum is
    zeros, and then as many as there are tell."""
    if hashlib.sha256(memoryview(content)[:-32]).digest() == content[-32:]:
        return 32
    # Under SHA-1 a checksum left out comes after an extension or the padding of an entry, at most eight zeros.
    return 32 if content[-32:] == b"\0" * 32 else 20


def _nul(content: bytes, start: int, end: int) -> int:
    close = content.find(b"\0", start, end)
    if close < 0:
        raise NotAnIndex("it ends before its last entry")
    return close


def _offset(content: bytes, position: int) -> tuple[int, int]:
    """A number as version 4 and the pack format write it: seven bits a byte, high ones first, and one added for each
    byte that follows, so that no number has two spellings (gitformat-pack(5), "offset encoding")."""
    byte = content[position]
    position += 1
    number = byte & 0x7F
    while byte & 0x80:
        byte = content[position]
        position += 1
        number = (number + 1 << 7) + (byte & 0x7F)
        if number > _LONGEST_PATH:
            raise NotAnIndex("a path drops more of the one before than that has")
    return number, position


def _shared(content: bytes, position: int, end: int, hash_size: int) -> str | None:
    """The name in a `link` extension, which a split index has."""
    while position + 8 <= end:
        name, size = struct.unpack_from(">4sI", content, position)
        position += 8
        if name == b"link":
            shared = content[position : position + hash_size]
            return shared.hex() if any(shared) else None
        position += size
    return None
