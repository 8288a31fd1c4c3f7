"""The ground a case is played on: a source with the case's tree, and its session in the forms a session comes in."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from policyfs.host.ways import Walk
from policyfs.opening.links import as_links_stand
from policyfs.policy.levels import LEVELS
from policyfs.policy.paths import HostPath, from_text
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.session import loads
from tests.conformance.cases import Case, Object
from tests.conformance.player import bits


@dataclass(frozen=True)
class Ground:
    """A directory of its own for one case. SOURCE, the home and the mountpoint lie side by side in it."""

    directory: Path

    @property
    def source(self) -> Path:
        """SOURCE."""
        return self.directory / "source"

    @property
    def home(self) -> Path:
        """A home that SOURCE is not in."""
        return self.directory / "home"

    @property
    def point(self) -> Path:
        """Where the view is mounted, for whom that matters."""
        return self.directory / "view"

    def text(self, written: str) -> bytes:
        """A target of a link as a case writes it."""
        return from_text(written.replace("{source}", str(self.source)))

    def on_host(self, path: str) -> bytes:
        """Where a path of the view is on the host."""
        return from_text(str(self.source) + ("" if path == "/" else path))


@contextlib.contextmanager
def laid(case: Case) -> Iterator[Ground]:
    """The ground for a case, with its tree, until the end of the body."""
    ground = Ground(Path(os.path.realpath(tempfile.mkdtemp(prefix="policyfs-case-", dir=_beneath()))))
    try:
        for directory in (ground.source, ground.home, ground.point):
            directory.mkdir()
        _lay(ground, case.tree)
        yield ground
    finally:
        shutil.rmtree(ground.directory)


@functools.cache
def _beneath() -> str:
    """A directory for temporary files that keeps user.* attributes, as the cases need it; tmpfs did not before Linux 6.6."""
    usual = tempfile.gettempdir()
    for directory in (usual, "/var/tmp"):
        with contextlib.suppress(OSError), tempfile.NamedTemporaryFile(dir=directory) as probe:
            os.setxattr(probe.name, "user.policyfs", b"")
            return directory
    return usual


def _lay(ground: Ground, tree: Mapping[str, Object]) -> None:
    """What SOURCE holds. Second names come when all first ones are there; modes, owners and times
    when everything is made."""
    for path, found in tree.items():
        place = ground.on_host(path)
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if found.kind == "directory":
            os.makedirs(place, exist_ok=True)
        elif found.kind == "file":
            with open(place, "xb") as file:
                file.write(from_text(found.value))
        elif found.kind == "link":
            os.symlink(ground.text(found.value), place)
        elif found.kind == "fifo":
            os.mkfifo(place)
    for path, found in tree.items():
        if found.kind == "hard_link":
            os.link(ground.on_host(found.value), ground.on_host(path), follow_symlinks=False)
    for path, found in tree.items():
        if found.kind in ("directory", "file", "fifo"):
            os.chmod(ground.on_host(path), bits(found.mode))
        if found.owner is not None:
            os.chown(ground.on_host(path), found.owner, -1, follow_symlinks=False)
        if found.time is not None:
            os.utime(ground.on_host(path), (found.time, found.time), follow_symlinks=False)


def after(ground: Ground, path: str) -> str | None:
    """What SOURCE holds at a path, as `source_after` says it."""
    place = ground.on_host(path)
    if not os.path.lexists(place):
        return None
    if os.path.islink(place):
        return f"a link to {os.fsdecode(os.readlink(place))}"
    if os.path.isdir(place):
        return "directory"
    with open(place, "rb") as file:
        return file.read().decode("utf-8", "surrogateescape")


def session_file(tables: Mapping[str, Any]) -> str:
    """The text of a session file with these tables."""
    lines = [f"{key} = {_toml(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += [f"[{name}]", *(f"{_toml(key)} = {_toml(value)}" for key, value in table.items())]
    return "\n".join(lines) + "\n"


def floors_files(case: Case, ground: Ground) -> list[str]:
    """The texts of floors files for a case's further floor sources. Their keys are places of the host."""
    return [
        session_file({"floors": {os.fsdecode(ground.on_host(path)): level for path, level in floors.items()}})
        for floors in case.floors
    ]


def _toml(value: Any) -> str:
    """A JSON value as TOML writes it. They differ in one character of those a session may hold: a raw DEL."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def policy_of(case: Case, ground: Ground) -> CompiledPolicy:
    """The policy of a case's session, with nothing of the machine looked at but where links of the tree lead."""
    floors = {
        f"floors {number}": {HostPath(ground.on_host(path)): LEVELS[level] for path, level in each.items()}
        for number, each in enumerate(case.floors)
    }
    surroundings = Surroundings(
        HostPath(os.fsencode(ground.source)), homes=(HostPath(os.fsencode(ground.home)),), floors=floors
    )
    session = loads(session_file(case.session), case.id)
    return CompiledPolicy(session, as_links_stand(session, surroundings, Walk()))
