"""`policyfs view`: what a session is given, as an agent is told it."""

from __future__ import annotations

import json

import click

from policyfs.cli.options import policy_options
from policyfs.host.load import PolicyOptions, policy_for, source_of
from policyfs.policy.paths import display


@click.command("view")
@click.argument("source")
@policy_options
@click.option("--json", "as_json", is_flag=True, help="A JSON list of path and level, for programs.")
def command(source: str, options: PolicyOptions, as_json: bool) -> None:
    """List every path that is open in the view of SOURCE, with its level. Nothing hidden is named.

    \b
      policyfs view ~/tree -s session.toml
    """
    granted = policy_for(source_of(source), options).granted()
    if as_json:
        click.echo(
            json.dumps([{"path": path.decode("utf-8", "surrogateescape"), "level": str(level)} for path, level in granted])
        )
        return
    width = max((len(display(path)) for path, _ in granted), default=0)
    for path, level in granted:
        click.echo(f"{display(path).ljust(width)}  {level.meaning}")
