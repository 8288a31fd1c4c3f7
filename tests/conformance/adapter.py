"""Answers the cases of conformance/ for policyfs: an example of such a program, and no part of what is installed.

    scripts/conformance --entrypoint "python -I tests/conformance/adapter.py"

The contract is in docs/conformance.md: one request a line on standard input, one answer a line on standard output, both
JSON. A request is a case without its expectations, so an answer cannot be copied from it. Each area is one function here,
and each calls what the commands and the mount call.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from policyfs.agent.instructions import Instruction, Nearby, chain
from policyfs.host import places
from policyfs.host.ways import Walk
from policyfs.opening.links import as_links_stand
from policyfs.policy import permissions
from policyfs.policy.levels import LEVELS, Standing
from policyfs.policy.paths import HostPath, PathFault, ViewPath, below, from_text, host_path, view_path
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.roots import split_roots
from policyfs.policy.rules import Denial
from policyfs.policy.session import Session, loads
from policyfs.source.root import Root
from policyfs.view.monitor import ReferenceMonitor

Json = dict[str, Any]

_SOURCE = HostPath(b"/conformance/source")
"""Where the cases that look nothing up have their SOURCE: neither in the home nor above it, as the README says."""
_HOME = HostPath(b"/conformance/home")


def main() -> None:
    """Answer conformance cases: a JSON request a line in, a JSON answer a line out (docs/conformance.md)."""
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


def answer(request: Json) -> Json:
    """The answer to one request. What cannot be answered is an answer too: `error`, which no case expects."""
    try:
        return _AREAS[request["area"]](request)
    except Exception as error:
        return {"error": f"{type(error).__name__}: {error}"}


def _paths(request: Json) -> Json:
    if "within" in request:
        return {"holds": below(from_text(request["path"]), from_text(request["within"])) is not None}
    try:
        return {"path": _text(view_path(from_text(request["text"]), ViewPath(from_text(request["start"]))))}
    except PathFault as fault:
        return {"fault": fault.fault}


def _denylist(request: Json) -> Json:
    home, source = (HostPath(from_text(request[key])) for key in ("home", "source"))
    session = {"grants": {"/": "ro"}, **({"deny": request["deny"]} if "deny" in request else {})}
    policy = CompiledPolicy(session_of(session), Surroundings(source, homes=(home,)))
    answers = []
    for path in request["paths"]:
        rule = policy.decide(ViewPath(from_text(path))).rule
        denied = isinstance(rule, Denial)
        answers.append({"path": path, "denied": denied, **({"rule": rule.text} if isinstance(rule, Denial) else {})})
    return {"paths": answers}


def _roots(request: Json) -> Json:
    found = split_roots(request["text"], HostPath(from_text(request["home"])))
    return {"roots": [_text(root) for root in found.roots], "reported": [bad.entry for bad in found.reported]}


def _explain(request: Json) -> Json:
    floors = {
        f"floors {number}": {
            HostPath(_SOURCE if path == "/" else _SOURCE + from_text(path)): LEVELS[level] for path, level in source.items()
        }
        for number, source in enumerate(request.get("floors", []))
    }
    policy = CompiledPolicy(session_of(request["session"]), Surroundings(_SOURCE, homes=(_HOME,), floors=floors))
    path = ViewPath(from_text(request["path"]))
    explanation = policy.explain(path)
    decision = explanation.decision
    answers: Json = {each.operation: each.text for each in explanation.answers}
    if request.get("in_repository", False) and decision.standing is not Standing.HIDDEN:
        refusal = permissions.commit(policy.place(path), in_repository=True)
        answers["commit"] = None if refusal is None else refusal.text(path)
    return {
        "level": str(decision.level),
        "standing": str(decision.standing),
        "rule": str(decision.rule),
        **answers,
    }


def _instructions(request: Json) -> Json:
    # Beside other things of this machine, but in a directory of its own: a link out of it is a link out of SOURCE.
    with tempfile.TemporaryDirectory(prefix="policyfs-conformance-") as directory:
        source = places.real(host_path(os.fsencode(directory)))
        make_tree(source, request["tree"])
        session = session_of(request["session"])
        surroundings = as_links_stand(session, Surroundings(source, homes=(_HOME,)), Walk())
        view = ReferenceMonitor(Root(source), CompiledPolicy(session, surroundings))
        try:
            before = [Instruction(**request["global"])] if "global" in request else []
            after = [Instruction(**extra) for extra in request.get("extra", [])]
            nearby = Nearby(view)
            return {
                "instructions": [*map(_instruction, chain(view, before=before, after=after))],
                "reads": [
                    {"path": path, "hands_over": [*map(_instruction, nearby.for_read(ViewPath(from_text(path))))]}
                    for path in request.get("reads", [])
                ],
            }
        finally:
            view.close()


def _instruction(found: Instruction) -> Json:
    return {"path": found.path, "text": found.text}


_AREAS: dict[str, Callable[[Json], Json]] = {
    "paths": _paths,
    "denylist": _denylist,
    "roots": _roots,
    "explain": _explain,
    "instructions": _instructions,
}


def session_of(tables: Json) -> Session:
    """The session of a case, whose tables are those of a session file, read as a session file."""
    lines = [f"{key} = {_toml(value)}" for key, value in tables.items() if not isinstance(value, dict)]
    for name, table in tables.items():
        if isinstance(table, dict):
            lines += [f"[{name}]", *(f"{_toml(key)} = {_toml(value)}" for key, value in table.items())]
    return loads("\n".join(lines), "session")


def _toml(value: Any) -> str:
    """A JSON value as TOML writes it: the strings, lists and truth values of a session are the same in both."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


def make_tree(source: HostPath, tree: Json) -> None:
    """What SOURCE holds in a case (conformance/README.md, "fs_access")."""
    for path, found in tree.items():
        place = source + from_text(path)
        if "directory" in found:
            os.makedirs(place, exist_ok=True)
            continue
        os.makedirs(os.path.dirname(place), exist_ok=True)
        if "file" in found:
            with open(place, "wb") as file:
                file.write(from_text(found["file"]))
        elif "link" in found:
            os.symlink(from_text(found["link"]).replace(b"{source}", source), place)
        elif "fifo" in found:
            os.mkfifo(place)
        elif "hard_link" in found:
            os.link(source + from_text(found["hard_link"]), place)
    for path, found in tree.items():
        if "mode" in found:
            os.chmod(source + from_text(path), int(found["mode"], 8))


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")


if __name__ == "__main__":
    main()
