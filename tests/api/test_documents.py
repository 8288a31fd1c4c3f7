"""What is written of the Python API is true: the page's examples run, and the example harness works and is typed."""

from __future__ import annotations

import doctest
import importlib.util
import json
import os
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

from policyfs.policy.paths import HostPath
from tests.conformance.adapter import make_tree
from tests.mount import expecting

REPOSITORY = Path(__file__).resolve().parents[2]
EXAMPLE = REPOSITORY / "examples" / "harness.py"
PAGE = REPOSITORY / "docs" / "python.md"


@pytest.fixture
def tree(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The tree of the page, and a home of the test's own."""
    make_tree(HostPath(os.fsencode(source)), {
        "/AGENTS.md": {"file": "Be kind.\n"},
        "/Notes/a.md": {"file": "a note\n"},
        "/Notes/Private/diary.md": {"file": "secret"},
        "/Notes/src/AGENTS.md": {"file": "Be brief.\n"},
        "/Notes/src/x.py": {"file": "x = 1\n"},
        "/b.md": {"file": "b"},
    })  # fmt: skip
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("EXAMPLE_TREE", str(source))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    return source


def test_the_page_is_true(tree: Path) -> None:
    """Every example of docs/python.md gives what the page says."""
    expecting.require_fuse()
    found = doctest.testfile(str(PAGE), module_relative=False)
    assert found.failed == 0
    assert found.attempted > 25


def test_every_example_in_a_docstring_is_true() -> None:
    """Each module of the package that shows an example is run."""
    import policyfs

    attempted = 0
    for found in pkgutil.walk_packages(policyfs.__path__, "policyfs."):
        spec = importlib.util.find_spec(found.name)
        assert spec is not None
        assert spec.origin is not None
        if ">>> " in Path(spec.origin).read_text(encoding="utf-8"):
            result = doctest.testmod(importlib.import_module(found.name))
            assert result.failed == 0, found.name
            attempted += result.attempted
    assert attempted > 0


def test_the_page_names_every_public_name() -> None:
    """Nothing is public that the page does not speak of, methods of `View` and `Policy` included."""
    import policyfs

    page = PAGE.read_text(encoding="utf-8")
    methods = {name for kind in (policyfs.View, policyfs.Policy) for name in vars(kind) if not name.startswith("_")}
    for name in {*policyfs.__all__, *methods} - {"__version__"}:
        assert re.search(rf"\b{name}\b", page), f"{name} is not in docs/python.md"


@pytest.mark.parametrize(
    "file", [EXAMPLE, *sorted((REPOSITORY / "tests" / "api").glob("typed_*.py"))], ids=lambda path: path.name
)
def test_a_user_of_the_api_can_be_strict(file: Path) -> None:
    """mypy --strict has nothing to say of a program that uses the API as it is documented."""
    pytest.importorskip("mypy")
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", str(file)],
        cwd=REPOSITORY, capture_output=True, text=True, timeout=110, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout


def test_the_example_harness_works(tree: Path, tmp_path: Path) -> None:
    """Calls go in, results come out: texts of the tree, texts of the refusals, and what is not a call."""
    session = tmp_path / "session.toml"
    session.write_text('[grants]\n"/" = "ro"\n"/Notes" = "stage"\n"/Notes/Private" = "none"\n')
    calls = [
        {"tool": "list", "path": "/"},
        {"tool": "read", "path": "/Notes/src/x.py"},
        {"tool": "write", "path": "Notes/new", "content": "new"},
        {"tool": "write", "path": "Notes/new", "content": "newer"},
        {"tool": "mkdir", "path": "/Notes/d/e"},
        {"tool": "mv", "path": "/Notes/new", "to": "/Notes/d/e/new"},
        {"tool": "rm", "path": "/Notes/d"},
        {"tool": "rm", "path": "/b.md"},
        {"tool": "read", "path": "/Notes/Private/diary.md"},
        {"tool": "read"},
        {"tool": "dance"},
    ]
    done = subprocess.run(
        [sys.executable, "-I", EXAMPLE, tree, session], input="".join(json.dumps(call) + "\n" for call in calls),
        capture_output=True, text=True, timeout=60, check=True,
    )  # fmt: skip
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    assert [answer["result"] for answer in answers] == [
        "Notes/\nAGENTS.md\nb.md",
        "x = 1\n\nInstructions from Notes/src/AGENTS.md:\n\nBe brief.\n",
        "Created /Notes/new",
        "Overwrote /Notes/new",
        "Made /Notes/d/e",
        "Moved to /Notes/d/e/new",
        "Directory not empty",
        "Read-only: /b.md can be read in this session but not changed.",
        "No such file or directory: /Notes/Private/diary.md",
        "Not a call: 'path'",
        "No such tool: dance",
    ]
    assert [answer["error"] for answer in answers] == [False] * 6 + [True] * 5
    assert "- `/Notes`: read/write, stage" in done.stderr
    assert "Instructions from AGENTS.md:\n\nBe kind." in done.stderr
    assert (tree / "Notes/d/e/new").read_text() == "newer"
