"""Instruction files: what a tree tells an agent that works in it (rules instruction-1 to instruction-6).

Theory. Every directory from the boundary down to the start directory may contribute one file, outermost first: the
first of `NAMES` that is a regular file the session can read. All reading goes through the view, so a file that is
hidden, or in a passage, is as good as absent, and the walk goes on below it. A directory further down contributes when
something under it is read for the first time in a session: `Nearby` remembers.

A start directory goes by where it really is, and not by its text (rule instruction-3): a link to
`a/b` has the chain of `a/b`, `a` with it, as getcwd(3) says in that directory.

Only what lies in the boundary counts. A link is followed by the view's own judgement, so one to a hidden place or out
of SOURCE is not read, and neither is one to a place outside the boundary, which no policy shows.

An instruction file goes into a prompt whole or, past a cap, up to it: the text says so in a notice, and so does one that
is not text. Files of the machine that are not part of the tree (a global file, configured ones) are not read here: their
bytes are, by `instruction_text`.
"""

from __future__ import annotations

import codecs
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from policyfs.policy.paths import ROOT, Name, ViewPath, below, child, components, display, display_lines, from_text, joined
from policyfs.view.location import Location
from policyfs.view.monitor import ReferenceMonitor
from policyfs.view.whole_path import follow

NAMES = (Name(b"AGENTS.md"), Name(b"CLAUDE.md"))
"""In order of preference within one directory."""

MAX_BYTES = 64 * 1024
"""Of one file: some sixteen thousand tokens, which a model reads again on every turn."""


@dataclass(frozen=True, slots=True)
class Instruction:
    """One instruction file, as it is given to a model."""

    path: str
    """Relative to the boundary (undecodable bytes as surrogates); of a file outside the tree, its path as given."""
    text: str
    """As it is in the file, UTF-8 without a byte order mark; empty where the file is not text."""
    notice: str | None = None
    """What a model must know of the text: that it is cut, or why there is none."""

    def __str__(self) -> str:
        """The file under a heading, as a prompt or a terminal may have it: `display_lines`."""
        lines = [f"Instructions from {display(from_text(self.path))}:", "", display_lines(self.text).rstrip("\n")]
        if self.notice is not None:
            lines += ["", f"[{self.notice}]"] if self.text else [f"[{self.notice}]"]
        return "\n".join(lines) + "\n"


def instruction_text(
    path: str, data: bytes, size: int | None, max_bytes: int = MAX_BYTES, *, in_view: bool = True
) -> Instruction:
    """An instruction file of `size` bytes that begins with `data`, of which at most `max_bytes` are given; None for what
    tells no size, as a pipe. `in_view` where the session can read the rest of it."""
    given = data[:max_bytes]
    cut = max(size or 0, len(data)) > len(given)
    try:
        # A character that the cap cuts in two is left out, one that the file breaks off in is a fault.
        text, used = codecs.utf_8_decode(given, "strict", not cut)
    except UnicodeDecodeError as error:
        return Instruction(path, "", f"not given: it is not UTF-8 (byte {error.start})")
    text = text.removeprefix("\ufeff")
    if not cut:
        return Instruction(path, text)
    line_end = text.rfind("\n") + 1
    # Whole lines, where they are lines: one of many thousand characters is cut in itself.
    if line_end > len(text) // 2:
        used -= len(text[line_end:].encode())
        text = text[:line_end]
    of_all = "" if size is None else f" of {size:,}"
    rest = "; read the file for the rest" if in_view else ""
    return Instruction(path, text, f"cut: these are the first {used:,}{of_all} bytes{rest}")


def chain(
    view: ReferenceMonitor,
    start: ViewPath | None = None,
    *,
    before: Sequence[Instruction] = (),
    after: Sequence[Instruction] = (),
    max_bytes: int = MAX_BYTES,
) -> list[Instruction]:
    """The instruction files from the boundary down to the start directory, outermost first. `start` is the session's
    own where it is not given; one outside the boundary is read as the boundary. `before` is the device's global file,
    `after` are the configured ones."""
    return [*before, *(found for _, found in _chain(view, start, max_bytes)), *after]


class Nearby:
    """The instruction files below the start directory, each handed over once: one object for one session."""

    def __init__(self, view: ReferenceMonitor, start: ViewPath | None = None, max_bytes: int = MAX_BYTES) -> None:
        self._view = view
        self._most_bytes = max_bytes
        self._given: set[ViewPath] = set()
        self.begin(start)

    def begin(self, start: ViewPath | None = None) -> None:
        """Start there from now on. `chain` is what that gives, and none of it is handed over by a reading."""
        self._start = _start(self._view, start)
        found = _chain(self._view, start, self._most_bytes)
        self._given.update(location.path for location, _ in found)
        self.chain = [instruction for _, instruction in found]

    def for_read(self, path: ViewPath) -> list[Instruction]:
        """What to hand over with the contents of `path`, a file that was read or a directory that was listed: the
        instruction files of the directories above it, below the start directory, that were not handed over yet;
        outermost first. A path goes by where it really is. An instruction file that is read itself is not handed over
        with itself; as only a part of it may have been read, that does not count as handing it over."""
        really = _really(self._view, path)
        rest = None if really is None else below(really, self._start)
        if not rest:
            return []
        found = []
        directory = self._start
        for name in components(rest)[:-1]:
            directory = child(directory, name)
            here = _of(self._view, directory, self._most_bytes)
            if here is None:
                continue
            location, instruction = here
            if location.path in self._given or location.path == really:
                continue
            self._given.add(location.path)
            found.append(instruction)
        return found


def as_text(instructions: Iterable[Instruction]) -> str:
    """Instruction files as one text for a prompt."""
    return "\n".join(str(instruction) for instruction in instructions)


def _start(view: ReferenceMonitor, start: ViewPath | None) -> ViewPath:
    """Where the chain ends: where a start directory really is, or, where a link on the way leads nowhere that the session
    sees, what its text says."""
    session = view.policy.session
    wanted = session.start if start is None else start
    really = _really(view, wanted) or wanted
    outside = below(wanted, session.boundary) is None or below(really, session.boundary) is None
    return session.boundary if outside else really


def _chain(view: ReferenceMonitor, start: ViewPath | None, max_bytes: int) -> list[tuple[Location, Instruction]]:
    boundary = view.policy.session.boundary
    outer = 0 if boundary == ROOT else len(components(boundary))
    names = components(_start(view, start))
    directories = [ViewPath(joined(names[:length])) for length in range(outer, len(names) + 1)]
    found = (_of(view, directory, max_bytes) for directory in directories)
    return [here for here in found if here is not None]


def _of(view: ReferenceMonitor, directory: ViewPath, max_bytes: int) -> tuple[Location, Instruction] | None:
    """What one directory contributes, and where it really is."""
    for name in NAMES:
        path = child(directory, name)
        try:
            location = follow(view, path)
            file = view.open(location, os.O_RDONLY)
        except OSError:
            # Hidden, missing, no regular file, or nothing this user may read: no file that the session can read.
            continue
        try:
            data = file.read(0, max_bytes)
            size = max(len(data), os.fstat(file.descriptor).st_size)
        finally:
            file.close()
        relative = below(path, view.policy.session.boundary) or path
        return location, instruction_text(relative.decode("utf-8", "surrogateescape"), data, size, max_bytes)
    return None


def _really(view: ReferenceMonitor, path: ViewPath) -> ViewPath | None:
    try:
        return follow(view, path).path
    except OSError:
        return None
