"""git's configuration files, read without git, and what they name for git to execute. Pure: bytes in, values out.

git itself is not asked: it executes what a repository configures. The format is that of git-config(1), "Syntax".
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

MAX_BYTES = 1 << 20
"""Bytes of a configuration file that is read."""


class NotAConfiguration(ValueError):
    """The bytes are not a configuration file, and git refuses them too."""


@dataclass(frozen=True, slots=True)
class Entry:
    """A line of a configuration. `section` and `key` are in lower case; a key without `=` has no value."""

    section: str
    subsection: bytes | None
    key: str
    value: bytes | None

    @property
    def name(self) -> str:
        """As git writes it: `core.hookspath`, `filter.lfs.clean`."""
        middle = "" if self.subsection is None else self.subsection.decode("utf-8", "surrogateescape") + "."
        return f"{self.section}.{middle}{self.key}" if self.section else self.key


_BLANK = re.compile(rb"(?:[ \t\r\n]|[#;][^\n]*)*")
_HEADER = re.compile(rb'\[([A-Za-z0-9.-]+)(?:[ \t]+"((?:[^"\\\n]|\\[^\n])*)")?[ \t]*\]')
_KEY = re.compile(rb"([A-Za-z][A-Za-z0-9-]*)[ \t]*(?:(=)|(?=\r?\n|[#;]|\Z))")
_VALUE = re.compile(rb'(?:[^"\\\n#;]|\\(?:\r?\n|\Z|[ntb"\\])|"(?:[^"\\\n]|\\(?:\r?\n|[ntb"\\]))*")*')
_PIECE = re.compile(rb'\\(?:\r?\n|\Z)|\\.|"|[ \t\r]|[^"\\ \t\r]+', re.DOTALL)
_ESCAPES = {b"n": b"\n", b"t": b"\t", b"b": b"\b", b'"': b'"', b"\\": b"\\"}


def parse(content: bytes) -> list[Entry]:
    """The lines of a configuration file, in order. Raises `NotAConfiguration`."""
    entries: list[Entry] = []
    # git takes a key before the first section, too.
    section = ""
    subsection: bytes | None = None
    position = 3 if content.startswith(b"\xef\xbb\xbf") else 0
    while True:
        position = _end(_BLANK, content, position)
        if position == len(content):
            return entries
        header = _HEADER.match(content, position)
        if header is not None:
            # A subsection after a dot is of old, and without regard to case.
            section, _, dotted = header[1].decode("ascii").lower().partition(".")
            quoted = None if header[2] is None else re.sub(rb"\\(.)", rb"\1", header[2])
            subsection = quoted if quoted is not None or not dotted else dotted.encode()
            position = header.end()
            continue
        key = _KEY.match(content, position)
        if key is None:
            raise _fault(content, position, "is not one of a configuration")
        position = key.end()
        value = None
        if key[2] is not None:
            start, position = position, _end(_VALUE, content, position)
            if content[position : position + 1] not in (b"", b"\n", b"#", b";"):
                raise _fault(content, position, "ends in the middle of a value")
            value = _value(content[start:position])
        entries.append(Entry(section, subsection, key[1].decode("ascii").lower(), value))


def _end(pattern: re.Pattern[bytes], content: bytes, position: int) -> int:
    """Where what matches from here on ends."""
    found = pattern.match(content, position)
    return position if found is None else found.end()


def _fault(content: bytes, position: int, what: str) -> NotAConfiguration:
    number = content.count(b"\n", 0, position) + 1
    return NotAConfiguration(f"line {number} {what}")


def _value(written: bytes) -> bytes:
    """A value without its quotes, escapes and the white space around it (config.c, `parse_value`)."""
    value = bytearray()
    quoted = False
    # Where white space began that may be the end.
    end: int | None = None
    for piece in _PIECE.findall(written):
        if piece == b'"':
            quoted = not quoted
            end = None
        elif piece in (b" ", b"\t", b"\r") and not quoted:
            if value:
                end = len(value) if end is None else end
                value += piece
        elif not piece.startswith(b"\\"):
            value += piece
            end = None
        elif piece[1:] in _ESCAPES:
            value += _ESCAPES[piece[1:]]
            end = None
    return bytes(value if end is None else value[:end])


# -- what is executed ---------------------------------------------------------------------------------------------------

_PATHS = frozenset({"core.hookspath", "init.templatedir"})
"""Keys whose value is a path; a relative one begins in the work tree."""

_COMMANDS = frozenset(
    {
        "core.alternaterefscommand", "core.askpass", "core.editor", "core.fsmonitor", "core.gitproxy", "core.pager",
        "core.sshcommand", "credential.helper", "diff.command", "diff.external", "diff.textconv", "difftool.cmd",
        "difftool.path", "browser.cmd", "browser.path", "filter.clean", "filter.process", "filter.smudge",
        "gc.recentobjectshook", "gpg.program", "gpg.defaultkeycommand", "guitool.cmd", "hook.command", "imap.tunnel",
        "instaweb.browser", "instaweb.httpd", "tar.command",
        "interactive.difffilter", "man.cmd", "man.path", "merge.driver", "mergetool.cmd", "mergetool.path",
        "remote.receivepack", "remote.uploadpack", "sendemail.cccmd", "sendemail.headercmd", "sendemail.sendmailcmd",
        "sendemail.smtpserver", "sendemail.tocmd", "sequence.editor", "submodule.update", "trailer.cmd", "trailer.command",
        "uploadpack.packobjectshook", "web.browser",
        # Of programs that extend git and read the same files.
        "lfs.path", "lfs.clean", "lfs.smudge", "svn.authorsprog",
    }
)  # fmt: skip
"""Keys, without their subsection, whose value is a command or a program; those of `alias` and `pager` besides."""

_BOOLEANS = frozenset({b"", b"true", b"false", b"yes", b"no", b"on", b"off", b"0", b"1"})


@dataclass(frozen=True, slots=True)
class Named:
    """A place that a configuration names: `path` as it is written there, `key` by which. A word of a command that is not
    `certain` names one only if something is there."""

    key: str
    path: bytes
    certain: bool = True


def named(entries: Iterable[Entry]) -> Iterator[Named]:
    """What a configuration names for git to execute, or to take programs from. A relative path begins in the work tree."""
    for entry in entries:
        plain = f"{entry.section}.{entry.key}"
        value = entry.value or b""
        if plain in _PATHS and value:
            yield Named(entry.name, value)
        elif (plain in _COMMANDS or entry.section in ("alias", "pager")) and value.lower() not in _BOOLEANS:
            for number, word in enumerate(_words(value, alias=entry.section == "alias")):
                if _is_path(word):
                    yield Named(entry.name, word, certain=number == 0)
                elif b"." in word[1:-1]:
                    yield Named(entry.name, word, certain=False)


def included(entries: Iterable[Entry]) -> Iterator[bytes]:
    """The further files that a configuration includes, under a condition or not. A relative one begins beside it."""
    for entry in entries:
        if entry.section in ("include", "includeif") and entry.key == "path" and entry.value:
            yield entry.value


def work_tree(entries: Iterable[Entry]) -> bytes | None:
    """`core.worktree`, the last that is said."""
    values = [entry.value for entry in entries if entry.name == "core.worktree" and entry.value]
    return values[-1] if values else None


def is_sha256(entries: Iterable[Entry]) -> bool:
    """Whether a repository's objects are named by SHA-256."""
    return any(entry.name == "extensions.objectformat" and entry.value == b"sha256" for entry in entries)


def is_in_work_tree(path: bytes) -> bool:
    """Whether a path that a configuration names begins in the work tree, whichever that is, and not in `.git`."""
    return not path.startswith((b"/", b"~", b"%(prefix)/")) and path.removeprefix(b"./").partition(b"/")[0] != b".git"


def _words(command: bytes, *, alias: bool) -> list[bytes]:
    """The words of a command line, roughly as a shell takes it apart."""
    if alias and not command.startswith(b"!"):
        return []
    return [word for word in re.split(rb"[\s'\"`;&|()<>{}$=]+", command.lstrip(b"!")) if word]


def _is_path(word: bytes) -> bool:
    return b"/" in word and not word.startswith(b"-") and b"://" not in word
