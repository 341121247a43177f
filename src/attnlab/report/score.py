"""The report of `attnlab score`: files of predictions on one exam, their most common answers, and tests of pairs."""

from __future__ import annotations

from collections.abc import Sequence

from attnlab.lm.exams import Pair, Scores
from attnlab.report.document import Cell, Column, Document, Row, Table, section
from attnlab.report.parts import accuracy_chart, cell, columns, commonest_table, results_table, text_column
from attnlab.report.words import plural, signed, span


def document(scores: Scores, command: str) -> Document:
    """The whole report."""
    rows = scores.rows
    return Document(
        "score",
        f"{plural(scores.questions, 'question')} of {scores.exam}",
        [*(f"{row.name}: {row.sentence()}" for row in rows), *(pair.sentence for pair in scores.pairs)],
        [
            *section("Results", accuracy_chart(rows), results_table(rows, "Predictions"), commonest_table(rows)),
            *section("Pairs", _pairs_table(scores.pairs)),
        ],
        command=command,
    )


def _pairs_table(pairs: Sequence[Pair]) -> Table | None:
    if not pairs:
        return None
    several = len(pairs) > 1
    caption = "McNemar's exact test: only questions that one of the two alone gets right can tell them apart."
    if several:
        caption += " Adjusted: after Holm's correction; the intervals hold together (Bonferroni)."
    titles = ("Difference", "Right with the first only", "With the second only", "p")
    shown = columns("First", text_column("Second"), *titles, *([Column("p, adjusted")] if several else []))
    lines = [
        Row(
            Cell(pair.first),
            [
                Cell(pair.second),
                Cell(
                    signed(pair.difference, "share"),
                    pair.difference,
                    span(pair.low, pair.high, "share", sign=True),
                    low=pair.low,
                    high=pair.high,
                ),
                cell(pair.only_a, "count"),
                cell(pair.only_b, "count"),
                cell(pair.p, "p"),
                *([cell(pair.adjusted, "p")] if several else []),
            ],
        )
        for pair in pairs
    ]
    return Table("Pairs", caption, shown, lines)
