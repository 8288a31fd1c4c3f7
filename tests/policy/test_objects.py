"""What may still be done to an open, moved, removed or revoked object: every state and every act (rule file-4)."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest

from policyfs.policy.levels import Level
from policyfs.policy.objects import Act, State, Way, go_on, still
from policyfs.policy.paths import HostPath, ViewPath
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.refusals import Refusal
from policyfs.policy.session import Session

RULES = (Path(__file__).parents[2] / "docs" / "rules.md").read_text(encoding="utf-8")
ANSWERS = {
    "by name": Way.BY_NAME,
    "by handle": Way.BY_HANDLE,
    "source": Way.AS_SOURCE_ANSWERS,
    "stale": Refusal.STALE,
    "denied": Refusal.DENIED,
}


def rows() -> dict[State, list[str]]:
    """The table of docs/rules.md: the cells of each state."""
    head = "| the object | " + " | ".join(act.name.lower() for act in Act) + " |\n"
    lines = RULES.partition(head)[2].partition("\n\n")[0].splitlines()[1:]
    found = {}
    for line in lines:
        first, *cells = [cell.strip() for cell in line.strip("|").split("|")]
        (state,) = re.findall(r"\(([a-z ]+)\)$", first)
        found[State[state.upper().replace(" ", "_")]] = cells
    return found


ROWS = rows()


def test_the_page_has_every_state_and_every_act() -> None:
    """No state and no act is left out of the table that people read, and its acts are in the order of the code's."""
    assert list(ROWS) == list(State)
    assert {len(cells) for cells in ROWS.values()} == {len(Act)}


@pytest.mark.parametrize(("state", "act"), list(itertools.product(State, Act)), ids=lambda each: each.name)
def test_every_act_in_every_state(state: State, act: Act) -> None:
    """Each cell is answered as docs/rules.md says."""
    assert still(state, act) is ANSWERS[ROWS[state][list(Act).index(act)]]


def test_nothing_more_is_made_of_what_was_moved() -> None:
    """In a state in which an object stands elsewhere, only looking at it and going on by what is open are allowed."""
    for state in (State.BLOCKED_MOVED, State.MOVED, State.LOST):
        allowed = {act for act in Act if still(state, act) in (Way.BY_NAME, Way.BY_HANDLE)}
        assert allowed <= {Act.LOOK, Act.READ, Act.WRITE}


@pytest.mark.parametrize("act", Act)
def test_nothing_is_left_of_what_was_revoked(act: Act) -> None:
    """What the policy has hidden is denied whatever is to be done, and whatever is open."""
    assert still(State.REVOKED, act) is Refusal.DENIED


POLICY = CompiledPolicy(
    Session(grants={ViewPath(b"/ro"): Level.RO, ViewPath(b"/w/in"): Level.STAGE}), Surroundings(HostPath(b"/source"))
)


@pytest.mark.parametrize(
    ("path", "read", "write", "lists"),
    [
        (b"/ro/f", None, Refusal.READ_ONLY, None),
        (b"/w/in/f", None, None, None),
        (b"/w", Refusal.DENIED, Refusal.DENIED, Refusal.DENIED),
        (b"/hidden", Refusal.DENIED, Refusal.DENIED, Refusal.DENIED),
    ],
)
def test_going_on_by_what_is_open(path: bytes, read: Refusal | None, write: Refusal | None, lists: Refusal | None) -> None:
    """What is open is judged by the place where it stands now. Hidden, it is denied rather than missing; and so is a
    credential that stands at an open place."""
    place = POLICY.place(ViewPath(path))
    acts = (Act.READ, Act.WRITE, Act.LIST)
    assert [go_on(act, place, credential=False) for act in acts] == [read, write, lists]
    assert [go_on(act, place, credential=True) for act in acts] == [Refusal.DENIED] * 3
