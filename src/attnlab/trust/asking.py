"""Ask a run: answer, probability, verdict, and the corpus line it should come from.

An `Oracle` is a run that is opened once for any number of questions: its model, the possible answers, its
calibration and the index of its corpus. It must not know about screens or reports.
"""

from __future__ import annotations

import math
import shlex
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from attnlab import stats
from attnlab.corpora import Question
from attnlab.corpora.library import Evidence, evidence, name_in
from attnlab.errors import DataError, UserError
from attnlab.lm.evaluate import top_answers
from attnlab.lm.model import load_model
from attnlab.store.runs import Run
from attnlab.trust.answers import AnswerDistribution, AnswerTrie
from attnlab.trust.calibrating import calibration_of, open_run, usual_questions, valid
from attnlab.trust.training_data import Forms, TrainingData, candidates, kinds, of_kind
from attnlab.trust.verdict import GUESS, UNSEEN, Judgement, at_least, judge, percent

MAX_RISK = 0.1  # of wrong answers, unless another is asked for
_TRIED = 50  # questions that a suggestion is chosen from
_NEIGHBOURS = 3
_UNCALIBRATED = (
    "Not calibrated: its probabilities guarantee nothing. Calibrate it once, with questions that it was not trained on:"
    " attnlab calibrate {}"
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
    probability: float | None  # None for a name that was never seen: there is nothing to be confident about
    lines: tuple[str, ...]  # about the name
    looked_up: bool  # whether the corpus could be looked up
    nearest: tuple[Neighbour, ...]  # similar known names, if no line is about this one
    alternatives: tuple[tuple[str, float], ...]  # the most likely answers, this one first
    entropy: float  # nats
    distance: float | None  # from the prior, 0 to 1; None if not calibrated


@dataclass(frozen=True, kw_only=True)
class Answer(Judgement, Considered):
    """An answer and how far to trust it, in one line as `words`. If it `abstains`, `answer` is the likeliest one."""

    calibrated: bool
    max_risk: float
    rule: str  # what the threshold guarantees and what it doesn't, or how to get one
    words: str


class Oracle:
    """An opened run: model, possible answers, calibration and corpus; `data` may be given if it is in memory."""

    def __init__(self, run: Run | Path | str, *, trust_code: bool = False, data: TrainingData | None = None) -> None:
        self.run = open_run(run)
        self.model, self.tokenizer = load_model(self.run.model, trust_code=trust_code)
        self.calibration = calibration_of(self.run)
        data = data or TrainingData(self.run)
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

    def guarantee(self, max_risk: float) -> str:
        """What the threshold for a risk guarantees and what it doesn't, or how to get one."""
        rule = self.rule(max_risk)
        if rule is not None:
            return rule.words
        try:
            usual_questions(self.run)
        except UserError:
            return _UNCALIBRATED.format(f"{shlex.quote(str(self.run.path))} --questions FILE")
        return _UNCALIBRATED.format(shlex.quote(str(self.run.path)))

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
        lookup, known = self.look(question, answer), of_kind(question, self.kinds)
        return judge(answer, probability, self.rule(max_risk), lookup, known, distance)

    def answer(self, question: str, max_risk: float = MAX_RISK, top: int = 5) -> Answer:
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
        seen = lookup is None or lookup.seen
        order = np.argsort(-asked.logp[0], kind="stable")[: top if seen else 0]
        return Considered(
            question=question,
            answer=answer,
            probability=probability if seen else None,
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
        judged = self.judge(asked.question, asked.answer, asked.probability or 0.0, max_risk, asked.distance)
        if rule is not None and judged.verdict != UNSEEN and not self.forms.fitting(asked.question):
            judged = replace(judged, verdict=GUESS, abstains=True, reasons=(_STRANGE,))
        noted = replace(judged, reasons=(*judged.reasons, f"Note: {self.note}.")) if self.note else judged
        return Answer(
            **vars(asked),
            **vars(noted),
            calibrated=self.calibration is not None,
            max_risk=max_risk,
            rule=self.guarantee(max_risk),
            words=self._in_words(asked, judged, rule),
        )

    def _in_words(self, asked: Considered, judged: Judgement, rule: stats.SelectiveRule | None) -> str:
        """Phrase an answer in one line: it and its probability, or why there is none; the verdict; the source."""
        source = (f": “{judged.quote}”" if judged.quote else "") + (f"; {self.note}" if self.note else "")
        sure, why = percent(asked.probability or 0.0), judged.verdict
        if not judged.abstains:
            return f"{asked.answer} ({sure}, {why}){source}"
        if why == UNSEEN:
            source = f"; similar names: {', '.join(similar.name for similar in asked.nearest)}" if asked.nearest else ""
        elif judged.reasons == (_STRANGE,):
            why += ": no training question is phrased like this one"
        elif rule is not None and rule.threshold is not None:
            why += f": {sure}, and {at_least(rule.threshold)} are required"
        elif rule is not None:
            least = self.smallest_risk
            smallest = "" if least is None else f", the smallest is --max-risk {least:g}"
            why += f": a risk of {100 * rule.max_risk:g} % cannot be certified{smallest}"
        return f"no answer ({why}){source}"

    @property
    def smallest_risk(self) -> float | None:
        """The smallest risk that is certified, in whole per cent; None if there is none."""
        strictest = self.calibration.strictest if self.calibration else None
        return math.ceil(100 * strictest.max_risk) / 100 if strictest else None

    def suggest(self, questions: Sequence[Question]) -> tuple[str, float]:
        """Choose a question that it answers rightly, and the risk: the usual one, else the smallest; "" if there is none."""
        rule, least = self.rule(MAX_RISK), self.smallest_risk
        risk = MAX_RISK if rule is None or rule.met or least is None else least
        for item in questions[:_TRIED]:
            try:
                answer = self.answer(item.question, risk)
            except DataError:  # too long for the block, with an answer
                continue
            if not answer.abstains and answer.answer == (item.answer or answer.answer):
                return item.question, risk
        return "", MAX_RISK

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


def ask(
    run: Run | Path | str, question: str, max_risk: float = MAX_RISK, top: int = 5, *, trust_code: bool = False
) -> Answer:
    """Ask a run one question: its answer, confidence, source, and whether it abstains."""
    return Oracle(run, trust_code=trust_code).answer(question, max_risk, top)
