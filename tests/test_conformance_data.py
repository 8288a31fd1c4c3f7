"""The conformance data is what conformance/README.md says it is: no field that it does not define, and none missing.

Nothing of policyfs is imported: another implementation can take this file along with the data.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent.parent / "conformance"
README = (HERE / "README.md").read_text(encoding="utf-8")
FILES = sorted(HERE.rglob("*.json"))
Json = dict[str, Any]

CASE = {"id", "description", "spec"}
OBJECT_KINDS = {"directory", "file", "link", "fifo", "hard_link"}
SESSION = {"boundary", "start", "grants", "floors", "deny", "links", "passages", "git"}
DENY = {"defaults", "paths", "names", "extensions"}
LEVELS = {"none", "ro", "stage", "commit"}
OPERATIONS: dict[str, tuple[set[str], set[str], set[str]]] = {
    # what: (fields it must have, fields it may have, fields of what it gives)
    "stat": (set(), {"like"}, {"kind", "mode", "links", "size", "owner", "same"}),
    "list": (set(), set(), {"names"}),
    "read": (set(), set(), {"text"}),
    "write": ({"content"}, set(), set()),
    "truncate": ({"size"}, set(), set()),
    "open": ({"flags"}, set(), set()),
    "create": (set(), {"mode"}, set()),
    "mkdir": (set(), {"mode"}, set()),
    "mkfifo": (set(), {"mode"}, set()),
    "mkdevice": (set(), set(), set()),
    "symlink": ({"target"}, set(), set()),
    "readlink": (set(), set(), {"target"}),
    "link": ({"to"}, set(), set()),
    "rename": ({"to"}, {"flags"}, set()),
    "unlink": (set(), set(), set()),
    "rmdir": (set(), set(), set()),
    "access": ({"mode"}, set(), set()),
    "chmod": ({"mode"}, set(), set()),
    "chown": (set(), set(), set()),
    "utimens": (set(), set(), set()),
    "setxattr": ({"name", "value"}, set(), set()),
    "getxattr": ({"name"}, set(), {"value"}),
    "listxattr": (set(), set(), {"names"}),
    "removexattr": ({"name"}, set(), set()),
    "explain": (set(), {"in_repository"}, {"level", "standing", "rule", "look", "change", "commit"}),
}
TEXTS = {
    "ENOENT": "No such file or directory: {path}",
    "EACCES": "Access denied: {path} is not open to this session.",
    "EROFS": "Read-only: {path} can be read in this session but not changed.",
    "EISDIR": "Is a directory: {path}",
    "ENOTDIR": "Not a directory: {path}",
    "EEXIST": "Already exists: {path}",
}
ERRNOS = {*TEXTS, "EXDEV", "EBUSY", "ENOTEMPTY", "ENAMETOOLONG", "EPERM", "ELOOP", "EINVAL", "ENODATA", "EOPNOTSUPP"}
RULE = re.compile(r"[a-z]+-\d+(, (under a passage|parent ro|parent stage or commit))?")
"""How a case names the rule that it follows from."""


def cases_of(path: Path) -> list[Json]:
    data = json.loads(path.read_text(encoding="utf-8"))
    return [case for group in ("cases", "containment") for case in data.get(group, [])]


ALL = [pytest.param(case, id=case["id"]) for path in FILES for case in cases_of(path)]
AREAS = {area: [p for p in FILES if json.loads(p.read_text(encoding="utf-8"))["area"] == area] for area in
         ("paths", "denylist", "fs_access", "roots", "instructions")}  # fmt: skip
FS = [pytest.param(case, id=case["id"]) for path in AREAS["fs_access"] for case in cases_of(path)]


def fields(found: Json, must: set[str], may: frozenset[str] | set[str] = frozenset()) -> None:
    assert must <= set(found), f"missing {must - set(found)} in {found}"
    assert set(found) <= must | may, f"unknown {set(found) - must - may} in {found}"


def absolute(path: str) -> None:
    assert path == "/" or re.fullmatch(r"(/[^/]+)+", path), path
    assert not {".", ".."} & set(path.split("/")), path


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(HERE)))
def test_a_file_has_an_area_and_cases(path: Path) -> None:
    data = json.loads(path.read_text(encoding="utf-8"))
    fields(data, {"area", "cases"}, {"containment"} if data["area"] == "paths" else set())
    assert data["area"] in (path.stem, path.parent.name)
    assert data["cases"]


def test_every_file_belongs_to_an_area() -> None:
    assert sorted(path for paths in AREAS.values() for path in paths) == FILES
    assert len(FS) >= 120


def test_ids_are_unique() -> None:
    ids = Counter(case["id"] for path in FILES for case in cases_of(path))
    assert [name for name, count in ids.items() if count > 1] == []
    descriptions = Counter(case["description"] for path in FILES for case in cases_of(path))
    assert [text for text, count in descriptions.items() if count > 1] == []


@pytest.mark.parametrize("case", ALL)
def test_a_case_says_what_it_shows_and_where_it_comes_from(case: Json) -> None:
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", case["id"])
    assert re.fullmatch(r"(?s)[A-Z~.].*[^.]\.", case["description"])
    assert not re.search(r"(?i)\b(should|must|test|tests|verify|ensure|check that)\b", case["description"])
    assert RULE.fullmatch(case["spec"])


@pytest.mark.parametrize("case", [pytest.param(c, id=c["id"]) for p in AREAS["paths"] for c in cases_of(p)])
def test_a_path_case_is_well_formed(case: Json) -> None:
    if "holds" in case:
        fields(case, CASE | {"path", "within", "holds"})
        absolute(case["path"])
        absolute(case["within"])
        assert isinstance(case["holds"], bool)
        return
    fields(case, CASE | {"text", "start", "fault" if "fault" in case else "path"})
    absolute(case["start"])
    if "fault" in case:
        assert case["fault"] in ("empty", "nul", "name too long")
    else:
        absolute(case["path"])


@pytest.mark.parametrize("case", [pytest.param(c, id=c["id"]) for p in AREAS["denylist"] for c in cases_of(p)])
def test_a_denylist_case_is_well_formed(case: Json) -> None:
    fields(case, CASE | {"home", "source", "paths"}, {"deny"})
    fields(case.get("deny", {}), set(), DENY)
    absolute(case["home"])
    absolute(case["source"])
    assert case["paths"]
    assert len({path["path"] for path in case["paths"]}) == len(case["paths"])
    for path in case["paths"]:
        fields(path, {"path", "denied", "rule"} if path["denied"] else {"path", "denied"})
        absolute(path["path"])


def levels(table: Json) -> None:
    for path, level in table.items():
        absolute(path)
        assert level in LEVELS


@pytest.mark.parametrize("case", FS)
def test_a_file_system_case_is_well_formed(case: Json) -> None:
    fields(case, CASE | {"tree", "session", "operations"}, {"floors", "source_after", "opens_nothing"})
    assert case.get("opens_nothing", True) is True
    for path, found in case["tree"].items():
        absolute(path)
        assert len(OBJECT_KINDS & set(found)) == 1
        fields(found, set(), OBJECT_KINDS | {"mode", "owner", "time"})
        assert all(isinstance(found.get(name, 0), int) for name in ("owner", "time"))
        assert "mode" not in found or re.fullmatch("[0-7]{4}", found["mode"])
    fields(case["session"], {"grants"}, SESSION)
    levels(case["session"]["grants"])
    levels(case["session"].get("floors", {}))
    fields(case["session"].get("deny", {}), set(), DENY)
    fields(case["session"].get("links", {}), set(), {"outside"})
    assert case["session"].get("passages", {"unknown": "denied"}) in ({"unknown": "denied"}, {"unknown": "missing"})
    assert case["session"].get("git", {"protect": True}) in ({"protect": True}, {"protect": False})
    for source in case.get("floors", []):
        levels(source)
    for path, text in case.get("source_after", {}).items():
        absolute(path)
        assert text is None or isinstance(text, str)
    assert case["operations"]
    for operation in case["operations"]:
        check_operation(operation)


def check_operation(operation: Json) -> None:
    must, may, given = OPERATIONS[operation["do"]]
    expects = {"errno", "text"} if "errno" in operation else {"gives"}
    fields(operation, {"do", "path"} | must | (expects - {"text"}), may | expects)
    absolute(operation["path"])
    absolute(operation.get("to", "/"))
    absolute(operation.get("like", "/"))
    if "gives" in operation:
        fields(operation["gives"], set(), given)
        if "names" in operation["gives"]:
            names = operation["gives"]["names"]
            assert names == sorted(names, key=lambda name: name.encode("utf-8", "surrogateescape"))
        return
    assert operation["do"] != "explain"
    assert operation["errno"] in ERRNOS
    if "text" in operation:
        named = [operation["path"], *([operation["to"]] if "to" in operation else [])]
        assert operation["text"] in [TEXTS[operation["errno"]].replace("{path}", path) for path in named]


TABLES_BY_PATH = ("tree", "source_after", "grants", "floors")
"""Fields whose value is keyed by path (`floors` of a case: several such): their keys are no fields."""


def fields_in(value: Any, *, by_path: bool = False) -> set[str]:
    if isinstance(value, list):
        return {name for item in value for name in fields_in(item, by_path=by_path)}
    if not isinstance(value, dict):
        return set()
    own = set() if by_path else set(value)
    return own.union(*(fields_in(item, by_path=key in TABLES_BY_PATH) for key, item in value.items()))


def test_the_readme_defines_every_field() -> None:
    used = {name for path in FILES for name in fields_in(json.loads(path.read_text(encoding="utf-8")))}
    known = used | set(OPERATIONS) | SESSION | DENY | OBJECT_KINDS | CASE
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
