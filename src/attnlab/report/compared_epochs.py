"""The curves of a comparison whose runs are told epoch by epoch: accuracy and losses, means over seeds in a band.

Pure functions from a result to figures, each drawn for wide and for small screens.
"""

from __future__ import annotations

from math import nan

from attnlab.report.charts import Axis, Series
from attnlab.report.compared import Result
from attnlab.report.compared_charts import Interactive, ends, interactive


def epoch_curve(one: Result, key: str, factor: float = 1.0) -> Series:
    """The mean over seeds of a figure, epoch by epoch, in a band from the lowest to the highest; gaps where one has none."""
    rows = list(zip(*(run["epochs"] for run in one["runs"]), strict=True))
    values = [[nan if epoch[key] is None else factor * epoch[key] for epoch in row] for row in rows]
    means, band = [sum(row) / len(row) for row in values], len(one["runs"]) > 1
    return Series(
        one["name"],
        [float(row[0]["epoch"]) for row in rows],
        means,
        [mean if mean != mean else min(row) for mean, row in zip(means, values, strict=True)] if band else (),
        [mean if mean != mean else max(row) for mean, row in zip(means, values, strict=True)] if band else (),
    )


def epoch_figures(result: Result) -> list[Interactive]:
    """Validation accuracy, validation loss and training loss over the epochs; nothing where there is one epoch, or none."""
    trained = [one for one in result["specimens"] if all(len(run.get("epochs") or ()) > 1 for run in one["runs"])]
    if not trained:
        return []
    over = ", mean and range of the seeds" if any(len(one["runs"]) > 1 for one in trained) else ""
    drawn = []
    for key, title, axis, factor in (
        ("dev_accuracy", "Validation accuracy", Axis("right labels", "%"), 100.0),
        ("dev_loss", "Validation loss", Axis("loss", "nats a text"), 1.0),
        ("train_loss", "Training loss", Axis("loss", "nats a text"), 1.0),
    ):
        series = [epoch_curve(one, key, factor) for one in trained]
        drawn.append(interactive(f"{title}{over}", series, Axis("epoch"), axis, ends(series, title.lower())))
    return drawn
