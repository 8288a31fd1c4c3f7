"""A view that was detached and goes on, since somebody stands in it: told apart from one that is mounted."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

from tests.mount.harness import mounted

PLACE = 4
"""The exit code of a place that cannot be used."""


def test_a_view_that_was_detached_is_told_as_such(source: Path) -> None:
    """By status, and by every command that is asked for it, with how it ends; as told, it ends."""
    (source / "d").mkdir()
    with mounted(source, "/=ro") as view:
        person, point = view.person, view.point
        with subprocess.Popen(["cat"], cwd=point, stdin=subprocess.PIPE) as stander:
            try:
                assert "(detached)" not in person.policyfs("status").stdout
                assert person.policyfs("umount", point, "--lazy").returncode == 0
                assert "(detached)" in person.policyfs("status").stdout
                (status,) = json.loads(person.policyfs("status", "--json").stdout)
                assert (status["mountpoint"], status["detached"]) == (str(point), True)
                for words in (
                    ("reload", point),
                    ("status", point),
                    ("umount", point),
                    ("explain", point / "d"),
                    ("explain", point),
                    ("grant", point, "/=none"),
                    ("revoke", point, "/d"),
                ):
                    done = person.policyfs(*words)
                    assert (done.returncode, done.stdout) == (PLACE, ""), words
                    assert done.stderr == (
                        f"policyfs: {point} was detached; its daemon goes on until every process in it, or in a copy "
                        f"of the mount, leaves, or until `kill {view.process}`\n"
                    ), words
                assert not view.has_ended
                subprocess.run(["kill", str(view.process)], check=True)
                view.ended()
                assert person.policyfs("status").stdout == "no view is mounted\n"
            finally:
                stander.communicate(b"")


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
                assert (status["process"], status["detached"]) == (next_one.process, False)
