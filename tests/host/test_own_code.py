"""What policyfs executes, as it is found on this machine."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

import policyfs
from policyfs.host import own_code
from policyfs.policy.paths import below


def covered(place: str | Path) -> bool:
    """Whether a place is among policyfs's own code, or below it."""
    return any(below(os.fsencode(place), code) is not None for code in own_code.own_code())


def test_whatever_an_isolated_python_searches_is_covered() -> None:
    """Each entry of the search path, each loaded module, and the interpreter by each of its names."""
    for module in (os, sys.modules["encodings"], policyfs, pytest):
        assert covered(module.__file__ or ""), module
        assert covered(os.path.realpath(module.__file__ or "")), module
    for entry in filter(lambda entry: "python3" in entry, sys.path):
        assert covered(entry), entry
    for name in (sys.executable, os.path.realpath(sys.executable), sys.prefix, f"{sys.base_prefix}/pyvenv.cfg"):
        assert covered(name), name


def test_every_shared_library_is_covered() -> None:
    """What the interpreter has mapped is the system's or its own."""
    table = Path("/proc/self/maps").read_text().splitlines()
    mapped = {line.split(maxsplit=5)[5] for line in table if ".so" in line}
    assert any("libc" in place for place in mapped)
    assert [place for place in mapped if not covered(place)] == []


def test_the_launcher_with_every_link_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The person's `policyfs` on PATH, what it leads to, and a directory on PATH that is a link itself."""
    (tmp_path / "checkout").mkdir()
    (tmp_path / "checkout/start").write_text("#!/bin/sh\n")
    (tmp_path / "checkout/start").chmod(0o755)
    (tmp_path / "programs").mkdir()
    (tmp_path / "bin").symlink_to("programs")
    (tmp_path / "programs/policyfs").symlink_to("../checkout/start")
    monkeypatch.setenv("PATH", f"/nowhere:{tmp_path}/bin:/usr/bin")
    assert covered(tmp_path / "bin")
    assert covered(tmp_path / "programs/policyfs")
    assert covered(tmp_path / "checkout/start")
    assert not covered(tmp_path / "programs/other")
    assert not covered(tmp_path / "checkout/other")


def test_a_relative_search_path_names_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It means another directory in each process."""
    (tmp_path / "policyfs").write_text("#!/bin/sh\n")
    (tmp_path / "policyfs").chmod(0o755)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", ".")
    assert not covered(tmp_path / "policyfs")


def test_what_pth_files_add(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Directories, absolute or from where the file is; neither comments nor code. An unreadable file adds nothing."""
    library = tmp_path / "lib/site-packages"
    library.mkdir(parents=True)
    (library / "a.pth").write_text(f"# {tmp_path}/comment\n\n{tmp_path}/project \nimport sys; sys.path\n../beside\n")
    (library / "b.pth").mkdir()
    monkeypatch.setattr(own_code.site, "getsitepackages", lambda: [str(library), str(tmp_path / "none")])
    for place in ("lib/site-packages/x.py", "project/x.py", "lib/beside", "none"):
        assert covered(tmp_path / place), place
    for place in ("comment", "lib/other"):
        assert not covered(tmp_path / place), place


def test_a_package_in_a_directory_of_packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its directory is covered, and the programs beside it; a copy in somebody's project covers no more than itself."""
    module = tmp_path / "own/lib/python3/site-packages/policyfs/host/own_code.py"
    monkeypatch.setattr(own_code, "__file__", str(module))
    assert covered(module.parents[2] / "other.py")
    assert covered(tmp_path / "own/bin/policyfs")
    assert not covered(tmp_path / "own/share")
    monkeypatch.setattr(own_code, "__file__", str(tmp_path / "project/policyfs/host/own_code.py"))
    assert covered(tmp_path / "project/policyfs/x.py")
    assert not covered(tmp_path / "project/x.py")
