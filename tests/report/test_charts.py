"""The charts: round ticks, drawings that parse, and nothing odd from odd data."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from xml.etree import ElementTree

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from attnlab.report.charts import LEVELS, WIDTH, Shading, draw_chart, draw_heat_map, heat_cells, looks, scale, width_of
from attnlab.report.document import Axis, Chart, HeatMap, Mark, Series
from attnlab.report.parts import MOST_POINTS, LossCurve, joint_curve, loss_chart, smooth, thin

NAN, INFINITE = math.nan, math.inf
X, Y = Axis("tokens"), Axis("loss", "nats")


def lines(*series: Series, label: str = "lines") -> str:
    return draw_chart(Chart("lines", "title", label, X, Y, series))


def bars(*marks: Mark, label: str = "bars") -> str:
    return draw_chart(Chart("bars", "title", label, Axis("right", "%"), marks=marks))


def points(*marks: Mark) -> str:
    return draw_chart(Chart("points", "title", "points", Axis("ratio"), marks=marks, origin=1.0))


def parse(svg: str) -> ElementTree.Element:
    """The chart as XML; numbers that are not finite must not have come in."""
    assert not re.search(r"\b(nan|inf)\b", re.sub(r">[^<]*<", "><", svg))
    return ElementTree.fromstring(svg)


def words(svg: str) -> list[str]:
    return [element.text or "" for element in parse(svg).iter("text")]


def marks(svg: str, kind: str, tag: str = "path") -> list[ElementTree.Element]:
    return [element for element in parse(svg).iter(tag) if element.get("class", "").split()[:1] == [kind]]


@pytest.mark.parametrize(
    ("low", "high", "labels"),
    [
        (0, 84.2, ["0", "20", "40", "60", "80", "100"]),
        (0, 4.4, ["0", "1", "2", "3", "4", "5"]),
        (0.41, 7.6, ["0", "2", "4", "6", "8"]),
        (0, 0.12, ["0", "0.025", "0.050", "0.075", "0.100", "0.125"]),
        (-3, 3, ["−4", "−2", "0", "2", "4"]),
        (0, 2_100_000, ["0", "500,000", "1,000,000", "1,500,000", "2,000,000", "2,500,000"]),
    ],
)
def test_ticks_are_round_and_as_long_as_they_must_be(low: float, high: float, labels: list[str]) -> None:
    axis = scale(low, high, 0, 100)
    assert [axis.label(tick) for tick in axis.ticks] == labels


@example(0.0, 5e-324, 2)
@example(-1e-300, 0.0, 5)
@given(st.floats(-1e12, 1e12), st.floats(0, 1e12), st.integers(2, 10))
def test_a_scale_covers_its_data_with_few_ticks(low: float, span: float, most: int) -> None:
    high = low + span
    axis = scale(low, high, 10, 110, most)
    slack = 1e-6 * axis.step
    assert 2 <= len(axis.ticks) <= most + 2
    assert axis.ticks[0] - slack <= low <= high <= axis.ticks[-1] + slack
    assert axis(axis.ticks[0]) == 10
    assert axis(axis.ticks[-1]) == pytest.approx(110)


def test_flat_data_get_an_axis_around_them_and_whole_numbers_whole_ticks() -> None:
    assert scale(0, 0, 0, 1).ticks[0] == 0
    flat = scale(5, 5, 0, 100)
    assert flat.ticks[0] < 5 < flat.ticks[-1]
    drawing = lines(Series("flat", [1, 2, 3], [5.5, 5.5, 5.5]))
    assert len(marks(drawing, "line")) == 2  # the line, and its sample in the legend
    assert {"1", "2", "3"} <= set(words(drawing))
    assert "1.5" not in words(drawing)


def test_a_line_chart_names_axes_units_and_series() -> None:
    one = Series("first", [0, 1, 2], [3, 2, 1], low=[2, 1, 0], high=[4, 3, 2])
    two = Series("second", [0, 1, 2], [1, 1, 2], dots=[(0, 1), (2, 2)], dots_name="raw")
    drawing = lines(one, two, label="two lines")
    assert {"tokens", "loss (nats)", "first", "second", "raw"} <= set(words(drawing))
    assert len(marks(drawing, "band")) == 1
    root = parse(drawing)
    assert (root.get("role"), root.get("aria-label")) == ("img", "two lines")
    first, second = (mark.get("stroke-dasharray") for mark in marks(drawing, "line")[-2:])
    assert first != second
    assert len(str(root.get("data-axes")).split()) == 8
    groups = [f"{one.get('class')} {one.get('data-series')}" for one in root.iter("g") if one.get("data-series")]
    assert sorted(groups) == ["key 0", "key 1", "key 1", "series 0", "series 1"]


def test_a_line_chart_draws_points_where_they_belong() -> None:
    assert marks(lines(Series("s", [0, 10], [0, 10])), "line")[-1].get("d") == "M56.0 252.0L734.0 54.0"


@pytest.mark.parametrize(
    "series",
    [
        [],
        [Series("empty", [], [])],
        [Series("one", [1], [2])],
        [Series("no numbers", [1, 2], [NAN, INFINITE])],
        [Series("one of each", [1, 2, 3, 4], [1, NAN, -INFINITE, 2], low=[0] * 4, high=[NAN] * 4, dots=[(1, NAN)])],
    ],
)
def test_odd_series_give_a_sound_chart(series: list[Series]) -> None:
    drawn = any(math.isfinite(value) for one in series for value in one.y)
    assert ("nothing to draw" in words(lines(*series))) is not drawn


def test_a_number_that_is_not_finite_breaks_the_line() -> None:
    assert len(marks(lines(Series("gap", [0, 1, 2, 3, 4], [1, 2, NAN, 2, 1])), "line")) == 1 + 2


def test_many_series_wrap_their_legend_inside_the_chart() -> None:
    many = [Series(f"a series with a long name {number}", [0, 1], [0, number]) for number in range(8)]
    root = parse(lines(*many))
    assert all(float(element.get("x", "0")) < WIDTH for element in root.iter("text"))
    assert len({element.get("y") for element in root.iter("text") if "series" in (element.text or "")}) > 1


def test_bars_carry_their_values_and_intervals() -> None:
    drawing = bars(Mark("model", 81.6, "81.6 %", 78.7, 84.2), Mark("baseline", 2.3, "2.3 %", faint=True))
    assert {"model", "baseline", "81.6 %", "2.3 %", "right (%)", "100"} <= set(words(drawing))
    assert len(marks(drawing, "whisker")) == 1
    wide, short = (float(bar.get("width", "0")) for bar in marks(drawing, "bar", "rect"))
    assert wide / short == pytest.approx(81.6 / 2.3, rel=0.02)


@pytest.mark.parametrize("shape", [bars, points])
@pytest.mark.parametrize(
    "given",
    [
        [],
        [Mark("zero", 0, "0", 0, 0)],
        [Mark("lost", NAN, "NaN", NAN, NAN)],
        [Mark("below", -2, "-2", -3, 1)],
        [Mark("far", 1e9, "1e9", -1e9, INFINITE)],
    ],
)
def test_odd_marks_give_a_sound_chart(given: list[Mark], shape: Callable[..., str]) -> None:
    drawing = shape(*given)
    assert [one.name for one in given] == [word for word in words(drawing) if word in {one.name for one in given}]
    assert ("no value" in words(drawing)) == any(not math.isfinite(one.value) for one in given)
    assert all(float(bar.get("width", "0")) > 0 for bar in marks(drawing, "bar", "rect"))
    known = sum(math.isfinite(one.value) for one in given)
    assert len([*marks(drawing, "bar", "rect"), *marks(drawing, "point", "circle")]) == known


def test_a_long_name_is_shortened_and_never_leaves_the_chart() -> None:
    names = words(bars(Mark("n" * 200, 1, "1")))
    assert any(name.endswith("…") and len(name) < 60 for name in names)


def test_points_lie_on_both_sides_of_a_line_where_nothing_differs() -> None:
    given = [Mark("better", 0.9, "0.90", 0.8, 1.0), Mark("worse", 1.2, "1.20", 1.1, 1.3, faint=True)]
    drawing = points(*given, Mark("alone", 1.05, "1.05"))
    assert {"better", "worse", "alone", "0.90", "1.20", "ratio"} <= set(words(drawing))
    assert len(marks(drawing, "whisker")) == 2
    (origin,) = (float(mark.get("x1", "nan")) for mark in marks(drawing, "axis", "line"))
    first, second, third = (float(mark.get("cx", "nan")) for mark in marks(drawing, "point", "circle"))
    assert first < origin < third < second
    assert [mark.get("class") for mark in marks(drawing, "point", "circle")] == ["point", "point faint", "point"]


def test_what_is_marked_is_drawn_as_a_warning_in_every_chart() -> None:
    line = lines(Series("a", [0, 1], [0, 1]), Series("b", [0, 1], [1, 0], marked=True))
    pair = (Mark("a", 1, "1", 0, 2), Mark("b", 1, "1", 0, 2, marked=True))
    for drawing in (line, points(*pair), bars(*pair)):
        classes = {one.text: one.get("class") or "" for one in parse(drawing).iter("text")}
        assert "leak" in classes["b"].split()
        assert "leak" not in classes["a"].split()
    assert [mark.get("class") for mark in marks(line, "line")[-2:]] == ["line s1", "line leak"]
    assert [mark.get("class") for mark in marks(points(*pair), "whisker")] == ["whisker", "whisker leak"]


def test_no_two_of_many_series_look_alike_and_none_like_a_warning() -> None:
    many = [Series(str(number), [0], [0]) for number in range(30)]
    assert len(set(looks(many))) == 30
    mixed = [Series(str(number), [0], [0], marked=number % 5 == 0) for number in range(30)]
    assert len(set(looks(mixed))) == 30
    plain = {look.colour for look, one in zip(looks(mixed), mixed, strict=True) if not one.marked}
    assert not {"leak", "s2"} & plain


def test_a_heat_map_shades_by_value() -> None:
    values = [[1.0, 0.0], [0.25, 0.75]]
    drawing = draw_heat_map(HeatMap("", "heat", values, ["a", "b"], ["c", "d"], numbers=True), marked_row=1)
    assert {"a", "b", "c", "d", "0.25", "0.75"} <= set(words(drawing))
    opacities = sorted(float(mark.get("fill-opacity", "-1")) for mark in marks(drawing, "cell"))
    assert opacities == [0.25, 0.75, 1.0]
    assert Shading(power=0.5).level(0.25) == LEVELS // 2
    assert heat_cells([[0.0]], Shading()) == ""


def test_neighbours_of_one_shade_are_drawn_as_one() -> None:
    assert heat_cells([[1.0, 1.0, 0.0, 1.0]], Shading()).count("M") == 2
    assert "M0 10h20v10h-20z" in heat_cells([[0.0, 0.0], [1.0, 1.0]], Shading())


@pytest.mark.parametrize("values", [[], [[]], [[NAN, INFINITE]], [[7.0, -7.0]]])
def test_odd_heat_maps_are_sound(values: list[list[float]]) -> None:
    columns = [f"c{number}" for number in range(len(values[0]) if values else 0)]
    parse(draw_heat_map(HeatMap("", "odd", values, ["r"] * len(values), columns, numbers=True)))


def test_names_in_charts_are_escaped() -> None:
    nasty = '<script>"&\x00'
    for drawing in (
        lines(Series(nasty, [0, 1], [0, 1]), label=nasty),
        bars(Mark(nasty, 1, nasty), label=nasty),
        draw_heat_map(HeatMap("", nasty, [[1.0]], [nasty], [nasty])),
    ):
        assert "<script" not in drawing
        assert parse(drawing).get("aria-label") == '<script>"&\ufffd'


def test_smoothing_keeps_a_flat_curve_and_where_a_curve_starts() -> None:
    assert smooth([2.0] * 9, 5) == [2.0] * 9
    assert smooth([9.0, 3.0, 0.0, 0.0], 3) == [9.0, 4.0, 1.0, 0.0]
    assert smooth([], 5) == []
    assert smooth([0.0, 0.0, 0.0, 6.0], 3)[-1] == 3.0  # not the last step alone


def test_thinning_keeps_both_ends() -> None:
    kept = thin(range(10_000))
    assert (len(kept), kept[0], kept[-1]) == (MOST_POINTS, 0, 9999)
    assert thin([1, 2, 3]) == [1, 2, 3]


def test_a_loss_curve_counts_tokens_in_a_short_unit() -> None:
    steps = list(range(3000))
    chart = loss_chart("run", LossCurve(steps, [1000 * step for step in steps], [5.0] * 2999 + [NAN]))
    (series,) = chart.series
    assert chart.x.label == "million tokens read"
    assert series.x[-1] == pytest.approx(2.998)
    assert len(series.y) == len(series.dots) == MOST_POINTS
    assert loss_chart("run", LossCurve()).series[0].y == []


def test_a_joint_curve_is_the_mean_of_runs_whose_steps_lie_apart() -> None:
    steps = list(range(1, 101))
    first = LossCurve(steps, [10 * step for step in steps], [4.0] * 100)
    second = LossCurve(steps, [10 * step + 3 for step in steps], [6.0 if step < 90 else NAN for step in steps])
    curve = joint_curve("both", [first, second])
    assert curve.x[-1] == 893
    assert set(curve.y) == {5.0}
    assert set(curve.low) == {4.0}
    assert set(curve.high) == {6.0}
    assert joint_curve("one", [first, LossCurve()]).low == []
    assert joint_curve("none", [LossCurve(), LossCurve([1], [1], [None])]).y == []


def test_wide_letters_get_the_room_they_take() -> None:
    """In the 13 px font of the charts the first is about 146 pixels wide, with letters of 7 pixels it would be 133."""
    assert width_of("adagrad minus adamw") > 145
    assert width_of("illicit") < 60


def test_a_logarithmic_axis_has_ticks_at_powers_and_equal_steps_for_equal_ratios() -> None:
    line = Series("error", [2.0, 20.0, 200.0], [1000.0, 0.1, 0.0])
    chart = Chart("lines", "t", "l", Axis("features", log=True), Axis("error", log=True), [line])
    root = parse(draw_chart(chart))
    ticks = [one.text for one in root.iter() if one.get("class") == "tick"]
    assert ticks == ["0.1", "1", "10", "100", "1,000", "2", "5", "10", "20", "50", "100", "200"]
    path = next(
        one.get("d") for one in root.iter() if "line" in (one.get("class") or "") and "L" in (one.get("d") or "")
    )
    places = [tuple(map(float, point.split())) for point in str(path).removeprefix("M").split("L")]
    assert places[1][0] - places[0][0] == pytest.approx(places[2][0] - places[1][0], abs=0.2)
    assert places[2][1] == places[1][1]  # zero is drawn at the bottom
