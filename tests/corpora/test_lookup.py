"""Lookup in a corpus: the lines under a heading, and the names most similar to one that is no heading."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from attnlab.corpora import Corpus, load_corpus, sources
from attnlab.corpora.library import Line
from attnlab.errors import DataError, UserError

ODD = Corpus(
    "odd",
    (
        "Ann Lee. Lee was born in York .",
        "Malcolm X. Malcolm X was born in Omaha. He left .",
        "Ann Lee. The other Ann was born in Bath .",
        "J. R. O'Dell Jr. J. R. O'Dell Jr. was born in Hull .",
        "nothing that could be a heading",
        "José Peña. Peña left Yorkshire for Ely .",
        "Jose\u0301 Pen\u0303a. The same name in other bytes, of Wells .",
        "李 白. 李 白 was born in Suiye .",
        "Daniel M. Hausman. Hausman was born in Chicago .",
        "Ørsted (born 1777). Born in Rudkøbing .",
        "?!. ?! was born nowhere .",
    ),
)


@pytest.fixture(scope="module")
def people() -> Corpus:
    return load_corpus("people")


def test_every_built_in_heading_leads_to_its_line(people: Corpus) -> None:
    for number, (title, line) in enumerate(zip(people.titles, people.lines, strict=True)):
        assert people.find(title) == people.about(f"Where was {title} born?") == (Line(number, line),)


def test_headings_with_odd_characters() -> None:
    assert [line.number for line in ODD.find("Ann Lee")] == [0, 2]
    assert [line.number for line in ODD.find("Jose\u0301 Pen\u0303a")] == [5, 6]
    assert [line.number for line in ODD.about("Did 李 白 know J. R. O'Dell Jr. ?")] == [3, 7]
    assert ODD.find("ann lee") == ODD.find("") == ODD.find("Ann") == ODD.about("Malcolm") == ()


TYPOS: dict[str, Callable[[str, random.Random], str]] = {
    "letter missing": lambda name, r: (lambda i: name[:i] + name[i + 1 :])(r.randrange(len(name))),
    "letter added": lambda name, r: (lambda i: name[:i] + r.choice("aeinrst") + name[i:])(r.randrange(len(name))),
    "letter changed": lambda name, r: (lambda i: name[:i] + r.choice("aeinrst") + name[i + 1 :])(
        r.randrange(len(name))
    ),
    "letters swapped": lambda name, r: (lambda i: name[:i] + name[i + 1] + name[i] + name[i + 2 :])(
        r.randrange(len(name) - 1)
    ),
    "last name first": lambda name, r: f"{name.split()[-1]}, {' '.join(name.split()[:-1])}",
    "capitals": lambda name, r: name.upper(),
    "initial added": lambda name, r: " ".join([name.split()[0], "Q.", *name.split()[1:]]),
}


@pytest.mark.parametrize("typo", TYPOS)
def test_a_misspelt_name_finds_the_name_first(people: Corpus, typo: str) -> None:
    draw = random.Random(0)
    names = [name for name in draw.sample(people.titles, 60) if " " in name and "(" not in name]
    misspelt = {TYPOS[typo](name, draw): name for name in names}
    strangers = {wrong: name for wrong, name in misspelt.items() if not people.find(wrong)}
    assert len(strangers) > 30
    missed = [name for wrong, name in strangers.items() if people.nearest(wrong, 3)[0].name != name]
    assert len(missed) <= 1, missed  # some names of real people differ by one letter


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ("Daniel Hausman", "Daniel M. Hausman"),
        ("Hausman, Daniel M.", "Daniel M. Hausman"),
        ("daniel m hausmann", "Daniel M. Hausman"),
        ("Malcom X", "Malcolm X"),
        ("Orsted born", "Ørsted (born 1777)"),
        ("Pena José", "José Peña"),
        ("李 白白", "李 白"),
        ("An Lee", "Ann Lee"),
    ],
)
def test_the_most_similar_name(wrong: str, name: str) -> None:
    assert ODD.nearest(wrong)[0].name == name


def test_similar_names_come_in_order_and_each_once(people: Corpus) -> None:
    near = people.nearest("Anne Lee", 50)
    assert len({match.name for match in near}) == len(near) == 50
    assert [match.similarity for match in near] == sorted((match.similarity for match in near), reverse=True)
    assert people.nearest("Anne Lee", 5) == near[:5]
    assert [(match.name, match.similarity) for match in ODD.nearest("ANN  lee!", 1)] == [("Ann Lee", 1.0)]


def test_names_that_resemble_none() -> None:
    assert ODD.nearest("?!") == ODD.nearest("") == ODD.nearest("Qqqq Zzzz") == ()
    assert Corpus("plain", ("no heading", "none here")).nearest("Ann") == ()
    with pytest.raises(UserError, match="at least 1, not 0"):
        ODD.nearest("Ann", 0)


def test_a_file_too_large_for_memory_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "corpus.txt"
    path.write_text("Ann Lee. Lee was born in York .\n" * 10)
    monkeypatch.setattr(sources, "memory_free", lambda: 5 * path.stat().st_size)
    assert load_corpus(path, lookup=True).find("Ann Lee")
    monkeypatch.setattr(sources, "memory_free", lambda: 3 * path.stat().st_size)
    with pytest.raises(DataError, match="split it"):
        load_corpus(path, lookup=True)


def test_torch_is_not_needed() -> None:
    program = "import sys, attnlab.corpora.library; assert not {'torch', 'rapidfuzz'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)
