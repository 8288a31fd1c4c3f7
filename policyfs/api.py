"""The Python API: a policy that can be asked, and a view that can be read and changed without a mount. (`mounting` has the
mount.)

    from policyfs import Policy, View

    policy = Policy.load("/srv/tree", session_file="session.toml")
    with View("/srv/tree", policy) as view:
        view.read_text("/Notes/a.md")

docs/python.md shows it at work. What holds everywhere:

* A path is a path of the view: `/` is SOURCE, a relative one is read from the start directory, `.` and `..` go by their
  text (rules path-1 to path-9). It may be a str, bytes or os.PathLike. Paths that come back are str, absolute and
  resolved, with undecodable bytes as surrogates, as `os.fsdecode` has them. A text that is not a path is a ValueError.
* What the policy refuses is a `Refused`: an OSError with the `errno` that a tool sees on a mount, whose `str` is the exact
  text of rule error-1. What the source itself refuses (a full disk, a directory that is not empty) is
  the OSError that it is.
* What a person can put right (a session file with faults, a SOURCE that is none) is a `UserFault`, a message a line.
* Links are followed as the kernel follows them on a bare mount, and where they land is judged, except for the last name of
  what `move` and `remove` take. One that leads out of SOURCE is not open, whatever the session shows of it.
* Nothing here asks anybody, and nothing has a cap: `read` gives all there is. The limits of a tool are its author's.
"""

from __future__ import annotations

import errno
import functools
import os
import stat
import threading
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, TypeVar, cast

from policyfs.agent import instructions as _instructions
from policyfs.agent.instructions import Instruction
from policyfs.agent.workspace import TEMPLATE, workspace
from policyfs.control import client
from policyfs.host import places
from policyfs.host.errors import UserFault
from policyfs.live.followed import FollowedPolicy, OwnPolicy, open_followed
from policyfs.live.links import LinkWatch
from policyfs.opening.load import PolicyOptions, root_notes, source_of
from policyfs.opening.view import open_policy, root_of
from policyfs.policy.levels import Level, Standing
from policyfs.policy.paths import HostPath, PathFault, ViewPath, below, components, from_text, joined, view_path
from policyfs.policy.policy import CompiledPolicy
from policyfs.policy.refusals import Refusal
from policyfs.source.tree import RENAME_NOREPLACE
from policyfs.view.attributes import Attributes
from policyfs.view.location import Location
from policyfs.view.monitor import ReferenceMonitor
from policyfs.view.refused import Refused
from policyfs.view.whole_path import follow, in_directory, name_at

__all__ = [
    "Entry",
    "Explanation",
    "Instruction",
    "Level",
    "Policy",
    "PolicyOptions",
    "Refused",
    "Standing",
    "Stat",
    "UserFault",
    "View",
]

PathText = str | bytes | os.PathLike[str] | os.PathLike[bytes]
"""A path as a caller may write it."""

KINDS = {
    stat.S_IFDIR: "directory",
    stat.S_IFREG: "file",
    stat.S_IFLNK: "link",
    stat.S_IFIFO: "fifo",
    stat.S_IFSOCK: "socket",
}
"""The kinds of object a view shows. There are no devices in one."""


@dataclass(frozen=True, slots=True)
class Explanation:
    """What a session may do with a path, by the path's text alone: nothing is looked up.

    `look`, `change` and `commit` are None where the policy allows that kind of operation, else the exact text that
    refuses it (rules level-7 and error-1).
    """

    path: str
    level: Level
    standing: Standing
    rule: str
    """The rule that set the level, as its author wrote it, and who that is."""
    considered: tuple[str, ...]
    """Every rule that applied: grant, floors by source, boundary, denylist."""
    look: str | None
    change: str | None
    commit: str | None


@dataclass(frozen=True, slots=True)
class Stat:
    """An object as the view shows it (rules attribute-1 to attribute-4)."""

    path: str
    """Where it really is in the view: links are followed."""
    kind: str
    """`directory`, `file`, `link`, `fifo` or `socket`."""
    level: Level
    """What the session may do with it; NONE for a passage."""
    mode: int
    """Permission bits; no write bits on a path at `ro`, 0o111 for a passage."""
    size: int
    """In bytes; of a directory a constant, since the source's counts what is hidden."""
    modified_ns: int
    """Of the last change, in nanoseconds of the epoch; 0 for a passage."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry of a directory, visible to the session."""

    name: str
    path: str
    kind: str
    """As in `Stat`; of a link, `link`."""
    level: Level


class Policy:
    """What one session may do with the tree SOURCE. `load` makes one; it never changes."""

    def __init__(self, source: PathText, options: PolicyOptions) -> None:
        """The policy of the view of `source` under the options of a command line. Raises `UserFault` with every fault
        found, also where there is no grant at all."""
        self.options = options.absolute()
        """What `load` was given, as texts that hold in another process."""
        self.notes = tuple(root_notes(options))
        """What a person should know: entries of `read_roots` and `write_roots` that are not paths; the others hold."""
        self._source = source_of(os.fsdecode(source))
        root = root_of(self._source)
        try:
            self._compiled: CompiledPolicy = open_policy(root, self.options)
        finally:
            root.close()

    @classmethod
    def load(
        cls,
        source: PathText,
        *,
        session_file: PathText | None = None,
        grants: Mapping[str, str | Level] | None = None,
        floors: Mapping[str, str | Level] | None = None,
        floors_files: PathText | Iterable[PathText] = (),
        deny: str | Iterable[str] = (),
        read_roots: str | Iterable[str] = (),
        write_roots: str | Iterable[str] = (),
        preset: str | None = None,
        protect_git: bool | None = None,
    ) -> Policy:
        """The policy of the view of `source`, a directory on this machine. Everything else is what the options of the
        same names say on the command line (rule session-2):

        * `session_file`: a session file (TOML); the rest is added to it.
        * `grants`, `floors`: from a path of the view to a level, as `Level` or as `"none"`, `"ro"`, `"stage"`, `"commit"`.
        * `floors_files`: further floor sources, whose keys are places on this machine.
        * `deny`: paths (`/x` of the view, `~/x` of the home) and globs on a name.
        * `read_roots`, `write_roots`: texts of places on this machine, each split on newlines and commas
          (rules root-1 to root-3); an entry that is none is told in `notes`.
        * `preset`: `"home"` is the one of rule root-1.
        * `protect_git`: whether what the session does may make the owner's git execute anything new (rule session-4); None
          leaves it to the session file.

        Raises `UserFault` with every fault found; then there is no policy.
        """
        if preset not in (None, "home"):
            raise ValueError(f"{preset!r} is not a preset; there is 'home'")
        return cls(
            source,
            PolicyOptions(
                session_file=None if session_file is None else os.fsdecode(session_file),
                grants=_level_texts(grants),
                floors=_level_texts(floors),
                floors_files=_file_texts(floors_files),
                deny=_texts(deny),
                read_roots=_texts(read_roots),
                write_roots=_texts(write_roots),
                preset=preset,
                protect_git=protect_git,
            ),
        )

    def __repr__(self) -> str:
        return f"<Policy of {self.source}>"

    @property
    def source(self) -> str:
        """SOURCE's real path on this machine."""
        return os.fsdecode(self._source)

    @property
    def start(self) -> str:
        """The start directory, from which relative paths are read (rule path-1)."""
        return _text(self._compiled.session.start)

    @property
    def boundary(self) -> str:
        """What the session may see at all (rule boundary-1)."""
        return _text(self._compiled.session.boundary)

    def resolve(self, path: PathText) -> str:
        """The absolute, resolved path that a text names; links are not looked at. Raises ValueError."""
        return _text(self._path(path))

    def level(self, path: PathText) -> Level:
        """The level of a path (rule level-4), whether or not anything is there."""
        return self._compiled.place(self._path(path)).level

    def explain(self, path: PathText) -> Explanation:
        """What the session may do with a path, and which rule says so."""
        return _explanation(self._compiled, self._path(path))

    def granted(self) -> dict[str, Level]:
        """Every path that opens something, or opens it differently than what lies above it, with its level, sorted:
        `{{view}}` of its prompt (rule prompt-1). Nothing hidden is among them."""
        return {_text(path): level for path, level in self._compiled.granted()}

    def prompt(self, template: str = TEMPLATE, *, at: PathText = "/") -> str:
        """The block for a system prompt: what is open, and what a refusal means. `template` is text with `{{view}}`,
        `{{levels}}`, `{{start}}`, `{{boundary}}`, `{{missing}}` and `{{refusals}}` in it; another field is a ValueError.

        `at` is where the model's programs find the view, which every path then begins with: a mountpoint, or SOURCE itself
        under `policyfs run`. Without it, paths are those that a `View` takes."""
        return workspace(self._compiled, template, places.absolute(os.fsdecode(at)))

    @classmethod
    def _in_force(cls, source: HostPath, options: PolicyOptions, compiled: CompiledPolicy) -> Policy:
        """The policy that a mount of `source` answers by."""
        policy = cls.__new__(cls)
        policy.options, policy.notes, policy._source, policy._compiled = options, (), source, compiled
        return policy

    def _path(self, path: PathText) -> ViewPath:
        try:
            return view_path(os.fsencode(path), self._compiled.session.start)
        except PathFault as fault:
            if fault.fault != "name too long":
                raise
            raise Refused(Refusal.NAME_TOO_LONG, ViewPath(os.fsencode(path))) from None


_Look = TypeVar("_Look", bound=Callable[..., Any])


def _judged_at_its_end(look: _Look) -> _Look:
    """Look again where the policy changed meanwhile, so that nothing is handed out that was revoked by then."""

    @functools.wraps(look)
    def looked(view: View, *arguments: Any, **options: Any) -> Any:
        while True:
            policy = view._open_gate.policy
            answer = look(view, *arguments, **options)
            if view._open_gate.policy is policy:
                return answer

    return cast(_Look, looked)


class View:
    """The tree SOURCE as one session sees it, to be used in a `with` block, or closed with `close`: without a mount, under a
    policy of its own, or beside a mount, under the policy in force there."""

    def __init__(self, source: PathText, policy: Policy | PolicyOptions | None = None) -> None:
        """A view of `source` under a policy that was loaded for it, or under options.

        Without a policy, `source` is the mountpoint of a view that is mounted, or the SOURCE of a `policyfs run`. Then this
        view follows the mount: what is granted, revoked or reloaded there, or expires, holds here from the moment the
        mount's own user is told so, and once the mount has ended every method raises `OSError` with ENOTCONN.

        Raises `UserFault`; ValueError for the policy of another tree.
        """
        self._lock = threading.Lock()
        """Held while a policy takes another's place: no thread is handed the old one after that."""
        self._nearby: _instructions.Nearby | None = None
        self._gate: ReferenceMonitor | None
        self._in_force: OwnPolicy
        if policy is None:
            point = client.mounted_root(os.fsdecode(source))
            self._in_force, self._gate = followed, gate = open_followed(point, functools.partial(client.lease, point))
            self._policy = Policy._in_force(gate.root.source, followed.options, gate.policy)
            return
        self._policy = policy_for_source(source, policy)
        root = root_of(self._policy._source)
        self._in_force = OwnPolicy(self._policy._compiled, LinkWatch(root.source))
        self._gate = ReferenceMonitor(root, self._in_force.current(), named=places.absolute(os.fsdecode(source)))

    def __enter__(self) -> View:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<View of {self._policy.source}{'' if self._gate else ', closed'}>"

    def close(self) -> None:
        """Let go of the tree. Whatever is asked afterwards is a ValueError."""
        gate, self._gate = self._gate, None
        if gate is not None:
            gate.close()
            self._in_force.close()

    @property
    def policy(self) -> Policy:
        """What it answers by: the policy it was given, beyond which it follows what links lead to that were made since, or
        what is in force now in the mount that it follows."""
        if isinstance(self._in_force, FollowedPolicy):
            compiled = self._open_gate.policy
            if self._policy._compiled is not compiled:
                self._policy = Policy._in_force(self._policy._source, self._in_force.options, compiled)
        return self._policy

    # -- looking ------------------------------------------------------------------------------------------------------

    def explain(self, path: PathText) -> Explanation:
        """As `Policy.explain`: by the path's text alone."""
        return _explanation(self._open_gate.policy, self._path(path))

    @_judged_at_its_end
    def stat(self, path: PathText, *, follow: bool = True) -> Stat:
        """What is at a path; with `follow=False`, of a link the link itself. A passage can be asked too."""
        location = self._led_to(path) if follow else self._named(path)
        return _stat(location, self._open_gate.attributes(location))

    @_judged_at_its_end
    def list(self, path: PathText = ".") -> _Entries:
        """The entries of a directory, directories first, then by name (rule prompt-2). Only what is
        at `ro` or above is among them."""
        gate = self._open_gate
        location = self._seen(path)
        listing = gate.listing(location)
        try:
            entries = []
            names = listing.read()
            for name, attributes in zip(names, listing.entries(names), strict=True):
                if attributes is not None:
                    here = gate.child(location, name)
                    entries.append(Entry(_text(name), _text(here.path), _kind(attributes), here.place.level))
        finally:
            listing.close()
        return sorted(entries, key=lambda entry: (entry.kind != "directory", from_text(entry.name)))

    @_judged_at_its_end
    def read(self, path: PathText, offset: int = 0, size: int | None = None) -> bytes:
        """The bytes of a file from `offset` on: all, or at most `size`."""
        if offset < 0 or (size is not None and size < 0):
            raise ValueError("offset and size count bytes from 0")
        file = self._open_gate.open(self._seen(path), os.O_RDONLY)
        try:
            pieces = []
            while size is None or size > 0:
                piece = file.read(offset, _PIECE if size is None else min(size, _PIECE))
                if not piece:
                    break
                pieces.append(piece)
                offset += len(piece)
                size = None if size is None else size - len(piece)
            return b"".join(pieces)
        finally:
            file.close()

    def read_text(self, path: PathText) -> str:
        """A file as text. Raises UnicodeDecodeError where it is not UTF-8."""
        return self.read(path).decode("utf-8")

    # -- changing -----------------------------------------------------------------------------------------------------

    def write(self, path: PathText, data: bytes | str, *, append: bool = False) -> bool:
        """Put `data` (a str in UTF-8) into a file: instead of what it holds, or at its end. Makes the file where there
        is none, in a directory that is there. Gives whether it was made. Needs `stage`."""
        content = data.encode("utf-8") if isinstance(data, str) else bytes(data)
        gate = self._open_gate
        location = self._led_to(path)
        found = self._looked_up(location)
        if found is not None and found.is_directory:
            raise Refused(_if_visible(Refusal.IS_DIRECTORY, location), location.path)
        flags = os.O_WRONLY | (os.O_APPEND if append else os.O_TRUNC)
        made = False
        try:
            file = gate.open(location, flags)
        except Refused as refused:
            if refused.refusal is not Refusal.MISSING:
                raise
            # The umask of this process is the source's business: the kernel takes it from the mode.
            file, _ = gate.create(location, flags, 0o666)
            made = True
        try:
            written = 0
            while written < len(content):
                written += file.write(written, content[written:])
        finally:
            file.close()
        return made

    def make_directory(self, path: PathText, *, parents: bool = False) -> None:
        """Make a directory. With `parents`, those above it too, and one that is there already is not a refusal. Needs
        `stage`."""
        resolved = self._path(path)
        if not parents:
            self._make_directory(resolved)
            return
        names = components(resolved)
        for length in range(1, len(names) + 1):
            here = ViewPath(joined(names[:length]))
            try:
                self._make_directory(here)
            except OSError as refused:
                if not self._is_directory(here, last=length == len(names)):
                    raise refused from None

    def _make_directory(self, path: ViewPath) -> None:
        location = self._named(path)
        self._unless_taken(location)
        self._open_gate.make_directory(location, 0o777)

    def move(self, path: PathText, to: PathText) -> None:
        """Give what is at `path` the name `to`. A name that is taken is refused, and so is what would change its level
        by moving, with errno EXDEV: copy it instead. Needs `stage` for both and for the directories they are in."""
        gate = self._open_gate
        old, new = self._named(path), self._named(to)
        gate.attributes(old)
        self._unless_taken(new)
        if below(new.path, old.path) is not None:
            raise OSError(errno.EINVAL, os.strerror(errno.EINVAL))
        gate.rename(old, new, RENAME_NOREPLACE)

    def remove(self, path: PathText) -> None:
        """Remove a file, a link or an empty directory. A directory that holds only hidden entries is not empty: OSError
        with ENOTEMPTY. Needs `stage`."""
        gate = self._open_gate
        location = self._named(path)
        if gate.attributes(location).is_directory:
            gate.remove_directory(location)
        else:
            gate.unlink(location)

    # -- what an agent is told ----------------------------------------------------------------------------------------

    def instructions(self, start: PathText | None = None) -> _Instructions:
        """The instruction files from the boundary down to the start directory, outermost first, each with its path
        relative to the boundary (rule instruction-1). `start` is the session's own
        where it is not given; what is `nearby` lies below the one last asked for."""
        gate = self._open_gate
        started = None if start is None else self._path(start)
        if self._nearby is None:
            self._nearby = _instructions.Nearby(gate, started)
        else:
            self._nearby.begin(started)
        return list(self._nearby.chain)

    def nearby(self, path: PathText) -> _Instructions:
        """The instruction files that reading `path` hands over: those of the directories above it and below the start
        directory, each once for this view and none that `instructions` gave. Ask it after the reading."""
        gate = self._open_gate
        if self._nearby is None:
            self._nearby = _instructions.Nearby(gate)
        return self._nearby.for_read(self._path(path))

    # -- where --------------------------------------------------------------------------------------------------------

    @property
    def _open_gate(self) -> ReferenceMonitor:
        with self._lock:
            gate = self._gate
            if gate is None:
                raise ValueError("this view is closed")
            policy = self._in_force.current()
            if policy is not gate.policy:
                gate.take(policy)
        return gate

    def _path(self, path: PathText) -> ViewPath:
        return self.policy._path(path)

    def _led_to(self, path: PathText) -> Location:
        gate = self._open_gate
        return in_directory(gate, follow(gate, self._path(path)))

    def _seen(self, path: PathText) -> Location:
        """Where a path leads, if something is seen there; a passage that is missing is not."""
        location = self._led_to(path)
        self._open_gate.attributes(location)
        return location

    def _named(self, path: PathText) -> Location:
        gate = self._open_gate
        return in_directory(gate, name_at(gate, self._path(path)))

    def _looked_up(self, location: Location) -> Attributes | None:
        """What is seen at a name, None where nothing is. The kernel asks this before it asks for a change, so that what is
        missing or taken is told as that, also where nothing may be changed."""
        try:
            return self._open_gate.attributes(location)
        except Refused as refused:
            if refused.refusal is not Refusal.MISSING:
                raise
            return None

    def _unless_taken(self, location: Location) -> None:
        if self._looked_up(location) is not None:
            raise Refused(_if_visible(Refusal.EXISTS, location), location.path)

    def _is_directory(self, path: ViewPath, *, last: bool) -> bool:
        """Whether a directory is there that more can be made in: for the last name one to be seen, above it also one that
        is only walked through."""
        try:
            location = follow(self._open_gate, path)
            found = self._open_gate.attributes(location).is_directory
        except OSError:
            return False
        return found and (not last or location.place.standing is Standing.VISIBLE)


_Entries = list[Entry]
_Instructions = list[Instruction]
"""`list` in the class is a method."""

_PIECE = 1 << 20
"""Bytes that are read at once."""


def _explanation(policy: CompiledPolicy, path: ViewPath) -> Explanation:
    explained = policy.explain(path)
    decision = explained.decision
    texts = {answer.operation: answer.text for answer in explained.answers}
    return Explanation(
        path=_text(decision.path),
        level=decision.level,
        standing=decision.standing,
        rule=str(decision.rule),
        considered=tuple(str(rule) for rule in decision.considered),
        look=texts["look"],
        change=texts["change"],
        commit=texts["commit"],
    )


def policy_for_source(source: PathText, policy: Policy | PolicyOptions) -> Policy:
    """The policy to use for a tree: the one given, if it is of that tree, or one made of options. Raises ValueError and
    `UserFault`."""
    if isinstance(policy, PolicyOptions):
        return Policy(source, policy)
    real = source_of(os.fsdecode(source))
    if real != policy._source:
        raise ValueError(f"this policy is of {policy.source}, not of {os.fsdecode(real)}; load one for it")
    return policy


def _texts(texts: str | Iterable[str]) -> tuple[str, ...]:
    """One text or several. A str is one, and never its letters."""
    return (texts,) if isinstance(texts, str) else tuple(texts)


def _file_texts(files: PathText | Iterable[PathText]) -> tuple[str, ...]:
    named = (files,) if isinstance(files, (str, bytes, os.PathLike)) else files
    return tuple(os.fsdecode(file) for file in named)


def _level_texts(levels: Mapping[str, str | Level] | None) -> tuple[str, ...]:
    return tuple(f"{path}={level!s}" for path, level in (levels or {}).items())


def _stat(location: Location, attributes: Attributes) -> Stat:
    return Stat(
        path=_text(location.path),
        kind=_kind(attributes),
        level=location.place.level,
        mode=stat.S_IMODE(attributes.mode),
        size=attributes.size,
        modified_ns=attributes.modify_ns,
    )


def _if_visible(refusal: Refusal, location: Location) -> Refusal:
    """What a visible name answers; a passage is denied, whatever is asked of it (rule passage-1)."""
    return refusal if location.place.standing is Standing.VISIBLE else Refusal.DENIED


def _kind(attributes: Attributes) -> str:
    return KINDS[stat.S_IFMT(attributes.mode)]


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
