"""Frozen dataclasses as plain values for JSON, and back. Results, plans and measurements are converted here only."""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from typing import Any, TypeVar

T = TypeVar("T")


def optional() -> Any:
    """Declare a field that JSON leaves out when it is None."""
    return field(default=None, metadata={"optional": True})


def flat(default: Any = MISSING) -> Any:
    """Declare a record whose fields are merged into those of its owner in JSON; None has none."""
    return field(default=default, metadata={"flat": True})


def plain(value: Any) -> Any:
    """Return plain values, ready for JSON: records become objects, tuples become lists."""
    if is_dataclass(value) and not isinstance(value, type):
        found: dict[str, Any] = {}
        for one in fields(value):
            inner = getattr(value, one.name)
            if one.metadata.get("flat"):
                found |= plain(inner) or {}
            elif inner is not None or not one.metadata.get("optional"):
                found[one.name] = plain(inner)
        return found
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value


def restored(cls: type[T], values: Mapping[str, Any]) -> T:
    """Read a record from what `plain` made of it; unknown keys and missing ones are a TypeError."""
    found, used = _fields_of(cls, values)
    if unknown := values.keys() - used:
        raise TypeError(f"unexpected {', '.join(sorted(unknown))}")
    return cls(**found)


def _fields_of(cls: type[Any], values: Mapping[str, Any]) -> tuple[dict[str, Any], set[str]]:
    """The arguments of a record, and the keys that they were read from."""
    hints, found, used = typing.get_type_hints(cls), {}, set()
    for one in fields(cls):
        kind = hints[one.name]
        if one.metadata.get("flat"):
            inner = _without_none(kind)
            if fields(inner)[0].name in values:
                arguments, keys = _fields_of(inner, values)
                found[one.name] = inner(**arguments)
                used |= keys
        elif key := next((name for name in (one.name, one.metadata.get("was")) if name in values), None):
            found[one.name] = _value(values[key], kind)
            used.add(key)
    return found, used


def _without_none(kind: Any) -> Any:
    if typing.get_origin(kind) not in (typing.Union, types.UnionType):
        return kind
    return next(one for one in typing.get_args(kind) if one is not types.NoneType)


def _value(value: Any, kind: Any) -> Any:
    if value is None:
        return None
    kind = _without_none(kind)
    inner = typing.get_args(kind)
    if typing.get_origin(kind) is tuple:
        return tuple(_value(item, inner[0]) for item in value)
    if typing.get_origin(kind) is dict:
        return {key: _value(item, inner[1]) for key, item in value.items()}
    return restored(kind, value) if is_dataclass(kind) and isinstance(kind, type) else value
