"""The charts of a classification: losses, accuracies, the confusion matrix, the trials of the baseline.

Pure functions from a result to figures, each drawn for wide and for small screens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import log10, nan
from typing import Any

from markupsafe import Markup

from attnlab.report.charts import WIDTH, Axis, Series, line_chart
from attnlab.report.compared_charts import Interactive, ends, interactive
from attnlab.report.heat import Shading, heat_map
from attnlab.report.page import SMALL, Figure
from attnlab.report.words import count, percent

Result = Mapping[str, Any]


def curves(result: Result, key: str, factor: float = 1.0) -> list[Series]:
    """A figure of training and of validation, epoch by epoch."""
    epochs = [float(one["epoch"]) for one in result["epochs"]]

    def values(part: str) -> list[float]:
        found = [one[f"{part}_{key}"] for one in result["epochs"]]
        return [nan if value is None else factor * value for value in found]

    return [Series("training", epochs, values("train")), Series("validation", epochs, values("dev"))]


def curve_figures(result: Result) -> list[Interactive]:
    """Loss and accuracy over the epochs."""
    if not result["epochs"]:
        return []
    x, best = Axis("epoch"), f"; epoch {result['best_epoch']} was kept"
    losses, shares = curves(result, "loss"), curves(result, "accuracy", 100.0)
    return [
        interactive("Loss", losses, x, Axis("loss", "nats a text", low=0.0), ends(losses, "the loss")),
        interactive(f"Accuracy{best}", shares, x, Axis("right labels", "%"), ends(shares, "the accuracy in per cent")),
    ]


def confusion_figure(result: Result, part: str) -> Figure:
    """What was said of the texts of each label."""
    counts, labels = result[part]["confusion"], result["labels"]
    largest = max(max(row) for row in counts)
    told = "; ".join(
        f"{meant} taken for {said} {count(counts[row][column])} times"
        for row, meant in enumerate(labels)
        for column, said in enumerate(labels)
        if counts[row][column]
    )
    drawn = Markup(
        heat_map(
            counts,
            labels,
            labels,
            label=f"Confusion matrix. {told}",
            shading=Shading(high=float(max(largest, 1))),
            cell=64 if len(labels) <= 6 else 44 if len(labels) <= 12 else 30,
            written=count,
            numbers=len(labels) <= 20,
        )
    )
    return Figure("Rows: the label of the text. Columns: what it says.", drawn, drawn)


def trials_figure(result: Result) -> Figure | None:
    """How the baseline's strength was chosen."""
    trials: Sequence[Result] = result["trials"]
    if not trials:
        return None
    series = [
        Series(
            "cross-validation", [log10(one["strength"]) for one in trials], [100 * one["accuracy"] for one in trials]
        )
    ]
    told = "; ".join(f"{one['strength']:g}: {percent(one['accuracy'])}" for one in trials)
    wide, small = (
        line_chart(
            series,
            Axis("strength, as a power of ten"),
            Axis("right labels", "%"),
            label=f"Line chart of accuracy in cross-validation by strength. {told}",
            width=width,
            height=height,
        )
        for width, height in ((WIDTH, 280), (SMALL, 260))
    )
    return Figure(
        "How strongly it may trust single words, chosen within the training table", Markup(wide), Markup(small)
    )
