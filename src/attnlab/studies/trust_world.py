"""A world in which it is known who is known: lines that are kept from the model, and names that nobody has.

    facts         trained on
    calibration   names that it reads about and is never asked about: they set temperature and thresholds
    known         others like these: what its confidence is worth is measured on them
    withheld      real names whose lines it does not read, nor any question about them
    invented      given names and surnames of the corpus in pairs that no line has

Pure: text and questions in, text and questions out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from attnlab.corpora import Corpus, Question, as_table
from attnlab.corpora.library import headings_in, normal
from attnlab.errors import DataError

FEWEST = 60  # names with questions, below which there is nothing to split
SHARE = 6  # at most one name in so many is withheld
HELD_OUT = 0.2  # of the remaining names for calibration, and as many for the examination, where no files say otherwise
ATTEMPTS = 50  # draws for every invented name


@dataclass(frozen=True)
class World:
    """What the model reads and is trained on, and the questions that it is then asked."""

    lines: tuple[str, ...]
    facts: tuple[Question, ...]
    calibration: tuple[Question, ...]
    known: tuple[Question, ...]
    withheld: tuple[Question, ...]
    invented: tuple[Question, ...]

    def files(self) -> dict[str, bytes]:
        """The world as files of the users' formats, by name."""
        texts: dict[str, Iterable[str]] = {"corpus.txt": self.lines}
        for name in ("facts", "calibration", "known", "withheld", "invented"):
            texts[f"{name}.tsv"] = as_table(getattr(self, name))
        return {name: "".join(f"{line}\n" for line in lines).encode() for name, lines in texts.items()}


@dataclass(frozen=True)
class Directory:
    """The headings of a corpus, and which of them questions name."""

    corpus: Corpus

    @cached_property
    def headings(self) -> frozenset[str]:
        """All headings."""
        return frozenset(self.corpus.shelf)

    def named(self, text: str, among: Collection[str] | None = None) -> list[str]:
        """The headings in a text, the longest first."""
        return headings_in(text, self.headings if among is None else among, self.corpus.longest_title)


@dataclass(frozen=True)
class Pools:
    """Questions by what they are for; None: to be split off the facts."""

    facts: tuple[Question, ...]
    calibration: tuple[Question, ...] | None = None
    known: tuple[Question, ...] | None = None

    def everything(self) -> Iterable[Question]:
        """All questions."""
        return (*self.facts, *(self.calibration or ()), *(self.known or ()))


def make_world(corpus: Corpus, pools: Pools, count: int, seed: int) -> World:
    """A world with at most `count` names withheld and as many invented, drawn by the seed."""
    directory, rng = Directory(corpus), np.random.default_rng([seed, 6])
    names = {item: directory.named(item.question) for item in pools.everything()}
    people = list(dict.fromkeys(found[0] for found in names.values() if len(found) == 1))
    if len(people) < FEWEST:
        raise DataError(
            f"{len(people):,} names of the corpus have questions with answers, and it takes {FEWEST} to withhold some and"
            " examine others: give more --facts, whose names are headings of lines"
        )
    drawn = rng.permutation(len(people))[: min(count, len(people) // SHARE)]
    gone = frozenset(people[place] for place in drawn)
    pools = split(without(pools, names, gone), names, rng)
    kept = directory.headings - gone
    # A shorter name inside a withheld one would make it known after all.
    withheld = {
        found[0]: item
        for item, found in names.items()
        if found and found[0] in gone and not directory.named(item.question, kept)
    }
    lines = tuple(
        line for line, title in zip(corpus.lines, corpus.titles, strict=True) if not title or normal(title) not in gone
    )
    known = tuple(pools.known or ())
    return World(
        lines=lines,
        facts=pools.facts,
        calibration=tuple(pools.calibration or ()),
        known=known,
        withheld=tuple(withheld.values()),
        invented=tuple(invent(directory, sorted(kept), known, names, len(withheld), rng)),
    )


def without(pools: Pools, names: Mapping[Question, Sequence[str]], gone: Collection[str]) -> Pools:
    """The questions that name nobody who is gone; examined are only those about somebody whom no other part asks about."""

    def stays(item: Question) -> bool:
        return not any(name in gone for name in names[item])

    facts = tuple(filter(stays, pools.facts))
    asked = {name for item in facts for name in names[item]}

    def examined(questions: tuple[Question, ...] | None) -> tuple[Question, ...] | None:
        if questions is None:
            return None
        return tuple(item for item in questions if stays(item) and names[item] and not asked.intersection(names[item]))

    calibration = examined(pools.calibration)
    asked |= {name for item in calibration or () for name in names[item]}
    return replace(pools, facts=facts, calibration=calibration, known=examined(pools.known))


def split(pools: Pools, names: Mapping[Question, Sequence[str]], rng: np.random.Generator) -> Pools:
    """Questions for calibration and examination split off the facts, where there are none: all of a name on one side."""
    missing = [part for part in ("calibration", "known") if getattr(pools, part) is None]
    people = list(dict.fromkeys(name for item in pools.facts for name in names[item][:1]))
    order = [people[place] for place in rng.permutation(len(people))]
    for part in missing:
        taken = frozenset(order[: round(HELD_OUT * len(people))])
        order = order[len(taken) :]
        chosen = tuple(item for item in pools.facts if taken.issuperset(names[item]) and names[item])
        left = tuple(item for item in pools.facts if not taken.intersection(names[item]))
        pools = replace(pools, facts=left, **{part: chosen})
    return pools


def invent(
    directory: Directory,
    people: Sequence[str],
    known: Sequence[Question],
    names: Mapping[Question, Sequence[str]],
    count: int,
    rng: np.random.Generator,
) -> Iterable[Question]:
    """Questions about names that no line has, made of known given names and surnames, in the words of known questions."""
    parts = [name.split(" (")[0].rsplit(" ", 1) for name in people]
    parts = [part for part in parts if len(part) == 2 and not any(letter.isdigit() for letter in "".join(part))]
    forms = [(normal(item.question), names[item][0]) for item in known]
    if not parts or not forms:
        return
    taken: set[str] = set()
    for _ in range(ATTEMPTS * count):
        if len(taken) == count:
            return
        first, second, asked = (int(rng.integers(size)) for size in (len(parts), len(parts), len(forms)))
        name = f"{parts[first][0]} {parts[second][1]}"
        form, somebody = forms[asked]
        question = form.replace(somebody, name)
        if name not in taken and not directory.named(question):
            taken.add(name)
            yield Question(question, None)
