"""Entering namespaces: unshare(2), setns(2), user_namespaces(7)."""

from __future__ import annotations

import ctypes
import os
import threading
from collections.abc import Callable
from typing import TypeVar

CLONE_NEWNS = 0x20000
CLONE_NEWUSER = 0x10000000
CLONE_NEWNET = 0x40000000

_NAMES = {CLONE_NEWNS: "CLONE_NEWNS", CLONE_NEWUSER: "CLONE_NEWUSER", CLONE_NEWNET: "CLONE_NEWNET"}

Result = TypeVar("Result")

_libc = ctypes.CDLL(None, use_errno=True)


def unshare(kind: int) -> None:
    """Go into a new namespace of this kind: this thread, and what it starts. Raises OSError."""
    if _libc.unshare(kind) != 0:
        raise _error(f"unshare({_NAMES[kind]})")


def enter(kind: int, descriptor: int) -> None:
    """Go into the namespace of this kind that is open as `descriptor`: this thread, and what it starts. Raises OSError."""
    if _libc.setns(descriptor, kind) != 0:
        raise _error(f"setns({_NAMES[kind]})")


def own_user_namespace(uid: int, gid: int) -> None:
    """Go into a new user namespace, in which this user is `uid` and `gid`, and nobody else has a number. The process has
    every capability in it. It must have one thread, and must not have made its memory undumpable. Raises OSError."""
    outside_uid, outside_gid = os.geteuid(), os.getegid()
    unshare(CLONE_NEWUSER)
    # A process that cannot change its groups may map its own group without a right in the parent namespace.
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


def in_a_thread(work: Callable[[], Result]) -> Result:
    """Do something in a thread of its own, which may enter a network namespace that the rest of the process does not. Gives
    what `work` gives, and raises the OSError that it raises."""
    results: list[Result] = []
    errors: list[OSError] = []

    def run() -> None:
        try:
            results.append(work())
        except OSError as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    for error in errors:
        raise error
    return results[0]


def _error(what: str) -> OSError:
    number = ctypes.get_errno()
    return OSError(number, os.strerror(number), what)
