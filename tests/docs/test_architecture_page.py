"""docs/architecture.md draws every room of the package."""

from __future__ import annotations

import re
from pathlib import Path

import policyfs
from tests.docs.console import CHECKOUT

PACKAGE = Path(policyfs.__file__).parent
ROOMS = {file.stem for file in PACKAGE.iterdir() if not file.name.startswith(("_", ".")) and file.suffix in ("", ".py")}


def test_the_page_has_every_room() -> None:
    """The picture and the table name each package and each public module."""
    page = (CHECKOUT / "docs/architecture.md").read_text(encoding="utf-8")
    picture = page.split("```")[1]
    assert {room for room in ROOMS if not re.search(rf"\b{room}\b", picture)} == set()
    rows = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert rows == ROOMS
