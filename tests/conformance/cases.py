"""The cases of conformance/, loaded: every field that conformance/README.md does not define is an error."""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.conformance.player import OPERATIONS

DIRECTORY = Path(__file__).resolve().parents[2] / "conformance"

Json = dict[str, Any]

_CASE = {"id", "description", "spec"}
_SESSION = {"boundary", "start", "grants", "floors", "deny", "links", "passages", "git"}
_OBJECTS = ("directory", "file", "link", "fifo", "hard_link")


class UnknownCase(ValueError):
    """A case that says something this runner does not know, or lacks something."""


def _fields(found: Json, where: str, must: set[str], may: set[str] | frozenset[str] = frozenset()) -> None:
    unknown, lacking = sorted(set(found) - must - may), sorted(must - set(found))
    if unknown or lacking:
        raise UnknownCase(f"{where}: unknown fields {unknown}, lacking fields {lacking}")


@dataclass(frozen=True)
class Object:
    """Something of a tree: what kind, its text, target or other name, its mode, whose it is and how old."""

    kind: str
    value: str
    mode: str
    owner: int | None
    time: int | None


@dataclass(frozen=True)
class Operation:
    """Something that is done, and what it answers: `gives`, or `errno` with perhaps its `text`."""

    do: str
    path: str
    further: Mapping[str, Any]
    gives: Mapping[str, Any] | None
    errno: str | None
    text: str | None

    def __str__(self) -> str:
        further = "".join(f" {name}={value!r}" for name, value in self.further.items())
        return f"{self.do} {self.path!r}{further}"


@dataclass(frozen=True)
class Case:
    """A case of `fs_access`."""

    id: str
    description: str
    spec: str
    tree: Mapping[str, Object]
    session: Json
    floors: tuple[Mapping[str, str], ...]
    operations: tuple[Operation, ...]
    source_after: Mapping[str, str | None]
    opens_nothing: bool

    @property
    def only_explains(self) -> bool:
        """Whether it asks the policy alone."""
        return all(operation.do == "explain" for operation in self.operations)


def read(file: Path, area: str, *groups: str) -> list[list[Json]]:
    """The groups of cases of a file that must be of this area."""
    data = json.loads(file.read_text(encoding="utf-8"))
    _fields(data, file.name, {"area", *groups})
    if data["area"] != area:
        raise UnknownCase(f"{file.name}: of the area {data['area']}, not {area}")
    return [data[group] for group in groups]


def fs_access() -> list[Case]:
    """Every case of `fs_access`."""
    files = sorted((DIRECTORY / "fs_access").glob("*.json"))
    return [_case(found) for file in files for found in read(file, "fs_access", "cases")[0]]


def _case(found: Json) -> Case:
    where = found.get("id", "a case without an id")
    _fields(found, where, _CASE | {"tree", "session", "operations"}, {"floors", "source_after", "opens_nothing"})
    _fields(found["session"], f"{where}, session", {"grants"}, _SESSION)
    return Case(
        id=found["id"],
        description=found["description"],
        spec=found["spec"],
        tree={path: _object(each, f"{where}, {path}") for path, each in found["tree"].items()},
        session=found["session"],
        floors=tuple(found.get("floors", ())),
        operations=tuple(_operation(each, where) for each in found["operations"]),
        source_after=found.get("source_after", {}),
        opens_nothing=found.get("opens_nothing", False),
    )


def _object(found: Json, where: str) -> Object:
    kinds = [kind for kind in _OBJECTS if kind in found]
    if len(kinds) != 1:
        raise UnknownCase(f"{where}: is of the kinds {kinds}, not of one")
    kind = kinds[0]
    _fields(found, where, {kind}, {"mode", "owner", "time"})
    value = found[kind]
    if isinstance(value, bool) != (kind in ("directory", "fifo")) or value is False:
        raise UnknownCase(f"{where}: {kind} is {value!r}")
    mode = found.get("mode", "0755" if kind == "directory" else "0644")
    return Object(kind, "" if value is True else value, mode, found.get("owner"), found.get("time"))


def _operation(found: Json, case: str) -> Operation:
    do = found.get("do")
    where = f"{case}, {do}"
    if do not in OPERATIONS:
        raise UnknownCase(f"{where}: no operation of that name")
    parameters = [each for each in OPERATIONS[do].parameters.values() if each.name not in ("self", "path")]
    must = {each.name for each in parameters if each.default is inspect.Parameter.empty}
    further = {each.name for each in parameters}
    fails = "errno" in found
    _fields(
        found,
        where,
        {"do", "path", "errno" if fails else "gives"} | must,
        further | ({"text"} if fails else set()),
    )
    return Operation(
        do=found["do"],
        path=found["path"],
        further={name: found[name] for name in further & set(found)},
        gives=found.get("gives"),
        errno=found.get("errno"),
        text=found.get("text"),
    )


@dataclass(frozen=True)
class Reading:
    """A case of `paths`: what a text is read as, or why it is not a path."""

    id: str
    text: str
    start: str
    path: str | None
    fault: str | None


@dataclass(frozen=True)
class Containment:
    """A case of `paths`: whether a path is within another."""

    id: str
    path: str
    within: str
    holds: bool


def paths() -> tuple[list[Reading], list[Containment]]:
    """Every case of `paths`, of the one kind and of the other."""
    readings, containments = read(DIRECTORY / "paths.json", "paths", "cases", "containment")
    for found in readings:
        _fields(found, found["id"], _CASE | {"text", "start", "fault" if "fault" in found else "path"})
    for found in containments:
        _fields(found, found["id"], _CASE | {"path", "within", "holds"})
    return (
        [Reading(each["id"], each["text"], each["start"], each.get("path"), each.get("fault")) for each in readings],
        [Containment(each["id"], each["path"], each["within"], each["holds"]) for each in containments],
    )


@dataclass(frozen=True)
class Denylist:
    """A case of `denylist`: for each path the rule that denies it, None where none does."""

    id: str
    home: str
    source: str
    deny: Json | None
    rules: Mapping[str, str | None]


def denylist() -> list[Denylist]:
    """Every case of `denylist`."""
    (cases,) = read(DIRECTORY / "denylist.json", "denylist", "cases")
    loaded = []
    for found in cases:
        _fields(found, found["id"], _CASE | {"home", "source", "paths"}, {"deny"})
        for asked in found["paths"]:
            _fields(asked, found["id"], {"path", "denied"} | ({"rule"} if asked["denied"] else set()))
        rules = {asked["path"]: asked.get("rule") for asked in found["paths"]}
        loaded.append(Denylist(found["id"], found["home"], found["source"], found.get("deny"), rules))
    return loaded
