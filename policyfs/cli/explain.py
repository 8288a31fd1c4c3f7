"""`policyfs explain`: what a session may do with a path, and which rule says so."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from policyfs.cli.options import directories, policy_options, printable
from policyfs.host.faults import Exit, UserFault
from policyfs.host.load import PolicyOptions, policy_for, source_of
from policyfs.policy.paths import PathFault, ViewPath, display, view_path
from policyfs.policy.policy import Explanation


@click.command("explain")
@click.argument("source", shell_complete=directories)
@click.argument("paths", nargs=-1, required=True, metavar="PATH...")
@policy_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def command(source: str, paths: tuple[str, ...], options: PolicyOptions, as_json: bool) -> None:
    """Say for each PATH of the view of SOURCE its level, its standing, the rule that decided, and what looking at it,
    changing it and committing it would answer. Decided by the text of the path alone: nothing is looked up.

    \b
      policyfs explain ~/tree /Notes/a.md /Notes/Private -s session.toml
    """
    policy = policy_for(source_of(source), options)
    resolved: list[ViewPath] = []
    faults = []
    for text in paths:
        try:
            resolved.append(view_path(os.fsencode(text), policy.session.start))
        except PathFault as fault:
            faults.append(f"PATH: {fault}; write a path of the view, from / or from the start directory")
    if faults:
        raise UserFault(Exit.FAILED, *faults)
    for number, path in enumerate(resolved):
        explanation = policy.explain(path)
        if as_json:
            click.echo(json.dumps(as_values(explanation)))
        else:
            if number:
                click.echo()
            click.echo(as_text(explanation))


def as_values(explanation: Explanation) -> dict[str, Any]:
    """An explanation as JSON has it; undecodable bytes of a path are surrogates."""
    decision = explanation.decision
    return {
        "path": decision.path.decode("utf-8", "surrogateescape"),
        "level": str(decision.level),
        "standing": str(decision.standing),
        "rule": str(decision.rule),
        "considered": [str(rule) for rule in decision.considered],
        **{
            answer.operation: None
            if answer.refusal is None
            else {"errno": errno_name(answer.refusal.errno), "text": answer.text}
            for answer in explanation.answers
        },
    }


def errno_name(code: int) -> str:
    """The name of an errno, as errno(3) has it."""
    import errno

    return errno.errorcode[code]


def as_text(explanation: Explanation) -> str:
    """An explanation as a person reads it."""
    decision = explanation.decision
    lines = [
        display(decision.path),
        f"  level     {decision.level} ({decision.level.meaning}), {decision.standing}",
        f"  rule      {printable(str(decision.rule))}",
    ]
    others = [printable(str(rule)) for rule in decision.considered if rule != decision.rule]
    lines += [f"  {'also' if not number else '':<9} {rule}" for number, rule in enumerate(others)]
    for answer in explanation.answers:
        if answer.refusal is None:
            lines.append(f"  {answer.operation:<9} allowed")
        else:
            text = display((answer.text or "").encode("utf-8", "surrogateescape"))
            lines.append(f"  {answer.operation:<9} {errno_name(answer.refusal.errno)}: {text}")
    return "\n".join(lines)
