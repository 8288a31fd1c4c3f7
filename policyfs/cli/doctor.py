"""`policyfs doctor`: what is dangerous in a real tree under a policy, before a session is let loose on it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import sys
import time
from collections.abc import Iterator

import click

from policyfs.cli.options import OnceEach, directories, policy_options, printable
from policyfs.doctor.examine import Examination, Notice
from policyfs.doctor.findings import Finding, Kind, several
from policyfs.host import mounts
from policyfs.host.errors import Exit
from policyfs.opening.load import PolicyOptions, git_machine, session_of, source_of
from policyfs.opening.view import nothing_open, policy_on, root_of
from policyfs.policy.paths import ViewPath, display
from policyfs.policy.policy import CompiledPolicy

_MAX_SHOWN = 10
"""Findings of one kind that a person is shown unless they ask for all: more is no longer read."""


@click.command("doctor", cls=OnceEach)
@click.argument("source", shell_complete=directories)
@policy_options
@click.option("--all", "show_all", is_flag=True, help=f"Show every finding, not {_MAX_SHOWN} of a kind.")
@click.option("--json", "as_json", is_flag=True, help="A JSON list of findings, for programs.")
@click.pass_context
def command(context: click.Context, source: str, options: PolicyOptions, show_all: bool, as_json: bool) -> None:
    """Look through SOURCE for what a view cannot guard by itself: git history of hidden files, files with a second name,
    files that your own tools execute and a session may change, what your git configuration names, other mounts, case
    folding, set-id programs. Changes nothing, runs nothing.

    Without any grant it looks at SOURCE as if all of it were granted at stage.

    Exit code 0 means that nothing was found, 1 that something was.

    \b
      policyfs doctor ~/tree -s session.toml
      policyfs doctor ~/tree -g /=ro -g /project=stage --json
    """
    place = source_of(source)
    table = mounts.mounts()
    options = options.read(table)
    session = session_of(options, table)
    if not session.grants and not session.read_roots and not session.write_roots:
        options = dataclasses.replace(options, grants=("/=stage",))
        click.echo("policyfs: note: no grant is given; this looks at SOURCE as if it were mounted with -g /=stage", err=True)
    root = root_of(place)
    try:
        policy = policy_on(root, options, table)
        if policy.opens_nothing:
            raise nothing_open(policy)
        with _progress() as notice:
            examination = Examination(root, policy, git_machine(root, policy), notice)
            findings = examination.findings()
    finally:
        root.close()
    if as_json:
        click.echo(json.dumps([finding.as_values() for finding in findings], indent=1))
    else:
        _print(findings, policy, sorted(examination.protected_repositories), show_all=show_all)
    if findings:
        context.exit(int(Exit.FAILED))


@contextlib.contextmanager
def _progress() -> Iterator[Notice]:
    """On a terminal, a line that says how far the walk is; nothing anywhere else."""
    if not sys.stderr.isatty():
        yield lambda looked, path: None
        return
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True)
    shown_at = time.monotonic()
    with console.status("looking through SOURCE") as status:

        def notice(looked: int, path: ViewPath) -> None:
            nonlocal shown_at
            now = time.monotonic()
            # A terminal shows no more than this, and drawing costs more than looking.
            if now - shown_at > 0.1:
                shown_at = now
                room = max(10, console.width - 40)
                status.update(f"looked at {looked:,} entries, now in {escape(display(path)[-room:])}")

        yield notice


def _print(findings: list[Finding], policy: CompiledPolicy, protected: list[bytes], *, show_all: bool) -> None:
    if not findings:
        click.echo(f"nothing found in {display(policy.surroundings.source)}")
    if protected:
        click.echo(
            f"note: git is protected in {several(protected)}: a session changes nothing that git executes, but may still "
            "rewrite branches, commits and the index"
        )
    first = not protected
    for kind in Kind:
        of_kind = [finding for finding in findings if finding.kind is kind]
        if not of_kind:
            continue
        if not first:
            click.echo()
        first = False
        click.echo(f"{kind.title} ({kind.value})")
        for finding in of_kind if show_all else of_kind[:_MAX_SHOWN]:
            click.echo(f"  {display(finding.path)} ({finding.level}): {printable(finding.text)}")
            click.echo(f"      {printable(finding.advice)}")
        if not show_all and len(of_kind) > _MAX_SHOWN:
            click.echo(f"  and {len(of_kind) - _MAX_SHOWN} more; --all shows them")
