"""The report of `attnlab score`: files of predictions on one exam, their most common answers, and tests of pairs."""

from __future__ import annotations

from collections.abc import Sequence

from attnlab.lm.exams import Scores
from attnlab.report.document import Cell, Column, Document, Row, Table, section
from attnlab.report.parts import Result, cell, columns, commonest_table, text_column
from attnlab.report.recall import accuracy_chart, results_table
from attnlab.report.words import plural, signed, span
from attnlab.store.records import plain


def document(found: Scores, command: str) -> Document:
    """The whole report."""
    rows = plain(found.rows)
    return Document(
        "score",
        f"{plural(found.questions, 'question')} of {found.exam}",
        [*(f"{one.name}: {one.score.sentence()}" for one in found.rows), *(one.sentence for one in found.pairs)],
        [
            *section("Results", accuracy_chart(rows), results_table(rows, "Predictions"), commonest_table(rows)),
            *section("Pairs", _pairs_table(plain(found.pairs))),
        ],
        command=command,
    )


def _pairs_table(pairs: Sequence[Result]) -> Table | None:
    if not pairs:
        return None
    several = len(pairs) > 1
    caption = "McNemar's exact test: only questions that one of the two alone gets right can tell them apart."
    if several:
        caption += " Adjusted: after Holm's correction; the intervals hold together (Bonferroni)."
    titles = ("Difference", "Interval", "Right with the first only", "With the second only", "p")
    shown = columns("First", text_column("Second"), *titles, *([Column("p, adjusted")] if several else []))
    lines = [
        Row(
            Cell(one["first"]),
            [
                Cell(one["second"]),
                Cell(signed(one["difference"], "share"), one["difference"]),
                Cell(span(one["low"], one["high"], "share", sign=True), one["low"]),
                cell(one["only_a"], "count"),
                cell(one["only_b"], "count"),
                cell(one["p"], "p"),
                *([cell(one["adjusted"], "p")] if several else []),
            ],
        )
        for one in pairs
    ]
    return Table("Pairs", caption, shown, lines)
