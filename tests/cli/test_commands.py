"""The commands that ask the policy, and the options that all share, run as a person runs them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest

from policyfs.cli.commands import _COMMANDS, commands
from policyfs.host.errors import Exit
from tests.cli.program import DONE, FAILED, MACHINE, PLACE, POLICY, PROGRAM, USAGE, policyfs
from tests.mount.expecting import absent, until

COMMANDS = {
    "mount": ["Mount a view of SOURCE at MOUNTPOINT", "--grant PATH=LEVEL", "--session FILE", "--foreground"],
    "umount": ["End the view mounted at MOUNTPOINT", "--lazy"],
    "check": ["Check the session file FILE", "--json"],
    "explain": ["Say for each PATH of the view of SOURCE", "--floor PATH=LEVEL", "--json"],
    "view": ["List every path that is open in the view of SOURCE", "--deny RULE", "--json"],
}

INTERRUPTED_AT_IMPORT = """
class Interrupts:
    def find_spec(self, name, path, target=None):
        if name == "click":
            signal.raise_signal(signal.SIGINT)
sys.meta_path.insert(0, Interrupts())
"""

SESSION = """
start = "/Notes"
[grants]
"/"              = "ro"
"/Notes"         = "stage"
"/Notes/Private" = "none"
"/Notes/Private/open" = "commit"
[floors]
"/Notes/Archive" = "ro"
[deny]
names = ["*.sql"]
"""


@pytest.fixture
def session(home: Path) -> Path:
    """A session file with one rule of each kind."""
    file = home / "session.toml"
    file.write_text(SESSION)
    return file


# -- help and usage


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("option", ["--help", "-h"])
def test_the_help_of_a_command(home: Path, command: str, option: str) -> None:
    """It says what the command does, names its options, and shows an example where there is more than one word to say."""
    said = policyfs(command, option, home=home)
    assert (said.code, said.errors) == (DONE, [])
    text = " ".join(said.output.split())
    for part in COMMANDS[command]:
        assert part in text
    assert said.output.startswith(f"Usage: policyfs {command} [OPTIONS] ")
    assert f"policyfs {command} " in text.partition("Usage:")[2] or command == "umount"


def test_the_help_of_the_program(home: Path) -> None:
    """It lists every command and every exit code, in the code's own words and numbers."""
    said = policyfs("--help", home=home)
    assert said.code == DONE
    listed = [line.split()[0] for line in said.output.partition("Commands:")[2].splitlines() if line[:2] == "  "]
    assert set(COMMANDS) <= set(listed)
    codes = said.output.partition("Exit codes:")[2].splitlines()
    assert [int(line.split()[0]) for line in codes if line.strip()] == [int(code) for code in Exit]
    version = policyfs("--version", home=home)
    assert (version.code, version.output.split()[0]) == (DONE, "policyfs,")


@pytest.mark.parametrize(
    "arguments",
    [
        (),
        ("nonsense",),
        ("--nonsense",),
        ("check",),
        ("explain", "."),
        ("view", ".", "--nonsense"),
        ("view", ".", "--sesion", "x"),
        ("view", ".", "-g"),
        ("view", ".", "--preset", "nonsense"),
        ("mount", "."),
        ("umount",),
        ("check", "a", "b"),
        ("run", "."),
        ("log", ".", "--lines", "many"),
        ("status", "--watch", "--json"),
        ("check", "a", "b\nc"),
    ],
)
def test_a_wrong_command_line(home: Path, arguments: tuple[str, ...]) -> None:
    """Exit code 2, and one line that says what is wrong with it and where the right one is described."""
    (message,) = policyfs(*arguments, home=home).fault(USAGE)
    command = arguments[:1] if arguments[:1] and arguments[0] in _COMMANDS else ()
    assert message.endswith(f"; see `{' '.join(('policyfs', *command))} --help`")
    assert message[0].islower() or message[0] in "-'"


def test_an_option_of_the_command_that_is_run_needs_dashes_before_it(home: Path) -> None:
    """`run` says so where `--` is missing, and takes an unknown option for its own where it is there."""
    (message,) = policyfs("run", ".", "-g", "/=ro", "sh", "-c", "true", home=home).fault(USAGE)
    assert message.startswith("no such option '-c'; if it is COMMAND's, write -- before COMMAND; see ")
    (message,) = policyfs("run", ".", "--nonsense", "--", "sh", home=home).fault(USAGE)
    assert "before COMMAND" not in message


def test_ctrl_c_ends_a_command(home: Path) -> None:
    """With 130, as a shell has it, and without a word."""
    template = home / "template"
    os.mkfifo(template)
    command = subprocess.Popen(
        [*PROGRAM, "view", home, "-g", "/=ro", "--prompt", "--template", template],
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=home,
    )  # fmt: skip
    # Opened when the command has opened it too, which then waits for a text.
    with command, template.open("wb"):
        # Between two steps of Python's a signal is only noted, and what waits then waits on: not before it sleeps.
        status = Path(f"/proc/{command.pid}/stat")
        until(lambda: status.read_text().rpartition(") ")[2].startswith("S"), "the command to wait")
        command.send_signal(signal.SIGINT)
        assert command.stderr is not None
        assert command.stderr.read() == b""
        assert command.wait(60) == Exit.INTERRUPTED


def test_ctrl_c_ends_a_command_that_is_not_there_yet(home: Path) -> None:
    """The same while a command is imported."""
    program = "import sys, signal\n" + INTERRUPTED_AT_IMPORT + PROGRAM[-1]
    done = subprocess.run(
        [*PROGRAM[:-1], program, "--help"], stdin=subprocess.DEVNULL, capture_output=True, cwd=home, check=False, timeout=60
    )
    assert (done.returncode, done.stdout, done.stderr) == (Exit.INTERRUPTED, b"", b"")


def test_an_option_whose_values_do_not_add_up_is_taken_once(home: Path) -> None:
    """Every such option of every command: the last alone would hold, and what the first closes would be open."""
    refused = []
    for name in commands.list_commands(click.Context(commands)):
        command = commands.get_command(click.Context(commands), name)
        assert command is not None
        words = ["x" for parameter in command.params if isinstance(parameter, click.Argument) and parameter.required]
        for option in command.params:
            if not isinstance(option, click.Option) or option.is_flag or option.multiple:
                continue
            value = {"preset": "home", "lines": "1", "seconds": "1s"}.get(option.name or "", "x")
            given = [word for spelling in (option.opts[0], option.opts[-1]) for word in (spelling, value)]
            with pytest.raises(click.UsageError, match=r"is given 2 times, and takes one value; keep one"):
                command.make_context(name, [*given, *words])
            refused.append(option.opts[-1])
    assert set(refused) == {
        "--session",
        "--preset",
        "--log",
        "--home",
        "--network",
        "--start",
        "--global",
        "--template",
        "--at",
        "--for",
        "--lines",
    }
    assert policyfs("explain", ".", "/a", "-s", "a.toml", "--session=b.toml", home=home).fault(USAGE) == [
        "-s, --session is given 2 times, and takes one value; keep one; see `policyfs explain --help`"
    ]


# -- check


def test_check_prints_the_levels_of_a_file(home: Path, session: Path) -> None:
    """Grants and floors, each with its path, its level and what the level means."""
    said = policyfs("check", session, home=home)
    assert (said.code, said.errors) == (DONE, [])
    assert said.output.splitlines() == [
        "grant  /                    ro (read-only)",
        "grant  /Notes               stage (read/write, stage)",
        "grant  /Notes/Private       none (no access)",
        "grant  /Notes/Private/open  commit (read/write, commit)",
        "floor  /Notes/Archive       ro (read-only)",
    ]


def test_check_as_json(home: Path, session: Path) -> None:
    """A list of kind, path and level."""
    said = policyfs("check", session, "--json", home=home)
    levels = json.loads(said.output)
    assert levels[1] == {"kind": "grant", "path": "/Notes", "level": "stage"}
    assert levels[-1] == {"kind": "floor", "path": "/Notes/Archive", "level": "ro"}
    assert len(levels) == 5


def test_check_says_that_nothing_is_granted(home: Path) -> None:
    """A file without a grant is valid, and opens nothing on its own."""
    (home / "empty.toml").write_text("")
    said = policyfs("check", "empty.toml", home=home)
    assert (said.code, said.output) == (DONE, "no grant: a view of it opens nothing unless -g adds one\n")


def test_check_reports_every_fault_in_one_run(home: Path) -> None:
    """A line each, with the file, the key and what to write instead."""
    (home / "bad.toml").write_text(
        'start = "here"\ncolour = 1\n[grants]\n"/a" = "rw"\n"/b\\u0000" = "ro"\n"/c\\n\\u001b" = "x"\n'
        '[deny]\nnames = ["a/b"]'
    )
    said = policyfs("check", "bad.toml", home=home)
    assert said.fault(POLICY) == [
        "bad.toml: start: not absolute: `here`; write a path of the view, from /",
        'bad.toml: grants."/a": "rw" is not a level; write one of none, ro, stage, commit',
        r'bad.toml: grants."/b\x00": nul: `/b\x00`; write a path of the view, from /',
        r'bad.toml: grants."/c\n\x1b": "x" is not a level; write one of none, ro, stage, commit',
        'bad.toml: deny.names: "a/b" holds a /, which no name does; a path is written from / or from ~/',
        'bad.toml: "colour": unknown key',
    ]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        (b"none.toml", None, "none.toml cannot be read: No such file or directory; name a readable file"),
        (b".", None, ". cannot be read: Is a directory; name a readable file"),
        (b"", None, "`` cannot be read: No such file or directory; name a readable file"),
        (b"x.toml", b"= 1", "x.toml: TOML: Invalid statement (at line 1, column 1)"),
        (b"x.toml", b"a = '\xff'", "x.toml is not UTF-8 (byte 5); TOML is written in UTF-8"),
        (b"\xff\n.toml", b"= 1", r"\xff\n.toml: TOML: Invalid statement (at line 1, column 1)"),
        (b"x.toml", b"a = " + b"[" * 9000, "x.toml: TOML: lists or tables nested too deeply"),
    ],
)
def test_a_file_that_is_no_session(home: Path, name: bytes, content: bytes | None, message: str) -> None:
    """One line that names the file, whatever it is called and whatever it holds."""
    if content is not None:
        Path(os.fsdecode(os.fsencode(home) + b"/" + name)).write_bytes(content)
    assert policyfs("check", name, home=home).fault(POLICY) == [message]


# -- explain


def explained(home: Path, *arguments: str | bytes | Path) -> list[dict[str, Any]]:
    """The answers of `explain --json`, one for each line."""
    said = policyfs("explain", *arguments, "--json", home=home)
    assert (said.code, said.errors) == (DONE, [])
    return [json.loads(line) for line in said.output.splitlines()]


def test_explain_as_json(home: Path, source: Path, session: Path) -> None:
    """One object for each path, in the order asked: what decided, and the text of rule error-1 for what is refused."""
    asked = ("/Notes/a.md", "/Notes/Private", "/Notes/Private/x", "/Notes/Archive/b", "/c.sql", "/Notes/Private/open")
    writable, passage, below, floored, denied, committable = explained(home, source, "-s", session, *asked)
    uncommitted = {"errno": "EINVAL", "text": "Nothing to commit: /Notes/a.md is not in a repository."}
    assert writable == {
        "path": "/Notes/a.md",
        "level": "stage",
        "standing": "visible",
        "rule": "grant /Notes = stage",
        "considered": ["grant /Notes = stage"],
        "look": None,
        "change": None,
        "commit": uncommitted,
    }
    closed = {"errno": "EACCES", "text": "Access denied: /Notes/Private is not open to this session."}
    assert (passage["level"], passage["standing"], passage["look"], passage["change"]) == ("none", "passage", closed, closed)
    assert below["look"] == {"errno": "EACCES", "text": "Access denied: /Notes/Private/x is not open to this session."}
    assert below["standing"] == "hidden"
    assert floored["rule"] == "floor /Notes/Archive = ro (session)"
    assert floored["considered"] == ["grant /Notes = stage", "floor /Notes/Archive = ro (session)"]
    assert floored["change"] == {
        "errno": "EROFS",
        "text": "Read-only: /Notes/Archive/b can be read in this session but not changed.",
    }
    assert denied["rule"] == "denylist *.sql (session)"
    assert denied["look"] == {"errno": "ENOENT", "text": "No such file or directory: /c.sql"}
    assert committable["level"] == "commit"


def test_explain_for_a_person(home: Path, source: Path, session: Path) -> None:
    """The same on indented lines, with the rules that did not decide below the one that did."""
    said = policyfs("explain", source, "a.md", "/Notes/Archive/../Archive//", "-s", session, home=home)
    assert said.code == DONE
    assert said.output == (
        "/Notes/a.md\n"
        "  level     stage (read/write, stage), visible\n"
        "  rule      grant /Notes = stage\n"
        "  look      allowed\n"
        "  change    allowed\n"
        "  commit    EINVAL: Nothing to commit: /Notes/a.md is not in a repository.\n"
        "\n"
        "/Notes/Archive\n"
        "  level     ro (read-only), visible\n"
        "  rule      floor /Notes/Archive = ro (session)\n"
        "  also      grant /Notes = stage\n"
        "  look      allowed\n"
        "  change    EROFS: Read-only: /Notes/Archive can be read in this session but not changed.\n"
        "  commit    EINVAL: Nothing to commit: /Notes/Archive is not in a repository.\n"
    )


def test_explain_looks_nothing_up(home: Path, source: Path) -> None:
    """Whether a path exists changes no answer."""
    before = explained(home, source, "/a", "/b/c", "-g", "/=ro", "-g", "/b=none")
    (source / "a").write_text("")
    (source / "b" / "c").mkdir(parents=True)
    assert explained(home, source, "/a", "/b/c", "-g", "/=ro", "-g", "/b=none") == before


def test_paths_that_are_no_text(home: Path, source: Path) -> None:
    """Bytes that are not UTF-8 and control characters come in as they are, and go out as escapes or as JSON."""
    name = b"/\xff\n\x1b[2J\xe2\x80\xae"
    (answer,) = explained(home, source, name, "-g", "/=ro", "-g", name + b"=stage")
    assert answer["path"].encode("utf-8", "surrogateescape") == name
    assert answer["level"] == "stage"
    said = policyfs("explain", source, name, "-g", "/=ro", home=home)
    assert said.output.splitlines()[0] == r"/\xff\n\x1b[2J\u202e"
    (answer,) = explained(home, source, b"/x\xff", "-g", "/=ro", "--deny", b"*\xff")
    assert answer["rule"] == r"denylist *\xff (session)"


def test_rules_of_a_file_cannot_write_on_the_terminal(home: Path, source: Path) -> None:
    """A control character in a rule is shown as an escape."""
    (home / "s.toml").write_text('[grants]\n"/" = "ro"\n[deny]\nnames = ["a\\u001b[2J\\n*"]')
    said = policyfs("explain", source, b"/a\x1b[2j\nb", "-s", "s.toml", home=home)
    assert r"rule      denylist a\x1b[2J\n* (session)" in said.output


def test_explain_reports_every_path_that_is_none(home: Path, source: Path) -> None:
    """An empty path and a name too long, both in one run."""
    messages = policyfs("explain", source, "", "/ok", "n" * 256, "-g", "/=ro", home=home).fault(FAILED)
    assert len(messages) == 2
    assert messages[0] == "PATH: empty: ``; write a path of the view, from / or from the start directory"
    assert messages[1] == f"ENAMETOOLONG: Name too long: /{'n' * 256}; a name has at most 255 bytes"


# -- view


def test_view_lists_what_is_open(home: Path, source: Path, session: Path) -> None:
    """Every path that opens something, with the name of its level; nothing hidden is named."""
    said = policyfs("view", source, "-s", session, home=home)
    assert (said.code, said.errors) == (DONE, [])
    assert said.output.splitlines() == [
        "/                    read-only",
        "/Notes               read/write, stage",
        "/Notes/Archive       read-only",
        "/Notes/Private/open  read/write, commit",
    ]
    told = json.loads(policyfs("view", source, "-s", session, "--json", home=home).output)
    assert told[1] == {"path": "/Notes", "level": "stage"}
    assert [entry["path"] for entry in told] == ["/", "/Notes", "/Notes/Archive", "/Notes/Private/open"]


def test_the_policy_options_together(home: Path, source: Path, session: Path) -> None:
    """-g replaces, --floor and --floors lower, --deny hides, roots open."""
    (home / "floors.toml").write_text(f'[floors]\n"{source}/capped" = "ro"')
    (home / "elsewhere").mkdir()
    said = policyfs(
        "view", source, "-s", session, "-g", "/capped=commit", "-g", "/Notes/Private/open=none", "--floor", "/Notes=ro",
        "--floors", "floors.toml", "--deny", "/hidden", "-g", "/hidden=commit", "--write-root", source / "root",
        "--read-root", "~/elsewhere", "--json", home=home,
    )  # fmt: skip
    assert said.errors == []
    assert {entry["path"]: entry["level"] for entry in json.loads(said.output)} == {
        "/": "ro",
        "/Notes": "ro",
        "/capped": "ro",
        "/root": "stage",
    }


# -- faults that all commands share


@pytest.mark.parametrize("command", [("explain", "/"), ("view",)])
def test_every_fault_of_the_options_in_one_run(home: Path, source: Path, command: tuple[str, ...]) -> None:
    """Session file, floors file and options: a line each, exit code 3."""
    (home / "s.toml").write_text("colour = 1")
    (home / "f.toml").write_text('[floors]\na = "ro"')
    name, *rest = command
    said = policyfs(
        name, source, *rest, "-s", "s.toml", "--floors", "f.toml", "-g", "/a", "-g", "/b=ro", "-g", "/b=none",
        "--floor", "c=ro", "--deny", "d/e", home=home,
    )  # fmt: skip
    assert said.fault(POLICY) == [
        f'{home}/s.toml: "colour": unknown key',
        '--grant: "/a": no level; write PATH=LEVEL, such as /Notes=stage',
        "--grant: gives /b two levels; keep one",
        '--floor: "c=ro": not absolute: `c`; write a path of the view, from /',
        '--deny: "d/e": holds a /, which no name does; a path is written from / or from ~/',
        f'{home}/f.toml: floors."a": not absolute: `a`; write a place on this machine, /like/this or ~/like/this',
    ]


@pytest.mark.parametrize("command", [("explain", "/"), ("view",), ("mount", "mountpoint")])
@pytest.mark.parametrize(
    ("source", "message"),
    [
        (b"none", "SOURCE {home}/none does not exist; name a directory that does"),
        (b"loop", "SOURCE {home}/loop cannot be reached: Too many levels of symbolic links; name a directory of yours"),
        (b"file", "SOURCE {home}/file is a file; name a directory, and grant the file in it with -g"),
        (b"", "SOURCE: empty: ``; name a directory"),
        (b"\xff\n", r"SOURCE {home}/\xff\n does not exist; name a directory that does"),
    ],
)
def test_a_wrong_source(home: Path, command: tuple[str, ...], source: bytes, message: str) -> None:
    """Exit code 4, and what to name instead."""
    (home / "file").write_text("")
    (home / "loop").symlink_to("loop")
    (home / "mountpoint").mkdir()
    name, *rest = command
    said = policyfs(name, source, *rest, "-g", "/=ro", home=home)
    if said.code == MACHINE and command[0] == "mount":
        absent("this machine cannot mount")
    assert said.fault(PLACE) == [message.replace("{home}", str(home))]


def test_umount_of_what_is_no_mount(home: Path) -> None:
    """Exit code 4: the place is named, and where views are listed."""
    (home / "place").mkdir()
    for name in ("place", "none"):
        (message,) = policyfs("umount", name, home=home).fault(PLACE)
        assert message == f"{home}/{name} is not a mount; `findmnt -t fuse.policyfs` lists the views"
    (message,) = policyfs("umount", "", home=home).fault(PLACE)
    assert message == "MOUNTPOINT: empty: ``; name a mounted view"
    (message,) = policyfs("umount", "/proc", home=home).fault(PLACE)
    assert message == "/proc is a mount of type proc, not a view; use umount"


def test_an_output_that_cannot_be_written(home: Path, source: Path) -> None:
    """A full disk under the output is one line, and a reader that left is none."""
    with open("/dev/full", "wb") as full:
        said = policyfs("view", source, "-g", "/=ro", home=home, output=full.fileno())
    assert (said.code, said.errors) == (FAILED, ["policyfs: No space left on device"])
    reader, writer = os.pipe()
    os.close(reader)
    try:
        said = policyfs("view", source, "-g", "/=ro", home=home, output=writer)
    finally:
        os.close(writer)
    assert (said.code, said.errors) == (FAILED, [])


# -- mount, as far as it is refused before anything is mounted


@pytest.fixture
def mountpoint(home: Path) -> Iterator[Path]:
    """An empty directory, on which nothing stays mounted even where a test fails."""
    directory = home / "mountpoint"
    directory.mkdir()
    yield directory
    if f" {directory} " in Path("/proc/self/mountinfo").read_text():
        policyfs("umount", "--lazy", directory, home=home)


def refused(home: Path, code: int, *arguments: str | Path) -> list[str]:
    """The messages of a mount that is refused, after which nothing is mounted."""
    said = policyfs("mount", *arguments, home=home)
    if said.code == MACHINE:
        absent("this machine cannot mount")
    mounted = [line.split()[4] for line in Path("/proc/self/mountinfo").read_text().splitlines()]
    assert not any(point.startswith(str(home)) for point in mounted)
    return said.fault(code)


def test_a_mount_without_a_grant(home: Path, source: Path, mountpoint: Path) -> None:
    """The message shows an example; a policy that opens nothing is told as what it is."""
    (message,) = refused(home, POLICY, source, mountpoint)
    assert message.startswith(
        "no grant: this view would open nothing; add a session file with -s, or a grant such as -g /=ro"
    )
    (message,) = refused(home, POLICY, source, mountpoint, "-g", "/=none")
    assert message.startswith(f"this policy opens nothing of {source}")


def test_a_mount_with_faults_in_its_policy(home: Path, source: Path, mountpoint: Path) -> None:
    """Every fault in one run, as with the other commands."""
    messages = refused(home, POLICY, source, mountpoint, "-s", "none.toml", "-g", "/a", "--deny", "b/c")
    assert messages == [
        f"{home}/none.toml cannot be read: No such file or directory; name a readable file",
        '--grant: "/a": no level; write PATH=LEVEL, such as /Notes=stage',
        '--deny: "b/c": holds a /, which no name does; a path is written from / or from ~/',
    ]


def test_a_wrong_mountpoint(home: Path, source: Path, mountpoint: Path) -> None:
    """Missing, a file, not empty, around SOURCE: each says what to name instead."""
    (home / "file").write_text("")
    around = source.parent
    odd = home / "a b;$(c)"
    for point, message in (
        (odd, f"MOUNTPOINT {odd} does not exist; make it with `mkdir -p '{odd}'`"),
        ("/proc", "MOUNTPOINT /proc is a mount already (proc); name another directory"),
        ("/", "MOUNTPOINT / is around SOURCE"),
        (home / "none", f"MOUNTPOINT {home}/none does not exist; make it with `mkdir -p {home}/none`"),
        (home / "file", f"MOUNTPOINT {home}/file is a file; name an empty directory"),
        (home, f"MOUNTPOINT {home} is not empty"),
        (source, f"MOUNTPOINT {source} is around SOURCE, which would cover it; name a directory elsewhere"),
        (around, f"MOUNTPOINT {around} is around SOURCE, which would cover it; name a directory elsewhere"),
        ("", "MOUNTPOINT: empty: ``; name an empty directory"),
    ):
        (told,) = refused(home, PLACE, source, point, "-g", "/=ro")
        assert told.startswith(message)


def test_a_log_file_that_has_no_name(home: Path, source: Path, mountpoint: Path) -> None:
    """It is said, in one line."""
    (message,) = refused(home, PLACE, source, mountpoint, "-g", "/=ro", "--log", "")
    assert message.startswith("--log: empty")


def test_a_journal_of_openings_and_no_journal(home: Path, source: Path, mountpoint: Path) -> None:
    """The two cannot be meant together."""
    (message,) = refused(home, USAGE, source, mountpoint, "-g", "/=ro", "--journal-opens", "--no-journal")
    assert message == "--journal-opens and --no-journal exclude each other; give one of them"
