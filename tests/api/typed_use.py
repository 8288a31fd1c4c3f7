"""A program that only types have an interest in: checked by mypy, never run. What each call gives is what is said here."""

from __future__ import annotations

from pathlib import Path
from typing import assert_type

import policyfs
from policyfs import Entry, Explanation, Instruction, Level, Mounted, Policy, PolicyOptions, Refused, Stat, View

policy = Policy.load(Path("tree"), session_file="session.toml", grants={"/": "ro", "/x": Level.STAGE}, deny=["*.sql"])
assert_type(policy, Policy)
assert_type(Policy.load("tree", deny="*.sql", floors_files=Path("floors.toml"), read_roots="/srv"), Policy)
assert_type(policy.explain(b"/x"), Explanation)
assert_type(policy.explain("/x").change, str | None)
assert_type(policy.granted(), dict[str, Level])
assert_type(policy.level(Path("/x")), Level)
assert_type(policy.prompt(), str)

with View("tree", policy) as view:
    assert_type(view, View)
    assert_type(view.list(), list[Entry])
    assert_type(view.read("a"), bytes)
    assert_type(view.read_text("a"), str)
    assert_type(view.write("a", b"b"), bool)
    assert_type(view.stat("a"), Stat)
    assert_type(view.instructions(), list[Instruction])
    assert_type(view.nearby("a"), list[Instruction])
    try:
        view.remove("a")
    except Refused as refused:
        assert_type(refused.errno, int | None)

with policyfs.mounted("tree", PolicyOptions(grants=("/=ro",)), at=Path("point")) as mount:
    assert_type(mount, Mounted)
    assert_type(mount.path, Path)
    assert_type(mount.process, int)
