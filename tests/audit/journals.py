"""Journals for tests: written, read back and changed."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from policyfs.audit.journal_file import MAX_BYTES, MAX_TOTAL, files_of, parsed
from policyfs.audit.reading import Reader, verify
from policyfs.audit.writer import Journal

ME = os.getpid()


def lines(path: Path) -> list[bytes]:
    """Every whole line of a journal, over all its files."""
    reader = Reader(path)
    try:
        return list(reader.lines())
    finally:
        reader.close()


def entries(path: Path, *events: str) -> list[dict[str, Any]]:
    """The entries of these events that can be read; all but where a file begins where none is named."""
    values = [value for line in lines(path) if (value := parsed(line)) is not None]
    return [value for value in values if (value["event"] in events if events else value["event"] != "file")]


def write(path: Path, *names: bytes, max_bytes: int = MAX_BYTES, max_total: int = MAX_TOTAL) -> Journal:
    """A journal with a refusal for each name, closed."""
    journal = Journal(path, "s1", max_bytes=max_bytes, max_total=max_total)
    for name in names:
        journal.refusal("open", name, "none", "denied", 'grant "/" = none', ME)
    journal.close()
    return journal


def found(path: Path) -> list[str]:
    """What is wrong with a journal, in words."""
    return [str(finding) for finding in verify(path).findings]


def text(path: Path) -> bytes:
    """All that the files of a journal hold."""
    return b"".join(file.read_bytes() for file in files_of(path))


def values(line: bytes) -> dict[str, Any]:
    """The values of a line."""
    found: dict[str, Any] = json.loads(line)
    return found
