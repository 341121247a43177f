"""The histogram of sentence lengths: as a chart of a report, and as a picture."""

from __future__ import annotations

from collections.abc import Sequence

from attnlab.lm.word_split import LengthBar
from attnlab.pictures import picture_bytes
from attnlab.report.document import Axis, Chart, Series
from attnlab.report.words import plural

_LONGEST = 100  # words; longer sentences share one bar
_LAST = 5  # words that this bar is wide


def _bars(lengths: Sequence[LengthBar]) -> tuple[list[tuple[int, int, int]], int]:
    """First word, end and number of sentences of every bar; and the number of sentences in the last, of long ones."""
    bars = [(bar.least, bar.most + 1, bar.sentences) for bar in lengths if bar.most <= _LONGEST]
    beyond = sum(bar.sentences for bar in lengths if bar.most > _LONGEST)
    return [*bars, *([(_LONGEST + 1, _LONGEST + 1 + _LAST, beyond)] if beyond else [])], beyond


def _title(lengths: Sequence[LengthBar], beyond: int) -> str:
    total = sum(bar.sentences for bar in lengths)
    long = f"; {plural(beyond, 'sentence')} of over {_LONGEST} words in the last bar" if beyond else ""
    return f"Words per sentence, {plural(total, 'sentence')}{long}"


def lengths_chart(lengths: Sequence[LengthBar]) -> Chart:
    """The histogram as an outline."""
    bars, beyond = _bars(lengths)
    x = [float(edge) for begin, end, _ in bars for edge in (begin, end)]
    y = [float(number) for _, _, number in bars for _ in range(2)]
    most = max(lengths, key=lambda bar: bar.sentences)
    label = f"Histogram of sentence lengths: most sentences have {most.least} to {most.most} words"
    axes = Axis("words", low=0.0), Axis("sentences", low=0.0)
    return Chart("lines", _title(lengths, beyond), label, *axes, [Series("sentences", x, y)])


def lengths_picture(lengths: Sequence[LengthBar], kind: str = "png") -> bytes:
    """The histogram as a picture of some kind, such as png, svg or pdf."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    bars, beyond = _bars(lengths)
    figure = Figure(figsize=(7.0, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    ax = figure.subplots()
    ax.bar(
        [bar[0] for bar in bars], [bar[2] for bar in bars], [bar[1] - bar[0] for bar in bars], align="edge", ec="white"
    )
    ax.set_title(_title(lengths, beyond), fontsize=10)
    ax.set(xlabel="words", ylabel="sentences")
    ax.spines[["top", "right"]].set_visible(False)
    return picture_bytes(figure, kind)
