"""What a model's confidence is worth, where it is known who is known: rates, curves, and what it falls back on.

Answers in, plain numbers out: it must not know how the model was trained, nor how the numbers are shown.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from attnlab import stats
from attnlab.corpora import Question
from attnlab.corpora.evidence import name_in
from attnlab.corpora.index import Index
from attnlab.corpora.library import headings_in
from attnlab.trust import VERDICTS, Witness
from attnlab.trust.verdict import UNSEEN

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


def ask_all(name: str, witness: Witness, questions: Sequence[Question], max_risk: float) -> Asked:
    """Ask a group of questions."""
    assert witness.calibration is not None
    texts = [item.question for item in questions]
    plain = witness.plain(texts)
    asked = witness.believed(texts, plain)
    distance = asked.distance(np.array(witness.calibration.prior))
    said = [answer for answer, _ in asked.best()]
    judged = [
        witness.judge(item.question, answer, float(sure), max_risk, float(far))
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
    witness: Witness, groups: Mapping[str, Sequence[Question]], told: Sequence[Question], max_risk: float
) -> dict[str, Any]:
    """Everything that is measured on known, withheld and invented names; a group may be empty."""
    rule = witness.rule(max_risk)
    assert rule is not None
    asked = {name: ask_all(name, witness, items, max_risk) for name, items in groups.items() if items}
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
        "fallback": fallback(asked["withheld"], witness.index, told) if witness.index and "withheld" in asked else None,
    }
