"""Examinations: predictions beside the questions of an exam, scored by exact match, and tested against each other.

Predictions come from a model (`evaluate.examine`), from a rule such as `majority`, or from files. No torch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path
from typing import Any, Literal, TypeVar

from attnlab import stats
from attnlab.corpora import Question, load_questions, read_predictions
from attnlab.errors import DataError, UserError, cut, refuse_twice

_ALPHA = 0.05
_COMMONEST = 5  # predictions that every examination names, with their shares
_LONGEST = 30  # characters of a prediction in a sentence; an untrained model may write very long ones


@dataclass(frozen=True)
class Common:
    """A prediction with its share of all predictions."""

    prediction: str
    share: float


@dataclass(frozen=True, kw_only=True)
class Score:
    """An examination in numbers; there is no accuracy if the exam has no answers."""

    questions: int
    commonest_prediction: str
    commonest_share: float
    distinct_predictions: int
    commonest: tuple[Common, ...]  # the most common ones
    correct: int | None = None
    accuracy: float | None = None
    low: float | None = None  # 95 % interval of the accuracy
    high: float | None = None

    def sentence(self) -> str:
        """The line that the course's script prints, followed by the interval."""
        if self.accuracy is None or self.low is None or self.high is None:
            return f"Predicted: {self.questions} answers (the exam has no answers to compare with)"
        return (
            f"Correct: {self.correct} out of {self.questions}: {100 * self.accuracy:.1f}%"
            f" (95 % interval {100 * self.low:.1f} to {100 * self.high:.1f} %)"
        )

    def commonest_words(self) -> str:
        """The most common predictions in a line."""
        named = ", ".join(
            f"{cut(common.prediction, _LONGEST) or '(nothing)'} {100 * common.share:.1f} %" for common in self.commonest
        )
        return f"most common answers: {named} ({self.distinct_predictions:,} distinct)"


@dataclass(frozen=True, kw_only=True)
class Scored(Score):
    """A model, a file of predictions or a constant answer, with its score."""

    name: str
    kind: Literal["model", "baseline"]
    note: str = ""
    seconds: float | None = None  # of training


_S = TypeVar("_S", bound=Scored)


@dataclass(frozen=True)
class Examination:
    """Predictions with the exam questions, whose answers may be unknown."""

    questions: tuple[Question, ...]
    predictions: tuple[str, ...]

    @classmethod
    def read(cls, questions: Sequence[Question], path: str | Path) -> Examination:
        """Read a file of one prediction per line, in the order of the questions."""
        lines = read_predictions(path)
        if not lines:
            raise DataError(f"{path} is empty; it needs one prediction per line, {len(questions):,} for this exam")
        if 2 * sum("\t" in line for line in lines) > len(lines):
            raise DataError(f"{path} has tabs: give the answers alone, one per line, without the questions")
        if len(lines) != len(questions):
            raise DataError(
                f"{path} has {len(lines):,} line{'' if len(lines) == 1 else 's'}, and the exam {len(questions):,}"
                " questions: write one prediction per line, in the order of the questions"
            )
        return cls(tuple(questions), lines)

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
        commonest = tuple(Common(prediction, times / total) for prediction, times in counts.most_common(_COMMONEST))
        score = Score(
            questions=total,
            commonest_prediction=commonest[0].prediction,
            commonest_share=commonest[0].share,
            distinct_predictions=len(counts),
            commonest=commonest,
        )
        if not self.answered:
            return score
        correct = sum(self.right)
        low, high = stats.proportion_interval(correct, total)
        return replace(score, correct=correct, accuracy=correct / total, low=low, high=high)

    def scored(self, row: type[_S], /, **fields: Any) -> _S:
        """Return the score as a row of a table: a record with the fields of a score and some more."""
        return row(**vars(self.score()), **fields)


def constant(answer: str, exam: Sequence[Question]) -> Examination:
    """The baseline that gives every question the same answer."""
    return Examination(tuple(exam), (answer.strip(),) * len(exam))


def majority(train: Sequence[Question], exam: Sequence[Question]) -> Examination:
    """The baseline that always gives the most common training answer."""
    commonest = Counter(item.answer for item in train if item.answer is not None).most_common(1)[0][0]
    return constant(commonest, exam)


# Several examinations on the same questions


@dataclass(frozen=True, kw_only=True)
class Pair(stats.McNemar):
    """Two examinations tested on the same questions; `adjusted` is p after Holm's correction."""

    first: str
    second: str
    words: str
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
            for row in self.rows
            for line in (f"{row.name}: " * several + row.sentence(), "  " * several + row.commonest_words())
        ]
        return [*scores, *(pair.sentence for pair in self.pairs)]


def pair_up(examinations: Mapping[str, Examination], all_pairs: bool = False) -> tuple[Pair, ...]:
    """Test each examination against the first, or all pairs, by McNemar's test with Holm's correction."""
    names = list(examinations)
    pairs = list(combinations(names, 2)) if all_pairs else [(names[0], other) for other in names[1:]]
    right = {name: examination.right for name, examination in examinations.items()}
    tests = [stats.mcnemar(right[a], right[b], _ALPHA / len(pairs)) for a, b in pairs]
    adjusted = stats.holm([test.p for test in tests]) if len(pairs) > 1 else [None] * len(pairs)
    return tuple(
        Pair(
            **vars(test),
            first=a,
            second=b,
            words=stats.in_words(test, a, b, adjusted=p, comparisons=len(pairs)),
            adjusted=p,
        )
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
    examinations = [
        *(Examination.read(questions, path) for path in predictions),
        *(constant(answer, questions) for answer in always),
    ]
    rows = tuple(
        examination.scored(Scored, name=name, kind="model" if place < len(predictions) else "baseline")
        for place, (name, examination) in enumerate(zip(names, examinations, strict=True))
    )
    return Scores(str(exam), len(questions), rows, pair_up(dict(zip(names, examinations, strict=True)), all_pairs))
