"""The report of the recall study: sentences that claim what the intervals allow, answers in their lines, attention."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from made_up import DATA, make_recall, make_row
from reading import read

from attnlab.corpora import Corpus, Question
from attnlab.lm.exams import Examination
from attnlab.report.document import Answers, Chart, Document, Heads, Piece, Text
from attnlab.report.html import as_html, first_head, thousandths
from attnlab.report.text import as_markdown
from attnlab.store.records import convert
from attnlab.studies.recall import (
    Recall,
    RecallResult,
    Row,
    answers_section,
    attention_section,
    cut,
    fault,
    order,
    outcome,
)
from attnlab.studies.training import DataSummary

WORLD = convert(DataSummary, DATA)
SAME_LINE, OVERLAP = "another phrase of the same line", "overlaps the right answer"
ELSEWHERE, EMPTY, NO_SOURCE = "not in this line", "no answer was given", "no line of the corpus was found for it"


def document(result: RecallResult) -> Document:
    return Recall().document(result)


@pytest.fixture
def result() -> RecallResult:
    return make_recall(20)


# The sentence at the top


def trio(main: int | None, control: int | None, majority: int | None, book: int | None = None) -> list[Row]:
    rows = [
        make_row("pretrained + fine-tuned", "model", main),
        make_row("pretrained, not fine-tuned", "model", main),
        make_row("no pretraining", "model", control),
        make_row("crude open book", "baseline", majority if book is None else book),
        make_row("majority answer", "baseline", majority, commonest_prediction="Los Angeles"),
    ]
    return convert(list[Row], rows)


def test_a_clear_win() -> None:
    assert outcome(trio(612, 22, 17), WORLD) == (
        "The pretrained model correctly answers 81.6 % of 750 questions about people it was never asked about;"
        " the same model without pretraining 2.9 %, which this exam cannot tell from always saying Los Angeles (2.3 %)."
    )


def test_no_difference() -> None:
    sentence = outcome(trio(24, 22, 17), WORLD)
    assert "as the 95 % intervals overlap, this exam cannot tell the two apart" in sentence
    assert sentence.endswith("Neither is clearly above always saying Los Angeles (2.3 %).")
    assert "more" not in sentence


def test_no_difference_yet_both_above_the_baseline() -> None:
    assert outcome(trio(300, 290, 17), WORLD).endswith("Both are clearly above always saying Los Angeles (2.3 %).")


def test_only_one_above_the_baseline() -> None:
    sentence = outcome(trio(40, 33, 16), WORLD)
    assert sentence.endswith("Only the pretrained model is clearly above always saying Los Angeles (2.1 %).")


def test_a_loss_is_told_as_one() -> None:
    assert "without pretraining 40.0 %, which is clearly more." in outcome(trio(75, 300, 17), WORLD)


@pytest.mark.parametrize(("majority", "words"), [(60, "not clearly above that"), (400, "clearly below that")])
def test_beating_the_control_is_not_beating_the_baseline(majority: int, words: str) -> None:
    assert outcome(trio(75, 5, majority, book=0), WORLD).endswith(f"The pretrained model itself is {words}.")


def test_the_headline_says_where_looking_the_line_up_beats_the_model() -> None:
    looked_up = "Looking the line up and taking the first known place in it"
    assert outcome(trio(75, 5, 17, book=300), WORLD).endswith(f" {looked_up} does better: 40.0 %.")
    unsure = outcome(trio(75, 24, 17, book=90), WORLD)
    assert unsure.endswith(f" {looked_up} gets more right, though the 95 % intervals overlap: 12.0 %.")
    assert looked_up not in outcome(trio(75, 5, 17, book=75), WORLD)


def test_an_exam_without_answers() -> None:
    sentence = outcome(trio(None, None, None), WORLD)
    assert "the exam has no answers to compare with, so nothing is scored" in sentence
    assert "750 questions" in sentence
    assert "Chicago (3.1 %)" in sentence
    assert "correctly" not in sentence


def test_other_data_are_taken_as_they_are() -> None:
    data = replace(WORLD, corpus="mine.txt", exam="mine.tsv")
    assert outcome(trio(612, 22, 17), data).startswith(
        "The pretrained model correctly answers 81.6 % of 750 questions;"
    )


def row(low: float, high: float) -> Row:
    return replace(trio(1, 1, 1)[0], low=low, high=high)


def test_intervals_that_touch_do_not_count_as_apart() -> None:
    assert order(row(0.5, 0.6), row(0.4, 0.5)) == 0
    assert order(row(0.51, 0.6), row(0.4, 0.5)) == 1
    assert order(row(0.4, 0.49), row(0.5, 0.6)) == -1


# Answers

LINE = "Ann Lee was born in New York and died in York, not in Yorkshire ."


@pytest.mark.parametrize(
    ("prediction", "way"),
    [
        ("York", SAME_LINE),
        ("Ann Lee", SAME_LINE),
        ("New", OVERLAP),
        ("in New York", OVERLAP),
        ("Yorkshi", ELSEWHERE),
        ("Boston", ELSEWHERE),
        ("", EMPTY),
    ],
)
def test_the_way_in_which_an_answer_is_wrong(prediction: str, way: str) -> None:
    assert fault(LINE, "New York", prediction) == way
    assert fault(None, "New York", prediction) == (NO_SOURCE if prediction else EMPTY)


def test_a_line_is_cut_at_answer_and_prediction_and_stays_whole() -> None:
    pieces = list(cut(LINE, "New York", "York"))
    assert [piece for piece in pieces if piece.role] == [Piece("New York", "answer"), Piece("York", "prediction")]
    assert "".join(piece.text for piece in pieces) == LINE
    assert list(cut(LINE, "a.c(", "")) == [Piece(LINE)]


def test_a_right_answer_has_no_verdict_and_one_mark(result: RecallResult) -> None:
    predictions = ("New York", "York", "York", "Boston")
    asked = (Question("Where was Ann Lee born?", "New York"),) * len(predictions)
    shown = answers_section(Examination(asked, predictions), Corpus("one", (f"Ann Lee. {LINE}",)))
    page = document(replace(result, answers=shown))
    right, wrong = (block for block in page.blocks() if isinstance(block, Answers))
    assert right.items[0].verdict == ""
    assert [piece.role for piece in right.items[0].source if piece.role] == ["answer"]
    assert len(wrong.items) == 3
    assert f"Of the wrong answers shown: 2 {SAME_LINE}, 1 {ELSEWHERE}." in as_markdown(page)


# Attention


def test_the_head_shown_first_looks_at_a_word_of_the_question() -> None:
    resting = [[1, 0, 0, 0], [1, 0, 0, 0], [0.9, 0.1, 0, 0], [1, 0, 0, 0]]
    looking = [[1, 0, 0, 0], [1, 0, 0, 0], [0.2, 0.7, 0.1, 0], [1, 0, 0, 0]]
    attention = attention_section("?", ["Who", " Ann", "⁇", " x"], [[resting] * 2, [resting, looking]])
    shown = document(replace(make_recall(20), attention=attention))
    (block,) = (block for block in shown.blocks() if isinstance(block, Heads))
    head = first_head(block)
    assert (block.row, head.name) == (2, "layer 2, head 2")
    assert head.sentence == "Where the answer is chosen (row “⁇”), it looks most at “·Ann” (70.0 %)."
    without_cue = attention_section("?", ["Who", " Ann", " ?", " x"], [[resting]])[0].blocks[1]
    assert isinstance(without_cue, Heads)
    assert without_cue.row == 3
    assert thousandths(looking)[2] == [200, 700, 100]


def test_every_head_can_be_chosen_without_the_script(result: RecallResult) -> None:
    html = as_html(document(result))
    page = read(html)
    picks = [item for item in page.all("input") if item.get("type") == "radio"]
    assert len(picks) == 24
    assert len([item for item in picks if "checked" in item]) == 1
    names = {str(item["id"]) for item in picks}
    assert {label.get("for") for label in page.all("label")} == names
    assert {str(use["href"]) for use in page.all("use")} == {f"#{name.replace('pick', 'cells')}" for name in names}
    assert all(f"#{name}:checked ~ .panels" in html for name in names)


def test_a_mechanism_without_patterns_has_no_attention_part(result: RecallResult) -> None:
    assert "Attention of one answer" in as_markdown(document(result))
    page = read(as_html(document(replace(result, attention=[]))))
    assert "Attention of one answer" not in page.text
    assert len(page.all("script")) == 1


def test_layers_without_weights_and_rows_that_do_not_sum_to_one_are_named() -> None:
    words = {}
    for name, patterns in {
        "whole": [[[[1.0, 0.0], [0.5, 0.5]]]],
        "absent": [[], [[[1.0, 0.0], [0.5, 0.5]]]],
        "odd": [[[[1.0, 0.0], [0.7, 0.5]]]],
    }.items():
        text = attention_section("?", ["a", "b"], patterns)[0].blocks[0]
        assert isinstance(text, Text)
        words[name] = text.paragraphs[0]
    assert "left out" not in words["whole"]
    assert "Layer 1 left out: no weights of tokens on tokens there." in words["absent"]
    assert "a row sums to 100 %" in words["whole"]
    assert "a row sums to 100 %" not in words["odd"]


# The whole


@pytest.mark.parametrize(
    "words",
    [
        "What does a small model remember?",
        "The pretrained model correctly answers 81.6 % of 750 questions",
        "81.6 % 78.7 to 84.2 % 612 of 750 Chicago, 3 % 5 min 21 s",
        "2.3 % 1.4 to 3.6 % 17 of 750 Los Angeles, 100 % –",
        "Finished 2026-11-15; took 6 min 52 s on A Processor. Command: attnlab run --model.n_layer 3",
        "pretrain 20 40 80,000 26,667 3.0 s 0.410 3,383,296",
        "thousand tokens read",
        "Atlanta, not Mobile",
        "another phrase of the same line",
        "Of answers with a confidence of 0.93 or more at most 10 % are wrong.",
        "AUROC, right against wrong answers 0.871 (0.820 to 0.910)",
        "Characters 420,000",
        "model.n_embd 256",
        "torch 2.13.0",
    ],
)
def test_the_page_says(words: str) -> None:
    assert words in read(as_html(document(make_recall(20)))).text


def test_the_markdown_has_the_answers(result: RecallResult) -> None:
    text = as_markdown(document(result))
    assert "| Where was Hank Aaron born? | Atlanta | Mobile | another phrase of the same line |" in text
    assert "\n    attnlab run --model.n_layer 3\n" in text


def test_an_exam_without_answers_shows_predictions_only(result: RecallResult) -> None:
    rows = [replace(row, correct=None, accuracy=None, low=None, high=None) for row in result.rows]
    blind = Examination((Question("Where was Ann Lee born?", None),), ("York",))
    assert answers_section(blind, Corpus("one", (LINE,))) == []
    made = document(replace(result, rows=rows, answers=[], verdict=[outcome(rows, WORLD)]))
    page, text = read(as_html(made)).text, as_markdown(made)
    assert "nothing is scored" in made.lead[0]
    assert "pretrained, not fine-tuned what pretrained, not fine-tuned means 750 Chicago, 3 % 5 min 00 s" in page
    assert (
        "| pretrained, not fine-tuned (what pretrained, not fine-tuned means) | 750 | Chicago, 3 % | 5 min 00 s |"
        in text
    )
    assert "Accuracy" not in page + text
    assert not any(
        (isinstance(one, Chart) and one.shape == "bars") or isinstance(one, Answers) for one in made.blocks()
    )


def test_quick_runs_and_questions_asked_in_training_are_named(result: RecallResult) -> None:
    assert document(result).notices == []
    quick, asked = Recall(quick=True).document(replace(result, data=replace(WORLD, asked_before=36))).notices
    assert quick.title == "A quick run."
    assert re.match("36 of them asked in training", asked.text)
