"""Rules on a name in any directory: globs, compared without regard to case (DESIGN 3, "Denylist")."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from policyfs.policy.rules import Denial


def folded(name: bytes) -> str:
    """A name as rules that ignore case compare it. NFKC and case folding, so that no other spelling that a case-folding
    file system takes for the same name escapes (security.md 26)."""
    if name.isascii():
        return name.decode("ascii").lower()
    text = name.decode("utf-8", "surrogateescape")
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())


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

    def match(self, name: bytes) -> Denial | None:
        """The rule that denies this name, if one does."""
        text = folded(name)
        own = self._own.match(text)
        if own is not None:
            return own
        built_in = self._built_in.match(text)
        if built_in is not None and self._excepted.match(text) is not None:
            return None
        return built_in


class _Globs:
    """Globs on a name, each with its rule, compared without regard to case. Exact names and extensions, which is nearly
    all there ever are, cost a dictionary lookup each, however many there are."""

    def __init__(self, globs: Sequence[tuple[str, Denial]]) -> None:
        self._exact: dict[str, Denial] = {}
        self._extension: dict[str, Denial] = {}
        patterns: list[str] = []
        self._of_group: list[Denial] = []
        for glob, denial in globs:
            text = folded(glob.encode("utf-8", "surrogateescape"))
            if not _is_glob(text):
                self._exact.setdefault(text, denial)
            elif text.startswith("*.") and not _is_glob(text[2:]) and "." not in text[2:]:
                self._extension.setdefault(text[1:], denial)
            else:
                patterns.append(f"({glob_pattern(text)})")
                self._of_group.append(denial)
        self._pattern = re.compile("|".join(patterns), re.DOTALL) if patterns else None

    def match(self, text: str) -> Denial | None:
        """The rule that takes in this folded name, if one does."""
        found = self._exact.get(text)
        if found is not None:
            return found
        dot = text.rfind(".")
        if dot >= 0:
            found = self._extension.get(text[dot:])
            if found is not None:
                return found
        if self._pattern is not None:
            matched = self._pattern.fullmatch(text)
            if matched is not None and matched.lastindex is not None:
                return self._of_group[matched.lastindex - 1]
        return None


def _is_glob(text: str) -> bool:
    return any(special in text for special in "*?[")


def glob_pattern(glob: str) -> str:
    """The regular expression of a glob on one name: `*`, `?` and `[...]` as glob(7) has them; no group is made.

    Unlike `fnmatch.translate`, the result can be joined with others and its groups still be counted.
    """
    pattern = []
    position = 0
    while position < len(glob):
        character = glob[position]
        position += 1
        if character == "*":
            pattern.append(".*")
        elif character == "?":
            pattern.append(".")
        elif character == "[":
            # A `]` that comes first, also after `!`, is a member; without a closing one, `[` is itself: glob(7).
            first = position + 1 if glob[position : position + 1] in ("!", "^") else position
            close = glob.find("]", first + 1)
            if close < 0:
                pattern.append(r"\[")
            else:
                members = glob[first:close].replace("\\", r"\\").replace("[", r"\[").replace("]", r"\]")
                members = members.replace("^", r"\^").replace("&&", r"\&&").replace("||", r"\||").replace("~~", r"\~~")
                pattern.append(f"[{'^' if first > position else ''}{members}]")
                position = close + 1
        else:
            pattern.append(re.escape(character))
    return "".join(pattern)
