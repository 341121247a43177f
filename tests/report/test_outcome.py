"""The sentence at the top: it claims what the intervals allow, and no more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from attnlab.report.outcome import compare, outcome

Rows = Callable[..., dict[str, Any]]
WORLD = {"corpus": "people", "exam": "people:test"}


def trio(new_row: Rows, main: int | None, control: int | None, majority: int | None) -> list[dict[str, Any]]:
    return [
        new_row("pretrained + fine-tuned", "model", main),
        new_row("pretrained only", "model", main),
        new_row("no pretraining", "model", control),
        new_row("open book", "baseline", majority),
        new_row("majority answer", "baseline", majority, commonest_prediction="Los Angeles"),
    ]


def test_a_clear_win(new_row: Rows) -> None:
    assert outcome(trio(new_row, 612, 22, 17), WORLD) == (
        "The pretrained model correctly answers 81.6 % of 750 questions about people it was never asked about;"
        " the same model without pretraining 2.9 %, which this exam cannot tell from always saying Los Angeles (2.3 %)."
    )


def test_no_difference(new_row: Rows) -> None:
    sentence = outcome(trio(new_row, 24, 22, 17), WORLD)
    assert "as the 95 % intervals overlap, this exam cannot tell the two apart" in sentence
    assert sentence.endswith("Neither is clearly above always saying Los Angeles (2.3 %).")
    assert "more" not in sentence


def test_no_difference_yet_both_above_the_baseline(new_row: Rows) -> None:
    assert outcome(trio(new_row, 300, 290, 17), WORLD).endswith(
        "Both are clearly above always saying Los Angeles (2.3 %)."
    )


def test_only_one_above_the_baseline(new_row: Rows) -> None:
    sentence = outcome(trio(new_row, 40, 33, 16), WORLD)
    assert sentence.endswith("Only the pretrained model is clearly above always saying Los Angeles (2.1 %).")


def test_a_loss_is_told_as_one(new_row: Rows) -> None:
    assert "without pretraining 40.0 %, which is clearly more." in outcome(trio(new_row, 75, 300, 17), WORLD)


@pytest.mark.parametrize(("majority", "words"), [(60, "not clearly above that"), (400, "clearly below that")])
def test_beating_the_control_is_not_beating_the_baseline(new_row: Rows, majority: int, words: str) -> None:
    assert outcome(trio(new_row, 75, 5, majority), WORLD).endswith(f"The pretrained model itself is {words}.")


def test_an_exam_without_answers(new_row: Rows) -> None:
    sentence = outcome(trio(new_row, None, None, None), WORLD)
    assert "the exam has no answers to compare with, so nothing is scored" in sentence
    assert "750 questions" in sentence
    assert "Chicago (3.1 %)" in sentence
    assert "correctly" not in sentence


def test_other_names_and_data_are_taken_as_they_are(new_row: Rows) -> None:
    rows = [new_row("dot", "model", 600), new_row("linear", "model", 300), new_row("chance", "baseline", 300)]
    assert outcome(rows, {"corpus": "mine.txt", "exam": "mine.tsv"}) == (
        "“dot” correctly answers 80.0 % of 750 questions; “linear” 40.0 %, which this exam cannot tell from “chance” (40.0 %)."
    )


def test_a_model_alone_and_no_model_at_all(new_row: Rows) -> None:
    alone = [new_row("dot", "model", 1, questions=1)]
    assert outcome(alone, {}) == "“dot” correctly answers 100.0 % of 1 question."
    assert outcome([*alone, new_row("chance", "baseline", 0)], {}).endswith("clearly more than “chance” (0.0 %).")
    assert outcome([], {}) == "No model was examined."


def test_intervals_that_touch_do_not_count_as_apart() -> None:
    assert compare({"low": 0.5, "high": 0.6}, {"low": 0.4, "high": 0.5}) == 0
    assert compare({"low": 0.51, "high": 0.6}, {"low": 0.4, "high": 0.5}) == 1
    assert compare({"low": 0.4, "high": 0.49}, {"low": 0.5, "high": 0.6}) == -1
