"""The cases of conformance/, loaded."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).resolve().parents[2] / "conformance"

Json = dict[str, Any]

_OBJECTS = ("directory", "file", "link", "fifo", "hard_link")
_OF_EVERY_OPERATION = {"do", "path", "gives", "errno", "text"}


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
    """The groups of cases of a file that must be of this area. (tests/test_conformance_data.py holds it to the schema.)"""
    data = json.loads(file.read_text(encoding="utf-8"))
    assert data["area"] == area, file
    return [data[group] for group in groups]


def fs_access() -> list[Case]:
    """Every case of `fs_access`."""
    files = sorted((DIRECTORY / "fs_access").glob("*.json"))
    return [_case(found) for file in files for found in read(file, "fs_access", "cases")[0]]


def _case(found: Json) -> Case:
    return Case(
        id=found["id"],
        description=found["description"],
        spec=found["spec"],
        tree={path: _object(each) for path, each in found["tree"].items()},
        session=found["session"],
        floors=tuple(found.get("floors", ())),
        operations=tuple(_operation(each) for each in found["operations"]),
        source_after=found.get("source_after", {}),
        opens_nothing=found.get("opens_nothing", False),
    )


def _object(found: Json) -> Object:
    (kind,) = (kind for kind in _OBJECTS if kind in found)
    value = found[kind]
    mode = found.get("mode", "0755" if kind == "directory" else "0644")
    return Object(kind, "" if value is True else value, mode, found.get("owner"), found.get("time"))


def _operation(found: Json) -> Operation:
    return Operation(
        do=found["do"],
        path=found["path"],
        further={name: value for name, value in found.items() if name not in _OF_EVERY_OPERATION},
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
        rules = {asked["path"]: asked.get("rule") for asked in found["paths"]}
        loaded.append(Denylist(found["id"], found["home"], found["source"], found.get("deny"), rules))
    return loaded
