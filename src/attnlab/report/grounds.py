"""What a comparison rests on: what was fixed beforehand, how settings were tuned, where the variation comes from."""

from __future__ import annotations

import math
from collections.abc import Sequence

from attnlab.report.document import Axis, Cell, Chart, Column, Facts, Row, Section, Series, Table, section
from attnlab.report.parts import Result, cell, columns, lines, text_column
from attnlab.report.words import NOTHING, capital, count, percent, plain, plural


def registration(result: Result) -> Facts | None:
    """What was named beforehand, and what was added after a result was known."""
    stored = result.get("registration")
    if not stored:
        return None
    tuned = (result.get("tuning") or {}).get("settings") or ()
    margin, added = stored.get("margin"), stored.get("seeds_added") or []
    pairs = [f"{a} against {b}" for a, b in stored.get("pairs") or ()]
    facts = [
        ("Started", stored.get("started") or NOTHING),
        ("Registered", "before training" if stored.get("before_training", True) else "after the runs were trained"),
        ("Hypothesis", stored["hypothesis"]),
        ("Tested figure", stored["figure"]),
        ("Pairs", "; ".join(pairs)),
        ("Error probability", f"{percent(stored['alpha'])} over all pairs, for differences and for equivalence each"),
        ("Margin of equivalence", NOTHING if margin is None else margin_in_words(result)),
        ("Tuned", "; ".join(f"{one['setting']} in {plain(one['values'])}" for one in tuned) or "nothing"),
        ("Seeds", ", ".join(map(str, stored["seeds"]))),
        ("Seeds added later", ", ".join(map(str, added)) or "none"),
        ("Looks at the result", str(stored["looks"])),
        *((f"Checksum of {name}", checksum[:16]) for name, checksum in (stored.get("checksums") or {}).items()),
    ]
    return Facts("Registration", facts)


def margin_in_words(result: Result) -> str:
    """The margin of equivalence: in points of right answers, or as a share of the perplexity."""
    margin = result["registration"]["margin"]
    return f"{100 * margin:g} points" if result["figures"][0].get("kind") == "share" else f"{100 * margin:g} %"


# Tuning


def tuning_sections(result: Result, title: str, kind: str) -> list[Section]:
    """The trials of tuning as a curve per setting and a table; `title` and `kind` are those of the tested figure."""
    tuning = result.get("tuning")
    if not tuning:
        return []
    charts = [_curve(tuning, one, title, kind) for one in tuning["settings"]]
    return section("Tuning", *(chart for chart in charts if chart), _trials_table(tuning, title, kind))


def _curve(tuning: Result, setting: Result, title: str, kind: str) -> Chart | None:
    """The best figure at every value of a setting, one line per variant; None where values are not numbers."""
    name, values = setting["setting"], setting["values"]
    if not all(isinstance(value, int | float) and not isinstance(value, bool) for value in values):
        return None
    wide = min(values) > 0
    factor, best = (100.0, max) if kind == "share" else (1.0, min)
    series = []
    for variant in tuning["chosen"]:
        points = []
        for value in sorted(values):
            found = [
                factor * one["figure"]
                for one in tuning["trials"]
                if one["variant"] == variant and one["values"][name] == value and one["figure"] is not None
            ]
            points.append((math.log10(value) if wide else value, best(found) if found else math.nan))
        x, y = [one[0] for one in points], [one[1] for one in points]
        series.append(Series(variant, x, y, dots=tuple(one for one in points if math.isfinite(one[1]))))
    axis = Axis(f"log10 of {name}" if wide else name)
    return lines(
        f"{capital(title)} by {name}", series, axis, Axis(title, "%" if kind == "share" else ""), f"{title} by {name}"
    )


def _trials_table(tuning: Result, title: str, kind: str) -> Table:
    names = [one["setting"] for one in tuning["settings"]]
    rows = []
    for one in tuning["trials"]:
        chosen = tuning["chosen"][one["variant"]] == one["values"]
        values = [Cell(plain(one["values"][name]), one["values"][name]) for name in names]
        measured = cell(one["figure"], kind) if one["figure"] is not None else Cell(f"diverged: {one['failure']}")
        rows.append(Row(Cell(one["variant"]), [*values, measured, Cell("chosen" if chosen else "")]))
    seeds = plural(len(tuning["seeds"]), "seed")
    caption = (
        f"The same trials for every variant, {seeds} each, measured on {count(tuning['items'])} items that the verdict is not"
        " taken from."
    )
    return Table("Trials", caption, columns("Variant", *names, Column(title), text_column("Chosen")), rows)


# Variation


def variance_table(result: Result, kind: str) -> Table | None:
    """Standard deviations of the tested figure by source, and between the seeds of the comparison."""
    found: Sequence[Result] = result.get("variance") or ()
    if not found:
        return None
    share = "points" if kind == "share" else "% of the perplexity"
    rows = []
    for one in found:
        for source, spread in one["spread"].items():
            sd, low, high = (100 * spread[key] for key in ("sd", "low", "high"))
            spread_cell = Cell(f"{sd:.3g}", sd, f"{low:.3g} to {high:.3g}" if sd else "equal in all runs")
            rows.append(Row(Cell(one["variant"]), [Cell(source), cell(spread["n"], "count"), spread_cell]))
    caption = (
        f"One source changes at a time, the others stay fixed; standard deviation in {share}, with its 95 % interval. Initial"
        " weights include dropout. Every run learns from a random nine tenths of the training data; fresh data of the same"
        " size would vary about three times as much."
    )
    titles = columns("Variant", text_column("Source"), "Runs", "Standard deviation")
    return Table("Where the variation between runs comes from", caption, titles, rows)
