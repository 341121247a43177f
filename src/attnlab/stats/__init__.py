"""Statistics of results: intervals, tests, and what they allow one to claim. Plain numbers in, frozen records out.

    one figure       mean_interval (seeds), proportion_interval (right answers)
    two mechanisms   paired (seeds), mcnemar (the same questions), seeds_by_questions (both),
                     paired_bootstrap (perplexities of the same sentences), two_proportions (different questions)
    several          holm, for the p values of all reported comparisons; contrasts, for pairs of right answers;
                     chosen_best, for the optimism of a choice
    confidence       auroc (known against unknown), calibration, fit_platt, cross_fitted, risk_coverage
    abstaining       selective_rule: the lowest certified threshold; accepted_needed, least_confidence
    planning         sample_size (questions); variance_components of a pilot, power, smallest_difference (seeds and items)
    in words         in_words, a sentence for any of the comparisons

Differences are A minus B. Records hold plain values, which can be written as JSON. Tests are scipy's where it has them.
This package knows nothing about runs, tasks or mechanisms, and imports scipy only when something is computed.
"""

from attnlab.stats.bootstrap import Chosen, Perplexities, chosen_best, log_ratio_table, paired_bootstrap
from attnlab.stats.confidence import (
    Auroc,
    Bin,
    Calibration,
    Platt,
    auroc,
    calibration,
    cross_fitted,
    fit_platt,
)
from attnlab.stats.means import (
    Components,
    Crossed,
    Equivalence,
    Mean,
    Paired,
    RatioOfMeans,
    SeedsByQuestions,
    crossed,
    geometric_mean,
    holm,
    mean_interval,
    paired,
    power,
    ratio_of_means,
    seeds_by_questions,
    smallest_difference,
    variance_components,
)
from attnlab.stats.selective import (
    RiskCoverage,
    SelectiveRule,
    accepted_needed,
    least_confidence,
    risk_bound,
    risk_coverage,
    selective_rule,
)
from attnlab.stats.shares import McNemar, TwoProportions, mcnemar, proportion_interval, sample_size, two_proportions
from attnlab.stats.wording import Answers, Contrast, Sides, contrasts, in_words, p_in_words

__all__ = [
    "Answers",
    "Auroc",
    "Bin",
    "Calibration",
    "Chosen",
    "Components",
    "Contrast",
    "Crossed",
    "Equivalence",
    "McNemar",
    "Mean",
    "Paired",
    "Perplexities",
    "Platt",
    "RatioOfMeans",
    "RiskCoverage",
    "SeedsByQuestions",
    "SelectiveRule",
    "Sides",
    "TwoProportions",
    "accepted_needed",
    "auroc",
    "calibration",
    "chosen_best",
    "contrasts",
    "cross_fitted",
    "crossed",
    "fit_platt",
    "geometric_mean",
    "holm",
    "in_words",
    "least_confidence",
    "log_ratio_table",
    "mcnemar",
    "mean_interval",
    "p_in_words",
    "paired",
    "paired_bootstrap",
    "power",
    "proportion_interval",
    "ratio_of_means",
    "risk_bound",
    "risk_coverage",
    "sample_size",
    "seeds_by_questions",
    "selective_rule",
    "smallest_difference",
    "two_proportions",
    "variance_components",
]
