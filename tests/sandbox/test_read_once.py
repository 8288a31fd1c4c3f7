"""One policy is opened by one reading: of the session file and the floors files, and of the mount table."""

from __future__ import annotations

import os
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.sandbox.runs import Ground

COUNTING = """
import os, sys
def note(event, arguments, names=("session.toml", "floors.toml", "mountinfo")):
    # `open` asks an opener, or the kernel itself; only os.open gives no mode.
    asked = event == "open" and isinstance(arguments[0], (str, bytes)) and os.path.basename(os.fsdecode(arguments[0]))
    if asked in names and (arguments[1] is None) == (asked != "mountinfo"):
        counted = os.open({log!r}, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        os.write(counted, ("{role} " + asked + "\\n").encode())
        os.close(counted)
sys.addaudithook(note)
"""

DAEMON = """
from policyfs.daemon import interpreter
interpreter.DAEMON = {daemon!r}
from policyfs.cli import main
main()
"""


class Counted:
    """The `policyfs` command of a person, with a count of the files that it and its daemon open."""

    def __init__(self, tree: Ground) -> None:
        self.tree = tree
        home = tree.person.home
        self.log = home / "opened"
        (home / "session.toml").write_text('[grants]\n"/" = "ro"\n"/hidden.txt" = "none"\n')
        (home / "floors.toml").write_text('[floors]\n"~/tree/yard" = "ro"\n')
        self.options = ("-s", str(home / "session.toml"), "--floors", str(home / "floors.toml"))

    def run(self, *words: str | Path) -> Counter[str]:
        """Run it, and give what was opened: `command session.toml`, `daemon mountinfo`, ..."""
        self.log.unlink(missing_ok=True)
        hook = {role: COUNTING.format(log=str(self.log), role=role) for role in ("command", "daemon")}
        daemon = (sys.executable, "-I", "-c", hook["daemon"] + "from policyfs.daemon.main import main; main()")
        program = (sys.executable, "-I", "-c", hook["command"] + DAEMON.format(daemon=daemon))
        done = self.tree.person.run(*program, *words)
        assert done.returncode == 0, done.stderr
        return Counter(self.log.read_text().splitlines())


@pytest.fixture
def counted(one_tree: Ground) -> Counted:
    return Counted(one_tree)


def test_explain(counted: Counted) -> None:
    """Where the view of SOURCE would be opened, and whether SOURCE lies in a view, is one question to the mount table."""
    opened = counted.run("explain", counted.tree.source, "/open.txt", *counted.options)
    assert opened == {"command session.toml": 1, "command floors.toml": 1, "command mountinfo": 1}


def test_mount(counted: Counted) -> None:
    """The command looks at MOUNTPOINT, the daemon reads what the policy is made of. Once mounted, the table is another: the
    daemon reads it for its own mount, and for the links that lead there."""
    point = counted.tree.person.home / "view"
    point.mkdir()
    os.chown(point, counted.tree.person.uid, -1)
    try:
        opened = counted.run("mount", counted.tree.source, point, *counted.options)
    finally:
        assert counted.tree.person.unmount(point).returncode == 0
    assert opened == {
        "command mountinfo": 1,
        "daemon session.toml": 1,
        "daemon floors.toml": 1,
        "daemon mountinfo": 3,
    }


def test_run(counted: Counted) -> None:
    """Both processes go by what the command read: what the view opens, and what stands beside it. The mount table is read
    once more at the end, when the view is cleared away."""
    opened = counted.run("run", counted.tree.source, *counted.options, "--network", "none", "--", "true")
    assert opened == {
        "command session.toml": 1,
        "command floors.toml": 1,
        "command mountinfo": 2,
        "daemon mountinfo": 3,
    }
