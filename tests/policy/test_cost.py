"""Ten thousand rules cost a lookup nothing: counted in steps, so that no busy machine can make it fail."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from types import FrameType

import pytest

from policyfs.policy.levels import Level
from policyfs.policy.paths import Name, ViewPath
from policyfs.policy.rules import Denial, DeniedPath, Floor, Grant, Rules
from policyfs.policy.tree import Compiled

NAMES = (b"here7", b"nowhere", b"main.c", b"secret7.txt", b"x.kind7", b"exact7", b"K\xc3\xa4se", b"d7")


def many(count: int) -> Compiled:
    """`count` rules of each kind, most of them on names of one directory."""

    def numbers() -> range:
        # As many digits in each, so that names of few and of many rules have the same lengths.
        return range(10_000, 10_000 + count)

    return Compiled(
        Rules(
            grants=[Grant(ViewPath(b"/"), Level.STAGE)] + [Grant(ViewPath(b"/d/here%d" % n), Level.RO) for n in numbers()],
            floors=[
                Floor(ViewPath(b"/d/here%d/below" % n), Level.RO, source) for n in numbers() for source in ("one", "other")
            ],
            denied_paths=[
                DeniedPath(ViewPath(b"/d/denied%d/at/depth" % n), Denial(f"/d/denied{n}", "session")) for n in numbers()
            ],
            denied_names=[
                (glob, Denial(glob, "session"))
                for n in numbers()
                for glob in (f"exact{n}", f"secret{n}.*", f"*.kind{n}", f"*~{n}")
            ],
        )
    )


def steps(work: Callable[[], object]) -> list[str]:
    """Every function that `work` calls, in Python and in C, by name."""
    called: list[str] = []

    def count(frame: FrameType, event: str, function: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)
        elif event == "c_call":
            called.append(getattr(function, "__name__", "?"))

    before = sys.getprofile()
    # A collection calls back to whoever listens to it (hypothesis does), which is no cost of a step.
    gc.disable()
    sys.setprofile(count)
    try:
        work()
    finally:
        sys.setprofile(before)
        gc.enable()
    return [name for name in called if name != "setprofile"]


@pytest.fixture(scope="module")
def few_and_many() -> tuple[Compiled, Compiled]:
    """Ten rules of each kind, and ten thousand."""
    return many(10), many(10_000)


@pytest.mark.parametrize("name", [*NAMES, b"here10007", b"denied10007", b"exact10007", b"secret10007.a", b"x.kind10007"])
def test_a_step_takes_the_same_calls_under_ten_thousand_rules(few_and_many: tuple[Compiled, Compiled], name: bytes) -> None:
    """For a name with a rule of its own and for one without, the same functions are called as often."""

    def answered(compiled: Compiled) -> tuple[Level, list[str]]:
        directory = compiled.child(compiled.root, Name(b"d"))
        # Once before it is counted: a place for a denied name is made when it is first met.
        level = compiled.child(directory, Name(name)).level
        return level, steps(lambda: compiled.child(directory, Name(name)))

    few, many = map(answered, few_and_many)
    assert few == many
    assert len(few[1]) < 20
    assert "fullmatch" not in few[1]


def test_a_step_counts_what_it_does(few_and_many: tuple[Compiled, Compiled]) -> None:
    """The count sees a rule that is looked for one by one, so the test above can fail."""
    few, many = few_and_many

    def one_by_one(compiled: Compiled) -> list[str]:
        directory = compiled.child(compiled.root, Name(b"d"))
        return steps(lambda: [key.startswith(b"x") for key in directory.children])  # type: ignore[arg-type]

    assert len(one_by_one(many)) > 100 * len(one_by_one(few))


def test_names_without_a_rule_share_their_places(few_and_many: tuple[Compiled, Compiled]) -> None:
    """What no rule names needs no memory of its own: a whole subtree is one place, all names of one denial another."""
    _, compiled = few_and_many
    directory = compiled.child(compiled.root, Name(b"d"))
    places = {id(compiled.child(directory, Name(b"file%d" % n))) for n in range(1000)}
    denied = {id(compiled.child(directory, Name(b"secret10007.%d" % n))) for n in range(1000)}
    assert len(places) == len(denied) == 1
    (rest,) = {compiled.child(directory, Name(b"x"))}
    assert compiled.child(rest, Name(b"y")) is rest
