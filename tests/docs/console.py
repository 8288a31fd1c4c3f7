"""The console blocks of the pages, run: what a page shows is what happens.

A block that is fenced as `console` is run, one that is fenced as anything else is not:

    ```console
    $ ls ~/view
    AGENTS.md
    $ for name in a b; do
    >   echo $name
    > done
    a
    b
    ```

All blocks of a page are run in their order by one shell, as a reader would type them, at the root of a checkout. Each
command's output, both streams together, must be what stands below it. What differs from person to person is shown for
one and the same: the home is /home/you, a duration is 0.000s. A command that ends in `# ...` has output that differs each
time; it is only run.

    python -m tests.docs.console README.md

writes what happens into a page, to be read and committed.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from policyfs.host.mounts import FILE_SYSTEM_TYPE
from tests.docs.grounds import GROUNDS, Ground
from tests.mount.expecting import require_fuse
from tests.mount.harness import PROGRAM, Person, myself
from tests.mount.watchdog import abort_connection

CHECKOUT = Path(__file__).resolve().parents[2]
HOME = "/home/you"
TIMEOUT = 120
"""Seconds that all blocks of a page together may take; they take a few."""

_FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@dataclass
class Step:
    """A command of a page, and what stands below it."""

    command: str
    output: str = ""
    line: int = 0


@dataclass
class Block:
    """A console block: where its text stands in the page, and what it holds."""

    begins: int
    ends: int
    steps: list[Step] = field(default_factory=list)

    def text(self) -> str:
        """The block as a page has it."""
        return "".join(f"$ {step.command.replace(chr(10), chr(10) + '> ')}\n{step.output}" for step in self.steps)


def blocks(page: str) -> Iterator[Block]:
    """The console blocks of a page."""
    for found in _FENCE.finditer(page):
        if found[1] != "console":
            continue
        block = Block(found.start(2), found.end(2))
        for number, line in enumerate(found[2].splitlines(), page.count("\n", 0, found.start(2)) + 1):
            if line.startswith("$ "):
                block.steps.append(Step(line[2:], line=number))
            elif line.startswith("> ") and not block.steps[-1].output:
                block.steps[-1].command += "\n" + line[2:]
            else:
                block.steps[-1].output += line + "\n"
        yield block


def run(steps: list[Step], person: Person, before: str = "") -> list[str]:
    """What each command says, as this person, in a directory that looks like a checkout to who follows the page. `before`
    is for the same shell: what the page takes to be there."""
    checkout = person.home / "policyfs"
    (checkout / "scripts").mkdir(parents=True)
    program = checkout / "scripts/policyfs"
    program.write_text('#!/bin/sh\nexec {} "$@"\n'.format(" ".join(f"'{word}'" for word in PROGRAM)))
    program.chmod(0o755)
    for name in ("examples", "docs"):
        shutil.copytree(CHECKOUT / name, checkout / name)
    person.take(checkout)
    marker = secrets.token_hex(8)
    # What ends before the page does is the page's fault, so that no later command is skipped unseen.
    script = "\n".join(f"(exit $was)\neval {_quoted(step.command)} </dev/null\nwas=$?\necho {marker}" for step in steps)
    # A file, not a pipe: what is stuck in a mount would hold a pipe open, and with it the one who reads.
    heard = person.home / "heard"
    with heard.open("wb") as output:
        shell = subprocess.Popen(
            person.command("bash", "--norc", "--noprofile", "-c", f"{before}\nexec 2>&1\nwas=0\n{script}", cwd=checkout),
            env={**person.environment, "LC_ALL": "C.UTF-8", "TZ": "UTC", "PYTHONDONTWRITEBYTECODE": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            start_new_session=True,
        )
    try:
        shell.wait(TIMEOUT)
    except subprocess.TimeoutExpired:
        os.killpg(shell.pid, signal.SIGKILL)
    said = heard.read_text(encoding="utf-8").split(f"{marker}\n")
    assert len(said) == len(steps) + 1, f"it ended at: {steps[len(said) - 1].command}\n{said[-1]}"
    return [_the_same_for_all(text, person) for text in said[:-1]]


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "'\\''") + "'"


def _the_same_for_all(text: str, person: Person) -> str:
    text = text.replace(str(person.home), HOME)
    text = re.sub(r"^(?:bash|environment): (?:eval: )?line \d+: ", "bash: ", text, flags=re.MULTILINE)
    return re.sub(r"\bin \d+\.\d+s\b", "in 0.000s", text)


@contextlib.contextmanager
def _ground(page: Path, person: Person | None) -> Iterator[Ground]:
    """Who follows the page, and what their shell does before it."""
    if person is not None:
        yield person, ""
    elif (made := GROUNDS.get(str(page.resolve().relative_to(CHECKOUT)))) is not None:
        with made() as ground:
            yield ground
    else:
        with myself() as person:
            yield person, ""


def played(page: Path, person: Person | None = None) -> list[tuple[Step, str]]:
    """Every command of a page with what it says when this person runs it; whoever runs the tests, unless given."""
    require_fuse()
    steps = [step for block in blocks(page.read_text(encoding="utf-8")) for step in block.steps]
    with _ground(page, person) as (person, before):
        try:
            return list(zip(steps, run(steps, person, before), strict=True))
        finally:
            left = [
                mount
                for mount in person.mount_table()
                if mount.type == FILE_SYSTEM_TYPE and mount.point.startswith(os.fsencode(person.home) + b"/")
            ]
            for mount in left:
                abort_connection(mount.device.partition(":")[2])
                person.unmount(Path(os.fsdecode(mount.point)), lazily=True)
            assert not left, f"{page.name} leaves mounts behind: {left}"


def assert_as_it_happens(page: Path, person: Person | None = None) -> None:
    """Each command of the page says what stands below it."""
    found = played(page, person)
    assert found, f"no console block in {page}"
    wrong = [
        f"{page.name}:{step.line}: $ {step.command}\n--- the page has\n{step.output}--- it says\n{said}"
        for step, said in found
        if step.output != said and not step.command.endswith("# ...")
    ]
    assert not wrong, "\n".join([*wrong, f"to take it over: python -m tests.docs.console {page.name}"])


def rewritten(page: str, said: list[str]) -> str:
    """The page with what its commands said."""
    remaining = iter(said)
    parts, end = [], 0
    for block in blocks(page):
        for step in block.steps:
            output = next(remaining)
            if not step.command.endswith("# ..."):
                step.output = output
        parts += [page[end : block.begins], block.text()]
        end = block.ends
    return "".join([*parts, page[end:]])


if __name__ == "__main__":
    for name in sys.argv[1:]:
        file = Path(name)
        file.write_text(rewritten(file.read_text(encoding="utf-8"), [said for _, said in played(file)]), encoding="utf-8")
