"""A mounted view of a directory tree that shows every tool only what the session's policy opens.

From Python: `Policy` answers what a session may do, `View` reads and changes a tree by it without a mount, `mounted` mounts
it for a `with` block. See `policyfs.api` and docs/python.md.
"""

from __future__ import annotations

# What `typing.TYPE_CHECKING` is to a type checker. `policyfs run` waits for each module that is loaded before its daemon.
TYPE_CHECKING = False
if TYPE_CHECKING:
    from policyfs.api import (
        Entry,
        Explanation,
        Instruction,
        Level,
        Policy,
        PolicyOptions,
        Refused,
        Standing,
        Stat,
        UserFault,
        View,
    )
    from policyfs.mounting import Mounted, mounted

__version__ = "0.1.0"

__all__ = [
    "Entry",
    "Explanation",
    "Instruction",
    "Level",
    "Mounted",
    "Policy",
    "PolicyOptions",
    "Refused",
    "Standing",
    "Stat",
    "UserFault",
    "View",
    "__version__",
    "mounted",
]

_MOUNTING = frozenset({"Mounted", "mounted"})


def __getattr__(name: str) -> object:
    """The names of `__all__`, imported when they are first asked for: a command does not wait for what it does not use."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import importlib

    found: object = getattr(importlib.import_module("policyfs.mounting" if name in _MOUNTING else "policyfs.api"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
