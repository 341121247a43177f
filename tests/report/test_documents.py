"""Every kind of Document in every form: complete, safe, self-contained, accessible, and with the same numbers."""

from __future__ import annotations

import base64
import csv
import hashlib
import io
import json
import math
import random
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import fields, is_dataclass, replace
from functools import cache
from html import unescape
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import msgspec
import pytest
from comparisons import make_comparison, plan_of
from made_up import (
    classification_result,
    make_patterns,
    make_recall,
    make_reports,
    make_runs,
    make_trust,
    make_view,
    make_why,
    optimizers_result,
    search_result,
)
from reading import Reader, read
from rich.console import Console

import attnlab.report
from attnlab.errors import StorageError
from attnlab.report import FORMATS, screen, write_document
from attnlab.report import runs as side_by_side
from attnlab.report.document import Answers, Block, Cell, Chart, Document, Group, Section, Table
from attnlab.report.html import as_html
from attnlab.report.text import as_csv, as_latex, as_markdown, named_tables, tex
from attnlab.store.records import encode
from attnlab.studies.compare import document as comparison
from attnlab.studies.compare.records import ComparisonResult
from attnlab.studies.recall import Recall, attention_section
from attnlab.studies.reports import Reports
from attnlab.studies.trust import Trust
from attnlab.studies.why import Why


def comparison_document(result: ComparisonResult) -> Document:
    return comparison.document(plan_of(result), result)


NASTY = """<script>alert(1)</script><img src=x onerror=alert(1)>|`*_[x](y)"'&%$#{}~^\\\x00\ud800"""
STEERING = {"shape", "style", "layout", "tone", "role"}  # fields that only our own words may stand in
CASES: dict[str, Callable[[], Document]] = {
    "runs": lambda: side_by_side.document(make_runs()),
    "recall": lambda: Recall().document(make_recall()),
    "reports": lambda: Reports().document(make_reports()),
    "classification": classification_result,
    "search": search_result,
    "optimizers": optimizers_result,
    "look": lambda: make_view().document("runs/recall-1", "attnlab look runs/recall-1"),
    "why": lambda: Why(quick=True, seeds=(0, 1), exam="people:500:test").document(make_why()),
    "comparison": lambda: comparison_document(make_comparison()),
    "one seed": lambda: comparison_document(make_comparison(("dot", "additive"), seeds=1, steps=20)),
    "trust": lambda: Trust().document(make_trust()),
    "nothing certified": lambda: Trust().document(make_trust(met=False)),
}


@cache
def document(name: str) -> Document:
    return CASES[name]()


@cache
def page(name: str) -> tuple[str, Reader]:
    html = as_html(document(name))
    return html, read(html)


every_kind = pytest.mark.parametrize("kind", CASES)


# The page


@every_kind
def test_the_page_loads_nothing_and_runs_only_its_own_script(kind: str) -> None:
    html, found = page(kind)
    assert html.startswith("<!DOCTYPE html>")
    for _, attributes in found.tags:
        for name in ("src", "href", "xlink:href", "action", "data", "srcset", "poster"):
            assert (attributes.get(name) or "#").startswith("#")
    assert not re.search(r"https?:|url\(|@import", html)
    (policy,) = (one["content"] for one in found.all("meta") if one.get("http-equiv") == "Content-Security-Policy")
    script = html.rsplit("<script>", 1)[1].split("</script>")[0]
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'"
    others = [one.get("type") for one in found.all("script") if one]
    assert set(others) <= {"application/json"}
    assert len(found.all("script")) == len(others) + 1


@every_kind
def test_the_page_is_accessible(kind: str) -> None:
    html, found = page(kind)
    assert found.all("html") == [{"lang": "en"}]
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in found.all("meta")
    assert len(found.all("h1")) == len(found.all("title")) == len(found.all("main")) == 1
    assert len(found.all("caption")) == len(found.all("table"))
    assert all(svg.get("aria-label") or svg.get("aria-hidden") == "true" for svg in found.all("svg"))
    assert all(one.get("aria-label") for one in found.all("div") if one.get("role") == "region")
    ids = [attributes["id"] for _, attributes in found.tags if "id" in attributes]
    assert len(ids) == len(set(ids))
    assert {one.get("aria-labelledby") for one in found.all("section")} <= set(ids)
    assert {one["for"] for one in found.all("label")} <= set(ids)
    for drawing in re.findall(r'<svg class="chart".*?</svg>', html, re.DOTALL):
        ElementTree.fromstring(drawing)


@every_kind
def test_headings_say_how_they_sort_and_curves_bring_their_numbers(kind: str) -> None:
    html, found = page(kind)
    assert {one.get("data-sort") for one in found.all("th") if one.get("scope") == "col"} <= {"number", "text"}
    for one in found.all("td"):
        if one.get("class") == "number":
            assert re.fullmatch(r"-?[\d.]+(e[+-]?\d+)?|\D*", str(one["data-value"]))
    stored = re.findall(r'<script type="application/json"[^>]*>(.*?)</script>', html, re.DOTALL)
    drawn = [one for one in document(kind).blocks() if getattr(one, "readable", False)]
    given = [json.loads(one, parse_constant=pytest.fail) for one in stored]
    curves = [one for one in given if "series" in one]
    assert [len(one["series"]) for one in curves] == [len(one.series) for one in drawn]  # type: ignore[union-attr]
    for one in (series for chart in curves for series in chart["series"]):
        assert len(one["x"]) == len(one["y"])
        assert len(one["low"]) == len(one["high"])


# Somebody's text


def poison(value: Any) -> Any:
    """A Document with something nasty in every text of it."""
    if isinstance(value, str):
        return value + NASTY if value else ""
    if is_dataclass(value) and not isinstance(value, type):
        kept = {one.name: getattr(value, one.name) for one in fields(value)}
        return replace(value, **{key: item if key in STEERING else poison(item) for key, item in kept.items()})
    if isinstance(value, msgspec.Struct):
        return msgspec.structs.replace(value, **poison(msgspec.structs.asdict(value)))
    if isinstance(value, dict):
        return {key: item if key in STEERING else poison(item) for key, item in value.items()}
    return [poison(item) for item in value] if isinstance(value, list | tuple) else value


@every_kind
def test_somebodys_text_is_text_in_every_form(kind: str) -> None:
    hostile = poison(document(kind))
    html = as_html(hostile)
    clean, found = page(kind)[1], read(html)
    assert "<script>alert(1)</script>" in found.text
    assert [name for name, _ in found.tags] == [name for name, _ in clean.tags]
    assert not any(name.startswith("on") for _, attributes in found.tags for name in attributes)
    for drawing in re.findall(r'<svg class="chart".*?</svg>', html, re.DOTALL):
        ElementTree.fromstring(drawing)  # without what XML does not allow
    text = as_markdown(hostile)
    prose = "\n".join(line for line in text.splitlines() if not line.startswith("    "))  # code is code
    assert not re.search(r"<|(?<!\\)[`\[]", prose)
    for part in text.split("\n\n"):
        assert len({len(re.findall(r"(?<!\\)\|", line)) for line in part.splitlines() if line[0] == "|"}) <= 1
    latex = as_latex(hostile)
    commands = r"begin|end|centering|toprule|midrule|bottomrule|addlinespace|emph|footnotesize|caption|label|linewidth"
    signs = r"text(backslash|asciitilde|asciicircum|asciigrave|bar|less|greater)|times|leq|geq|infty"
    bare = re.sub(rf"\\({commands}|{signs})(?![a-z])|\\[\\&%$#_{{}}]|^%.*", "", latex, flags=re.MULTILINE)
    assert "\\" not in bare
    assert not re.search(r"[#_^~`|<>\x00\ud800]", re.sub(r"\$\^2\$|\$.?\$", "", bare))
    assert latex.count("{") - latex.count(r"\{") == latex.count("}") - latex.count(r"\}")
    encode(hostile)


def test_latex_reads_no_sign_as_its_own() -> None:
    """An option or a star at the start of a row would be taken by the command before it, and two signs be drawn as one."""
    assert tex("[a] * a--b ''c'' 1,,2 |") == r"{[}a{]} {*} a-{}-b '{}'c'{}' 1,{},2 \textbar{}"
    assert tex("a\\b & 5 % $x_1^2$ #{y} ~ <z> `") == (
        r"a\textbackslash{}b \& 5 \% \$x\_1\textasciicircum{}2\$ \#\{y\} \textasciitilde{} \textless{}z\textgreater{}"
        r" \textasciigrave{}"
    )
    assert tex("5 – 6\n−1 × ∞ ²\x00\ud800") == r"5 -- 6 $-$1 $\times$ $\infty$ $^2$"


def test_spreadsheets_find_no_formula() -> None:
    table = document("runs").tables()[0]
    for sign in "=+-@":
        row = replace(table.rows[0], name=Cell(f"{sign}1+cmd|' /C calc'!A0", None, f"\t{sign}2\r\n"))
        (_, line) = csv.reader(io.StringIO(as_csv(msgspec.structs.replace(table, rows=[row]))))
        assert line[:2] == [f"'{sign}1+cmd|' /C calc'!A0", f"'{sign}2"]


# The same numbers


def cells_of(table: Table) -> Iterator[tuple[str, list[Cell]]]:
    for row in table.rows:
        yield row.mark, [row.name, *row.cells]


def from_markdown(text: str) -> list[list[str]]:
    """The cells of all rows of all tables."""
    rows = [line for line in text.splitlines() if line.startswith("|")]
    split = [re.split(r"(?<!\\)\|", row)[1:-1] for row in rows]
    return [[unescape(re.sub(r"\\(.)", r"\1", cell.strip())) for cell in row] for row in split]


@every_kind
def test_every_table_is_the_same_in_every_form(kind: str) -> None:
    made = document(kind)
    shown, rows = page(kind)[1].text, from_markdown(as_markdown(made))
    latex = as_latex(made).replace(r"\%", "%").replace(r"\_", "_")
    stored = json.loads(encode(made), parse_constant=pytest.fail)
    assert stored["title"] == made.title
    assert len(re.findall(b'"block": "table"', encode(made))) == len(made.tables())
    for name, table in named_tables(made):
        heading, *lines = csv.reader(io.StringIO(as_csv(table)))
        assert len(lines) == len(table.rows)
        assert rf"\label{{tab:{name}}}" in latex
        for line, (mark, cells) in zip(lines, cells_of(table), strict=True):
            assert len(line) == len(heading)
            parts = [
                " ".join(filter(None, (one.text, one.under, mark if place == 0 else "", one.each)))
                for place, one in enumerate(cells)
            ]
            assert " ".join(" ".join(parts).split()) in shown
            brackets = [" ".join(filter(None, (one.text, one.under and f"({one.under})"))) for one in cells]
            brackets[0] += f" **({mark})**" if mark else ""
            assert [" ".join(one.split()) for one in brackets] in rows
            fields = dict(zip(heading, line, strict=True)) if len(set(heading)) == len(heading) else {}
            for column, cell in zip(table.columns, cells, strict=True) if fields else ():
                for end in ("low", "high"):
                    if (value := getattr(cell, end)) is not None:
                        assert float(fields[f"{column.title}, {end}"]) == value
                if column.title not in fields:
                    assert cell.value is None
                elif column.number and isinstance(cell.value, int | float):
                    assert float(fields[column.title]) == cell.value
                else:
                    shown_here = fields[column.title]
                    assert shown_here in (cell.text, "" if cell.text == "–" else f"'{cell.text}")
            assert (line[-1] if heading[-1] == "mark" else "") == mark
            if "&" not in "".join(one.text for one in cells):
                assert any(
                    cells[0].text.replace("−", "$-$") in row and (not mark or f"({mark})" in row)
                    for row in latex.splitlines()
                )


@every_kind
def test_the_sentences_at_the_top_are_in_every_form(kind: str) -> None:
    made, text = document(kind), as_markdown(document(kind))
    console = Console(file=io.StringIO(), width=100)
    screen.show(made, console)
    printed = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]
    for sentence in (*made.lead, *(one.text for one in made.notices)):
        assert sentence in page(kind)[1].text
        assert sentence in printed
        assert sentence in unescape(re.sub(r"\\(.)", r"\1", text))


@every_kind
def test_the_whole_report_can_be_printed_with_a_line_for_every_chart(kind: str) -> None:
    console = Console(file=io.StringIO(), width=100)
    screen.show_all(document(kind), console)
    printed = " ".join(console.file.getvalue().split())  # type: ignore[attr-defined]

    def charts(some: Iterable[Block]) -> Iterator[Chart]:
        for one in some:
            yield from charts(one.blocks) if isinstance(one, Group) else [one] if isinstance(one, Chart) else []

    for section in document(kind).sections:
        assert section.title in printed
        for chart in charts(section.blocks):
            assert f"(chart, shown in HTML only: {chart.title or chart.label})" in printed


@every_kind
def test_tables_fit_the_screen_and_say_what_they_leave_out(kind: str) -> None:
    brief = [one for one in document(kind).tables() if one.brief]
    for width in (40, 60, 80, 100, 140, 220):
        console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system="standard")
        screen.show(document(kind), console)
        shown = console.file.getvalue()  # type: ignore[attr-defined]
        lines = [(line, re.sub(r"\x1b\[[\d;]*m", "", line).strip()) for line in shown.splitlines()]
        printed = " ".join(" ".join(line for _, line in lines).split())
        assert all(len(line) <= width for _, line in lines)
        assert "…" not in shown
        for table in brief:
            for row in table.rows:
                name = screen._name_of(row)
                (line,) = (
                    one for one, line in lines if line.startswith(name) and row.cells[0].text in line.removeprefix(name)
                )
                assert ("\x1b[31m" in line) == (row.mark != "" and row.tone == "leaks")
            _, hidden = screen.as_rich(table, width)
            said = f"(not shown, since the screen is narrow: {', '.join(hidden)})"
            assert (said in printed) == bool(hidden)


def test_minor_columns_are_left_out_first() -> None:
    table = document("comparison").tables()[0]
    assert screen.as_rich(table, 60)[1] == ["train ppl/sent", "train ppl/tok"]
    assert screen.as_rich(document("recall").tables()[0], 80)[1] == ["Correct"]


# Files


def test_the_files_of_a_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    result, folder = document("recall"), tmp_path / "new" / "study"
    assert write_document(result, folder) == folder / "report.html"
    write_document(result, folder)  # again: a report can be made anew
    assert sorted(path.name for path in folder.iterdir()) == ["manifest.json", "report.html", "report.md"]
    written: list[str] = []
    monkeypatch.setattr(attnlab.report, "write_bytes", lambda path, content: written.append(path.name))
    assert write_document(result, folder, FORMATS) == folder / "report.html"
    tables = ["report-results.csv", "report-most-common-answers.csv", "report-training-runs.csv"]
    assert written == [
        "report.md",
        "report.json",
        *tables,
        "report.tex",
        "report.html",
    ]  # the page says that all is there
    assert write_document(result, folder, ("latex",)) == folder / "report.tex"
    assert write_document(result, folder, ("csv",)) == folder


def test_a_page_is_written_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report.html").write_text("old")

    def refuse(self: Path, target: Path) -> Path:
        raise PermissionError(13, "no")

    monkeypatch.setattr(Path, "replace", refuse)
    with pytest.raises(StorageError):
        write_document(document("recall"), tmp_path)
    assert [path.name for path in tmp_path.iterdir()] == ["report.html"]
    assert (tmp_path / "report.html").read_text() == "old"


def test_large_results_make_pages_that_can_be_sent(tmp_path: Path) -> None:
    tokens = [f" word{place}" for place in range(25)]
    attention = attention_section("A text", tokens, make_patterns(random.Random(3), tokens=tokens))
    recall = replace(make_recall(6000), attention=attention)
    assert len(as_html(Recall().document(recall))) < 1_000_000
    names = ("dot", "additive", "zero_mask", *(f"variant-{number}" for number in range(12)))
    assert len(as_html(comparison_document(make_comparison(names, steps=600)))) < 2_500_000


@pytest.mark.parametrize("name", CASES)
def test_a_row_has_the_tone_of_a_leak_only_if_it_is_marked(name: str) -> None:
    rows = [row for table in document(name).tables() for row in table.rows]
    assert not [row for row in rows if row.tone == "leaks" and not row.mark]
    assert not [row for row in rows if row.mark and not row.tone]


def test_second_lines_have_columns_of_their_own_in_csv() -> None:
    heading = next(csv.reader(io.StringIO(as_csv(document("recall").tables()[0]))))
    assert heading[:2] == ["Model", "Model, note"]
    assert "95 % interval, low" in heading
    assert "95 % interval, high" in heading
    assert as_csv(document("recall").tables()[0]).count("Brooklyn, 46 %") == 1


def test_numbers_that_json_does_not_know_are_null() -> None:
    odd = replace(document("runs").tables()[0].rows[0], cells=[Cell("NaN", math.nan), Cell("∞", math.inf)])
    made = replace(document("runs"), sections=[])
    table = msgspec.structs.replace(document("runs").tables()[0], rows=[odd])
    stored = json.loads(
        encode(replace(made, sections=[attnlab.report.document.Section("odd", [table])])), parse_constant=pytest.fail
    )
    assert [one["value"] for one in stored["sections"][0]["blocks"][0]["rows"][0]["cells"]] == [None, None]


@pytest.mark.parametrize("name", CASES)
def test_a_notebook_shows_the_page_in_a_frame(name: str) -> None:
    shown = document(name)._repr_html_()
    assert shown.count("<") == 2  # the frame: the page within is escaped
    assert unescape(shown.split('srcdoc="')[1].split('"')[0]) == as_html(document(name))


def test_markdown_says_where_there_are_no_answers() -> None:
    made = Document("recall", "Title", [], [Section("Answers", [Answers("Right", [])])])
    assert as_markdown(made).endswith("### Right\n\nNone.\n")
