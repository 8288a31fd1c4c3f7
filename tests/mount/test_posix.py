"""What ordinary programs need of a file system, on a view at stage. All of it holds on a plain ext4 directory."""

from __future__ import annotations

import contextlib
import fcntl
import mmap
import os
import shutil
import socket
import stat
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.mount.expecting import errno_of, refused, until
from tests.mount.harness import MODULE_DEADLINE, Mounted, mounted
from tests.mount.places import Place, names, place_for


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """One view at stage for all tests here."""
    with mounted(tmp_path_factory.mktemp("source"), "/=stage", deadline=MODULE_DEADLINE) as view:
        yield view


@pytest.fixture
def place(view: Mounted, request: pytest.FixtureRequest) -> Place:
    """A directory of this test's own."""
    return place_for(view, request)


@contextlib.contextmanager
def opened(path: Path, flags: int, mode: int = 0o666) -> Iterator[int]:
    """A descriptor of a file, closed in the end."""
    descriptor = os.open(path, flags, mode)
    try:
        yield descriptor
    finally:
        os.close(descriptor)


def mode_of(path: Path) -> int:
    """The permission bits."""
    return stat.S_IMODE(path.stat().st_mode)


# -- open files and their names ------------------------------------------------------------------------------------------


def test_a_reader_that_races_rename_over_never_misses_the_name(place: Place) -> None:
    """git and editors save by renaming over: whoever opens the name meanwhile finds the old file or the new one."""
    (place.inside / "index").write_text("0")
    writer = subprocess.Popen(
        ["bash", "-c", "for i in {1..400}; do echo $i > lock; mv -f lock index; done"], cwd=place.inside
    )
    opens = 0
    while writer.poll() is None:
        with opened(place.inside / "index", os.O_RDONLY) as index:
            assert os.fstat(index).st_size >= 1
        opens += 1
    assert writer.returncode == 0
    assert opens > 50


def test_an_unlinked_file_lives_on_in_its_descriptor(place: Place) -> None:
    """A file without a name is written, measured, cut, synced, given another mode and times, and read again."""
    path = place.inside / "f"
    with opened(path, os.O_RDWR | os.O_CREAT, 0o600) as file, opened(path, os.O_WRONLY | os.O_APPEND) as appending:
        os.write(file, b"foo")
        path.unlink()
        assert names(place.inside) == []
        os.write(appending, b"bar")
        os.close(os.dup(file))
        status = os.fstat(file)
        assert (status.st_nlink, status.st_size) == (0, 6)
        os.fchmod(file, 0o640)
        os.ftruncate(file, 5)
        os.utime(file, ns=(1, 2))
        os.fsync(file)
        status = os.fstat(file)
        assert (stat.S_IMODE(status.st_mode), status.st_size, status.st_mtime_ns) == (0o640, 5, 2)
        assert os.pread(file, 10, 0) == b"fooba"


def test_appenders_lose_and_tear_no_line(place: Place) -> None:
    """O_APPEND from many processes keeps each line whole (git's logs/HEAD, the shell's >>)."""
    place.shell("for p in 1 2 3 4; do (for i in {1..60}; do echo $p:$i:abcdefghijklmnop >> log; done) & done; wait")
    lines = (place.behind / "log").read_text().splitlines()
    assert sorted(lines) == sorted(f"{p}:{i}:abcdefghijklmnop" for p in range(1, 5) for i in range(1, 61))


def test_a_file_created_to_append_appends_after_a_seek(place: Place) -> None:
    """O_CREAT with O_APPEND: the offset does not matter."""
    with opened(place.inside / "f", os.O_RDWR | os.O_CREAT | os.O_APPEND) as file:
        os.write(file, b"AAAA")
        os.lseek(file, 0, os.SEEK_SET)
        os.write(file, b"BB")
    assert (place.inside / "f").read_bytes() == b"AAAABB"


def test_a_shorter_content_replaces_a_longer_one(place: Place) -> None:
    """O_TRUNC is honoured at open, and truncate by name after it."""
    path = place.inside / "f"
    path.write_bytes(b"AAAAAAAAAA")
    path.write_bytes(b"BB")
    assert (path.read_bytes(), path.stat().st_size) == (b"BB", 2)
    os.truncate(path, 1)
    assert (path.read_bytes(), (place.behind / "f").read_bytes()) == (b"B", b"B")


def test_modes_obey_the_umask_of_whoever_makes(place: Place) -> None:
    """create, mkdir and mknod take the caller's umask once."""
    place.shell("umask 027; : > a; mkdir d; mkfifo p; umask 000; : > b")
    assert [mode_of(place.inside / name) for name in ("a", "d", "p", "b")] == [0o640, 0o750, 0o640, 0o666]


def test_a_file_created_read_only_is_writable_by_its_descriptor(place: Place) -> None:
    """O_CREAT|O_RDWR with mode 0400, as git makes its objects."""
    with opened(place.inside / "object", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o400) as file:
        os.write(file, b"blob")
        os.fsync(file)
    assert (place.inside / "object").read_bytes() == b"blob"
    assert mode_of(place.inside / "object") == 0o400


# -- hard links and inode numbers ----------------------------------------------------------------------------------------


def test_hard_links_are_one_file(place: Place) -> None:
    """Both names have one inode number, link count, size and mode, whichever was written by."""
    a, b = place.inside / "a", place.inside / "b"
    a.write_text("one\n")
    b.hardlink_to(a)
    with a.open("a") as file:
        file.write("two\n")
    one, two = a.stat(), b.stat()
    assert (one.st_ino, one.st_nlink, one.st_size) == (two.st_ino, 2, 8) == (two.st_ino, two.st_nlink, two.st_size)
    b.chmod(0o600)
    assert mode_of(a) == 0o600
    a.unlink()
    assert (b.stat().st_nlink, b.read_text()) == (1, "one\ntwo\n")


def test_renaming_onto_another_name_of_the_same_file_does_nothing(place: Place) -> None:
    """rename(2): both names stay."""
    a, b = place.inside / "a", place.inside / "b"
    a.write_text("x")
    b.hardlink_to(a)
    a.rename(b)
    assert names(place.inside) == ["a", "b"]
    assert a.stat().st_nlink == 2


def test_inode_numbers_are_the_sources_and_stay(place: Place, as_root: None) -> None:
    """A listing's numbers are the source's, before and after the kernel dropped what it knew."""
    for number in range(100):
        (place.behind / str(number)).touch()
    behind = {entry.name: entry.inode() for entry in os.scandir(place.behind)}
    assert {entry.name: entry.inode() for entry in os.scandir(place.inside)} == behind
    Path("/proc/sys/vm/drop_caches").write_text("2")
    assert {entry.name: entry.stat().st_ino for entry in os.scandir(place.inside)} == behind


# -- directories ---------------------------------------------------------------------------------------------------------


def test_a_big_directory_lists_each_name_once(place: Place) -> None:
    """3,000 long names, made through the mount."""
    made = [f"{number:05d}" + "n" * 120 for number in range(3000)]
    for name in made:
        os.close(os.open(place.inside / name, os.O_WRONLY | os.O_CREAT))
    assert names(place.inside) == made


def test_entries_removed_while_reading_skip_no_other(place: Place) -> None:
    """Removing each entry as it is read leaves an empty directory."""
    for number in range(2000):
        (place.behind / str(number)).touch()
    with os.scandir(place.inside) as entries:
        for entry in entries:
            os.unlink(entry.path)
    assert names(place.behind) == []
    place.inside.rmdir()


def test_a_deep_wide_tree_is_removed_whole(place: Place) -> None:
    """rm -rf of what npm leaves."""
    for package in range(20):
        directory = place.behind / f"node_modules/p{package}/lib/x"
        directory.mkdir(parents=True)
        for number in range(15):
            (directory / f"{number}.js").write_text(str(number))
    place.shell("rm -rf node_modules")
    assert names(place.behind) == []


def test_errors_of_directories_are_posix(place: Place) -> None:
    """ENOTEMPTY, ENOTDIR, EISDIR, EEXIST and EINVAL, not EIO."""
    d, f = place.inside / "d", place.inside / "f"
    (d / "e").mkdir(parents=True)
    f.touch()
    answers = {
        "rmdir d": errno_of(os.rmdir, d),
        "rmdir f": errno_of(os.rmdir, f),
        "unlink d": errno_of(os.unlink, d),
        "mkdir d": errno_of(os.mkdir, d),
        "rename f d": errno_of(os.rename, f, d),
        "rename d f": errno_of(os.rename, d, f),
        "rename d d/e/x": errno_of(os.rename, d, d / "e/x"),
        "link d": errno_of(os.link, d, place.inside / "h"),
        "open f/x": errno_of(os.open, f / "x", os.O_RDONLY),
        "readlink f": errno_of(os.readlink, f),
        "rmdir .": errno_of(os.rmdir, f"{d}/."),
        "unlink missing": errno_of(os.unlink, place.inside / "missing"),
    }
    assert answers == {
        "rmdir d": "ENOTEMPTY",
        "rmdir f": "ENOTDIR",
        "unlink d": "EISDIR",
        "mkdir d": "EEXIST",
        "rename f d": "EISDIR",
        "rename d f": "ENOTDIR",
        "rename d d/e/x": "EINVAL",
        "link d": "EPERM",
        "open f/x": "ENOTDIR",
        "readlink f": "EINVAL",
        "rmdir .": "EINVAL",
        "unlink missing": "ENOENT",
    }


# -- memory, locks, space ------------------------------------------------------------------------------------------------


def test_a_shared_mapping_reaches_the_source(place: Place) -> None:
    """What is stored in a MAP_SHARED mapping is read through the mount and lies in the source."""
    with opened(place.inside / "m", os.O_RDWR | os.O_CREAT) as file:
        os.ftruncate(file, 8192)
        with mmap.mmap(file, 8192) as mapping:
            mapping[5000:5005] = b"hello"
            mapping.flush()
            assert os.pread(file, 5, 5000) == b"hello"
    assert (place.behind / "m").read_bytes()[5000:5005] == b"hello"


def test_sqlite_in_wal_mode_takes_several_writers(place: Place) -> None:
    """A write-ahead log with mapped pages and three processes loses nothing."""
    place.shell(
        """
        sqlite3 db 'pragma journal_mode=wal; pragma mmap_size=33554432; create table t(x);'
        for p in 1 2 3; do
          (for i in {1..8}; do sqlite3 -cmd '.timeout 20000' db "insert into t values($p*100+$i);" || touch failed; done) &
        done
        wait
        """
    )
    assert place.shell("sqlite3 db 'select count(*) from t; pragma integrity_check;'") == "24\nok\n"
    assert not (place.behind / "failed").exists()


def test_locks_exclude_between_processes(place: Place) -> None:
    """flock and fcntl locks held here are in the way of another process."""
    path = place.inside / "lock"
    path.touch()
    attempt = "import fcntl, sys; fcntl.{}(open(sys.argv[1], 'r+'), fcntl.LOCK_EX | fcntl.LOCK_NB)"
    for kind, take in (("flock", fcntl.flock), ("lockf", fcntl.lockf)):
        with path.open("r+") as file:
            take(file, fcntl.LOCK_EX)
            assert "BlockingIOError" in place.view.python(attempt.format(kind), str(path)).stderr
            take(file, fcntl.LOCK_UN)
            assert place.view.python(attempt.format(kind), str(path)).returncode == 0


def test_space_is_reserved_or_cleanly_refused(place: Place) -> None:
    """posix_fallocate gives the size; plain fallocate works or answers EOPNOTSUPP."""
    with opened(place.inside / "f", os.O_RDWR | os.O_CREAT) as file:
        os.posix_fallocate(file, 0, 1 << 20)
        assert os.fstat(file).st_size == 1 << 20
    done = place.view.run("fallocate", "-l", "64K", "g", cwd=place.inside)
    assert done.returncode == 0 or "not supported" in done.stderr


def test_holes_stay_holes(place: Place) -> None:
    """A file written far beyond its end reads as zeros between, and takes no space there."""
    with opened(place.inside / "f", os.O_RDWR | os.O_CREAT) as file:
        os.pwrite(file, b"end", 1 << 30)
        assert os.pread(file, 4, 1 << 20) == b"\0\0\0\0"
    assert (place.inside / "f").stat().st_size == (1 << 30) + 3
    assert (place.behind / "f").stat().st_blocks * 512 < 1 << 20


# -- attributes ----------------------------------------------------------------------------------------------------------


def test_times_are_exact_to_the_nanosecond(place: Place) -> None:
    """utimensat keeps what it was given, and leaves the time it was told to omit."""
    path = place.inside / "f"
    path.touch()
    os.utime(path, ns=(1700000000123456789, 1600000000999999999))
    assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == (1700000000123456789, 1600000000999999999)
    place.shell("touch -a -d 2001-01-01T00:00:00.5Z f")
    assert (path.stat().st_atime_ns, path.stat().st_mtime_ns) == (978307200500000000, 1600000000999999999)


def test_a_dangling_link_has_times_of_its_own(place: Place) -> None:
    """touch -h sets a link's times, not its target's."""
    (place.inside / "link").symlink_to("nowhere")
    place.shell("touch -h -d 2005-05-05T00:00:00Z link")
    assert (place.inside / "link").lstat().st_mtime == 1115251200


def test_names_are_any_bytes_but_slash_and_nul(place: Place) -> None:
    """Names that are not UTF-8 are made, listed, renamed and linked to as they are."""
    top = os.fsencode(place.inside)
    name = b"d\xe9j\xe0\xff\xfe_vu\n\t*?"
    os.mkdir(top + b"/D\xff")
    os.close(os.open(top + b"/D\xff/" + name, os.O_CREAT | os.O_WRONLY))
    assert os.listdir(top + b"/D\xff") == [name]
    os.rename(top + b"/D\xff/" + name, top + b"/D\xff/z\x80")
    os.symlink(b"\xc3\x28", top + b"/s")
    assert os.readlink(top + b"/s") == b"\xc3\x28"
    assert sorted(os.listdir(os.fsencode(place.behind))) == [b"D\xff", b"s"]
    assert os.listdir(os.fsencode(place.behind) + b"/D\xff") == [b"z\x80"]


def test_a_name_has_at_most_255_bytes(place: Place) -> None:
    """255 bytes are a name; 256 are ENAMETOOLONG for every operation on names."""
    (place.inside / ("n" * 255)).touch()
    assert names(place.inside) == ["n" * 255]
    other, long = place.inside / ("n" * 255), place.inside / ("n" * 256)
    for act, arguments in (
        (os.open, (long, os.O_CREAT | os.O_WRONLY)),
        (os.lstat, (long,)),
        (os.mkdir, (long,)),
        (os.mkfifo, (long,)),
        (os.symlink, ("x", long)),
        (os.link, (other, long)),
        (os.rename, (other, long)),
        (os.unlink, (long,)),
        (os.rmdir, (long,)),
    ):
        assert errno_of(act, *arguments) == "ENAMETOOLONG", act


def test_extended_attributes_of_the_user_are_kept(place: Place) -> None:
    """user.* is set, read, listed and removed; CREATE and REPLACE are told apart; ENODATA once it is gone."""
    path = place.inside / "f"
    path.touch()
    os.setxattr(path, "user.a", b"\x00\xff" * 50)
    assert os.getxattr(path, "user.a") == b"\x00\xff" * 50
    assert os.listxattr(path) == ["user.a"]
    with refused("EEXIST"):
        os.setxattr(path, "user.a", b"", os.XATTR_CREATE)
    with refused("ENODATA"):
        os.setxattr(path, "user.b", b"", os.XATTR_REPLACE)
    os.removexattr(path, "user.a")
    with refused("ENODATA"):
        os.getxattr(path, "user.a")
    with refused("ENODATA"):
        os.removexattr(path, "user.a")


def test_a_setgid_directory_hands_its_group_down(place: Place, as_root: None) -> None:
    """Files and directories made in it take its group, directories its bit too."""
    group = place.inside / "g"
    group.mkdir()
    os.chown(group, -1, 1)
    group.chmod(0o2775)
    (group / "f").touch()
    (group / "s").mkdir()
    assert mode_of(group) == 0o2775
    assert [(group / name).stat().st_gid for name in ("f", "s")] == [1, 1]
    assert (group / "s").stat().st_mode & stat.S_ISGID


def test_set_id_bits_are_neither_set_nor_shown(place: Place) -> None:
    """A file's set-id bits cannot be given by chmod or at creation, and those of the source are not shown."""
    (place.inside / "f").touch()
    (place.inside / "f").chmod(0o6755)
    assert mode_of(place.behind / "f") == 0o755
    os.mknod(place.inside / "n", 0o4644 | stat.S_IFREG)
    assert not mode_of(place.behind / "n") & 0o6000
    (place.behind / "s").touch()
    (place.behind / "s").chmod(0o6755)
    assert mode_of(place.inside / "s") == 0o755


def test_syncing_reaches_files_and_directories(place: Place) -> None:
    """fsync and fdatasync of a file, fsync of a directory, as sqlite and editors do."""
    with opened(place.inside / "f", os.O_WRONLY | os.O_CREAT) as file:
        os.write(file, b"1")
        os.fsync(file)
        os.fdatasync(file)
    with opened(place.inside, os.O_RDONLY | os.O_DIRECTORY) as directory:
        os.fsync(directory)
    assert (place.behind / "f").read_bytes() == b"1"


def test_free_space_is_told(place: Place) -> None:
    """df works, and names may have 255 bytes."""
    told = os.statvfs(place.inside)
    assert told.f_blocks > 0
    assert told.f_bavail > 0
    assert told.f_namemax == 255
    behind = os.statvfs(place.behind)
    assert told.f_blocks * told.f_frsize == behind.f_blocks * behind.f_frsize


# -- fifos, sockets, programs --------------------------------------------------------------------------------------------


def test_a_fifo_carries_data(place: Place) -> None:
    """One process writes, another reads."""
    assert place.shell("mkfifo p; (echo hi > p) & cat p; wait") == "hi\n"


def test_a_socket_binds_and_connects(place: Place) -> None:
    """A unix socket in the view."""
    address = str(place.inside / "k")
    with socket.socket(socket.AF_UNIX) as server, socket.socket(socket.AF_UNIX) as client:
        server.bind(address)
        server.listen()
        client.connect(address)
    assert stat.S_ISSOCK(os.lstat(address).st_mode)


def test_direct_files_work_or_are_cleanly_refused(place: Place) -> None:
    """O_DIRECT writes aligned pages through, or is EINVAL at open; no EIO either way."""

    def write_directly() -> None:
        with opened(place.inside / "d", os.O_RDWR | os.O_CREAT | os.O_DIRECT) as file, mmap.mmap(-1, 4096) as page:
            page[:4] = b"DATA"
            assert os.write(file, page) == 4096

    answer = errno_of(write_directly)
    assert answer in (None, "EINVAL")
    assert answer or (place.behind / "d").read_bytes()[:4] == b"DATA"


def test_a_file_without_a_name_is_cleanly_refused(place: Place) -> None:
    """O_TMPFILE answers what makes programs fall back to a name."""
    assert errno_of(os.open, place.inside, os.O_RDWR | os.O_TMPFILE) in ("EOPNOTSUPP", "EISDIR", "EINVAL")


def test_a_change_in_the_source_shows(place: Place) -> None:
    """Content, size and new names of the other side arrive within a second or so."""
    (place.inside / "f").write_text("old\n")
    assert names(place.inside) == ["f"]
    assert (place.inside / "f").stat().st_size == 4
    assert not (place.inside / "new").exists()
    (place.behind / "f").write_text("longer new content\n")
    (place.behind / "new").touch()
    until(lambda: (place.inside / "f").stat().st_size == 19, "the size of the source's file", 4)
    assert (place.inside / "f").read_text() == "longer new content\n"
    until((place.inside / "new").exists, "the new name of the source", 4)
    assert names(place.inside) == ["f", "new"]


def test_paths_deeper_than_path_max_work(place: Place) -> None:
    """A walk of 30 names of 200 bytes, each from the last, and files at its end."""
    said = place.python(
        """
import os
top = os.open(".", os.O_RDONLY)
for _ in range(30):
    os.mkdir("x" * 200)
    os.chdir("x" * 200)
open("leaf", "w").write("ok")
os.rename("leaf", "other")
os.mkdir("d"); os.rmdir("d"); os.symlink("other", "link"); os.truncate("other", 1)
print(open("link").read(), os.listdir("."), os.stat("other").st_nlink)
os.fchdir(top)
"""
    )
    assert said.startswith("o [")
    place.shell("rm -rf xxx*")
    assert names(place.behind) == []


def test_links_are_followed_as_far_as_the_kernel_does(place: Place) -> None:
    """A chain of 40 links leads to its file. One of 41 is a loop for the kernel, and so is a loop."""
    (place.inside / "l0").write_text("end")
    for number in range(1, 41):
        (place.inside / f"l{number}").symlink_to(f"l{number - 1}")
    assert (place.inside / "l40").read_text() == "end"
    (place.inside / "l41").symlink_to("l40")
    (place.inside / "loop").symlink_to("loop")
    for name in ("l41", "loop"):
        with refused("ELOOP"):
            (place.inside / name).stat()


def test_programs_run_from_the_view(place: Place) -> None:
    """A binary, a script by its first line."""
    shutil.copy("/bin/true", place.inside / "t")
    (place.inside / "s").write_text("#!/bin/sh\necho said\n")
    (place.inside / "s").chmod(0o755)
    assert place.shell("./t && ./s") == "said\n"


def test_the_python_of_these_tests_runs_on_the_view(place: Place) -> None:
    """A module is imported from the view and its bytecode cached there."""
    (place.inside / "module.py").write_text("value = 7\n")
    done = place.view.run(
        "env", "-u", "PYTHONDONTWRITEBYTECODE", sys.executable, "-c", "import module; print(module.value)", cwd=place.inside
    )
    assert done.stdout == "7\n", done.stderr
    assert names(place.behind) == ["__pycache__", "module.py"]
