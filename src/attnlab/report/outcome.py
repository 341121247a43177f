"""What came out, in a sentence made from the numbers.

A difference is claimed only where the 95 % intervals lie apart. That is careful: intervals that overlap a little can still
hide a real difference, so the wording then is that this exam cannot tell, never that there is none.
It must not know how the rows were made: a row brings its `role` (control, baseline) and its `subject`, the words that it
goes by in a sentence; a row without them goes by its name.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from attnlab.report.words import count, interval, percent, plural

Row = Mapping[str, Any]


def subject(row: Row) -> str:
    """A row as the subject of a sentence."""
    return str(row.get("subject") or f"“{row['name']}”")


def compare(one: Row, other: Row) -> int:
    """1 if the first is clearly better, -1 if clearly worse, 0 if the intervals overlap."""
    return int(one["low"] > other["high"]) - int(one["high"] < other["low"])


def against(one: Row, other: Row) -> str:
    """How a row stands to another, to be read after its own accuracy."""
    words = {1: "clearly more than", 0: "which this exam cannot tell from", -1: "clearly less than"}
    return f"{words[compare(one, other)]} {subject(other)} ({percent(other['accuracy'])})"


def asked(world: Mapping[str, Any], number: int) -> str:
    """The questions of the exam, as far as it is known what they are."""
    questions = plural(number, "question")
    if world.get("corpus") == "people" and world.get("exam") in ("people:test", "people:dev"):
        return f"{questions} about people it was never asked about"
    return questions


def chosen(rows: Sequence[Row]) -> tuple[Row | None, Row | None, Row | None]:
    """The row the study is about, the model to hold it against, and the baseline."""
    models = [row for row in rows if row.get("kind") == "model"]
    baselines = [row for row in rows if row.get("kind") == "baseline"]
    others = models[1:]
    control = next((row for row in others if row.get("role") == "control"), others[0] if others else None)
    baseline = next((row for row in baselines if row.get("role") == "baseline"), baselines[0] if baselines else None)
    return (models[0] if models else None), control, baseline


def unscored(row: Row, world: Mapping[str, Any]) -> str:
    """The sentence for an exam that has no answers."""
    usual = row.get("commonest_prediction") or "nothing"
    return capital(
        f"{subject(row)} predicts answers to {asked(world, row['questions'])}; the exam has no answers to compare with,"
        f" so nothing is scored. Its commonest prediction is {usual} ({percent(row['commonest_share'])})."
    )


def outcome(rows: Sequence[Row], world: Mapping[str, Any]) -> str:
    """What the study found, in one sentence or two."""
    main, control, baseline = chosen(rows)
    if main is None:
        return "No model was examined."
    if "accuracy" not in main:
        return unscored(main, world)
    first = f"{subject(main)} correctly answers {percent(main['accuracy'])} of {asked(world, main['questions'])}"
    if control is None:
        return capital(first + (f", {against(main, baseline)}." if baseline else "."))
    return capital(f"{first}; {held_against(main, control, baseline)}")


def held_against(main: Row, control: Row, baseline: Row | None) -> str:
    """The second half of the sentence: the control, and the baseline where it says something new."""
    second = f"{subject(control)} {percent(control['accuracy'])}"
    order = compare(main, control)
    if order == 0:
        second += ", and as the 95 % intervals overlap, this exam cannot tell the two apart."
    elif order < 0:
        second += ", which is clearly more."
    elif baseline:
        second += f", {against(control, baseline)}."
    else:
        second += ", which is clearly less."
    if baseline and order > 0 and compare(main, baseline) <= 0:
        place = "clearly below that" if compare(main, baseline) < 0 else "not clearly above that"
        second += " " + capital(f"{subject(main)} itself is {place}.")
    if baseline and order <= 0:
        second += f" {standing(main, control, baseline)}"
    return second


def standing(main: Row, control: Row, baseline: Row) -> str:
    """Where two models stand to the baseline."""
    reference = f"{subject(baseline)} ({percent(baseline['accuracy'])})"
    above = [row for row in (main, control) if compare(row, baseline) > 0]
    if len(above) == 2:
        return f"Both are clearly above {reference}."
    if not above:
        return f"Neither is clearly above {reference}."
    return capital(f"only {subject(above[0])} is clearly above {reference}.")


def capital(sentence: str) -> str:
    """The sentence with a capital at its start."""
    return sentence[:1].upper() + sentence[1:]


def describe(row: Row) -> str:
    """A row in words, for those who cannot see the chart."""
    if "accuracy" not in row:
        return f"{row['name']}: {count(row['questions'])} predictions"
    return f"{row['name']}: {percent(row['accuracy'])} (95 % interval {interval(row['low'], row['high'])})"
