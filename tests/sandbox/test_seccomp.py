"""The system calls that a command is refused: by the filters as programs, on every architecture, and by real calls."""

from __future__ import annotations

import errno
import functools
import json
import os
import platform
from pathlib import Path

import pyseccomp
import pytest

from policyfs.sandbox import seccomp
from tests.mount.expecting import absent
from tests.sandbox.bpf import ALLOWED, answer
from tests.sandbox.runs import PYTHON, Ground, ran

Arch = pyseccomp.Arch

ARCHITECTURES = [
    ("x86_64", Arch.X86_64),
    ("x86_64", Arch.X86),
    ("aarch64", Arch.AARCH64),
    ("aarch64", Arch.ARM),
    ("riscv64", Arch.RISCV64),
]
"""By the machine whose programs it runs."""

NOISE = 0xDEADBEEF << 32
"""Bits that the kernel does not look at where it takes an int."""


@functools.cache
def _filters(machine: str) -> tuple[bytes, ...]:
    return seccomp.filters(machine)


def _number(architecture: int, name: str) -> int | None:
    """The number of a call, None where the architecture has no call of this name."""
    if architecture == Arch.X86 and name in ("socket", "socketpair"):
        # libseccomp numbers them as parts of socketcall(2).
        return {"socket": 359, "socketpair": 360}[name]
    number = pyseccomp.resolve_syscall(architecture, name)
    return None if number < 0 else number


def _answer(machine: str, architecture: int, number: int, *arguments: int) -> int | None:
    """What the kernel makes of what both filters say."""
    answers = [answer(program, architecture, number, arguments) for program in _filters(machine)]
    return next((error for error in answers if error is not ALLOWED), ALLOWED)


@pytest.fixture(params=ARCHITECTURES, ids=["x86_64", "i386", "aarch64", "arm", "riscv64"])
def asked(request: pytest.FixtureRequest) -> tuple[str, int]:
    """A machine, and an architecture whose programs it runs."""
    machine, architecture = request.param
    return machine, architecture


# -- the filters as programs


def test_what_is_refused_is_refused_whatever_the_arguments(asked: tuple[str, int]) -> None:
    """Every call that is refused by name is, on every architecture that has it."""
    found = 0
    for error, names in seccomp.REFUSED.items():
        for name in names:
            number = _number(asked[1], name)
            if number is not None:
                found += 1
                for first in (0, 1, NOISE):
                    assert _answer(*asked, number, first) == error, name
    assert found > 40


def test_what_is_refused_by_arguments_is_refused_by_the_bits_that_the_kernel_sees(asked: tuple[str, int]) -> None:
    """The upper half of a register changes nothing, and the value beside a refused one passes."""
    for error, name, conditions in seccomp.conditional():
        number = _number(asked[1], name)
        assert number is not None, name
        refused, beside = [0] * 6, [0] * 6
        for at, _, value in conditions:
            refused[at], beside[at] = value, 0
        assert _answer(*asked, number, *refused) == error, (name, conditions)
        whole_int = all(mask == 0xFFFFFFFF for _, mask, _ in conditions)
        if whole_int:
            assert _answer(*asked, number, *(value | NOISE for value in refused)) == error, (name, conditions)
        if name in ("ptrace", "process_vm_readv", "pidfd_open", "prlimit64", "ioctl", "clone"):
            assert _answer(*asked, number, *beside) is ALLOWED, name


@pytest.mark.parametrize(
    ("family", "protocol", "error"),
    [
        ("AF_UNIX", 0, ALLOWED),
        ("AF_INET", 6, ALLOWED),
        ("AF_INET6", 17, ALLOWED),
        ("AF_NETLINK", 0, ALLOWED),
        ("AF_NETLINK", 4, errno.EPROTONOSUPPORT),
        *(("AF_NETLINK", protocol, errno.EPROTONOSUPPORT) for protocol in (1, 15, 16, 22, 31)),
        ("AF_VSOCK", 0, errno.EAFNOSUPPORT),
        ("AF_ALG", 0, errno.EAFNOSUPPORT),
        ("AF_PACKET", 0, errno.EAFNOSUPPORT),
        ("AF_UNSPEC", 0, errno.EAFNOSUPPORT),
    ],
)
def test_which_sockets_there_are(asked: tuple[str, int], family: str, protocol: int, error: int | None) -> None:
    """Those of the own network and of files, and the one netlink protocol that getifaddrs(3) speaks."""
    number = _number(asked[1], "socket")
    assert number is not None
    values = {"AF_UNSPEC": 0, "AF_UNIX": 1, "AF_INET": 2, "AF_INET6": 10, "AF_NETLINK": 16, "AF_PACKET": 17}
    value = {**values, "AF_ALG": 38, "AF_VSOCK": 40}[family]
    assert _answer(*asked, number, value, 1, protocol) == error
    assert _answer(*asked, number, value | NOISE, 1, protocol | NOISE) == error


def test_no_call_of_another_architecture_exists() -> None:
    """x32, whose numbers are those of x86_64 and a bit, and any architecture that the filter does not name."""
    for name in ("read", "keyctl", "execve", "getpid"):
        number = _number(Arch.X86_64, name)
        assert number is not None
        assert _answer("x86_64", Arch.X86_64, number | 0x40000000) == errno.ENOSYS
        assert _answer("x86_64", Arch.AARCH64, number) == errno.ENOSYS
    assert _answer("aarch64", Arch.X86_64, 0) == errno.ENOSYS


def test_no_call_exists_that_nobody_looked_at(asked: tuple[str, int]) -> None:
    """Beyond the last number that is known here every call answers ENOSYS, but the private ones of 32-bit ARM and the
    number by which a tracer leaves a call out."""
    assert _answer(*asked, seccomp.LAST) is ALLOWED
    for number in (seccomp.LAST + 1, 470, 5000, 0xEFFFF):
        assert _answer(*asked, number) == errno.ENOSYS
    assert _answer("aarch64", Arch.ARM, 0xF0005) is ALLOWED
    assert answer(_filters("x86_64")[1], Arch.X86_64, -1) is ALLOWED


def test_the_filters_of_an_unknown_machine() -> None:
    """There are none, and nothing is run."""
    with pytest.raises(Exception, match="no filter of system calls is known for vax"):
        seccomp.filters("vax")


# -- beside a container runtime's

STRICTER = {
    "add_key": "the user's keyrings", "keyctl": "the user's keyrings",
    "clone3": "its flags lie in memory",
    "pidfd_getfd": "takes descriptors from the first process",
    "socketcall": "its family lies in memory",
    "get_mempolicy": "needs CAP_SYS_NICE at Docker", "mbind": "the same", "set_mempolicy": "the same",
    **dict.fromkeys(("fsconfig", "fsmount", "fsopen", "fspick", "mount", "mount_setattr", "move_mount", "open_tree",
                     "pivot_root", "umount", "umount2"), "nobody in a sandbox mounts"),
    **dict.fromkeys(("setns", "unshare"), "nobody in a sandbox has namespaces of their own"),
    **dict.fromkeys(("reboot", "syslog"), "nobody in a sandbox may"),
}  # fmt: skip
"""What podman's profile allows and ours refuses, and why."""

LOOSER = {
    **dict.fromkeys(("cachestat", "fchmodat2", "map_shadow_stack", "futex_wait", "futex_wake", "futex_requeue"),
                    "Docker's profile allows it; the one compared with is older than the call"),
    **dict.fromkeys(("futex_waitv", "io_pgetevents", "io_pgetevents_time64", "vmsplice"), "Docker's profile allows it"),
    **dict.fromkeys(("sgetmask", "ssetmask"), "the caller's own signals, in an older form of i386"),
}  # fmt: skip
"""What podman's profile refuses and ours allows, and why."""

NOT_THERE = {
    "afs_syscall", "bdflush", "break", "ftime", "getpmsg", "gtty", "idle", "lock", "mpx", "nice", "oldfstat", "oldlstat",
    "oldolduname", "oldstat", "olduname", "prof", "profil", "putpmsg", "security", "stty", "tuxcall", "ulimit", "vserver",
}  # fmt: skip
"""Numbers without a call behind them, and the oldest forms of calls that are allowed in their newer ones."""


def test_what_differs_from_podman_is_written_down() -> None:
    """podman's default profile, without any capability, and ours differ in nothing but what is listed above."""
    profile = Path("/usr/share/containers/seccomp.json")
    if not profile.exists():
        absent(f"no {profile} here (Debian: golang-github-containers-common)")
    allowed = {
        name
        for rule in json.loads(profile.read_text())["syscalls"]
        if rule["action"] == "SCMP_ACT_ALLOW" and not rule.get("includes", {}).get("caps")
        for name in rule["names"]
    }
    refused = {name for names in seccomp.REFUSED.values() for name in names}
    known = set()
    for architecture in (Arch.X86_64, Arch.X86):
        for number in range(seccomp.LAST):
            try:
                known.add(pyseccomp.resolve_syscall(architecture, number).decode())
            except ValueError:
                continue
    assert len(known) > 400
    assert refused & allowed == set(STRICTER) & allowed
    assert (known - allowed - refused) <= set(LOOSER) | NOT_THERE


# -- real calls

CALLS = r"""
import ctypes, errno, json, mmap, os, platform, sys
libc = ctypes.CDLL(None, use_errno=True)
code = mmap.mmap(-1, 4096, prot=mmap.PROT_READ | mmap.PROT_WRITE | mmap.PROT_EXEC)
# push rbx; mov eax, edi; mov ebx, esi; xchg ecx, edx; mov esi, r8d; mov edi, r9d; int 0x80; pop rbx; ret
code.write(bytes.fromhex("53 89f8 89f3 87d1 4489c6 4489cf cd80 5b c3"))
compat = ctypes.CFUNCTYPE(ctypes.c_int, *[ctypes.c_uint] * 6)(ctypes.addressof(ctypes.c_char.from_buffer(code)))
def named(result):
    return errno.errorcode[-result] if -4096 < result < 0 else "done"
def native(number, *arguments):
    result = libc.syscall(*[ctypes.c_long(value) for value in (number, *arguments, *[0] * (5 - len(arguments)))])
    return named(-ctypes.get_errno() if result == -1 else result)
def by_int_80(number, *arguments):
    return named(compat(*(value & 0xFFFFFFFF for value in (number, *arguments, *[0] * (5 - len(arguments))))))
kinds = {"native": native, "int 0x80": by_int_80}
print(json.dumps([kinds[kind](*call) for kind, call in json.loads(sys.argv[1])]))
"""

HIGH = 1 << 32

NATIVE_CALLS = {
    "x86_64": {
        "getpid": (39,), "keyctl": (250, 0, -3, 0), "add_key": (248,), "request_key": (249,), "io_uring_setup": (425,),
        "vsock": (41, 40, 1, 0), "vsock, upper bits": (41, 40 | HIGH, 1, 0), "sock_diag": (41, 16, 3, 4),
        "route": (41, 16, 3, 0), "inet": (41, 2, 1, 0), "unix": (41, 1, 1, 0),
        "ptrace 1": (101, 16, 1), "ptrace 1, upper bits": (101, 16, 1 | HIGH), "pidfd_open 1": (434, 1),
        "pidfd_open": (434, 2), "pidfd_getfd": (438,), "process_vm_readv 1": (310, 1), "process_vm_writev 1": (311, 1),
        "kcmp": (312, 1, 1), "prlimit 1": (302, 1, 7), "unshare": (272, 0x10000000), "clone": (56, 0x10000000 | 17),
        "x32 keyctl": (0x40000000 | 250,), "x32 getpid": (0x40000000 | 39,), "newer": (457,), "tiocsti": (16, 0, 0x5412),
        "tiocsti, upper bits": (16, 0, 0x5412 | HIGH),
    },
    "aarch64": {
        "getpid": (172,), "keyctl": (219, 0, -3, 0), "vsock": (198, 40, 1, 0), "sock_diag": (198, 16, 3, 4),
        "route": (198, 16, 3, 0), "ptrace 1": (117, 16, 1), "ptrace 1, upper bits": (117, 16, 1 | HIGH),
        "pidfd_open 1": (434, 1), "pidfd_open": (434, 2), "pidfd_getfd": (438,), "newer": (457,),
    },
}  # fmt: skip

COMPAT_CALLS = {
    "getpid": (20,), "keyctl": (288, 0, -3, 0), "add_key": (286,), "request_key": (287,), "io_uring_setup": (425,),
    "vsock": (359, 40, 1, 0), "socketcall": (102, 1, 0), "unix": (359, 1, 1, 0), "sock_diag": (359, 16, 3, 4),
    "ptrace 1": (26, 16, 1), "pidfd_open 1": (434, 1), "process_vm_readv 1": (347, 1), "newer": (457,),
    "unshare": (310, 0x10000000), "clone": (120, 0x10000000 | 17), "tiocsti": (54, 0, 0x5412),
}  # fmt: skip

EXPECTED = {
    **dict.fromkeys(("getpid", "route", "inet", "unix", "pidfd_open"), "done"),
    **dict.fromkeys(("keyctl", "add_key", "request_key", "io_uring_setup", "socketcall", "newer"), "ENOSYS"),
    **dict.fromkeys(("x32 keyctl", "x32 getpid"), "ENOSYS"),
    **dict.fromkeys(("vsock", "vsock, upper bits"), "EAFNOSUPPORT"),
    "sock_diag": "EPROTONOSUPPORT",
}
"""EPERM where nothing is said."""


def test_calls_that_are_refused(tree: Ground) -> None:
    """Keyrings, the first process, sockets of the machine and rings answer errors, by native calls, by those of x32 and by
    32-bit ones, with whatever lies in the upper half of a register; what programs live on works."""
    calls = [("native", name, call) for name, call in NATIVE_CALLS[platform.machine()].items()]
    if platform.machine() == "x86_64" and _runs_32_bits(tree):
        calls += [("int 0x80", name, call) for name, call in COMPAT_CALLS.items()]
    said = json.loads(ran(tree.python(CALLS, json.dumps([[kind, call] for kind, _, call in calls]))))
    got = {(kind, name): answer for (kind, name, _), answer in zip(calls, said, strict=True)}
    assert got == {(kind, name): EXPECTED.get(name, "EPERM") for kind, name, _ in calls}


def _runs_32_bits(tree: Ground) -> bool:
    """Whether this kernel has 32-bit calls: where not, int 0x80 ends the program."""
    return tree.person.run(PYTHON, "-I", "-c", CALLS, json.dumps([["int 0x80", [20]]])).returncode == 0


def test_the_keys_of_the_user_are_out_of_reach(tree: Ground) -> None:
    """A key in the user's keyring is found by a program outside, and inside by no call."""
    script = r"""
import ctypes, platform, sys
add, call = {"x86_64": (248, 250), "aarch64": (217, 219)}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
search, unlink, keyring = 10, 9, ctypes.c_int(-4)
if sys.argv[1] == "add":
    assert libc.syscall(add, b"user", b"policyfs-test", b"secret", 6, keyring) > 0
key = libc.syscall(call, search, keyring, b"user", b"policyfs-test", 0)
print("found" if key > 0 else "none")
if sys.argv[1] == "remove":
    libc.syscall(call, unlink, ctypes.c_int(key), keyring)
"""
    added = tree.person.python(script, "add")
    if added.returncode != 0:
        absent("no keyrings here")
    try:
        assert ran(tree.python(script, "look")).split() == ["none"]
    finally:
        removed = tree.person.python(script, "remove")
    assert removed.stdout.startswith("found\n")


TRACE = r"""
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]
libc.ptrace.restype = ctypes.c_long
TRACEME, PEEK, POKE, CONTINUE, ATTACH, DETACH = 0, 2, 5, 7, 16, 17
word = ctypes.c_long(1)
own, other = ctypes.create_string_buffer(8), ctypes.create_string_buffer(b"content", 8)
child = os.fork()
if child == 0:
    assert libc.ptrace(TRACEME, 0, None, None) == 0
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(word.value)
_, status = os.waitpid(child, 0)
assert os.WIFSTOPPED(status)
assert libc.ptrace(PEEK, child, ctypes.addressof(word), None) == 1
assert libc.ptrace(POKE, child, ctypes.addressof(word), 42) == 0
assert libc.ptrace(CONTINUE, child, None, None) == 0
_, status = os.waitpid(child, 0)
print(os.waitstatus_to_exitcode(status))
child = os.fork()
if child == 0:
    signal.pause()
assert libc.ptrace(ATTACH, child, None, None) == 0
os.waitpid(child, 0)
assert libc.ptrace(DETACH, child, None, None) == 0
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
to, there = Part(ctypes.addressof(own), 8), Part(ctypes.addressof(other), 8)
assert libc.process_vm_readv(child, ctypes.byref(to), 1, ctypes.byref(there), 1, 0) == 8
os.kill(child, signal.SIGKILL)
print(own.value.decode())
"""


def test_a_debugger_works_on_its_own_children(tree: Ground) -> None:
    """Tracing, attaching, and reading and writing memory go on as outside."""
    assert ran(tree.python(TRACE)).split() == ["42", "content"]


def test_strace_works(one_tree: Ground) -> None:
    """A whole program under strace, with what it starts."""
    if not os.path.exists("/usr/bin/strace"):
        absent("no strace here (Debian: strace)")
    script = "strace -f -o /tmp/trace sh -c 'cat open.txt; true' && grep -c openat /tmp/trace"
    said = ran(one_tree.run("sh", "-c", script, cwd=one_tree.source))
    assert said.startswith("open\n")
    assert int(said.split()[1]) > 2
