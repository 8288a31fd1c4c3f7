"""Rules on a name in any directory: globs, compared without regard to case (rules deny-6 and deny-11)."""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence

from policyfs.policy.paths import folded
from policyfs.policy.rules import Denial

MAX_REMEMBERED = 4096
"""Names whose answer is remembered: those of a large project, and some 600 KiB."""


class NameDenials:
    """Which names are denied in any directory, and by which rule.

    `globs` are the session's own, `built_in` those of the built-in denylist, from which `excepted` names are taken out.
    """

    def __init__(
        self, globs: Sequence[tuple[str, Denial]], built_in: Sequence[tuple[str, Denial]], excepted: Sequence[str]
    ) -> None:
        self._own = _Globs(globs)
        self._built_in = _Globs(built_in)
        self._excepted = _Globs([(glob, Denial(glob, "")) for glob in excepted])
        self.match = functools.lru_cache(maxsize=MAX_REMEMBERED)(self._match)
        """The rule that denies this name, if one does. Remembered: the same names are asked for again and again."""

    def _match(self, name: bytes) -> Denial | None:
        text = folded(name)
        own = self._own.match(text)
        if own is not None:
            return own
        built_in = self._built_in.match(text)
        if built_in is not None and self._excepted.match(text) is not None:
            return None
        return built_in


class _Globs:
    """Globs on a name, each with its rule, compared without regard to case. Exact names, beginnings (`.env.*`) and ends
    (`*.pem`), which is nearly all there ever are, cost a dictionary lookup for each length that some rule has, however
    many rules there are: ten thousand globs in one regular expression took 24 ms a name. Only other globs are that."""

    def __init__(self, globs: Sequence[tuple[str, Denial]]) -> None:
        self._exact: dict[str, Denial] = {}
        beginnings: dict[str, Denial] = {}
        ends: dict[str, Denial] = {}
        patterns: list[str] = []
        self._of_group: list[Denial] = []
        for glob, denial in globs:
            text = folded(glob.encode("utf-8", "surrogateescape"))
            if not _is_glob(text):
                self._exact.setdefault(text, denial)
            elif text.endswith("*") and not _is_glob(text[:-1]):
                beginnings.setdefault(text[:-1], denial)
            elif text.startswith("*") and not _is_glob(text[1:]):
                ends.setdefault(text[1:], denial)
            else:
                patterns.append(f"({glob_pattern(text)})")
                self._of_group.append(denial)
        self._beginnings = _by_length(beginnings)
        self._ends = _by_length(ends)
        self._pattern = re.compile("|".join(patterns), re.DOTALL) if patterns else None

    def match(self, text: str) -> Denial | None:
        """The rule that takes in this folded name, if one does."""
        found = self._exact.get(text)
        if found is not None:
            return found
        for length, of_length in self._beginnings:
            found = of_length.get(text[:length])
            if found is not None:
                return found
        for length, of_length in self._ends:
            # A name shorter than that gives itself, which is as long as no end in this dictionary.
            found = of_length.get(text[-length:])
            if found is not None:
                return found
        if self._pattern is not None:
            matched = self._pattern.fullmatch(text)
            if matched is not None and matched.lastindex is not None:
                return self._of_group[matched.lastindex - 1]
        return None


def _is_glob(text: str) -> bool:
    return any(special in text for special in "*?[")


def _by_length(literals: dict[str, Denial]) -> list[tuple[int, dict[str, Denial]]]:
    lengths: dict[int, dict[str, Denial]] = {}
    for text, denial in literals.items():
        lengths.setdefault(len(text), {})[text] = denial
    return sorted(lengths.items(), key=lambda item: item[0])


def glob_pattern(glob: str) -> str:
    """The regular expression of a glob on one name: `*`, `?` and `[...]` as glob(7) has them; no group is made.

    Unlike `fnmatch.translate`, the result can be joined with others and its groups still be counted.
    """
    parts = [""]
    position = 0
    while position < len(glob):
        character = glob[position]
        position += 1
        if character == "*":
            parts.append("")
        elif character == "?":
            parts[-1] += "."
        elif character == "[":
            # A `]` that comes first, also after `!`, is a member; without a closing one, `[` is itself: glob(7).
            first = position + 1 if glob[position : position + 1] in ("!", "^") else position
            close = glob.find("]", first + 1)
            if close < 0:
                parts[-1] += r"\["
            else:
                parts[-1] += _set_pattern(glob[first:close], negated=first > position)
                position = close + 1
        else:
            parts[-1] += re.escape(character)
    if len(parts) == 1:
        return parts[0]
    # What stands between two stars is found at its first place and not sought again (an atomic group): a later place
    # leaves less for the rest. Otherwise a name could be made that takes a glob of many stars hours.
    first_part, *between, last = parts
    return first_part + "".join(f"(?>.*?{part})" for part in between if part) + ".*" + last


def _set_pattern(members: str, *, negated: bool) -> str:
    """The regular expression of what stands between `[` and `]`. A range from a later to an earlier character holds
    nothing, as in fnmatch(3); folding the case of `[A-_]` makes one."""
    written = ""
    position = 0
    while position < len(members):
        low = members[position]
        if members[position + 1 : position + 2] == "-" and position + 2 < len(members):
            high = members[position + 2]
            position += 3
            if low <= high:
                written += f"{re.escape(low)}-{re.escape(high)}"
        else:
            position += 1
            written += re.escape(low)
    if not written:
        return "." if negated else "(?!)"
    return f"[{'^' if negated else ''}{written}]"
