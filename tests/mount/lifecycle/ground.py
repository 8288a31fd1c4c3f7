"""What the tests of a mount's life share."""

from __future__ import annotations

import functools
import subprocess

from tests.mount import harness

mounted = functools.partial(harness.mounted, fresh=True)
"""The command and the daemon as a person starts them."""

DONE, FAILED, USAGE, POLICY, PLACE, MACHINE = range(6)
"""The exit codes that `policyfs --help` documents, by number: scripts compare numbers."""


def assert_refused(done: subprocess.CompletedProcess[str], code: int, *words: str, lines: int = 1) -> None:
    """The command ended with this code, one line on standard error for each fault, and no traceback."""
    assert (done.returncode, done.stdout) == (code, ""), done.stderr
    said = done.stderr.splitlines()
    assert len(said) == lines, done.stderr
    assert all(line.startswith("policyfs: ") for line in said), done.stderr
    for word in words:
        assert word in done.stderr
