"""The result of a comparison as records: what is measured, figures over seeds, and tested pairs.

No tests and no sentences here: these are the judge's.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from attnlab import stats
from attnlab.config import Settings
from attnlab.lm.exams import Score
from attnlab.lm.perplexity import Probe
from attnlab.lm.tokenizers import LengthBar
from attnlab.measure.audit import Report
from attnlab.report.parts import LossCurve, StudyResult
from attnlab.studies.compare.variants import Tuning

Kind = Literal["perplexity", "loss", "share", "seconds", "rate", "bytes", "count"]


@dataclass(frozen=True)
class Figure:
    """One column of the results."""

    key: str
    title: str
    short: str
    kind: Kind
    note: str

    @property
    def lower_is_better(self) -> bool:
        """Whether less is better."""
        return self.kind not in ("share", "rate") or self.key == "collapsed"

    @property
    def of_trained(self) -> Figure:
        """The same figure, of the runs that did not collapse."""
        return replace(
            self, key=f"trained_{self.key}", title=f"{self.title}, runs that trained", short=f"{self.short}, trained"
        )


_PERPLEXITIES = {
    "token": "exp(mean loss per token)",
    "sentence": "mean over sentences of exp(mean loss of the sentence), as in the course reports",
}
_PARTS = {"dev": ("dev", ""), "train": ("training", "; on training sentences, at most as many as in the dev text")}
_OF_TEXT = tuple(
    Figure(
        f"{part}_{unit}_perplexity",
        f"{name} perplexity of {unit}s",
        f"{part} ppl, {unit}s",
        "perplexity",
        f"{note}{more}",
    )
    for part, (name, more) in _PARTS.items()
    for unit, note in _PERPLEXITIES.items()
)
_OF_QUESTIONS = (
    Figure("accuracy", "right answers", "right", "share", "exact match on questions that were not trained on"),
)
COLLAPSED = Figure(
    "collapsed",
    "runs that collapsed",
    "collapsed",
    "share",
    "they diverged, or their training loss fell by less than 10 % while that of another run fell further; with an exact"
    " 95 % interval for other seeds",
)
_OF_ALL = (
    Figure(
        "final_loss", "final training loss", "loss", "loss", "mean of the last twentieth of the steps, with dropout"
    ),
    Figure("gradient_norm", "gradient norm", "gradient", "loss", "mean over the steps, before clipping"),
    Figure("seconds", "training time", "time", "seconds", "wall time of training, while other jobs run"),
    Figure("tokens_per_second", "tokens per second", "tokens/s", "rate", "in training, without padding"),
    Figure("peak_memory", "peak memory", "memory", "bytes", "of the training process, with libraries and data"),
    Figure("parameters", "parameters", "parameters", "count", "with embedding and head"),
    Figure(
        "flops_per_token",
        "FLOPs per token",
        "FLOPs/token",
        "count",
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
class Spread:
    """A figure over the seeds: its mean with a 95 % interval, and the value of each seed."""

    mean: float | None
    sd: float | None
    low: float | None
    high: float | None
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
    better: float | None = None  # probability under a flat prior that A is better
    similar: float | None = None  # and that the difference is within the margin
    perplexities: stats.Perplexities | None = None
    mcnemar: stats.McNemar | None = None
    answers: stats.SeedsByQuestions | None = None

    @property
    def details(self) -> stats.Perplexities | stats.McNemar | stats.SeedsByQuestions | None:
        """All numbers of the test; None where nothing was tested."""
        return self.perplexities or self.mcnemar or self.answers


@dataclass(frozen=True)
class Comparison:
    """One tested pair."""

    a: str
    b: str
    words: str
    effect: Effect
    adjusted: float | None = None  # p after Holm's correction
    shown: bool = False
    valid: bool = True  # False if one of the two leaks
    level: float = 0.95  # of the interval, so that those of all comparisons hold together
    settings: str = ""  # whether settings were tuned, in half a sentence
    belief: str = ""  # the probabilities of the effect as a sentence

    @property
    def tested(self) -> bool:
        """Whether there is a test."""
        return self.effect.p is not None

    @property
    def equivalence(self) -> stats.Equivalence | None:
        """The test of equivalence, if there is one."""
        return self.effect.details.equivalence if self.effect.details else None

    @property
    def heading(self) -> str:
        """Which two are compared, with which settings."""
        return f"{self.a} against {self.b}" + (f", {self.settings}" if self.settings else "")

    @property
    def sentence(self) -> str:
        """The comparison as a sentence."""
        sentence = f"{self.heading}: {self.words}."
        return sentence if self.valid else f"{sentence} This is invalid, since one of the two leaks."


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
class ProbeOverSeeds(Probe):
    """A probe sentence: the mean over the seeds, and the loss of each seed."""

    losses: tuple[float, ...]


@dataclass(frozen=True)
class Texts:
    """Measurements of a run on text that are not figures."""

    probes: tuple[Probe, ...]
    samples: tuple[str, ...]
    sample_quality: Quality
    text_quality: Quality  # of the dev text itself
    spaced_probes: tuple[Probe, ...] = ()  # the same sentences split at spaces only; none for pieces and characters


@dataclass(frozen=True)
class TextsOverSeeds(Texts):
    """Means over the seeds, with the samples of the first."""

    probes: tuple[ProbeOverSeeds, ...]
    spaced_probes: tuple[ProbeOverSeeds, ...] = ()


@dataclass(frozen=True)
class Gain:
    """The perplexity of a leaking variant over that of the reference: read whole, and word by word.

    `kept` is the share of the gain, in logarithms, that is left word by word.
    """

    whole: Effect
    word_by_word: Effect
    kept: stats.RatioOfMeans | None = None


@dataclass(frozen=True)
class SeedRun:
    """A run with its figures and its training curve."""

    seed: int
    folder: str
    values: dict[str, float | None]
    curve: LossCurve = LossCurve()
    dev_curve: LossCurve = LossCurve()  # of validation


@dataclass(frozen=True)
class VariantResult:
    """One variant with all its runs."""

    name: str
    value: Any  # of the setting that is varied
    values: dict[str, Spread]
    runs: tuple[SeedRun, ...]
    leaks: bool
    audit: Report
    word_by_word: Readings
    texts: TextsOverSeeds | None = None
    gain: Gain | None = None
    exam: Score | None = None  # of the first seed


@dataclass(frozen=True)
class LongTexts:
    """Token perplexity of the same tokens, those after the first block of each document, by length of context."""

    lengths: tuple[int, ...]  # the first is the block
    documents: int
    perplexities: dict[str, tuple[Spread | None, ...]]  # by variant, at every length; None: it does not read so many
    gains: tuple[Comparison, ...]  # each variant with a longer context, against itself with a block
    differences: tuple[Comparison, ...]  # the pairs of the comparison, with each length of context


@dataclass(frozen=True, kw_only=True)
class ComparisonResult(StudyResult):
    """The result of a comparison; the first variant is the reference, and the first figure is tested."""

    figures: tuple[Figure, ...]
    variants: tuple[VariantResult, ...]
    comparisons: tuple[Comparison, ...]
    paired: tuple[Difference, ...]
    verdict: tuple[str, ...]
    settings: dict[str, Settings]  # by variant
    sizes: dict[str, int]  # of the data
    checksums: dict[str, str]  # of data and files, as they were when the study began
    tuning: Tuning | None = None
    explanation: dict[str, tuple[str, ...]]  # what a leak is worth, by variant; the last paragraph is the verdict
    published: dict[str, dict[str, float]]  # figures by variant
    lengths: tuple[LengthBar, ...] = ()  # a histogram of the words per sentence
    long_texts: LongTexts | None = None

    @property
    def leaking(self) -> list[str]:
        """The names of the variants that see the future, or other texts of a batch."""
        return [variant.name for variant in self.variants if variant.leaks]

    def figure(self, key: str) -> Figure:
        """The figure of this key."""
        return next(figure for figure in self.figures if figure.key == key)
