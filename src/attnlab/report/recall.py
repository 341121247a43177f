"""The report of the recall study: what came out, the answers beside their sources, the attention of one answer.

A difference is claimed only where the 95 % intervals do not overlap. That is cautious: intervals that overlap a little can
hide a real difference, so the sentence then says that this exam cannot tell, never that there is none. A row brings its
`role` (control, baseline) and its `subject`, the words that it goes by in a sentence; a row without them goes by its name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from attnlab.report.document import (
    Answer,
    Answers,
    Axis,
    Block,
    Cell,
    Chart,
    Column,
    Document,
    Facts,
    Head,
    Heads,
    Mark,
    Notice,
    Piece,
    Section,
    Table,
    Text,
    section,
)
from attnlab.report.document import Row as TableRow
from attnlab.report.html import visible
from attnlab.report.parts import QUICK, finished, loss_charts, reproduce, settings_of, spread, training_table
from attnlab.report.words import NOTHING, count, duration, interval, percent, plural

Row = Mapping[str, Any]
Result = Mapping[str, Any]

CUE = "⁇"  # the symbol after which an answer is written
SAME_LINE = "another phrase of the same line"
OVERLAP = "overlaps the right answer"
ELSEWHERE = "not in this line"
EMPTY = "no answer was given"
NO_SOURCE = "no line of the corpus was found for it"


# What came out


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


# Answers


def places(phrase: str, text: str) -> list[tuple[int, int]]:
    """Where a phrase stands in a text as whole words."""
    if not phrase:
        return []
    return [match.span() for match in re.finditer(rf"(?<!\w){re.escape(phrase)}(?!\w)", text)]


def apart(one: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    """Whether a stretch shares no character with any of the others."""
    return all(one[1] <= begin or end <= one[0] for begin, end in others)


def cut(source: str, answer: str, prediction: str) -> Iterator[Piece]:
    """The line in pieces, with the answer and the prediction marked; where they overlap, the answer is."""
    right = places(answer, source)
    marks = [(span, "answer") for span in right]
    marks += [(span, "prediction") for span in places(prediction, source) if apart(span, right)]
    done = 0
    for (begin, end), role in sorted(marks):
        if begin > done:
            yield Piece(source[done:begin])
        yield Piece(source[begin:end], role)
        done = end
    if done < len(source):
        yield Piece(source[done:])


def verdict(source: str | None, answer: str, prediction: str) -> str:
    """In which way a wrong prediction is wrong, as far as the line tells."""
    if not prediction:
        return EMPTY
    if source is None:
        return NO_SOURCE
    found, right = places(prediction, source), places(answer, source)
    if any(apart(span, right) for span in found):
        return SAME_LINE
    return OVERLAP if found else ELSEWHERE


def shown(item: Result, right: bool) -> Answer:
    """One answer of the result, ready to be shown."""
    answer, said, source = item.get("answer") or "", item.get("prediction") or "", item.get("source")
    pieces = tuple(cut(source, answer, "" if right else said)) if source else ()
    return Answer(item["question"], said, right, answer, "", "" if right else verdict(source, answer, said), pieces)


def tally(items: Sequence[Answer]) -> str:
    """How often each way of being wrong occurs among the answers shown."""
    if not items:
        return ""
    named = ", ".join(f"{number} {way}" for way, number in Counter(item.verdict for item in items).most_common())
    return f"Of the wrong answers shown: {named}."


def answers_section(result: Result) -> list[Section]:
    """Right and wrong answers with the lines that they should have come from."""
    sides = {side: [shown(item, side == "right") for item in result["answers"][side]] for side in ("right", "wrong")}
    if not any(sides.values()):
        return []
    words = (
        "The line under each answer is what the model read about it; the right answer is highlighted, and so is the wrong"
        f" one where it occurs in the same line. {tally(sides['wrong'])}"
    )
    return section(
        "Answers", Text([words.strip()]), spread([Answers(side.capitalize(), items) for side, items in sides.items()])
    )


# The attention of one answer


def answer_row(tokens: Sequence[str]) -> int:
    """The row that chooses the first token of the answer: the last cue, else the last row."""
    cues = [place for place, token in enumerate(tokens) if token.strip() == CUE]
    return cues[-1] if cues else len(tokens) - 1


def strongest(weights: Sequence[float]) -> int:
    """The column with the largest weight."""
    return max(range(len(weights)), key=lambda column: weights[column])


def heads_of(attention: Result) -> list[Head]:
    """All heads of the answer, layer by layer, each with what it looks at where the answer is chosen."""
    tokens = attention["tokens"]
    row = answer_row(tokens)

    def sentence(weights: Sequence[float]) -> str:
        column = strongest(weights)
        return (
            f"Where the answer is chosen (row {visible(tokens[row])}), it looks most at {visible(tokens[column])}"
            f" ({percent(weights[column])})."
        )

    return [
        Head(layer, number, pattern, sentence(pattern[row]))
        for layer, patterns in enumerate(attention["patterns"], start=1)
        for number, pattern in enumerate(patterns, start=1)
    ]


def left_out(attention: Result) -> str:
    """The layers that have no weights over tokens, as a sentence; empty if there are none."""
    numbers = [str(layer) for layer, patterns in enumerate(attention["patterns"], start=1) if not patterns]
    several = "s" * (len(numbers) > 1)
    return f" Layer{several} {', '.join(numbers)} left out: no weights of tokens on tokens there." if numbers else ""


def sums_to_one(heads: Sequence[Head]) -> bool:
    """Whether every row of weights sums to one, as far as three decimals tell; not all mechanisms' rows do."""
    return all(abs(sum(row) - 1) <= 0.001 * (1 + len(row)) for head in heads for row in head.pattern)


def attention_section(attention: Result | None) -> list[Section]:
    """The heads of one answer, where the mechanism has patterns."""
    if not attention or not attention["tokens"] or not any(attention["patterns"]):
        return []
    heads, tokens = heads_of(attention), attention["tokens"]
    words = (
        f"“{attention['question']}” – {attention['answer']}. Each row is a token, each cell in it how much that token looks at"
        f" an earlier one or at itself{'; a row sums to 100 %' if sums_to_one(heads) else ''}. The answer is chosen in the"
        " outlined row, and “·” is a space. Shown first is the head that looks hardest at one token there; each small picture"
        f" is a head to choose.{left_out(attention)}"
    )
    block = Heads(tokens, heads, answer_row([visible(token) for token in tokens]), min(24.0, 560 / len(tokens)))
    return section("Attention of one answer", Text([words]), block)


# Confidence


def certified(calibration: Mapping[str, Any], max_risk: float = 0.1) -> str:
    """The guarantee at an allowed risk, as its rule puts it."""
    rules = [rule for rule in calibration["rules"] if rule["max_risk"] == max_risk]
    return str(rules[0]["words"]) if rules else ""


def confidence_facts(calibration: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The numbers of a calibration."""
    area = calibration["auroc"]
    known = f"{area['value']:.3f}" if area else "-"
    if area and area["low"] is not None:
        known += f" ({area['low']:.3f} to {area['high']:.3f})"
    right = f"{percent(calibration['accuracy'])} ({interval(calibration['low'], calibration['high'])})"
    return [
        ("Questions not trained on", count(calibration["questions"])),
        ("Right among them, of the likeliest answers", right),
        ("Answers that it chooses among", count(calibration["candidates"])),
        ("Temperature", f"{calibration['temperature']:.2f}"),
        ("Calibration error before it", percent(calibration["ece_before"])),
        ("Calibration error after it", percent(calibration["ece_after"])),
        ("Calibration error of a perfect one, by chance", percent(calibration["ece_if_calibrated"])),
        ("AUROC, right against wrong answers", known),
    ]


# The whole report


def results_table(rows: Sequence[Row]) -> Table:
    """Who answers how well, or what they predict where the exam has no answers."""
    scored = any("accuracy" in row for row in rows)

    def cells(row: Row) -> list[Cell]:
        said = row["commonest_prediction"] or "(nothing)"
        said = said if len(said) <= 30 else said[:29] + "…"
        usual = Cell(f"{said}, {100 * row['commonest_share']:.0f} %", row["commonest_share"])
        time = Cell(duration(row["seconds"]), row["seconds"])
        if not scored:
            return [Cell(count(row["questions"]), row["questions"]), usual, time]
        if "accuracy" not in row:
            return [Cell(NOTHING), Cell(NOTHING), Cell(f"{NOTHING} of {count(row['questions'])}"), usual, time]
        return [
            Cell(percent(row["accuracy"]), row["accuracy"]),
            Cell(interval(row["low"], row["high"]), row["low"]),
            Cell(f"{count(row['correct'])} of {count(row['questions'])}", row["correct"]),
            usual,
            time,
        ]

    titles = ("Accuracy", "95 % interval", "Correct") if scored else ("Predictions",)
    scores = [Column(title, minor=title == "Correct") for title in titles]
    columns = [Column("Who answers", number=False), *scores, Column("Commonest answer", number=False)]
    caption = "Predictions; the exam has no answers to compare with."
    if scored:
        caption = (
            "An answer counts when it matches exactly. The interval (95 %, Wilson) tells how far the accuracy may be off, since"
            " the exam has only so many questions."
        )
    lines = [
        TableRow(
            Cell(row["name"], None, row.get("note") or ""),
            cells(row),
            tone="baseline" if row["kind"] == "baseline" else "",
        )
        for row in rows
    ]
    return Table("Results", caption, [*columns, Column("Training")], lines, brief=True)


def accuracy_chart(rows: Sequence[Row]) -> Chart | None:
    """The accuracies as bars with their intervals; baselines stand back."""
    scored = [row for row in rows if "accuracy" in row]
    if not scored:
        return None
    marks = [
        Mark(
            row["name"],
            100 * row["accuracy"],
            percent(row["accuracy"]),
            100 * row["low"],
            100 * row["high"],
            row["kind"] == "baseline",
        )
        for row in scored
    ]
    label = "Bar chart of right answers. " + "; ".join(describe(row) for row in scored)
    return Chart("bars", "Right answers, with 95 % intervals", label, Axis("right answers", "%"), marks=marks)


def data_facts(world: Result) -> Facts:
    """The data in numbers."""
    asked = world.get("asked_before")
    pairs = [
        ("Corpus", world["corpus"]),
        ("Documents", count(world["documents"])),
        ("Characters", count(world["characters"])),
        ("Training questions", count(world["training_questions"])),
        ("Questions that a reader wrote", count(world.get("written_questions") or 0)),
        ("Track", world.get("track") or "pure"),
        ("Exam", world["exam"]),
        ("Exam questions", count(world["exam_questions"])),
        *([("Exam questions asked in training", count(asked))] if asked is not None else []),
    ]
    return Facts("Data", pairs)


def asked_before(world: Result) -> list[Notice]:
    """A warning where exam questions were training questions too."""
    asked = world.get("asked_before")
    words = f"{count(asked)} of them asked in training; their answers may be known by heart." if asked else ""
    return [Notice(f"{plural(world['exam_questions'], 'exam question')}:", words)] if asked else []


def document(result: Result) -> Document:
    """The whole report."""
    calibration, runs = result.get("calibration"), result["runs"]
    learning: list[Block] = [*loss_charts(runs), training_table(runs)] if runs else []
    sections = [
        *section("Results", accuracy_chart(result["rows"]), results_table(result["rows"])),
        *section("Training", *learning),
        *answers_section(result),
        *attention_section(result.get("attention")),
    ]
    if calibration:
        facts = Facts("Calibration", confidence_facts(calibration))
        sections += section("How far its confidence can be trusted", Text([certified(calibration)]), facts)
    sections.append(reproduce(result, [data_facts(result["world"])], settings_of(runs)))
    return Document(
        kind="recall",
        title=result["title"],
        lead=[outcome(result["rows"], result["world"])],
        sections=sections,
        notices=[*([QUICK] if result["world"].get("quick") else []), *asked_before(result["world"])],
        about=finished(result),
        command=result["command"],
        footer="The raw numbers are in result.json.",
    )
