"""The text of a journal: one line of JSON for each entry, chained by hash.

A line is ASCII, ends in a newline and has at most `MAX_LINE` bytes. `seq` counts the lines of one daemon from 1, over its
files; `previous` is the sha256 of the line before without its newline, so that `reading.verify` finds a line that was
removed, changed or moved. docs/journal.md has each field.

Names are bytes that a session chooses. They are decoded as UTF-8 with what is none as surrogate escapes, and JSON writes
everything beyond printable ASCII as `\\uXXXX`: no name can end a line or move a cursor, and none is lost. What is not UTF-8
stands beside as base64, for readers that cannot hold surrogates.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import time
from dataclasses import dataclass, field
from typing import Any

MAX_LINE = 4096
"""Bytes of a line, its newline counted: what one page holds, so that a reader can bound what it reads."""

BEGINNING = "0" * 64
"""The hash before the first line of a daemon."""

FORMAT = 2
"""Of the lines; in the first line of each file."""

Deed = tuple[str, str, bytes, str, str | None, str | None, int, bytes | None]
"""What a session did or was refused: event (`refusal`, `change`, `open`), operation, path, level, refusal, rule, process,
and where to. A plain tuple, since handlers make it: it costs a third of a `NamedTuple`."""


@dataclass(frozen=True, slots=True)
class Event:
    """Something that befell the mount or its journal: rare, with fields of its own."""

    what: str
    fields: dict[str, str | int] = field(default_factory=dict)


Item = tuple[int, Deed | Event, int]
"""When (nanoseconds since 1970), what, and how many times."""

_text = json.JSONEncoder(ensure_ascii=True, separators=(",", ":")).encode


def hash_of(line: bytes) -> str:
    """What the next line calls `previous`: of the line without its newline."""
    return hashlib.sha256(line).hexdigest()


class Lines:
    """Makes the lines of one session."""

    def __init__(self, session: str) -> None:
        self._session = session
        self._session_text = _text(session)
        self._second = ""
        self._second_text = ""

    def line(self, seq: int, previous: str, item: Item, command: str | None) -> bytes:
        """The line for an item, without its newline."""
        when, what, times = item
        if isinstance(what, Event):
            return self._from_values(seq, previous, when, _values_of_event(what))
        event, operation, path, level, refusal, rule, process, to = what
        # Put together by hand: this runs for each of a flood of refusals, and takes half as long as a dict and `dumps`.
        towards = "" if to is None else f"{_path_text('to', to)},"
        often = f'"times":{times},' if times > 1 else ""
        line = (
            f'{{"seq":{seq},"time":"{self._time(when)}","session":{self._session_text},{_event_text(event, operation)},'
            f"{_path_text('path', path)},{towards}{_decision_text(level, refusal, rule)},"
            f'"pid":{process},"command":{"null" if command is None else _text(command)},{often}"previous":"{previous}"}}'
        )
        if len(line) < MAX_LINE:
            return line.encode("ascii")
        return self._from_values(seq, previous, when, _values_of_deed(what, times, command))

    def _time(self, when: int) -> str:
        # By the digits: half of the time that dividing and formatting take.
        digits = f"{when:010d}"
        if digits[:-9] != self._second:
            self._second = digits[:-9]
            self._second_text = time.strftime("%Y-%m-%dT%H:%M:%S.", time.gmtime(int(self._second)))
        return self._second_text + digits[-9:-3] + "Z"

    def _from_values(self, seq: int, previous: str, when: int, values: dict[str, str | int | bytes | None]) -> bytes:
        """The general way. Where the line grows too long, its texts are cut until it fits, each with its hash."""
        own: dict[str, Any] = {"seq": seq, "time": self._time(when)}
        line = b""
        for most in (MAX_LINE, 1024, 256, 64, 0):
            described: dict[str, Any] = {}
            for name, value in {"session": self._session, **values}.items():
                described |= _described(name, value, most)
            line = _text({**own, **described, **own, "previous": previous}).encode("ascii")
            if len(line) < MAX_LINE:
                return line
        # More fields than a line can hold even without their texts; nothing here makes such an event.
        return _text({**own, "event": "too long", "sha256": hash_of(line), "previous": previous}).encode("ascii")


def _values_of_event(event: Event) -> dict[str, str | int | bytes | None]:
    return {"event": event.what, **{name: value for name, value in event.fields.items() if name not in ("event", "session")}}


def _values_of_deed(deed: Deed, times: int, command: str | None) -> dict[str, str | int | bytes | None]:
    event, operation, path, level, refusal, rule, process, to = deed
    values: dict[str, str | int | bytes | None] = {"event": event, "operation": operation, "path": path}
    if to is not None:
        values["to"] = to
    values["level"] = level
    if refusal is not None:
        values |= {"refusal": refusal, "rule": rule}
    values |= {"pid": process, "command": command}
    return values | {"times": times} if times > 1 else values


def _described(name: str, value: str | int | bytes | None, most: int) -> dict[str, Any]:
    """The fields for one value, a text cut to `most` bytes."""
    if value is None or isinstance(value, int):
        return {name: value}
    if isinstance(value, str):
        whole = value.encode("utf-8", "surrogatepass")
        described: dict[str, Any] = {name: value[:most]}
        cut = len(value) > most
    else:
        whole, kept = value, value[:most]
        described = {name: kept.decode("utf-8", "surrogateescape")}
        if not _is_utf8(kept):
            described[f"{name}_bytes"] = base64.b64encode(kept).decode("ascii")
        cut = len(whole) > most
    if cut:
        described[f"{name}_length"] = len(whole)
        described[f"{name}_sha256"] = hash_of(whole)
    return described


def _is_utf8(text: bytes) -> bool:
    try:
        text.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _path_text(name: str, path: bytes) -> str:
    try:
        return f'"{name}":{_text(path.decode("utf-8"))}'
    except UnicodeDecodeError:
        encoded = base64.b64encode(path).decode("ascii")
        return f'"{name}":{_text(path.decode("utf-8", "surrogateescape"))},"{name}_bytes":"{encoded}"'


@functools.lru_cache(256)
def _event_text(event: str, operation: str) -> str:
    return f'"event":{_text(event)},"operation":{_text(operation)}'


@functools.lru_cache(1024)
def _decision_text(level: str, refusal: str | None, rule: str | None) -> str:
    if refusal is None:
        return f'"level":{_text(level)}'
    return f'"level":{_text(level)},"refusal":{_text(refusal)},"rule":{"null" if rule is None else _text(rule)}'
