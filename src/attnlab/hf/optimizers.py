"""Which optimizer? The same encoder, tables, seeds and epochs, fine-tuned once with each optimizer and seed.

The optimizers are compared text by text on the validation table; a test table is refused. Finished trainings are stored, so
that a study that was stopped resumes where it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from math import inf, isnan, nan
from pathlib import Path

from rich.console import Console

from attnlab import stats
from attnlab.errors import UserError, unknown
from attnlab.hf.classify import Outcome, fine_tune, short_name
from attnlab.hf.settings import RATES, FineTuning, Optimizer, is_optimizer
from attnlab.hf.tuning import Tuning, TuningResult
from attnlab.lm.progress import display, say
from attnlab.report.document import Axis, Cell, Document, Row, Series, Table, section
from attnlab.report.parts import cell, columns, lines, text_column
from attnlab.report.words import duration, listed, percent, plural, span
from attnlab.store import records
from attnlab.store.folders import write_folder
from attnlab.studies.study import study

_ALPHA = 0.05


@dataclass(frozen=True)
class OptimizerSummary:
    """One optimizer over all seeds: accuracy of the best epoch with its interval for new seeds, curves, times."""

    name: str
    rate: float
    accuracy: float
    low: float | None
    high: float | None
    diverged: int  # seeds whose loss became NaN
    best_epochs: tuple[int, ...]
    seconds_per_epoch: float
    curves: tuple[tuple[float, ...], ...]  # validation accuracy by seed and epoch


@dataclass(frozen=True)
class OptimizerPair:
    """Two optimizers compared text by text; p is adjusted for all pairs."""

    first: str
    second: str
    p: float | None
    sentence: str

    @property
    def names(self) -> tuple[str, str]:
        """Both optimizers."""
        return self.first, self.second


@dataclass(frozen=True, kw_only=True)
class OptimizersResult(TuningResult):
    """The result of the study."""

    kind: str = "optimizers"
    optimizers: tuple[OptimizerSummary, ...]
    pairs: tuple[OptimizerPair, ...]


def read_rates(text: str) -> dict[Optimizer, float]:
    """Parse optimizers separated by commas, each with a rate unless it is to have its default: adamw=3e-5,sgd."""
    rates: dict[Optimizer, float] = {}
    for part in text.split(","):
        name, sign, value = (piece.strip() for piece in part.partition("="))
        if not is_optimizer(name):
            raise UserError(f"--optimizers: {unknown('optimizer', name, RATES)}")
        if name in rates:
            raise UserError(f"--optimizers names {name} twice: leave one out; rates are compared by --search")
        try:
            rates[name] = float(value) if sign else 0.0
        except ValueError:
            rates[name] = nan
        if sign and not 0 < rates[name] < inf:
            raise UserError(
                f"--optimizers: the rate of {name} must be a number above 0, such as {name}={RATES[name]:g}"
            )
    if len(rates) < 2:
        raise UserError(f"--optimizers compares two or more, such as adamw,sgd; for one use --optimizer {text}")
    return rates


@study("optimizers", own_command=True)
class Optimizers(Tuning[OptimizersResult]):
    """Compare optimizers on the same encoder, tables, seeds and epochs."""

    rates: dict[Optimizer, float]  # 0 for the default of the optimizer
    seeds: tuple[int, ...] = (0, 1, 2)

    def check(self) -> None:
        """Refuse the test table, and settings that the study replaces."""
        if self.texts.test:
            raise UserError(
                "--optimizers judges on validation: leave --test out, and use it once with the optimizer you choose"
            )
        if self.settings.lr:
            raise UserError(
                "one --lr does not suit all optimizers: give rates by name, such as --optimizers adamw=3e-5,sgd=0.02"
            )
        if self.settings.optimizer != FineTuning.optimizer or self.settings.seed:
            raise UserError("--optimizers and --seeds replace them: leave out --optimizer and --seed")
        super().check()

    def train(self, folder: Path, console: Console) -> None:
        """Do every training that is not finished, one after the other, so that their times can be compared."""
        say(console, self._rates_in_words())
        for seed in self.seeds:
            for name in self.rates:
                path = folder / name / f"seed-{seed}"
                if path.exists():
                    continue
                settings = replace(self.settings, optimizer=name, lr=self.rates[name] or RATES[name], seed=seed)
                with display(f"{name}, seed {seed}", console) as show:
                    outcome = fine_tune(self.model, self.judged, settings, show=show)
                write_folder(path, "training", {"result.json": records.encode(outcome)})
                right = f"{percent(outcome.accuracy)} right in epoch {outcome.best_epoch}"
                say(console, f"{name}, seed {seed}: {right}, {duration(outcome.seconds)}")

    def judge(self, folder: Path, console: Console) -> OptimizersResult:
        """Compare the finished trainings, every optimizer with every other."""
        trained = {
            name: [records.read(Outcome, folder / name / f"seed-{seed}" / "result.json") for seed in self.seeds]
            for name in self.rates
        }
        optimizers = tuple(_summary(name, self.rates[name] or RATES[name], trained[name]) for name in trained)
        pairs = _compare(trained)
        return OptimizersResult(
            title=f"{listed(self.rates)}: which fine-tunes {short_name(self.model)} better?",
            command=self.command,
            seconds=sum(outcome.seconds for outcomes in trained.values() for outcome in outcomes),
            facts=self.facts(),
            settings=self.settings,
            optimizers=optimizers,
            pairs=pairs,
            verdict=(
                _verdict(optimizers, pairs),
                self._rates_in_words(),
                *(f"{summary.name} diverged: use a smaller rate." for summary in optimizers if summary.diverged),
                *(pair.sentence for pair in pairs),
            ),
            warnings=self.tables.warnings,
        )

    def _rates_in_words(self) -> str:
        """Where the learning rates come from, and what that means for the comparison."""
        defaults = ", ".join(f"{name} {RATES[name]:g}" for name, rate in self.rates.items() if not rate)
        rates = ", ".join(f"{name} {rate:g}" for name, rate in self.rates.items() if rate)
        if not defaults:
            return f"Learning rates as given: {rates}."
        return (
            f"Learning rates {f'as given: {rates}; ' if rates else ''}each optimizer's default, not tuned: {defaults}."
            " With a rate tuned by --search an optimizer may do better, and the order may change."
        )

    def document(self, result: OptimizersResult) -> Document:
        """Return the accuracies, the comparisons in words, and the curves."""
        rows = [
            Row(
                Cell(summary.name),
                [
                    Cell(f"{summary.rate:g}", summary.rate),
                    cell(summary.accuracy, "share"),
                    Cell(span(summary.low, summary.high, "share"), low=summary.low, high=summary.high),
                    Cell(", ".join(map(str, summary.best_epochs))),
                    cell(summary.seconds_per_epoch, "seconds"),
                ],
            )
            for summary in result.optimizers
        ]
        titles = columns("Optimizer", "Rate", "Right", "95 % interval", text_column("Best epoch"), "Time of an epoch")
        caption = (
            "Right labels of the validation texts in the best epoch, mean of the seeds; chosen on the same texts, which makes"
            " all of them a little optimistic."
        )
        curves = [_curve(summary) for summary in result.optimizers]
        title, x, y = "Accuracy, mean and range of the seeds", Axis("epoch"), Axis("right labels", "%")
        return self.report(
            result,
            *section("Results", Table("Optimizers", caption, titles, rows, brief=True)),
            *section("Validation", lines(title, curves, x, y, "the accuracy in per cent")),
        )


def _summary(name: str, rate: float, outcomes: list[Outcome]) -> OptimizerSummary:
    mean = stats.mean_interval([outcome.accuracy for outcome in outcomes])
    seconds = [epoch.seconds for outcome in outcomes for epoch in outcome.epochs]
    return OptimizerSummary(
        name,
        rate,
        mean.mean,
        mean.low,
        mean.high,
        sum(isnan(outcome.dev.loss) for outcome in outcomes),
        tuple(outcome.best_epoch for outcome in outcomes),
        sum(seconds) / len(seconds),
        tuple(tuple(outcome.curve) for outcome in outcomes),
    )


def _compare(trained: Mapping[Optimizer, list[Outcome]]) -> tuple[OptimizerPair, ...]:
    """Test every pair for new seeds and new texts; with one seed, by McNemar's test."""
    names = list(combinations(trained, 2))
    right = {name: [outcome.right for outcome in outcomes] for name, outcomes in trained.items()}
    tests: list[stats.SeedsByQuestions | stats.McNemar] = []
    for a, b in names:
        if len(right[a]) > 1:
            tests.append(stats.seeds_by_questions(right[a], right[b], alpha=_ALPHA / len(names)))
        else:
            tests.append(stats.mcnemar(right[a][0], right[b][0], alpha=_ALPHA / len(names)))
    single = [test.both.p if isinstance(test, stats.SeedsByQuestions) else test.p for test in tests]
    adjusted = iter(stats.holm([p for p in single if p is not None]))
    pairs = []
    for (a, b), test, p in zip(names, tests, single, strict=True):
        p = None if p is None else next(adjusted)
        several = len(names) if p is not None else 1
        words = stats.in_words(test, a, b, adjusted=p if several > 1 else None, comparisons=several, item="text")
        pairs.append(OptimizerPair(a, b, p, f"{a} against {b}: {words}."))
    return tuple(pairs)


def _verdict(summaries: Sequence[OptimizerSummary], pairs: Sequence[OptimizerPair]) -> str:
    """Which optimizer comes first, and which it is shown to be better than."""
    best = max(summaries, key=lambda summary: summary.accuracy)
    others = {({pair.first, pair.second} - {best.name}).pop(): pair.p for pair in pairs if best.name in pair.names}
    beaten = [name for name, p in others.items() if p is not None and p < _ALPHA]
    rest = [name for name in others if name not in beaten]
    claims = [f"shown to be better than {listed(beaten, 'or')}"] if beaten else []
    claims += [f"not shown to be better than {listed(rest, 'or')}"] if rest else []
    mean = f"{percent(best.accuracy)} of labels right, mean of {plural(len(best.curves), 'seed')}"
    return f"{best.name} comes first with {mean}; it is {', and '.join(claims)}."


def _curve(summary: OptimizerSummary) -> Series:
    """Validation accuracy by epoch in per cent, over the seeds."""
    by_epoch = [[100 * share for share in shares] for shares in zip(*summary.curves, strict=True)]
    mean = [sum(shares) / len(shares) for shares in by_epoch]
    numbers = [float(number) for number in range(1, len(mean) + 1)]
    return Series(
        summary.name, numbers, mean, [min(shares) for shares in by_epoch], [max(shares) for shares in by_epoch]
    )
