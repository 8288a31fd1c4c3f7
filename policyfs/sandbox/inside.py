#!/usr/bin/env -S python3 -I
"""The `policyfs` of a sandbox: what a program inside may ask about its own view.

Shown to every run as the file it is, and started by whatever python3 from 3.8 on stands inside; so it imports nothing but
the standard library, and says again, in its own words, the little that the other commands share. Where there is no python3
it does not start, and nothing else misses it.

It asks by a socket that answers `explain` and `view` and nothing else, to every program that connects. Nothing is decided
here.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import sys
from collections.abc import Iterator, Sequence
from typing import Any

PLACE = "/run/policyfs"
"""Where this program and what it needs stand inside."""
PROGRAM = PLACE + "/bin/policyfs"
SOCKET = PLACE + "/ask.sock"
SOURCE = PLACE + "/source"
"""A file that holds the path at which the view stands."""

HELP = """\
Usage: policyfs explain [--json] PATH...
       policyfs view [--json]

Ask about the view that this program runs in.

  explain  Say for each PATH its level, the rule that decided, and what looking at
           it, changing it and committing it are answered. Links are followed.
  view     List every path that is open, with its level.

  --json   For programs: an object a line (explain), a list (view). Its paths are
           written from the root of the view, /, as outside.

A rule too names its path from the root of the view. Everything else of policyfs is
for the caller of this program, outside.
"""

MEANING = {"none": "no access", "ro": "read-only", "stage": "read/write, stage", "commit": "read/write, commit"}

_OPERATIONS = ("look", "change", "commit")
_TIMEOUT = 60
_MAX_REQUEST_BYTES = 1 << 15
"""Of paths in one request, half of what the other side takes."""


class Fault(Exception):
    """Messages to the person in place of an answer, a line each."""

    def __init__(self, status: int, *messages: str) -> None:
        self.status = status
        self.messages = messages
        super().__init__("; ".join(messages))


def main(words: Sequence[str]) -> int:
    """Do what a command line says; its exit status."""
    try:
        _print(1, list(_answer(words)))
    except Fault as fault:
        _print(2, [f"policyfs: {message}" for message in fault.messages])
        return fault.status
    except BrokenPipeError:
        return 1
    except OSError as error:
        _print(2, [f"policyfs: {error.strerror}"])
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def _answer(words: Sequence[str]) -> Iterator[str]:
    """The lines that answer a command line. Raises `Fault`."""
    options = words[: words.index("--")] if "--" in words else words
    if "-h" in options or "--help" in options:
        yield HELP.rstrip("\n")
        return
    if not words:
        raise Fault(2, "no command; write `policyfs explain PATH` or `policyfs view`, or `policyfs --help`")
    command, rest = words[0], words[1:]
    if command not in ("explain", "view"):
        raise Fault(2, f"{_shown(command)}: only `explain` and `view` can be asked in here, see `policyfs --help`")
    paths, as_json = _parsed(command, rest)
    if command == "view":
        if paths:
            raise Fault(2, "view takes no PATH; ask `policyfs explain PATH`")
        yield from _view(_asked({"do": "view"}), as_json)
        return
    if not paths:
        raise Fault(2, "no PATH; write `policyfs explain PATH`")
    source = _source()
    for number, values in enumerate(_explained(_view_paths(paths, source))):
        if as_json:
            yield json.dumps(values)
        else:
            yield ("\n" if number else "") + as_text(_as_found(values, source))


def _parsed(command: str, words: Sequence[str]) -> tuple[list[str], bool]:
    paths, as_json, only_paths = [], False, False
    for word in words:
        if only_paths or not word.startswith("-") or word == "-":
            paths.append(word)
        elif word == "--":
            only_paths = True
        elif word == "--json":
            as_json = True
        else:
            raise Fault(2, f"{command} has no option {_shown(word)} in here, only --json")
    return paths, as_json


def _view(granted: Sequence[dict[str, str]], as_json: bool) -> Iterator[str]:
    if as_json:
        yield json.dumps(granted)
        return
    source = _source()
    shown = [(_shown(_found(entry["path"], source)), MEANING[entry["level"]]) for entry in granted]
    width = max((len(path) for path, _ in shown), default=0)
    for path, meaning in shown:
        yield f"{path.ljust(width)}  {meaning}"


def as_text(values: dict[str, Any]) -> str:
    """An explanation as a person reads it, as the command of the same name prints it outside."""
    lines = [_shown(values["path"])]
    if "level" in values:
        lines.append(f"  level     {values['level']} ({MEANING[values['level']]}), {values['standing']}")
        lines.append(f"  rule      {_shown(values['rule'])}")
        others = [_shown(rule) for rule in values["considered"] if rule != values["rule"]]
        lines += [f"  {'' if number else 'also':<9} {rule}" for number, rule in enumerate(others)]
    for operation in _OPERATIONS:
        answer = values[operation]
        if answer is None:
            lines.append(f"  {operation:<9} allowed")
        else:
            lines.append(f"  {operation:<9} {answer['errno']}: {_shown(answer['text'])}")
    return "\n".join(lines)


# -- paths ---------------------------------------------------------------------------------------------------------------


def _source() -> bytes:
    """The path at which the view stands."""
    with open(SOURCE, "rb") as file:
        return file.read()


def _found(path: str, source: bytes) -> str:
    """The path at which a program in here finds a path of the view."""
    return os.fsdecode(source) + ("" if path == "/" else path)


def _as_found(values: dict[str, Any], source: bytes) -> dict[str, Any]:
    """An explanation with its path, also where an answer names it, as a program in here finds it."""
    path = values["path"]
    changed = {**values, "path": _found(path, source)}
    for operation in _OPERATIONS:
        answer = values[operation]
        if answer is not None:
            # The first that could be it is it: what an answer says before its path has no `/`.
            changed[operation] = {**answer, "text": answer["text"].replace(path, changed["path"], 1)}
    return changed


def _view_paths(texts: Sequence[str], source: bytes) -> list[str]:
    """The paths of the view that these lead to. Raises `Fault` with each that leads out of it."""
    found, faults = [], []
    for text in texts:
        written = os.fsencode(text)
        if not written:
            faults.append("PATH is empty; write a path")
            continue
        try:
            real = os.path.realpath(written)
        except FileNotFoundError:
            faults.append(f"{_shown(text)}: the working directory is gone; write an absolute path")
            continue
        # The kernel's own walk may end before: `none/..` is missing, and so is `file/`, but not to realpath(3).
        answered = _errno_of(written)
        if answered != _errno_of(real):
            faults.append(f"{_shown(text)}: {os.strerror(answered)}, as it is written; ask for {_shown(os.fsdecode(real))}")
            continue
        if real == source or real.startswith(source + b"/"):
            found.append(os.fsdecode(real[len(source) :] or b"/"))
        else:
            leads = "is" if os.path.abspath(written) == real else f"leads to {_shown(os.fsdecode(real))},"
            faults.append(f"{_shown(text)} {leads} outside the view, which is {_shown(os.fsdecode(source))}")
    if faults:
        raise Fault(1, *faults)
    return found


def _errno_of(path: bytes) -> int:
    try:
        os.stat(path)
    except OSError as error:
        return error.errno or 0
    return 0


def _shown(text: str) -> str:
    """The text as a terminal may see it, as `display` in policyfs/policy/paths.py has it."""
    shown = []
    for character in text:
        if character.isprintable():
            shown.append(character)
        elif "\udc80" <= character <= "\udcff":
            shown.append(f"\\x{ord(character) - 0xDC00:02x}")
        else:
            shown.append(character.encode("unicode_escape").decode("ascii"))
    return "".join(shown)


# -- asking --------------------------------------------------------------------------------------------------------------


def _explained(paths: Sequence[str]) -> Iterator[dict[str, Any]]:
    """What is said of each path, in requests no longer than the other side takes."""
    part: list[str] = []
    length = 0
    for path in paths:
        size = len(json.dumps(path)) + 2
        if part and length + size > _MAX_REQUEST_BYTES:
            yield from _asked({"do": "explain", "paths": part})
            part, length = [], 0
        part.append(path)
        length += size
    yield from _asked({"do": "explain", "paths": part})


def _asked(request: dict[str, Any]) -> Any:
    """The answer to a request. Raises `Fault` for one that says no, and where nobody answers."""
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            # Limits of the kernel's, since a socket with Python's does not wait for room among others that ask.
            for option in (socket.SO_RCVTIMEO, socket.SO_SNDTIMEO):
                connection.setsockopt(socket.SOL_SOCKET, option, struct.pack("@ll", _TIMEOUT, 0))
            connection.connect(SOCKET)
            text = _exchanged(connection, json.dumps(request).encode("ascii") + b"\n")
    except BlockingIOError:
        raise Fault(1, f"the view did not answer within {_TIMEOUT} s; ask again") from None
    except OSError as error:
        raise Fault(1, f"the view cannot be asked: {error.strerror}; it may have ended") from None
    if not text.endswith(b"\n"):
        raise Fault(1, "the view ended while it was asked")
    answer = json.loads(text)
    if "fault" in answer:
        raise Fault(answer["exit_code"], *(_shown(message) for message in answer["fault"]))
    return answer["ok"]


def _exchanged(connection: socket.socket, request: bytes) -> bytes:
    try:
        connection.sendall(request)
    except ConnectionError:
        # Refused before it was read: the answer says why.
        pass
    text = bytearray()
    while not text.endswith(b"\n"):
        piece = connection.recv(1 << 16)
        if not piece:
            break
        text += piece
    return bytes(text)


def _print(descriptor: int, lines: Sequence[str]) -> None:
    """Written whole and in UTF-8, as names are, whatever the locale says."""
    left = "".join(line + "\n" for line in lines).encode("utf-8", "backslashreplace")
    while left:
        left = left[os.write(descriptor, left) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
