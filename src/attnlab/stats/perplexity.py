"""Two perplexities of the same sentences compared, by resampling the sentences.

There are two, and they must never share a name: token perplexity, exp(mean loss per token), and sentence perplexity, the mean
over sentences of exp(mean loss of the sentence's tokens). The second is always the larger and depends on the hardest
sentences.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from attnlab.stats.bootstrap import Bca, bootstrapped, resampled_sums, summed
from attnlab.stats.checks import check_count, numbers, paired_values, require
from attnlab.stats.means import Crossed, Equivalence, Paired, crossed, paired

if TYPE_CHECKING:
    from numpy.typing import ArrayLike

    from attnlab.stats.checks import Numbers

Perplexity = Literal["token_perplexity", "sentence_perplexity"]

_MOST = 300  # a loss whose exponential can still be squared


@dataclass(frozen=True)
class Perplexities:
    """Two perplexities on the same sentences; over several seeds each is the geometric mean.

    The ratio is A over B, the difference A minus B, and their intervals and p are over sentences with the seeds as they are.
    `over_seeds` (new seeds) and `both` (new seeds and new sentences) are about the logarithm of the ratio.
    """

    statistic: str
    seeds: int
    sentences: int
    a: float
    b: float
    ratio: float
    ratio_low: float | None
    ratio_high: float | None
    difference: float
    difference_low: float | None
    difference_high: float | None
    p: float | None
    resamples: int
    over_seeds: Paired | None
    both: Crossed | None
    alpha: float = 0.05  # intervals have level 1 - alpha
    equivalence: Equivalence | None = None  # of the logarithm of the ratio


def paired_bootstrap(
    losses_a: ArrayLike,
    losses_b: ArrayLike,
    weights: ArrayLike | None = None,
    statistic: Perplexity = "token_perplexity",
    resamples: int = 10_000,
    seed: int = 0,
    *,
    alpha: float = 0.05,
    margin: float | None = None,
    clusters: Sequence[int] | None = None,
) -> Perplexities:
    """Compare the perplexities of two models from the mean loss of every sentence, or of several seeds, one row each.

    `weights` are the numbers of tokens per sentence. Token perplexity weighs sentences by them, or equally without them;
    sentence perplexity always weighs sentences equally. `margin` is a relative difference: 0.01 asks whether the ratio lies
    within 1 %. `clusters` are numbers that the sentences of one document share.
    """
    import numpy as np

    choices = get_args(Perplexity)
    require(statistic in choices, f"statistic must be {' or '.join(choices)}, not {statistic!r}")
    check_count(resamples, "resamples", 100)
    first, second = (np.atleast_2d(losses) for losses in paired_values(losses_a, losses_b, "the losses", (1, 2)))
    largest = float(max(first.max(), second.max()))
    require(
        largest <= _MOST,
        f"a mean loss of {largest:.4g} is not that of a language model: at most {_MOST} can be compared",
    )
    seeds, sentences = first.shape
    sizes = np.ones(sentences)
    if weights is not None and statistic == "token_perplexity":
        sizes = numbers(weights, "the weights")
        require(len(sizes) == sentences, f"there must be one weight per sentence: {sentences:,}, not {len(sizes):,}")
        require(bool((sizes > 0).all()), "the weights must be above 0: leave out sentences without tokens")
    parts = _Parts(np.concatenate([first, second]), sizes, statistic == "sentence_perplexity")
    table = summed(parts.table, clusters)
    draws = resampled_sums(table, resamples, seed) if len(table) > 1 else table
    logs = parts.logs(parts.table.sum(axis=0, keepdims=True))[0]
    a, b = math.exp(logs[:seeds].mean()), math.exp(logs[seeds:].mean())
    rounding = 1e-12 * float(abs(logs).max())
    ratio = bootstrapped(table, parts.log_ratio, draws, rounding, alpha)
    difference = bootstrapped(table, parts.difference, draws, 1e-12 * max(a, b), alpha)
    both = crossed(parts.shares_of_log_ratio(), alpha, clusters) if seeds > 1 else None
    same: Equivalence | None = None
    if margin is not None and both is not None:
        same = both.within(math.log1p(margin), alpha)
    elif margin is not None and len(table) > 1:
        bca, limit = Bca(table, parts.log_ratio, draws, rounding), math.log1p(margin)
        same = Equivalence(limit, *bca.interval(2 * alpha), max(bca.above(-limit), 1 - bca.above(limit)), alpha)
    return Perplexities(
        statistic=statistic,
        seeds=seeds,
        sentences=sentences,
        a=a,
        b=b,
        ratio=math.exp(ratio.value),
        ratio_low=exp_or_none(ratio.low),
        ratio_high=exp_or_none(ratio.high),
        difference=difference.value,
        difference_low=difference.low,
        difference_high=difference.high,
        p=ratio.p,
        resamples=ratio.resamples,
        over_seeds=paired(logs[:seeds], logs[seeds:]) if seeds > 1 else None,
        both=both,
        alpha=alpha,
        equivalence=same,
    )


def log_ratio_table(losses_a: ArrayLike, losses_b: ArrayLike, weights: ArrayLike) -> Numbers:
    """What each sentence adds to the logarithm of the ratio of two token perplexities: seeds x sentences."""
    import numpy as np

    first, second = paired_values(losses_a, losses_b, "the losses", (2,))
    return _Parts(np.concatenate([first, second]), numbers(weights, "the weights"), False).shares_of_log_ratio()


def exp_or_none(value: float | None) -> float | None:
    """A ratio from its logarithm; None stays None."""
    return None if value is None else math.exp(value)


class _Parts:
    """Sentences as rows whose column sums give every perplexity: a column for each seed of A, then of B, and one of sizes."""

    def __init__(self, losses: Numbers, sizes: Numbers, of_sentences: bool) -> None:
        import numpy as np

        self.losses, self.sizes, self.of_sentences = losses, sizes, of_sentences
        self.seeds = len(losses) // 2
        self.values = np.exp(losses) if of_sentences else losses * sizes
        self.table = np.column_stack([self.values.T, sizes])

    def logs(self, sums: Numbers) -> Numbers:
        """The logarithms of all perplexities: [rows, seeds of A and of B]."""
        import numpy as np

        means = sums[:, :-1] / sums[:, -1:]
        return np.log(means) if self.of_sentences else means

    def means(self, sums: Numbers) -> tuple[Numbers, Numbers]:
        """The mean logarithm over seeds, of A and of B."""
        logs = self.logs(sums)
        return logs[:, : self.seeds].mean(axis=1), logs[:, self.seeds :].mean(axis=1)

    def log_ratio(self, sums: Numbers) -> Numbers:
        """The logarithm of A over B."""
        a, b = self.means(sums)
        return a - b

    def difference(self, sums: Numbers) -> Numbers:
        """A minus B."""
        import numpy as np

        a, b = self.means(sums)
        return np.exp(a) - np.exp(b)

    def shares_of_log_ratio(self) -> Numbers:
        """What each sentence adds to the log ratio of each seed, to first order: their mean is the log ratio."""
        logs = self.logs(self.table.sum(axis=0, keepdims=True))[0][:, None]
        if self.of_sentences:
            shares = logs + self.values / self.values.mean(axis=1, keepdims=True) - 1
        else:
            shares = logs + self.sizes / self.sizes.mean() * (self.losses - logs)
        return shares[: self.seeds] - shares[self.seeds :]
