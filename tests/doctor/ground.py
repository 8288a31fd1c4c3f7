"""What the tests of the doctor share: how it is run, and trees that it is to find things in."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

from policyfs.doctor.examine import Examination
from policyfs.opening.load import PolicyOptions, git_machine, policy_for
from policyfs.policy.paths import HostPath
from policyfs.source.root import Root
from tests.mount.forked import forked
from tests.mount.harness import PROGRAM

IDENTITY = {
    "GIT_AUTHOR_NAME": "Somebody", "GIT_AUTHOR_EMAIL": "somebody@example.invalid",
    "GIT_COMMITTER_NAME": "Somebody", "GIT_COMMITTER_EMAIL": "somebody@example.invalid",
    "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_CONFIG_NOSYSTEM": "1",
}  # fmt: skip

WITHOUT_PRIVILEGES = ("setpriv", "--bounding-set=-dac_override,-dac_read_search") if os.geteuid() == 0 else ()
"""Root without the capabilities that pass every mode, and not another user, whom a root's home at 0700 keeps from the
interpreter as well."""

Doctor = Callable[..., list[dict[str, Any]]]


def told(tree: Path, home: Path, *options: str, without: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    """What the command says, started through `without`: a command that takes privileges away."""
    environment = {**os.environ, "HOME": str(home)}
    for variable in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        environment.pop(variable, None)
    if not without:
        return forked(["doctor", str(tree), *options], environment=environment, directory=os.getcwd())
    return subprocess.run(
        [*without, *PROGRAM, "doctor", str(tree), *options],
        capture_output=True, text=True, check=False, timeout=60, env=environment, stdin=subprocess.DEVNULL,
    )  # fmt: skip


def git(tree: Path, *arguments: str) -> str:
    """Run git in the tree, with nobody's configuration."""
    done = subprocess.run(
        ["git", *arguments], cwd=tree, env={**os.environ, **IDENTITY}, check=True, capture_output=True, text=True
    )
    return done.stdout


def paths(findings: list[dict[str, Any]]) -> set[str]:
    """Where they were found."""
    return {finding["path"] for finding in findings}


def repository_with_secrets(tree: Path) -> None:
    """A repository that tracks things which a policy may hide."""
    git(tree, "init", "-q")
    (tree / "Private").mkdir()
    (tree / "Private" / "diary.txt").write_text("a secret")
    (tree / ".env").write_text("TOKEN=1")
    (tree / "open.txt").write_text("open")
    git(tree, "add", "-f", ".")
    git(tree, "commit", "-q", "-m", "everything")


def with_entries(version: int, *entries: tuple[int, bytes]) -> bytes:
    """An index as somebody who knows the format could write it: each entry's mode, and what follows its flags."""
    body = b"".join(bytes(24) + mode.to_bytes(4, "big") + bytes(32) + b"\0\0" + rest for mode, rest in entries)
    return b"DIRC" + version.to_bytes(4, "big") + len(entries).to_bytes(4, "big") + body + b"\1" * 20


FILE = 0o100644

HOSTILE = {
    "an offset without end": with_entries(4, (FILE, b"\xff" * (1 << 20))),
    "a path longer than any": with_entries(4, (FILE, b"\0" + b"x" * 5000 + b"\0")),
    "a path that grows": with_entries(4, *[(FILE, b"\0" + b"x" * 100 + b"\0")] * 100),
    "an entry of no kind": with_entries(4, (0, b"\0a\0")),
    "zeros for entries": b"DIRC\0\0\0\2\xff\xff\xff\xff" + bytes(1000) + b"\1" * 20,
}


def examined(tree: Path) -> set[tuple[str, bytes]]:
    """What is found in a tree at stage, by an examination in this process."""
    root = Root(HostPath(os.fsencode(tree)))
    try:
        policy = policy_for(root.source, PolicyOptions(grants=("/=stage",)), fold_case=False)
        findings = Examination(root, policy, git_machine(root, policy)).findings()
        return {(finding.kind.value, finding.path) for finding in findings}
    finally:
        root.close()
