"""docs/commands.md, the manual page and the completions: what the commands themselves say."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.cli.program import PROGRAM
from tests.docs.console import CHECKOUT
from tests.mount.expecting import absent

MANUAL = CHECKOUT / "docs/policyfs.1"
COMMANDS = (CHECKOUT / "docs/commands.md").read_text(encoding="utf-8")


def completing(words: str, current: int, shell: str = "bash") -> list[str]:
    """What a shell is offered, as `type,value`."""
    return subprocess.run(
        PROGRAM,
        env={"_POLICYFS_COMPLETE": f"{shell}_complete", "COMP_WORDS": words, "COMP_CWORD": str(current), "HOME": "/"},
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    ).stdout.splitlines()


def test_the_pages_are_what_the_commands_say() -> None:
    """docs/commands.md and docs/policyfs.1 are as scripts/documentation writes them."""
    done = subprocess.run(
        [sys.executable, "-I", CHECKOUT / "scripts/documentation.py", "--check"], capture_output=True, text=True, timeout=60
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_every_command_that_help_lists_is_on_the_page() -> None:
    """The page has a section for each command of `policyfs --help`, so that a generator that forgets one is noticed."""
    told = subprocess.run([*PROGRAM, "--help"], capture_output=True, text=True, check=True, timeout=60).stdout
    listed = re.findall(r"^  ([a-z]+) {2,}", told.partition("\nCommands:\n")[2].partition("\nExit codes")[0], re.MULTILINE)
    assert "mount" in listed
    assert [heading for heading in re.findall(r"^## ([a-z]+)$", COMMANDS, re.MULTILINE) if heading != "policyfs"] == listed


def test_the_manual_page_is_one() -> None:
    """man(1) prints the page without a warning, with a section for each command and no roff left in it."""
    if shutil.which("man") is None or shutil.which("groff") is None:
        absent("no man or groff here (Debian: man-db groff)")
    done = subprocess.run(
        ["man", "--warnings", "-E", "UTF-8", "-l", MANUAL],
        env={"PATH": "/usr/bin:/bin", "LC_ALL": "C.UTF-8", "MANWIDTH": "100"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert "policyfs mount [OPTIONS] SOURCE MOUNTPOINT\n" in done.stdout
    assert "~/tree /mnt/view -g /=ro" in done.stdout
    assert "\\" not in done.stdout


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_completion_is_printed_for_each_shell(shell: str) -> None:
    """What docs/install.md evaluates is a script for that shell, and the shell takes it where it is installed."""
    script = subprocess.run(
        PROGRAM,
        env={"_POLICYFS_COMPLETE": f"{shell}_source", "HOME": "/", "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert script.returncode == 0, script.stderr
    assert f"_POLICYFS_COMPLETE={shell}_complete" in script.stdout
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n"], input=script.stdout, text=True, check=True, timeout=60)


def test_commands_options_and_file_names_are_completed() -> None:
    """A shell is offered the commands, the options, and its own files or directories where one is to be named."""
    assert completing("policyfs mo", 1) == ["plain,mount"]
    assert "plain,--session" in completing("policyfs mount --se", 2)
    assert completing("policyfs mount so", 2) == ["dir,so"]
    assert completing("policyfs mount source point --session fi", 5) == ["file,fi"]
    assert completing("policyfs mount source point --preset h", 5) == ["plain,home"]


def test_bash_completes_with_it(tmp_path: Path) -> None:
    """bash, given the script as docs/install.md says, completes a command that is typed half."""
    program = tmp_path / "policyfs"
    program.write_text('#!/bin/sh\nexec {} "$@"\n'.format(" ".join(f"'{word}'" for word in PROGRAM)))
    program.chmod(0o755)
    script = """
eval "$(_POLICYFS_COMPLETE=bash_source policyfs)"
COMP_WORDS=(policyfs expl) COMP_CWORD=1
$(complete -p policyfs | sed 's/.*-F \\([^ ]*\\).*/\\1/') policyfs expl policyfs
printf '%s\\n' "${COMPREPLY[@]}"
"""
    done = subprocess.run(
        ["bash", "--norc", "-c", script],
        env={"PATH": f"{tmp_path}:/usr/bin:/bin", "HOME": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("explain\n", "")
