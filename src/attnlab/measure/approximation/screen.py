"""Cards and measurements on a terminal, at 80 columns and more."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnlab.measure.approximation import Findings
from attnlab.measure.approximation.error import BEST, MEAN, PROJECTED, Nearness, Row
from attnlab.measure.approximation.kernels import KernelRow
from attnlab.measure.approximation.spectrum import LEVELS, Spectrum
from attnlab.measure.cards import WEIGHTS, cache_words
from attnlab.registry import Entry

CLEARLY = 0.95  # of the mean's error: anything nearer than that is nearer by more than chance


def plain_table(*headings: str | Text) -> Table:
    """A table without a frame, numbers to the right of the first column."""
    table = Table(box=None, pad_edge=False, padding=(0, 1, 0, 0), header_style="bold")
    for number, heading in enumerate(headings):
        table.add_column(heading, justify="right" if number else "left", no_wrap=True)
    return table


def show_list(entries: list[Entry], console: Console) -> None:
    """Every mechanism in a line or two."""
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
    for heading, widest in (("name", None), ("what it does", None), ("cost", 14)):
        table.add_column(heading, max_width=widest, no_wrap=heading == "name")
    for entry in entries:
        what = Text(entry.parts.summary)
        if entry.defect:
            what.append(f"\nDefect, on purpose: {entry.defect}.", style="red")
        name = Text(entry.name, style="bold red" if entry.defect else "bold")
        table.add_row(name, what, entry.cost)
    console.print(table)
    console.print("attnlab mechanisms show NAME prints the whole card, with its paper and its options.", soft_wrap=True)


def show_card(card: dict[str, Any], console: Console) -> None:
    """A whole card."""
    console.print(Text(card["name"], style="bold red" if card["defect"] else "bold"))
    console.print(card["summary"])
    if card["defect"]:
        console.print(Text(f"Defect, on purpose: {card['defect']}.", style="red"))
    for paragraph in card["description"].split("\n") if card["description"] else []:
        console.print()
        console.print(paragraph)
    console.print()
    facts = Table(box=None, show_header=False, pad_edge=False, padding=(0, 2, 0, 0))
    facts.add_column(style="bold", no_wrap=True)
    counted = card["parameters"]
    said = {
        "Costs": card["costs"],
        "Cannot": card["cannot"],
        "Weights": WEIGHTS[card["weights"]],
        "Time": card["cost"],
        "Memory": f"grows with {card['memory']} in training (measured)",
        "Cache": cache_words(card["cache"]),
        "Parameters": (
            f"{counted['layer']:,} a layer of width {counted['n_embd']}, {counted['n_head']} heads,"
            f" block {counted['block_size']}; dot has {counted['dot']:,}"
        ),
        "Causal": causal_words(card),
        "Paper": card["link"],
    }
    for name, value in said.items():
        if value:
            facts.add_row(name, value)
    console.print(facts)
    if card["options"]:
        options = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1))
        for heading in ("option", "type", "default", "meaning"):
            options.add_column(heading)
        for option in card["options"]:
            options.add_row(option["name"], option["type"], str(option["default"]), option["meaning"])
        console.print(options)
    console.print(Text("Use", style="bold"))
    console.print(card["usage"], soft_wrap=True)


def causal_words(card: dict[str, Any]) -> str:
    """Whether it hides the future, and who says so."""
    if not card["causal"]:
        return "no: it cannot be trained as a language model"
    return f"meant to be, and is not: attnlab audit {card['name']}" if card["defect"] else "yes"


def number(value: float) -> str:
    """An error, short."""
    if value < 1e-4:
        return "0"
    return f"{value:.3f}" if value < 10 else f"{value:,.0f}"


def show_findings(found: Findings, console: Console) -> None:
    """Everything that was measured."""
    show_nearness(found.nearness, console)
    if found.spectrum:
        show_spectrum(found.spectrum, console, found.nearness.weights == "low rank")
    if found.kernel:
        show_kernel(found.kernel, console)


def show_nearness(found: Nearness, console: Console) -> None:
    """The errors of the output, a table a sample, and in a sentence whether anything is nearer than the mean."""
    console.print(
        f"Error of the output of {found.name} against exact attention, over the size of that output: median of"
        f" {found.draws} draws. Work: multiplications, exact attention being 1.\n{found.source}."
    )
    if found.untrained:
        console.print(f"What is learned ({', '.join(found.untrained)}) is as it starts, untrained.")
    limits = "a causal form is not held to it" if found.causal else "no rows or features come nearer to the pattern"
    meanings = {
        BEST: f"the nearest pattern of that rank, by singular values; {limits}",
        PROJECTED: "the exact pattern through as many random rows, P·RᵀR, on which Linformer's theorem rests",
    }
    for form, meaning in meanings.items():
        if any(row.form == form for row in found.rows):
            console.print(f"{form.capitalize()}: {meaning}.")
    for sample in found.samples:
        for knob in found.knobs or ("",):
            console.print()
            console.print(error_table(found, sample, knob))
    console.print()
    for sample in found.samples:
        console.print(verdict(found, sample))


def error_table(found: Nearness, sample: str, knob: str) -> Table:
    """One sample, one knob: a row a form, a column a value; bold where it is nearer than the mean."""
    mean = found.find("output", sample, MEAN)[0].median
    forms = [*found.forms, *(one for one in (BEST, PROJECTED) if found.find("output", sample, one, knob))]
    curves = {form: {row.value: row for row in found.find("output", sample, form, knob)} for form in forms}
    values = sorted({value for form in found.forms for value in curves[form]})
    table = plain_table(Text(sample, style="bold"), *(f"{value}" if knob else "error" for value in values))
    works = [max(row.work or 0.0 for row in found.rows if (row.knob, row.value) == (knob, value)) for value in values]
    table.add_row(f"{knob}: work at most" if knob else "work", *(f"{work:.2f}" for work in works), style="dim")
    table.add_row("the mean", *[number(mean)] * len(values), style="dim")
    for form in forms:
        found_here = curves[form] if knob else dict(zip(values, curves[form].values(), strict=True))
        table.add_row(form or found.name, *(shown(found_here.get(value), mean) for value in values))
    return table


def shown(row: Row | None, mean: float) -> Text:
    """An error; bold where it is below that of the mean."""
    if row is None:
        return Text("")
    return Text(number(row.median), style="bold" if row.median < CLEARLY * mean else "")


def verdict(found: Nearness, sample: str) -> str:
    """Whether the mechanism is clearly nearer than the mean, at which least work, and how near at best."""
    mean = found.find("output", sample, MEAN)[0].median
    rows = [row for form in found.forms for row in found.find("output", sample, form)]
    best = min(rows, key=lambda row: row.median)
    nearer = [row for row in rows if row.median < CLEARLY * mean and (row.work or 0) < 1]
    start = f"{sample}: the mean errs by {number(mean)}, the best here by {number(best.median)}"
    if len(rows) > 1:
        start += f" ({named(best)})"
    if not nearer:
        return f"{start}; nothing that works less than exact attention is clearly nearer than the mean."
    return f"{start}; clearly nearer than the mean from {named(min(nearer, key=lambda row: row.work or 0))} on."


def named(row: Row) -> str:
    """A form at a value, and its work."""
    setting = (row.form, f"{row.knob} {row.value}" if row.knob else "", f"work {row.work or 0:.2f}")
    return ", ".join(part for part in setting if part)


def show_spectrum(found: Spectrum, console: Console, theorem: bool) -> None:
    """How many rows the nearest pattern needs for some errors."""
    console.print("\nSingular values: the rank at which the nearest pattern is within some error of the exact one.")
    table = plain_table("", *(f"{level:.0%}" for level in LEVELS), "of")
    for place, sample in enumerate(found.samples):
        ranks = (str(found.rank_for(place, level)) for level in LEVELS)
        table.add_row(sample, *ranks, str(len(found.values[place])))
    console.print(table)
    if theorem:
        console.print(
            "Linformer's theorem asks for a rank in the order of width / error², whatever the length: for 10 % and width"
            f" {found.width} that is {100 * found.width:,}, times a constant. Its error is measured by the norms of weights"
            " and values; over the size of the output it is larger, by about the root of the length."
        )


def show_kernel(rows: list[KernelRow], console: Console) -> None:
    """How well features estimate one weight."""
    console.print(
        f"\nOne weight exp(query·key), estimated with {rows[0].features} features: its typical relative error by the closed"
        " form (for iid directions) and as measured, the features that an error of 10 % takes, the share of estimates below"
        " zero, and of rows whose weights sum to less than zero. Where measured lies far below the closed form,"
        " the error comes from features so rare that they were never drawn."
    )
    for sample in dict.fromkeys(row.sample for row in rows):
        table = plain_table(sample, "closed form", "measured", "for 10 %", "below 0", "lost rows")
        for row in rows:
            if row.sample == sample:
                table.add_row(
                    row.form,
                    f"{row.predicted:.3g}",
                    f"{row.measured:.3g}",
                    f"{row.needed:,.0f}" if row.needed < 1e9 else f"{row.needed:.0e}",
                    f"{row.negative_weights:.0%}",
                    f"{row.negative_sums:.0%}",
                )
        console.print()
        console.print(table)
