"""`mount -t fuse.policyfs`: mount(8) itself finds the helper, and what fstab asks for holds or nothing is mounted."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest

from policyfs.cli.mount_helper import Asked, asked
from policyfs.host.errors import UserFault
from tests.mount.expecting import absent, require_fuse
from tests.mount.harness import Person, myself

PROGRAM = f"'{sys.executable}' -I -c 'from policyfs.cli.mount_helper import main; main()' \"$@\""

# -- the text of -o


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", Asked()),
        ("rw,defaults,nofail,x-systemd.automount,X-mount.mkdir,comment=mine,nosuid,nodev", Asked()),
        ("session=/etc/a.toml", Asked(("--session", "/etc/a.toml"))),
        ('session="/etc/a,b.toml",rw', Asked(("--session", "/etc/a,b.toml"))),
        ("grant=/=ro,grant=/a b=stage", Asked(("--grant", "/=ro", "--grant", "/a b=stage"))),
        ("read_root=~,write_root=~/Downloads", Asked(("--read-root", "~", "--write-root", "~/Downloads"))),
        ("protect_git", Asked(("--protect-git",))),
        ("ro,allow_case_folding", Asked(("--floor", "/=ro", "--allow-case-folding"))),
        ("setuid=me,preset=home", Asked(("--preset", "home"), "me")),
    ],
)
def test_options_become_words_of_the_command(text: str, expected: Asked) -> None:
    """Each option is that of `policyfs mount`; what every view is, or mount(8) means for itself, needs nothing."""
    assert asked(text) == expected


@pytest.mark.parametrize(
    "text", ["suid", "dev", "noexec", "remount", "bind", "allow_other", "session", "session=", "ro=1", "setuid", "Session=x"]
)
def test_what_cannot_be_followed_is_refused(text: str) -> None:
    """No option is passed over, since it may be one that guards something."""
    with pytest.raises(UserFault, match=f"-o {text} "):
        asked(f"rw,{text}")


# -- mount(8)


@pytest.fixture
def tree(source: Path) -> Path:
    """A tree that everybody can read."""
    (source / "open").mkdir()
    (source / "open/a").write_text("a\n")
    (source / "secret").write_text("s\n")
    for path in (source, *source.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    return source


Script = Callable[..., subprocess.CompletedProcess[str]]

_NAMESPACE = r"""
sbin=$1 program=$2 point=$3; shift 3
umount -a -l -t fuse.policyfs
# mount(8) looks for its helpers in /sbin alone. There, for this namespace, stand links to what was there, and one more.
mkdir "$sbin/was" "$sbin/is"
mount --bind "$(readlink -f /sbin)" "$sbin/was"
ln -s "$sbin"/was/* "$sbin/is/"
ln -s "$program" "$sbin/is/mount.fuse.policyfs"
mount --bind "$sbin/is" "$(readlink -f /sbin)"
trap 'umount -l "$point" 2>/dev/null || true' EXIT
eval "$1"
"""


@pytest.fixture
def as_mount_runs_it(as_root: None, tree: Path, tmp_path: Path) -> Script:
    """Runs a shell script as root in a mount namespace where mount(8) finds the helper; `$SOURCE` and `$POINT` are there,
    and what it mounts at `$POINT`
    ends with it."""
    require_fuse()
    if shutil.which("unshare") is None:
        absent("no unshare here (Debian: util-linux)")
    program = tmp_path / "helper"
    program.write_text(f"#!/bin/sh\nexec {PROGRAM}\n")
    program.chmod(0o755)
    sbin, point = tmp_path / "sbin", tmp_path / "point"
    sbin.mkdir()
    point.mkdir()

    def run(script: str, beside: Person | None = None) -> subprocess.CompletedProcess[str]:
        """`beside` is somebody whose namespace it is to be like."""
        enter = [] if beside is None else ["nsenter", "-t", str(beside.namespace), "-m", "--"]
        with myself() as person:
            return subprocess.run(
                [
                    *enter,
                    "unshare",
                    "-m",
                    "--propagation",
                    "private",
                    "bash",
                    "-uc",
                    _NAMESPACE,
                    "-",
                    sbin,
                    program,
                    point,
                    script,
                ],
                env={**person.environment, "SOURCE": str(tree), "POINT": str(point), "LC_ALL": "C"},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )

    return run


def test_mount_finds_the_helper(as_mount_runs_it: Script) -> None:
    """`mount -t fuse.policyfs SOURCE POINT -o ...` mounts a view without a word, and `umount` ends it."""
    done = as_mount_runs_it(
        """
        set -e
        mount -t fuse.policyfs "$SOURCE" "$POINT" -o grant=/open=stage,nofail
        ls "$POINT/open"; echo b > "$POINT/open/b"; cat "$SOURCE/open/b"
        cat "$POINT/secret" || true
        findmnt -no FSTYPE "$POINT"
        umount "$POINT"
        findmnt "$POINT" || echo gone
        """
    )
    assert done.stdout == "a\nb\nfuse.policyfs\ngone\n", done.stderr
    assert done.stderr.splitlines()[0].startswith("policyfs: note: the view has passages")
    assert done.stderr.splitlines()[1].endswith("/point/secret: Permission denied")
    assert done.returncode == 0


def test_a_line_of_fstab_is_mounted(as_mount_runs_it: Script, tmp_path: Path) -> None:
    """A line of fstab with a session file whose name has a blank mounts, and `ro` makes all of it read-only."""
    (tmp_path / "my session.toml").write_text('[grants]\n"/" = "stage"\n')
    fstab = tmp_path / "fstab"
    fstab.write_text(
        f"{tmp_path}/source {tmp_path}/point fuse.policyfs ro,noauto,session={tmp_path}/my\\040session.toml 0 0\n"
    )
    done = as_mount_runs_it(f'mount -T {fstab} "$POINT" && cat "$POINT/open/a" && touch "$POINT/open/a"; umount "$POINT"')
    assert done.stdout == "a\n", done.stderr
    assert done.stderr.strip().endswith("Read-only file system")


def test_setuid_mounts_as_that_user(
    as_root: None, ordinary_user: Person, as_mount_runs_it: Script, tree: Path, tmp_path: Path
) -> None:
    """With `setuid=USER` root mounts for somebody else, whose daemon it is: they can use it, and root cannot."""
    point = tmp_path / "point"
    for path in (*point.parents, point):
        if Path(tempfile.gettempdir()) in path.parents:
            path.chmod(0o755)
    os.chown(point, ordinary_user.uid, ordinary_user.uid)
    done = as_mount_runs_it(
        f"""
        set -e
        cp /etc/passwd {tmp_path}/passwd
        echo somebody:x:{ordinary_user.uid}:{ordinary_user.uid}::{ordinary_user.home}:/bin/sh >> {tmp_path}/passwd
        mount --bind {tmp_path}/passwd /etc/passwd
        mount -t fuse.policyfs "$SOURCE" "$POINT" -o setuid=somebody,grant=/=ro
        setpriv --reuid={ordinary_user.uid} --regid={ordinary_user.uid} --clear-groups cat "$POINT/open/a"
        find {ordinary_user.home}/.local/state/policyfs -name '*.log' -user somebody | wc -l
        cat "$POINT/open/a"
        """,
        ordinary_user,
    )
    assert done.stdout == "a\n1\n", done.stderr
    assert "Permission denied" in done.stderr


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        ("grant=/=ro,noexec", 1, "-o noexec is not an option of a view"),
        ("grant=/=rw", 32, '"rw" is not a level'),
        ("preset=house", 1, "house"),
        ("session=/no/such/file", 32, "cannot be read"),
        ("session=/a.toml,session=/b.toml", 1, "--session is given 2 times"),
        ("rw", 32, "no grant"),
        ("grant=/=ro,setuid=no-such-user", 1, "there is no such user"),
    ],
)
def test_a_fault_is_told_with_a_status_of_mount(as_mount_runs_it: Script, options: str, status: int, said: str) -> None:
    """What cannot be followed ends in one line, a status that mount(8) documents, and no mount."""
    done = as_mount_runs_it(
        f'mount -t fuse.policyfs "$SOURCE" "$POINT" -o {options}; echo $?; findmnt "$POINT" || echo nothing'
    )
    assert done.stdout == f"{status}\nnothing\n"
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_a_fake_mount_mounts_nothing(as_mount_runs_it: Script) -> None:
    """`mount -f` looks at the options and goes no further."""
    done = as_mount_runs_it(
        'mount -f -t fuse.policyfs "$SOURCE" "$POINT" -o grant=/=ro; echo $?; findmnt "$POINT" || echo nothing'
    )
    assert done.stdout == "0\nnothing\n", done.stderr
