"""Three mistakes of a policy by paths must each fail a test: a containment comparison inverted, a check before
resolution, and a string prefix in place of whole names.

Each is made wherever the code could have it: the text of one module is changed in a copy of the package, and tests that
need no mount, cases where they can be, are run on the copy in a process of its own. scripts/mutation tries
all the others.
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

pytestmark = pytest.mark.mutants

ROOT = Path(__file__).resolve().parents[2]
CASES = "tests/conformance/test_conformance.py"
WITHOUT_TREE = (
    f"{CASES}::test_a_text_reads_as_the_path_it_names",
    f"{CASES}::test_a_path_is_within_or_not",
    f"{CASES}::test_the_denylist_denies_what_it_names",
)
MACHINE = ("tests/policy/test_policy.py",)


class Mutant(NamedTuple):
    """A mistake at one place: what of a module's text is replaced by what, and which tests must find it."""

    module: str
    right: str
    wrong: str
    tests: tuple[str, ...]


CONTAINMENT_INVERTED = [
    Mutant("policy/paths.py", "if path.startswith(prefix) else", "if not path.startswith(prefix) else", WITHOUT_TREE),
    Mutant("policy/denylist.py", "if below(source, place) is not None", "if below(place, source) is not None", WITHOUT_TREE),
]

CHECKED_BEFORE_RESOLUTION = [
    # A path is decided on as it is written.
    Mutant("policy/paths.py", "joined(components(text if", "bytes(bytes(text if", WITHOUT_TREE),
    # A place that is reached through a link is denied under the name it was given and not where it is.
    Mutant("policy/policy.py", "for further in surroundings.ways.get(place.path, ())", "for further in ()", MACHINE),
]

STRING_PREFIX = [
    Mutant("policy/paths.py", 'ancestor if ancestor.endswith(b"/") else ancestor + b"/"', "ancestor", WITHOUT_TREE),
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
def found(copy: Path) -> Callable[[Mutant], None]:
    """What asserts that a mistake is found: the tests fail on the copy with it. That they fail, and not that they cannot
    start, is what counts."""

    def assert_found(mutant: Mutant) -> None:
        module = copy / "policyfs" / mutant.module
        text = module.read_text(encoding="utf-8")
        assert text.count(mutant.right) == 1, f"{mutant.module} no longer says {mutant.right!r}: write the mistake again"
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
    done = played(copy, (*WITHOUT_TREE, *MACHINE))
    assert done.returncode == pytest.ExitCode.OK, done.stdout + done.stderr
