"""The report in Markdown: the same numbers as the page, for terminals, pull requests and diffs.

Names, questions and answers are somebody's text: what Markdown or HTML would read as markup is escaped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from attnlab.report.answers import shown, tally
from attnlab.report.attention import answer_row, first_to_show, heads, left_out
from attnlab.report.confidence import certified, confidence_facts
from attnlab.report.outcome import outcome
from attnlab.report.words import NOTHING, count, duration, flat, interval, percent, plain

MARKUP = re.compile(r"([\\`*\[\]|~]|(?<!\w)_|_(?!\w)|^[#+-](?=\s))")


def safe(words: str) -> str:
    """Somebody's text on one line, with nothing in it that is markup."""
    line = " ".join(words.split())
    return MARKUP.sub(r"\\\1", line).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def table(heading: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """A table; the columns in `numbers` are set to the right."""
    marks = ["---:" if column in numbers else "---" for column in range(len(heading))]
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (heading, marks, *rows))


def results(rows: Sequence[Mapping[str, Any]]) -> str:
    """Who answers how well, or what they predict if the exam has no answers."""

    def usual(row: Mapping[str, Any]) -> str:
        return f"{safe(row['commonest_prediction'] or '(nothing)')} {percent(row['commonest_share'])}"

    if not any("accuracy" in row for row in rows):
        body = [[safe(row["name"]), count(row["questions"]), usual(row), duration(row["seconds"])] for row in rows]
        return table(("Who answers", "Predictions", "Commonest answer", "Training"), body, (1, 3))
    heading = ("Who answers", "Accuracy", "95 % interval", "Correct", "Commonest answer", "Training")
    body = [[safe(row["name"]), *scores(row), usual(row), duration(row["seconds"])] for row in rows]
    return table(heading, body, (1, 2, 3, 5))


def scores(row: Mapping[str, Any]) -> tuple[str, str, str]:
    """Accuracy, interval and counts of a row."""
    if "accuracy" not in row:
        return NOTHING, NOTHING, f"{NOTHING} of {count(row['questions'])}"
    right = f"{count(row['correct'])} of {count(row['questions'])}"
    return percent(row["accuracy"]), interval(row["low"], row["high"]), right


def training(runs: Mapping[str, Mapping[str, Any]]) -> str:
    """The training runs in numbers."""
    heading = ("Run", "Steps", "Epochs", "Tokens", "Tokens a second", "Time", "Final loss", "Parameters")
    rows = []
    for name, run in runs.items():
        one = run["result"]
        counts = [count(one[key]) for key in ("tokens", "tokens_per_second")]
        ends = (duration(one["seconds"]), f"{one['final_loss']:.3f}", count(one["parameters"]))
        rows.append((safe(name), count(one["steps"]), plain(one["epochs"]), *counts, *ends))
    return table(heading, rows, range(1, 8))


def answered(answers: Mapping[str, Sequence[Mapping[str, Any]]]) -> Iterator[str]:
    """Right and wrong answers."""
    for side in ("right", "wrong"):
        items = [shown(item, side == "right") for item in answers[side]]
        if not items:
            continue
        yield f"### {side.capitalize()}"
        if side == "right":
            yield table(("Question", "Answer"), [(safe(item.question), safe(item.prediction)) for item in items])
        else:
            rows = [[safe(item.question), safe(item.prediction), safe(item.answer), item.verdict] for item in items]
            yield table(("Question", "Prediction", "Right answer", "The prediction is"), rows)
            yield tally(items)


def attention_lines(attention: Mapping[str, Any] | None) -> Iterator[str]:
    """The attention of one answer in a sentence; the page has the pictures."""
    if not attention or not attention["tokens"] or not any(attention["patterns"]):
        return
    head = first_to_show(heads(attention), answer_row(attention["tokens"]))
    yield "## The attention of one answer"
    asked = f"“{safe(attention['question'])}” – {safe(attention['answer'])}."
    yield f"{asked} {head.name.capitalize()}: {safe(head.sentence)} {left_out(attention)}".rstrip()


def facts(pairs: Iterable[tuple[str, str]], heading: tuple[str, str]) -> str:
    """Names and values as a table."""
    return table(heading, [(safe(name), safe(value)) for name, value in pairs])


def blocks(result: Mapping[str, Any]) -> Iterator[str]:
    """The parts of the report in order."""
    world = result["world"]
    yield f"# {safe(result['title'])}"
    yield safe(outcome(result["rows"], world))
    yield f"Finished {safe(result['finished'])} in {duration(result['seconds'])}."
    if world.get("quick"):
        yield "**A quick run.** It was cut short to show that everything works."
    yield "## Results"
    yield results(result["rows"])
    if result["runs"]:
        yield "## Learning"
        yield training(result["runs"])
    if any(result["answers"].values()):
        yield "## Answers"
        yield from answered(result["answers"])
    yield from attention_lines(result.get("attention"))
    if result.get("calibration"):
        yield "## How far its confidence can be trusted"
        yield safe(certified(result["calibration"]))
        yield facts(confidence_facts(result["calibration"]), ("Calibration", ""))
    yield "## Do it again"
    yield f"    {' '.join(result['command'].split())}"
    yield facts(flat(world), ("The data", ""))
    yield facts(flat(result["environment"]), ("The machine", ""))
    for name, run in result["runs"].items():
        yield f"### Settings of {safe(name)}"
        yield facts(flat(run["settings"]), ("Setting", "Value"))


def markdown(result: Mapping[str, Any]) -> str:
    """The whole report."""
    return "\n\n".join(blocks(result)) + "\n"
