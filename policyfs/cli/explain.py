"""`policyfs explain`: what a session may do with a path, and which rule says so."""

from __future__ import annotations

import json
import os
from typing import Any

import click

from policyfs.cli.options import directories, policy_options, printable
from policyfs.host import asking, mounts, places
from policyfs.host.faults import Exit, UserFault
from policyfs.host.load import PolicyOptions, policy_for, source_of
from policyfs.policy.explained import OPERATIONS, explanation_values
from policyfs.policy.levels import LEVELS
from policyfs.policy.paths import HostPath, PathFault, ViewPath, display, from_text, view_path


@click.command("explain")
@click.argument("source", metavar="SOURCE|MOUNTPOINT/PATH", shell_complete=directories)
@click.argument("paths", nargs=-1, metavar="[PATH]...")
@policy_options
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, for programs.")
def command(source: str, paths: tuple[str, ...], options: PolicyOptions, as_json: bool) -> None:
    """Say for each PATH of the view of SOURCE its level, its standing, the rule that decided, and what looking at it,
    changing it and committing it would answer. Decided by the text of the path alone: nothing is looked up.

    For paths in a mounted view, and in the SOURCE of a run where no policy options are given, the policy that is in
    force there answers.

    \b
      policyfs explain ~/tree /Notes/a.md /Notes/Private -s session.toml
      policyfs explain /mnt/view/Notes/a.md
    """
    given = options != PolicyOptions()
    live = _mounted(source)
    if live is not None and given:
        raise click.UsageError("a mounted view has its policy; leave the policy options away")
    if live is None and not given:
        live = _running(source)
    if live is not None:
        point, path = live
        if path == b"/" and paths and _mounted(source) is None:
            # As with policy options: SOURCE, then paths of its view.
            explained = asking.ask(point, {"do": "explain", "paths": list(paths)})
        else:
            explained = [_of_mount(text) for text in (source, *paths)]
    else:
        if not paths:
            raise click.UsageError(f"no PATH: write `policyfs explain {source} /`, or a path in a mounted view")
        explained = _of_source(source, paths, options)
    for number, values in enumerate(explained):
        if as_json:
            click.echo(json.dumps(values))
        else:
            if number:
                click.echo()
            click.echo(as_text(values))


def _mounted(text: str) -> tuple[HostPath, ViewPath] | None:
    """The mountpoint of the view that a text leads into and the path there, if it leads into one."""
    try:
        return mounts.in_view(places.absolute(text))
    except PathFault:
        return None


def _running(text: str) -> tuple[HostPath, ViewPath] | None:
    """The same for the view of a run, whose command sees it at SOURCE."""
    try:
        return asking.view_around(places.absolute(text))
    except PathFault:
        return None


def _of_mount(text: str) -> dict[str, Any]:
    live = _mounted(text) or _running(text)
    if live is None:
        raise UserFault(Exit.FAILED, f"{printable(text)} is in no mounted view; the other paths are")
    point, path = live
    values: dict[str, Any] = asking.ask(point, {"do": "explain", "paths": [os.fsdecode(path)]})[0]
    return values


def _of_source(source: str, paths: tuple[str, ...], options: PolicyOptions) -> list[dict[str, Any]]:
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
    return [explanation_values(policy.explain(path)) for path in resolved]


def as_text(values: dict[str, Any]) -> str:
    """An explanation as a person reads it."""
    lines = [display(from_text(values["path"]))]
    if "level" in values:
        lines.append(f"  level     {values['level']} ({LEVELS[values['level']].meaning}), {values['standing']}")
        lines.append(f"  rule      {printable(values['rule'])}")
        others = [printable(rule) for rule in values["considered"] if rule != values["rule"]]
        lines += [f"  {'also' if not number else '':<9} {rule}" for number, rule in enumerate(others)]
    for operation in OPERATIONS:
        answer = values[operation]
        if answer is None:
            lines.append(f"  {operation:<9} allowed")
        else:
            lines.append(f"  {operation:<9} {answer['errno']}: {display(from_text(answer['text']))}")
    return "\n".join(lines)
