"""A mountpoint inside SOURCE, and other mounts there."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from tests.mount.expecting import errno_of, refused, until
from tests.mount.lifecycle.ground import mounted


def test_a_mountpoint_inside_the_source_never_enters_itself(source: Path) -> None:
    """A walk of the view ends, finds everything else, and neither lists nor finds the mount point by its name. A link that
    leads there is shown, as every link is at its own level (rule link-3), and leads to nothing."""
    point = source / "inside/view"
    point.mkdir(parents=True)
    (source / "inside/f").write_text("content")
    (source / "link").symlink_to("inside/view")
    (source / "around").symlink_to("inside/../inside/view/inside/f")
    with mounted(source, "/=stage", point=point, deadline=20) as view:
        found = view.run("find", ".", "-printf", "%P\n", timeout=15).stdout.split()
        assert sorted(found) == ["around", "inside", "inside/f", "link"]
        assert (point / "inside/f").read_text() == "content"
        for name in ("inside/view", "inside/view/inside/f"):
            assert errno_of(os.lstat, point / name) == "ENOENT", name
        for name in ("link", "around"):
            for act in (os.stat, os.listdir):
                assert errno_of(act, point / name) == "ENOENT", (name, act)
        assert errno_of(os.mkdir, point / "inside/view") == "EACCES"
        assert errno_of(os.rmdir, point / "inside/view") == "ENOENT"
        assert view.run("du", "-s", ".", timeout=15).returncode == 0


def test_the_view_of_a_whole_file_system_holds_itself(tmp_path: Path, as_root: None) -> None:
    """SOURCE is /: the mount below it is not entered, nor any other mount."""
    with mounted(Path("/"), f"{tmp_path}=stage", deadline=20) as view:
        (tmp_path / "f").write_text("content")
        assert (view.point / str(tmp_path)[1:] / "f").read_text() == "content"
        with refused("EACCES"):
            os.listdir(view.point)
        assert errno_of(os.lstat, view.point / "proc/self") == "EACCES"


def test_other_mounts_in_the_source_are_hidden_and_told(source: Path, as_root: None) -> None:
    """A file system mounted inside SOURCE is not entered, before or after the view is mounted, and a note names it."""
    for name in ("before", "after"):
        (source / name).mkdir()
        (source / name / "beneath").touch()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", source / "before"], check=True)
    try:
        (source / "before/inner").touch()
        with mounted(source, "/=stage") as view:
            assert f"{source}/before is another mount (tmpfs)" in view.notes
            assert os.listdir(view.point) == ["after"]
            assert os.listdir(view.point / "after") == ["beneath"]
            subprocess.run(["mount", "-t", "tmpfs", "tmpfs", source / "after"], check=True)
            try:
                (source / "after/inner").touch()
                until(lambda: os.listdir(view.point) == [], "the mount made meanwhile to be hidden", 4)
                for name in ("before", "before/inner", "after/inner"):
                    assert errno_of(os.lstat, view.point / name) in ("ENOENT", "ESTALE"), name
                assert errno_of(os.mkdir, view.point / "before") == "EACCES"
            finally:
                subprocess.run(["umount", source / "after"], check=True)
    finally:
        subprocess.run(["umount", source / "before"], check=True)


def test_where_another_mount_stood_its_directory_is_found_again(source: Path, as_root: None) -> None:
    """An unmounting raises no event: the name that was missing is asked for again within a second."""
    (source / "d").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "tmpfs", source / "d"], check=True)
    try:
        with mounted(source, "/=stage") as view:
            assert errno_of(os.lstat, view.point / "d") == "ENOENT"
            subprocess.run(["umount", source / "d"], check=True)
            until(lambda: errno_of(os.lstat, view.point / "d") is None, "the directory to be found", 4)
    finally:
        subprocess.run(["umount", source / "d"], stderr=subprocess.DEVNULL, check=False)
