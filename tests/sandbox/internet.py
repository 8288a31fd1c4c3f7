"""An internet for tests: a machine that a person works on, in a network namespace, and an outside that it reaches through
a pair of veth(4). No test of the network needs a network."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.mount import harness
from tests.mount.expecting import absent
from tests.mount.harness import Person

MACHINE_4, MACHINE_6 = "203.0.113.2", "2001:db8:113::2"
OUTSIDE_4, OUTSIDE_6 = "203.0.113.1", "2001:db8:113::1"
LINK_LOCAL = "fe80::113"
"""The machine's, on `DEVICE`."""
DEVICE = "wan"
NAME = "somewhere.example"
LONG_NAME = "long.example"
"""One whose answer does not fit into a datagram."""

PORT, PROXY_PORT = 8000, 3128

SERVICES = r"""
import io, json, socket, struct, sys, threading, zipfile
who, address, log = sys.argv[1:]
# One write(2) for each line: several threads write.
log = open(log, "ab", buffering=0)

def dns(question, stream):
    name = question[12:question.index(b"\0", 12) + 5]
    wants_address = name[-4:-2] == b"\0\1"
    truncated = name.startswith(b"\4long") and not stream
    head = question[:2] + struct.pack(">HHHHH", 0x8380 if truncated else 0x8180, 1, wants_address and not truncated, 0, 0)
    answer = b"\xc0\x0c" + struct.pack(">HHIH", 1, 1, 60, 4) + socket.inet_aton(address)
    return head + name + (answer if wants_address and not truncated else b"")

def wheel():
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as archive:
        archive.writestr("thing.py", "")
        archive.writestr("thing-1.dist-info/METADATA", "Metadata-Version: 2.1\nName: thing\nVersion: 1\n")
        archive.writestr("thing-1.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("thing-1.dist-info/RECORD", "")
    return made.getvalue()

def http(request):
    path = request.split(b" ")[1]
    if path.endswith(b".whl"):
        kind, body = "application/octet-stream", wheel()
    elif b"/simple/" in path:
        kind, body = "text/html", b"<a href=thing-1-py3-none-any.whl>thing-1-py3-none-any.whl</a>"
    else:
        version = {"name": "thing", "version": "1.0.0"}
        told = {"name": "thing", "dist-tags": {"latest": "1.0.0"}, "versions": {"1.0.0": version}}
        kind, body = "application/json", json.dumps(told).encode()
    return b"HTTP/1.0 200 OK\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n" % (kind.encode(), len(body)) + body

def datagrams(listening, port):
    is_six = listening.family == socket.AF_INET6
    while True:
        data, [(level, kind, told)], _, asker = listening.recvmsg(4096, 256)
        log.write(b"udp %d %s\n" % (port, data if port == 8000 else b"?"))
        answering = told[:16] + bytes(4) if is_six else bytes(4) + told[4:8] + bytes(4)
        try:
            listening.sendmsg([dns(data, False) if port == 53 else who.encode()], [(level, kind, answering)], 0, asker)
        except OSError:
            # Sent from where no answer leads.
            pass

def streams(listening, port):
    while True:
        connection, _ = listening.accept()
        log.write(b"tcp %d\n" % port)
        threading.Thread(target=stream, args=(connection, port), daemon=True).start()

def stream(connection, port):
    with connection:
        if port == 53:
            size, = struct.unpack(">H", connection.recv(2))
            answer = dns(connection.recv(size), True)
            connection.sendall(struct.pack(">H", len(answer)) + answer)
        elif port == 3128:
            connection.sendall(http(connection.recv(65536)))
        else:
            connection.sendall(who.encode())

for family, everywhere in ((socket.AF_INET, "0.0.0.0"), (socket.AF_INET6, "::")):
    for port in (53, 8000, 3128):
        for kind, serve in ((socket.SOCK_DGRAM, datagrams), (socket.SOCK_STREAM, streams)):
            listening = socket.socket(family, kind)
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            if family == socket.AF_INET6:
                listening.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
            listening.bind((everywhere, port))
            if kind == socket.SOCK_STREAM:
                listening.listen()
            else:
                # IP_PKTINFO, IPV6_RECVPKTINFO: an answer is to come from the address that was asked.
                listening.setsockopt(*((socket.IPPROTO_IP, 8) if family == socket.AF_INET else (socket.IPPROTO_IPV6, 49)), 1)
            threading.Thread(target=serve, args=(listening, port), daemon=True).start()
print("ready", flush=True)
sys.stdin.read()
"""
"""Everything that listens, on all addresses: a word (port 8000), a name server (53) and a proxy for HTTP (3128)."""


@dataclass
class Networked(Person):
    """A person on a machine of its own network."""

    network: int = 0
    """The process that holds its network namespace."""

    @property
    def namespaces(self) -> dict[str, int]:
        return {**super().namespaces, "net": self.network}

    def command(self, *argv: str | os.PathLike[str], cwd: str | os.PathLike[str] | None = None) -> list[str]:
        enter = ["nsenter", f"--mount=/proc/{self.namespace}/ns/mnt", f"--net=/proc/{self.network}/ns/net", "--"]
        person = ["setpriv", f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups"]
        return [*enter, *person, "env", "-C", os.fspath(cwd or self.home), *(os.fspath(word) for word in argv)]


@dataclass
class Online:
    """A machine that is online."""

    person: Networked
    outside: int
    """The process that holds the network namespace of everybody else."""
    directory: Path

    def ip(self, *words: str) -> None:
        """Run ip(8) on the machine."""
        _in(self.person.network, "ip", *words)

    def has_name_server(self, address: str) -> None:
        """Have the machine ask this name server."""
        (self.directory / "resolv.conf").write_text(f"nameserver {address}\noptions timeout:5\n")

    def arrived(self) -> list[str]:
        """What has come to the services of the machine since the last time."""
        log = self.directory / "machine.log"
        lines = log.read_text().splitlines()
        os.truncate(log, 0)
        return lines

    def cover(self, path: str) -> None:
        """Have an empty file that cannot be executed, or an empty directory, in the place of another, for this person."""
        if os.path.isdir(path):
            self._mount("mount", "-t", "tmpfs", "tmpfs", path)
        else:
            empty = self.directory / "empty"
            empty.touch(mode=0o644)
            self._mount("mount", "--bind", str(empty), os.path.realpath(path))

    def uncover(self, path: str) -> None:
        """Take it away."""
        self._mount("umount", os.path.realpath(path))

    def _mount(self, *words: str) -> None:
        subprocess.run(["nsenter", f"--mount=/proc/{self.person.namespace}/ns/mnt", *words], check=True)


def _in(process: int, *words: str) -> None:
    subprocess.run(["nsenter", f"--net=/proc/{process}/ns/net", *words], check=True)


@contextmanager
def _holding(*words: str) -> Iterator[int]:
    """A process that holds namespaces, started by these words."""
    holder = subprocess.Popen([*words, "sh", "-c", "echo ready; exec cat"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert holder.stdin is not None
    assert holder.stdout is not None
    try:
        if holder.stdout.readline() != b"ready\n":
            absent(f"no namespace to be had here ({words[0]})")
        yield holder.pid
    finally:
        holder.stdin.close()
        holder.wait()
        holder.stdout.close()


@contextmanager
def _serving(process: int, *arguments: str) -> Iterator[None]:
    """The services of a network namespace."""
    words = ["nsenter", f"--net=/proc/{process}/ns/net", sys.executable, "-I", "-c", SERVICES, *arguments]
    services = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert services.stdin is not None
    assert services.stdout is not None
    try:
        assert services.stdout.readline() == b"ready\n"
        yield
    finally:
        services.stdin.close()
        services.wait()
        services.stdout.close()


def require_network() -> None:
    """Skip or fail where this machine makes no such network."""
    if os.geteuid() != 0:
        absent("an internet of one's own takes root")
    for program, package in (("slirp4netns", "slirp4netns"), ("ip", "iproute2"), ("nsenter", "util-linux")):
        if shutil.which(program) is None:
            absent(f"no {program} here (Debian: {package})")
    try:
        os.close(os.open("/dev/net/tun", os.O_RDWR))
    except OSError as error:
        absent(f"no /dev/net/tun here: {error.strerror}")


@contextmanager
def online(kind: str) -> Iterator[Online]:
    """A machine for root or an ordinary "user" that is online."""
    require_network()
    with ExitStack() as stack:
        person = stack.enter_context(harness.myself() if kind == "root" else harness.ordinary_user())
        namespace = person.namespace
        if namespace is None:
            namespace = stack.enter_context(_holding("unshare", "--mount", "--propagation", "private"))
        machine = stack.enter_context(_holding("unshare", "--net"))
        outside = stack.enter_context(_holding("unshare", "--net"))
        directory = person.home / ".online"
        directory.mkdir(mode=0o755)
        _connect(machine, outside)
        stack.enter_context(_serving(machine, "machine", "203.0.113.82", str(directory / "machine.log")))
        stack.enter_context(_serving(outside, "outside", "203.0.113.81", str(directory / "outside.log")))
        made = Online(Networked(person.home, namespace, person.uid, network=machine), outside, directory)
        made.has_name_server(OUTSIDE_4)
        made._mount("mount", "--bind", str(directory / "resolv.conf"), os.path.realpath("/etc/resolv.conf"))
        yield made


def _connect(machine: int, outside: int) -> None:
    _in(machine, "ip", "link", "add", DEVICE, "type", "veth", "peer", "name", DEVICE, "netns", str(outside))
    for process, addresses in (
        (machine, (f"{MACHINE_4}/24", f"{MACHINE_6}/64", f"{LINK_LOCAL}/64")),
        (outside, (f"{OUTSIDE_4}/24", f"{OUTSIDE_6}/64", "203.0.113.81/24", "169.254.169.254/16")),
    ):
        for device in ("lo", DEVICE):
            _in(process, "ip", "link", "set", device, "up")
        for address in addresses:
            options = ["nodad"] if ":" in address else []
            _in(process, "ip", "address", "add", address, "dev", DEVICE, *options)
    _in(machine, "ip", "route", "add", "default", "via", OUTSIDE_4)
    _in(machine, "ip", "route", "add", "default", "via", OUTSIDE_6)
