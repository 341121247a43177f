"""Distance of a mechanism from exact attention.

    found = examine(registry.find("mechanism", "performer"), random_source())
    found.errors.rows, found.spectrum, found.kernel

Knows mechanisms from the registry, never by name; trains nothing but their learned parts, if asked (`fit_steps`).
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, fields

from attnlab.measure.approximation.error import (
    BEST,
    FITTED,
    IN_RUN,
    LEVELS,
    MEAN,
    PROJECTED,
    ErrorRow,
    Errors,
    KernelRow,
    Spectrum,
    kernel_rows,
    measure,
    require_approximation,
    spectrum,
)
from attnlab.measure.approximation.samples import Source, random_source, run_source
from attnlab.registry import Entry
from attnlab.report.document import Cell, Column, Document, Row, Section, Table, Text, strict
from attnlab.store.folders import to_json

__all__ = ["Findings", "document", "examine", "measure", "random_source", "run_source"]

_CLEARLY = 0.95  # of the mean's error: below this, a mechanism is nearer by more than chance


@dataclass(frozen=True)
class Findings:
    """The measurements of a mechanism: errors; singular values if it is of low rank; its kernel, if it has one."""

    errors: Errors
    spectrum: Spectrum | None
    kernel: list[KernelRow]

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        return {
            **asdict(self.errors),
            "spectrum": self.spectrum.to_dict() if self.spectrum else None,
            "kernel": [strict(asdict(row)) for row in self.kernel],
        }

    def files(self) -> dict[str, bytes]:
        """The numbers as JSON and CSV, by file name."""
        return {"error.json": to_json(self.to_dict()), "error.csv": to_csv(self.errors.rows)}


def examine(entry: Entry, source: Source, draws: int = 32, seed: int = 0, fit_steps: int = 0) -> Findings:
    """Measure everything; refuses mechanisms that do not approximate dot-product attention.

    With `fit_steps`, learned parts such as Linformer's projections are trained towards exact attention too.
    """
    require_approximation(entry)
    ranked = entry.weights in ("low rank", "kernel")
    errors = measure(entry, source, draws, seed, fit_steps)
    return Findings(errors, spectrum(source) if ranked else None, kernel_rows(entry, source, seed=seed))


def to_csv(rows: Sequence[ErrorRow]) -> bytes:
    """Rows as CSV with a heading."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, [one.name for one in fields(ErrorRow)], lineterminator="\n")
    writer.writeheader()
    writer.writerows(asdict(row) for row in rows)
    return stream.getvalue().encode()


# The report


def document(found: Findings) -> Document:
    """The measurements as a report."""
    errors = found.errors
    lead = [
        f"Error of the output of {errors.name} against exact attention, over the size of that output: median of"
        f" {errors.draws} draws. Work: multiplications, exact attention being 1.",
        f"{errors.source}.",
    ]
    if errors.untrained:
        trained = ", except where it says fitted or trained" if {FITTED, IN_RUN} & set(errors.forms) else ", untrained"
        lead.append(f"Learned parts ({', '.join(errors.untrained)}) have their initial values{trained}.")
    lead += _meanings(errors)
    tables = [_error_table(errors, sample, knob) for sample in errors.samples for knob in errors.knobs or ("",)]
    verdicts = Text([_verdict(errors, sample) for sample in errors.samples])
    sections = [Section("Errors", [*tables, verdicts])]
    if found.spectrum:
        sections.append(_spectrum_section(found.spectrum, errors.weights == "low rank"))
    if found.kernel:
        sections.append(_kernel_section(found.kernel))
    return Document("approximation", f"{errors.name} against exact attention", lead, sections)


def _meanings(errors: Errors) -> Iterator[str]:
    limits = "a causal form may be nearer" if errors.causal else "no rows or features are nearer to the pattern"
    meanings = {
        BEST: f"the nearest pattern of that rank, by singular values; {limits}",
        PROJECTED: "the exact pattern through as many random rows, P·RᵀR, on which Linformer's theorem rests",
        FITTED: f"learned parts fitted to exact attention for {errors.fit_steps:,} steps, on draws that are not measured",
        IN_RUN: "the layers as they are in the run, which learned to predict text, not to be near exact attention",
    }
    for form, meaning in meanings.items():
        if any(row.form == form for row in errors.rows):
            yield f"{form.capitalize()}: {meaning}."


def _error_table(errors: Errors, sample: str, knob: str) -> Table:
    """One sample, one knob: a row per form, a column per value; strong if it is clearly nearer than the mean."""
    mean = errors.find("output", sample, MEAN)[0].median
    forms = [*errors.forms, *(one for one in (BEST, PROJECTED) if errors.find("output", sample, one, knob))]
    curves = {form: {row.value: row for row in errors.find("output", sample, form, knob)} for form in forms}
    values = sorted({value for form in errors.forms for value in curves[form]})
    works = [max(row.work or 0.0 for row in errors.rows if (row.knob, row.value) == (knob, value)) for value in values]
    rows = [
        Row(
            Cell(f"{knob}: work at most" if knob else "work"),
            [Cell(f"{work:.2f}", work, tone="quiet") for work in works],
        ),
        Row(Cell("the mean"), [Cell(_number(mean), mean, tone="quiet") for _ in values]),
    ]
    for form in filter(curves.get, forms):
        here = curves[form] if knob else dict(zip(values, curves[form].values(), strict=True))
        rows.append(Row(Cell(errors.label(form)), [_error_cell(here.get(value), mean) for value in values]))
    titles = [f"{value}" if knob else "error" for value in values]
    return Table(f"Errors, {sample} {knob}".strip(), "", [Column(sample, number=False), *map(Column, titles)], rows)


def _number(value: float) -> str:
    if value < 1e-4:
        return "0"
    return f"{value:.3f}" if value < 10 else f"{value:,.0f}"


def _error_cell(row: ErrorRow | None, mean: float) -> Cell:
    if row is None:
        return Cell("")
    return Cell(_number(row.median), row.median, tone="strong" if row.median < _CLEARLY * mean else "")


def _verdict(errors: Errors, sample: str) -> str:
    """Whether the mechanism is clearly nearer than the mean, from how much work on, and its best error."""
    mean = errors.find("output", sample, MEAN)[0].median
    rows = [row for form in errors.forms for row in errors.find("output", sample, form)]
    best = min(rows, key=lambda row: row.median)
    nearer = [row for row in rows if row.median < _CLEARLY * mean and (row.work or 0) < 1]
    start = f"{sample}: the error of the mean is {_number(mean)}, the best here {_number(best.median)}"
    if len(rows) > 1:
        start += f" ({_named(best)})"
    if not nearer:
        return f"{start}; nothing with less work than exact attention is clearly nearer than the mean."
    cheapest = min(nearer, key=lambda row: row.work or 0)
    return f"{start}; clearly nearer than the mean with the least work: {_named(cheapest)}."


def _named(row: ErrorRow) -> str:
    setting = (row.form, f"{row.knob} {row.value}" if row.knob else "", f"work {row.work or 0:.2f}")
    return ", ".join(part for part in setting if part)


def _spectrum_section(found: Spectrum, theorem: bool) -> Section:
    rows = []
    for place, sample in enumerate(found.samples):
        ranks = [*(found.rank_for(place, level) for level in LEVELS), len(found.values[place])]
        rows.append(Row(Cell(sample), [Cell(str(rank), rank) for rank in ranks]))
    columns = [Column("", number=False), *(Column(f"{100 * level:.0f} %") for level in LEVELS), Column("of")]
    caption = "The rank at which the nearest pattern is within an error of the exact one."
    table = Table("Singular values", caption, columns, rows)
    rule = (
        "Linformer's theorem asks for a rank in the order of width / error², whatever the length: for 10 % and width"
        f" {found.width} that is {100 * found.width:,}, times a constant. Its error is measured by the norms of weights"
        " and values; over the size of the output it is larger, by about the root of the length."
    )
    return Section("Singular values", [table, *([Text([rule])] if theorem else [])])


def _kernel_section(kernel: Sequence[KernelRow]) -> Section:
    words = (
        f"One weight exp(query·key), estimated with {kernel[0].features} features: its typical relative error by the closed"
        " form (for iid directions) and as measured, the features needed for an error of 10 %, the share of estimates"
        " below zero, and of rows whose weights sum to less than zero. Where the measured error is far below the closed"
        " form, the error comes from features so rare that they were never drawn."
    )
    titles = ("closed form", "measured", "for 10 %", "below 0", "lost rows")
    tables = []
    for sample in dict.fromkeys(row.sample for row in kernel):
        rows = [
            Row(
                Cell(row.form),
                [
                    Cell(f"{row.predicted:.3g}", row.predicted),
                    Cell(f"{row.measured:.3g}", row.measured),
                    Cell(f"{row.needed:,.0f}" if row.needed < 1e9 else f"{row.needed:.0e}", row.needed),
                    Cell(f"{100 * row.negative_weights:.0f} %", row.negative_weights),
                    Cell(f"{100 * row.negative_sums:.0f} %", row.negative_sums),
                ],
            )
            for row in kernel
            if row.sample == sample
        ]
        tables.append(Table(f"One weight, {sample}", "", [Column(sample, number=False), *map(Column, titles)], rows))
    return Section("Estimates of one weight", [Text([words]), *tables])
