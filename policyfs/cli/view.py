"""`policyfs view`: what a session is given, as an agent reads it."""

from __future__ import annotations

import json
import os

import click

from policyfs.agent.workspace import TEMPLATE, TemplateFault, workspace
from policyfs.cli.options import OnceEach, directories, files, policy_options
from policyfs.host import places
from policyfs.host.errors import Exit, UserFault
from policyfs.opening.load import PolicyOptions, source_of
from policyfs.opening.view import policy_of
from policyfs.policy.paths import HostPath, PathFault, display, display_lines


@click.command("view", cls=OnceEach)
@click.argument("source", shell_complete=directories)
@policy_options
@click.option("--json", "as_json", is_flag=True, help="A JSON list of path and level, for programs.")
@click.option("--prompt", is_flag=True, help="The block for a system prompt: what is open, and what a refusal means.")
@click.option(
    "--template",
    metavar="FILE",
    shell_complete=files,
    help="With --prompt: your own words, with {{view}} and the like in them.",
)
@click.option(
    "--at",
    metavar="DIR",
    default="/",
    shell_complete=directories,
    help="With --prompt: where the agent finds the view, which its paths then begin with. SOURCE's own path under "
    "`policyfs run`, else the mountpoint, or the place in a container. Without it they begin at the view's root, /.",
)
@click.option("--print-template", is_flag=True, help="Print the built-in template, to begin your own with.")
def command(
    source: str,
    options: PolicyOptions,
    as_json: bool,
    prompt: bool,
    template: str | None,
    at: str,
    print_template: bool,
) -> None:
    """List every path that is open in the view of SOURCE, with its level. Nothing hidden is named.

    \b
      policyfs view ~/tree -s session.toml
      policyfs view ~/tree -s session.toml --prompt --at ~/tree >> system-prompt.md
    """
    if as_json + prompt + print_template > 1:
        raise click.UsageError("--json, --prompt and --print-template each print something else; give one")
    if template is not None and not prompt:
        raise click.UsageError("--template is for --prompt; add it")
    if at != "/" and not prompt:
        raise click.UsageError("--at is for --prompt; add it")
    if print_template:
        click.echo(TEMPLATE, nl=False)
        return
    policy = policy_of(source_of(source), options)
    if prompt:
        try:
            block = workspace(policy, TEMPLATE if template is None else _text_of(template), _place(at))
        except TemplateFault as fault:
            raise UserFault(Exit.FAILED, f"--template {display(os.fsencode(template or ''))}: {fault}") from None
        click.echo(display_lines(block).encode("utf-8"), nl=False)
        return
    granted = policy.granted()
    if as_json:
        click.echo(
            json.dumps([{"path": path.decode("utf-8", "surrogateescape"), "level": str(level)} for path, level in granted])
        )
        return
    width = max((len(display(path)) for path, _ in granted), default=0)
    for path, level in granted:
        click.echo(f"{display(path).ljust(width)}  {level.meaning}")


def _place(at: str) -> HostPath:
    # Not looked up: it may be a place in a container.
    try:
        return places.absolute(at)
    except PathFault as fault:
        raise UserFault(Exit.FAILED, f"--at: {fault}; name the directory where the agent finds the view") from None


def _text_of(name: str) -> str:
    shown = display(os.fsencode(name))
    try:
        with open(name, encoding="utf-8") as file:
            return file.read()
    except UnicodeDecodeError as error:
        raise UserFault(Exit.FAILED, f"--template {shown} is not UTF-8 (byte {error.start}); write it in UTF-8") from None
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise UserFault(Exit.FAILED, f"--template {shown}: {why}; name a file you can read") from None
