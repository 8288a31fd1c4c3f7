"""What tests of mounts expect: a machine that can mount, an event that nobody announces, an error by its name."""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from policyfs.host import mounts
from tests.mount.forked import TIMEOUT

_ERRNO_NAMES = {**errno.errorcode, errno.EOPNOTSUPP: "EOPNOTSUPP"}
"""By the names that errno(3) leads with: Python has ENOTSUP for this one."""


# -- whether this machine can mount --------------------------------------------------------------------------------------


def why_no_fuse() -> str | None:
    """Why this machine cannot mount, None where it can."""
    if not os.path.exists(mounts.FUSE_DEVICE):
        return f"no {mounts.FUSE_DEVICE} here"
    if not os.access(mounts.FUSE_DEVICE, os.R_OK | os.W_OK):
        return f"{mounts.FUSE_DEVICE} cannot be opened by this user"
    if shutil.which("fusermount3") is None:
        return "no fusermount3 here (Debian: fuse3)"
    return None


def absent(reason: str) -> None:
    """Skip the test for what this machine lacks; with POLICYFS_REQUIRE_FUSE=1, as in CI, fail it: a skip there would be
    a green run of nothing."""
    if os.environ.get("POLICYFS_REQUIRE_FUSE") == "1":
        pytest.fail(f"POLICYFS_REQUIRE_FUSE=1, but {reason}", pytrace=False)
    pytest.skip(reason)


def require_fuse() -> None:
    """Skip or fail where this machine cannot mount."""
    reason = why_no_fuse()
    if reason is not None:
        absent(reason)


def c_compiler() -> str:
    """The C compiler of this machine."""
    found = shutil.which("gcc") or shutil.which("cc")
    if found is None:
        pytest.skip("no C compiler here")
    return found


# -- waiting and expecting -----------------------------------------------------------------------------------------------


def until(holds: Callable[[], Any], what: str, seconds: float = TIMEOUT) -> Any:
    """Wait until something holds that nobody announces, and give what it gave; fail after `seconds`."""
    end = time.monotonic() + seconds
    while True:
        result = holds()
        if result:
            return result
        if time.monotonic() > end:
            pytest.fail(f"waited {seconds:g} s in vain for: {what}")
        time.sleep(0.005)


@contextlib.contextmanager
def refused(name: str) -> Iterator[None]:
    """The body must fail with exactly this errno, by its name: `with refused("EROFS"): ...`"""
    try:
        yield
    except OSError as error:
        got = _ERRNO_NAMES.get(error.errno or 0, str(error.errno))
        if got != name:
            raise AssertionError(f"expected {name}, got {got} ({error})") from error
    else:
        raise AssertionError(f"expected {name}, but it went through")


def errno_of(act: Callable[..., Any], *arguments: Any) -> str | None:
    """The name of the errno an act fails with, None where it goes through."""
    try:
        act(*arguments)
    except OSError as error:
        return _ERRNO_NAMES.get(error.errno or 0, str(error.errno))
    return None
