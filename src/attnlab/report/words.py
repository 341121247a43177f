"""Numbers and names in words, the same in every report."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from attnlab.config import flatten

NOTHING = "–"  # where there is no value


def percent(share: float) -> str:
    """A share in per cent, with one decimal."""
    return f"{100 * share:.1f} %"


def interval(low: float, high: float) -> str:
    """An interval of shares in per cent."""
    return f"{100 * low:.1f} to {100 * high:.1f} %"


def count(number: float) -> str:
    """A whole number with thousands separators."""
    return f"{round(number):,}"


def short_answer(answer: str) -> str:
    """An answer cut to 30 characters for a table; an untrained model may write very long ones."""
    return answer if len(answer) <= 30 else answer[:29] + "…"


def plural(number: int, noun: str) -> str:
    """A count with its noun."""
    return f"{count(number)} {noun}{'' if number == 1 else 's'}"


def listed(names: Iterable[str], last: str = "and") -> str:
    """Names as they stand in a sentence: a, b and c."""
    *others, final = names
    return f"{', '.join(others)} {last} {final}" if others else final


def duration(seconds: float | None) -> str:
    """A time: 8.2 s, 6 min 52 s, 1 h 05 min."""
    if seconds is None:
        return NOTHING
    if seconds < 59.95:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(round(seconds), 60)
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours, minutes = divmod(round(seconds / 60), 60)
    return f"{hours} h {minutes:02d} min"


def roughly(seconds: float) -> str:
    """A time without false precision."""
    if seconds < 60:
        return "a minute" if seconds > 45 else f"{max(1, round(seconds / 5)) * 5} seconds"
    if seconds < 100 * 60:
        return plural(round(seconds / 60), "minute")
    return f"{seconds / 3600:.1f} hours"


def sized(size: float) -> str:
    """A number of bytes in a suitable unit."""
    for unit in ("bytes", "kB", "MB"):
        if size < 1000:
            return f"{size:.0f} {unit}" if unit == "bytes" else f"{size:.1f} {unit}"
        size /= 1000
    return f"{size:.1f} GB"


def format_nonfinite(value: float | None) -> str:
    """What is written for a missing or infinite value; empty for a finite one."""
    if value is None:
        return NOTHING
    return "" if math.isfinite(value) else "NaN" if math.isnan(value) else "∞" if value > 0 else "−∞"


def perplexity(value: float) -> str:
    """A perplexity, or any number of that size, with four or five digits."""
    decimals = 0 if abs(value) >= 10_000 else 1 if abs(value) >= 10 else 2
    return f"{value:,.{decimals}f}"


def times(ratio: float | None) -> str:
    """A ratio as a factor."""
    if ratio is None or format_nonfinite(ratio):
        return format_nonfinite(ratio)
    return f"{ratio:.3f}" if ratio < 10 else f"{ratio:,.1f}"


def chance(p: float | None) -> str:
    """A p-value."""
    if p is None or format_nonfinite(p):
        return format_nonfinite(p)
    return "< 0.001" if p < 0.001 else f"{p:.3f}" if p < 0.1 else f"{p:.2f}"


_KINDS: dict[str, Callable[[float], str]] = {
    "perplexity": perplexity,
    "loss": "{:.3f}".format,
    "share": percent,
    "seconds": duration,
    "rate": count,
    "bytes": sized,
    "count": count,
    "epoch": "{:.3g}".format,
    "ratio": times,
    "p": chance,
}


def figure(value: float | None, kind: str) -> str:
    """A value of some kind: perplexity, loss, share, seconds, rate, bytes, count, epoch, ratio, p."""
    if value is None or format_nonfinite(value):
        return format_nonfinite(value)
    return _KINDS[kind](value) if kind in _KINDS else plain(value)


def signed(value: float | None, kind: str) -> str:
    """A difference of values of some kind, with its sign; shares differ by percentage points."""
    if value is None or format_nonfinite(value):
        return format_nonfinite(value)
    sign = "+" if value > 0 else "−" if value < 0 else ""
    return sign + (f"{100 * abs(value):.1f} points" if kind == "share" else figure(abs(value), kind))


def span(low: float | None, high: float | None, kind: str, sign: bool = False) -> str:
    """An interval; empty if an end is missing or both are the same."""
    if low is None or high is None or format_nonfinite(low) or format_nonfinite(high) or low == high:
        return ""
    written = signed if sign else figure
    begin, end = written(low, kind), written(high, kind)
    return f"{begin.removesuffix(' %').removesuffix(' points')} to {end}"


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


def flat(settings: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """Nested settings as dotted names with their values."""
    return ((name, plain(value)) for name, value in flatten(settings))


def magnitude(largest: float) -> tuple[float, str]:
    """A unit that makes numbers up to this one short: its size, and its name with a space."""
    for size, name in ((1e9, "billion "), (1e6, "million "), (1e4, "thousand ")):
        if math.isfinite(largest) and largest >= size:
            return (1e3 if size == 1e4 else size), name
    return 1.0, ""


def visible(token: str) -> str:
    """A token with its spaces and line ends made visible."""
    return token.replace(" ", "·").replace("\n", "⏎").replace("\t", "⇥") or "∅"


_SYMBOLS = {
    "·": "is a space",
    "⏎": "is the end of a line",
    "⇥": "is a tab",
    "∅": "is an empty token",
    "⁇": "ends a question or an answer, or stands for a part that is hidden",
    "□": "ends a text",
    "░": "is a token that is not learned",
}


def legend(*texts: str) -> str:
    """What the symbols in texts, as `visible` shows them, stand for: a sentence, or nothing without symbols."""
    used = [f"“{symbol}” {meaning}" for symbol, meaning in _SYMBOLS.items() if any(symbol in text for text in texts)]
    return f"{'; '.join(used)}." if used else ""


def quoted(token: str) -> str:
    """A token in quotation marks, with its spaces made visible."""
    return f"“{visible(token)}”"


def capital(sentence: str) -> str:
    """A sentence with a capital at its start."""
    return sentence[:1].upper() + sentence[1:]
