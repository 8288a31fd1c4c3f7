"""A view that was detached and goes on, since somebody stands in it: told apart from one that is mounted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.mount.harness import mounted

PLACE = 4
"""The exit code of a place that cannot be used."""


def test_the_end_of_a_view_that_was_detached_leaves_the_next_one_its_socket(source: Path) -> None:
    """One that is mounted in its place meanwhile is asked and changed, before and after."""
    with mounted(source, "/=ro") as view:
        person, point = view.person, view.point
        with subprocess.Popen(["cat"], cwd=point, stdin=subprocess.PIPE) as stander:
            try:
                assert person.policyfs("umount", point, "--lazy").returncode == 0
            except BaseException:
                stander.kill()
                raise
            with mounted(source, "/=ro", point=point, person=person) as next_one:
                stander.communicate(b"")
                view.ended()
                assert person.policyfs("reload", point).returncode == 0
                (status,) = json.loads(person.policyfs("status", "--json").stdout)
                assert status["process"] == next_one.process
