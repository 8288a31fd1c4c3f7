"""`policyfs explain`: what a session may do with a path, and which rule says so."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

import click

from policyfs.cli.options import OnceEach, directories, policy_options, printable
from policyfs.control import client
from policyfs.control.explained import OPERATIONS, explanation_values, path_fault_text
from policyfs.host import mounts, places
from policyfs.host.errors import Exit, UserFault
from policyfs.host.mounts import Mount
from policyfs.opening.load import PolicyOptions, source_of
from policyfs.opening.view import policy_of
from policyfs.policy.levels import LEVELS
from policyfs.policy.paths import HostPath, PathFault, ViewPath, display, for_shell, from_text, view_path


@click.command("explain", cls=OnceEach)
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
    table = mounts.mounts()
    if given:
        if _is_mounted(source, table):
            raise click.UsageError("a mounted view has its policy; leave the policy options away")
        live = None
    else:
        live = _live(source, table)
    if live is not None:
        point, path = live
        if path == b"/" and paths and not _is_mounted(source, table):
            # As with policy options: SOURCE, then paths of its view.
            explained = client.ask(point, {"do": "explain", "paths": list(paths)})
        else:
            explained = [_of_mount(text, source, path, table) for text in (source, *paths)]
    else:
        if not paths:
            client.refuse_detached(places.absolute(source))
            of = for_shell(from_text(source))
            raise click.UsageError(f"no PATH: write `policyfs explain {of} /`, or a path in a mounted view")
        explained = _of_source(source, paths, options, table)
    for number, values in enumerate(explained):
        if as_json:
            click.echo(json.dumps(values))
        else:
            if number:
                click.echo()
            click.echo(as_text(values))


def _is_mounted(text: str, table: Sequence[Mount]) -> bool:
    """Whether a text leads into a view by its mountpoint."""
    try:
        return mounts.in_view(places.absolute(text), table) is not None
    except PathFault:
        return False


def _live(text: str, table: Sequence[Mount]) -> tuple[HostPath, ViewPath] | None:
    """The mountpoint of the view that a text leads into and the path there, if it leads into one: by the mountpoint, or by
    the SOURCE of a run, whose command sees the view there. Raises `UserFault`."""
    try:
        place = places.absolute(text)
    except PathFault as fault:
        raise UserFault(Exit.FAILED, path_fault_text(fault, text)) from None
    return mounts.in_view(place, table) or client.view_around(place)


def _of_mount(text: str, first: str, its_path: ViewPath, table: Sequence[Mount]) -> dict[str, Any]:
    """The answer on a text that leads into a mounted view, as the `first` one does. Raises `UserFault`."""
    live = _live(text, table)
    if live is None:
        # As with SOURCE, one may mean paths of the view: those go on from the mountpoint.
        below = os.path.join(first, text.lstrip("/"))
        meant = f"; for {text} of the view write `policyfs explain {for_shell(from_text(below))}`"
        advice = meant if its_path == b"/" else "; ask for it apart from those that are"
        raise UserFault(Exit.FAILED, f"{text} is in no mounted view{advice}")
    point, path = live
    values: dict[str, Any] = client.ask(point, {"do": "explain", "paths": [os.fsdecode(path)]})[0]
    return values


def _of_source(
    source: str, paths: tuple[str, ...], options: PolicyOptions, table: Sequence[Mount]
) -> list[dict[str, Any]]:
    policy = policy_of(source_of(source), options, table)
    resolved: list[ViewPath] = []
    faults = []
    for text in paths:
        try:
            resolved.append(view_path(os.fsencode(text), policy.session.start))
        except PathFault as fault:
            at = os.path.join(os.fsdecode(policy.session.start), text)
            faults.append(path_fault_text(fault, at if text else text))
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
