"""Headings, finding the line a question is about, the reader with an open book, and the names of sources."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

import pytest

from attnlab.corpora import (
    Corpus,
    Question,
    documents_about,
    export,
    load_corpus,
    load_questions,
    open_book,
    title_of,
)
from attnlab.errors import DataError, OutputExists

TOWN = Corpus(
    "town",
    (
        "Ann Lee. Lee was born in York .",
        "Mary Ann Lee. Born in New York, Mary moved to York .",
        "Ann Lee. The other Ann was born in Bath .",
        "Joe Bath (born 1950). Joe Bath came from Leeds and died in York .",
        "J. R. O'Dell Jr. J. R. O'Dell Jr. was born in Hull .",
        "nothing that could be a heading",
        "José Peña. Peña left Yorkshire for Ely .",
    ),
)
PARTS = ("train", "dev", "calibration", "test")  # of the questions about people
PLACES = ("York", "New York", "Bath", "Leeds", "Hull", "Ely")


@pytest.mark.parametrize(
    ("line", "title"),
    [
        ("Ann Lee. Lee was born in York .", "Ann Lee"),
        ("Ann B. Lee. Ann B Lee was born in York .", "Ann B. Lee"),
        ("A. B. C. Lee. Lee was born in York .", "A. B. C. Lee"),
        ("J. J. Hardy. J. J. Hardy was born in York .", "J. J. Hardy"),
        ("J.R. Smith. J.R. Smith was born in York .", "J.R. Smith"),
        ("É. Durand. Durand was born in Paris .", "É. Durand"),
        ("Dr. Ann Lee. She was born in York .", "Dr. Ann Lee"),
        ("Lt. Col. Ann St. John. She was born in York .", "Lt. Col. Ann St. John"),
        ("Mt. Hood. Mt. Hood is in Oregon .", "Mt. Hood"),
        ("Ann Lee, Jr.. Ann Lee, Jr (born 1950) is a painter .", "Ann Lee, Jr."),
        ("Ann Lee Jr. Ann Lee Jr. is a painter .", "Ann Lee Jr"),
        ("Ann B. Lee Sr. Lee was born in York. She left .", "Ann B. Lee Sr"),
        ("Malcolm X. Malcolm X was born in Omaha. He left .", "Malcolm X"),
        ("Leo I. Pope Leo I, born in Tuscany, was Pope from the year 440 to the year 461 .", "Leo I"),
        ("No I.D.. No I.D. was born in Chicago .", "No I.D."),
        ("Wang He. Wang He was born in Beijing .", "Wang He"),
        ("Ken Hill (born 1950). Hill was born in York .", "Ken Hill (born 1950)"),
        ("Joe Ek. Ek (b. 3 May 1950, York) paints .", "Joe Ek"),
        ("no heading at all .", ""),
        ("", ""),
        (". ", ""),
        ("A. ", ""),
        ("Ann Lee.", ""),
        ("This line is one long sentence of more than a dozen words before it ends. So it is no heading .", ""),
    ],
)
def test_title(line: str, title: str) -> None:
    assert title_of(line) == title


@pytest.mark.parametrize(
    ("question", "lines"),
    [
        ("Where was Ann Lee born?", [0, 2]),
        ("Where was Mary Ann Lee born?", [1]),
        ("Did Mary Ann Lee know Ann Lee?", [1, 0, 2]),
        ("Where was Joe Bath (born 1950) born?", [3]),
        ("Where was J. R. O'Dell Jr. born?", [4]),
        ("Where was José Peña born?", [6]),
        ("Where was Jose\u0301 Pen\u0303a born?", [6]),
        ("Where was Joann Lee born?", []),
        ("Where was Ann Leeds born?", []),
        ("Ann Lee", [0, 2]),
        ("", []),
    ],
)
def test_documents_about(question: str, lines: list[int]) -> None:
    assert documents_about(TOWN, question) == lines


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("Where was Ann Lee born?", "York"),
        ("Where was Mary Ann Lee born?", "New York"),
        ("Where was Joe Bath (born 1950) born?", "Leeds"),
        ("Where was José Peña born?", "Ely"),
        ("Where was Nobody born?", None),
    ],
)
def test_open_book(question: str, answer: str | None) -> None:
    assert open_book(TOWN, PLACES, question) == answer


def test_open_book_looks_into_the_next_line_of_a_shared_heading_and_may_find_nothing() -> None:
    assert open_book(TOWN, ["Bath"], "Where was Ann Lee born?") == "Bath"
    assert open_book(TOWN, ["Bath"], "Where was Joe Bath (born 1950) born?") == "Bath"
    assert open_book(TOWN, ["Rome"], "Where was Ann Lee born?") is None
    assert open_book(TOWN, [], "Where was Ann Lee born?") is None


def test_the_fingerprint_is_of_the_lines_not_of_the_file(tmp_path: Path) -> None:
    for name, data in (("one", b"Ann.\nBo.\n"), ("two", b"\xef\xbb\xbfAnn.\r\n\r\nBo."), ("three", b"Ann.Bo.")):
        (tmp_path / name).write_bytes(data)
    one, two, three = (load_corpus(tmp_path / name) for name in ("one", "two", "three"))
    assert one.sha256 == two.sha256 != three.sha256
    assert one.source == str(tmp_path / "one")
    assert one.lines == ("Ann.", "Bo.")


def test_the_built_in_world_has_a_line_for_every_question() -> None:
    corpus = load_corpus("people")
    asked = [one for part in PARTS for one in load_questions(f"people:{part}")]
    assert len(corpus.lines) == len(set(corpus.titles)) == len(asked) == 3000
    for one in asked:
        (number,) = documents_about(corpus, one.question)
        assert one.answer is not None
        assert one.answer in corpus.lines[number]


def test_a_small_built_in_world() -> None:
    assert len(load_corpus("people:300").lines) == 300
    assert [len(load_questions(f"people:300:{part}")) for part in PARTS] == [180, 22, 23, 75]
    assert set(load_corpus("people:300").lines) < set(load_corpus("people").lines)


def test_the_simple_reader_is_neither_blind_nor_perfect() -> None:
    corpus, train, test = load_corpus("people"), load_questions("people:train"), load_questions("people:test")
    places = frozenset(one.answer for one in train if one.answer)
    share = sum(open_book(corpus, places, one.question) == one.answer for one in test) / len(test)
    assert 0.4 < share < 0.7


def test_a_world_in_several_forms() -> None:
    once, thrice = load_corpus("people:40"), load_corpus("people:40:x3")
    assert len(set(thrice.lines)) == len(thrice.lines) == 120
    assert thrice.lines[::3] == once.lines
    assert set(thrice.titles) == set(once.titles)
    assert load_corpus("people:40:x1").lines == once.lines
    assert load_questions("people:40:x3:dev") == load_questions("people:40:dev")


@pytest.mark.parametrize("source", ["people:40:x0", "people:40:x16", "people:x99"])
def test_nobody_can_be_told_in_so_many_forms(source: str) -> None:
    with pytest.raises(DataError, match=rf"^{source}: a person is described in 1 to 15 forms, not in \d+$"):
        load_corpus(source)


@pytest.mark.parametrize("source", ["people:x", "people:x3:300", "people:300:y3", "prose:x3", "people:300x3"])
def test_mistyped_forms_are_named(source: str) -> None:
    with pytest.raises(DataError, match=f"unknown built-in data '{source}'"):
        load_corpus(source)


@pytest.mark.parametrize("source", ["people:tset", "people:300:tset", "people:", "people:test:300", "people:-3"])
def test_a_mistyped_part_is_named_with_the_nearest(source: str) -> None:
    for load in (load_corpus, load_questions):
        with pytest.raises(DataError, match=r"unknown built-in data '.*did you mean|choose from"):
            load(source)


def test_the_nearest_part_is_right() -> None:
    with pytest.raises(DataError, match="did you mean people:test"):
        load_questions("people:tset")
    with pytest.raises(DataError, match="did you mean people:300:test"):
        load_questions("people:300:tset")
    with pytest.raises(DataError, match="did you mean people:dev"):
        load_questions("poeple:dev")
    with pytest.raises(DataError, match=r"did you mean people\?"):
        load_corpus("poeple")


def test_corpus_and_questions_are_not_confused() -> None:
    with pytest.raises(DataError, match=r"the corpus is people:300$"):
        load_corpus("people:300:dev")
    with pytest.raises(DataError, match="choose people:train or people:dev or people:calibration or people:test"):
        load_questions("people")
    with pytest.raises(DataError, match="1 to 3000"):
        load_corpus("people:30000")


def test_a_file_may_be_called_people(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("people").write_text("Ann Lee. Lee was born in York .\n", encoding="utf-8")
    assert load_corpus("./people").titles == ("Ann Lee",)
    assert load_corpus(Path("people")).titles == ("Ann Lee",)
    assert len(load_corpus("people").lines) == 3000
    assert load_questions("./people") == (Question("Ann Lee. Lee was born in York .", None),)


def test_what_is_exported_is_read_back(tmp_path: Path) -> None:
    folder = tmp_path / "new" / "world"
    paths = export("people:300", folder)
    assert sorted(path.name for path in paths) == sorted(
        ["LICENSE-DATA.md", "corpus.txt", *(f"{part}.tsv" for part in PARTS)]
    )
    assert load_corpus(folder / "corpus.txt").sha256 == load_corpus("people:300").sha256
    for part in PARTS:
        assert load_questions(folder / f"{part}.tsv") == load_questions(f"people:300:{part}")
    assert b"\r" not in (folder / "corpus.txt").read_bytes()


def test_export_overwrites_nothing(tmp_path: Path) -> None:
    (tmp_path / "dev.tsv").write_text("mine", encoding="utf-8")
    for taken in (tmp_path, tmp_path / "dev.tsv"):
        with pytest.raises(OutputExists, match="exists already: choose another name"):
            export("people:300", taken)
    assert [path.name for path in tmp_path.iterdir()] == ["dev.tsv"]
    assert (tmp_path / "dev.tsv").read_text(encoding="utf-8") == "mine"


@pytest.mark.parametrize(("source", "mistake"), [("wiki.txt", "not built-in"), ("people:dev", "the corpus is people")])
def test_export_is_for_a_built_in_corpus(tmp_path: Path, source: str, mistake: str) -> None:
    with pytest.raises(DataError, match=mistake):
        export(source, tmp_path / "new")
    assert not (tmp_path / "new").exists()


@pytest.fixture(scope="module")
def birthplaces() -> tuple[Corpus, tuple[Question, ...]]:
    if "ATTNLAB_DATA" not in os.environ:
        pytest.skip("ATTNLAB_DATA is not set to the folder that holds birthplaces/")
    folder = Path(os.environ["ATTNLAB_DATA"]) / "birthplaces"
    return load_corpus(folder / "wiki.txt"), load_questions(folder / "birth_places_train.tsv")


def test_titles_of_the_birthplaces(birthplaces: tuple[Corpus, tuple[Question, ...]]) -> None:
    corpus, asked = birthplaces
    names = [re.sub(r"^Where was (.*) born\?$", r"\1", one.question) for one in asked]
    titles = set(corpus.titles)
    missing = [name for name in names if name not in titles]
    assert len(missing) <= 0.005 * len(names), missing


def test_open_book_on_the_birthplaces(birthplaces: tuple[Corpus, tuple[Question, ...]]) -> None:
    corpus, asked = birthplaces
    shares = []
    for seed in range(5):
        order = random.Random(seed).sample(asked, len(asked))
        places = frozenset(one.answer for one in order[:-200] if one.answer)
        shares.append(sum(open_book(corpus, places, one.question) == one.answer for one in order[-200:]) / 200)
    assert 0.79 < sum(shares) / len(shares) < 0.90, shares
