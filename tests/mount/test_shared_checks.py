"""The checks that come with the design, where they lie beside the checkout. What they check also stands in test_posix and
test_tools, since a stranger's clone has no such directory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mount.harness import mounted

CHECKS = Path(__file__).resolve().parents[3] / "shared/checks"

pytestmark = pytest.mark.skipif(not CHECKS.is_dir(), reason="no ../shared/checks beside this checkout")


@pytest.mark.timeout(240)
def test_posix_checks_all_pass(source: Path) -> None:
    """Every one of the things that ordinary programs need of a file system works in a directory at stage."""
    with mounted(source, "/=stage", deadline=200) as view:
        done = view.run("bash", CHECKS / "posix.sh", view.point, source, timeout=200)
    failed = [line for line in done.stdout.splitlines() if line.startswith("FAIL")]
    assert not failed
    assert "fail=0" in done.stdout.splitlines()[-1]
    assert done.returncode == 0


@pytest.mark.timeout(240)
def test_tools_checks_all_pass(source: Path) -> None:
    """Real tools work in a directory at stage below a root at ro."""
    (source / "work").mkdir()
    with mounted(source, "/=ro", "/work=stage", deadline=200) as view:
        done = view.run("bash", CHECKS / "tools.sh", view.point / "work", timeout=200)
    lines = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith("ok ")] == []
    assert len(lines) > 20
    assert done.returncode == 0
