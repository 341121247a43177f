"""The charts of a study of trust: confidences of known and unknown names, risk against coverage, reliability.

Pure functions from a result to figures, each drawn for wide and for small screens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from markupsafe import Markup

from attnlab.report.charts import WIDTH, Axis, Series, line_chart
from attnlab.report.page import SMALL, Figure
from attnlab.report.words import percent

Result = Mapping[str, Any]


def drawn(title: str, series: Sequence[Series], x: Axis, y: Axis, label: str) -> Figure:
    """A line chart for both screens."""
    wide, small = (
        line_chart(series, x, y, label=label, width=width, height=height)
        for width, height in ((WIDTH, 320), (SMALL, 280))
    )
    return Figure(title, Markup(wide), Markup(small))


def stairs(heights: Sequence[float]) -> tuple[list[float], list[float]]:
    """A histogram over 0 to 100 % as the corners of its outline."""
    edges = [100 * place / len(heights) for place in range(len(heights) + 1)]
    x = [edge for pair in pairwise(edges) for edge in pair]
    return x, [100 * height for height in heights for _ in range(2)]


def histogram_figure(result: Result) -> Figure:
    """How sure the model is of the names of each group."""
    series = []
    for one in result["groups"]:
        across, heights = stairs(one["histogram"])
        series.append(Series(f"{one['name']} names", across, heights, [0.0] * len(heights), heights))
    label = "Histogram of confidences. " + "; ".join(
        f"{one['name']} names: {percent(one['confidence'])} on average" for one in result["groups"]
    )
    x, y = Axis("confidence in the likeliest answer", "%", 0, 100), Axis("questions of the group", "%", low=0)
    return drawn("How sure it is of names that it knows, and of others", series, x, y, label)


def curve_figure(result: Result) -> Figure:
    """Risk against coverage on known names, with the rule as a point and the allowed risk as a line."""
    curve, rule = result["curve"], result["rule"]
    known = result["groups"][0]
    allowed = 100 * result["max_risk"]
    spot = []
    if rule["met"] and known["wrong"]["share"] is not None:
        spot = [(100 * known["answered"]["share"], 100 * known["wrong"]["share"])]
    series = [
        Series(
            "wrong among the answers given",
            [100 * one for one in curve["coverage"]],
            [100 * one for one in curve["risk"]],
            dots=spot,
            dots_name="at the certified threshold" if spot else "",
        ),
        Series("allowed", [0.0, 100.0], [allowed, allowed]),
    ]
    label = f"Risk against coverage: {percent(curve['risk_of_all'])} wrong if every question is answered"
    x, y = Axis("questions answered, the surest first", "%", 0, 100), Axis("wrong answers", "%", low=0)
    return drawn("Risk against coverage, known names", series, x, y, label)


def reliability_figure(result: Result) -> Figure:
    """What was promised against what came true, before and after the temperature."""
    series = [Series("if promises were kept", [0.0, 100.0], [0.0, 100.0])]
    for name, words in (("after", "after the temperature"), ("before", "before it")):
        table = result["reliability"][name]["table"]
        columns = {key: [100 * one[key] for one in table] for key in ("confidence", "right", "low", "high")}
        band = (columns["low"], columns["high"]) if name == "after" else ([], [])
        series.append(Series(words, columns["confidence"], columns["right"], *band))
    before, after = (percent(result["reliability"][key]["ece"]) for key in ("before", "after"))
    label = f"Reliability: calibration error {before} before the temperature, {after} after it"
    x, y = Axis("confidence", "%", 0, 100), Axis("right answers", "%", 0, 100)
    return drawn("Promised and kept, known names", series, x, y, label)
