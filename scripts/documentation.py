"""Writes docs/commands.md and docs/policyfs.1 from the commands themselves.

    scripts/documentation            writes both
    scripts/documentation --check    says which of them is not what the commands say, and exits with 1

What a command says in --help is taken apart once, into the values below; the two pages are two renderings of them.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import click

from policyfs.cli.commands import _COMMANDS, commands
from policyfs.cli.options import policy_options

DOCS = Path(__file__).resolve().parents[1] / "docs"


@dataclass(frozen=True)
class Paragraph:
    """A paragraph of a help text; `verbatim` where its lines are to stand as they are."""

    text: str
    verbatim: bool


@dataclass(frozen=True)
class Option:
    """An option as it is written, with what it says of itself."""

    written: str
    help: str


@dataclass(frozen=True)
class Command:
    """A command as its --help has it."""

    name: str
    summary: str
    usage: str
    paragraphs: list[Paragraph]
    options: list[Option]
    takes_policy: bool = False
    """Whether it has the options that describe a policy, which `options` then leaves out."""


def paragraphs(text: str | None) -> Iterator[Paragraph]:
    """The paragraphs of a help text. click marks with a backspace what it is not to wrap."""
    for part in re.split(r"\n\s*\n", (text or "").strip("\n")):
        lines = part.splitlines()
        verbatim = bool(lines) and lines[0].strip() == "\b"
        lines = [line.rstrip() for line in lines[1:]] if verbatim else lines
        if any(lines):
            yield Paragraph(
                "\n".join(lines).rstrip("\n") if verbatim else " ".join(line.strip() for line in lines), verbatim
            )


def options(command: click.Command, context: click.Context) -> Iterator[Option]:
    """The options of a command, in the order of its help."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context) if isinstance(parameter, click.Option) else None
        if record is not None:
            yield Option(*record)


def policy_options_of(context: click.Context) -> list[Option]:
    """The options that describe a policy: what a command without any gets with them."""
    bare = click.command("bare", add_help_option=False)(policy_options(lambda **_: None))
    return [*options(bare, context)]


def all_commands() -> tuple[Command, list[Command], list[Option], list[Paragraph]]:
    """The program itself, its commands, the options that describe a policy, and what stands at the end of its help: the
    exit codes."""
    context = click.Context(commands, info_name="policyfs", **commands.context_settings)
    shared = policy_options_of(context)
    found = []
    for name in commands.list_commands(context):
        command = commands.get_command(context, name)
        assert command is not None
        inner = click.Context(command, info_name=name, parent=context)
        usage = " ".join(["policyfs", name, *command.collect_usage_pieces(inner)])
        all_of_it = [*options(command, inner)]
        its_own = [option for option in all_of_it if option not in shared]
        found.append(
            Command(name, _COMMANDS[name], usage, [*paragraphs(command.help)], its_own, len(its_own) < len(all_of_it))
        )
    program = Command(
        "policyfs", "", "policyfs [OPTIONS] COMMAND [ARGS]...", [*paragraphs(commands.help)], [*options(commands, context)]
    )
    return program, found, shared, [*paragraphs(commands.epilog)]


def exit_codes(epilog: list[Paragraph]) -> list[tuple[str, str]]:
    """The codes of the epilog, each with its meaning."""
    lines = [line for paragraph in epilog for line in paragraph.text.splitlines()]
    return [(match[1], match[2]) for line in lines if (match := re.fullmatch(r"\s*(\d+)\s+(.+)", line))]


# -- docs/commands.md


def as_markdown(program: Command, found: list[Command], policy: list[Option], codes: list[tuple[str, str]]) -> str:
    """The page of all commands."""
    parts = [
        "# Commands\n",
        "Written by `scripts/documentation` from the commands themselves; do not edit.\n",
        *_markdown_of(program, "##"),
        "| command | |\n|---|---|\n" + "".join(f"| [{each.name}](#{each.name}) | {each.summary} |\n" for each in found),
        "| exit code | |\n|---|---|\n" + "".join(f"| {code} | {meaning} |\n" for code, meaning in codes),
    ]
    for each in found:
        parts += _markdown_of(each, "##")
    parts += ["## Policy options\n", "Each command that takes a policy has these.\n", _markdown_options(policy)]
    return "\n".join(parts)


def _markdown_of(command: Command, heading: str) -> Iterator[str]:
    yield f"{heading} {command.name}\n"
    yield f"    {command.usage}\n"
    for paragraph in command.paragraphs:
        yield (f"```sh\n{_dedented(paragraph.text)}\n```\n" if paragraph.verbatim else f"{paragraph.text}\n")
    if command.takes_policy:
        yield "Options, besides the [policy options](#policy-options):\n"
    yield _markdown_options(command.options)


def _markdown_options(found: list[Option]) -> str:
    return "".join(f"- `{option.written}`: {option.help}\n" for option in found)


def _dedented(text: str) -> str:
    lines = [line.rstrip() for line in text.splitlines()]
    least = min((len(line) - len(line.lstrip()) for line in lines if line), default=0)
    return "\n".join(line[least:] for line in lines)


# -- docs/policyfs.1


def as_manual(program: Command, found: list[Command], policy: list[Option], codes: list[tuple[str, str]]) -> str:
    """The manual page, in the macros of man(7)."""
    lines = [
        '.\\" Written by scripts/documentation from the commands themselves; do not edit.',
        ".TH POLICYFS 1",
        ".SH NAME",
        "policyfs \\- show programs a directory tree as a session may see it",
        ".SH SYNOPSIS",
    ]
    for each in found:
        lines += [".nf", f".B {_roff(each.usage)}", ".fi"]
    lines.append(".SH DESCRIPTION")
    lines += _manual_of(program)
    lines.append(".SH COMMANDS")
    for each in found:
        lines += [f".SS {_roff(each.usage)}", *_manual_of(each)]
    lines += [".SH POLICY OPTIONS", "Each command that takes a policy has these.", *_manual_options(policy)]
    lines.append(".SH EXIT STATUS")
    for code, meaning in codes:
        lines += [".TP", f".B {code}", _roff(meaning)]
    lines += [
        ".SH FILES",
        *(".TP", ".I /etc/policyfs/floors.toml", "Floors for every session of this machine, where it exists."),
        *(".TP", ".I \\(ti/.local/state/policyfs", "Logs of the mounts, unless"),
        ".B \\-\\-log",
        "names another place.",
        ".SH SEE ALSO",
        ".BR fusermount3 (1),",
        ".BR bwrap (1),",
        ".BR slirp4netns (1),",
        ".BR mount (8)",
    ]
    return "\n".join(lines) + "\n"


def _manual_of(command: Command) -> Iterator[str]:
    for paragraph in command.paragraphs:
        if paragraph.verbatim:
            yield from (".PP", ".nf", ".RS", *map(_roff, _dedented(paragraph.text).splitlines()), ".RE", ".fi")
        else:
            yield from (".PP", _roff(paragraph.text))
    if command.takes_policy:
        yield from (".PP", "Options, besides those under", '.BR "POLICY OPTIONS" :')
    yield from _manual_options(command.options)


def _manual_options(found: list[Option]) -> Iterator[str]:
    for option in found:
        yield from (".TP", f".B {_roff(option.written)}", _roff(option.help))


def _roff(text: str) -> str:
    """A text that roff prints as it is: no escapes, no request at the start of a line, ASCII hyphens."""
    text = text.replace("\\", "\\(rs").replace("-", "\\-").replace("~", "\\(ti").replace("'", "\\(aq").replace("^", "\\(ha")
    return "\\&" + text if text.startswith((".", "\\(aq")) else text


def main(arguments: list[str]) -> int:
    """Write the pages, or compare them."""
    if arguments not in ([], ["--check"]):
        print("usage: scripts/documentation [--check]", file=sys.stderr)
        return 2
    program, found, policy, epilog = all_commands()
    codes = exit_codes(epilog)
    status = 0
    for name, page in (
        ("commands.md", as_markdown(program, found, policy, codes)),
        ("policyfs.1", as_manual(program, found, policy, codes)),
    ):
        file = DOCS / name
        if not arguments:
            file.write_text(page, encoding="utf-8")
        elif not file.exists() or file.read_text(encoding="utf-8") != page:
            print(f"docs/{name} is not what the commands say; run scripts/documentation", file=sys.stderr)
            status = 1
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
