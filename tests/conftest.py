"""What every test module may use: see tests/mount/harness.py for real mounts."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest

pytest.register_assert_rewrite("tests.mount.harness", "tests.mount.expecting")

from tests.mount import harness  # noqa: E402 - after the rewriting of its assertions is asked for

hypothesis.settings.register_profile(
    "mutation",
    max_examples=40,
    derandomize=True,
    database=None,
    deadline=None,
    phases=[hypothesis.Phase.explicit, hypothesis.Phase.generate],
)
"""For scripts/mutation: the same few examples in every run, and no time spent on making a found one smaller."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """An option must be known before any test directory is looked into, so it stands here."""
    parser.addoption(
        "--race-seconds", type=float, default=5.0, metavar="S", help="how long each race in tests/adversary runs (5)"
    )
    parser.addoption("--slow", action="store_true", help="run the tests that take a minute or more, too")


def pytest_configure(config: pytest.Config) -> None:
    """Make the marker known, and the tests the same wherever they are started."""
    # Whoever starts the tests in the background, or by nohup, has them ignored, and so would all that the tests start.
    for number in (signal.SIGINT, signal.SIGQUIT, signal.SIGHUP):
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    config.addinivalue_line("markers", "slow: takes a minute or more; runs with --slow")
    config.addinivalue_line("markers", "soak: makes requests for half a minute; left out with -m 'not soak'")
    config.addinivalue_line("markers", "mutants: runs tests on changed copies of the package; left out of --fast")
    config.addinivalue_line("markers", "mount: may mount a view (set by the directory)")


LEVELS = (
    "test_architecture", "policy", "test_conformance_data", "source", "view", "host", "opening", "audit", "agent",
    "conformance", "fuse", "live", "mount", "daemon", "control", "doctor", "api", "sandbox", "cli", "docs", "adversary",
)  # fmt: skip
"""The directories and modules of tests from the lowest level up, so that the lowest broken one fails first."""

WITHOUT_MOUNT = frozenset({"test_architecture", "policy", "test_conformance_data", "source", "view", "host", "opening"})
"""The levels whose tests mount nothing: `scripts/test --fast` runs these."""


def _level(item: pytest.Item) -> str:
    return item.path.relative_to(Path(__file__).parent).parts[0].removesuffix(".py")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Order the tests by level, mark what may need a mount, and leave out what is slow unless it is asked for."""
    order = {level: number for number, level in enumerate(LEVELS)}
    items.sort(key=lambda item: order.get(_level(item), len(LEVELS)))
    for item in items:
        if _level(item) not in WITHOUT_MOUNT:
            item.add_marker(pytest.mark.mount)
    if not config.getoption("--slow"):
        for item in items:
            if item.get_closest_marker("slow") is not None:
                item.add_marker(pytest.mark.skip(reason="slow: runs with --slow"))


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """An empty directory to make views of."""
    directory = tmp_path / "source"
    directory.mkdir()
    return directory


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home of the test's own, so that nobody's real one is in any answer."""
    directory = tmp_path / "home"
    directory.mkdir()
    return directory


@pytest.fixture(scope="module")
def ordinary_user() -> Iterator[harness.Person]:
    """Somebody who is not root, for the tests of one module."""
    with harness.ordinary_user() as person:
        yield person


@pytest.fixture(scope="session")
def as_root() -> None:
    """Skip what only root can set up."""
    if os.geteuid() != 0:
        pytest.skip("only root can set this up")
