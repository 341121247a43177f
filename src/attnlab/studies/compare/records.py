"""Records of a comparison: what is measured of a run, finished runs with their figures, and the result.

Runs that do not belong together are refused. No tests and no sentences here: these are the judge's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np

from attnlab import stats
from attnlab.config import Settings
from attnlab.errors import UserError
from attnlab.lm import stages
from attnlab.lm.exams import Score
from attnlab.lm.perplexity import Probe, SentenceLosses
from attnlab.lm.word_split import LengthBar
from attnlab.report.parts import LossCurve, StudyResult
from attnlab.store import records
from attnlab.store.folders import read_bytes, read_json
from attnlab.store.runs import Run, RunResult, lineage
from attnlab.studies.compare.plan import Grid, Plan, Published, Tuned
from attnlab.studies.compare.variants import run_differences
from attnlab.studies.study import load

T = TypeVar("T")
READ_TWICE = 200  # texts that are also read word by word

Kind = Literal["perplexity", "loss", "share", "seconds", "rate", "bytes", "count"]


@dataclass(frozen=True)
class Figure:
    """One column of the results."""

    key: str
    title: str
    short: str
    kind: Kind
    lower_is_better: bool
    note: str


_TOKEN = "exp(mean loss per token)"
_SENTENCE = "mean over sentences of exp(mean loss of the sentence), as in the course reports"
_TRAINING = "on training sentences, at most as many as in the dev text"


def _perplexity(key: str, title: str, short: str, note: str) -> Figure:
    return Figure(key, title, short, "perplexity", True, note)


_OF_TEXT = (
    _perplexity("dev_token_perplexity", "dev perplexity of tokens", "dev ppl, tokens", _TOKEN),
    _perplexity("dev_sentence_perplexity", "dev perplexity of sentences", "dev ppl, sentences", _SENTENCE),
    _perplexity(
        "train_token_perplexity", "training perplexity of tokens", "train ppl, tokens", f"{_TOKEN}, {_TRAINING}"
    ),
    _perplexity(
        "train_sentence_perplexity",
        "training perplexity of sentences",
        "train ppl, sentences",
        f"{_SENTENCE}; {_TRAINING}",
    ),
)
_OF_QUESTIONS = (
    Figure("accuracy", "right answers", "right", "share", False, "exact match on questions that were not trained on"),
)
_OF_ALL = (
    Figure(
        "final_loss",
        "final training loss",
        "loss",
        "loss",
        True,
        "mean of the last twentieth of the steps, with dropout on",
    ),
    Figure("seconds", "training time", "time", "seconds", True, "wall time of training, while other jobs run"),
    Figure("tokens_per_second", "tokens per second", "tokens/s", "rate", False, "in training, without padding"),
    Figure(
        "peak_memory",
        "peak memory",
        "memory",
        "bytes",
        True,
        "peak resident memory of the training process, with libraries and data",
    ),
    Figure("parameters", "parameters", "parameters", "count", True, "with embedding and head"),
    Figure(
        "flops_per_token",
        "FLOPs per token",
        "FLOPs/token",
        "count",
        True,
        "forward and backward, in an unpadded text of mean length",
    ),
)


def figures(words: bool) -> tuple[Figure, ...]:
    """The figures of a comparison; the first is what is tested."""
    return (*(_OF_TEXT if words else _OF_QUESTIONS), *_OF_ALL)


@dataclass(frozen=True)
class Quality:
    """Statistics of the words of texts."""

    tokens: float
    unknown_share: float
    punctuation_share: float
    distinct_share: float
    mean_length: float


@dataclass(frozen=True)
class Readings:
    """Token perplexity of the same texts read whole and word by word."""

    sentences: int
    whole: float
    word_by_word: float


@dataclass(frozen=True)
class OnText:
    """Measurements on text; `dev` and `train` are summaries of sentence losses."""

    dev: dict[str, float]
    train: dict[str, float]
    probes: tuple[Probe, ...]
    samples: tuple[str, ...]
    sample_quality: Quality
    text_quality: Quality
    spaced_probes: tuple[Probe, ...] = ()  # the same sentences split at spaces only; none for pieces and characters


@dataclass(frozen=True)
class Measured:
    """The content of measured.json: on text, or on questions."""

    word_by_word: Readings
    flops_per_token: float
    measuring: float  # seconds
    flops_length: int | None = None
    text: OnText | None = None
    answers: Score | None = None

    def values(self) -> dict[str, float]:
        """The figures found here, by key."""
        values = {"flops_per_token": self.flops_per_token}
        if self.answers and self.answers.accuracy is not None:
            values["accuracy"] = self.answers.accuracy
        if self.text:
            for part, summary in (("dev", self.text.dev), ("train", self.text.train)):
                values |= {f"{part}_{name}": summary[name] for name in ("token_perplexity", "sentence_perplexity")}
        return values


# The result


@dataclass(frozen=True)
class AuditSummary:
    """What the audit of a variant found; `causal_leak` is None where it could not be tested."""

    verdict: str
    causal_leak: float | None
    leak_by_position: tuple[float, ...]
    defect: str
    faults: dict[str, str]


@dataclass(frozen=True)
class Spread:
    """A figure over the seeds: its mean with a 95 % interval, and the value of each seed."""

    n: int
    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
    note: str
    each: tuple[float | None, ...]


@dataclass(frozen=True)
class Effect:
    """A tested ratio of token perplexities, or difference of shares of right answers, with its interval.

    `scope` is what the test generalises to. One of the last three holds all numbers of the test.
    """

    kind: Literal["ratio", "difference"]
    value: float | None
    low: float | None
    high: float | None
    p: float | None
    scope: str
    perplexities: stats.Perplexities | None = None
    mcnemar: stats.McNemar | None = None
    answers: stats.SeedsByQuestions | None = None

    @property
    def details(self) -> stats.Perplexities | stats.McNemar | stats.SeedsByQuestions:
        """All numbers of the test."""
        details = self.perplexities or self.mcnemar or self.answers
        assert details is not None
        return details


@dataclass(frozen=True)
class SeedPair:
    """The figure of both sides with one seed; for answers, with McNemar's test."""

    seed: int
    a: float | None
    b: float | None
    difference: float | None
    mcnemar: stats.McNemar | None = None


@dataclass(frozen=True)
class Comparison:
    """One tested pair."""

    a: str
    b: str
    figure: str
    words: str
    effect: Effect
    adjusted: float | None = None  # p after Holm's correction
    shown: bool = False
    valid: bool = True  # False if one of the two sees the future
    by_seed: tuple[SeedPair, ...] = ()
    level: float = 0.95  # of the interval, so that those of all comparisons hold together
    equivalence: stats.Equivalence | None = None  # of the difference, or of the logarithm of the ratio
    settings: str = ""  # whether settings were tuned, in half a sentence

    @property
    def heading(self) -> str:
        """Which two are compared, with which settings."""
        return f"{self.a} against {self.b}" + (f", {self.settings}" if self.settings else "")

    @property
    def sentence(self) -> str:
        """The comparison as a sentence."""
        sentence = f"{self.heading}: {self.words}."
        return sentence if self.valid else f"{sentence} This is invalid, since one of the two sees the future."


@dataclass(frozen=True)
class Difference:
    """A minus B of a further figure, paired by seed: described, not tested."""

    a: str
    b: str
    figure: str
    difference: float
    low: float | None
    high: float | None
    ratio: float | None


@dataclass(frozen=True)
class MeanProbe(Probe):
    """A probe sentence: the mean over the seeds, and the loss of each seed."""

    losses: tuple[float, ...]


@dataclass(frozen=True)
class Texts:
    """A variant's probes (means over seeds) and samples (of the first seed)."""

    probes: tuple[MeanProbe, ...]
    samples: tuple[str, ...]
    sample_quality: Quality
    spaced_probes: tuple[MeanProbe, ...] = ()


@dataclass(frozen=True)
class Ratio:
    """A ratio of perplexities with its 95 % interval."""

    value: float
    low: float | None
    high: float | None
    p: float | None

    def __str__(self) -> str:
        """The ratio in words."""
        interval = "" if self.low is None else f" ({self.low:.3g} to {self.high:.3g})"
        return f"{self.value:.3g} times{interval}"


@dataclass(frozen=True)
class Gain:
    """The perplexity of a leaking variant over that of the reference: read whole, and word by word.

    `kept` is the share of the gain, in logarithms, that is left word by word.
    """

    whole: Ratio
    word_by_word: Ratio
    kept: stats.RatioOfMeans | None = None


@dataclass(frozen=True)
class SeedRun:
    """A run with its figures and its training curve."""

    seed: int
    folder: str
    values: dict[str, float | None]
    curve: LossCurve = LossCurve()


@dataclass(frozen=True)
class VariantResult:
    """One variant with all its runs."""

    name: str
    reference: bool
    settings: dict[str, Any]  # those that are compared
    values: dict[str, Spread]
    runs: tuple[SeedRun, ...]
    leaks: bool = False
    audit: AuditSummary | None = None
    word_by_word: Readings | None = None
    texts: Texts | None = None
    gain: Gain | None = None
    exam: Score | None = None  # of the first seed


@dataclass(frozen=True)
class DataSummary:
    """The names and sizes of the data; `clusters` are documents or people that items share, None: each is alone."""

    corpus: str | None
    dev: str | None
    facts: str | None
    exam: str | None
    sentences: int
    dev_sentences: int | None
    questions: int | None
    clusters: int | None
    seen_before: int


@dataclass(frozen=True)
class Explanation:
    """What the leak of a variant is worth; the last paragraph is the verdict."""

    title: str
    paragraphs: tuple[str, ...]


@dataclass(frozen=True)
class Registration:
    """What was fixed beforehand, and what was changed after a result was known."""

    started: str
    hypothesis: str
    figure: str
    pairs: tuple[tuple[str, str], ...]
    alpha: float
    margin: float | None
    seeds: tuple[int, ...]  # of the first result
    looks: int
    seeds_added: tuple[int, ...]
    checksums: dict[str, str]
    before_training: bool = True  # False: finished runs were compared


@dataclass(frozen=True)
class Trial:
    """One variant with one combination of values: its figure, the mean over the seeds; None if a run diverged."""

    variant: str
    values: dict[str, Any]
    figure: float | None
    each: tuple[float, ...]
    failure: str = ""


@dataclass(frozen=True)
class Tuning:
    """All trials, and the values chosen for every variant."""

    settings: tuple[Tuned, ...]
    figure: str
    items: int  # sentences or questions that the choice was made on
    seeds: tuple[int, ...]
    trials: tuple[Trial, ...]
    chosen: dict[str, dict[str, Any]]

    @property
    def tied(self) -> list[str]:
        """The variants for which several combinations are equally good, so that the first was taken."""
        tied = []
        for name, values in self.chosen.items():
            trials = [trial for trial in self.trials if trial.variant == name]
            best = next((trial.figure for trial in trials if trial.values == values), None)
            tied += [name] if [trial.figure for trial in trials].count(best) > 1 else []
        return tied

    @property
    def at_edge(self) -> dict[str, list[str]]:
        """By variant: the settings whose best value is the smallest or largest of the numbers tried."""
        numeric = {
            tuned.setting: sorted(tuned.values)
            for tuned in self.settings
            if all(isinstance(value, int | float) for value in tuned.values)
        }
        edges = {
            name: [key for key, tried in numeric.items() if values[key] in (tried[0], tried[-1])]
            for name, values in self.chosen.items()
        }
        return {name: keys for name, keys in edges.items() if keys}


@dataclass(frozen=True, kw_only=True)
class ComparisonResult(StudyResult):
    """The result of a comparison; the first variant is the reference, and the first figure is tested."""

    question: str
    varied: str
    seeds: tuple[int, ...]
    order: tuple[tuple[str, int], ...]
    workers: int = 1  # runs at a time; 0: on a cluster
    figures: tuple[Figure, ...]
    variants: tuple[VariantResult, ...]
    comparisons: tuple[Comparison, ...]
    paired: tuple[Difference, ...]
    verdict: tuple[str, ...]
    settings: dict[str, Settings]  # by variant
    task: str
    preset: str
    data: DataSummary
    registration: Registration | None = None
    tuning: Tuning | None = None
    explanation: tuple[Explanation, ...] = ()
    published: tuple[Published, ...] = ()
    text_quality: Quality | None = None
    lengths: tuple[LengthBar, ...] = ()  # a histogram of the words per sentence
    quick: bool = False

    @property
    def leaking(self) -> list[str]:
        """The names of the variants that see the future."""
        return [variant.name for variant in self.variants if variant.leaks]

    def figure(self, key: str) -> Figure:
        """The figure of this key."""
        return next(figure for figure in self.figures if figure.key == key)


def read_result(folder: Path) -> ComparisonResult | None:
    """The result of a finished comparison; None if the folder holds the result of another study."""
    plan = load(folder)
    return plan.read_result(folder) if isinstance(plan, Plan) else None


# Finished runs


@dataclass(frozen=True)
class Record:
    """One finished run with its figures and the folder of its measurements."""

    seed: int
    run: Run
    folder: Path
    values: dict[str, float]

    @cached_property
    def measured(self) -> Measured:
        """The measurements."""
        return _measured_in(self.folder)

    @property
    def text(self) -> OnText:
        """The measurements on text."""
        assert self.measured.text is not None
        return self.measured.text

    def answers(self) -> list[bool]:
        """Whether each answer is correct."""
        return [line == "1" for line in read_bytes(self.folder / "right.csv").decode().splitlines()[1:]]

    def losses(self, name: str) -> SentenceLosses:
        """The losses of the sentences in one of its files."""
        return SentenceLosses.from_csv(read_bytes(self.folder / name).decode())


def _measured_in(folder: Path) -> Measured:
    return records.read(Measured, folder / "measured.json")


def read_measured(plan: Grid[Any], folder: Path, name: str, seed: int) -> Measured:
    """The measurements of a run."""
    return _measured_in(plan.measured(folder, name, seed))


Records = Mapping[str, Sequence[Record]]  # by variant, in the order of the seeds


def read_records(plan: Grid[Any], folder: Path) -> dict[str, list[Record]]:
    """All runs by variant, in the order of the seeds."""
    records: dict[str, list[Record]] = {}
    for variant in plan.variants:
        for seed in plan.seeds:
            run, place = Run.open(plan.path(folder, variant.name, seed)), plan.measured(folder, variant.name, seed)
            known = asdict(whole_result(run)) | Record(seed, run, place, {}).measured.values()
            values = {figure.key: known.get(figure.key) for figure in figures(plan.words)}
            there = {key: float(value) for key, value in values.items() if value is not None}
            records.setdefault(variant.name, []).append(Record(seed, run, place, there))
    return records


def some(lines: Sequence[T], count: int) -> list[T]:
    """At most `count` lines (or their clusters), the same for every run, in order."""
    if len(lines) <= count:
        return list(lines)
    picked = np.random.default_rng(0).choice(len(lines), count, replace=False)
    return [lines[at] for at in sorted(picked.tolist())]


def whole_result(run: Run) -> RunResult:
    """The result of a run, including the time and tokens of the runs that it started from."""
    result, base = run.result, run.record.base
    if base:
        before = whole_result(Run.open(run.path / base))
        seconds, tokens = result.seconds + before.seconds, result.tokens + before.tokens
        # Seconds are rounded, so that very short runs took none.
        rate = tokens / seconds if seconds else result.tokens_per_second
        memory = max(result.peak_memory or 0, before.peak_memory or 0) or None
        result = replace(result, seconds=seconds, tokens=tokens, tokens_per_second=rate, peak_memory=memory)
    return result


def refuse_differences(plan: Plan, records: Records) -> None:
    """Refuse runs that differ in more than the variant and the seed; runs of one variant, in more than the seed."""
    first = lineage(records[plan.variants[0].name][0].run)
    for name, rows in records.items():
        for record in rows:
            own = lineage(record.run)
            names = (
                run_differences(first, own, {plan.varied, *(tuned.setting for tuned in plan.tuned)})
                | run_differences(lineage(rows[0].run), own)
                | _misplaced(plan, name, record, own)
            )
            if names:
                raise UserError(
                    f"{first[0].path} and {record.run.path} differ in {', '.join(sorted(names))} besides {plan.varied},"
                    " so their effects could not be separated: remove the wrong run and resume, or start a new comparison"
                )


def _misplaced(plan: Plan, name: str, record: Record, own: Sequence[Run]) -> set[str]:
    """What shows that a run is in the folder of another seed or variant."""
    configs = [stages.stored_config(run) for run in own]
    # The base of a user's finished run may have another seed.
    seeds = {config.seed for config in (configs[:1] if plan.runs else configs)}
    differences = {"seed"} if seeds != {record.seed} else set()
    if not plan.runs and plan.find(name).value(plan.varied) != configs[-1].flat().get(plan.varied):
        differences.add("variant")
    return differences


def notes_on(records: Records) -> list[str]:
    """Notes on the runs as a whole."""
    every = [record.run for rows in records.values() for record in rows]
    places = {json.dumps(read_json(run.path / "env.json"), sort_keys=True) for run in every}
    ways = {(run.result.processes, run.result.threads) for run in every}
    seeds = len(next(iter(records.values())))
    notes = []
    if len(places) > 1 or len(ways) > 1:
        notes.append(
            "Not all runs were made on the same machine with the same versions and threads: do not compare their times."
        )
    if seeds == 2:
        notes.append(
            "With two seeds the test rests on one degree of freedom, and only very large differences can be shown: train"
            " five."
        )
    return notes
