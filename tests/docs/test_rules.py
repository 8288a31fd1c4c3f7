"""docs/rules.md: every cited rule is there, every rule is cited, and nothing that is not there is cited in its place."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from tests.docs.console import CHECKOUT

PAGE = CHECKOUT / "docs/rules.md"
TEXT = PAGE.read_text(encoding="utf-8")
NAMES = re.findall(r'<a id="(\w+-\d+)"></a>', TEXT)

NAME = r"[a-z]+-\d+"
CITED = re.compile(rf"\b[Rr]ules?:? ({NAME}(?:(?:,| and|, and| to) {NAME})*)")
"""`rule level-2`, `rules level-2, level-3 and floor-1`, `rules level-1 to level-9`."""
ABSENT = re.compile(
    r"\bDESIGN\b|(?<!\w)(?:security|platform|adversary|house-review)\.md\b|session-file-system|lam-file-access|"
    r"\b[Tt]he spec\b|\([Ss]pec,|\bSpec: |\bissue \d|shared/(?:design|spec)"
)
"""Documents that the repository does not have, and how they used to be called."""


def files() -> Iterator[tuple[str, str]]:
    """The text files of the checkout that may cite a rule, each by its name there."""
    for directory in ("benchmarks", "conformance", "docs", "examples", "policyfs", "scripts", "tests"):
        for file in sorted((CHECKOUT / directory).rglob("*")):
            if file.is_file() and "__pycache__" not in file.parts and file not in (PAGE, Path(__file__)):
                try:
                    yield str(file.relative_to(CHECKOUT)), file.read_text(encoding="utf-8")
                except UnicodeDecodeError:
                    continue
    for file in sorted((*CHECKOUT.glob("*.md"), CHECKOUT / "pyproject.toml")):
        yield file.name, file.read_text(encoding="utf-8")


FILES = dict(files())


def named(text: str) -> list[str]:
    """The rules that a list of them names; of a range (`level-1 to level-3`), each."""
    found = []
    for first, last in re.findall(rf"({NAME})(?: to ({NAME}))?", text):
        chapter, number = first.split("-")
        to_chapter, to_number = (last or first).split("-")
        assert chapter == to_chapter, text
        found += [f"{chapter}-{each}" for each in range(int(number), int(to_number) + 1)]
    return found


def cited_in(name: str, text: str) -> list[str]:
    """The rules that a file cites."""
    if name.startswith("conformance/") and name.endswith(".json"):
        data = json.loads(text)
        return [case["spec"].partition(",")[0] for kind in ("cases", "containment") for case in data.get(kind, [])]
    # As one line, without the marks of comments, and with the words of links alone.
    line = re.sub(r"\s+(?:#\s)?", " ", text)
    line = re.sub(rf"\[({NAME})\]\([^)]*\)", r"\1", line)
    return [rule for names in CITED.findall(line) for rule in named(names)]


CITATIONS = {name: cited_in(name, text) for name, text in FILES.items()}


def test_a_rule_has_a_name_of_its_own_and_a_reason() -> None:
    """Names are unique and stand where their anchor is; the names of a chapter go up; each rule says why."""
    assert [name for name, count in Counter(NAMES).items() if count > 1] == []
    chapters: dict[str, list[int]] = {}
    for name in NAMES:
        chapter, number = name.split("-")
        chapters.setdefault(chapter, []).append(int(number))
    assert [chapter for chapter, numbers in chapters.items() if numbers != sorted(numbers)] == []
    paragraphs = dict(re.findall(r'<a id="([\w-]+)"></a>\n\*\*\1\.\*\* (.*?)\n\n', TEXT + "\n", re.DOTALL))
    rows = re.findall(r'^\| <a id="([\w-]+)"></a>\*\*\1\*\* \|', TEXT, re.MULTILINE)
    assert sorted(NAMES) == sorted([*paragraphs, *rows])
    assert [name for name, text in paragraphs.items() if "*Why:*" not in text] == []
    (reasons,) = re.findall(r"^\*Why:\*\n\n(.*?)\n\n", TEXT, re.MULTILINE | re.DOTALL)
    assert sorted(set(rows) - set(named(reasons))) == []


def test_every_cited_rule_is_there() -> None:
    """In code, tests, conformance cases and pages, and in the page itself."""
    unknown = {name: sorted(set(cited) - set(NAMES)) for name, cited in CITATIONS.items()}
    assert {name: rules for name, rules in unknown.items() if rules} == {}
    chapters = {name.split("-")[0] for name in NAMES}
    assert {name for name in re.findall(NAME, TEXT) if name.split("-")[0] in chapters} <= set(NAMES)


def test_every_rule_is_cited() -> None:
    """A rule that nothing follows is not one."""
    cited = {rule for rules in CITATIONS.values() for rule in rules}
    assert [name for name in NAMES if name not in cited] == []


def test_nothing_absent_is_cited() -> None:
    """Whoever has the repository can read what it refers to."""
    found = {name: {match[0] for match in ABSENT.finditer(text)} for name, text in {**FILES, "docs/rules.md": TEXT}.items()}
    assert {name: documents for name, documents in found.items() if documents} == {}


def test_citations_are_found() -> None:
    """However they are written: one, several, a range, over two lines of a comment, as links."""
    text = "(rule level-2) Rules floor-1, floor-2 and floor-4; rules path-1 to path-3. # rule\n    # deny-5"
    assert " ".join(cited_in("a.py", text)) == "level-2 floor-1 floor-2 floor-4 path-1 path-2 path-3 deny-5"
    assert cited_in("a.md", "Rules: [level-2](rules.md#level-2), [level-3](rules.md#level-3).") == ["level-2", "level-3"]
    assert cited_in("a.md", "a rule from-2 the-1; rule of utf-8, ruler path-1") == ["from-2"]
    absent = ABSENT.findall("see security.md 4, DESIGN 3, the spec; not SECURITY.md nor a design")
    assert absent == ["security.md", "DESIGN", "the spec"]
