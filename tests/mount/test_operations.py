"""Each handler on a real mount: the answers that conformance/ does not play because they take more than one call, a
descriptor held across something, or a system call that no tool makes."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import select
import socket
import stat
import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.harness import MODULE_DEADLINE, Mounted, errno_of, mounted, refused, until
from tests.mount.places import Place, names, place_for

NOREPLACE, EXCHANGE, WHITEOUT = 1, 2, 4
"""renameat2(2)."""

_libc = ctypes.CDLL(None, use_errno=True)

SESSION = """
[grants]
"/" = "none"
"/stage" = "stage"
"/ro" = "ro"
"/ro/open" = "stage"
"/stage/ro" = "ro"
"/stage/hidden" = "none"
"/far/away" = "ro"
"""


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """One view for all tests here, with each standing in it: /stage, /ro, hidden directories, the passage /far."""
    source = tmp_path_factory.mktemp("source")
    for name in ("stage/ro", "stage/hidden", "ro/open", "far/away", "far/hidden", "hidden"):
        (source / name).mkdir(parents=True)
        (source / name / "f").write_text(name)
    with mounted(source, session=SESSION, deadline=MODULE_DEADLINE) as view:
        yield view


@pytest.fixture
def place(view: Mounted, request: pytest.FixtureRequest) -> Place:
    """A directory at stage of this test's own."""
    return place_for(view, request, "stage")


@pytest.fixture
def readable(view: Mounted, request: pytest.FixtureRequest) -> Place:
    """A directory at ro of this test's own."""
    return place_for(view, request, "ro")


def rename2(old: Path, new: Path, flags: int) -> None:
    """renameat2(2), which Python does not offer."""
    if _libc.renameat2(-100, os.fsencode(old), -100, os.fsencode(new), flags) != 0:
        raise OSError(ctypes.get_errno(), "renameat2")


def batches(directory: int, size: int) -> Iterator[list[bytes]]:
    """The names of an open directory by getdents64(2) with a buffer of `size` bytes, a list for each call."""
    buffer = ctypes.create_string_buffer(size)
    while True:
        length = _libc.syscall(217 if os.uname().machine == "x86_64" else 61, directory, buffer, size)
        if length < 0:
            raise OSError(ctypes.get_errno(), "getdents64")
        if length == 0:
            return
        found, at = [], 0
        while at < length:
            (record,) = struct.unpack_from("=H", buffer, at + 16)
            found.append(buffer.raw[at + 19 : at + record].split(b"\0")[0])
            at += record
        yield [name for name in found if name not in (b".", b"..")]


class Opened:
    """Descriptors that are closed at the end of a test."""

    def __init__(self) -> None:
        self._descriptors: list[int] = []

    def __call__(self, path: Path | str, flags: int, mode: int = 0o666, dir_fd: int | None = None) -> int:
        descriptor = os.open(path, flags, mode, dir_fd=dir_fd)
        self._descriptors.append(descriptor)
        return descriptor

    def close(self) -> None:
        """Close them all."""
        for descriptor in self._descriptors:
            os.close(descriptor)


@pytest.fixture
def opened() -> Iterator[Opened]:
    """Open files for one test."""
    files = Opened()
    yield files
    files.close()


# -- opening -------------------------------------------------------------------------------------------------------------


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


# -- renaming ------------------------------------------------------------------------------------------------------------


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


# -- times, modes, owners ------------------------------------------------------------------------------------------------


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


# -- extended attributes -------------------------------------------------------------------------------------------------


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


# -- objects that go away ------------------------------------------------------------------------------------------------


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


# -- listing -------------------------------------------------------------------------------------------------------------


def test_a_position_that_was_given_stays_when_what_it_stood_for_is_gone(place: Place, opened: Opened) -> None:
    """telldir(3): seeking back over a removed name shifts none behind it."""
    for number in range(40):
        (place.behind / f"{number:02}").touch()
    directory = opened(place.inside, os.O_RDONLY | os.O_DIRECTORY)
    positions, found = [], []
    for batch in batches(directory, 32):
        found += batch
        positions.append(os.lseek(directory, 0, os.SEEK_CUR))
    (place.inside / os.fsdecode(found[10])).unlink()
    back = len(positions) - len(found) + 9
    os.lseek(directory, positions[back], os.SEEK_SET)
    assert next(batches(directory, 32)) == [found[11]]
    for ahead in (20, 15, 30):
        os.lseek(directory, positions[back - 9 + ahead], os.SEEK_SET)
        assert next(batches(directory, 32)) == [found[ahead + 1]]


def test_positions_stay_valid_while_entries_are_removed(place: Place, opened: Opened) -> None:
    """A listing read in small batches, with what was read removed between them, gives each name once."""
    made = {f"{number:04}".encode() for number in range(1000)}
    for name in made:
        (place.behind / os.fsdecode(name)).touch()
    directory = opened(place.inside, os.O_RDONLY | os.O_DIRECTORY)
    seen = []
    for batch in batches(directory, 512):
        seen += batch
        for name in batch:
            os.unlink(name, dir_fd=directory)
    assert sorted(seen) == sorted(made)
    assert names(place.behind) == []


def test_a_rewound_listing_shows_what_is_there_now(place: Place, opened: Opened) -> None:
    """rewinddir(3) after a change, and a seek back to an earlier position."""
    for name in "abc":
        (place.behind / name).touch()
    directory = opened(place.inside, os.O_RDONLY | os.O_DIRECTORY)
    assert sorted(os.listdir(directory)) == ["a", "b", "c"]
    assert sorted(os.listdir(directory)) == ["a", "b", "c"]
    (place.inside / "b").unlink()
    assert sorted(os.listdir(directory)) == ["a", "c"]


def test_twenty_thousand_entries(place: Place) -> None:
    """Each is listed once, with its type, and found."""
    for number in range(20_000):
        os.close(os.open(place.behind / f"entry-{number}", os.O_CREAT | os.O_WRONLY))
    with os.scandir(place.inside) as entries:
        found = {entry.name: entry.is_file(follow_symlinks=False) for entry in entries}
    assert len(found) == 20_000
    assert set(found) == {f"entry-{number}" for number in range(20_000)}
    assert all(found.values())


def test_listed_and_looked_up_numbers_and_types_agree(place: Place) -> None:
    """d_ino and d_type of each entry are those of its stat, and the number is the source's."""
    (place.behind / "f").touch()
    (place.behind / "d").mkdir()
    (place.behind / "l").symlink_to("f")
    os.mkfifo(place.behind / "p")
    with os.scandir(place.inside) as entries:
        for entry in entries:
            status = os.lstat(entry.path)
            assert entry.inode() == status.st_ino == (place.behind / entry.name).lstat().st_ino
            assert entry.is_dir(follow_symlinks=False) == stat.S_ISDIR(status.st_mode)
            assert entry.is_symlink() == stat.S_ISLNK(status.st_mode)


def test_the_root_has_the_number_of_the_source(view: Mounted) -> None:
    """stat of the mount point is stat of SOURCE."""
    assert view.point.stat().st_ino == view.source.stat().st_ino


# -- hard links ----------------------------------------------------------------------------------------------------------


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


# -- passages and hidden things ------------------------------------------------------------------------------------------


def test_a_passage_is_walked_and_not_read(view: Mounted) -> None:
    """stat shows mode 0111 and constant numbers; listing and reading attributes are EACCES; walking through works."""
    passage = view.point / "far"
    status = passage.stat()
    assert (stat.filemode(status.st_mode), status.st_nlink, status.st_size) == ("d--x--x--x", 1, 4096)
    assert (status.st_atime_ns, status.st_mtime_ns, status.st_ctime_ns) == (0, 0, 0)
    assert (status.st_uid, status.st_gid) == (os.geteuid(), os.getegid())
    for act, arguments in (
        (os.listdir, (passage,)),
        (os.listxattr, (passage,)),
        (os.chmod, (passage, 0o755)),
        (os.utime, (passage,)),
        (os.mkdir, (passage / "new",)),
        (os.rename, (passage, view.point / "other")),
        (os.rmdir, (passage,)),
        (os.stat, (passage / "hidden",)),
        (os.stat, (passage / "missing",)),
    ):
        assert errno_of(act, *arguments) == "EACCES", (act, arguments)
    assert (passage / "away/f").read_text() == "far/away"
    assert os.access(passage, os.X_OK)
    assert not os.access(passage, os.R_OK)


def test_somebody_works_in_a_passage(view: Mounted) -> None:
    """chdir and getcwd work in it, and relative names lead on."""
    done = view.python(
        "import os; os.chdir('far'); print(os.getcwd().endswith('/far'), open('away/f').read(), os.path.realpath('.')[-4:])"
    )
    assert done.stdout == "True far/away /far\n", done.stderr
    done = view.run("sh", "-c", "cd far/away && cat f && cd .. && pwd -P && cat away/f", cwd=view.point)
    assert done.stdout.split("\n") == [f"far/away{view.point}/far", "far/away"]


def test_access_tells_the_truth(view: Mounted, place: Place, readable: Place) -> None:
    """access(2): EROFS for writing at ro, EACCES for reading a passage, ENOENT for what is hidden."""

    def access(path: Path, mode: int) -> str | None:
        return None if _libc.access(os.fsencode(path), mode) == 0 else errno.errorcode[ctypes.get_errno()]

    (place.behind / "f").touch(0o600)
    (readable.behind / "f").touch(0o600)
    assert [access(place.inside / "f", mode) for mode in (os.F_OK, os.R_OK, os.W_OK)] == [None, None, None]
    assert [access(readable.inside / "f", mode) for mode in (os.F_OK, os.R_OK, os.W_OK)] == [None, None, "EROFS"]
    assert [access(view.point / "far", mode) for mode in (os.F_OK, os.R_OK, os.W_OK, os.X_OK)] == [
        None,
        "EACCES",
        "EACCES",
        None,
    ]
    assert access(view.point / "stage/hidden", os.F_OK) == "ENOENT"
    assert access(place.inside / "f", os.X_OK) == "EACCES"


def test_a_directory_with_something_hidden_in_it_is_not_empty(place: Place) -> None:
    """rmdir is ENOTEMPTY, though the listing is empty, and what is hidden stays."""
    (place.behind / "d").mkdir()
    (place.behind / "d/.env").write_text("secret")
    assert names(place.inside / "d") == []
    with refused("ENOTEMPTY"):
        (place.inside / "d").rmdir()
    place.view.run("rm", "-rf", place.inside / "d")
    assert (place.behind / "d/.env").read_text() == "secret"


# -- special files -------------------------------------------------------------------------------------------------------


def test_devices_are_hidden_and_not_made(place: Place, as_root: None) -> None:
    """A device of the source is missing in every way, its name is taken, and mknod of one is EPERM."""
    os.mknod(place.behind / "null", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
    os.mknod(place.behind / "disk", 0o666 | stat.S_IFBLK, os.makedev(7, 0))
    assert names(place.inside) == []
    for name in ("null", "disk"):
        assert errno_of(os.lstat, place.inside / name) == "ENOENT"
        assert errno_of(os.open, place.inside / name, os.O_RDONLY) == "ENOENT"
        assert errno_of(os.unlink, place.inside / name) == "ENOENT"
        assert errno_of(os.mkdir, place.inside / name) == "EACCES"
        assert errno_of(os.open, place.inside / name, os.O_CREAT | os.O_WRONLY) == "EACCES"
    for kind in (stat.S_IFCHR, stat.S_IFBLK):
        with refused("EPERM"):
            os.mknod(place.inside / "new", 0o666 | kind, os.makedev(1, 3))
    assert names(place.behind) == ["disk", "null"]


def test_fifos_and_sockets_pass_where_writing_does(place: Place, readable: Place) -> None:
    """Made at stage, EROFS at ro; those of the source are shown with their kind, and opening a fifo reaches no daemon."""
    os.mkfifo(place.inside / "p", 0o640)
    os.mknod(place.inside / "s", stat.S_IFSOCK | 0o600)
    assert stat.S_ISFIFO((place.behind / "p").lstat().st_mode)
    assert stat.S_ISSOCK((place.behind / "s").lstat().st_mode)
    with refused("EROFS"):
        os.mkfifo(readable.inside / "p")
    with socket.socket(socket.AF_UNIX) as server, refused("EROFS"):
        server.bind(str(readable.inside / "s"))
    os.mkfifo(readable.behind / "there")
    assert stat.S_ISFIFO((readable.inside / "there").lstat().st_mode)
    reader = os.open(place.inside / "p", os.O_RDONLY | os.O_NONBLOCK)
    writer = os.open(place.inside / "p", os.O_WRONLY | os.O_NONBLOCK)
    os.write(writer, b"through the kernel")
    assert os.read(reader, 100) == b"through the kernel"
    os.close(reader)
    os.close(writer)


def test_mknod_makes_a_regular_file(place: Place) -> None:
    """As some programs do."""
    os.mknod(place.inside / "f", 0o640 | stat.S_IFREG)
    assert (place.behind / "f").read_bytes() == b""
    assert stat.S_IMODE((place.behind / "f").stat().st_mode) == 0o640 & ~_umask()


def _umask() -> int:
    current = os.umask(0o022)
    os.umask(current)
    return current


# -- mappings ------------------------------------------------------------------------------------------------------------


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
