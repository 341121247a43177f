"""The built-in labelled sentences: clear of leaks, the same each time, every topic everywhere."""

from __future__ import annotations

from collections import Counter

import pytest

from attnlab.corpora import prose
from attnlab.corpora.prose import bare
from attnlab.errors import DataError


def test_there_are_a_few_thousand_and_no_topic_rules() -> None:
    parts = prose.topics()
    assert list(parts) == ["train", "dev", "test"]
    assert 2500 < sum(map(len, parts.values())) < 20000
    for part, least in (("train", 200), ("dev", 20), ("test", 20)):
        counts = Counter(topic for topic, _ in parts[part])
        assert set(counts) == set(prose.MODULES)
        assert min(counts.values()) >= least
        assert max(counts.values()) < 0.25 * len(parts[part])


def test_no_sentence_nor_one_that_differs_in_a_word_stands_twice() -> None:
    seen: dict[str, tuple[str, str]] = {}
    for part, labelled in prose.topics().items():
        for topic, sentence in labelled:
            for spelling in prose.spellings(sentence):
                assert seen.setdefault(spelling, (part, sentence)) == (part, sentence), (topic, sentence)


def test_it_is_the_same_each_time() -> None:
    first = prose.topics()
    prose.topics.cache_clear()
    assert prose.topics() == first


def test_sentences_of_a_docstring_stay_together() -> None:
    homes: dict[str, set[str]] = {}
    for _, text in prose.labelled_docstrings():
        for sentence, _ in prose.sentences_of([text]):
            homes.setdefault(bare(sentence), set()).add(prose.part_of(text))
    for part, labelled in prose.topics().items():
        assert all(part in homes[bare(sentence)] for _, sentence in labelled)


def test_what_is_alike_is_found() -> None:
    one = "Return the size of the file."
    for other in ("Return the size of a file.", "Return the size of the open file.", "return size of the file"):
        assert not set(prose.spellings(one)).isdisjoint(prose.spellings(other))
    assert set(prose.spellings(one)).isdisjoint(prose.spellings("Return the name of a file."))


def test_a_sentence_of_two_topics_belongs_to_none() -> None:
    rows = [
        ("train", "mail", "Close the connection to the server."),
        ("dev", "network", "Close the connection to the server!"),
        ("dev", "mail", "Send a message to the server."),
        ("test", "mail", "Send a letter to the server."),
    ]
    assert list(prose.deduplicated(rows)) == [rows[2]]


def test_a_module_has_one_topic() -> None:
    names = [name for modules in prose.MODULES.values() for name in modules.split()]
    assert len(names) == len(set(names))


def test_a_python_without_its_library_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prose, "labelled_docstrings", lambda: iter(()))
    prose.topics.cache_clear()
    try:
        with pytest.raises(DataError, match="carries no help texts"):
            prose.topics()
    finally:
        prose.topics.cache_clear()
