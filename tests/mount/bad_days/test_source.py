"""Errors of the source, slow things, many things, and names that are not text."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from policyfs.fuse.nodes import Nodes
from policyfs.policy.paths import Name
from policyfs.source.root import Root
from tests.mount import expecting, harness
from tests.mount.bad_days.ground import view_of
from tests.mount.expecting import errno_of, refused, until
from tests.mount.harness import PROGRAM, TIMEOUT, mounted


@contextmanager
def small_source(source: Path, options: str) -> Iterator[None]:
    """A tmpfs of little room mounted on the source."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", options, "tmpfs", source], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", source], check=True)


def test_a_full_source_is_told_and_gets_over_it(source: Path, as_root: None) -> None:
    """ENOSPC for whoever writes, to the program that wrote it; what was written before stays, and room helps at once."""
    with small_source(source, "size=1m"), mounted(source, "/=stage") as view:
        (view.point / "kept").write_bytes(b"k" * 100_000)
        with refused("ENOSPC"), (view.point / "f").open("wb", buffering=0) as file:
            for _ in range(100):
                file.write(b"x" * 65536)
        assert os.statvfs(view.point).f_bavail < 64
        assert "No space left on device" in view.run("sh", "-c", "cat kept kept kept kept kept kept kept kept > copy").stderr
        assert (view.point / "kept").read_bytes() == b"k" * 100_000
        (view.point / "f").unlink()
        # Not at once as it should be, until the test below passes: what was removed is held until the kernel forgets it.
        until(lambda: errno_of((view.point / "g").write_bytes, b"g" * 300_000) is None, "room")
        assert (source / "g").stat().st_size == 300_000


def test_a_source_without_inodes_is_told_and_gets_over_it(source: Path, as_root: None) -> None:
    """ENOSPC for each way to make a name."""
    with small_source(source, "nr_inodes=8"), mounted(source, "/=stage") as view:
        made = 0
        while errno_of(os.mkdir, view.point / str(made)) is None:
            made += 1
        for act, arguments in (
            (os.mkdir, (view.point / "d",)),
            (os.open, (view.point / "f", os.O_CREAT | os.O_WRONLY)),
            (os.symlink, ("0", view.point / "l")),
            (os.mkfifo, (view.point / "p",)),
        ):
            assert errno_of(act, *arguments) == "ENOSPC"
        assert len(os.listdir(view.point)) == made > 3
        (view.point / "0").rmdir()
        (view.point / "f").touch()


def test_a_source_that_is_read_only_says_so(source: Path, as_root: None) -> None:
    """EROFS of the source itself for changes at stage; reading goes on."""
    (source / "f").write_text("content")
    with small_source(source, "size=1m"):
        (source / "f").write_text("content")
        subprocess.run(["mount", "-o", "remount,ro", source], check=True)
        with mounted(source, "/=stage") as view:
            for act, arguments in (
                (os.open, (view.point / "f", os.O_WRONLY)),
                (os.mkdir, (view.point / "d",)),
                (os.unlink, (view.point / "f",)),
                (os.chmod, (view.point / "f", 0o600)),
            ):
                assert errno_of(act, *arguments) == "EROFS", act
            assert (view.point / "f").read_text() == "content"


def test_a_source_that_is_removed(source: Path) -> None:
    """Everything is missing or stale, nobody hangs, and the mount can be unmounted."""
    (source / "d").mkdir()
    (source / "d/f").write_text("content")
    with mounted(source, "/=stage", deadline=30) as view:
        opened = os.open(view.point / "d/f", os.O_RDWR)
        subprocess.run(["rm", "-rf", source], check=True)
        assert errno_of(os.mkdir, view.point / "new") in ("ENOENT", "ESTALE")
        until(lambda: errno_of(os.stat, view.point / "d") in ("ENOENT", "ESTALE"), "the removal to show", 4)
        assert errno_of(os.listdir, view.point) in (None, "ENOENT", "ESTALE")
        assert os.pread(opened, 10, 0) == b"content"
        os.close(opened)
        os.statvfs(view.point)


def test_a_source_that_is_unmounted(source: Path, as_root: None) -> None:
    """A source that was a mount of its own stays reachable or is missing, and nobody hangs."""
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", source], check=True)
    detached = False
    try:
        (source / "f").write_text("content")
        with mounted(source, "/=stage", deadline=30) as view:
            assert (view.point / "f").read_text() == "content"
            assert subprocess.run(["umount", source], stderr=subprocess.DEVNULL, check=False).returncode != 0
            subprocess.run(["umount", "-l", source], check=True)
            detached = True
            assert errno_of(lambda: (view.point / "f").read_text()) in (None, "ENOENT", "ESTALE", "EXDEV")
            assert errno_of(lambda: (view.point / "new").write_text("x")) in (None, "ENOENT", "ESTALE", "EXDEV")
            assert errno_of(os.listdir, view.point) in (None, "ENOENT", "ESTALE")
    finally:
        if not detached:
            subprocess.run(["umount", "-l", source], check=True)


@contextmanager
def faulty_source(point: Path, *words: str) -> Iterator[subprocess.Popen[bytes]]:
    """A small file system whose `bad-read`, `bad-write`, `bad-listing` and `bad-stat` fail with EIO: see faulty.py."""
    script = Path(__file__).parent.with_name("faulty.py")
    with harness.myself() as person:
        server = subprocess.Popen([sys.executable, "-I", script, point, *words], stdout=subprocess.PIPE)
        assert server.stdout is not None
        try:
            assert server.stdout.readline() == b"ready\n"
            with harness.watchdog(point, person, server.pid):
                yield server
        finally:
            person.unmount(point, lazily=True)
            server.kill()
            server.wait(TIMEOUT)
            server.stdout.close()


def test_errors_of_the_source_reach_whoever_asked(source: Path) -> None:
    """EIO from reading, writing, listing and looking is passed on for that object, and all others go on."""
    expecting.require_fuse()
    with faulty_source(source), mounted(source, "/=stage") as view:
        with refused("EIO"):
            (view.point / "bad-read").read_bytes()
        with refused("EIO"), (view.point / "bad-write").open("r+b", buffering=0) as file:
            file.write(b"x")
        with refused("EIO"):
            os.listdir(view.point / "bad-listing")
        with refused("EIO"):
            os.stat(view.point / "bad-stat")
        assert (view.point / "good").read_bytes() == b"good"
        assert {"good", "bad-read", "bad-write", "bad-listing"} <= set(os.listdir(view.point))


def test_a_source_that_does_not_tell_its_type(source: Path) -> None:
    """A file system without statfs is mounted all the same; only statfs of the view has no answer."""
    expecting.require_fuse()
    with faulty_source(source, "no-statfs"), mounted(source, "/=ro") as view:
        assert (view.point / "good").read_bytes() == b"good"
        with refused("EIO"):
            os.statvfs(view.point)


def test_a_source_whose_server_dies(source: Path) -> None:
    """ENOTCONN of the source is passed on; the view survives it and unmounts."""
    expecting.require_fuse()
    with faulty_source(source) as server, mounted(source, "/=stage") as view:
        assert (view.point / "good").read_bytes() == b"good"
        server.kill()
        server.wait(TIMEOUT)
        for act, arguments in (
            (os.stat, (view.point / "unseen",)),
            (os.open, (view.point / "bad-read", os.O_RDWR)),
            (os.mkdir, (view.point / "new",)),
        ):
            assert errno_of(act, *arguments) in ("ENOTCONN", "ECONNABORTED"), act
        assert errno_of(os.listdir, view.point) in (None, "ENOTCONN", "ECONNABORTED")


def test_a_source_that_folds_case(source: Path) -> None:
    """Two spellings for one name: the mount is refused, though the names at the top have no letters that could tell. Where
    a person allows it a rule hides its name in every spelling."""
    expecting.require_fuse()
    grants = ("/=ro", "/1/Private=none")
    with faulty_source(source, "folding"), harness.myself() as person:
        point = person.home / "view"
        point.mkdir()
        done = person.policyfs("mount", source, point, "-g", "/=ro", "-g", "/1/Private=none")
        assert done.returncode == 4
        assert "--allow-case-folding" in done.stderr
        with mounted(source, *grants, options=("--allow-case-folding",)) as view:
            asked = ["-g", "/=ro", "-g", "/1/Private=none", "/1/PRIVATE/secret", "--json"]
            explained = [
                json.loads(view.person.policyfs("explain", *words).stdout)["standing"]
                for words in ([source, *asked], [view.point / "1/PRIVATE/secret", "--json"])
            ]
            assert explained == ["hidden", "hidden"], "before it is mounted and of the mount"
            assert os.listdir(view.point / "1") == []
            for path in ("1/Private/secret", "1/PRIVATE/SECRET", "1/private"):
                with refused("ENOENT"):
                    os.stat(view.point / path)


BLOCKED_SYNC = """
import os
def blocked(descriptor):
    with open({fifo!r}) as gate:
        gate.read()
os.fsync = blocked
"""


def test_a_slow_sync_holds_up_nobody_else(source: Path, tmp_path: Path) -> None:
    """While a disk takes its time over one fsync, every other request is answered; the sync's caller waits for it."""
    os.mkfifo(tmp_path / "gate")
    sync = "import os; f = os.open('f', os.O_RDWR | os.O_CREAT); print('opened', flush=True); os.fsync(f); print('synced')"
    with mounted(source, "/=stage", sabotage=BLOCKED_SYNC.format(fifo=str(tmp_path / "gate"))) as view:
        caller = view.person.popen(sys.executable, "-I", "-c", sync, cwd=view.point, stdout=subprocess.PIPE, text=True)
        assert caller.stdout is not None
        with caller:
            assert caller.stdout.readline() == "opened\n"
            # A fifo can be opened to write without waiting once the daemon reads it: then the sync is under way.
            opened: list[int] = []
            gate = lambda: opened.append(os.open(tmp_path / "gate", os.O_WRONLY | os.O_NONBLOCK))  # noqa: E731
            until(lambda: errno_of(gate) is None, "the sync to begin")
            with open(opened[0], "w"):
                (view.point / "g").write_text("meanwhile")
                assert (view.point / "g").read_text() == "meanwhile"
                assert sorted(os.listdir(view.point)) == ["f", "g"]
                assert caller.poll() is None
            assert caller.stdout.readline() == "synced\n"


def test_killed_callers_leave_nothing_behind(source: Path) -> None:
    """Programs killed in the midst of reading, writing and listing: the mount goes on and holds none of their files."""
    for number in range(50):
        (source / str(number)).write_bytes(b"x" * 65536)
    loop = "while :; do cat * > /dev/null; ls -lR > /dev/null; echo > new-$$; mv new-$$ newer-$$; rm -f newer-$$; done"
    with mounted(source, "/=stage") as view:
        callers = [subprocess.Popen(["bash", "-c", loop], cwd=view.point, start_new_session=True) for _ in range(6)]
        try:
            until(lambda: any(name.startswith("new-") for name in os.listdir(source)), "the programs to work")
        finally:
            for caller in callers:
                os.killpg(caller.pid, signal.SIGKILL)
            for caller in callers:
                caller.wait(TIMEOUT)
        assert (view.point / "7").stat().st_size == 65536
        (view.point / "after").touch()


def test_128_processes_at_once(source: Path) -> None:
    """More programs than the mount has workers: each gets its answers, and nothing is lost."""
    script = """
for p in {1..128}; do
  (mkdir d$p; echo $p > d$p/f; read -r line < d$p/f; test "$line" = $p; mv d$p/f d$p/g; echo $p >> log; ls d$p >/dev/null) &
done
wait
"""
    with mounted(source, "/=stage") as view:
        done = view.run("bash", "-c", script, timeout=50)
        assert done.stderr == ""
    assert sorted((source / "log").read_text().split(), key=int) == [str(number) for number in range(1, 129)]
    assert all((source / f"d{number}/g").read_text() == f"{number}\n" for number in range(1, 129))


def test_a_lazily_opened_file_is_opened_once(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that is read while it is being synced for the first time leaks no descriptor and closes no other's."""
    (source / "f").write_text("content")
    view = view_of(source, "/=ro")
    names = os.fspath(source / "f")

    def held() -> int:
        links = [f"/proc/self/fd/{name}" for name in os.listdir("/proc/self/fd")]
        return sum(os.path.realpath(link) == names for link in links if os.path.islink(link))

    file = view.open(view.child(view.top, Name(b"f")), os.O_RDONLY, lazily=True)
    reopen, entered, leave = Root.reopen, threading.Event(), threading.Event()

    def slow(reached: int, flags: int) -> int:
        if threading.current_thread() is not threading.main_thread():
            entered.set()
            leave.wait(TIMEOUT)
        return reopen(reached, flags)

    monkeypatch.setattr(Root, "reopen", staticmethod(slow))
    failures: list[BaseException] = []

    def sync() -> None:
        try:
            file.sync(data_only=False)
        except OSError as error:
            failures.append(error)
        finally:
            entered.set()

    # What `Operations.fsync` does before it goes to a thread.
    file.open_now()
    syncing = threading.Thread(target=sync)
    syncing.start()
    entered.wait(TIMEOUT)
    assert bytes(file.read(0, 100)) == b"content"
    leave.set()
    syncing.join(TIMEOUT)
    assert (held(), failures) == (1, [])
    file.close()
    assert held() == 0
    view.root.close()


def test_a_known_node_costs_less_than_a_kilobyte_and_is_given_back(source: Path) -> None:
    """200,000 files told of and forgotten again: at most 1 KB each while they are known, nothing after."""
    count = 200_000
    (source / "f").touch()
    view = view_of(source, "/=ro")
    nodes = Nodes(view)
    location = view.child(view.top, Name(b"f"))
    file = view.attributes(location)
    tracemalloc.start()
    try:
        before, _ = tracemalloc.get_traced_memory()
        for number in range(count):
            one = file._replace(identity=file.identity._replace(ino=1_000_000_000 + number))
            nodes.found(nodes.root, Name(b"file-%d" % number), one, location.place).cached.remember()
        known, _ = tracemalloc.get_traced_memory()
        assert len(nodes) == count + 1
        assert (known - before) / count < 1024
        for number in range(count):
            nodes.forget(1_000_000_000 + number, 1)
        forgotten, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
        view.root.close()
    assert len(nodes) == 1
    # What is left are the tables, which Python shrinks as they are next filled.
    assert (forgotten - before) / count < 128


def test_the_kernel_makes_the_daemon_forget(source: Path, as_root: None) -> None:
    """Files looked at and dropped by the kernel are given back by the daemon of a real mount: its memory does not grow
    with every tree that was walked once."""

    def resident(process: int) -> int:
        return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")

    for directory in range(8):
        (source / str(directory)).mkdir()
        for number in range(500):
            os.close(os.open(source / str(directory) / f"file-{number}", os.O_CREAT | os.O_WRONLY))
    with mounted(source, "/=ro") as view:

        def walk() -> int:
            assert len(view.run("find", ".", "-type", "f").stdout.split()) == 4000
            Path("/proc/sys/vm/drop_caches").write_text("2")
            view.run("stat", "-f", ".")
            return resident(view.process)

        first = [walk() for _ in range(3)][-1]
        last = [walk() for _ in range(4)][-1]
        # Nodes of four more walks that stayed would be 4 x 4,000 x some 600 bytes, some 10 MB.
        assert last - first < 3 << 20


def test_names_that_are_no_utf8_everywhere(tmp_path: Path) -> None:
    """SOURCE, MOUNTPOINT, session file, log, grants and entries: every command takes them and prints something legible."""
    expecting.require_fuse()
    odd = b"caf\xe9-\xff"
    top = os.fsencode(tmp_path)
    source, point = top + b"/source-" + odd, top + b"/point-" + odd
    for directory in (source, point, source + b"/" + odd, source + b"/" + odd + b"/hidden-" + odd):
        os.mkdir(directory)
    with open(source + b"/" + odd + b"/f-" + odd, "wb") as file:
        file.write(b"content")
    session = top + b"/session-" + odd + b".toml"
    with open(session, "w") as text:
        text.write('[grants]\n"/" = "ro"\n[deny]\nnames = ["hidden-*"]\n')
    log = top + b"/log-" + odd
    view_path = b"/" + odd
    with harness.myself() as person:
        words = [os.fsdecode(word) for word in (source, point, b"-s", session, b"-g", view_path + b"=stage", b"--log", log)]
        done = person.run(*PROGRAM, "mount", *words)
        assert done.returncode == 0, done.stderr
        try:
            assert r"/caf\xe9-\xff  stage" in done.stdout
            assert "stage" in done.stdout
            inside = point + view_path
            assert os.listdir(inside) == [b"f-" + odd]
            with open(inside + b"/f-" + odd, "r+b") as file:
                file.write(b"CON")
            os.rename(inside + b"/f-" + odd, inside + b"/g" + odd)
            assert sorted(os.listdir(source + view_path)) == [b"g" + odd, b"hidden-" + odd]
            assert errno_of(os.lstat, inside + b"/hidden-" + odd) == "ENOENT"
            again = person.run(*PROGRAM, "mount", *words)
            assert again.returncode == 4
            assert r"caf\xe9-\xff is a mount already" in again.stderr
            for command in (
                ("explain", os.fsdecode(source), os.fsdecode(view_path), "-s", os.fsdecode(session)),
                ("explain", os.fsdecode(source), os.fsdecode(view_path), "-s", os.fsdecode(session), "--json"),
                ("view", os.fsdecode(source), "-g", os.fsdecode(view_path + b"=stage")),
                ("view", os.fsdecode(source), "-g", os.fsdecode(view_path + b"=stage"), "--json"),
                ("check", os.fsdecode(session)),
            ):
                said = person.run(*PROGRAM, *command)
                assert (said.returncode, said.stderr) == (0, ""), command
                said.stdout.encode("utf-8")
                if "--json" in command:
                    json.loads(said.stdout.splitlines()[0])
        finally:
            ended = person.run(*PROGRAM, "umount", os.fsdecode(point))
        assert (ended.returncode, ended.stderr) == (0, "")
        with open(log, encoding="utf-8") as text:
            logged = text.read()
        assert "Traceback" not in logged
        assert "Logging error" not in logged
