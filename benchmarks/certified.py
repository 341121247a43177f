"""Certified answering in simulation, and the calibration error of trained runs, before and after the present procedure.

    python benchmarks/certified.py [--draws 1000]       # coverage and broken guarantees
    python benchmarks/certified.py FOLDER FOLDER ...    # calibration errors of studies (attnlab run, attnlab run trust)

In the simulation the log odds of the scores are normal, and an answer is right with a probability whose log odds are a line
in those of the score, so the risk of every threshold is known. Coverage is the mean over all draws, 0 where nothing is
certified. A guarantee is broken where the true risk of a certified threshold is above the allowed one; 5 % may be.

The calibration error of a study's final run is measured on its exam, people:test or known.tsv. Before: a temperature,
fitted to one half of people:dev and people:calibration, applied before the factor of familiarity. Now: Platt scaling of the
product, fitted to people:calibration. By chance: the error of a map of the right form, fitted to as many answers. The last
columns are the questions answered at a risk of 10 %: before, the mean of 200 ways to halve all of them; now with all of
them, and with people:calibration alone.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.special import bdtr, expit, log_softmax

from attnlab import stats
from attnlab.corpora import Question, load_questions
from attnlab.lm.model import load_model
from attnlab.stats.selective import errors_allowed, ordered
from attnlab.store.runs import Run
from attnlab.trust.answers import AnswerDistribution, AnswerTrie, answer_distribution, familiarity
from attnlab.trust.calibrating import FLOOR
from attnlab.trust.training_data import Forms, TrainingData, candidates

Numbers = NDArray[np.float64]
ALPHA, SIZES, RISKS = 0.05, (180, 450, 1000), (0.05, 0.1, 0.2)


@dataclass(frozen=True)
class World:
    """Models whose scores have normal log odds, and whose answers are right as Platt scaling would have it."""

    name: str
    mean: float
    spread: float
    truth: stats.Platt

    def draw(self, count: int, rng: np.random.Generator) -> tuple[Numbers, NDArray[np.bool_]]:
        """Scores and right answers."""
        score = expit(rng.normal(self.mean, self.spread, count))
        return score, rng.random(count) < self.truth(score)

    def known(self) -> tuple[Numbers, Numbers, Numbers]:
        """Scores in ascending order, with the true coverage and the true risk of each as a threshold."""
        z = np.linspace(-8, 8, 20_001)
        score, weight = expit(self.mean + self.spread * z), np.exp(-z * z / 2)
        above = weight[::-1].cumsum()[::-1]
        wrong = (weight * (1 - self.truth(score)))[::-1].cumsum()[::-1]
        return score, above / above[0], wrong / above


WORLDS = (
    World("like the built-in people", 2.0, 1.5, stats.Platt(0.7, 1.24)),  # as fitted to one run of `attnlab run`
    World("overconfident", 5.0, 3.0, stats.Platt(0.5, 0.0)),
    World("underconfident", 0.5, 1.0, stats.Platt(1.5, 1.5)),
    World("weak", 1.0, 2.5, stats.Platt(1.0, 0.0)),
    World("strong", 4.0, 2.0, stats.Platt(0.9, 0.5)),
)


def half_and_half(score: Numbers, right: NDArray[np.bool_], max_risk: float, rng: np.random.Generator) -> float | None:
    """The procedure before: one half chooses a threshold, the other certifies it and lowers it step by step."""
    order = rng.permutation(len(score))
    first, second = order[: len(order) // 2], order[len(order) // 2 :]
    thresholds, accepted, wrong = ordered(score[first], right[first].astype(np.float64))
    share = accepted / accepted[-1]
    others = np.maximum(1, np.rint(share * len(second) - np.sqrt(len(second) * share * (1 - share)))).astype(np.int64)
    allowed = errors_allowed(others, max_risk, ALPHA)
    chance = np.where(allowed < 0, 0.0, bdtr(np.maximum(allowed, 0), others, (wrong + 1) / (accepted + 2)))
    if chance.max() == 0:
        return None
    start = thresholds[np.flatnonzero(chance >= 0.98 * chance.max())[-1]]
    ranks = np.linspace(0, len(first) - 1, 51).round().astype(int)
    certified = None
    for threshold in (start, *(one for one in np.unique(np.sort(score[first])[ranks])[::-1] if one < start)):
        taken = score[second] >= threshold
        if not taken.any() or bdtr((taken & ~right[second]).sum(), taken.sum(), max_risk) > ALPHA:
            break
        certified = float(threshold)
    return certified


def all_questions(score: Numbers, right: NDArray[np.bool_], max_risk: float, _: np.random.Generator) -> float | None:
    """The present procedure."""
    return stats.selective_rule(score, right, max_risk, ALPHA).threshold


Procedure = Callable[[Numbers, NDArray[np.bool_], float, np.random.Generator], float | None]
PROCEDURES: tuple[Procedure, ...] = (half_and_half, all_questions)


def simulate(draws: int) -> None:
    """Print coverage, share of draws with a certificate and share of broken guarantees of both procedures."""
    print(f"{draws:,} draws; before: half to choose, half to certify; now: all questions certify preset thresholds\n")
    print(f"{'':26} questions  risk   coverage        certified       broken")
    print(f"{'':44} before   now   before   now   before   now")
    coverages: dict[tuple[int, float], list[list[float]]] = {}
    for world in WORLDS:
        score, coverage, risk = world.known()
        for size in SIZES:
            for max_risk in RISKS:
                rng = np.random.default_rng([size, round(100 * max_risk)])
                found = np.zeros((draws, len(PROCEDURES), 3))
                for one in range(draws):
                    drawn = world.draw(size, rng)
                    for place, procedure in enumerate(PROCEDURES):
                        threshold = procedure(*drawn, max_risk, rng)
                        if threshold is not None:
                            covered, true = (float(np.interp(threshold, score, column)) for column in (coverage, risk))
                            found[one, place] = covered, 1, true > max_risk
                means = 100 * found.mean(axis=0)
                coverages.setdefault((size, max_risk), []).append(means[:, 0].tolist())
                shown = "".join(f"  {before:6.1f} {now:6.1f}" for before, now in means.T)
                print(f"{world.name:26} {size:9,} {100 * max_risk:4.0f} % {shown}", flush=True)
    print("\nmean coverage of these worlds")
    for (size, max_risk), each in coverages.items():
        before, now = np.mean(each, axis=0)
        print(f"{'':26} {size:9,} {100 * max_risk:4.0f} %   {before:6.1f} {now:6.1f}")


@dataclass(frozen=True)
class Asked:
    """What a model says about questions: its own probabilities, that of knowing the names, and what is right."""

    table: AnswerDistribution
    known: Numbers
    columns: NDArray[np.int64]  # of the right answers; the last one for answers that are no candidates

    @property
    def right(self) -> NDArray[np.bool_]:
        """Whether the most likely answers are right."""
        return self.table.likeliest == self.columns

    def confidence(self, temperature: float = 1.0) -> Numbers:
        """The probability of the most likely answers at a temperature, times that of knowing the names."""
        return np.exp(log_softmax(self.table.table / temperature, axis=1)[:, :-1].max(axis=1)) * self.known

    def temperature(self) -> float:
        """The temperature that makes the right answers of one half likeliest, without the factor of familiarity."""
        half = np.random.default_rng(0).permutation(len(self.known))[: len(self.known) // 2]
        table = self.table.table[half], self.columns[half]
        finite = np.isfinite(table[0][np.arange(len(half)), table[1]])
        rows, columns = np.maximum(table[0][finite], -1e3), table[1][finite]

        def loss(log_temperature: float) -> float:
            spread = log_softmax(rows / np.exp(log_temperature), axis=1)
            return -float(spread[np.arange(len(rows)), columns].mean())

        return float(np.exp(minimize_scalar(loss, bounds=(np.log(0.02), np.log(50)), method="bounded").x))


def by_chance(fitted_to: Numbers, exam: Numbers, truth: stats.Platt, draws: int = 200) -> Numbers:
    """Calibration errors on an exam if the map that is fitted has the right form."""
    rng = np.random.default_rng(0)
    errors = []
    for _ in range(draws):
        scaling = stats.fit_platt(fitted_to, rng.random(len(fitted_to)) < truth(fitted_to))
        errors.append(stats.calibration(scaling(exam), rng.random(len(exam)) < truth(exam)).ece)
    return np.array(errors)


def measure(folder: Path) -> None:
    """Print the calibration error of a study's final run: uncalibrated, before, now, and by chance."""
    run = Run.open(folder)
    data, (model, tokenizer) = TrainingData(run), load_model(run.model)
    forms = Forms(data.facts)
    trie = AnswerTrie(tokenizer, candidates(tokenizer, data.facts, data.lines))
    places = {answer: place for place, answer in enumerate(trie.answers)}

    def ask(questions: tuple[Question, ...]) -> Asked:
        texts = [item.question for item in questions]
        known = familiarity(model, tokenizer, [forms.name(one) for one in texts])
        columns = np.array([places.get((item.answer or "").strip(), len(trie)) for item in questions])
        return Asked(answer_distribution(model, tokenizer, texts, trie, floor=FLOOR), known, columns)

    withheld = (folder / "known.tsv").exists()  # a study of trust has its questions in its folder
    exam = ask(load_questions(folder / "known.tsv" if withheld else "people:test"))
    held_out = load_questions("people:dev"), load_questions("people:calibration")
    read = {item.question for item in load_questions(folder / "calibration.tsv")} if withheld else None
    dev, mine = (tuple(one for one in part if read is None or one.question in read) for part in held_out)
    both = ask((*dev, *mine))
    scores, right = both.confidence(), both.right
    fitted_to, outcomes = scores[len(dev) :], right[len(dev) :]
    scaling = stats.fit_platt(fitted_to, outcomes)
    maps = exam.confidence(), exam.confidence(both.temperature()), scaling(exam.confidence())
    plain, before, now = (100 * stats.calibration(one, exam.right).ece for one in maps)
    truth = stats.fit_platt(exam.confidence(), exam.right)
    chance = 100 * by_chance(fitted_to, exam.confidence(), truth)
    rng = np.random.default_rng(0)
    halved = [half_and_half(scores, right, 0.1, rng) for _ in range(200)]
    covered = np.mean([0.0 if one is None else (scores >= one).mean() for one in halved])
    whole, half = (stats.selective_rule(*one, 0.1).coverage for one in ((scores, right), (fitted_to, outcomes)))
    print(
        f"{folder.name:12} {100 * exam.right.mean():6.1f} {100 * outcomes.mean():10.1f} {plain:12.1f} {before:8.1f} {now:6.1f}"
        f" {chance.mean():10.1f} ({np.quantile(chance, 0.95):.1f}) {100 * covered:8.1f} {100 * whole:6.1f} {100 * half:6.1f}",
        flush=True,
    )


def main() -> None:
    """Simulate, or measure the given studies."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, help="folders of studies; none: simulate")
    parser.add_argument("--draws", type=int, default=1000, help="draws of the simulation, default 1000")
    given = parser.parse_args()
    if not given.folders:
        simulate(given.draws)
        return
    print("right answers and calibration errors in per cent; by chance: the mean, and what 95 % of draws stay below")
    print(
        f"{'':12} {'exam':>6} {'questions':>10} {'uncalibrated':>12} {'before':>8} {'now':>6} {'by chance':>10}"
        f"       {'before':>8} {'now':>6} {'alone':>6}"
    )
    for folder in given.folders:
        measure(folder)


if __name__ == "__main__":
    main()
