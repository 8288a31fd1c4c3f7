"""docs/live.md: what it shows happens."""

from __future__ import annotations

import shutil

from tests.docs import console
from tests.mount.expecting import absent


def test_what_the_page_shows_happens() -> None:
    """Each command of the page, run in its order, says what stands below it."""
    if shutil.which("getfattr") is None:
        absent("no getfattr here (Debian: attr)")
    console.assert_as_it_happens(console.CHECKOUT / "docs/live.md")
