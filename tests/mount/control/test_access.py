"""The control socket: who reaches it."""

from __future__ import annotations

import errno
import json
import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from tests.mount.asked import Live, ask, connected, sockets
from tests.mount.control.ground import FAILED, MACHINE
from tests.mount.expecting import absent, errno_of, refused
from tests.mount.harness import TIMEOUT, Person, mounted, myself
from tests.mount.places import names


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
        timeout=TIMEOUT,
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
