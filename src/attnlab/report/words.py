"""Numbers and names in words, the same in every place of the report. Knows nothing of pages, charts or studies."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

NOTHING = "–"  # stands where there is no value


def percent(share: float) -> str:
    """A share in per cent, with one decimal."""
    return f"{100 * share:.1f} %"


def interval(low: float, high: float) -> str:
    """An interval of shares in per cent."""
    return f"{100 * low:.1f} to {100 * high:.1f} %"


def count(number: float) -> str:
    """A whole number with its thousands apart."""
    return f"{round(number):,}"


def plural(number: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def duration(seconds: float | None) -> str:
    """A time as one would say it: 8.2 s, 6 min 52 s, 1 h 05 min."""
    if seconds is None:
        return NOTHING
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def plain(value: Any) -> str:
    """A setting as a person would write it."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if value is None or value in ("", [], {}, ()):
        return NOTHING
    if isinstance(value, int):
        return str(value) if abs(value) < 10_000 else count(value)
    if isinstance(value, float):
        return count(value) if value.is_integer() and abs(value) < 1e15 else f"{value:.6g}"
    if isinstance(value, list | tuple):
        return ", ".join(plain(item) for item in value)
    return str(value)


def flat(settings: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Nested settings as dotted names with their values."""
    for name, value in settings.items():
        if isinstance(value, Mapping) and value:
            yield from flat(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}", plain(value)


def magnitude(largest: float) -> tuple[float, str]:
    """The unit in which numbers up to this one are short: its size, and its name before a noun."""
    for size, name in ((1e9, "billion "), (1e6, "million "), (1e4, "thousand ")):
        if math.isfinite(largest) and largest >= size:
            return (1e3 if size == 1e4 else size), name
    return 1.0, ""
