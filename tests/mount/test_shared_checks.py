"""The checks that come with the design, where they lie beside the checkout. What they check also stands in test_posix and
test_tools, since a stranger's clone has no such directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.mount.harness import mounted

CHECKS = Path(__file__).resolve().parents[3] / "shared/checks"

SKIPPED = {"t_29_kill_suid"} if os.geteuid() == 0 else {"t_28_setgid_dir", "t_29_kill_suid"}
"""What posix.sh cannot try in a view: t_29 writes as another uid than the mount's, which no view lets in, and t_28 needs a
group that only root can give."""

pytestmark = pytest.mark.skipif(not CHECKS.is_dir(), reason="no ../shared/checks beside this checkout")


@pytest.mark.timeout(240)
def test_posix_checks_all_pass(source: Path) -> None:
    """Every one of the things that ordinary programs need of a file system works in a directory at stage."""
    with mounted(source, "/=stage", deadline=200) as view:
        done = view.run("bash", CHECKS / "posix.sh", view.point, source, timeout=200)
    *lines, last = done.stdout.splitlines()
    assert [line for line in lines if not line.startswith(("ok ", "skip "))] == []
    assert {line.removeprefix("skip ") for line in lines if line.startswith("skip ")} == SKIPPED
    assert last == f"pass={33 - len(SKIPPED)} fail=0 skip={len(SKIPPED)}"
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
