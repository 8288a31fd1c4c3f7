"""A link shows its own name and text and nothing else: following it leads to no hidden thing, moving it shows no other one,
and making one tells nothing of what another says. Out of a bare mount none leads but where the session lists."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.mount.expecting import errno_of, refused
from tests.mount.harness import mounted

FOLLOWING = {
    "stat": os.stat,
    "open": lambda path: os.open(path, os.O_RDONLY),
    "open to write": lambda path: os.open(path, os.O_WRONLY),
    "list": os.listdir,
    "truncate": lambda path: os.truncate(path, 0),
    "chmod": lambda path: os.chmod(path, 0o777),
    "access": lambda path: os.close(os.open(path, os.O_PATH)),
}


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("secret/diary", "ENOENT"),
        ("secret/gone", "ENOENT"),
        ("secret", "ENOENT"),
        ("secret/../project", "ENOENT"),
        ("way/closed", "EACCES"),
        ("way/gone", "EACCES"),
        ("by-directory/secret/diary", "ENOENT"),
        ("pointing", "ENOENT"),
        ("{source}/secret/diary", "ENOENT"),
        ("loop/../secret/diary", "ELOOP"),
        ("one/../secret/diary", "ELOOP"),
        ("gone/../secret/diary", "ENOENT"),
    ],
)
def test_a_link_to_a_hidden_place_is_shown_and_leads_to_nothing(source: Path, text: str, answer: str) -> None:
    """Whatever stands on the way: each call that follows it is answered as the hidden path itself, and changes nothing."""
    for directory in ("secret", "project", "way/open", "way/closed"):
        (source / directory).mkdir(parents=True)
    (source / "secret/diary").write_text("hidden")
    for name, says in (
        ("loop", "loop"),
        ("one", "two"),
        ("two", "one"),
        ("by-directory", "."),
        ("pointing", "secret/diary"),
    ):
        (source / name).symlink_to(says)
    (source / "pointer").symlink_to(text.format(source=source))
    grants = ("/=stage", "/secret=none", "/way=none", "/way/open=ro")
    with mounted(source, *grants) as view:
        pointer = view.point / "pointer"
        assert "pointer" in os.listdir(view.point)
        assert os.readlink(pointer) == text.replace("{source}/", "")
        assert {call: errno_of(act, pointer) for call, act in FOLLOWING.items()} == dict.fromkeys(FOLLOWING, answer)
        with refused("EEXIST"):
            os.mkdir(pointer)
        os.unlink(pointer)
    assert (source / "secret/diary").read_text() == "hidden"
    assert not os.path.lexists(source / "pointer")


@pytest.mark.parametrize(
    "text", ["secret/diary", "project/../secret", "loop/../secret/diary", "gone/../secret", "{source}/secret"]
)
def test_no_link_is_made_that_names_what_is_hidden(source: Path, text: str) -> None:
    """By symlink, rename and link: the owner's tools would follow it."""
    (source / "secret").mkdir()
    (source / "project").mkdir()
    (source / "loop").symlink_to("loop")
    text = text.format(source=source)
    with mounted(source, "/=stage", "/secret=none") as view:
        with refused("EACCES"):
            os.symlink(text, view.point / "other")
        if not text.startswith("/"):
            os.symlink(text, view.point / "project/other")
            with refused("EACCES"):
                os.rename(view.point / "project/other", view.point / "other")
            with refused("EACCES"):
                os.link(view.point / "project/other", view.point / "other", follow_symlinks=False)


@pytest.mark.parametrize(
    "text", ["{above}/../{name}/source/secret/diary", "../{name}/source/secret/diary", "{above}/beside"]
)
def test_a_link_that_leads_out_is_judged_where_it_lands(tmp_path: Path, text: str) -> None:
    """Also in a listed place, and where it comes into SOURCE by a path that is not the view's."""
    source, name = tmp_path / "source", tmp_path.name
    (source / "secret").mkdir(parents=True)
    (source / "secret/diary").write_text("hidden")
    (tmp_path / "beside").write_text("beside")
    written = text.format(above=tmp_path, name=name)
    (source / "pointer").symlink_to(written)
    session = f"""[grants]
"/" = "stage"
"/secret" = "none"
[links]
outside = ["{tmp_path}"]
"""
    with mounted(source, session=session) as view:
        # The mount is elsewhere, so that one which climbs ends where nothing is listed.
        if text.endswith("beside"):
            assert (view.point / "pointer").read_text() == "beside"
        else:
            with refused("ENOENT"):
                os.readlink(view.point / "pointer")
            with refused("EACCES"):
                os.symlink(written, view.point / "other")


def test_moving_a_directory_moves_what_its_links_land_on(tmp_path: Path) -> None:
    """At another depth a relative text lands elsewhere. A link to a hidden place is shown before and after, and leads to
    nothing. One that leads out is not shown; where it leads into the view it is, as a link that dangles."""
    source = tmp_path / "source"
    (source / "proj/sub").mkdir(parents=True)
    (source / "Private").mkdir()
    (source / "Private/layoffs.txt").write_text("secret")
    (source / "proj/sub/notes").symlink_to("../../Private/layoffs.txt")
    (source / "proj/sub/data").symlink_to("/srv/clients/takeover")
    (source / "proj/sub/up").symlink_to("../../../clients/takeover")
    (source / "proj/via").symlink_to("sub/notes")
    with mounted(source, "/proj=stage") as view:
        top = view.point / "proj"
        assert sorted(os.listdir(top / "sub")) == ["notes"]
        (top / "a/b/c").mkdir(parents=True)
        os.rename(top / "sub", top / "a/b/c/sub")
        assert sorted(os.listdir(top / "a/b/c/sub")) == ["notes", "up"]
        with refused("ENOENT"):
            os.lstat(top / "a/b/c/sub/data")
        for name in ("notes", "up"):
            with refused("ENOENT"):
                os.stat(top / "a/b/c/sub" / name)
        assert os.readlink(top / "via") == "sub/notes"


WAYS = ("out", "gone", "nothing")
TEXTS = [
    f"/{'../' * up}{tail}"
    for up in range(7)
    for tail in ("", "f", "source/pub/f", "Private/x", "usr/bin", "etc/passwd", "srv/deep/target")
]


def test_making_links_tells_nothing_of_one_that_is_not_shown(tmp_path: Path) -> None:
    """Depth and prefix of a text that nobody sees: through that link the same may be made as through a name that is
    missing."""
    source = tmp_path / "source"
    (source / "pub").mkdir(parents=True)
    (source / "Private").mkdir()
    (source / "pub/f").write_text("f")
    (source / "pub/out").symlink_to("/srv/deep/down/target")
    with mounted(source, "/=stage", "/Private=none") as view:
        probe = view.point / "pub/probe"
        made = {}
        for way in WAYS:
            for text in TEXTS:
                made[way, text] = errno_of(os.symlink, way + text, probe)
                if made[way, text] is None:
                    os.unlink(probe)
    answers = [[made[way, text] for text in TEXTS] for way in WAYS]
    assert answers[0] == answers[1] == answers[2]
    assert set(answers[0]) == {None, "EACCES"}


def test_a_chain_that_no_kernel_follows_is_removed(source: Path) -> None:
    """One of more than 40 links is shown, is ELOOP for whoever follows it, and goes with `rm -rf`."""
    chain = source / "chain"
    chain.mkdir()
    for number in range(60):
        (chain / f"{number}").symlink_to(f"{number + 1}")
    (chain / "60").write_text("end")
    with mounted(source, "/=stage") as view:
        assert len(os.listdir(view.point / "chain")) == 61
        assert (view.point / "chain/20").read_text() == "end"
        assert os.readlink(view.point / "chain/0") == "1"
        with refused("ELOOP"):
            os.stat(view.point / "chain/0")
        subprocess.run(["rm", "-rf", view.point / "chain"], check=True)
    assert os.listdir(source) == []


# -- a bare mount -----------------------------------------------------------------------------------------------------


def test_a_virtual_environment_is_removed(source: Path) -> None:
    """`rm -rf` of a directory with links that are not shown takes them along, and nothing behind them."""
    interpreter = source.parent / "python"
    (interpreter / "bin").mkdir(parents=True)
    (interpreter / "bin/python3").write_text("kept")
    (source / ".venv/bin").mkdir(parents=True)
    (source / ".venv/lib/empty").mkdir(parents=True)
    (source / ".venv/bin/python").symlink_to(interpreter / "bin/python3")
    (source / ".venv/bin/python3").symlink_to("python")
    (source / ".venv/lib/all").symlink_to(interpreter)
    (source / ".venv/pyvenv.cfg").write_text("home = x\n")
    with mounted(source, "/=stage") as view:
        assert os.listdir(view.point / ".venv/bin") == ["python3"]
        subprocess.run(["rm", "-rf", view.point / ".venv"], check=True)
        assert os.listdir(view.point) == []
    assert os.listdir(source) == []
    assert (interpreter / "bin/python3").read_text() == "kept"


def test_no_hidden_thing_is_removed_along(source: Path) -> None:
    """A directory that holds a hidden file, a link by a hidden name or one at `ro` beside links that are not shown stays,
    and so does everything in it."""
    kept = {"file": "out/key.pem", "denied": "out/.env", "read-only": "out/fixed"}
    for name in kept:
        (source / name / "out").mkdir(parents=True)
        for link in ("one", "two"):
            (source / name / "out" / link).symlink_to("/srv/x")
    (source / "file/out/key.pem").write_text("hidden")
    (source / "denied/out/.env").symlink_to("/srv/x")
    (source / "read-only/out/fixed").symlink_to("/srv/x")
    with mounted(source, "/=stage", "/read-only/out/fixed=ro") as view:
        for name in kept:
            assert os.listdir(view.point / name / "out") == []
            with refused("EBUSY" if name == "read-only" else "ENOTEMPTY"):
                os.rmdir(view.point / name / "out")
    for name, path in kept.items():
        assert sorted(os.listdir(source / name / "out")) == sorted(["one", "two", path.rpartition("/")[2]])


def test_git_sees_a_tracked_link_to_a_hidden_place(source: Path) -> None:
    """Nothing is deleted for git, and a commit of everything keeps the link."""

    def git(top: Path, *words: str) -> str:
        own = {"GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_SYSTEM": os.devnull, "PATH": os.environ["PATH"]}
        names = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "safe.directory=*")
        return subprocess.run(["git", "-C", top, *names, *words], env=own, check=True, capture_output=True, text=True).stdout

    (source / "Private").mkdir()
    (source / "Private/diary").write_text("hidden")
    (source / "pointer").symlink_to("Private/diary")
    git(source, "init", "-q")
    git(source, "add", "pointer")
    git(source, "commit", "-qm", "one")
    with mounted(source, "/=stage", "/Private=none") as view:
        assert git(view.point, "status", "--porcelain") == ""
        (view.point / "new").write_text("new")
        git(view.point, "add", "-A")
        git(view.point, "commit", "-qm", "two")
        assert git(view.point, "ls-files") == "new\npointer\n"
    assert os.readlink(source / "pointer") == "Private/diary"
