"""The conformance data is what conformance/schema.json and conformance/README.md say it is: no field that they do not
define, and none missing.

Nothing of policyfs is imported: another implementation can take this file along with the data.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

HERE = Path(__file__).resolve().parent.parent / "conformance"
README = (HERE / "README.md").read_text(encoding="utf-8")
SCHEMA = json.loads((HERE / "schema.json").read_text(encoding="utf-8"))
FILES = sorted(file for file in HERE.rglob("*.json") if file.name != "schema.json")
Json = dict[str, Any]

OPERATIONS = SCHEMA["$defs"]["operations"]
TEXTS = {
    "ENOENT": "No such file or directory: {path}",
    "EACCES": "Access denied: {path} is not open to this session.",
    "EROFS": "Read-only: {path} can be read in this session but not changed.",
    "EISDIR": "Is a directory: {path}",
    "ENOTDIR": "Not a directory: {path}",
    "EEXIST": "Already exists: {path}",
}
def cases_of(path: Path) -> list[Json]:
    data = json.loads(path.read_text(encoding="utf-8"))
    return [case for group in ("cases", "containment") for case in data.get(group, [])]


ALL = [pytest.param(case, id=case["id"]) for path in FILES for case in cases_of(path)]
AREAS = {area: [p for p in FILES if json.loads(p.read_text(encoding="utf-8"))["area"] == area] for area in
         ("paths", "denylist", "fs_access", "roots", "instructions")}  # fmt: skip
FS = [pytest.param(case, id=case["id"]) for path in AREAS["fs_access"] for case in cases_of(path)]


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HERE)))
def test_a_file_is_as_the_schema_has_it(path: Path) -> None:
    """Every field of it, down to the patterns of paths; and it stands where its area does."""
    data = json.loads(path.read_text(encoding="utf-8"))
    faults = Draft202012Validator(SCHEMA).iter_errors(data)
    assert [f"{fault.json_path}: {fault.message}" for fault in faults] == []
    assert data["area"] in (path.stem, path.parent.name)


def test_the_schema_is_one() -> None:
    """By the schema of schemas, and closed: every object in it says which fields there are, or is a table by path."""
    Draft202012Validator.check_schema(SCHEMA)

    def open_ones(part: Any, where: str) -> list[str]:
        if isinstance(part, list):
            return [found for number, each in enumerate(part) for found in open_ones(each, f"{where}/{number}")]
        if not isinstance(part, dict):
            return []
        found = [place for key, each in part.items() for place in open_ones(each, f"{where}/{key}")]
        described = part.get("type") == "object" and "allOf" not in part
        return [*found, where] if described and "additionalProperties" not in part else found

    assert open_ones(SCHEMA, "") == []


def test_every_file_belongs_to_an_area() -> None:
    assert sorted(path for paths in AREAS.values() for path in paths) == FILES
    assert len(FS) >= 120


def test_ids_are_unique() -> None:
    ids = Counter(case["id"] for path in FILES for case in cases_of(path))
    assert [name for name, count in ids.items() if count > 1] == []
    descriptions = Counter(case["description"] for path in FILES for case in cases_of(path))
    assert [text for text, count in descriptions.items() if count > 1] == []


@pytest.mark.parametrize("case", ALL)
def test_a_case_says_what_it_shows(case: Json) -> None:
    assert not re.search(r"(?i)\b(should|must|test|tests|verify|ensure|check that)\b", case["description"])


@pytest.mark.parametrize("case", [pytest.param(c, id=c["id"]) for p in AREAS["denylist"] for c in cases_of(p)])
def test_a_denylist_case_asks_for_each_path_once(case: Json) -> None:
    assert len({path["path"] for path in case["paths"]}) == len(case["paths"])


@pytest.mark.parametrize("case", FS)
def test_what_a_case_expects_is_written_in_one_way(case: Json) -> None:
    """Names are sorted by their bytes, and a text is that of its errno, with one of the paths of the operation."""
    for operation in case["operations"]:
        names = operation.get("gives", {}).get("names", [])
        assert names == sorted(names, key=lambda name: name.encode("utf-8", "surrogateescape"))
        if "text" in operation:
            named = [operation["path"], *([operation["to"]] if "to" in operation else [])]
            assert operation["text"] in [TEXTS[operation["errno"]].replace("{path}", path) for path in named]


def fields_of(schema: Any) -> set[str]:
    """The names of every field that a schema knows."""
    if isinstance(schema, list):
        return {name for part in schema for name in fields_of(part)}
    if not isinstance(schema, dict):
        return set()
    return set(schema.get("properties", {})).union(*map(fields_of, schema.values()))


def test_the_readme_defines_every_field() -> None:
    known = fields_of(SCHEMA) | set(OPERATIONS)
    assert {name for name in known if f"`{name}`" not in README} == set()


def test_every_operation_and_every_text_of_the_spec_is_used() -> None:
    operations = [operation for param in FS for operation in param.values[0]["operations"]]  # type: ignore[index]
    assert {operation["do"] for operation in operations} == set(OPERATIONS)
    assert {operation["errno"] for operation in operations if "text" in operation} == set(TEXTS)
    commits = " ".join(str(operation["gives"].get("commit")) for operation in operations if "gives" in operation)
    assert "Not committed: " in commits
    assert "Nothing to commit: " in commits


def test_no_case_names_a_place_on_a_real_machine() -> None:
    for path in FILES:
        assert not re.search(r"/(work(?!trees)|tmp|root/\w|home/(?!ada|bob))", path.read_text(encoding="utf-8")), path
