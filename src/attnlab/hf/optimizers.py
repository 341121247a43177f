"""Which optimizer? The same encoder, tables, seeds and epochs, fine-tuned once with each optimizer and seed.

The optimizers are compared text by text on the validation table; a test table is refused. Finished trainings are stored, so
that a study that was stopped resumes where it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

from rich.console import Console

from attnlab import stats
from attnlab.errors import UserError, named, refuse, refuse_twice
from attnlab.hf import RATES, FineTuning, Optimizer
from attnlab.hf.classify import Outcome, describe_tables, fine_tune, short_name
from attnlab.hf.tuning import Tuning, TuningResult
from attnlab.lm.progress import display, say
from attnlab.report.document import Axis, Cell, Document, Series, section
from attnlab.report.parts import cell, interval_cell, lines, table_of, text_column
from attnlab.report.words import duration, listed, percent, plural
from attnlab.store import records
from attnlab.store.folders import write_folder
from attnlab.studies.study import study
from attnlab.studies.training import share_of

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


@dataclass(frozen=True, kw_only=True)
class OptimizersResult(TuningResult):
    """The result of the study."""

    optimizers: tuple[OptimizerSummary, ...]
    pairs: tuple[stats.Contrast, ...]


def read_rates(text: str) -> dict[Optimizer, float]:
    """Parse optimizers separated by commas, each with a rate unless it is to have its default: adamw=3e-5,sgd."""
    pairs = [tuple(piece.strip() for piece in part.partition("=")[::2]) for part in text.split(",")]
    refuse_twice([name for name, _ in pairs])
    with named("--optimizers"):
        chosen = [FineTuning.from_options({"optimizer": name, "lr": rate or None}) for name, rate in pairs]
    rates = {settings.optimizer: settings.rate for settings in chosen}
    if len(rates) < 2:
        raise UserError(f"--optimizers compares two or more, such as adamw,sgd; for one use --optimizer {text}")
    return rates


@study("optimizers", own_command=True)
class Optimizers(Tuning[OptimizersResult]):
    """Compare optimizers on the same encoder, tables, seeds and epochs."""

    rates: dict[Optimizer, float]
    seeds: tuple[int, ...] = (0, 1, 2)

    def check(self) -> None:
        """Refuse the test table, and settings that the study replaces."""
        reasons = {
            "judges on validation: leave --test out, and use it once with the optimizer you choose": self.texts.test,
            "takes rates by name, such as adamw=3e-5,sgd=0.02: leave --lr out": self.settings.lr,
            "and --seeds replace them: leave out --optimizer and --seed": (
                self.settings.optimizer != FineTuning.optimizer or self.settings.seed
            ),
        }
        refuse("--optimizers", reasons)
        super().check()

    def train(self, folder: Path, console: Console) -> None:
        """Do every training that is not finished, one after the other, so that their times can be compared."""
        say(console, self._rates_in_words())
        for seed in self.seeds:
            for name, rate in self.rates.items():
                path = folder / name / f"seed-{seed}"
                if path.exists():
                    continue
                settings = replace(self.settings, optimizer=name, lr=rate, seed=seed)
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
        optimizers = tuple(_summary(name, self.rates[name], outcomes) for name, outcomes in trained.items())
        right = {name: [outcome.right for outcome in outcomes] for name, outcomes in trained.items()}
        pairs = stats.contrasts([(a, b, right[a], right[b], None) for a, b in combinations(right, 2)], item="text")
        return OptimizersResult(
            tables=describe_tables(self.tables),
            title=f"{listed(self.rates)}: which fine-tunes {short_name(self.model)} better?",
            seconds=sum(outcome.seconds for outcomes in trained.values() for outcome in outcomes),
            optimizers=optimizers,
            pairs=tuple(pairs),
            verdict=(
                _verdict(optimizers, pairs),
                self._rates_in_words(),
                *(f"{summary.name} diverged: use a smaller rate." for summary in optimizers if summary.diverged),
                *(pair.sentence for pair in pairs),
            ),
        )

    def _rates_in_words(self) -> str:
        """The learning rates, and what the defaults among them mean for the comparison."""
        defaults = [name for name, rate in self.rates.items() if rate == RATES[name]]
        rates = ", ".join(f"{name} {rate:g}" for name, rate in self.rates.items())
        remark = f" The default of {listed(defaults)} is not tuned: with a rate tuned by --search the order may change."
        return f"Learning rates: {rates}.{remark if defaults else ''}"

    def document(self, result: OptimizersResult) -> Document:
        """Return the accuracies, the comparisons in words, and the curves."""
        table = table_of(
            "Optimizers",
            "Right labels of the validation texts in the best epoch, mean of the seeds; chosen on the same texts, which makes"
            " all of them a little optimistic.",
            result.optimizers,
            [
                ("Optimizer", lambda summary: Cell(summary.name)),
                ("Rate", lambda summary: Cell(f"{summary.rate:g}", summary.rate)),
                ("Right", lambda summary: cell(summary.accuracy, "share")),
                ("95 % interval", interval_cell),
                (text_column("Best epoch"), lambda summary: Cell(", ".join(map(str, summary.best_epochs)))),
                ("Time of an epoch", lambda summary: cell(summary.seconds_per_epoch, "seconds")),
            ],
            brief=True,
        )
        title, x, y = "Accuracy, mean and range of the seeds", Axis("epoch"), Axis("right labels", "%")
        curves = lines(title, list(map(_curve, result.optimizers)), x, y, "the accuracy in per cent")
        return self.report(result, *section("Results", table), *section("Validation", curves))


def _summary(name: str, rate: float, outcomes: list[Outcome]) -> OptimizerSummary:
    mean = share_of(*(outcome.right for outcome in outcomes))
    seconds = [epoch.seconds for outcome in outcomes for epoch in outcome.epochs]
    return OptimizerSummary(
        name,
        rate,
        mean.accuracy or 0.0,
        mean.low,
        mean.high,
        sum(outcome.dev.loss is None for outcome in outcomes),
        tuple(outcome.best_epoch for outcome in outcomes),
        sum(seconds) / len(seconds),
        tuple(tuple(outcome.curve) for outcome in outcomes),
    )


def _verdict(summaries: Sequence[OptimizerSummary], pairs: Sequence[stats.Contrast]) -> str:
    """Which optimizer comes first, and which it is shown to be better than."""
    best = max(summaries, key=lambda summary: summary.accuracy)
    p = {pair.a: pair.adjusted for pair in pairs if pair.b == best.name}
    p |= {pair.b: pair.adjusted for pair in pairs if pair.a == best.name}
    beaten, rest = [name for name in p if p[name] < _ALPHA], [name for name in p if p[name] >= _ALPHA]
    claims = [f"shown to be better than {listed(beaten, 'or')}"] if beaten else []
    claims += [f"not shown to be better than {listed(rest, 'or')}"] if rest else []
    mean = f"{percent(best.accuracy)} of labels right, mean of {plural(len(best.curves), 'seed')}"
    return f"{best.name} comes first with {mean}; it is {', and '.join(claims)}."


def _curve(summary: OptimizerSummary) -> Series:
    """Validation accuracy by epoch in per cent, over the seeds."""
    by_epoch = [[100 * share for share in shares] for shares in zip(*summary.curves, strict=True)]
    mean = [sum(shares) / len(shares) for shares in by_epoch]
    low, high = list(map(min, by_epoch)), list(map(max, by_epoch))
    return Series(summary.name, [float(number) for number in range(1, len(mean) + 1)], mean, low, high)
