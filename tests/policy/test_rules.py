"""Rules and decisions as a person reads them."""

from __future__ import annotations

import pytest

from policyfs.policy.levels import LEVELS, Level, Standing
from policyfs.policy.paths import ViewPath
from policyfs.policy.rules import Boundary, Denial, Floor, Grant, NoGrant, Rule


@pytest.mark.parametrize(
    ("rule", "shown"),
    [
        (Grant(ViewPath(b"/Notes"), Level.STAGE), "grant /Notes = stage"),
        (Floor(ViewPath(b"/Notes"), Level.RO, "session"), "floor /Notes = ro (session)"),
        (Boundary(ViewPath(b"/work")), "boundary /work"),
        (Denial("*.pem", "built-in denylist"), "denylist *.pem (built-in denylist)"),
        (NoGrant(), "no grant on it or above it"),
        (Grant(ViewPath(b"/a\nb\xff"), Level.RO), r"grant /a\nb\xff = ro"),
        (Denial("a\nb\x1b[2J", "session"), r"denylist a\nb\x1b[2J (session)"),
        (Denial("/\udcff", "x\ny"), r"denylist /\xff (x\ny)"),
        (Floor(ViewPath(b"/"), Level.RO, "/f\n.toml"), r"floor / = ro (/f\n.toml)"),
    ],
)
def test_a_rule_is_shown_on_one_line(rule: Rule, shown: str) -> None:
    """Whatever its author wrote, or the file that holds it is called."""
    assert str(rule) == shown
    assert shown.isprintable()


def test_the_four_levels() -> None:
    """The levels of rule level-1, their words and names, each including the ones before it."""
    assert LEVELS == {"none": Level.NONE, "ro": Level.RO, "stage": Level.STAGE, "commit": Level.COMMIT}
    assert list(Level) == sorted(Level)
    assert [level.meaning for level in Level] == [
        "no access",
        "read-only",
        "read/write, stage",
        "read/write, commit",
    ]
    assert [str(standing) for standing in Standing] == ["visible", "passage", "hidden"]
