"""The charts of a comparison: pairs with their intervals, loss curves over seeds, the leak by position.

Pure functions from a result to figures, each drawn for wide and for small screens. Loss curves bring their numbers along,
so that a script can show all values at a step and hide a series; without it the chart is whole all the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan
from typing import Any

from markupsafe import Markup

from attnlab.report.charts import WIDTH, Axis, Point, Series, line_chart, looks, point_chart
from attnlab.report.compared import Result, figure_named, leaking, titled
from attnlab.report.compared_pairs import pair_title
from attnlab.report.curves import joint_curve, latter_part
from attnlab.report.page import SMALL, Figure
from attnlab.report.words import magnitude, signed, times

WHOLE = 0.5  # share of the training from which on the curves are drawn again, closer


@dataclass(frozen=True)
class Interactive:
    """A line chart with its numbers."""

    figure: Figure
    data: dict[str, Any]


def interactive(title: str, series: Sequence[Series], x: Axis, y: Axis, label: str) -> Interactive:
    """A line chart for both screens, and its numbers with four or five digits."""
    wide, small = (
        line_chart(series, x, y, label=label, width=width, height=height)
        for width, height in ((WIDTH, 320), (SMALL, 280))
    )

    def short(values: Sequence[float]) -> list[float]:
        return [float(f"{value:.5g}") for value in values]

    numbers = [
        {
            "name": one.name,
            "look": look.colour,
            "x": short(one.x),
            "y": short(one.y),
            "low": short(one.low),
            "high": short(one.high),
        }
        for one, look in zip(series, looks(series), strict=True)
    ]
    data = {"x": str(x), "y": str(y), "series": numbers}
    return Interactive(Figure(title, Markup(wide), Markup(small)), data)


def ends(series: Sequence[Series], of: str) -> str:
    """Where every curve starts and ends, for those who cannot see the chart."""
    said = "; ".join(f"{one.name} from {one.y[0]:.2f} to {one.y[-1]:.2f}" for one in series if one.y)
    return f"Line chart of {of}: {said}" if said else f"Line chart of {of}, without a line"


def curve_figures(series: Sequence[Series], tokens: str, *, band: bool) -> list[Interactive]:
    """The losses over the whole training, and closer over its second half."""
    x, y = Axis(f"{tokens}tokens read"), Axis("loss", "nats a token")
    reach = max((one.x[-1] for one in series if one.x), default=0.0)
    over = ", mean and range of the seeds" if band else ""
    drawn = [interactive(f"Training loss{over}", series, x, y, ends(series, "the training loss"))]
    later = [latter_part(one, WHOLE * reach) for one in series]
    if all(len(one.x) > 2 for one in later) and later:
        title = "The second half, closer"
        drawn.append(interactive(title, later, x, y, ends(later, "the training loss in the second half")))
    return drawn


def loss_figures(result: Result) -> list[Interactive]:
    """The loss curves of all specimens, over their seeds."""
    trained = [one for one in result["specimens"] if any(run.get("metrics") for run in one["runs"])]
    last = [run["metrics"][-1]["tokens"] for one in trained for run in one["runs"] if run.get("metrics")]
    size, tokens = magnitude(max(last, default=0))
    series = [
        joint_curve(titled(one), [run.get("metrics") or [] for run in one["runs"]], size, bool(one.get("leaks")))
        for one in trained
    ]
    if not any(one.y for one in series):
        return []
    return curve_figures(series, tokens, band=any(one.low for one in series))


def forest_figures(result: Result) -> list[Figure]:
    """The comparisons as points with whiskers: a chart for each figure, and one for pairs that must not be believed.

    A leak is large, and beside it nobody could see what honest specimens differ by.
    """
    names = {one["name"]: titled(one) for one in result["specimens"]}
    leaks = leaking(result)
    groups: dict[tuple[str, bool, bool], list[Result]] = {}
    for one in result.get("comparisons") or ():
        doubted = not one.get("believed", True) or bool({one["a"], one["b"]} & set(leaks))
        named = {**one, "a": names.get(one["a"], one["a"]), "b": names.get(one["b"], one["b"])}
        groups.setdefault((one["figure"], one.get("ratio") is not None, doubted), []).append(named)
    return [
        forest_figure(figure_named(result, key), pairs, ratios, doubted)
        for (key, ratios, doubted), pairs in sorted(groups.items(), key=lambda group: group[0][2])
    ]


def forest_figure(item: Result, pairs: Sequence[Result], ratios: bool, doubted: bool) -> Figure:
    """The pairs of one figure."""
    share = 100.0 if item["kind"] == "share" and not ratios else 1.0
    keys = ("ratio", "ratio_low", "ratio_high") if ratios else ("difference", "low", "high")

    def point(one: Result) -> Point:
        value, low, high = (None if one.get(key) is None else share * one[key] for key in keys)
        faint = not one.get("shown")
        return Point(pair_title(one), nan if value is None else value, low, high, faint=faint, marked=doubted)

    def written(value: float) -> str:
        return times(value) if ratios else signed(value / share, item["kind"]).removesuffix(" points")

    points = [point(one) for one in pairs]
    better = "below" if item.get("lower_is_better", True) else "above"
    words = f"{'ratio' if ratios else 'difference'}; {better} {1 if ratios else 0} the first is better"
    axis = Axis(words, "" if ratios or share == 1 else "points")
    title = f"{item['title'][:1].upper()}{item['title'][1:]}, pair by pair, with 95 % intervals"
    if doubted:
        title += "; these pairs must not be believed, since a specimen leaks"
    label = f"{title}. " + "; ".join(f"{one.name}: {written(one.value)}" for one in points)
    wide, small = (
        point_chart(points, axis, label=label, origin=1.0 if ratios else 0.0, width=width, written=written)
        for width in (WIDTH, SMALL)
    )
    return Figure(title, Markup(wide), Markup(small))


def leak_figure(result: Result) -> Figure | None:
    """How much of every position's output comes from later tokens, of the specimens that leak."""
    series = [
        Series(titled(one), list(range(1, len(places) + 1)), [100 * (value or 0.0) for value in places], marked=True)
        for one in result["specimens"]
        if one.get("leaks") and (places := (one.get("audit") or {}).get("leak_by_position"))
    ]
    if not series:
        return None
    worst = "; ".join(f"{one.name}: up to {max(one.y):.1f} %" for one in series)
    wide, small = (
        line_chart(
            series,
            Axis("position in the text"),
            Axis("moved by later tokens", "% of the output", low=0.0),
            label=f"Line chart of the leak by position. {worst}",
            width=width,
            height=height,
        )
        for width, height in ((WIDTH, 260), (SMALL, 240))
    )
    return Figure("The leak, position by position", Markup(wide), Markup(small))
