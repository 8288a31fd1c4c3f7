"""Where policyfs keeps what is its own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from policyfs.daemon.start import mount_name
from policyfs.host import places
from policyfs.policy.paths import HostPath


def test_a_private_directory_is_private_from_the_first_that_is_made(tmp_path: Path) -> None:
    """A daemon has no umask; what is made on the way to a private directory is its owner's alone all the same."""
    before = os.umask(0)
    try:
        places.private_directory(tmp_path / "a" / "b" / "c")
    finally:
        os.umask(before)
    for made in ("a", "a/b", "a/b/c"):
        assert (tmp_path / made).stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("mode", [0o710, 0o705, 0o777])
def test_a_directory_that_others_enter_is_not_private(tmp_path: Path, mode: int) -> None:
    """It is refused with what to do about it, and left as it is."""
    directory = tmp_path / "open"
    directory.mkdir()
    directory.chmod(mode)
    with pytest.raises(PermissionError, match=f"chmod 700 {directory}"):
        places.private_directory(directory)
    assert directory.stat().st_mode & 0o777 == mode


def test_a_link_is_no_private_directory(tmp_path: Path) -> None:
    """A link is refused, to a private directory too: where it leads can change between the look and the use."""
    (tmp_path / "real").mkdir(mode=0o700)
    (tmp_path / "link").symlink_to("real")
    with pytest.raises(PermissionError):
        places.private_directory(tmp_path / "link")


@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ("here/link", "here/link"),
        ("here/link/..", "there"),
        ("here/link/../other", "there/other"),
        ("here/link/deep/../..", "there"),
        ("here/link/../../here/./link//", "here/link"),
        ("link/..", "there"),
        ("here/none/../x", "here/x"),
    ],
)
def test_dots_behind_a_link_lead_where_the_kernel_goes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written: str, meant: str
) -> None:
    """`..` leads up from where a link leads, of an absolute path, a relative one and one of the home; else links stay."""
    (tmp_path / "there/docs/deep").mkdir(parents=True)
    (tmp_path / "here").mkdir()
    (tmp_path / "here/link").symlink_to("../there/docs")
    (tmp_path / "link").symlink_to("there/docs")
    monkeypatch.chdir(tmp_path)
    home = HostPath(os.fsencode(tmp_path))
    for text in (written, f"{tmp_path}/{written}", f"~/{written}"):
        assert places.absolute(text, home) == os.fsencode(tmp_path / meant)
    assert places.absolute("/../" + str(tmp_path)) == home


def test_the_journal_is_named_as_the_log_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever knows a mountpoint finds its journal, whether the mount is still there or not."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    point = HostPath(b"/mnt/a \xff/view")
    assert places.journal_directory(point) == tmp_path / "policyfs" / "journal" / mount_name(point)
    assert places.journal_directory(point) != places.journal_directory(HostPath(b"/mnt/a \xfe/view"))


def test_where_no_credential_is_looked_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where views are mounted, and policyfs's code, each by its real path as well; all of it stays closed to views."""
    cache = tmp_path / "cache"
    (tmp_path / "behind").mkdir()
    cache.symlink_to("behind")
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    code, real = (HostPath(os.fsencode(above / "policyfs")) for above in (cache, tmp_path / "behind"))
    runs = HostPath(os.fsencode(places.runs_directory()))
    assert {code, real, runs} <= set(places.unwalked_places())
    assert code in places.own_places()
