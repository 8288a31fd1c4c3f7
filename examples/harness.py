"""A harness in a page: a model's file tools over a session view, without a mount.

    python examples/harness.py TREE SESSION.toml < calls.jsonl

Reads a tool call a line (`{"tool": "read", "path": "/Notes/a.md"}`) and prints its result a line, as a harness would put it
into the conversation: a refusal is a result too, in the exact words of rule error-1. What the model is told before its first
turn goes to standard error.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable

from policyfs import Policy, Refused, UserFault, View

Call = dict[str, str]


def tools(view: View) -> dict[str, Callable[[Call], str]]:
    """The tools by name. A result is the text that the model reads."""

    def list_directory(call: Call) -> str:
        return "\n".join(entry.name + "/" * (entry.kind == "directory") for entry in view.list(call.get("path", ".")))

    def read(call: Call) -> str:
        text = view.read_text(call["path"])
        nearby = [f"\n{instruction}" for instruction in view.nearby(call["path"])]
        return text + "".join(nearby)

    def write(call: Call) -> str:
        made = view.write(call["path"], call["content"])
        return f"{'Created' if made else 'Overwrote'} {view.policy.resolve(call['path'])}"

    def mkdir(call: Call) -> str:
        view.make_directory(call["path"], parents=True)
        return f"Made {view.policy.resolve(call['path'])}"

    def move(call: Call) -> str:
        view.move(call["path"], call["to"])
        return f"Moved to {view.policy.resolve(call['to'])}"

    def remove(call: Call) -> str:
        view.remove(call["path"])
        return f"Removed {view.policy.resolve(call['path'])}"

    return {"list": list_directory, "read": read, "write": write, "mkdir": mkdir, "mv": move, "rm": remove}


def answer(view: View, call: Call) -> dict[str, object]:
    """One call and its result. A refusal, an error of the disk and a call that makes no sense are told apart by nothing
    but their text: the model reads it and goes on."""
    tool = tools(view).get(call.get("tool", ""))
    if tool is None:
        return {"error": True, "result": f"No such tool: {call.get('tool')}"}
    try:
        return {"error": False, "result": tool(call)}
    except Refused as refused:
        return {"error": True, "result": str(refused)}
    except OSError as error:
        return {"error": True, "result": os.strerror(error.errno or 0)}
    except UnicodeDecodeError:
        return {"error": True, "result": "Not a text file."}
    except (KeyError, ValueError) as error:
        return {"error": True, "result": f"Not a call: {error}"}


def main() -> int:
    """Serve the calls on standard input."""
    tree, session = sys.argv[1:]
    try:
        policy = Policy.load(tree, session_file=session)
    except UserFault as fault:
        print(*fault.messages, sep="\n", file=sys.stderr)
        return 1
    with View(tree, policy) as view:
        print(policy.prompt(), *view.instructions(), sep="\n", file=sys.stderr)
        for line in sys.stdin:
            print(json.dumps(answer(view, json.loads(line))), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
