"""A session as its author writes it: the text of a session file to a value, with every fault reported at its key.

Nothing is taken from a file that has a fault (rule session-1): a policy that was half understood would guard half of what
was meant. The file's form is in `docs/session-file.md`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from policyfs.policy.denylist import EXCEPTIONS
from policyfs.policy.levels import LEVELS, Level
from policyfs.policy.paths import ROOT, HostPath, PathFault, ViewPath, display, from_text, host_path, view_path

LINKS_OUTSIDE = tuple(HostPath(place) for place in (b"/usr", b"/bin", b"/lib", b"/lib64", b"/opt", b"/nix/store"))
"""Where links may lead outside SOURCE (rule link-4): to the system's own programs, as a virtual environment's `python`
does."""


@dataclass(frozen=True, slots=True)
class Fault:
    """What is wrong, and at which key of which file or option."""

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}"


class SessionFaults(ValueError):
    """A session or floors file that is refused whole, with every fault found in it."""

    def __init__(self, where: str, faults: list[Fault]) -> None:
        self.where = where
        self.faults = faults
        super().__init__(f"{where}: " + "; ".join(str(fault) for fault in faults))


@dataclass(frozen=True, slots=True)
class Deny:
    """The `[deny]` table. `paths` are view paths (`/x`) or places of the home (`~/x`), as written; `exceptions`
    (`except` in the file) are names that the built-in names and extensions do not take in."""

    defaults: bool = True
    paths: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    extensions: tuple[str, ...] = ()
    exceptions: tuple[str, ...] = EXCEPTIONS


@dataclass(frozen=True, slots=True)
class Session:
    """What one session is given. Fields are those of the session file."""

    boundary: ViewPath = ROOT
    start: ViewPath = ROOT
    grants: Mapping[ViewPath, Level] = field(default_factory=dict)
    floors: Mapping[ViewPath, Level] = field(default_factory=dict)
    deny: Deny = field(default_factory=Deny)
    links_outside: tuple[HostPath, ...] = LINKS_OUTSIDE
    unknown_missing: bool = False
    """`[passages] unknown = "missing"`: lookup answers ENOENT for every unknown name under a passage (rule passage-7)."""
    read_roots: tuple[str, ...] = ()
    write_roots: tuple[str, ...] = ()
    protect_git: bool | None = None
    """`[git] protect`; None where the file does not say; then only `policyfs run` protects."""

    def with_options(
        self,
        grants: Mapping[ViewPath, Level] | None = None,
        floors: Mapping[ViewPath, Level] | None = None,
        deny: tuple[str, ...] = (),
        read_roots: tuple[str, ...] = (),
        write_roots: tuple[str, ...] = (),
        *,
        protect_git: bool | None = None,
    ) -> Session:
        """This session with what a command line adds. A grant for a path the session grants already replaces it, and so
        does `protect_git`; a floor only ever lowers. `deny` takes paths (`/x`, `~/x`) and globs on a name."""
        lowered = dict(self.floors)
        for path, level in (floors or {}).items():
            lowered[path] = min(level, lowered.get(path, level))
        paths = tuple(rule for rule in deny if is_path_rule(rule))
        names = tuple(rule for rule in deny if not is_path_rule(rule))
        return replace(
            self,
            grants={**self.grants, **(grants or {})},
            floors=lowered,
            deny=replace(self.deny, paths=self.deny.paths + paths, names=self.deny.names + names),
            read_roots=self.read_roots + read_roots,
            write_roots=self.write_roots + write_roots,
            protect_git=self.protect_git if protect_git is None else protect_git,
        )


def is_path_rule(rule: str) -> bool:
    """Whether a denylist rule names a place (`/x`, `~/x`) rather than a name in any directory."""
    return rule.startswith(("/", "~/")) or rule == "~"


def loads(text: str, where: str = "session") -> Session:
    """The session that the text of a session file describes. `where` names it in messages. Raises `SessionFaults`."""
    reader = _Reader(where, text)
    session = Session(
        boundary=reader.path("boundary"),
        start=reader.path("start"),
        grants=reader.levels("grants"),
        floors=reader.levels("floors"),
        deny=reader.deny(),
        links_outside=reader.outside(),
        unknown_missing=reader.unknown_missing(),
        read_roots=reader.roots("read"),
        write_roots=reader.roots("write"),
        protect_git=reader.protect_git(),
    )
    reader.finish()
    return session


def loads_floors(text: str, where: str, home: HostPath) -> dict[HostPath, Level]:
    """The floors of a floors file: one table `[floors]`, its keys places on the host. Raises `SessionFaults`."""
    reader = _Reader(where, text)
    floors: dict[HostPath, Level] = {}
    for key, level in reader.level_items("floors"):
        try:
            place = host_path(from_text(key), home)
        except PathFault as fault:
            reader.fault(f"floors.{quoted(key)}", f"{fault}; write a place on this machine, /like/this or ~/like/this")
            continue
        if level is not None:
            floors[place] = min(level, floors.get(place, level))
    reader.finish()
    return floors


def level_option(text: str, option: str) -> tuple[ViewPath, Level]:
    """`PATH=LEVEL` as an option has it. Raises `SessionFaults`."""
    path_text, equals, level_text = text.rpartition("=")
    if not equals:
        raise SessionFaults(option, [Fault(quoted(text), "no level; write PATH=LEVEL, such as /Notes=stage")])
    faults: list[Fault] = []
    path = _absolute(path_text, quoted(text), faults)
    level = _level(level_text, quoted(text), faults)
    if faults or path is None or level is None:
        raise SessionFaults(option, faults)
    return path, level


def path_option(text: str, option: str) -> ViewPath:
    """A path of the view as an option has it. Raises `SessionFaults`."""
    faults: list[Fault] = []
    path = _absolute(text, quoted(text), faults)
    if path is None:
        raise SessionFaults(option, faults)
    return path


def denial_option(text: str, option: str) -> str:
    """A denylist rule as an option has it: a path (`/x`, `~/x`) or a glob on a name. Raises `SessionFaults`."""
    fault = "empty, or a NUL in it" if not text or "\0" in text else None
    if fault is None:
        fault = _place_fault(text) if is_path_rule(text) else _name_fault(text)
    if fault is not None:
        raise SessionFaults(option, [Fault(quoted(text), fault)])
    return text


def _place_fault(place: str) -> str | None:
    """What is wrong with a path of the view or a place of the home, whichever home it is."""
    try:
        host_path(from_text(place), HostPath(b"/"))
    except PathFault as fault:
        return f"{fault}; write /like/this or ~/like/this"
    return None


def _name_fault(glob: str) -> str | None:
    """What is wrong with a glob on one name."""
    if "/" in glob:
        return "holds a /, which no name does; a path is written from / or from ~/"
    return None


def quoted(text: str) -> str:
    """A text from a file or a command line as a message may show it."""
    return f'"{display(from_text(text))}"'


def _level(value: object, key: str, faults: list[Fault]) -> Level | None:
    level = LEVELS.get(value) if isinstance(value, str) else None
    if level is None:
        shown = quoted(value) if isinstance(value, str) else repr(value)
        faults.append(Fault(key, f"{shown} is not a level; write one of none, ro, stage, commit"))
    return level


def _absolute(text: str, key: str, faults: list[Fault]) -> ViewPath | None:
    try:
        if text and not text.startswith("/"):
            raise PathFault("not absolute", from_text(text))
        return view_path(from_text(text))
    except PathFault as fault:
        faults.append(Fault(key, f"{fault}; write a path of the view, from /"))
        return None


class _Reader:
    """Takes a file apart key by key and remembers every fault. What nobody asked for is unknown, and a fault too."""

    _TABLES = ("grants", "floors", "deny", "links", "passages", "roots", "git")

    def __init__(self, where: str, text: str) -> None:
        self.where = where
        self.faults: list[Fault] = []
        try:
            self._rest: dict[str, Any] = tomllib.loads(text)
        except RecursionError:
            raise SessionFaults(where, [Fault("TOML", "lists or tables nested too deeply")]) from None
        except tomllib.TOMLDecodeError as error:
            raise SessionFaults(where, [Fault("TOML", str(error))]) from None
        except ValueError:
            # int() of more digits than it reads, the one thing that tomllib lets through.
            raise SessionFaults(where, [Fault("TOML", "a number with too many digits; no key takes a number")]) from None

    def fault(self, key: str, message: str) -> None:
        self.faults.append(Fault(key, message))

    def fault_if(self, key: str, text: str, message: str | None) -> None:
        if message is not None:
            self.fault(key, f"{quoted(text)} {message}")

    def finish(self) -> None:
        """Raises `SessionFaults` where anything was wrong or is left over."""
        for key, value in self._rest.items():
            if isinstance(value, dict) and key in self._TABLES:
                for inner in value:
                    self.fault(f"{key}.{quoted(inner)}", "unknown key")
            else:
                self.fault(quoted(key), "unknown key")
        if self.faults:
            raise SessionFaults(self.where, self.faults)

    def _take(self, key: str, default: Any) -> Any:
        table, _, inner = key.rpartition(".")
        if not table:
            return self._rest.pop(key, default)
        return self._table(table).pop(inner, default)

    def _table(self, name: str) -> dict[str, Any]:
        table = self._rest.get(name, {})
        if isinstance(table, dict):
            return table
        self.fault(name, f"is a table; write [{name}]")
        del self._rest[name]
        return {}

    def path(self, key: str) -> ViewPath:
        text = self._take(key, "/")
        if not isinstance(text, str):
            self.fault(key, f"{text!r} is not a path; write a text from /")
            return ROOT
        return _absolute(text, key, self.faults) or ROOT

    def level_items(self, table: str) -> Iterator[tuple[str, Level | None]]:
        """Each key of a table with its level; None for an invalid one, so that an error of the key is reported too."""
        entries = self._table(table)
        for key in list(entries):
            yield key, _level(entries.pop(key), f"{table}.{quoted(key)}", self.faults)

    def levels(self, table: str) -> dict[ViewPath, Level]:
        levels: dict[ViewPath, Level] = {}
        for key, level in self.level_items(table):
            at = f"{table}.{quoted(key)}"
            path = _absolute(key, at, self.faults)
            if path is None or level is None:
                continue
            if levels.setdefault(path, level) is not level:
                self.fault(at, f"gives {display(path)} a second level; keep one")
        return levels

    def _texts(self, key: str, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        value = self._take(key, None)
        if value is None:
            return default
        if not isinstance(value, list):
            self.fault(key, 'is a list of texts; write ["one", "two"]')
            return default
        for item in value:
            if not isinstance(item, str):
                self.fault(key, f'{item!r} is not text; write ["one", "two"]')
            elif not item or "\0" in item:
                self.fault(key, f"{quoted(item)} is empty or holds a NUL")
        return tuple(item for item in value if isinstance(item, str))

    def deny(self) -> Deny:
        defaults = self._take("deny.defaults", True)
        if not isinstance(defaults, bool):
            self.fault("deny.defaults", f"{defaults!r} is neither true nor false")
            defaults = True
        paths = self._texts("deny.paths")
        for path in paths:
            if not is_path_rule(path):
                self.fault("deny.paths", f"{quoted(path)} is not a path; write /from/the/view or ~/from/the/home")
            elif "\0" not in path:
                self.fault_if("deny.paths", path, _place_fault(path))
        names = self._texts("deny.names")
        extensions = self._texts("deny.extensions")
        exceptions = self._texts("deny.except", EXCEPTIONS)
        named = (("deny.names", names), ("deny.extensions", extensions), ("deny.except", exceptions))
        for key, globs in named:
            for glob in globs:
                self.fault_if(key, glob, _name_fault(glob))
        for extension in extensions:
            if not extension.startswith("."):
                self.fault("deny.extensions", f"{quoted(extension)} has no dot; write {quoted('.' + extension)}")
        return Deny(defaults, paths, names, extensions, exceptions)

    def outside(self) -> tuple[HostPath, ...]:
        places = []
        for text in self._texts("links.outside", tuple(place.decode() for place in LINKS_OUTSIDE)):
            try:
                places.append(host_path(from_text(text)))
            except PathFault as fault:
                self.fault("links.outside", f"{fault}; write a place on this machine, /like/this")
        return tuple(places)

    def unknown_missing(self) -> bool:
        value = self._take("passages.unknown", "denied")
        if value not in ("denied", "missing"):
            self.fault("passages.unknown", f'{value!r} is neither "denied" nor "missing"')
        return bool(value == "missing")

    def protect_git(self) -> bool | None:
        value = self._take("git.protect", None)
        if value is None or isinstance(value, bool):
            return value
        self.fault("git.protect", f"{value!r} is neither true nor false")
        return None

    def roots(self, kind: str) -> tuple[str, ...]:
        roots = self._texts(f"roots.{kind}")
        for root in roots:
            if root and "\0" not in root:
                self.fault_if(f"roots.{kind}", root, _place_fault(root))
        return roots
