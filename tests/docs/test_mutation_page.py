"""docs/mutation.md names mutants of the code as it is."""

from __future__ import annotations

import ast
import importlib.util
import textwrap
from pathlib import Path
from types import ModuleType

import pytest

from tests.docs.console import CHECKOUT


def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("mutation", CHECKOUT / "scripts/mutation.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = script()
NAMED = sorted(SCRIPT.equivalent((CHECKOUT / "docs/mutation.md").read_text(encoding="utf-8")))


def source(named: str) -> str:
    """The text of a function, `policy.policy.Policy.place`, each line without its indentation, as one."""
    parts = named.split(".")
    file = CHECKOUT.joinpath("policyfs", *parts[:2]).with_suffix(".py")
    text = file.read_text(encoding="utf-8")
    node: ast.AST = ast.parse(text)
    for part in parts[2:]:
        node = next(each for each in ast.iter_child_nodes(node) if getattr(each, "name", None) == part)
    segment = ast.get_source_segment(text, node)
    assert segment is not None
    return " ".join(line.strip() for line in segment.splitlines())


@pytest.mark.parametrize("line", NAMED)
def test_an_equivalent_mutant_is_one_of_the_code(line: str) -> None:
    """The function says what the mutant has something else in place of."""
    function, _, change = line.partition(": ")
    old, arrow, new = change.partition(" => ")
    assert arrow
    assert old != new
    assert old in source(function) or old.replace(" / ", " ", 1) in source(function)


def test_a_mutant_is_named_as_the_page_names_it() -> None:
    """By its function and by what it has in place of what, with the line before where that is short."""
    assert SCRIPT.named("policyfs.view.links.xǁLinksǁ_walk__mutmut_7") == "view.links.Links._walk"
    assert SCRIPT.named("policyfs.policy.names.x__set_pattern__mutmut_12") == "policy.names._set_pattern"
    difference = textwrap.dedent("""\
        --- policyfs/policy/paths.py
        +++ policyfs/policy/paths.py
        @@ -1,3 +1,3 @@
             for a in b:
        -        continue
        +        break
             return c
        """)
    assert SCRIPT.changed(difference) == "for a in b: / continue => break"
    long = difference.replace("continue", "x" * 60)
    assert SCRIPT.changed(long) == f"{'x' * 60} => break"


def test_a_decorator_is_put_below(tmp_path: Path) -> None:
    """So that mutmut sees a plain function; other decorators, and several, stay where they are."""
    file = tmp_path / "module.py"
    static = "\n    @staticmethod\n    def b():\n        return 2\n"
    file.write_text(f"class A:\n    @property\n    def a(self):\n        return 1\n{static}")
    before = file.stat().st_mtime_ns
    SCRIPT.undecorate(file)
    assert file.read_text() == f"class A:\n    def a(self):\n        return 1\n    a = property(a)\n{static}"
    assert file.stat().st_mtime_ns == before
