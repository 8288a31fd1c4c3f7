"""Text to path, and a path as a person may see it."""

from __future__ import annotations

import posixpath
import subprocess
import unicodedata

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policyfs.policy.paths import (
    NAME_MAX,
    ROOT,
    HostPath,
    PathFault,
    ViewPath,
    below,
    child,
    components,
    display,
    for_shell,
    from_text,
    host_path,
    joined,
    name,
    view_path,
)

START = ViewPath(b"/start/here")


@pytest.mark.parametrize(
    ("text", "path"),
    [
        (b"/", b"/"),
        (b"//", b"/"),
        (b"///a//b/", b"/a/b"),
        (b"/a/", b"/a"),
        (b"/.", b"/"),
        (b"/..", b"/"),
        (b"/../../a", b"/a"),
        (b"/a/../b", b"/b"),
        (b"/a/../../b", b"/b"),
        (b"/a/./b/.", b"/a/b"),
        (b"/a/...", b"/a/..."),
        (b"/.hidden", b"/.hidden"),
        (b"/A", b"/A"),
        (b".", b"/start/here"),
        (b"..", b"/start"),
        (b"../../..", b"/"),
        (b"a", b"/start/here/a"),
        (b"a/../..", b"/start"),
        (b"~/a", b"/start/here/~/a"),
        (b"/a b", b"/a b"),
        (b"/\xff\n\\", b"/\xff\n\\"),
        (b"/" + b"n" * NAME_MAX, b"/" + b"n" * NAME_MAX),
        (b"/x" * 5000, b"/x" * 5000),
    ],
)
def test_a_path_of_the_view(text: bytes, path: bytes) -> None:
    """`.`, `..`, repeated and trailing slashes go by the text; a relative path is read from the start directory."""
    assert view_path(text, START) == path


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", "empty"),
        (b"/a\0b", "nul"),
        (b"\0", "nul"),
        (b"/" + b"n" * 256, "name too long"),
        (b"/" + "é".encode() * 128, "name too long"),
        (b"/" + b"n" * 256 + b"/..", "name too long"),
    ],
)
def test_what_is_no_path(text: bytes, fault: str) -> None:
    """An empty text, a NUL and a name of more than 255 bytes are refused, each as what it is."""
    with pytest.raises(PathFault) as caught:
        view_path(text)
    assert caught.value.fault == fault
    assert str(caught.value).startswith(f"{fault}: `")
    assert str(caught.value).isprintable()


component = st.one_of(
    st.sampled_from([b"", b".", b"..", b"a", b"b.c"]), st.binary(max_size=4).map(lambda raw: raw.replace(b"\0", b""))
)
texts = st.lists(component, min_size=1, max_size=8).map(b"/".join).filter(bool)


@given(texts)
def test_paths_read_as_posix_reads_their_text(text: bytes) -> None:
    """For every text, the answer is that of posixpath.normpath from the start directory."""
    # normpath keeps two leading slashes, which POSIX lets mean something else; here repeated slashes count as one.
    absolute = text if text.startswith(b"/") else START + b"/" + text
    assert view_path(text, START) == b"/" + posixpath.normpath(absolute).lstrip(b"/")


@given(texts)
def test_a_resolved_path_stays_as_it_is(text: bytes) -> None:
    """Reading a path that was read already changes nothing, and its names are names."""
    path = view_path(text, START)
    assert view_path(path) == path
    assert joined(components(path)) == path
    assert [name(part) for part in components(path)] == components(path)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        (b"", "not a name"),
        (b".", "not a name"),
        (b"..", "not a name"),
        (b"a/b", "not a name"),
        (b"a\0", "nul"),
        (b"n" * 256, "name too long"),
    ],
)
def test_what_is_no_name(text: bytes, fault: str) -> None:
    """One component is proved when it is made."""
    with pytest.raises(PathFault) as caught:
        name(text)
    assert caught.value.fault == fault


@pytest.mark.parametrize(
    ("path", "ancestor", "rest"),
    [
        (b"/a/b", b"/a", b"b"),
        (b"/a/b/c", b"/a", b"b/c"),
        (b"/a", b"/a", b""),
        (b"/a", b"/", b"a"),
        (b"/", b"/", b""),
        (b"/a-evil", b"/a", None),
        (b"/a", b"/a/b", None),
        (b"/", b"/a", None),
        (b"/A/b", b"/a", None),
    ],
)
def test_what_remains_below(path: bytes, ancestor: bytes, rest: bytes | None) -> None:
    """Containment is asked of components, not of characters."""
    assert below(path, ancestor) == rest


def test_a_place_on_the_host() -> None:
    """`~` is the home at the beginning alone, and only where one is given; a relative place is refused."""
    home = HostPath(b"/home/p")
    assert host_path(b"~", home) == b"/home/p"
    assert host_path(b"~/.ssh/", home) == b"/home/p/.ssh"
    assert host_path(b"/~", home) == b"/~"
    for text in (b"~/a", b"a", b"./a"):
        with pytest.raises(PathFault, match="not absolute"):
            host_path(text)
    for text in (b"~other/a", b"a/~"):
        with pytest.raises(PathFault, match="not absolute"):
            host_path(text, home)
    with pytest.raises(PathFault, match=r"^empty: ``$"):
        host_path(b"", home)


def test_a_name_in_a_directory() -> None:
    """The root needs no second slash."""
    assert child(ROOT, name(b"a")) == b"/a"
    assert child(ViewPath(b"/a"), name(b"b")) == b"/a/b"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (b"/Notes/a b.md", "/Notes/a b.md"),
        ("/Größe/文件".encode(), "/Größe/文件"),
        (b"a\nb\r\tc", r"a\nb\r\tc"),
        (b"\x1b[2J\x07\x7f", r"\x1b[2J\x07\x7f"),
        (b"\xff\xc3", r"\xff\xc3"),
        (b"\x80\xbf", r"\x80\xbf"),
        (b"\xed\xa0\x80", r"\xed\xa0\x80"),
        ("\N{RIGHT-TO-LEFT OVERRIDE}gpj.exe".encode(), r"\u202egpj.exe"),
        ("\N{LEFT-TO-RIGHT ISOLATE}\N{ZERO WIDTH SPACE}".encode(), r"\u2066\u200b"),
        ("\N{LINE SEPARATOR}\N{NO-BREAK SPACE}\x85".encode(), r"\u2028\xa0\x85"),
        ("\N{TAG LATIN SMALL LETTER A}".encode(), r"\U000e0061"),
        (b"a\\nb", r"a\nb"),
    ],
)
def test_what_a_person_is_shown(text: bytes, shown: str) -> None:
    """Nothing that is shown ends a line, moves a cursor or turns the reading order round."""
    assert display(text) == shown


@given(st.one_of(st.binary(), st.text().map(str.encode)))
def test_everything_can_be_shown(text: bytes) -> None:
    """Any bytes come out as one printable line that any UTF-8 terminal takes."""
    shown = display(text)
    assert shown.isprintable()
    assert not any(unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp") for character in shown)
    shown.encode("utf-8")


@pytest.mark.parametrize(
    ("text", "fault"),
    [(b"", "empty: ``"), (b"/a/\0/..", r"nul: `/a/\x00/..`"), (b"n" * 256, f"name too long: `{'n' * 256}`")],
)
def test_what_has_no_components(text: bytes, fault: str) -> None:
    """A text that is not a path from anywhere is refused by who takes it apart, too."""
    with pytest.raises(PathFault) as caught:
        components(text)
    assert str(caught.value) == fault


@given(st.binary())
def test_texts_from_a_command_line_keep_their_bytes(raw: bytes) -> None:
    """A str in which undecodable bytes are surrogates gives the bytes back."""
    assert from_text(raw.decode("utf-8", "surrogateescape")) == raw


def test_a_text_that_stands_for_no_bytes_is_no_path() -> None:
    """A lone surrogate, which JSON can hold and no name can, is told as what it is, in one printable line."""
    with pytest.raises(PathFault, match=r"^no text: ") as caught:
        from_text("/a\ud800")
    assert str(caught.value).isprintable()


@pytest.mark.parametrize(
    ("text", "word"),
    [
        (b"/mnt/view-1_a.b", "/mnt/view-1_a.b"),
        (b"", "''"),
        (b"/x/my dir", "'/x/my dir'"),
        (b"/x/$(reboot)", "'/x/$(reboot)'"),
        (b"/it's", r"'/it'\''s'"),
        (b"~", "'~'"),
        ("/caf\u00e9".encode(), "'/caf\u00e9'"),
        (b"/a\nb'\\\xff", r"$'/a\x0ab\x27\x5c\xff'"),
    ],
)
def test_a_text_as_a_word_for_a_shell(text: bytes, word: str) -> None:
    """Plain where it can be, else quoted, and nothing in it that a terminal would obey."""
    assert for_shell(text) == word


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.binary(max_size=40).map(lambda text: text.replace(b"\0", b"")) | st.text("a\n'\\$\x85\u202e ").map(str.encode)
    )
)
def test_a_shell_reads_the_very_bytes(texts: list[bytes]) -> None:
    """bash, given the words, has the texts; each is one line that can be shown."""
    words = [for_shell(text) for text in texts]
    assert all(word.isprintable() for word in words)
    command = "printf '%s\\0' " + " ".join(words) if words else ":"
    done = subprocess.run(["bash", "-c", command.encode()], capture_output=True, check=True, timeout=60)
    assert done.stdout == b"".join(text + b"\0" for text in texts)
