"""The sockets of a mount: who reaches them, what they take, what they answer; and what `status`, `explain` and the
attribute `user.policyfs.level` tell of a mount in use."""

from __future__ import annotations

import contextlib
import errno
import itertools
import json
import os
import pty
import re
import select
import shutil
import signal
import socket
import stat
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from policyfs.control import client
from policyfs.daemon import control
from policyfs.policy.paths import HostPath
from tests.mount.asked import Live, answered, ask, asking_for, connected, live, sockets
from tests.mount.harness import MODULE_DEADLINE, PATIENCE, PROGRAM, Person, absent, errno_of, mounted, myself, refused, until
from tests.mount.places import names

FAILED, USAGE, PLACE, MACHINE = 1, 2, 4, 5
"""The exit codes that `policyfs --help` documents."""

LEVEL = "user.policyfs.level"

SESSION = """
start = "/ro"
[grants]
"/ro" = "ro"
"/ro/stage" = "stage"
"/ro/hidden" = "none"
"/ro/hidden/open" = "commit"
[floors]
"/ro/stage/floored" = "ro"
"""


@pytest.fixture(scope="module")
def asking_socket(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the ask-only socket of the mount below is."""
    return tmp_path_factory.mktemp("ask") / "ask"


@pytest.fixture(scope="module")
def lively(tmp_path_factory: pytest.TempPathFactory, asking_socket: Path) -> Iterator[Live]:
    """One mount for most tests here, with an ask-only socket; a peer of either has a quarter of a second."""
    source = tmp_path_factory.mktemp("source")
    for directory in ("ro/stage/floored", "ro/hidden/open", "ro/hidden/d", "away"):
        (source / directory).mkdir(parents=True)
        (source / directory / "f").write_text("content")
    for file in ("ro/f", "ro/.env", "ro/stage/f", "ro/stage/.env"):
        (source / file).write_text("content")
    (source / "ro/link").symlink_to("stage")
    (source / "ro/to-hidden").symlink_to("hidden/d/f")
    (source / "ro/dangling").symlink_to("nothing")
    os.symlink("f/", source / "ro/slash")
    (source / "ro/file-up").symlink_to("f/../f")
    sabotage = asking_for(ask=str(asking_socket)) + "from policyfs.daemon import control\ncontrol.REQUEST_TIMEOUT = 0.25\n"
    with live(source, session=SESSION, sabotage=sabotage, deadline=MODULE_DEADLINE) as lively:
        yield lively


# -- who reaches it ------------------------------------------------------------------------------------------------------


def test_only_its_owner_can_enter_where_it_is(lively: Live, asking_socket: Path) -> None:
    """The control socket is 0600 in a directory 0700, neither of which says what it belongs to; it has no abstract name;
    the ask-only socket is 0600 too."""
    status, above = lively.socket.stat(), lively.socket.parent.stat()
    assert stat.S_ISSOCK(status.st_mode)
    assert [stat.S_IMODE(found.st_mode) for found in (status, above, asking_socket.stat())] == [0o600, 0o700, 0o600]
    assert {status.st_uid, above.st_uid} == {os.geteuid()}
    assert lively.view.source.name not in str(lively.socket)
    lines = [line for line in Path("/proc/net/unix").read_text().splitlines() if "policyfs" in line]
    assert not [line for line in lines if "@" in line.split()[-1]]


def test_it_lies_in_the_runtime_directory_and_goes_with_the_mount(source: Path) -> None:
    """Where XDG_RUNTIME_DIR is a directory the socket is there; once the view is unmounted it is gone."""
    with myself() as person:
        runtime = Path(person.environment["XDG_RUNTIME_DIR"])
        runtime.mkdir(mode=0o700)
        with mounted(source, "/=ro", person=person) as view:
            (control,) = sockets(person)
            assert control.parent == runtime / "policyfs"
            assert ask(control, do="status")["mountpoint"] == str(view.point)
        assert not control.exists()


def test_a_directory_that_others_can_enter_is_refused(source: Path) -> None:
    """Nothing is mounted where the place for the socket is open to others; the message says what to do."""
    with myself() as person:
        place = Path(person.environment["XDG_STATE_HOME"], "policyfs/run")
        place.mkdir(parents=True)
        place.chmod(0o755)
        place.parent.chmod(0o700)
        point = person.home / "view"
        point.mkdir()
        done = person.policyfs("mount", source, point, "-g", "/=ro")
        assert (done.returncode, done.stdout) == (MACHINE, "")
        assert "chmod 700" in done.stderr
        assert person.mount_at(point) is None


def test_a_home_with_a_long_path_has_one_too(source: Path) -> None:
    """A home of 90 bytes is mounted from and asked as any other."""
    with myself() as somebody:
        home = somebody.home / ("h" * 90)
        home.mkdir()
        person = Person(home)
        with mounted(source, "/=ro", person=person) as view:
            done = person.policyfs("status", "--json")
            assert [status["mountpoint"] for status in json.loads(done.stdout)] == [str(view.point)]


_CONNECT = """
import os, socket, sys
connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
try:
    connection.connect(sys.argv[1])
    try:
        connection.sendall(b'{"do": "grant", "path": "/away", "level": "commit"}\\n')
    except BrokenPipeError:
        pass
    print(connection.makefile().readline(), end="")
except OSError as error:
    print(os.strerror(error.errno))
"""


def connecting(lively: Live, *wrapper: str, first: str = "") -> str:
    """What a process behind this wrapper, or after this script, is told when it asks for a grant."""
    done = subprocess.run(
        [*wrapper, sys.executable, "-I", "-S", "-c", first + _CONNECT, str(lively.socket)],
        capture_output=True,
        text=True,
        timeout=PATIENCE,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_another_user_is_refused(lively: Live, as_root: None) -> None:
    """Who has another uid is kept out by the directory; where that and the socket stand open, by the daemon."""
    home = lively.view.person.home
    places = [place for place in (lively.socket, *lively.socket.parents) if place.is_relative_to(home)]
    modes = {place: stat.S_IMODE(place.stat().st_mode) for place in places}
    # It becomes somebody else after it has started: the interpreter may lie in root's home.
    become = (
        "import os, socket, sys\nos.setgroups([])\nos.setresgid(65534, 65534, 65534)\nos.setresuid(65534, 65534, 65534)\n"
    )
    assert connecting(lively, first=become) == os.strerror(errno.EACCES)
    try:
        for place in places:
            place.chmod(0o777)
        assert_takes_no_orders(connecting(lively, first=become))
    finally:
        for place, mode in modes.items():
            place.chmod(mode)
    assert errno_of(os.stat, lively.view.point / "away") == "EACCES"


def assert_takes_no_orders(answer: str) -> None:
    """A refusal by the daemon, which says why."""
    assert answer.startswith("{"), answer
    told = json.loads(answer)
    assert told["exit_code"] == FAILED
    assert "only from its own user, outside every sandbox" in told["fault"][0]


@pytest.mark.parametrize("options", [("-m",), ("-p", "-f"), ("-U", "-r"), ("-U",)], ids=" ".join)
def test_whoever_lives_in_another_namespace_is_refused(lively: Live, options: tuple[str, ...]) -> None:
    """The same user in a mount, pid or user namespace of their own is told that orders are not taken; nothing changes."""
    if shutil.which("unshare") is None:
        absent("no unshare here (Debian: util-linux)")
    if subprocess.run(["unshare", *options, "true"], capture_output=True, check=False).returncode != 0:
        pytest.skip(f"unshare {' '.join(options)} is forbidden here")
    assert_takes_no_orders(connecting(lively, "unshare", *options))
    assert errno_of(os.stat, lively.view.point / "away") == "EACCES"


def test_the_same_words_from_outside_are_obeyed(lively: Live) -> None:
    """What the refusals above were asked for is done for a process that lives where the daemon does."""
    assert "ok" in json.loads(connecting(lively))
    assert (lively.view.point / "away/f").exists()
    lively.revoke("/away")
    assert errno_of(os.stat, lively.view.point / "away/f") == "EACCES"


def test_a_view_never_shows_it() -> None:
    """A view of all that holds the runtime and state directories hides them, by whatever grant, live ones too."""
    with myself() as person:
        Path(person.environment["XDG_RUNTIME_DIR"]).mkdir(mode=0o700)
        (person.home / "shown").mkdir()
        with mounted(person.home, "/=commit", "/.run/policyfs=commit", person=person) as view:
            (control,) = sockets(person)
            inside = view.point / control.relative_to(person.home)
            for path in ("/.run/policyfs", "/.run/policyfs/" + control.name):
                ask(control, do="grant", path=path, level="commit")
            assert names(view.point / ".run") == []
            for place in (inside.parent, inside):
                assert errno_of(os.stat, place) == "ENOENT"
            with refused("ENOENT"):
                connected(inside)
            assert errno_of(os.mkdir, inside.parent) == "EACCES"
            assert errno_of(os.rename, view.point / "shown", inside.parent) == "EACCES"


# -- what it takes -------------------------------------------------------------------------------------------------------

NONSENSE = {
    "empty": b"",
    "an empty line": b"\n",
    "no JSON": b"status\n",
    "half of it": b'{"do": "sta',
    "no object": b'["status"]\n',
    "null": b"null\n",
    "no UTF-8": b'{"do": "\xff\xfe"}\n',
    "NUL": b"\0\0\0\n",
    "no request": b"{}\n",
    "an unknown one": b'{"do": "unmount"}\n',
    "a list for a word": b'{"do": ["status"]}\n',
    "explain nothing": b'{"do": "explain"}\n',
    "explain a text": b'{"do": "explain", "paths": "/ro"}\n',
    "explain a number": b'{"do": "explain", "paths": [1]}\n',
    "an empty path": b'{"do": "explain", "paths": [""]}\n',
    "a path with NUL": b'{"do": "explain", "paths": ["/a\\u0000b"]}\n',
    "a name too long": b'{"do": "explain", "paths": ["/' + b"n" * 256 + b'"]}\n',
    "nested deeply": b"[" * 60_000 + b"\n",
    "no text": b'{"do": "explain", "paths": ["/\\ud800"]}\n',
}
ORDERS = {
    "no path": b'{"do": "grant", "level": "ro"}\n',
    "no level": b'{"do": "grant", "path": "/away"}\n',
    "a bad level": b'{"do": "grant", "path": "/away", "level": "rw"}\n',
    "no time": b'{"do": "grant", "path": "/away", "level": "ro", "seconds": 0}\n',
    "a time before now": b'{"do": "grant", "path": "/away", "level": "ro", "seconds": -1}\n',
    "a text for a time": b'{"do": "grant", "path": "/away", "level": "ro", "seconds": "1"}\n',
    "not a number": b'{"do": "grant", "path": "/away", "level": "ro", "seconds": NaN}\n',
    "revoke nothing": b'{"do": "revoke"}\n',
    "revoke a list": b'{"do": "revoke", "path": ["/ro"]}\n',
    "reload a number": b'{"do": "reload", "session_file": 1}\n',
    "a list for a level": b'{"do": "grant", "path": "/away", "level": ["ro"]}\n',
    "a time past counting": b'{"do": "grant", "path": "/away", "level": "ro", "seconds": 1' + b"0" * 400 + b"}\n",
    "a time without end": b'{"do": "grant", "path": "/away", "level": "ro", "seconds": 1e400}\n',
}


def assert_told(answer: bytes) -> None:
    """One line that says what is wrong, with an exit code; not that the daemon failed."""
    assert answer.endswith(b"\n")
    assert answer.count(b"\n") == 1
    told = json.loads(answer)
    assert set(told) == {"fault", "exit_code"}
    assert told["exit_code"] in (FAILED, USAGE)
    assert told["fault"]
    assert all(message.isprintable() for message in told["fault"])
    assert "failed at this" not in answer.decode()


@pytest.mark.parametrize("kind", NONSENSE | ORDERS)
def test_nonsense_is_told_for_what_it_is(lively: Live, asking_socket: Path, kind: str) -> None:
    """One line for each fault, on both sockets, and nothing in the log: a socket is no way to fill it."""
    before = lively.ask(do="view")
    for at in (lively.socket, asking_socket):
        assert_told(answered(at, (NONSENSE | ORDERS)[kind]))
    assert lively.ask(do="view") == before


def test_a_request_has_a_size(lively: Live, asking_socket: Path) -> None:
    """64 KiB are taken, and a byte more is told to be too much, also where no line ends."""
    request = b'{"do": "view", "x": "%s"}\n'
    fits = request % (b"x" * ((1 << 16) - len(request) + 2))
    assert len(fits) == 1 << 16
    for at in (lively.socket, asking_socket):
        assert b'"ok"' in answered(at, fits)
        for line in (fits.replace(b'x"}', b'xx"}'), b"x" * (1 << 17), b" " * (1 << 22)):
            assert b"at most 65536 bytes" in answered(at, line)


def test_a_slow_peer_is_not_waited_for(lively: Live, asking_socket: Path) -> None:
    """Who says nothing, or half, is told so when their time is over; whoever comes meanwhile is answered at once."""
    with contextlib.ExitStack() as stack:
        slow = [stack.enter_context(connected(at)) for at in (lively.socket, asking_socket) for _ in range(3)]
        for number, connection in enumerate(slow):
            connection.sendall(b'{"do": "status"'[: number % 3 * 7])
        began = time.monotonic()
        assert lively.status()["mountpoint"] == str(lively.view.point)
        assert ask(asking_socket, do="view")
        assert time.monotonic() - began < PATIENCE
        for connection in slow:
            assert_told(connection.makefile("rb").read())


def test_a_peer_that_does_not_read_is_left(source: Path, tmp_path: Path) -> None:
    """An answer that nobody takes holds up nobody else, and ends with its connection; so does a request that is cut off.
    The mount goes on, and its log is no longer for that."""
    at = tmp_path / "ask"
    request = json.dumps({"do": "explain", "paths": ["/" + "n" * 200] * 300}).encode() + b"\n"
    with live(source, "/=ro", sabotage=asking_for(ask=str(at))) as lively:
        for place in (lively.socket, at):
            with contextlib.ExitStack() as stack:
                unread = [stack.enter_context(connected(place)) for _ in range(3)]
                for connection in unread:
                    connection.sendall(request)
                # It begins to answer, and has more to say than a socket holds.
                assert all(select.select([connection], [], [], PATIENCE)[0] for connection in unread)
                assert lively.status()["nodes"]
                for connection in unread[1:]:
                    connection.sendall(b"more")
                with connected(place) as cut:
                    cut.sendall(b'{"do": ')
            assert lively.status()["nodes"]


def test_it_answers_while_a_session_holds_many_files_open(source: Path) -> None:
    """A thousand descriptors of the session's do not keep the person from taking away what they read."""
    for number in range(1100):
        (source / f"{number}").write_text("x")
    with live(source, "/=ro") as lively:
        with contextlib.ExitStack() as stack:
            files = []
            for number in range(1100):
                files.append(os.open(lively.view.point / f"{number}", os.O_RDONLY))
                stack.callback(os.close, files[-1])
            assert lively.status()["handles"] == 1100
            lively.revoke("/")
            assert {errno_of(os.pread, file, 1, 0) for file in files} == {"EACCES"}
        until(lambda: lively.status()["handles"] == 0, "the files to be closed")


def test_no_number_of_connections_ends_the_mount(source: Path, tmp_path: Path) -> None:
    """Who may only ask can take neither the daemon's descriptors nor the person's way to it."""
    limited = "import resource\nresource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))\n"
    (source / "f").touch()
    at = tmp_path / "ask"
    with live(source, "/=ro", sabotage=limited + asking_for(ask=str(at))) as lively, contextlib.ExitStack() as stack:
        for _ in range(300):
            connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, struct.pack("@ll", 0, 300_000))
            if errno_of(connection.connect, str(at)) is not None:
                # The backlog is full and stays so: no more are taken until these have left.
                break
        assert lively.status()["nodes"]
        assert (lively.view.point / "f").read_text() == ""
        lively.revoke("/")


def test_who_asks_a_busy_daemon_waits(lively: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the daemon has no time and its backlog is full, whoever asks waits for their turn and then has their answer;
    not for ever."""
    for key, value in lively.view.person.environment.items():
        monkeypatch.setenv(key, value)
    point = HostPath(os.fsencode(lively.view.point))
    told: list[Any] = []
    waiting = threading.Thread(target=lambda: told.append(client.ask(point, {"do": "view"})))
    with contextlib.ExitStack() as stack:
        lively.view.signal(signal.SIGSTOP)
        stack.callback(lively.view.signal, signal.SIGCONT)
        before = filled(stack, lively.socket)
        waiting.start()
        with pytest.raises(TimeoutError):
            client._ask(lively.socket, {"do": "view"}, 1)
        assert not told
        lively.view.signal(signal.SIGCONT)
        for connection in before:
            connection.shutdown(socket.SHUT_WR)
            assert_told(connection.makefile("rb").read())
        waiting.join(PATIENCE)
    assert told == [lively.ask(do="view")]


def filled(stack: contextlib.ExitStack, path: Path) -> list[socket.socket]:
    """As many connections as the backlog of a socket takes."""
    taken: list[socket.socket] = []
    while True:
        connection = stack.enter_context(socket.socket(socket.AF_UNIX, socket.SOCK_STREAM))
        connection.setblocking(False)
        if errno_of(connection.connect, str(path)) == "EAGAIN":
            return taken
        connection.settimeout(PATIENCE)
        taken.append(connection)


# -- the socket that may only ask ----------------------------------------------------------------------------------------


def told_of(at: Path, *paths: str) -> list[dict[str, Any]]:
    """What a socket explains of paths."""
    explained: list[dict[str, Any]] = ask(at, do="explain", paths=list(paths))
    return explained


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
    words = ["unshare", "-m", sys.executable, "-c", script, str(Path(__file__).parents[2]), str(asking_socket)]
    done = subprocess.run(words, capture_output=True, text=True, timeout=PATIENCE, check=False)
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


# -- who asks without end ------------------------------------------------------------------------------------------------

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


def told(connection: socket.socket) -> Any:
    """The answer to a request that was sent."""
    return json.loads(connection.makefile("rb").read())["ok"]


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


# -- the attribute -------------------------------------------------------------------------------------------------------


def test_the_level_is_an_attribute(lively: Live) -> None:
    """A file, a directory and what a link leads to have it; a passage refuses, what is hidden is missing; of a link itself
    and of a fifo there is none, as Linux has it."""
    point = lively.view.point
    paths = {"ro": "ro", "ro/f": "ro", "ro/stage": "stage", "ro/link": "stage", "ro/link/floored/f": "ro"}
    paths["ro/hidden/open/f"] = "commit"
    assert {path: os.getxattr(point / path, LEVEL).decode() for path in paths} == paths
    with (point / "ro/f").open() as file:
        assert os.getxattr(file.fileno(), LEVEL) == b"ro"
    for path, code in (("", "EACCES"), ("ro/hidden", "EACCES"), ("ro/hidden/d", "EACCES"), ("ro/.env", "ENOENT")):
        assert errno_of(os.getxattr, point / path, LEVEL) == code, path
    with refused("ENODATA"):
        os.getxattr(point / "ro/link", LEVEL, follow_symlinks=False)
    with refused("ENODATA"):
        os.getxattr(point / "ro/f", LEVEL + ".")


def test_the_level_follows_a_change_at_once(lively: Live) -> None:
    """What getfattr says is the level in force."""
    file = lively.view.point / "away/f"
    for level in ("ro", "stage", "commit", "ro"):
        lively.grant("/away", level)
        assert os.getxattr(file, LEVEL).decode() == level
    lively.revoke("/away")
    assert errno_of(os.getxattr, file, LEVEL) == "EACCES"


def test_the_level_is_never_listed_set_or_removed(lively: Live) -> None:
    """No listing names it, where the source has an attribute of that name neither; setting and removing it are refused,
    as unsupported where other attributes can be set."""
    point, source = lively.view.point / "ro/stage", lively.view.source / "ro/stage"
    try:
        os.setxattr(source / "f", LEVEL, b"commit")
        os.setxattr(source / "f", "user.other", b"1")
    except OSError:
        pytest.skip("the file system of the source has no user attributes")
    assert os.listxattr(point / "f") == ["user.other"]
    assert os.getxattr(point / "f", LEVEL) == b"stage"
    for path in (point / "f", point, point.parent / "f"):
        code = "EROFS" if path == point.parent / "f" else "EOPNOTSUPP"
        assert errno_of(os.setxattr, path, LEVEL, b"commit") == code
        assert errno_of(os.removexattr, path, LEVEL) == code
    assert os.getxattr(source / "f", LEVEL) == b"commit"


def test_no_copy_carries_the_level(lively: Live, tmp_path: Path) -> None:
    """cp -a and tar --xattrs out of a view, and within it, leave it behind, and nothing complains."""
    point = lively.view.point / "ro/stage"
    outside = tmp_path / "copied"
    done = lively.view.run("cp", "-a", "f", "f2", cwd=point)
    assert (done.returncode, done.stderr) == (0, "")
    done = lively.view.run("cp", "-a", point / "floored", outside, cwd=point)
    assert (done.returncode, done.stderr) == (0, "")
    for path in (lively.view.source / "ro/stage/f2", outside, outside / "f"):
        assert LEVEL not in os.listxattr(path)


def test_getfattr_prints_it(lively: Live) -> None:
    """The tool that a person has shows the level when asked for it, and not in a dump."""
    if shutil.which("getfattr") is None:
        absent("no getfattr here (Debian: attr)")
    done = lively.view.run("getfattr", "-n", LEVEL, "--only-values", "ro/stage/f")
    assert (done.returncode, done.stdout) == (0, "stage")
    assert LEVEL not in lively.view.run("getfattr", "-d", "ro/stage/f").stdout
    done = lively.view.run("getfattr", "-n", LEVEL, "ro/.env")
    assert (done.returncode, done.stdout) == (1, "")
    assert "No such file or directory" in done.stderr


# -- the commands --------------------------------------------------------------------------------------------------------


def test_status_for_a_person(lively: Live) -> None:
    """Each view with its source, session file and what is open in it, and the numbers that tell what it is doing. No name
    is broken where nobody's terminal is that narrow."""
    done = lively.view.person.run("env", "COLUMNS=40", *PROGRAM, "status")
    assert (done.returncode, done.stderr) == (0, "")
    title, _, *lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    assert title.split() == ["view", "open", "age", "req/s", "cached", "refused", "nodes", "files"]
    assert lines[0].startswith(f"{lively.view.point} ")
    assert lines[1].startswith(f"of {lively.view.source} ")
    assert lines[2].startswith(f"by {lively.session_file} ")
    for entry in lively.ask(do="view"):
        assert re.search(f"(^| ){entry['path']}  {entry['level']}( |$)", "\n".join(lines), re.MULTILINE), entry


def test_status_counts(lively: Live) -> None:
    """Its numbers move with what is done: requests, refusals, nodes, open files."""
    before = lively.status()
    assert before["process"] == lively.view.process
    assert before["source"] == str(lively.view.source)
    assert before["session_file"] == str(lively.session_file)
    assert 0 < before["age"] < 120
    with (lively.view.point / "ro/stage/new").open("w") as file:
        file.write("x")
        for _ in range(5):
            assert errno_of(os.listdir, lively.view.point / "ro/hidden") == "EACCES"
        after = lively.status()
    assert after["handles"] == before["handles"] + 1
    assert after["nodes"] > before["nodes"]
    assert after["refusals"] >= before["refusals"] + 5
    assert after["requests"] >= before["requests"] + 7
    assert after["requests_per_second"] > 0
    until(lambda: lively.status()["handles"] == before["handles"], "the file to be closed")


def test_status_as_json(lively: Live) -> None:
    """A list of what the sockets say, of all views or of the one that is named; nothing on standard error."""
    for arguments in ((), (lively.view.point,)):
        done = lively.view.person.policyfs("status", "--json", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        (status,) = json.loads(done.stdout)
        changing = {"age", "requests", "requests_per_second", "answered_from_cache", "refusals", "nodes", "handles"}
        now = lively.status()
        assert set(status) == {*now, "detached"}
        assert status["detached"] is False
        fixed = set(now) - changing - {"watches", "invalidations", "journal"}
        assert {key: status[key] for key in fixed} == {key: now[key] for key in fixed}


def test_status_where_nothing_is_mounted(source: Path) -> None:
    """Says so; as JSON it is an empty list; a directory that is not a view is named."""
    with myself() as person:
        done = person.policyfs("status")
        assert (done.returncode, done.stdout, done.stderr) == (0, "no view is mounted\n", "")
        assert json.loads(person.policyfs("status", "--json").stdout) == []
        for words in (("status",), ("reload",), ("grant", "/a=ro"), ("revoke", "/a")):
            done = person.policyfs(words[0], source, *words[1:])
            assert (done.returncode, done.stdout) == (PLACE, "")
            lists = "`policyfs status` lists the views of this user"
            assert done.stderr == f"policyfs: {source} is not a mounted view; {lists}\n"


def test_status_goes_on_watching(lively: Live) -> None:
    """With --watch on a terminal the table is drawn again as things change, until Ctrl-C."""
    terminal, end = pty.openpty()
    try:
        watching = lively.view.person.popen(
            *PROGRAM, "status", "--watch", stdin=end, stdout=end, stderr=end, process_group=0
        )
    finally:
        os.close(end)
    seen = bytearray()

    def shows(text: bytes) -> bool:
        while select.select([terminal], [], [], 0)[0]:
            seen.extend(os.read(terminal, 1 << 16))
        return text in seen

    with watching:
        try:
            until(lambda: shows(b"/ro/stage"), "the table")
            assert not shows(b"/away")
            lively.grant("/away", "ro")
            until(lambda: shows(b"/away"), "the table drawn again")
            os.killpg(watching.pid, signal.SIGINT)
            assert watching.wait(PATIENCE) == 130
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(watching.pid, signal.SIGKILL)
            os.close(terminal)
            lively.revoke("/away")
    assert b"Traceback" not in seen
    done = lively.view.person.policyfs("status", "--watch", "--json")
    assert (done.returncode, done.stdout) == (USAGE, "")


def test_status_tells_of_a_daemon_that_was_killed(source: Path) -> None:
    """The dead mount is told of as long as it stands, with what to do; asking it says the same; after that its socket is
    cleaned away, and nothing is left."""
    with myself() as person, live(source, "/=ro", person=person) as lively:
        lively.view.kill()
        done = person.policyfs("reload", lively.view.point)
        assert done.returncode == FAILED
        point = lively.view.point
        assert done.stderr == f"policyfs: {point}: its daemon is gone; clean up with `policyfs umount {point}`\n"
        for _ in range(2):
            done = person.policyfs("status")
            assert (done.returncode, done.stdout) == (0, "")
            assert f"{lively.view.point} does not answer: its daemon is gone or stuck" in done.stderr
        assert lively.socket.exists()
        assert person.policyfs("umount", "--lazy", lively.view.point).returncode == 0
        done = person.policyfs("status")
        assert (done.stdout, done.stderr) == ("no view is mounted\n", "")
        assert not lively.socket.exists()


def test_a_mount_takes_the_place_of_a_socket_that_was_left(source: Path) -> None:
    """After kill -9 a view is mounted at the same place and asked as if nothing had been."""
    with myself() as person:
        point = person.home / "view"
        point.mkdir()
        with live(source, "/=ro", person=person, point=point) as lively:
            lively.view.kill()
            left = lively.socket
            with live(source, "/=ro", person=person, point=point) as again:
                assert again.socket == left
                assert again.status()["process"] == again.view.process


def test_names_cannot_play_with_a_terminal(tmp_path: Path) -> None:
    """A source and a grant with newlines and escapes in their names are shown as one line each, escaped."""
    source = tmp_path / "a\nof \x1b[2Jb"
    source.mkdir()
    (source / "x").mkdir()
    with mounted(source, "/x=ro", "/\x1b[31m\n  /  commit=ro") as view:
        for words in (("status",), ("reload", view.point)):
            done = view.person.run("env", "COLUMNS=250", *PROGRAM, *words)
            assert (done.returncode, done.stderr) == (0, "")
            assert "\x1b" not in done.stdout
            assert not [line for line in done.stdout.splitlines() if line.strip().startswith(("/  commit", "of b"))]
            assert "\\x1b[31m\\n  /  commit" in done.stdout


def test_explain_asks_the_view_that_is_mounted(lively: Live, tmp_path: Path) -> None:
    """For a path in a mounted view the policy in force answers, live changes and all; by a link to the mountpoint and by a
    relative path too; the session file says what it would be."""
    person, point = lively.view.person, lively.view.point
    (tmp_path / "link").symlink_to(point)

    def explained(*words: str | Path, cwd: Path | None = None) -> list[dict[str, Any]]:
        done = person.policyfs("explain", *words, "--json", cwd=cwd)
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]

    lively.grant("/away", "stage")
    try:
        told = told_of(lively.socket, "/away/f", "/ro/hidden/d", "/ro/.env")
        assert [values["level"] for values in told] == ["stage", "none", "none"]
        assert explained(point / "away/f", point / "ro/hidden/d", point / "ro/.env") == told
        assert explained(tmp_path / "link/away/f", point / "away/../ro/hidden/d") == told[:2]
        assert explained("away/f", "./ro/hidden/d", cwd=point) == told[:2]
        assert explained(point) == told_of(lively.socket, "/")
        (by_file,) = explained(lively.view.source, "/away/f", "-s", lively.session_file)
        assert by_file["level"] == "none"
        done = person.policyfs("explain", point / "away/f")
        assert done.stdout.startswith("/away/f\n  level     stage (")
        assert "  rule      grant /away = stage\n" in done.stdout
    finally:
        lively.revoke("/away")


def test_explain_of_a_view_takes_no_other_policy(lively: Live, tmp_path: Path) -> None:
    """Policy options beside a path in a mounted view are a mistake; so is a path that lies in none."""
    done = lively.view.person.policyfs("explain", lively.view.point / "ro", "-g", "/=ro")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "has its policy" in done.stderr
    done = lively.view.person.policyfs("explain", lively.view.point / "ro", tmp_path)
    assert (done.returncode, done.stdout) == (FAILED, "")
    assert done.stderr == f"policyfs: {tmp_path} is in no mounted view; ask for it apart from those that are\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/a b", "/a b is in no mounted view; for /a b of the view write `policyfs explain '{point}/a b'`"),
        ("", "PATH: empty: ``; write a path of the view, from / or from the start directory"),
        ("{point}/" + "n" * 256, "ENAMETOOLONG: Name too long: {point}/" + "n" * 256 + "; a name has at most 255 bytes"),
    ],
    ids=["of the view", "empty", "too long"],
)
def test_explain_says_how_a_path_of_a_view_is_written(lively: Live, text: str, message: str) -> None:
    """A path that is in no view, or is none at all, is told as what it is, also by itself."""
    point = str(lively.view.point)
    asked = text.replace("{point}", point)
    # By itself, a directory in no view is a SOURCE.
    for words in [[point, asked], *([] if text.startswith("/") else [[asked]])]:
        done = lively.view.person.policyfs("explain", *words)
        assert (done.returncode, done.stdout) == (FAILED, "")
        assert done.stderr == f"policyfs: {message}\n".replace("{point}", point)


def test_what_is_too_long_to_be_asked_for_is_told(lively: Live) -> None:
    """A path longer than a request: what to do is said, by every command that names one."""
    path = "/n" * 40_000
    for words in (("explain", f"{lively.view.point}{path}"), ("grant", str(lively.view.point), f"{path}=ro")):
        done = lively.view.person.policyfs(*words)
        assert (done.returncode, done.stdout) == (USAGE, "")
        assert done.stderr == "policyfs: a request is at most 65536 bytes; name fewer paths at once, or shorter ones\n"


def test_grant_and_revoke_say_what_is_open(lively: Live) -> None:
    """Both print what is open afterwards; a grant tells what keeps a path below what was granted; a time is a time."""
    person, point = lively.view.person, lively.view.point
    before = [f"  {path}" for path in ("/ro", "/ro/hidden/open", "/ro/stage", "/ro/stage/floored")]

    def paths(text: str) -> list[str]:
        return [line.rpartition("  ")[0].rstrip() for line in text.splitlines()]

    done = person.policyfs("grant", point, "/away=stage", "--for", "1h")
    assert (done.returncode, paths(done.stdout), done.stderr) == (0, ["  /away", *before], "")
    done = person.policyfs("revoke", point, "/ro/../away")
    assert (done.returncode, paths(done.stdout), done.stderr) == (0, before, "")
    done = person.policyfs("grant", point, "/ro/stage/floored=commit")
    assert done.returncode == 0
    assert done.stderr == (
        "policyfs: note: /ro/stage/floored is at ro all the same: floor /ro/stage/floored = ro (session)\n"
    )
    done = person.policyfs("grant", point, "/ro/.env=ro")
    assert "/ro/.env is at none all the same: " in done.stderr
    for words in (
        ("/away=rw",),
        ("away",),
        ("/away=ro", "--for", "0s"),
        ("/away=ro", "--for", "10"),
        ("/away=ro", "--for", "soon"),
        ("/away=ro", "--for", "-1"),
    ):
        done = person.policyfs("grant", point, *words)
        assert done.returncode in (USAGE, 3)
        assert done.stdout == ""
    assert errno_of(os.stat, point / "away") == "EACCES"
