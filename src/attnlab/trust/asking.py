"""Ask a run: answer, probability, verdict, and the corpus line it should come from.

An `Oracle` is a run that is opened once for any number of questions: its model, the possible answers, its
calibration and the index of its corpus. It must not know about screens or reports.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attnlab import stats
from attnlab.corpora.library import Evidence, evidence, name_in
from attnlab.errors import DataError, UserError
from attnlab.lm.evaluate import top_answers
from attnlab.lm.model import load_model
from attnlab.store.runs import Run
from attnlab.trust.answers import AnswerDistribution, AnswerTrie
from attnlab.trust.calibrating import calibration_of, open_run, valid
from attnlab.trust.training_data import Forms, TrainingData, candidates, kinds, of_kind
from attnlab.trust.verdict import Judgement, judge, percent

_NEIGHBOURS = 3
_UNCALIBRATED = (
    "Not calibrated: its probabilities guarantee nothing. Calibrate it once, with questions that it was not trained on:"
    " attnlab calibrate {} --questions FILE"
)
_STRANGE = "No training question is phrased like this one: the guarantee does not cover it."


@dataclass(frozen=True)
class Neighbour:
    """A known name similar to the one in the question, and the model's answer for it."""

    name: str
    similarity: float
    answer: str | None


@dataclass(frozen=True, kw_only=True)
class Considered:
    """The model's answer to a question and what is known about it, before a risk is chosen."""

    question: str
    answer: str
    probability: float
    lines: tuple[str, ...]  # about the name
    looked_up: bool  # whether the corpus could be looked up
    nearest: tuple[Neighbour, ...]  # similar known names, if no line is about this one
    alternatives: tuple[tuple[str, float], ...]  # the most likely answers, this one first
    entropy: float  # nats
    distance: float | None  # from the prior, 0 to 1; None if not calibrated


@dataclass(frozen=True, kw_only=True)
class Answer(Judgement, Considered):
    """An answer and how far to trust it. If it `abstains`, `answer` is what it would have said."""

    calibrated: bool
    max_risk: float
    rule: str  # what the threshold guarantees and what it doesn't, or how to get one
    words: str


class Oracle:
    """An opened run: model, possible answers, calibration and corpus."""

    def __init__(self, run: Run | Path | str, *, trust_code: bool = False) -> None:
        self.run = open_run(run)
        self.model, self.tokenizer = load_model(self.run.model, trust_code=trust_code)
        self.calibration = calibration_of(self.run)
        data = TrainingData(self.run)
        try:
            self.facts, self.note = data.facts, ""
        except DataError as error:
            self.facts, self.note = (), f"its training questions cannot be read: {error}"
        lookup = data.look_up()
        self.corpus, self.note = lookup.corpus, lookup.note or self.note
        self.kinds, self.forms = kinds(self.facts), Forms(self.facts)
        choices = self.calibration.answers if self.calibration else candidates(self.tokenizer, self.facts, data.lines)
        self.trie = AnswerTrie(self.tokenizer, choices) if choices else None
        self._rules: dict[float, stats.SelectiveRule] = {}

    def rule(self, max_risk: float) -> stats.SelectiveRule | None:
        """Return the rule for this risk; None if the run is not calibrated."""
        stats.checks.check_level(max_risk, "the allowed risk")
        if self.calibration is None:
            return None
        if max_risk not in self._rules:
            self._rules[max_risk] = self.calibration.rule(max_risk)
        return self._rules[max_risk]

    def distribution(self, questions: Sequence[str]) -> AnswerDistribution:
        """Return the probability of every answer to every question, calibrated if the run is."""
        if self.trie is None:
            return self._generated(questions)
        plain = valid(self.model, self.tokenizer, questions, self.trie, self.forms)
        return plain.with_confidence(self.calibration.scaling(plain.confidence)) if self.calibration else plain

    def _generated(self, questions: Sequence[str]) -> AnswerDistribution:
        """Without known answers, use the most likely ones found by beam search."""
        if len(questions) > 1:
            raise UserError("without known answers, ask one question at a time")
        likeliest = top_answers(self.model, self.tokenizer, questions[0], 10)
        shares = np.array([[share for _, share in likeliest]])
        table = np.concatenate([shares, np.maximum(1 - shares.sum(keepdims=True), 1e-12)], axis=1)
        return AnswerDistribution(tuple(answer for answer, _ in likeliest), np.log(table))

    def look(self, question: str, answer: str) -> Evidence | None:
        """Look up a question and its answer in the corpus; None if there is none."""
        return evidence(self.corpus, question, answer, _NEIGHBOURS) if self.corpus is not None else None

    def judge(
        self, question: str, answer: str, probability: float, max_risk: float, distance: float | None
    ) -> Judgement:
        """Judge an answer to a question."""
        strictest = self.calibration.strictest if self.calibration else None
        lookup, known = self.look(question, answer), of_kind(question, self.kinds)
        return judge(answer, probability, self.rule(max_risk), lookup, known, distance, strictest)

    def answer(self, question: str, max_risk: float = 0.1, top: int = 5) -> Answer:
        """Answer one question, or abstain."""
        stats.checks.check_count(top, "top")
        self.rule(max_risk)  # refuses a risk before the model is run
        return self.decide(self.consider(question, top), max_risk)

    def consider(self, question: str, top: int = 5) -> Considered:
        """Run the model on a question and look it up: everything about the answer that depends on no risk."""
        question = checked_question(question)
        asked = self.distribution([question])
        answer, probability = asked.best()[0]
        lookup = self.look(question, answer)
        order = np.argsort(-asked.logp[0], kind="stable")[:top]
        return Considered(
            question=question,
            answer=answer,
            probability=probability,
            lines=tuple(line.text for line in lookup.lines) if lookup else (),
            looked_up=lookup is not None,
            nearest=self.neighbours(question, lookup) if lookup is not None and not lookup.seen else (),
            alternatives=tuple((asked.answers[place], float(np.exp(asked.logp[0, place]))) for place in order),
            entropy=float(asked.entropy()[0]),
            distance=float(asked.distance(np.array(self.calibration.prior))[0]) if self.calibration else None,
        )

    def decide(self, asked: Considered, max_risk: float) -> Answer:
        """Judge an answer for a risk, without the model."""
        rule = self.rule(max_risk)
        judged = self.judge(asked.question, asked.answer, asked.probability, max_risk, asked.distance)
        if rule is not None and not self.forms.fitting(asked.question):
            judged = replace(judged, abstains=True, reasons=(*judged.reasons, _STRANGE))
        noted = replace(judged, reasons=(*judged.reasons, f"Note: {self.note}.")) if self.note else judged
        return Answer(
            **vars(asked),
            **vars(noted),
            calibrated=self.calibration is not None,
            max_risk=max_risk,
            rule=_UNCALIBRATED.format(shlex.quote(str(self.run.path))) if rule is None else rule.words,
            words=_in_words(asked.answer, asked.probability, noted, max_risk),
        )

    def neighbours(self, question: str, lookup: Evidence | None) -> tuple[Neighbour, ...]:
        """Return the known names most similar to an unknown one, with the model's answer for each."""
        name, near = name_in(question), lookup.nearest if lookup else ()
        answers: list[str | None] = [None] * len(near)
        if near and self.trie is not None and name in question:
            try:
                asked = self.distribution([question.replace(name, neighbour.name) for neighbour in near])
                answers = [answer for answer, _ in asked.best()]
            except DataError:  # a long name may not fit the block
                pass
        return tuple(Neighbour(item.name, item.similarity, answer) for item, answer in zip(near, answers, strict=True))


def checked_question(text: str) -> str:
    """A question on one line; an empty one is an error."""
    question = " ".join(text.split())
    if not question:
        raise UserError("the question is empty: write one, such as 'Where was Hank Aaron born?'")
    return question


def _in_words(answer: str, probability: float, judged: Judgement, max_risk: float) -> str:
    """Phrase the answer in one or two sentences."""
    if judged.abstains:
        first = f"It abstains at a risk of {percent(max_risk)}; it would have said {answer} ({percent(probability)})."
    else:
        first = f"{answer} ({percent(probability)}): {judged.verdict}."
    return " ".join((first, *judged.reasons))


def ask(
    run: Run | Path | str, question: str, max_risk: float = 0.1, top: int = 5, *, trust_code: bool = False
) -> Answer:
    """Ask a run one question: its answer, confidence, source, and whether it abstains."""
    return Oracle(run, trust_code=trust_code).answer(question, max_risk, top)
