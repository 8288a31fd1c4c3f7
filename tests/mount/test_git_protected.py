"""What people do with git inside a view that protects it: all of it works, by a git that knows nothing of the view."""

from __future__ import annotations

import shlex
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.mount import expecting, harness
from tests.mount.harness import PROGRAM, Mounted, mounted
from tests.sandbox.runs import require_sandbox

IDENTITY = {
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.invalid",
    "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.invalid",
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_CONFIG_GLOBAL": "/dev/null", "GIT_EDITOR": "true", "GIT_PAGER": "cat",
}  # fmt: skip
EXPORTS = "".join(f"export {name}={value}\n" for name, value in IDENTITY.items())

PREPARED = """set -e
git init -q --bare remote.git
git init -q project
cd project
for number in 1 2 3; do echo $number > f; git add f; git commit -q -m $number; done
git remote add origin ../remote.git
git push -q origin master master:other
git -c protocol.file.allow=always submodule --quiet add ../remote.git sub
git commit -q -m submodule
git fetch -q
"""

DAY = """
git status
echo 1 > new; git add new; git commit -q -m new
git switch -q -c topic; echo 2 >> f; git stash push -q; git stash pop -q; git commit -q -a -m two
git switch -q master; echo 3 > g; git add g; git commit -q -m three
git switch -q topic; git rebase -q master; git log --oneline; git blame f
git switch -q -c conflicting HEAD~1; echo other > f; git commit -q -a -m other
! git rebase -q topic
echo resolved > f; git add f; git rebase --continue
GIT_SEQUENCE_EDITOR='sed -i s/pick/reword/' git rebase -q -i HEAD~2
git rebase -q --autosquash -r HEAD~2; git rebase -q -s ort --onto HEAD~1 HEAD~1
git switch -q master; git merge -q --no-edit topic; git merge -q --no-ff --no-edit -s ours conflicting
git fetch -q; git fetch -q --all; git push -q origin master topic; git pull -q origin master
git worktree add -q ../linked; git -C ../linked status
echo w > ../linked/w; git -C ../linked add w; git -C ../linked commit -q -m w
(cd ../linked && ! git rebase -q conflicting~1 && git rebase --abort || true)
git worktree list; git worktree lock ../linked; git worktree unlock ../linked
git worktree move ../linked ../moved; git -C ../moved status; git worktree remove ../moved; git worktree prune
git tag v1; git tag -a v2 -m v2
git reset -q --hard HEAD~1; git reset -q --soft HEAD@{1}; touch junk; git clean -q -f -d
git gc -q; git repack -a -d -q; git fsck; git reflog; git pack-refs --all; git maintenance run
git bisect start -q HEAD HEAD~2; git bisect good; git bisect reset
git cherry-pick --allow-empty conflicting > /dev/null || git cherry-pick --skip
echo q > q; git add q; git commit -q -m q; git revert --no-edit HEAD > /dev/null
git rm -q g; git mv f f2; git commit -q -m moved; git notes add -m note
git format-patch -q -1 --stdout > ../patch; git reset -q --hard HEAD~1; git am -q ../patch
git update-index --split-index; echo s > s; git add s; git commit -q -m split; git update-index --no-split-index
git update-index --index-version 4; git add -A; git commit -q --amend --no-edit
git update-index --untracked-cache; git status --short
git checkout HEAD~1 -- .; git restore --source HEAD --staged --worktree .
git apply --index ../patch || true; git reset -q --hard
mkdir .git/rr-cache; git switch -q -c again HEAD~3; ! git merge -q conflicting~1 || true; git reset -q --hard
git -C sub switch -q -c mine; echo x > sub/x; git -C sub add x; git -C sub commit -q -m x
git -C sub rebase -q HEAD~1; git -C sub stash list; git add sub; git commit -q -m 'a newer submodule'; git submodule status
git archive HEAD > /dev/null
"""
"""One shell line each. The whole is played with -e, so that the first that fails ends it."""

SAYS = {
    "git switch -q -c tracking origin/other": 0,
    "git push -q -u origin master": 0,
    "git branch --set-upstream-to=origin/other master": 0,
    "git remote add new somewhere": 128,
    "git config user.name Somebody": 4,
}
"""What would write to the configuration, with git's exit status. The first three do all the rest."""


@contextmanager
def _project(person: harness.Person) -> Iterator[Path]:
    source = person.home / "source"
    source.mkdir()
    done = person.run("sh", "-c", EXPORTS + PREPARED, cwd=source)
    assert done.returncode == 0, done.stderr
    yield source


@pytest.fixture(scope="module")
def view() -> Iterator[Mounted]:
    """A mount that protects git, of a project with a remote and a submodule."""
    expecting.require_fuse()
    with (
        harness.myself() as person,
        _project(person) as source,
        mounted(source, "/=stage", options=["--protect-git"], person=person, deadline=harness.MODULE_DEADLINE) as made,
    ):
        yield made


def test_a_day_of_git_in_a_mount(view: Mounted) -> None:
    """Every command of a day of work succeeds in a mount, and what it did is the repository's outside."""
    done = view.run("sh", "-e", "-x", "-c", EXPORTS + DAY, cwd=view.point / "project", timeout=200)
    assert done.returncode == 0, done.stderr[-2000:]
    outside = view.person.run("git", "fsck", "--strict", cwd=view.source / "project")
    assert outside.returncode == 0, outside.stderr


def test_a_day_of_git_in_a_run() -> None:
    """The same under `policyfs run`, which protects git unless told otherwise."""
    require_sandbox()
    with harness.myself() as person, _project(person) as source:
        script = f"cd {shlex.quote(str(source / 'project'))}\n{EXPORTS}{DAY}"
        done = person.run(*PROGRAM, "run", source, "-g", "/=stage", "--", "sh", "-e", "-x", "-c", script, timeout=200)
        assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("command", SAYS)
def test_what_would_write_to_the_configuration_says_so(view: Mounted, command: str) -> None:
    """git names the file and says that it is read-only; its own exit status tells whether that was all there was to do."""
    view.run("sh", "-c", f"{EXPORTS} git checkout -q master", cwd=view.point / "project")
    done = view.run("sh", "-c", f"{EXPORTS}{command}", cwd=view.point / "project")
    assert done.returncode == SAYS[command], done.stderr
    assert "config file .git/config: Read-only file system" in done.stderr


@pytest.mark.parametrize(
    "command",
    [
        "git init ../made",
        "git clone ../remote.git ../made",
        "git -c protocol.file.allow=always submodule add ../remote.git made",
    ],
)
def test_no_git_directory_is_made(view: Mounted, command: str) -> None:
    """`git init`, `clone` and `submodule add` fail, and say what they may not make."""
    done = view.run("sh", "-c", f"{EXPORTS}{command}", cwd=view.point / "project")
    assert done.returncode != 0
    assert "/.git" in done.stderr
    assert "Permission denied" in done.stderr


def test_exec_is_not_left_for_the_owner(view: Mounted) -> None:
    """`git rebase --exec` is refused, since its list would be carried out by whoever continues it."""
    script = f"{EXPORTS} git rebase --exec true HEAD~1"
    done = view.run("sh", "-c", script, cwd=view.point / "project")
    assert done.returncode != 0
    assert "Permission denied" in done.stderr


def test_an_index_of_many_entries(view: Mounted) -> None:
    """An index that git writes in blocks and reads by threads, of 30,000 files, is taken for what it is, in each version."""
    project = view.point / "project"
    script = f"""{EXPORTS} set -e
blob=$(echo x | git hash-object -w --stdin)
for number in $(seq 30000); do echo "100644 $blob	many/$((number % 100))/$number"; done > ../entries
git -c index.threads=4 update-index --index-info < ../entries
grep -q IEOT .git/index
git -c index.threads=4 update-index --index-version 4
grep -q IEOT .git/index
git update-index --force-remove many/1/1
git reset -q
"""
    done = view.run("sh", "-c", script, cwd=project)
    assert done.returncode == 0, done.stderr
