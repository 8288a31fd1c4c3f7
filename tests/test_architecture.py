"""The layers of docs/architecture.md: who imports whom, who reaches the source, and what every name owes its reader."""

from __future__ import annotations

import ast
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

import policyfs
from policyfs.fuse.kernel_cache import CachedDirectory, CachedInode

PACKAGE = Path(policyfs.__file__).parent

# -- imports

VALUES = {
    "__future__", "collections", "dataclasses", "enum", "errno", "fnmatch", "functools", "itertools", "operator", "re",
    "stat", "string", "tomllib", "types", "typing", "unicodedata",
}  # fmt: skip
"""What `policy` may import: modules of the standard library that hold values and do nothing."""

def modules() -> Iterator[tuple[str, str, ast.Module]]:
    """Every module of the package: its layer, its file and its syntax tree."""
    for file in sorted(PACKAGE.rglob("*.py")):
        inside = file.relative_to(PACKAGE)
        layer = inside.parts[0] if len(inside.parts) > 1 else inside.stem
        yield "policyfs" if layer == "__init__" else layer, str(inside), ast.parse(file.read_bytes())


MODULES = list(modules())


def imported(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Every module that is imported anywhere in a module, with the line. Importing `x` from `policyfs` counts as
    `policyfs.x`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((node.lineno, alias.name) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "imports are absolute, so that an arrow can be read in them"
            module = node.module or ""
            if module == "policyfs":
                yield from ((node.lineno, f"policyfs.{alias.name}") for alias in node.names)
            else:
                yield node.lineno, module


def impure_imports(tree: ast.Module) -> list[str]:
    """What a module imports besides values and `policyfs` itself."""
    return [name for _, name in imported(tree) if name.partition(".")[0] not in VALUES | {"policyfs"}]


def test_the_decision_is_pure() -> None:
    """`policy` imports nothing that does input or output. (The arrows between rooms: `lint-imports`, pyproject.toml.)"""
    assert [(file, impure_imports(tree)) for room, file, tree in MODULES if room == "policy" and impure_imports(tree)] == []


@pytest.mark.parametrize("text", ["import os", "from pathlib import Path", "def f():\n    import time"])
def test_an_impure_import_is_found(text: str) -> None:
    """The walk above sees each of these."""
    assert impure_imports(ast.parse(text))


def test_no_import_by_name() -> None:
    """Imports that no walk of the imports sees: only the command line has one, for its own commands, and the package,
    for its public names. Both may import all."""
    found = [
        file
        for _, file, tree in MODULES
        for node in ast.walk(tree)
        if (isinstance(node, ast.Name) and node.id in ("__import__", "importlib", "exec", "eval"))
    ]
    assert set(found) <= {"cli/commands.py", "__init__.py"}


# -- the source is reached through one door

DOOR = "source/root.py"
BEHIND_THE_DOOR = {"source", "view", "fuse", "daemon", "agent", "doctor"}

WITHOUT_PATH = {
    "close", "dup", "dup2", "fdatasync", "fdopen", "fsdecode", "fsencode", "fstat", "fsync", "ftruncate", "getegid",
    "geteuid", "getgid", "getpid", "getuid", "pipe", "pread", "preadv", "pwrite", "read", "set_blocking", "set_inheritable",
    "strerror", "umask", "write",
}  # fmt: skip
"""Functions of `os` that take a descriptor or nothing: with them nobody gets at a path."""

EXCEPTIONS = {
    ("fuse/memory.py", "ctypes"): "malloc_trim(3), which touches no file",
    ("daemon/control.py", "os.open"): "the directory of a socket",
    ("daemon/control.py", "pathlib"): "the sockets, which lie in policyfs's own runtime directory",
    ("daemon/main.py", "pathlib"): "the same",
    ("daemon/namespaces.py", "os.stat"): "compares the namespaces of a peer, which are files of /proc",
    ("fuse/policy_switch.py", "os.listdir"): "looks for the descriptor of /dev/fuse among this process's own",
    ("fuse/policy_switch.py", "os.readlink"): "the same",
    ("source/files.py", "fcntl"): "takes O_APPEND off a descriptor, and puts it back",
    ("daemon/start.py", "os.pidfd_open"): "holds the daemon that it started",
    ("daemon/interpreter.py", "os.posix_spawn"): "starts the daemon",
    ("daemon/interpreter.py", "os.kill"): "ends one that nobody needs",
    ("daemon/interpreter.py", "os.waitpid"): "waits for its end",
    ("daemon/interpreter.py", "os.waitstatus_to_exitcode"): "reads what that gave",
    ("daemon/interpreter.py", "fcntl"): "keeps its pipes off the numbers 0 to 2",
    ("daemon/start.py", "os.open"): "the daemon's log, which lies in policyfs's own state or where --log says, or /dev/null",
    ("daemon/main.py", "os.chdir"): "to /, so that the daemon keeps no directory busy",
    ("daemon/main.py", "os.waitpid"): "for the child that tells a person in the foreground what is wrong",
    ("fuse/source_watch.py", "inotify_simple"): "watches directories by the descriptors that the door reached them with",
}
"""What is used all the same outside the door, and why."""

PATH_MODULES = {
    "ctypes", "fcntl", "fileinput", "glob", "inotify_simple", "io", "linecache", "mmap", "pathlib", "posix", "shutil",
    "sqlite3", "subprocess", "tempfile",
}  # fmt: skip
"""Modules with which a path can be reached without `os`."""


def paths_reached(file: str, tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Everything in a module by which a path could be reached, called or only named: a name under which such a function
    is kept is as good as a call of it."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "os":
            if callable(getattr(os, node.attr, None)) and not isinstance(getattr(os, node.attr), type):
                if node.attr not in WITHOUT_PATH:
                    yield file, f"os.{node.attr}"
            elif node.attr == "path":
                yield file, "os.path"
        elif isinstance(node, ast.Name) and node.id == "open" and isinstance(node.ctx, ast.Load):
            yield file, "open"
    for _, name in imported(tree):
        if name.partition(".")[0] in PATH_MODULES or name.startswith("os."):
            yield file, name
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module == "os":
            yield file, "from os"
        elif isinstance(node, ast.Import) and any(alias.name == "os" and alias.asname for alias in node.names):
            yield file, "os under another name"


def test_only_the_door_reaches_the_source_by_path() -> None:
    """Rule reach-2: nothing outside source/root.py opens, stats, lists or changes by path; the exceptions are all in use."""
    found = {
        use
        for layer, file, tree in MODULES
        if layer in BEHIND_THE_DOOR and file != DOOR
        for use in paths_reached(file, tree)
    }
    assert found - set(EXCEPTIONS) == set()
    there = {file for _, file, _ in MODULES}
    assert {exception for exception in EXCEPTIONS if exception[0] in there} <= found, "an exception that nobody needs"


@pytest.mark.parametrize(
    "text",
    [
        "os.open(b'/x', 0)",
        "os.stat(name)",
        "os.listdir('.')",
        "os.scandir(fd)",
        "look = os.lstat",
        "os.path.exists(x)",
        "open('/x')",
        "from os import stat",
        "import os as system",
        "import os.path",
        "import ctypes",
        "from pathlib import Path",
        "def f():\n    import shutil",
    ],
)
def test_a_way_around_the_door_is_found(text: str) -> None:
    """The walk above sees each of these."""
    assert list(paths_reached("view/x.py", ast.parse(text)))


def test_the_door_decides_nothing() -> None:
    """What reaches a tree knows of paths alone: it imports no rule, no level and no refusal."""
    deciding = {
        (file, name)
        for room, file, tree in MODULES
        for _, name in imported(tree)
        if room == "source" and name.startswith("policyfs.") and not name.startswith("policyfs.source.")
    }
    assert {name for _, name in deciding} == {"policyfs.policy.paths"}


# -- one file for what the kernel was told

OWNERS = {
    "fuse/kernel_cache.py": {*CachedInode.__slots__, *CachedDirectory.__slots__},
    "fuse/nodes.py": {"denied", "gone", "location", "location_epoch", "others", "place", "place_epoch"},
    "fuse/source_watch.py": {"moves", "unwatchable", "watched"},
}
"""The fields of what the kernel was told and of the nodes, by the file that alone may assign them on another object."""


def fields_changed(file: str, tree: ast.Module) -> Iterator[str]:
    """Every field of `OWNERS` that a file which does not own it assigns or deletes, or reads though it is private. On `self`
    it is another class's own field of that name."""
    foreign = {field for owner, fields in OWNERS.items() if owner != file for field in fields}
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr in foreign:
            own = isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")
            if not own and (node.attr.startswith("_") or not isinstance(node.ctx, ast.Load)):
                yield f"{file}:{node.lineno}: {ast.unparse(node)}"
        elif isinstance(node, ast.Name) and node.id in ("setattr", "delattr"):
            yield f"{file}:{node.lineno}: {node.id}"


def test_only_one_file_changes_what_the_kernel_was_told() -> None:
    """fuse/kernel_cache.py alone assigns what the kernel was told; the others report events to it."""
    assert [fault for layer, file, tree in MODULES if layer == "fuse" for fault in fields_changed(file, tree)] == []


@pytest.mark.parametrize(
    "text",
    [
        "node.cached._ctime = 0",
        "node.cached._nlookup += 1",
        "del directory._names",
        "directory._dentries[name] = node",
        "if node.cached._entry:\n    pass",
        "node.watched = None",
        "a, watched.moves = 1, 2",
        "setattr(node, field, None)",
    ],
)
def test_a_change_from_elsewhere_is_found(text: str) -> None:
    """The walk above sees each of these."""
    assert list(fields_changed("fuse/handlers.py", ast.parse(text)))


# -- sizes and silenced warnings


def stale_exceptions(file: str, tree: ast.Module) -> Iterator[str]:
    """Every `raise` of something that may have been raised before. What is raised is a call or a class, which make a new
    exception, or a local name of the function that raises."""

    def within(node: ast.AST, local: set[str]) -> Iterator[str]:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            everything = list(ast.walk(node))
            local = local | {argument.arg for argument in everything if isinstance(argument, ast.arg)}
            local |= {name.id for name in everything if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)}
            local |= {handler.name for handler in everything if isinstance(handler, ast.ExceptHandler) and handler.name}
            local -= {name for each in everything if isinstance(each, ast.Global) for name in each.names}
        if isinstance(node, ast.Raise) and node.exc is not None and not isinstance(node.exc, ast.Call):
            name = ast.unparse(node.exc)
            last = name.rpartition(".")[2]
            is_class = last.isidentifier() and last[0].isupper() and not last.isupper()
            if name not in local and not is_class:
                yield f"{file}:{node.lineno}: raise {name}"
        for inner in ast.iter_child_nodes(node):
            yield from within(inner, local)

    yield from within(tree, set())


def test_no_exception_is_raised_twice() -> None:
    """An exception keeps the frames of every time it was raised: one that is kept and raised again and again takes memory
    without end."""
    assert [fault for _, file, tree in MODULES for fault in stale_exceptions(file, tree)] == []


@pytest.mark.parametrize(
    "text",
    [
        "_GONE = OSError(1)\ndef f():\n    raise _GONE",
        "GONE = OSError(1)\ndef f():\n    raise GONE from None",
        "gone = OSError(1)\ndef f():\n    raise gone",
        "def f():\n    global gone\n    gone = OSError(1)\n    raise gone",
        "from faults import gone\ndef f():\n    raise gone",
        "def f(self):\n    raise self.gone",
        "def f():\n    raise faults.gone",
        "def f():\n    raise GONE['why']",
    ],
)
def test_an_exception_that_is_kept_is_found(text: str) -> None:
    """The walk above sees each of these."""
    assert len(list(stale_exceptions("x.py", ast.parse(text)))) == 1


def test_every_module_can_be_read_in_one_sitting() -> None:
    """Modules stay small enough to be read in one sitting."""
    sizes = {file: len((PACKAGE / file).read_bytes().splitlines()) for _, file, _ in MODULES}
    assert {file: size for file, size in sizes.items() if size > 700} == {}


def test_no_silenced_warning_without_its_reason() -> None:
    """CONTRIBUTING: an exception to a rule (`noqa`, `type: ignore`) has its reason beside it: on the line, or above."""
    bare = []
    for _, file, _ in MODULES:
        lines = (PACKAGE / file).read_text().splitlines()
        for number, line in enumerate(lines):
            for mark in ("# noqa", "# type: ignore"):
                if mark in line:
                    rest = line.partition(mark)[2].partition("]" if "type" in mark else " - ")[2]
                    commented_above = number and lines[number - 1].lstrip().startswith(("#", '"""'))
                    if not rest.strip() and not commented_above:
                        bare.append(f"{file}:{number + 1}")
    assert bare == []


def test_no_test_module_imports_another() -> None:
    """What two of them share is in a helper module, so that each can be moved, split and run alone.
    test_conformance_data uses nothing of ours, and so is a helper as it stands."""
    found = [
        (path.name, f"{node.module}.{alias.name}")
        for path in Path(__file__).parent.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("tests")
        for alias in node.names
        if ".test_" in f"{node.module}.{alias.name}" and alias.name != "test_conformance_data"
    ]
    assert not found
