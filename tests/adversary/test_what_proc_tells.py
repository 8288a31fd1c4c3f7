"""Everything in /proc that a command can read, searched for what other programs of the machine do."""

from __future__ import annotations

import os
import socket
import subprocess
from collections.abc import Iterator

import pytest

from tests.mount import expecting, harness
from tests.sandbox.runs import PYTHON, Ground, ground, ran

SEARCH = r"""
import os, sys
# In two parts, so that it is not in the command line of the search.
marker = "-".join(sys.argv[1:]).encode()
found, read = [], 0
for directory, names, files in os.walk("/proc"):
    names[:] = [name for name in names if name not in ("map_files", "fd", "fdinfo", "cwd", "root")]
    for name in files:
        path = os.path.join(directory, name)
        if os.path.islink(path) or name in ("kmsg", "kcore", "mem"):
            continue
        try:
            descriptor = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        except OSError:
            continue
        try:
            content = b""
            while len(content) < 1 << 20 and (part := os.read(descriptor, 1 << 16)):
                content += part
            read += 1
            if marker in content:
                found.append(path)
        except OSError:
            pass
        finally:
            os.close(descriptor)
print(read, *found)
"""

KEY = r"""
import ctypes, platform, sys
add, call = {"x86_64": (248, 250), "aarch64": (217, 219), "riscv64": (217, 219)}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
name, keyring = sys.argv[2].encode(), ctypes.c_int(-4)
if sys.argv[1] == "add":
    libc.syscall(add, b"user", name, b"secret", 6, keyring)
else:
    libc.syscall(call, 9, ctypes.c_int(libc.syscall(call, 10, keyring, b"user", name, 0)), keyring)
"""


@pytest.fixture(params=harness.PEOPLE)
def busy(request: pytest.FixtureRequest) -> Iterator[tuple[Ground, str]]:
    """A tree of somebody whose other programs have a socket, a key, a process and a mount of one name, which the files of
    /proc that are there for it tell outside."""
    if os.geteuid() != 0:
        expecting.absent("only root can mount something beside a run")
    marker = f"merger-with-globex-{os.getpid()}"
    with harness.ordinary_user(0 if request.param == "root" else 1000) as person, ground(person) as tree:
        enter = ("nsenter", "-t", str(person.namespace), "-m", "--")
        point = person.home / "mounted"
        point.mkdir()
        words = (PYTHON, "-c", "print(flush=True); input()", marker)
        process = person.popen(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(tree.source / "hidden" / marker))
            subprocess.run([*enter, "mount", "-t", "tmpfs", marker, point], check=True)
            try:
                assert person.python(KEY, "add", marker).returncode == 0
                assert process.stdout is not None
                process.stdout.readline()
                telling = ["/proc/net/unix", "/proc/keys", "/proc/self/mountinfo", f"/proc/{process.pid}/cmdline"]
                assert person.run("grep", "-la", marker, *telling).stdout.split() == telling
                yield tree, marker
            finally:
                person.python(KEY, "remove", marker)
                subprocess.run([*enter, "umount", "-l", point], check=True)
                process.communicate(b"\n", timeout=30)


def test_nothing_of_proc_names_what_others_do(busy: tuple[Ground, str]) -> None:
    """In a sandbox with a network of its own no file of /proc has it."""
    tree, marker = busy
    read, *found = ran(tree.python(SEARCH, *marker.rsplit("-", 1), options=("--no-network",))).split()
    assert found == []
    assert int(read) > 100
