"""The socket that may only ask."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import select
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from policyfs.daemon import control
from tests.mount.asked import Live, answered, asking_for, connected, live
from tests.mount.control.ground import FAILED, LEVEL, told, told_of
from tests.mount.expecting import errno_of, until
from tests.mount.harness import TIMEOUT


@pytest.mark.parametrize("do", ["status", "reload", "grant", "revoke", "", "unmount"])
def test_who_may_only_ask_changes_nothing(lively: Live, asking_socket: Path, do: str) -> None:
    """Every order, and status, which tells of SOURCE and the session file, is refused in the same words."""
    before = lively.ask(do="view")
    answer = answered(asking_socket, json.dumps({"do": do, "path": "/away", "level": "commit"}).encode() + b"\n")
    assert json.loads(answer) == {"fault": ["this socket answers explain and view, nothing else"], "exit_code": FAILED}
    assert lively.ask(do="view") == before


def test_who_may_ask_need_not_live_outside(lively: Live, asking_socket: Path) -> None:
    """In a mount namespace of its own a process is told what is open, which is what the control socket tells of it."""
    if shutil.which("unshare") is None or subprocess.run(["unshare", "-m", "true"], check=False).returncode != 0:
        pytest.skip("no mount namespace to be had here")
    script = (
        "import json, sys; sys.path.insert(0, sys.argv[1]); from tests.mount.asked import ask; from pathlib import Path; "
    )
    script += 'print(json.dumps(ask(Path(sys.argv[2]), do="view")))'
    words = ["unshare", "-m", sys.executable, "-c", script, str(Path(__file__).parents[3]), str(asking_socket)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=TIMEOUT, check=False)
    assert json.loads(done.stdout or "null") == lively.ask(do="view"), done.stderr


UNSEEN = [
    # hidden, missing: of one length, so that the answers can be compared byte for byte
    ("/ro/hidden/d/f", "/ro/nothin/d/f", "EACCES", "ENOENT"),
    ("/ro/.env", "/ro/.emv", "ENOENT", "ENOENT"),
    ("/ro/stage/.env", "/ro/stage/.emv", "ENOENT", "ENOENT"),
    ("/ro/stage/.env/x", "/ro/stage/.emv/x", "ENOENT", "ENOENT"),
    ("/ro/hidden/d", "/ro/hidden/e", "EACCES", "EACCES"),
    ("/away", "/awaz", "EACCES", "EACCES"),
    ("/away/f", "/away/g", "EACCES", "EACCES"),
    ("/ro/hidden/open/.env", "/ro/hidden/open/.emv", "ENOENT", "ENOENT"),
]


@pytest.mark.parametrize(("hidden", "missing", "first", "second"), UNSEEN, ids=[paths[0] for paths in UNSEEN])
def test_hidden_and_missing_are_told_alike(
    lively: Live, asking_socket: Path, hidden: str, missing: str, first: str, second: str
) -> None:
    """Of a path that the session does not see the answer is the file system's, to every operation; where it is the same
    for what is hidden and what is not there, so is every byte."""
    for path, code in ((hidden, first), (missing, second)):
        assert errno_of(os.stat, f"{lively.view.point}{path}") == code
        (told,) = told_of(asking_socket, path)
        assert set(told) == {"path", "look", "change", "commit"}
        text = {
            "ENOENT": f"No such file or directory: {path}",
            "EACCES": f"Access denied: {path} is not open to this session.",
        }
        assert told["look"] == told["change"] == told["commit"] == {"errno": code, "text": text[code]}
    if first == second:
        answers = [
            answered(asking_socket, json.dumps({"do": "explain", "paths": [path]}).encode() + b"\n")
            for path in (hidden, missing)
        ]
        assert answers[0].replace(hidden.encode(), missing.encode()) == answers[1]


def test_a_link_is_told_as_what_following_it_answers(lively: Live, asking_socket: Path) -> None:
    """One to what is hidden as the hidden path, here below a passage; one that dangles as what is missing."""
    for path, code, text in (
        ("/ro/to-hidden", "EACCES", "Access denied: /ro/to-hidden is not open to this session."),
        ("/ro/dangling", "ENOENT", "No such file or directory: /ro/dangling"),
    ):
        assert errno_of(os.stat, f"{lively.view.point}{path}") == code
        (told,) = told_of(asking_socket, path)
        assert told["look"] == {"errno": code, "text": text}
        assert "level" not in told


@pytest.mark.parametrize("path", ["/ro/f/x", "/ro/slash", "/ro/file-up"])
def test_what_goes_on_after_a_file_is_no_directory(lively: Live, asking_socket: Path, path: str) -> None:
    """A path below a file, and a link whose text goes on after one, are told as the file system has them."""
    assert errno_of(os.stat, f"{lively.view.point}{path}") == "ENOTDIR"
    (told,) = told_of(asking_socket, path)
    assert told["look"] == told["change"] == {"errno": "ENOTDIR", "text": f"Not a directory: {path}"}


def test_what_is_seen_is_explained_to_who_sees_it(lively: Live, asking_socket: Path) -> None:
    """Of a visible path and of a passage the session is told what the person is told; relative paths begin where the
    session starts."""
    paths = ["/ro/f", "stage/f", "/ro/stage", "/ro/stage/floored/f", "/ro/hidden/open/f", "/", "/ro/hidden", "/ro/../ro//f"]
    assert told_of(asking_socket, *paths) == told_of(lively.socket, *paths)
    assert [told.get("level") for told in told_of(asking_socket, *paths[:5])] == ["ro", "stage", "stage", "ro", "commit"]


@pytest.mark.parametrize("path", ["/ro/link/f", "/ro/link"])
def test_what_a_link_leads_to_is_explained_as_it_answers(lively: Live, asking_socket: Path, path: str) -> None:
    """Through a link the answer is that of the place it lands on, as the file system has it."""
    (told,) = told_of(asking_socket, path)
    assert told["level"] == os.getxattr(f"{lively.view.point}{path}", LEVEL).decode()


def test_a_live_change_is_what_is_explained(lively: Live, asking_socket: Path) -> None:
    """Both sockets answer by the policy that is in force now."""
    assert "level" not in told_of(asking_socket, "/away/f")[0]
    lively.grant("/away", "stage")
    assert told_of(asking_socket, "/away/f") == told_of(lively.socket, "/away/f")
    assert told_of(asking_socket, "/away/f")[0]["level"] == "stage"
    lively.revoke("/away")
    assert "level" not in told_of(asking_socket, "/away/f")[0]


_GATED = """
from policyfs.daemon import control
control.REQUEST_TIMEOUT = 60.0
seen = control.Control._seen_by_session
def noted(self, path):
    if path == b"/gate":
        open({gate!r}, "rb").read()
    with open({notes!r}, "ab") as notes:
        notes.write(path + b"\\n")
    return seen(self, path)
control.Control._seen_by_session = noted
"""
"""A daemon that notes down what it explains to who may only ask, and stands still as it comes to explain `/gate`, until
the gate has been opened and closed."""

LONG = 40 * control.PATHS_A_TURN
"""Paths of a request that takes many turns, and more than an order does."""


@dataclass
class Gated:
    """A mount with such a daemon."""

    lively: Live
    asking: Path
    gate: Path
    notes: Path

    def asked(self, *paths: str) -> socket.socket:
        """Somebody who has asked for these paths, by the socket that may only ask."""
        return sent(self.asking, do="explain", paths=paths)

    @contextlib.contextmanager
    def standing_still(self) -> Iterator[None]:
        """The daemon has come to the gate, and goes on when the body ends."""

        def opened() -> int | None:
            # ENXIO until the daemon opens it too: fifo(7).
            with contextlib.suppress(OSError):
                return os.open(self.gate, os.O_WRONLY | os.O_NONBLOCK)
            return None

        gate = until(opened, "the daemon to come to the gate")
        try:
            yield
        finally:
            os.close(gate)


def sent(at: Path, **request: Any) -> socket.socket:
    """A connection by which a request has been sent, and no answer read."""
    connection = connected(at)
    connection.sendall(json.dumps(request).encode() + b"\n")
    return connection


@pytest.fixture
def gated(source: Path, tmp_path: Path) -> Iterator[Gated]:
    """A mount whose daemon can be made to stand still while it explains."""
    (source / "f").touch()
    gate, notes, asking = (tmp_path / name for name in ("gate", "notes", "ask"))
    os.mkfifo(gate)
    sabotage = asking_for(ask=str(asking)) + _GATED.format(gate=str(gate), notes=str(notes))
    with live(source, "/=ro", sabotage=sabotage) as lively:
        yield Gated(lively, asking, gate, notes)


def test_an_order_is_carried_out_amid_a_long_answer(gated: Gated) -> None:
    """What is revoked while thousands of paths are being explained to who may only ask is revoked before they all are: the
    last are answered as closed."""
    with gated.asked("/gate", *["/f"] * LONG) as asking:
        with gated.standing_still():
            order = sent(gated.lively.socket, do="revoke", path="/")
        with order:
            assert told(order) == [{"path": "/", "level": "none"}]
        _, *answers = told(asking)
    assert len(answers) == LONG
    assert answers[0]["level"] == "ro"
    assert answers[-1]["look"] == {"errno": "EACCES", "text": "Access denied: /f is not open to this session."}


def test_one_of_those_who_may_only_ask_is_answered_at_a_time(gated: Gated) -> None:
    """The paths of one request are explained without one of another's among them."""
    requests = [[f"/{number}"] * LONG for number in range(control.MAX_ASKING_PEERS - 1)]
    with contextlib.ExitStack() as stack:
        asking = [stack.enter_context(gated.asked("/gate"))]
        with gated.standing_still():
            asking += [stack.enter_context(gated.asked(*paths)) for paths in requests]
        for connection in asking:
            assert told(connection)
    noted = gated.notes.read_text().splitlines()
    assert len(noted) == 1 + LONG * len(requests)
    assert sorted(path for path, _ in itertools.groupby(noted)) == sorted({"/gate", *(paths[0] for paths in requests)})


def test_few_of_those_who_may_only_ask_are_attended_to(gated: Gated) -> None:
    """Who comes when there are enough is answered when one of them has left; who gives orders is not concerned."""
    with contextlib.ExitStack() as stack:
        idle = [stack.enter_context(connected(gated.asking)) for _ in range(control.MAX_ASKING_PEERS)]
        further = stack.enter_context(sent(gated.asking, do="view"))
        for _ in range(20):
            assert gated.lively.status()["nodes"]
        assert not select.select([further], [], [], 0)[0]
        idle[1].close()
        assert told(further) == [{"path": "/", "level": "ro"}]
