"""Frozen records as JSON or as messages between processes, and back: all that is written is written and read here only.

A record is a frozen dataclass (or a msgspec.Struct, where a union is told apart by a tag). JSON has no number for NaN and
infinity: they are written as null, so a field that may hold them is declared as `float | None`.
"""

from __future__ import annotations

from collections.abc import Mapping
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
    return _encode(msgspec.json.Encoder(enc_hook=_plain_value), record)


def encode_message(record: Any) -> bytes:
    """Return a record as msgpack, for another process."""
    return _encode(msgspec.msgpack.Encoder(enc_hook=_plain_value), record)


def _encode(encoder: msgspec.json.Encoder | msgspec.msgpack.Encoder, record: Any) -> bytes:
    try:
        return encoder.encode(record)
    except UnicodeEncodeError:
        return encoder.encode(_encodable(plain(record)))


def _plain_value(value: Any) -> Any:
    """Convert a value that msgspec does not know: a path, or a number of numpy."""
    if isinstance(value, Path):
        return str(value)
    if hasattr(value, "item"):
        return value.item()
    raise TypeError(f"a {type(value).__name__} cannot be part of a record")


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
    """Restore a value that neither JSON nor msgpack knows: a path."""
    if kind is Path and isinstance(value, str):
        return Path(value)
    raise NotImplementedError(f"{kind.__name__} cannot be part of a record")


def convert(kind: type[T], values: Any) -> T:
    """Read a record from plain values; ValueError names the field that does not fit."""
    return msgspec.convert(values, kind, dec_hook=_restored_value)


def plain(record: Any) -> Any:
    """Return a record as plain values: objects, lists, texts and numbers."""
    return msgspec.to_builtins(record, enc_hook=_plain_value)
