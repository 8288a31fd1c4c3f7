"""Listing a directory by getdents64(2), a batch at a time."""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator

_libc = ctypes.CDLL(None, use_errno=True)


def batches(directory: int, size: int) -> Iterator[list[bytes]]:
    """The names of an open directory by getdents64(2) with a buffer of `size` bytes, a list for each call."""
    buffer = ctypes.create_string_buffer(size)
    while True:
        length = _libc.syscall(217 if os.uname().machine == "x86_64" else 61, directory, buffer, size)
        if length < 0:
            raise OSError(ctypes.get_errno(), "getdents64")
        if length == 0:
            return
        found, at = [], 0
        while at < length:
            (record,) = struct.unpack_from("=H", buffer, at + 16)
            found.append(buffer.raw[at + 19 : at + record].split(b"\0")[0])
            at += record
        yield [name for name in found if name not in (b".", b"..")]
