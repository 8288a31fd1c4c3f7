"""What docs/differences.md says of fifos, sockets, open files, set-id bits and other users, on a view and on a plain
directory beside it, as an ordinary user: root passes every permission."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.mount.harness import Mounted, Person, mounted

ANSWERS = r"""
import errno, os, select, socket, sys

def answer(act, *arguments):
    try:
        act(*arguments)
    except OSError as error:
        return errno.errorcode[error.errno]
    return "done"

os.chdir(sys.argv[1])
"""
"""What each script begins with: `answer` does something and gives `done` or the name of an errno."""


class Places(NamedTuple):
    """Two directories of a person: one is a view, at `stage`, with a directory at `ro`; the other is not."""

    view: Mounted
    plain: Path

    def answers(self, script: str) -> tuple[list[str], list[str]]:
        """What the script prints in the view and in the plain directory."""
        return self.in_one(self.view.point, script), self.in_one(self.plain, script)

    def in_one(self, place: Path, script: str) -> list[str]:
        """What it prints in one of them."""
        done = self.view.person.python(ANSWERS + script, place)
        assert done.returncode == 0, done.stderr
        return done.stdout.split()


@pytest.fixture(scope="module")
def places(ordinary_user: Person) -> Iterator[Places]:
    """Both, each with a fifo in a directory that is at `ro` in the view."""
    source, plain = ordinary_user.home / "source", ordinary_user.home / "plain"
    for directory in (source, plain):
        (directory / "ro").mkdir(parents=True)
        os.mkfifo(directory / "ro/fifo")
        for path in (directory, *directory.rglob("*")):
            os.chown(path, ordinary_user.uid, ordinary_user.uid)
    with mounted(source, "/=stage", "/ro=ro", person=ordinary_user) as view:
        yield Places(view, plain)


def test_the_mode_of_a_fifo_and_of_a_socket(places: Places) -> None:
    """Nobody is kept from their ends by it in a view; access(2) tells what a plain directory would do."""
    script = r"""
os.mkfifo("fifo")
listening = socket.socket(socket.AF_UNIX)
listening.bind("socket")
listening.listen()
for name in ("fifo", "socket"):
    os.chmod(name, 0)
print(answer(os.open, "fifo", os.O_RDWR | os.O_NONBLOCK))
print(answer(socket.socket(socket.AF_UNIX).connect, "socket"))
print(oct(os.stat("fifo").st_mode & 0o7777), os.access("fifo", os.R_OK), os.access("socket", os.W_OK))
"""
    rest = ["0o0", "False", "False"]
    assert places.answers(script) == (["done", "done", *rest], ["EACCES", "EACCES", *rest])


def test_what_is_written_to_a_fifo_at_ro_stays_in_the_view(places: Places) -> None:
    """It can be opened to write, and whoever reads the same fifo in the tree gets nothing of it."""
    behind = os.open(places.view.source / "ro/fifo", os.O_RDONLY | os.O_NONBLOCK)
    try:
        script = r"""
print(os.access("ro/fifo", os.W_OK), answer(os.chmod, "ro/fifo", 0o600), answer(os.remove, "ro/fifo"))
end = os.open("ro/fifo", os.O_RDWR | os.O_NONBLOCK)
print(os.write(end, b"text"), os.read(end, 4).decode())
"""
        assert places.in_one(places.view.point, script) == ["False", "EROFS", "EROFS", "4", "text"]
        assert os.read(behind, 4) == b""
    finally:
        os.close(behind)


def test_a_regular_file_can_be_waited_for(places: Places) -> None:
    """epoll_ctl(2) takes it, and it is always ready."""
    script = r"""
with open("regular", "w+") as file, select.epoll() as waiting:
    print(answer(waiting.register, file, select.EPOLLIN), len(waiting.poll(0)))
"""
    assert places.answers(script) == (["done", "1"], ["EPERM", "0"])


def test_set_id_is_dropped_in_silence(places: Places) -> None:
    """By chmod and when a file is made; a directory keeps set-group-ID and its sticky bit."""
    script = r"""
print(answer(lambda: os.close(os.open("new", os.O_CREAT | os.O_WRONLY, 0o6755))), answer(os.chmod, "new", 0o6755))
os.mkdir("directory")
os.chmod("directory", 0o3755)
print(oct(os.stat("new").st_mode & 0o7777), oct(os.stat("directory").st_mode & 0o7777))
"""
    assert places.answers(script) == (["done", "done", "0o755", "0o3755"], ["done", "done", "0o6755", "0o3755"])


def test_how_many_files_can_be_open(places: Places) -> None:
    """4,096 of a view, unless the machine allows the daemon fewer, which the mount tells; then ENFILE. Once they are closed
    a file can be opened again."""
    script = r"""
import resource
resource.setrlimit(resource.RLIMIT_NOFILE, (5000, 5000))
open("many", "w").close()
opened = []
print(answer(lambda: [opened.append(os.open("many", os.O_RDONLY)) for _ in range(4500)]), len(opened))
for descriptor in opened:
    os.close(descriptor)
print(answer(os.listdir, "."), answer(lambda: open("many").close()))
"""
    in_view, plain = places.answers(script)
    if "descriptors are allowed here" not in places.view.notes:
        assert in_view == ["ENFILE", "4096", "done", "done"]
    assert plain == ["done", "4500", "done", "done"]


def test_a_view_serves_its_own_user(places: Places, as_root: None) -> None:
    """Another user does not get as far as the mountpoint, nor does root."""
    person = places.view.person
    enter = ["nsenter", "-t", str(person.namespace), "-m", "--"]
    for become in ([], ["setpriv", "--reuid=1001", "--regid=1001", "--clear-groups"]):
        done = subprocess.run([*enter, *become, "stat", places.view.point], capture_output=True, text=True, check=False)
        assert (done.returncode, "Permission denied" in done.stderr) == (1, True), done
