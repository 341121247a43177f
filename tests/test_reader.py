"""The reader on the built-in people: whom it was not asked about, several kinds of questions, what it writes."""

from __future__ import annotations

from dataclasses import replace

import pytest

from attnlab.corpora import Corpus, Question, load_corpus, load_questions
from attnlab.corpora.people import load_people
from attnlab.errors import DataError
from attnlab.reader import Reader
from attnlab.reader.candidates import Usage, candidates_of, page_of, shapes_of


@pytest.fixture(scope="module")
def corpus() -> Corpus:
    return load_corpus("people:200")


@pytest.fixture(scope="module")
def reader(corpus: Corpus) -> Reader:
    return Reader.train(corpus, load_questions("people:200:train"))


def texts(line: str, heading: str, *answers: str) -> list[str]:
    page = page_of(line, heading)
    return [candidate.text for candidate in candidates_of(page, shapes_of(answers), Usage.of([page]))]


def debuts(corpus: Corpus) -> tuple[Question, ...]:
    """In which year people played first, asked about those whose line says it."""
    years = {one.name: str(one.debut_date.year) for one in load_people(200)}
    told = [
        title for title, line in zip(corpus.titles, corpus.lines, strict=True) if years[title] in line[len(title) :]
    ]
    return tuple(Question(f"In which year did {name} make a debut?", years[name]) for name in told)


def test_candidates_have_the_shapes_of_answers() -> None:
    line = "Ann B. Lee. Lee (born June 30, 1990 in St. Louis) lived in Newcastle upon Tyne and Chicago's Edison Park ."
    assert texts(line, "Ann B. Lee", "York") == [
        "Lee",
        "June",
        "St",
        "Louis",
        "Newcastle",
        "Tyne",
        "Chicago",
        "Edison",
        "Park",
    ]
    assert texts(line, "Ann B. Lee", "May 1, 1900") == ["June 30, 1990"]
    assert "Newcastle upon Tyne" in texts(line, "Ann B. Lee", "Stoke on Trent")
    assert "St. Louis" in texts(line, "Ann B. Lee", "St. Paul")
    assert "Edison Park" in texts(line, "Ann B. Lee", "New York")


def test_the_heading_is_no_candidate_even_with_initials() -> None:
    line = "Daniel M. Hausman. He was born in Chicago ."
    assert texts(line, "Daniel M. Hausman", "York") == ["He", "Chicago"]


def test_an_accent_may_be_written_in_two_ways() -> None:
    assert texts("A B. Born in Co\u0302te .", "A B", "York") == ["Born", "C\u00f4te"]


def test_it_answers_about_people_it_was_not_asked_about(reader: Reader) -> None:
    exam = load_questions("people:200:test")
    right = [reader.read(one.question).text == one.answer for one in exam]
    assert sum(right) >= 0.9 * len(exam)


def test_forms_of_one_kind_are_found_to_be_one(reader: Reader) -> None:
    assert len(reader.kinds) == 1
    assert reader.kinds[0].name == "Where was {} born?"
    assert len(reader.kinds[0].forms) == 5


def test_it_writes_one_question_for_everybody_not_asked_about(corpus: Corpus, reader: Reader) -> None:
    written = reader.write()
    asked = load_questions("people:200:train")
    assert len(written) == len(corpus.shelf) - len(asked)
    assert not {one.question.question for one in written} & {one.question for one in asked}
    assert {one.question.question.split()[0] for one in written} == {"Where", "In", "What"}
    sure = reader.write(at_least=0.9)
    assert set(sure) < set(written)
    assert min(one.probability for one in sure) >= 0.9


def test_probabilities_tell_right_from_wrong(reader: Reader) -> None:
    exam = load_questions("people:200:test") + load_questions("people:200:dev")
    found = [(reader.read(one.question), one.answer) for one in exam]
    assert all(0 < answer.probability <= 1 + 1e-9 for answer, _ in found)
    promised = sum(answer.probability for answer, _ in found) / len(found)
    kept = sum(answer.text == wanted for answer, wanted in found) / len(found)
    assert promised == pytest.approx(kept, abs=0.12)


def test_it_is_the_same_each_time(corpus: Corpus, reader: Reader) -> None:
    assert Reader.train(corpus, load_questions("people:200:train")).write() == reader.write()
    assert replace(reader, seed=1).write() != reader.write(), "forms are drawn by seed"


def test_two_kinds_of_questions_at_once(corpus: Corpus) -> None:
    years = debuts(corpus)
    asked, held = years[:60], years[60:90]
    both = Reader.train(corpus, load_questions("people:200:train") + asked)
    assert [kind.name for kind in both.kinds] == ["Where was {} born?", "In which year did {} make a debut?"]
    exam = load_questions("people:200:test")
    assert sum(both.read(one.question).text == one.answer for one in exam) >= 0.9 * len(exam)
    assert sum(both.read(one.question).text == one.answer for one in held) >= 0.9 * len(held)
    written = [pair for pair in both.write() if "debut" in pair.question.question]
    assert 0 < len(written) <= len(corpus.shelf) - len(asked)
    assert all(one.question.answer and one.question.answer.isdigit() for one in written)


def test_a_new_form_is_read_as_the_nearest(corpus: Corpus, reader: Reader) -> None:
    one = load_questions("people:200:test")[0]
    answer = reader.read(one.question)
    number = next(number for number, title in enumerate(corpus.titles) if title and title in one.question)
    assert reader.read(f"Please, where was {corpus.titles[number]} born?") == answer


def test_what_a_line_does_not_say_is_unlikely_or_no_answer_at_all(corpus: Corpus) -> None:
    silent = (
        "Ann B. Lee. nothing is known .",
        "Cy D. Fox. Fox batted left-handed and was mainly a pitcher for Boston .",
    )
    reader = Reader.train(replace(corpus, lines=corpus.lines + silent), load_questions("people:200:train"))
    told = reader.read(load_questions("people:200:test")[0].question)
    assert reader.read("Where was Cy D. Fox born?").probability < told.probability
    assert reader.read("Where was Ann B. Lee born?") == ("", 0.0)
    assert not any("Ann B. Lee" in one.question.question for one in reader.write())


def test_mistakes_are_named_with_the_way_out(corpus: Corpus, reader: Reader) -> None:
    with pytest.raises(DataError, match="prose:50: no line begins with a heading"):
        Reader.train(load_corpus("prose:50"), load_questions("people:200:train"))
    with pytest.raises(DataError, match="no question with an answer names a heading of people:200"):
        Reader.train(corpus, (Question("Where was Nobody born?", "York"),))
    with pytest.raises(DataError, match="is about “Where was Nobody born\\?”"):
        reader.read("Where was Nobody born?")
