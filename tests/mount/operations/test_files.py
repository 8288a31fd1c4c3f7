"""Opening files, their times, modes, owners and extended attributes, and mappings."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import select
import stat
import subprocess
import sys

import pytest

from tests.mount.expecting import errno_of, refused
from tests.mount.operations.ground import Opened, _libc
from tests.mount.places import Place


def test_truncating_by_a_read_only_open_is_a_write(place: Place, readable: Place, opened: Opened) -> None:
    """O_RDONLY|O_TRUNC empties a file at stage and is EROFS at ro, where the content stays."""
    for where in (place, readable):
        (where.behind / "f").write_text("content")
    opened(place.inside / "f", os.O_RDONLY | os.O_TRUNC)
    assert (place.behind / "f").read_text() == ""
    with refused("EROFS"):
        os.open(readable.inside / "f", os.O_RDONLY | os.O_TRUNC)
    assert (readable.behind / "f").read_text() == "content"


def test_exclusive_creation_fails_where_the_name_is_taken(place: Place, opened: Opened) -> None:
    """O_CREAT|O_EXCL: EEXIST for a file, a directory and a link, the dangling one too; without O_EXCL the file opens."""
    (place.behind / "f").write_text("content")
    (place.behind / "d").mkdir()
    (place.behind / "l").symlink_to("nowhere")
    for name in "fdl":
        with refused("EEXIST"):
            os.open(place.inside / name, os.O_CREAT | os.O_EXCL | os.O_WRONLY)
    assert os.read(opened(place.inside / "f", os.O_CREAT | os.O_RDONLY), 100) == b"content"
    opened(place.inside / "l", os.O_CREAT | os.O_WRONLY)
    assert (place.behind / "nowhere").exists()


def test_two_creators_at_once_get_one_file(place: Place) -> None:
    """Of many processes that create exclusively, one has it."""
    won = place.shell("for i in {1..12}; do (set -C; { echo $i > f; } 2>/dev/null && echo won) & done; wait")
    assert won == "won\n"


def test_an_open_for_reading_does_not_write(place: Place, opened: Opened) -> None:
    """EBADF, as anywhere, for a write by a reader's descriptor and a read by a writer's."""
    (place.behind / "f").write_text("content")
    with refused("EBADF"):
        os.write(opened(place.inside / "f", os.O_RDONLY), b"x")
    with refused("EBADF"):
        os.read(opened(place.inside / "f", os.O_WRONLY), 1)
    with refused("EISDIR"):
        os.open(place.inside, os.O_WRONLY)
    with refused("ENOTDIR"):
        os.open(place.inside / "f", os.O_RDONLY | os.O_DIRECTORY)


def test_appending_through_one_descriptor_and_writing_through_another(place: Place, opened: Opened) -> None:
    """O_APPEND goes by the end of the file as it is now, not as it was at open."""
    appending = opened(place.inside / "f", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    writing = opened(place.inside / "f", os.O_WRONLY)
    os.write(appending, b"one")
    os.pwrite(writing, b"XXXXXX", 0)
    os.write(appending, b"two")
    assert (place.behind / "f").read_bytes() == b"XXXXXXtwo"


def test_what_others_append_in_the_source_is_appended_after(place: Place, opened: Opened) -> None:
    """A log that both sides append to loses nothing."""
    appending = opened(place.inside / "f", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.write(appending, b"in\n")
    with (place.behind / "f").open("ab") as behind:
        behind.write(b"out\n")
    os.write(appending, b"in again\n")
    assert (place.behind / "f").read_bytes() == b"in\nout\nin again\n"


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR], ids=["write", "read-write"])
@pytest.mark.parametrize("again", ["opened again", "looked at"])
def test_whole_pages_are_appended_after_what_others_append(place: Place, opened: Opened, flags: int, again: str) -> None:
    """A page that is appended is none that was mapped and is written back, whatever the daemon has seen of the file since
    the kernel was told its size."""
    for turn in range(20):
        path, behind = place.inside / f"f{turn}", place.behind / f"f{turn}"
        behind.write_bytes(b"0" * 4096)
        appending = opened(path, flags | os.O_APPEND)
        with behind.open("ab") as other:
            other.write(b"1" * 4096)
        if again == "looked at":
            os.stat(path)
        else:
            opened(path, flags | os.O_APPEND)
        os.write(appending, b"2" * 4096)
        assert behind.read_bytes()[::4096] == b"012"


def test_a_line_that_is_appended_is_not_torn_by_the_source(place: Place, opened: Opened) -> None:
    """One write is one write, across the end of a page too, while somebody else appends to the source."""
    (place.behind / "f").touch()
    script = "import os, sys\nfile = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND)\nprint('ready', flush=True)\n"
    script += "while True: os.write(file, b'o' * 999 + b'\\n')"
    other = subprocess.Popen([sys.executable, "-I", "-c", script, place.behind / "f"], stdout=subprocess.PIPE)
    try:
        assert other.stdout is not None
        assert other.stdout.readline() == b"ready\n"
        file = opened(place.inside / "f", os.O_WRONLY | os.O_APPEND)
        for _ in range(3000):
            assert os.write(file, b"i" * 999 + b"\n") == 1000
    finally:
        other.kill()
        other.communicate()
    lines = (place.behind / "f").read_bytes().splitlines()
    assert {bytes(set(line)) for line in lines} == {b"i", b"o"}
    assert {len(line) for line in lines} == {999}
    assert lines.count(b"i" * 999) == 3000


def test_append_cannot_be_switched_off_for_the_source(place: Place, opened: Opened) -> None:
    """A descriptor whose O_APPEND is set or cleared by fcntl writes where the kernel says: what lies there stays whole."""
    (place.behind / "f").write_bytes(b"AAAA")
    file = opened(place.inside / "f", os.O_RDWR)
    fcntl.fcntl(file, fcntl.F_SETFL, os.O_APPEND)
    os.write(file, b"BB")
    assert (place.behind / "f").read_bytes() == b"AAAABB"


def test_direct_writes_arrive_or_the_open_is_refused(place: Place, opened: Opened) -> None:
    """O_DIRECT of any alignment: no EIO, and the mount goes on."""
    try:
        file = opened(place.inside / "f", os.O_RDWR | os.O_CREAT | os.O_DIRECT)
    except OSError as error:
        if error.errno != errno.EINVAL:
            raise
        return
    page = mmap.mmap(-1, 8192)
    page[:] = b"D" * 8192
    assert errno_of(os.write, file, page) in (None, "EINVAL")
    assert errno_of(os.pwrite, file, b"odd", 3) in (None, "EINVAL")
    assert errno_of(os.pread, file, 100, 1) in (None, "EINVAL")
    page.close()
    assert (place.behind / "f").read_bytes()[:3] == b"DDD"


def test_a_large_file_crosses_in_both_directions(place: Place) -> None:
    """Eight mebibytes written and read in pieces of odd sizes."""
    data = os.urandom(1 << 20) * 8
    with (place.inside / "f").open("wb", buffering=0) as file:
        at = 0
        while at < len(data):
            at += file.write(data[at : at + 333_333])
    assert (place.behind / "f").read_bytes() == data
    with (place.inside / "f").open("rb", buffering=0) as file:
        file.seek(4_000_001)
        assert file.read(2_000_000) == data[4_000_001:6_000_001]
    assert (place.inside / "f").read_bytes() == data


def test_files_are_always_ready(place: Place, opened: Opened) -> None:
    """poll and select on a regular file answer at once, as for any file of a disk."""
    file = opened(place.inside / "f", os.O_RDWR | os.O_CREAT)
    assert select.select([file], [file], [], 5) == ([file], [file], [])


def test_times_are_set_now_or_left_as_they_are(place: Place) -> None:
    """UTIME_NOW is about now, UTIME_OMIT keeps the time; the directory's own times are settable too."""

    class Timespec(ctypes.Structure):
        _fields_ = (("seconds", ctypes.c_long), ("nanoseconds", ctypes.c_long))

    now, omit = (1 << 30) - 1, (1 << 30) - 2
    path = place.inside / "f"
    path.touch()
    for target in (path, place.inside):
        os.utime(target, ns=(1_000_000_001, 2_000_000_002))
        assert _libc.utimensat(-100, os.fsencode(target), (Timespec * 2)((0, omit), (0, now)), 0) == 0
        status = target.stat()
        assert status.st_atime_ns == 1_000_000_001
        assert status.st_mtime_ns > 1_700_000_000 * 10**9
        assert _libc.utimensat(-100, os.fsencode(target), (Timespec * 2)((0, now), (0, omit)), 0) == 0
        assert target.stat().st_mtime_ns == status.st_mtime_ns


def test_times_before_the_epoch_and_far_ahead(place: Place) -> None:
    """1901 and 2400 come back as they were given."""
    path = place.inside / "f"
    path.touch()
    for moment in (-2_000_000_000_123_456_789, 13_569_465_600_000_000_001):
        os.utime(path, ns=(moment, moment))
        assert path.stat().st_mtime_ns == moment
        assert (place.behind / "f").stat().st_mtime_ns == moment


def test_times_of_an_open_file(place: Place, opened: Opened) -> None:
    """futimens works on a file without a name."""
    file = opened(place.inside / "f", os.O_RDWR | os.O_CREAT)
    (place.inside / "f").unlink()
    os.utime(file, ns=(5, 6))
    assert (os.fstat(file).st_atime_ns, os.fstat(file).st_mtime_ns) == (5, 6)


def test_a_link_has_no_mode_of_its_own(place: Place) -> None:
    """chmod through a link changes its target; of the link itself EOPNOTSUPP."""
    (place.behind / "f").touch()
    (place.behind / "l").symlink_to("f")
    (place.inside / "l").chmod(0o600)
    assert stat.S_IMODE((place.behind / "f").stat().st_mode) == 0o600
    fchmodat2, nofollow = 452, 0x100
    assert _libc.syscall(fchmodat2, -100, os.fsencode(place.inside / "l"), 0o644, nofollow) == -1
    # ENOSYS is the kernel's, before Linux 6.6.
    assert ctypes.get_errno() in (errno.EOPNOTSUPP, errno.ENOSYS)
    assert stat.S_IMODE((place.behind / "f").stat().st_mode) == 0o600


def test_an_owner_is_changed_where_the_source_lets_us(place: Place, as_root: None) -> None:
    """chown and lchown by root; one of the two ids may stay."""
    (place.behind / "f").touch()
    (place.behind / "l").symlink_to("f")
    os.chown(place.inside / "f", 7, -1)
    os.chown(place.inside / "f", -1, 8)
    os.lchown(place.inside / "l", 9, 10)
    assert ((place.behind / "f").stat().st_uid, (place.behind / "f").stat().st_gid) == (7, 8)
    assert ((place.behind / "l").lstat().st_uid, (place.behind / "l").lstat().st_gid) == (9, 10)


def test_a_sticky_directory_keeps_its_bit(place: Place) -> None:
    """The sticky and setgid bits of directories are set and shown."""
    (place.inside / "d").mkdir()
    (place.inside / "d").chmod(0o3770)
    assert stat.S_IMODE((place.inside / "d").stat().st_mode) == 0o3770
    assert stat.S_IMODE((place.behind / "d").stat().st_mode) == 0o3770


def test_the_size_of_an_attribute_can_be_asked_for(place: Place) -> None:
    """A size of 0 tells how much there is; too small a buffer is ERANGE, of a value and of the list."""
    path = place.inside / "f"
    path.touch()
    os.setxattr(path, "user.long", b"v" * 300)
    os.setxattr(path, "user.b", b"")
    encoded, buffer = os.fsencode(path), ctypes.create_string_buffer(400)
    assert _libc.getxattr(encoded, b"user.long", None, 0) == 300
    assert _libc.getxattr(encoded, b"user.long", buffer, 400) == 300
    assert _libc.getxattr(encoded, b"user.long", buffer, 299) == -1
    assert ctypes.get_errno() == errno.ERANGE
    size = len(b"user.long\0user.b\0")
    assert _libc.listxattr(encoded, None, 0) == size
    assert _libc.listxattr(encoded, buffer, size) == size
    assert _libc.listxattr(encoded, buffer, size - 1) == -1
    assert ctypes.get_errno() == errno.ERANGE
    assert os.getxattr(path, "user.b") == b""


def test_only_user_attributes_pass(place: Place, as_root: None) -> None:
    """security.*, trusted.* and system.* are EOPNOTSUPP and not listed, even for root, who could set them."""
    path = place.inside / "f"
    path.touch()
    os.setxattr(place.behind / "f", "trusted.secret", b"x")
    for name in ("trusted.secret", "security.selinux", "security.capability", "system.posix_acl_access", "other.x"):
        assert errno_of(os.getxattr, path, name) in ("EOPNOTSUPP", "ENODATA"), name
        assert errno_of(os.setxattr, path, name, b"") in ("EOPNOTSUPP", "EINVAL"), name
        assert errno_of(os.removexattr, path, name) in ("EOPNOTSUPP", "ENODATA"), name
    assert os.listxattr(path) == []
    assert os.getxattr(place.behind / "f", "trusted.secret") == b"x"


def test_attributes_at_ro_are_read_and_not_changed(readable: Place) -> None:
    """EROFS for setting and removing; reading works."""
    (readable.behind / "f").touch()
    os.setxattr(readable.behind / "f", "user.a", b"value")
    assert os.getxattr(readable.inside / "f", "user.a") == b"value"
    assert os.listxattr(readable.inside / "f") == ["user.a"]
    with refused("EROFS"):
        os.setxattr(readable.inside / "f", "user.a", b"other")
    with refused("EROFS"):
        os.removexattr(readable.inside / "f", "user.a")
    assert os.getxattr(readable.behind / "f", "user.a") == b"value"


def test_a_mapping_of_a_read_only_file_is_read_and_private(readable: Place, opened: Opened) -> None:
    """MAP_PRIVATE changes stay with the process; MAP_SHARED for writing is refused, as for any read-only descriptor."""
    (readable.behind / "f").write_bytes(b"content")
    file = opened(readable.inside / "f", os.O_RDONLY)
    with mmap.mmap(file, 7, access=mmap.ACCESS_COPY) as mapping:
        mapping[0:1] = b"X"
        assert mapping[:] == b"Xontent"
    assert errno_of(lambda: mmap.mmap(file, 7, access=mmap.ACCESS_WRITE)) == "EACCES"
    assert (readable.behind / "f").read_bytes() == b"content"


def test_two_mappings_share_their_pages(place: Place, opened: Opened) -> None:
    """What one process stores another sees at once, and read(2) too."""
    (place.behind / "f").write_bytes(b"\0" * 4096)
    file = opened(place.inside / "f", os.O_RDWR)
    with mmap.mmap(file, 4096) as mapping:
        mapping[10:14] = b"here"
        said = place.python(
            """
import mmap
with open("f", "r+b") as file, mmap.mmap(file.fileno(), 0) as mapping:
    print(mapping[10:14])
    mapping[20:25] = b"there"
"""
        )
        assert said == "b'here'\n"
        assert mapping[20:25] == b"there"
        mapping.flush()
    assert (place.behind / "f").read_bytes()[10:25] == b"here" + b"\0" * 6 + b"there"


def test_a_mapping_outlives_its_descriptor_and_its_name(place: Place) -> None:
    """Stores after close and unlink go on working until the mapping ends."""
    file = os.open(place.inside / "f", os.O_RDWR | os.O_CREAT)
    os.ftruncate(file, 4096)
    mapping = mmap.mmap(file, 4096)
    os.close(file)
    (place.inside / "f").unlink()
    mapping[0:4] = b"late"
    mapping.flush()
    assert mapping[0:4] == b"late"
    mapping.close()
