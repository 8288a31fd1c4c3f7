"""`mount.fuse.policyfs`: what mount(8) runs for `mount -t fuse.policyfs SOURCE MOUNTPOINT -o session=FILE` and for such a
line of fstab (mount(8), "EXTERNAL HELPERS").

An option that cannot be followed is refused and nothing is mounted: what is asked of a mount in fstab guards something.
"""

from __future__ import annotations

import contextlib
import getopt
import io
import os
import pwd
import re
import sys
from dataclasses import dataclass

import click

from policyfs.cli.mount import command
from policyfs.cli.options import translating_faults, usage_text
from policyfs.host.errors import Exit, UserFault
from policyfs.policy.paths import for_shell

PROGRAM = "mount.fuse.policyfs"

_USAGE = f"{PROGRAM} SOURCE MOUNTPOINT [-fnsv] [-o OPTIONS], as mount(8) runs it; else use `policyfs mount`"

VALUES = frozenset({"session", "grant", "floor", "floors", "deny", "read_root", "write_root", "preset", "log"})
"""Options with a value, named as those of `policyfs mount` are, with `_` for `-`. Those whose values add up may be given
several times."""

WORDS = {
    "allow_case_folding": ("--allow-case-folding",),
    "protect_git": ("--protect-git",),
    # Nothing in a view is above its floor, so this is what makes all of it read-only.
    "ro": ("--floor", "/=ro"),
}
"""Options without a value."""

IGNORED = frozenset(
    {
        "rw", "defaults", "async", "exec", "nodev", "nosuid", "atime", "relatime", "strictatime",
        "auto", "noauto", "nofail", "_netdev", "user", "users", "nouser", "owner", "group",
    }
)  # fmt: skip
"""What every view is, and what is meant for mount(8) itself. So are `x-...`, `X-...` and `comment=...`."""

# mount(8), "EXIT STATUS".
_INVOCATION, _SYSTEM, _INTERRUPTED, _FAILURE = 1, 2, 8, 32


@dataclass(frozen=True, slots=True)
class Asked:
    """What an option text asks for: words for `policyfs mount`, and the user who is to mount."""

    words: tuple[str, ...] = ()
    user: str | None = None


def asked(text: str) -> Asked:
    """The options of `-o`, apart by commas; a value in double quotes may hold some. Raises `UserFault`."""
    words: list[str] = []
    user = None
    faults = []
    for option in re.findall(r'(?:[^,"]|"[^"]*"|")+', text):
        name, equals, value = option.partition("=")
        if len(value) > 1 and value.startswith('"') and value.endswith('"'):
            value = value[1:-1]
        if name in VALUES and value:
            words += [f"--{name.replace('_', '-')}", value]
        elif name in WORDS and not equals:
            words += WORDS[name]
        elif name == "setuid" and value:
            user = value
        elif name not in IGNORED and name != "comment" and not name.lower().startswith("x-"):
            why = "needs a value" if name in VALUES or name == "setuid" else "is not an option of a view"
            faults.append(f"-o {option} {why}; the options are {', '.join(sorted((*VALUES, *WORDS, 'setuid')))}")
    if faults:
        raise UserFault(Exit.USAGE, *faults)
    return Asked(tuple(words), user)


def main() -> None:
    """The program, which ends with an exit status of mount(8)."""
    status = translating_faults(lambda: _mount(sys.argv[1:]))
    sys.exit({0: 0, Exit.INTERRUPTED: _INTERRUPTED, Exit.USAGE: _INVOCATION, Exit.MACHINE: _SYSTEM}.get(status, _FAILURE))


def _mount(arguments: list[str]) -> None:
    try:
        given, places = getopt.gnu_getopt(arguments, "sfnvN:o:t:")
    except getopt.GetoptError as error:
        raise UserFault(Exit.USAGE, f"{error}; {_USAGE}") from None
    flags = dict(given)
    if len(places) != 2:
        raise UserFault(Exit.USAGE, _USAGE)
    if "-N" in flags:
        entered = for_shell(os.fsencode(flags["-N"]))
        raise UserFault(Exit.USAGE, f"another mount namespace is not entered; use nsenter --mount={entered}")
    wanted = asked(",".join(value for flag, value in given if flag == "-o"))
    if wanted.user is not None:
        _become(wanted.user)
    if "-f" in flags:
        return
    said = io.StringIO()
    with contextlib.redirect_stdout(sys.stdout if "-v" in flags else said):
        try:
            command.main([*wanted.words, "--", *places], prog_name=PROGRAM, standalone_mode=False)
        except click.UsageError as error:
            # By the words of the other command, whose options these became.
            raise UserFault(Exit.USAGE, f"{usage_text(error)}; see `policyfs mount --help`") from None


def _become(name: str) -> None:
    """Give up being root: the daemon of a view runs as the user whose files it shows, who alone can then use it."""
    try:
        user = pwd.getpwnam(name)
    except KeyError:
        raise UserFault(Exit.USAGE, f"-o setuid={name}: there is no such user; name one of this machine") from None
    if os.geteuid() == user.pw_uid:
        return
    try:
        os.initgroups(user.pw_name, user.pw_gid)
        os.setgid(user.pw_gid)
        os.setuid(user.pw_uid)
    except OSError as error:
        raise UserFault(Exit.FAILED, f"-o setuid={name}: {error.strerror}; only root can mount for somebody else") from None
    for variable in [variable for variable in os.environ if variable.startswith("XDG_")]:
        del os.environ[variable]
    os.environ.update(HOME=user.pw_dir, USER=user.pw_name, LOGNAME=user.pw_name)
