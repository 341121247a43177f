"""Small stories made from a grammar: who was where, who put what into which place, and what came of it; as many as asked for.

    story(7).text         "Before lunch, a bold owl named Ada was in the kitchen. Ada had a red cup. ..."
    story(7).things       what there is, whose it is, and where it was put by whom, in order
    questions([story(7)]) the story up to where it tells the outcome, with a question such as "Where is the red cup?"

Things stay where they were put, and names keep their pronouns: a pronoun is always that of the person named last. A story
depends on the seed and its number alone. The words and sentences are in data/stories.toml, the grammar is here. Knows nothing
about tokens or models.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, TypeVar

import numpy as np

from attnlab.corpora.files import Question
from attnlab.errors import DataError
from attnlab.reading import packaged_text

T = TypeVar("T")

USUAL, MOST = 10_000, 1_000_000  # stories of the corpus without a number, and at most
_LONG = 350  # characters from which on nothing is told but what is needed
_LONG_U = ("eu", "uk", "uni", "use", "usu")  # vowels that are spoken as consonants: a ukulele, a useful hat
_SILENT_H = ("heir", "honest", "hour")
_PRONOUNS = {True: ("she", "her", "her", "herself"), False: ("he", "his", "him", "himself")}


@dataclass(frozen=True)
class Character:
    """A person or animal of a story."""

    name: str
    girl: bool
    kind: str  # with a trait, such as "shy rabbit"

    @property
    def words(self) -> dict[str, str]:
        """The name and the pronouns, as sentences take them."""
        return dict(zip(("name", "she", "her", "him", "self"), (self.name, *_PRONOUNS[self.girl]), strict=True))


@dataclass(frozen=True)
class Placing:
    """A place such as "in the box", and who put a thing there."""

    spot: str
    by: str


@dataclass(frozen=True)
class Thing:
    """A thing, whose it is, and where it was put, in order; it is where it was put last."""

    adjective: str
    noun: str
    owner: str
    placings: tuple[Placing, ...] = ()

    @property
    def phrase(self) -> str:
        """The thing with its adjective."""
        return f"{self.adjective} {self.noun}"

    @property
    def spot(self) -> str:
        """Where it is."""
        return self.placings[-1].spot


@dataclass(frozen=True)
class Story:
    """A story with its facts; the ending tells where the first thing is."""

    number: int
    body: str
    ending: str
    setting: str
    characters: tuple[Character, ...]
    things: tuple[Thing, ...]

    @property
    def text(self) -> str:
        """The whole story, on one line."""
        return f"{self.body} {self.ending}"


_QUESTIONS: tuple[tuple[str, Callable[[Thing], str]], ...] = (  # with their answers
    *[("Where is the {0.phrase}?", lambda thing: thing.spot)] * 3,
    ("Where was the {0.phrase} at first?", lambda thing: thing.placings[0].spot),
    ("Who put the {0.phrase} {0.spot}?", lambda thing: thing.placings[-1].by),
    ("Whose is the {0.phrase}?", lambda thing: thing.owner),
)


# The words


def with_article(words: str) -> str:
    """Return words after "a" or "an"."""
    vowel = words.startswith(_SILENT_H) or (words[0] in "aeiou" and not words.startswith(_LONG_U))
    return f"{'an' if vowel else 'a'} {words}"


def _listed(text: str) -> tuple[str, ...]:
    """The parts of a list, separated by `|`, by lines if they are causes with effects, or else by commas."""
    parts = text.strip().split("|" if "|" in text else "\n" if "=>" in text else ",")
    return tuple(" ".join(part.split()) for part in parts)


@cache
def _grammar() -> dict[str, Any]:
    """The tables of stories.toml, with every list split."""

    def split(table: Mapping[str, Any]) -> dict[str, Any]:
        return {key: split(value) if isinstance(value, dict) else _listed(value) for key, value in table.items()}

    grammar = tomllib.loads(packaged_text("corpora", "data", "stories.toml"))
    settings = {place: row.split(" | ") for place, row in grammar.pop("settings").items()}
    return {**split(grammar), "settings": [(place, side, _listed(spots)) for place, (side, spots) in settings.items()]}


# The grammar


class _Writer:
    """Writes a story sentence by sentence, and keeps its facts."""

    def __init__(self, number: int, seed: int) -> None:
        self.generator = np.random.default_rng([seed, number])
        self.grammar = _grammar()
        self.sentences: list[str] = []
        self.told: set[str] = set()  # forms of sentences that were used
        self.characters: list[Character] = []
        self.things: list[Thing] = []
        self.setting, self.side, spots = self.pick(self.grammar["settings"])
        self.spots = self.several(spots, len(spots))  # every one is used once

    def chance(self, share: float) -> bool:
        """Whether something happens that happens in this share of stories."""
        return bool(self.generator.random() < share)

    def pick(self, options: Sequence[T]) -> T:
        """One of some options."""
        return options[int(self.generator.random() * len(options))]

    def several(self, options: Sequence[T], count: int) -> list[T]:
        """Different ones of some options, in random order."""
        rest = list(options)
        return [rest.pop(int(self.generator.random() * len(rest))) for _ in range(count)]

    def tell(self, name: str, who: Character, thing: Thing | None = None, **more: str) -> None:
        """Write a sentence of the grammar with its words filled in."""
        words, forms = self.grammar["words"], self.grammar["sentences"][name]
        form = self.pick([form for form in forms if form not in self.told])
        self.told.add(form)
        if thing is not None:
            more |= {"thing": self.pick((thing.phrase, thing.noun)), "a_noun": with_article(thing.noun)}
            more |= {"a_thing": with_article(thing.phrase), "giver": self.pick(self.grammar["givers"])}
        more |= {key: self.pick(words[table]) for key, table in (("put", "put"), ("adverb", "adverbs"))}
        self.sentences.append(form.format(**who.words, **more))

    def character(self) -> Character:
        """A new character."""
        girl, known = self.chance(0.5), {who.name for who in self.characters}
        names = [name for name in self.grammar["girls" if girl else "boys"] if name not in known]
        kind = ("girl" if girl else "boy") if self.chance(0.25) else self.pick(self.grammar["kinds"])
        self.characters.append(Character(self.pick(names), girl, f"{self.pick(self.grammar['traits'])} {kind}"))
        return self.characters[-1]

    def begin(self) -> None:
        """The first character, the place, and perhaps the weather."""
        who, time = self.character(), self.pick(self.grammar["times"])
        self.sentences.append(f"{time}, {with_article(who.kind)} named {who.name} was {self.setting}.")
        self.sunny = self.chance(0.4)  # whether the weather was told
        if self.sunny:
            self.tell(f"weather_{self.side}", who)

    def arrive(self) -> Character:
        """Another character comes, and may say something."""
        before, who = self.characters[-1], self.character()
        known = f"{with_article(who.kind)} named {who.name}"
        if len(self.characters) == 2 and self.chance(0.4):
            relation = self.pick(self.grammar["family"]).split("/")[who.girl]
            known = f"{before.words['her']} {relation} {who.name}"
            self.characters[-1] = who = replace(who, kind=relation)
        self.sentences.append(f"Then {known} {self.pick(self.grammar['words']['comes'])}.")
        if self.chance(0.3):
            self.tell("talk", who)
        return who

    def own(self, who: Character) -> None:
        """A character has something, and puts it somewhere."""
        used = {word for text in (self.setting, *self.spots, *self.sentences) for word in text.strip(".").split()}
        used |= {word for thing in self.things for word in (thing.noun, thing.adjective)}
        kind = self.grammar["things"][self.pick(tuple(self.grammar["things"]))]
        nouns = [noun for noun in kind["nouns"] if noun not in used]
        options = self.grammar["words"]["colours"] if self.chance(0.4) else kind["adjectives"]
        adjective = self.pick([word for word in options if word not in used])
        thing = Thing(adjective, self.pick(nouns), who.name)
        self.tell("had", who, thing)
        self.things.append(thing)
        self.place("puts", who, len(self.things) - 1)

    def place(self, name: str, who: Character, at: int) -> None:
        """A character puts a thing where none has been."""
        thing, spot = self.things[at], self.spots.pop()
        old = thing.placings[-1].spot if thing.placings else ""
        self.tell(name, who, thing, spot=spot, old=old)
        self.things[at] = replace(thing, placings=(*thing.placings, Placing(spot, who.name)))

    def happen(self) -> None:
        """A cause and its effect, about nothing that the facts are about; the weather is told once."""
        who = self.pick(self.characters)
        weather = ["weather"] if self.side == "out" and not self.sunny else []
        name = self.pick(["any", "any", self.side, *weather])
        self.sunny |= name == "weather"
        cause, effects = self.pick(self.grammar["sentences"][name]).split(" => ")
        cause, effect = cause.format(**who.words), self.pick(effects.split(" / ")).format(**who.words)
        told = f"Because {cause}, {effect}." if self.chance(0.3) else f"{cause[0].upper()}{cause[1:]}, so {effect}."
        words = set(told.rstrip(".").replace(",", "").split())
        fits = sum(map(len, self.sentences)) < _LONG and not any(cause.lower() in old.lower() for old in self.sentences)
        if fits and words.isdisjoint(thing.noun for thing in self.things):
            self.sentences.append(told)

    def act(self) -> None:
        """Somebody moves a thing, or only looks at it, if it is not his or her own."""
        who, at = self.pick(self.characters), int(self.generator.random() * len(self.things))
        if who.name == self.things[at].owner or self.chance(0.5):
            self.place("moves", who, at)
        else:
            self.tell("looks", who, self.things[at])

    def end(self) -> str:
        """The ending: the first character finds the first thing."""
        who, thing = self.characters[0], self.things[0]
        left = next(placing.spot for placing in reversed(thing.placings) if placing.by == who.name)
        surprised = left != thing.spot and self.chance(0.5)
        self.tell("moved_and_found" if surprised else "found", who, thing, spot=thing.spot, first=left)
        self.tell("ends", who)
        return " ".join(self.sentences[-2:])


def story(number: int, seed: int = 0) -> Story:
    """Return one of the stories of a seed."""
    writer = _Writer(number, seed)
    writer.begin()
    writer.own(writer.characters[0])
    if writer.chance(0.3):
        writer.happen()
    other = writer.arrive()
    if writer.chance(0.7):
        writer.own(other)
    third = writer.chance(0.2)
    for turn in range(2):
        if third and turn:
            writer.arrive()
        if writer.chance(0.4):
            writer.happen()
        writer.act()
    body, facts = " ".join(writer.sentences), (writer.setting, tuple(writer.characters), tuple(writer.things))
    return Story(number, body, writer.end(), *facts)


def part_of(number: int) -> str:
    """Return the part that a story belongs to; 80 % are for training."""
    return {8: "dev", 9: "test"}.get(number % 10, "train")


def load_stories(n: int | None = None, part: str | None = None) -> tuple[Story, ...]:
    """Return the first n stories; of these, all or those of one part."""
    count = USUAL if n is None else n
    if not 10 <= count <= MOST:
        raise DataError(f"there can be 10 to {MOST:,} stories, not {count:,}: ask for as many")
    return tuple(story(number) for number in range(count) if part in (None, part_of(number)))


def questions(stories: Iterable[Story]) -> tuple[Question, ...]:
    """Return one question per story, after the story without its ending; a kind is drawn by the number of the story."""
    asked = []
    for tale in stories:
        generator = np.random.default_rng([1, tale.number])
        form, at = (int(generator.random() * size) for size in (len(_QUESTIONS), len(tale.things)))
        thing, (question, answer) = tale.things[at], _QUESTIONS[form]
        asked.append(Question(f"{tale.body} {question.format(thing)}", answer(thing)))
    return tuple(asked)
