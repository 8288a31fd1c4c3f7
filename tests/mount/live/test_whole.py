"""A change of policy is all or nothing, and changes that come together are one after the other."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.mount.asked import Fault, Live, live
from tests.mount.expecting import errno_of, until
from tests.mount.harness import TIMEOUT
from tests.mount.live.ground import opened
from tests.mount.places import names

POLICY = 3
"""The exit code of a policy that cannot be used."""

BAD = {
    "no TOML": ("[grants", 1),
    "two faults": ('[grants]\n"/" = "much"\n"x" = "ro"\nnone = 1\n', 2),
    "no UTF-8": (b'[grants]\n"/\xff" = "ro"\n', 1),
    "no grant": ("[grants]\n", 1),
    "a bad floor": ('[grants]\n"/" = "stage"\n[floors]\n"/" = 1\n', 1),
}


@pytest.mark.parametrize("way", BAD)
def test_a_bad_file_changes_nothing(lively: Live, way: str) -> None:
    """Each fault is told, with the exit code of a bad policy, and everything is as it was: names, open files, live
    grants; the command says it too."""
    content, faults = BAD[way]
    good = lively.session_file.read_bytes()
    lively.grant("/own", "stage")
    before = lively.ask(do="view")
    try:
        with opened(lively.view.point / "own/f", os.O_RDWR) as file:
            lively.session_file.write_bytes(content if isinstance(content, bytes) else content.encode())
            with pytest.raises(Fault) as caught:
                lively.reload()
            assert caught.value.exit_code == POLICY
            assert len(caught.value.messages) >= faults, caught.value
            assert way == "no grant" or all("session.toml" in message for message in caught.value.messages)
            assert os.pwrite(file, b"c", 0) == 1
            assert lively.ask(do="view") == before
        if way == "two faults":
            done = lively.view.person.policyfs("reload", lively.view.point)
            assert (done.returncode, done.stdout) == (POLICY, "")
            assert [line.removeprefix("policyfs: ") for line in done.stderr.splitlines()] == caught.value.messages
    finally:
        lively.session_file.write_bytes(good)
    lively.reload()
    assert lively.ask(do="view") == before


def test_a_grant_that_does_not_go_with_the_session(source: Path) -> None:
    """On a source that takes two spellings for one name a live grant by another spelling than the session's is told, and
    changes nothing."""
    (source / "Notes").mkdir()
    folds = "from policyfs.source.root import Root\nRoot.folds_case = lambda root: True\n"
    with live(source, "/=none", "/Notes=ro", options=["--allow-case-folding"], sabotage=folds) as lively:
        before = lively.ask(do="view")
        with pytest.raises(Fault) as caught:
            lively.grant("/NOTES", "stage")
        assert caught.value.exit_code == POLICY
        assert lively.ask(do="view") == before
        lively.grant("/Notes", "stage")


def test_rules_on_places_below_the_mountpoint(source: Path, tmp_path: Path) -> None:
    """To follow their links asks the view, which answers while it is given its session again."""
    point = tmp_path / "view"
    point.mkdir()
    floors = tmp_path / "floors.toml"
    floors.write_text(f'[floors]\n"{point}/a" = "none"\n')
    with live(source, "/=ro", options=("--floors", str(floors)), point=point) as lively:
        lively.reload()
        assert names(point) == []


def test_a_session_that_lies_in_the_view_itself(lively: Live, source: Path) -> None:
    """The daemon would wait for its own answer. So it is told, whatever leads there, and the view goes on."""
    point = lively.view.point
    (source / "link").symlink_to(point)
    (source / "session.toml").symlink_to(point / "own/f")
    for name in (point / "own/f", point / "none", source / "link/own/f", source / "session.toml"):
        done = lively.view.person.policyfs("reload", point, "-s", name)
        assert (done.returncode, "lies in this view" in done.stderr) == (POLICY, True), done.stderr
    done = lively.view.person.policyfs("reload", point, "-s", "")
    assert (done.returncode, "`` cannot be read" in done.stderr) == (POLICY, True), done.stderr
    assert os.stat(point).st_ino


def test_a_reload_goes_by_the_file_it_was_given(source: Path) -> None:
    """`reload -s` is the session from then on, for a later reload and SIGHUP too; one that is not there changes nothing."""
    for name in "ab":
        (source / name).touch()
    with live(source, session='[grants]\n"/a" = "ro"\n') as lively:
        point, other = lively.view.point, lively.session_file.with_name("other.toml")
        with pytest.raises(Fault) as caught:
            lively.reload(other)
        assert caught.value.exit_code == POLICY
        assert names_seen(point) == ["a"]
        other.write_text('[grants]\n"/b" = "ro"\n')
        done = lively.view.person.policyfs("reload", point, "-s", "other.toml", cwd=other.parent)
        assert (done.returncode, done.stdout, done.stderr) == (0, "  /b  ro\n", "")
        assert names_seen(point) == ["b"]
        lively.session_file.unlink()
        lively.reload()
        assert names_seen(point) == ["b"]
        assert lively.status()["session_file"] == str(other)
        other.write_text('[grants]\n"/" = "ro"\n')
        lively.view.signal(signal.SIGHUP)
        until(lambda: names_seen(point) == ["a", "b"], "a reload on SIGHUP")


def names_seen(directory: Path) -> list[str]:
    """Which of a and b are found in it."""
    return [name for name in "ab" if errno_of(os.stat, directory / name) is None]


def test_a_hangup_with_a_bad_file_is_logged_and_changes_nothing(source: Path) -> None:
    """SIGHUP has nobody to answer to: the log says why the policy stays as it is, and the mount goes on."""
    (source / "a").touch()
    with live(source, session='[grants]\n"/" = "ro"\n') as lively:
        lively.view.expected.append("ERROR .*the policy stays as it is: .*session.toml")
        lively.session_file.write_text("[grants")
        lively.view.signal(signal.SIGHUP)
        until(lambda: "the policy stays" in lively.view.log_text, "the complaint")
        assert names_seen(lively.view.point) == ["a"]


def test_changes_that_come_together_all_hold(source: Path) -> None:
    """None of several changes at once undoes another that is acknowledged: what was revoked stays closed beside grants and
    reloads, and what was granted open."""
    count = 12
    for number in range(count):
        (source / f"r{number}").touch()
        (source / f"g{number}").touch()
    session = '[grants]\n"/" = "ro"\n' + "".join(f'"/g{number}" = "none"\n' for number in range(count))
    with live(source, session=session) as lively:
        faults: list[BaseException] = []
        start = threading.Barrier(count * 2 + 2)

        def change(act: Callable[..., None], *arguments: str) -> None:
            try:
                start.wait(TIMEOUT)
                act(*arguments)
            except BaseException as error:
                faults.append(error)

        threads = [threading.Thread(target=change, args=(lively.reload,)) for _ in range(2)]
        for number in range(count):
            threads.append(threading.Thread(target=change, args=(lively.revoke, f"/r{number}")))
            threads.append(threading.Thread(target=change, args=(lively.grant, f"/g{number}", "ro")))
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(TIMEOUT)
        assert not faults
        assert names(lively.view.point) == sorted(f"g{number}" for number in range(count))
