"""What a symbolic link says, where it leads, and which link may be made (rules link-1 to link-7).

A link is an entry at its own path: its name and its text are shown at its own level, as the bytes of a file are. What
following it gives is judged where it lands, since the kernel walks through the view. So a link to a hidden place is
shown and leads to nothing.

*Which links are shown.* In a sandbox the view stands at SOURCE's own path and nothing else of the machine is in reach:
there every link is shown with the text that it has. In a bare mount the kernel would follow a link out of the view by
itself, and nobody would judge what it finds. There a link that leads out is shown only where it lands in a place that
the session lists (`links.outside`), and an absolute target inside SOURCE is shown relative to the link.

*Which links may be made.* Programs outside of the view follow links too, with their user's rights. So no link is made
whose text names a path of SOURCE that a rule hides, or a place of the machine that the session is not shown. The text
alone decides that, and so the answer tells nothing of what exists, nor of what another link says.
"""

from __future__ import annotations

import errno
import os
import stat
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

from policyfs.policy.levels import Standing
from policyfs.policy.paths import ROOT, HostPath, Name, PathFault, ViewPath, below, components, host_path, joined
from policyfs.policy.policy import CompiledPolicy
from policyfs.view.trees import Trees, inside

MAX_LINKS = 40
"""As the kernel follows: MAXSYMLINKS, path_resolution(7)."""
MAX_LOOKUPS = 256
"""Names looked up to find out where one link leads. Enough for any tree in use; more is work that a link's author makes
for the daemon."""

_NO_NAMES = (b"", b".", b"..")


class Landing(Enum):
    """Where a link leads that leads to no path of the view."""

    OUTSIDE = "outside"
    """Out of the view, to where a link may lead."""
    NOT_SHOWN = "not shown"
    """Out of the view of a bare mount, to where no link may lead."""
    LOOP = "loop"
    """Through more links than the kernel follows: ELOOP for a program that follows it."""
    MISSING = "missing"
    """Its text goes on, with `.`, `..` or a last `/`, after what is not there: ENOENT for a program that follows it."""
    NOT_DIRECTORY = "not a directory"
    """The same after what is not a directory: ENOTDIR."""


class Links:
    """The links of one view. `named` is what the owner of SOURCE (`source`) calls it, `at` where the view is mounted, if it
    is.

    `beside` is for a view in a sandbox: the places of the machine that stand beside it there. None is for a bare mount, in
    which the kernel walks on into the machine, and for a view that is not mounted, which answers alike.
    """

    def __init__(
        self,
        trees: Trees,
        policy: Callable[[], CompiledPolicy],
        source: HostPath,
        named: HostPath,
        at: HostPath | None,
        beside: Sequence[HostPath] | None = None,
    ) -> None:
        self._trees = trees
        self._policy = policy
        self._source = source
        own = (source, named)
        self._bases = (*((base, ROOT) for base in (own if at is None else (at, *own))), *trees.places())
        """The paths of the machine under which paths of the view are found, each with its path in the view."""
        self._at = at
        self._where = at or source
        self._in_own_place = at in own
        self._entrances = own if at is None or self._in_own_place else (at,)
        """The paths by which a walk outside of the view comes into it again."""
        self._beside = beside
        self.all_shown = beside is not None
        """Whether every link is shown, with the text that it has."""

    def shows(self, link: ViewPath, text: bytes) -> bool:
        """Whether a link at `link` that says `text` is shown."""
        return self.all_shown or self._walk(components(link)[:-1], text, through=link) is not Landing.NOT_SHOWN

    def may_be_made(self, link: ViewPath, text: bytes) -> bool:
        """Whether a session may make a link at `link` that says `text`."""
        return all(self._may_name(place) for place in self._places_named(link, text)) and self.shows(link, text)

    def _places_named(self, link: ViewPath, text: bytes) -> set[bytes]:
        """The places of the machine that a link's text names: by the path of the link in the view, and by where programs
        outside of the view find it. These are the same in SOURCE."""
        if text.startswith(b"/"):
            return {_joined(text)}
        tree, path = self._trees.of_name(link)
        found = {self._source + link, *(() if tree.source is None else (tree.source + path,))}
        return {_joined(at.rpartition(b"/")[0] + b"/" + text) for at in found}

    def _may_name(self, place: bytes) -> bool:
        inner = next(self._inner(place), None)
        return self._may_lead_to(place, self._beside or ()) if inner is None else not self._hides(inner)

    def _inner(self, place: bytes) -> Iterator[bytes]:
        """The paths of the view at which a place of the machine is found, without the first `/`."""
        for base, point in self._bases:
            rest = below(place, base)
            if rest is not None:
                yield inside(point, rest)[1:]

    def may_be_moved(self, old: ViewPath, new: ViewPath, text: bytes) -> bool:
        """Whether a link may get another name. Where its text says the same there it may."""
        same = text.startswith(b"/") or old.rpartition(b"/")[0] == new.rpartition(b"/")[0]
        return same or self.may_be_made(new, text)

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

    def resolve(self, path: ViewPath, *, follow_last: bool) -> ViewPath | Landing:
        """Where a path of the view leads once every link on the way is followed, as the kernel follows them; the last one
        only if asked. Where the kernel stops, at what is missing or not shown, the rest is taken by its text."""
        return self._walk([], path[1:], through=None, follow_last=follow_last)

    def _inside(self, text: bytes) -> tuple[HostPath | None, list[bytes]]:
        """An absolute text as the names of the view that remain of it under SOURCE, another tree or the mount; they still
        have their `..`."""
        parts = [part for part in text.split(b"/") if part not in (b"", b".")]
        for base, point in self._bases:
            base_parts = base.split(b"/")[1:] if base != b"/" else []
            if parts[: len(base_parts)] == base_parts:
                return base, [*components(point), *parts[len(base_parts) :]]
        return None, []

    def _hides(self, rest: bytes) -> bool:
        """Whether a rule hides what lies at `rest` below the root of the view. A name may be longer than any file has."""
        policy = self._policy()
        place = policy.root
        for name in rest.split(b"/") if rest else ():
            place = policy.child(place, Name(name))
        return place.standing is Standing.HIDDEN

    def _may_lead_to(self, place: bytes, beside: Sequence[HostPath] = ()) -> bool:
        """Whether a link may lead to this place outside of the view: a listed one, and none that a rule hides, by
        whatever path."""
        policy = self._policy()
        paths = list(self._inner(place))
        for part, other in policy.surroundings.elsewhere:
            rest = below(place, other)
            if rest is not None:
                paths.append(b"/".join(filter(None, (part[1:], rest))))
        try:
            return policy.shown_outside(host_path(place), beside) and not any(map(self._hides, paths))
        except PathFault:
            # A name that no file system has.
            return False

    def _may_be_followed_to(self, place: bytes) -> bool:
        return self.all_shown or self._may_lead_to(place)

    def _walk(
        self, directory: list[Name], text: bytes, *, through: ViewPath | None, follow_last: bool = True
    ) -> ViewPath | Landing:
        """Walk `text` from a directory of the view; `through` is the link that says it, if one does."""
        walk = _Walk(self._policy(), directory, self._where, self._entrances)
        walk.enter(text if through is None else self.text_in_view(through, text), through)
        looked_up = 0
        while walk.texts:
            if not walk.texts[-1].rest:
                link = walk.texts.pop().link
                if link is not None and walk.outside is not None and not self._may_be_followed_to(walk.outside):
                    return walk.not_shown(link)
                continue
            if not walk.step():
                continue
            if walk.places[-1].standing is Standing.HIDDEN:
                return walk.with_the_rest()
            if walk.is_at_its_end and not follow_last:
                break
            link = walk.first_link
            looked_up = 0 if link is None else looked_up + 1
            if link is not None and looked_up > MAX_LOOKUPS:
                return walk.not_shown(link)
            try:
                says = self._text_of_link(walk.names)
            except OSError as error:
                if walk.goes_on_without_a_name:
                    return Landing.NOT_DIRECTORY if error.errno == errno.ENOTDIR else Landing.MISSING
                return walk.with_the_rest()
            if says is None:
                continue
            if walk.places[-1].standing is Standing.PASSAGE:
                # Only a directory is shown there.
                return walk.with_the_rest()
            if walk.followed == MAX_LINKS:
                return Landing.LOOP
            here = ViewPath(joined(walk.names))
            walk.up()
            walk.enter(self.text_in_view(here, says), here)
        return Landing.OUTSIDE if walk.outside is not None else ViewPath(joined(walk.names))

    def _text_of_link(self, names: list[Name]) -> bytes | None:
        """What the link at these names says, None where a directory is; NotADirectoryError where something else is, OSError
        where nothing is that a view shows."""
        tree, path = self._trees.of(ViewPath(joined(names)))
        reached = tree.reach(path)
        try:
            mode = tree.status(reached).st_mode
            if stat.S_ISCHR(mode) or stat.S_ISBLK(mode):
                raise OSError(errno.EXDEV, os.strerror(errno.EXDEV))
            if stat.S_ISLNK(mode):
                return tree.link_text(reached)
            if not stat.S_ISDIR(mode):
                raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR))
            return None
        finally:
            tree.release(reached)


@dataclass(slots=True)
class _Text:
    """What is left to walk of a link's text, or of a path that is not a link's (None)."""

    link: ViewPath | None
    rest: deque[bytes]


class _Walk:
    """Where a walk stands: at `names` in the view, each with its place, or at `outside` on the machine; and the texts that
    are left to walk, the innermost last. `where` is the root of the view on the machine, `entrances` are the paths there
    that lead into the view again."""

    def __init__(
        self, policy: CompiledPolicy, directory: list[Name], where: HostPath, entrances: Sequence[HostPath]
    ) -> None:
        self._policy = policy
        self._where = where
        self._entrances = entrances
        self.names = directory
        self.places = [policy.root]
        for name in directory:
            self.places.append(policy.child(self.places[-1], name))
        self.outside: bytes | None = None
        self.texts: list[_Text] = []
        self.followed = 0

    def enter(self, text: bytes, link: ViewPath | None) -> None:
        """Go on with what a link says, before what is left."""
        self.texts.append(_Text(link, deque(text.split(b"/"))))
        self.followed += link is not None
        if text.startswith(b"/"):
            self._at(b"/")

    def step(self) -> bool:
        """Take the next component by its text. Whether it is a name in the view, which is to be looked at."""
        component = self.texts[-1].rest.popleft()
        if component in (b"", b"."):
            return False
        if self.outside is not None:
            self._at(_joined(self.outside + b"/" + component))
        elif component != b"..":
            self.names.append(Name(component))
            self.places.append(self._policy.child(self.places[-1], Name(component)))
            return True
        elif self.names:
            self.up()
        elif self._where != b"/":
            self._at(self._where.rpartition(b"/")[0] or b"/")
        return False

    def up(self) -> None:
        """Leave the directory for the one above."""
        self.names.pop()
        self.places.pop()

    def _at(self, place: bytes) -> None:
        """Stand at a place of the machine, which may be the root of the view."""
        self.outside = place
        if place in self._entrances:
            self.outside = None
            self.names.clear()
            del self.places[1:]

    @property
    def is_at_its_end(self) -> bool:
        """Whether nothing at all is left, not even a last `/`."""
        return not any(text.rest for text in self.texts)

    @property
    def goes_on_without_a_name(self) -> bool:
        """Whether something is left that asks for a directory here: `.`, `..` or a last `/`."""
        return any(left in _NO_NAMES for text in self.texts for left in text.rest)

    @property
    def first_link(self) -> ViewPath | None:
        """The outermost link whose text is being walked."""
        return next((text.link for text in self.texts if text.link is not None), None)

    def with_the_rest(self, stopped_at: list[Name] | None = None) -> ViewPath:
        """The end of a walk that stops, here if no other place is said: with all the names that are left."""
        rest = [Name(left) for text in reversed(self.texts) for left in text.rest if left not in _NO_NAMES]
        return ViewPath(joined([*(self.names if stopped_at is None else stopped_at), *rest]))

    def not_shown(self, link: ViewPath) -> ViewPath | Landing:
        """The end of a walk at a link that is not shown, as at a name that is missing; `NOT_SHOWN` for the link that the
        walk is about."""
        while any(text.link == link for text in self.texts):
            self.texts.pop()
        return self.with_the_rest(components(link)) if self.texts else Landing.NOT_SHOWN


def _joined(text: bytes) -> bytes:
    """An absolute text as a path, `.` and `..` by the text."""
    return b"/" + b"/".join(_resolved(text))


def _resolved(text: bytes) -> list[bytes]:
    """The names that an absolute text walks through, `.` and `..` by the text, of whatever length."""
    walked: list[bytes] = []
    for component in text.split(b"/"):
        if component == b"..":
            del walked[-1:]
        elif component not in (b"", b"."):
            walked.append(component)
    return walked
