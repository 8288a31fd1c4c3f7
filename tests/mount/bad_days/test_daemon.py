"""Errors of the daemon's own."""

from __future__ import annotations

import errno
import inspect
import logging
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyfuse3
import pytest
import trio

from policyfs.fuse.handlers import Operations
from policyfs.fuse.removed import RemovedObjects
from policyfs.view.attributes import Attributes
from tests.mount.bad_days.ground import view_of
from tests.mount.expecting import errno_of, refused, until
from tests.mount.harness import mounted

HANDLERS = [
    name
    for name, function in vars(pyfuse3.Operations).items()
    if inspect.iscoroutinefunction(function) and not name.startswith("_")
]

UNGUARDED = {
    "forget": "has no reply that an error could travel in",
    "flush": "answers ENOSYS, which from flush means that there is nothing to do",
    "poll": "is pyfuse3's own ENOSYS, by which the kernel takes files to be always ready, as those of a disk are",
}


class Broken:
    """Whatever is asked of it, it fails with the given error."""

    def __init__(self, error: Exception) -> None:
        self.__dict__["error"] = error

    def __getattr__(self, name: str) -> Any:
        raise self.__dict__["error"]


def broken_operations(error: Exception) -> Operations:
    """Handlers whose every dependency fails with the given error."""
    operations = Operations.__new__(Operations)
    for name in ("view", "nodes", "files", "directories", "listings", "watch", "memory", "reach", "replies"):
        setattr(operations, name, Broken(error))
    operations.removed = RemovedObjects(256)
    return operations


def answer(operations: Operations, handler: str) -> int:
    """The errno that a handler answers to any arguments at all."""
    function = getattr(operations, handler)
    count = len(inspect.signature(function).parameters)

    async def call() -> None:
        await function(*[1] * count)

    with pytest.raises(pyfuse3.FUSEError) as caught:
        trio.run(call)
    return int(caught.value.errno)


def test_what_has_become_another_kind_is_stale(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A directory that was given the inode number of a file that was removed: told as the file's, the kernel would answer
    EIO by that name from then on. By the name it is found for what it is."""
    (source / "f").touch()
    view = view_of(source, "/=ro")
    operations = Operations(view)
    attributes = view.attributes

    def of_a_directory(*arguments: Any, **named: Any) -> Attributes:
        return attributes(*arguments, **named)._replace(mode=stat.S_IFDIR | 0o755)

    async def asked(handler: Callable[..., Any], *arguments: Any) -> Any:
        return await handler(*arguments, None)

    try:
        file = trio.run(asked, operations.lookup, 1, b"f").st_ino
        assert trio.run(asked, operations.getattr, file).st_ino == file
        node = operations.nodes.get(file)
        assert node is not None
        node.cached.out_of_reach()
        monkeypatch.setattr(view, "attributes", of_a_directory)
        with pytest.raises(pyfuse3.FUSEError) as caught:
            trio.run(asked, operations.getattr, file)
        assert caught.value.errno == errno.ESTALE
        assert trio.run(asked, operations.lookup, 1, b"f").st_ino != file
    finally:
        operations.close()
        view.close()


@pytest.mark.parametrize("handler", [name for name in HANDLERS if name != "poll"])
def test_every_handler_is_defined(handler: str) -> None:
    """Nothing is left to pyfuse3's own answers, which are ENOSYS."""
    assert getattr(Operations, handler) is not getattr(pyfuse3.Operations, handler)


@pytest.mark.parametrize("handler", [name for name in HANDLERS if name not in UNGUARDED])
def test_a_fault_in_a_handler_is_a_logged_eio(handler: str, caplog: pytest.LogCaptureFixture) -> None:
    """Any exception becomes EIO with its traceback in the log: pyfuse3 would end the mount of everybody."""
    with caplog.at_level(logging.ERROR, "policyfs"):
        assert answer(broken_operations(ZeroDivisionError("a fault of ours")), handler) == errno.EIO
    assert len(caplog.records) == 1
    assert handler in caplog.text
    assert "ZeroDivisionError: a fault of ours" in caplog.text


@pytest.mark.parametrize("handler", [name for name in HANDLERS if name not in UNGUARDED])
@pytest.mark.parametrize(
    ("raised", "answered"),
    [(errno.ENOSYS, errno.EIO), (errno.ENOSPC, errno.ENOSPC), (errno.EIO, errno.EIO), (errno.ESTALE, errno.ESTALE)],
    ids=lambda code: errno.errorcode[code],
)
def test_an_error_of_the_source_keeps_its_number_but_enosys(handler: str, raised: int, answered: int) -> None:
    """One ENOSYS from open would switch open checks off for the whole mount, so none leaves any handler."""
    assert answer(broken_operations(OSError(raised, os.strerror(raised))), handler) == answered
    if raised == errno.ENOSYS:
        assert answer(broken_operations(pyfuse3.FUSEError(raised)), handler) == errno.EIO
        assert answer(broken_operations(OSError("an error without a number")), handler) == errno.EIO


def test_a_fault_while_forgetting_does_not_end_the_mount(caplog: pytest.LogCaptureFixture) -> None:
    """forget has no reply: a fault in it is logged and that is all."""
    operations = broken_operations(ZeroDivisionError("a fault of ours"))
    with caplog.at_level(logging.ERROR, "policyfs"):
        trio.run(operations.forget, [(pyfuse3.InodeT(2), 1)])
    assert "ZeroDivisionError: a fault of ours" in caplog.text


def test_a_mount_survives_a_fault_while_forgetting(source: Path) -> None:
    """The same on a real mount, where the kernel forgets a file that is removed."""
    (source / "f").touch()
    (source / "g").touch()
    sabotage = """
from policyfs.fuse.handlers import Operations
forget = Operations.forget.__wrapped__
async def forget_and_fail(*arguments):
    await forget(*arguments)
    raise ZeroDivisionError("a fault of ours")
from policyfs.fuse.guard import guarded_without_reply
Operations.forget = guarded_without_reply(forget_and_fail)
"""
    with mounted(source, "/=stage", sabotage=sabotage) as view:
        view.expected += ["ERROR", "Traceback"]
        (view.point / "f").unlink()
        until(lambda: "a fault of ours" in view.log_text, "the daemon to be told to forget")
        assert (view.point / "g").stat().st_size == 0
        (view.point / "h").touch()


SABOTAGE = """
import errno, os
from policyfs.view.monitor import ReferenceMonitor

def sabotaged(name, error):
    real = getattr(ReferenceMonitor, name)
    def method(self, location, *arguments, **named):
        if location.path.rpartition(b"/")[2].startswith(b"bad"):
            raise error
        return real(self, location, *arguments, **named)
    setattr(ReferenceMonitor, name, method)

for name in {names!r}:
    sabotaged(name, {error})
"""

CHANGES = (
    "open",
    "create",
    "listing",
    "make_directory",
    "make_node",
    "make_link",
    "unlink",
    "remove_directory",
    "rename",
    "change",
    "extended",
    "extended_names",
    "set_extended",
    "remove_extended",
    "link_text",
)
"""Methods of a view that sabotage reaches by name."""


def acts(top: Path) -> dict[str, tuple[Callable[..., Any], tuple[Any, ...]]]:
    """A system call for each of them, on names that begin with `bad`."""
    bad = top / "bad"
    return {
        "open": (os.open, (bad, os.O_RDONLY)),
        "create": (os.open, (top / "bad-new", os.O_CREAT | os.O_WRONLY)),
        "listing": (os.listdir, (top / "bad-directory",)),
        "make_directory": (os.mkdir, (top / "bad-new",)),
        "make_node": (os.mkfifo, (top / "bad-new",)),
        "make_link": (os.symlink, ("good", top / "bad-new")),
        "unlink": (os.unlink, (bad,)),
        "remove_directory": (os.rmdir, (top / "bad-directory",)),
        "rename": (os.rename, (bad, top / "new")),
        "change": (os.chmod, (bad, 0o600)),
        "extended": (os.getxattr, (bad, "user.a")),
        "extended_names": (os.listxattr, (bad,)),
        "set_extended": (os.setxattr, (bad, "user.a", b"")),
        "remove_extended": (os.removexattr, (bad, "user.a")),
        "link_text": (os.readlink, (top / "bad-link",)),
    }


@pytest.mark.parametrize(
    "error",
    [
        "ZeroDivisionError('sabotage')",
        "OSError(errno.ENOSYS, 'sabotage')",
        "OSError(None, None)",
        "RecursionError('sabotage')",
    ],
)
def test_a_mount_goes_on_after_faults_in_it(source: Path, error: str) -> None:
    """Each operation that fails inside answers EIO, and the next one is judged and served as before."""
    for name in ("good", "bad"):
        (source / name).write_text("content")
    (source / "bad-directory").mkdir()
    (source / "bad-link").symlink_to("good")
    (source / "closed").mkdir()
    (source / "closed/f").touch()
    sabotage = SABOTAGE.format(names=CHANGES, error=error)
    with mounted(source, "/=stage", "/closed=ro", sabotage=sabotage) as view:
        if "OSError" not in error:
            view.expected += [r"ERROR.*failed; the request is answered with EIO", "Traceback"]
        answers = {name: errno_of(act, *arguments) for name, (act, arguments) in acts(view.point).items()}
        assert answers == dict.fromkeys(CHANGES, "EIO")
        assert (view.point / "good").read_text() == "content"
        (view.point / "good").write_text("changed")
        with refused("EROFS"):
            (view.point / "closed/f").write_text("x")
        with refused("ENODATA"):
            os.getxattr(view.point / "good", "user.a")
    assert (source / "bad").read_text() == "content"
