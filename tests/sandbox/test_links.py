"""Links in a run: each is shown as it is, what it leads to is what the sandbox has there, and one is made only to where a
program outside, with its user's rights, may follow it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

from tests.sandbox.runs import SECRET, Ground, ran

LOOK = r"""
import json, os, sys
told = {}
for name in sorted(os.listdir(".")):
    if os.path.islink(name):
        try:
            led = os.stat(name).st_size >= 0
        except OSError as error:
            led = error.strerror
        told[name] = [os.readlink(name), os.lstat(name).st_size, led]
print(json.dumps(told))
"""

MAKE = r"""
import json, os, sys
told = {}
for text in sys.argv[1:]:
    try:
        os.symlink(text, "made")
        os.unlink("made")
        told[text] = None
    except OSError as error:
        told[text] = error.strerror
print(json.dumps(told))
"""

MISSING = "No such file or directory"
DENIED = "Permission denied"


def test_every_link_is_shown_as_it_is(tree: Ground) -> None:
    """To hidden places, out of the tree and to what is not there: with the very text, which leads where the sandbox has
    something, and nowhere else."""
    private = tree.person.home / "private.txt"
    private.write_text(SECRET)
    leads = {
        "hidden": ("../hidden.txt", MISSING),
        "hidden-absolute": (f"{tree.source}/hidden.txt", MISSING),
        "inside": (f"{tree.source}/open.txt", True),
        "home": (str(private), MISSING),
        "climbing": (os.path.relpath(private, tree.source / "yard"), MISSING),
        "system": ("/usr/bin/env", True),
        "shadow": ("/etc/shadow", MISSING),
        "dangling": ("nothing/at/all", MISSING),
    }
    for name, (text, _) in leads.items():
        (tree.source / "yard" / name).symlink_to(text)
    told = json.loads(ran(tree.run("sh", "-c", f"cd {tree.source}/yard && exec python3 -I -c '{LOOK}'")))
    assert told == {name: [text, len(text), led] for name, (text, led) in leads.items()}


def test_links_are_made_to_what_means_the_same_outside(tree: Ground) -> None:
    """To the tree less what is hidden, to the system and to places that were added, by each of their names; neither to the
    private home and /tmp, nor to the kernel's, nor to what no sandbox shows."""
    home = tree.person.home
    (home / "tools").mkdir(exist_ok=True)
    if not (home / "by-name").is_symlink():
        (home / "by-name").symlink_to("tools")
    may = ["a.txt", "gone", "../open.txt", f"{tree.source}/open.txt", "/usr/bin/env", "/bin/sh", "/dev/null"]
    may += [f"{home}/tools/x", f"{home}/by-name/x", os.path.relpath(home / "tools/x", tree.source / "yard")]
    may_not = ["../hidden.txt", "../hidden/gone", f"{tree.source}/hidden", ".env", str(home), f"{home}/private.txt", "/"]
    may_not += [f"{home}/.ssh/id_rsa", f"{home}/tools/../.ssh", f"{home}/tools/.env", "/tmp/x", "/etc/shadow", "/etc/passwd"]
    may_not += ["/proc/self/environ", "/root", os.path.relpath(home / "private.txt", tree.source / "yard")]
    script = f"cd {tree.source}/yard && exec python3 -I -c '{MAKE}' \"$@\""
    done = tree.run("sh", "-c", script, "sh", *may, *may_not, options=("--ro-bind", str(home / "by-name")))
    assert json.loads(ran(done)) == {**dict.fromkeys(may), **dict.fromkeys(may_not, DENIED)}


def test_source_by_the_name_that_it_was_given(one_tree: Ground) -> None:
    """What that name says of a hidden path is refused, and of any other is made."""
    alias = one_tree.person.home / "alias"
    alias.symlink_to(one_tree.source)
    script = f"cd {one_tree.source}/yard && exec python3 -I -c '{MAKE}' \"$@\""
    texts = [f"{alias}/open.txt", f"{alias}/hidden.txt"]
    done = Ground(one_tree.person, alias).run("sh", "-c", script, "sh", *texts)
    assert json.loads(ran(done)) == dict(zip(texts, (None, DENIED), strict=True))


def test_a_listed_place_may_be_linked_to(one_tree: Ground) -> None:
    """`links.outside` of the session adds to what stands there."""
    session = one_tree.person.home / "session.toml"
    session.write_text('[grants]\n"/" = "stage"\n[links]\noutside = ["/srv/store"]\n')
    script = f"cd {one_tree.source} && exec python3 -I -c '{MAKE}' \"$@\""
    done = one_tree.run("sh", "-c", script, "sh", "/srv/store/x", "/srv/other", grants=("-s", str(session)))
    assert json.loads(ran(done)) == {"/srv/store/x": None, "/srv/other": DENIED}


def test_a_virtual_environment_is_made_used_and_removed(tree: Ground) -> None:
    """By Python's own venv, and one whose interpreter lies where the sandbox has nothing; a copy keeps every link."""
    yard = tree.source / "yard"
    (yard / "other/bin").mkdir(parents=True)
    (yard / "other/bin/python").symlink_to(tree.person.home / ".local/share/uv/python/bin/python3")
    for path in (yard / "other", yard / "other/bin"):
        os.chown(path, tree.person.uid, tree.person.uid)
    script = f"""set -e
cd {yard}
/usr/bin/python3 -m venv --without-pip mine
mine/bin/python -c 'import sys; print(sys.prefix)'
cp -a mine copied
readlink copied/bin/python3
readlink other/bin/python
rm -rf mine copied other
ls -A
"""
    lines = ran(tree.run("sh", "-c", script)).splitlines()
    assert lines == [f"{yard}/mine", "/usr/bin/python3", f"{tree.person.home}/.local/share/uv/python/bin/python3", "a.txt"]
    assert sorted(os.listdir(yard)) == ["a.txt"]
    assert not Path(yard, "mine").exists()


def test_a_token_that_the_owner_writes_through_a_link_is_not_found(tree: Ground) -> None:
    """While a command runs, its owner makes a link on the way to what a rule hides and writes through it: no path of the run
    leads to what was written, and what stands beside it is shown."""
    yard = tree.source / "yard"
    (yard / "led").mkdir()
    look = "grep -RF written . 2>&1; cat dot/token yard/led/token 2>&1; ls -A yard/led"
    script = f"cd {tree.source}; echo ready; read go; {look}"
    run = tree.start(
        "sh", "-c", script, options=("-g", "/dot/token=none"), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert run.stdout is not None
    assert run.stdout.readline() == b"ready\n"
    (tree.source / "dot").symlink_to("yard/led")
    (tree.source / "dot/token").write_text("written later")
    (tree.source / "dot/beside").write_text("also written later")
    told, _ = run.communicate(b"go\n", timeout=30)
    (tree.source / "dot").unlink()
    shutil.rmtree(yard / "led")
    lines = told.decode().splitlines()
    assert {line for line in lines if line.endswith(":also written later")} == set(lines[:-3])
    missing = [f"cat: {path}: No such file or directory" for path in ("dot/token", "yard/led/token")]
    assert lines[-3:] == [*missing, "beside"]
