"""Text to path, on bytes (rules path-1 to path-8).

Three meanings, three types, so that one cannot be used for another by accident:

* a `Name` is one component: 1 to 255 bytes, no `/`, no NUL, neither `.` nor `..`;
* a `ViewPath` is absolute in the view: `/` is SOURCE, whatever SOURCE is called on the host;
* a `HostPath` is absolute on the machine the daemon runs on.

Each has one constructor that refuses what is not one; after that the value is trusted. They are `NewType`s over bytes,
since names are bytes to the kernel and a request must not pay for a wrapper.
"""

from __future__ import annotations

import unicodedata
from typing import NewType

Name = NewType("Name", bytes)
ViewPath = NewType("ViewPath", bytes)
HostPath = NewType("HostPath", bytes)

NAME_MAX = 255
"""Longest name in bytes: NAME_MAX of limits.h, and what every Linux file system in use allows."""

ROOT = ViewPath(b"/")


class PathFault(ValueError):
    """A text that is not a path. `fault` is one of `empty`, `nul`, `name too long`, `not absolute`, `not a name`,
    `no text`."""

    def __init__(self, fault: str, text: bytes) -> None:
        self.fault = fault
        super().__init__(f"{fault}: `{display(text)}`")


def display(text: bytes) -> str:
    """The text as a person or a log may see it: one line, no control character, nothing lost that is printable.

    Bytes that are not UTF-8 and characters that could move a cursor, end a line or reverse the reading order are written
    as escapes (`\\xff`, `\\n`, `\\u202e`).
    """
    shown = []
    for character in text.decode("utf-8", "surrogateescape"):
        if character.isprintable():
            shown.append(character)
        elif "\udc80" <= character <= "\udcff":
            shown.append(f"\\x{ord(character) - 0xDC00:02x}")
        else:
            shown.append(character.encode("unicode_escape").decode("ascii"))
    return "".join(shown)


_ACTS = frozenset({"Cc", "Cf", "Cs", "Zl", "Zp"})
"""Categories of characters that do something rather than stand for something: controls, marks of the reading order and
invisible ones, lone surrogates, separators of lines (Unicode Standard Annex 44)."""
_JOINERS = "\u200c\u200d"
"""Of these the two that Persian, the scripts of India and emoji are written with."""


def display_lines(text: str) -> str:
    """A text of several lines as a terminal or a model may be given it: what could move a cursor, set a terminal, turn the
    reading order round or hide in the text is written as an escape (`\\x1b`, `\\u202e`). Lines end with a line feed."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text
    return "".join(
        character
        if character in "\n\t" or character in _JOINERS or unicodedata.category(character) not in _ACTS
        else character.encode("unicode_escape").decode("ascii")
        for character in text.replace("\r\n", "\n")
    )


def for_shell(text: bytes) -> str:
    """The text as one word of a command that a person may paste: as it is where no shell takes it apart, else in quotes,
    and with what cannot be shown in those of bash, zsh and ksh (`$'a\\x0a'`), which say the very bytes."""
    decoded = text.decode("utf-8", "surrogateescape")
    if not decoded.isprintable():
        return "$'" + "".join(_in_quotes(character) for character in decoded) + "'"
    if decoded.isascii() and decoded and all(character.isalnum() or character in "/._-+@%:,=" for character in decoded):
        return decoded
    return "'" + decoded.replace("'", "'\\''") + "'"


def _in_quotes(character: str) -> str:
    if character.isprintable() and character not in "\\'":
        return character
    return "".join(f"\\x{byte:02x}" for byte in character.encode("utf-8", "surrogateescape"))


def from_text(text: str) -> bytes:
    """The bytes behind a str that came from a command line or a file, in which undecodable bytes are surrogates. Raises
    `PathFault` for a surrogate that stands for no byte, as JSON can have it."""
    try:
        return text.encode("utf-8", "surrogateescape")
    except UnicodeEncodeError:
        raise PathFault("no text", text.encode("utf-8", "surrogatepass")) from None


def name(component: bytes) -> Name:
    """One component, proved. Raises `PathFault`."""
    if not component or component in (b".", b"..") or b"/" in component:
        raise PathFault("not a name", component)
    if b"\0" in component:
        raise PathFault("nul", component)
    if len(component) > NAME_MAX:
        raise PathFault("name too long", component)
    return Name(component)


def components(text: bytes) -> list[Name]:
    """The names a path walks through, with `.` and `..` resolved by their text; `..` above `/` stays at `/`.

    Takes any text, absolute or not, and reads it from `/`. Raises `PathFault`.
    """
    if not text:
        raise PathFault("empty", text)
    if b"\0" in text:
        raise PathFault("nul", text)
    walked: list[Name] = []
    for component in text.split(b"/"):
        if component in (b"", b"."):
            continue
        if component == b"..":
            if walked:
                walked.pop()
        elif len(component) > NAME_MAX:
            raise PathFault("name too long", component)
        else:
            walked.append(Name(component))
    return walked


def joined(names: list[Name]) -> bytes:
    """The absolute path that walks these names."""
    return b"/" + b"/".join(names)


def view_path(text: bytes, start: ViewPath = ROOT) -> ViewPath:
    """A path as a caller wrote it, absolute and resolved; a relative one is read from the start directory.

    Rules path-1 to path-7. Raises `PathFault`.
    """
    if not text:
        raise PathFault("empty", text)
    return ViewPath(joined(components(text if text.startswith(b"/") else start + b"/" + text)))


def host_path(text: bytes, home: HostPath | None = None) -> HostPath:
    """A place on the machine: absolute, or `~` and `~/...` where `home` is given. Raises `PathFault`."""
    if home is not None and (text == b"~" or text.startswith(b"~/")):
        text = home + text[1:]
    if not text:
        raise PathFault("empty", text)
    if not text.startswith(b"/"):
        raise PathFault("not absolute", text)
    return HostPath(joined(components(text)))


def below(path: bytes, ancestor: bytes) -> bytes | None:
    """What remains of an absolute, resolved `path` under `ancestor`: b"" for the same place, None if it is not there.

    Compared by components: `/Downloads-evil` is not below `/Downloads` (rule path-8).
    """
    if path == ancestor:
        return b""
    prefix = ancestor if ancestor.endswith(b"/") else ancestor + b"/"
    return path[len(prefix) :] if path.startswith(prefix) else None


def child(parent: ViewPath, of: Name) -> ViewPath:
    """The path of a name in a directory."""
    return ViewPath(parent + of if parent == b"/" else parent + b"/" + of)


def folded(name: bytes) -> str:
    """A name as rules that ignore case compare it. NFKC and case folding, so that no other spelling that a case-folding
    file system takes for the same name escapes."""
    if name.isascii():
        return name.decode("ascii").lower()
    text = name.decode("utf-8", "surrogateescape")
    return unicodedata.normalize("NFKC", unicodedata.normalize("NFKC", text).casefold())
