"""The built-in denylist: places and names that hold credentials (rules deny-1 to deny-9).

A guard, not a proof: a list of what was thought of. A match covers everything below it, and no grant lifts it.
"""

from __future__ import annotations

from policyfs.policy.paths import ROOT, HostPath, ViewPath, below, host_path
from policyfs.policy.rules import Denial, DeniedHostPath, DeniedPath

SOURCE = "built-in denylist"

HOME_PLACES = (
    # Rule deny-1
    "~/.ssh",
    "~/.gnupg",
    "~/.aws",
    "~/.config/gh",
    "~/.docker/config.json",
    "~/.netrc",
    # Rule deny-4
    "~/.git-credentials",
    "~/.kube",
    "~/.azure",
    "~/.config/gcloud",
    "~/.npmrc",
    "~/.pypirc",
    "~/.pgpass",
    "~/.password-store",
    "~/.cargo/credentials.toml",
)
"""Directories and files of the home, each with everything below it."""

NAMES = (".env", ".env.*", "id_rsa", "id_dsa", "id_ecdsa", "id_ed25519", "credentials.json")
"""Names in any directory."""

EXTENSIONS = (".pem", ".key", ".p12", ".pfx", ".jks", ".kdbx")
"""Ends of a name in any directory; the name may be nothing else."""

EXCEPTIONS = ("cacert.pem",)
"""Names that the rules above would take in and that hold no secret: `cacert.pem` is the public bundle of certificate
authorities under the name that curl gave it, and without it no pip and no virtual environment can be made in a view
(docs/decisions/0002-cacert.md). A session replaces the list with `[deny] except`."""


def built_in_names() -> list[tuple[str, Denial]]:
    """The built-in names and extensions as globs, each with its rule."""
    return [(glob, Denial(glob, SOURCE)) for glob in (*NAMES, *(f"*{extension}" for extension in EXTENSIONS))]


def built_in_places(home: HostPath) -> list[DeniedHostPath]:
    """The built-in places of one home."""
    return [DeniedHostPath(host_path(place.encode(), home), Denial(place, SOURCE)) for place in HOME_PLACES]


def built_in_places_of_another(home: HostPath) -> list[DeniedHostPath]:
    """The same of a home that `~` does not stand for, each named by its whole path."""
    places = [host_path(place.encode(), home) for place in HOME_PLACES]
    return [DeniedHostPath(place, Denial(place.decode("utf-8", "surrogateescape"), SOURCE)) for place in places]


def in_view(place: HostPath, source: HostPath, part: ViewPath = ROOT) -> ViewPath | None:
    """A place on the host as a path of the view of `source` (its real path), or None where the view does not hold it.

    Where SOURCE itself lies in the place, that is the whole view: `/`. `part` is where in a view `source` is seen, if it
    is not the whole of what the view shows.
    """
    if below(source, place) is not None:
        return part
    rest = below(place, source)
    return None if rest is None else ViewPath(part.rstrip(b"/") + b"/" + rest)


def translated(places: list[DeniedHostPath], source: HostPath, part: ViewPath = ROOT) -> list[DeniedPath]:
    """Those of the places that the view of `source`, or this part of a view, holds, as paths of the view."""
    denied = []
    for place in places:
        path = in_view(place.path, source, part)
        if path is not None:
            denied.append(DeniedPath(path, place.denial))
    return denied
