"""A policy as plain values: the one that is built from them in another process is the same."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath, ViewPath
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.session import Deny, Session
from policyfs.policy.values import policy_from, policy_values

X = HostPath(b"/x/\xff\n")
SESSION = Session(
    boundary=ViewPath(b"/b"),
    start=ViewPath(b"/b/\xfe"),
    grants={ViewPath(b"/b"): Level.STAGE, ViewPath(b"/b/\xfe"): Level.NONE},
    floors={ViewPath(b"/b/c"): Level.RO},
    deny=Deny(defaults=False, paths=("/b/d", "~/e"), names=("*.x\udcff",), extensions=(".y",), exceptions=()),
    links_outside=(X,),
    unknown_missing=True,
    read_roots=("~",),
    write_roots=("/x/w",),
    protect_git=True,
)
SURROUNDINGS = Surroundings(
    source=HostPath(b"/x"),
    homes=(HostPath(b"/home/me"), X),
    other_homes=(HostPath(b"/home/you"),),
    floors={"floors.toml": {X: Level.RO}, "others": {}},
    elsewhere=((ViewPath(b"/b"), HostPath(b"/y")),),
    own=(HostPath(b"/etc/policyfs"),),
    files=(b"session.toml", b"\xff"),
    protected=(HostPath(b"/p"),),
    tops=(HostPath(b"/x"),),
    unwalked=(HostPath(b"/u"),),
    git_directories=(HostPath(b"/x/g"),),
    git_programs_of_work_trees=True,
    ways={X: (HostPath(b"/w"), HostPath(b"/v"))},
    crossed=(HostPath(b"/c"),),
)


def test_every_field_crosses() -> None:
    """Each field of both has another value here than where nothing is said, and arrives through JSON as it is."""
    for whole, bare in ((SESSION, Session()), (SESSION.deny, Deny()), (SURROUNDINGS, Surroundings(HostPath(b"/")))):
        for field in dataclasses.fields(whole):
            assert getattr(whole, field.name) != getattr(bare, field.name), field.name
    arrived = policy_from(json.loads(json.dumps(policy_values(CompiledPolicy(SESSION, SURROUNDINGS, fold_case=True)))))
    assert (arrived.session, arrived.surroundings, arrived.fold_case) == (SESSION, SURROUNDINGS, True)


def test_nothing_said_crosses() -> None:
    """What is None stays None, which is not False."""
    policy = CompiledPolicy(Session(), Surroundings(HostPath(b"/x")))
    arrived = policy_from(json.loads(json.dumps(policy_values(policy))))
    assert (arrived.session, arrived.surroundings, arrived.fold_case) == (policy.session, policy.surroundings, False)


@pytest.mark.parametrize("whole", ["session", "surroundings"])
def test_a_field_more_or_less_is_no_policy(whole: str) -> None:
    """The policy of another version may have a rule that this one does not know, or lack one: it is not guessed at."""
    values: dict[str, Any] = policy_values(CompiledPolicy(SESSION, SURROUNDINGS))
    with pytest.raises(TypeError):
        policy_from({**values, whole: {**values[whole], "more": []}})
    for name in values[whole]:
        less = {key: value for key, value in values[whole].items() if key != name}
        with pytest.raises(TypeError):
            policy_from({**values, whole: less})


def test_a_value_of_another_type_is_no_policy() -> None:
    """Not a text for a truth value, a number for a text, or an unknown level."""
    values: dict[str, Any] = policy_values(CompiledPolicy(SESSION, SURROUNDINGS))
    for key, wrong in (("unknown_missing", "yes"), ("read_roots", [1]), ("grants", [["/a", "rw"]])):
        with pytest.raises((TypeError, KeyError)):
            policy_from({**values, "session": {**values["session"], key: wrong}})
