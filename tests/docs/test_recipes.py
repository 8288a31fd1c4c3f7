"""docs/recipes: each page does what it shows; what needs a machine of another kind is run as far as this one goes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs import console
from tests.mount.expecting import absent, require_fuse
from tests.mount.harness import PROGRAM, Person, myself

RECIPES = console.CHECKOUT / "docs/recipes"
UNIT = RECIPES / "policyfs@.service"

SHIM = '#!/bin/sh\nexec {} "$@"\n'.format(" ".join(f"'{word}'" for word in PROGRAM))
"""The program under another name and in another place."""


def executable(path: Path, text: str) -> Path:
    """A program of this text."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("name", ["agents.md", "container.md", "fstab.md"])
def test_what_a_recipe_shows_happens(name: str) -> None:
    """Each command of the page says what stands below it. The agent is a stand-in; the container's image is made of this
    machine's own programs, and podman is given what a machine that is a container itself needs (grounds.py)."""
    console.assert_as_it_happens(RECIPES / name)


def test_every_recipe_is_listed() -> None:
    """The index names each page, and the README leads to the index."""
    index = (RECIPES / "README.md").read_text(encoding="utf-8")
    pages = {page.name for page in RECIPES.glob("*.md")} - {"README.md"}
    assert set(re.findall(r"^- \[([a-z.]+)\]\(\1\)", index, re.MULTILINE)) == pages


# -- systemd


def test_the_unit_on_the_page_is_the_one_that_ships() -> None:
    """The page shows the unit letter by letter."""
    assert f"```ini\n{UNIT.read_text()}```" in (RECIPES / "systemd.md").read_text()


def test_systemd_finds_no_fault_in_the_unit(tmp_path: Path) -> None:
    """`systemd-analyze verify` reads the unit as a user's and says nothing."""
    if shutil.which("systemd-analyze") is None:
        absent("no systemd-analyze here (Debian: systemd)")
    program = executable(tmp_path / "policyfs", SHIM)
    unit = tmp_path / "policyfs@tree.service"
    unit.write_text(UNIT.read_text().replace("/usr/local/bin/policyfs", str(program)))
    done = subprocess.run(
        ["systemd-analyze", "--user", "verify", unit],
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path), "XDG_RUNTIME_DIR": str(tmp_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_the_commands_of_the_unit_mount_reload_and_unmount() -> None:
    """Start, reload and stop, run in their order as systemd would: mounted, another policy, gone."""
    require_fuse()
    with myself() as person:
        shutil.copytree(console.CHECKOUT / "examples/tree", person.home / "tree")
        session = person.home / ".config/policyfs/tree.toml"
        session.parent.mkdir(parents=True)
        session.write_text('[grants]\n"/Notes" = "ro"\n')
        program = executable(person.home / "bin/policyfs", SHIM)

        def step(key: str) -> None:
            (line,) = re.findall(rf"^{key}=(.*)$", UNIT.read_text(), re.MULTILINE)
            words = line.replace("%h", str(person.home)).replace("%i", "tree").split()
            done = person.run(*(str(program) if word == "/usr/local/bin/policyfs" else word for word in words))
            assert done.returncode == 0, (key, done.stderr)

        view = person.home / "views/tree"
        step("ExecStartPre")
        step("ExecStart")
        try:
            assert person.run("ls", view / "Notes").stdout == "Archive\nPrivate\nPublished\nideas.md\n"
            session.write_text('[grants]\n"/Notes" = "ro"\n"/Notes/Private" = "none"\n')
            step("ExecReload")
            assert person.run("ls", view / "Notes").stdout == "Archive\nPublished\nideas.md\n"
            step("ExecStop")
            assert person.mount_at(view) is None
        finally:
            if person.mount_at(view) is not None:
                person.unmount(view, lazily=True)


# -- CI

PREPARES = re.compile(r"apt-get|git clone|^mv ")
"""Lines of a job that get policyfs there; here it is there."""


def jobs() -> dict[str, str]:
    """The shell of each job on the page, by who runs it."""
    github, gitlab = re.findall(r"```yaml\n(.*?)```", (RECIPES / "ci.md").read_text(encoding="utf-8"), re.DOTALL)
    steps = [line.strip() for run in re.findall(r"run: \|\n((?: {10}.*\n)+)", github) for line in run.splitlines()]
    script = re.findall(r"^    - (.*)$", gitlab.partition("script:")[2], re.MULTILINE)
    return {
        name: "\n".join(line for line in lines if not PREPARES.search(line))
        for name, lines in (("github", steps), ("gitlab", script))
    }


@pytest.fixture
def checkout() -> Iterator[tuple[Person, Path]]:
    """A repository with a session file, as the jobs take it to be, and policyfs beside it."""
    require_fuse()
    if shutil.which("bwrap") is None:
        absent("no bwrap here (Debian: bubblewrap)")
    with myself() as person:
        repository = person.home / "repository"
        for name, text in {
            "ci/session.toml": '[grants]\n"/" = "ro"\n"/.git" = "none"\n"/generated" = "stage"\n"/secrets" = "none"\n',
            "generated/old": "old\n",
            "secrets/key": "hunter2\n",
            "README": "read me\n",
        }.items():
            (repository / name).parent.mkdir(parents=True, exist_ok=True)
            (repository / name).write_text(text)
        executable(repository / "tool", "#!/bin/sh\necho new > generated/new\n")
        for words in (["init", "-q"], ["add", "."], ["-c", "user.name=a", "-c", "user.email=a@b", "commit", "-qm", "all"]):
            assert person.run("git", "-C", repository, *words).returncode == 0
        executable(person.home / "policyfs/scripts/policyfs", SHIM)
        executable(person.home / "bin/sudo", '#!/bin/sh\nexec "$@"\n')
        yield person, repository


def job(person: Person, repository: Path, who: str) -> subprocess.CompletedProcess[str]:
    """Run a job to its first failing line, as a runner does."""
    script = f'PATH="{person.home}/bin:$PATH"\n{jobs()[who]}'
    return person.run("bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script, cwd=repository)


@pytest.mark.parametrize("who", ["github", "gitlab"])
def test_a_job_passes_with_a_tool_that_behaves(who: str, checkout: tuple[Person, Path]) -> None:
    """The tool writes where it may, and all steps of the job succeed."""
    person, repository = checkout
    done = job(person, repository, who)
    assert done.returncode == 0, done.stderr
    assert (repository / "generated/new").read_text() == "new\n"


@pytest.mark.parametrize("who", ["github", "gitlab"])
@pytest.mark.parametrize(
    ("tool", "said"),
    [
        ("cat secrets/key", "No such file or directory"),
        ("echo mine >> README", "Read-only file system"),
        ("cat .git/config", "No such file or directory"),
        ("exit 3", ""),
    ],
)
def test_a_job_fails_with_a_tool_that_does_not(who: str, tool: str, said: str, checkout: tuple[Person, Path]) -> None:
    """A tool that fails, and one that reaches for what it is not to have, make the job fail, and nothing leaks."""
    person, repository = checkout
    executable(repository / "tool", f"#!/bin/sh -e\n{tool}\n")
    done = job(person, repository, who)
    assert done.returncode != 0
    assert said in done.stderr
    assert "hunter2" not in done.stdout
    assert (repository / "README").read_text() == "read me\n"


@pytest.mark.parametrize("who", ["github", "gitlab"])
@pytest.mark.parametrize(
    "session", ['[grants]\n"/" = "rw"\n', '[grants]\n"/" = "stage"\n'], ids=["with a fault", "with what a view cannot guard"]
)
def test_a_job_fails_before_the_tool_where_the_policy_is_bad(who: str, session: str, checkout: tuple[Person, Path]) -> None:
    """A session file with a fault, and one that leaves git's hooks to the tool, end the job before the tool runs."""
    person, repository = checkout
    (repository / "ci/session.toml").write_text(session)
    assert job(person, repository, who).returncode != 0
    assert not (repository / "generated/new").exists()
