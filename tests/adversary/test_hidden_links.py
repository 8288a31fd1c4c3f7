"""What a link says must not name what is hidden, whatever stands on the way."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mount.harness import mounted, refused


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


@pytest.mark.parametrize(
    "text",
    [
        "{above}/../{name}/source/secret/diary",
        "{real}/secret/diary",
        "{above}/source/./secret//diary",
        "../{name}/source/secret/diary",
    ],
)
def test_text_that_leaves_and_comes_back_is_judged(tmp_path: Path, text: str) -> None:
    """A link that goes out of SOURCE by its text and comes back into it is judged by where it comes back, also where
    SOURCE lies in a place whose links are shown."""
    source, other = tmp_path / "source", tmp_path / "other"
    (source / "secret").mkdir(parents=True)
    other.symlink_to("source")
    written = text.format(above=tmp_path, name=tmp_path.name, real=other)
    (source / "pointer").symlink_to(written)
    session = f"""[grants]
"/" = "stage"
"/secret" = "none"
[links]
outside = ["{tmp_path}"]
"""
    with mounted(other, session=session) as view:
        with refused("ENOENT"):
            os.readlink(view.point / "pointer")
        with refused("EACCES"):
            os.symlink(written, view.point / "other")
