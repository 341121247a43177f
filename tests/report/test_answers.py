"""Answers in their lines, the attention in words, and numbers as people write them."""

from __future__ import annotations

import pytest
from attnlab.report.answers import ELSEWHERE, EMPTY, NO_SOURCE, OVERLAP, SAME_LINE, Piece, cut, shown, tally, verdict
from attnlab.report.attention import answer_row, compact, first_to_show, heads

from attnlab.report.words import duration, flat, interval, magnitude, percent, plain

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
    assert verdict(LINE, "New York", prediction) == way
    assert verdict(None, "New York", prediction) == (NO_SOURCE if prediction else EMPTY)


def test_a_line_is_cut_at_answer_and_prediction_and_stays_whole() -> None:
    pieces = list(cut(LINE, "New York", "York"))
    assert [piece for piece in pieces if piece.role] == [Piece("New York", "answer"), Piece("York", "prediction")]
    assert "".join(piece.text for piece in pieces) == LINE
    assert list(cut(LINE, "a.c(", "")) == [Piece(LINE)]


def test_a_right_answer_has_no_verdict_and_one_mark() -> None:
    item = {"question": "?", "answer": "New York", "prediction": "New York", "source": LINE}
    right = shown(item, right=True)
    assert right.verdict == ""
    assert [piece.role for piece in right.pieces if piece.role] == ["answer"]
    wrong = [shown({**item, "prediction": text}, right=False) for text in ("York", "York", "Boston")]
    assert tally(wrong) == f"Of the wrong answers shown: 2 {SAME_LINE}, 1 {ELSEWHERE}."
    assert tally([]) == ""


def test_the_head_shown_first_looks_at_a_word_of_the_question() -> None:
    resting = [[1, 0, 0, 0], [1, 0, 0, 0], [0.9, 0.1, 0, 0], [1, 0, 0, 0]]
    looking = [[1, 0, 0, 0], [1, 0, 0, 0], [0.2, 0.7, 0.1, 0], [1, 0, 0, 0]]
    made = {"tokens": ["Who", " Ann", "⁇", " x"], "patterns": [[resting, resting], [resting, looking]]}
    row = answer_row(made["tokens"])
    assert row == 2
    head = first_to_show(heads(made), row)
    assert head.name == "layer 2, head 2"
    assert head.sentence == "Where the answer is chosen (row ⁇), it looks most at ·Ann (70.0 %)."
    assert answer_row(["a", "b"]) == 1
    assert compact(looking)[2] == [200, 700, 100]


def test_numbers_in_words() -> None:
    assert percent(0.816) == "81.6 %"
    assert interval(0.787, 0.842) == "78.7 to 84.2 %"
    assert [duration(seconds) for seconds in (None, 0, 8.21, 59.96, 412.3, 3599.9, 3900)] == (
        ["–", "0.0 s", "8.2 s", "1 min 00 s", "6 min 52 s", "1 h 00 min", "1 h 05 min"]
    )
    assert [plain(value) for value in (True, None, 3, 40.0, 3e-4, 3383296, [1, 2], "x", {})] == (
        ["yes", "–", "3", "40", "0.0003", "3,383,296", "1, 2", "x", "–"]
    )
    assert dict(flat({"a": {"b": {"c": 1}, "d": {}}, "e": 0.5})) == {"a.b.c": "1", "a.d": "–", "e": "0.5"}
    assert [magnitude(size) for size in (900, 90_000, 2e6)] == [(1.0, ""), (1e3, "thousand "), (1e6, "million ")]
