"""Does it know what it does not know? A model that never read 200 of the lines is asked about them too.

Since training takes minutes, it can be repeated without the lines of 200 people: a model is trained on the rest and
calibrated on held-out questions, and its confidence is then measured on people that it read about, on the withheld ones,
and on invented names.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from rich.console import Console

from attnlab import registry, stats, trust
from attnlab.config import RunConfig, Stage
from attnlab.corpora import Corpus, Question
from attnlab.corpora.evidence import name_in
from attnlab.corpora.library import headings_in
from attnlab.errors import DataError
from attnlab.lm import stages
from attnlab.lm.evaluate import encode_questions
from attnlab.report.trust import document, outcome
from attnlab.store.folders import verify
from attnlab.store.records import flat, plain
from attnlab.store.runs import Run
from attnlab.studies.legacy import Study, StudyResult, TrainedRun, Training, sums_of_files, train_stage
from attnlab.studies.trust_world import Pools, World, make_world
from attnlab.trust import VERDICTS, Oracle
from attnlab.trust.verdict import UNSEEN

_GROUPS = ("known", "withheld", "invented")
_STRANGERS = 0.3  # invented names per document in an epoch
_RISKS = (0.05, 0.1, 0.2)  # the report shows a rule for each, in addition to the one asked for
BINS = 20  # of the histogram
_MOST_POINTS = 200  # of the curve
_SHOWN = 4  # answers per group in the report
_NEAREST = 20  # names among which one with a known answer is searched


@dataclass(frozen=True)
class Plan(Training):
    """The study with everything needed to repeat it. Questions that are None are split off the facts."""

    corpus: str = "people"
    facts: str = "people:train"
    calibration: str | None = "people:calibration"
    known: str | None = "people:test"
    spare: str | None = "people:dev"  # not asked, but among the names that may be withheld
    withheld: int = 200
    max_risk: float = 0.1
    command: str = "attnlab run trust"
    quick: bool = False

    def settings(self, stage: Stage) -> RunConfig:
        """The settings of a stage; a task that can gets invented names among its examples unless the user says otherwise."""
        chosen = super().settings(stage)
        known = registry.find("task", chosen.task.name).options
        if "strangers" not in known or "strangers" in chosen.task.options:
            return chosen
        options = {**chosen.task.options, "strangers": _STRANGERS}
        return replace(chosen, task=replace(chosen.task, options=options))

    @property
    def seed(self) -> int:
        """The seed of the training, which also draws the world."""
        return self.settings("pretrain").seed

    @cached_property
    def world(self) -> World:
        """Who is known, withheld and invented."""
        calibration, known, spare = (
            self.data.questions(one) if one else None for one in (self.calibration, self.known, self.spare)
        )
        facts = self.data.questions(self.facts)
        blank = next((one for one in facts if one.answer is None), None)
        if blank is not None:
            raise DataError(
                f"the question {blank.question!r} has no answer: training needs `question<TAB>answer` lines"
            )
        pools = Pools(facts, calibration, known, spare or ())
        return make_world(self.data.corpus(self.corpus), pools, self.withheld, self.seed)


def check(plan: Plan) -> None:
    """Find errors before training: settings, data, questions that are too long or have no answers."""
    stats.checks.check_level(plan.max_risk, "--max-risk")
    world = plan.world
    sources = plan.data.made(Corpus(plan.corpus, world.lines), world.facts)
    config = plan.settings("pretrain")
    tokenizer = stages.learn_tokenizer(config, sources)
    trained: tuple[Stage, ...] = ("pretrain", "finetune")
    for stage in trained:
        stages.check_settings(plan.settings(stage), sources, tokenizer)
    examined = (*world.calibration, *world.known, *world.withheld)
    asked = (item.question for item in (*examined, *world.invented))
    encode_questions(tokenizer, asked, config.model.block_size)
    if any(item.answer is None for item in examined):
        raise DataError("the exam questions have no answers, and confidence is measured by them: add them")
    if not world.known or not world.calibration:
        raise DataError("no questions are left for calibration or for the exam: give more")


@dataclass(frozen=True)
class _Share:
    """A count as a share with its 95 % interval; of nothing there is none."""

    count: int
    of: int
    share: float | None
    low: float | None
    high: float | None

    @classmethod
    def count_of(cls, part: int, whole: int) -> _Share:
        """The share of a part."""
        if not whole:
            return cls(part, whole, None, None, None)
        return cls(part, whole, part / whole, *stats.proportion_interval(part, whole))


@dataclass(frozen=True)
class _LookedUp:
    """Answers given after the lookup, wrong ones among them, and questions whose name was never seen."""

    answered: _Share
    wrong: _Share
    unseen: _Share


@dataclass(frozen=True)
class VerdictCount:
    """How often a verdict was given, and how often the answer was right."""

    count: int
    right: int


@dataclass(frozen=True)
class _Example:
    question: str
    answer: str | None
    said: str
    confidence: float
    verdict: str
    quote: str
    answered: bool


@dataclass(frozen=True)
class _Group:
    """How a group of names was answered, by the confidence alone and with the lookup."""

    name: str
    questions: int
    right: _Share
    confidence: float
    answered: _Share
    wrong: _Share
    looked_up: _LookedUp
    verdicts: dict[str, VerdictCount]
    histogram: list[float]
    examples: list[_Example]


@dataclass(frozen=True)
class _Separation:
    """How well a score separates known names from others."""

    score: str
    against: str
    area: stats.Auroc = flat()


@dataclass(frozen=True)
class _Curve:
    """Risk against coverage, thinned for drawing."""

    threshold: list[float]
    coverage: list[float]
    risk: list[float]
    area: float
    best: float
    excess: float
    risk_of_all: float


@dataclass(frozen=True)
class _Lookalike:
    """An unknown name that was answered like the most similar known name."""

    question: str
    said: str
    nearest: str
    similarity: float


@dataclass(frozen=True)
class _Fallback:
    """How often an unknown name is answered like the most similar known name, and like a random one."""

    hits: _Share = flat()
    chance: float = 0.0
    examples: tuple[_Lookalike, ...] = ()


@dataclass(frozen=True)
class _Reliability:
    before: stats.Calibration
    after: stats.Calibration


@dataclass(frozen=True)
class _Measured:
    groups: list[_Group]
    accuracy: float
    rule: stats.SelectiveRule
    separation: list[_Separation]
    curve: _Curve
    reliability: _Reliability
    fallback: _Fallback | None


@dataclass(frozen=True)
class _WorldSummary:
    corpus: str
    documents: int
    characters: int
    facts: int
    calibration: int
    known: int
    withheld: int
    invented: int
    seed: int
    quick: bool


@dataclass(frozen=True, kw_only=True)
class _TrustResult(StudyResult):
    kind: str = "trust"
    study: str = "trust"
    title: str = "Does it know what it does not know?"
    world: _WorldSummary
    max_risk: float
    measured: _Measured = flat()
    calibration: trust.CalibrationSummary
    runs: dict[str, TrainedRun]
    verdict: list[str]


def _stored_questions(plan: Plan, folder: Path) -> dict[str, tuple[Question, ...]]:
    """The questions of the study by use, from the files in its folder."""
    verify(folder)
    named = {name: folder / f"{name}.tsv" for name in ("facts", "calibration", *_GROUPS)}
    # Withheld or invented names may be missing: their file is then empty.
    return {name: plan.data.questions(str(path)) if path.stat().st_size else () for name, path in named.items()}


def train(plan: Plan, folder: Path, console: Console) -> None:
    """Start or resume the model that has not read the withheld lines."""
    asked = _stored_questions(plan, folder)
    console.print(
        f"{len(asked['facts']):,} training questions, {len(asked['calibration']):,} for calibration; asked about:"
        f" {len(asked['known']):,} known names, {len(asked['withheld']):,} withheld, {len(asked['invented']):,} invented"
    )
    corpus, facts = str(folder / "corpus.txt"), str(folder / "facts.tsv")
    pretrained = train_stage(plan, folder / "pretrain", "pretrain", corpus, facts, console)
    train_stage(plan, folder / "finetune", "finetune", corpus, facts, console, pretrained)


def judge(plan: Plan, folder: Path, _console: Console) -> _TrustResult:
    """Calibrate the trained model, and ask all groups."""
    began = time.perf_counter()
    asked = _stored_questions(plan, folder)
    runs = {name: Run.open(folder / name) for name in ("pretrain", "finetune")}
    final = runs["finetune"]
    calibrated = trust.calibrate(final, asked["calibration"])
    read_about = (*asked["facts"], *asked["calibration"], *asked["known"])
    measured = measure(trust.Oracle(final), {name: asked[name] for name in _GROUPS}, read_about, plan.max_risk)
    lines = plan.data.corpus(str(folder / "corpus.txt")).lines
    training = sum(one.result["seconds"] for one in runs.values())
    return _TrustResult(
        command=plan.command,
        world=_WorldSummary(
            corpus=Path(plan.corpus).name,
            documents=len(lines),
            characters=sum(len(line) + 1 for line in lines),
            **{name: len(questions) for name, questions in asked.items()},
            seed=plan.seed,
            quick=plan.quick,
        ),
        max_risk=plan.max_risk,
        measured=measured,
        calibration=calibrated.summary(_RISKS),
        runs={name: TrainedRun.read(one) for name, one in runs.items()},
        verdict=[outcome({**plain(measured), "max_risk": plan.max_risk})],
        seconds=round(training + time.perf_counter() - began, 1),
    )


@dataclass(frozen=True)
class Asked:
    """A group of questions with the model's answers, its confidence, and the verdicts."""

    name: str
    questions: tuple[Question, ...]
    said: tuple[str, ...]
    before: tuple[float, ...]
    confidence: tuple[float, ...]
    entropy: tuple[float, ...]
    distance: tuple[float, ...]
    verdicts: tuple[str, ...]
    quotes: tuple[str, ...]
    held_back: tuple[bool, ...]  # with the lookup

    @property
    def right(self) -> list[bool]:
        """Whether each answer is correct."""
        return [said == (item.answer or "").strip() for said, item in zip(self.said, self.questions, strict=True)]


def _ask_all(name: str, oracle: Oracle, questions: Sequence[Question], max_risk: float) -> Asked:
    """Ask a group of questions."""
    assert oracle.calibration is not None
    texts = [item.question for item in questions]
    uncalibrated = oracle.plain(texts)
    asked = oracle.calibrated(uncalibrated)
    distance = asked.distance(np.array(oracle.calibration.prior))
    said = [answer for answer, _ in asked.best()]
    judged = [
        oracle.judge(item.question, answer, float(sure), max_risk, float(far))
        for item, answer, sure, far in zip(questions, said, asked.confidence, distance, strict=True)
    ]
    return Asked(
        name=name,
        questions=tuple(questions),
        said=tuple(said),
        before=tuple(uncalibrated.confidence.tolist()),
        confidence=tuple(asked.confidence.tolist()),
        entropy=tuple(asked.entropy().tolist()),
        distance=tuple(distance.tolist()),
        verdicts=tuple(one.verdict for one in judged),
        quotes=tuple(one.quote for one in judged),
        held_back=tuple(one.abstains for one in judged),
    )


def describe_group(asked: Asked, threshold: float | None) -> _Group:
    """Count how a group was answered."""
    answered = [threshold is not None and sure >= threshold for sure in asked.confidence]
    spoken = [not held for held in asked.held_back]
    counts = Counter(asked.verdicts)
    right = Counter(verdict for verdict, right in zip(asked.verdicts, asked.right, strict=True) if right)

    def wrong_among(given: Sequence[bool]) -> _Share:
        return _Share.count_of(sum(a and not b for a, b in zip(given, asked.right, strict=True)), sum(given))

    total = len(asked.questions)
    return _Group(
        name=asked.name,
        questions=total,
        right=_Share.count_of(sum(asked.right), total),
        confidence=float(np.mean(asked.confidence)),
        answered=_Share.count_of(sum(answered), total),
        wrong=wrong_among(answered),
        looked_up=_LookedUp(
            _Share.count_of(sum(spoken), total), wrong_among(spoken), _Share.count_of(counts[UNSEEN], total)
        ),
        verdicts={verdict: VerdictCount(counts[verdict], right[verdict]) for verdict in VERDICTS},
        histogram=histogram(asked.confidence),
        examples=_examples(asked, answered),
    )


def histogram(confidence: Sequence[float]) -> list[float]:
    """The share of the questions per bin, from 0 to 1."""
    counts, _ = np.histogram(confidence, bins=BINS, range=(0.0, 1.0))
    return (counts / len(confidence)).tolist()


def _examples(asked: Asked, answered: Sequence[bool]) -> list[_Example]:
    """A few questions of a group, evenly spaced from the most to the least confident."""
    order = np.argsort(-np.array(asked.confidence), kind="stable")
    picked = order[np.linspace(0, len(order) - 1, min(_SHOWN, len(order))).round().astype(int)]
    return [
        _Example(
            asked.questions[place].question,
            asked.questions[place].answer,
            asked.said[place],
            asked.confidence[place],
            asked.verdicts[place],
            asked.quotes[place],
            answered[place],
        )
        for place in picked
    ]


def separation(known: Asked, other: Asked) -> list[_Separation]:
    """How well known names are separated from others, by the confidence and by two other scores."""
    scores = {
        "confidence": (known.confidence, other.confidence),
        "entropy": ([-one for one in known.entropy], [-one for one in other.entropy]),
        "distance": (known.distance, other.distance),
    }
    return [_Separation(name, other.name, stats.auroc(*sides)) for name, sides in scores.items()]


def curve(known: Asked) -> _Curve:
    """Risk against coverage, with as many points as can be drawn."""
    whole = stats.risk_coverage(known.confidence, known.right)
    kept = np.unique(np.linspace(0, len(whole.coverage) - 1, _MOST_POINTS).round().astype(int))
    threshold, coverage, risk = (
        [column[place] for place in kept] for column in (whole.threshold, whole.coverage, whole.risk)
    )
    return _Curve(threshold, coverage, risk, whole.area, whole.best, whole.excess, whole.risk_of_all)


def fallback(withheld: Asked, corpus: Corpus, read_about: Sequence[Question]) -> _Fallback | None:
    """How often an unknown name is answered like the most similar known name, against a random known name.

    `read_about` are questions about names that were read.
    """
    gold: dict[str, set[str]] = {}
    for item in read_about:
        for name in headings_in(item.question, corpus.shelf, corpus.longest_title)[:1]:
            gold.setdefault(name, set()).add((item.answer or "").strip())
    having = Counter(answer for answers in gold.values() for answer in answers)
    hits, chance, found = 0, [], []
    for item, said in zip(withheld.questions, withheld.said, strict=True):
        near = next((one for one in corpus.nearest(name_in(item.question), _NEAREST) if one.name in gold), None)
        if near is not None:
            chance.append(having[said] / len(gold))
            if said in gold[near.name]:
                hits += 1
                found.append(_Lookalike(item.question, said, near.name, near.similarity))
    if not chance:
        return None
    found.sort(key=lambda one: -one.similarity)
    return _Fallback(_Share.count_of(hits, len(chance)), float(np.mean(chance)), tuple(found[:_SHOWN]))


def measure(
    oracle: Oracle, groups: Mapping[str, Sequence[Question]], read_about: Sequence[Question], max_risk: float
) -> _Measured:
    """Measure known, withheld and invented names; a group may be empty."""
    rule = oracle.rule(max_risk)
    assert rule is not None
    asked = {name: _ask_all(name, oracle, items, max_risk) for name, items in groups.items() if items}
    known = asked["known"]
    return _Measured(
        groups=[describe_group(one, rule.threshold) for one in asked.values()],
        accuracy=sum(known.right) / len(known.right),
        rule=rule,
        separation=[line for one in asked.values() if one is not known for line in separation(known, one)],
        curve=curve(known),
        reliability=_Reliability(
            stats.calibration(known.before, known.right), stats.calibration(known.confidence, known.right)
        ),
        fallback=fallback(asked["withheld"], oracle.corpus, read_about)
        if oracle.corpus and "withheld" in asked
        else None,
    )


STUDY = Study(
    plan=Plan,
    name=lambda _: "trust",
    check=check,
    fingerprints=lambda plan: sums_of_files(plan.file, plan.given),  # the data are stored with the study
    train=train,
    judge=judge,
    document=document,
    sources=("corpus", "facts", "calibration", "known", "spare"),
    files=lambda plan: plan.world.files(),
    example=lambda result: result["groups"][0]["examples"][0]["question"],
)
