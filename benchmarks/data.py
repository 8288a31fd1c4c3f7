"""The data that is measured over, built once and kept below the data directory.

Each file system gets a source tree of its own, because some lines write. The trees are copies of one template, so that
all three hold the same. Only the large file is shared by hard links: nothing writes it.

What git, rg and python are given is made of a seeded generator, so that every machine measures the same bytes.
"""

from __future__ import annotations

import compileall
import dataclasses
import json
import os
import random
import shutil
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

VERSION = 1
"""Raised when the data changes: what was kept is then built anew."""

NEEDLE = "needle"

_WORDS = ["session", "view", "grant", "floor", "level", "passage", "standing", "refusal", "mount", "name", "path", "tree"]

GIT_ENVIRONMENT = {
    "GIT_CONFIG_GLOBAL": "/dev/null",
    "GIT_CONFIG_NOSYSTEM": "1",
    "GIT_AUTHOR_NAME": "benchmark",
    "GIT_AUTHOR_EMAIL": "benchmark@example.org",
    "GIT_COMMITTER_NAME": "benchmark",
    "GIT_COMMITTER_EMAIL": "benchmark@example.org",
    "GIT_TERMINAL_PROMPT": "0",
    "GIT_CONFIG_COUNT": "1",
    "GIT_CONFIG_KEY_0": "maintenance.auto",
    "GIT_CONFIG_VALUE_0": "false",
}
"""A person's own git configuration (hooks, a file system monitor, signing) must not take part, nor a collection that git
starts in the background."""


@dataclasses.dataclass(frozen=True)
class Sizes:
    """How much of everything. The full sizes are the benchmark's; a scale makes all of it smaller."""

    repository_directories: int = 100
    files_in_directory: int = 100
    switched_files: int = 500
    modules: int = 300
    wide_entries: int = 20_000
    narrow_entries: int = 100
    archived_files: int = 5_000
    large_file_mebibytes: int = 512
    written_mebibytes: int = 128
    created_files: int = 500
    deep_files: int = 100_000
    small_source: int = 1_000
    huge_source: int = 1_000_000

    def scaled(self, scale: float) -> Sizes:
        """All sizes times `scale`, at least one of each; the directories that lines are named after keep their entries."""
        kept = {"files_in_directory", "narrow_entries", "small_source"}
        return Sizes(
            **{
                name: size if name in kept else max(1, round(size * scale))
                for name, size in dataclasses.asdict(self).items()
            }
        )


class Data:
    """The data directory: `source(name)` is the tree of a file system, with everything measured in its `data`."""

    def __init__(self, directory: Path, sizes: Sizes, say: Callable[[str], None]) -> None:
        self.directory = directory
        self.sizes = sizes
        self._say = say

    @property
    def template(self) -> Path:
        return self.directory / "template"

    @property
    def archive(self) -> Path:
        return self.directory / "archive.tar"

    @property
    def origin(self) -> Path:
        """What is cloned: outside all views, so that only writing the clone is measured."""
        return self.template / "data" / "repository"

    def source(self, name: str) -> Path:
        return self.directory / "sources" / name

    def filled(self, name: str) -> Path:
        """A source of many files of which nothing is read: what starting may depend on."""
        return self.directory / "filled" / name

    def build(self, names: list[str], *, large: bool) -> None:
        """Build what is missing of the template, and a copy of it for each of `names`."""
        wanted = {"version": VERSION, **dataclasses.asdict(self.sizes)}
        stamp = self.directory / "built.json"
        if not stamp.exists() or json.loads(stamp.read_text()) != wanted:
            self._say("building the data, once")
            for kept in ("template", "sources", "filled", "archive.tar", "built.json"):
                _remove(self.directory / kept)
            self._build_template()
            stamp.write_text(json.dumps(wanted))
        if large and not (self.template / "data" / "deep").exists():
            self._say(f"building a deep tree of {self.sizes.deep_files:,} files, once")
            _build_whole(self.template / "data" / "deep", self._deep)
        for name in names:
            self._copy(name, large=large)
        self._fill("small", self.sizes.small_source)
        if large:
            self._fill("huge", self.sizes.huge_source)

    def _build_template(self) -> None:
        data = self.template / "data"
        data.mkdir(parents=True)
        self._repository(data / "repository")
        self._modules(data / "modules")
        _flat(data / "wide", self.sizes.wide_entries)
        _flat(data / "narrow", self.sizes.narrow_entries)
        (data / "scratch").mkdir()
        generator = random.Random(7)
        with open(data / "large", "wb") as file:
            file.writelines(generator.randbytes(1 << 20) for _ in range(self.sizes.large_file_mebibytes))
        archived = self.directory / "archived"
        _remove(archived)
        _tree(archived, self.sizes.archived_files, 50)
        with tarfile.open(self.archive, "w") as archive:
            archive.add(archived, "archived")
        _remove(archived)

    def _repository(self, repository: Path) -> None:
        generator = random.Random(1)
        paths = []
        for directory in range(self.sizes.repository_directories):
            place = repository / f"directory-{directory:03}"
            place.mkdir(parents=True)
            for number in range(self.sizes.files_in_directory):
                paths.append(place / f"file-{number:03}.txt")
                paths[-1].write_text(_text(generator, 60))
        (paths[0].parent / "file-000.txt").write_text(f"{NEEDLE}\n")

        git("init", "--quiet", "--initial-branch=main", within=repository)
        git("add", ".", within=repository)
        git("commit", "--quiet", "--message=First", within=repository)
        git("switch", "--quiet", "--create=other", within=repository)
        for path in generator.sample(paths[1:], min(self.sizes.switched_files, len(paths) - 1)):
            path.write_text(_text(generator, 60))
        git("commit", "--quiet", "--all", "--message=Second", within=repository)
        git("switch", "--quiet", "main", within=repository)
        git("gc", "--quiet", within=repository)

    def _modules(self, modules: Path) -> None:
        generator = random.Random(2)
        modules.mkdir()
        names = [f"module_{number:03}" for number in range(self.sizes.modules)]
        for name in names:
            functions = (f'def function_{n}():\n    """{_text(generator, 8)}"""\n    return {n}\n' for n in range(20))
            (modules / f"{name}.py").write_text("\n\n".join(functions))
        (modules / "all_modules.py").write_text("".join(f"import {name}\n" for name in names))
        compileall.compile_dir(modules, quiet=1, workers=1)

    def _deep(self, deep: Path) -> None:
        _tree(deep, self.sizes.deep_files, 20)

    def _copy(self, name: str, *, large: bool) -> None:
        data = self.source(name) / "data"
        data.mkdir(parents=True, exist_ok=True)
        for part in sorted((self.template / "data").iterdir()):
            if (data / part.name).exists() or (part.name == "deep" and not large):
                continue
            if part.is_file():
                os.link(part, data / part.name)
                continue
            self._say(f"copying {part.name} for {name}, once")

            def copy(place: Path, part: Path = part) -> None:
                subprocess.run(["cp", "-a", part, place], check=True)

            _build_whole(data / part.name, copy)
        self._as_new(data)

    def _as_new(self, data: Path) -> None:
        """Undo what an interrupted run left, and let git's index know the copy: otherwise the first status reads all."""
        _remove(data / "scratch")
        (data / "scratch").mkdir()
        repository = data / "repository"
        _remove(repository / ".git" / "index.lock")
        git("switch", "--quiet", "--discard-changes", "main", within=repository)
        git("update-index", "-q", "--refresh", within=repository)

    def first_file(self, name: str) -> Path:
        """A file of a filled source, relative to it."""
        assert self.filled(name).exists()
        return Path("data", *_nested(0), "small-0000000")

    def _fill(self, name: str, count: int) -> None:
        if not self.filled(name).exists():
            self._say(f"building a source of {count:,} files, once")
            self.filled(name).parent.mkdir(exist_ok=True)
            _build_whole(self.filled(name), lambda place: _tree(place / "data", count, 1_000, content=""))


def git(*words: str, within: Path) -> None:
    """Run git natively, on data that is being prepared."""
    subprocess.run(["git", "-c", "gc.auto=0", *words], cwd=within, check=True, env={**os.environ, **GIT_ENVIRONMENT})


def _build_whole(place: Path, build: Callable[[Path], None]) -> None:
    """Build aside and rename, so that what is there is whole even where a run was interrupted."""
    aside = place.with_name(f"{place.name}.part")
    _remove(aside)
    build(aside)
    aside.rename(place)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _text(generator: random.Random, words: int) -> str:
    return "\n".join(" ".join(generator.choices(_WORDS, k=10)) for _ in range(max(1, words // 10))) + "\n"


def _flat(directory: Path, count: int) -> None:
    directory.mkdir()
    for number in range(count):
        (directory / f"entry-{number:05}").touch()


def _tree(directory: Path, count: int, width: int, content: str = "a small file\n" * 8) -> None:
    """`count` small files, `width` to a directory, in directories that nest up to four levels."""
    for start in range(0, count, width):
        place = directory.joinpath(*_nested(start // width))
        place.mkdir(parents=True)
        for number in range(start, min(start + width, count)):
            (place / f"small-{number:07}").write_text(content)


def _nested(number: int) -> tuple[str, ...]:
    """Where the directory of this number lies: 1234 in 1/2/34."""
    digits = f"{number:04}"
    return (*digits[:-2], digits[-2:])
