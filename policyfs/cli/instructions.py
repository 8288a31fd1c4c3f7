"""`policyfs instructions`: the instruction files of a session, as an agent is given them."""

from __future__ import annotations

import json
import os
import stat
from dataclasses import asdict

import click

from policyfs.agent.instructions import MAX_BYTES, Instruction, Nearby, as_text, chain, instruction_text
from policyfs.cli.options import OnceEach, directories, files, policy_options
from policyfs.host.errors import Exit, UserFault
from policyfs.opening.load import PolicyOptions, source_of
from policyfs.opening.view import open_view
from policyfs.policy.paths import PathFault, ViewPath, display, view_path


@click.command("instructions", cls=OnceEach)
@click.argument("source", shell_complete=directories)
@policy_options
@click.option("--start", metavar="PATH", help="Start there instead of the session's start directory.")
@click.option(
    "--global", "global_file", metavar="FILE", shell_complete=files, help="A file of this machine to put before the chain."
)
@click.option(
    "--extra",
    "extra_files",
    multiple=True,
    metavar="FILE",
    shell_complete=files,
    help="Files of this machine to put after it.",
)
@click.option(
    "--read",
    "read",
    multiple=True,
    metavar="PATH",
    help="Instead: what reading PATH hands over, below the start directory; several are read in their order, each "
    "file is handed over once.",
)
@click.option("--json", "as_json", is_flag=True, help="A JSON list of path, text and notice, for programs.")
def command(
    source: str,
    options: PolicyOptions,
    start: str | None,
    global_file: str | None,
    extra_files: tuple[str, ...],
    read: tuple[str, ...],
    as_json: bool,
) -> None:
    """Print the instruction files of the view of SOURCE: from the boundary down to the start directory each directory's
    AGENTS.md, or else its CLAUDE.md, as far as the session can read it. What is long is cut and says so.

    The text is for a prompt, and for a terminal: control characters, and those that turn the reading order round or cannot
    be seen, are written as escapes. --json has the very text.

    \b
      policyfs instructions ~/tree -s session.toml
      policyfs instructions ~/tree -g /=ro --start /project --global ~/.config/AGENTS.md
      policyfs instructions ~/tree -g /=ro --read /project/src/a.py
    """
    if read and (global_file is not None or extra_files):
        raise click.UsageError("--read prints what a file hands over, not the chain that --global and --extra go around")
    before = [] if global_file is None else [_of_machine(global_file, "--global")]
    after = [_of_machine(file, "--extra") for file in extra_files]
    view = open_view(source_of(source), options)
    try:
        started = None if start is None else _path(start, "--start", view.policy.session.start)
        if read:
            nearby = Nearby(view, started)
            base = started or view.policy.session.start
            found = [each for text in read for each in nearby.for_read(_path(text, "--read", base))]
        else:
            found = chain(view, started, before=before, after=after)
    finally:
        view.close()
    if as_json:
        click.echo(json.dumps([asdict(instruction) for instruction in found]))
    elif found:
        click.echo(as_text(found).encode("utf-8"), nl=False)


def _path(text: str, option: str, start: ViewPath) -> ViewPath:
    try:
        return view_path(os.fsencode(text), start)
    except PathFault as fault:
        raise UserFault(Exit.FAILED, f"{option}: {fault}; write a path of the view") from None


def _of_machine(name: str, option: str) -> Instruction:
    """A file of the person's own machine, which is not part of the view: read as that person."""
    try:
        with open(name, "rb") as file:
            data = file.read(MAX_BYTES + 1)
            status = os.fstat(file.fileno())
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UserFault(Exit.FAILED, f"{option} {display(os.fsencode(name))}: {why}; name a file you can read") from None
    return instruction_text(name, data, status.st_size if stat.S_ISREG(status.st_mode) else None, in_view=False)
