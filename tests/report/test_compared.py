"""The report of a comparison: every number in every form, leaks marked wherever they stand, nothing loaded, nothing run."""

from __future__ import annotations

import json
import math
import re
from io import StringIO
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from attnlab.report.compared_screen import show_comparison
from comparisons import make_comparison
from reading import Reader, read
from rich.console import Console

from attnlab.report import FORMATS, write_report

Result = dict[str, Any]
OPTIONAL = ("text_quality", "theirs", "explanation", "quick", "paired")
OPTIONAL_OF_SPECIMENS = ("probes", "samples", "sample_quality", "word_by_word")


@pytest.fixture
def comparison() -> Result:
    return make_comparison()


def written(result: Result, folder: Path) -> tuple[Reader, str, str]:
    """The page as a browser finds it, its source, and the Markdown."""
    path = write_report(result, folder, FORMATS)
    html = path.read_text(encoding="utf-8")
    return read(html), html, (folder / "report.md").read_text(encoding="utf-8")


def table_rows(html: str) -> list[str]:
    """The rows of all tables but those of settings, as text without tags."""
    bodies = re.findall(r'<table class="sortable">.*?<tbody>(.*?)</tbody>', html, re.DOTALL)
    return [" ".join(row.split()) for body in bodies for row in re.findall(r"<tr.*?</tr>", body, re.DOTALL)]


def charts(html: str) -> list[str]:
    return re.findall(r'<svg class="chart".*?</svg>', html, re.DOTALL)


def words(row: str) -> str:
    return " ".join(re.sub(r"<[^>]*>", " ", row).replace("\u00a0", " ").split())


def test_the_page_has_every_part_in_order(comparison: Result, tmp_path: Path) -> None:
    page, _, _ = written(comparison, tmp_path)
    parts = [
        "which is better at words?",
        "Does additive attention learn more",
        "The gain of zero_mask is the leak",
        "Means over 3 seeds",
        "pair by pair",
        "Training loss",
        "The quick brown fox",
        "What they write",
        "the text itself",
        "The leak, position by position",
        "read whole and each word from its prefix alone",
        "What the leak is worth",
        "course reports",
        "Every run by itself",
        "Below each value how many times that of dot",
        "Varied: model.mechanism; seeds 0, 1, 2.",
        "Order of the runs (2 at a time)",
        "Settings of additive",
    ]
    places = [page.text.find(part) for part in parts]
    assert -1 not in places
    assert places == sorted(places)
    assert "A quick run." in page.text


def test_page_markdown_and_json_have_the_same_numbers(comparison: Result, tmp_path: Path) -> None:
    page, html, text = written(comparison, tmp_path)
    stored = json.loads((tmp_path / "report.json").read_text())
    for one in comparison["specimens"]:
        value = one["values"]["dev_sentence_perplexity"]
        interval = f"{value['low']:.1f} to {value['high']:.1f}"
        assert f"{value['mean']:.1f} {interval} {', '.join(f'{each:.1f}' for each in value['each'])}" in page.text
        assert re.search(rf"\| {one['name']} [^|]*\| {value['mean']:.1f} \({interval}\) \|", text)
        for run in one["runs"]:
            cells = f"| {run['seed']} | {run['values']['dev_sentence_perplexity']:.1f} |"
            assert cells in text
    assert stored["specimens"][1]["values"] == comparison["specimens"][1]["values"]
    pair = comparison["comparisons"][0]
    assert f"{pair['ratio']:.3f} {pair['ratio_low']:.3f} to {pair['ratio_high']:.3f} 0.21 0.42 no" in page.text
    assert f"| {pair['ratio']:.3f} ({pair['ratio_low']:.3f} to {pair['ratio_high']:.3f}) | 0.21 | 0.42 | no |" in text
    assert pair["words"] in page.text
    assert pair["words"] in text
    assert 'data-value="0.42"' in html


def test_leaking_specimens_are_marked_in_every_table(comparison: Result, tmp_path: Path) -> None:
    _, html, text = written(comparison, tmp_path)
    rows = [row for row in table_rows(html) if "zero_mask" in words(row)]
    assert len(rows) == 15  # one in each of nine tables, three in each of the two with seeds
    assert len([row for row in table_rows(html) if "additive" in words(row)]) == 15
    for row in rows:
        assert row.startswith('<tr class="leaks">')
        assert re.search(r'<span class="mark leaks">(zero_mask )?leaks</span>', row)
    others = [row for row in table_rows(html) if "zero_mask" not in words(row)]
    assert not any("leaks" in row for row in others)
    for line in text.splitlines():
        if line.startswith("| zero_mask"):
            assert re.search(r"leaks\)\*\* \|", line)


def test_leaking_specimens_are_marked_in_every_chart(comparison: Result, tmp_path: Path) -> None:
    _, html, _ = written(comparison, tmp_path)
    named = [chart for chart in charts(html) if "zero_mask" in chart]
    assert len(named) == 2 * 4  # pairs, losses, their second half, the leak: wide and small
    for chart in named:
        root = ElementTree.fromstring(chart)
        names = [one for one in root.iter("text") if "zero_mask" in (one.text or "")]
        assert names
        assert all("(leaks)" in (one.text or "") and "leak" in (one.get("class") or "").split() for one in names)
        marks = [one for one in root.iter() if "leak" in (one.get("class") or "").split() and one.tag != "text"]
        assert marks
    assert all("leak" not in chart for chart in charts(html) if "zero_mask" not in chart)


def test_red_is_a_colour_of_its_own_in_light_dark_and_print(comparison: Result, tmp_path: Path) -> None:
    _, html, _ = written(comparison, tmp_path)
    style = html.split("<style>")[1].split("</style>")[0]
    reds = re.findall(r"--leak: #([0-9a-f]{6})", style)
    assert len(reds) == 3
    for red in reds:
        r, g, b = (int(red[place : place + 2], 16) for place in (0, 2, 4))
        assert r > 1.8 * max(g, b)


def test_the_headings_say_how_they_sort(comparison: Result, tmp_path: Path) -> None:
    page, html, _ = written(comparison, tmp_path)
    heads = re.findall(r'<table class="sortable">.*?<thead>(.*?)</thead>', html, re.DOTALL)
    assert len(heads) == len([one for one in page.all("table") if one.get("class") == "sortable"]) == 12
    columns = [one for one in page.all("th") if one.get("scope") == "col"]
    assert columns
    assert {one.get("data-sort") for one in columns} == {"number", "text"}
    assert 'data-first="descending">tokens a second' in html.replace(
        ' class="number" title="what tokens a second means"', ""
    )
    cells = [one for one in page.all("td") if one.get("class") == "number"]
    assert cells
    for cell in cells:
        assert re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?", str(cell["data-value"]))
    assert "aria-sort" in html.rsplit("<script>", 1)[1]


def test_curves_bring_their_numbers_along(comparison: Result, tmp_path: Path) -> None:
    _, html, _ = written(comparison, tmp_path)
    stored = re.findall(r'<script type="application/json">(.*?)</script>', html, re.DOTALL)
    whole, later = (json.loads(one) for one in stored)
    assert [one["name"] for one in whole["series"]] == ["dot", "additive", "zero_mask (leaks)"]
    for one in whole["series"]:
        assert len(one["x"]) == len(one["y"]) == len(one["low"]) == len(one["high"])
        assert all(low <= y <= high for low, y, high in zip(one["low"], one["y"], one["high"], strict=True))
    assert later["series"][0]["x"][0] >= whole["series"][0]["x"][-1] / 2 - 1
    chart = next(one for one in charts(html) if "data-axes" in one)
    root = ElementTree.fromstring(chart)
    assert len(str(root.get("data-axes")).split()) == 8
    groups = [one for one in root.iter("g") if one.get("data-series") is not None]
    assert sorted(f"{one.get('class')} {one.get('data-series')}" for one in groups) == sorted(
        f"{kind} {number}" for kind in ("key", "series") for number in range(3)
    )


def poison(value: Any) -> Any:
    """The result with something nasty in every text; words that steer the report stay."""
    if isinstance(value, str):
        kinds = ("perplexity", "loss", "share", "seconds", "rate", "bytes", "count")
        return value if value in kinds or "_" in value else value + "<script>alert(1)</script><img src=x> | `*\"'&"
    if isinstance(value, dict):
        return {key: poison(item) for key, item in value.items()}
    return [poison(item) for item in value] if isinstance(value, list) else value


def test_user_text_is_escaped_wherever_it_stands(comparison: Result, tmp_path: Path) -> None:
    clean, _, _ = written(comparison, tmp_path / "clean")
    page, html, text = written(poison(comparison), tmp_path / "nasty")
    assert "It is <b>not</b> a <script> ." in clean.text
    assert len(page.all("script")) == len(clean.all("script")) == 3
    assert page.all("img") == page.all("b") == []
    assert "<script>alert" not in html
    prose = "\n".join(line for line in text.splitlines() if not line.startswith(("    ", "> ")))
    assert "<" not in prose
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)


def test_nothing_is_loaded_and_the_policy_names_the_script(comparison: Result, tmp_path: Path) -> None:
    import base64
    import hashlib

    page, html, _ = written(comparison, tmp_path)
    assert not re.search(r"https?:|url\(|@import", html)
    for _, attributes in page.tags:
        assert not {"src", "href", "srcset", "action"} & attributes.keys()
    script = html.rsplit("<script>", 1)[1].split("</script>")[0]
    assert f"'sha256-{base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()}'" in html
    assert "table.sortable" in script
    assert "figure.curves" in script


def test_the_page_is_accessible(comparison: Result, tmp_path: Path) -> None:
    page, _, _ = written(comparison, tmp_path)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {one.get("aria-labelledby") for one in page.all("section")} <= set(ids)
    assert {one["for"] for one in page.all("label")} <= set(ids)
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(one.get("aria-label") for one in page.all("svg"))
    assert len(page.all("h1")) == len(page.all("main")) == 1


def test_what_is_absent_is_left_out(comparison: Result, tmp_path: Path) -> None:
    full, _, _ = written(comparison, tmp_path / "full")
    for key in OPTIONAL:
        del comparison[key]
    comparison |= {"comparisons": [], "verdict": [], "order": [], "data": {}, "settings": {}}
    for one in comparison["specimens"]:
        for key in OPTIONAL_OF_SPECIMENS:
            one.pop(key)
        one["audit"] = None
        for run in one["runs"]:
            run["metrics"] = []
    page, html, text = written(comparison, tmp_path / "least")
    headings = ("Compared", "Learning", "Probe sentences", "What they write", "Who sees the future", "What it means")
    for title in (*headings, "Published figures", "A quick run", "Order of the runs", "Settings of"):
        assert title in full.text
        assert title not in page.text
        assert title not in text
    assert charts(html) == []
    assert "Means over 3 seeds" in page.text


@pytest.mark.parametrize("key", [*OPTIONAL, "question", "comparisons", "verdict", "order", "settings", "jobs"])
def test_any_optional_part_may_be_null(comparison: Result, tmp_path: Path, key: str) -> None:
    comparison[key] = None
    written(comparison, tmp_path)


def test_one_seed_has_no_intervals_and_says_so(tmp_path: Path) -> None:
    page, html, text = written(make_comparison(("dot", "additive"), seeds=1), tmp_path)
    assert "One seed each" in page.text
    assert "One seed each" in text
    assert 'type="checkbox"' not in html
    assert 'class="band' not in html


def test_numbers_that_are_none_are_shown_as_such(comparison: Result, tmp_path: Path) -> None:
    lost = comparison["specimens"][1]
    lost["values"]["dev_sentence_perplexity"] |= {
        "mean": math.nan,
        "low": math.nan,
        "high": math.nan,
        "each": [math.nan] * 3,
    }
    lost["values"]["final_loss"] = None
    lost["runs"][0]["values"]["dev_sentence_perplexity"] = math.inf
    for row in lost["runs"][0]["metrics"][60:]:
        row["loss"] = math.nan
    comparison["comparisons"][0] |= {
        "ratio": math.nan,
        "ratio_low": None,
        "ratio_high": None,
        "p": None,
        "adjusted": None,
    }
    page, html, text = written(comparison, tmp_path)
    assert "| additive | NaN | " in text
    assert "| additive | 0 | ∞ | " in text
    assert "| additive over dot | dev perplexity (sentences) | NaN | – | – | no |" in text
    assert not re.search(r"\bnan\b", "".join(charts(html)))
    assert "no value" in page.text
    stored = json.loads((tmp_path / "report.json").read_text(), parse_constant=lambda name: pytest.fail(name))
    assert stored["specimens"][1]["values"]["dev_sentence_perplexity"]["mean"] is None


def test_differences_of_shares_are_points(comparison: Result, tmp_path: Path) -> None:
    comparison["figures"][0] |= {"kind": "share", "title": "accuracy", "lower_is_better": False}
    for one in comparison["comparisons"]:
        for key in ("ratio", "ratio_low", "ratio_high"):
            del one[key]
        one |= {"difference": -0.022, "low": -0.05, "high": 0.01}
    page, _, text = written(comparison, tmp_path)
    assert "| additive minus dot | accuracy | −2.2 points (−5.0 to +1.0 points) |" in text
    assert "difference; above 0 the first is better (points)" in page.text


def test_a_large_comparison_makes_a_page_that_can_be_sent(tmp_path: Path) -> None:
    names = ("dot", "additive", "zero_mask", *(f"variant-{number}" for number in range(12)))
    path = write_report(make_comparison(names, steps=600), tmp_path)
    assert path.stat().st_size < 2_500_000


# The terminal


def screen(result: Result, width: int, *, colour: bool = False) -> str:
    stream = StringIO()
    console = Console(file=stream, width=width, force_terminal=colour, color_system="standard" if colour else None)
    show_comparison(result, console)
    return stream.getvalue()


@pytest.mark.parametrize("width", [40, 60, 80, 100, 140, 220])
def test_the_table_fits_the_screen(comparison: Result, width: int) -> None:
    shown = screen(comparison, width)
    assert all(len(line) <= width for line in shown.splitlines())
    value = comparison["specimens"][0]["values"]["dev_sentence_perplexity"]
    assert f"{value['mean']:.1f}" in shown
    assert f"{value['low']:.1f} to {value['high']:.1f}" in shown
    assert "…" not in shown
    hidden = re.search(r"\(([^()]*) left out", " ".join(shown.split()))
    assert (hidden is None) == (width >= 140)
    if width == 80:
        assert hidden
        assert {"train ppl/sent", "train ppl/tok"} <= set(hidden[1].split(", "))
        assert not {"time", "dev ppl/tok"} & set(hidden[1].split(", "))


def test_the_terminal_says_who_leaks_in_red_and_in_words(comparison: Result) -> None:
    coloured = screen(comparison, 200, colour=True)
    lines = [line for line in coloured.splitlines() if "zero_mask (leaks)" in line]
    assert len(lines) == 1
    assert "\x1b[31m" in lines[0]
    assert not any("\x1b[31m" in line for line in coloured.splitlines() if line.strip().startswith(("dot", "additive")))
    plain = " ".join(screen(comparison, 80).split())
    assert "zero_mask against dot (zero_mask leaks): differs:" in plain
    assert comparison["comparisons"][0]["words"] in plain
    assert plain.index("additive is not shown to differ.") < plain.index("zero_mask against dot")
