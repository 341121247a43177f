"""Entries found by any figure or setting, put in order, and looked up by name."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

from attnlab.config import RunConfig, flatten
from attnlab.errors import UserError, unknown
from attnlab.listing.entries import Entry, number, read, read_all

_OF_RUNS = ("preset", "mechanism", "task", "seed")  # of these a study has those of its runs


@dataclass(frozen=True)
class Filter:
    """A condition on one figure or setting, such as mechanism=dot or train.lr>=0.001."""

    key: str
    sign: str
    value: str

    @classmethod
    def parse(cls, given: str) -> Filter:
        """A condition from the command line."""
        parts = re.fullmatch(r"\s*([\w.-]+)\s*(!=|<=|>=|=|<|>)\s*(.*?)\s*", given)
        if not parts:
            raise UserError(f"a filter is NAME=VALUE (or != < <= > >=), such as mechanism=dot, not '{given}'")
        found = cls(*parts.groups())
        if found.sign in "<=>=" and found.sign != "=" and _as_number(found.value) is None:
            raise UserError(f"'{given}' compares with '{found.value}', which is not a number")
        return found

    def holds(self, value: Any) -> bool:
        """Whether a value meets the condition; what is not there meets none but !=."""
        wanted, is_number = _as_number(self.value), number(value) is not None
        if self.sign in ("=", "!="):
            if is_number and wanted is not None:
                equal = value == wanted
            elif isinstance(value, bool):
                equal = str(value).lower() == self.value.lower()
            else:
                choices = [str(value), *str(value).replace(" ", "").split(",")] if value is not None else []
                equal = any(fnmatchcase(choice, self.value) for choice in choices)
            return equal == (self.sign == "=")
        if not is_number or wanted is None:
            return False
        compared = {"<": value < wanted, "<=": value <= wanted, ">": value > wanted, ">=": value >= wanted}
        return compared[self.sign]


def _as_number(value: str) -> float | None:
    """The number that a text spells, if it does."""
    try:
        return float(value)
    except ValueError:
        return None


def figures(entry: Entry) -> dict[str, Any]:
    """Everything that can be asked of an entry: its columns, the kind it is called by, its settings."""
    named = {"stage": entry.what} if entry.kind == "run" else {"study": entry.what} if entry.kind == "study" else {}
    return {**entry.settings, **entry.columns(), **named}


def _look_up(key: str, values: Mapping[str, Any]) -> Any:
    """A figure or setting by its name, or by the last part of it."""
    if key in values:
        return values[key]
    return next((value for name, value in values.items() if name.endswith(f".{key}")), None)


def _check_key(key: str, entries: Sequence[Entry]) -> None:
    """Refuse a name that no entry and no setting has; the last part of a setting must not stand for two."""
    known = {*dict(flatten(RunConfig().to_dict())), *Entry(Path(), "", "", "", 0.0).columns(), "stage", "study"}
    for entry in (inner for one in entries for inner in (one, *one.runs)):
        known |= entry.settings.keys()
    meant = [key] if key in known else sorted(name for name in known if name.endswith(f".{key}"))
    if not meant:
        raise UserError(unknown("setting", key, known))
    if len(meant) > 1:
        raise UserError(f"'{key}' could be {' or '.join(meant)}: write it in full")


def choose(entries: Sequence[Entry], filters: Sequence[Filter]) -> list[Entry]:
    """The entries that meet every condition; a study does when it, with one of its runs, meets all of them."""
    for one in filters:
        _check_key(one.key, entries)

    def meets(values: Mapping[str, Any]) -> bool:
        return all(one.holds(_look_up(one.key, values)) for one in filters)

    def fits(entry: Entry) -> bool:
        own = figures(entry)
        shared = {name: value for name, value in own.items() if name not in _OF_RUNS and value is not None}
        inside = [{**figures(run), **shared} for run in entry.runs]
        return meets(own) or any(meets(values) for values in inside)

    return [entry for entry in entries if fits(entry)]


def arrange(entries: Sequence[Entry], key: str = "when", reverse: bool = False) -> list[Entry]:
    """The entries by a figure or setting, smallest first; those without it come last in any case."""
    _check_key(key, entries)
    found = [(_look_up(key, figures(entry)), entry) for entry in entries]
    there = [pair for pair in found if pair[0] is not None]
    there.sort(key=lambda pair: order(pair[0]), reverse=reverse)
    return [entry for _, entry in there] + [entry for value, entry in found if value is None]


def order(value: Any) -> tuple[int, float, str]:
    """A key that any two values can be sorted by: numbers before texts."""
    return (0, float(value), "") if isinstance(value, int | float) else (1, 0.0, str(value))


def with_inner(entries: Sequence[Entry]) -> list[Entry]:
    """The entries with the runs inside studies behind their study."""
    return [inner for entry in entries for inner in (entry, *entry.runs)]


def find(name: str, root: Path = Path("runs")) -> Entry:
    """A run by its path, or by its name under `root`."""
    places = [place for place in (Path(name), root / name) if os.path.lexists(place)]
    found = [read(place) for place in places]
    if found:
        return next((entry for entry in found if entry.kind != "foreign"), found[0])
    names = [entry.name for entry in read_all(root)] if root.is_dir() else []
    if not names:
        raise UserError(f"{name}: no such run folder; `attnlab runs` shows those there are")
    raise UserError(unknown("run", name, names))
