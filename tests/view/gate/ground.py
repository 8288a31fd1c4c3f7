"""What the tests of the reference monitor share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from policyfs.host import mounts
from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, ViewPath
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.refusals import Refusal
from policyfs.policy.session import Session
from policyfs.source.tree import SOURCE, Identity
from policyfs.view.location import Location
from policyfs.view.monitor import ReferenceMonitor
from policyfs.view.refused import Refused

GRANTS = {
    b"/": Level.STAGE,
    b"/read": Level.RO,
    b"/hidden": Level.NONE,
    b"/way": Level.NONE,
    b"/way/open": Level.STAGE,
    b"/read/own": Level.STAGE,
    b"/named": Level.STAGE,
    b"/held": Level.STAGE,
}


def policy(source: Path, grants: dict[bytes, Level] = GRANTS) -> CompiledPolicy:
    session = Session(grants={ViewPath(path): level for path, level in grants.items()})
    return CompiledPolicy(session, Surroundings(HostPath(os.fsencode(source))))


def beside(source: HostPath, place: HostPath) -> Surroundings:
    """SOURCE with a denied place beside it."""
    return Surroundings(source, protected=(place,), tops=mounts.tops(source, None, mounts.mounts()))


def at(view: ReferenceMonitor, path: str) -> Location:
    return view.locate(ViewPath(os.fsencode(path)))


def identity(place: Path) -> Identity:
    status = os.lstat(place)
    return Identity(SOURCE, status.st_dev, status.st_ino)


class Refuses:
    """What is expected of an operation: a refusal of the policy's with its path, or an errno of the source's."""

    def __init__(self, expected: Refusal | int, path: str = "") -> None:
        self.expected, self.path = expected, path
        self._raises = pytest.raises(OSError)

    def __enter__(self) -> None:
        self._caught = self._raises.__enter__()

    def __exit__(self, *about: object) -> bool:
        if not self._raises.__exit__(*about):
            return False
        error = self._caught.value
        if isinstance(self.expected, Refusal):
            assert isinstance(error, Refused), repr(error)
            assert (error.refusal, error.path) == (self.expected, os.fsencode(self.path))
            assert (error.errno, str(error)) == (self.expected.errno, self.expected.text(ViewPath(os.fsencode(self.path))))
            # Whatever is elsewhere by now, the policy decided nothing, and no journal is to say that it did.
            assert error.absent or self.expected is not Refusal.STALE
        else:
            assert (type(error), error.args) == (
                type(OSError(self.expected, "")),
                (self.expected, os.strerror(self.expected)),
            )
        return True
