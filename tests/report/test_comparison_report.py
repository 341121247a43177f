"""The report of a comparison: every part in its place, and leaks marked wherever they are shown."""

from __future__ import annotations

import csv
import io
import math
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from comparisons import make_comparison, plan_of
from reading import read

from attnlab.lm.tokenizers import word_lengths
from attnlab.report.document import Chart, Document
from attnlab.report.html import as_html
from attnlab.report.parts import LossCurve
from attnlab.report.text import as_csv, as_markdown, named_tables
from attnlab.report.words import capital
from attnlab.store.records import decode, encode
from attnlab.studies.compare import document as comparing
from attnlab.studies.compare.records import ComparisonResult, Effect, ProbeOverSeeds, VariantResult

Result = ComparisonResult


@pytest.fixture
def comparison() -> Result:
    return make_comparison(steps=40)


def document(result: Result, *, quick: bool = True) -> Document:
    return comparing.document(plan_of(result, quick=quick), result)


def charts(html: str) -> list[str]:
    return re.findall(r'<svg class="chart".*?</svg>', html, re.DOTALL)


def test_the_page_has_every_part_in_order(comparison: Result) -> None:
    page = read(as_html(document(comparison)))
    parts = [
        "which is better at words?",
        "Does additive attention learn more",
        "The gain of zero_mask is the leak",
        "zero_mask leaks: its outputs depend on later tokens",
        "A quick run.",
        "Means over 3 seeds",
        "pair by pair",
        capital(comparison.comparisons[0].words),
        "Training loss",
        "The quick brown fox jumps over the lazy dog . (11 tokens, 2 unknown)",
        "zero_mask wrote that the company said",
        "the text itself",
        "The leak by position",
        "read whole and each word from its prefix alone",
        "What the leak of zero_mask is worth",
        "course reports",
        "Every run by itself",
        "Below each value, its ratio to that of dot",
        "model.mechanism: dot, additive, zero_mask",
        "Settings of additive",
    ]
    places = [page.text.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)


def test_leaking_variants_are_marked_in_every_table(comparison: Result) -> None:
    """What a marked row looks like in every form is tested with all documents."""
    made = document(comparison)
    rows = [row for table in made.tables() for row in table.rows]
    assert {row.mark for row in rows if "zero_mask" in row.name.text} == {"leaks", "zero_mask leaks"}
    assert {row.mark for row in rows if "zero_mask" not in row.name.text} == {""}
    named = [table for table in made.tables() if any("additive" in row.name.text for row in table.rows)]
    assert len(named) == 9
    assert all(any(row.mark and row.tone == "leaks" for row in table.rows) for table in named)
    html = as_html(made)
    assert html.count('<tr class="leaks">') == sum(bool(row.mark) for row in rows)


def test_leaking_variants_are_marked_in_every_chart(comparison: Result) -> None:
    html = as_html(document(comparison))
    named = [chart for chart in charts(html) if "zero_mask" in chart]
    assert len(named) == 5  # pairs, losses, their second half, losses by step, the leak
    for chart in named:
        root = ElementTree.fromstring(chart)
        names = [one for one in root.iter("text") if "zero_mask" in (one.text or "")]
        assert names
        assert all("(leaks)" in (one.text or "") and "leak" in (one.get("class") or "").split() for one in names)
        assert "(leaks)" in str(root.get("aria-label"))
        assert [one for one in root.iter() if "leak" in (one.get("class") or "").split() and one.tag != "text"]
    assert all("leak" not in chart for chart in charts(html) if "zero_mask" not in chart)


def test_leaking_variants_are_marked_where_texts_are_quoted(comparison: Result) -> None:
    text = as_markdown(document(comparison))
    assert "### zero_mask **(leaks)**\n\n> zero_mask wrote" in text
    assert "### zero_mask against dot **(zero_mask leaks)**\n\nDiffers: " in text
    assert "yes, invalid" in text


def test_red_is_a_colour_of_its_own_in_light_dark_and_print(comparison: Result) -> None:
    style = as_html(document(comparison)).split("<style>")[1].split("</style>")[0]
    reds = re.findall(r"--leak: #([0-9a-f]{6})", style)
    assert len(reds) == 3
    for red in reds:
        r, g, b = (int(red[place : place + 2], 16) for place in (0, 2, 4))
        assert r > 1.8 * max(g, b)


def test_curves_have_bands_and_a_closer_second_half(comparison: Result) -> None:
    whole, later, by_step = (one for one in document(comparison).blocks() if isinstance(one, Chart) and one.readable)
    assert (by_step.x.label, [one.name for one in by_step.series]) == ("step", [one.name for one in whole.series])
    assert by_step.series[0].x[-1] == 40
    assert by_step.series[0].y == pytest.approx(whole.series[0].y, rel=0.01)  # read at almost the same places
    assert [one.name for one in whole.series] == ["dot", "additive", "zero_mask (leaks)"]
    for one in whole.series:
        assert all(low <= y <= high for low, y, high in zip(one.low, one.y, one.high, strict=True))
    assert later.series[0].x[0] >= whole.series[0].x[-1] / 2 - 1


def with_variants(result: Result, change: Callable[[VariantResult], VariantResult]) -> Result:
    return replace(result, variants=tuple(map(change, result.variants)))


def test_lengths_and_splitting_are_shown(comparison: Result) -> None:
    def spaced(variant: VariantResult) -> VariantResult:
        assert variant.texts is not None
        probes: tuple[ProbeOverSeeds, ...] = tuple(
            replace(probe, unknown=3, loss=8.0) for probe in variant.texts.probes
        )
        return replace(variant, texts=replace(variant.texts, spaced_probes=probes))

    lengths = word_lengths(["a b c", "a " * 7, "a " * 9, "a " * 120])
    made = document(with_variants(replace(comparison, lengths=lengths), spaced))
    text = as_markdown(made)
    assert "split at spaces only" in text
    assert "12 words unknown" in text
    (chart,) = (one for one in made.blocks() if isinstance(one, Chart) and one.x.label == "words")
    bars = list(zip(chart.series[0].x, chart.series[0].y, strict=True))
    assert bars[:4] == [(1, 1), (6, 1), (6, 2), (11, 2)]
    assert bars[-2:] == [(101, 1), (106, 1)]
    assert "1 sentence of over 100 words" in chart.title


def test_what_is_absent_is_left_out(comparison: Result) -> None:
    def bare(variant: VariantResult) -> VariantResult:
        runs = tuple(replace(run, curve=LossCurve()) for run in variant.runs)
        return replace(variant, texts=None, runs=runs)

    full = as_markdown(document(comparison))
    empty = replace(comparison, published={}, explanation={}, paired=())
    least = document(with_variants(replace(empty, comparisons=(), verdict=(), settings={}), bare), quick=False)
    text = as_markdown(least)
    headings = ("Compared", "Training", "Probe sentences", "Samples", "What it means")
    for title in (*(f"## {one}" for one in headings), "Published figures", "A quick run", "Settings of"):
        assert title in full
        assert title not in text
    assert not any("loss" in chart for chart in charts(as_html(least)))
    assert "Means over 3 seeds" in text


def test_one_seed_has_no_intervals_and_says_so() -> None:
    made = document(make_comparison(("dot", "additive"), seeds=1, steps=20))
    html = as_html(made)
    assert "One seed each" in as_markdown(made)
    assert 'type="checkbox"' not in html
    assert 'class="band' not in html


def changed_first(result: Result, effect: Effect, **more: Any) -> Result:
    first, *others = result.comparisons
    return replace(result, comparisons=(replace(first, effect=effect, **more), *others))


def test_numbers_that_are_none_are_shown_as_such(comparison: Result) -> None:
    dot, lost, leaking = comparison.variants
    nothing = replace(lost.values["dev_sentence_perplexity"], mean=None, low=None, high=None, each=(None,) * 3)
    first, *others = lost.runs
    curve = replace(first.curve, losses=[*first.curve.losses[:20], *[None] * (len(first.curve.losses) - 20)])
    first = replace(first, values={**first.values, "dev_sentence_perplexity": math.inf}, curve=curve)
    lost = replace(lost, values={**lost.values, "dev_sentence_perplexity": nothing}, runs=(first, *others))
    effect = replace(comparison.comparisons[0].effect, value=math.nan, low=None, high=None, p=None)
    result = replace(comparison, variants=(dot, lost, leaking))
    made = document(changed_first(result, effect, adjusted=None))
    html, text = as_html(made), as_markdown(made)
    assert "| additive | – | " in text
    assert "| additive | 0 | ∞ | " in text
    assert "| additive over dot | NaN | – | – | not tested |" in text
    assert not re.search(r"\bnan\b", "".join(charts(html)))
    assert "no value" in read(html).text


def test_differences_of_shares_are_points(comparison: Result) -> None:
    figure, *others = comparison.figures
    share = replace(figure, kind="share", title="accuracy")
    effect = replace(comparison.comparisons[0].effect, kind="difference", value=-0.022, low=-0.05, high=0.01)
    made = document(changed_first(replace(comparison, figures=(share, *others)), effect))
    assert "| additive minus dot | −2.2 points (−5.0 to +1.0 points) |" in as_markdown(made)
    assert "difference; above 0 the first is better (points)" in read(as_html(made)).text


def test_intervals_are_columns_of_the_csv(comparison: Result) -> None:
    tables = dict(named_tables(document(comparison)))
    header, first, *_ = csv.reader(io.StringIO(as_csv(tables["results"])))
    spread = comparison.variants[0].values["dev_sentence_perplexity"]
    places = [header.index(f"dev perplexity (sentences){end}") for end in ("", ", low", ", high")]
    assert [float(first[place]) for place in places] == pytest.approx([spread.mean, spread.low, spread.high])


def test_a_figure_that_the_leak_does_not_reach_is_marked_and_not_called_invalid(comparison: Result) -> None:
    def titles(result: Result) -> list[str]:
        return [one.title for one in document(result).blocks() if isinstance(one, Chart) and one.shape == "points"]

    assert sum("invalid" in title for title in titles(comparison)) == 1
    valid = replace(comparison, comparisons=tuple(replace(pair, valid=True) for pair in comparison.comparisons))
    assert not any("invalid" in title for title in titles(valid))
    assert len(titles(valid)) == 2


def test_a_result_survives_being_stored(comparison: Result) -> None:
    assert decode(ComparisonResult, encode(comparison), Path("result.json")) == comparison
