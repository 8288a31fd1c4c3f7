"""`policyfs check`: validate a session file."""

from __future__ import annotations

import json

import click

from policyfs.cli.options import OnceEach, files
from policyfs.opening.load import PolicyOptions, session_of
from policyfs.policy.paths import display


@click.command("check", cls=OnceEach)
@click.argument("file", metavar="FILE", shell_complete=files)
@click.option("--json", "as_json", is_flag=True, help="The levels as JSON, for programs.")
def command(file: str, as_json: bool) -> None:
    """Check the session file FILE and print the levels it gives. Every fault is reported, each with its key.

    \b
      policyfs check session.toml
    """
    session = session_of(PolicyOptions(session_file=file))
    rows = [("grant", path, level) for path, level in sorted(session.grants.items())]
    rows += [("floor", path, level) for path, level in sorted(session.floors.items())]
    if as_json:
        click.echo(
            json.dumps(
                [
                    {"kind": kind, "path": path.decode("utf-8", "surrogateescape"), "level": str(level)}
                    for kind, path, level in rows
                ]
            )
        )
        return
    width = max((len(display(path)) for _, path, _ in rows), default=0)
    for kind, path, level in rows:
        click.echo(f"{kind}  {display(path).ljust(width)}  {level} ({level.meaning})")
    if not session.grants and not session.read_roots and not session.write_roots:
        click.echo("no grant: a view of it opens nothing unless -g adds one")
