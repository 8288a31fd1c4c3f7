"""What a view tells of the file system and of the modes that a session may set."""

from __future__ import annotations

import os

import pytest

from policyfs.view.attributes import FileSystem, settable_mode, shown_file_system

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
