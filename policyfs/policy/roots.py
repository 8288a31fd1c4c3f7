"""Roots: places of the machine that a person opens for reading or for writing, as one text (rules root-2
and root-3).

A text of roots comes from a field that a person fills in, so one wrong line must not take the others away; it must not
pass unseen either. `split_roots` therefore gives both: the roots that hold, and what is wrong with the rest.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from policyfs.policy.paths import HostPath, PathFault, display, from_text, host_path

_SEPARATORS = re.compile(r"[\n,]")
_BLANKS = (
    "\t\v\f\r \u00a0\u1680\u2000\u2001\u2002\u2003\u2004\u2005\u2006\u2007\u2008\u2009\u200a"
    "\u2028\u2029\u202f\u205f\u3000\ufeff"
)
"""What `str.strip()` drops is not this: it takes the bytes 0x1c to 0x1f and U+0085 off a name, and leaves a byte order mark
on a path, which is then not absolute. These are the blanks of conformance/README.md."""


class NoRoot(NamedTuple):
    """An entry that is not a root."""

    entry: str
    """As it was written, without the blanks around it."""
    fault: str
    """Why: as `PathFault` has it."""

    def __str__(self) -> str:
        # One that stands for no bytes is shown as `from_text` shows it.
        text = self.entry.encode("utf-8", "surrogatepass" if self.fault == "no text" else "surrogateescape")
        return f"`{display(text)}` is not a root ({self.fault}); write /like/this or ~/like/this"


class Roots(NamedTuple):
    """The roots of a text, and the entries that are none."""

    roots: tuple[HostPath, ...]
    """Absolute and resolved by their text, in the order written, each once."""
    reported: tuple[NoRoot, ...]
    """The entries that are not roots, in the order written, each once."""


def split_roots(text: str, home: HostPath) -> Roots:
    r"""The roots in a text: split on newlines and commas, blanks around an entry dropped, empty entries dropped, a
    leading `~` or `~/` expanded to `home`. Whether a place exists is not asked: it may be made later. An entry that is
    not absolute is reported, and the others hold (rules root-2 and root-3).

    >>> found = split_roots("~/Downloads, /srv/data\nnotes", HostPath(b"/home/ada"))
    >>> found.roots
    (b'/home/ada/Downloads', b'/srv/data')
    >>> found.reported
    (NoRoot(entry='notes', fault='not absolute'),)
    """
    roots: dict[HostPath, None] = {}
    reported: dict[NoRoot, None] = {}
    for entry in _SEPARATORS.split(text):
        written = entry.strip(_BLANKS)
        if not written:
            continue
        try:
            roots.setdefault(host_path(from_text(written), home))
        except PathFault as fault:
            reported.setdefault(NoRoot(written, fault.fault))
    return Roots(tuple(roots), tuple(reported))
