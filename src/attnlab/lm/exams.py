"""Examinations: predictions beside the questions of an exam, scored by exact match, and tested against each other.

Predictions come from a model (`evaluate.examine`), from a rule such as `majority`, or from files. No torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from pathlib import Path
from typing import Any, Literal

from attnlab import stats
from attnlab.corpora import Question, load_questions, read_predictions
from attnlab.errors import DataError, UserError, cut, refuse_twice
from attnlab.store.records import flat, plain

_ALPHA = 0.05
_COMMONEST = 5  # predictions that every examination names, with their shares
_LONGEST = 30  # characters of a prediction in a sentence; an untrained model may write very long ones


@dataclass(frozen=True)
class Accuracy:
    """Correct answers with the 95 % interval of their share."""

    correct: int
    accuracy: float
    low: float
    high: float


@dataclass(frozen=True)
class Common:
    """A prediction with its share of all predictions."""

    prediction: str
    share: float


@dataclass(frozen=True)
class Score:
    """An examination in numbers; `right` is None if the exam has no answers."""

    questions: int
    commonest_prediction: str
    commonest_share: float
    distinct_predictions: int
    commonest: tuple[Common, ...] = ()  # the five most common; results of older versions have none
    right: Accuracy | None = flat(None)

    def sentence(self) -> str:
        """The line that the course's script prints, followed by the interval."""
        if self.right is None:
            return f"Predicted: {self.questions} answers (the exam has no answers to compare with)"
        return (
            f"Correct: {self.right.correct} out of {self.questions}: {100 * self.right.accuracy:.1f}%"
            f" (95 % interval {100 * self.right.low:.1f} to {100 * self.right.high:.1f} %)"
        )

    def commonest_words(self) -> str:
        """The most common predictions in a line."""
        named = ", ".join(
            f"{cut(one.prediction, _LONGEST) or '(nothing)'} {100 * one.share:.1f} %" for one in self.commonest
        )
        return f"most common answers: {named} ({self.distinct_predictions:,} distinct)"


@dataclass(frozen=True)
class Examination:
    """Predictions with the exam questions, whose answers may be unknown."""

    questions: tuple[Question, ...]
    predictions: tuple[str, ...]

    @classmethod
    def read(cls, questions: Sequence[Question], path: str | Path) -> Examination:
        """Read a file of one prediction per line, in the order of the questions."""
        found = read_predictions(path)
        if not found:
            raise DataError(f"{path} is empty; it needs one prediction per line, {len(questions):,} for this exam")
        if 2 * sum("\t" in line for line in found) > len(found):
            raise DataError(f"{path} has tabs: give the answers alone, one per line, without the questions")
        if len(found) != len(questions):
            raise DataError(
                f"{path} has {len(found):,} line{'' if len(found) == 1 else 's'}, and the exam {len(questions):,}"
                " questions: write one prediction per line, in the order of the questions"
            )
        return cls(tuple(questions), found)

    @property
    def answered(self) -> bool:
        """Whether the exam has answers to compare with."""
        return all(item.answer is not None for item in self.questions)

    @property
    def right(self) -> list[bool]:
        """Exact match per question."""
        return [
            prediction == (item.answer or "").strip()
            for item, prediction in zip(self.questions, self.predictions, strict=True)
        ]

    def lines(self) -> bytes:
        """Return the predictions as a file, one per line."""
        return "".join(f"{prediction}\n" for prediction in self.predictions).encode()

    def score(self) -> Score:
        """Count correct answers and the most common predictions."""
        total, counts = len(self.predictions), Counter(self.predictions)
        commonest = tuple(Common(said, times / total) for said, times in counts.most_common(_COMMONEST))
        right = None
        if self.answered:
            correct = sum(self.right)
            right = Accuracy(correct, correct / total, *stats.proportion_interval(correct, total))
        return Score(total, commonest[0].prediction, commonest[0].share, len(counts), commonest, right)

    def summary(self) -> dict[str, Any]:
        """Return the score as plain values, ready for JSON."""
        found: dict[str, Any] = plain(self.score())
        return found

    def sentence(self) -> str:
        """The line that the course's script prints, followed by the interval."""
        return self.score().sentence()


def constant(answer: str, exam: Sequence[Question]) -> Examination:
    """The baseline that gives every question the same answer."""
    return Examination(tuple(exam), (answer.strip(),) * len(exam))


def majority(train: Sequence[Question], exam: Sequence[Question]) -> Examination:
    """The baseline that always gives the most common training answer."""
    commonest = Counter(item.answer for item in train if item.answer is not None).most_common(1)[0][0]
    return constant(commonest, exam)


# Several examinations on the same questions


@dataclass(frozen=True)
class Scored:
    """The predictions of a file, or a constant answer, in numbers."""

    name: str
    kind: Literal["model", "baseline"]  # a constant answer is a baseline
    score: Score = flat()


@dataclass(frozen=True)
class Pair:
    """Two examinations tested on the same questions; `adjusted` is p after Holm's correction."""

    first: str
    second: str
    words: str
    test: stats.McNemar = flat()
    adjusted: float | None = None

    @property
    def sentence(self) -> str:
        """The test as a sentence."""
        return f"{self.first} against {self.second}: {self.words}."


@dataclass(frozen=True)
class Scores:
    """All that `attnlab score` finds."""

    exam: str
    questions: int
    rows: tuple[Scored, ...]
    pairs: tuple[Pair, ...]

    def lines(self) -> list[str]:
        """Everything in lines of text: the score of each, then the tests."""
        several = len(self.rows) > 1
        scores = [
            line
            for one in self.rows
            for line in (f"{one.name}: " * several + one.score.sentence(), "  " * several + one.score.commonest_words())
        ]
        return [*scores, *(one.sentence for one in self.pairs)]


def pair_up(examinations: Mapping[str, Examination], all_pairs: bool = False) -> tuple[Pair, ...]:
    """Test each examination against the first, or all pairs, by McNemar's test with Holm's correction."""
    names = list(examinations)
    pairs = list(combinations(names, 2)) if all_pairs else [(names[0], other) for other in names[1:]]
    right = {name: one.right for name, one in examinations.items()}
    tests = [stats.mcnemar(right[a], right[b], _ALPHA / len(pairs)) for a, b in pairs]
    adjusted = stats.holm([test.p for test in tests]) if len(pairs) > 1 else [None] * len(pairs)
    return tuple(
        Pair(a, b, stats.in_words(test, a, b, adjusted=p, comparisons=len(pairs)), test, p)
        for (a, b), test, p in zip(pairs, tests, adjusted, strict=True)
    )


def score(exam: str | Path, *predictions: str | Path, always: Sequence[str] = (), all_pairs: bool = False) -> Scores:
    """Score files of predictions and constant answers on the same exam, and test them against each other."""
    questions = load_questions(exam)
    if any(item.answer is None for item in questions):
        raise DataError(f"{exam} has no answers to compare with; it needs QUESTION<TAB>ANSWER on every line")
    names = [*map(str, predictions), *(f"always {answer}" for answer in always)]
    if not names:
        raise UserError("nothing to score: name a file of predictions, or --always ANSWER")
    refuse_twice(names)
    found = [
        *(Examination.read(questions, path) for path in predictions),
        *(constant(answer, questions) for answer in always),
    ]
    rows = tuple(
        Scored(name, "model" if place < len(predictions) else "baseline", one.score())
        for place, (name, one) in enumerate(zip(names, found, strict=True))
    )
    return Scores(str(exam), len(questions), rows, pair_up(dict(zip(names, found, strict=True)), all_pairs))
