"""The report of the recall study: accuracies, answers beside their sources, the attention of one answer.

A difference is claimed only where the 95 % intervals do not overlap. This is conservative: intervals that overlap a little
can hide a real difference, so the sentence then says that this exam cannot tell, never that there is none. A row has a
`role` (control, baseline) and a `subject`, its name in a sentence; a row without a subject is called by its name.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence

from attnlab.report.document import (
    Answer,
    Answers,
    Axis,
    Cell,
    Chart,
    Column,
    Document,
    Facts,
    Head,
    Heads,
    Notice,
    Piece,
    Row,
    Section,
    Table,
    Text,
    section,
)
from attnlab.report.parts import (
    QUICK,
    Result,
    accuracy_mark,
    cell,
    columns,
    commonest_cell,
    commonest_table,
    commonest_words,
    interval_cell,
    out_of,
    report_of,
    reproduce,
    settings_of,
    side_by_side,
    strongest,
    text_column,
    training_blocks,
)
from attnlab.report.words import NOTHING, capital, count, interval, percent, plural, visible

_RISK = 0.1  # of wrong answers, for which the guarantee is shown
UNCALIBRATED = (
    "Not calibrated: its probabilities guarantee nothing. Calibrate it with questions that it was not trained on (attnlab"
    " calibrate RUN --questions FILE), or train again without N of the training questions (--held-out N)."
)
_CUE = "⁇"  # the symbol after which an answer is written
SAME_LINE = "another phrase of the same line"
OVERLAP = "overlaps the right answer"
ELSEWHERE = "not in this line"
EMPTY = "no answer was given"
NO_SOURCE = "no line of the corpus was found for it"


# The sentence at the top


def _subject(row: Result) -> str:
    return str(row.get("subject") or f"“{row['name']}”")


def compare(one: Result, other: Result) -> int:
    """1 if the first is clearly better, -1 if clearly worse, 0 if the intervals overlap."""
    return int(one["low"] > other["high"]) - int(one["high"] < other["low"])


def _against(one: Result, other: Result) -> str:
    """How a row compares with another; follows its own accuracy in the sentence."""
    words = {1: "clearly more than", 0: "which this exam cannot tell from", -1: "clearly less than"}
    return f"{words[compare(one, other)]} {_subject(other)} ({percent(other['accuracy'])})"


def _asked(world: Result, number: int) -> str:
    questions = plural(number, "question")
    if world.get("corpus") == "people" and world.get("exam") in ("people:test", "people:dev", "people:calibration"):
        return f"{questions} about people it was never asked about"
    return questions


def _chosen(rows: Sequence[Result]) -> tuple[Result | None, Result | None, Result | None]:
    """The row the study is about, the model to compare it with, and the baseline."""
    models = [row for row in rows if row.get("kind") == "model"]
    baselines = [row for row in rows if row.get("kind") == "baseline"]

    def first(some: Sequence[Result], role: str) -> Result | None:
        return next((row for row in some if row.get("role") == role), some[0] if some else None)

    return (models[0] if models else None), first(models[1:], "control"), first(baselines, "baseline")


def _unscored(row: Result, world: Result) -> str:
    return capital(
        f"{_subject(row)} predicts answers to {_asked(world, row['questions'])}; the exam has no answers to compare with,"
        f" so nothing is scored. Its most common answers: {commonest_words(row)}."
    )


def outcome(rows: Sequence[Result], world: Result) -> str:
    """The main result, in one sentence or two."""
    main, control, baseline = _chosen(rows)
    if main is None:
        return "No model was examined."
    if "accuracy" not in main:
        return _unscored(main, world)
    first = f"{_subject(main)} correctly answers {percent(main['accuracy'])} of {_asked(world, main['questions'])}"
    if control is None:
        return capital(first + (f", {_against(main, baseline)}." if baseline else "."))
    return capital(f"{first}; {_held_against(main, control, baseline)}")


def _held_against(main: Result, control: Result, baseline: Result | None) -> str:
    """The second half of the sentence: the control, and the baseline where that adds something."""
    second = f"{_subject(control)} {percent(control['accuracy'])}"
    order = compare(main, control)
    if order == 0:
        second += ", and as the 95 % intervals overlap, this exam cannot tell the two apart."
    elif order < 0:
        second += ", which is clearly more."
    elif baseline:
        second += f", {_against(control, baseline)}."
    else:
        second += ", which is clearly less."
    if baseline and order > 0 and compare(main, baseline) <= 0:
        place = "clearly below that" if compare(main, baseline) < 0 else "not clearly above that"
        second += " " + capital(f"{_subject(main)} itself is {place}.")
    if baseline and order <= 0:
        second += f" {_standing(main, control, baseline)}"
    return second


def _standing(main: Result, control: Result, baseline: Result) -> str:
    reference = f"{_subject(baseline)} ({percent(baseline['accuracy'])})"
    above = [row for row in (main, control) if compare(row, baseline) > 0]
    if len(above) == 2:
        return f"Both are clearly above {reference}."
    if not above:
        return f"Neither is clearly above {reference}."
    return capital(f"only {_subject(above[0])} is clearly above {reference}.")


# Answers


def _places(phrase: str, text: str) -> list[tuple[int, int]]:
    """Where a phrase occurs in a text as whole words."""
    if not phrase:
        return []
    return [match.span() for match in re.finditer(rf"(?<!\w){re.escape(phrase)}(?!\w)", text)]


def _apart(one: tuple[int, int], others: Sequence[tuple[int, int]]) -> bool:
    """Whether a span overlaps none of the others."""
    return all(one[1] <= begin or end <= one[0] for begin, end in others)


def cut(source: str, answer: str, prediction: str) -> Iterator[Piece]:
    """The line in pieces, with the answer and the prediction marked; where they overlap, the answer is."""
    right = _places(answer, source)
    marks = [(span, "answer") for span in right]
    marks += [(span, "prediction") for span in _places(prediction, source) if _apart(span, right)]
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
    found, right = _places(prediction, source), _places(answer, source)
    if any(_apart(span, right) for span in found):
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


def _answers_section(result: Result) -> list[Section]:
    sides = {side: [shown(item, side == "right") for item in result["answers"][side]] for side in ("right", "wrong")}
    if not any(sides.values()):
        return []
    words = (
        "The line under each answer is what the model read about it; the right answer is highlighted, and so is the wrong"
        f" one where it occurs in the same line. {tally(sides['wrong'])}"
    )
    return section(
        "Answers",
        Text([words.strip()]),
        side_by_side([Answers(side.capitalize(), items) for side, items in sides.items()]),
    )


# The attention of one answer


def answer_row(tokens: Sequence[str]) -> int:
    """The row that chooses the first token of the answer: the last cue, else the last row."""
    cues = [place for place, token in enumerate(tokens) if token.strip() == _CUE]
    return cues[-1] if cues else len(tokens) - 1


def _heads_of(attention: Result) -> list[Head]:
    """All heads, layer by layer, each with the token it looks at most where the answer is chosen."""
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


def _sums_to_one(heads: Sequence[Head]) -> bool:
    """Whether every row of weights sums to one up to rounding; not all mechanisms' rows do."""
    return all(abs(sum(row) - 1) <= 0.001 * (1 + len(row)) for head in heads for row in head.pattern)


def _attention_section(attention: Result | None) -> list[Section]:
    if not attention or not attention["tokens"] or not any(attention["patterns"]):
        return []
    heads, tokens = _heads_of(attention), attention["tokens"]
    absent = [str(layer) for layer, patterns in enumerate(attention["patterns"], start=1) if not patterns]
    layers = f"Layer{'s' * (len(absent) > 1)} {', '.join(absent)}"
    left_out = f" {layers} left out: no weights of tokens on tokens there." if absent else ""
    words = (
        f"“{attention['question']}” – {attention['answer']}. Each row is a token, each cell in it how much that token looks at"
        f" an earlier one or at itself{'; a row sums to 100 %' if _sums_to_one(heads) else ''}. The answer is chosen in the"
        " outlined row, and “·” is a space. The small pictures select a head; shown first is the one with the largest weight on"
        f" one earlier token in that row.{left_out}"
    )
    block = Heads(tokens, heads, answer_row([visible(token) for token in tokens]), min(24.0, 560 / len(tokens)))
    return section("Attention of one answer", Text([words]), block)


# Confidence


def _confidence_facts(calibration: Result) -> list[tuple[str, str]]:
    area = calibration["auroc"]
    known = f"{area['value']:.3f}" if area else "-"
    if area and area["low"] is not None:
        known += f" ({area['low']:.3f} to {area['high']:.3f})"
    right = f"{percent(calibration['accuracy'])} ({interval(calibration['low'], calibration['high'])})"
    return [
        ("Calibration questions", count(calibration["questions"])),
        ("Most likely answers that are right", right),
        ("Candidate answers", count(calibration["candidates"])),
        ("Calibration error before", percent(calibration["ece_before"])),
        ("Calibration error after, on other questions than the fit", percent(calibration["ece_after"])),
        ("Calibration error by chance, if perfectly calibrated", percent(calibration["ece_if_calibrated"])),
        ("AUROC, right against wrong answers", known),
    ]


def _cost(world: Result) -> str:
    """What the calibration cost."""
    kept = plural(world["held_out"], "question")
    return f"This cost {kept} that the model was not trained on, beside the {count(world['training_questions'])} that it was."


# The whole report


def results_table(rows: Sequence[Result], first: str = "Model") -> Table:
    """Accuracies, or only predictions if the exam has no answers; with the time of training where that is known."""
    scored, timed = any("accuracy" in row for row in rows), any("seconds" in row for row in rows)

    def cells(row: Result) -> list[Cell]:
        usual = [commonest_cell(row), *([cell(row["seconds"], "seconds")] if timed else [])]
        if not scored:
            return [cell(row["questions"], "count"), *usual]
        if "accuracy" not in row:
            return [Cell(NOTHING), Cell(NOTHING), Cell(f"{NOTHING} of {count(row['questions'])}"), *usual]
        return [cell(row["accuracy"], "share"), interval_cell(row), out_of(row["correct"], row["questions"]), *usual]

    titles = ("Accuracy", "95 % interval", "Correct") if scored else ("Predictions",)
    scores = [Column(title, minor=title == "Correct") for title in titles]
    shown = columns(first, *scores, text_column("Most common answers"), *(["Training"] if timed else []))
    caption = "Predictions only: the exam has no answers to compare with."
    if scored:
        caption = (
            "Answers must match exactly. The 95 % interval (Wilson) shows how precisely an exam of this size measures the"
            " accuracy."
        )
    lines = [
        Row(
            Cell(row["name"], None, row.get("note") or ""),
            cells(row),
            tone="baseline" if row["kind"] == "baseline" else "",
        )
        for row in rows
    ]
    return Table("Results", caption, shown, lines, brief=True)


def accuracy_chart(rows: Sequence[Result]) -> Chart | None:
    """Right answers as bars; None if the exam has no answers."""
    scored = [row for row in rows if "accuracy" in row]
    if not scored:
        return None
    marks = [accuracy_mark(row["name"], row, row["kind"] == "baseline") for row in scored]
    label = "Bar chart of right answers. " + "; ".join(
        f"{row['name']}: {percent(row['accuracy'])} (95 % interval {interval(row['low'], row['high'])})"
        for row in scored
    )
    return Chart("bars", "Right answers, with 95 % intervals", label, Axis("right answers", "%"), marks=marks)


def data_facts(world: Result) -> Facts:
    """Corpus, questions and exam in numbers."""
    known = world.get("asked_before")
    pairs = [
        ("Corpus", world["corpus"]),
        ("Documents", count(world["documents"])),
        ("Characters", count(world["characters"])),
        ("Training questions", count(world["training_questions"])),
        *([("Kept for calibration, not trained on", count(kept))] if (kept := world.get("held_out")) else []),
        ("Questions that a reader wrote", count(world.get("written_questions") or 0)),
        ("Track", world.get("track") or "pure"),
        ("Exam", world["exam"]),
        ("Exam questions", count(world["exam_questions"])),
        *([("Exam questions asked in training", count(known))] if known is not None else []),
    ]
    return Facts("Data", pairs)


def asked_before(world: Result) -> list[Notice]:
    """A warning if exam questions were also training questions."""
    known = world.get("asked_before")
    words = f"{count(known)} of them asked in training; their answers may be known by heart." if known else ""
    return [Notice(f"{plural(world['exam_questions'], 'exam question')}:", words)] if known else []


def document(result: Result) -> Document:
    """The whole report."""
    rows, world, runs, calibration = result["rows"], result["world"], result["runs"], result.get("calibration")
    confidence: list[Section] = []
    if calibration:
        facts = Facts("Calibration", _confidence_facts(calibration))
        certified = [rule["words"] for rule in calibration["rules"] if rule["max_risk"] == _RISK]
        cost = [_cost(world)] if world.get("held_out") else []
        confidence = section("How far its confidence can be trusted", Text([*certified, *cost]), facts)
    elif world.get("track") != "assisted":
        confidence = section("How far its confidence can be trusted", Text([UNCALIBRATED]))
    return report_of(
        "recall",
        result,
        result.get("verdict") or [outcome(rows, world)],  # older results do not hold it
        [
            *section("Results", accuracy_chart(rows), results_table(rows), commonest_table(rows)),
            *section("Training", *training_blocks(runs)),
            *_answers_section(result),
            *_attention_section(result.get("attention")),
            *confidence,
            reproduce(result, data_facts(world), settings_of(runs)),
        ],
        [*([QUICK] if world.get("quick") else []), *asked_before(world)],
    )
