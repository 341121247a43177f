"""Calibrate a run's confidence on held-out questions.

The score of an answer is its probability times that of knowing the name. Platt scaling maps it to the probability that is
reported. The map is increasing, so a threshold on either scale is one on the other, and a rule does not depend on the
map: all questions fit the map, and all certify thresholds. Questions about the same name are not independent, so one per
name is used. The measurements are stored as calibration.json in the run's folder with the checksum of the model; a rule for
any allowed risk is derived from them.

It must not know what a line says or how an answer is shown.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from attnlab import stats
from attnlab.corpora import Corpus, Question, is_built_in
from attnlab.corpora.library import headings_in
from attnlab.errors import CheckpointError, DataError, UserError
from attnlab.lm.model import LanguageModel, load_model
from attnlab.lm.stages import stored_config
from attnlab.lm.tokenizers import Tokenizer
from attnlab.store import records
from attnlab.store.folders import add_files, digest, is_written, locked, read_bytes
from attnlab.store.runs import EXAMPLE, Run, lineage
from attnlab.tasks.recall import Strangers
from attnlab.trust.answers import AnswerDistribution, AnswerTrie, answer_distribution, familiarity
from attnlab.trust.training_data import Forms, TrainingData, candidates, data_sources

_FILE, _WEIGHTS = "calibration.json", "model.safetensors"
FLOOR = 1e-5  # answer prefixes less likely than this are not continued
_SEED = 0  # of all that is drawn here
_FEWEST = 4  # minimum number of questions
_STRANGERS = 400  # invented names to ask about
_NOBODY = 0.05  # maximum share of them that may be answered
_MILLION = 1_000_000


@dataclass(frozen=True)
class Row:
    """One held-out question: the correct answer, the model's answer, its score, and the confidence that is reported."""

    question: str
    answer: str
    prediction: str
    right: bool
    score: float
    confidence: float


@dataclass(frozen=True)
class CalibrationSummary:
    """Accuracy, calibration error, and rules.

    The error after calibration is cross-fitted: each question's confidence comes from a map fitted to other questions.
    """

    questions: int
    strangers: int | None
    repeated: int
    candidates: int
    correct: int
    accuracy: float
    low: float  # 95 % interval of the accuracy
    high: float
    ece_before: float
    ece_after: float
    ece_if_calibrated: float
    auroc: stats.Auroc | None
    rules: tuple[stats.SelectiveRule, ...]


@dataclass(frozen=True)
class Calibrated:
    """The calibration of a run, from which a rule for any allowed risk is derived."""

    model: str  # checksum of its weights
    scaling: stats.Platt  # from scores to probabilities
    answers: tuple[str, ...]
    prior: tuple[float, ...]  # per answer, and of anything else
    rows: tuple[Row, ...]
    strangers: int | None  # questions left out since no line is about their name; None: no corpus to look up
    repeated: int = 0  # further questions about a name, left out
    floor: float = FLOOR
    nobody: tuple[float, ...] = ()  # scores for invented names, if the model was trained with some

    @cached_property
    def right(self) -> list[bool]:
        """Whether each answer is correct."""
        return [row.right for row in self.rows]

    @cached_property
    def scores(self) -> list[float]:
        """The score of each answer."""
        return [row.score for row in self.rows]

    def rule(self, max_risk: float) -> stats.SelectiveRule:
        """Return the rule that keeps the share of wrong answers below this risk, and answers about invented names rare."""
        lowest = stats.least_confidence(self.nobody, _NOBODY) if self.nobody else 0.0
        rule = stats.selective_rule(
            self.scores, self.right, max_risk, lowest=lowest, shown=lambda score: float(self.scaling(score))
        )
        if not self.nobody:
            return rule
        also = (
            f" At most {100 * _NOBODY:.0f} % of invented names, combined from those that it read, are answered, with"
            f" 95 % confidence ({len(self.nobody):,} were tested)."
        )
        return replace(rule, words=rule.words + also) if rule.met else rule

    @cached_property
    def strictest(self) -> stats.SelectiveRule | None:
        """The rule of the smallest risk that can be certified, to a millionth; None if none can be."""
        least = bisect_left(range(_MILLION), True, lo=1, key=lambda risk: self.rule(risk / _MILLION).met)
        return self.rule(least / _MILLION) if least < _MILLION else None

    def summary(self, risks: Sequence[float] = (0.05, 0.1, 0.2)) -> CalibrationSummary:
        """Summarise the calibration, with rules for some risks."""
        before = stats.calibration(self.scores, self.right)
        after = stats.calibration(stats.cross_fitted(self.scores, self.right), self.right)
        low, high = stats.proportion_interval(sum(self.right), len(self.rows))
        sides = [[row.score for row in self.rows if row.right == side] for side in (True, False)]
        return CalibrationSummary(
            questions=len(self.rows),
            strangers=self.strangers,
            repeated=self.repeated,
            candidates=len(self.answers),
            correct=sum(self.right),
            accuracy=sum(self.right) / len(self.rows),
            low=low,
            high=high,
            ece_before=before.ece,
            ece_after=after.ece,
            ece_if_calibrated=after.ece_if_calibrated,
            auroc=stats.auroc(*sides) if all(sides) else None,
            rules=tuple(self.rule(risk) for risk in risks),
        )


def open_run(run: Run | Path | str) -> Run:
    """Open a run, given as a Run or as its folder; one that only read running text is refused."""
    opened = run if isinstance(run, Run) else Run.open(run)
    if opened.record.running_text:
        raise UserError(
            f"{opened.path} was trained on running text, not on questions: continue a text with `attnlab generate"
            f" {opened.path}`, or teach it questions with `attnlab finetune`"
        )
    return opened


def usual_questions(run: Run) -> str:
    """Return the held-out questions that belong to a run's built-in training questions."""
    for facts in data_sources(run, "facts")[:1]:
        if is_built_in(facts.source) and facts.source.endswith(":train"):
            return f"{facts.source.removesuffix('train')}calibration"
    raise UserError(f"which questions? Give --questions FILE, with answers that {run.path} was not trained on")


def calibrate(
    run: Run | Path | str, questions: Iterable[Question], *, trust_code: bool = False, data: TrainingData | None = None
) -> Calibrated:
    """Calibrate a run on held-out questions and store the result in its folder."""
    run = open_run(run)
    if run.path.resolve() == EXAMPLE.resolve():
        raise UserError("the example comes calibrated and is not changed: calibrate a run of your own")
    data = data or TrainingData(run)
    facts, lookup = data.facts, data.look_up()
    forms = Forms(facts)
    asked, strangers, repeated = _held_out(list(questions), facts, lookup.corpus, forms)
    model, tokenizer = load_model(run.model, trust_code=trust_code)
    trie = AnswerTrie(tokenizer, candidates(tokenizer, facts, data.lines))
    plain = valid(model, tokenizer, [item.question for item in asked], trie, forms)
    best = plain.best()
    right = [prediction == _answer(item) for (prediction, _), item in zip(best, asked, strict=True)]
    scaling = stats.fit_platt(plain.confidence, right)
    calibrated = plain.with_confidence(scaling(plain.confidence))
    others = _strange_questions(data, forms, asked)
    nobody = valid(model, tokenizer, others, trie, forms).confidence if others else ()
    result = Calibrated(
        model=digest(read_bytes(run.model / _WEIGHTS)),
        scaling=scaling,
        answers=trie.answers,
        prior=tuple(float(f"{share:.4g}") for share in calibrated.prior()),
        rows=tuple(
            Row(item.question, _answer(item), prediction, hit, score, float(confidence))
            for item, (prediction, score), hit, confidence in zip(
                asked, best, right, calibrated.confidence, strict=True
            )
        ),
        strangers=strangers,
        repeated=repeated,
        nobody=tuple(float(f"{score:.6g}") for score in nobody),
    )
    with locked(run.path):
        add_files(run.path, {_FILE: records.encode(result)})
    return result


def _strange_questions(data: TrainingData, forms: Forms, asked: Sequence[Question]) -> list[str]:
    """Questions about invented names, phrased like the others; none if the model was not trained with such names."""
    if not any(stored_config(run).task.options.get("strangers") for run in lineage(data.run)):
        return []
    corpus = Corpus("", tuple(data.lines()))
    drawn, rng = [], np.random.default_rng(_SEED)
    for name in Strangers(corpus).draw(_STRANGERS / max(1, len(corpus.lines)), rng):
        question = asked[int(rng.integers(len(asked)))].question
        drawn.append(question.replace(forms.name(question), name))
    return drawn


def valid(
    model: LanguageModel, tokenizer: Tokenizer, questions: Sequence[str], trie: AnswerTrie, forms: Forms
) -> AnswerDistribution:
    """Return the model's own probability of every answer, times that of knowing the name in the question."""
    known = familiarity(model, tokenizer, [forms.name(question) for question in questions])
    return answer_distribution(model, tokenizer, questions, trie, floor=FLOOR).if_known(known)


def _answer(item: Question) -> str:
    return (item.answer or "").strip()


def _held_out(
    questions: Sequence[Question], facts: Sequence[Question], corpus: Corpus | None, forms: Forms
) -> tuple[list[Question], int | None, int]:
    """Return the calibration questions, one per name, and how many were left out.

    Left out are questions whose name no line is about (None: not known) and further questions about a name. Training
    questions are refused, also in other words: a question about the same name with the same answer.
    """
    blank = next((number for number, item in enumerate(questions, start=1) if item.answer is None), None)
    if blank is not None:
        raise DataError(f"question {blank} has no answer: a calibration needs `question<TAB>answer` lines")
    asked = list({item.question: item for item in questions}.values())
    names: dict[Question, frozenset[str]] = dict.fromkeys((*asked, *facts), frozenset())
    if corpus is not None:
        names = {item: frozenset(headings_in(item.question, corpus.shelf, corpus.longest_title)) for item in names}
    trained = {item.question for item in facts}
    told = {(name, item.answer) for item in facts for name in names[item]}
    seen = [
        item for item in asked if item.question in trained or any((name, item.answer) in told for name in names[item])
    ]
    if seen:
        raise UserError(
            f"{len(seen):,} of {len(asked):,} questions were trained on, such as {seen[0].question!r}: calibrate with"
            " questions that it was not trained on (of the built-in people: people:calibration)"
        )
    about = [item for item in asked if corpus is None or names[item]]
    drawn: list[int] = []
    taken: set[str] = set()
    for place in np.random.default_rng(_SEED).permutation(len(about)).tolist():
        named = names[about[place]] or {forms.name(about[place].question)}
        if taken.isdisjoint(named):
            drawn.append(place)
            taken |= named
    kept = [about[place] for place in sorted(drawn)]
    if len(kept) < _FEWEST:
        whom = "" if corpus is None else ", about names that it read"
        raise UserError(
            f"{len(asked):,} questions are given, and {len(kept):,} of them can be used, one per name{whom}: give at least"
            f" {_FEWEST}, better hundreds"
        )
    return kept, None if corpus is None else len(asked) - len(about), len(about) - len(kept)


def calibration_of(run: Run) -> Calibrated | None:
    """Read the calibration of a run, or None if there is none; one of another model is an error."""
    path = run.path / _FILE
    if not is_written(path):
        return None
    try:
        calibrated = records.read(Calibrated, path)
    except CheckpointError as error:
        raise CheckpointError(f"{error}; make it again with `attnlab calibrate {run.path}`") from None
    if calibrated.model != digest(read_bytes(run.model / _WEIGHTS)):
        raise UserError(f"{path} belongs to another model: make it again with `attnlab calibrate {run.path}`")
    return calibrated
