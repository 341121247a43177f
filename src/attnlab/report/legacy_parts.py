"""Cells, charts and sections that several reports share. Plain data in, blocks out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeVar

from attnlab.report.document import (
    Axis,
    Block,
    Cell,
    Chart,
    Code,
    Column,
    Document,
    Facts,
    Group,
    Mark,
    Notice,
    Row,
    Section,
    Series,
    Table,
)
from attnlab.report.words import (
    NOTHING,
    count,
    duration,
    figure,
    flat,
    interval,
    magnitude,
    percent,
    plain,
    short_answer,
)

Result = Mapping[str, Any]  # a result or a part of one, as result.json holds it
_Item = TypeVar("_Item")

QUICK = Notice(
    "A quick run.",
    "It was cut short to show that everything works; its numbers say little about what the models can do.",
)
MOST_POINTS = 400  # per series, so that a page stays small
_LATTER = 0.5  # share of the training after which curves are drawn again, closer


# The frame of a report


def report_of(
    kind: str,
    result: Result,
    lead: Sequence[str],
    sections: Sequence[Section],
    notices: Sequence[Notice] = (),
    took: str = "took",
    footer: str = "The raw numbers are in result.json.",
) -> Document:
    """The Document of a finished result: title, command, date, duration and processor come from the result."""
    processor = (result.get("environment") or {}).get("processor")
    machine = f" on {processor}" if processor else ""
    about = f"Finished {result['finished']}; {took} {duration(result['seconds'])}{machine}."
    return Document(kind, result["title"], lead, sections, notices, about, result["command"], footer)


def side_by_side(blocks: Sequence[Block]) -> Group:
    """Blocks in columns."""
    return Group("columns", blocks)


def folded(title: str, *blocks: Block) -> Group:
    """Blocks behind a title."""
    return Group("folded", blocks, title)


def reproduce(
    result: Result, facts: Facts, settings: Mapping[str, Result] | None = None, more: Sequence[Block] = ()
) -> Section:
    """How to reproduce a result: the command, the data, the machine, and settings by the name of their run."""
    machine = Facts("Machine", plain_facts(result.get("environment") or {}))
    hidden = [
        folded(f"Settings of {name}", Facts("Settings", list(flat(values))))
        for name, values in (settings or {}).items()
    ]
    return Section("Reproduce", [Code(result["command"]), side_by_side([facts, machine]), *more, *hidden])


def plain_facts(values: Result) -> list[tuple[str, str]]:
    """Names and values as they are."""
    return [(name, plain(value)) for name, value in values.items()]


def named_facts(values: Result) -> list[tuple[str, str]]:
    """Keys as words, with their values."""
    return [(name.replace("_", " ").capitalize(), plain(value)) for name, value in values.items()]


# Tables


def columns(first: str, *others: str | Column) -> list[Column]:
    """A column of names, then columns of numbers where only a title is given."""
    return [Column(first, number=False), *(Column(one) if isinstance(one, str) else one for one in others)]


def text_column(title: str, minor: bool = False) -> Column:
    """A column of words."""
    return Column(title, number=False, minor=minor)


def cell(value: float | None, kind: str) -> Cell:
    """A number of some kind (see `words.figure`)."""
    return Cell(figure(value, kind), value)


def accuracy_cell(one: Result, each: str = "") -> Cell:
    """An accuracy with its interval below, and the values of single seeds behind it."""
    low, high = one["low"], one["high"]
    return Cell(percent(one["accuracy"]), one["accuracy"], interval(low, high), each, low=low, high=high)


def interval_cell(one: Result) -> Cell:
    """The interval of an accuracy, in a cell of its own."""
    return Cell(interval(one["low"], one["high"]), low=one["low"], high=one["high"])


def out_of(part: int, whole: int) -> Cell:
    """A count out of another."""
    return Cell(f"{count(part)} of {count(whole)}", part)


def accuracy_mark(name: str, one: Result, faint: bool = False) -> Mark:
    """An accuracy in per cent, with its interval, as a bar or a point."""
    low, high = 100 * one["low"], 100 * one["high"]
    return Mark(name, 100 * one["accuracy"], percent(one["accuracy"]), low, high, faint)


def commonest(row: Result) -> list[tuple[str, float]]:
    """The most common predictions of an examination, short, with their shares; older results hold only the first."""
    said = [(one["prediction"], one["share"]) for one in row.get("commonest") or ()]
    said = said or [(row["commonest_prediction"], row["commonest_share"])]
    return [(short_answer(answer) or "(nothing)", share) for answer, share in said]


def commonest_words(row: Result) -> str:
    """The two most common predictions in half a sentence."""
    return " and ".join(f"{answer} ({percent(share)})" for answer, share in commonest(row)[:2])


def commonest_cell(row: Result) -> Cell:
    """The most common prediction of an examination, with the second below."""
    texts = [f"{answer}, {100 * share:.0f} %" for answer, share in commonest(row)]
    return Cell(texts[0], row["commonest_share"], texts[1] if len(texts) > 1 else "")


def commonest_table(rows: Sequence[Result], of: str = "each model") -> Table | None:
    """The most common predictions of several examinations, a line each; None if no result holds them."""
    known = [row for row in rows if row.get("commonest")]
    most = max((len(commonest(row)) for row in known), default=0)
    lines = []
    for row in known:
        cells = [Cell(f"{answer}, {percent(share)}", share) for answer, share in commonest(row)]
        cells += [Cell(NOTHING)] * (most - len(cells))
        lines.append(Row(Cell(row["name"]), [*cells, cell(row["distinct_predictions"], "count")]))
    caption = f"The most common answers of {of}, right or wrong, and how many different ones there are."
    titles = [text_column(f"{place}.") for place in range(1, most + 1)]
    return Table("Most common answers", caption, columns("Model", *titles, "Distinct"), lines) if known else None


def training_blocks(runs: Mapping[str, Result]) -> list[Block]:
    """The loss curves of training runs, and a table of them in numbers."""
    rows = []
    for name, run in runs.items():
        one = run["result"]
        cells = [
            cell(one["steps"], "count"),
            cell(one["epochs"], ""),
            cell(one["tokens"], "count"),
            cell(one["tokens_per_second"], "count"),
            cell(one["seconds"], "seconds"),
            Cell(f"{one['final_loss']:.3f}", one["final_loss"]),
            cell(one["parameters"], "count"),
        ]
        rows.append(Row(Cell(name), cells))
    titles = ("Steps", "Epochs", "Tokens", "Tokens per second", "Time", "Final loss", "Parameters")
    caption = "The final loss is the mean over the last twentieth of the steps."
    charts = [_loss_chart(name, run["metrics"]) for name, run in runs.items() if run["metrics"]]
    return [*charts, Table("Training runs", caption, columns("Run", *titles), rows)] if runs else []


def settings_of(runs: Mapping[str, Result]) -> dict[str, Result]:
    """The settings of training runs by name."""
    return {name: run["settings"] for name, run in runs.items()}


# Curves


def lines(title: str, series: Sequence[Series], x: Axis, y: Axis, of: str, height: float = 320) -> Chart:
    """Curves whose values can be read off, with a label that tells where each starts and ends."""
    known = [(one.name, [value for value in one.y if math.isfinite(value)]) for one in series]
    said = "; ".join(f"{name} from {values[0]:.2f} to {values[-1]:.2f}" for name, values in known if values)
    label = f"Line chart of {of}: {said}" if said else f"Line chart of {of}, without a line"
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


def _smoothed(
    metrics: Iterable[Result], size: float, over: str = "tokens"
) -> tuple[list[float], list[float], list[float]]:
    """Tokens read (or steps), losses and smoothed losses of the steps whose loss is finite."""
    rows = [row for row in metrics if isinstance(row.get("loss"), int | float) and math.isfinite(row["loss"])]
    losses = [row["loss"] for row in rows]
    return [row[over] / size for row in rows], losses, smooth(losses, max(5, len(rows) // 40))


def loss_curve(metrics: Sequence[Result]) -> tuple[Series, str]:
    """The loss over the tokens read, and the unit in which the tokens are counted."""
    tokens, losses, means = _smoothed(metrics, 1.0)
    size, unit = magnitude(tokens[-1] if tokens else 0)
    line = thin([(x / size, y) for x, y in zip(tokens, means, strict=True)])
    dots = thin([(x / size, y) for x, y in zip(tokens, losses, strict=True)])
    series = Series("smoothed", [x for x, _ in line], [y for _, y in line], dots=tuple(dots), dots_name="single steps")
    return series, f"{unit}tokens read"


def _loss_chart(name: str, metrics: Sequence[Result]) -> Chart:
    series, tokens = loss_curve(metrics)
    ends = f"from {series.y[0]:.2f} to {series.y[-1]:.2f} " if series.y else ""
    label = f"Line chart of the training loss of {name}: {ends}nats per token, over {tokens}"
    return Chart("lines", name, label, Axis(tokens), Axis("loss", "nats per token", low=0.0), [series])


def joint_curve(
    name: str, runs: Iterable[Sequence[Result]], size: float = 1.0, marked: bool = False, over: str = "tokens"
) -> Series:
    """The mean of several runs' smoothed losses over the tokens read, in a band from the lowest to the highest.

    Steps of different seeds do not fall on the same tokens, so all runs are read at the steps of the first, as far as all of
    them reach.
    """
    import numpy as np  # here, because `attnlab runs` starts without it

    curves = [(tokens, means) for tokens, _, means in (_smoothed(rows, size, over) for rows in runs) if tokens]
    if not curves:
        return Series(name, [], [], marked=marked)
    reach = min(tokens[-1] for tokens, _ in curves)
    grid = thin([*(x for x in curves[0][0] if x < reach), reach])
    at = np.array([np.interp(grid, tokens, losses) for tokens, losses in curves])
    low, high = (at.min(axis=0).tolist(), at.max(axis=0).tolist()) if len(curves) > 1 else ([], [])
    return Series(name, grid, at.mean(axis=0).tolist(), low, high, marked=marked)


def _latter_part(series: Series, begin: float) -> Series:
    first = next((place for place, x in enumerate(series.x) if x >= begin), len(series.x))
    return replace(
        series, x=series.x[first:], y=series.y[first:], low=series.low[first:], high=series.high[first:], dots=()
    )


def joint_losses(runs: Sequence[tuple[str, Sequence[Sequence[Result]], bool]], band: bool = True) -> list[Chart]:
    """Loss curves by name over their seeds, marked or not: the whole training, and its second half closer."""
    last = [metrics[-1]["tokens"] for _, seeds, _ in runs for metrics in seeds if metrics]
    size, unit = magnitude(max(last, default=0))
    series = [joint_curve(name, metrics, size, marked) for name, metrics, marked in runs]
    series = [one for one in series if one.y]
    if not series:
        return []
    x, y = Axis(f"{unit}tokens read"), Axis("loss", "nats per token")
    over = ", mean and range of the seeds" if band and any(one.low for one in series) else ""
    drawn = [lines(f"Training loss{over}", series, x, y, "the training loss")]
    later = [_latter_part(one, _LATTER * max(one.x[-1] for one in series)) for one in series]
    if all(len(one.x) > 2 for one in later):
        drawn.append(lines("The second half, closer", later, x, y, "the training loss in the second half"))
    steps = [
        joint_curve(name, metrics, 1.0, marked, over="step")
        for name, metrics, marked in runs
        if all(map(_has_steps, metrics))
    ]
    if len(steps) == len(runs):
        steps = [one for one in steps if one.y]
        drawn.append(lines(f"Training loss by step{over}", steps, Axis("step"), y, "the training loss by step"))
    return drawn


def _has_steps(metrics: Sequence[Result]) -> bool:
    return all("step" in row for row in metrics)


# Attention heads


def strongest(weights: Sequence[float]) -> int:
    """The column with the largest weight."""
    return max(range(len(weights)), key=lambda column: weights[column])
