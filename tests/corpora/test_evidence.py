"""What the corpus says for an answer: the person's own line, the stretch to be quoted, or the names most like it."""

from __future__ import annotations

import pytest

import attnlab
from attnlab.corpora import Corpus
from attnlab.corpora.library import AROUND, evidence, excerpt, name_in, place_in

TOWN = Corpus(
    "town",
    (
        "Ann Lee. Lee was born in York .",
        "Mary Ann Lee. Born in New York, Mary moved to York .",
        "Ann Lee. The other Ann was born in Bath .",
        "Orlando Hill. Orlando Hill was born in Leeds .",
        "Orlando Bath. Orlando Bath, son of the mayor, was born in Orlando .",
        "Jose\u0301 Pen\u0303a. Peña left Yorkshire for Alcala\u0301 .",
    ),
)


@pytest.mark.parametrize(
    ("name", "answer", "line", "said"),
    [
        ("Ann Lee", "York", 0, True),
        ("Ann Lee", "Bath", 2, True),
        ("Ann Lee", "Leeds", 0, False),
        ("Ann Lee", "Yor", 0, False),
        ("Ann Lee", "york", 0, False),
        ("Ann Lee", "", 0, False),
        ("Mary Ann Lee", "New York", 1, True),
        ("Orlando Hill", "Orlando", 3, False),
        ("Orlando Hill", "Leeds", 3, True),
        ("Orlando Bath", "Orlando", 4, True),
        ("José Peña", "York", 5, False),
        ("José Peña", "Alcalá", 5, True),
        ("Jose\u0301 Peña", "Alcala\u0301", 5, True),
    ],
)
def test_the_line_and_whether_it_says_the_answer(name: str, answer: str, line: int, said: bool) -> None:
    found = evidence(TOWN, f"Where was {name} born?", answer)
    assert found.seen
    assert found.supported == said
    assert found.lines[0].number == line
    assert found.nearest == ()
    if said:
        assert found.place is not None
        begin, end = found.place
        assert found.lines[0].text[begin:end] == attnlab.corpora.library.normal(answer)
        assert found.lines[0].text[begin:end] in found.quote
    else:
        assert found.quote == excerpt(found.lines[0].text, 0, AROUND)


def test_the_place_said_is_not_the_persons_name() -> None:
    line = TOWN.lines[4]
    assert place_in(line, "Orlando") == (line.rindex("Orlando"), line.rindex("Orlando") + len("Orlando"))
    assert place_in("no heading, born in York", "York") == (20, 24)


def test_who_is_unknown_is_said_with_the_names_most_like_it() -> None:
    found = evidence(TOWN, "Where was Orlanda Hill born?", "Leeds", n=2)
    assert (found.seen, found.supported, found.quote) == (False, False, "")
    assert [one.name for one in found.nearest] == ["Orlando Hill", "Orlando Bath"]


@pytest.mark.parametrize(
    ("question", "name"),
    [
        ("Where was Daniel M. Hausman born?", "Daniel M. Hausman"),
        ("In which town was José de la Peña born?", "José de la Peña"),
        ("Jean-Luc O'Dell was born in which place?", "Jean-Luc O'Dell"),
        ("What is the birthplace of Joe Bath Jr.?", "Joe Bath Jr."),
        ("Where was Lee, Ann born?", "Lee, Ann"),
        ("Where was Pelé born?", "Pelé"),
        ("where was bob born?", "where was bob born?"),
        ("Bob?", "Bob"),
        ("", ""),
    ],
)
def test_the_name_in_a_question(question: str, name: str) -> None:
    assert name_in(question) == name


@pytest.mark.parametrize("begin", range(0, 200, 7))
def test_a_stretch_is_of_whole_words_and_holds_what_is_quoted(begin: int) -> None:
    text = " ".join(f"word{number}" for number in range(30))
    shown = excerpt(text, begin, begin + 5)
    assert text[begin : begin + 5].strip() in shown
    inner = shown.removeprefix("… ").removesuffix(" …")
    assert set(inner.split()) <= set(text.split()) | {text[begin:].split()[0]}
    assert len(inner) <= 2 * AROUND + 5
    assert shown.startswith("…") == (not text.startswith(inner))
    assert shown.endswith("…") == (not text.endswith(inner))


def test_a_word_without_blanks_is_quoted_as_it_is() -> None:
    assert excerpt("x" * 300, 100, 110) == f"… {'x' * (2 * AROUND + 10)} …"


def test_the_built_in_answers_stand_in_their_lines() -> None:
    corpus = attnlab.load_corpus("people:300")
    for one in attnlab.load_questions("people:300:test"):
        found = attnlab.evidence(corpus, one.question, one.answer)
        assert found.supported
        assert one.answer in found.quote
