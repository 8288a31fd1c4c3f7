"""The environment of a sandboxed command: what is known to be harmless, and what a person names. Pure.

A list of what may pass, not of what may not: secrets have no common name, and an agent's socket that is not known here
(SSH_AUTH_SOCK, DBUS_SESSION_BUS_ADDRESS, DOCKER_HOST, DISPLAY, ...) is a way around the view (rule run-3).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from policyfs.policy.paths import HostPath, display, from_text

PASSED = frozenset(
    {
        b"CLICOLOR", b"COLORTERM", b"EDITOR", b"FORCE_COLOR", b"LANG", b"LANGUAGE", b"LOGNAME", b"NO_COLOR", b"PAGER",
        b"PATH", b"SHELL", b"TERM", b"TERM_PROGRAM", b"TERM_PROGRAM_VERSION", b"TZ", b"USER", b"VISUAL",
    }
)  # fmt: skip
PASSED_PREFIX = b"LC_"

_SYSTEM_PATH = (b"/usr/local/bin", b"/usr/bin", b"/bin")


class EnvironmentFault(ValueError):
    """A `--env` that cannot be followed."""


def environment(
    outside: Mapping[bytes, bytes],
    named: Iterable[str],
    home: HostPath,
    user: bytes,
    shell: bytes,
    programs: Sequence[HostPath] = (),
) -> dict[bytes, bytes]:
    """The environment inside. `named` are the texts of `--env`, NAME or NAME=VALUE; `programs` are directories of the
    sandbox's own, which come first in a PATH that nobody names. Raises `EnvironmentFault`."""
    inside = {name: value for name, value in outside.items() if name in PASSED or name.startswith(PASSED_PREFIX)}
    inside.setdefault(b"USER", user)
    inside.setdefault(b"LOGNAME", user)
    inside[b"SHELL"] = shell
    inside[b"PATH"] = _path(inside.get(b"PATH", b""), programs)
    for text in named:
        name, value = _named(from_text(text), outside)
        inside[name] = value
    # Last: nothing else says where the home is.
    inside[b"HOME"] = home
    return inside


def _path(outside: bytes, first: Sequence[HostPath]) -> bytes:
    """The person's own order, with the system's directories behind where they are missing. Relative entries are left
    out: they would find whatever program the tree holds."""
    entries = [*first, *(entry for entry in outside.split(b":") if entry.startswith(b"/"))]
    return b":".join([*entries, *(entry for entry in _SYSTEM_PATH if entry not in entries)])


def _named(text: bytes, outside: Mapping[bytes, bytes]) -> tuple[bytes, bytes]:
    name, equals, value = text.partition(b"=")
    shown = display(name)
    if not name or b"\0" in text:
        raise EnvironmentFault("--env: an empty name, or a NUL in it; write NAME or NAME=VALUE")
    if name == b"HOME":
        raise EnvironmentFault("--env HOME: the home is an empty directory, or the one that --home names; use --home DIR")
    if equals:
        return name, value
    if name not in outside:
        raise EnvironmentFault(f"--env {shown}: {shown} is not set here; set it, or write --env {shown}=VALUE")
    return name, outside[name]
