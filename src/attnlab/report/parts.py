"""Cells, charts and sections that several reports share. Records in, blocks out."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar

from attnlab.config import Settings
from attnlab.machine import environment
from attnlab.report import document as blocks
from attnlab.report import words
from attnlab.report.document import Axis, Block, Cell, Chart, Column, Document, Group, Row, RowTone, Series, Table
from attnlab.store.runs import RunResult, Step

if TYPE_CHECKING:
    from attnlab.lm.exams import Pair, Score, Scored, Scores
    from attnlab.lm.tokenizers import LengthBar

_Item = TypeVar("_Item")

QUICK = blocks.Notice(
    "A quick run.",
    "It was cut short to show that everything works; its numbers say little about what the models can do.",
)
MOST_POINTS = 400  # per series, so that a page stays small
_LONGEST = 100  # words; longer sentences share one bar of their histogram
_LATTER = 0.5  # share of the training after which curves are drawn again, closer


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """What all results have in common: the content of result.json."""

    kind: str = ""  # the name of the study
    title: str
    command: str = ""
    finished: str = field(default_factory=lambda: date.today().isoformat())
    seconds: float = 0.0
    environment: dict[str, Any] = field(default_factory=environment)


@dataclass(frozen=True)
class LossCurve:
    """The training loss by step, or that of validation; None where it was not finite."""

    steps: list[int] = field(default_factory=list)
    tokens: list[int] = field(default_factory=list)  # read since the start
    losses: list[float | None] = field(default_factory=list)

    @classmethod
    def of(cls, steps: Iterable[Step]) -> LossCurve:
        """The curve of the steps of a run."""
        return cls(*map(list, zip(*((step.step, step.tokens, step.loss) for step in steps), strict=True)))

    @classmethod
    def of_validation(cls, steps: Iterable[Step]) -> LossCurve:
        """The curve of the steps after which a run was validated."""
        return cls.of(replace(step, loss=step.dev_loss) for step in steps if step.dev_loss is not None)

    @property
    def best(self) -> tuple[int, int, float] | None:
        """The step with the lowest loss, the tokens read until then, and the loss."""
        known = (
            (loss, step, tokens) for step, tokens, loss in zip(*vars(self).values(), strict=True) if loss is not None
        )
        loss, step, tokens = min(known, default=(None, 0, 0))
        return None if loss is None else (step, tokens, loss)


@dataclass(frozen=True, kw_only=True)
class TrainedRun(RunResult):
    """The result of a training run as reports show it."""

    folder: str
    stage: str
    settings: Settings
    curve: LossCurve


# The frame of a report


def report_of(
    kind: str,
    result: StudyResult,
    lead: Sequence[str],
    sections: Sequence[blocks.Section],
    notices: Sequence[blocks.Notice] = (),
    took: str = "took",
    footer: str = "The raw numbers are in result.json.",
) -> Document:
    """The Document of a finished result: title, command, date, duration and processor come from the result."""
    processor = result.environment.get("processor")
    machine = f" on {processor}" if processor else ""
    about = f"Finished {result.finished}; {took} {words.duration(result.seconds)}{machine}."
    return Document(kind, result.title, lead, sections, notices, about, result.command, footer)


def side_by_side(blocks: Sequence[Block]) -> Group:
    """Blocks in columns."""
    return Group("columns", blocks)


def folded(title: str, *blocks: Block) -> Group:
    """Blocks behind a title."""
    return Group("folded", blocks, title)


def reproduce(
    result: StudyResult, facts: blocks.Facts, settings: Mapping[str, Settings] | None = None, more: Sequence[Block] = ()
) -> blocks.Section:
    """How to reproduce a result: the command, the data, the machine, and settings by the name of their run."""
    machine = blocks.Facts("Machine", plain_facts(result.environment))
    hidden = [
        folded(f"Settings of {name}", blocks.Facts("Settings", list(words.flat(values))))
        for name, values in (settings or {}).items()
    ]
    return blocks.Section("Reproduce", [blocks.Code(result.command), side_by_side([facts, machine]), *more, *hidden])


def plain_facts(values: Settings) -> list[tuple[str, str]]:
    """Names and values as they are."""
    return [(name, words.plain(value)) for name, value in values.items()]


# Tables


def columns(first: str, *others: str | Column) -> list[Column]:
    """A column of names, then columns of numbers where only a title is given."""
    return [Column(first, number=False), *(Column(column) if isinstance(column, str) else column for column in others)]


def text_column(title: str, minor: bool = False) -> Column:
    """A column of words."""
    return Column(title, number=False, minor=minor)


def table_of(
    title: str,
    caption: str,
    items: Iterable[_Item],
    cells: Sequence[tuple[str | Column, Callable[[_Item], Cell]]],
    *,
    mark: Callable[[_Item], str] = lambda item: "",
    tone: Callable[[_Item], RowTone] = lambda item: "",
    brief: bool = False,
) -> Table:
    """A table with one row per item, from the title of every column and its cell for an item; the first column is the name."""
    titles = [title for title, _ in cells]
    first = titles[0] if isinstance(titles[0], Column) else text_column(titles[0])
    rows = []
    for item in items:
        name, *others = (make(item) for _, make in cells)
        rows.append(Row(name, others, mark(item), "good" if mark(item) else tone(item)))
    return Table(title, caption, [first, *columns("", *titles[1:])[1:]], rows, brief)


def cell(value: float | None, kind: str) -> Cell:
    """A number of some kind (see `words.figure`)."""
    return Cell(words.figure(value, kind), value)


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How many of some texts got their label, as a share with its 95 % interval."""

    texts: int
    right: int
    accuracy: float
    low: float
    high: float

    @classmethod
    def of(cls, right: int, texts: int, **others: Any) -> Self:
        """The record with its share and interval, from two counts and the other fields."""
        from attnlab.stats import proportion_interval  # here, because `attnlab runs` starts without numpy

        low, high = proportion_interval(right, texts)
        return cls(texts=texts, right=right, accuracy=right / texts, low=low, high=high, **others)

    def __str__(self) -> str:
        share, span = words.percent(self.accuracy), words.interval(self.low, self.high)
        return f"{share} of {words.count(self.texts)} texts right (95 % interval {span})"


class Measured(Protocol):
    """An accuracy with its interval; None where the exam has no answers."""

    @property
    def accuracy(self) -> float | None:
        """The share of right answers."""

    @property
    def low(self) -> float | None:
        """The lower end of its interval."""

    @property
    def high(self) -> float | None:
        """The upper end of its interval."""


def accuracy_cell(score: Measured, each: str = "") -> Cell:
    """An accuracy with its interval below, and the values of single seeds behind it."""
    under = words.span(score.low, score.high, "share")
    return Cell(words.figure(score.accuracy, "share"), score.accuracy, under, each, low=score.low, high=score.high)


def difference_cell(value: float | None, low: float | None, high: float | None, kind: str) -> Cell:
    """A difference with its sign, and its interval below."""
    return Cell(words.signed(value, kind), value, words.span(low, high, kind, sign=True), low=low, high=high)


def interval_cell(score: Measured) -> Cell:
    """The interval of an accuracy, in a cell of its own."""
    return Cell(words.span(score.low, score.high, "share") or words.NOTHING, low=score.low, high=score.high)


def out_of(part: int | None, whole: int) -> Cell:
    """A count out of another."""
    return Cell(f"{words.NOTHING if part is None else words.count(part)} of {words.count(whole)}", part)


def accuracy_mark(name: str, score: Measured, faint: bool = False) -> blocks.Mark:
    """An accuracy in per cent, with its interval, as a bar or a point."""
    assert score.accuracy is not None
    low, high = (None if end is None else 100 * end for end in (score.low, score.high))
    return blocks.Mark(name, 100 * score.accuracy, words.percent(score.accuracy), low, high, faint)


def _commonest(score: Score) -> list[tuple[str, float]]:
    """The most common predictions of an examination, short, with their shares."""
    return [(words.short_answer(common.prediction) or "(nothing)", common.share) for common in score.commonest]


def commonest_words(score: Score) -> str:
    """The two most common predictions in half a sentence."""
    return " and ".join(f"{answer} ({words.percent(share)})" for answer, share in _commonest(score)[:2])


def _commonest_cell(score: Score) -> Cell:
    """The most common prediction of an examination, with the second below."""
    texts = [f"{answer}, {100 * share:.0f} %" for answer, share in _commonest(score)]
    return Cell(texts[0], score.commonest_share, texts[1] if len(texts) > 1 else "")


def commonest_table(rows: Sequence[Scored], of: str = "each model") -> Table:
    """The most common predictions of several examinations, one per line."""
    most = max(len(row.commonest) for row in rows)
    lines = []
    for row in rows:
        cells = [Cell(f"{answer}, {words.percent(share)}", share) for answer, share in _commonest(row)]
        cells += [Cell(words.NOTHING)] * (most - len(cells))
        lines.append(Row(Cell(row.name), [*cells, cell(row.distinct_predictions, "count")]))
    caption = f"The most common answers of {of}, right or wrong, and how many different ones there are."
    titles = [text_column(f"{place}.") for place in range(1, most + 1)]
    return Table("Most common answers", caption, columns("Model", *titles, "Distinct"), lines)


def results_table(rows: Sequence[Scored], first: str = "Model") -> Table:
    """Accuracies, or only predictions if the exam has no answers; with the time of training where that is known."""
    cells: list[tuple[str | Column, Callable[[Scored], Cell]]] = [(first, lambda row: Cell(row.name, None, row.note))]
    if any(row.accuracy is not None for row in rows):
        caption = (
            "Answers must match exactly. The 95 % interval (Wilson) shows how precisely an exam of this size measures the"
            " accuracy."
        )
        cells += [("Accuracy", lambda row: cell(row.accuracy, "share")), ("95 % interval", interval_cell)]
        cells.append((Column("Correct", minor=True), lambda row: out_of(row.correct, row.questions)))
    else:
        caption = "Predictions only: the exam has no answers to compare with."
        cells.append(("Predictions", lambda row: cell(row.questions, "count")))
    cells.append((text_column("Most common answers"), _commonest_cell))
    if any(row.seconds is not None for row in rows):
        cells.append(("Training", lambda row: cell(row.seconds, "seconds")))
    return table_of("Results", caption, rows, cells, tone=tone_of, brief=True)


def tone_of(row: Scored) -> RowTone:
    """Baselines are shown as such."""
    return "baseline" if row.kind == "baseline" else ""


def accuracy_chart(rows: Sequence[Scored]) -> Chart | None:
    """Right answers as bars; None if the exam has no answers."""
    scored = [row for row in rows if row.accuracy is not None]
    if not scored:
        return None
    marks = [accuracy_mark(row.name, row, row.kind == "baseline") for row in scored]
    label = "Bar chart of right answers. " + "; ".join(
        f"{row.name}: {words.figure(row.accuracy, 'share')} (95 % interval {words.span(row.low, row.high, 'share')})"
        for row in scored
    )
    return Chart("bars", "Right answers, with 95 % intervals", label, Axis("right answers", "%"), marks=marks)


def training_blocks(runs: Mapping[str, TrainedRun]) -> list[Block]:
    """The loss curves of training runs, and a table of them in numbers."""
    charts = [loss_chart(name, run.curve) for name, run in runs.items() if run.curve.steps]
    table = table_of(
        "Training runs",
        "The final loss is the mean over the last twentieth of the steps.",
        runs.items(),
        [
            ("Run", lambda item: Cell(item[0])),
            ("Steps", lambda item: cell(item[1].steps, "count")),
            ("Epochs", lambda item: cell(item[1].epochs, "")),
            ("Tokens", lambda item: cell(item[1].tokens, "count")),
            ("Tokens per second", lambda item: cell(item[1].tokens_per_second, "count")),
            ("Time", lambda item: cell(item[1].seconds, "seconds")),
            ("Final loss", lambda item: cell(item[1].final_loss, "loss")),
            ("Parameters", lambda item: cell(item[1].parameters, "count")),
        ],
    )
    return [*charts, table] if runs else []


def score_document(scores: Scores, command: str) -> Document:
    """The report of `attnlab score`: files of predictions on one exam, and tests of pairs."""
    rows = scores.rows
    return Document(
        "score",
        f"{words.plural(scores.questions, 'question')} of {scores.exam}",
        [*(f"{row.name}: {row.sentence()}" for row in rows), *(pair.sentence for pair in scores.pairs)],
        [
            *blocks.section("Results", accuracy_chart(rows), results_table(rows, "Predictions"), commonest_table(rows)),
            *blocks.section("Pairs", _pairs_table(scores.pairs) if scores.pairs else None),
        ],
        command=command,
    )


def _pairs_table(pairs: Sequence[Pair]) -> Table:
    several = len(pairs) > 1
    caption = "McNemar's exact test: only questions that one of the two alone gets right can tell them apart."
    if several:
        caption += " Adjusted: after Holm's correction; the intervals hold together (Bonferroni)."
    titles = ("Difference", "Right with the first only", "With the second only", "p")
    rows = []
    for pair in pairs:
        difference = difference_cell(pair.difference, pair.low, pair.high, "share")
        counts = cell(pair.only_a, "count"), cell(pair.only_b, "count")
        tests = cell(pair.p, "p"), *([cell(pair.adjusted, "p")] if several else [])
        rows.append(Row(Cell(pair.first), [Cell(pair.second), difference, *counts, *tests]))
    shown = columns("First", text_column("Second"), *titles, *(["p, adjusted"] if several else []))
    return Table("Pairs", caption, shown, rows)


# Curves


def lengths_chart(lengths: Sequence[LengthBar]) -> Chart:
    """The histogram of sentence lengths as an outline; the longest sentences share one bar."""
    bars = [(bar.least, bar.most + 1, bar.sentences) for bar in lengths if bar.most <= _LONGEST]
    beyond = sum(bar.sentences for bar in lengths if bar.most > _LONGEST)
    bars += [(_LONGEST + 1, _LONGEST + 6, beyond)] if beyond else []
    x = [float(edge) for begin, end, _ in bars for edge in (begin, end)]
    y = [float(number) for _, _, number in bars for _ in range(2)]
    most = max(lengths, key=lambda bar: bar.sentences)
    label = f"Histogram of sentence lengths: most sentences have {most.least} to {most.most} words"
    title = f"Words per sentence, {words.plural(sum(bar.sentences for bar in lengths), 'sentence')}"
    title += f"; {words.plural(beyond, 'sentence')} of over {_LONGEST} words in the last bar" if beyond else ""
    axes = Axis("words", low=0.0), Axis("sentences", low=0.0)
    return Chart("lines", title, label, *axes, [Series("sentences", x, y)])


def lines(title: str, series: Sequence[Series], x: Axis, y: Axis, of: str, height: float = 320) -> Chart:
    """Curves whose values can be read off, with a label that tells where each starts and ends."""
    known = [(line.name, [value for value in line.y if math.isfinite(value)]) for line in series]
    ends = "; ".join(f"{name} from {values[0]:.2f} to {values[-1]:.2f}" for name, values in known if values)
    label = f"Line chart of {of}: {ends}" if ends else f"Line chart of {of}, without a line"
    return Chart("lines", title, label, x, y, series, height=height, readable=True)


def smooth(values: Sequence[float], width: int) -> list[float]:
    """The mean of up to `width` neighbours.

    At the start the window shrinks on both sides, so that a falling curve starts high; at the end it loses only the missing
    steps, so that the curve does not end on the noise of a single step.
    """
    sums = [0.0]
    for value in values:
        sums.append(sums[-1] + value)
    means = []
    for place in range(len(values)):
        reach = min(width // 2, place)
        begin, end = place - reach, min(place + reach + 1, len(values))
        means.append((sums[end] - sums[begin]) / (end - begin))
    return means


def thin(items: Sequence[_Item], most: int = MOST_POINTS) -> list[_Item]:
    """At most so many items, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    return [items[round(place * (len(items) - 1) / (most - 1))] for place in range(most)]


def _smoothed(curve: LossCurve, size: float, by_step: bool = False) -> tuple[list[float], list[float], list[float]]:
    """Tokens read (or steps), losses and smoothed losses of the steps whose loss is finite."""
    places = curve.steps if by_step else curve.tokens
    known = [
        (place / size, loss)
        for place, loss in zip(places, curve.losses, strict=True)
        if loss is not None and math.isfinite(loss)
    ]
    losses = [loss for _, loss in known]
    return [place for place, _ in known], losses, smooth(losses, max(1, min(5, len(known) // 10), len(known) // 40))


def loss_chart(name: str, curve: LossCurve) -> Chart:
    """The loss of one run over the tokens read, smoothed, with the losses of single steps as dots."""
    size, unit = words.magnitude(max(curve.tokens, default=0))
    places, losses, _ = _smoothed(curve, size)
    dots = tuple(thin(list(zip(places, losses, strict=True))))
    series = replace(joint_curve("smoothed", [curve], size), dots=dots, dots_name="single steps")
    ends = f"from {series.y[0]:.2f} to {series.y[-1]:.2f} " if series.y else ""
    label = f"Line chart of the training loss of {name}: {ends}nats per token, over {unit}tokens read"
    axes = Axis(f"{unit}tokens read"), Axis("loss", "nats per token", low=0.0)
    return Chart("lines", name, label, *axes, [series])


def joint_curve(
    name: str, curves: Iterable[LossCurve], size: float = 1.0, marked: bool = False, by_step: bool = False
) -> Series:
    """The mean of several runs' smoothed losses over the tokens read, in a band from the lowest to the highest.

    Steps of different seeds do not fall on the same tokens, so all runs are read at the steps of the first, as far as all of
    them reach.
    """
    import numpy as np  # here, because `attnlab runs` starts without it

    known = [(places, means) for places, _, means in (_smoothed(curve, size, by_step) for curve in curves) if places]
    if not known:
        return Series(name, [], [], marked=marked)
    reach = min(places[-1] for places, _ in known)
    grid = thin([*(x for x in known[0][0] if x < reach), reach])
    losses = np.array([np.interp(grid, places, means) for places, means in known])
    low, high = (losses.min(axis=0).tolist(), losses.max(axis=0).tolist()) if len(known) > 1 else ([], [])
    return Series(name, grid, losses.mean(axis=0).tolist(), low, high, marked=marked)


def _latter_part(series: Series, begin: float) -> Series:
    later = slice(sum(x < begin for x in series.x), None)
    return replace(series, x=series.x[later], y=series.y[later], low=series.low[later], high=series.high[later])


def joint_losses(runs: Sequence[tuple[str, Sequence[LossCurve], bool]]) -> list[Chart]:
    """Loss curves by name over their seeds, marked or not: the whole training, its second half closer, and by step."""
    last = [curve.tokens[-1] for _, curves, _ in runs for curve in curves if curve.tokens]
    size, unit = words.magnitude(max(last, default=0))
    series = [joint_curve(name, curves, size, marked) for name, curves, marked in runs]
    series = [line for line in series if line.y]
    if not series:
        return []
    x, y = Axis(f"{unit}tokens read"), Axis("loss", "nats per token")
    over = ", mean and range of the seeds" if any(line.low for line in series) else ""
    charts = [lines(f"Training loss{over}", series, x, y, "the training loss")]
    later = [_latter_part(line, _LATTER * max(line.x[-1] for line in series)) for line in series]
    if all(len(line.x) > 2 for line in later):
        charts.append(lines("The second half, closer", later, x, y, "the training loss in the second half"))
    steps = [joint_curve(name, curves, 1.0, marked, by_step=True) for name, curves, marked in runs]
    shown = [line for line in steps if line.y]
    charts.append(lines(f"Training loss by step{over}", shown, Axis("step"), y, "the training loss by step"))
    return charts


def validation_chart(runs: Sequence[tuple[str, LossCurve, LossCurve]]) -> Chart | None:
    """The validation losses of runs by name, with the lowest as a dot; beside the training loss if it is one run."""
    known = [(name, curve, dev, dev.best) for name, curve, dev in runs if dev.best is not None]
    size, unit = words.magnitude(max((curve.tokens[-1] for _, curve, _, _ in known), default=0))
    series = [joint_curve("training", [curve], size) for _, curve, _, _ in known] if len(runs) == 1 else []
    for name, _, dev, best in known:
        assert best is not None
        step, tokens, loss = best
        title = f"lowest: {loss:.3f} at step {step:,}"
        name, title = ("validation", title) if len(runs) == 1 else (name, f"{name}, {title}")
        places, lowest = [place / size for place in dev.tokens], [(tokens / size, loss)]
        losses = [math.nan if value is None else value for value in dev.losses]
        series.append(Series(name, places, losses, dots=lowest, dots_name=title))
    if not known:
        return None
    title = "Training and validation loss" if len(runs) == 1 else "Validation loss"
    return lines(title, series, Axis(f"{unit}tokens read"), Axis("loss", "nats per token"), title.lower())


# Attention heads


def strongest(weights: Sequence[float]) -> int:
    """The column with the largest weight."""
    return max(range(len(weights)), key=lambda column: weights[column])
