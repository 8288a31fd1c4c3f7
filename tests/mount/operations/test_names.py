"""Renaming, removing and hard links."""

from __future__ import annotations

import ctypes
import os
import stat
from pathlib import Path

import pytest

from tests.mount.expecting import refused, until
from tests.mount.harness import Mounted
from tests.mount.operations.ground import Opened, _libc
from tests.mount.places import Place, names

NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
"""renameat2(2)."""


def rename2(old: Path, new: Path, flags: int) -> None:
    """renameat2(2), which Python does not offer."""
    if _libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def test_noreplace_replaces_nothing(place: Place) -> None:
    """RENAME_NOREPLACE is EEXIST on a taken name and a rename on a free one."""
    (place.behind / "a").write_text("a")
    (place.behind / "b").write_text("b")
    with refused("EEXIST"):
        rename2(place.inside / "a", place.inside / "b", NOREPLACE)
    rename2(place.inside / "a", place.inside / "c", NOREPLACE)
    assert {name: (place.behind / name).read_text() for name in names(place.behind)} == {"b": "b", "c": "a"}


def test_exchange_swaps_a_file_and_a_directory(place: Place) -> None:
    """RENAME_EXCHANGE; what was known under either name is right at once."""
    (place.behind / "a").write_text("a")
    (place.behind / "b/c").mkdir(parents=True)
    assert (place.inside / "a").is_file()
    assert (place.inside / "b/c").is_dir()
    rename2(place.inside / "a", place.inside / "b", EXCHANGE)
    assert (place.inside / "b").read_text() == "a"
    assert names(place.inside / "a") == ["c"]
    assert names(place.behind / "a") == ["c"]
    with refused("ENOENT"):
        rename2(place.inside / "a", place.inside / "missing", EXCHANGE)


def test_open_files_follow_an_exchange(place: Place, opened: Opened) -> None:
    """Descriptors stay with their files, by content, size, mode and times."""
    (place.behind / "a").write_text("a")
    (place.behind / "b").write_text("bb")
    a, b = opened(place.inside / "a", os.O_RDWR), opened(place.inside / "b", os.O_RDWR)
    rename2(place.inside / "a", place.inside / "b", EXCHANGE)
    assert (os.pread(a, 9, 0), os.pread(b, 9, 0)) == (b"a", b"bb")
    os.fchmod(a, 0o600)
    os.ftruncate(b, 0)
    assert stat.S_IMODE((place.behind / "b").stat().st_mode) == 0o600
    assert (place.behind / "a").stat().st_size == 0


def test_a_whiteout_is_not_made(place: Place) -> None:
    """RENAME_WHITEOUT would leave a device (rule move-6): EINVAL, alone and with other flags, and the name stays."""
    (place.behind / "a").write_text("a")
    for flags in (WHITEOUT, WHITEOUT | NOREPLACE, NOREPLACE | EXCHANGE, 8):
        with refused("EINVAL"):
            rename2(place.inside / "a", place.inside / "b", flags)
    assert names(place.behind) == ["a"]


def test_a_renamed_directory_takes_its_files_along(place: Place, opened: Opened) -> None:
    """What is open below it, and known by name below it, goes on under the new name."""
    (place.behind / "old/deep").mkdir(parents=True)
    (place.behind / "old/deep/f").write_text("content")
    file = opened(place.inside / "old/deep/f", os.O_RDWR)
    inner = opened(place.inside / "old/deep", os.O_RDONLY | os.O_DIRECTORY)
    (place.inside / "old").rename(place.inside / "new")
    assert (place.inside / "new/deep/f").read_text() == "content"
    assert os.listdir(inner) == ["f"]
    os.write(file, b"CON")
    os.fchmod(file, 0o600)
    os.close(os.open("g", os.O_CREAT | os.O_WRONLY, dir_fd=inner))
    assert (place.behind / "new/deep/f").read_text() == "CONtent"
    assert names(place.behind / "new/deep") == ["f", "g"]
    assert not (place.inside / "old").exists()


def test_the_working_directory_follows_a_rename(place: Place) -> None:
    """getcwd tells the new path, and relative names go on working."""
    said = place.python(
        """
import os
os.makedirs("a/b"); os.chdir("a/b")
os.rename("../../a", "../../c")
print(os.getcwd().endswith("/c/b")); open("f", "w").write("x"); print(os.listdir(".."))
"""
    )
    assert said == "True\n['b']\n"


@pytest.mark.parametrize("way", ["unlink", "rename over"])
def test_a_removed_file_that_is_still_referenced_can_be_opened(place: Place, opened: Opened, way: str) -> None:
    """A file that somebody reached before its name went away (here by O_PATH, in a race between lookup and open) is opened
    and looked at as on any file system."""
    (place.inside / "f").write_text("content")
    (place.inside / "g").write_text("other")
    reached = opened(place.inside / "f", os.O_PATH)
    if way == "unlink":
        (place.inside / "f").unlink()
    else:
        (place.inside / "g").rename(place.inside / "f")
    assert (os.fstat(reached).st_size, os.fstat(reached).st_nlink) == (7, 0)
    assert os.read(opened(f"/proc/self/fd/{reached}", os.O_RDONLY), 100) == b"content"


def test_an_open_file_lives_on_when_the_source_removes_it(place: Place, opened: Opened) -> None:
    """fstat, ftruncate, read, write, fchmod and futimens through a descriptor whose name went away behind the mount."""
    (place.behind / "f").write_text("content")
    file = opened(place.inside / "f", os.O_RDWR)
    (place.behind / "f").unlink()
    os.pwrite(file, b"C", 0)
    os.ftruncate(file, 4)
    os.fchmod(file, 0o600)
    os.utime(file, ns=(1, 2))
    status = os.fstat(file)
    assert (status.st_size, status.st_nlink, stat.S_IMODE(status.st_mode), status.st_mtime_ns) == (4, 0, 0o600, 2)
    assert os.pread(file, 10, 0) == b"Cont"


def test_an_open_file_lives_on_when_the_source_renames_over_it(place: Place, opened: Opened) -> None:
    """The descriptor keeps the old file, the name leads to the new one."""
    (place.behind / "f").write_text("old")
    file = opened(place.inside / "f", os.O_RDWR)
    (place.behind / "g").write_text("new one")
    (place.behind / "g").rename(place.behind / "f")
    os.fchmod(file, 0o600)
    assert (os.pread(file, 10, 0), os.fstat(file).st_nlink) == (b"old", 0)
    until(lambda: (place.inside / "f").read_text() == "new one", "the new file under the name", 4)
    assert stat.S_IMODE((place.behind / "f").stat().st_mode) != 0o600


def test_a_node_that_moved_away_is_stale_and_not_missing(place: Place, opened: Opened) -> None:
    """A directory known by its descriptor, whose name leads elsewhere in the source, answers ESTALE: a reader that
    took ENOENT for an answer would take the thing for gone."""
    (place.behind / "d").mkdir()
    (place.behind / "d/f").write_text("x")
    directory = opened(place.inside / "d", os.O_PATH | os.O_DIRECTORY)
    (place.behind / "d").rename(place.behind / "elsewhere")
    with refused("ESTALE"):
        os.open(".", os.O_RDONLY | os.O_DIRECTORY, dir_fd=directory)


def test_a_name_that_comes_back_is_another_object(place: Place) -> None:
    """A file removed and made again in the source, with a used inode number perhaps, shows its own content."""
    path = place.behind / "f"
    for number in range(20):
        path.write_text(f"content {number}")
        until(lambda: (place.inside / "f").exists(), "the name", 4)
        assert (place.inside / "f").read_text() == f"content {number}"
        (place.inside / "f").unlink()


def test_a_directory_removed_while_somebody_stands_in_it(place: Place) -> None:
    """ENOENT for names in it and for its own path; a listing of it finds nothing or is ESTALE."""
    said = place.python(
        """
import errno, os
os.mkdir("d"); os.chdir("d"); os.rmdir("../d")
for act in (lambda: open("f", "w"), lambda: os.mkdir("e"), os.getcwd, lambda: os.listdir(".")):
    try:
        print(act())
    except OSError as error:
        print(errno.errorcode[error.errno])
"""
    ).split()
    assert said[:3] == ["ENOENT", "ENOENT", "ENOENT"]
    assert said[3] in ("[]", "ESTALE")


def test_names_at_one_level_share_a_number_and_at_two_they_do_not(view: Mounted, place: Place) -> None:
    """A file with names at stage, stage and ro: two names are one file, the third is another with the same content."""
    (place.behind / "a").write_text("content")
    (place.behind / "b").hardlink_to(place.behind / "a")
    (view.source / "stage/ro/c").hardlink_to(place.behind / "a")
    third = view.point / "stage/ro/c"
    assert (place.inside / "a").stat().st_ino == (place.inside / "b").stat().st_ino
    assert third.stat().st_ino != (place.inside / "a").stat().st_ino
    assert third.read_text() == "content"
    (place.inside / "a").write_text("changed")
    with refused("EROFS"):
        third.write_text("other")
    assert third.stat().st_mode & 0o222 == 0
    assert (place.inside / "b").stat().st_mode & 0o200
    until(lambda: third.read_text() == "changed", "the change under the other level's name", 4)


def test_a_second_name_at_another_level_is_not_made(view: Mounted, place: Place) -> None:
    """link(2) and rename(2) between levels are EXDEV, so that ln falls back or fails and mv copies."""
    (view.source / "ro/open/f").write_text("x")
    (place.behind / "f").write_text("x")
    (view.source / "stage/ro/g").write_text("x")
    with refused("EXDEV"):
        os.link(view.point / "stage/ro/g", place.inside / "h")
    assert names(place.behind) == ["f"]
