"""Where the code lies that runs when a person runs policyfs here. No view may change it (rule floor-5).

Theory. A session that can change what policyfs executes needs no hole: the next command, or the next daemon, does as the
session says. What is executed is this:

- the package, and the checkout that it lies in: `scripts/` starts it, `pyproject.toml` says what is installed, and the
  directory itself is searched for modules;
- the virtual environment, whole: its interpreter, its `pyvenv.cfg`, its packages;
- of the Python that the environment was made of: `bin`, where the interpreter looks for its settings, and `lib`, with the
  standard library and the shared libraries;
- every directory that a `.pth` file of these adds to the search path;
- the system's programs and libraries;
- the programs that policyfs starts by name, wherever `PATH` finds them; the person's own `policyfs` among them.

Each path comes with every link that leads to it: anyone who replaces the link chooses what is executed.

Not `PYTHONPATH` and not the directory of a script that uses the Python API: scripts/policyfs and the daemon run isolated
(`python -I`) and search neither, and the directory of a script is the user's own project.
"""

from __future__ import annotations

import os
import shutil
import site
import sys
from collections.abc import Iterator

from policyfs.host.ways import on_the_way
from policyfs.policy.paths import HostPath, below

AUTHOR = "policyfs's own code"
"""Who sets the floor on it."""

PROGRAMS = (
    "policyfs", "mount.fuse.policyfs",
    "bwrap", "fusermount3", "umount", "setsid", "slirp4netns",
    "bash", "cat", "cut", "env", "readlink", "sha256sum", "ip", "setpriv")  # fmt: skip
"""What policyfs and its scripts start by name once all is installed."""

_SYSTEM = tuple(
    HostPath(prefix + b"/" + name)
    for prefix in (b"", b"/usr")
    for name in (b"bin", b"sbin", b"lib", b"lib32", b"lib64", b"libx32", b"libexec")
)
"""The system's programs and libraries: hier(7). Only root can write there, and only a view of `/` or `/usr` has them."""

_PREFIX = ("bin", "lib", "lib64", "pyvenv.cfg")
"""What an interpreter reads below the prefix of its installation, `pyvenv.cfg` beside `bin` included: the documentation of
Python's `site` module, and CPython's Modules/getpath.py."""

_LIBRARIES = ("site-packages", "dist-packages")
"""Names of a directory that holds installed packages and nothing else."""


def own_code() -> tuple[HostPath, ...]:
    """The places whose content policyfs executes: files, and directories with everything below them. Some of them may not
    exist, and none may come to."""
    found = set(_SYSTEM)
    for place in (*_packages(), *_interpreter(), *_programs()):
        # A relative entry means another place in each process; what is searched by an isolated one has none.
        if place.startswith("/"):
            found.update(on_the_way(place))
    outermost: list[HostPath] = []
    for found_place in sorted(found, key=lambda place: place.split(b"/")):
        if not outermost or below(found_place, outermost[-1]) is None:
            outermost.append(found_place)
    return tuple(outermost)


def _packages() -> Iterator[str]:
    """The package, what it was installed with, and what `.pth` files add."""
    package = os.path.dirname(os.path.dirname(os.path.realpath(__file__)))
    yield package
    libraries = site.getsitepackages()
    above = os.path.dirname(package)
    if os.path.basename(above) in _LIBRARIES:
        libraries.append(above)
        # X/lib/python3.11/site-packages: a program in X/bin has that directory searched for modules, first of all.
        yield os.path.join(os.path.dirname(os.path.dirname(os.path.dirname(above))), "bin")
    elif os.path.exists(os.path.join(above, "scripts", "environment.sh")):
        yield above
    for library in libraries:
        yield library
        yield from _added_by(library)


def _added_by(library: str) -> Iterator[str]:
    """The directories that the `.pth` files of a directory of packages add to the search path."""
    try:
        names = [name for name in os.listdir(library) if name.endswith(".pth")]
    except OSError:
        return
    for name in names:
        try:
            with open(os.path.join(library, name), encoding="utf-8", errors="surrogateescape") as file:
                lines = file.read().splitlines()
        except OSError:
            continue
        for line in lines:
            # Lines of code and comments name no directory.
            if line.strip() and not line.startswith(("#", "import ", "import\t")):
                yield os.path.join(library, line.rstrip())


def _interpreter() -> Iterator[str]:
    """The interpreter, its environment, and the installation behind that."""
    bases = {sys.base_prefix, sys.base_exec_prefix}
    yield from {sys.prefix, sys.exec_prefix} - bases
    for base in bases:
        for name in _PREFIX:
            yield os.path.join(base, name)
    yield sys.executable


def _programs() -> Iterator[str]:
    return filter(None, map(shutil.which, PROGRAMS))
