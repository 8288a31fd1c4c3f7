"""Whether what was shown on a terminal may have made it answer. Pure.

A terminal answers some control sequences by typing (its name, a colour, where its cursor stands, the title of its window),
and the next reader gets the answer. What asks cannot be listed, since terminals differ; so the sequences are listed that
are known never to be answered, and everything else with a control character that begins one counts as a question.
"""

from __future__ import annotations

import codecs
import re

_UNANSWERED = re.compile(
    rb"""\x1b(?:
        \[ [0-9;:]* [@A-HJKLMPSTXZ`abdefghlmrsu]        # cursor, erasing, scrolling, colours: ECMA-48
      | \[ \? (?!(?:[0-9;]*;)?(?:9|10[01][0-9]|2031|2048)[;hr]) [0-9;]* [hlJKrs]   # modes, but for those that report
      | \[ > [0-9;]* m | \[ [<=>] [0-9;]* u             # keys of xterm and kitty
      | \[ ! p | \[ [0-9]* [ ] q                        # reset, form of the cursor
      | \[ 2[23] (?:;[0-9]+)* t                         # titles put aside and back
      | [()*+] [0-9A-Za-z] | \# [0-9] | [78=>DEHMNOc]   # character sets, cursor, index
      | \] [0128] ; [^\x00-\x1f\x7f]* (?:\x07|\x1b\\)   # titles, links
      | \\                                              # the end of a string
    )""",
    re.VERBOSE,
)

_BEGUN = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\](?:[0128](?:;[^\x00-\x1f\x7f]*\x1b?)?)?|[()*+#])?\Z")
"""What is not at its end yet, and may be one of those."""

_LONGEST = 4096
"""Bytes that a sequence may have and still be known."""

_CONTROLS = re.compile("[\x05\x80-\x9f\ufffd]")
"""ENQ; the C1 set, one character for each sequence that begins with ESC otherwise; and what was not UTF-8."""


class Questions:
    """Follows what is shown."""

    def __init__(self, *, utf8: bool) -> None:
        """`utf8`: whether the terminal reads UTF-8; to others a byte of a letter can be a control character."""
        self.asked = False
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace") if utf8 else None
        self._begun = b""

    def shown(self, part: bytes) -> None:
        """The next part of what is shown, wherever it is cut."""
        if self.asked:
            return
        text = part.decode("latin-1") if self._decoder is None else self._decoder.decode(part)
        if _CONTROLS.search(text):
            self.asked = True
            return
        rest = self._begun + part
        self._begun = b""
        begin = rest.find(b"\x1b")
        while begin >= 0:
            known = _UNANSWERED.match(rest, begin)
            if known is None:
                self._begun = rest[begin:]
                self.asked = len(self._begun) > _LONGEST or _BEGUN.match(self._begun) is None
                return
            begin = rest.find(b"\x1b", known.end())
