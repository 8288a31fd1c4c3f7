"""docs/architecture.md and CONTRIBUTING.md draw the arrows that tests/test_architecture.py walks."""

from __future__ import annotations

import re

import pytest

from tests.docs.console import CHECKOUT
from tests.test_architecture import ARROWS, FREE, OUTSIDE

LAYERS = set(ARROWS) | FREE - {"policyfs"}


@pytest.mark.parametrize("page", ["docs/architecture.md", "CONTRIBUTING.md"])
def test_the_table_of_layers_is_what_the_imports_are_held_to(page: str) -> None:
    """Every layer has a row, which names the layers and the packages that it may import, and no other."""
    rows = re.findall(r"^\| `(\w+)` \| .+ \| (.+) \|$", (CHECKOUT / page).read_text(encoding="utf-8"), re.MULTILINE)
    told = {}
    for layer, may in rows:
        ours, _, outside = may.partition("; ")
        told[layer] = ("all" if ours == "all" else set(re.findall(r"`(\w+)`", ours)), set(outside.split(", ")) - {""})
    expected = {layer: ("all" if layer in FREE else ARROWS[layer], OUTSIDE.get(layer, set())) for layer in LAYERS}
    assert told == expected


def test_the_picture_has_every_layer() -> None:
    """The picture leaves no layer out."""
    picture = (CHECKOUT / "docs/architecture.md").read_text(encoding="utf-8").split("```")[1]
    assert {layer for layer in LAYERS if not re.search(rf"\b{layer}\b", picture)} == set()
