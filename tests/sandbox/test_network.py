"""`policyfs run --network`: what a command reaches with a network of its own, and what it does not
(rule run-8)."""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from policyfs.sandbox import resolv_conf
from policyfs.sandbox.routing import has_default_route
from policyfs.sandbox.signals import children
from tests.mount.expecting import absent, until
from tests.sandbox.internet import (
    DEVICE,
    LINK_LOCAL,
    LONG_NAME,
    MACHINE_4,
    MACHINE_6,
    NAME,
    OUTSIDE_4,
    OUTSIDE_6,
    PORT,
    PROXY_PORT,
    Online,
    online,
)  # fmt: skip
from tests.sandbox.runs import PYTHON, Ground, ground, ran


@pytest.fixture(scope="module", params=["root", "user"])
def machine(request: pytest.FixtureRequest) -> Iterator[Online]:
    """A machine that is online."""
    with online(request.param) as made:
        yield made


@pytest.fixture
def tree(machine: Online) -> Iterator[Ground]:
    """A tree on it, and none of its services asked yet."""
    with ground(machine.person) as made:
        machine.has_name_server(OUTSIDE_4)
        machine.arrived()
        yield made


ASK = r"""
import json, socket, sys
answers = {}
for address in sys.argv[2:]:
    for name, kind in (("tcp", socket.SOCK_STREAM), ("udp", socket.SOCK_DGRAM)):
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, kind) as asking:
            asking.settimeout(10)
            try:
                asking.connect((address, int(sys.argv[1])))
                if name == "udp":
                    asking.send(address.encode())
                answers[f"{name} {address}"] = asking.recv(100).decode()
            except OSError as error:
                answers[f"{name} {address}"] = type(error).__name__
print(json.dumps(answers))
"""
"""Asks for the word at some addresses, by both protocols."""


def test_the_internet_is_reached(tree: Ground) -> None:
    """TCP and UDP, by IPv4 and IPv6."""
    answers = json.loads(ran(tree.python(ASK, str(PORT), OUTSIDE_4, OUTSIDE_6)))
    assert set(answers.values()) == {"outside"}
    assert len(answers) == 4


PRESS = r"""
import json, socket, struct, sys
device = sys.argv[1].encode()
index = socket.if_nametoindex(device)
four, six = socket.IPPROTO_IP, socket.IPPROTO_IPV6
ways = {
    "plain": [],
    "device": [(socket.SOL_SOCKET, 25, device + b"\0")],                              # SO_BINDTODEVICE
    "broadcast": [(socket.SOL_SOCKET, 25, device + b"\0"), (socket.SOL_SOCKET, socket.SO_BROADCAST, 1)],
    "unicast": [(four, 50, struct.pack("!I", index)), (six, 76, struct.pack("!I", index))],  # IP_UNICAST_IF
    "multicast": [(four, 32, struct.pack("4s4si", b"", b"", index)), (six, 17, index)],      # IP_MULTICAST_IF
    "source route": [(four, 4, b"\x83\x07\x04" + socket.inet_aton("127.0.0.1") + b"\0")],    # IP_OPTIONS
}
answered = {}
for address in sys.argv[3:]:
    is_six = ":" in address
    family, level = (socket.AF_INET6, six) if is_six else (socket.AF_INET, four)
    for way, options in [*ways.items(), ("packet", None)]:
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM):
            if way == "packet" and kind == socket.SOCK_STREAM:
                continue
            with socket.socket(family, kind) as asking:
                asking.settimeout(0.1)
                try:
                    for at, option, value in options or []:
                        if at in (socket.SOL_SOCKET, level):
                            asking.setsockopt(at, option, value)
                    told = f"{way} {address}".encode()
                    if kind == socket.SOCK_STREAM:
                        asking.connect((address, int(sys.argv[2])))
                    elif way == "packet":
                        place = bytes(16) + struct.pack("=i", index) if is_six else struct.pack("=i8s", index, b"")
                        asking.sendmsg([told], [(level, 50 if is_six else 8, place)], 0, (address, int(sys.argv[2])))
                    else:
                        asking.sendto(told, (address, int(sys.argv[2])))
                    answered[f"{kind} {way} {address}"] = asking.recv(100).decode()
                except OSError:
                    pass
print(json.dumps(answered))
"""
"""Tries to send to some addresses by every option that chooses a device or a way, and tells what was answered."""


def test_the_machines_own_services_are_not_reached(machine: Online, tree: Ground) -> None:
    """Nothing comes to what listens on the machine's loopback and on its other addresses, by whatever way a socket of the
    command is told to take; nor to the name server's address at another port, nor to where clouds keep credentials."""
    own = ("127.0.0.1", "127.0.0.53", "127.1.2.3", "0.0.0.0", "0.0.0.1", "::1", "::ffff:127.0.0.1", MACHINE_4, MACHINE_6)
    router = ("198.51.100.1", "198.51.100.2", "198.51.100.3", "198.51.100.100", "198.51.100.255", "255.255.255.255")
    router_6 = ("fd00::2", "fd00::3", "fd00::100", "fe80::2", "ff02::1", LINK_LOCAL, "10.0.2.2", "169.254.169.254")
    machine.ip("route", "add", "169.254.0.0/16", "dev", DEVICE)
    try:
        outside = json.loads(ran(tree.person.python(PRESS, "lo", str(PORT), *own)))
        assert len([way for way in outside if " plain " in way]) == 2 * len(own) - 2, "0.0.0.1 is no address"
        assert set(json.loads(ran(tree.person.python(ASK, str(PORT), "169.254.169.254"))).values()) == {"outside"}
        assert machine.arrived()
        inside = tree.python(PRESS, "tap0", str(PORT), *own, *router, *router_6)
        assert json.loads(ran(inside)) == {}
        # What was sent before this has arrived before it, if it has.
        ran(tree.person.python(ASK, str(PORT), "127.0.0.1", "::1"))
        assert machine.arrived() == [f"tcp {PORT}", f"udp {PORT} 127.0.0.1", f"tcp {PORT}", f"udp {PORT} ::1"]
    finally:
        machine.ip("route", "delete", "169.254.0.0/16", "dev", DEVICE)


def test_the_loopback_is_the_commands_own(tree: Ground) -> None:
    """What the command itself listens at it reaches."""
    script = r"""
import socket
for family, address in ((socket.AF_INET, "127.0.0.1"), (socket.AF_INET6, "::1")):
    with socket.socket(family) as listening:
        listening.bind((address, 0))
        listening.listen()
        socket.create_connection(listening.getsockname()[:2], 10).close()
        print("reached")
"""
    assert ran(tree.python(script)).split() == ["reached", "reached"]


def test_an_address_that_the_machine_gets_later(machine: Online, tree: Ground) -> None:
    """It is reached no more than the others."""
    script = r"""
import socket, sys, time
print("ready", flush=True)
for address in sys.argv[1:]:
    sys.stdin.readline()
    while True:
        try:
            socket.create_connection((address, 8000), 1).close()
        except TimeoutError:
            pass
        except OSError as error:
            print(error.strerror, flush=True)
            break
"""
    added = (("203.0.113.77", 24), ("2001:db8:113::77", 64))
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    run = tree.start(PYTHON, "-I", "-c", script, *(address for address, _ in added), **pipes)
    assert run.stdin is not None
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    for address, length in added:
        machine.ip("address", "add", f"{address}/{length}", "dev", DEVICE, *(["nodad"] if ":" in address else []))
        try:
            run.stdin.write(b"\n")
            run.stdin.flush()
            assert run.stdout.readline() == b"Network is unreachable\n"
        finally:
            machine.ip("address", "delete", f"{address}/{length}", "dev", DEVICE)
    assert run.wait(30) == 0


def test_sockets_of_the_machine_are_neither_reached_nor_named(machine: Online, tree: Ground) -> None:
    """An abstract socket is not there; /proc/net/unix tells of the sandbox's own sockets alone, though the machine's tells
    of this one; and a name that is taken outside is free."""
    name = f"policyfs-test-{os.getpid()}"
    script = r"""
import errno, socket, sys
print(sys.argv[1] in open("/proc/net/unix").read())
with socket.socket(socket.AF_UNIX) as one, socket.socket(socket.AF_UNIX) as other:
    try:
        one.connect("\0" + sys.argv[1])
        print("connected")
    except OSError as error:
        print(errno.errorcode[error.errno])
    try:
        other.bind("\0" + sys.argv[1])
        print("bound")
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    holding = r"""
import socket, sys
with socket.socket(socket.AF_UNIX) as held:
    held.bind("\0" + sys.argv[1])
    held.listen()
    print("ready", flush=True)
    sys.stdin.read()
"""
    holder = tree.person.popen(PYTHON, "-I", "-c", holding, name, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    with holder:
        holder.stdout.readline()
        outside = tree.person.python(script, name).stdout.split()
        inside = ran(tree.python(script, name)).split()
        holder.stdin.close()
    assert outside == ["True", "connected", "EADDRINUSE"]
    assert inside == ["False", "ECONNREFUSED", "bound"]


LOOK_UP = r"""
import socket, sys
for name in sys.argv[1:]:
    print(socket.getaddrinfo(name, 80, socket.AF_INET, socket.SOCK_STREAM)[0][4][0])
"""


@pytest.mark.parametrize(
    ("server", "answer"),
    [
        (OUTSIDE_4, "203.0.113.81"),
        (OUTSIDE_6, "203.0.113.81"),
        ("127.0.0.53", "203.0.113.82"),
        ("::1", "203.0.113.82"),
        (MACHINE_4, "203.0.113.82"),
        (f"{LINK_LOCAL}%{DEVICE}", "203.0.113.82"),
    ],
)
def test_the_machines_name_servers_are_asked(machine: Online, tree: Ground, server: str, answer: str) -> None:
    """Names are found, short answers and long ones (by TCP), where the machine's name server is outside, on its loopback or
    on a link; and nothing else at that address is reached."""
    machine.has_name_server(server)
    assert ran(tree.python(LOOK_UP, NAME, LONG_NAME)).split() == [answer, answer]
    if server != OUTSIDE_4:
        listening = ran(tree.run("sed", "-n", "s/^nameserver //p", "/etc/resolv.conf")).strip()
        arrived = machine.arrived()
        assert "outside" in ran(tree.python(ASK, str(PORT), OUTSIDE_4))
        assert set(json.loads(ran(tree.python(ASK, str(PORT), listening))).values()) == {"ConnectionRefusedError"}
        assert [line for line in arrived + machine.arrived() if f" {PORT}" in line] == []


def test_a_name_server_that_changes_is_asked_at_once(machine: Online, tree: Ground) -> None:
    """The machine goes to another network while the command runs: its new name server answers."""
    script = "import sys\nprint('ready', flush=True)\nsys.stdin.readline()\n" + LOOK_UP
    run = tree.start(PYTHON, "-I", "-c", script, NAME, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    machine.has_name_server("127.0.0.1")
    assert run.communicate(b"\n", timeout=30)[0] == b"203.0.113.82\n"


@pytest.mark.parametrize("tool", ["pip", "npm"])
def test_package_managers_go_by_a_proxy(tree: Ground, tool: str) -> None:
    """Where the environment names a proxy, it is used: the names of the registries are known to nobody else."""
    options = ("--env", f"http_proxy=http://{OUTSIDE_4}:{PROXY_PORT}")
    if tool == "pip":
        if subprocess.run([PYTHON, "-m", "pip", "--version"], capture_output=True).returncode:
            absent("no pip here (Debian: python3-pip)")
        command = [PYTHON, "-I", "-m", "pip", "download", "--no-cache-dir", "--no-deps", "--dest", "yard"]
        command += ["--index-url", "http://index.invalid/simple", "--trusted-host", "index.invalid", "thing"]
        done = tree.run(*command, options=options)
        assert done.returncode == 0, done.stderr
        assert (tree.source / "yard/thing-1-py3-none-any.whl").exists()
    else:
        if shutil.which("npm") is None:
            absent("no npm here (Debian: npm)")
        command = ["npm", "view", "--registry=http://registry.invalid/", "thing", "version"]
        assert ran(tree.run(*command, options=options)) == "1.0.0\n"


# -- which network


INSIDE = "readlink /proc/self/ns/net; ls /sys/class/net 2>/dev/null; sed -n 's/^ *\\([a-z0-9]*\\):.*/\\1/p' /proc/net/dev"


@pytest.mark.parametrize(
    ("options", "shared", "devices"),
    [
        ((), False, ["lo", "tap0"]),
        (("--network", "internet"), False, ["lo", "tap0"]),
        (("--network", "none"), False, ["lo"]),
        (("--no-network",), False, ["lo"]),
        (("--network", "host"), True, ["lo", DEVICE]),
    ],
)
def test_which_network(tree: Ground, options: tuple[str, ...], shared: bool, devices: list[str]) -> None:
    """The internet is the default; none is a loopback; host is the machine's, services and all. Nothing is said of it."""
    done = tree.run("sh", "-c", INSIDE, options=options)
    own, *found = ran(done).split()
    assert done.stderr == ""
    assert (own == tree.person.run("readlink", "/proc/self/ns/net").stdout.strip()) is shared
    assert sorted(found) == devices
    if shared:
        assert "machine" in ran(tree.python(ASK, str(PORT), "127.0.0.1", options=options))


def test_two_answers_to_one_question(tree: Ground) -> None:
    """--no-network together with another --network is a mistake in the command line."""
    done = tree.run("true", options=("--no-network", "--network", "host"))
    assert done.returncode == 2
    assert "--no-network is --network none, and --network host is given too; keep one" in done.stderr


@pytest.mark.parametrize("missing", ["slirp4netns", "ip", "/dev/net"])
def test_where_no_network_can_be_made(machine: Online, tree: Ground, missing: str) -> None:
    """The default is then this machine's network, with one line that says so and why; `--network internet` is refused, and
    nothing is run."""
    path = missing if missing.startswith("/") else str(shutil.which(missing))
    machine.cover(path)
    try:
        fallen = tree.run("readlink", "/proc/self/ns/net")
        refused = tree.run("touch", "yard/was-run", options=("--network", "internet"))
    finally:
        machine.uncover(path)
    assert ran(fallen).strip() == tree.person.run("readlink", "/proc/self/ns/net").stdout.strip()
    (line,) = fallen.stderr.splitlines()
    assert line.startswith("policyfs: note: the command shares this machine's network, and reaches all that listens on ")
    assert missing in line
    assert refused.returncode == 5
    (line,) = refused.stderr.splitlines()
    assert line.startswith("policyfs: --network internet: ")
    assert missing in line
    assert not (tree.source / "yard/was-run").exists()


# -- the process that makes it


def _gateway(run: subprocess.Popen[bytes]) -> tuple[int, int]:
    """The gateway of a run that is under way, and its slirp4netns."""
    found = [
        (child, leaf)
        for child in children(run.pid)
        for below in children(child)
        for leaf in children(below)
        if Path(f"/proc/{leaf}/cmdline").read_bytes().split(b"\0")[0].endswith(b"slirp4netns")
    ]
    (pair,) = found
    return pair


def _started(tree: Ground, script: str = "echo ready; exec sleep 1000") -> subprocess.Popen[bytes]:
    run = tree.start("sh", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    return run


@pytest.mark.parametrize("how", ["the command ends", "the run is killed", "all but slirp4netns are killed"])
def test_nothing_is_left_of_it(tree: Ground, how: str) -> None:
    """The gateway and slirp4netns end with the run, whatever ends that."""
    run = _started(tree, "echo ready; read line")
    processes = _gateway(run)
    ends = [os.pidfd_open(process) for process in processes]
    if how == "the command ends":
        run.communicate(b"\n", timeout=30)
        assert all(select.select([end], [], [], 0)[0] for end in ends), "it waits for them"
    else:
        if how == "all but slirp4netns are killed":
            bubblewrap = children(processes[0])
            run.send_signal(signal.SIGSTOP)
            for process in (processes[0], *bubblewrap):
                os.kill(process, signal.SIGKILL)
        run.kill()
        run.wait(30)
        until(lambda: all(select.select([end], [], [], 0)[0] for end in ends), "the gateway and slirp4netns to end")
    for end in ends:
        os.close(end)


def test_a_network_that_ends_early_is_told_of(tree: Ground) -> None:
    """slirp4netns is killed: the command goes on, without a network, its exit status is its own, and a line tells of it."""
    run = _started(tree, "echo ready; read line; exit 7")
    gateway, slirp = _gateway(run)
    end = os.pidfd_open(gateway)
    os.kill(slirp, signal.SIGKILL)
    until(lambda: select.select([end], [], [], 0)[0], "the gateway to end")
    os.close(end)
    _, said = run.communicate(b"\n", timeout=30)
    assert run.returncode == 7
    assert said == b"policyfs: the command's network ended before the command did: slirp4netns ended\n"


def test_what_slirp4netns_could_do(tree: Ground) -> None:
    """It has no file, no process but itself, one capability that means nothing to the machine, and a filter of system
    calls; the command sees neither it nor the gateway."""
    run = _started(tree)
    _, slirp = _gateway(run)
    root = Path(f"/proc/{slirp}/root")
    files = {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}
    assert files <= {"etc/ld.so.cache"}
    status = dict(line.split(":\t", 1) for line in Path(f"/proc/{slirp}/status").read_text().splitlines())
    assert status["NSpid"].split()[1:] == ["1"]
    assert {status[name] for name in ("CapEff", "CapPrm", "CapBnd")} == {f"{1 << 10:016x}"}, "CAP_NET_BIND_SERVICE"
    assert (status["NoNewPrivs"], status["Seccomp"]) == ("1", "2")
    for kind in ("user", "mnt", "ipc", "pid"):
        assert os.readlink(f"/proc/{slirp}/ns/{kind}") != os.readlink(f"/proc/self/ns/{kind}")
    run.send_signal(signal.SIGTERM)
    run.communicate(timeout=30)
    assert ran(tree.run("sh", "-c", "cat /proc/[0-9]*/comm")).split().count("slirp4netns") == 0


# -- what is decided without a machine


@pytest.mark.parametrize(
    ("text", "servers"),
    [
        ("", ["127.0.0.1"]),
        ("search example.org\n", ["127.0.0.1"]),
        ("# nameserver 1.1.1.1\nnameserver 9.9.9.9\n", ["9.9.9.9"]),
        ("nameserver a\nnameserver b\nnameserver c\nnameserver d\n", ["a", "b", "c"]),
        ("  nameserver\t::1  \nnameserver\n", ["::1"]),
    ],
)
def test_which_name_servers(text: str, servers: list[str]) -> None:
    """Three at most, as resolv.conf(5) has it, and the machine itself where it names none."""
    assert resolv_conf.name_servers(text) == servers


def test_the_commands_resolv_conf() -> None:
    """As many servers as the machine's has, and what it says besides."""
    text = "# theirs\nnameserver ::1\nnameserver 9.9.9.9\nsearch example.org\noptions edns0 trust-ad\n"
    made = resolv_conf.inside(text)
    assert made == "nameserver 127.0.0.53\nnameserver 127.0.0.54\nsearch example.org\noptions edns0 trust-ad\n"


@pytest.mark.parametrize(
    ("flags", "prefix", "is_one"), [("00000003", "00", True), ("00200200", "00", False), ("00000001", "40", False)]
)
def test_a_default_route(flags: str, prefix: str, is_one: bool) -> None:
    """A route to everywhere that is not refused."""
    none = "0" * 32
    line = f"{none} {prefix} {none} 00 {none} 00000400 00000001 00000000 {flags}     eth0\n"
    assert has_default_route(line) is is_one
