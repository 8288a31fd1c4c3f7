"""Options and files to a policy."""

from __future__ import annotations

import dataclasses
import json
import os
import pwd
from pathlib import Path

import pytest

from policyfs.host import places, ways
from policyfs.host.errors import Exit, UserFault
from policyfs.opening.load import PolicyOptions, policy_for, session_of, source_of
from policyfs.policy.levels import Level, Standing
from policyfs.policy.paths import HostPath, host_path, view_path
from policyfs.policy.policy import PROTECTED, CompiledPolicy


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own, no floors of the administrator, and none of the machine's XDG variables."""
    directory = tmp_path / "home"
    directory.mkdir()
    monkeypatch.setenv("HOME", str(directory))
    for variable in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_RUNTIME_DIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr(places, "ADMIN_FLOORS", HostPath(os.fsencode(tmp_path / "no-floors.toml")))
    monkeypatch.chdir(tmp_path)
    return directory


def written(path: Path, text: str) -> str:
    """A file with this text, by its name."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return str(path)


def policy_of(source: Path, *grants: str, **options: object) -> CompiledPolicy:
    """The policy of a source under these options."""
    return policy_for(source_of(str(source)), dataclasses.replace(PolicyOptions(grants=grants), **options))


def level(policy: CompiledPolicy, path: str) -> Level:
    """The level of a path."""
    return policy.place(view_path(os.fsencode(path))).level


def fault_of(source: Path, *grants: str, **options: object) -> tuple[str, ...]:
    """The messages with which the options are refused, each one line."""
    with pytest.raises(UserFault) as caught:
        policy_of(source, *grants, **options)
    assert caught.value.exit_code == Exit.POLICY
    assert all(message.isprintable() for message in caught.value.messages)
    return caught.value.messages


def test_the_credentials_of_every_account_are_closed(home: Path) -> None:
    """HOME says another place than the password database, as with sudo: `.ssh` of the account's home stays closed, whether
    the view is of that home, of what is above it, or has links that lead there."""
    account = host_path(os.fsencode(pwd.getpwuid(os.geteuid()).pw_dir))
    for source in {account, places.real(account)}:
        policy = policy_for(source, PolicyOptions(grants=("/=ro",)))
        assert (level(policy, "/.ssh/id"), level(policy, "/notes")) == (Level.NONE, Level.RO)
    above = policy_for(HostPath(b"/"), PolicyOptions(grants=("/=ro",)))
    assert above.place(view_path(account + b"/.ssh")).level is Level.NONE
    leading = written(home / "s.toml", f'[grants]\n"/" = "ro"\n[links]\noutside = ["{os.fsdecode(account)}"]')
    policy = policy_for(HostPath(os.fsencode(home)), PolicyOptions(session_file=leading))
    assert policy.shown_outside(HostPath(account + b"/notes"))
    assert not policy.shown_outside(HostPath(account + b"/.ssh"))


def test_a_grant_option_replaces_that_of_the_file(home: Path, source: Path) -> None:
    """-g decides for its path, up or down; the file's other grants stay."""
    file = written(home / "s.toml", '[grants]\n"/a" = "ro"\n"/b" = "stage"\n"/c" = "ro"')
    policy = policy_of(source, "/a=stage", "/b/=none", session_file=file)
    assert [level(policy, path) for path in ("/a", "/b", "/c", "/d")] == [2, 0, 1, 0]


def test_two_grant_options_for_one_path(home: Path, source: Path) -> None:
    """They may agree, and must not differ, however the path is spelt."""
    assert level(policy_of(source, "/a=ro", "/a/=ro"), "/a") is Level.RO
    assert fault_of(source, "/a=ro", "/b/../a=stage") == ("--grant: gives /a two levels; keep one",)
    assert fault_of(source, "/=ro", floors=("/a=ro", "/a=none")) == ("--floor: gives /a two levels; keep one",)


def test_a_floor_option_never_lifts_the_files_floor(home: Path, source: Path) -> None:
    """--floor only lowers."""
    file = written(home / "s.toml", '[grants]\n"/" = "commit"\n[floors]\n"/a" = "ro"\n"/b" = "stage"')
    policy = policy_of(source, session_file=file, floors=("/a=stage", "/b=none"))
    assert [level(policy, path) for path in ("/a", "/b", "/c")] == [1, 0, 3]


def test_every_fault_of_every_file_and_option_at_once(home: Path, source: Path) -> None:
    """One run tells everything that is wrong."""
    session = written(home / "s.toml", 'colour = 1\n[grants]\n"/a" = "rw"')
    floors = written(home / "f.toml", '[floors]\nx = "ro"')
    messages = fault_of(
        source,
        "b",
        "/c=x",
        session_file=session,
        floors=("/d",),
        deny=("e/f", ""),
        floors_files=(floors, "/no\0ne", "/none"),
    )
    assert messages == (
        f'{session}: grants."/a": "rw" is not a level; write one of none, ro, stage, commit',
        f'{session}: "colour": unknown key',
        '--grant: "b": no level; write PATH=LEVEL, such as /Notes=stage',
        '--grant: "/c=x": "x" is not a level; write one of none, ro, stage, commit',
        '--floor: "/d": no level; write PATH=LEVEL, such as /Notes=stage',
        '--deny: "e/f": holds a /, which no name does; a path is written from / or from ~/',
        '--deny: "": empty, or a NUL in it',
        f'{floors}: floors."x": not absolute: `x`; write a place on this machine, /like/this or ~/like/this',
        "a file name with a NUL in it; name a readable file",
        "/none cannot be read: No such file or directory; name a readable file",
    )


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "cannot be read: No such file or directory; name a readable file"),
        (b"a = \xff", "is not UTF-8 (byte 4); TOML is written in UTF-8"),
        (b"=", "TOML: Invalid statement (at line 1, column 1)"),
    ],
)
@pytest.mark.parametrize("option", ["session_file", "floors_files"])
def test_a_file_that_cannot_be_read(home: Path, source: Path, option: str, content: bytes | None, message: str) -> None:
    """The message names the file and what is wrong; a name with control characters in it stays one line."""
    file = home / "odd\n\x1b.toml"
    if content is not None:
        file.write_bytes(content)
    (told,) = fault_of(source, "/=ro", **{option: str(file) if option == "session_file" else (str(file),)})
    assert told.startswith(str(home / r"odd\n\x1b.toml"))
    assert told.endswith(message)


def test_an_empty_file_name(home: Path, source: Path) -> None:
    """It is a fault of its own, not the working directory."""
    assert fault_of(source, session_file="") == ("`` cannot be read: No such file or directory; name a readable file",)
    assert fault_of(source, session_file=str(home)) == (f"{home} cannot be read: Is a directory; name a readable file",)


@pytest.mark.parametrize("option", ["session_file", "floors_files"])
def test_a_file_that_is_not_the_same_file_to_everybody(home: Path, source: Path, option: str) -> None:
    """A FIFO, a device, a file that a descriptor of this process leads to: the daemon would read something else there or
    wait for it, at a reload once more. None is opened for longer than a look, and none is taken for an empty file."""
    os.mkfifo(home / "fifo")
    with open(written(home / "s.toml", '[floors]\n"/" = "ro"')) as file:
        for name, why in (
            (home / "fifo", "is not a regular file"),
            ("/dev/zero", "is not a regular file"),
            ("/dev/null", "is not a regular file"),
            ("/dev/stdin", "leads through /proc"),
            (f"/dev/fd/{file.fileno()}", "leads through /proc"),
            (f"/proc/{os.getpid()}/cwd/home/s.toml", "leads through /proc"),
            ("/proc/self/environ", "leads through /proc"),
        ):
            (told,) = fault_of(source, "/=ro", **{option: str(name) if option == "session_file" else (str(name),)})
            assert told.startswith(f"{name} {why}")
            assert told.endswith("; write the rules to a file and name that")


def test_a_file_without_an_end(home: Path, source: Path) -> None:
    """What no session needs is not read into memory."""
    file = written(home / "s.toml", "")
    os.truncate(file, 1 << 40)
    assert fault_of(source, "/=ro", session_file=file) == (
        f"{file} has more than 16 MiB, which no session file needs; write the rules to a file and name that",
    )


def test_contradictions_that_only_folding_shows(home: Path, source: Path) -> None:
    """On a source that folds case, two spellings of one name are one path."""
    with pytest.raises(UserFault, match="two rules for one path") as caught:
        policy_for(source_of(str(source)), PolicyOptions(grants=("/a=ro", "/A=stage")), fold_case=True)
    assert caught.value.exit_code == Exit.POLICY


# -- floors files


def test_a_floors_file_caps_places_of_the_host(home: Path, source: Path) -> None:
    """Its keys are translated into the view, `~` too; what lies elsewhere says nothing here."""
    inside = home / "tree"
    inside.mkdir()
    file = written(home / "f.toml", f'[floors]\n"{source}/a" = "ro"\n"~/tree/b" = "none"\n"/elsewhere" = "none"')
    assert [level(policy_of(source, "/=stage", floors_files=(file,)), path) for path in ("/", "/a", "/b")] == [2, 1, 2]
    assert [level(policy_of(inside, "/=stage", floors_files=(file,)), path) for path in ("/", "/a", "/b")] == [2, 2, 0]


def test_a_floor_above_the_source_holds_for_the_whole_view(home: Path, source: Path) -> None:
    """The nearest place on SOURCE or above it is the root's floor; a nearer one inside decides for itself."""
    file = written(home / "f.toml", f'[floors]\n"/" = "none"\n"{source.parent}" = "ro"\n"{source}/a" = "stage"')
    policy = policy_of(source, "/=commit", floors_files=(file,))
    assert [level(policy, path) for path in ("/", "/x", "/a/y")] == [1, 1, 2]
    on_it = written(home / "g.toml", f'[floors]\n"{source.parent}" = "none"\n"{source}" = "stage"')
    assert level(policy_of(source, "/=commit", floors_files=(on_it,)), "/x") is Level.STAGE
    # Two files are two sources: each caps.
    assert level(policy_of(source, "/=commit", floors_files=(on_it, file)), "/x") is Level.RO


def test_a_floor_behind_a_link_holds_where_the_link_leads(home: Path, source: Path) -> None:
    """A key is taken as written and as its real path."""
    (source / "real").mkdir()
    (home / "link").symlink_to(source / "real")
    file = written(home / "f.toml", '[floors]\n"~/link" = "ro"')
    assert level(policy_of(source, "/=stage", floors_files=(file,)), "/real/x") is Level.RO


def test_two_spellings_of_one_place_above_the_source(home: Path, source: Path) -> None:
    """The lower level of the two holds, whichever is written first."""
    (source.parent / "link").symlink_to(source.parent)
    lines = [f'"{source.parent}" = "stage"', f'"{source.parent}/link" = "ro"']
    for number, both in enumerate((lines, lines[::-1])):
        file = written(home / f"{number}.toml", "\n".join(["[floors]", *both]))
        assert level(policy_of(source, "/=commit", floors_files=(file,)), "/x") is Level.RO


def test_the_administrators_floors(home: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They bind every policy where they exist. That they cannot be read is a fault: to go on without would be open."""
    admin = home / "etc" / "floors.toml"
    monkeypatch.setattr(places, "ADMIN_FLOORS", HostPath(os.fsencode(admin)))
    assert level(policy_of(source, "/=stage"), "/a") is Level.STAGE
    written(admin, f'[floors]\n"{source}" = "ro"')
    decision = policy_of(source, "/=stage").decide(view_path(b"/a"))
    assert (decision.level, str(decision.rule)) == (Level.RO, f"floor / = ro ({admin})")
    admin.unlink()
    admin.symlink_to(admin)
    assert fault_of(source, "/=stage") == (
        f"{admin} cannot be read: Too many levels of symbolic links; name a readable file",
    )
    admin.unlink()
    admin.symlink_to(home / "nowhere")
    assert fault_of(source, "/=stage") == (f"{admin} cannot be read: No such file or directory; name a readable file",)


# -- the home


def test_the_home_behind_a_link(tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where HOME is a link, the denylist guards the real home, which is what a view of it is made of."""
    link = tmp_path / "link-to-home"
    link.symlink_to(home)
    monkeypatch.setenv("HOME", str(link))
    policy = policy_of(link, "/=stage")
    assert level(policy, "/.ssh/id") is Level.NONE
    assert level(policy, "/.sshd") is Level.STAGE
    assert level(policy_of(tmp_path, "/=stage"), "/home/.ssh") is Level.NONE
    assert level(policy_of(tmp_path, "/=stage"), "/link-to-home/.ssh") is Level.NONE


def test_a_credential_place_behind_a_link(home: Path, source: Path) -> None:
    """A dotfiles repository: where ~/.ssh leads is denied as ~/.ssh is."""
    (source / "dotfiles" / "ssh").mkdir(parents=True)
    (home / ".ssh").symlink_to(source / "dotfiles" / "ssh")
    policy = policy_of(source, "/=ro")
    assert [level(policy, path) for path in ("/dotfiles", "/dotfiles/ssh", "/dotfiles/ssh/id")] == [1, 0, 0]


def test_a_source_inside_a_credential_place(home: Path) -> None:
    """The whole view is denied."""
    inside = home / ".ssh" / "tree"
    inside.mkdir(parents=True)
    policy = policy_of(inside, "/=stage")
    assert policy.opens_nothing
    assert str(policy.decide(view_path(b"/a")).rule) == "denylist ~/.ssh (built-in denylist)"


@pytest.mark.parametrize("value", [None, "", "relative/home"])
def test_a_home_that_is_no_absolute_path(home: Path, monkeypatch: pytest.MonkeyPatch, value: str | None) -> None:
    """The password database's home is taken: rules on another place would guard nothing."""
    pwd_home = "/home/of/the/database"
    monkeypatch.setattr(places.pwd, "getpwuid", lambda uid: type("Entry", (), {"pw_dir": pwd_home}))
    if value is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", value)
    assert places.home() == os.fsencode(pwd_home)


def test_no_home_at_all(home: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is said, rather than that the denylist guards nothing."""

    def nobody(uid: int) -> object:
        raise KeyError(uid)

    monkeypatch.setattr(places.pwd, "getpwuid", nobody)
    monkeypatch.delenv("HOME")
    with pytest.raises(UserFault, match="no home directory") as caught:
        policy_of(source, "/=ro")
    assert caught.value.exit_code == Exit.MACHINE


# -- what no session may edit


def denied_to(policy: CompiledPolicy, path: str) -> bool:
    """Whether a path is at none because policyfs protects it, hidden as if missing."""
    decision = policy.decide(view_path(os.fsencode(path)))
    return decision.level is Level.NONE and getattr(decision.rule, "source", "") == PROTECTED


def test_the_session_file_in_the_source_is_hidden(home: Path, source: Path) -> None:
    """No session reads or edits what binds it, whatever is granted; nor a floors file."""
    session = written(source / "a" / "s.toml", '[grants]\n"/" = "commit"\n"/a/s.toml" = "commit"')
    floors = written(source / "f.toml", "")
    policy = policy_of(source, session_file=session, floors_files=(floors,))
    assert denied_to(policy, "/a/s.toml")
    assert denied_to(policy, "/f.toml")
    assert policy.place(view_path(b"/a/s.toml")).standing is Standing.HIDDEN
    assert level(policy, "/a/other.toml") is Level.COMMIT


def test_a_relative_session_file_is_protected(home: Path, source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """However it is written, it is the file that is read."""
    written(source / "s.toml", '[grants]\n"/" = "commit"')
    monkeypatch.chdir(source)
    assert denied_to(policy_of(source, session_file="./x/../s.toml".replace("x/../", "")), "/s.toml")
    assert PolicyOptions(session_file="s.toml").absolute().session_file == str(source / "s.toml")


def test_options_cross_with_what_was_read(home: Path, source: Path, tmp_path: Path) -> None:
    """As JSON, with the texts of their files; one that cannot be read is read again by whoever needs it."""
    (tmp_path / "s.toml").write_text('[grants]\n"/" = "ro"\n')
    missing = str(tmp_path / "missing.toml")
    options = PolicyOptions(session_file=str(tmp_path / "s.toml"), floors_files=(missing,), deny=("*.x",)).read([])
    assert options.texts == ((str(tmp_path / "s.toml"), '[grants]\n"/" = "ro"\n'),)
    arrived = PolicyOptions.from_values(json.loads(json.dumps(dataclasses.asdict(options))))
    assert arrived == options
    with pytest.raises(UserFault, match=f"{missing} cannot be read"):
        policy_for(source_of(str(source)), arrived)


def test_every_link_to_the_session_file_is_protected(home: Path, source: Path) -> None:
    """Whoever may replace a link on the way chooses what the next mount reads: links to the file, links to links, and
    links to a directory on the way are protected as the file is."""
    written(source / "real" / "s.toml", '[grants]\n"/" = "commit"')
    (source / "one").symlink_to("two")
    (source / "two").symlink_to(source / "real")
    (source / "real" / "t.toml").symlink_to("../one/s.toml")
    (home / "link").symlink_to(source)
    for name in (source / "one" / "t.toml", home / "link" / "one" / "t.toml"):
        policy = policy_of(source, session_file=str(name))
        for path in ("/one", "/two", "/real/t.toml", "/real/s.toml"):
            assert denied_to(policy, path), (name, path)
        assert level(policy, "/real") is Level.COMMIT


def test_dots_behind_a_link_go_as_the_kernel_goes(home: Path, source: Path) -> None:
    """`link/../s.toml` is beside what the link leads to: the file that is read is the one that is protected."""
    (source / "deep" / "er").mkdir(parents=True)
    written(source / "deep" / "s.toml", '[grants]\n"/" = "commit"')
    written(source / "s.toml", '[grants]\n"/" = "ro"')
    (source / "link").symlink_to("deep/er")
    policy = policy_of(source, session_file=f"{source}/link/../s.toml")
    assert level(policy, "/a") is Level.COMMIT
    assert denied_to(policy, "/deep/s.toml")
    assert level(policy, "/s.toml") is Level.COMMIT


def test_a_loop_of_links_ends(home: Path, source: Path) -> None:
    """A name that leads nowhere is a fault, in bounded time."""
    (source / "a").symlink_to("b")
    (source / "b").symlink_to("a")
    assert len(ways.on_the_way(str(source / "a"))) <= 3
    (message,) = fault_of(source, session_file=str(source / "a"))
    assert "Too many levels of symbolic links" in message


def test_policyfs_itself_is_protected(home: Path) -> None:
    """State, configuration and the cache that holds its code are at none in a view of the home."""
    policy = policy_of(home, "/=commit")
    for path in ("/.local/state/policyfs/x", "/.config/policyfs", "/.cache/policyfs/bin/python"):
        assert denied_to(policy, path)
    assert level(policy, "/.cache/other") is Level.COMMIT


# -- roots


def test_roots_are_grants(home: Path, source: Path) -> None:
    """A read root is a grant at ro, a write root one at stage; a grant of the same path outranks them; the denylist and
    what lies outside SOURCE stay closed."""
    file = written(
        home / "s.toml",
        f'[grants]\n"/in/own" = "none"\n[roots]\nread = ["~", "{source}"]\nwrite = ["~/in", "~/in/own", "/elsewhere"]',
    )
    policy = policy_of(home, session_file=file)
    paths = ("/", "/in", "/in/x", "/in/own", "/.ssh", "/.env")
    assert [level(policy, path) for path in paths] == [1, 2, 2, 0, 0, 0]
    assert level(policy_of(source, session_file=file), "/x") is Level.RO
    above = written(home / "above.toml", '[roots]\nwrite = ["/"]')
    assert level(policy_of(source, session_file=above), "/x") is Level.STAGE


def test_a_root_behind_a_link(home: Path, source: Path) -> None:
    """A root is the place it leads to."""
    (source / "real").mkdir()
    (home / "link").symlink_to(source / "real")
    policy = policy_of(source, read_roots=("~/link",))
    assert [level(policy, path) for path in ("/real/x", "/other")] == [1, 0]


def test_a_root_at_both_levels_is_at_the_higher(home: Path) -> None:
    """The same place to read and to write can be written."""
    assert level(policy_of(home, read_roots=("~/a",), write_roots=("~/a",)), "/a") is Level.STAGE


def test_the_home_preset(home: Path) -> None:
    """Rule root-1: the home readable less the denylist, two directories of it writable; a file adds to it."""
    policy = policy_of(home, preset="home")
    paths = ("/x", "/Downloads/x", "/Documents/Lam Agent/x", "/Documents/x", "/.ssh/x", "/Downloads/.env")
    assert [level(policy, path) for path in paths] == [1, 2, 2, 1, 0, 0]
    file = written(home / "s.toml", '[grants]\n"/Downloads" = "ro"\n[roots]\nwrite = ["~/more"]')
    more = policy_of(home, preset="home", session_file=file)
    assert [level(more, path) for path in ("/Downloads/x", "/more/x", "/x")] == [1, 2, 1]


# -- SOURCE


def test_what_a_source_can_be(home: Path, source: Path, tmp_path: Path) -> None:
    """A directory that can be read, by its real path; everything else is told from it."""
    (tmp_path / "link").symlink_to(source)
    assert source_of(str(tmp_path / "link")) == os.fsencode(source)
    (tmp_path / "file").write_text("")
    for text, message in (
        (str(tmp_path / "none"), "does not exist"),
        (str(tmp_path / "file"), "is a file"),
        ("", "empty"),
        ("a\0b", "nul"),
        ("n" * 256, "name too long"),
    ):
        with pytest.raises(UserFault, match=message) as caught:
            source_of(text)
        assert caught.value.exit_code == Exit.PLACE
        assert caught.value.messages[0].startswith("SOURCE")
        assert caught.value.messages[0].isprintable()


def test_a_session_without_a_file_is_the_options(home: Path) -> None:
    """Options alone are a session."""
    session = session_of(PolicyOptions(grants=("/=ro",), deny=("*.x", "/y")))
    assert session.grants == {b"/": Level.RO}
    assert (session.deny.names, session.deny.paths) == (("*.x",), ("/y",))
