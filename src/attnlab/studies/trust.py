"""Does it know what it does not know? A model that never read 200 of the lines is asked about them too.

Since training takes minutes, who is known is known by construction: 200 people's lines are withheld, a model is trained on
the rest and calibrated on held-out questions, and its confidence is then measured on people that it read about, on the
withheld ones, and on invented names.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from attnlab import corpora, stages, stats, trust
from attnlab.config import RunConfig, Stage
from attnlab.corpora import Corpus, Question
from attnlab.corpora.evidence import name_in
from attnlab.corpora.index import Index
from attnlab.corpora.library import headings_in
from attnlab.errors import DataError, UserError
from attnlab.evaluate import encode_question
from attnlab.folders import verify
from attnlab.machine import environment
from attnlab.runs import Run
from attnlab.studies.study import Study, Training, describe_run, fingerprints, suggest_question, train
from attnlab.studies.trust_world import Pools, World, make_world
from attnlab.trust import VERDICTS, Oracle
from attnlab.trust.verdict import UNSEEN

GROUPS = ("known", "withheld", "invented")
STRANGERS = 0.3  # names of nobody in an epoch, for every document
RISKS = (0.05, 0.1, 0.2)  # for which the report has rules, beside the one asked for


@dataclass(frozen=True)
class Plan(Training):
    """What the study is about; everything that it needs to be done again. Questions that are None are split off the facts."""

    corpus: str = "people"
    facts: str = "people:train"
    calibration: str | None = "people:dev"
    known: str | None = "people:test"
    withheld: int = 200
    max_risk: float = 0.1
    command: str = "attnlab run trust"
    quick: bool = False

    def settings(self, stage: Stage) -> RunConfig:
        """As in every study; where views are read, strangers are among them unless told otherwise."""
        chosen = super().settings(stage)
        if chosen.task.name != "recall" or "strangers" in chosen.task.options:
            return chosen
        options = {**chosen.task.options, "strangers": STRANGERS}
        return replace(chosen, task=replace(chosen.task, options=options))

    @property
    def seed(self) -> int:
        """The seed of the run also draws the world."""
        return self.settings("pretrain").seed

    def world(self) -> World:
        """Who is known, withheld and invented."""
        corpus = corpora.load_corpus(self.corpus)
        loaded = (corpora.load_questions(one) if one else None for one in (self.calibration, self.known))
        facts = corpora.load_questions(self.facts)
        blank = next((one for one in facts if one.answer is None), None)
        if blank is not None:
            raise DataError(
                f"the question {blank.question!r} has no answer: training needs `question<TAB>answer` lines"
            )
        return make_world(corpus, Pools(facts, *loaded), self.withheld, self.seed)


def check(plan: Plan) -> None:
    """Find mistakes before anything is trained: settings, data, questions that are too long or have no answers."""
    if not 0 < plan.max_risk < 1:
        raise UserError(f"--max-risk must lie between 0 and 1, such as 0.1, not {plan.max_risk:g}")
    world = plan.world()
    sources = stages.Sources(Corpus(plan.corpus, world.lines), world.facts, {})
    config = plan.settings("pretrain")
    tokenizer = stages.learn_tokenizer(config, sources)
    stages_of: tuple[Stage, ...] = ("pretrain", "finetune")
    for stage in stages_of:
        stages.check_settings(plan.settings(stage), sources, tokenizer)
    examined = (*world.calibration, *world.known, *world.withheld)
    for number, item in enumerate((*examined, *world.invented), start=1):
        encode_question(tokenizer, item.question, config.model.block_size, number)
    if any(item.answer is None for item in examined):
        raise DataError("the questions to be examined on have no answers, and confidence is measured by them: add them")
    if not world.known or not world.calibration:
        raise DataError("no questions are left to calibrate with or to be examined on: give more")


def conclude(folder: Path, plan: Plan, console: Console) -> dict[str, Any]:
    """Train what is not trained, calibrate, ask everybody, and write the result and the report."""
    verify(folder)
    read = {name: corpora.load_questions(folder / f"{name}.tsv") for name in ("facts", "calibration", "known")}
    # Nobody may be withheld, or no name be left to invent: an empty file is none.
    read |= {name: corpora.load_questions(path) for name, path in others(folder).items()}
    console.print(
        f"{len(read['facts']):,} training questions, {len(read['calibration']):,} to calibrate with; asked about:"
        f" {len(read['known']):,} known names, {len(read.get('withheld', ())):,} withheld,"
        f" {len(read.get('invented', ())):,} invented"
    )
    runs = train_both(plan, folder, console)
    began = time.perf_counter()
    calibrated = trust.calibrate(runs["finetune"], read["calibration"])
    told = (*read["facts"], *read["calibration"], *read["known"])
    measured = measure(
        trust.Oracle(runs["finetune"]), {name: read.get(name, ()) for name in GROUPS}, told, plan.max_risk
    )
    result = {
        "kind": "trust",
        "study": "trust",
        "title": "Does it know what it does not know?",
        "command": plan.command,
        "finished": date.today().isoformat(),
        "world": describe_world(plan, folder, {name: len(items) for name, items in read.items()}),
        "max_risk": plan.max_risk,
        **measured,
        "calibration": calibrated.summary(RISKS),
        "runs": {name: describe_run(one) for name, one in runs.items()},
        "environment": environment(),
    }
    training = sum(one.result["seconds"] for one in runs.values())
    result["seconds"] = round(training + time.perf_counter() - began, 1)
    return result


def others(folder: Path) -> dict[str, Path]:
    """The files of names that nobody read about, where there are any."""
    paths = {name: folder / f"{name}.tsv" for name in GROUPS[1:]}
    return {name: path for name, path in paths.items() if path.stat().st_size}


def train_both(plan: Plan, folder: Path, console: Console) -> dict[str, Run]:
    """The model, pretrained and fine-tuned on the world of the study."""
    corpus, facts = str(folder / "corpus.txt"), str(folder / "facts.tsv")
    pretrained = train(plan, folder / "pretrain", "pretrain", corpus, facts, console)
    final = train(plan, folder / "finetune", "finetune", corpus, facts, console, pretrained)
    return {"pretrain": pretrained, "finetune": final}


def describe_world(plan: Plan, folder: Path, counts: dict[str, int]) -> dict[str, Any]:
    """The data in numbers."""
    lines = corpora.load_corpus(folder / "corpus.txt").lines
    return {
        "corpus": Path(plan.corpus).name,
        "documents": len(lines),
        "characters": sum(len(line) + 1 for line in lines),
        **{name: counts.get(name, 0) for name in ("facts", "calibration", *GROUPS)},
        "seed": plan.seed,
        "quick": plan.quick,
    }


BINS = 20  # of the histogram
DRAWN = 200  # points of the curve at most
SHOWN = 4  # answers of each group in the report
NEAREST = 20  # names among which one with a known answer is looked for


@dataclass(frozen=True)
class Asked:
    """A group of questions with what the model said, how sure it was, and the verdicts."""

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
        """Right or wrong, question by question."""
        return [said == (item.answer or "").strip() for said, item in zip(self.said, self.questions, strict=True)]


def ask_all(name: str, oracle: Oracle, questions: Sequence[Question], max_risk: float) -> Asked:
    """Ask a group of questions."""
    assert oracle.calibration is not None
    texts = [item.question for item in questions]
    plain = oracle.plain(texts)
    asked = oracle.calibrated(texts, plain)
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
        before=tuple(plain.confidence.tolist()),
        confidence=tuple(asked.confidence.tolist()),
        entropy=tuple(asked.entropy().tolist()),
        distance=tuple(distance.tolist()),
        verdicts=tuple(one.verdict for one in judged),
        quotes=tuple(one.quote for one in judged),
        held_back=tuple(one.abstains for one in judged),
    )


def share(part: int, whole: int) -> dict[str, Any]:
    """A count as a share with its 95 % interval; without a whole there is none."""
    if not whole:
        return {"count": part, "of": whole, "share": None, "low": None, "high": None}
    low, high = stats.proportion_interval(part, whole)
    return {"count": part, "of": whole, "share": part / whole, "low": low, "high": high}


def describe_group(asked: Asked, threshold: float | None) -> dict[str, Any]:
    """How a group was answered, by the confidence alone and with the lookup."""
    answered = [threshold is not None and sure >= threshold for sure in asked.confidence]
    spoken = [not held for held in asked.held_back]
    wrong = [not right for right in asked.right]
    counts = Counter(asked.verdicts)

    def wrong_among(given: Sequence[bool]) -> dict[str, Any]:
        return share(sum(a and b for a, b in zip(given, wrong, strict=True)), sum(given))

    return {
        "name": asked.name,
        "questions": len(asked.questions),
        "right": share(sum(asked.right), len(asked.questions)),
        "confidence": float(np.mean(asked.confidence)),
        "answered": share(sum(answered), len(answered)),
        "wrong": wrong_among(answered),
        "looked_up": {
            "answered": share(sum(spoken), len(spoken)),
            "wrong": wrong_among(spoken),
            "unseen": share(counts[UNSEEN], len(spoken)),
        },
        "verdicts": {
            verdict: {
                "count": counts[verdict],
                "right": sum(a and b == verdict for a, b in zip(asked.right, asked.verdicts, strict=True)),
            }
            for verdict in VERDICTS
        },
        "histogram": histogram(asked.confidence),
        "examples": examples(asked, answered),
    }


def histogram(confidence: Sequence[float]) -> list[float]:
    """The share of the questions in each of the bins from 0 to 1."""
    counts, _ = np.histogram(confidence, bins=BINS, range=(0.0, 1.0))
    return (counts / len(confidence)).tolist()


def examples(asked: Asked, answered: Sequence[bool]) -> list[dict[str, Any]]:
    """A few questions of a group, evenly from the surest to the least sure."""
    order = np.argsort(-np.array(asked.confidence), kind="stable")
    picked = order[np.linspace(0, len(order) - 1, min(SHOWN, len(order))).round().astype(int)]
    return [
        {
            "question": asked.questions[place].question,
            "answer": asked.questions[place].answer,
            "said": asked.said[place],
            "confidence": asked.confidence[place],
            "verdict": asked.verdicts[place],
            "quote": asked.quotes[place],
            "answered": answered[place],
        }
        for place in picked
    ]


def separation(known: Asked, other: Asked) -> list[dict[str, Any]]:
    """How well known names are told from others, by the confidence and by what else is known of an answer."""
    scores = {
        "confidence": (known.confidence, other.confidence),
        "entropy": ([-one for one in known.entropy], [-one for one in other.entropy]),
        "distance": (known.distance, other.distance),
    }
    return [{"score": name, "against": other.name, **asdict(stats.auroc(*sides))} for name, sides in scores.items()]


def curve(known: Asked) -> dict[str, Any]:
    """Risk against coverage, with as many points as can be drawn."""
    whole = stats.risk_coverage(known.confidence, known.right)
    kept = np.unique(np.linspace(0, len(whole.coverage) - 1, DRAWN).round().astype(int))
    points = {name: [getattr(whole, name)[place] for place in kept] for name in ("threshold", "coverage", "risk")}
    return {**points, **{name: getattr(whole, name) for name in ("area", "best", "excess", "risk_of_all")}}


def fallback(withheld: Asked, index: Index, told: Sequence[Question]) -> dict[str, Any] | None:
    """How often the answer for an unknown name is that of the known name most like it, against any known name's.

    `told` are questions about names that were read. Chance is what a known name drawn at random would give.
    """
    gold: dict[str, set[str]] = {}
    for item in told:
        for name in headings_in(item.question, index, index.longest)[:1]:
            gold.setdefault(name, set()).add((item.answer or "").strip())
    having = Counter(answer for answers in gold.values() for answer in answers)
    hits, chance, pairs = [], [], []
    for item, said in zip(withheld.questions, withheld.said, strict=True):
        near = next((one for one in index.nearest(name_in(item.question), NEAREST) if one.name in gold), None)
        if near is not None:
            hits.append(said in gold[near.name])
            chance.append(having[said] / len(gold))
            pairs.append((hits[-1], near.similarity, item.question, said, near.name))
    if not hits:
        return None
    surest = sorted(pairs, key=lambda one: (-one[0], -one[1]))[:SHOWN]
    return {
        **share(sum(hits), len(hits)),
        "chance": float(np.mean(chance)),
        "examples": [{"question": q, "said": s, "nearest": n, "similarity": a} for hit, a, q, s, n in surest if hit],
    }


def measure(
    oracle: Oracle, groups: Mapping[str, Sequence[Question]], told: Sequence[Question], max_risk: float
) -> dict[str, Any]:
    """Everything that is measured on known, withheld and invented names; a group may be empty."""
    rule = oracle.rule(max_risk)
    assert rule is not None
    asked = {name: ask_all(name, oracle, items, max_risk) for name, items in groups.items() if items}
    known = asked["known"]
    return {
        "groups": [describe_group(one, rule.threshold) for one in asked.values()],
        "accuracy": sum(known.right) / len(known.right),
        "rule": asdict(rule),
        "separation": [line for one in asked.values() if one is not known for line in separation(known, one)],
        "curve": curve(known),
        "reliability": {
            "before": asdict(stats.calibration(known.before, known.right)),
            "after": asdict(stats.calibration(known.confidence, known.right)),
        },
        "fallback": fallback(asked["withheld"], oracle.index, told) if oracle.index and "withheld" in asked else None,
    }


STUDY = Study(
    lambda stored: Plan(**stored),
    check,
    lambda plan: fingerprints(plan, ()),  # the data are stored with the study
    conclude,
    lambda _: "trust",
    ("corpus", "facts", "calibration", "known"),
    files=lambda plan: plan.world().files(),
    epilogue=lambda folder, result, console: suggest_question(
        folder, result["groups"][0]["examples"][0]["question"], console
    ),
)
begin = STUDY.begin
