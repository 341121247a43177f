"""The histogram of sentence lengths: as a chart of a report, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from attnlab.pictures import picture_bytes
from attnlab.report.document import Axis, Chart, Series
from attnlab.report.words import plural

_LONGEST = 100  # words; longer sentences share one bar
_LAST = 5  # words that this bar is wide


def _bars(lengths: Sequence[Mapping[str, int]]) -> tuple[list[tuple[int, int, int]], int]:
    """First word, end and number of sentences of every bar; and the number of sentences in the last, of long ones."""
    bars = [(one["from"], one["to"] + 1, one["sentences"]) for one in lengths if one["to"] <= _LONGEST]
    beyond = sum(one["sentences"] for one in lengths if one["to"] > _LONGEST)
    return [*bars, *([(_LONGEST + 1, _LONGEST + 1 + _LAST, beyond)] if beyond else [])], beyond


def _title(lengths: Sequence[Mapping[str, int]], beyond: int) -> str:
    total = sum(one["sentences"] for one in lengths)
    long = f"; {plural(beyond, 'sentence')} of over {_LONGEST} words in the last bar" if beyond else ""
    return f"Words per sentence, {plural(total, 'sentence')}{long}"


def lengths_chart(lengths: Sequence[Mapping[str, int]]) -> Chart:
    """The histogram as an outline."""
    bars, beyond = _bars(lengths)
    x = [float(edge) for begin, end, _ in bars for edge in (begin, end)]
    y = [float(number) for _, _, number in bars for _ in range(2)]
    most = max(lengths, key=lambda one: one["sentences"])
    label = f"Histogram of sentence lengths: most sentences have {most['from']} to {most['to']} words"
    axes = Axis("words", low=0.0), Axis("sentences", low=0.0)
    return Chart("lines", _title(lengths, beyond), label, *axes, [Series("sentences", x, y)])


def lengths_picture(lengths: Sequence[Mapping[str, int]], kind: str = "png") -> bytes:
    """The histogram as a picture of some kind, such as png, svg or pdf."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bars, beyond = _bars(lengths)
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    ax.bar(
        [one[0] for one in bars], [one[2] for one in bars], [one[1] - one[0] for one in bars], align="edge", ec="white"
    )
    ax.set_title(_title(lengths, beyond), fontsize=10)
    ax.set(xlabel="words", ylabel="sentences")
    ax.spines[["top", "right"]].set_visible(False)
    return picture_bytes(figure, kind)
