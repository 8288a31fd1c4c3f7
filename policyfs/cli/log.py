"""`policyfs log`: what happened in a view."""

from __future__ import annotations

import contextlib
import json
import os
import select
import sys
import time
from collections import deque
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import click
from inotify_simple import INotify, flags

from policyfs.audit.journal_file import files_of, parsed
from policyfs.audit.reading import Reader, verify
from policyfs.cli.options import OnceEach, printable
from policyfs.control import client
from policyfs.host import mounts, places
from policyfs.host.errors import Exit, UserFault
from policyfs.policy.paths import HostPath, PathFault, display

_LAST = 10
"""Lines of the past that -f begins with."""
_FIRST_LINES = 5.0
"""Seconds to wait for the first lines of a view that has just been mounted."""
_CHUNK = 1000
"""Lines that are printed at once."""
_WITHOUT_WATCH = 1.0
"""Seconds between two looks where the kernel gives no watch."""


@click.command("log", cls=OnceEach)
@click.argument("mountpoint")
@click.option("-f", "--follow", is_flag=True, help="Go on with what comes; Ctrl-C ends it.")
@click.option("--denied", is_flag=True, help="Only what was refused.")
@click.option("--json", "as_json", is_flag=True, help="The lines of the journal as they are, a JSON object each.")
@click.option("--verify", "verified", is_flag=True, help="Print nothing but whether the journal is as it was written.")
@click.option("-n", "--lines", type=click.IntRange(min=0), metavar="LINES", help="The last LINES only; with -f, 10.")
def command(mountpoint: str, follow: bool, denied: bool, as_json: bool, verified: bool, lines: int | None) -> None:
    """Print the journal of the view at MOUNTPOINT: what was refused and by which rule, what was changed, and what became
    of the view. A view that has ended still has its journal. The runs of a SOURCE share one, which is named by SOURCE.

    \b
      policyfs log /mnt/view --denied
      policyfs log /mnt/view -f
      policyfs log /mnt/view --verify
    """
    if verified and (follow or denied or as_json or lines is not None):
        raise click.UsageError("--verify prints no lines; give it alone")
    try:
        named = places.absolute(mountpoint)
    except PathFault as fault:
        raise UserFault(Exit.PLACE, f"MOUNTPOINT: {fault}; name a view, mounted or not") from None
    journal = _journal_of(named)
    if not files_of(journal) and not _comes(mountpoint, journal):
        raise UserFault(
            Exit.PLACE,
            f"no journal of {display(named)}: you have mounted no view there that keeps one; see `policyfs status`",
        )
    if verified:
        _verify(journal)
    else:
        _print(journal, follow=follow, denied=denied, as_json=as_json, last=lines)


def _journal_of(named: HostPath) -> Path:
    """The journal of the view that is or was at a place; where none was, of the one that the place lies in."""
    journal = places.journal_directory(mounts.real_mountpoint(named))
    if not files_of(journal):
        around = mounts.in_view(named)
        if around is not None:
            return places.journal_directory(around[0])
    return journal


def _comes(mountpoint: str, journal: Path) -> bool:
    """Whether a journal is written soon: a view that was mounted a moment ago gathers its first lines."""
    try:
        if client.ask(client.mounted_view(mountpoint), {"do": "status"})["journal"] is None:
            return False
    except UserFault:
        return False
    end = time.monotonic() + _FIRST_LINES
    while not files_of(journal):
        if time.monotonic() > end:
            return False
        time.sleep(0.05)
    return True


def _verify(journal: Path) -> None:
    verdict = verify(journal)
    if verdict.findings:
        raise UserFault(Exit.FAILED, *(str(finding) for finding in verdict.findings))
    click.echo(f"unbroken: {verdict.lines} lines in {verdict.files} {'file' if verdict.files == 1 else 'files'}")
    if verdict.torn:
        click.echo(f"{verdict.torn} cut off when the daemon was killed, or being written")
    if verdict.lost:
        click.echo(f"{verdict.lost} entries were lost, as the journal says")
    if verdict.ends:
        daemon, end = max(verdict.ends.items())
        click.echo(f"the last daemon, {daemon}, ends with line {end.seq}, sha256 {end.hash}")


def _print(journal: Path, *, follow: bool, denied: bool, as_json: bool, last: int | None) -> None:
    with contextlib.ExitStack() as held:
        # The watch comes first, so that nothing is written between the last look and the first wait.
        watch = held.enter_context(_watch(journal)) if follow else None
        reader = held.enter_context(contextlib.closing(Reader(journal)))
        most = _LAST if follow and last is None else last
        wanted = _wanted(reader, denied=denied)
        _echo(wanted if most is None else iter(deque(wanted, most)), as_json=as_json)
        if not follow and not denied and reader.begun():
            _echo(iter([reader.begun()]), as_json=as_json)
        while watch is not None:
            _wait(watch)
            _echo(_wanted(reader, denied=denied), as_json=as_json)


def _wanted(reader: Reader, *, denied: bool) -> Iterator[bytes]:
    for line in reader.lines():
        # The quick look spares most lines of a long journal the slow one.
        if not denied or (b'"event":"refusal"' in line and (parsed(line) or {}).get("event") == "refusal"):
            yield line


def _echo(lines: Iterator[bytes], *, as_json: bool) -> None:
    texts: list[str] = []
    for line in lines:
        texts.append(_json_text(line) if as_json else _text(line))
        if len(texts) == _CHUNK:
            click.echo("\n".join(texts))
            texts.clear()
    if texts:
        click.echo("\n".join(texts))


def _json_text(line: bytes) -> str:
    """A line as it is; one that is none of a journal's as an object that says so, so that programs can go on reading."""
    text = line.decode("ascii", "replace")
    if parsed(line) is not None and text.isprintable():
        return text
    return json.dumps({"event": "no line of a journal", "text": display(line)})


def _text(line: bytes) -> str:
    values = parsed(line)
    if values is None:
        return f"(no line of a journal: {display(line)})"
    return f"{_time(values.get('time'))}  {_what(values)}"


def _time(value: Any) -> str:
    """The time of an entry, as the person's clock has it."""
    try:
        return f"{datetime.fromisoformat(value).astimezone():%Y-%m-%d %H:%M:%S}"
    except (TypeError, ValueError, OverflowError):
        return _value(value)


def _what(values: dict[str, Any]) -> str:
    """What an entry tells. Nothing is known of its values: any line may have been written by anybody."""
    event = values["event"]
    if event not in ("refusal", "change", "open"):
        own = ("seq", "time", "session", "event", "previous")
        fields = [f"{_value(name)}={_value(value)}" for name, value in values.items() if name not in own]
        return "  ".join([_value(event).ljust(7) if fields else _value(event), *fields])
    verb = {"refusal": "refused", "change": "changed", "open": "opened"}[event]
    path = _name(values, "path")
    if "to" in values:
        path += f" to {_name(values, 'to')}"
    answer = _value(values.get("level"))
    if event == "refusal":
        # In the journal by its name in the table of refusals, READ_ONLY; here as a person writes it.
        answer = _value(values.get("refusal")).lower().replace("_", "-") + (
            f" by {_value(values['rule'])}" if values.get("rule") else ""
        )
    process = f"{_value(values.get('command') or '?')}[{_value(values.get('pid'))}]"
    times = f"  {_value(values['times'])} times" if "times" in values else ""
    return f"{verb}  {_value(values.get('operation')):<10}  {path:<30}  {answer}  {process}{times}"


def _name(values: dict[str, Any], field: str) -> str:
    cut = f"... ({_value(values[f'{field}_length'])} bytes)" if f"{field}_length" in values else ""
    return _value(values.get(field)) + cut


def _value(value: Any) -> str:
    # No entry holds a list or an object, and one that somebody put there may be nested beyond what str() stands.
    return printable(value if isinstance(value, str) else "?" if isinstance(value, list | dict) else str(value))


# -- waiting for what comes


@contextlib.contextmanager
def _watch(directory: Path) -> Iterator[INotify | float]:
    """A watch on the journals, or how long to wait where there can be none: the watches of a user are limited."""
    try:
        watch = INotify(nonblocking=True)
    except OSError:
        yield _WITHOUT_WATCH
        return
    with watch:
        try:
            watch.add_watch(os.fspath(directory), flags.MODIFY | flags.CREATE | flags.MOVED_TO)
        except OSError:
            yield _WITHOUT_WATCH
        else:
            yield watch


def _wait(watch: INotify | float) -> None:
    """Wait for a change. The reader of the output may leave meanwhile, which shows as an error on it. Raises
    BrokenPipeError."""
    waiting = select.poll()
    output = sys.stdout.fileno()
    waiting.register(output, 0)
    if not isinstance(watch, float):
        waiting.register(watch, select.POLLIN)
    for descriptor, _ in waiting.poll(watch * 1000 if isinstance(watch, float) else None):
        if descriptor == output:
            raise BrokenPipeError
    if not isinstance(watch, float):
        watch.read(timeout=0)
