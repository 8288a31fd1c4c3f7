"""What PATH means to `grant` and `revoke`: one and the same, and never another path than was meant."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.asked import Live, live
from tests.mount.expecting import until

POLICY, PLACE = 3, 4
"""The exit codes that `policyfs --help` documents."""

WORDS = {"grant": "=stage", "revoke": ""}


@pytest.fixture
def lively(tmp_path: Path) -> Iterator[Live]:
    """A view whose session starts elsewhere than at its root."""
    source = tmp_path / "source"
    for directory in ("a", "start/a"):
        (source / directory).mkdir(parents=True)
    with live(source, session='start = "/start"\n[grants]\n"/" = "ro"\n') as lively:
        yield lively


def changed(lively: Live) -> list[str]:
    """The paths that were granted or closed while the view is mounted."""
    status = lively.status()
    return sorted({entry["path"] for entry in status["live"]} | set(status["closed"]))


@pytest.mark.parametrize("command", WORDS)
def test_a_relative_path_is_refused(lively: Live, command: str) -> None:
    """In the same words by both, and nothing is changed."""
    done = lively.view.person.policyfs(command, lively.view.point, "a" + WORDS[command])
    assert (done.returncode, done.stdout) == (POLICY, "")
    assert done.stderr.endswith("not absolute: `a`; write a path of the view, from /\n")
    assert changed(lively) == []


@pytest.mark.parametrize("command", WORDS)
def test_a_place_in_the_mountpoint_or_source_is_its_path_in_the_view(lively: Live, command: str) -> None:
    """By the mountpoint, through a link to it, and by SOURCE: there or not, it is the path that is seen there."""
    link = lively.view.person.home / "link"
    link.symlink_to(lively.view.point)
    places = [f"{lively.view.point}/a", f"{link}/b", f"{lively.view.source}/c", "/d", str(lively.view.point / "../view/e")]
    for place in places:
        assert lively.view.person.policyfs(command, lively.view.point, place + WORDS[command]).returncode == 0
    assert changed(lively) == ["/a", "/b", "/c", "/d", "/e"]


@pytest.mark.parametrize("command", WORDS)
def test_a_place_that_is_a_path_of_the_view_too_is_refused(lively: Live, command: str) -> None:
    """Where the view has that very path, or a rule for it, or all is meant, nothing is guessed; both can be said."""
    point, source = lively.view.point, lively.view.source
    (source / f"{source}/a".lstrip("/")).mkdir(parents=True)
    lively.grant(f"{point}/ruled", "ro")
    before = changed(lively)
    for place, meant in ((f"{source}/a", "/a"), (f"{point}/ruled", "/ruled"), (str(source), "/"), (str(point), "/")):
        done = lively.view.person.policyfs(command, point, place + WORDS[command])
        assert (done.returncode, done.stdout) == (PLACE, "")
        root = place.removesuffix(meant)
        assert done.stderr == (
            f"policyfs: {place} may be a path of the view, or the place on this machine of {meant} in it; "
            f"write {root}{place} for the one, {meant} for the other\n"
        )
    assert changed(lively) == before
    for said in (f"{source}{source}/a", "/a"):
        assert lively.view.person.policyfs(command, point, said + WORDS[command]).returncode == 0
    assert changed(lively) == sorted([*before, f"{source}/a", "/a"])


def test_a_path_of_a_view_of_everything(tmp_path: Path) -> None:
    """Where SOURCE is /, a place is its path in the view, but in the mountpoint, where it is the path that is seen there."""
    with live(Path("/"), f"{tmp_path}=ro") as lively:
        for place in (tmp_path / "a", f"{lively.view.point}{tmp_path}/b"):
            assert lively.view.person.policyfs("revoke", lively.view.point, place).returncode == 0
        assert changed(lively) == [f"{tmp_path}/a", f"{tmp_path}/b"]


def test_what_is_closed_is_shown(lively: Live) -> None:
    """By revoke and grant, in the table of status, and as JSON."""
    person, point = lively.view.person, lively.view.point
    assert person.policyfs("revoke", point, "/a").stdout == "  /   ro\n  /a  none\n"
    assert person.policyfs("grant", point, "/start=none").stdout == "  /       ro\n  /a      none\n  /start  none\n"
    assert person.policyfs("revoke", point, "/start").stdout == "  /   ro\n  /a  none\n"
    assert "/a  none" in person.policyfs("status", point).stdout
    (status,) = json.loads(person.policyfs("status", point, "--json").stdout)
    assert (status["closed"], status["live"]) == (["/a"], [])
    assert person.policyfs("grant", point, "/a=stage").stdout == "  /   ro\n  /a  stage\n"
    assert person.policyfs("revoke", point, "/a").stdout == "  /   ro\n  /a  none\n"


def test_a_place_in_a_view_names_it(lively: Live) -> None:
    """As for who stands in one of its directories: to every command that asks the view, and to log."""
    person, within = lively.view.person, lively.view.point / "start/a"
    assert person.policyfs("revoke", within, "/a").stdout == "  /   ro\n  /a  none\n"
    for command in ("status", "reload"):
        assert person.policyfs(command, ".", cwd=within).returncode == 0, command
    done = person.policyfs("log", ".", cwd=within)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_journal_tells_of_each_change(lively: Live) -> None:
    """What was granted, for how long where it was for a time, that it ended, what was revoked: each with its fields."""
    lively.grant("/a", "stage")
    lively.grant("/start", "none", 0.2)
    lively.revoke("/a")
    changes = ("grant", "revoke", "expire")

    def told() -> list[dict[str, str]]:
        lines = map(json.loads, lively.view.person.policyfs("log", lively.view.point, "--json").stdout.splitlines())
        own = ("seq", "time", "session", "previous")
        return [{key: line[key] for key in line if key not in own} for line in lines if line["event"] in changes]

    until(lambda: len(told()) == 4, "the end of a grant in the journal")
    assert told() == [
        {"event": "grant", "path": "/a", "level": "stage"},
        {"event": "grant", "path": "/start", "level": "none", "seconds": "0.2"},
        {"event": "revoke", "path": "/a"},
        {"event": "expire", "path": "/start"},
    ]
