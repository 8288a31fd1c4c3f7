"""What is installed: the package, and nothing that only tests, documents or builds it."""

from __future__ import annotations

import zipfile
from pathlib import Path

import pytest
from flit_core import buildapi

CHECKOUT = Path(__file__).resolve().parents[1]


def test_the_wheel_holds_the_package_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every module of the package and its typing mark, the metadata and the licence. No test, no case of conformance/ and no
    program that answers them."""
    monkeypatch.chdir(CHECKOUT)
    with zipfile.ZipFile(tmp_path / buildapi.build_wheel(str(tmp_path))) as wheel:
        names = set(wheel.namelist())
    package = {name for name in names if ".dist-info/" not in name}
    assert package == {
        str(file.relative_to(CHECKOUT))
        for pattern in ("*.py", "py.typed")
        for file in (CHECKOUT / "policyfs").rglob(pattern)
    }
    assert not [name for name in package if "conformance" in name or "test" in name]
    metadata = {name.partition(".dist-info/")[2] for name in names - package}
    assert metadata == {"METADATA", "RECORD", "WHEEL", "entry_points.txt", "licenses/LICENSE"}
