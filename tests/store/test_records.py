"""Records become plain values and come back: flat ones merged into their owner, optional ones left out."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from attnlab.store.records import flat, optional, plain, restored


@dataclass(frozen=True)
class Interval:
    low: float | None
    high: float | None


@dataclass(frozen=True)
class Inner:
    name: str
    places: tuple[int, ...] = ()


@dataclass(frozen=True)
class Outer:
    title: str
    inner: Inner
    rows: tuple[Inner, ...] = ()
    by_name: dict[str, Inner] | None = None
    interval: Interval | None = flat(None)
    note: str | None = optional()
    settings: dict[str, Any] | None = None


WHOLE = Outer(
    "t",
    Inner("a", (1, 2)),
    (Inner("b"),),
    {"c": Inner("c", (3,))},
    Interval(None, 2.0),
    "note",
    {"train": {"lr": 0.1, "list": [1, 2]}},
)


def test_plain_values_are_those_of_json() -> None:
    assert plain(WHOLE) == {
        "title": "t",
        "inner": {"name": "a", "places": [1, 2]},
        "rows": [{"name": "b", "places": []}],
        "by_name": {"c": {"name": "c", "places": [3]}},
        "low": None,
        "high": 2.0,
        "note": "note",
        "settings": {"train": {"lr": 0.1, "list": [1, 2]}},
    }


def test_absent_records_and_notes_leave_no_key() -> None:
    found = plain(Outer("t", Inner("a")))
    assert found.keys() == {"title", "inner", "rows", "by_name", "settings"}


@pytest.mark.parametrize("record", [WHOLE, Outer("t", Inner("a"))])
def test_records_come_back(record: Outer) -> None:
    assert restored(Outer, plain(record)) == record


def test_unknown_and_missing_keys_are_named() -> None:
    with pytest.raises(TypeError, match="unexpected colour"):
        restored(Inner, {"name": "a", "colour": "red"})
    with pytest.raises(TypeError, match="name"):
        restored(Inner, {"places": []})
    with pytest.raises(TypeError, match="unexpected colour"):
        restored(Outer, {"title": "t", "inner": {"name": "a", "colour": "red"}})
