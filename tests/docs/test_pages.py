"""Every page of the repository: its links lead somewhere, and the files it names are there. And the commands of the two
pages that no console block runs, since they change the machine: CONTRIBUTING.md and docs/install.md."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner

from policyfs.cli.commands import commands
from tests.docs.console import CHECKOUT
from tests.mount.expecting import absent

PAGES = [
    page
    for page in sorted(CHECKOUT.rglob("*.md"))
    if not any(part.startswith(".") or part in ("examples", "mutants") for part in page.relative_to(CHECKOUT).parts)
]
"""Not examples/: what stands there is what somebody mounts."""

CONTRIBUTING = (CHECKOUT / "CONTRIBUTING.md").read_text(encoding="utf-8")
INSTALL = (CHECKOUT / "docs/install.md").read_text(encoding="utf-8")

PACKAGE = CHECKOUT / "policyfs"
FOLDERS = {folder.name for base in (CHECKOUT, PACKAGE) for folder in base.iterdir() if folder.is_dir()} - {".git"}
NAMED = re.compile(rf"(?<![\w/.~$@{{}}<>*=-])(?:(?:{'|'.join(sorted(map(re.escape, FOLDERS)))})/[\w./@*-]*|[A-Z]+\.md\b)")
"""Where a page names a file: below a folder of the checkout or of the package, or a page at the top. What comes after `/`,
`~` or `$` is somewhere else."""
IN_A_VIEW = {"AGENTS.md", "CLAUDE.md"}
"""Files that the pages speak of and that are the reader's."""


def anchors(text: str) -> set[str]:
    """What `#...` can lead to in a page, as GitHub names its headings: in lower case, blanks as hyphens, nothing else but
    letters, digits, `_` and `-`, and a number where a name comes again; and what a page names itself (`<a id="x">`)."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    found = set(re.findall(r'<a id="([\w-]+)">', text))
    for heading in re.findall(r"^#+ +(.*?)(?: +#+)? *$", text, re.MULTILINE):
        shown = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        name = numbered = re.sub(r"[^\w -]", "", shown.lower()).replace(" ", "-")
        again = 0
        while numbered in found:
            again += 1
            numbered = f"{name}-{again}"
        found.add(numbered)
    return found


def broken(page: Path) -> list[str]:
    """The links of a page that lead to no file, or to a heading that the page they lead to has not."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"[a-z]+:", target):
            continue
        path, hash_sign, anchor = target.partition("#")
        file = page.parent / path if path else page
        headings = anchors(file.read_text(encoding="utf-8")) if hash_sign and file.is_file() else set()
        if not file.exists() or (hash_sign and anchor not in headings):
            found.append(target)
    return found


def unknown_names(text: str) -> list[str]:
    """The files that a text names and that are not there, in the checkout or in the package."""
    names = {name.rstrip(".") for name in NAMED.findall(text)} - IN_A_VIEW
    return sorted(name for name in names if not any([*CHECKOUT.glob(name), *PACKAGE.glob(name)]))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_link_of_a_page_leads_somewhere(page: Path) -> None:
    """A link to a file of the repository names one that is there, and one to a heading a heading."""
    assert broken(page) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(CHECKOUT)))
def test_every_file_that_a_page_names_is_there(page: Path) -> None:
    """In its words and in its commands, not only in links."""
    assert unknown_names(page.read_text(encoding="utf-8")) == []


def test_no_page_is_left_out() -> None:
    """Each page that git knows is looked at, but for those that are examples."""
    if not (CHECKOUT / ".git").exists():
        absent("no git repository around the tests")
    listed = subprocess.run(
        ["git", "-c", "safe.directory=*", "-C", CHECKOUT, "ls-files", "*.md"], capture_output=True, text=True, check=True
    ).stdout.splitlines()
    looked_at = {str(page.relative_to(CHECKOUT)) for page in PAGES}
    assert [name for name in listed if name not in looked_at and not name.startswith("examples/")] == []


def test_what_leads_nowhere_is_found(tmp_path: Path) -> None:
    """The tests above see each of these."""
    (tmp_path / "b.md").write_text("# One `two`: [three](x) é_4\n\n```sh\n# no heading\n```\n\n## Again\n\n## Again\n")
    page = tmp_path / "a.md"
    page.write_text(
        "# Here\n[a](b.md) [b](b.md#one-two-three-é_4) [c](b.md#again-1) [d](#here) [e](https://x.org/y#z) [f](.)\n"
        "[g](c.md) [h](b.md#no-heading) [i](b.md#Again) [j](b.md#again-2) [k](#there) [l](.#here) [m](b.md#)\n"
    )
    assert broken(page) == ["c.md", "b.md#no-heading", "b.md#Again", "b.md#again-2", "#there", ".#here", "b.md#"]
    assert unknown_names("`tests/test_paths.py`, scripts/nothing. NOTHING.md view/none.py docs/*.rst") == [
        "NOTHING.md", "docs/*.rst", "scripts/nothing", "tests/test_paths.py", "view/none.py",
    ]  # fmt: skip
    assert unknown_names("README.md, AGENTS.md, source/root.py, docs/install.md. ~/docs/x /opt/policyfs/bin docs/*.md") == []


COLLECT = ("--collect-only", "-q", "-p", "no:cacheprovider")
RUN = [shlex.split(line, comments=True) for line in re.findall(r"^    (scripts/.*)$", CONTRIBUTING, re.MULTILINE)]


def refusal(*arguments: str) -> str:
    """What policyfs has against these arguments. Nothing is run: it prints the help of what they name."""
    asked = CliRunner().invoke(commands, [*arguments, "--help"])
    return asked.output if asked.exit_code else ""


def complaint(module: str, *arguments: str) -> str:
    """What a module of the checkout or one that is installed, run as a program, has against these arguments."""
    program = f"import runpy, sys; sys.path.insert(0, '.'); runpy.run_module('{module}', None, '__main__', True)"
    done = subprocess.run(
        [sys.executable, "-I", "-c", program, *arguments], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
    )
    return done.stdout + done.stderr if done.returncode else ""


@pytest.mark.parametrize("words", RUN, ids=" ".join)
def test_a_command_of_contributing_can_be_run(words: list[str]) -> None:
    """The script is there, takes the options, and where tests are named there are such."""
    script, *arguments = words
    assert os.access(CHECKOUT / script, os.X_OK)
    match script:
        case "scripts/policyfs":
            assert refusal(*arguments) == ""
        case "scripts/bench":
            assert complaint("benchmarks", *arguments, "--list") == ""
        case "scripts/test" if arguments and arguments != ["--fast"]:
            assert complaint("pytest", *COLLECT, *arguments) == ""
        case "scripts/test" if arguments:
            assert '"${1:-}" = --fast' in (CHECKOUT / script).read_text(encoding="utf-8")
        case _:
            assert arguments == []


def test_contributing_has_commands() -> None:
    """They are found, one with tests among them, and what cannot be run would be noticed."""
    assert {words[0] for words in RUN} == {f"scripts/{name}" for name in ("policyfs", "test", "mutation", "bench")}
    assert any(words[1:] not in ([], ["--fast"]) for words in RUN if words[0] == "scripts/test")
    assert "No such option" in refusal("mount", "SOURCE", "MOUNTPOINT", "--gran", "/=ro")
    assert "No such option" in complaint("benchmarks", "--slow", "--list")
    assert "deselected" in complaint("pytest", *COLLECT, __file__, "-k", "nothing_such")
    assert "not found" in complaint("pytest", *COLLECT, "tests/test_paths.py")


def test_the_packages_to_install_are_those_that_the_scripts_install() -> None:
    """docs/install.md asks for what scripts/policyfs would have installed by itself."""
    program, preparing = (
        (CHECKOUT / "scripts" / name).read_text(encoding="utf-8").splitlines() for name in ("policyfs", "environment.sh")
    )
    needed = {package for line in program if "needs" in line for package in re.findall(r"\w=(\w+)", line)}
    for line in preparing:
        if re.match(r" *missing(\.append| \+?=)", line):
            needed |= set(re.findall(r'(?:\[|, |append\()f?"([\w{}-]+)"', line))
    asked = re.findall(r"^apt-get install (.*)$", INSTALL, re.MULTILINE)
    assert [set(packages.split()) for packages in asked] == [{package.replace("{name}", "python3") for package in needed}]


def test_what_install_uses_is_installed() -> None:
    """The programs of the virtual environment are pip's and those that pyproject.toml makes; the completions are for the
    shells that tests/docs/test_commands.py tries."""
    made = tomllib.loads((CHECKOUT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["scripts"]
    assert set(re.findall(r"/opt/policyfs/bin/([\w.]+)", INSTALL)) - {"pip"} <= set(made)
    assert "policyfs" in made
    assert re.findall(r"_POLICYFS_COMPLETE=(\w+)_source policyfs", INSTALL) == ["bash", "zsh", "fish"]
