"""The two things around mutmut that scripts/mutation does.

    python mutation.py undecorate FILE...       in a copy: have mutmut mutate what properties and context managers say
    python mutation.py report MUTMUT FILE       what survives and is not in FILE, the list of equivalent mutants

mutmut leaves decorated functions alone. `@property` above a method says the same as `method = property(method)` below it,
where mutmut does not see it.

The file names an equivalent mutant by its function and what it changed, after a comment with the reason:

    policy.permissions.commit: return x => return None

The report exits with 1 if a mutant survives that the file does not name, or if it names one that does not survive.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

UNDECORATED = {"property", "contextmanager", "tried_again"}
SHORT = 40
LIVES = {"survived", "no tests"}
_RESULT = re.compile(r"^ +(?P<mutant>policyfs\.\S+): (?P<status>.+)$", re.MULTILINE)
_NAME = re.compile(r"^policyfs\.(?P<module>.+)\.x(?:_|ǁ(?P<owner>\w+)ǁ)(?P<function>\w+)__mutmut_\d+$")


def undecorate(file: Path) -> None:
    """Put decorators below what they decorate. The file's times stay, by which mutmut knows what has changed."""
    text, status = file.read_text(encoding="utf-8"), file.stat()
    lines = text.splitlines(keepends=True)
    functions = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.FunctionDef)]
    for function in sorted(functions, key=lambda function: function.lineno, reverse=True):
        match function.decorator_list:
            case [ast.Name(id=decorator) as above] if decorator in UNDECORATED and function.end_lineno is not None:
                below = f"{' ' * function.col_offset}{function.name} = {decorator}({function.name})\n"
                lines.insert(function.end_lineno, below)
                del lines[above.lineno - 1]
    file.write_text("".join(lines), encoding="utf-8")
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def said(*command: str) -> str:
    """What a command says."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def named(mutant: str) -> str:
    """A mutant's function as a reader writes it: `policy.policy.Policy.place`."""
    found = _NAME.match(mutant)
    assert found is not None, mutant
    return ".".join(filter(None, found.group("module", "owner", "function")))


def changed(difference: str) -> str:
    """What a mutant has in place of what. Where that is as little as a word, the line before it tells which."""
    lines = difference.splitlines()[3:]
    first = next(number for number, line in enumerate(lines) if line.startswith("-"))
    old, new = (" ".join(line[1:].strip() for line in lines if line.startswith(sign)) for sign in "-+")
    before = f"{lines[first - 1].strip()} / " if first and len(old) < SHORT else ""
    return f"{before}{old} => {new}"


def equivalent(document: str) -> set[str]:
    """The lines of the file that are not comments."""
    return {line.strip() for line in document.splitlines() if line.strip() and not line.startswith("#")}


def report(mutmut: str, document: Path) -> int:
    """Print what lives, and the counts."""
    known = equivalent(document.read_text(encoding="utf-8"))
    statuses = {each["mutant"]: each["status"] for each in _RESULT.finditer(said(mutmut, "results", "--all", "true"))}
    if not statuses:
        print("nothing was tried yet")
        return 1
    seen: set[str] = set()
    alive: list[str] = []
    equivalents = 0
    for mutant, status in statuses.items():
        if status not in LIVES:
            continue
        difference = said(mutmut, "show", mutant)
        line = f"{named(mutant)}: {changed(difference)}"
        if line in known:
            seen.add(line)
            equivalents += 1
        else:
            alive.append(f"{line}\n{difference}")
    counts = Counter(statuses.values())
    untried = counts["not checked"]
    killed = len(statuses) - untried - len(alive) - equivalents
    print(*alive, sep="\n")
    print(
        f"{len(statuses)} mutants: {killed} killed, {equivalents} equivalent, {len(alive)} live, {untried} not tried",
        f"({', '.join(f'{status} {count}' for status, count in sorted(counts.items()))})",
    )
    gone = [] if untried else sorted(known - seen)
    for line in gone:
        print(f"no longer lives, and {document} names it: {line}")
    return 1 if alive or gone else 0


def main() -> int:
    """As the first argument says."""
    match sys.argv[1:]:
        case ["undecorate", *files]:
            for file in files:
                undecorate(Path(file))
            return 0
        case ["report", mutmut, document]:
            return report(mutmut, Path(document))
    sys.exit(__doc__)


if __name__ == "__main__":
    sys.exit(main())
