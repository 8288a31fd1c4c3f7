"""No view changes the code that policyfs itself runs from (policyfs/host/own_code.py), tried on real mounts.

policyfs is started from a checkout and an environment in the home, and a session gets a view of the whole home at
`commit`. What it left there would be executed by the person's next `policyfs`.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Iterator
from pathlib import Path

import pytest

from policyfs.host import own_code
from tests.adversary.source_state import changes, state_of
from tests.mount import expecting, harness
from tests.mount.harness import Person, mounted, ordinary_user

CHECKOUT = Path(__file__).resolve().parents[2]

CODE = (
    "src/policyfs", "src/policyfs/policyfs", "src/policyfs/policyfs/__init__.py", "src/policyfs/policyfs/new.py",
    "src/policyfs/scripts/environment.sh", "src/policyfs/pyproject.toml", "src/policyfs/new.py",
    "env", "env/pyvenv.cfg", "env/bin", "env/bin/python", "env/lib/python/site-packages/own.pth",
    "env/lib/python/site-packages/new.py", "env/lib/python/site-packages/new", "link",
)  # fmt: skip
"""What policyfs executes, as it lies in the home: what is there and what could be put there."""

ATTACK = r"""
import os, sys
view, succeeded = sys.argv[1], []
fresh = view + "/fresh"

def write(path, flags):
    os.close(os.open(path, flags | os.O_WRONLY, 0o755))

def replace(path, make):
    make(fresh)
    try:
        os.rename(fresh, path)
    finally:
        os.remove(fresh) if os.path.islink(fresh) or os.path.isfile(fresh) else os.rmdir(fresh)

for name in sys.argv[2:]:
    path = view + "/" + name
    for what, act in {
        "append": lambda: write(path, os.O_APPEND),
        "truncate": lambda: write(path, os.O_TRUNC),
        "make": lambda: write(path, os.O_CREAT | os.O_EXCL),
        "make a directory": lambda: os.mkdir(path),
        "make a file in": lambda: write(path + "/trio.py", os.O_CREAT),
        "make a directory in": lambda: os.mkdir(path + "/trio"),
        "make a link in": lambda: os.symlink("/tmp", path + "/trio"),
        "chmod": lambda: os.chmod(path, 0o777),
        "set an attribute": lambda: os.setxattr(path, "user.x", b"x"),
        "replace by a file": lambda: replace(path, lambda at: write(at, os.O_CREAT)),
        "replace by a directory": lambda: replace(path, os.mkdir),
        "replace by a link": lambda: replace(path, lambda at: os.symlink("notes", at)),
        "take away": lambda: os.rename(path, view + "/away"),
        "give another name": lambda: os.link(path, view + "/other", follow_symlinks=False),
        "remove": lambda: os.remove(path),
        "remove a directory": lambda: os.rmdir(path),
        "take away the directory of": lambda: os.rename(os.path.dirname(path), view + "/away"),
    }.items():
        try:
            act()
        except OSError:
            continue
        succeeded.append(f"{what} {name}")
write(view + "/notes/new", os.O_CREAT)
print(*succeeded, sep="\n", end="")
"""
"""Each attempt ends in an error, and the last line shows that the view can be written."""


@pytest.fixture(scope="module", params=[0, 1000], ids=["root", "user"])
def somebody(request: pytest.FixtureRequest, as_root: None) -> Iterator[Person]:
    """Somebody with a mount namespace of their own, and with policyfs in their home."""
    with ordinary_user(request.param) as person:
        install(person.home)
        for place in (person.home, *person.home.rglob("*")):
            if ".namespace" not in place.parts:
                os.lchown(place, person.uid, person.uid)
        yield person


def install(home: Path) -> None:
    """A checkout in the home, and an environment that reaches it through a link."""
    checkout = home / "src/policyfs"
    checkout.mkdir(parents=True)
    for name in ("policyfs", "scripts"):
        shutil.copytree(CHECKOUT / name, checkout / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(CHECKOUT / "pyproject.toml", checkout)
    (home / "link").symlink_to("src/policyfs")
    (home / "notes").mkdir()
    subprocess.run([sys.executable, "-I", "-m", "venv", "--without-pip", home / "env"], check=True)
    # A name that does not depend on the release, for the paths that are tried.
    (home / "env/lib/python").symlink_to(f"python3.{sys.version_info.minor}")
    # Or the first use of each module would change the tree.
    subprocess.run([sys.executable, "-I", "-m", "compileall", "-q", checkout], check=True)
    library = home / "env/lib/python/site-packages"
    (library / "own.pth").write_text(f"# not a path\n{home}/link\n{sysconfig.get_path('purelib')}\n")


@pytest.fixture
def person(somebody: Person) -> Person:
    """The same, whose `policyfs` is the one in the home."""
    program = (str(somebody.home / "env/bin/python"), *harness.PROGRAM[1:])
    done = somebody.run(*program[:2], "-c", "import policyfs; print(policyfs.__file__)")
    assert done.stdout == f"{somebody.home}/link/policyfs/__init__.py\n", done
    return dataclasses.replace(somebody, program=program)


def attack(person: Person, view: Path) -> str:
    """Which attempts on the code succeeded in a view of the home; what they changed in the home is a failure."""
    before = {name: state_of(person.home / name) for name in ("src", "env")}
    done = person.python(ATTACK, view, *CODE)
    assert done.returncode == 0, done.stderr
    for name, state in before.items():
        assert changes(state, state_of(person.home / name)) == []
    return done.stdout


def test_no_view_of_the_home_changes_what_policyfs_executes(person: Person) -> None:
    """The checkout, the environment, the links to them and what is not there yet stay as they are, and can be read."""
    with mounted(person.home, "/=commit", person=person) as view:
        assert attack(person, view.point) == ""
        assert view.run("head", "-c3", "src/policyfs/policyfs/__init__.py").stdout == '"""'
        told = person.policyfs("explain", person.home, "/src/policyfs/scripts/policyfs", "-g", "/=commit").stdout
        assert "floor /src/policyfs = ro (policyfs's own code)" in told


def test_no_view_of_the_code_itself(person: Person) -> None:
    """A view of the checkout, or of a directory in it, is read-only whatever is granted."""
    for source in ("src/policyfs", "src/policyfs/policyfs/policy"):
        with mounted(person.home / source, "/=commit", person=person) as view:
            assert view.run("touch", "new").returncode == 1
            assert view.run("test", "-w", ".").returncode == 1


def test_no_view_of_the_code_under_another_mount(person: Person) -> None:
    """What another mount shows of the home is the same code."""
    enter = ("nsenter", "-t", str(person.namespace), "-m", "--")
    other = person.home / "other"
    other.mkdir()
    os.chown(other, person.uid, person.uid)
    subprocess.run([*enter, "mount", "--bind", person.home, other], check=True)
    try:
        with mounted(other, "/=commit", person=person) as view:
            assert attack(person, view.point) == ""
    finally:
        subprocess.run([*enter, "umount", "--lazy", other], check=True)
        other.rmdir()


def test_no_run_changes_what_policyfs_executes(person: Person) -> None:
    """`run` shows the code read-only: in its view, and beside it, where `--bind` is refused."""
    if shutil.which("bwrap") is None:
        expecting.absent("no bwrap here (Debian: bubblewrap)")
    home = str(person.home)
    before = state_of(person.home / "src")
    script = 'echo x >>"$0/src/policyfs/policyfs/__init__.py"; touch "$0/env/new"; touch "$0/notes/by-run" && echo yes'
    done = person.policyfs("run", home, "-g", "/=commit", "--", "sh", "-c", script, home)
    assert done.stdout == "yes\n", done
    done = person.policyfs("run", f"{home}/notes", "-g", "/=ro", "--bind", f"{home}/src", "--", "true")
    assert done.returncode != 0
    assert "may not be changed: floor" in done.stderr
    assert "policyfs's own code" in done.stderr
    assert changes(before, state_of(person.home / "src")) == []


def test_policyfs_starts_nothing_else_by_name(tmp_path: Path) -> None:
    """The programs that are protected are all that policyfs finds by PATH: with no others it mounts, runs and unmounts."""
    expecting.require_fuse()
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in own_code.PROGRAMS:
        found = shutil.which(name)
        if found is not None:
            (programs / name).symlink_to(found)
    source = tmp_path / "source"
    source.mkdir()
    environment = {"HOME": str(tmp_path), "PATH": str(programs), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    prepared(environment)
    with harness.myself() as person:
        view = person.home / "view"
        view.mkdir()
        for words in (
            ["mount", source, view, "-g", "/=ro"],
            ["status"],
            ["umount", view],
            ["run", source, "-g", "/=ro", "--", "/bin/true"],
        ):
            argv = [CHECKOUT / "scripts/policyfs", *words]
            done = subprocess.run(argv, env=environment, capture_output=True, text=True, check=False, timeout=60)
            assert done.returncode == 0, (words, done.stderr)


def prepared(environment: dict[str, str]) -> None:
    """What scripts/policyfs would make at its first use: here the environment of the tests stands in for it."""
    script = '. "$scripts/environment.sh"; echo "$environment"; cat "$root"/{pyproject.toml,scripts/environment.sh} | digest'
    told = subprocess.run(
        ["bash", "-c", script],
        env={**environment, "scripts": str(CHECKOUT / "scripts")},
        capture_output=True,
        text=True,
        check=True,
    )
    directory, fingerprint = told.stdout.split("\n")[:2]
    (Path(directory) / "bin").mkdir(parents=True)
    (Path(directory) / "installed").write_text(fingerprint)
    (Path(directory) / "bin/policyfs").write_text("from policyfs.cli import main; main()")
    (Path(directory) / "bin/python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    (Path(directory) / "bin/python").chmod(0o755)
