"""The built-in corpus: short biographies of 3,000 real people, and questions about where they were born.

It needs no download, and has what makes recall hard: many sentence forms, other places and dates around the birthplace,
people who share a surname. The facts are rows of a table and the sentence forms are lines of a file, so another seed
describes the same person in other words. A person's text depends on the seed and that person alone, not on who else was
chosen. Knows nothing about the user's files, tokens or models.
"""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import date
from functools import cache

import msgspec
import numpy as np

from attnlab.corpora.files import Question
from attnlab.errors import DataError
from attnlab.reading import packaged_text

# calendar.month_name depends on the locale.
_MONTHS = "January February March April May June July August September October November December"
_TRAIN_SHARE = 0.60
_HELD_OUT_SHARE = 0.15  # dev and calibration


@dataclass(frozen=True)
class Person:
    """The facts about one person; `name` is unique, `death_city` may be empty."""

    person_id: str
    name: str
    given_name: str
    surname: str
    birth_date: date
    birth_city: str
    birth_region: str
    debut_date: date
    debut_team: str
    debut_city: str
    bats: str
    throws: str
    position: str
    death_city: str


# The place of birth comes first, in the middle or last; other places come before and after it.
FORMS = tuple(packaged_text("corpora", "data", "people-forms.txt").splitlines())
MOST_FORMS = sum("{death}" not in form for form in FORMS)  # those that fit everyone
# The first form is the usual one: it is listed as often as all others together.
_QUESTIONS = (
    *["Where was {name} born?"] * 4,
    "In which city was {name} born?",
    "What is the birthplace of {name}?",
    "In what place was {name} born?",
    "What was the place of birth of {name}?",
)


def _person_generator(seed: int, purpose: str, person: Person) -> np.random.Generator:
    """A generator that depends on the seed, the purpose and the person, not on the order or number of people."""
    digest = hashlib.sha256(f"{purpose}:{person.person_id}".encode()).digest()
    return np.random.default_rng([seed, int.from_bytes(digest[:8], "big")])


def _pick(generator: np.random.Generator, options: Sequence[str]) -> str:
    return options[int(generator.random() * len(options))]


def _day(when: date, month_first: bool) -> str:
    """A date in words, in one of the two usual orders."""
    month = _MONTHS.split()[when.month - 1]
    return f"{month} {when.day}, {when.year}" if month_first else f"{when.day} {month} {when.year}"


def _forms_for(person: Person) -> list[str]:
    """The sentence forms for which all facts about a person are known."""
    return [form for form in FORMS if person.death_city or "{death}" not in form]


def variants(person: Person, count: int, seed: int = 0) -> tuple[str, ...]:
    """Return `count` lines about a person, the name as a heading and a sentence with the place of birth, in different forms.

    A larger count begins with the same lines, so that a corpus of four forms contains that of two.
    """
    assert 1 <= count <= MOST_FORMS, "every person can be described in that many forms, and not in more"
    generator = _person_generator(seed, "biography", person)
    first = _pick(generator, _forms_for(person))
    lines = [render(person, first, generator)]
    if count > 1:
        others = [form for form in _forms_for(person) if form != first]
        generator = _person_generator(seed, "retold", person)
        order = generator.permutation(len(others))[: count - 1].tolist()
        lines += [render(person, others[at], generator) for at in order]
    return tuple(lines)


def render(person: Person, form: str, generator: np.random.Generator) -> str:
    """Return one line about a person in a sentence form; date format and form of the name are drawn."""
    usual = person.name.split(" (")[0]
    month_first = generator.random() < 0.5
    team, city = person.debut_team, person.debut_city
    sentence = form.format(
        subject=_pick(generator, (usual, usual, person.given_name, person.surname)),
        surname=person.surname,
        given_name=person.given_name,
        birth=_day(person.birth_date, month_first),
        city=person.birth_city,
        region=person.birth_region,
        debut=_day(person.debut_date, month_first),
        debut_year=person.debut_date.year,
        team=team,
        club=team if city in team else f"{team} of {city}",
        debut_city=city,
        bats="from both sides" if person.bats == "both" else f"{person.bats}-handed",
        throws=f"{person.throws}-handed",
        position=person.position,
        a_position=f"{'an' if person.position[0] in 'aeiou' else 'a'} {person.position}",
        death=person.death_city,
    )
    return f"{person.name}. {sentence}"


def biographies(people: Iterable[Person], seed: int = 0, forms: int = 1) -> tuple[str, ...]:
    """Return the lines about all people in order, in `forms` sentence forms each."""
    return tuple(line for person in people for line in variants(person, forms, seed))


def questions(people: Iterable[Person], seed: int = 0) -> tuple[Question, ...]:
    """Return one question per person about the place of birth, with the city as its answer."""
    return tuple(
        Question(
            _pick(_person_generator(seed, "question", person), _QUESTIONS).format(name=person.name), person.birth_city
        )
        for person in people
    )


def split(people: Iterable[Person], seed: int = 0) -> dict[str, tuple[Person, ...]]:
    """Split people into train (60 %), dev and calibration (7.5 % each) and test (25 %), each in the order given."""
    everyone = tuple(people)
    drawn = sorted(
        range(len(everyone)),
        key=lambda i: (_person_generator(seed, "split", everyone[i]).random(), everyone[i].person_id),
    )
    n_train, n_held_out = round(_TRAIN_SHARE * len(everyone)), round(_HELD_OUT_SHARE * len(everyone))
    middle, end = n_train + n_held_out // 2, n_train + n_held_out
    parts = {
        "train": drawn[:n_train],
        "dev": drawn[n_train:middle],
        "calibration": drawn[middle:end],
        "test": drawn[end:],
    }
    return {name: tuple(everyone[i] for i in sorted(part)) for name, part in parts.items()}


def _small_world(people: Sequence[Person], n: int) -> tuple[Person, ...]:
    """A subset of n people, drawn town by town, so that most towns have several natives."""
    towns: dict[str, list[Person]] = defaultdict(list)
    for person in sorted(people, key=lambda person: hashlib.sha256(person.person_id.encode()).digest()):
        towns[person.birth_city].append(person)
    # No town may dominate: at most a fifteenth of the people, or three.
    limit = max(3, n // 15)
    order = sorted(towns, key=lambda town: hashlib.sha256(town.encode()).digest())
    chosen = [person.person_id for town in order for person in towns[town][:limit]][:n]
    rest = [person.person_id for town in order for person in towns[town][limit:]]
    keep = frozenset((chosen + rest)[:n])
    return tuple(person for person in people if person.person_id in keep)


@cache
def _everyone() -> tuple[Person, ...]:
    text = packaged_text("corpora", "data", "people.csv")
    return msgspec.convert(list(csv.DictReader(text.splitlines())), tuple[Person, ...])


def load_people(n: int | None = None) -> tuple[Person, ...]:
    """Return all people, or a fixed subset of n of them, in the order of the table."""
    people = _everyone()
    if n is None:
        return people
    if not 1 <= n <= len(people):
        raise DataError(f"there are {len(people)} people to choose from, not {n}: ask for 1 to {len(people)}")
    return _small_world(people, n)
