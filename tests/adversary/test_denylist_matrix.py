"""The built-in denylist on a real mount: each rule in each spelling, by every way in and every kind of reader.

The view is of a whole home at `stage`, the widest grant there is. What is denied says SECRET and what is open says OPEN,
so that a tool which saw nothing at all is not taken for one that saw nothing secret.
"""

from __future__ import annotations

import contextlib
import mmap
import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from policyfs.policy import denylist
from tests.adversary.source_state import changes, state_of
from tests.mount.expecting import errno_of, refused
from tests.mount.harness import Mounted, mounted, myself

SECRET = b"SECRET"
OPEN = b"OPEN"

# As rules deny-1 to deny-4 have them, written out once more: a rule that is lost from the product is missed here.
DIRECTORIES = (".ssh", ".gnupg", ".aws", ".config/gh", ".kube", ".azure", ".config/gcloud", ".password-store")
FILES = (".docker/config.json", ".netrc", ".git-credentials", ".npmrc", ".pypirc", ".pgpass", ".cargo/credentials.toml")
NAMES = (".env", ".env.local", ".env.example", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "credentials.json")
EXTENSIONS = (".pem", ".key", ".p12", ".pfx", ".jks", ".kdbx")
NEAR_MISSES = (
    ".envrc", "env", ".environment", "id_rsa.pub", "my_id_rsa", "credentials.json.bak", "pem", "key.txt", "x.pemx",
    "monkey", "cacert.pem", "p12",
)  # fmt: skip


def spellings(name: str) -> list[str]:
    """A name as it is, in capitals, with a capital, and in turns."""
    turns = "".join(letter.upper() if number % 2 else letter.lower() for number, letter in enumerate(name))
    return list(dict.fromkeys([name, name.upper(), name.title(), turns]))


DENIED_NAMES = [spelling for name in NAMES for spelling in spellings(name)]
DENIED_NAMES += [spelling for end in EXTENSIONS for spelling in spellings(f"server{end}")] + list(EXTENSIONS)


class Home(NamedTuple):
    """A mounted home and the one behind it."""

    view: Mounted
    at: Path
    behind: Path


@pytest.fixture(scope="module")
def home() -> Iterator[Home]:
    """A home with every denied place and name in it, and near misses beside them."""
    with myself() as person:
        behind = person.home
        for place in DIRECTORIES:
            (behind / place).mkdir(parents=True)
            (behind / place / "secret").write_bytes(SECRET)
        for place in FILES:
            (behind / place).parent.mkdir(parents=True, exist_ok=True)
            (behind / place).write_bytes(SECRET)
        for directory in ("project", "project/deep/er"):
            (behind / directory).mkdir(parents=True)
            for name in DENIED_NAMES:
                (behind / directory / name).write_bytes(SECRET)
            for name in NEAR_MISSES:
                (behind / directory / name).write_bytes(OPEN)
        # A denied name may be a directory's, and hides all below it.
        (behind / "project" / "certificates.pem" / "sub").mkdir(parents=True)
        (behind / "project" / "certificates.pem" / "sub" / "plain.txt").write_bytes(SECRET)
        with mounted(behind, "/=stage", person=person, deadline=100) as view:
            yield Home(view, view.point, behind)


def test_rules_are_those_of_the_design() -> None:
    """The product's list holds every rule that this module tries, and no other."""
    assert {f"~/{place}" for place in (*DIRECTORIES, *FILES)} == set(denylist.HOME_PLACES)
    assert set(EXTENSIONS) == set(denylist.EXTENSIONS)
    assert {name for name in NAMES if not name.startswith(".env.")} | {".env.*"} == set(denylist.NAMES)


DENIED = (
    [f"{place}/secret" for place in DIRECTORIES]
    + list(FILES)
    + [f"project/{name}" for name in DENIED_NAMES]
    + [f"project/deep/er/{name}" for name in DENIED_NAMES]
    + ["project/certificates.pem/sub/plain.txt"]
)
"""Every file that is denied."""


# -- one file at a time --------------------------------------------------------------------------------------------------


def _mapped(path: Path) -> bytes:
    with open(path, "rb") as file, mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ) as mapped:
        return mapped[:]


def _sent(path: Path) -> bytes:
    read, write = os.pipe()
    with open(read, "rb") as pipe:
        try:
            with open(path, "rb") as file:
                os.sendfile(write, file.fileno(), 0, 4096)
        finally:
            os.close(write)
        return pipe.read()


def _copied(path: Path) -> bytes:
    # Within the mount: between two file systems the kernel refuses, whatever they are.
    copy = path.parent / "copied"
    try:
        with open(path, "rb") as file, open(copy, "wb") as other:
            os.copy_file_range(file.fileno(), other.fileno(), 4096)
        return copy.read_bytes()
    finally:
        copy.unlink(missing_ok=True)


def _spliced(path: Path) -> bytes:
    read, write = os.pipe()
    with open(read, "rb") as pipe:
        try:
            with open(path, "rb") as file:
                os.splice(file.fileno(), write, 4096)
        finally:
            os.close(write)
        return pipe.read()


def _by_pieces(path: Path) -> bytes:
    directory = os.open("/", os.O_PATH)
    try:
        for name in path.parts[1:-1]:
            below = os.open(name, os.O_PATH, dir_fd=directory)
            os.close(directory)
            directory = below
        file = os.open(path.name, os.O_RDONLY, dir_fd=directory)
        try:
            return os.pread(file, 4096, 0)
        finally:
            os.close(file)
    finally:
        os.close(directory)


READERS: dict[str, Callable[[Path], bytes]] = {
    "read": Path.read_bytes,
    "mmap": _mapped,
    "sendfile": _sent,
    "copy_file_range": _copied,
    "splice": _spliced,
    "openat by pieces": _by_pieces,
    "dots in the path": lambda path: Path(f"{path.parent}/./../{path.parent.name}//{path.name}").read_bytes(),
    "the working directory": lambda path: _from_inside(path),
}


def _from_inside(path: Path) -> bytes:
    with contextlib.chdir(path.parent):
        return Path(path.name).read_bytes()


@pytest.mark.parametrize("reader", READERS)
def test_reader_finds_no_denied_file(home: Home, reader: str) -> None:
    """Each denied file is missing to each kind of system call that could read it, and near misses are there."""
    read = READERS[reader]
    assert {errno_of(read, home.at / path) for path in DENIED} == {"ENOENT"}
    for name in NEAR_MISSES:
        assert read(home.at / "project" / name) == OPEN


@pytest.mark.parametrize("place", [*DIRECTORIES, *FILES])
def test_denied_place_cannot_be_touched(home: Home, place: str) -> None:
    """A denied place of the home is missing, cannot be made, and keeps the directory above it where it is."""
    path = home.at / place
    assert path.name not in os.listdir(path.parent)
    for looking in (os.stat, os.listdir, os.readlink, os.unlink, os.rmdir):
        with refused("ENOENT"):
            looking(path)
    for making in (os.mkdir, os.mkfifo, Path.touch):
        with refused("EACCES"):
            making(path)
    if path.parent != home.at:
        with refused("EXDEV"):
            path.parent.rename(home.at / "elsewhere")
    assert SECRET in (home.behind / place / "secret" if place in DIRECTORIES else home.behind / place).read_bytes()


@pytest.mark.parametrize("name", DENIED_NAMES)
def test_denied_name_cannot_be_made(home: Home, name: str, tmp_path: Path) -> None:
    """A denied name is refused alike where it is taken and where it is free, in an old directory, in one that was made a
    moment ago through the mount, and in one that was made a moment ago in the source."""
    through, behind = home.at / f"through-{tmp_path.name}", home.behind / f"behind-{tmp_path.name}"
    through.mkdir()
    behind.mkdir()
    (behind / name).write_bytes(SECRET)
    plain, directory = home.at / f"plain-{tmp_path.name}", home.at / f"directory-{tmp_path.name}"
    plain.write_bytes(OPEN)
    directory.mkdir()
    try:
        assert os.listdir(home.at / behind.name) == []
        with refused("ENOENT"):
            (home.at / behind.name / name).read_bytes()
        for above in (home.at / "project", through, home.at / behind.name):
            path = above / name
            for making in (os.mkdir, os.mkfifo, Path.touch):
                with refused("EACCES"):
                    making(path)
            for making_of in (os.rename, os.link, os.replace):
                with refused("EACCES"):
                    making_of(plain, path)
            for text in (OPEN, name.encode()):
                with refused("EACCES"):
                    os.symlink(text, os.fsencode(path))
            with refused("EACCES"):
                os.rename(directory, path)
        assert os.listdir(home.behind / through.name) == []
        assert (behind / name).read_bytes() == SECRET
    finally:
        os.unlink(plain)
        for one in (through, directory):
            os.rmdir(one)
        shutil.rmtree(behind)


@pytest.mark.parametrize("path", [".ssh/secret", ".netrc", "project/.env", "project/SERVER.PEM", "project/certificates.pem"])
@pytest.mark.parametrize("style", ["relative", "absolute", "of the mount", "through another link"])
def test_link_leads_to_no_denied_file(home: Home, path: str, style: str, tmp_path: Path) -> None:
    """A link to something denied is seen and leads to nothing, whichever way it says where it leads; nor is it made, unless
    only another link makes it lead there."""
    name = f"link-{tmp_path.name}"
    other = home.behind / f"{name}-other"
    other.symlink_to(Path(path).parent, target_is_directory=True)
    text = {
        "relative": path,
        "absolute": str(home.behind / path),
        "of the mount": str(home.at / path),
        "through another link": f"{other.name}/{Path(path).name}",
    }[style]
    (home.behind / name).symlink_to(text)
    try:
        assert name in os.listdir(home.at)
        assert (home.at / name).is_symlink()
        for looking in (os.stat, Path.read_bytes):
            with refused("ENOENT"):
                looking(home.at / name)
        if style == "through another link" and not path.startswith("project/"):
            os.symlink(text, home.at / f"{name}-new")
            with refused("ENOENT"):
                (home.at / f"{name}-new").read_bytes()
            os.unlink(home.at / f"{name}-new")
        else:
            with refused("EACCES"):
                os.symlink(text, home.at / f"{name}-new")
        os.unlink(home.at / name)
        assert not os.path.lexists(home.behind / name)
    finally:
        (home.behind / name).unlink(missing_ok=True)
        os.unlink(other)


def test_link_that_is_moved_is_judged_where_it_arrives(home: Home) -> None:
    """A link that lands on nothing where it is made cannot be moved to where it would land on something denied."""
    pointer, moved = home.at / "project/deep/er/pointer", home.at / "project/deep/pointer"
    # From here /project/.ssh, which no rule names; from one directory up it would be the home's own.
    os.symlink("../../.ssh", pointer)
    try:
        with refused("EACCES"):
            os.rename(pointer, moved)
        with refused("EACCES"):
            os.link(pointer, moved, follow_symlinks=False)
        assert os.readlink(pointer) == "../../.ssh"
    finally:
        os.unlink(pointer)


# -- aliases -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("path", [f"{place}/secret" for place in DIRECTORIES] + list(FILES))
def test_hard_link_of_a_credential_is_hidden(home: Home, path: str, tmp_path: Path) -> None:
    """A second name of a file in a built-in credential place is missing, wherever it stands and whenever it was made;
    what it holds is neither read nor written."""
    alias = f"alias-{tmp_path.name}.txt"
    os.link(home.behind / path, home.behind / "project" / alias)
    try:
        assert alias not in os.listdir(home.at / "project")
        with refused("ENOENT"):
            (home.at / "project" / alias).read_bytes()
        with refused("ENOENT"):
            os.truncate(home.at / "project" / alias, 0)
        with refused("ENOENT"):
            os.rename(home.at / "project" / alias, home.at / "project" / f"{alias}.moved")
        assert (home.behind / path).read_bytes() == SECRET
    finally:
        os.unlink(home.behind / "project" / alias)


def test_hard_link_of_a_new_credential_is_hidden(home: Home) -> None:
    """A credential that appears while the view is mounted is known by its other names too."""
    (home.behind / ".ssh" / "new").write_bytes(SECRET)
    os.link(home.behind / ".ssh" / "new", home.behind / "project" / "alias-new.txt")
    try:
        with refused("ENOENT"):
            (home.at / "project" / "alias-new.txt").read_bytes()
    finally:
        os.unlink(home.behind / "project" / "alias-new.txt")
        os.unlink(home.behind / ".ssh" / "new")


# -- tools over the whole tree -------------------------------------------------------------------------------------------

_PYTHON = """
import os, sys, shutil, glob
shutil.copytree(".", sys.argv[1], symlinks=True)
for path in glob.glob("**/*", recursive=True, include_hidden=True):
    if os.path.isfile(path):
        sys.stdout.buffer.write(open(path, "rb").read())
"""

_NODE = """
const fs = require("fs"), path = require("path");
for (const name of fs.readdirSync(".", { recursive: true })) {
  console.log(name);
  if (fs.statSync(name).isFile()) process.stdout.write(fs.readFileSync(name));
}
fs.cpSync(".", process.argv[1], { recursive: true });
"""

TOOLS: dict[str, list[str]] = {
    "tar": ["sh", "-c", "tar -cf \"$1/out.tar\" . && tar -xOf \"$1/out.tar\" && tar -tf \"$1/out.tar\"", "sh"],
    "rsync": ["sh", "-c", 'rsync -a --exclude=.local ./ "$1/copy/" && cat "$1"/copy/project/*.txt', "sh"],
    "cp": ["sh", "-c", 'cp -a . "$1/copy" && cat "$1"/copy/project/*.txt', "sh"],
    "grep": ["grep", "-r", "-a", "-e", "SECRET", "-e", "OPEN", "."],
    "rg": ["rg", "-uuu", "-a", "SECRET|OPEN", "."],
    "find": ["find", ".", "-type", "f", "-print", "-exec", "cat", "{}", ";"],
    "git": [
        "sh", "-c",
        (
            'export GIT_DIR="$1/repository" GIT_WORK_TREE=.; git init -q && git add -A -f . && git ls-files && '
            "git grep --cached -a -e SECRET -e OPEN"
        ),
        "sh",
    ],
    "git without an index": ["git", "grep", "--no-index", "--no-exclude-standard", "-a", "-e", "SECRET", "-e", "OPEN"],
    "python": ["python3", "-c", _PYTHON],
    "node": ["node", "-e", _NODE, "--"],
}  # fmt: skip


@pytest.mark.parametrize("tool", TOOLS)
def test_tool_finds_nothing_denied(home: Home, tool: str, tmp_path: Path) -> None:
    """A tool that walks the whole home, and copies it, gets nothing that is denied: neither bytes nor names."""
    command = TOOLS[tool]
    if shutil.which(command[0]) is None or shutil.which(tool.split()[0]) is None:
        pytest.skip(f"no {tool} here")
    target = tmp_path / ("target" if tool in ("python", "node") else "")
    words = [*command, str(target)] if command[0] in ("sh", "python3", "node") else command
    done = home.view.run(*words, timeout=100)
    said = (done.stdout + done.stderr).encode("utf-8", "surrogateescape")
    assert OPEN in said, done.stderr
    assert SECRET not in said
    assert not {line.rpartition(b"/")[2].decode("utf-8", "replace") for line in said.splitlines()} & {*DENIED_NAMES}
    assert not holding_secrets(tmp_path)
    assert not {path.name for path in tmp_path.rglob("*")} & {*DENIED_NAMES, "certificates.pem"}


def holding_secrets(directory: Path) -> list[str]:
    """Files below a directory that hold what is denied."""
    done = subprocess.run(["grep", "-r", "-l", "-a", "SECRET", str(directory)], capture_output=True, text=True, check=False)
    return done.stdout.splitlines()


def test_everything_denied_is_as_it_was(home: Home) -> None:
    """Nothing that a whole module of attempts did has changed a denied file."""
    for path in DENIED:
        assert (home.behind / path).read_bytes() == SECRET
    before = state_of(home.behind / ".ssh")
    errno_of(os.rmdir, home.at / ".ssh")
    assert changes(before, state_of(home.behind / ".ssh")) == []
