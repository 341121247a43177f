"""What the specimens of a comparison make of text, as tables: probe sentences, samples, and what the leak is worth.

Pure functions, as in `compared`; specimens that leak are marked with a word.
"""

from __future__ import annotations

from attnlab.report.compared import Result, mark
from attnlab.report.tables import Cell, Column, Row, Table
from attnlab.report.words import NOTHING, count, figure, percent, plural, times

PROBES_A_TABLE = 5
SAMPLE_FIGURES = (
    ("tokens", "Tokens", "count"),
    ("unknown_share", "Unknown words", "share"),
    ("punctuation_share", "Punctuation", "share"),
    ("distinct_share", "Different words", "share"),
    ("mean_length", "Mean length", "perplexity"),
)
THE_TEXT = "the text itself"


def probes_tables(result: Result) -> list[Table]:
    """The loss and perplexity of the probe sentences, some sentences a table."""
    read = [one for one in result["specimens"] if one.get("probes")]
    most = max((len(one["probes"]) for one in read), default=0)

    def cell(probe: Result) -> Cell:
        each = [figure(value, "loss") for value in probe.get("losses") or ()]
        return Cell(
            figure(probe.get("perplexity"), "perplexity"),
            probe.get("perplexity"),
            f"loss {figure(probe.get('loss'), 'loss')}",
            "loss " + ", ".join(each) if len(each) > 1 else "",
        )

    tables = []
    for begin in range(0, most, PROBES_A_TABLE):
        places = range(begin, min(begin + PROBES_A_TABLE, most))
        rows = [
            Row(
                Cell(one["name"]),
                [cell(one["probes"][place]) if place < len(one["probes"]) else Cell(NOTHING) for place in places],
                mark(one),
            )
            for one in read
        ]
        columns = [Column("Specimen", number=False), *(Column(f"Sentence {place + 1}") for place in places)]
        tables.append(Table("Perplexity of each sentence, and its loss in nats a token below.", columns, rows))
    return tables


def probe_sentences(result: Result) -> list[tuple[str, str]]:
    """The probe sentences, each with a note on its length."""
    probes: list[Result] = next((one["probes"] for one in result["specimens"] if one.get("probes")), [])

    def note(probe: Result) -> str:
        known = probe.get("tokens") is not None
        unknown = f", {count(probe['unknown'])} unknown" if probe.get("unknown") else ""
        return f"{plural(probe['tokens'], 'token')}{unknown}" if known else ""

    return [(probe["sentence"], note(probe)) for probe in probes]


def quality_table(result: Result) -> Table | None:
    """What the samples are made of, beside the text that was read."""
    wrote = [one for one in result["specimens"] if one.get("sample_quality")]
    if not wrote:
        return None

    def cells(quality: Result) -> list[Cell]:
        return [Cell(figure(quality.get(key), kind), quality.get(key)) for key, _, kind in SAMPLE_FIGURES]

    rows = [Row(Cell(one["name"]), cells(one["sample_quality"]), mark(one)) for one in wrote]
    if result.get("text_quality"):
        rows.append(Row(Cell(THE_TEXT), cells(result["text_quality"])))
    columns = [Column("Written by", number=False), *(Column(title) for _, title, _ in SAMPLE_FIGURES)]
    return Table("What the samples are made of, in shares of their tokens.", columns, rows)


# The leak


def audit_table(result: Result) -> Table | None:
    """What the audit found."""
    audited = [one for one in result["specimens"] if one.get("audit")]
    if not audited:
        return None

    def says(audit: Result) -> str:
        faults = "; ".join(f"{name}: {words}" for name, words in (audit.get("faults") or {}).items())
        declared = f"declared: {audit['defect']}" if audit.get("defect") else ""
        return "; ".join(part for part in (declared, faults) if part) or "no fault found"

    rows = []
    for one in audited:
        audit, leak = one["audit"], one["audit"].get("causal_leak")
        size = percent(leak) if leak is not None and leak >= 5e-4 else figure(leak, "") if leak else "0"
        cells = [Cell(audit.get("verdict", NOTHING)), Cell(size if leak is not None else NOTHING, leak)]
        rows.append(Row(Cell(one["name"]), [*cells, Cell(says(audit))], mark(one)))
    columns = (
        Column("Specimen", number=False),
        Column("Audit", number=False),
        Column("Largest leak", note="share of an output that later tokens move"),
        Column("In words", number=False),
    )
    return Table("What the audit of every specimen found.", columns, rows)


def word_by_word_table(result: Result) -> Table | None:
    """The perplexity of the same sentences read whole and word by word."""
    read = [one for one in result["specimens"] if one.get("word_by_word")]
    if not read:
        return None
    rows = []
    for one in read:
        both = one["word_by_word"]
        whole, apart = both.get("whole"), both.get("word_by_word")
        ratio = apart / whole if whole and apart is not None else None
        values = [Cell(figure(value, "perplexity"), value) for value in (whole, apart)]
        cells = [Cell(count(both["sentences"]), both["sentences"]), *values, Cell(times(ratio), ratio)]
        rows.append(Row(Cell(one["name"]), cells, mark(one)))
    titles = ("Sentences", "Read whole", "Word by word", "Ratio")
    return Table(
        "Token perplexity of the same sentences, read whole and each word from its prefix alone:"
        " they differ only if a model sees the future.",
        [Column("Specimen", number=False), *map(Column, titles)],
        rows,
    )
