"""`View(MOUNTPOINT)` (rule live-4): the API answers by the policy in force in a mount and by no other, whatever happens to
the mount or to the program that uses the API."""

from __future__ import annotations

import errno
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from policyfs import Level, Refused, UserFault, View
from policyfs.source.files import OpenFile
from tests.mount.asked import Fault, Live, ask, asking_for, connected, live
from tests.mount.expecting import until
from tests.mount.harness import TIMEOUT, mounted

SESSION = '[grants]\n"/" = "ro"\n"/own" = "stage"\n"/shut" = "none"\n'

MAX_LEASES = 32
"""As `daemon.control` has it."""


@pytest.fixture
def followed(source: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Live]:
    """A mount, and this process as a program of its owner."""
    for directory in ("own", "shut", "more"):
        (source / directory).mkdir()
        (source / directory / "f").write_text("content")
    with live(source, session=SESSION) as mount:
        as_its_owner(mount, monkeypatch)
        yield mount


def as_its_owner(mount: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """Look for the control socket where the mount's owner has it."""
    for name in [name for name in os.environ if name.startswith("XDG_")]:
        monkeypatch.delenv(name)
    for name, value in mount.view.person.environment.items():
        if name == "HOME" or name.startswith("XDG_"):
            monkeypatch.setenv(name, value)


def is_refused(act: Callable[[], Any]) -> bool:
    """Whether the policy refuses something: that it fails otherwise fails the test."""
    try:
        act()
    except Refused:
        return True
    return False


def not_connected(act: Callable[[], Any]) -> str:
    """What a view says whose mount has ended."""
    with pytest.raises(OSError, match=r".") as caught:
        act()
    assert caught.value.errno == errno.ENOTCONN
    return str(caught.value)


# -- what it follows -----------------------------------------------------------------------------------------------------


def test_it_begins_with_the_policy_in_force(followed: Live) -> None:
    """What was granted and revoked live holds in a view that is opened afterwards, and no file is read for it."""
    followed.grant("/shut", "ro")
    followed.revoke("/more")
    followed.session_file.unlink()
    with View(followed.view.point) as view:
        assert view.read_text("/shut/f") == "content"
        assert is_refused(lambda: view.read("/more/f"))
        assert view.policy.granted() == {"/": Level.RO, "/own": Level.STAGE, "/shut": Level.RO}
        assert view.policy.options.session_file == str(followed.session_file)


def test_it_follows_grants_and_revocations(followed: Live) -> None:
    """Each of the two holds in the very next call, for every kind of call."""
    with View(followed.view.point) as view:
        calls: dict[str, Callable[[], Any]] = {
            "read": lambda: view.read("/shut/f"),
            "list": lambda: view.list("/shut"),
            "stat": lambda: view.stat("/shut/f"),
            "write": lambda: view.write("/shut/f", "content"),
            "make_directory": lambda: view.make_directory("/shut/d"),
            "remove": lambda: view.remove("/shut/d"),
            "move": lambda: (view.move("/shut/f", "/shut/g"), view.move("/shut/g", "/shut/f")),
        }
        for _ in range(2):
            assert [name for name, call in calls.items() if not is_refused(call)] == []
            assert view.explain("/shut/f").level is Level.NONE
            followed.grant("/shut", "stage")
            assert [name for name, call in calls.items() if is_refused(call)] == []
            assert view.explain("/shut/f").level is Level.STAGE
            followed.revoke("/shut")


def test_it_follows_a_reload(followed: Live) -> None:
    """Another session holds in the very next call, its start directory too; what a mistake leaves in force, stays."""
    with View(followed.view.point) as view:
        followed.session_file.write_text('start = "/own"\n[grants]\n"/own" = "ro"\n')
        followed.reload()
        assert view.read_text("f") == "content"
        assert view.policy.start == "/own"
        assert is_refused(lambda: view.write("f", "x"))
        assert is_refused(lambda: view.read("/more/f"))
        followed.session_file.write_text("[grants]\n/ = rw\n")
        with pytest.raises(Fault):
            followed.reload()
        assert view.read_text("f") == "content"


def test_it_follows_the_end_of_a_grant(followed: Live) -> None:
    """A grant for a time is over here when it is over in the mount."""
    with View(followed.view.point) as view:
        followed.grant("/shut", "ro", seconds=0.5)
        assert view.read_text("/shut/f") == "content"
        until(lambda: not followed.status()["live"], "the end of the grant")
        assert is_refused(lambda: view.read("/shut/f"))


def test_it_follows_links_as_the_mount_does(followed: Live) -> None:
    """A link that says where the view is mounted leads into it."""
    (followed.view.source / "own/absolute").symlink_to(followed.view.point / "more/f")
    with View(followed.view.point) as view:
        assert view.read_text("/own/absolute") == "content"


def test_the_source_of_a_run_and_a_mountpoint_are_named_by_themselves(followed: Live, tmp_path: Path) -> None:
    """A place that is not a view, and one in a view, are told to be that."""
    with pytest.raises(UserFault, match="is not a mounted view"):
        View(tmp_path)
    with pytest.raises(UserFault, match=f"lies in the view at {followed.view.point}"):
        View(followed.view.point / "own")


# -- nothing in between --------------------------------------------------------------------------------------------------


def test_no_call_succeeds_after_revoke_has_returned(followed: Live) -> None:
    """Of 200 calls of four threads that begin after `policyfs revoke` has returned not one succeeds, though the threads had
    been at it all the time; before it, they do."""
    followed.grant("/shut", "ro")
    revoked, before = threading.Event(), threading.Semaphore(0)

    def call(view: View) -> list[bool]:
        while not revoked.is_set():
            began_before = not revoked.is_set()
            if not is_refused(lambda: view.read("/shut/f")) and began_before:
                before.release()
        return [is_refused(lambda: view.read("/shut/f")) for _ in range(50)]

    with View(followed.view.point) as view, ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(call, view) for _ in range(4)]
        try:
            for _ in range(20):
                assert before.acquire(timeout=TIMEOUT)
            done = followed.view.person.policyfs("revoke", followed.view.point, "/shut")
        finally:
            revoked.set()
        assert done.returncode == 0, done.stderr
        refusals = [refused for each in calls for refused in each.result(TIMEOUT)]
    assert refusals == [True] * 200


def test_what_is_revoked_while_it_is_read_is_not_handed_out(followed: Live, monkeypatch: pytest.MonkeyPatch) -> None:
    """A reading that was under way is judged once more before it answers, as a mount judges it."""
    followed.grant("/shut", "ro")
    read = OpenFile.read

    def read_late(file: OpenFile, offset: int, size: int) -> bytes:
        piece = read(file, offset, size)
        monkeypatch.undo()
        as_its_owner(followed, monkeypatch)
        followed.revoke("/shut")
        return piece

    with View(followed.view.point) as view:
        monkeypatch.setattr(OpenFile, "read", read_late)
        assert is_refused(lambda: view.read("/shut/f"))


SCRIPT = """
import sys
from policyfs import Refused, View
view = View(sys.argv[1])
print(view.read_text("/shut/f"), flush=True)
{before}
sys.stdin.readline()
try:
    print(view.read_text("/shut/f"))
except Refused:
    print("refused")
"""


def follower(mount: Live, before: str = "") -> subprocess.Popen[str]:
    """A program that has read something, and reads it again when it is told to."""
    process = subprocess.Popen(
        [sys.executable, "-I", "-c", SCRIPT.format(before=before), mount.view.point],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=mount.view.person.environment,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "content\n"
    return process


def test_a_program_that_is_stopped_holds_up_nobody_and_misses_nothing(followed: Live) -> None:
    """`revoke` does not wait for a program that is stopped; when it goes on, what was revoked is refused to it."""
    followed.grant("/shut", "ro")
    with follower(followed) as process:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WNOWAIT)
        began = time.monotonic()
        followed.revoke("/shut")
        took = time.monotonic() - began
        process.send_signal(signal.SIGCONT)
        assert process.communicate("go\n", TIMEOUT)[0] == "refused\n"
    assert took < TIMEOUT / 3


def test_a_follower_that_does_not_take_its_answer_holds_up_nobody(followed: Live) -> None:
    """Nor does one that asks for the policy and reads nothing of it, nor one that leaves."""
    followed.session_file.write_text(SESSION + "".join(f'"/own/{number:05}" = "ro"\n' for number in range(5000)))
    followed.reload()
    with connected(followed.socket) as silent:
        silent.sendall(b'{"do": "follow"}\n')
        with connected(followed.socket) as leaving:
            leaving.sendall(b'{"do": "follow"}\n')
        began = time.monotonic()
        followed.revoke("/more")
        assert time.monotonic() - began < TIMEOUT / 3


def test_both_sides_of_a_fork_follow(followed: Live) -> None:
    """What the parent learns is not taken from the child, nor the other way round."""
    followed.grant("/shut", "ro")
    fork = "import os\nif os.fork():\n    status = os.wait()[1]\n    sys.stdin.close(); sys.stdin = open('/dev/null')"
    with follower(followed, fork) as process:
        followed.revoke("/shut")
        # The child is told; the parent reads when the child has ended.
        assert process.communicate("go\n", TIMEOUT)[0] == "refused\nrefused\n"


# -- the end -------------------------------------------------------------------------------------------------------------


def test_after_the_end_of_the_mount_nothing_is_allowed(followed: Live) -> None:
    """Each call is ENOTCONN and says why, also where another view is mounted at the same place by then: with more open, it
    may be another session's."""
    mount = followed.view
    with View(mount.point) as view:
        assert view.read_text("/own/f") == "content"
        assert mount.unmount().returncode == 0
        mount.ended()
        calls: list[Callable[[], Any]] = [
            lambda: view.read("/own/f"),
            lambda: view.write("/own/f", "x"),
            lambda: view.list("/"),
            lambda: view.explain("/own"),
            lambda: view.policy,
        ]
        assert all("the policy of the mount cannot be known" in not_connected(call) for call in calls)
        with mounted(mount.source, "/=stage", person=mount.person, point=mount.point):
            assert all("another took its place; open a new View" in not_connected(call) for call in calls)
            with View(mount.point) as again:
                assert again.read_text("/own/f") == "content"
    with pytest.raises(ValueError, match="closed"):
        view.read("/own/f")


def test_after_a_daemon_that_was_killed_nothing_is_allowed(followed: Live) -> None:
    """Where the daemon had no time to say anything, too."""
    with View(followed.view.point) as view:
        assert view.read_text("/own/f") == "content"
        followed.view.kill()
        assert "its daemon is gone" in not_connected(lambda: view.read("/own/f"))


def test_a_source_that_is_another_directory_by_now_is_not_taken_for_the_mounts(source: Path, followed: Live) -> None:
    """The mount goes on with the directory that it opened; a view by the same name would show another."""
    source.rename(source.with_name("moved"))
    source.mkdir()
    with pytest.raises(UserFault, match="is another directory than when it was mounted"):
        View(followed.view.point)


# -- who may, and how many -----------------------------------------------------------------------------------------------


def test_many_may_follow_and_leave_room_for_orders(followed: Live) -> None:
    """So many views follow one mount and it still takes orders; one more is told so, and may come when another has left."""
    views = [View(followed.view.point) for _ in range(MAX_LEASES)]
    try:
        with pytest.raises(UserFault, match="32 programs follow this mount already"):
            View(followed.view.point)
        followed.revoke("/more")
        assert all(is_refused(lambda view=view: view.read("/more/f")) for view in views)  # type: ignore[misc]
        views.pop().close()

        def one_more() -> bool:
            try:
                views.append(View(followed.view.point))
            except UserFault:
                return False
            return True

        until(one_more, "room for another")
    finally:
        for view in views:
            view.close()


def test_who_sits_in_a_sandbox_cannot_follow(source: Path, tmp_path: Path) -> None:
    """The socket that may only ask does not give the policy, which tells of all that is hidden; nor does the other to a
    process of another mount namespace."""
    place = tmp_path / "ask"
    with live(source, "/=ro", sabotage=asking_for(ask=str(place))) as mount:
        with pytest.raises(Fault, match="answers explain and view, nothing else"):
            ask(place, do="follow")
        script = f"from policyfs import View; View({str(mount.view.point)!r})"
        done = mount.view.person.run("unshare", "--mount", sys.executable, "-I", "-c", script)
        assert "outside every sandbox" in done.stderr


def test_a_socket_that_is_closed_before_its_answer_is_asked_again(followed: Live) -> None:
    """A change of policy while a lease is told ends it; that is no end of the mount."""
    from policyfs.control import client

    asked = 0
    answer = client._asked

    def cut_off(connection: socket.socket, *arguments: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 1:
            raise ConnectionResetError(errno.ECONNRESET, "cut off")
        return answer(connection, *arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "_asked", cut_off)
        with View(followed.view.point) as view:
            assert view.read_text("/own/f") == "content"
    assert asked == 2
