"""The sandbox options of `policyfs run`: environment, home, places; and what refuses to run."""

from __future__ import annotations

import os
import shlex
import subprocess
from pathlib import Path

import pytest

from tests.sandbox.runs import Ground, ran


def _with(tree: Ground, variables: dict[str, str], *command: str, options: tuple[str, ...] = ()) -> str:
    assignments = [f"{name}={value}" for name, value in variables.items()]
    return ran(tree.person.run("env", *assignments, *tree.words(*command, options=options)))


SECRETS = {
    "SSH_AUTH_SOCK": "/tmp/agent", "DBUS_SESSION_BUS_ADDRESS": "unix:path=/x", "DISPLAY": ":0", "WAYLAND_DISPLAY": "w",
    "DOCKER_HOST": "unix:///x", "GITHUB_TOKEN": "t", "ANTHROPIC_API_KEY": "k", "SOMETHING_NEW": "s", "LD_PRELOAD_X": "p",
    "XAUTHORITY": "/x", "GPG_AGENT_INFO": "g", "HTTPS_PROXY": "http://user:password@proxy",
}  # fmt: skip


def test_the_environment_is_what_is_known_to_be_harmless(one_tree: Ground) -> None:
    """No variable passes that is not on the list: no agent's socket, no token, nothing new."""
    said = _with(one_tree, {**SECRETS, "LC_TIME": "C", "TERM": "dumb"}, "env")
    names = {line.split("=")[0] for line in said.splitlines()}
    assert names <= {"HOME", "USER", "LOGNAME", "SHELL", "PATH", "PWD", "TERM", "LANG", "LC_TIME", "TZ", "OLDPWD", "LC_ALL"}
    assert {"LC_TIME", "TERM", "PATH", "HOME"} <= names


def test_named_variables_pass(one_tree: Ground) -> None:
    """--env NAME passes the person's value, --env NAME=VALUE gives one."""
    options = ("--env", "GITHUB_TOKEN", "--env", "MODE=a=b c")
    said = _with(one_tree, SECRETS, "sh", "-c", 'echo "$GITHUB_TOKEN $MODE $ANTHROPIC_API_KEY"', options=options)
    assert said == "t a=b c \n"


def test_a_named_value_is_on_no_command_line(one_tree: Ground) -> None:
    """A secret passed by name is in no command line that others, or the sandbox, can read."""
    words = one_tree.words("sh", "-c", "cat /proc/*/cmdline; read line", options=("--env", "TOKEN"))
    run = one_tree.person.popen("env", "TOKEN=a-secret-value", *words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    try:
        assert run.stdout is not None
        told = run.stdout.read1()
        lines = [Path("/proc", process, "cmdline") for process in os.listdir("/proc") if process.isdigit()]
        outside = [text for text in map(_read, lines) if b"--json-status-fd" in text and b"read line" in text]
    finally:
        said, _ = run.communicate(b"\n", timeout=30)
    assert b"cat" in told + said
    assert b"a-secret-value" not in told + said
    assert os.fsencode(one_tree.state) not in told + said
    assert outside
    assert b"a-secret-value" not in b"".join(outside)


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:
        return b""


@pytest.mark.parametrize("text", ["NOT_SET_ANYWHERE", "=x", "HOME=/x", "HOME"])
def test_a_variable_that_cannot_be_had_is_refused(one_tree: Ground, text: str) -> None:
    """A name that is not set, that is empty, or that the sandbox sets itself: a message, and nothing is run."""
    done = one_tree.run("true", options=("--env", text))
    assert done.returncode == 2
    assert done.stderr.startswith("policyfs: --env")


# -- the home


def test_the_home_is_empty_private_and_goes(tree: Ground) -> None:
    """HOME is an empty directory that can be written, holds nothing of the person's, and nothing of it is kept."""
    (tree.person.home / "mine").write_text("mine")
    said = ran(tree.run("sh", "-c", "ls -A ~; stat -c %a ~; echo x > ~/.config-file; mkdir -p ~/.claude/x; ls -A ~"))
    names = said.split()
    assert "mine" not in names
    assert ".config-file" in names
    assert not (tree.person.home / ".config-file").exists()
    assert "700" in names


def test_a_home_that_is_kept(tree: Ground) -> None:
    """--home DIR is made where it is not there, for its owner alone, keeps what is written and is HOME itself."""
    home = tree.person.home / "agent-home"
    options = ("--home", "~/agent-home")
    assert ran(tree.run("sh", "-c", "ls -A ~; echo kept > ~/file; echo $HOME", options=options)).strip() == str(home)
    assert home.stat().st_mode & 0o777 == 0o700
    assert home.stat().st_uid == tree.person.uid
    assert ran(tree.run("cat", f"{home}/file", options=options)) == "kept\n"
    assert sorted(entry.name for entry in home.iterdir()) == ["file"]


def test_a_link_left_in_a_kept_home_makes_nothing_outside(one_tree: Ground) -> None:
    """A link that a run leaves in its home, where the way to SOURCE would lead, is not followed by the next run."""
    home = one_tree.person.home / "linked-home"
    target = one_tree.person.home / "target"
    target.mkdir()
    os.chown(target, one_tree.person.uid, one_tree.person.uid)
    for base in (str(one_tree.source).lstrip("/").split("/")[0], one_tree.source.name):
        ran(one_tree.run("sh", "-c", f"ln -s {target} ~/{base}", options=("--home", str(home))))
    ran(one_tree.run("true", options=("--home", str(home))))
    assert list(target.iterdir()) == []


# -- places


def test_places_are_shown_and_changed(tree: Ground) -> None:
    """--ro-bind shows a directory or file, --bind lets it be changed, each at its own path."""
    tools, data, file = (tree.person.home / name for name in ("tools", "data", "one-file"))
    for directory in (tools, data):
        directory.mkdir(exist_ok=True)
        (directory / "inner").write_text(f"{directory.name}\n")
        os.chown(directory, tree.person.uid, tree.person.uid)
    file.write_text("a file\n")
    script = f"cat {tools}/inner {data}/inner {file}; echo x > {data}/new; echo x 2>/dev/null > {tools}/new || echo refused"
    said = ran(tree.run("sh", "-c", script, options=("--ro-bind", "~/tools", "--bind", str(data), "--ro-bind", str(file))))
    assert said.split("\n") == ["tools", "data", "a file", "refused", ""]
    assert (data / "new").exists()


def test_a_place_in_a_place_named_through_a_link(one_tree: Ground) -> None:
    """Of two places that are named through one link both are there, by the names that were given, each as it was asked."""
    home = one_tree.person.home
    (home / "behind/sub").mkdir(parents=True)
    for directory in (home / "behind", home / "behind/sub"):
        os.chown(directory, one_tree.person.uid, one_tree.person.uid)
    (home / "through").symlink_to("behind")
    script = f"echo x > {home}/through/sub/new; echo x 2>/dev/null > {home}/through/new || echo refused"
    options = ("--ro-bind", "~/through", "--bind", "~/through/sub")
    assert ran(one_tree.run("sh", "-c", script, options=options)) == "refused\n"
    assert (home / "behind/sub/new").read_text() == "x\n"


def test_a_working_directory_that_was_removed(one_tree: Ground) -> None:
    """What is named from the root is run all the same, in SOURCE; what is not is refused with what to do."""
    gone = one_tree.person.home / "gone"
    words = shlex.join(one_tree.words("pwd"))
    for directory, expected in ((one_tree.source, 0), (Path("."), 4)):
        gone.mkdir()
        os.chown(gone, one_tree.person.uid, one_tree.person.uid)
        command = words.replace(str(one_tree.source), str(directory))
        done = one_tree.person.run("sh", "-c", f"cd {gone} && rmdir {gone} && exec {command}")
        assert done.returncode == expected, done
        if expected == 0:
            assert done.stdout == f"{one_tree.source}\n"
        else:
            assert done.stderr == "policyfs: the working directory was removed; change to another with cd\n"


def test_a_state_directory_that_cannot_be_made(one_tree: Ground) -> None:
    """Nothing is run, and the advice is one that this command takes."""
    done = one_tree.person.run("env", "XDG_STATE_HOME=/dev/null", *one_tree.words("true"))
    assert done.returncode == 5
    assert done.stderr.startswith("policyfs: no place for the log: ")
    assert done.stderr.endswith("; set XDG_STATE_HOME to a directory of yours\n")


REFUSED = {
    "in SOURCE": ("{source}/yard", "lies in SOURCE"),
    "SOURCE itself": ("{source}", "lies in SOURCE"),
    "around SOURCE": ("{home}", "holds SOURCE"),
    "the root": ("/", "holds SOURCE"),
    "a link into SOURCE": ("{home}/into", "lies in SOURCE"),
    "a denied place": ("{home}/.ssh", "denylist ~/.ssh"),
    "below a denied place": ("{home}/.gnupg/x", "denylist ~/.gnupg"),
    "around a denied place": ("{home}/.config", "denylist"),
    "a denied name": ("{home}/elsewhere/.env", "denylist .env"),
    "a link to a denied place": ("{home}/keys", "denylist ~/.ssh"),
    "policyfs's own state": ("{home}/.local/state/policyfs", "policyfs itself"),
    "around policyfs's own state": ("{home}/.local", "policyfs itself"),
    "processes": ("/proc/self", "lies in /proc"),
    "the temporary directory": ("/var/tmp", "is or holds /var/tmp"),
    "sockets of the machine": ("/run", "is or holds /run"),
    "not there": ("{home}/nowhere", "does not exist"),
}


@pytest.mark.parametrize(
    ("option", "case"),
    # A home that is not there is made.
    [(o, c) for o in ("--ro-bind", "--bind", "--home") for c in REFUSED if (o, c) != ("--home", "not there")],
)
def test_places_that_are_refused(one_tree: Ground, option: str, case: str) -> None:
    """A place in or around SOURCE, of the denylist or policyfs's own, or of the machine's inside is refused in a line."""
    home = one_tree.person.home
    for directory in (".ssh", ".gnupg/x", ".config", "elsewhere/.env"):
        (home / directory).mkdir(parents=True, exist_ok=True)
    for link, target in (("into", one_tree.source / "yard"), ("keys", home / ".ssh")):
        if not (home / link).is_symlink():
            (home / link).symlink_to(target)
    place, reason = REFUSED[case]
    done = one_tree.run("true", options=(option, place.format(home=home, source=one_tree.source)))
    assert done.returncode == 4
    lines = done.stderr.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith(f"policyfs: {option} ")
    assert reason in lines[0]


@pytest.mark.parametrize("place", ["/usr", "/usr/local", "/etc", "/usr/bin/env"])
def test_the_system_is_not_to_be_changed(one_tree: Ground, place: str) -> None:
    """--bind of a place of the system is refused; --ro-bind of one that is shown anyway is not."""
    done = one_tree.run("true", options=("--bind", place))
    assert done.returncode == 4
    assert "read-only in every sandbox" in done.stderr or "policyfs itself" in done.stderr


def test_a_floor_of_the_administrator_binds_places_too(one_tree: Ground) -> None:
    """A place that a floors file caps is not shown, or not to be changed, by an option either."""
    capped, closed = (one_tree.person.home / name for name in ("capped", "closed"))
    for directory in (capped, closed / "in"):
        directory.mkdir(parents=True, exist_ok=True)
    floors = one_tree.person.home / "floors.toml"
    floors.write_text('[floors]\n"~/capped" = "ro"\n"~/closed/in" = "none"\n')
    options = ("--floors", str(floors))
    assert one_tree.run("true", options=(*options, "--ro-bind", str(capped))).returncode == 0
    for option, place in (("--bind", capped), ("--ro-bind", closed), ("--ro-bind", closed / "in")):
        done = one_tree.run("true", options=(*options, option, str(place)))
        assert (done.returncode, "floor" in done.stderr) == (4, True)


def test_the_source_under_another_mount_is_refused(one_tree: Ground, as_root: None) -> None:
    """A bind mount that shows SOURCE, or a part of it, elsewhere is SOURCE."""
    other = one_tree.person.home / "other"
    other.mkdir()
    enter = ("nsenter", "-t", str(one_tree.person.namespace), "-m", "--")
    subprocess.run([*enter, "mount", "--bind", str(one_tree.source / "hidden"), str(other)], check=True)
    try:
        done = one_tree.run("true", options=("--ro-bind", str(other)))
    finally:
        subprocess.run([*enter, "umount", str(other)], check=True)
    assert done.returncode == 4
    assert "under the path of another mount" in done.stderr


@pytest.mark.parametrize(
    ("mounted", "named", "option", "reason"),
    [
        (".ssh", "", "--ro-bind", "denylist ~/.ssh"),
        ("", "/.ssh", "--ro-bind", "denylist ~/.ssh"),
        ("", "/.local", "--home", "policyfs itself"),
        (".ssh/inner", "", "--bind", "denylist ~/.ssh"),
    ],
)
def test_a_closed_place_under_another_mount_is_refused(
    one_tree: Ground, as_root: None, mounted: str, named: str, option: str, reason: str
) -> None:
    """What the denylist or policyfs closes is closed by every path that a mount gives it."""
    home, other = one_tree.person.home, one_tree.person.home / "other"
    for directory in (home / ".ssh/inner", other):
        directory.mkdir(parents=True, exist_ok=True)
    enter = ("nsenter", "-t", str(one_tree.person.namespace), "-m", "--")
    subprocess.run([*enter, "mount", "--bind", str(home / mounted), str(other)], check=True)
    try:
        done = one_tree.run("true", options=(option, f"{other}{named}"))
    finally:
        subprocess.run([*enter, "umount", str(other)], check=True)
    assert done.returncode == 4
    assert "by another mount" in done.stderr
    assert reason in done.stderr


def test_a_place_that_holds_the_kernels_files_is_not_to_be_changed(one_tree: Ground, as_root: None) -> None:
    """A chroot with a /proc of its own can be shown, and not be bound to be changed."""
    place = one_tree.person.home / "chroot"
    (place / "proc").mkdir(parents=True)
    enter = ("nsenter", "-t", str(one_tree.person.namespace), "-m", "--")
    subprocess.run([*enter, "mount", "-t", "proc", "proc", str(place / "proc")], check=True)
    try:
        changed = one_tree.run("true", options=("--bind", str(place)))
        inside = one_tree.run("true", options=("--ro-bind", str(place / "proc/sys")))
        shown = one_tree.run("true", options=("--ro-bind", str(place)))
    finally:
        subprocess.run([*enter, "umount", str(place / "proc")], check=True)
    assert (changed.returncode, inside.returncode, shown.returncode) == (4, 4, 0)
    assert f"holds {place}/proc, which is the kernel's" in changed.stderr
    assert f"lies in {place}/proc" in inside.stderr


# -- what refuses to run


def _in_path(tree: Ground, *programs: str) -> Path:
    directory = tree.person.home / f"bin-{len(programs)}-{'-'.join(programs)}"
    directory.mkdir(exist_ok=True)
    for program in programs:
        if not (directory / program).is_symlink():
            (directory / program).symlink_to(f"/usr/bin/{program}")
    return directory


def test_without_bubblewrap_nothing_is_run(one_tree: Ground) -> None:
    """No bwrap: exit status 5, the package is named, and the command does not run."""
    witness = one_tree.source / "yard/ran"
    path = _in_path(one_tree, "env", "fusermount3")
    done = one_tree.person.run("env", f"PATH={path}", *one_tree.words("touch", str(witness)))
    assert (done.returncode, witness.exists()) == (5, False)
    assert "install Debian's package bubblewrap" in done.stderr
    assert not one_tree.leftovers()


def test_without_namespaces_nothing_is_run(one_tree: Ground) -> None:
    """No user namespaces to be had: exit status 5 with bubblewrap's reason, nothing is run, nothing is left."""
    witness = one_tree.source / "yard/ran"
    # In a sandbox of bubblewrap's own that allows no more of them, as a container might.
    forbidding = ["bwrap", "--unshare-user", "--disable-userns", "--dev-bind", "/", "/"]
    done = one_tree.person.run(*forbidding, *one_tree.words("touch", str(witness)))
    assert (done.returncode, witness.exists()) == (5, False)
    assert "this machine makes no sandbox" in done.stderr
    assert not one_tree.leftovers()


def test_a_faulty_policy_runs_nothing(one_tree: Ground) -> None:
    """A grant that is none, or no grant at all: exit status 3, and the command does not run."""
    for grants in (("-g", "/=everything"), ()):
        done = one_tree.run("true", grants=grants)
        assert done.returncode == 3
        assert not one_tree.leftovers()


def test_a_command_is_needed(one_tree: Ground) -> None:
    """Without a command the usage is told."""
    assert one_tree.person.policyfs("run", str(one_tree.source), "-g", "/=ro").returncode == 2


def test_a_sandbox_that_cannot_be_made_runs_nothing(one_tree: Ground) -> None:
    """bubblewrap that fails once it is asked for the real sandbox: its message, exit status 5, nothing is left."""
    directory = one_tree.person.home / "failing"
    directory.mkdir(exist_ok=True)
    program = directory / "bwrap"
    program.write_text('#!/bin/sh\n[ "$1" != --args ] || { echo "bwrap: no luck today" >&2; exit 1; }\n')
    program.chmod(0o755)
    path = f"{directory}:{os.environ['PATH']}"
    done = one_tree.person.run("env", f"PATH={path}", *one_tree.words("true"))
    assert done.returncode == 5
    # A network of its own cannot be made with this bubblewrap either, which a note says first.
    assert "\nbwrap: no luck today\npolicyfs: bubblewrap could not make the sandbox" in f"\n{done.stderr}"
    assert not one_tree.leftovers()


def test_the_umask_is_the_persons(tree: Ground) -> None:
    """What the command makes has the modes that the person's umask gives."""
    words = tree.words("sh", "-c", "umask; touch yard/made", options=())
    done = tree.person.run("sh", "-c", 'umask 027; exec "$@"', "sh", *words, cwd=tree.source)
    assert ran(done).strip() == "0027"
    assert (tree.source / "yard/made").stat().st_mode & 0o777 == 0o640


def test_a_place_behind_a_link_keeps_its_name(one_tree: Ground) -> None:
    """An agent's program, which is a link in the home to a version elsewhere in it, is found under both names."""
    home = one_tree.person.home
    version = home / "versions/1.0"
    version.parent.mkdir(exist_ok=True)
    version.write_text("#!/bin/sh\necho agent; mkdir -p ~/.agent && touch ~/.agent/state && echo kept-state\n")
    version.chmod(0o755)
    (home / "bin").mkdir(exist_ok=True)
    if not (home / "bin/agent").is_symlink():
        (home / "bin/agent").symlink_to(version)
    said = ran(one_tree.run("sh", "-c", f"{home}/bin/agent; {version}", options=("--ro-bind", str(home / "bin/agent"))))
    assert said.split() == ["agent", "kept-state"] * 2
