"""What is mounted where."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from policyfs.host import mounts
from policyfs.host.errors import Exit, UserFault
from policyfs.host.mounts import FILE_SYSTEM_TYPE, Mount
from policyfs.opening.load import PolicyOptions, policy_for
from policyfs.policy.paths import HostPath


@pytest.mark.parametrize(("types", "inside"), [([FILE_SYSTEM_TYPE, "tmpfs"], False), (["tmpfs", FILE_SYSTEM_TYPE], True)])
def test_a_covered_view_is_not_the_one_that_is_there(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, types: list[str], inside: bool
) -> None:
    """A path leads into a view only where nothing is mounted over it, and there is a way to it."""
    point, absent = (HostPath(os.fsencode(tmp_path.resolve() / name)) for name in ("v", "absent/v"))
    table = [Mount(HostPath(b"/"), "ext4", "8:1"), *(Mount(at, kind, "0:9") for at in (point, absent) for kind in types)]
    monkeypatch.setattr(mounts, "mounts", lambda: table)
    assert mounts.in_view(HostPath(point + b"/x")) == ((point, b"/x") if inside else None)
    assert mounts.in_view(HostPath(absent + b"/x")) is None


def test_the_other_paths_to_what_a_view_shows() -> None:
    """Those of the whole of SOURCE or of a part of it, by a mount of the same device; a mount that covers SOURCE, as a
    view of it may, hides none of them."""
    table = [
        Mount(HostPath(b"/"), "btrfs", "0:30", HostPath(b"/@")),
        Mount(HostPath(b"/home"), "btrfs", "0:30", HostPath(b"/@home")),
        Mount(HostPath(b"/mnt/top"), "btrfs", "0:30"),
        Mount(HostPath(b"/keys"), "btrfs", "0:30", HostPath(b"/@home/me/.ssh/in")),
        Mount(HostPath(b"/home/other"), "ext4", "8:1", HostPath(b"/me")),
        Mount(HostPath(b"/mnt/other"), "ext4", "8:1", HostPath(b"/me/.ssh")),
        Mount(HostPath(b"/run/namespace"), "nsfs", "0:4", HostPath(b"net:[4026532281]")),
    ]

    def elsewhere(source: bytes) -> set[tuple[bytes, bytes]]:
        covered = [*table, Mount(HostPath(source), FILE_SYSTEM_TYPE, "0:99")]
        assert set(mounts.elsewhere(HostPath(source), covered)) == set(mounts.elsewhere(HostPath(source), table))
        return set(mounts.elsewhere(HostPath(source), table))

    under_home = (b"/", b"/mnt/top/@/home/me")
    """Where `/home` were, were nothing mounted on it."""
    assert elsewhere(b"/home/me") == {(b"/", b"/mnt/top/@home/me"), (b"/.ssh/in", b"/keys"), under_home}
    assert (b"/", b"/home/me") in elsewhere(b"/mnt/top/@home/me")
    assert {(b"/@home", b"/home"), (b"/@", b"/"), (b"/@home/me/.ssh/in", b"/keys")} <= elsewhere(b"/mnt/top")
    assert {(b"/", b"/home/me/.ssh/in/a"), (b"/", b"/mnt/top/@home/me/.ssh/in/a")} <= elsewhere(b"/keys/a")
    assert (b"/.ssh", b"/mnt/other") in elsewhere(b"/home/other")
    assert (b"/", b"/home/other/.ssh") in elsewhere(b"/mnt/other")
    assert elsewhere(b"/run/namespace/a") == {(b"/", b"/mnt/top/@/run/namespace/a")}


def test_where_the_file_system_of_source_is_seen() -> None:
    """By the mounts of its device that a path leads to: none that another covers, and none below a view. Which mount
    SOURCE was opened in is said by its number, where one covers it."""
    table = [
        Mount(HostPath(b"/"), "ext4", "8:1", number=1, on=0),
        Mount(HostPath(b"/home"), "btrfs", "0:30", HostPath(b"/@home"), number=2, on=1),
        Mount(HostPath(b"/mnt"), "btrfs", "0:30", number=3, on=1),
        Mount(HostPath(b"/home/me/view"), FILE_SYSTEM_TYPE, "0:99", number=4, on=2),
        Mount(HostPath(b"/home/me/view/in"), "btrfs", "0:30", number=5, on=4),
        Mount(HostPath(b"/srv/a"), "btrfs", "0:30", number=6, on=1),
        Mount(HostPath(b"/srv"), "tmpfs", "0:40", number=7, on=1),
        Mount(HostPath(b"/mnt"), "tmpfs", "0:41", number=8, on=3),
        Mount(HostPath(b"/srv/home"), "btrfs", "0:30", number=9, on=7),
    ]
    assert set(mounts.tops(HostPath(b"/home/me"), None, table)) == {b"/home", b"/srv/home"}
    assert set(mounts.tops(HostPath(b"/mnt/x"), None, table)) == {b"/mnt"}
    assert set(mounts.tops(HostPath(b"/mnt/x"), 3, table)) == {b"/home", b"/srv/home"}
    assert set(mounts.tops(HostPath(b"/home/me/view/x"), None, table)) == {b"/home/me/view"}
    assert set(mounts.tops(HostPath(b"/etc"), 77, table)) == {b"/"}
    assert mounts.tops(HostPath(b"/etc"), None, []) == (b"/",)


def test_which_places_somebody_else_answers_for() -> None:
    """A walk is of this machine alone where no server and no daemon is on the way: by the table, and nothing is touched."""
    table = [
        Mount(HostPath(b"/"), "ext4", "8:1", number=1, on=0),
        Mount(HostPath(b"/home"), "autofs", "0:30", number=2, on=1),
        Mount(HostPath(b"/home/ada"), "nfs4", "0:31", number=3, on=2),
        Mount(HostPath(b"/srv/view"), FILE_SYSTEM_TYPE, "0:32", number=4, on=1),
        Mount(HostPath(b"/srv/view/disk"), "ext4", "8:2", number=5, on=4),
    ]
    local = {b"/root": True, b"/srv": True, b"/home/bob": False, b"/home/ada/x": False, b"/srv/view/disk/x": False}
    assert {path: mounts.is_local(HostPath(path), table) for path in local} == local
    assert not mounts.is_local(HostPath(b"/root"), [])


def test_a_machine_that_does_not_tell_its_mounts(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Nothing is opened where it cannot be known what another mount shows: a chroot without /proc."""

    def absent(*_: object) -> object:
        raise FileNotFoundError(2, "No such file or directory")

    monkeypatch.setattr(mounts, "open", absent, raising=False)
    with pytest.raises(UserFault, match="mountinfo cannot be read: No such file or directory; mount /proc") as caught:
        policy_for(HostPath(bytes(tmp_path)), PolicyOptions(grants=("/=ro",)))
    assert caught.value.exit_code == Exit.MACHINE
