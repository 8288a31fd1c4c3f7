"""A session file's text: what it gives, and every fault with its key."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policyfs.policy.denylist import EXCEPTIONS
from policyfs.policy.levels import Level
from policyfs.policy.paths import HostPath
from policyfs.policy.session import (
    LINKS_OUTSIDE,
    Deny,
    Session,
    SessionFaults,
    denial_option,
    level_option,
    loads,
    loads_floors,
)

HOME = HostPath(b"/home/p")


def faults(text: str) -> list[tuple[str, str]]:
    """What is wrong with a text, as key and message."""
    with pytest.raises(SessionFaults) as caught:
        loads(text, "session.toml")
    assert caught.value.where == "session.toml"
    for fault in caught.value.faults:
        assert str(fault).isprintable()
    return [(fault.key, fault.message) for fault in caught.value.faults]


def test_everything_a_session_file_can_say() -> None:
    """Every key of docs/session-file.md is read, and its paths are resolved."""
    session = loads(
        r"""
        boundary = "/Notes/.."
        start    = "//project/"
        [grants]
        "/"              = "ro"
        "/Notes/"        = "stage"
        "/Notes/Private" = "none"
        "/repo"          = "commit"
        [floors]
        "/Notes/./Archive" = "ro"
        [deny]
        defaults   = false
        paths      = ["/Notes/keys", "~/.config/rclone", "~"]
        names      = ["*.kdbx", "secrets.*"]
        extensions = [".asc"]
        except     = ["public.pem"]
        [links]
        outside = ["/usr", "/srv/../opt"]
        [passages]
        unknown = "missing"
        [roots]
        read  = ["~/Pictures"]
        write = ["/srv/out"]
        """
    )
    assert session == Session(
        boundary=b"/",
        start=b"/project",
        grants={b"/": Level.RO, b"/Notes": Level.STAGE, b"/Notes/Private": Level.NONE, b"/repo": Level.COMMIT},
        floors={b"/Notes/Archive": Level.RO},
        deny=Deny(False, ("/Notes/keys", "~/.config/rclone", "~"), ("*.kdbx", "secrets.*"), (".asc",), ("public.pem",)),
        links_outside=(b"/usr", b"/opt"),
        unknown_missing=True,
        read_roots=("~/Pictures",),
        write_roots=("/srv/out",),
    )


def test_what_an_empty_session_file_says() -> None:
    """Nothing is granted, and the denylist is on."""
    assert loads("") == Session()
    assert Session().deny == Deny(True, (), (), (), EXCEPTIONS)
    assert Session().links_outside == LINKS_OUTSIDE
    assert not Session().unknown_missing


@pytest.mark.parametrize(
    ("text", "key", "message"),
    [
        ("boundary = 3", "boundary", "3 is not a path; write a text from /"),
        ('boundary = ""', "boundary", "empty: ``; write a path of the view, from /"),
        ('start = "project"', "start", "not absolute: `project`; write a path of the view, from /"),
        (r'start = "/a\u0000b"', "start", r"nul: `/a\x00b`; write a path of the view, from /"),
        ("[boundary]", "boundary", "{} is not a path; write a text from /"),
        ("grants = 1", "grants", "is a table; write [grants]"),
        ("[[grants]]", "grants", "is a table; write [grants]"),
        ('deny = "x"', "deny", "is a table; write [deny]"),
        ('[grants]\n"/a" = "rw"', 'grants."/a"', '"rw" is not a level; write one of none, ro, stage, commit'),
        ('[grants]\n"/a" = "RO"', 'grants."/a"', '"RO" is not a level; write one of none, ro, stage, commit'),
        ('[grants]\n"/a" = 1', 'grants."/a"', "1 is not a level; write one of none, ro, stage, commit"),
        ('[grants]\n"/a" = ["ro"]', 'grants."/a"', "['ro'] is not a level; write one of none, ro, stage, commit"),
        ('[grants]\na = "ro"', 'grants."a"', "not absolute: `a`; write a path of the view, from /"),
        ('[grants]\n"~/a" = "ro"', 'grants."~/a"', "not absolute: `~/a`; write a path of the view, from /"),
        ('[grants]\n"" = "ro"', 'grants.""', "empty: ``; write a path of the view, from /"),
        ('[grants]\n"/\\u001b\\n" = "x"', r'grants."/\x1b\n"', '"x" is not a level; write one of none, ro, stage, commit'),
        ('[grants."/a"]\nb = "ro"', 'grants."/a"', "{'b': 'ro'} is not a level; write one of none, ro, stage, commit"),
        ('[floors]\n"/a" = true', 'floors."/a"', "True is not a level; write one of none, ro, stage, commit"),
        ("[deny]\ndefaults = 1", "deny.defaults", "1 is neither true nor false"),
        ('[deny]\npaths = "/a"', "deny.paths", 'is a list of texts; write ["one", "two"]'),
        ("[deny]\nnames = [1]", "deny.names", '1 is not text; write ["one", "two"]'),
        ('[deny]\nnames = [""]', "deny.names", '"" is empty or holds a NUL'),
        ('[deny]\nnames = ["\\u0000"]', "deny.names", r'"\x00" is empty or holds a NUL'),
        ('[deny]\npaths = ["/a\\u0000"]', "deny.paths", r'"/a\x00" is empty or holds a NUL'),
        ('[deny]\npaths = ["a"]', "deny.paths", '"a" is not a path; write /from/the/view or ~/from/the/home'),
        ('[deny]\npaths = ["~p/a"]', "deny.paths", '"~p/a" is not a path; write /from/the/view or ~/from/the/home'),
        (
            '[deny]\nnames = ["a/b"]',
            "deny.names",
            '"a/b" holds a /, which no name does; a path is written from / or from ~/',
        ),
        ('[deny]\nextensions = ["asc"]', "deny.extensions", '"asc" has no dot; write ".asc"'),
        (
            '[deny]\nexcept = ["/x"]',
            "deny.except",
            '"/x" holds a /, which no name does; a path is written from / or from ~/',
        ),
        (
            '[deny]\nextensions = [".a/b"]',
            "deny.extensions",
            '".a/b" holds a /, which no name does; a path is written from / or from ~/',
        ),
        ('[grants]\nx = "ro"\n"/b" = "ro"', 'grants."x"', "not absolute: `x`; write a path of the view, from /"),
        ('[roots]\nread = [""]', "roots.read", '"" is empty or holds a NUL'),
        ('[roots]\nwrite = ["/a\\u0000"]', "roots.write", r'"/a\x00" is empty or holds a NUL'),
        ('[links]\noutside = ["usr"]', "links.outside", "not absolute: `usr`; write a place on this machine, /like/this"),
        ('[passages]\nunknown = "no"', "passages.unknown", '\'no\' is neither "denied" nor "missing"'),
        ("[passages]\nunknown = []", "passages.unknown", '[] is neither "denied" nor "missing"'),
        ('[roots]\nread = ["a"]', "roots.read", '"a" not absolute: `a`; write /like/this or ~/like/this'),
        ("colour = 1", '"colour"', "unknown key"),
        ("[colour]\na = 1", '"colour"', "unknown key"),
        ("[deny]\nname = []", 'deny."name"', "unknown key"),
        ("[links]\ninside = []", 'links."inside"', "unknown key"),
        ("[passages]\nx = 1", 'passages."x"', "unknown key"),
        ("[roots]\nreads = []", 'roots."reads"', "unknown key"),
        ('"a\\nb" = 1', r'"a\nb"', "unknown key"),
    ],
)
def test_each_kind_of_fault(text: str, key: str, message: str) -> None:
    """A fault is reported once, at its key, on one line that says what to write instead."""
    assert faults(text) == [(key, message)]


@pytest.mark.parametrize("key", ["deny.paths", "roots.write"])
@pytest.mark.parametrize("start", ["/", "~/"])
def test_a_name_too_long_in_a_list(key: str, start: str) -> None:
    """A place of the home is proved when it is read too, though the home is not known yet."""
    table, _, inner = key.partition(".")
    (fault,) = faults(f'[{table}]\n{inner} = ["{start}{"n" * 256}"]')
    assert fault[0] == key
    assert "name too long" in fault[1]


@pytest.mark.parametrize(
    "text",
    [
        "= 1",
        "[grants",
        '[grants]\n"/a" = "ro"\n"/a" = "ro"',
        "[deny]\n[deny]",
        "a = " + "9" * 5000,
        "a = " + "[" * 9000,
        '"/a" = "\x00"',
        '\ufeff"/a" = 1',
        'a = "\\ud800"',
        "a = 2021-13-41",
    ],
)
def test_what_is_no_toml(text: str) -> None:
    """A text that is not TOML is one fault at the key TOML: what Python's reader cannot count or nest is no exception."""
    ((key, message),) = faults(text)
    assert key == "TOML"
    assert message


def test_what_is_wrong_with_a_toml_is_told() -> None:
    """In the words of Python's reader, with the line, and of the file that is read."""
    with pytest.raises(SessionFaults, match=r"^session: TOML: Invalid value \(at line 2, column 5\)$"):
        loads("\na = !")
    with pytest.raises(SessionFaults, match=r"^a\.toml: TOML: lists or tables nested too deeply$"):
        loads("a = " + "[" * 9000, "a.toml")
    with pytest.raises(SessionFaults, match=r"^a\.toml: TOML: a number with too many digits; no key takes a number$"):
        loads("a = " + "9" * 5000, "a.toml")


def test_every_fault_at_once() -> None:
    """One reading finds all that is wrong, and nothing is taken from the file."""
    found = faults(
        """
        start = "here"
        colour = "blue"
        [grants]
        "/a" = "rw"
        "b" = "ro"
        [floors]
        "/c" = "x"
        [deny]
        paths = ["d"]
        names = ["e/f", ""]
        extra = 1
        [passages]
        unknown = 1
        """
    )
    assert [key for key, _ in found] == [
        "start",
        'grants."/a"',
        'grants."b"',
        'floors."/c"',
        "deny.paths",
        "deny.names",
        "deny.names",
        "passages.unknown",
        '"colour"',
        'deny."extra"',
    ]


def test_paths_that_are_none_are_not_one_path() -> None:
    """Two of them with two levels are two faults of their own, and no second level for one."""
    assert [key for key, _ in faults('[grants]\n"a" = "ro"\n"b" = "stage"\n')] == ['grants."a"', 'grants."b"']
    assert all("second level" not in message for _, message in faults('[grants]\n"a" = "ro"\n"b" = "stage"\n'))


def test_one_fault_hides_no_other() -> None:
    """An entry of a wrong type is told by itself, and the rest of its list is looked through; so is the other side
    of a rule."""
    no_text = 'is not text; write ["one", "two"]'
    no_level = "is not a level; write one of none, ro, stage, commit"
    assert faults('[deny]\npaths = [1, "x", []]\nnames = [true, "a/b", ""]') == [
        ("deny.paths", f"1 {no_text}"),
        ("deny.paths", f"[] {no_text}"),
        ("deny.paths", '"x" is not a path; write /from/the/view or ~/from/the/home'),
        ("deny.names", f"True {no_text}"),
        ("deny.names", '"" is empty or holds a NUL'),
        ("deny.names", '"a/b" holds a /, which no name does; a path is written from / or from ~/'),
    ]
    assert faults('[roots]\nread = [1, "a"]\n[links]\noutside = [1, "usr"]') == [
        ("links.outside", f"1 {no_text}"),
        ("links.outside", "not absolute: `usr`; write a place on this machine, /like/this"),
        ("roots.read", f"1 {no_text}"),
        ("roots.read", '"a" not absolute: `a`; write /like/this or ~/like/this'),
    ]
    assert faults('[grants]\n"b" = "rw"') == [
        ('grants."b"', f'"rw" {no_level}'),
        ('grants."b"', "not absolute: `b`; write a path of the view, from /"),
    ]
    with pytest.raises(SessionFaults) as caught:
        loads_floors('[floors]\nc = "x"', "f", HostPath(b"/home"))
    assert [(fault.key, fault.message) for fault in caught.value.faults] == [
        ('floors."c"', f'"x" {no_level}'),
        ('floors."c"', "not absolute: `c`; write a place on this machine, /like/this or ~/like/this"),
    ]


def test_one_path_under_two_spellings() -> None:
    """Two spellings of one path may agree, and must not differ."""
    assert loads('[grants]\n"/a" = "ro"\n"/a/" = "ro"').grants == {b"/a": Level.RO}
    assert faults('[grants]\n"/a" = "ro"\n"//a" = "stage"\n"/b/../a" = "ro"') == [
        ('grants."//a"', "gives /a a second level; keep one")
    ]
    assert faults('[floors]\n"/a" = "none"\n"/a/." = "stage"') == [('floors."/a/."', "gives /a a second level; keep one")]


def test_a_floors_file() -> None:
    """Its keys are places on the host; of two spellings the lower level holds; nothing else may be in it."""
    text = '[floors]\n"~/Notes" = "stage"\n"/home/p/Notes/" = "ro"\n"/srv" = "none"'
    assert loads_floors(text, "floors.toml", HOME) == {b"/home/p/Notes": Level.RO, b"/srv": Level.NONE}
    assert loads_floors('[floors]\n"/a" = "none"\n"//a" = "ro"', "floors.toml", HOME) == {b"/a": Level.NONE}
    with pytest.raises(SessionFaults) as caught:
        loads_floors('[grants]\n"/" = "ro"\n[floors]\nNotes = "ro"\n"/a" = "rw"', "floors.toml", HOME)
    assert str(caught.value) == (
        'floors.toml: floors."Notes": not absolute: `Notes`; write a place on this machine, /like/this or ~/like/this; '
        'floors."/a": "rw" is not a level; write one of none, ro, stage, commit; grants."/": unknown key'
    )


@pytest.mark.parametrize(
    ("text", "path", "level"),
    [
        ("/=ro", b"/", Level.RO),
        ("/a=b=stage", b"/a=b", Level.STAGE),
        ("/a/../b/=none", b"/b", Level.NONE),
        ("/\udcff=commit", b"/\xff", Level.COMMIT),
    ],
)
def test_a_level_as_an_option(text: str, path: bytes, level: Level) -> None:
    """The last = parts the path from the level; undecodable bytes stay what they are."""
    assert level_option(text, "--grant") == (path, level)


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        ("/a", ['"/a": no level; write PATH=LEVEL, such as /Notes=stage']),
        ("", ['"": no level; write PATH=LEVEL, such as /Notes=stage']),
        ("/a=", ['"/a=": "" is not a level; write one of none, ro, stage, commit']),
        ("/a=rw", ['"/a=rw": "rw" is not a level; write one of none, ro, stage, commit']),
        ("=ro", ['"=ro": empty: ``; write a path of the view, from /']),
        ("/a\0=ro", [r'"/a\x00=ro": nul: `/a\x00`; write a path of the view, from /']),
        (
            "a=b",
            [
                '"a=b": not absolute: `a`; write a path of the view, from /',
                '"a=b": "b" is not a level; write one of none, ro, stage, commit',
            ],
        ),
    ],
)
def test_faults_of_a_level_as_an_option(text: str, messages: list[str]) -> None:
    """The message shows the option's value as it was written."""
    with pytest.raises(SessionFaults) as caught:
        level_option(text, "--grant")
    assert [str(fault) for fault in caught.value.faults] == messages
    assert caught.value.where == "--grant"


@pytest.mark.parametrize("rule", ["", "a\0", "a/b", "~p/x", "/" + "n" * 256, "~/" + "n" * 256])
def test_a_denial_that_could_never_match_is_refused(rule: str) -> None:
    """A rule that names nothing would guard nothing, silently."""
    with pytest.raises(SessionFaults):
        denial_option(rule, "--deny")


@pytest.mark.parametrize("rule", ["/a", "~/a", "~", "*.sql", "[z-a]", "[", "\udcff"])
def test_a_denial_as_an_option(rule: str) -> None:
    """A path, a place of the home or a glob."""
    assert denial_option(rule, "--deny") == rule


def test_options_add_to_a_session() -> None:
    """A grant replaces that of its path, a floor only lowers, denials and roots are added."""
    session = loads('[grants]\n"/a" = "ro"\n"/b" = "ro"\n[floors]\n"/a" = "ro"\n"/b" = "stage"\n[deny]\nnames = ["x"]')
    more = session.with_options(
        {b"/a": Level.STAGE}, {b"/a": Level.STAGE, b"/b": Level.NONE}, ("/p", "~/q", "*.r", "~"), ("~/r",), ("/w",)
    )
    assert more.grants == {b"/a": Level.STAGE, b"/b": Level.RO}
    assert more.floors == {b"/a": Level.RO, b"/b": Level.NONE}
    assert more.deny == Deny(paths=("/p", "~/q", "~"), names=("x", "*.r"))
    assert (more.read_roots, more.write_roots) == (("~/r",), ("/w",))


values = st.recursive(
    st.one_of(st.booleans(), st.integers(), st.text("ab/~.\0\n[", max_size=4), st.sampled_from(["ro", "/a", "none"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2), st.dictionaries(st.sampled_from(["a", "/a", "paths"]), inner, max_size=2)
    ),
    max_leaves=4,
)
KEYS = ["boundary", "start", "grants", "floors", "deny", "links", "passages", "roots", "git", "other"]


@given(st.dictionaries(st.sampled_from(KEYS), values, max_size=4))
def test_any_values_under_any_keys_are_a_session_or_its_faults(document: dict[str, object]) -> None:
    """Whatever stands in a file, it is read or refused with its faults; nothing else is raised."""
    found = []
    try:
        loads("\n".join(f"{key} = {_toml(value)}" for key, value in document.items()))
    except SessionFaults as error:
        found = error.faults or [None]
    assert all(fault is not None and str(fault).isprintable() and fault.key != "TOML" for fault in found)


def _toml(value: object) -> str:
    match value:
        case bool():
            return str(value).lower()
        case str():
            return '"' + "".join(f"\\u{ord(character):04x}" for character in value) + '"'
        case list():
            return "[" + ", ".join(map(_toml, value)) + "]"
        case dict():
            return "{" + ", ".join(f"{_toml(key)} = {_toml(inner)}" for key, inner in value.items()) + "}"
        case _:
            return str(value)
