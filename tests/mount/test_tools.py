"""Real tools in a directory at stage, below a root at ro: each row a tool at work, as people use it."""

from __future__ import annotations

import shutil
from collections.abc import Iterator

import pytest

from tests.mount.expecting import absent
from tests.mount.harness import MODULE_DEADLINE, Mounted, mounted
from tests.mount.places import Place, place_for

_GIT = r"""
export GIT_AUTHOR_NAME=t GIT_AUTHOR_EMAIL=t@example.org GIT_COMMITTER_NAME=t GIT_COMMITTER_EMAIL=t@example.org
git init -q -b main repo
cd repo
for i in {1..40}; do echo $i > f$i; done
git add .
git commit -qm one
"""

_ROWS = {
    "git commits and finds its tree clean": ("git", _GIT + 'test -z "$(git status --porcelain)"'),
    "git worktree and merge": (
        "git",
        _GIT
        + r"""
        git worktree add -q -b other ../wt
        (cd ../wt; echo x > f1; git commit -qam two)
        git merge -q other
        test "$(cat f1)" = x
        """,
    ),
    "git rebase, gc and fsck": (
        "git",
        _GIT
        + r"""
        git switch -qc x; echo n > f1; git commit -qam 2
        git switch -q main; echo m > f2; git commit -qam 3; git rebase -q x
        git gc -q
        git fsck --no-progress
        test -z "$(git status --porcelain)"
        test "$(git log --oneline | wc -l)" = 3
        test -z "$(find .git -name '*.lock')"
        """,
    ),
    "git clone": ("git", _GIT + "git clone -q . ../clone; diff -r -x .git . ../clone"),
    "git stash and checkout": (
        "git",
        _GIT
        + r"""
        echo changed > f1; git stash -q; test "$(cat f1)" = 1
        git stash pop -q; test "$(cat f1)" = changed
        git checkout -q -- f1; test "$(cat f1)" = 1
        """,
    ),
    "ripgrep": (
        "rg",
        'mkdir d; echo needle > d/a; test "$(rg -l needle)" = d/a; test -z "$(rg nothing-of-the-kind || true)"',
    ),
    "find": (
        "find",
        r"""
        mkdir -p a/b/c; touch a/b/f
        test "$(find a -type d | wc -l)" = 3
        find a -name f -delete
        test -z "$(find a -type f)"
        """,
    ),
    "tar": (
        "tar",
        r"""
        mkdir -p d/e x; echo 1 > d/e/f; ln -s f d/e/l; ln d/e/f d/hard
        tar cf a.tar d; tar xf a.tar -C x; diff -r d x/d
        test x/d/hard -ef x/d/e/f
        """,
    ),
    "cp -a": ("cp", "mkdir d; echo 1 > d/f; touch -d 2001-01-01 d/f; cp -a d copy; diff -r d copy; test ! copy/f -nt d/f"),
    "rsync": (
        "rsync",
        r"""
        mkdir -p d/e; echo 1 > d/e/f
        rsync -a d/ copy; diff -r d copy
        echo 2 > d/e/f
        rsync -ac d/ copy; diff -r d copy
        """,
    ),
    "sed -i keeps the mode": ("sed", "echo old > s; chmod 755 s; sed -i s/old/new/ s; grep -q new s; test -x s"),
    "patch": ("patch", r"echo old > s; printf -- '--- s\n+++ s\n@@ -1 +1 @@\n-old\n+new\n' | patch -s; grep -q new s"),
    "vim saves with a backup": (
        "vim",
        r"""
        echo a > v; chmod 755 v
        vim -u NONE -N -es -c 'set backup writebackup' -c '%s/a/b/' -c wq v </dev/null
        grep -q b v; test -x v
        """,
    ),
    "make and gcc": (
        "gcc",
        r"""
        printf 'int main(){return 0;}\n' > m.c
        printf 'm: m.c\n\tgcc -o m m.c\n' > Makefile
        make -s; ./m; make -q
        """,
    ),
    "a shared library is loaded": (
        "gcc",
        r"""
        printf 'int seven(void){return 7;}\n' > s.c
        gcc -shared -fPIC -o s.so s.c
        python3 -c 'import ctypes; assert ctypes.CDLL("./s.so").seven() == 7'
        """,
    ),
    "python -m venv, twice": (
        "python3",
        r"""
        python3 -m venv --without-pip env; python3 -m venv --without-pip env
        env/bin/python -c 'import sys; assert sys.prefix != sys.base_prefix'
        """,
    ),
    "pytest": (
        "python3",
        r"""
        printf 'def test_a(): assert True\n' > test_a.py
        python3 -m pytest -q -c /dev/null --rootdir . -p no:cacheprovider
        """,
    ),
    "pathlib walks upward": (
        "python3",
        r"""
        python3 -c 'import pathlib; p = pathlib.Path.cwd(); [(q / "pyproject.toml").is_file() for q in [p, *p.parents]]'
        """,
    ),
    "getcwd and realpath": ("python3", """python3 -c 'import os; assert os.getcwd() == os.path.realpath(".")'"""),
    "node finds modules and real paths": (
        "node",
        r"""
        mkdir -p node_modules/a; echo 'module.exports=1' > node_modules/a/index.js
        node -e 'require("a"); require("fs").realpathSync(".")'
        """,
    ),
    "node syncs what it writes": (
        "node",
        r"""
        node -e '
          const fs = require("fs"), file = fs.openSync("n", "w")
          fs.writeSync(file, "q"); fs.fsyncSync(file); fs.closeSync(file)
          fs.writeFileSync("m", "z", {flush: true})'
        test "$(cat n m)" = qz
        """,
    ),
    "npm packs offline": ("npm", "npm init -y >/dev/null; npm pack --offline --loglevel=error; ls ./*.tgz"),
    "what npm install does to names": (
        "node",
        r"""
        mkdir -p st/pkg/bin node_modules/.bin; echo 'console.log(1)' > st/pkg/bin/c.js; chmod 755 st/pkg/bin/c.js
        mv st/pkg node_modules/pkg; ln -s ../pkg/bin/c.js node_modules/.bin/c; test "$(node node_modules/.bin/c)" = 1
        mkdir node_modules/.old; mv -T node_modules/pkg node_modules/.old; mv -T node_modules/.old node_modules/pkg
        ln node_modules/pkg/bin/c.js node_modules/hl.js; test "$(node node_modules/hl.js)" = 1
        """,
    ),
    "sqlite in WAL mode": (
        "sqlite3",
        r"""
        sqlite3 d.db 'pragma journal_mode=wal; create table t(x); insert into t values(1);'
        test "$(sqlite3 d.db 'select count(*) from t')" = 1
        """,
    ),
    "rm -rf": ("rm", "mkdir -p d/{1..20}/{a,b}; touch d/{1..20}/{a,b}/{x,y}; rm -rf d; test ! -e d"),
}
"""The program that must be there, and a bash script that stops at the first failure."""


@pytest.fixture(scope="module")
def view(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Mounted]:
    """A root that can be read, with a directory to work in."""
    source = tmp_path_factory.mktemp("source")
    (source / "work").mkdir()
    with mounted(source, "/=ro", "/work=stage", deadline=MODULE_DEADLINE) as view:
        yield view


@pytest.fixture
def place(view: Mounted, request: pytest.FixtureRequest) -> Place:
    """A directory of this test's own."""
    return place_for(view, request, "work")


@pytest.mark.parametrize("row", _ROWS, ids=lambda row: row)
def test_a_tool_works(place: Place, row: str) -> None:
    """The tool does there what it does anywhere."""
    tool, script = _ROWS[row]
    if shutil.which(tool) is None:
        absent(f"no {tool} here")
    place.shell(script)
