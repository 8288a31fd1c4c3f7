"""`[git] protect`: nothing that a session leaves in the view makes its owner's git execute anything new."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.adversary.git_attacks import ATTACKS, IDENTITY, PRELUDE, Attack
from tests.mount import harness
from tests.mount.harness import PROGRAM, Person, mounted
from tests.sandbox.runs import require_sandbox

GRANTS = tuple(f"/{attack.name}/proj=stage" for attack in ATTACKS if attack.granted)


class Ground:
    """A tree with a repository for each attack and the owner's home in it. What the owner's git executes makes a file in
    `marks`."""

    def __init__(self, directory: Path, person: Person) -> None:
        self.person = person
        self.source = directory / "tree"
        self.marks = directory / "marks"
        for made in (self.source / "home/.config", self.marks):
            made.mkdir(parents=True)
        template = directory / "template"
        self.owner(directory, _TEMPLATE.format(template=shlex.quote(str(template))))
        for attack in ATTACKS:
            (self.source / attack.name).mkdir()
            shutil.copytree(template, self.source / attack.name / "proj", symlinks=True)
            said = self.owner(self.source / attack.name / "proj", f"set -e\n{attack.prepare}" if attack.prepare else ":")
            assert said.returncode == 0, (attack.name, said.stdout)

    def owner(self, cwd: Path, script: str, name: str = "") -> subprocess.CompletedProcess[str]:
        """What the owner does, in a directory of the tree."""
        environment = {
            **self.person.environment, **IDENTITY, "HOME": str(self.source / "home"), "OWNER": str(self.marks), "NAME": name,
            "XDG_CONFIG_HOME": str(self.source / "home/.config"),
        }  # fmt: skip
        environment.pop("GIT_CONFIG_GLOBAL")
        return subprocess.run(
            ["sh", "-c", script], cwd=cwd, env=environment, text=True, errors="replace", timeout=60, check=False,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip

    def session(self, at: Path) -> str:
        """Where the script is that leaves everything, in a tree that is seen at a place."""
        identity = "\n".join(f"export {name}={shlex.quote(value)}" for name, value in IDENTITY.items())
        attacks = "\n".join(
            f"(cd {shlex.quote(str(at / attack.name / 'proj'))} && NAME={attack.name}\n{PRELUDE}\n{attack.session}\n)"
            " </dev/null"
            for attack in ATTACKS
        )
        place = shlex.quote(str(self.marks))
        script = f"{identity}\nunset OWNER\nexport HOME=/nowhere MARKS={place}\n{attacks}\ntrue\n"
        (self.source / "session.sh").write_text(script)
        return str(at / "session.sh")

    def carried_out(self, attack: Attack) -> bool:
        """Whether the owner's git executes what the attack left, or writes it."""
        said = self.owner(self.source / attack.name / "proj", attack.then, attack.name)
        print(said.stdout)
        return (self.marks / attack.name).exists()


_TEMPLATE = """set -e
git init -q {template}
cd {template}
echo 1 > f; git add f; git commit -q -m 1
git switch -q -c side; echo 2 > f; git commit -q -a -m 2
git switch -q -c topic master; echo 3 > f; git commit -q -a -m 3; echo 4 > g; git add g; git commit -q -m 4
git switch -q master
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A tree in which everything was left without any view."""
    with harness.myself() as person:
        ground = Ground(tmp_path_factory.mktemp("plain"), person)
        subprocess.run(["sh", ground.session(ground.source)], check=True, capture_output=True)
        yield ground


@pytest.fixture(scope="module", params=["mount", "run"])
def viewed(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ground]:
    """A tree in which everything was left through a view that protects git."""
    require_sandbox()
    with harness.myself() as person, contextlib.ExitStack() as stack:
        ground = Ground(tmp_path_factory.mktemp(request.param), person)
        person.home = ground.source / "home"
        if request.param == "run":
            grants = [word for grant in ("/=stage", *GRANTS) for word in ("-g", grant)]
            command = [*PROGRAM, "run", str(ground.source), *grants, "--", "sh", ground.session(ground.source)]
            done = person.run(*command, cwd=ground.source, timeout=120)
            assert done.returncode == 0, done.stderr
        else:
            view = stack.enter_context(
                mounted(ground.source, "/=stage", *GRANTS, options=["--protect-git"], person=person, deadline=300)
            )
            done = person.run("sh", ground.session(view.point), cwd=view.point, timeout=120)
            assert done.returncode == 0, done.stderr
        print(done.stderr)
        yield ground


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_attack_succeeds_without_a_view(plain: Ground, attack: Attack) -> None:
    """Each attack does what it is meant to where nothing keeps a session from it; or the other test would prove nothing."""
    assert plain.carried_out(attack)


@pytest.mark.parametrize("attack", ATTACKS, ids=str)
def test_attack_is_not_carried_out(viewed: Ground, attack: Attack) -> None:
    """The owner's git executes nothing that a session left, and writes nothing where the session may not."""
    assert not viewed.carried_out(attack)
