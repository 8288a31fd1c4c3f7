"""docs/refusals.md: what it shows happens, and what it lists is all there is."""

from __future__ import annotations

import errno
import os
import re

from policyfs.cli.commands import _EXIT_CODES
from policyfs.host.errors import Exit
from policyfs.policy.refusals import Refusal
from tests.docs import console
from tests.mount.harness import Person

PAGE = console.CHECKOUT / "docs/refusals.md"
TEXT = PAGE.read_text(encoding="utf-8")


def rows(columns: str) -> list[list[str]]:
    """The rows of the table with this line of columns."""
    below = TEXT.partition(f"\n{columns}\n")[2].partition("\n\n")[0]
    lines = [line for line in below.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def test_what_the_page_shows_happens() -> None:
    """Each command of the page, run in its order, prints what is below it."""
    console.assert_as_it_happens(PAGE)


def test_what_the_page_shows_happens_to_an_ordinary_user(ordinary_user: Person) -> None:
    """The same for a user who is not root."""
    console.assert_as_it_happens(PAGE, ordinary_user)


def test_every_refusal_is_on_the_page() -> None:
    """The table has each refusal with its errno and its text, in the order of the product, and nothing else."""
    names = {**errno.errorcode, errno.EOPNOTSUPP: "EOPNOTSUPP"}
    expected = [[names[refusal.errno], f"`{refusal.template}`"] for refusal in Refusal]
    assert [row[1:] for row in rows("| refusal | errno | text |")] == expected


def test_every_refusal_has_an_example() -> None:
    """Each refusal that a file system gives today is provoked on the page, by its name, and a tool says its errno."""
    examples = {}
    for block in console.blocks(TEXT):
        for step in block.steps:
            if "  # " in step.command:
                examples[re.split("[:,]", step.command.partition("  # ")[2])[0].strip()] = step.output
    for (name, _, _), refusal in zip(rows("| refusal | errno | text |"), Refusal, strict=True):
        if not name.endswith(("(tools)", "(trees)")):
            assert os.strerror(refusal.errno) in examples[name], name


def test_every_exit_code_is_on_the_page() -> None:
    """The table of exit codes is that of `policyfs --help`, which is that of the code."""
    told = [line.split(None, 1) for line in _EXIT_CODES.splitlines() if re.match(r" +\d+ ", line)]
    assert rows("| code | of every command |") == told
    assert [int(code) for code, _ in told] == [int(code) for code in Exit]
