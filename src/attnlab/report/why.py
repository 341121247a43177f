"""The report of the study why: right answers against exposures and against sentence forms.

Every curve, of lines or of views, starts at the model that read nothing; every point has its interval.
"""

from __future__ import annotations

from attnlab.report.document import (
    Axis,
    Cell,
    Chart,
    Column,
    Document,
    Facts,
    Notice,
    Row,
    Series,
    Table,
    Text,
    section,
)
from attnlab.report.legacy_parts import (
    Result,
    accuracy_cell,
    accuracy_mark,
    cell,
    columns,
    commonest_table,
    lines,
    report_of,
    reproduce,
    text_column,
)
from attnlab.report.words import NOTHING, capital, chance, count, percent, plural, signed, span

_QUICK = Notice("A quick run.", "Few people and forms, one seed: the same study with wide intervals.")


def _nothing(result: Result) -> Result:
    return next(one for one in result["cells"] if one["way"] == "nothing")


def _curves(result: Result) -> dict[str, list[Result]]:
    """The cells of each curve by exposures, without the one that read nothing; curves of views last."""
    found: dict[tuple[bool, int, str], list[Result]] = {}
    for one in result["cells"]:
        if one["way"] != "nothing":
            views = one["way"] == "views"
            key = (views, one["forms"], plural(one["forms"], "form") + (", in views" if views else ""))
            found.setdefault(key, []).append(one)
    return {key[2]: sorted(cells, key=lambda one: one["exposures"]) for key, cells in sorted(found.items())}


def _exposures_chart(result: Result) -> Chart:
    start = _nothing(result)
    series = []
    for name, cells in _curves(result).items():
        points = [start, *cells]
        x, y, low, high = (
            [factor * one[key] for one in points]
            for factor, key in ((1, "exposures"), (100, "accuracy"), (100, "low"), (100, "high"))
        )
        series.append(Series(name, x, y, low, high, dots=tuple(zip(x, y, strict=True))))
    return lines(
        "Right answers against exposures, with 95 % intervals",
        series,
        Axis("times that every person was read about", low=0.0),
        Axis("right answers", "%", low=0.0),
        "right answers in per cent against exposures",
    )


def _forms_chart(result: Result) -> Chart:
    rows = [("nothing read", _nothing(result)), *((name, cells[-1]) for name, cells in _curves(result).items())]
    marks = [accuracy_mark(name, one, one["way"] == "nothing") for name, one in rows]
    times = {one["exposures"] for _, one in rows[1:]}
    after = f"after {plural(max(times), 'exposure')}" if len(times) == 1 else "after the most exposures of each"
    title = f"Right answers against forms, {after}, with 95 % intervals"
    label = f"Bar chart. {title}: " + "; ".join(f"{name} {percent(one['accuracy'])}" for name, one in rows)
    return Chart("bars", title, label, Axis("right answers", "%"), marks=marks)


def _scored(one: Result) -> Cell:
    return accuracy_cell(one, ", ".join(percent(value) for value in one["each"]) if len(one["each"]) > 1 else "")


def _grid_table(result: Result) -> Table:
    """A row per number of exposures, a column per curve."""
    start, lines = _nothing(result), _curves(result)
    times = sorted({one["exposures"] for cells in lines.values() for one in cells})
    rows = [Row(Cell("0", 0), [_scored(start), *(Cell(NOTHING, "") for _ in list(lines)[1:])])]
    for number in times:
        found = [next((one for one in cells if one["exposures"] == number), None) for cells in lines.values()]
        rows.append(Row(Cell(count(number), number), [_scored(one) if one else Cell(NOTHING, "") for one in found]))
    return Table(
        "Results",
        "Right answers, with 95 % intervals below. Row 0: the same model trained on the questions alone.",
        [Column("Exposures"), *(Column(capital(name), largest_first=True) for name in lines)],
        rows,
        brief=True,
    )


def _reading_table(result: Result) -> Table:
    rows = []
    for name, cells in _curves(result).items():
        for one in cells:
            heart = one.get("by_heart")
            rows.append(
                Row(
                    Cell(name),
                    [
                        cell(one["exposures"], "count"),
                        cell(one["tokens"], "count"),
                        Cell(f"{one['loss']:.3f}", one["loss"]),
                        _scored(heart) if heart else Cell(NOTHING, ""),
                        _scored(one),
                        cell(one["seconds"], "seconds"),
                    ],
                )
            )
    titles = columns(
        "How it was read",
        "Exposures",
        "Tokens read",
        Column("Final loss", note="of pretraining; the losses of lines and of views cannot be compared"),
        Column("By heart", note="completes the line of a person with the place of birth", largest_first=True),
        Column("Right answers", largest_first=True),
        Column("Time", note="training a model, fine-tuning included, beside the other runs"),
    )
    caption = (
        "What was read, and the results, means over seeds. By heart: before fine-tuning, the model is given the line of a"
        " person of the exam up to the place of birth, and completes it."
    )
    return Table("What was read", caption, titles, rows)


def _answers_table(result: Result) -> Table | None:
    """The most common answers in every cell."""
    rows = [{"name": one["name"], **one["exam"]} for one in result["cells"] if one.get("exam")]
    return commonest_table(rows, "the first seed of each")


def _tests_table(result: Result) -> Table | None:
    """The tested pairs, and what is known by heart against what is known when asked."""
    pairs = [(f"{one['a']} minus {one['b']}", one) for one in result.get("comparisons") or ()]
    pairs += [(f"{one['name']}: by heart minus asked", one) for one in result.get("stored") or ()]
    rows = []
    for name, one in pairs:
        ends = span(one.get("low"), one.get("high"), "share", sign=True)
        between = f"{100 * one.get('level', 0.95):.3g} %: {ends}" if ends else ""
        shown = {True: "yes", False: "no"}.get(one.get("shown"), NOTHING)
        tested = [cell(one.get(key), "p") for key in ("p", "adjusted")]
        difference = Cell(signed(one["difference"], "share"), one["difference"], between)
        rows.append(Row(Cell(name), [difference, *tested, Cell(shown), _equivalence_cell(one.get("equivalence"))]))
    titles = columns(
        "Compared",
        Column("Difference", note="of right answers; below, the interval, adjusted for the number of tests"),
        "p",
        Column("p after Holm", note="over the pairs of cells, and over the cells tested for what is stored"),
        text_column("Difference shown"),
        Column("Equivalence", note="p of two one-sided tests, and their interval"),
    )
    tests = dict.fromkeys(one["test"] for _, one in pairs if one.get("test"))
    return Table("Tests", f"The tests hold {'; '.join(tests)}.", titles, rows) if rows else None


def _equivalence_cell(same: Result | None) -> Cell:
    if same is None:
        return Cell(NOTHING, "")
    shown = "shown" if same["p"] < same["alpha"] else "not shown"
    ends = f"{100 - 200 * same['alpha']:.3g} %: {span(same['low'], same['high'], 'share', sign=True)}"
    return Cell(f"{shown} within {100 * same['margin']:.3g} points, p {chance(same['p'])}", same["p"], ends)


def _facts_of(result: Result) -> list[tuple[str, str]]:
    world, usual = result["world"], result["majority"]
    return [
        ("People read about", count(world["people"])),
        ("Training questions", count(world["training_questions"])),
        ("Exam", world["exam"]),
        ("Exam questions", count(world["exam_questions"])),
        ("Most common training answer", f"{usual['commonest_prediction']}, right {percent(usual['accuracy'])}"),
        ("Seeds", ", ".join(map(str, result["seeds"]))),
    ]


def document(result: Result) -> Document:
    """The whole report."""
    return report_of(
        "why",
        result,
        [*result["verdict"], *result.get("notes", ())],
        [
            *section("Results", _exposures_chart(result), _forms_chart(result), _grid_table(result)),
            *section("What it means", Text(result["explanation"]), _tests_table(result)),
            *section("What was read", _reading_table(result), _answers_table(result)),
            reproduce(result, Facts("Data", _facts_of(result)), result["settings"]),
        ],
        [_QUICK] if result.get("quick") else [],
        "all runs together took",
    )
