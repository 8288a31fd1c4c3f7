"""No command prints what a tree, a session or a command line has in it so that it acts, on a terminal or in a
prompt (rule text-1).

Every name here is as hostile as a name can be, and so is the text of every file that a command prints. Each command is run
with its output in a pipe and on a terminal.
"""

from __future__ import annotations

import json
import os
import pty
import select
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from policyfs.agent.instructions import instruction_text
from policyfs.cli.commands import _COMMANDS
from policyfs.policy.paths import display_lines
from tests.mount import expecting, harness
from tests.mount.harness import PROGRAM, Person

ACTS = ("\x1b]0;title\x07", "\x9b31m", "\u202e", "\u2028", "\U000e0041", "\x08", "\x7f", "\r")
"""A terminal's title, the colour by a single control character, right to left, a separator of lines, an invisible letter,
back, delete, and back to the beginning of the line."""

NAME = "".join(ACTS[:-1]).encode() + b"\xff\r\nend"
TEXT = "".join(ACTS)

FORBIDDEN = [b"\x1b]", *(act.encode() for act in ACTS[1:-1]), b"\x07", b"\xff"]
"""What no output may hold. A terminal's own output holds carriage returns, and other escapes that policyfs draws with."""


@pytest.fixture(scope="module")
def person() -> Iterator[Person]:
    """Somebody with a hostile tree, which is mounted, and with a session for it."""
    expecting.require_fuse()
    with harness.myself() as somebody:
        made(source_of(somebody))
        (somebody.home / "session.toml").write_text(SESSION)
        # A name that no TOML can say, and that a mount table has to escape.
        (somebody.home / "other").mkdir()
        (somebody.home / "other" / os.fsdecode(NAME)).write_text(SESSION)
        point_of(somebody).mkdir()
        done = somebody.run(*PROGRAM, "mount", source_of(somebody), point_of(somebody), "-s", session_of(somebody))
        assert done.returncode == 0, done
        try:
            provoke(somebody)
            yield somebody
        finally:
            somebody.unmount(point_of(somebody), lazily=True)


def source_of(person: Person) -> Path:
    """A tree with a hostile name."""
    return person.home / os.fsdecode(b"tree" + NAME)


def point_of(person: Person) -> Path:
    """Where it is mounted."""
    return person.home / os.fsdecode(b"view" + NAME)


def session_of(person: Person) -> Path:
    """Its session file."""
    return person.home / "other" / os.fsdecode(NAME)


def quoted(text: str) -> str:
    """A text as a string of TOML."""
    return json.dumps(text, ensure_ascii=False).replace("\x7f", "\\u007f")


SESSION = f"""
start = {quoted(f"/{TEXT}")}
[grants]
"/" = "ro"
{quoted(f"/{TEXT}")} = "stage"
[floors]
{quoted(f"/{TEXT}/floor")} = "ro"
[deny]
names = [{quoted(f"*{TEXT}.hidden")}]
"""


def made(source: Path) -> None:
    """A tree in which `doctor` finds something of each kind that needs no help of root's."""
    for directory in (source, source / os.fsdecode(NAME), source / TEXT, source / TEXT / "repository"):
        directory.mkdir()
        (directory / "AGENTS.md").write_text(f"# {TEXT}\n")
        (directory / f"{TEXT}.hidden").write_text("hidden")
        (directory / ".envrc").write_text("")
        (directory / os.fsdecode(NAME)).write_bytes(NAME) if directory.name == "repository" else None
    os.link(source / f"{TEXT}.hidden", source / TEXT / os.fsdecode(b"second" + NAME))
    shutil.copy("/bin/true", source / TEXT / f"true{TEXT}")
    (source / TEXT / f"true{TEXT}").chmod(0o4755)
    git = ("git", "-C", source / TEXT / "repository", "-c", "user.name=a", "-c", "user.email=a@b")
    for words in (["init", "-q"], ["add", "-f", "."], ["commit", "-qm", "all"]):
        subprocess.run([*git, *words], check=True, capture_output=True)


def provoke(person: Person) -> None:
    """Fill the journal: refusals and changes, by a program of a hostile name."""
    program = person.home / "\x1b]0;t\x07\u202e"
    shutil.copy("/bin/mkdir", program)
    for name in (NAME, f"{TEXT}.hidden".encode(), TEXT.encode() + b"/" + NAME):
        person.run(program, point_of(person) / os.fsdecode(name))


def commands(person: Person) -> dict[str, list[list[str | Path]]]:
    """What each command is asked: at least one answer of which names what is hostile, and one fault."""
    source, point, session = source_of(person), point_of(person), session_of(person)
    name, path = os.fsdecode(NAME), f"/{TEXT}"
    template = person.home / "template"
    template.write_text(f"{TEXT} {{{{view}}}}")
    with_session = ["-s", session]
    return {
        "mount": [
            [source, point, *with_session],
            [person.home / name, point, "-g", f"{path}=ro"],
            [source, source, "-g", name],
        ],
        "run": [
            # What COMMAND prints is its own, be it that there is no such command.
            [source, *with_session, "--ro-bind", f"{person.home}/{name}", "--", "true"],
            [source, *with_session, "--env", f"{name}", "--", "true"],
        ],
        "check": [[session], [person.home / name], ["--json", session]],
        "explain": [
            [source, path, f"{path}/{TEXT}.hidden", f"{path}/floor/a", *with_session],
            [point / TEXT],
            [point, f"{name}/../.."],
            ["--json", point / TEXT],
            [source, "a" * 300 + name, *with_session],
        ],
        "view": [
            [source, *with_session],
            [source, *with_session, "--prompt", "--at", person.home / name],
            [source, *with_session, "--prompt", "--template", template],
            [source, *with_session, "--json"],
            [source, *with_session, "--prompt", "--template", person.home / name],
        ],
        "instructions": [
            [source, *with_session],
            [source, *with_session, "--read", f"{path}/repository/{name}"],
            [source, *with_session, "--global", session],
            [source, *with_session, "--json"],
            [source, *with_session, "--global", person.home / name],
        ],
        "status": [[], [point], ["--json"], [person.home / name]],
        "reload": [[point], [point, "-s", session], [point, "-s", person.home / name]],
        "grant": [[point, f"{path}/{TEXT}=stage"], [point, f"{name}={name}"], [point, f"{path}=ro", "--for", name]],
        "revoke": [[point, f"{path}/{TEXT}"], [point, name]],
        "log": [[point], [point, "--json"], [point, "--verify"], [point, "--denied"], [person.home / name]],
        "doctor": [[source, *with_session], [source, *with_session, "--json"], [source], [person.home / name]],
        "umount": [[person.home / name], [source]],
    }


def test_each_command_is_tried(person: Person) -> None:
    """A command that is added says here what it prints."""
    assert commands(person).keys() == _COMMANDS.keys()


@pytest.mark.parametrize("name", _COMMANDS)
def test_in_a_pipe(person: Person, name: str) -> None:
    """Everything is a letter, a line feed or a tab, and what was hostile is there as an escape."""
    said = b""
    for words in commands(person)[name]:
        done = subprocess.run(
            [*PROGRAM, name, *words], stdin=subprocess.DEVNULL, capture_output=True, env=person.environment, check=False
        )
        printed = done.stdout + done.stderr
        text = printed.decode("utf-8")
        assert all(letter.isprintable() or letter in "\n\t" for letter in text), (words, text)
        assert "Traceback" not in text, text
        said += printed
    assert b"\\x1b]0;title\\x07" in said or b"\\u001b]0;title\\u0007" in said, said.decode()


@pytest.mark.parametrize("name", _COMMANDS)
def test_on_a_terminal(person: Person, name: str) -> None:
    """None of it reaches the terminal."""
    for words in commands(person)[name]:
        with on_a_terminal([*PROGRAM, name, *words], person) as printed:
            assert printed
            assert [act for act in FORBIDDEN if act in printed] == [], (words, printed)


@contextmanager
def on_a_terminal(argv: list[str | Path], person: Person) -> Iterator[bytes]:
    """What a command prints on a terminal of its own."""
    terminal, other = pty.openpty()
    process = subprocess.Popen(argv, stdin=other, stdout=other, stderr=other, env=person.environment, start_new_session=True)
    os.close(other)
    printed = b""
    try:
        while select.select([terminal], [], [], harness.TIMEOUT)[0]:
            piece = os.read(terminal, 1 << 16)
            printed += piece
        pytest.fail(f"no end of {argv}: {printed!r}")
    except OSError:
        # EIO: nobody has the other end open any more.
        process.wait(harness.TIMEOUT)
        yield printed
    finally:
        os.close(terminal)
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain\n\ttext\n", "plain\n\ttext\n"),
        ("dos\r\nlines\r\n", "dos\nlines\n"),
        ("back\rto the start", "back\\rto the start"),
        ("\x1b[31m\x9b31m\x00\x7f", "\\x1b[31m\\x9b31m\\x00\\x7f"),
        ("right\u202eleft\u2066\u200f\u061c", "right\\u202eleft\\u2066\\u200f\\u061c"),
        ("in\u200bvisible\ufeff\U000e0041", "in\\u200bvisible\\ufeff\\U000e0041"),
        ("\udcff", "\\udcff"),
    ],
)
def test_what_acts_in_a_text(text: str, shown: str) -> None:
    """It is written as an escape, and lines end with a line feed."""
    assert display_lines(text) == shown
    given = instruction_text("AGENTS.md", text.encode("utf-8", "surrogatepass"), None)
    if given.notice is None:
        assert str(given) == f"Instructions from AGENTS.md:\n\n{shown.rstrip(chr(10))}\n"
        assert given.text == text


@pytest.mark.parametrize(
    "text",
    [
        "\U0001f469\u200d\U0001f4bb",
        "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645",
        "\u00ab\u00a0mot\u202f\u00bb",
        "\u4e2d\u3000\u6587",
        "\ue000",
        "\U0001faf9",
    ],
    ids=["joined emoji", "Persian", "French spaces", "Chinese space", "private use", "a new character"],
)
def test_what_people_write_with_stays(text: str) -> None:
    """Whatever stands for something is left as it is."""
    assert display_lines(text) == text
