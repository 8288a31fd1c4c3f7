"""What protects git: the parts of paths, the reading of configuration files, the judgement of contents."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyfs.policy import git, git_config, git_contents
from policyfs.policy.git import How, Judged
from policyfs.policy.git_config import NotAConfiguration, named, parse
from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, ViewPath, components
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.session import Session

SOURCE = HostPath(b"/somewhere/source")
ENVIRONMENT = {
    "PATH": os.environ["PATH"], "GIT_CONFIG_GLOBAL": os.devnull, "GIT_CONFIG_NOSYSTEM": "1", "HOME": "/nonexistent",
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@b", "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@b",
}  # fmt: skip

Git = Callable[..., bytes]


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A new repository."""
    run(tmp_path, "init", "-q")
    return tmp_path


def run(directory: Path, *words: str, input: bytes = b"") -> bytes:
    """What git prints, with nobody's configuration."""
    done = subprocess.run(["git", *words], cwd=directory, env=ENVIRONMENT, input=input, capture_output=True, check=True)
    return done.stdout


# -- parts

NAMES = st.sampled_from(
    [".git", ".GIT", "config", "Hooks", "modules", "worktrees", "w", "refs", "logs", "objects", "info", "alternates",
     "index", "rebase-merge", "strategy", "commondir", "sharedindex.1", "git", "x.git"]
)  # fmt: skip
PATHS = st.lists(NAMES, min_size=1, max_size=6).map(lambda names: ViewPath(b"/" + "/".join(names).encode()))


@given(
    grants=st.dictionaries(PATHS, st.sampled_from(Level), max_size=4),
    floors=st.dictionaries(PATHS, st.sampled_from(Level), max_size=2),
    path=PATHS,
    planted=st.lists(PATHS, max_size=2),
)
def test_the_compiled_policy_has_the_parts_that_the_text_tells(
    grants: dict[ViewPath, Level], floors: dict[ViewPath, Level], path: ViewPath, planted: list[ViewPath]
) -> None:
    """Whatever is granted, a path has the level that it would have without the protection, or ro where it is kept; and
    where it is seen, the part that its names give one after the other."""
    surroundings = Surroundings(SOURCE, git_directories=tuple(HostPath(SOURCE + place) for place in planted))
    session = Session(grants={ViewPath(b"/"): Level.COMMIT, **grants}, floors=floors)
    without = CompiledPolicy(session, surroundings).decide(path)
    protected = CompiledPolicy(Session(**{**vars_of(session), "protect_git": True}), surroundings)
    part = git.OUTSIDE
    above = b""
    for name in components(path):
        above += b"/" + name
        part = git.REPOSITORY if above in planted else part.child(name)
    place = protected.place(path)
    assert place.level is min(without.level, Level.RO if part.kept else Level.COMMIT)
    if place.level is not Level.NONE:
        assert place.git is part
    assert ("[git] protect" in str(place.rule)) == (part.kept and without.level > Level.RO)


def vars_of(session: Session) -> dict[str, object]:
    """The fields of a session."""
    return {name: getattr(session, name) for name in Session.__dataclass_fields__}


@pytest.mark.parametrize(
    ("source", "part"),
    [
        (b"/x", git.OUTSIDE),
        (b"/x/.git", git.REPOSITORY),
        (b"/x/.git/hooks/y", git.KEPT),
        (b"/x/.git/worktrees", git.WORKTREES),
    ],
)
def test_a_source_in_a_git_directory_has_its_part(source: bytes, part: git.Part) -> None:
    """A view of a part of a git directory keeps what the whole would."""
    session = Session(grants={ViewPath(b"/"): Level.STAGE}, protect_git=True)
    assert CompiledPolicy(session, Surroundings(HostPath(source))).root.git is part


def test_what_is_kept_stays_so_below() -> None:
    """Nothing below a kept path is anything else, and nothing leads out of a git directory."""
    parts = {part for part in vars(git).values() if isinstance(part, git.Part)}
    names = [*git.REVEALING, ".git", "x", "todo", "opts", "strategy", "git-rebase-todo", "alternates", "refs"]
    for part in parts - {git.UNPROTECTED, git.OUTSIDE}:
        for name in names:
            child = part.child(name.encode())
            assert child.inside
            assert not part.kept or child is git.KEPT
        assert part.kept or part.child(b".git") is git.REPOSITORY


def test_nothing_unjudged_becomes_what_is_judged() -> None:
    """What may be moved to a judged name comes from a git directory, and from no kept path."""
    parts = [part for part in vars(git).values() if isinstance(part, git.Part)]
    for new in parts:
        for old in parts:
            if old.may_become(new) and old is not new:
                assert old.inside
                assert new.inside
                assert not old.kept
                assert not new.kept
    assert all(git.make(git.LOOSE, part, How.SYMBOLIC_LINK) for part in parts if part.inside)
    assert all(git.make(git.OUTSIDE, git.REPOSITORY, how) for how in How if how is not How.FILE)


# -- configuration

LINES = st.lists(
    st.one_of(
        st.sampled_from(
            ["[core]", '[a "b"]', '[a "b\\"\\\\c"]', "[A.b]", "[core] x = 1 ; c", "key", "k = v", "k=v#c", 'k = "a b" c ',
             "k = a\\", "  b  ", 'k = "a;b"', "k = \\t\\n\\\\", "# c", "; c", "", "k = \t x  y \t", 'k = a"b  "',
             "[include]", "path = x\r"]
        ),
        st.text('[]"\\=ab .#;\t-', max_size=12),
    ),
    max_size=6,
)  # fmt: skip


@given(LINES)
def test_a_configuration_is_read_as_git_reads_it(tmp_path_factory: pytest.TempPathFactory, lines: list[str]) -> None:
    """What git refuses is refused; of the rest every line is found, with git's value."""
    file = tmp_path_factory.getbasetemp() / "configuration"
    content = "\n".join(lines).encode()
    file.write_bytes(content)
    done = subprocess.run(
        ["git", "config", "-z", "--list", "--file", str(file)], env=ENVIRONMENT, capture_output=True, check=False
    )
    try:
        read = b"".join(
            entry.name.encode() + (b"" if entry.value is None else b"\n" + entry.value) + b"\0" for entry in parse(content)
        )
    except NotAConfiguration:
        assert done.returncode != 0, done.stdout
    else:
        assert done.returncode != 0 or read == done.stdout


@pytest.mark.parametrize(
    ("configuration", "paths"),
    [
        ("[core]\nhooksPath = .husky", [(b".husky", True)]),
        ("[core]\nfsmonitor = true\npager = less -F", []),
        ("[core]\nfsmonitor = ./watch.sh -x", [(b"./watch.sh", True)]),
        ('[filter "x"]\nclean = python tools/clean.py %f', [(b"tools/clean.py", False)]),
        ('[filter "x"]\nsmudge = sh clean.sh', [(b"clean.sh", False)]),
        ('[alias]\na = !./run\nb = log a/b', [(b"./run", True)]),
        ('[credential "https://x/y"]\nhelper = !/opt/helper get', [(b"/opt/helper", True)]),
        ('[submodule "x"]\nupdate = !./x', [(b"./x", True)]),
        ('[remote "x"]\nurl = ../y\nuploadpack = ./z', [(b"./z", True)]),
    ],
)
def test_what_a_configuration_names(configuration: str, paths: list[tuple[bytes, bool]]) -> None:
    """Programs are found in the keys that name them; a word of a command that may be a path is told as uncertain."""
    assert [(each.path, each.certain) for each in named(parse(configuration.encode()))] == paths


# -- contents


def files(count: int) -> bytes:
    """As many entries for `git update-index --index-info`."""
    blob = "e69de29bb2d1d6434b8b29ae775ad8c2e48c5391"
    return b"".join(f"100644 {blob}\td{number % 7}/f{number}\n".encode() for number in range(count))


@pytest.mark.parametrize("version", ["2", "4"])
@pytest.mark.parametrize("threads", ["1", "4"])
def test_an_index_of_git_may_be_found(repository: Path, version: str, threads: str) -> None:
    """Whatever git writes is taken for git's: each version, with blocks and without, split, sparse and of a conflict."""
    configured = ("-c", f"index.version={version}", "-c", f"index.threads={threads}")
    run(repository, *configured, "update-index", "--index-info", input=files(1000))
    content = (repository / ".git/index").read_bytes()
    assert content[7] == int(version)
    assert (b"IEOT" in content) == (threads == "4")
    assert git_contents.index_fault(content, 20) is None
    run(repository, *configured, "update-index", "--split-index")
    run(repository, *configured, "update-index", "--index-info", input=files(1010))
    for split in ((repository / ".git/index"), *(repository / ".git").glob("sharedindex.*")):
        assert git_contents.index_fault(split.read_bytes(), 20) is None


def test_an_index_of_sha256(repository: Path) -> None:
    """The object format is the caller's to know: an index of the one is none of the other."""
    (repository / "new").mkdir()
    run(repository / "new", "init", "-q", "--object-format=sha256")
    (repository / "new/a").write_text("a")
    run(repository / "new", "add", "a")
    content = (repository / "new/.git/index").read_bytes()
    assert git_contents.index_fault(content, 32) is None
    assert git_contents.index_fault(content, 20) is not None


def with_path(version: int, path: bytes, mode: int = 0o100644, length: int | None = None) -> bytes:
    """An index of one entry."""
    flags = (min(len(path), 0xFFF) if length is None else length).to_bytes(2, "big")
    fixed = bytes(24) + mode.to_bytes(4, "big") + bytes(32) + flags
    entry = fixed + b"\0" + path + b"\0" if version == 4 else fixed + path + bytes(8 - len(fixed + path) % 8)
    return b"DIRC" + bytes([0, 0, 0, version, 0, 0, 0, 1]) + entry + b"\1" * 20


@pytest.mark.parametrize("version", [2, 4])
@pytest.mark.parametrize(
    "path",
    [b".git", b".git/x", b"a/.GIT/x", b"../x", b"a/../x", b"a/..", b"/etc/x", b"a//b", b"a/", b"./a", b"a/.", b"", b".giT"],
)
def test_a_path_that_leads_away_is_found(version: int, path: bytes) -> None:
    """An entry outside the work tree or in a .git is found, in each version; its neighbour by name is not."""
    assert git_contents.index_fault(with_path(version, path), 20) is not None
    assert git_contents.index_fault(with_path(version, b"x.git/.github/..a/b.."), 20) is None


def test_a_directory_of_a_sparse_index_ends_in_a_slash() -> None:
    """Which no file does."""
    assert git_contents.index_fault(with_path(2, b"a/", mode=0o040000), 20) is None
    assert git_contents.index_fault(with_path(2, b".git/", mode=0o040000), 20) is not None


def test_bytes_that_git_would_read_otherwise_are_found(repository: Path) -> None:
    """A length that is not the path's, a table of blocks or an end of entries that is not where they are: git goes by what
    is told there."""
    assert git_contents.index_fault(with_path(2, b"abc", length=2), 20) is not None
    run(repository, "-c", "index.threads=4", "update-index", "--index-info", input=files(1000))
    content = (repository / ".git/index").read_bytes()
    table = content.index(b"IEOT") + 12
    for changed in (table, table + 4, content.index(b"EOIE") + 8):
        other = bytearray(content)
        other[changed + 3] ^= 8
        assert git_contents.index_fault(bytes(other), 20) is not None
    # An extension that holds what git takes for the other one, which comes last.
    assert git_contents.index_fault(content[:-20] + b"TREE" + bytes([0, 0, 0, 0]) + content[-20:], 20) is None
    within = b"EOIE" + (24).to_bytes(4, "big") + (12).to_bytes(4, "big") + bytes(20)
    hidden = content[: content.index(b"EOIE")] + b"UNTR" + len(within).to_bytes(4, "big") + within + content[-20:]
    assert git_contents.index_fault(hidden, 20) is not None
    unknown = content[: content.index(b"EOIE")] + b"xxxx" + bytes(4) + content[-20:]
    assert git_contents.index_fault(unknown, 20) is not None


@given(st.integers(0, 4), st.lists(st.tuples(st.integers(0, 200), st.integers(0, 255)), max_size=6), st.integers(0, 200))
def test_any_bytes_are_judged(version: int, changes: list[tuple[int, int]], cut: int) -> None:
    """Whatever an index is made of, there is an answer."""
    content = bytearray(with_path(version, b"a/b"))
    for at, value in changes:
        content[at % len(content)] = value
    answer = git_contents.index_fault(bytes(content[: len(content) - cut]), 20)
    assert answer is None or answer


@pytest.mark.parametrize(
    ("judged", "content", "fine"),
    [
        (Judged.COMMANDS, b"pick 1 exec x\n# exec\nbreak\nexecute\nlabel x\n", True),
        (Judged.COMMANDS, b"pick 1\nexec", False),
        (Judged.COMMANDS, b"\t x\ty", False),
        (Judged.COMMANDS, b"x\0", False),
        (Judged.COMMANDS, b"pick 1\nx\r\n", False),
        (Judged.STRATEGY, b"ort\n", True),
        (Judged.STRATEGY, b"x/y", False),
        (Judged.OPTIONS, b"[options]\n\tstrategy = ort\n\tstrategy-option = subtree=a/b\n", True),
        (Judged.OPTIONS, b"[options]\n\tSTRATEGY = \"x/y\"\n", False),
        (Judged.OPTIONS, b"not one", False),
        (Judged.CONFLICTS, b"abc.1\ta/b\0abc\tc\0", True),
        (Judged.CONFLICTS, b"abc\ta\0abc\t../c\0", False),
        (Judged.CONFLICTS, b"abc", False),
        (Judged.COMMON, b"../..\n", True),
        (Judged.COMMON, b"../../", False),
        (Judged.COMMON, b"../..\0/x", False),
    ],
)
def test_small_contents(judged: Judged, content: bytes, fine: bool) -> None:
    """What leads to a program or out of the work tree is found; what git writes is not."""
    assert (git_contents.fault(judged, content) is None) is fine


@pytest.mark.parametrize(
    "content", [b"gitdir: ", b"gitdir: a\nb", b"gitdir: a\0b", b"gitdir:a", b" gitdir: a", b"gitdir: a\r\n"]
)
def test_a_git_file_names_one_path(content: bytes) -> None:
    """Nothing that git could read in another way."""
    assert git_contents.named_path(content, b"gitdir: ") is None
    assert git_contents.named_path(b"gitdir: /a b\n", b"gitdir: ") == b"/a b"


def test_git_config_is_sha256() -> None:
    """The last word on the object format is the repository's configuration."""
    assert git_config.is_sha256(parse(b"[extensions]\nobjectFormat = sha256\n"))
    assert not git_config.is_sha256(parse(b"[core]\nx = sha256\n"))
