"""What a sandbox takes from this machine: its programs, a few files of /etc, what of /proc is not about processes."""

from __future__ import annotations

import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policyfs.host.errors import Exit, UserFault
from policyfs.host.mounts import Mount, Origin, origin, shown_at
from policyfs.policy.paths import HostPath, below, display
from policyfs.sandbox import confine
from policyfs.sandbox.command import launcher
from policyfs.sandbox.layout import NAMESPACES, SystemPlace

_PROGRAMS = (
    b"/usr", b"/bin", b"/sbin", b"/lib", b"/lib32", b"/lib64", b"/libx32", b"/nix/store", b"/gnu/store",
)  # fmt: skip

SYSTEM = tuple(HostPath(path) for path in (*_PROGRAMS, b"/etc"))
"""Read-only in every sandbox, the last one in parts."""

_ETC = (
    # The dynamic loader, and Debian's choice among programs of one name.
    b"ld.so.cache", b"ld.so.conf", b"ld.so.conf.d", b"ld.so.preload", b"alternatives",
    # Whom to believe on the network; not /etc/ssl/private nor /etc/pki/tls/private.
    b"ssl/certs", b"ssl/openssl.cnf", b"ca-certificates", b"ca-certificates.conf",
    b"pki/ca-trust/extracted", b"pki/tls/certs", b"pki/tls/cert.pem", b"pki/tls/openssl.cnf", b"crypto-policies",
    # Names of machines, users and services.
    b"resolv.conf", b"hosts", b"host.conf", b"nsswitch.conf", b"gai.conf", b"services", b"protocols", b"networks", b"rpc",
    # Time, language, terminal, kinds of files, fonts.
    b"localtime", b"timezone", b"locale.alias", b"locale.conf", b"terminfo", b"inputrc", b"mime.types", b"magic", b"fonts",
    # What programs in /usr keep there and do not start without, or start badly.
    b"vim", b"python3", b"perl", b"nanorc", b"os-release", b"debian_version", b"java-*", b"python3.*",
)  # fmt: skip
"""All that is shown of /etc, where it exists. Left out are what may hold a secret (shadow, ssl/private, gitconfig, npmrc,
environment, profile.d), what would only tell of the machine (machine-id, hostname, fstab), and /etc/policyfs."""


def program_places() -> list[SystemPlace]:
    """The system's programs as this machine has them. Where /bin is a link to usr/bin it is one inside too."""
    places = []
    for path in _PROGRAMS:
        try:
            mode = os.lstat(path).st_mode
        except OSError:
            continue
        if stat.S_ISLNK(mode):
            places.append(SystemPlace(HostPath(path), link=os.readlink(path)))
        elif stat.S_ISDIR(mode):
            places.append(SystemPlace(HostPath(path)))
    return places


def system_places() -> list[SystemPlace]:
    """The system's programs, and what they need of /etc."""
    return [*program_places(), *_etc_places()]


def _etc_places() -> Iterable[SystemPlace]:
    present = os.listdir(b"/etc") if os.path.isdir(b"/etc") else []
    for pattern in _ETC:
        if pattern.endswith(b"*"):
            names = sorted(name for name in present if name.startswith(pattern[:-1]))
        else:
            names = [pattern]
        for name in names:
            path = b"/etc/" + name
            real = os.path.realpath(path)
            if os.path.exists(real) and os.access(real, os.R_OK):
                yield SystemPlace(HostPath(path), content=HostPath(real))


_PROC = {
    # Of this machine's processor, memory and kernel: what programs size themselves by.
    "cgroups", "config.gz", "cpuinfo", "crypto", "devices", "filesystems", "loadavg", "meminfo", "misc", "modules", "stat",
    "uptime", "version", "vmstat",
    # Of the sandbox's own namespaces, and of terminals, which ps(1) needs.
    "sys", "sysvipc", "tty",
}  # fmt: skip
"""What is shown of /proc besides processes. Everything else tells of the machine's other programs, disks or devices, or is
a way to the kernel, and so may be whatever a driver adds: keys, timer_list, kcore, fs, bus, acpi, sysrq-trigger."""

_PROC_BELOW = (HostPath(b"/proc/tty/driver"),)
"""Directories to be closed in what is shown: how many bytes each serial line has sent."""


def closed_places() -> tuple[list[HostPath], list[HostPath]]:
    """The files and the directories of /proc that a command does not see."""
    files: list[HostPath] = []
    directories = [path for path in _PROC_BELOW if os.path.isdir(path)]
    with os.scandir("/proc") as entries:
        for entry in entries:
            if entry.name.isdigit() or entry.is_symlink() or entry.name in _PROC:
                continue
            (directories if entry.is_dir() else files).append(HostPath(os.fsencode(entry.path)))
    return sorted(files), sorted(directories)


@dataclass(frozen=True, slots=True)
class Account:
    """The user as the sandbox knows them."""

    name: bytes
    shell: bytes
    passwd: bytes
    group: bytes


def account(home: HostPath) -> Account:
    """The user, with /etc/passwd and /etc/group that know nobody else: root, the user, and the one that everybody else
    is mapped to."""
    uid, gid = os.geteuid(), os.getegid()
    try:
        entry = pwd.getpwuid(uid)
        name, shell = os.fsencode(entry.pw_name), os.fsencode(entry.pw_shell)
    except KeyError:
        name, shell = b"user", b""
    if not shell.startswith((b"/bin/", b"/usr/")) or not os.access(shell, os.X_OK):
        shell = b"/bin/sh"
    passwd = b"%s:x:%d:%d::%s:%s\n" % (name, uid, gid, home, shell)
    group = b"%s:x:%d:\n" % (name, gid)
    if uid != 0:
        passwd = b"root:x:0:0::/:/usr/sbin/nologin\n" + passwd
        group = b"root:x:0:\n" + group
    passwd += b"nobody:x:65534:65534::/:/usr/sbin/nologin\n"
    return Account(name, shell, passwd, group + b"nogroup:x:65534:\n")


def origins(place: HostPath, table: Sequence[Mount]) -> list[Origin]:
    """Where a place and each mount below it lie, whatever they are mounted as; the place's own comes first."""
    # Of mounts on one place the latest is the one that is seen.
    over = [mount for mount in reversed(table) if below(place, mount.point) is not None]
    nearest = max(over, key=lambda mount: len(mount.point), default=None)
    found = [] if nearest is None else [origin(nearest, place)]
    return found + [(mount.device, mount.root) for mount in table if below(mount.point, place)]


def aliases(place: HostPath, table: Sequence[Mount]) -> list[HostPath]:
    """The other paths at which mounts show a place, or a part of it. One that another mount covers is among them: what
    covers it may go."""
    found: dict[HostPath, None] = {}
    for where in origins(place, table):
        for _, alias in shown_at(where, table):
            if below(alias, place) is None:
                found[alias] = None
    return list(found)


_KERNEL_TYPES = {
    *("binfmt_misc", "bpf", "cgroup", "cgroup2", "configfs", "debugfs", "devpts", "devtmpfs", "efivarfs", "fusectl"),
    *("mqueue", "nsfs", "proc", "pstore", "securityfs", "selinuxfs", "sysfs", "tracefs"),
}
"""File systems of which each file is a way to the kernel (`nodev` in /proc/filesystems), not those that hold files."""


def kernel_mounts(table: Sequence[Mount]) -> list[HostPath]:
    """Where such file systems are mounted, a chroot's own /proc for instance."""
    return [mount.point for mount in table if mount.type in _KERNEL_TYPES]


@dataclass(frozen=True, slots=True)
class Tools:
    """The programs that make a sandbox."""

    bubblewrap: bytes
    setsid: bytes
    setpriv: bytes

    def probe(self) -> Probe:
        """Begin to try whether this machine makes such namespaces at all."""
        tried = [self.bubblewrap, *NAMESPACES, b"--ro-bind", b"/", b"/", b"--proc", b"/proc", b"--dev", b"/dev"]
        return Probe(
            subprocess.Popen(
                [*tried, b"--", *launcher(self.setpriv, self.setsid, has_terminal=False), b"true"],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
                env={b"PATH": b"/usr/bin:/bin"},
                # A Ctrl-C is not for it, see `Probe.end`.
                start_new_session=True,
                preexec_fn=_own_mounts,
            )
        )


def _own_mounts() -> None:
    try:
        confine.own_mounts(())
    except OSError as error:
        # Said in bubblewrap's place: of an exception here the parent learns no text.
        os.write(2, f"{error.strerror} ({error.filename})\n".encode())
        os._exit(1)


class Probe:
    """A sandbox that does nothing, to be asked whether it came to be."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self._process = process

    def require(self) -> None:
        """Wait for it. Raises `UserFault` where it did not come to be."""
        _, complaint = self._process.communicate()
        if self._process.returncode == 0:
            return
        said = display((complaint.strip().splitlines() or [b"no reason given"])[-1])
        if b"nknown option" in complaint:
            raise UserFault(
                Exit.MACHINE,
                f"this bubblewrap is too old ({said}); install version 0.8 or newer. Nothing was run",
            )
        raise UserFault(
            Exit.MACHINE,
            f"this machine makes no sandbox: {said}",
            "user namespaces may be forbidden here: see /proc/sys/user/max_user_namespaces, "
            "/proc/sys/kernel/unprivileged_userns_clone and, on Ubuntu, "
            "/proc/sys/kernel/apparmor_restrict_unprivileged_userns; a container must allow them too. Nothing was run",
        )

    def end(self) -> None:
        """Wait for it, whatever came between. It is never killed: bubblewrap's first process waits for its parent in a
        way that does not end with the parent, and would be left behind."""
        if self._process.returncode is None:
            self._process.communicate()


def tools() -> Tools:
    """The programs. Raises `UserFault` where one is missing: there is no running without a sandbox."""
    bubblewrap = shutil.which("bwrap")
    if bubblewrap is None:
        raise UserFault(
            Exit.MACHINE,
            "no bwrap: install Debian's package bubblewrap; without it nothing keeps a program from SOURCE itself, "
            "so nothing was run",
        )
    found = {program: shutil.which(program, path="/usr/bin:/bin") for program in ("setsid", "setpriv")}
    for program, path in found.items():
        if path is None:
            raise UserFault(Exit.MACHINE, f"no {program} in /usr/bin: install Debian's package util-linux; nothing was run")
    setsid, setpriv = (os.fsencode(path) for path in found.values() if path is not None)
    return Tools(os.fsencode(os.path.realpath(bubblewrap)), setsid, setpriv)
