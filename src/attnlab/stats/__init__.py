"""Statistics of results: intervals, tests, and what they allow one to claim. Plain numbers in, frozen records out.

    one figure       mean_interval (seeds), proportion_interval (right answers)
    two mechanisms   paired (seeds), mcnemar (the same questions), seeds_by_questions (both),
                     paired_bootstrap (perplexities of the same sentences), two_proportions (different questions)
    several          holm, for the p values of all reported comparisons; chosen_best, for the optimism of a choice
    confidence       auroc (known against unknown), calibration, brier_score, fit_temperature, risk_coverage
    abstaining       selective_rule: choose_threshold on one half, certify and lower it on the other; accepted_needed
    planning         sample_size, power, seeds_needed, detectable, advice
    in words         in_words, a sentence for any of the comparisons

Differences are A minus B. Every record becomes JSON with dataclasses.asdict. Tests are scipy's where it has them. This
package knows nothing about runs, tasks or mechanisms, and imports numpy and scipy only when something is computed.
"""

from attnlab.stats.bootstrap import Bootstrapped, Chosen, bootstrap_mean, chosen_best
from attnlab.stats.confidence import (
    Auroc,
    Bin,
    Calibration,
    Temperature,
    auroc,
    brier_score,
    calibration,
    fit_temperature,
    tempered,
)
from attnlab.stats.means import (
    Crossed,
    Mean,
    Paired,
    SeedsByQuestions,
    crossed,
    geometric_mean,
    holm,
    mean_interval,
    paired,
    seeds_by_questions,
)
from attnlab.stats.perplexity import Perplexities, paired_bootstrap
from attnlab.stats.planning import (
    advice,
    detectable,
    detectable_by_seeds,
    discordance,
    power,
    power_of_seeds,
    sample_size,
    seeds_needed,
)
from attnlab.stats.selective import (
    Certificate,
    RiskCoverage,
    SelectiveRule,
    accepted_needed,
    certify,
    choose_threshold,
    halves,
    least_confidence,
    risk_bound,
    risk_coverage,
    selective_rule,
)
from attnlab.stats.shares import McNemar, TwoProportions, mcnemar, proportion_interval, two_proportions
from attnlab.stats.wording import in_words, p_in_words

__all__ = [
    "Auroc",
    "Bin",
    "Bootstrapped",
    "Calibration",
    "Certificate",
    "Chosen",
    "Crossed",
    "McNemar",
    "Mean",
    "Paired",
    "Perplexities",
    "RiskCoverage",
    "SeedsByQuestions",
    "SelectiveRule",
    "Temperature",
    "TwoProportions",
    "accepted_needed",
    "advice",
    "auroc",
    "bootstrap_mean",
    "brier_score",
    "calibration",
    "certify",
    "choose_threshold",
    "chosen_best",
    "crossed",
    "detectable",
    "detectable_by_seeds",
    "discordance",
    "fit_temperature",
    "geometric_mean",
    "halves",
    "holm",
    "in_words",
    "least_confidence",
    "mcnemar",
    "mean_interval",
    "p_in_words",
    "paired",
    "paired_bootstrap",
    "power",
    "power_of_seeds",
    "proportion_interval",
    "risk_bound",
    "risk_coverage",
    "sample_size",
    "seeds_by_questions",
    "seeds_needed",
    "selective_rule",
    "tempered",
    "two_proportions",
]
