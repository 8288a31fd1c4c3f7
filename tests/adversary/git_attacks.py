"""What a session can leave in a repository so that its owner's git executes it, or writes where the session may not.

Each attack is shell text, so that it is the same in a plain directory (where it must succeed, or it would prove nothing),
in a mount and in a run. The payload only acts where $OWNER names a directory, which it does for the owner alone: it makes a
file there with the attack's name.
"""

from __future__ import annotations

from dataclasses import dataclass

IDENTITY = {
    "GIT_AUTHOR_NAME": "A", "GIT_AUTHOR_EMAIL": "a@example.invalid",
    "GIT_COMMITTER_NAME": "A", "GIT_COMMITTER_EMAIL": "a@example.invalid",
    "GIT_CONFIG_NOSYSTEM": "1", "GIT_EDITOR": "true", "GIT_PAGER": "cat", "GIT_TERMINAL_PROMPT": "0",
}  # fmt: skip
"""Of who acts, the owner and the session alike. Both read the configuration of their home."""

PRELUDE = r"""
payload='[ -z "$OWNER" ] || : > "$OWNER/$NAME"'
setting='[ -z $OWNER ] || : > $OWNER/'$NAME'; false'
program() { printf '#!/bin/sh\n%s\n' "[ -z \"\$OWNER\" ] || : > \"\$OWNER/$NAME\"" > "$1"; chmod +x "$1"; }
configuration() { printf '[core]\n\trepositoryformatversion = 0\n\tfsmonitor = "%s"\n' "$setting"; }
bare() { mkdir -p "$1/objects" "$1/refs" "$1/hooks"; echo 'ref: refs/heads/master' > "$1/HEAD"; configuration > "$1/config";
         program "$1/hooks/pre-commit"; }
shared() { mkdir -p "$1/objects" "$1/refs" "$1/hooks"; configuration > "$1/config"; program "$1/hooks/pre-commit"; }
blob() { git hash-object -w --stdin; }
script() { printf '#!/bin/sh\n[ -z "$OWNER" ] || : > "$OWNER/%s"\n' "$NAME"; }
index() { /usr/bin/python3 -I -c "$INDEX" "$@"; }
stopped() { git rebase -q side 2>/dev/null; }
INDEX='
import hashlib, struct, sys
def entry(path, mode, blob, version, before):
    fixed = struct.pack(">10I", 0, 0, 0, 0, 0, 0, mode, 0, 0, 0) + bytes.fromhex(blob) + struct.pack(">H", len(path))
    if version == 4:
        common = 0
        while common < min(len(path), len(before)) and path[common] == before[common]:
            common += 1
        return fixed + bytes([len(before) - common]) + path[common:] + bytes(1)
    whole = fixed + path
    return whole + bytes(8 - len(whole) % 8)
target, version = sys.argv[1], int(sys.argv[2])
entries = sorted((path.encode(), int(mode, 8), blob) for path, mode, blob in (text.split("=") for text in sys.argv[3:]))
body, before = b"DIRC" + struct.pack(">II", version, len(entries)), b""
for path, mode, blob in entries:
    body += entry(path, mode, blob, version, before)
    before = path
open(target, "wb").write(body + hashlib.sha1(body).digest())
'
"""

EXCHANGE = r"""/usr/bin/python3 -I -c '
import ctypes, sys
old, new = (name.encode() for name in sys.argv[1:])
ctypes.CDLL(None).renameat2(-100, old, -100, new, 2)
'"""

HELD = r"""/usr/bin/python3 -I -c '
import os, sys
place, name, harmless, harmful = sys.argv[1:]
held = os.open(place + "/scratch", os.O_RDWR | os.O_CREAT)
os.write(held, open(harmless, "rb").read())
os.rename(place + "/scratch", place + "/" + name)
os.ftruncate(held, 0)
os.pwrite(held, open(harmful, "rb").read(), 0)
'"""

MAPPED = r"""/usr/bin/python3 -I -c '
import mmap, os, sys
name, text = sys.argv[1], sys.argv[2].encode()
held = os.open(name, os.O_RDWR | os.O_CREAT)
os.ftruncate(held, len(text))
mapped = mmap.mmap(held, len(text))
mapped[:] = text
mapped.flush()
'"""

BUILT_ON = r"""/usr/bin/python3 -I -c '
import hashlib, sys
empty = bytes(7) + bytes([1]) + bytes(12)
body = b"DIRC" + bytes([0, 0, 0, 2, 0, 0, 0, 0]) + b"link" + bytes([0, 0, 0, 60]) + bytes.fromhex(sys.argv[2]) + empty * 2
open(sys.argv[1], "wb").write(body + hashlib.sha1(body).digest())
'"""

BY_SUBMODULE = "git -C sub commit -q --allow-empty -m x; git add sub; configuration > sub/.git/config"

TRACKED = "f=100644=$(git rev-parse HEAD:f)"


@dataclass(frozen=True)
class Attack:
    """`prepare` is what the owner has beforehand, `session` what is left in the view, `then` what the owner does; each runs
    in the repository `proj`. `granted` has a grant on it, so that it is looked at when the view is opened."""

    name: str
    session: str
    then: str = "git status; git commit -q --allow-empty -m x; git checkout -q ."
    prepare: str = ""
    granted: bool = False

    def __str__(self) -> str:
        return self.name


def _attacks() -> list[Attack]:
    hooks = "mkdir -p .githooks; git config core.hooksPath .githooks"
    linked = "git worktree add -q ../linked"
    rebase = "git switch -q topic"
    existing_hook = "printf '#!/bin/sh\\n:\\n' > .git/hooks/pre-commit; chmod +x .git/hooks/pre-commit"
    return [
        # -- what is there
        Attack("hook", "program .git/hooks/pre-commit"),
        Attack("hook-written-into", "script > .git/hooks/pre-commit", prepare=existing_hook),
        Attack("hook-renamed", "program .git/x; mv .git/x .git/hooks/pre-commit"),
        Attack("hook-linked", "program x; ln x .git/hooks/pre-commit"),
        Attack("hooks-replaced", "mkdir h; program h/pre-commit; mv .git/hooks .git/o; mv h .git/hooks"),
        Attack("hooks-exchanged", f"mkdir h; program h/pre-commit; {EXCHANGE} h .git/hooks"),
        Attack("hooks-made", "mkdir .git/hooks; program .git/hooks/pre-commit", prepare="rm -r .git/hooks"),
        Attack(
            "hooks-as-link",
            "mkdir h; program h/pre-commit; ln -s ../h .git/hooks",
            prepare="rm -r .git/hooks",
        ),
        Attack("config", "configuration >> .git/config"),
        Attack("config-by-git", 'git config core.fsmonitor "$setting"'),
        Attack("config-renamed", "configuration > c; mv -f c .git/config"),
        Attack("config-exchanged", f"configuration > c; {EXCHANGE} c .git/config"),
        Attack("config-removed", "rm -f .git/config; configuration > .git/config"),
        Attack("config-by-another-name", "ln .git/config c; configuration >> c"),
        Attack(
            "config-of-work-tree",
            "configuration > .git/config.worktree",
            prepare="git config extensions.worktreeConfig true",
        ),
        Attack("moved-away", "mv .git g; configuration >> g/config; program g/hooks/pre-commit; mv g .git"),
        Attack(
            "moved-with-its-directory",
            "cd ..; mv proj/.git other; configuration >> other/config; mkdir -p proj; mv other proj/.git",
        ),
        Attack("in-other-case", "program .git/HOOKS/pre-commit; program .git/hooks/pre-commit"),
        # -- where it leads
        Attack("commondir", "shared ../evil; echo ../../evil > .git/commondir"),
        Attack("commondir-renamed", "shared ../evil; echo ../../evil > .git/c; mv .git/c .git/commondir"),
        Attack(
            "message-through-link",
            'ln -sf hooks/pre-commit .git/COMMIT_EDITMSG; echo "$payload" > .git/MERGE_MSG',
            "echo x >> f; git commit -qa; git commit -qa --allow-empty -m x",
            existing_hook,
        ),
        Attack(
            "message-through-moved-link",
            'ln -s hooks/pre-commit l; mv -T l .git/COMMIT_EDITMSG; echo "$payload" > .git/MERGE_MSG',
            "echo x >> f; git commit -qa; git commit -qa --allow-empty -m x",
            existing_hook,
        ),
        # -- new git directories
        Attack("nested", f"git init -q sub; {BY_SUBMODULE}"),
        Attack("nested-moved", f"git init -q x; mv x/.git x/g; mkdir sub; mv x/g sub/.git; {BY_SUBMODULE}"),
        Attack("nested-by-hand", "mkdir sub; bare sub/.git; git add sub", "cd sub; git status"),
        Attack(
            "nested-file",
            "bare ../evil; mkdir sub; echo 'gitdir: ../../evil' > sub/.git",
            "cd sub; git status",
        ),
        Attack("nested-link", "bare ../evil; mkdir sub; ln -s ../../evil sub/.git", "cd sub; git status"),
        Attack("bare", "bare ../evil", "cd ../evil; git --work-tree=. status"),
        Attack(
            "bare-head-last",
            "bare ../evil; mv ../evil/HEAD ../evil/H; mv ../evil/H ../evil/HEAD",
            "cd ../evil; git --work-tree=. status",
        ),
        Attack(
            "bare-objects-moved",
            "mkdir -p ../evil/refs ../o; echo 'ref: refs/heads/x' > ../evil/HEAD; configuration > ../evil/config;"
            " mv -T ../o ../evil/objects",
            "cd ../evil; git --work-tree=. status",
        ),
        Attack(
            "bare-links",
            "mkdir -p ../evil ../o ../r; configuration > ../evil/config; ln -s ../o ../evil/objects;"
            " ln -s ../r ../evil/refs; ln -s refs/heads/x ../evil/HEAD",
            "cd ../evil; git --work-tree=. status",
        ),
        Attack(
            "bare-with-commondir",
            "shared ../evil; mkdir ../wt; echo ../evil > ../wt/commondir; echo 'ref: refs/heads/x' > ../wt/HEAD",
            "cd ../wt; git --work-tree=. status",
        ),
        Attack(
            "within-git", "bare .git/x; mkdir sub; echo 'gitdir: ../.git/x' > sub/.git", "cd sub; git status"
        ),
        Attack(
            "within-modules",
            "bare .git/modules/x; mkdir sub; echo 'gitdir: ../.git/modules/x' > sub/.git",
            "cd sub; git status",
        ),
        Attack(
            "within-references",
            "bare .git/modules/x/refs/y; mkdir sub; echo 'gitdir: ../.git/modules/x/refs/y' > sub/.git",
            "cd sub; git status",
        ),
        # -- a .git file
        Attack(
            "git-file-rewritten",
            'bare ../evil; echo "gitdir: $PWD/../evil" > ../linked/.git',
            "cd ../linked; git status",
            linked,
        ),
        Attack(
            "git-file-in-pieces",
            "bare ../evil; printf 'gitdir: ' > ../linked/.git; printf '../evil' >> ../linked/.git",
            "cd ../linked; git status",
            linked,
        ),
        Attack(
            "git-file-mapped",
            f"bare ../evil; {MAPPED} ../linked/.git 'gitdir: ../evil'",
            "cd ../linked; git status",
            linked,
        ),
        Attack(
            "git-file-renamed",
            "bare ../evil; echo 'gitdir: ../evil' > ../x; mv ../x ../linked/.git",
            "cd ../linked; git status",
            linked,
        ),
        Attack(
            "git-file-held",
            "bare ../evil; cp ../linked/.git good; echo 'gitdir: ../evil' > bad;"
            f" {HELD} ../linked .git good bad",
            "cd ../linked; git status",
            linked,
        ),
        Attack(
            "work-tree-commondir",
            f"{linked}; shared ../evil; echo ../../../../evil > .git/worktrees/linked/commondir",
            "cd ../linked; git status",
        ),
        Attack(
            "work-tree-commondir-by-link",
            f"{linked}; shared ../evil; rm .git/worktrees/linked/commondir;"
            " ln -s ../../../../c .git/worktrees/linked/commondir; printf ../../../../evil > ../c",
            "cd ../linked; git status",
        ),
        Attack(
            "work-tree-config",
            f"{linked}; configuration > .git/worktrees/linked/config.worktree",
            "cd ../linked; git status",
            "git config extensions.worktreeConfig true",
        ),
        Attack(
            "work-tree-directory-moved",
            f"{linked}; shared ../evil; mv .git/worktrees .git/w; echo ../../../../evil > .git/w/linked/commondir;"
            " mv .git/w .git/worktrees",
            "cd ../linked; git status",
        ),
        # -- state that leads to a program
        Attack(
            "todo",
            'stopped; echo "exec $payload" >> .git/rebase-merge/git-rebase-todo',
            "echo r > f; git add f; git rebase --continue",
            rebase,
        ),
        Attack(
            "todo-short",
            'stopped; echo "  x $payload" >> .git/rebase-merge/git-rebase-todo',
            "echo r > f; git add f; git rebase --continue",
            rebase,
        ),
        Attack(
            "todo-renamed",
            'stopped; echo "exec $payload" > t; cp t .git/rebase-merge/t;'
            " mv .git/rebase-merge/t .git/rebase-merge/git-rebase-todo; mv t .git/rebase-merge/git-rebase-todo",
            "echo r > f; git add f; git rebase --continue",
            rebase,
        ),
        Attack(
            "todo-in-pieces",
            "stopped; printf 'ex' >> .git/rebase-merge/git-rebase-todo;"
            " printf 'ec %s\\n' \"$payload\" >> .git/rebase-merge/git-rebase-todo",
            "echo r > f; git add f; git rebase --continue",
            rebase,
        ),
        Attack(
            "todo-held",
            'stopped; cp .git/rebase-merge/git-rebase-todo good; echo "exec $payload" > bad;'
            f" {HELD} .git/rebase-merge git-rebase-todo good bad",
            "echo r > f; git add f; git rebase --continue",
            rebase,
        ),
        Attack(
            "todo-mapped",
            f'stopped; {MAPPED} .git/rebase-merge/git-rebase-todo "exec $payload\n"',
            "echo r > f; git add f; git rebase --continue",
            rebase,
        ),
        Attack(
            "todo-by-another-name",
            "stopped; cd .git/rebase-merge; cp git-rebase-todo t; ln t u; mv t git-rebase-todo;"
            ' echo "exec $payload" >> u',
            "echo r > f; git add f; git rebase --continue",
            rebase,
        ),
        Attack(
            "todo-made",
            'git rebase -q -i HEAD~1 -x "$payload"; mkdir -p .git/rebase-merge; cd .git/rebase-merge;'
            " git rev-parse HEAD > onto; git rev-parse HEAD > orig-head; echo refs/heads/master > head-name;"
            ' touch interactive done; echo 1 > msgnum; echo 1 > end; echo "exec $payload" > git-rebase-todo',
            "git rebase --continue",
        ),
        Attack(
            "todo-directory-moved",
            'stopped; cd .git; mv rebase-merge r; echo "exec $payload" >> r/git-rebase-todo;'
            " mv r rebase-merge",
            "git status; echo r > f; git add f; git rebase --continue",
            rebase,
        ),
        Attack(
            "strategy",
            "stopped; mkdir git-merge-x; program git-merge-x/y; echo x/y > .git/rebase-merge/strategy",
            "echo r > f; git add f; git rebase --continue",
            rebase,
        ),
        Attack(
            "strategy-option",
            "git cherry-pick topic~1 topic; mkdir git-merge-x; program git-merge-x/y;"
            " git config -f .git/sequencer/opts options.strategy x/y;"
            " printf '[options]\\n\\tstrategy = x/y\\n' > .git/sequencer/opts",
            "echo r > f; git add f; git cherry-pick --continue",
            "git switch -q side",
        ),
        # -- the index
        Attack(
            "index",
            f"index .git/index.lock 2 .git/hooks/post-checkout=100755=$(script | blob) {TRACKED};"
            " mv .git/index.lock .git/index",
            "git checkout .; git checkout -q HEAD",
        ),
        Attack(
            "index-in-place",
            f"index .git/index 2 .git/hooks/post-checkout=100755=$(script | blob) {TRACKED}",
            "git checkout .; git checkout -q HEAD",
        ),
        Attack(
            "index-version-4",
            f"index .git/index.lock 4 .git/hooks/post-checkout=100755=$(script | blob) {TRACKED};"
            " mv .git/index.lock .git/index",
            "git checkout .; git checkout -q HEAD",
        ),
        Attack(
            "index-below-a-directory",
            "mkdir -p sub; index .git/index.lock 2"
            f" sub/../.git/hooks/post-checkout=100755=$(script | blob) {TRACKED}; mv .git/index.lock .git/index",
            "git checkout .; git checkout -q HEAD",
        ),
        Attack(
            "index-absolute",
            f"index .git/index.lock 2 $MARKS/$NAME=100644=$(script | blob) {TRACKED};"
            " mv .git/index.lock .git/index",
            "git checkout .",
        ),
        Attack(
            "index-held",
            f"index bad 2 .git/hooks/post-checkout=100755=$(script | blob) {TRACKED};"
            f" {HELD} .git index .git/index bad",
            "git checkout .; git checkout -q HEAD",
        ),
        Attack(
            "index-by-another-name",
            f"index bad 2 .git/hooks/post-checkout=100755=$(script | blob) {TRACKED};"
            " cp .git/index .git/a; ln .git/a .git/b; mv .git/a .git/index; cat bad > .git/b",
            "git checkout .; git checkout -q HEAD",
        ),
        Attack(
            "index-shared",
            f"index t 2 .git/hooks/post-checkout=100755=$(script | blob) {TRACKED}; cp t .git/t;"
            f" s=$(tail -c 20 t | od -An -tx1 | tr -d ' \\n'); mv .git/t .git/sharedindex.$s; {BUILT_ON} .git/i $s;"
            " mv .git/i .git/index",
            "git checkout .; git checkout -q HEAD",
        ),
        Attack(
            "index-of-work-tree",
            f"{linked}; index .git/worktrees/linked/i 2"
            f" ../proj/.git/hooks/post-checkout=100755=$(script | blob) {TRACKED};"
            " mv .git/worktrees/linked/i .git/worktrees/linked/index",
            "cd ../linked; git checkout .; cd ../proj; git checkout -q HEAD",
        ),
        # -- what the owner's configuration names
        Attack("hooks-path", "program .githooks/pre-commit", prepare=hooks, granted=True),
        Attack(
            "hooks-path-moved",
            "mv .githooks o; mkdir .githooks; program .githooks/pre-commit",
            prepare=hooks,
            granted=True,
        ),
        Attack(
            "hooks-path-missing",
            "mkdir .githooks; program .githooks/pre-commit",
            prepare="git config core.hooksPath .githooks",
            granted=True,
        ),
        Attack(
            "hooks-path-of-husky",
            "program .husky/pre-commit",
            granted=True,
            prepare="mkdir -p .husky/_; git config core.hooksPath .husky/_;"
            " printf '#!/bin/sh\\nsh .husky/pre-commit\\n' > .husky/_/pre-commit; chmod +x .husky/_/pre-commit;"
            " echo : > .husky/pre-commit",
        ),
        Attack(
            "hooks-are-a-link",
            "program h/pre-commit",
            prepare="rm -r .git/hooks; mkdir h; ln -s ../h .git/hooks",
            granted=True,
        ),
        Attack(
            "hook-is-a-link",
            "script > tool",
            granted=True,
            prepare="printf '#!/bin/sh\\n' > tool; chmod +x tool; ln -s ../../tool .git/hooks/pre-commit",
        ),
        Attack(
            "hooks-path-is-a-link",
            "mkdir evil; program evil/pre-commit; ln -sfn evil .githooks",
            granted=True,
            prepare="mkdir h; ln -s h .githooks; git config core.hooksPath .githooks",
        ),
        Attack(
            "include",
            "configuration > .gitinclude",
            granted=True,
            prepare="echo > .gitinclude; git config include.path ../.gitinclude",
        ),
        Attack(
            "include-of-include",
            "configuration > b",
            granted=True,
            prepare="printf '[include]\\n\\tpath = b\\n' > a; git config includeIf.onbranch:**.path ../a",
        ),
        Attack(
            "fsmonitor",
            "script > tool.sh",
            granted=True,
            prepare="echo > tool.sh; chmod +x tool.sh; git config core.fsmonitor ./tool.sh",
        ),
        Attack(
            "filter",
            "script > tools/clean.sh; echo '* filter=x' > .gitattributes",
            "touch f; echo x >> f; git status; git add f",
            prepare="mkdir tools; echo cat > tools/clean.sh; git config filter.x.clean 'sh tools/clean.sh'",
            granted=True,
        ),
        Attack(
            "external-diff",
            "script > tool.sh",
            "echo x >> f; git diff",
            prepare="echo > tool.sh; chmod +x tool.sh; git config diff.external ./tool.sh",
            granted=True,
        ),
        Attack(
            "hooks-path-in-new-work-tree",
            "git worktree add -q ../new; mkdir -p ../new/.githooks; program ../new/.githooks/pre-commit",
            "cd ../new; git commit -q --allow-empty -m x",
            hooks,
            granted=True,
        ),
        Attack(
            "hooks-path-in-old-work-tree",
            "program ../linked/.githooks/pre-commit",
            "cd ../linked; git commit -q --allow-empty -m x",
            f"{hooks}; {linked}; mkdir ../linked/.githooks",
            granted=True,
        ),
        Attack(
            "hooks-path-in-moved-repository",
            "mkdir ../b; cd ..; mv proj b/proj; cd b/proj; program .githooks/pre-commit; mkdir -p ../../proj",
            "[ -d .git ] || cd ../b/proj; git commit -q --allow-empty -m x",
            hooks,
            granted=True,
        ),
        # -- other git directories of the owner
        Attack(
            "bare-of-owner",
            "program ../own/hooks/update",
            "git push -q ../own HEAD:refs/heads/x",
            "git init -q --bare ../own",
        ),
        Attack(
            "bare-of-owner-config",
            "printf '[core]\\n\\thooksPath = ../h\\n' >> ../own/config; mkdir ../h; program ../h/update",
            "git push -q ../own HEAD:refs/heads/x",
            "git init -q --bare ../own",
        ),
        Attack(
            "bare-of-owner-broken",
            "mv ../own/HEAD ../H; program ../own/hooks/update; mv ../H ../own/HEAD",
            "git push -q ../own HEAD:refs/heads/x",
            "git init -q --bare ../own",
        ),
        Attack(
            "bare-of-owner-moved",
            "mkdir ../n; mv ../own ../n/own; printf '[core]\\n\\thooksPath = h\\n' > ../n/shared;"
            " mkdir -p ../n/own/h; program ../n/own/h/update; cd ..; [ -e own ] || ln -s n/own own",
            "git push -q ../n/own HEAD:refs/heads/x",
            "git init -q --bare ../own; git -C ../own config include.path ../shared; echo > ../shared",
        ),
        Attack(
            "separate",
            "program ../g/hooks/pre-commit; configuration >> ../g/config",
            prepare="git init -q --separate-git-dir ../g",
        ),
        Attack(
            "submodule",
            "configuration >> .git/modules/sub/config",
            "git status; git -C sub status",
            "git -c protocol.file.allow=always submodule --quiet add ./ sub",
        ),
        Attack(
            "submodule-moved",
            "mv .git/modules .git/m; configuration >> .git/m/sub/config; mv .git/m .git/modules",
            "git status; git -C sub status",
            "git -c protocol.file.allow=always submodule --quiet add ./ sub",
        ),
        Attack(
            "submodule-named-like-data",
            "configuration >> .git/modules/a/logs/config",
            "git status; git -C sub status",
            "git -c protocol.file.allow=always submodule --quiet add --name a/logs ./ sub",
        ),
        # -- the owner's own configuration, where the home is in the view
        Attack("of-the-home", 'git config --file ../../home/.gitconfig core.fsmonitor "$setting"'),
        Attack(
            "of-the-home-xdg",
            'mkdir -p ../../home/.config/git; git config --file ../../home/.config/git/config diff.external "$setting"',
            "echo x >> f; git diff",
        ),
        Attack(
            "of-the-home-xdg-moved",
            "mkdir -p ../c/git; cp ../../home/.config/git/config ../c/git; mv ../../home/.config ../o; "
            'git config --file ../c/git/config core.sshCommand "$setting"; mv ../c ../../home/.config',
            "git ls-remote ssh://example.invalid/x",
        ),
    ]


ATTACKS = _attacks()
