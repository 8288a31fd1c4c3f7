"""A policy that gives more, objects with several names, and grants that end."""

from __future__ import annotations

import os
import signal
import stat
import time
from pathlib import Path

from tests.mount.asked import Live, live
from tests.mount.children import child, go
from tests.mount.expecting import errno_of, until
from tests.mount.live.ground import _MAPPING, Ground, opened
from tests.mount.places import names


def test_what_becomes_more_is_seen_at_once(ground: Ground) -> None:
    """A name that was missing a moment ago is found and listed; a mode has its write bits; what was EROFS is written."""
    ground.grant("ro")
    ground.grant("none", "d")
    inside = ground.inside
    assert errno_of(os.stat, inside / "d") == "ENOENT" == errno_of(os.stat, inside / "d/f")
    assert names(inside) == ["f", "g"]
    assert os.stat(inside / "f").st_mode & 0o222 == 0
    assert errno_of((inside / "f").write_text, "x") == "EROFS"
    ground.grant("ro", "d")
    assert (inside / "d/f").read_text() == "content of d/f"
    assert names(inside) == ["d", "f", "g"]
    ground.grant("stage")
    ground.grant("stage", "d")
    assert os.stat(inside / "f").st_mode & 0o200
    assert os.access(inside / "f", os.W_OK)
    (inside / "f").write_text("more")
    os.mkdir(inside / "d/new")
    assert (ground.behind / "f").read_text() == "more"


def test_a_directory_that_was_open_lists_what_was_opened(ground: Ground) -> None:
    """Read again from its beginning, a directory that was open lists what has been opened in it since."""
    ground.grant("ro")
    ground.grant("none", "d")
    with opened(ground.inside, os.O_RDONLY | os.O_DIRECTORY) as directory:
        assert sorted(os.listdir(directory)) == ["f", "g"]
        ground.grant("ro", "d")
        assert sorted(os.listdir(directory)) == ["d", "f", "g"]


def test_a_passage_that_is_opened(ground: Ground) -> None:
    """What was a passage has its own attributes at once, and is listed."""
    ground.grant("ro", "d/f")
    assert stat.S_IMODE(os.stat(ground.inside / "d").st_mode) == 0o111
    assert errno_of(os.listdir, ground.inside / "d") == "EACCES" == errno_of(os.stat, ground.inside / "d/g")
    ground.grant("ro", "d")
    assert stat.S_IMODE(os.stat(ground.inside / "d").st_mode) == 0o555
    assert names(ground.inside / "d") == ["f", "g"]


def test_a_descriptor_serves_again_what_was_opened_again(ground: Ground) -> None:
    """What was taken away from an open file is back when the path is: nothing is cut for good."""
    ground.grant("stage")
    with opened(ground.inside / "f", os.O_RDWR) as file:
        ground.revoke()
        assert errno_of(os.pread, file, 1, 0) == "EACCES"
        ground.grant("ro")
        assert os.pread(file, 7, 0) == b"content"
        assert errno_of(os.pwrite, file, b"C", 0) == "EROFS"
        ground.grant("commit")
        assert os.pwrite(file, b"C", 0) == 1
    assert (ground.behind / "f").read_text() == "Content of f"


def test_hard_links_at_two_levels_that_become_one(ground: Ground) -> None:
    """Two names that were two objects to the session are one: the number, the content, what a descriptor of the former
    writes."""
    (ground.behind / "h").hardlink_to(ground.behind / "d/f")
    ground.grant("stage")
    ground.grant("ro", "d")
    one, other = ground.inside / "h", ground.inside / "d/f"
    with opened(one, os.O_RDWR) as file, opened(other, os.O_RDONLY) as readable:
        # Both at once: a number that the kernel has forgotten, after the event of the second name, may be given again.
        assert os.fstat(file).st_ino != os.fstat(readable).st_ino
        ground.revoke("d")
        ground.grant("stage", "d")
        assert os.stat(one).st_ino == os.stat(other).st_ino
        os.pwrite(file, b"C", 0)
        assert os.pread(readable, 7, 0) == b"Content" == other.read_bytes()[:7]
        os.unlink(one)
        assert os.pread(file, 7, 0) == b"Content"
    assert other.read_text() == (ground.behind / "d/f").read_text() == "Content of d/f"


def test_hard_links_at_one_level_that_become_two(ground: Ground) -> None:
    """Each name goes by its own path from then on: one is written, one is not, and neither lends the other its level."""
    (ground.behind / "h").hardlink_to(ground.behind / "d/f")
    ground.grant("stage")
    for one, other in (("h", "d/f"), ("d/f", "h")):
        assert os.stat(ground.inside / one).st_ino == os.stat(ground.inside / other).st_ino
        ground.grant("ro", "d")
        assert errno_of((ground.inside / "d/f").write_text, "x") == "EROFS"
        assert errno_of(os.open, ground.inside / "d/f", os.O_RDWR) == "EROFS"
        (ground.inside / "h").write_text(one)
        assert (ground.behind / "d/f").read_text() == one
        ground.grant("stage", "d")


def test_one_of_two_names_that_was_revoked(ground: Ground) -> None:
    """The name that is closed is missing, whichever of the two was used last; the other goes on."""
    for number, order in enumerate((("h", "d/f"), ("d/f", "h"))):
        (ground.behind / "h").unlink(missing_ok=True)
        (ground.behind / "h").hardlink_to(ground.behind / "d/f")
        ground.grant("ro")
        for name in (*order, *order):
            os.stat(ground.inside / name)
        ground.grant("none", "h")
        assert errno_of(os.stat, ground.inside / "h") == "ENOENT", number
        assert errno_of((ground.inside / "h").read_text) == "ENOENT", number
        assert (ground.inside / "d/f").read_text() == "content of d/f"
        ground.grant("ro", "h")


def test_a_name_of_a_credential_that_becomes_one(tmp_path: Path) -> None:
    """A file that a new denied place holds too is missing under its other name, and what was open of it is cut."""
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d/f").write_text("content")
    with live(source, session='[grants]\n"/" = "ro"\n') as lively:
        secrets = lively.view.person.home / ".secrets"
        secrets.mkdir()
        (secrets / "key").hardlink_to(source / "d/f")
        file = lively.view.point / "d/f"
        with opened(file, os.O_RDONLY) as descriptor, child(_MAPPING, file, "shared", "read") as process:
            assert os.pread(descriptor, 7, 0) == b"content"
            lively.session_file.write_text('[grants]\n"/" = "ro"\n[deny]\npaths = ["~/.secrets"]\n')
            lively.reload()
            assert errno_of(os.stat, file) == "ENOENT" == errno_of(file.read_text)
            assert errno_of(os.pread, descriptor, 7, 0) == "EACCES"
            assert go(process) == ""
            assert process.returncode == -signal.SIGBUS


def test_a_grant_for_a_time(ground: Ground) -> None:
    """It opens for that time and no shorter, then closes what is open too; a longer one beside it goes on, and one that is
    given again lives as long as said last."""
    began = time.monotonic()
    ground.grant("ro", "f", 0.4)
    ground.grant("ro", "g", 3600)
    ground.grant("ro", "d", 0.2)
    ground.grant("ro", "d", 3600)
    with opened(ground.inside / "f", os.O_RDONLY) as file:
        assert os.pread(file, 7, 0) == b"content"
        until(lambda: errno_of(os.pread, file, 7, 0) == "EACCES", "the end of a grant")
        assert time.monotonic() - began >= 0.4
    assert errno_of(os.stat, ground.inside / "f") == "EACCES"
    assert (ground.inside / "g").exists()
    assert (ground.inside / "d/f").exists()
    ground.revoke("g")
    assert errno_of(os.stat, ground.inside / "g") == "EACCES"
    assert (ground.inside / "d/f").exists()


def test_a_grant_ends_whatever_became_of_the_session_file(source: Path) -> None:
    """What ends reads no file: a session file that is broken or gone by then keeps nothing open."""
    (source / "d").mkdir()
    (source / "f").touch()
    with live(source, session='[grants]\n"/" = "ro"\n"/d" = "none"\n') as lively:
        for breaks in (lambda: lively.session_file.write_text("[grants"), lively.session_file.unlink):
            lively.grant("/d", "ro", 0.2)
            assert (lively.view.point / "d").exists()
            breaks()
            until(lambda: errno_of(os.stat, lively.view.point / "d") == "ENOENT", "the end of a grant")
        assert names(lively.view.point) == ["f"]


def test_a_grant_ends_while_the_machine_sleeps(source: Path, tmp_path: Path) -> None:
    """Its time is over when it is over by the clock that a suspend does not stop, not when the daemon has been awake for
    so long."""
    (source / "f").touch()
    slept = tmp_path / "slept"
    slept.write_text("0")
    sabotage = (
        "from policyfs.live import policy as live\nnow = live.now\n"
        f"live.now = lambda: now() + float(open({str(slept)!r}).read())"
    )
    with live(source, "/=none", "/none=ro", sabotage=sabotage) as lively:
        lively.grant("/f", "ro", 3600)
        assert (lively.view.point / "f").exists()
        slept.write_text("3600")
        until(lambda: errno_of(os.stat, lively.view.point / "f") == "EACCES", "the end of a grant", 3)


def test_revoking_a_grant_of_the_session(lively: Live) -> None:
    """It is closed and all below it that has no grant of its own, which goes on; a grant opens it again."""
    own = lively.view.point / "own"
    assert names(own) == ["below", "f", "more"]
    lively.revoke("/own")
    assert errno_of(os.listdir, own) == "EACCES" == errno_of(os.stat, own / "f") == errno_of(os.stat, own / "more/f")
    assert (own / "below/f").read_text() == "content"
    lively.revoke("/own")
    assert errno_of(os.listdir, own) == "EACCES"
    lively.reload()
    assert errno_of(os.listdir, own) == "EACCES"
    lively.grant("/own", "ro")
    assert names(own) == ["below", "f", "more"]


def test_revoking_a_grant_at_none(ground: Ground) -> None:
    """It ends as any other does, and so does one with a time: the path is what it is without it."""
    ground.grant("ro")
    for seconds in (None, 3600):
        ground.grant("none", "d", seconds)
        assert errno_of(os.stat, ground.inside / "d") == "ENOENT"
        ground.revoke("d")
        assert names(ground.inside / "d") == ["f", "g"]


def test_a_grant_of_what_was_revoked_ends_at_closed(ground: Ground) -> None:
    """What `revoke` closed is opened by a grant for as long as that lasts, and closed again when it is over or revoked."""
    ground.grant("ro")
    ground.revoke("d")
    assert errno_of(os.stat, ground.inside / "d") == "ENOENT"
    ground.grant("ro", "d")
    assert (ground.inside / "d/f").exists()
    ground.revoke("d")
    assert errno_of(os.stat, ground.inside / "d") == "ENOENT"
    ground.grant("ro", "d", 0.2)
    assert (ground.inside / "d/f").exists()
    until(lambda: errno_of(os.stat, ground.inside / "d") == "ENOENT", "the end of a grant")
    assert (ground.inside / "f").exists()


def test_no_grant_lifts_a_floor_or_the_denylist(lively: Live) -> None:
    """Of what is granted above a floor the floor is left, of what the denylist names nothing."""
    floored = lively.view.point / "floored"
    for path in ("/floored", "/floored/f", "/floored/.env"):
        lively.grant(path, "commit")
    assert (floored / "f").read_text() == "content"
    assert errno_of((floored / "f").write_text, "x") == "EROFS"
    assert names(floored) == ["f"]
    assert errno_of(os.stat, floored / ".env") == "ENOENT"
    lively.reload()
    assert errno_of((floored / "f").write_text, "x") == "EROFS"
    assert errno_of(os.stat, floored / ".env") == "ENOENT"


def test_no_grant_opens_what_binds_the_session(source: Path) -> None:
    """The session file is at none where it lies in SOURCE, whatever is granted live; another one too, once it binds."""
    for name in ("s.toml", "other.toml"):
        (source / name).write_text('[grants]\n"/" = "stage"\n')
    with live(source, options=["-s", str(source / "s.toml")]) as lively:
        lively.grant("/s.toml", "commit")
        assert names(lively.view.point) == ["other.toml"]
        assert errno_of((lively.view.point / "s.toml").write_text, "x") == "EACCES"
        with opened(lively.view.point / "other.toml", os.O_RDWR) as file:
            lively.reload(source / "other.toml")
            assert errno_of(os.pwrite, file, b"x", 0) == "EACCES"
        assert errno_of(os.stat, lively.view.point / "other.toml") == "ENOENT"
