"""The built-in people: complete, named apart, told in many ways, and the same on every machine."""

from __future__ import annotations

import hashlib
import importlib.util
import re
from collections import Counter
from dataclasses import fields, replace
from datetime import date
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from attnlab.corpora import people, title_of
from attnlab.corpora.people import (
    FORMS,
    MOST_FORMS,
    Person,
    biographies,
    load_people,
    questions,
    render,
    split,
    variants,
)
from attnlab.errors import DataError

PEOPLE = load_people()
# A change of these is a change of the data that published results rest on.
BIOGRAPHIES_SHA256 = "9e62191e1311804ee2a8490fdd268dfb1a030642fea4a65ce2fd0f963fa0a732"
QUESTIONS_SHA256 = "0adaab5b98e4df4b30a8daf4d2320a601391fe335cc1d9107c88e8189e122774"
SPLIT_SHA256 = "40be0c2efdc95c8c0d310aa424fadc7102dfb5af7402e3456dd5b11009bb59d6"


def biography(person: Person, seed: int = 0) -> str:
    return variants(person, 1, seed)[0]


def fingerprint(lines: list[str] | tuple[str, ...]) -> str:
    return hashlib.sha256("".join(f"{line}\n" for line in lines).encode()).hexdigest()


@pytest.fixture(scope="module")
def make_people() -> ModuleType:
    path = Path(__file__).parents[2] / "tools" / "make_people.py"
    spec = importlib.util.spec_from_file_location("make_people", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_three_thousand_people_with_unique_names_and_keys() -> None:
    assert len(PEOPLE) == 3000
    assert len({person.name for person in PEOPLE}) == 3000
    assert len({person.person_id for person in PEOPLE}) == 3000


@pytest.mark.parametrize("fact", [field.name for field in fields(Person)])
def test_every_fact_is_clean_text(fact: str) -> None:
    for person in PEOPLE:
        value = getattr(person, fact)
        if isinstance(value, date):
            assert 1830 < value.year < 2025
            continue
        assert value == " ".join(value.split())
        assert value or fact == "death_city", person
        assert not re.search(r"[?�&#*/;_]|Ã|Â|unknown|n/a", value, re.IGNORECASE), person


def test_debut_is_in_the_life_of_a_grown_person() -> None:
    assert all(14 <= person.debut_date.year - person.birth_date.year <= 50 for person in PEOPLE)


def test_answers_are_open_but_learnable() -> None:
    towns = Counter(person.birth_city for person in PEOPLE)
    assert 500 <= len(towns) <= 900
    assert max(towns.values()) < 0.04 * len(PEOPLE)


def test_shared_names_are_all_told_apart(make_people: ModuleType) -> None:
    def row(name: str, given: str, year: int) -> dict[str, str]:
        return {"name": name, "given_name": given, "birth_date": f"{year}-01-02"}

    rows = [
        row("Bob Smith", "Robert Eldridge Smith", 1895),
        row("Bob Smith", "Robert Walkup Smith", 1927),
        row("Ken Hill", "Kenneth Lee Hill", 1950),
        row("Ken Hill", "Kenneth Lee Hill", 1980),
        row("Jose Cruz", "Jose Cruz", 1947),
        row("Jose Cruz", "Jose Luis Cruz", 1974),
        row("Al Lee", "Alan Lee", 1900),
        row("Al Lee", "Albert Lee", 1910),
        row("Alan Lee", "Alan Roy Lee", 1920),
        row("Ann Alone", "Annabel Alone", 1990),
    ]
    assert make_people.unique_names(rows) == [
        "Robert Eldridge Smith",
        "Robert Walkup Smith",
        "Ken Hill (born 1950)",
        "Ken Hill (born 1980)",
        "Jose Cruz (born 1947)",
        "Jose Cruz (born 1974)",
        "Al Lee (born 1900)",
        "Al Lee (born 1910)",
        "Alan Lee",
        "Ann Alone",
    ]


def test_names_that_cannot_be_told_apart_are_refused(make_people: ModuleType) -> None:
    twins = [{"name": "Jo Hill", "given_name": "Jo Hill", "birth_date": "1950-01-02"}] * 2
    with pytest.raises(SystemExit, match="Jo Hill"):
        make_people.unique_names(twins)


@pytest.mark.parametrize(
    "damaged", [None, "", ".", "Unknown", " Bonn", "Bo  nn", "Bonn?", "near Bonn", "Bonn; Bonn", "B0nn"]
)
def test_damaged_cells_are_refused(make_people: ModuleType, damaged: object) -> None:
    assert make_people.clean(damaged) == ""


def test_rows_are_written_in_a_stable_order() -> None:
    keys = [person.person_id for person in PEOPLE]
    assert keys == sorted(keys)


def test_each_line_has_heading_city_and_a_fair_length() -> None:
    for person, line in zip(PEOPLE, biographies(PEOPLE), strict=True):
        assert line.startswith(f"{person.name}. ")
        assert title_of(line) == person.name
        assert person.birth_city in line[len(person.name) + 2 :]
        assert line.endswith(" .")
        assert "\n" not in line
        assert "{" not in line
        assert 90 <= len(line) <= 260


def test_every_form_tells_the_birthplace_and_is_used() -> None:
    assert len(set(FORMS)) == len(FORMS) >= 12
    assert all("{city}" in form for form in FORMS)
    late = replace(PEOPLE[0], death_city="Nowhere")
    assert len({biography(late, seed)[:40] for seed in range(400)}) >= 12


def test_a_person_is_retold_in_other_forms_with_the_same_facts() -> None:
    assert MOST_FORMS == 15
    for person in PEOPLE[::200]:
        lines = variants(person, MOST_FORMS)
        assert lines[0] == biography(person)
        assert all(person.birth_city in line[len(person.name) :] for line in lines)
        assert len(set(lines)) == MOST_FORMS


def test_more_forms_begin_with_the_same_ones() -> None:
    for person in PEOPLE[:10]:
        assert variants(person, 8)[:3] == variants(person, 3)
        assert variants(person, 3)[:1] == variants(person, 1)


def test_no_form_is_used_twice_for_a_person(monkeypatch: pytest.MonkeyPatch) -> None:
    used: list[str] = []

    def noted(person: Person, form: str, generator: np.random.Generator) -> str:
        used.append(form)
        return render(person, form, generator)

    monkeypatch.setattr(people, "render", noted)
    variants(replace(PEOPLE[0], death_city=""), MOST_FORMS)
    assert sorted(used) == sorted(form for form in FORMS if "{death}" not in form)


def test_the_dead_alone_have_a_place_of_death() -> None:
    living = replace(PEOPLE[0], death_city="")
    assert not any("died in" in biography(living, seed) for seed in range(200))


def test_the_place_stands_first_in_the_middle_and_last() -> None:
    thirds = Counter(
        int(3 * line.index(person.birth_city, len(person.name) + 2) / len(line))
        for person, line in zip(PEOPLE, biographies(PEOPLE), strict=True)
    )
    assert all(thirds[third] > 0.15 * len(PEOPLE) for third in range(3)), thirds


def test_other_places_stand_before_and_after() -> None:
    before = after = 0
    for person, line in zip(PEOPLE, biographies(PEOPLE), strict=True):
        here = line.index(person.birth_city, len(person.name) + 2)
        there = line.find(person.debut_city, len(person.name) + 2)
        before += 0 <= there < here
        after += there > here
    assert min(before, after) > 0.15 * len(PEOPLE)


def test_rendering_is_the_same_everywhere() -> None:
    parts = split(PEOPLE)
    assert fingerprint(biographies(PEOPLE)) == BIOGRAPHIES_SHA256
    assert fingerprint([f"{one.question}\t{one.answer}" for one in questions(PEOPLE)]) == QUESTIONS_SHA256
    held_out = {*parts["dev"], *parts["calibration"]}  # one part in the published results
    asked = (*parts["train"], *(person for person in PEOPLE if person in held_out), *parts["test"])
    assert fingerprint([person.person_id for person in asked]) == SPLIT_SHA256


def test_another_seed_tells_it_in_another_way() -> None:
    assert biographies(PEOPLE, seed=1) != biographies(PEOPLE)
    assert questions(PEOPLE, seed=1) != questions(PEOPLE)
    assert split(PEOPLE, seed=1) != split(PEOPLE)


def test_a_person_is_told_alike_in_every_subset() -> None:
    everybody = dict(zip(PEOPLE, biographies(PEOPLE), strict=True))
    asked = dict(zip(PEOPLE, questions(PEOPLE), strict=True))
    few = load_people(300)
    assert biographies(few) == tuple(everybody[person] for person in few)
    assert questions(few[::-1]) == tuple(asked[person] for person in few[::-1])


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 3000))
def test_a_subset_has_as_many_people_as_asked_for(n: int) -> None:
    few = load_people(n)
    assert len(set(few)) == len(few) == n
    assert few == load_people(n)


def test_a_small_world_is_no_slice_of_the_table_and_no_single_town() -> None:
    few = load_people(300)
    assert len({person.name[0] for person in few}) > 15
    towns = Counter(person.birth_city for person in few)
    assert len(towns) >= 40
    assert max(towns.values()) <= 20


@pytest.mark.parametrize("n", [-1, 0, 3001])
def test_an_impossible_number_of_people_names_the_possible_ones(n: int) -> None:
    with pytest.raises(DataError, match="1 to 3000"):
        load_people(n)


@pytest.mark.parametrize(("n", "sizes"), [(3000, (1800, 225, 225, 750)), (300, (180, 22, 23, 75)), (1, (1, 0, 0, 0))])
def test_the_split_is_complete_and_disjoint(n: int, sizes: tuple[int, int, int, int]) -> None:
    people = load_people(n)
    parts = split(people)
    assert tuple(map(len, parts.values())) == sizes
    assert list(parts) == ["train", "dev", "calibration", "test"]
    assert set().union(*parts.values()) == set(people)
    assert sum(sizes) == n


def test_questions_name_the_person_in_several_phrasings() -> None:
    phrasings: Counter[str] = Counter()
    for person, one in zip(PEOPLE, questions(PEOPLE), strict=True):
        assert person.name in one.question
        assert one.answer == person.birth_city
        phrasings[one.question.replace(person.name, "X")] += 1
    assert phrasings.most_common(1)[0][0] == "Where was X born?"
    assert len(phrasings) >= 4
