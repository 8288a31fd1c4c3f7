"""The system calls that a command in a sandbox is refused, as filters for bubblewrap (seccomp(2); rule run-7).

Namespaces give a command its own files, processes and network. Some calls reach past them: keyrings belong to the user,
not to a namespace; some families of sockets know no network namespace; io_uring makes calls that no filter sees. Others
would reach the first process of the sandbox, which tells how the command ended. Others again need rights that nobody in
a sandbox has, and are closed so that a fault in the kernel behind them is out of reach.

What is refused is what the default profiles of Docker (moby/profiles) and podman (containers/common) refuse, and more
where they leave open what a command needs for nothing; docs/decisions/0008-system-calls.md has the differences. The
errors are those by which programs fall back: ENOSYS says that this kernel has no such call, EPERM that it is not for this
user, EAFNOSUPPORT that it has no such sockets.

There are two filters. The kernel runs both and takes the stricter answer.

* One by name, made by libseccomp for every architecture whose programs this machine runs. It looks at 32 bits of an
  argument where the kernel does: a family of 1<<32|40 is the family 40 to the kernel.
* One by number: calls that were added to Linux after all that is written here do not exist. Since number 424 a call has
  one number on every architecture.
"""

from __future__ import annotations

import errno
import os
import platform
import struct
from collections.abc import Iterator, Mapping, Sequence

from policyfs.host.errors import Exit, UserFault

REFUSED: Mapping[int, Sequence[str]] = {
    errno.ENOSYS: (
        # The user's keyrings, and programs that the kernel starts outside to fetch a key.
        "add_key", "keyctl", "request_key",
        # A ring makes calls, socket(2) among them, that no filter sees.
        "io_uring_enter", "io_uring_register", "io_uring_setup",
        # Their arguments lie in memory, which no filter reads. The C library falls back from clone3(2) to clone(2).
        # socketcall(2) is of 32-bit x86 alone; programs that know no other way have no sockets.
        "clone3", "socketcall",
        # Memory of NUMA nodes: all that a program loses is a hint about its own memory.
        "get_mempolicy", "mbind", "migrate_pages", "move_pages", "set_mempolicy", "set_mempolicy_home_node",
    ),
    errno.EPERM: (
        # Mounts and namespaces.
        "chroot", "fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree",
        "pivot_root", "setns", "umount", "umount2", "unshare",
        # The kernel and the machine.
        "_sysctl", "acct", "bpf", "clock_settime", "clock_settime64", "create_module", "delete_module", "finit_module",
        "get_kernel_syms", "init_module", "ioperm", "iopl", "kexec_file_load", "kexec_load", "lookup_dcookie",
        "nfsservctl", "perf_event_open", "query_module", "quotactl", "quotactl_fd", "reboot", "setdomainname",
        "sethostname", "settimeofday", "stime", "swapoff", "swapon", "sysfs", "syslog", "uselib", "userfaultfd", "ustat",
        "vhangup", "vm86", "vm86old",
        # Files by number rather than by name, and what happens to the files of others.
        "fanotify_init", "open_by_handle_at",
        # Descriptors and memory of other processes, beyond what ptrace(2) gives.
        "kcmp", "pidfd_getfd", "process_madvise",
    ),
}  # fmt: skip
"""Refused whatever the arguments, by the error that answers."""

_INT = 0xFFFFFFFF
"""The bits of an argument that the kernel takes as an int."""

Condition = tuple[int, int, int]
"""The number of an argument from 0, the bits of it that count, and their value."""

_FIRST_PROCESS = 1

_FAMILIES = {1: "AF_UNIX", 2: "AF_INET", 10: "AF_INET6", 16: "AF_NETLINK"}
"""socket(2)."""
_FAMILIES_END = 64
"""Beyond the last family, which is 45 today."""
_NETLINK = 16
_PROTOCOL_BITS = (1, 2, 4, 8, 16, 32)
"""Each netlink protocol but NETLINK_ROUTE, which is 0, has one of these (netlink(7); there are 32). That one tells of the
addresses and routes of the own network, which getifaddrs(3) asks for. The others tell of every socket of the network
(SOCK_DIAG) or of devices (KOBJECT_UEVENT, GENERIC), or are for its administrator."""

_NAMESPACES = {
    "CLONE_NEWNS": 0x20000,
    "CLONE_NEWCGROUP": 0x2000000,
    "CLONE_NEWUTS": 0x4000000,
    "CLONE_NEWIPC": 0x8000000,
    "CLONE_NEWUSER": 0x10000000,
    "CLONE_NEWPID": 0x20000000,
    "CLONE_NEWNET": 0x40000000,
}
"""clone(2), which cannot make a namespace of time: the flag for it lies in the bits of the signal."""

_TERMINAL = {"TIOCSTI": 0x5412, "TIOCLINUX": 0x541C}
"""ioctl_tty(2): type into a terminal, and paste into a console."""
_SPACE = {"FS_IOC_GETFSMAP": 0xC0C0583B, "XFS_IOC_AG_GEOMETRY": 0xC080583D}
"""ioctl_getfsmap(2): which blocks of a whole file system are free, of those that a system directory lies on."""


def conditional() -> Iterator[tuple[int, str, tuple[Condition, ...]]]:
    """Every refusal that depends on arguments: the error, the call, and what the arguments must be for it."""
    for name, at in (
        ("get_robust_list", 0),
        ("pidfd_open", 0),
        ("prlimit64", 0),
        ("process_vm_readv", 0),
        ("process_vm_writev", 0),
        ("ptrace", 1),
    ):
        yield errno.EPERM, name, ((at, _INT, _FIRST_PROCESS),)
    for name in ("socket", "socketpair"):
        for family in range(_FAMILIES_END):
            if family not in _FAMILIES:
                yield errno.EAFNOSUPPORT, name, ((0, _INT, family),)
        for bit in _PROTOCOL_BITS:
            yield errno.EPROTONOSUPPORT, name, ((0, _INT, _NETLINK), (2, bit, bit))
    for flag in _NAMESPACES.values():
        yield errno.EPERM, "clone", ((0, flag, flag),)
    for request in _TERMINAL.values():
        yield errno.EPERM, "ioctl", ((1, _INT, request),)
    for request in _SPACE.values():
        yield errno.ENOTTY, "ioctl", ((1, _INT, request),)


LAST = 456
"""futex_requeue(2), of Linux 6.7: the last number that was looked at. What came later is new enough that programs do
without it."""
_ARM_PRIVATE = 0xF0000
"""32-bit ARM has calls of its own from here on, cacheflush and set_tls (arch/arm/include/uapi/asm/unistd.h). -1 is above
it too: what a tracer writes over a call that is not to be made."""


def filters(machine: str | None = None) -> tuple[bytes, ...]:
    """The filters for a machine (as `uname -m` has it; None for this one), each a program as bubblewrap takes it. Raises
    `UserFault` where libseccomp is missing or cannot make them."""
    return _by_name(machine or platform.machine()), _by_number()


def _by_name(machine: str) -> bytes:
    try:
        # Here rather than above: importing it takes 20 ms, which only a run is to wait for.
        import pyseccomp
    except RuntimeError as error:
        raise UserFault(
            Exit.MACHINE, f"{error}: install Debian's package libseccomp2. Nothing was run"
        ) from None
    Arch = pyseccomp.Arch
    architectures = {
        # Not x32, which hardly any kernel has: no call of an architecture that is not named exists.
        "x86_64": (Arch.X86_64, Arch.X86),
        "aarch64": (Arch.AARCH64, Arch.ARM),
        "riscv64": (Arch.RISCV64,),
    }.get(machine)
    if architectures is None:
        raise UserFault(Exit.MACHINE, f"no filter of system calls is known for {machine}. Nothing was run")
    try:
        made = pyseccomp.SyscallFilter(pyseccomp.ALLOW)
        made.set_attr(pyseccomp.Attr.ACT_BADARCH, pyseccomp.ERRNO(errno.ENOSYS))
        native = pyseccomp.system_arch()
        for architecture in architectures:
            if architecture != native:
                made.add_arch(architecture)
        if native not in architectures:
            made.remove_arch(native)
        for number, names in REFUSED.items():
            for name in names:
                made.add_rule(pyseccomp.ERRNO(number), name)
        for number, name, conditions in conditional():
            arguments = [pyseccomp.Arg(at, pyseccomp.MASKED_EQ, mask, value) for at, mask, value in conditions]
            made.add_rule(pyseccomp.ERRNO(number), name, *arguments)
        with open(os.memfd_create("policyfs-seccomp"), "r+b") as file:
            made.export_bpf(file)
            file.seek(0)
            return file.read()
    except OSError as error:
        raise UserFault(
            Exit.MACHINE, f"libseccomp makes no filter: {error.strerror}; install version 2.5.4 or newer. Nothing was run"
        ) from None


_LOAD, _JUMP_IF_MORE, _JUMP_IF_AT_LEAST, _RETURN = 0x20, 0x25, 0x35, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
"""Instructions (bpf_common.h), and what a filter answers (seccomp(2))."""


def _by_number() -> bytes:
    return b"".join(
        struct.pack("=HBBI", *instruction)
        for instruction in (
            # The code, how many instructions to leave out where it holds and where not, and a constant.
            (_LOAD, 0, 0, 0),
            (_JUMP_IF_AT_LEAST, 2, 0, _ARM_PRIVATE),
            (_JUMP_IF_MORE, 0, 1, LAST),
            (_RETURN, 0, 0, _ERRNO | errno.ENOSYS),
            (_RETURN, 0, 0, _ALLOW),
        )
    )
