"""What a command in a sandbox tries and does not get (rule run-1). Every attempt is first shown to work
outside or with something that is open, so that it fails for the right reason."""

from __future__ import annotations

import json
import os
import socket
import stat
import subprocess
from pathlib import Path

import pytest

from policyfs.sandbox import machine
from tests.mount import harness
from tests.mount.expecting import until
from tests.mount.harness import Person
from tests.sandbox.runs import PYTHON, SECRET, Ground, ground, ran

ROAM = r"""
import os, sys
secret, found = sys.argv[1], []
for start in sys.argv[2:]:
    for directory, names, files in os.walk(start, followlinks=False):
        for name in files:
            path = os.path.join(directory, name)
            try:
                if os.path.isfile(path) and os.path.getsize(path) < 4096 and secret in open(path, errors="replace").read():
                    found.append(path)
            except OSError:
                pass
print(found)
"""
"""Looks for a text in every small file below some directories."""


def test_no_file_in_the_sandbox_holds_what_is_hidden(tree: Ground) -> None:
    """Nothing of a hidden file is found by walking everything but /proc, /sys and the system's programs."""
    (tree.source / "yard/control.txt").write_text("a control")
    roots = ["/dev", "/etc", "/home", "/root", "/run", "/srv", "/tmp", "/var", str(tree.source)]
    assert ran(tree.python(ROAM, "a control", *roots)).strip() != "[]"
    assert ran(tree.python(ROAM, SECRET, *roots)).strip() == "[]"


def test_the_source_is_not_reached_by_any_path(tree: Ground) -> None:
    """Neither `..`, nor the roots and working directories of processes, nor the daemon's mountpoint lead to the source."""
    script = r"""
import glob, os, sys
source, state = sys.argv[1:]
ways = [source + "/hidden.txt", source + "/../" + os.path.basename(source) + "/hidden.txt", source + "/yard/../hidden.txt"]
ways += [f"/proc/{p}/{way}{source}/hidden.txt" for p in ["self", "thread-self", *filter(str.isdigit, os.listdir("/proc"))]
         for way in ("root", "cwd/../../../../../..", "root/..", "root/proc/1/root")]
ways += glob.glob(state + "/**/hidden.txt", recursive=True)
reached = []
for way in ways:
    try:
        reached.append((way, open(way).read()))
    except OSError:
        pass
assert open("/proc/self/root" + source + "/open.txt").read() == "open\n"
print(reached, os.path.exists(state))
"""
    assert ran(tree.python(script, str(tree.source), str(tree.state))).strip() == "[] False"


def test_no_process_of_the_machine_is_seen(tree: Ground) -> None:
    """The pid namespace holds bubblewrap's first process and the command; the daemon's number means nothing in it."""
    script = r"""
import os, sys
print(sorted(int(name) for name in os.listdir("/proc") if name.isdigit()), open("/proc/self/status").read())
"""
    said = ran(tree.python(script))
    assert said.startswith("[1, 2] ")
    fields = dict(line.split(":\t", 1) for line in said.splitlines() if ":\t" in line)
    assert [fields[name] for name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb")] == ["0" * 16] * 5
    assert fields["NoNewPrivs"] == "1"


@pytest.mark.parametrize("namespace", ["cgroup", "ipc", "mnt", "pid", "user", "uts"])
def test_a_namespace_of_its_own(one_tree: Ground, namespace: str) -> None:
    """Mounts, processes, IPC, host name and users of the machine are another namespace's. The network is in test_network."""
    inside = ran(one_tree.run("readlink", f"/proc/self/ns/{namespace}")).strip()
    assert inside != os.readlink(f"/proc/self/ns/{namespace}")


def test_the_daemon_is_neither_traced_nor_read_nor_ended(tree: Ground) -> None:
    """Its number, told to the command, opens no /proc, no trace, no descriptor and takes no signal."""
    script = r"""
import ctypes, errno, json, os, signal, sys
libc = ctypes.CDLL(None, use_errno=True)
pid = int(sys.stdin.readline())
answers = {}
def attempt(name, act):
    try:
        act()
        answers[name] = "done"
    except OSError as error:
        answers[name] = errno.errorcode[error.errno]
def called(result):
    if result < 0:
        raise OSError(ctypes.get_errno(), "")
    return result
attempt("status", lambda: open(f"/proc/{pid}/status"))
attempt("fd", lambda: os.listdir(f"/proc/{pid}/fd"))
attempt("root", lambda: os.listdir(f"/proc/{pid}/root"))
attempt("seize", lambda: called(libc.ptrace(0x4206, pid, 0, 0)))
attempt("pidfd", lambda: os.pidfd_open(pid))
class Part(ctypes.Structure):
    _fields_ = [("base", ctypes.c_void_p), ("length", ctypes.c_size_t)]
buffer = ctypes.create_string_buffer(8)
part = Part(ctypes.addressof(buffer), 8)
attempt("own", lambda: called(libc.process_vm_readv(os.getpid(), ctypes.byref(part), 1, ctypes.byref(part), 1, 0)))
attempt("read", lambda: called(libc.process_vm_readv(pid, ctypes.byref(part), 1, ctypes.byref(part), 1, 0)))
attempt("kill", lambda: os.kill(pid, signal.SIGTERM))
print(json.dumps(answers))
"""
    run = tree.start(PYTHON, "-I", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    daemon = tree.daemon()
    said, _ = run.communicate(b"%d\n" % daemon, timeout=30)
    answers = json.loads(said)
    assert answers.pop("own") == "done"
    assert set(answers.values()) == {"ENOENT", "ESRCH"}
    assert run.returncode == 0


def test_the_view_cannot_be_unmounted_or_covered(tree: Ground) -> None:
    """umount, fusermount3, a new mount, a new user namespace: all refused, and the hidden stays hidden."""
    script = f"""
umount {tree.source}; umount -l {tree.source}; fusermount3 -u -z {tree.source}
mount -t tmpfs none {tree.source}/yard; mount --bind / /tmp
unshare -Urm umount -l {tree.source}
unshare -Ur true && echo nested; unshare -m true && echo mounts; nsenter -t 1 -m true && echo entered
cat {tree.source}/hidden.txt; cat {tree.source}/open.txt
"""
    assert ran(tree.run("sh", "-c", script)) == "open\n"


def test_descriptors_of_the_caller_do_not_pass(tree: Ground) -> None:
    """A directory of the source that the caller holds open and lets its children inherit is not among the descriptors."""
    held = os.open(tree.source / "hidden", os.O_RDONLY)
    os.set_inheritable(held, True)
    script = "import os; held = os.listdir('/proc/self/fd'); print(sorted(held, key=int)[:-1], len(held))"
    try:
        words = tree.words(PYTHON, "-I", "-c", script)
        run = tree.person.popen(*words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, pass_fds=(held,))
        said, _ = run.communicate(timeout=30)
    finally:
        os.close(held)
    # The fourth is the listing's own.
    assert said.decode().strip() == "['0', '1', '2'] 4"


@pytest.mark.parametrize("standard", ["stdin", "stdout", "stderr"])
def test_a_directory_for_a_standard_descriptor_is_refused(one_tree: Ground, standard: str) -> None:
    """A directory as standard input, output or error would open everything around it: nothing is run."""
    directory = os.open(one_tree.source / "hidden", os.O_RDONLY)
    streams = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE, standard: directory}
    witness = one_tree.source / "yard/ran"
    try:
        run = one_tree.person.popen(*one_tree.words("touch", str(witness)), **streams)
        _, complaint = run.communicate(timeout=30)
    finally:
        os.close(directory)
    assert run.returncode != 0
    assert not witness.exists()
    if standard != "stderr":
        # By the interpreter itself, before policyfs is asked.
        assert b"is a directory" in complaint.lower()


def test_a_file_given_as_input_is_not_there_to_be_opened_again(one_tree: Ground) -> None:
    """Input redirected from a file is read, and /proc/self/fd/0 does not open the file, neither to write nor to seek."""
    given = one_tree.source / "open.txt"
    script = "import os, stat; print(stat.S_ISFIFO(os.fstat(0).st_mode), open(0).read())"
    with given.open() as file:
        run = one_tree.person.popen(*one_tree.words(PYTHON, "-c", script), stdin=file, stdout=subprocess.PIPE)
        said, _ = run.communicate(timeout=30)
    assert said == b"True open\n\n"


def test_a_file_that_output_is_appended_to_cannot_be_read_or_cut(one_tree: Ground) -> None:
    """Output appended to a file arrives in order with the errors that go to the same file, which stays what it was."""
    log = one_tree.person.home / "out.log"
    log.write_text("before\n")
    # Read once and without waiting, while nothing is under way: another reader of the pipe would take lines out of it.
    read = "dd if=/proc/self/fd/1 iflag=nonblock bs=64 count=1 2>/dev/null"
    script = f"{read}; : > /dev/stdout; for i in 1 2 3; do echo out $i; echo err $i >&2; done"
    with log.open("a") as file:
        run = one_tree.person.popen(*one_tree.words("sh", "-c", script), stdin=subprocess.DEVNULL, stdout=file, stderr=file)
        assert run.wait(30) == 0
    expected = ["before", *(f"{kind} {number}" for number in (1, 2, 3) for kind in ("out", "err"))]
    assert log.read_text().splitlines() == expected


def test_a_control_socket_is_not_there(tree: Ground) -> None:
    """A socket in the runtime directory that listens is missing inside, and so is an abstract one, even where the network is
    shared (on Linux 6.12)."""
    directory = tree.state / "run"
    directory.mkdir(parents=True, mode=0o700, exist_ok=True)
    for place in (tree.person.home / ".local", tree.person.home / ".local/state", tree.state, directory):
        os.chown(place, tree.person.uid, tree.person.uid)
    tree.state.chmod(0o700)
    path = directory / "control.sock"
    abstract = f"\0policyfs-test-{os.getpid()}"
    script = r"""
import errno, socket, sys
for address in (sys.argv[1], "\0" + sys.argv[2]):
    try:
        socket.socket(socket.AF_UNIX).connect(address)
        print("connected")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    with socket.socket(socket.AF_UNIX) as named, socket.socket(socket.AF_UNIX) as nameless:
        named.bind(str(path))
        nameless.bind(abstract)
        path.chmod(0o777)
        for listening in (named, nameless):
            listening.listen()
        outside = tree.person.python(script, str(path), abstract[1:])
        said = ran(tree.python(script, str(path), abstract[1:], options=("--network", "none"))).split()
        shared = ran(tree.python(script, str(path), abstract[1:], options=("--network", "host"))).split()
    path.unlink()
    assert outside.stdout.split() == ["connected", "connected"]
    assert said == ["ENOENT", "ECONNREFUSED"]
    assert shared == ["ENOENT", "EPERM" if _has_scopes() else "connected"]


def _has_scopes() -> bool:
    release = tuple(int(part) for part in os.uname().release.split(".")[:2])
    return release >= (6, 12)


def test_links_out_of_the_tree_lead_nowhere(tree: Ground) -> None:
    """A link to the home, to the mountpoint, or through /proc lands on what the sandbox has there: nothing."""
    outside = tree.person.home / "private.txt"
    outside.write_text(SECRET)
    script = r"""
import os, sys
yard, *targets = sys.argv[1:]
read = []
for number, target in enumerate(targets):
    link = f"{yard}/link{number}"
    try:
        os.symlink(target, link)
    except OSError:
        link = f"/tmp/link{number}"
        os.symlink(target, link)
    try:
        read.append(open(link).read())
    except OSError:
        pass
print(read)
"""
    up = os.path.relpath(outside, tree.source / "yard")
    targets = [str(outside), up, f"{tree.source}/hidden.txt", "../hidden.txt", "/proc/1/root" + str(outside)]
    assert ran(tree.python(script, f"{tree.source}/yard", *targets, f"{tree.source}/open.txt")).strip() == r"['open\n']"


def test_absolute_links_of_the_tree_work_as_they_are(one_tree: Ground) -> None:
    """A link by SOURCE's absolute path is not rewritten: the view stands where it points."""
    (one_tree.source / "yard/link").symlink_to(one_tree.source / "open.txt")
    said = ran(one_tree.run("sh", "-c", f"readlink {one_tree.source}/yard/link; cat {one_tree.source}/yard/link"))
    assert said == f"{one_tree.source}/open.txt\nopen\n"


def test_the_kernel_and_the_system_cannot_be_changed(tree: Ground) -> None:
    """Not even root in a sandbox opens anything of /proc to write, changes the mode of it, which would be that of the whole
    machine, or changes a file or device of the machine."""
    script = r"""
import os
changed, looked_at = [], 0
def attempt(act, path):
    global looked_at
    looked_at += 1
    try:
        act(path)
        changed.append(path)
    except OSError:
        pass
for directory, _, files in os.walk("/proc"):
    for name in files:
        path = os.path.join(directory, name)
        if not os.path.islink(path):
            attempt(lambda path: os.close(os.open(path, os.O_WRONLY)), path)
            attempt(lambda path: os.chmod(path, os.stat(path).st_mode & 0o7777), path)
    attempt(lambda path: os.chmod(path, os.stat(path).st_mode & 0o7777), directory)
for path in ("/usr/bin/env", "/etc/hosts", "/etc/passwd", "/usr", "/"):
    attempt(lambda path: os.chmod(path, 0o755), path)
try:
    os.chmod("/dev/null", 0o600)
except OSError:
    pass
print(changed, looked_at > 1000)
"""
    mode = os.stat("/dev/null").st_mode
    try:
        assert ran(tree.python(script)).strip() == "[] True"
        assert os.stat("/dev/null").st_mode == mode
    finally:
        os.chmod("/dev/null", mode & 0o777)


def test_of_proc_only_what_programs_need_is_shown(tree: Ground) -> None:
    """Besides processes, settings and totals everything of /proc answers EACCES or is an empty directory, root's too: the
    user's keys, timers, disks, file systems, and what a driver may add."""
    script = r"""
import os
shown, closed = [], []
for name in os.listdir("/proc"):
    path = "/proc/" + name
    if name.isdigit() or os.path.islink(path):
        continue
    try:
        found = os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1)
        (shown if found else closed).append(name)
    except OSError as error:
        (closed if error.errno == 13 else shown).append(name)
print(*sorted(shown))
print(*sorted(closed))
"""
    shown, closed = (line.split() for line in ran(tree.python(script)).splitlines())
    assert set(shown) <= set(machine._PROC)
    assert {"cpuinfo", "meminfo", "stat", "sys", "uptime"} <= set(shown)
    assert {"fs", "key-users", "keys", "slabinfo", "timer_list"} & set(os.listdir("/proc")) <= set(closed)


def test_the_first_process_is_out_of_reach(tree: Ground) -> None:
    """Its memory, descriptors and environment are not to be had by any path, though it is there."""
    script = r"""
import errno, os
os.kill(1, 0)
for way in ("/proc/1", "/proc/self/root/proc/1", "/proc/2/../1"):
    assert os.listdir(way) == []
    for name in ("mem", "task/1/mem", "fd", "environ", "maps", "root"):
        try:
            os.open(f"{way}/{name}", os.O_RDONLY)
            print(way, name)
        except FileNotFoundError:
            pass
assert os.stat("/proc/self/mem")
"""
    assert ran(tree.python(script)) == ""


def test_a_device_for_a_standard_descriptor_is_not_the_machines(as_root: None) -> None:
    """Whom the machine's /dev/null belongs to can use it for input, output and error, and change it by none of them."""
    script = r"""
import os, stat
assert os.read(0, 1) == b""
for standard in range(3):
    assert stat.S_ISCHR(os.fstat(standard).st_mode)
    os.fchmod(standard, 0)
    os.utime(standard, (1, 1))
"""
    with harness.myself() as person, ground(person) as tree:
        # Not the machine's own, which everything else here needs.
        node = person.home / "null"
        os.mknod(node, stat.S_IFCHR | 0o666, os.stat("/dev/null").st_rdev)
        before = node.stat()
        with node.open("r+b", buffering=0) as null:
            words = tree.words(PYTHON, "-I", "-c", script)
            assert person.popen(*words, stdin=null, stdout=null, stderr=null).wait(30) == 0
        assert (node.stat().st_mode, node.stat().st_mtime) == (before.st_mode, before.st_mtime)


def test_devices_work_and_no_disk_is_among_them(tree: Ground) -> None:
    """The usual nodes can be used; there is no other device, and none can be made."""
    script = (
        "echo x >/dev/null; head -c4 /dev/zero | wc -c; head -c8 /dev/urandom | wc -c; ls /dev;"
        "mknod /tmp/n c 1 3 || echo refused"
    )
    said = ran(tree.run("sh", "-c", script)).split()
    assert said[:2] == ["4", "8"]
    assert said[-1] == "refused"
    assert set(said[2:-1]) == {
        *("core", "fd", "full", "null", "ptmx", "pts", "random", "shm", "stderr", "stdin", "stdout"),
        *("tty", "urandom", "zero"),
    }


def test_the_session_keyring_is_not_the_callers(one_person: Person) -> None:
    """What becomes bubblewrap leaves the caller's session keyring: the kernel looks for keys in it whatever calls are
    refused, for instance where a file is encrypted."""
    script = r"""
import ctypes, platform
from policyfs.sandbox.confine import leave_session_keyring
number = {"x86_64": 250, "aarch64": 219, "riscv64": 219}[platform.machine()]
libc = ctypes.CDLL(None, use_errno=True)
# KEYCTL_GET_KEYRING_ID of KEY_SPEC_SESSION_KEYRING
print(libc.syscall(number, 0, -3, 0))
leave_session_keyring()
print(libc.syscall(number, 0, -3, 0))
"""
    before, after = one_person.python(script).stdout.split()
    if before == "-1":
        pytest.skip("no keyrings here")
    assert before != after


def test_etc_holds_no_secret(tree: Ground) -> None:
    """Of /etc only what programs need is there, and nobody of the machine but the user."""
    missing = ["shadow", "sudoers", "policyfs", "ssl/private", "machine-id", "gitconfig", "environment", "ssh"]
    said = ran(
        tree.run("sh", "-c", "cd /etc; for n in " + " ".join(missing) + "; do test -e $n && echo $n; done; cat passwd")
    )
    names = [line.split(":")[0] for line in said.splitlines()]
    assert set(names) <= {"root", "nobody", _name_of(tree.person)}
    assert Path("/etc/passwd").read_text().count("\n") > len(names)


def _name_of(person: Person) -> str:
    said = person.run("id", "-un").stdout.strip()
    return said or "user"


def test_a_command_that_goes_on_in_the_background_is_stopped(tree: Ground) -> None:
    """What the command leaves running, in a session of its own too, ends with it, before the view goes."""
    script = "setsid sh -c 'while :; do date > yard/alive 2>/dev/null || echo lost > /tmp/x; sleep 0.01; done' & sleep 0.2"
    ran(tree.run("sh", "-c", script, cwd=tree.source))
    assert (tree.source / "yard/alive").exists()
    until(lambda: not tree.processes(), "the background process to be gone")
