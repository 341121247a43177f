"""Parts that several reports share: curves, training tables, how to reproduce a result. Plain data in, blocks out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from attnlab.report.curves import joint_curve, latter_part, loss_curve
from attnlab.report.document import (
    Axis,
    Block,
    Cell,
    Chart,
    Code,
    Column,
    Facts,
    Group,
    Notice,
    Row,
    Section,
    Series,
    Table,
)
from attnlab.report.words import count, duration, flat, plain

Result = Mapping[str, Any]

QUICK = Notice(
    "A quick run.",
    "It was cut short to show that everything works; its numbers say little about what the models can do.",
)
LATTER = 0.5  # share of the training from which on curves are drawn again, closer


def finished(result: Result, took: str = "took") -> str:
    """When a result was finished, how long it took, and on what."""
    processor = (result.get("environment") or {}).get("processor")
    return (
        f"Finished {result['finished']}; {took} {duration(result['seconds'])}{f' on {processor}' if processor else ''}."
    )


def spread(blocks: Sequence[Block]) -> Group:
    """Blocks beside each other."""
    return Group("columns", blocks)


def folded(title: str, *blocks: Block) -> Group:
    """Blocks behind a title."""
    return Group("folded", blocks, title)


def reproduce(
    result: Result,
    facts: Sequence[Facts] = (),
    settings: Mapping[str, Iterable[tuple[str, str]]] | None = None,
    more: Sequence[Block] = (),
) -> Section:
    """What is needed to do it again: the command, the data, the machine, the settings."""
    machine = Facts("Machine", [(name, plain(value)) for name, value in (result.get("environment") or {}).items()])
    hidden = [folded(f"Settings of {name}", Facts("Settings", list(pairs))) for name, pairs in (settings or {}).items()]
    return Section("Reproduce", [Code(result["command"]), spread([*facts, machine]), *more, *hidden])


def settings_of(runs: Mapping[str, Result]) -> dict[str, list[tuple[str, str]]]:
    """The settings of some runs by name."""
    return {name: list(flat(run["settings"])) for name, run in runs.items()}


def lines(title: str, series: Sequence[Series], x: Axis, y: Axis, of: str, height: float = 320) -> Chart:
    """Curves whose values can be read, with a label that tells where every one starts and ends."""
    known = [(one.name, [value for value in one.y if math.isfinite(value)]) for one in series]
    said = "; ".join(f"{name} from {values[0]:.2f} to {values[-1]:.2f}" for name, values in known if values)
    label = f"Line chart of {of}: {said}" if said else f"Line chart of {of}, without a line"
    return Chart("lines", title, label, x, y, series, height=height, readable=True)


def loss_chart(name: str, run: Result) -> Chart:
    """The training loss of one run over the tokens it read."""
    series, tokens = loss_curve(run["metrics"])
    ends = f"from {series.y[0]:.2f} to {series.y[-1]:.2f} " if series.y else ""
    label = f"Line chart of the training loss of {name}: {ends}nats per token, over {tokens}"
    return Chart("lines", name, label, Axis(tokens), Axis("loss", "nats per token", low=0.0), [series])


def loss_charts(runs: Mapping[str, Result]) -> list[Chart]:
    """The training losses of all runs that have recorded some."""
    return [loss_chart(name, run) for name, run in runs.items() if run["metrics"]]


def joint_losses(
    runs: Sequence[tuple[str, Sequence[Sequence[Result]], bool]], size: float, unit: str, band: bool = True
) -> list[Chart]:
    """Loss curves of several names over their seeds, for the whole training and closer for its second half."""
    series = [joint_curve(name, metrics, size, marked) for name, metrics, marked in runs]
    series = [one for one in series if one.y]
    if not series:
        return []
    x, y = Axis(f"{unit}tokens read"), Axis("loss", "nats per token")
    over = ", mean and range of the seeds" if band and any(one.low for one in series) else ""
    drawn = [lines(f"Training loss{over}", series, x, y, "the training loss")]
    later = [latter_part(one, LATTER * max(one.x[-1] for one in series)) for one in series]
    if all(len(one.x) > 2 for one in later):
        drawn.append(lines("The second half, closer", later, x, y, "the training loss in the second half"))
    return drawn


def training_table(runs: Mapping[str, Result]) -> Table:
    """The training runs in numbers."""
    rows = []
    for name, run in runs.items():
        one = run["result"]
        cells = [
            Cell(count(one["steps"]), one["steps"]),
            Cell(plain(one["epochs"]), one["epochs"]),
            *(Cell(count(one[key]), one[key]) for key in ("tokens", "tokens_per_second")),
            Cell(duration(one["seconds"]), one["seconds"]),
            Cell(f"{one['final_loss']:.3f}", one["final_loss"]),
            Cell(count(one["parameters"]), one["parameters"]),
        ]
        rows.append(Row(Cell(name), cells))
    titles = ("Steps", "Epochs", "Tokens", "Tokens per second", "Time", "Final loss", "Parameters")
    caption = "The final loss is the mean over the last twentieth of the steps."
    return Table("Training runs", caption, [Column("Run", number=False), *map(Column, titles)], rows)
