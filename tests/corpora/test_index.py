"""The index on disk: the same lines as the dictionary in memory, names like a name, and never half an index."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import attnlab
from attnlab.corpora import Corpus, documents_about, load_corpus
from attnlab.corpora import index as indexing
from attnlab.corpora.index import Index, Line, index_corpus, similarity
from attnlab.errors import DataError, StorageError, UserError

NASTY = Corpus(
    "nasty",
    (
        "Ann Lee. Lee was born in York .",
        "Malcolm X. Malcolm X was born in Omaha. He left .",
        "Ann Lee. The other Ann was born in Bath .",
        "Leo I. Pope Leo I, born in Tuscany, was Pope from the year 440 to the year 461 .",
        "J. R. O'Dell Jr. J. R. O'Dell Jr. was born in Hull .",
        "nothing that could be a heading",
        "José Peña. Peña left Yorkshire for Ely .",
        "Jose\u0301 Pen\u0303a. The same name in other bytes, of Wells .",
        "李 白. 李 白 was born in Suiye .",
        "Daniel M. Hausman. Hausman was born in Chicago .",
        "Ørsted (born 1777). Born in Rudkøbing .",
        "?!. ?! was born nowhere .",
        'Ann "Nan" Lee\\. She was\u2028born in a\x0bline .',
    ),
)


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "indexes"


@pytest.fixture(scope="module")
def everyone(tmp_path_factory: pytest.TempPathFactory) -> Index:
    return index_corpus("people", tmp_path_factory.mktemp("everyone"))


@pytest.fixture
def nasty() -> Index:
    return index_corpus(NASTY)


def agree(index: Index, corpus: Corpus) -> None:
    """An index knows what the dictionary in memory knows."""
    assert (len(index), index.sha256, index.longest) == (len(corpus.lines), corpus.sha256, corpus.longest_title)
    for heading, numbers in corpus.shelf.items():
        assert index.find(heading) == tuple(Line(number, corpus.lines[number]) for number in numbers)
        question = f"Where was {heading} born?"
        assert [line.number for line in index.about(question)] == documents_about(corpus, question)


def test_the_same_lines_as_in_memory_for_every_heading(everyone: Index) -> None:
    agree(everyone, load_corpus("people"))


def test_the_same_lines_for_nasty_headings(nasty: Index) -> None:
    agree(nasty, NASTY)
    assert [line.number for line in nasty.find("Jose\u0301 Pen\u0303a")] == [6, 7]
    assert [nasty.line(number) for number in range(len(nasty))] == list(NASTY.lines)
    assert nasty.find("ann lee") == nasty.find("") == nasty.find("Ann") == nasty.find("x" * 70_000) == ()
    assert "Malcolm X" in nasty
    assert "Malcolm" not in nasty


PARTS = (
    "Ann",
    "Lee",
    "B.",
    "X",
    "Jr.",
    "Dr.",
    "José",
    "Jose\u0301",
    "O'Dell",
    "(born 1950)",
    "I",
    "李白",
    "A.B.",
    " ",
    ".",
)
HEADINGS = st.lists(st.sampled_from(PARTS), min_size=1, max_size=5).map(" ".join)
LINES = st.tuples(
    HEADINGS, st.sampled_from((". Lee was born .", " was born .", ".", ". ", ". Ann Lee X")), st.booleans()
)


@settings(max_examples=15)
@given(st.lists(LINES, min_size=1, max_size=40), st.sampled_from(("\n", "\r\n")))
def test_the_same_lines_for_whatever_comes(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[str, str, bool]], end: str
) -> None:
    folder = tmp_path_factory.mktemp("whatever")
    lines = [f"{one}. {one}{rest}" if again else one + rest for one, rest, again in drawn]
    (folder / "corpus.txt").write_bytes(("\ufeff" + end.join(["still here", "", *lines])).encode())
    corpus = load_corpus(folder / "corpus.txt")
    agree(index_corpus(folder / "corpus.txt", folder), corpus)
    assert not index_corpus(corpus, folder).built


def test_a_line_that_is_not_there(nasty: Index) -> None:
    for number in (-1, len(nasty)):
        with pytest.raises(UserError, match=f"no line {number}: the corpus has lines 0 to 12"):
            nasty.line(number)


TYPOS: dict[str, Callable[[str, random.Random], str]] = {
    "left out": lambda name, r: (lambda i: name[:i] + name[i + 1 :])(r.randrange(len(name))),
    "put in": lambda name, r: (lambda i: name[:i] + r.choice("aeinrst") + name[i:])(r.randrange(len(name))),
    "another": lambda name, r: (lambda i: name[:i] + r.choice("aeinrst") + name[i + 1 :])(r.randrange(len(name))),
    "turned round": lambda name, r: (lambda i: name[:i] + name[i + 1] + name[i] + name[i + 2 :])(
        r.randrange(len(name) - 1)
    ),
    "parts changed": lambda name, r: f"{name.split()[-1]}, {' '.join(name.split()[:-1])}",
    "capitals": lambda name, r: name.upper(),
    "an initial more": lambda name, r: " ".join([name.split()[0], "Q.", *name.split()[1:]]),
}


@pytest.mark.parametrize("typo", TYPOS)
def test_a_name_with_a_slip_finds_the_name_first(everyone: Index, typo: str) -> None:
    corpus, draw = load_corpus("people"), random.Random(0)
    names = [name for name in draw.sample(corpus.titles, 60) if " " in name and "(" not in name]
    asked = [(name, TYPOS[typo](name, draw)) for name in names]
    strangers = [(name, wrong) for name, wrong in asked if wrong not in everyone]
    assert len(strangers) > 30
    found = {name: everyone.nearest(wrong, 3)[0].name for name, wrong in strangers}
    missed = [name for name in found if found[name] != name]
    assert len(missed) <= 1, missed  # some names of real people differ by one letter


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ("Daniel Hausman", "Daniel M. Hausman"),
        ("Hausman, Daniel M.", "Daniel M. Hausman"),
        ("daniel m hausmann", "Daniel M. Hausman"),
        ("Malcom X", "Malcolm X"),
        ("Orsted", "Ørsted (born 1777)"),
        ("Pena José", "José Peña"),
        ("李 白白", "李 白"),
        ("An Lee", "Ann Lee"),
    ],
)
def test_the_nearest_name(nasty: Index, wrong: str, name: str) -> None:
    near = nasty.nearest(wrong, 2)
    assert near[0].name == name
    assert 0.5 < near[0].similarity <= 1
    assert list(near) == sorted(near, key=lambda one: -one.similarity)


def test_an_exact_name_is_its_own_nearest_and_nothing_is_like_nothing(nasty: Index) -> None:
    assert (nasty.nearest("Ann Lee", 1)[0].name, nasty.nearest("Ann Lee", 1)[0].similarity) == ("Ann Lee", 1.0)
    assert nasty.nearest("?!") == nasty.nearest("") == nasty.nearest("Qqqq Zzzz") == ()
    assert similarity("ann lee", "lee ann") == 1
    assert similarity("bob smith", "wob smith") > 0.85
    with pytest.raises(UserError, match="at least 1, not 0"):
        nasty.nearest("Ann", 0)


def test_a_heading_of_many_lines_hides_no_other() -> None:
    """Also where so many headings lie between that the name is indexed again and again."""
    crowd = [f"Ann {syllable} Lee{number}. One ." for number in range(300) for syllable in ("Bo",)]
    lines = [line for one in crowd for line in ("Ann Lee. Lee was born in York .", one)]
    index = index_corpus(Corpus("crowd", tuple(lines)))
    near = [one.name for one in index.nearest("Anne Lee", 200)]
    assert near[0] == "Ann Lee"
    assert len(near) == len(set(near)) == 200


def test_passages_are_found_by_their_words_and_the_best_comes_first(everyone: Index) -> None:
    lines = load_corpus("people").lines
    for number in range(0, 3000, 100):
        passages = everyone.search(lines[number], 3)
        assert passages[0].number == number
        assert passages[0].text == lines[number]
        assert [one.score for one in passages] == sorted((one.score for one in passages), reverse=True)


def test_a_search_sees_words_not_letters(nasty: Index) -> None:
    assert {one.number for one in nasty.search("YORK")} == {0}
    assert {one.number for one in nasty.search("pena")} == {6, 7}
    assert {one.number for one in nasty.search("who was born in Omaha?", 3)} >= {1}
    assert nasty.search("who was born in Omaha?", 3)[0].number == 1
    assert nasty.search("") == nasty.search("Timbuktu") == ()
    assert nasty.search('") OR (', 2) == ()
    assert len(nasty.search("born", 20)) == sum(" born" in line or "Born" in line for line in NASTY.lines) + 1


def test_a_corpus_of_one_line_and_one_without_headings() -> None:
    one = index_corpus(Corpus("one", ("Ann Lee. Lee was born in York .",)))
    assert one.search("born in York")[0].number == 0
    assert one.nearest("An Lee")[0].name == "Ann Lee"
    none = index_corpus(Corpus("none", ("no heading", "none here")))
    assert none.nearest("Ann") == none.find("Ann") == none.about("Ann Lee") == ()


def test_it_is_built_once_and_by_the_lines_not_the_file(tmp_path: Path, cache: Path) -> None:
    shares: list[float] = []
    assert index_corpus("people:300", progress=shares.append).built
    assert shares == [1.0]
    attnlab.corpora.export("people:300", tmp_path / "files")
    assert not index_corpus(tmp_path / "files" / "corpus.txt", progress=shares.append).built
    assert shares == [1.0]
    assert [one.name for one in cache.iterdir() if one.is_dir()] == [load_corpus("people:300").sha256[:32]]


def test_the_share_done_is_told_as_it_grows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "LINES_PER_REPORT", 100)
    shares: list[float] = []
    index_corpus("people:300", progress=shares.append)
    assert shares == sorted(shares)
    assert len(shares) == 4
    assert 0.2 < shares[0] < 0.5


def test_a_file_that_was_read_is_not_read_again_until_it_changes(
    tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("Ann Lee. Born in York .\n", encoding="utf-8")
    index_corpus(path)
    assert not (cache / "known").exists()  # it may change again within one tick of the clock
    os.utime(path, (1e9, 1e9))
    first = index_corpus(path)
    assert len([*(cache / "known").iterdir()]) == 1
    with monkeypatch.context() as patch:
        patch.setattr(indexing, "fingerprint", None)
        assert index_corpus(path).sha256 == first.sha256
    path.write_text("Bob Lee. Born in York .\n", encoding="utf-8")
    assert index_corpus(path).find("Bob Lee")
    for note in (cache / "known").iterdir():
        note.write_bytes(b"\xff")
    os.utime(path, (1e9, 1e9))
    assert index_corpus(path).find("Bob Lee")


@pytest.mark.parametrize("mistake", ["missing", "latin", "mistyped"])
def test_the_mistakes_of_a_file_are_said_as_elsewhere(tmp_path: Path, cache: Path, mistake: str) -> None:
    (tmp_path / "latin.txt").write_bytes(b"Ann\nMalm\xf6\n")
    source = {"missing": tmp_path / "no.txt", "latin": tmp_path / "latin.txt", "mistyped": "poeple"}[mistake]
    with pytest.raises(DataError) as expected:
        load_corpus(source)
    with pytest.raises(DataError) as said:
        index_corpus(source)
    assert str(said.value) == str(expected.value)
    assert not cache.exists()


def replace(path: Path, data: bytes) -> None:
    """Another file in the place of one: no program survives that a file it has mapped grows shorter."""
    path.unlink()
    path.write_bytes(data)


def cut(path: Path) -> None:
    replace(path, path.read_bytes()[:-7])


def flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    replace(path, bytes(data))


def older(path: Path) -> None:
    told = json.loads(path.read_text(encoding="utf-8"))
    path.write_text(json.dumps({**told, "format": 0}), encoding="utf-8")


@pytest.mark.parametrize(
    ("pattern", "damage"),
    [
        *((pattern, damage) for pattern in ("*.store", "*.idx", "*.term", "meta.json") for damage in (cut, flip, Path.unlink)),
        *((name, damage) for name in ("about.json", "manifest.json") for damage in (cut, flip, Path.unlink)),
        ("about.json", older),
    ],
)  # fmt: skip
def test_a_damaged_or_outdated_index_is_built_anew(cache: Path, pattern: str, damage: Callable[[Path], None]) -> None:
    folder = index_corpus(NASTY).folder
    damage(next(folder.glob(pattern)))
    with pytest.raises(StorageError, match="there is no index"):
        Index(folder)
    again = index_corpus(NASTY)
    assert again.built
    agree(again, NASTY)
    assert not index_corpus(NASTY).built
    assert sorted(one.name for one in cache.iterdir()) == [".lock", folder.name]


def test_a_large_index_damaged_inside_is_built_anew_or_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every byte of a large one is not checked at each opening: the engine's own complaints must do."""
    monkeypatch.setattr(indexing, "CHECKED", 0)
    folder = index_corpus(NASTY).folder
    for pattern in ("*.term", "*.store"):
        path = next(folder.glob(pattern))
        replace(path, bytes(path.stat().st_size))
        index = index_corpus(NASTY)
        assert index.built
        agree(index, NASTY)
    opened = index_corpus(NASTY)
    with monkeypatch.context() as patch, pytest.raises(StorageError, match="is damaged: remove that folder"):
        patch.setattr(opened, "_searcher", Broken())
        opened.find("Ann Lee")


def test_a_flipped_bit_of_a_large_index_is_found_on_request(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(indexing, "CHECKED", 0)
    folder = index_corpus(NASTY).folder
    assert not index_corpus(NASTY, verify=True).built
    for place in range(len(indexing.files_of(folder))):
        path = indexing.files_of(folder)[place]  # a rebuilt index has other names
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        replace(path, bytes(data))
        again = index_corpus(NASTY, verify=True)
        assert again.built
        agree(again, NASTY)


@pytest.mark.parametrize("forged", ["/tmp/forged", "../" * 20 + "forged", "A" * 64, "", 7, None])
def test_only_a_checksum_becomes_the_place_of_an_index(forged: str) -> None:
    with pytest.raises(DataError, match="is no sha256: the run's config.json is damaged or was edited"):
        indexing.place_of(forged)


class Broken:
    """A searcher whose file has gone bad."""

    def doc_freq(self, *_: str) -> int:
        raise type("PanicException", (BaseException,), {})("assertion failed")


def test_an_interrupted_build_leaves_nothing(cache: Path) -> None:
    def stopped() -> Iterator[str]:
        yield from NASTY.lines
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        indexing.ensure(NASTY.sha256, stopped, 1000)
    assert [one.name for one in cache.iterdir()] == [".lock"]


def test_a_corpus_that_changes_meanwhile_is_not_indexed(cache: Path) -> None:
    with pytest.raises(DataError, match="was changed while it was being indexed"):
        indexing.ensure("0" * 64, lambda: NASTY.lines, 1000)
    assert [one.name for one in cache.iterdir()] == [".lock"]


KILLED = """
import sys, time
from attnlab.corpora import index as indexing
def lines():
    yield "Ann Lee. Lee was born in York ."
    print("half", flush=True)
    time.sleep(60)
indexing.ensure(sys.argv[1], lines, 1000)
"""


def test_a_killed_build_leaves_no_index_and_the_next_clears_up(cache: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", KILLED, NASTY.sha256], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "half\n"
        process.send_signal(signal.SIGKILL)
    assert not (cache / NASTY.sha256[:32]).exists()
    index = index_corpus(load_corpus("people:60"))  # of another corpus
    assert index.built
    assert sorted(one.name for one in cache.iterdir()) == [".lock", index.folder.name]
    agree(index_corpus(NASTY), NASTY)


def test_two_processes_at_once_build_one_index(cache: Path) -> None:
    program = "import attnlab; one = attnlab.index_corpus('people:300'); print(one.built, len(one.find('Cody Allen')))"
    command = [sys.executable, "-c", program]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(2)]
    said = [process.communicate(timeout=100) for process in both]
    assert sorted(out for out, _ in said) == ["False 1\n", "True 1\n"]
    assert {error for _, error in said} == {""}
    assert len([one for one in cache.iterdir() if one.is_dir()]) == 1


def test_where_the_cache_cannot_be_written_an_index_lives_as_long_as_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_text("", encoding="utf-8")
    monkeypatch.setenv("ATTNLAB_CACHE", str(tmp_path / "file"))
    index = index_corpus(NASTY)
    assert tmp_path not in index.folder.parents
    agree(index, NASTY)
    shutil.rmtree(index.folder.parent)


def test_torch_is_not_needed() -> None:
    program = "import sys, attnlab.corpora.index; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", program], check=True)
