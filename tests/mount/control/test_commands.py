"""The commands that speak to the control socket, and the attribute that tells a level."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import re
import select
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

from tests.mount.asked import Live, live
from tests.mount.control.ground import FAILED, LEVEL, PLACE, USAGE, told_of
from tests.mount.expecting import absent, errno_of, refused, until
from tests.mount.harness import PROGRAM, TIMEOUT, mounted, myself


def test_the_level_is_an_attribute(lively: Live) -> None:
    """A file, a directory and what a link leads to have it; a passage refuses, what is hidden is missing; of a link itself
    and of a fifo there is none, as Linux has it."""
    point = lively.view.point
    paths = {"ro": "ro", "ro/f": "ro", "ro/stage": "stage", "ro/link": "stage", "ro/link/floored/f": "ro"}
    paths["ro/hidden/open/f"] = "commit"
    assert {path: os.getxattr(point / path, LEVEL).decode() for path in paths} == paths
    with (point / "ro/f").open() as file:
        assert os.getxattr(file.fileno(), LEVEL) == b"ro"
    for path, code in (("", "EACCES"), ("ro/hidden", "EACCES"), ("ro/hidden/d", "EACCES"), ("ro/.env", "ENOENT")):
        assert errno_of(os.getxattr, point / path, LEVEL) == code, path
    with refused("ENODATA"):
        os.getxattr(point / "ro/link", LEVEL, follow_symlinks=False)
    with refused("ENODATA"):
        os.getxattr(point / "ro/f", LEVEL + ".")


def test_the_level_follows_a_change_at_once(lively: Live) -> None:
    """What getfattr says is the level in force."""
    file = lively.view.point / "away/f"
    for level in ("ro", "stage", "commit", "ro"):
        lively.grant("/away", level)
        assert os.getxattr(file, LEVEL).decode() == level
    lively.revoke("/away")
    assert errno_of(os.getxattr, file, LEVEL) == "EACCES"


def test_the_level_is_never_listed_set_or_removed(lively: Live) -> None:
    """No listing names it, where the source has an attribute of that name neither; setting and removing it are refused,
    as unsupported where other attributes can be set."""
    point, source = lively.view.point / "ro/stage", lively.view.source / "ro/stage"
    try:
        os.setxattr(source / "f", LEVEL, b"commit")
        os.setxattr(source / "f", "user.other", b"1")
    except OSError:
        pytest.skip("the file system of the source has no user attributes")
    assert os.listxattr(point / "f") == ["user.other"]
    assert os.getxattr(point / "f", LEVEL) == b"stage"
    for path in (point / "f", point, point.parent / "f"):
        code = "EROFS" if path == point.parent / "f" else "EOPNOTSUPP"
        assert errno_of(os.setxattr, path, LEVEL, b"commit") == code
        assert errno_of(os.removexattr, path, LEVEL) == code
    assert os.getxattr(source / "f", LEVEL) == b"commit"


def test_no_copy_carries_the_level(lively: Live, tmp_path: Path) -> None:
    """cp -a and tar --xattrs out of a view, and within it, leave it behind, and nothing complains."""
    point = lively.view.point / "ro/stage"
    outside = tmp_path / "copied"
    done = lively.view.run("cp", "-a", "f", "f2", cwd=point)
    assert (done.returncode, done.stderr) == (0, "")
    done = lively.view.run("cp", "-a", point / "floored", outside, cwd=point)
    assert (done.returncode, done.stderr) == (0, "")
    for path in (lively.view.source / "ro/stage/f2", outside, outside / "f"):
        assert LEVEL not in os.listxattr(path)


def test_getfattr_prints_it(lively: Live) -> None:
    """The tool that a person has shows the level when asked for it, and not in a dump."""
    if shutil.which("getfattr") is None:
        absent("no getfattr here (Debian: attr)")
    done = lively.view.run("getfattr", "-n", LEVEL, "--only-values", "ro/stage/f")
    assert (done.returncode, done.stdout) == (0, "stage")
    assert LEVEL not in lively.view.run("getfattr", "-d", "ro/stage/f").stdout
    done = lively.view.run("getfattr", "-n", LEVEL, "ro/.env")
    assert (done.returncode, done.stdout) == (1, "")
    assert "No such file or directory" in done.stderr


def test_status_for_a_person(lively: Live) -> None:
    """Each view with its source, session file and what is open in it, and the numbers that tell what it is doing. No name
    is broken where nobody's terminal is that narrow."""
    done = lively.view.person.run("env", "COLUMNS=40", *PROGRAM, "status")
    assert (done.returncode, done.stderr) == (0, "")
    title, _, *lines = [line.strip() for line in done.stdout.splitlines() if line.strip()]
    assert title.split() == ["view", "open", "age", "req/s", "cached", "refused", "nodes", "files"]
    assert lines[0].startswith(f"{lively.view.point} ")
    assert lines[1].startswith(f"of {lively.view.source} ")
    assert lines[2].startswith(f"by {lively.session_file} ")
    for entry in lively.ask(do="view"):
        assert re.search(f"(^| ){entry['path']}  {entry['level']}( |$)", "\n".join(lines), re.MULTILINE), entry


def test_status_counts(lively: Live) -> None:
    """Its numbers move with what is done: requests, refusals, nodes, open files."""
    before = lively.status()
    assert before["process"] == lively.view.process
    assert before["source"] == str(lively.view.source)
    assert before["session_file"] == str(lively.session_file)
    assert 0 < before["age"] < 120
    with (lively.view.point / "ro/stage/new").open("w") as file:
        file.write("x")
        for _ in range(5):
            assert errno_of(os.listdir, lively.view.point / "ro/hidden") == "EACCES"
        after = lively.status()
    assert after["handles"] == before["handles"] + 1
    assert after["nodes"] > before["nodes"]
    assert after["refusals"] >= before["refusals"] + 5
    assert after["requests"] >= before["requests"] + 7
    assert after["requests_per_second"] > 0
    until(lambda: lively.status()["handles"] == before["handles"], "the file to be closed")


def test_status_as_json(lively: Live) -> None:
    """A list of what the sockets say, of all views or of the one that is named; nothing on standard error."""
    for arguments in ((), (lively.view.point,)):
        done = lively.view.person.policyfs("status", "--json", *arguments)
        assert (done.returncode, done.stderr) == (0, "")
        (status,) = json.loads(done.stdout)
        changing = {"age", "requests", "requests_per_second", "answered_from_cache", "refusals", "nodes", "handles"}
        now = lively.status()
        assert set(status) == {*now, "detached"}
        assert status["detached"] is False
        fixed = set(now) - changing - {"watches", "invalidations", "journal"}
        assert {key: status[key] for key in fixed} == {key: now[key] for key in fixed}


def test_status_where_nothing_is_mounted(source: Path) -> None:
    """Says so; as JSON it is an empty list; a directory that is not a view is named."""
    with myself() as person:
        done = person.policyfs("status")
        assert (done.returncode, done.stdout, done.stderr) == (0, "no view is mounted\n", "")
        assert json.loads(person.policyfs("status", "--json").stdout) == []
        for words in (("status",), ("reload",), ("grant", "/a=ro"), ("revoke", "/a")):
            done = person.policyfs(words[0], source, *words[1:])
            assert (done.returncode, done.stdout) == (PLACE, "")
            lists = "`policyfs status` lists the views of this user"
            assert done.stderr == f"policyfs: {source} is not a mounted view; {lists}\n"


def test_status_goes_on_watching(lively: Live) -> None:
    """With --watch on a terminal the table is drawn again as things change, until Ctrl-C."""
    terminal, end = pty.openpty()
    try:
        watching = lively.view.person.popen(
            *PROGRAM, "status", "--watch", stdin=end, stdout=end, stderr=end, process_group=0
        )
    finally:
        os.close(end)
    seen = bytearray()

    def shows(text: bytes) -> bool:
        while select.select([terminal], [], [], 0)[0]:
            seen.extend(os.read(terminal, 1 << 16))
        return text in seen

    with watching:
        try:
            until(lambda: shows(b"/ro/stage"), "the table")
            assert not shows(b"/away")
            lively.grant("/away", "ro")
            until(lambda: shows(b"/away"), "the table drawn again")
            os.killpg(watching.pid, signal.SIGINT)
            assert watching.wait(TIMEOUT) == 130
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(watching.pid, signal.SIGKILL)
            os.close(terminal)
            lively.revoke("/away")
    assert b"Traceback" not in seen
    done = lively.view.person.policyfs("status", "--watch", "--json")
    assert (done.returncode, done.stdout) == (USAGE, "")


def test_status_tells_of_a_daemon_that_was_killed(source: Path) -> None:
    """The dead mount is told of as long as it stands, with what to do; asking it says the same; after that its socket is
    cleaned away, and nothing is left."""
    with myself() as person, live(source, "/=ro", person=person) as lively:
        lively.view.kill()
        done = person.policyfs("reload", lively.view.point)
        assert done.returncode == FAILED
        point = lively.view.point
        assert done.stderr == f"policyfs: {point}: its daemon is gone; clean up with `policyfs umount {point}`\n"
        for _ in range(2):
            done = person.policyfs("status")
            assert (done.returncode, done.stdout) == (0, "")
            assert f"{lively.view.point} does not answer: its daemon is gone or stuck" in done.stderr
        assert lively.socket.exists()
        assert person.policyfs("umount", "--lazy", lively.view.point).returncode == 0
        done = person.policyfs("status")
        assert (done.stdout, done.stderr) == ("no view is mounted\n", "")
        assert not lively.socket.exists()


def test_a_mount_takes_the_place_of_a_socket_that_was_left(source: Path) -> None:
    """After kill -9 a view is mounted at the same place and asked as if nothing had been."""
    with myself() as person:
        point = person.home / "view"
        point.mkdir()
        with live(source, "/=ro", person=person, point=point) as lively:
            lively.view.kill()
            left = lively.socket
            with live(source, "/=ro", person=person, point=point) as again:
                assert again.socket == left
                assert again.status()["process"] == again.view.process


def test_names_cannot_play_with_a_terminal(tmp_path: Path) -> None:
    """A source and a grant with newlines and escapes in their names are shown as one line each, escaped."""
    source = tmp_path / "a\nof \x1b[2Jb"
    source.mkdir()
    (source / "x").mkdir()
    with mounted(source, "/x=ro", "/\x1b[31m\n  /  commit=ro") as view:
        for words in (("status",), ("reload", view.point)):
            done = view.person.run("env", "COLUMNS=250", *PROGRAM, *words)
            assert (done.returncode, done.stderr) == (0, "")
            assert "\x1b" not in done.stdout
            assert not [line for line in done.stdout.splitlines() if line.strip().startswith(("/  commit", "of b"))]
            assert "\\x1b[31m\\n  /  commit" in done.stdout


def test_explain_asks_the_view_that_is_mounted(lively: Live, tmp_path: Path) -> None:
    """For a path in a mounted view the policy in force answers, live changes and all; by a link to the mountpoint and by a
    relative path too; the session file says what it would be."""
    person, point = lively.view.person, lively.view.point
    (tmp_path / "link").symlink_to(point)

    def explained(*words: str | Path, cwd: Path | None = None) -> list[dict[str, Any]]:
        done = person.policyfs("explain", *words, "--json", cwd=cwd)
        assert (done.returncode, done.stderr) == (0, "")
        return [json.loads(line) for line in done.stdout.splitlines()]

    lively.grant("/away", "stage")
    try:
        told = told_of(lively.socket, "/away/f", "/ro/hidden/d", "/ro/.env")
        assert [values["level"] for values in told] == ["stage", "none", "none"]
        assert explained(point / "away/f", point / "ro/hidden/d", point / "ro/.env") == told
        assert explained(tmp_path / "link/away/f", point / "away/../ro/hidden/d") == told[:2]
        assert explained("away/f", "./ro/hidden/d", cwd=point) == told[:2]
        assert explained(point) == told_of(lively.socket, "/")
        (by_file,) = explained(lively.view.source, "/away/f", "-s", lively.session_file)
        assert by_file["level"] == "none"
        done = person.policyfs("explain", point / "away/f")
        assert done.stdout.startswith("/away/f\n  level     stage (")
        assert "  rule      grant /away = stage\n" in done.stdout
    finally:
        lively.revoke("/away")


def test_explain_of_a_view_takes_no_other_policy(lively: Live, tmp_path: Path) -> None:
    """Policy options beside a path in a mounted view are a mistake; so is a path that lies in none."""
    done = lively.view.person.policyfs("explain", lively.view.point / "ro", "-g", "/=ro")
    assert (done.returncode, done.stdout) == (USAGE, "")
    assert "has its policy" in done.stderr
    done = lively.view.person.policyfs("explain", lively.view.point / "ro", tmp_path)
    assert (done.returncode, done.stdout) == (FAILED, "")
    assert done.stderr == f"policyfs: {tmp_path} is in no mounted view; ask for it apart from those that are\n"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("/a b", "/a b is in no mounted view; for /a b of the view write `policyfs explain '{point}/a b'`"),
        ("", "PATH: empty: ``; write a path of the view, from / or from the start directory"),
        ("{point}/" + "n" * 256, "ENAMETOOLONG: Name too long: {point}/" + "n" * 256 + "; a name has at most 255 bytes"),
    ],
    ids=["of the view", "empty", "too long"],
)
def test_explain_says_how_a_path_of_a_view_is_written(lively: Live, text: str, message: str) -> None:
    """A path that is in no view, or is none at all, is told as what it is, also by itself."""
    point = str(lively.view.point)
    asked = text.replace("{point}", point)
    # By itself, a directory in no view is a SOURCE.
    for words in [[point, asked], *([] if text.startswith("/") else [[asked]])]:
        done = lively.view.person.policyfs("explain", *words)
        assert (done.returncode, done.stdout) == (FAILED, "")
        assert done.stderr == f"policyfs: {message}\n".replace("{point}", point)


def test_what_is_too_long_to_be_asked_for_is_told(lively: Live) -> None:
    """A path longer than a request: what to do is said, by every command that names one."""
    path = "/n" * 40_000
    for words in (("explain", f"{lively.view.point}{path}"), ("grant", str(lively.view.point), f"{path}=ro")):
        done = lively.view.person.policyfs(*words)
        assert (done.returncode, done.stdout) == (USAGE, "")
        assert done.stderr == "policyfs: a request is at most 65536 bytes; name fewer paths at once, or shorter ones\n"


def test_grant_and_revoke_say_what_is_open(lively: Live) -> None:
    """Both print what is open afterwards; a grant tells what keeps a path below what was granted; a time is a time."""
    person, point = lively.view.person, lively.view.point
    before = [f"  {path}" for path in ("/ro", "/ro/hidden/open", "/ro/stage", "/ro/stage/floored")]

    def paths(text: str) -> list[str]:
        return [line.rpartition("  ")[0].rstrip() for line in text.splitlines()]

    done = person.policyfs("grant", point, "/away=stage", "--for", "1h")
    assert (done.returncode, paths(done.stdout), done.stderr) == (0, ["  /away", *before], "")
    done = person.policyfs("revoke", point, "/ro/../away")
    assert (done.returncode, paths(done.stdout), done.stderr) == (0, before, "")
    done = person.policyfs("grant", point, "/ro/stage/floored=commit")
    assert done.returncode == 0
    assert done.stderr == (
        "policyfs: note: /ro/stage/floored is at ro all the same: floor /ro/stage/floored = ro (session)\n"
    )
    done = person.policyfs("grant", point, "/ro/.env=ro")
    assert "/ro/.env is at none all the same: " in done.stderr
    for words in (
        ("/away=rw",),
        ("away",),
        ("/away=ro", "--for", "0s"),
        ("/away=ro", "--for", "10"),
        ("/away=ro", "--for", "soon"),
        ("/away=ro", "--for", "-1"),
    ):
        done = person.policyfs("grant", point, *words)
        assert done.returncode in (USAGE, 3)
        assert done.stdout == ""
    assert errno_of(os.stat, point / "away") == "EACCES"
