"""The data of the trust study, split so that the names a model has read about are known.

    facts         training questions
    calibration   names in the training text without training questions: they set probabilities and thresholds
    known         more such names, on which the confidence is measured
    withheld      real names whose lines and questions are removed from training
    invented      combinations of given names and surnames of the corpus that occur in no line

Pure functions: text and questions in, text and questions out.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from attnlab.corpora import Corpus, Question, as_table
from attnlab.corpora.library import headings_in, normal
from attnlab.errors import DataError

_FEWEST = 60  # minimum number of names with questions
SHARE = 6  # at most one in so many names is withheld
HELD_OUT = 0.2  # share of the remaining names for calibration, and for the exam, if the user names no files
_ATTEMPTS = 50  # draws per invented name


@dataclass(frozen=True)
class World:
    """The training data, and the questions by use."""

    lines: tuple[str, ...]
    facts: tuple[Question, ...]
    calibration: tuple[Question, ...]
    known: tuple[Question, ...]
    withheld: tuple[Question, ...]
    invented: tuple[Question, ...]

    def files(self) -> dict[str, bytes]:
        """The data as files in the user's formats."""
        texts: dict[str, Iterable[str]] = {"corpus.txt": self.lines}
        for name in ("facts", "calibration", "known", "withheld", "invented"):
            texts[f"{name}.tsv"] = as_table(getattr(self, name))
        return {name: "".join(f"{line}\n" for line in lines).encode() for name, lines in texts.items()}


@dataclass(frozen=True)
class Pools:
    """Questions by use; None: to be split off the facts. The names of spare ones may be withheld too, and are not asked."""

    facts: tuple[Question, ...]
    calibration: tuple[Question, ...] | None = None
    known: tuple[Question, ...] | None = None
    spare: tuple[Question, ...] = ()


def make_world(corpus: Corpus, pools: Pools, count: int, seed: int) -> World:
    """Withhold at most `count` names and invent as many, drawn with the seed."""
    rng = np.random.default_rng([seed, 6])
    questions = (*pools.facts, *(pools.calibration or ()), *pools.spare, *(pools.known or ()))
    names = {item: headings_in(item.question, corpus.shelf, corpus.longest_title) for item in questions}
    if (
        pools.spare
    ):  # calibration and spare questions in the order of the corpus: who is withheld depends on neither alone
        line = {name: place for place, name in enumerate(corpus.shelf)}
        between = sorted(
            (*(pools.calibration or ()), *pools.spare), key=lambda item: [line[one] for one in names[item]]
        )
        names = {item: names[item] for item in (*pools.facts, *between, *(pools.known or ()))}
    people = list(dict.fromkeys(found[0] for found in names.values() if len(found) == 1))
    if len(people) < _FEWEST:
        raise DataError(
            f"{len(people):,} names of the corpus have questions with answers, and it takes {_FEWEST} to withhold some and"
            " examine others: give more --facts about names that are headings of lines"
        )
    drawn = rng.permutation(len(people))[: min(count, len(people) // SHARE)]
    gone = frozenset(people[place] for place in drawn)
    pools = _split(_without(pools, names, gone), names, rng)
    kept = corpus.shelf.keys() - gone
    # A shorter name inside a withheld one would make it known after all.
    withheld = {
        found[0]: item
        for item, found in names.items()
        if found and found[0] in gone and not headings_in(item.question, kept, corpus.longest_title)
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
        invented=tuple(_invent(corpus, sorted(kept), known, names, len(withheld), rng)),
    )


def _without(pools: Pools, names: Mapping[Question, Sequence[str]], gone: Collection[str]) -> Pools:
    """Remove questions about withheld names, and exam questions about names that occur in another part."""

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


def _split(pools: Pools, names: Mapping[Question, Sequence[str]], rng: np.random.Generator) -> Pools:
    """Split missing parts off the facts, with all questions about a name on one side."""
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


def _invent(
    corpus: Corpus,
    people: Sequence[str],
    known: Sequence[Question],
    names: Mapping[Question, Sequence[str]],
    count: int,
    rng: np.random.Generator,
) -> Iterable[Question]:
    """Phrase known questions for new combinations of known given names and surnames."""
    parts = [name.split(" (")[0].rsplit(" ", 1) for name in people]
    parts = [part for part in parts if len(part) == 2 and not any(letter.isdigit() for letter in "".join(part))]
    forms = [(normal(item.question), names[item][0]) for item in known]
    if not parts or not forms:
        return
    taken: set[str] = set()
    for _ in range(_ATTEMPTS * count):
        if len(taken) == count:
            return
        first, second, asked = (int(rng.integers(size)) for size in (len(parts), len(parts), len(forms)))
        name = f"{parts[first][0]} {parts[second][1]}"
        form, somebody = forms[asked]
        question = form.replace(somebody, name)
        if name not in taken and not headings_in(question, corpus.shelf, corpus.longest_title):
            taken.add(name)
            yield Question(question, None)
