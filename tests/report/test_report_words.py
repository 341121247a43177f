"""Numbers in words: the same in every place."""

from __future__ import annotations

import math

import pytest

from attnlab.report.words import (
    chance,
    duration,
    figure,
    flat,
    interval,
    magnitude,
    percent,
    plain,
    signed,
    span,
    times,
)


@pytest.mark.parametrize(
    ("value", "kind", "said"),
    [
        (380.84, "perplexity", "380.8"),
        (5.851, "perplexity", "5.85"),
        (26_604.2, "perplexity", "26,604"),
        (5.8512, "loss", "5.851"),
        (0.166, "share", "16.6 %"),
        (61.0, "seconds", "1 min 01 s"),
        (4085.3, "rate", "4,085"),
        (812e6, "bytes", "812.0 MB"),
        (3_383_296, "count", "3,383,296"),
        (None, "loss", "–"),
        (math.nan, "share", "NaN"),
        (math.inf, "perplexity", "∞"),
        (7, "something new", "7"),
    ],
)
def test_a_figure_is_written_by_its_kind(value: float | None, kind: str, said: str) -> None:
    assert figure(value, kind) == said


def test_differences_have_a_sign_and_shares_points() -> None:
    assert signed(5.2, "perplexity") == "+5.20"
    assert signed(-0.022, "share") == "−2.2 points"
    assert signed(0.0, "loss") == "0.000"
    assert signed(None, "loss") == "–"
    assert span(-0.05, 0.01, "share", sign=True) == "−5.0 to +1.0 points"
    assert span(0.787, 0.842, "share") == "78.7 to 84.2 %"
    assert span(375.6, 386.0, "perplexity") == "375.6 to 386.0"


@pytest.mark.parametrize(("low", "high"), [(None, 1.0), (1.0, None), (math.nan, 1.0), (1.0, math.inf), (2.0, 2.0)])
def test_half_an_interval_is_none(low: float | None, high: float | None) -> None:
    assert span(low, high, "loss") == ""


def test_ratios_and_chances() -> None:
    assert [times(value) for value in (1.0134, 41.72, None, math.nan)] == ["1.013", "41.7", "–", "NaN"]
    assert [chance(p) for p in (0.00002, 0.0342, 0.21, None)] == ["< 0.001", "0.034", "0.21", "–"]


def test_numbers_in_words() -> None:
    assert percent(0.816) == "81.6 %"
    assert interval(0.787, 0.842) == "78.7 to 84.2 %"
    assert [duration(seconds) for seconds in (None, 0, 8.21, 59.96, 412.3, 3599.9, 3900)] == (
        ["–", "0.0 s", "8.2 s", "1 min 00 s", "6 min 52 s", "1 h 00 min", "1 h 05 min"]
    )
    assert [plain(value) for value in (True, None, 3, 40.0, 3e-4, 3383296, [1, 2], "x", {})] == (
        ["yes", "–", "3", "40", "0.0003", "3,383,296", "1, 2", "x", "–"]
    )
    assert dict(flat({"a": {"b": {"c": 1}, "d": {}}, "e": 0.5})) == {"a.b.c": "1", "a.d": "–", "e": "0.5"}
    assert [magnitude(size) for size in (900, 90_000, 2e6)] == [(1.0, ""), (1e3, "thousand "), (1e6, "million ")]
