"""The `policyfs` of a sandbox: what a command may ask about its view, and that nothing more can be had by asking (rule
run-5)."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from policyfs.cli.commands import commands
from policyfs.cli.explain import as_text
from policyfs.control.explained import explanation_values, unseen_values
from policyfs.policy.levels import LEVELS, Level
from policyfs.policy.paths import HostPath, ViewPath, display
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.session import Session
from policyfs.sandbox import inside
from policyfs.sandbox.layout import CLIENT_PROGRAM, client_fits
from tests.mount.expecting import until
from tests.mount.harness import Person
from tests.sandbox.runs import PYTHON, Ground, ground, ran

GRANTS = (
    *("-g", "/=ro", "-g", "/yard=stage", "-g", "/hidden.txt=none", "-g", "/hidden=none"),
    *("-g", "/way=none", "-g", "/way/open=commit", "--floor", "/yard/capped=ro"),
)

UNSEEN = ("/hidden.txt", "/missing.txt", "/hidden/deep.txt", "/hidden/none.txt")
"""Hidden and missing; the view answers ENOENT for each."""

ERRNO = r"""
import errno, json, os, sys
answers = []
for path in sys.argv[1:]:
    try:
        # Opened, since a passage has a stat.
        os.close(os.open(path, os.O_RDONLY))
        answers.append(None)
    except OSError as error:
        answers.append(errno.errorcode[error.errno])
print(json.dumps(answers))
"""
"""What the file system answers to who opens each of some paths."""


@pytest.fixture
def asked(person: Person) -> Iterator[Ground]:
    """A tree with everything that can be asked about."""
    with ground(person) as tree:
        furnish(tree)
        yield tree


@pytest.fixture
def one_asked(one_tree: Ground) -> Ground:
    """The same, of the ordinary user, where nothing depends on who it is."""
    return furnish(one_tree)


def furnish(tree: Ground) -> Ground:
    """Add a passage, and links to what is open and to what is hidden."""
    for name in ("way/open", "way/shut"):
        (tree.source / name).mkdir(parents=True)
    for name, target in (("good", "../open.txt"), ("bad", "../hidden.txt"), ("baddir", "../hidden"), ("usr", "/usr")):
        (tree.source / "yard" / name).symlink_to(target)
    for path in tree.source.rglob("*"):
        os.chown(path, tree.person.uid, tree.person.uid, follow_symlinks=False)
    return tree


def asking(tree: Ground, *words: str, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run `policyfs WORDS` in the view, found by PATH."""
    return tree.run("policyfs", *words, grants=GRANTS, cwd=cwd)


def complaints(done: subprocess.CompletedProcess[str]) -> list[str]:
    """What the client complained of; the run that it is in has notes for the person, on the same descriptor."""
    return [line for line in done.stderr.splitlines() if not line.startswith("policyfs: note: ")]


def as_found(tree: Ground, outside: str) -> str:
    """What is printed outside, with each path at its place inside: at the start of a line and at the end of an answer. A
    rule, and what is open besides, is written from the root of the view."""
    return re.sub(
        r"^(  (?:look|change|commit) .*?)?/(?=(\S?))",
        lambda found: f"{found[1] or ''}{tree.source}{'/' if found[2] else ''}",
        outside,
        flags=re.MULTILINE,
    )


def explained(tree: Ground, *paths: str) -> list[dict[str, Any]]:
    """What is said inside of paths of the view."""
    said = ran(asking(tree, "explain", "--json", *(f"{tree.source}{path}" for path in paths)))
    return [json.loads(line) for line in said.splitlines()]


# -- explain -------------------------------------------------------------------------------------------------------------


def test_what_is_seen_is_explained_as_outside(asked: Ground) -> None:
    """Of visible paths and passages the client says, as text and as JSON, what the command says outside of the same
    policy; as text it names each at its place inside."""
    paths = ("/", "/open.txt", "/yard", "/yard/a.txt", "/way", "/way/open")
    inside_paths = [f"{asked.source}{path}" for path in paths]
    for options in ((), ("--json",)):
        outside = asked.person.policyfs("explain", asked.source, *paths, *GRANTS, *options)
        expected = ran(outside) if options else as_found(asked, ran(outside))
        assert ran(asking(asked, "explain", *options, *inside_paths)) == expected
        assert "/way/open" in outside.stdout


def test_what_is_not_seen_is_answered_as_the_file_system_does(asked: Ground) -> None:
    """Hidden, missing, below a passage, behind links: the errno of every operation is that of opening the path, and
    neither level nor rule is told."""
    paths = (*UNSEEN, "/way/shut", "/way/none")
    said = explained(asked, *paths)
    opened = json.loads(ran(asked.run(PYTHON, "-c", ERRNO, *(f"{asked.source}{path}" for path in paths), grants=GRANTS)))
    assert opened == ["ENOENT"] * len(UNSEEN) + ["EACCES"] * 2
    for values, path, code in zip(said, paths, opened, strict=True):
        assert set(values) == {"path", "look", "change", "commit"}
        assert values["path"] == path
        assert {values[operation]["errno"] for operation in ("look", "change", "commit")} == {code}


def test_a_path_that_the_kernel_does_not_walk_is_not_explained_as_another(asked: Ground) -> None:
    """`none/..` and `file/` lead nowhere, though their text does: the client says what the file system answers."""
    written = {
        "hidden/../open.txt": "No such file or directory", "none/../open.txt": "No such file or directory",
        "open.txt/": "Not a directory", "yard/a.txt/../a.txt": "Not a directory",
    }  # fmt: skip
    for text, answer in written.items():
        done = asked.run("policyfs", "explain", text, grants=GRANTS, cwd=asked.source)
        assert (done.returncode, done.stdout) == (1, "")
        (line,) = complaints(done)
        assert line.startswith(f"policyfs: {text}: {answer}, as it is written; ask for {asked.source}/")
    said = ran(asked.run("policyfs", "explain", "yard/../open.txt", grants=GRANTS, cwd=asked.source))
    assert said.startswith(f"{asked.source}/open.txt\n")


def test_hidden_and_missing_are_alike_byte_for_byte(asked: Ground) -> None:
    """But for the path, an answer on something hidden is the answer on nothing, as text and as JSON."""
    for options in ((), ("--json",)):
        script = f'for path; do policyfs explain {" ".join(options)} "$0$path"; echo ---; done'
        said = ran(asked.run("sh", "-c", script, str(asked.source), *UNSEEN, grants=GRANTS)).split("---\n")[:-1]
        (first, *others) = [answer.replace(path, "PATH") for path, answer in zip(UNSEEN, said, strict=True)]
        assert "ENOENT" in first
        assert others == [first] * len(others)


def test_links_are_followed(asked: Ground) -> None:
    """A link is answered for by where opening it leads: in the view, to nothing where that is hidden, or out of it."""
    (values,) = explained(asked, "/yard/good")
    assert (values["path"], values["level"]) == ("/open.txt", "ro")
    for values, path in zip(
        explained(asked, "/yard/bad", "/yard/baddir/deep.txt"), ("/hidden.txt", "/hidden/deep.txt"), strict=True
    ):
        assert values["path"] == path
        assert values["look"] == {"errno": "ENOENT", "text": f"No such file or directory: {path}"}
    done = asking(asked, "explain", f"{asked.source}/yard/usr/bin")
    assert (done.returncode, done.stdout) == (1, "")
    assert complaints(done) == [
        f"policyfs: {asked.source}/yard/usr/bin leads to /usr/bin, outside the view, which is {asked.source}"
    ]


def test_paths_are_read_from_the_working_directory(one_asked: Ground) -> None:
    """Relative paths, `..`, and SOURCE by another name are paths of the view; others are told to be outside, all of
    them, and nothing is answered."""
    yard = one_asked.source / "yard"
    said = ran(asking(one_asked, "explain", "--json", "a.txt", "../open.txt", ".", "..", cwd=yard))
    assert [json.loads(line)["path"] for line in said.splitlines()] == ["/yard/a.txt", "/open.txt", "/yard", "/"]
    done = asking(one_asked, "explain", "a.txt", "/etc/passwd", f"{one_asked.source}2", "../..", "", cwd=yard)
    assert (done.returncode, done.stdout) == (1, "")
    assert [line.split(" ")[1] for line in complaints(done)] == [
        *("/etc/passwd", f"{one_asked.source}2", "../..", "PATH"),
    ]
    other = one_asked.person.home / "other"
    other.symlink_to(one_asked.source)
    named = one_asked.words("policyfs", "explain", "--json", f"{other}/open.txt")
    named[named.index(str(one_asked.source))] = str(other)
    assert json.loads(ran(one_asked.person.run(*named)))["path"] == "/open.txt"


def test_names_cannot_move_a_cursor(one_asked: Ground) -> None:
    """Control characters and undecodable bytes of a name are escapes in a text; JSON has the bytes as surrogates."""
    name = "\x1b[2J\udcff\u202e"
    said = ran(asking(one_asked, "explain", f"{one_asked.source}/{name}"))
    shown = rf"{one_asked.source}/\x1b[2J\xff\u202e"
    assert said.splitlines()[0] == shown
    assert f"EROFS: Read-only: {shown} can be read" in said or f"ENOENT: No such file or directory: {shown}\n" in said
    assert said.replace("\n", "").isprintable()
    assert explained(one_asked, f"/{name}")[0]["path"] == f"/{name}"


def test_more_paths_than_a_request_takes(one_asked: Ground) -> None:
    """The client asks as often as it needs; the answers come in the order of the paths."""
    paths = [f"/yard/{'x' * 200}{number}" for number in range(600)]
    assert [values["path"] for values in explained(one_asked, *paths)] == paths


# -- view ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("options", [(), ("--json",)])
def test_the_view_is_listed_as_outside(asked: Ground, options: tuple[str, ...]) -> None:
    """`policyfs view` inside prints what it prints outside of the same policy; as text, with each path at its place."""
    outside = ran(asked.person.policyfs("view", asked.source, *GRANTS, *options))
    said = ran(asking(asked, "view", *options))
    if options:
        assert said == outside
    else:
        lines = [line.split("  ", 1) for line in outside.splitlines()]
        expected = [[f"{asked.source}{path.rstrip('/')}", meaning.strip()] for path, meaning in lines]
        assert [[part.strip() for part in line.split("  ", 1)] for line in said.splitlines()] == expected
    assert "/way/open" in outside


def test_what_is_listed_is_there_and_can_be_asked_for(asked: Ground) -> None:
    """Each path that `policyfs view` prints is one inside, and `policyfs explain` takes it and prints it."""
    capped = asked.source / "yard/capped"
    capped.mkdir()
    os.chown(capped, asked.person.uid, asked.person.uid)
    script = """
policyfs view | sed 's/  .*//' >/tmp/listed
while read -r path; do ls -d "$path"; done </tmp/listed >/tmp/there
xargs policyfs explain </tmp/listed | grep ^/ >/tmp/explained
cmp /tmp/listed /tmp/there && cmp /tmp/listed /tmp/explained && cat /tmp/listed
"""
    listed = ran(asked.run("sh", "-c", script, grants=GRANTS)).splitlines()
    assert {str(asked.source), f"{asked.source}/way/open"} <= set(listed)


# -- nothing else --------------------------------------------------------------------------------------------------------


def test_every_other_command_is_refused(one_asked: Ground) -> None:
    """Each other command of policyfs, and none, ends with 2 and one line that says what can be asked."""
    others = [name for name in commands.list_commands(click.Context(commands)) if name not in ("explain", "view")]
    assert {"mount", "run", "grant", "reload"} <= set(others)
    script = "for command; do policyfs $command / /=commit </dev/null; echo $?; done 2>&1; policyfs 2>&1; echo $?"
    said = ran(one_asked.run("sh", "-c", script, "sh", *others, grants=GRANTS)).splitlines()
    assert said[1::2] == ["2"] * (len(others) + 1)
    for command, line in zip(others, said[::2], strict=False):
        assert line == f"policyfs: {command}: only `explain` and `view` can be asked in here, see `policyfs --help`"


@pytest.mark.parametrize(
    ("words", "complaint"),
    [
        (("explain",), "no PATH"),
        (("explain", "-s", "x", "/"), "no option -s"),
        (("view", "/"), "view takes no PATH"),
        (("view", "--prompt"), "no option --prompt"),
    ],
)
def test_what_the_client_does_not_take(one_asked: Ground, words: tuple[str, ...], complaint: str) -> None:
    """A command line that says more or less than can be asked ends with 2 and a line."""
    done = asking(one_asked, *words)
    (said,) = complaints(done)
    assert (done.returncode, done.stdout) == (2, "")
    assert complaint in said


@pytest.mark.parametrize("words", [("--help",), ("-h",), ("explain", "--help")])
def test_help_says_what_can_be_asked(one_asked: Ground, words: tuple[str, ...]) -> None:
    """--help is answered, wherever it stands."""
    assert ran(asking(one_asked, *words)) == inside.HELP


SPEAK = r"""
import json, socket, sys
def said(line):
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect("/run/policyfs/ask.sock")
        try:
            connection.sendall(line)
            connection.shutdown(socket.SHUT_WR)
        except BrokenPipeError:
            pass
        # A line, not all: what was refused before it was read to its end is answered, then reset.
        return connection.makefile("rb").readline().decode()
requests = [json.dumps(request).encode() + b"\n" for request in json.loads(sys.argv[1])]
requests += [b"", b"\n", b"{", b"[]\n", b"[" * 60000 + b"\n", b'{"do": "view", "x": "' + b"x" * 200000 + b'"}\n']
print(json.dumps([json.loads(said(request)) for request in requests]))
"""
"""Sends requests to the socket, some of which are none."""


def test_the_socket_takes_no_orders(asked: Ground) -> None:
    """Spoken to directly it refuses reload, grant, revoke, status and whatever is no request; explain on what is hidden
    tells no more than the client does; and nothing has changed."""
    orders: list[dict[str, Any]] = [
        {"do": "grant", "path": "/hidden.txt", "level": "ro"},
        {"do": "revoke", "path": "/yard"},
        {"do": "reload", "session_file": f"{asked.source}/open.txt"},
        {"do": "status"},
        {"do": ["explain"]},
        {},
    ]
    questions = [{"do": "view"}, {"do": "explain", "paths": ["/hidden.txt", "/hidden/deep.txt", "/yard/baddir/x"]}]
    script = SPEAK + f"print(open({str(asked.source / 'yard/a.txt')!r}).read(), end='')"
    said = ran(asked.run(PYTHON, "-I", "-c", script, json.dumps([*orders, *questions]), grants=GRANTS)).splitlines()
    answers = json.loads(said[0])
    refused, (view, explanation), broken = answers[: len(orders)], answers[len(orders) :][:2], answers[len(orders) + 2 :]
    assert [answer.get("fault") for answer in refused] == [["this socket answers explain and view, nothing else"]] * 6
    assert len(broken) == 6
    assert all("fault" in answer for answer in broken)
    assert {"path": "/yard", "level": "stage"} in view["ok"]
    for values in explanation["ok"]:
        assert set(values) == {"path", "look", "change", "commit"}
        assert {values[operation]["errno"] for operation in ("look", "change", "commit")} == {"ENOENT"}
    assert said[1] == "a"


def test_the_control_socket_is_still_out_of_reach(asked: Ground) -> None:
    """The ask-only socket is the only one inside; the control socket of this very run, told to the command, is not
    there."""
    script = r"""
import errno, os, socket, stat, sys
path = sys.stdin.readline().rstrip("\n")
try:
    socket.socket(socket.AF_UNIX).connect(path)
    print("connected")
except OSError as error:
    print(errno.errorcode[error.errno])
for directory, names, files in os.walk("/"):
    names[:] = [name for name in names if os.path.join(directory, name) not in ("/proc", "/usr", "/sys")]
    for name in files:
        if stat.S_ISSOCK(os.lstat(os.path.join(directory, name)).st_mode):
            print(os.path.join(directory, name))
"""
    run = asked.start(PYTHON, "-I", "-c", script, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    asked.daemon()
    (control,) = (asked.state / "run").glob("*.sock")
    said, _ = run.communicate(f"{control}\n".encode(), timeout=30)
    assert said.decode().split() == ["ENOENT", inside.SOCKET]


def test_what_stands_for_the_client_cannot_be_changed(asked: Ground) -> None:
    """Neither the program, nor the socket, nor where SOURCE is said to be can be replaced, by root in a sandbox either."""
    script = """
cd /run/policyfs
for path in bin/policyfs source ask.sock; do
    rm -f $path; mv $path $path.old; echo x >$path; chmod 777 $path; ln -s /tmp/x $path
done 2>/dev/null
mkdir /run/policyfs/x 2>/dev/null && echo made
cd /; policyfs view --json
"""
    outside = ran(asked.person.policyfs("view", asked.source, *GRANTS, "--json"))
    assert ran(asked.run("sh", "-c", script, grants=GRANTS)) == outside


FLOOD = r"""
import os, socket, subprocess, sys
held, waiting = [], 0
for _ in range(600):
    connection = socket.socket(socket.AF_UNIX)
    connection.setblocking(False)
    try:
        connection.connect("/run/policyfs/ask.sock")
        held.append(connection)
        connection.send(b'{"do": "view"')
    except BlockingIOError:
        waiting += 1
print(len(held) > 100, waiting > 0, open(sys.argv[1]).read().strip(), flush=True)
sys.stdin.readline()
for connection in held:
    connection.close()
print(subprocess.run(["policyfs", "view", "--json"], stdout=subprocess.PIPE).stdout.decode())
"""
"""Holds as many unfinished requests as the socket takes, and asks in order once they are given up."""


def test_a_flood_of_connections_does_no_harm(asked: Ground) -> None:
    """While the socket is full the view answers, and so does the control socket outside; the daemon takes a bounded
    number of descriptors for it, and answers again afterwards."""
    words = asked.words(PYTHON, "-I", "-c", FLOOD, str(asked.source / "open.txt"), grants=GRANTS)
    run = asked.person.popen(*words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    asked.started.append(run)
    assert run.stdout is not None
    assert run.stdin is not None
    assert run.stdout.readline() == b"True True open\n"
    daemon = asked.daemon()
    full = len(os.listdir(f"/proc/{daemon}/fd"))
    (status,) = json.loads(ran(asked.person.policyfs("status", "--json")))
    assert status["process"] == daemon
    run.stdin.write(b"\n")
    run.stdin.flush()
    view = run.stdout.read().decode()
    assert view.strip() == ran(asked.person.policyfs("view", asked.source, *GRANTS, "--json")).strip()
    assert run.wait(30) == 0
    # Sixteen peers are attended to at once; the rest is what any mount has.
    assert full < 16 + 40


# -- where it stands -----------------------------------------------------------------------------------------------------


def test_without_a_python_nothing_else_breaks(one_asked: Ground) -> None:
    """Where no python3 is found the client says so and ends with 127, and the command goes on."""
    script = f"/usr/bin/env -i PATH=/run/policyfs/bin policyfs view; echo $?; cat {one_asked.source}/open.txt"
    done = one_asked.run("sh", "-c", script, grants=GRANTS)
    assert ran(done) == "127\nopen\n"
    assert "python3" in done.stderr


def test_a_killed_run_leaves_no_socket(one_asked: Ground) -> None:
    """The socket is gone with its directory, though run and daemon were killed."""
    run = one_asked.start("sleep", "60")
    daemon = one_asked.daemon()
    (socket,) = (one_asked.state / "run/runs").glob("*/ask.sock")
    os.kill(daemon, 9)
    run.kill()
    until(lambda: not socket.parent.exists(), "the directory of the run to go")


@pytest.mark.parametrize(
    ("taken", "fits"),
    [
        ([b"/home/me/tree"], True),
        ([b"/run/user"], True),
        ([b"/run"], False),
        ([b"/run/policyfs"], False),
        ([b"/home/me/tree", b"/run/policyfs/bin"], False),
        ([b"/run/policyfs2"], True),
    ],
)
def test_the_client_is_left_out_where_its_place_is_taken(taken: list[bytes], fits: bool) -> None:
    """Of what lies in SOURCE only the view shows anything, and nothing is made in a place of the machine's."""
    assert client_fits([HostPath(place) for place in taken]) is fits


def test_the_client_is_written_for_old_pythons() -> None:
    """Its grammar is that of Python 3.8, and it imports only the standard library: the one inside is the system's."""
    text = Path(inside.__file__).read_text(encoding="utf-8")
    tree = ast.parse(text, feature_version=(3, 8))
    imported = {
        name.partition(".")[0]
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
        for name in ([node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names])
    }
    assert imported
    assert imported <= sys.stdlib_module_names
    assert text.startswith("#!/usr/bin/env -S python3 -I\n")
    assert os.fsdecode(CLIENT_PROGRAM) == inside.PROGRAM


def test_the_client_speaks_as_the_commands_do() -> None:
    """The words it has of its own are those of the commands: levels, explanations, and how a name is shown."""
    assert {str(level): level.meaning for level in LEVELS.values()} == inside.MEANING
    session = Session(grants={ViewPath(b"/"): Level.RO, ViewPath(b"/a"): Level.STAGE, ViewPath(b"/p/q"): Level.COMMIT})
    policy = CompiledPolicy(
        session, Surroundings(source=HostPath(b"/srv"), floors={"more\n": {HostPath(b"/srv/a"): Level.RO}})
    )
    for path in (b"/", b"/a", b"/a/b", b"/p", b"/p/q", b"/.env", b"/\xff\n\xe2\x80\xae"):
        for values in (
            explanation_values(policy.explain(ViewPath(path))),
            unseen_values(ViewPath(path), 2, "No such file or directory: \udcff\x1b"),
        ):
            assert inside.as_text(values) == as_text(values)
    assert inside._shown("a\udcff\n\u202eé") == display(b"a\xff\n\xe2\x80\xae\xc3\xa9")
