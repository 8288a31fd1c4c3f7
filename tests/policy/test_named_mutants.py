"""Three mistakes that lam-file-access.txt names must each fail a test: a containment comparison inverted, a check before
resolution, and a string prefix in place of whole names.

Each is made wherever the code could have it: the text of one module is changed in a copy of the package, and tests that
need no mount, cases where they can be, are run on the copy in a process of its own. docs/mutation.md tells of the
mutants that nobody named.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parents[2]
CASES = "tests/conformance/test_conformance.py"
WITHOUT_TREE = (
    f"{CASES}::test_a_text_reads_as_the_path_it_names",
    f"{CASES}::test_a_path_is_within_or_not",
    f"{CASES}::test_the_denylist_denies_what_it_names",
)
ON_THE_VIEW = f"{CASES}::test_on_the_view"
"""Played as root: conformance/README.md."""
LINKS = (ON_THE_VIEW, "-k", "link-")
FLOORS = (ON_THE_VIEW, "-k", "floor-")
BOUNDARY = (ON_THE_VIEW, "-k", "boundary-")
REASONS = (ON_THE_VIEW, "-k", "explain-")
ROOTS = ("tests/agent/test_roots.py",)
MACHINE = ("tests/policy/test_policy.py",)


class Mutant(NamedTuple):
    """A mistake at one place: what of a module's text is replaced by what, and which tests must find it."""

    module: str
    right: str
    wrong: str
    tests: tuple[str, ...]


CONTAINMENT_INVERTED = [
    Mutant("policy/paths.py", "if path.startswith(prefix) else", "if not path.startswith(prefix) else", WITHOUT_TREE),
    Mutant(
        "policy/paths.py", "def below(path: bytes, ancestor: bytes)", "def below(ancestor: bytes, path: bytes)", WITHOUT_TREE
    ),
    Mutant("policy/denylist.py", "if below(source, place) is not None", "if below(place, source) is not None", WITHOUT_TREE),
    Mutant("policy/denylist.py", "if below(source, place) is not None", "if below(source, place) is None", WITHOUT_TREE),
    Mutant("policy/denylist.py", "rest = below(place, source)", "rest = below(source, place)", WITHOUT_TREE),
    Mutant("policy/policy.py", "if path != part:", "if path == part:", FLOORS),
    Mutant("policy/policy.py", "below(here, place) is None", "below(place, here) is None", MACHINE),
    Mutant("policy/policy.py", "below(other, place) is None", "below(place, other) is None", MACHINE),
    Mutant("policy/policy.py", "below(place, listed) is not None", "below(listed, place) is not None", LINKS),
    Mutant("policy/policy.py", "not any(below(place, listed)", "any(below(place, listed)", LINKS),
    Mutant("policy/policy.py", "below(place, denied.path) is not None", "below(denied.path, place) is not None", MACHINE),
    Mutant("policy/policy.py", "if any(below(place, denied.path)", "if not any(below(place, denied.path)", LINKS),
    Mutant(
        "policy/compiled.py",
        "inside=self.inside or branch.boundary",
        "inside=not (self.inside or branch.boundary)",
        BOUNDARY,
    ),
    Mutant("policy/compiled.py", "elif not self.inside:", "elif self.inside:", REASONS),
    Mutant("view/links.py", "== base_parts:", "!= base_parts:", LINKS),
]

CHECKED_BEFORE_RESOLUTION = [
    # A path, a place or a root is decided on as it is written.
    Mutant("policy/paths.py", "joined(components(text if", "bytes(bytes(text if", WITHOUT_TREE),
    Mutant("policy/paths.py", 'if component in (b"", b"."):', 'if component in (b"", b".", b".."):', WITHOUT_TREE),
    Mutant("policy/paths.py", "HostPath(joined(components(text)))", "HostPath(text)", ROOTS),
    # A place that is reached through a link is denied, or opened, under the name it was given and not where it is.
    Mutant("policy/policy.py", "for place in denied if place.path in surroundings.real", "for place in ()", MACHINE),
    Mutant(
        "policy/policy.py",
        "for spelling in {place, surroundings.real.get(place, place)}:\n                    path",
        "for spelling in {place}:\n                    path",
        MACHINE,
    ),
    Mutant(
        "policy/policy.py",
        "for spelling in {place, surroundings.real.get(place, place)}\n    ]",
        "for spelling in {place}\n    ]",
        MACHINE,
    ),
    # A link is shown whatever it lands on, or by its text alone without the links that its text walks through.
    Mutant("view/links.py", "return self.landing(link, text) is not Landing.HIDDEN", "return True", LINKS),
    Mutant("view/links.py", "if missing_from is not None or (not", "if True or (not", LINKS),
]

STRING_PREFIX = [
    Mutant("policy/paths.py", 'ancestor if ancestor.endswith(b"/") else ancestor + b"/"', "ancestor", WITHOUT_TREE),
    Mutant("view/links.py", "if parts[: len(base_parts)] == base_parts:", "if text.startswith(base):", LINKS),
]


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the package with its tests and cases, to be changed."""
    copied = tmp_path_factory.mktemp("mutant")
    for directory in ("policyfs", "tests", "conformance"):
        shutil.copytree(ROOT / directory, copied / directory, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", copied)
    return copied


def run(copy: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Python in the copy, which comes before whatever policyfs is installed."""
    environment = os.environ | {"PYTHONPATH": str(copy), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=copy, env=environment, capture_output=True, text=True, timeout=100, check=False
    )


def played(copy: Path, tests: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    return run(copy, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--tb=line", *tests)


@pytest.fixture
def found(copy: Path, request: pytest.FixtureRequest) -> Callable[[Mutant], None]:
    """What asserts that a mistake is found: the tests fail on the copy with it. That they fail, and not that they cannot
    start, is what counts."""

    def assert_found(mutant: Mutant) -> None:
        if ON_THE_VIEW in mutant.tests:
            request.getfixturevalue("as_root")
        module = copy / "policyfs" / mutant.module
        text = module.read_text(encoding="utf-8")
        assert text.count(mutant.right) == 1, f"{mutant.module} no longer says {mutant.right!r}: write the mistake anew"
        try:
            module.write_text(text.replace(mutant.right, mutant.wrong), encoding="utf-8")
            done = played(copy, mutant.tests)
        finally:
            module.write_text(text, encoding="utf-8")
        assert done.returncode == pytest.ExitCode.TESTS_FAILED, done.stdout + done.stderr

    return assert_found


def of(mutants: list[Mutant]) -> pytest.MarkDecorator:
    """One test for each mutant."""
    return pytest.mark.parametrize(
        "mutant", mutants, ids=lambda mutant: " ".join(f"{mutant.module}: {mutant.wrong}".split())
    )


@of(CONTAINMENT_INVERTED)
def test_a_containment_comparison_inverted_is_found(found: Callable[[Mutant], None], mutant: Mutant) -> None:
    """What is within what is compared the right way round, at every place that compares."""
    found(mutant)


@of(CHECKED_BEFORE_RESOLUTION)
def test_a_check_before_resolution_is_found(found: Callable[[Mutant], None], mutant: Mutant) -> None:
    """Paths, places and links are decided on once they are resolved, not as they are written."""
    found(mutant)


@of(STRING_PREFIX)
def test_a_string_prefix_for_whole_names_is_found(found: Callable[[Mutant], None], mutant: Mutant) -> None:
    """Places are compared by whole names, wherever they are compared."""
    found(mutant)


def test_what_finds_the_mistakes_passes_without_them(copy: Path) -> None:
    """The copy as it is passes the same tests, and it is the copy that they test."""
    where = run(copy, "-c", "import policyfs; print(policyfs.__file__)")
    assert where.stdout.strip() == str(copy / "policyfs" / "__init__.py")
    done = played(copy, (*WITHOUT_TREE, ON_THE_VIEW, *ROOTS, *MACHINE))
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
