"""Globs on a name in any directory, and the folding under which they are compared."""

from __future__ import annotations

import fnmatch
import re
import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyfs.policy.globs import NameDenials, glob_pattern
from policyfs.policy.paths import folded
from policyfs.policy.rules import Denial


def denials(*globs: str, built_in: tuple[str, ...] = (), excepted: tuple[str, ...] = ()) -> NameDenials:
    return NameDenials(
        [(glob, Denial(glob, "session")) for glob in globs],
        [(glob, Denial(glob, "built-in denylist")) for glob in built_in],
        excepted,
    )


def takes_in(glob: str, name: str) -> bool:
    """Whether the glob denies the name, asked alone and between others of every kind, which must not change it."""
    alone = denials(glob).match(name.encode("utf-8", "surrogateescape")) is not None
    others = ("\1exact", "\1*", "*\1", "\1?", "[\1]x*y")
    among = denials(*others, glob, *others).match(name.encode("utf-8", "surrogateescape")) is not None
    assert alone == among
    return alone


@pytest.mark.parametrize(
    ("glob", "name", "holds"),
    [
        (".env", ".env", True),
        (".env", ".environment", False),
        (".env.*", ".env.local", True),
        (".env.*", ".env.", True),
        (".env.*", ".env", False),
        ("*.pem", ".pem", True),
        ("*.pem", "a.pem", True),
        ("*.pem", "a.pem.bak", False),
        ("*.pem", "pem", False),
        ("*.tar.gz", "a.tar.gz", True),
        ("*.tar.gz", "a.gz", False),
        ("*", "anything", True),
        ("**", "anything", True),
        ("a*b*c", "axxbxxc", True),
        ("a*b*c", "acb", False),
        ("*key*", "my-key-file", True),
        ("a?c", "abc", True),
        ("a?c", "ac", False),
        ("[!x]", "y", True),
        ("[!x]", "x", False),
        ("[]x]", "]", True),
        ("[]x]", "x", True),
        ("[]x]", "y", False),
        ("[!]x]", "]", False),
        ("[!]x]", "y", True),
        ("[x", "[x", True),
        ("[x", "x", False),
        ("[!", "[!", True),
        ("[]", "[]", True),
        ("[a-c]1", "b1", True),
        ("[a-c]1", "d1", False),
        ("[a-]", "-", True),
        ("[--/]", ".", True),
        ("[c-a]", "b", False),
        ("[c-a]", "c", False),
        ("[a]b]", "ab]", True),
        ("a[x", "a[x", True),
        ("a[bc]", "ab", True),
        ("a[bc]", "b", False),
        ("a*b*c*d", "axbxcxd", True),
        ("*?[a]", "xya", True),
        ("*?[a]", "*?[a]", False),
        ("[a-a]", "a", True),
        ("[xa-c]", "x", True),
        ("[xa-c]", "b", True),
        ("[a-cx]", "x", True),
        ("[a-cx-z]", "y", True),
        ("[a-cx-z]", "b", True),
        ("[a-cxyz]", "z", True),
        ("[a-c-e]", "-", True),
        ("[a-c-e]", "d", False),
        ("[!c-a]", "b", True),
        ("a+(b|c).d{2}^$", "a+(b|c).d{2}^$", True),
        ("a+(b|c).d{2}^$", "aab.dd", False),
        (r"a\*b", r"a\xb", True),
        ("a.b", "axb", False),
        ("[a&&b||c~~d]", "&", True),
        ("a*b", "a\nb", True),
    ],
)
def test_what_a_glob_takes_in(glob: str, name: str, holds: bool) -> None:
    """Stars, marks and sets mean what they mean in a shell; everything else means itself."""
    assert takes_in(glob, name) is holds


@pytest.mark.parametrize(("glob", "name"), [("[^x]", "y"), ("[^]x]", "y")])
def test_a_caret_negates_a_set_as_in_a_shell(glob: str, name: str) -> None:
    """`[^x]` is `[!x]`, which is where globs here and Python's fnmatch differ: people write it who come from bash."""
    assert takes_in(glob, name)
    assert not takes_in(glob, "x")


ALPHABET = "ab.*?[]!-x"


@given(st.text(ALPHABET, min_size=1, max_size=8), st.text("ab.[]!-x", min_size=1, max_size=8))
def test_globs_are_those_of_fnmatch(glob: str, name: str) -> None:
    """For every glob and name, the answer is fnmatch's."""
    assert takes_in(glob, name) == fnmatch.fnmatchcase(name, glob)


TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="\1"), min_size=1, max_size=12)


@given(TEXTS.filter(lambda text: not set(folded(text.encode())) & set("*?[")), TEXTS)
def test_a_name_without_specials_takes_in_itself_alone(glob: str, name: str) -> None:
    """Whatever means something in a regular expression means itself in a rule."""
    assert takes_in(glob, glob)
    assert takes_in(glob, name) == (folded(glob.encode()) == folded(name.encode()))


@given(st.text(ALPHABET + "^+(){}|\\&~$", max_size=12))
def test_every_glob_compiles_without_a_group(glob: str) -> None:
    """Patterns are joined and told apart by their group's number, so that none may make a group of its own."""
    assert re.compile(glob_pattern(glob)).groups == 0


@pytest.mark.parametrize("glob", ["[a]", "[a-c]", "[b-a]", "[!X]"])
def test_a_set_holds_its_members_alone(glob: str) -> None:
    """And no capital letter, which no folded name has."""
    assert re.fullmatch(glob_pattern(glob), "X") is None


def test_a_glob_of_many_stars_takes_no_time() -> None:
    """Against a name made for it, a glob of many stars still ends: a naive expression would take more than an hour."""
    assert denials("*a" * 20 + "*b?").match(b"a" * 255) is None


@pytest.mark.parametrize(
    ("glob", "name"),
    [
        (".env", ".ENV"),
        (".ENV", ".env"),
        ("*.pem", "KEY.Pem"),
        ("secrets.*", "SECRETS.yaml"),
        ("[a-c]?", "BX"),
        ("[A-C]?", "bx"),
        (".env", "\N{FULLWIDTH FULL STOP}\N{FULLWIDTH LATIN SMALL LETTER E}nv"),
        ("straße", "STRASSE"),
        ("strasse", "straße"),
        ("\N{LATIN SMALL LETTER LONG S}ecret", "secret"),
        ("ﬁle", "FILE"),
        ("café", "cafe\N{COMBINING ACUTE ACCENT}"),
        ("ΑΣ", "ας"),
        ("\N{LATIN CAPITAL LETTER I WITH DOT ABOVE}d", "i\N{COMBINING DOT ABOVE}d"),
    ],
)
def test_spellings_of_one_name(glob: str, name: str) -> None:
    """What a file system could take for one name is one name to a rule: case, width, ligatures, composition."""
    assert takes_in(glob, name)


@pytest.mark.parametrize(
    ("glob", "name"), [("id_rsa", "\N{LATIN SMALL LETTER DOTLESS I}d_rsa"), ("a", "\N{CYRILLIC SMALL LETTER A}")]
)
def test_letters_that_only_look_alike_are_others(glob: str, name: str) -> None:
    """No file system takes a dotless i for an i, nor letters of two alphabets for one another."""
    assert not takes_in(glob, name)


@given(st.text(max_size=6))
def test_folding_twice_changes_nothing(text: str) -> None:
    """So two spellings of one name fold to one text, however each is written."""
    once = folded(text.encode())
    assert folded(once.encode()) == once
    assert folded(unicodedata.normalize("NFD", text).encode()) == once


@given(st.binary(max_size=8))
def test_every_name_folds(name: bytes) -> None:
    """Names are bytes: one that is not UTF-8 folds too, and its ASCII letters ignore case."""
    assert folded(name.upper()) == folded(name.lower()) or not name.isascii()
    assert isinstance(folded(name), str)


def test_bytes_that_are_no_utf8() -> None:
    """A rule on a name's end holds whatever bytes come before it, and undecodable bytes are told apart."""
    assert denials("*.pem").match(b"\xff\xfe.PEM") is not None
    exact = denials(b"\xff".decode("utf-8", "surrogateescape"))
    assert exact.match(b"\xff") is not None
    assert exact.match(b"\xfe") is None


def test_the_rule_that_matched_is_named() -> None:
    """Each kind of glob answers with its own rule."""
    names = denials("exact", "beg*", "*end", "m?ddle", "[xy]*z")
    expected = {"exact": "exact", "beginning": "beg*", "the end": "*end", "middle": "m?ddle", "x to z": "[xy]*z"}
    for name, glob in expected.items():
        assert names.match(name.encode()) == Denial(glob, "session")


def test_exceptions_lift_the_built_in_rules_alone() -> None:
    """`[deny] except` takes names out of the built-in denylist, never out of the session's own rules."""
    names = denials("own.pem", built_in=("*.pem",), excepted=("cacert.pem", "OWN.*"))
    assert names.match(b"cacert.pem") is None
    assert names.match(b"CaCert.PEM") is None
    assert names.match(b"cacert.pem.pem") == Denial("*.pem", "built-in denylist")
    assert names.match(b"own.pem") == Denial("own.pem", "session")
