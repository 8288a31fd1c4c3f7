"""What a link says must not name what is hidden, whatever stands on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mount.harness import mounted, refused


@pytest.mark.xfail(strict=True, reason="what a link says after a loop is not judged")
@pytest.mark.parametrize("text", ["loop/../secret/diary", "loop/../../project/../secret", "one/../secret/diary"])
def test_text_after_a_loop_is_judged(source: Path, text: str) -> None:
    """A link that leads into a loop first and then names something hidden is not shown."""
    (source / "secret").mkdir()
    (source / "project").mkdir()
    (source / "loop").symlink_to("loop")
    (source / "one").symlink_to("two")
    (source / "two").symlink_to("one")
    (source / "pointer").symlink_to(text)
    with mounted(source, "/=stage", "/secret=none") as view:
        with refused("ENOENT"):
            os.readlink(view.point / "pointer")
        assert "pointer" not in os.listdir(view.point)
        with refused("EACCES"):
            os.symlink(text, view.point / "other")
        # A loop by itself tells nothing: it is shown, and following it fails as anywhere.
        assert os.readlink(view.point / "loop") == "loop"
        with refused("ELOOP"):
            os.stat(view.point / "one")
