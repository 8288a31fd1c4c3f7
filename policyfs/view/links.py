"""A symbolic link is judged by where it lands (rules link-1 to link-7).

The kernel follows links through the mount, so what lies behind one is always judged when it is walked. What is left is
the link itself: its text and its name would tell of hidden things. So a link is shown only if it lands in the view on a
path that is not hidden, or outside SOURCE on a place that the session lists. Components that are missing are judged by
their text, or a dangling link would tell what exists.

The landing is found component by component, as the kernel would, with each component judged before it is touched.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable
from enum import Enum

from policyfs.policy.levels import Standing
from policyfs.policy.paths import NAME_MAX, HostPath, Name, PathFault, ViewPath, components, host_path, joined
from policyfs.policy.policy import Policy
from policyfs.source.root import Root

MOST_LINKS = 40
"""As the kernel follows: MAXSYMLINKS, path_resolution(7)."""
MOST_COMPONENTS = 256
"""Enough for any tree in use; more is work that a link's author makes for the daemon."""


class Landing(Enum):
    """Where a link that is not shown, or that leaves the view, lands."""

    HIDDEN = "hidden"
    OUTSIDE = "outside"
    LOOP = "loop"
    """It leads back to itself: shown, and ELOOP for whoever follows it."""
    MISSING = "missing"
    """Its text goes on, with `.`, `..` or a last `/`, after what is not there: ENOENT for whoever follows it."""
    NOT_DIRECTORY = "not a directory"
    """The same after what is no directory: ENOTDIR."""


class Links:
    """The links of one view. `named` is SOURCE as its owner names it, `at` where the view is mounted, if it is."""

    def __init__(self, root: Root, policy: Callable[[], Policy], named: HostPath, at: HostPath | None) -> None:
        self._root = root
        self._policy = policy
        own = (root.source, named)
        self._bases = own if at is None else (at, *own)
        self._at = at
        self._where = at or root.source
        self._in_own_place = at in own

    def shows(self, link: ViewPath, text: bytes) -> bool:
        """Whether a link at `link` that says `text` may be shown, or made."""
        return self.landing(link, text) is not Landing.HIDDEN

    def text_in_view(self, link: ViewPath, text: bytes) -> bytes:
        """What the view says a link says: an absolute target inside SOURCE is rewritten relative to the link where the
        mount is not at SOURCE's own path, since the path as it stands would lead out of the view."""
        if self._in_own_place or not text.startswith(b"/"):
            return text
        base, rest = self._inside(text)
        if base is None or base == self._at:
            return text
        depth = len(components(link)) - 1
        target = b"/".join(rest) or b"."
        return b"../" * depth + target

    def landing(self, link: ViewPath, text: bytes) -> ViewPath | Landing:
        """Where the link lands, by the text alone where something is missing."""
        return self._walk(components(link)[:-1], text, through=link, follow_last=True)

    def resolve(self, path: ViewPath, *, follow_last: bool) -> ViewPath | Landing:
        """Where a path of the view leads once every link on the way is followed; the last one only if asked. A name that
        is missing is taken by its text, and so is what lies below it or below a file, but for what a link's text says
        there that is no name."""
        return self._walk([], path[1:], through=None, follow_last=follow_last)

    def _inside(self, text: bytes) -> tuple[HostPath | None, list[bytes]]:
        """An absolute text as what remains of it under SOURCE or the mount; the remainder still has its `..`."""
        parts = [part for part in text.split(b"/") if part not in (b"", b".")]
        for base in self._bases:
            base_parts = base.split(b"/")[1:] if base != b"/" else []
            if parts[: len(base_parts)] == base_parts:
                return base, parts[len(base_parts) :]
        return None, []

    def _away(self, text: bytes) -> Landing | list[bytes]:
        """Where a text leads that leaves SOURCE: what is to be walked where it comes back by its own words, else the
        judgement on a landing outside."""
        try:
            place = host_path(text)
        except PathFault:
            return Landing.HIDDEN
        base, rest = self._inside(place)
        if base is not None:
            return rest
        return Landing.OUTSIDE if self._policy().shown_outside(place) else Landing.HIDDEN

    def _walk(self, current: list[Name], text: bytes, *, through: ViewPath | None, follow_last: bool) -> ViewPath | Landing:
        """Walk `text` from the directory `current`; `through` is the link that says it, if one does."""
        policy = self._policy()
        places = [policy.root]
        for name in current:
            places.append(policy.child(places[-1], name))
        pending: deque[bytes] = deque()
        # How many names are directories, once one is not: what lies below it is judged by its text.
        missing_from: int | None = None
        missing = Landing.MISSING
        # What the kernel stops at, where a text goes on after that with what is no name. The judgement goes on too.
        stopped: Landing | None = None
        walked = 0
        links = 0 if through is None else 1
        # The links whose text is being walked, each with how much was pending before it. One that is met again leads
        # through itself: it is taken as missing, so that what is left of every text is still judged.
        active: list[tuple[bytes, int]] = [] if through is None else [(through, 0)]
        looped = False

        def from_top(rest: list[bytes]) -> None:
            """Walk on from the root of the view."""
            nonlocal missing_from
            current.clear()
            del places[1:]
            missing_from = None
            pending.extendleft(reversed(rest))

        def leave(away: bytes) -> Landing | None:
            """Go where a text leads that leaves the view, with all that is left to walk; an answer if it stays away."""
            led = self._away(b"/".join((away, *pending)))
            if isinstance(led, Landing):
                return led
            pending.clear()
            from_top(led)
            return None

        def enter(target: bytes) -> Landing | None:
            """Put what a link says before what is left to walk; an answer where it leaves the view."""
            if target.startswith(b"/"):
                base, rest = self._inside(target)
                if base is None:
                    return leave(target)
                from_top(rest)
            else:
                pending.extendleft(reversed(target.split(b"/")))
            return None

        left = enter(text)
        if left is not None:
            return left
        while pending:
            component = pending.popleft()
            if missing_from is not None and component in (b"", b".", b".."):
                stopped = stopped or missing
            if component in (b"", b"."):
                continue
            walked += 1
            if walked > MOST_COMPONENTS:
                return Landing.HIDDEN
            if component == b"..":
                if not current:
                    left = leave(self._where + b"/..")
                    if left is not None:
                        return left
                    continue
                current.pop()
                places.pop()
                if missing_from is not None and len(current) <= missing_from:
                    missing_from = None
                continue
            place = policy.child(places[-1], Name(component))
            if place.standing is Standing.HIDDEN:
                return Landing.HIDDEN
            current.append(Name(component))
            places.append(place)
            if missing_from is not None or (not pending and not follow_last):
                continue
            if len(component) > NAME_MAX:
                # No file system has such a name.
                missing_from, missing = len(current) - 1, Landing.MISSING
                continue
            here = joined(current)
            while active and active[-1][1] > len(pending):
                active.pop()
            if any(link == here for link, _ in active):
                looped = True
                missing_from = len(current) - 1
                continue
            try:
                target = self._text_of_link(current)
            except OSError as error:
                if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.EACCES):
                    # Another mount, or a link swapped in since: not shown, so neither is what leads to it.
                    return Landing.HIDDEN
                missing_from = len(current) - 1
                missing = Landing.NOT_DIRECTORY if error.errno == errno.ENOTDIR else Landing.MISSING
                continue
            if target is None:
                continue
            links += 1
            if links > MOST_LINKS:
                return Landing.HIDDEN
            active.append((here, len(pending)))
            current.pop()
            places.pop()
            left = enter(target)
            if left is not None:
                return left
        if looped:
            return Landing.LOOP
        # Whether a link may be shown is asked of where it lands by its text; where a path leads, of what the kernel does.
        return stopped if stopped is not None and through is None else ViewPath(joined(current))

    def _text_of_link(self, names: list[Name]) -> bytes | None:
        """What the link at these names says, None where a directory is; NotADirectoryError where something else is."""
        reached = self._root.reach(ViewPath(joined(names)))
        try:
            mode = os.fstat(reached).st_mode
            if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            if stat.S_ISLNK(mode):
                return self._root.link_text(reached)
            if not stat.S_ISDIR(mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            return None
        finally:
            os.close(reached)
