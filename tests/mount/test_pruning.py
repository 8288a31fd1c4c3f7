"""The number of nodes stays bounded where the kernel takes FUSE_NOTIFY_PRUNE, and nothing in use is lost by it."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.mount.asked import live
from tests.mount.harness import TIMEOUT

SOFT_LIMIT = 300
FILES = 1_500

EAGER = f"import policyfs.fuse.pruning as pruning; pruning.SOFT_LIMIT = {SOFT_LIMIT}; pruning._EVERY = 0.02"
"""Prunes all the time, so that pruning meets requests in flight."""

pytestmark = pytest.mark.skipif(
    tuple(int(number) for number in re.findall(r"\d+", platform.release())[:2]) < (6, 18),
    reason="FUSE_NOTIFY_PRUNE is of Linux 6.18",
)


@pytest.fixture
def large(source: Path) -> Path:
    """A source of many small files."""
    for number in range(FILES):
        directory = source / f"d{number // 100}"
        directory.mkdir(exist_ok=True)
        (directory / f"f{number}").write_text(f"{number}\n")
    return source


def test_a_walk_leaves_few_nodes(large: Path) -> None:
    """After a walk over many files the table shrinks below the limit; an open file and a working directory live on."""
    with live(large, "/=stage", sabotage=EAGER) as mount:
        point = mount.view.point
        held = os.open(point / "d0/f1", os.O_RDONLY)
        inside = subprocess.Popen(["sh", "-c", "read _; pwd -P; cat f101"], cwd=point / "d1", stdin=-1, stdout=-1, text=True)
        try:
            walked = subprocess.run(["find", point, "-ls"], capture_output=True, check=True)
            assert walked.stdout.count(b"\n") == FILES + FILES // 100 + 1
            most = mount.status()["nodes"]
            end = time.monotonic() + TIMEOUT
            while mount.status()["nodes"] > SOFT_LIMIT:
                assert time.monotonic() < end, f"{mount.status()['nodes']} nodes of {most}"
                time.sleep(0.02)
            assert os.pread(held, 10, 0) == b"1\n"
            said, _ = inside.communicate("go\n", timeout=TIMEOUT)
            assert said == f"{point}/d1\n101\n"
        finally:
            os.close(held)
            inside.kill()
            inside.wait()


def test_tools_notice_nothing(large: Path) -> None:
    """Copying, archiving, walking and removing give what they give without it, while nodes are pruned under them."""
    with live(large, "/=stage", sabotage=EAGER) as mount:
        script = """
set -e
cp -r "$1/d0" "$1/d1" "$1/d2" "$2"
for round in 1 2 3; do
  find "$1" -type f | wc -l
  tar cf - -C "$1" . | tar tf - | wc -l
done
cp -r "$2" "$1/copy"
diff -r "$2" "$1/copy"
rm -r "$1/copy"
test ! -e "$1/copy"
"""
        elsewhere = large.parent / "elsewhere"
        elsewhere.mkdir()
        done = subprocess.run(
            ["sh", "-c", script, "sh", mount.view.point, elsewhere], capture_output=True, text=True, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert done.stdout.split() == [str(FILES), str(FILES + FILES // 100 + 1)] * 3
