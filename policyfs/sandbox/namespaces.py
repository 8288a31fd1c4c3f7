"""Entering namespaces: unshare(2), user_namespaces(7)."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x20000
CLONE_NEWUSER = 0x10000000

_NAMES = {CLONE_NEWNS: "CLONE_NEWNS", CLONE_NEWUSER: "CLONE_NEWUSER"}

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(kind: int) -> None:
    """Go into a new namespace of this kind: this thread, and what it starts. Raises OSError."""
    if _libc.unshare(kind) != 0:
        raise _error(f"unshare({_NAMES[kind]})")


def own_user_namespace(uid: int, gid: int) -> None:
    """Go into a new user namespace, in which this user is `uid` and `gid`, and nobody else has a number. The process has
    every capability in it. It must have one thread, and must not have made its memory undumpable. Raises OSError."""
    outside_uid, outside_gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    # A group may be mapped without a right in the parent namespace by whoever cannot change groups.
    for name, text in (
        ("uid_map", f"{uid} {outside_uid} 1"),
        ("setgroups", "deny"),
        ("gid_map", f"{gid} {outside_gid} 1"),
    ):
        descriptor = os.open(f"/proc/self/{name}", os.O_WRONLY)
        try:
            os.write(descriptor, text.encode())
        finally:
            os.close(descriptor)


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)
