"""What bubblewrap leaves open and a process can close for itself and its children, before it becomes bubblewrap."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import platform
import stat
import struct
from collections.abc import Iterable

from policyfs.policy.paths import HostPath
from policyfs.sandbox.layout import DEVICES
from policyfs.sandbox.namespaces import CLONE_NEWNS, own_user_namespace, unshare

_LANDLOCK_CREATE_RULESET = 444
_LANDLOCK_RESTRICT_SELF = 446
"""landlock(7): one number on every machine."""
_LANDLOCK_CREATE_RULESET_VERSION = 1
_LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET = 1
_ABI_WITH_SCOPES = 6
"""Linux 6.12."""

_PR_SET_NO_NEW_PRIVS = 38
"""prctl(2)."""

_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219}
"""By the machines that `seccomp` has filters for."""
_KEYCTL_JOIN_SESSION_KEYRING = 1

_MS_NOSUID = 0x2
_MS_NOEXEC = 0x8
_MS_BIND = 0x1000
_MS_REC = 0x4000
_MS_PRIVATE = 0x40000
_MS_SLAVE = 0x80000
"""mount(2)."""

_libc = ctypes.CDLL(None, use_errno=True)


def abstract_sockets_can_be_closed(bubblewrap: bytes) -> bool:
    """Whether this machine can keep a command from the abstract sockets of its network namespace (X11's, some D-Bus', a
    container runtime's: any process of the user may connect, and no mount hides them).

    Not where bubblewrap is set-uid: what closes them takes that away from it.
    """
    if os.geteuid() != 0 and os.stat(bubblewrap).st_mode & 0o4000:
        return False
    abi: int = _libc.syscall(_LANDLOCK_CREATE_RULESET, None, 0, _LANDLOCK_CREATE_RULESET_VERSION)
    return abi >= _ABI_WITH_SCOPES


def close_abstract_sockets() -> None:
    """Keep this process and its children from abstract sockets that others made. Nothing of the file system is handled:
    a process that Landlock confines there may not mount, and bubblewrap must."""
    attributes = struct.pack("=QQQ", 0, 0, _LANDLOCK_SCOPE_ABSTRACT_UNIX_SOCKET)
    ruleset = _done(_libc.syscall(_LANDLOCK_CREATE_RULESET, attributes, len(attributes), 0), "landlock_create_ruleset")
    _done(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")
    _done(_libc.syscall(_LANDLOCK_RESTRICT_SELF, ruleset, 0), "landlock_restrict_self")
    os.close(ruleset)


def leave_session_keyring() -> None:
    """Take an empty session keyring: the person's holds tickets and keys, and children inherit it (keyrings(7))."""
    number = _KEYCTL.get(platform.machine())
    if number is None:
        raise OSError(f"no number of keyctl(2) is known for {platform.machine()}")
    if _libc.syscall(number, _KEYCTL_JOIN_SESSION_KEYRING, None) < 0:
        error = ctypes.get_errno()
        # A kernel without keyrings, or a container that forbids them: there is none to leave.
        if error not in (38, 1):
            raise OSError(error, "keyctl(KEYCTL_JOIN_SESSION_KEYRING)")


def own_mounts(shown: Iterable[HostPath]) -> None:
    """Go into a mount namespace of this process's own, in which nothing is mounted or unmounted later in the places that a
    sandbox shows; and nothing that is mounted in it is seen outside (mount_namespaces(7), "Shared subtrees"). Raises
    OSError.

    bubblewrap itself leaves what it shows as slaves of the machine's mounts: a file system that is mounted later below
    /usr would come in, writable. So each place is mounted over itself, and that mount is private. The rest stays a slave:
    bubblewrap's outer process keeps this namespace, and a private copy of everything would keep a disk in use that is
    unmounted and unplugged during the run.
    """
    try:
        unshare(CLONE_NEWNS)
    except OSError as error:
        if error.errno != errno.EPERM:
            raise
        # A user without that right has it in a user namespace of their own, in which their number stays the same.
        own_user_namespace(os.geteuid(), os.getegid())
        unshare(CLONE_NEWNS)
    _mount(None, HostPath(b"/"), _MS_REC | _MS_SLAVE)
    for place in shown:
        _mount(place, place, _MS_BIND | _MS_REC)
        _mount(None, place, _MS_PRIVATE | _MS_REC)


def owns_devices() -> bool:
    """Whether this user owns the machine's device nodes. Root in a container without privileges does not."""
    return os.stat("/dev/null").st_uid == os.geteuid()


def make_devices(directory: HostPath) -> None:
    """Make the nodes of a sandbox's /dev in `directory`, after `own_mounts`. Raises OSError.

    For root, who owns the machine's nodes: bubblewrap hands them on, and a `chmod 0 /dev/null` in a sandbox would be one
    of the whole machine.
    """
    _mount(HostPath(b"tmpfs"), directory, _MS_NOSUID | _MS_NOEXEC, b"tmpfs", b"mode=0755")
    umask = os.umask(0)
    for name in DEVICES:
        node = directory + b"/" + name.encode()
        os.mknod(node, stat.S_IFCHR | 0o666, os.stat(f"/dev/{name}").st_rdev)
    os.umask(umask)


def take_devices(directory: HostPath) -> None:
    """Have these nodes behind the standard descriptors too, where devices of their kind are: fchmod(2) needs no path, and
    input from /dev/null is what every service and every job of cron has."""
    nodes = {os.stat(directory + b"/" + name.encode()).st_rdev: directory + b"/" + name.encode() for name in DEVICES}
    for standard in range(3):
        status = os.fstat(standard)
        # A terminal has the number of /dev/tty for those alone whom it controls, and is one of the command's own.
        if not stat.S_ISCHR(status.st_mode) or os.isatty(standard) or status.st_rdev not in nodes:
            continue
        how = fcntl.fcntl(standard, fcntl.F_GETFL) & (os.O_ACCMODE | os.O_APPEND | os.O_NONBLOCK)
        node = os.open(nodes[status.st_rdev], how)
        os.dup2(node, standard)
        os.close(node)


def _mount(what: HostPath | None, at: HostPath, flags: int, kind: bytes | None = None, options: bytes | None = None) -> None:
    if _libc.mount(what, at, kind, ctypes.c_ulong(flags), options) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), at)


def _done(result: int, what: str) -> int:
    if result < 0:
        raise OSError(ctypes.get_errno(), what)
    return result
