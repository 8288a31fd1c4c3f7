"""By which paths a place is reached, as symbolic links stand now.

A rule speaks of a place by a path. The owner's programs follow every link on that path, so what the rule is meant to guard
may lie elsewhere, and may come to lie elsewhere while a view is open. A way tells all of it: each path that the walk goes
by, from the one that was written to the one where the place really is.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from typing import NamedTuple

from policyfs.host import places
from policyfs.policy.paths import HostPath, below

MAX_LINKS = 40
"""As many links as the kernel follows: MAXSYMLINKS, path_resolution(7). Beyond it nobody gets there (ELOOP)."""


class Way(NamedTuple):
    """How a place is reached."""

    paths: tuple[HostPath, ...]
    """Every path of the place, without `.` and `..`: the written one first, then what each link on the way makes of it. The
    last is the real path, as far as the place exists."""
    links: tuple[HostPath, ...]
    """The links that are followed, each by its real path."""
    crossed: tuple[HostPath, ...]
    """What is walked through and left again by a `..` in the text of a link. A link in its place would lead elsewhere."""


class Walk:
    """Finds ways, and asks for each name only once."""

    def __init__(self, closed: Collection[HostPath] = (), instead: Mapping[HostPath, HostPath] | None = None) -> None:
        """`closed` are mountpoints at and below which nothing is asked: names there are taken by their text, since the
        server behind such a mount may not answer, or be the caller itself. `instead` has, for mountpoints, the directory
        that is seen there."""
        self._closed = tuple(closed)
        self._instead = instead or {}
        self._texts: dict[HostPath, bytes | None] = {}
        self._missing: set[HostPath] = set()
        self.names: dict[HostPath, set[bytes]] = {}
        """The names that were looked up, by directory. A link made at one of them changes a way."""

    def to(self, name: bytes) -> Way:
        """The way to a place, by an absolute name, which may have `..` in it: behind a link it leads up from where the link
        leads."""
        paths: dict[HostPath, None] = {}
        links: dict[HostPath, None] = {}
        crossed: dict[HostPath, None] = {}
        pending = [part for part in reversed(name.split(b"/")) if part not in (b"", b".")]
        current = b""
        followed = 0
        while pending:
            part = pending.pop()
            if part == b"..":
                current = current.rpartition(b"/")[0]
                continue
            step = HostPath(current + b"/" + part)
            if b".." in pending:
                crossed[step] = None
            else:
                paths[HostPath(b"/".join((step, *reversed(pending))))] = None
            # A rule that names the mountpoint itself, and through no link, does not mean what the view shows there.
            if step in self._instead and (pending or followed):
                current = self._instead[step].rstrip(b"/")
                continue
            text = self._text(HostPath(current or b"/"), part, step)
            if text is None:
                current = step
                continue
            followed += 1
            if followed > MAX_LINKS:
                break
            links[step] = None
            if text.startswith(b"/"):
                current = b""
            pending += [part for part in reversed(text.split(b"/")) if part not in (b"", b".")]
        else:
            paths[HostPath(current or b"/")] = None
        return Way(tuple(paths), tuple(links), tuple(crossed))

    def _text(self, directory: HostPath, name: bytes, step: HostPath) -> bytes | None:
        """What the link at a step says, None where something else is, or nothing."""
        if step not in self._texts:
            self._texts[step] = None
            if directory in self._missing:
                # Nothing is looked up in it before it is made.
                self._missing.add(step)
            elif not any(below(step, point) is not None for point in self._closed):
                self.names.setdefault(directory, set()).add(name)
                try:
                    self._texts[step] = os.readlink(step)
                except FileNotFoundError:
                    self._missing.add(step)
                except OSError:
                    pass  # It is not a link, or not to be looked at by this user.
        return self._texts[step]


def on_the_way(name: str) -> list[HostPath]:
    """What a file name leads through: every link that the kernel follows to reach the file, then the file, each by its
    real path. A change to one of them changes what the name means."""
    written = os.fsencode(name)
    way = Walk().to(written if name.startswith("/") else places.working_directory() + b"/" + written)
    return [*way.links, way.paths[-1]]
