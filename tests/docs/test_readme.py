"""README.md: what it shows happens, and what it lists is all there is."""

from __future__ import annotations

import errno
import os
import re
import subprocess

from policyfs.cli.commands import _EXIT_CODES
from policyfs.host.errors import Exit
from policyfs.policy.refusals import Refusal
from tests.docs import console
from tests.mount.harness import Person, absent

README = console.CHECKOUT / "README.md"
TEXT = README.read_text(encoding="utf-8")


def rows(heading: str) -> list[list[str]]:
    """The rows of the table below a heading, without the two that name its columns."""
    below = TEXT.partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    lines = [line for line in below.splitlines() if line.startswith("| ")]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines[1:]]


def test_what_the_readme_shows_happens() -> None:
    """Each command of the README, run in its order, says what stands below it."""
    console.assert_as_it_happens(README)


def test_what_the_readme_shows_happens_to_an_ordinary_user(ordinary_user: Person) -> None:
    """The same for somebody who is not root."""
    console.assert_as_it_happens(README, ordinary_user)


def test_every_refusal_is_in_the_readme() -> None:
    """The table has each refusal with its errno and its text, in the order of the product, and nothing else."""
    names = {**errno.errorcode, errno.EOPNOTSUPP: "EOPNOTSUPP"}
    expected = [[names[refusal.errno], f"`{refusal.template}`"] for refusal in Refusal]
    assert [row[1:] for row in rows("What a refusal looks like")] == expected


def test_every_refusal_has_an_example() -> None:
    """Each refusal that a file system gives is provoked in the README, by its name, and a tool says its errno."""
    examples = {}
    for block in console.blocks(TEXT):
        for step in block.steps:
            if "  # " in step.command:
                examples[re.split("[:,]", step.command.partition("  # ")[2])[0].strip()] = step.output
    for (name, _, _), refusal in zip(rows("What a refusal looks like"), Refusal, strict=True):
        if not name.endswith("(tools)"):
            assert os.strerror(refusal.errno) in examples[name], name


def test_every_exit_code_is_in_the_readme() -> None:
    """The table of exit codes is that of `policyfs --help`, which is that of the code."""
    told = [line.split(None, 1) for line in _EXIT_CODES.splitlines() if re.match(r" +\d+ ", line)]
    assert rows("Exit codes") == told
    assert [int(code) for code, _ in told] == [int(code) for code in Exit]


def test_the_example_tree_ships_whole() -> None:
    """What the README mounts is in the repository, the `.env` too, which ignore lists like to leave out."""
    if not (console.CHECKOUT / ".git").exists():
        absent("no git repository around the tests")
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", console.CHECKOUT, "ls-files", "examples/tree"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    there = [
        str(path.relative_to(console.CHECKOUT)) for path in (console.CHECKOUT / "examples/tree").rglob("*") if path.is_file()
    ]
    assert sorted(listed) == sorted(there)
    assert "examples/tree/.env" in listed
