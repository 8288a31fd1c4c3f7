"""Listing, passages, hidden things and special files."""

from __future__ import annotations

import ctypes
import errno
import os
import socket
import stat
from pathlib import Path

from tests.mount.expecting import errno_of, refused
from tests.mount.getdents import batches
from tests.mount.harness import Mounted
from tests.mount.operations.ground import Opened, _libc
from tests.mount.places import Place, names


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
