"""A session and its surroundings as plain values, so that another process can build the same policy from them.

Theory. Both are dataclasses of a few types: texts, bytes, levels, truth values, and tuples and mappings of these. The values
follow from the declared types of the fields, so a field that is added later crosses too, and one of another type is a
`TypeError` rather than a rule that is left out.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Mapping
from typing import Any, NewType, Union, get_args, get_origin, get_type_hints

from policyfs.policy.levels import LEVELS, Level
from policyfs.policy.paths import from_text
from policyfs.policy.policy import CompiledPolicy, Surroundings
from policyfs.policy.session import Session


def policy_values(policy: CompiledPolicy) -> dict[str, Any]:
    """All that a policy is built from: dicts, lists, texts and truth values, as JSON has them. Undecodable bytes of a path
    are surrogates."""
    return {
        "session": _values(policy.session),
        "surroundings": _values(policy.surroundings),
        "fold_case": policy.fold_case,
    }


def policy_from(values: dict[str, Any]) -> CompiledPolicy:
    """The policy that `policy_values` described. Raises `TypeError`, `KeyError` or `ValueError` for what describes none, as
    that of another version of policyfs may."""
    return CompiledPolicy(
        _restored(Session, values["session"]),
        _restored(Surroundings, values["surroundings"]),
        fold_case=values["fold_case"],
    )


def _values(value: Any) -> Any:
    if isinstance(value, Level):
        return str(value)
    if value is None or isinstance(value, (bool, str)):
        return value
    if isinstance(value, bytes):
        return _text(value)
    if isinstance(value, tuple):
        return [_values(each) for each in value]
    if isinstance(value, Mapping):
        return [[_values(key), _values(each)] for key, each in value.items()]
    if dataclasses.is_dataclass(value):
        return {field.name: _values(getattr(value, field.name)) for field in dataclasses.fields(value)}
    raise TypeError(f"{type(value).__name__} has no plain value")


def _restored(kind: Any, plain: Any) -> Any:
    if isinstance(kind, NewType):
        kind = kind.__supertype__
    if kind is Level:
        return LEVELS[plain]
    if kind is bytes:
        return from_text(plain)
    if kind in (bool, str):
        if type(plain) is not kind:
            raise TypeError(f"{plain!r} is not a {kind.__name__}")
        return plain
    if isinstance(kind, type) and dataclasses.is_dataclass(kind):
        hints = get_type_hints(kind)
        if plain.keys() != hints.keys():
            raise TypeError(f"{kind.__name__} has other fields than {sorted(plain)}")
        return kind(**{name: _restored(hints[name], each) for name, each in plain.items()})
    origin, inner = get_origin(kind), get_args(kind)
    if origin is tuple:
        kinds = [inner[0]] * len(plain) if inner[-1] is ... else inner
        return tuple(_restored(each, value) for each, value in zip(kinds, plain, strict=True))
    if origin is Mapping:
        return {_restored(inner[0], key): _restored(inner[1], value) for key, value in plain}
    if origin in (Union, types.UnionType) and types.NoneType in inner:
        (other,) = (each for each in inner if each is not types.NoneType)
        return None if plain is None else _restored(other, plain)
    raise TypeError(f"{kind} cannot be restored from a plain value")


def _text(path: bytes) -> str:
    return path.decode("utf-8", "surrogateescape")
