"""docs/session-file.md: every key that the loader knows, its default and an example that loads."""

from __future__ import annotations

import dataclasses
import re
import tomllib
from collections.abc import Iterator

import pytest

from policyfs.policy import denylist, session
from policyfs.policy.session import Session, SessionFaults, loads
from tests.docs import console

PAGE = console.CHECKOUT / "docs/session-file.md"
TEXT = PAGE.read_text(encoding="utf-8")
SECTIONS = dict(re.findall(r"^## `([a-z.]+)`\n(.*?)(?=^## )", TEXT, re.MULTILINE | re.DOTALL))


def known(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    """Every key that the loader asks a file for: tables of levels whole, others key by key."""
    asked: set[str] = set()

    class Watched(session._Reader):
        def _take(self, key: str, default: object) -> object:
            asked.add(key)
            return super()._take(key, default)

        def level_items(self, table: str) -> Iterator[tuple[str, session.Level]]:
            asked.add(table)
            return super().level_items(table)

    monkeypatch.setattr(session, "_Reader", Watched)
    loads("")
    return asked


def test_every_key_is_documented_and_no_other(monkeypatch: pytest.MonkeyPatch) -> None:
    """The page has a section for each key that the loader knows, and for nothing else."""
    assert set(SECTIONS) == known(monkeypatch)


def test_every_table_of_the_loader_is_on_the_page() -> None:
    """The tables whose inner keys are checked are those of the page."""
    assert {key.partition(".")[0] for key in SECTIONS} - {"boundary", "start"} == set(session._Reader._TABLES)


def test_the_defaults_are_those_of_the_loader() -> None:
    """A file that says what the page calls the default is the same session as an empty one."""
    tables: dict[str, list[str]] = {"": []}
    for key, section in SECTIONS.items():
        default = re.match(r"\nDefault: `(.*)`\n", section)
        assert default is not None, key
        if default[1] == "{}":
            tables.setdefault(key, [])
        else:
            table, _, name = key.rpartition(".")
            tables.setdefault(table, []).append(f"{name} = {default[1]}")
    text = "\n".join(line for table, lines in tables.items() for line in ([f"[{table}]"] if table else []) + lines)
    # What a file says of git holds under `policyfs run` as well, where its absence means something else.
    assert loads(text) == dataclasses.replace(Session(), protect_git=False)
    assert loads("") == Session()


@pytest.mark.parametrize("key", SECTIONS)
def test_every_section_has_an_example_of_its_key(key: str) -> None:
    """The example of a section loads, and gives the key something else than its default."""
    (example,) = re.findall(r"```toml\n(.*?)```", SECTIONS[key], re.DOTALL)
    table, _, name = key.rpartition(".")
    values = tomllib.loads(example)
    assert name in (values[table] if table else values)
    assert loads(example) != Session()


def test_the_whole_example_has_every_key() -> None:
    """The example at the top loads and leaves no key out, tables of levels counted whole."""
    example = re.findall(r"```toml\n(.*?)```", TEXT, re.DOTALL)[0]
    loads(example)
    given = {
        key if key in SECTIONS else f"{key}.{inner}"
        for key, value in tomllib.loads(example).items()
        for inner in (value if isinstance(value, dict) and key not in SECTIONS else [""])
    }
    assert given == set(SECTIONS)


def test_the_built_in_denylist_is_on_the_page() -> None:
    """Every built-in place, name and extension is named."""
    named = set(re.findall(r"`([^`]+)`", SECTIONS["deny.defaults"]))
    assert {*denylist.HOME_PLACES, *denylist.NAMES, *denylist.EXTENSIONS} - named == set()


def test_the_faults_are_as_shown() -> None:
    """Each command of the page says what stands below it."""
    console.assert_as_it_happens(PAGE)


def test_every_example_of_a_fault_is_one() -> None:
    """The file of faults on the page has a fault at every key of the loader but the two that show one already."""
    faulty = next(step.command for block in console.blocks(TEXT) for step in block.steps if step.command.startswith("cat >"))
    with pytest.raises(SessionFaults) as caught:
        loads("\n".join(faulty.splitlines()[1:-1]))
    at = {fault.key.partition('."')[0] for fault in caught.value.faults}
    assert set(SECTIONS) - at == {"boundary", "roots.write"}, "boundary is read as start is, roots.write as roots.read"
