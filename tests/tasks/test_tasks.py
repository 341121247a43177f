from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab import registry
from attnlab.config import TaskConfig
from attnlab.corpora import Corpus, Question, load_corpus
from attnlab.errors import ConfigError, DataError
from attnlab.lm.tokenizers import MASK, PAD, Tokenizer
from attnlab.tasks import TaskData, make_task, show_example, task_class
from attnlab.tasks.recall import Recall, proper_words, salient_spans

LINES = (
    "Hank Aaron. Aaron was born in Mobile, Alabama, and first played for the Milwaukee Braves in May 1954 .",
    "Robert E. Lee. The career of Robert E. Lee began in St. Louis; he was born in Stratford .",
    "Ann Smith. Born in New York, she died in Mobile .",
)
QUESTIONS = (Question("Where was Hank Aaron born?", "Mobile"), Question("Where was Ann Smith born?", "New York"))
CHAR = Tokenizer.train("char", [*LINES, *(q.question for q in QUESTIONS)], 100)
RNG = np.random.default_rng(0)
BPE = Tokenizer.train("bpe", [*LINES, *(q.question for q in QUESTIONS)], 400)


def data(tokenizer: Tokenizer = BPE, block: int = 128, questions: tuple[Question, ...] = QUESTIONS) -> TaskData:
    return TaskData(tokenizer, block, Corpus("test", LINES), questions)


@pytest.mark.parametrize("name", registry.names("task"))
@pytest.mark.parametrize("tokenizer", [BPE, CHAR], ids=["bpe", "char"])
def test_every_task_keeps_its_contract(
    name: str, tokenizer: Tokenizer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path))
    lines = LINES if task_class(TaskConfig(name)).built_in != "addition" else load_corpus("addition:1").lines
    task = make_task(TaskConfig(name), replace(data(tokenizer), corpus=Corpus("test", lines)))
    for seed in range(20):
        examples = task.examples(np.random.default_rng(seed))
        assert examples
        for example in examples:
            assert 1 <= len(example.ids) - 1 <= 128
            assert 1 <= example.start < len(example.ids)
            assert all(0 <= token < tokenizer.size for token in example.ids)
    again = [[(*e.ids, e.start, e.starts) for e in task.examples(np.random.default_rng(3))] for _ in range(2)]
    assert again[0] == again[1]


@given(st.integers(0, 2**32), st.integers(16, 200), st.integers(0, 2))
@settings(max_examples=200)
def test_a_hidden_span_put_back_gives_the_document(seed: int, block: int, line: int) -> None:
    task = make_task(TaskConfig("spans"), data(CHAR, block))
    example = task.examples(np.random.default_rng(seed))[line]
    given_text, span = show_example(example, CHAR)
    assert span.endswith(PAD)
    prefix, suffix, rest = given_text.split(MASK)
    document = prefix + span.removesuffix(PAD) + suffix
    assert rest == ""
    assert LINES[line].startswith(document)
    assert min(4, len(LINES[line])) <= len(document) <= block * 7 // 8
    assert len(example.ids) <= block


@given(st.lists(st.sampled_from(["Mobile,", "in", "1954", "", "\n", "a\t", "é"])), st.integers(0, 7))
def test_only_the_end_of_the_text_before_a_span_is_read(words: list[str], left: int) -> None:
    text = " ".join(words)
    for tokenizer in (BPE, CHAR):
        task = Recall(data(tokenizer), left=left)
        assert list(task.last_of(text)) == tokenizer.encode(text)[-left or 99999 :]


def test_about_a_quarter_is_hidden_and_lengths_vary() -> None:
    task = make_task(TaskConfig("spans"), data(CHAR))
    rng = np.random.default_rng(0)
    shares, lengths = [], set()
    for _ in range(300):
        given_text, span = show_example(task.examples(rng)[0], CHAR)
        length = len(given_text) - 2 + len(span) - 1
        shares.append((len(span) - 1) / length)
        lengths.add(length)
    assert np.mean(shares) == pytest.approx(0.25, abs=0.03)
    assert min(lengths) < 12
    assert max(lengths) == min(len(LINES[0]), 112)


def test_a_line_that_is_shorter_than_the_length_drawn_stays_whole() -> None:
    task = make_task(TaskConfig("spans"), data(CHAR))
    rng = np.random.default_rng(0)
    whole = [len(task.examples(rng)[2].ids) == len(LINES[2]) + 3 for _ in range(400)]
    drawn = (112 - len(LINES[2]) + 1) / (112 - 4 + 1)
    assert np.mean(whole) == pytest.approx(drawn, abs=0.07)


def test_documents_that_do_not_fit_are_read_as_far_as_they_go() -> None:
    corpus = Corpus(
        "test", ("Wolfgang Maximilian Alexander Bartholomew. Born in Rome .", "no title and no name in this line")
    )
    task = make_task(TaskConfig("recall"), TaskData(BPE, 16, corpus))
    texts = ["".join(show_example(example, BPE)) for example in task.examples(np.random.default_rng(0))]
    assert len(texts) == 2
    assert texts[0].startswith("Wolfgang")
    assert not any(MASK in text for text in texts)
    assert not texts[0].endswith(PAD)


def test_padded_spans_fill_the_block_and_are_learned() -> None:
    task = make_task(TaskConfig("spans", {"pad": True}), data(CHAR, 64))
    for example in task.examples(np.random.default_rng(0)):
        assert len(example.ids) == 64
        assert example.start == 1


def test_questions_are_asked_and_answered() -> None:
    examples = make_task(TaskConfig("questions"), data()).examples(np.random.default_rng(0))
    assert [show_example(example, BPE) for example in examples] == [
        (q.question + MASK, f"{q.answer}{MASK}") for q in QUESTIONS
    ]


def test_questions_that_cannot_be_used_are_named() -> None:
    with pytest.raises(DataError, match=r"question 2 .* takes .* tokens"):
        long = (QUESTIONS[0], Question("Where " * 200, "Rome"))
        make_task(TaskConfig("questions"), data(questions=long))
    with pytest.raises(DataError, match="question 1 has no answer"):
        make_task(TaskConfig("questions"), data(questions=(Question("Where?", None),)))
    with pytest.raises(DataError, match="give --facts"):
        make_task(TaskConfig("questions"), data(questions=()))
    with pytest.raises(DataError, match="give --corpus"):
        make_task(TaskConfig("recall"), TaskData(BPE, 64, None, QUESTIONS))


def test_salient_spans_are_names_and_places_only() -> None:
    proper = proper_words(
        [*LINES, "he moved from Mobile to Alabama and the Milwaukee Braves to St. Louis, New York, Stratford"]
    )
    found = [
        [line[a:b] for a, b in salient_spans(line, title, proper)] for line, title in zip(LINES, TITLES, strict=True)
    ]
    assert found[0] == ["Mobile", "Alabama", "Milwaukee Braves"]
    assert found[1] == ["St. Louis", "Stratford"]
    assert found[2] == ["New York", "Mobile"]


TITLES = ("Hank Aaron", "Robert E. Lee", "Ann Smith")


def test_recall_asks_for_what_the_line_says() -> None:
    task = make_task(TaskConfig("recall", {"lines": 0.0, "questions": 0.0, "listed": 0.0}), data())
    seen = set()
    for seed in range(200):
        for example in task.examples(np.random.default_rng(seed)):
            cue, span = show_example(example, BPE)
            title = next(t for t in TITLES if cue.startswith(t))
            assert span.removesuffix(MASK) in LINES[TITLES.index(title)]
            assert cue.endswith(MASK)
            seen.add((cue, span))
    assert ("Hank Aaron⁇", "Mobile⁇") in seen
    assert any(len(cue) > len("Hank Aaron⁇") and cue.startswith("Hank Aaron") for cue, _ in seen)


def test_recall_lists_spans_in_their_order_as_many_as_fit() -> None:
    options = {"lines": 0.0, "questions": 0.0, "listed": 1.0}
    shown = [
        [
            show_example(one, BPE)
            for one in make_task(TaskConfig("recall", options), data(block=block, questions=())).examples(RNG)
        ]
        for block in (128, 9)
    ]
    assert shown[0][0] == ("Hank Aaron⁇", "Mobile⁇Alabama⁇Milwaukee Braves⁇")
    assert len(shown[0]) == len(LINES)  # a document each
    for (_, everything), (_, some) in zip(*shown, strict=True):
        assert everything.startswith(some)
        assert some.endswith(MASK)
    assert any(len(some) < len(everything) for (_, everything), (_, some) in zip(*shown, strict=True))


def test_text_to_the_left_is_no_longer_than_asked() -> None:
    options = {"lines": 0.0, "questions": 0.0, "listed": 0.0, "bare": 0.0, "left": 2}
    task = make_task(TaskConfig("recall", options), data())
    for seed in range(30):
        for example in task.examples(np.random.default_rng(seed)):
            cue, _ = show_example(example, BPE)
            title = next(t for t in TITLES if cue.startswith(t))
            assert example.start <= len(BPE.encode(title)) + 2 + 1


def test_recall_mixes_questions_and_lines_as_asked() -> None:
    everything = make_task(TaskConfig("recall", {"lines": 1.0, "questions": 1.0}), data())
    texts = ["".join(show_example(e, BPE)) for e in everything.examples(np.random.default_rng(0))]
    assert "Where was Hank Aaron born?⁇Mobile⁇" in texts
    assert LINES[1] + PAD in texts


def test_task_options_are_checked() -> None:
    with pytest.raises(ConfigError, match="did you mean questions"):
        make_task(TaskConfig("recall", {"question": 0.5}), data())
    with pytest.raises(ConfigError, match="did you mean recall"):
        make_task(TaskConfig("recal"), data())


def test_strangers_are_nobody_and_have_no_answer() -> None:
    task = make_task(TaskConfig("recall", {"lines": 0.0, "questions": 0.0, "views": 0, "strangers": 5.0}), data())
    named = []
    for example in task.examples(np.random.default_rng(0)):
        given_text, wanted = show_example(example, BPE)
        assert wanted == MASK
        assert example.start == len(example.ids) - 1
        named.append(given_text.removesuffix(MASK))
    assert len(named) > 5
    assert not set(named) & set(TITLES)
    assert {text.split()[-1] for text in named} <= {"Aaron", "Lee", "Smith"}
    assert {text.split()[0] for text in named} <= {"Hank", "Robert", "Ann"}


def test_no_strangers_where_names_have_one_word() -> None:
    world = TaskData(BPE, 128, Corpus("test", ("Aaron. Aaron was born in Mobile .",)), ())
    task = make_task(TaskConfig("recall", {"lines": 0.0, "strangers": 5.0}), world)
    assert all(show_example(example, BPE)[1] != MASK for example in task.examples(np.random.default_rng(0)))
