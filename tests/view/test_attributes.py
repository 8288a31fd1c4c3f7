"""What a view tells of the file system and of the modes that a session may set."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from policyfs.policy.levels import Level
from policyfs.policy.paths import Name, ViewPath
from policyfs.policy.rules import Grant, Rules
from policyfs.policy.tree import Compiled, Place
from policyfs.source.tree import SOURCE, Identity
from policyfs.view.attributes import Attributes, FileSystem, settable_mode, shown, shown_file_system

MIB, GIB = 1 << 20, 1 << 30


@pytest.mark.parametrize(
    ("mode", "directory", "settable"),
    [
        (0o107777, False, 0o1777),
        (0o047777, True, 0o3777),
        (0o2755, False, 0o755),
        (0o2755, True, 0o2755),
        (0o4644, True, 0o644),
        (0o000, False, 0o000),
    ],
)
def test_the_mode_that_may_be_set(mode: int, directory: bool, settable: int) -> None:
    """The permission bits and the sticky bit; the setgid bit of a directory; nothing else of a mode."""
    assert settable_mode(mode, directory=directory) == settable


def file_system(unit: int, free: int, available: int) -> FileSystem:
    """What is told of a file system of a TiB, with so many bytes free and available."""
    size = 1 << 40
    status = os.statvfs_result((unit, unit, size // (unit or 4096), free, available, 9, 8, 7, 0, 255))
    return shown_file_system(status)


@pytest.mark.parametrize(
    ("free", "told"),
    [
        (0, 0),
        (MIB - 4096, 0),
        (MIB, MIB),
        (5 * MIB + 4096, 5 * MIB),
        (GIB - 4096, GIB - MIB),
        (GIB, GIB),
        (GIB + 500 * MIB, GIB),
        (7 * GIB - 4096, 6 * GIB),
    ],
)
def test_free_space_is_rounded_down(free: int, told: int) -> None:
    """To the GiB, or to the MiB where there is less than one, whatever the size of a block; the rest is the source's."""
    assert file_system(4096, free // 4096, 0) == FileSystem(4096, 1 << 28, told // 4096, 0, 255)
    assert file_system(4096, 0, free // 4096) == FileSystem(4096, 1 << 28, 0, told // 4096, 255)
    in_small_blocks = file_system(512, free // 512, free // 512)
    assert in_small_blocks == FileSystem(512, 1 << 31, told // 512, told // 512, 255)
    assert {type(number) for number in in_small_blocks} == {int}


def test_a_file_system_that_tells_no_size_of_a_block() -> None:
    """Is taken to have one of 4 KiB."""
    assert file_system(0, 300, 0).block_size == 4096
    assert file_system(0, 300, 0).blocks_free == 256


COMPILED = Compiled(
    Rules(
        grants=[
            Grant(ViewPath(b"/ro"), Level.RO),
            Grant(ViewPath(b"/stage"), Level.STAGE),
            Grant(ViewPath(b"/way/open"), Level.RO),
        ]
    )
)


def place(name: bytes) -> Place:
    return COMPILED.child(COMPILED.root, Name(name))


def identity(status: os.stat_result) -> Identity:
    return Identity(SOURCE, status.st_dev, status.st_ino)


def appears(name: bytes, status: os.stat_result, link_size: int | None = None) -> Attributes:
    """The attributes of an object at the place of a name."""
    return shown(place(name), identity(status), status, link_size)


def of(path: Path, **otherwise: object) -> Attributes:
    """The source's attributes of something, but for those that are otherwise."""
    status = os.lstat(path)
    return Attributes(
        identity=identity(status),
        mode=status.st_mode,
        links=status.st_nlink,
        uid=status.st_uid,
        gid=status.st_gid,
        device=0,
        size=status.st_size,
        blocks=status.st_blocks,
        access_ns=status.st_atime_ns,
        modify_ns=status.st_mtime_ns,
        change_ns=status.st_ctime_ns,
        block_size=status.st_blksize,
    )._replace(**otherwise)


def prepared(path: Path, mode: int) -> os.stat_result:
    """The status of something whose owner, group and times are told apart, as far as who runs this may."""
    if os.geteuid() == 0:
        os.chown(path, 1234, 4321)
    os.chmod(path, mode)
    os.utime(path, ns=(1_000_000_001, 2_000_000_002))
    return os.lstat(path)


def test_a_file_is_shown_as_it_is_in_the_source(source: Path) -> None:
    """But for set-id bits, and for write bits at `ro`."""
    file = source / "file"
    file.write_bytes(b"x" * 5000)
    os.link(file, source / "second")
    status = prepared(file, 0o7777)
    assert appears(b"stage", status) == of(file, mode=stat.S_IFREG | 0o1777)
    assert appears(b"ro", status) == of(file, mode=stat.S_IFREG | 0o1555)
    assert not appears(b"ro", status).is_directory
    assert not appears(b"ro", status).is_link


def test_a_directory_is_shown_without_what_counts_its_entries(source: Path) -> None:
    """One link and a constant size; the rest, its setgid bit too, is the source's, but for write bits at `ro`."""
    directory = source / "directory"
    (directory / "below").mkdir(parents=True)
    status = prepared(directory, 0o7777)
    for name, bits in ((b"stage", 0o7777), (b"ro", 0o7555)):
        attributes = appears(name, status)
        assert attributes == of(directory, mode=stat.S_IFDIR | bits, links=1, size=4096, blocks=8)
        assert attributes.is_directory


def test_a_passage_is_shown_as_nothing_but_a_way(source: Path) -> None:
    """A directory of the session's own user that can be walked through, of constant size and times."""
    directory = source / "directory"
    directory.mkdir()
    attributes = appears(b"way", prepared(directory, 0o7777))
    assert attributes == of(
        directory, mode=stat.S_IFDIR | 0o111, links=1, size=4096, blocks=8,
        uid=os.geteuid(), gid=os.getegid(), access_ns=0, modify_ns=0, change_ns=0,
    )  # fmt: skip


def test_a_link_is_shown_as_it_is(source: Path) -> None:
    """With the size of the text that the view shows, where that is another."""
    link = source / "link"
    link.symlink_to("some/text")
    for name in (b"ro", b"stage"):
        assert appears(name, os.lstat(link)) == of(link)
        assert appears(name, os.lstat(link), 0) == of(link, size=0)
        assert appears(name, os.lstat(link), 77) == of(link, size=77)
    assert appears(b"ro", os.lstat(link)).is_link
