"""Every case of conformance/ comes out as it says, on each layer that it can be played on."""

from __future__ import annotations

import errno
import functools
import json
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from policyfs.host.errors import Exit
from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, PathFault, ViewPath, below, from_text, view_path
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.refusals import Refusal
from policyfs.policy.rules import Denial
from policyfs.policy.session import loads
from tests.conformance import by_handlers, by_mount, by_view, cases, ground, play
from tests.conformance.by_mount import Daemons
from tests.conformance.cases import Case
from tests.conformance.play import Opens
from tests.conformance.player import OPERATIONS

CASES = cases.fs_access()
READINGS, CONTAINMENTS = cases.paths()
DENYLISTS = cases.denylist()

WITHOUT_MOUNT: dict[str, Opens] = {"view": by_view.player, "handlers": by_handlers.player}

MORE_THAN_POLICY = [case for case in CASES if not case.only_explains]
MOUNTED = [case for case in MORE_THAN_POLICY if not case.opens_nothing]


as_root = pytest.mark.usefixtures("as_root")
"""conformance/README.md: the cases of `fs_access` are played as root."""


@pytest.fixture(scope="module")
def daemons() -> Iterator[Daemons]:
    """What starts the daemons of the mounts."""
    with by_mount.daemons() as started_by:
        yield started_by


def assert_as_it_says(case: Case, layer: str, opens: Opens) -> None:
    """Play a case, and fail with what differs and where that comes from."""
    found = play.differences(case, opens)
    if found:
        beneath = {name: each for name, each in WITHOUT_MOUNT.items() if name != layer}
        if layer == "view":
            beneath = {}
        pytest.fail(play.report(case, layer, found, beneath), pytrace=False)


@as_root
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_on_the_view(case: Case) -> None:
    """The policy and the view answer as the case says."""
    assert_as_it_says(case, "view", by_view.player)


@as_root
@pytest.mark.parametrize("case", MORE_THAN_POLICY, ids=lambda case: case.id)
def test_on_the_handlers(case: Case) -> None:
    """The handlers, called without a mount, answer as the case says."""
    assert_as_it_says(case, "handlers", by_handlers.player)


@as_root
@pytest.mark.parametrize("case", MOUNTED, ids=lambda case: case.id)
def test_on_a_mount(case: Case, daemons: Daemons) -> None:
    """System calls on a real mount answer as the case says."""
    assert_as_it_says(case, "mount", functools.partial(by_mount.player, daemons))


@as_root
@pytest.mark.parametrize("case", [case for case in CASES if case.opens_nothing], ids=lambda case: case.id)
def test_a_view_that_opens_nothing_is_not_mounted(case: Case, daemons: Daemons) -> None:
    """Mounting a view of which no path is visible is refused, and the refusal says why."""
    with ground.laid(case) as laid:
        ready = by_mount.refusal_to_mount(daemons, case, laid)
    assert ready.exit_code == Exit.POLICY
    assert "opens nothing" in " ".join(ready.fault)


# -- what needs no tree --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("case", READINGS, ids=lambda case: case.id)
def test_a_text_reads_as_the_path_it_names(case: cases.Reading) -> None:
    """A text is the path that the case says, or no path for the reason it says."""
    try:
        path, fault = view_path(from_text(case.text), ViewPath(from_text(case.start))), None
    except PathFault as error:
        path, fault = None, error.fault
    expected = None if case.path is None else from_text(case.path)
    assert (path, fault) == (expected, case.fault)


@pytest.mark.parametrize("case", CONTAINMENTS, ids=lambda case: case.id)
def test_a_path_is_within_or_not(case: cases.Containment) -> None:
    """A path is within another by whole names."""
    assert (below(from_text(case.path), from_text(case.within)) is not None) == case.holds


@pytest.mark.parametrize("case", DENYLISTS, ids=lambda case: case.id)
def test_the_denylist_denies_what_it_names(case: cases.Denylist) -> None:
    """Where everything is granted, exactly the paths that the case says are denied, each by the rule it says."""
    tables = {"grants": {"/": "stage"}, **({} if case.deny is None else {"deny": case.deny})}
    surroundings = Surroundings(HostPath(from_text(case.source)), homes=(HostPath(from_text(case.home)),))
    policy = CompiledPolicy(loads(ground.session_file(tables), case.id), surroundings)
    denied = {}
    for path in case.rules:
        decision = policy.decide(ViewPath(from_text(path)))
        denied[path] = decision.rule.text if isinstance(decision.rule, Denial) else None
        assert (decision.level is Level.NONE) == (denied[path] is not None)
    assert denied == case.rules


# -- the cases as a whole ------------------------------------------------------------------------------------------------

OF_THE_SPEC = (
    Refusal.MISSING,
    Refusal.DENIED,
    Refusal.READ_ONLY,
    Refusal.IS_DIRECTORY,
    Refusal.NOT_DIRECTORY,
    Refusal.EXISTS,
)


def test_the_texts_are_those_of_the_table_of_refusals() -> None:
    """Each text of a case is, for its errno, what the one table of refusals says of one of its paths."""
    by_errno = {refusal.errno: refusal for refusal in OF_THE_SPEC}
    told = [(case, operation) for case in CASES for operation in case.operations if operation.text is not None]
    assert told
    for case, operation in told:
        assert operation.errno is not None
        refusal = by_errno[getattr(errno, operation.errno)]
        paths = [operation.path, *([operation.further["to"]] if "to" in operation.further else [])]
        assert operation.text in [refusal.text(ViewPath(from_text(path))) for path in paths], (case.id, str(operation))


PASSAGE, RO, STAGE = "under a passage", "parent ro", "parent stage or commit"
COLUMNS = (PASSAGE, RO, STAGE)
WITHOUT_COLUMNS = {"look-3", "make-5"}
"""Rows that answer alike in each column."""


def rows() -> dict[str, tuple[str, ...]]:
    """The table of docs/rules.md, "What each operation answers": each rule in it with the columns in which it says
    something."""
    text = (Path(__file__).resolve().parents[2] / "docs/rules.md").read_text(encoding="utf-8")
    found = {}
    for name, cells in re.findall(r"^\| .*?\*\*(\w+-\d+)\*\* \|[^|]*\|(.*)\|$", text, re.MULTILINE):
        answers = [cell.strip() for cell in cells.split("|")]
        assert len(answers) == len(COLUMNS)
        found[name] = tuple(column for column, answer in zip(COLUMNS, answers, strict=True) if answer != "-")
    return found


def test_every_row_of_the_table_of_answers_is_covered() -> None:
    """For each row and column of the table some case says that it comes from there."""
    table = rows()
    assert len(table) == 18
    wanted = {
        ", ".join(filter(None, (row, column)))
        for row, columns in table.items()
        for column in (("",) if row in WITHOUT_COLUMNS else columns)
    }
    assert sorted(wanted - {case.spec for case in CASES}) == []


def test_the_player_knows_every_operation_of_the_schema() -> None:
    """Each of them, with the further fields that it must have and may have, and no other."""
    schema = json.loads((cases.DIRECTORY / "schema.json").read_text(encoding="utf-8"))["$defs"]["operations"]
    common = {"do", "path", "gives", "errno", "text"}
    known = {
        name: {each.name: each.default is each.empty for each in signature.parameters.values() if each.name != "self"}
        for name, signature in OPERATIONS.items()
    }
    assert known == {
        name: {"path": True, **{field: field in found["required"] for field in found["properties"] if field not in common}}
        for name, found in schema.items()
    }
