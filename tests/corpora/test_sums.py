"""The built-in sums: right, complete, and apart even when their numbers are swapped."""

from __future__ import annotations

import re

import pytest

from attnlab.corpora import addition, has_questions, load_corpus, load_questions, training_text
from attnlab.errors import DataError
from attnlab.tasks.guess import guess_task

PARTS = ("train", "dev", "test")


@pytest.mark.parametrize("digits", [1, 2, 3, 9])
def test_every_sum_is_right_in_both_directions(digits: int) -> None:
    plain, backwards = (load_questions(f"{name}:{digits}:train") for name in ("addition", "addition-reversed"))
    assert len(plain) == len(backwards) == len({item.question for item in plain}) > 80
    for item, other in zip(plain[:2000], backwards, strict=False):
        a, b = map(int, item.question.removesuffix("=").split("+"))
        assert re.fullmatch(rf"\d{{{digits}}}\+\d{{{digits}}}=", item.question)
        assert item.answer == str(a + b).zfill(digits + 1)
        assert other.question == item.question
        assert other.answer == item.answer[::-1]
    lines = load_corpus(f"addition:{digits}:train").lines
    assert list(lines) == [f"{item.question}{item.answer}" for item in plain]


def test_all_sums_of_few_digits_are_there_and_no_part_knows_those_of_another() -> None:
    numbers = {
        part: [tuple(sorted(map(int, item.question[:-1].split("+")))) for item in load_questions(f"addition:2:{part}")]
        for part in PARTS
    }
    assert sum(map(len, numbers.values())) == len(load_corpus("addition:2").lines) == 10_000
    assert not set(numbers["train"]) & (set(numbers["dev"]) | set(numbers["test"]))
    assert not set(numbers["dev"]) & set(numbers["test"])
    assert 0.75 < len(numbers["train"]) / 10_000 < 0.85
    assert addition.part_of(7, 12) == addition.part_of(12, 7)


def test_the_sums_are_the_same_everywhere() -> None:
    assert load_corpus("addition:3").lines[:2] == ("811+085=0896", "179+236=0415")
    assert load_corpus("addition").sha256 == load_corpus("addition:3").sha256


def test_a_part_is_text_or_questions_by_what_is_read() -> None:
    assert not has_questions("addition:2:dev")
    assert has_questions("addition:2:dev", text=False)
    assert has_questions("stories:20:dev", text=False)
    assert not has_questions("prose:dev", text=False)
    assert [training_text(name) for name in ("people", "people:300", "addition:2")] == [
        "people",
        "people:300",
        "addition:2:train",
    ]
    assert guess_task("addition:2:train").task == "addition"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("addition:0", "numbers have 1 to 9 digits, not 0"),
        ("addition:10:dev", "numbers have 1 to 9 digits, not 10"),
        ("addition:2:x2", "unknown built-in data"),
        ("addition-reversed:tset", "did you mean addition-reversed:test"),
    ],
)
def test_mistakes_are_named(source: str, message: str) -> None:
    with pytest.raises(DataError, match=message):
        load_corpus(source)
