"""Frozen records as JSON, and back: results, plans and measurements are written and read here only.

A record is a frozen dataclass (or a msgspec.Struct, where a union is told apart by a tag). JSON has no number for NaN and
infinity: they are written as null, so a field that may hold them is declared as `float | None`.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Mapping
from dataclasses import MISSING, field, fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from attnlab.errors import CheckpointError
from attnlab.store.folders import read_bytes

T = TypeVar("T")


def encode(record: Any) -> bytes:
    """Return a record as indented JSON."""
    return msgspec.json.format(encode_line(record), indent=1) + b"\n"


def encode_line(record: Any) -> bytes:
    """Return a record as one line of JSON."""
    try:
        return msgspec.json.encode(record, enc_hook=_plain_value)
    except UnicodeEncodeError:
        return msgspec.json.encode(_encodable(msgspec.to_builtins(record, enc_hook=_plain_value)))


def _plain_value(value: Any) -> Any:
    """Convert a value that msgspec does not know: a path, or a number of numpy."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise NotImplementedError(f"no JSON for {type(value).__name__}")


def _encodable(value: Any) -> Any:
    """Replace half a surrogate pair, which a file name or a command line may hold, and UTF-8 cannot."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, Mapping):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return [_encodable(item) for item in value] if isinstance(value, list | tuple) else value


def decode(kind: type[T], content: bytes, source: Path) -> T:
    """Read a record from JSON; an error names the file and the field."""
    try:
        return msgspec.json.decode(content, type=kind, dec_hook=_restored_value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise CheckpointError(
            f"{source} is damaged, or of another version ({error}): restore it from a copy, or make it again"
        ) from None


def read(kind: type[T], path: Path) -> T:
    """Read a record from a file of a folder that attnlab wrote, checked against the folder's manifest."""
    return decode(kind, read_bytes(path), path)


def _restored_value(kind: type, value: Any) -> Any:
    """Restore a value that JSON does not know: a path."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"{kind.__name__} is not read from JSON")


def convert(kind: type[T], values: Any) -> T:
    """Read a record from plain values; ValueError names the field that does not fit."""
    return msgspec.convert(values, kind)


# Converted field by field: to be removed when no record is flat or optional


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
