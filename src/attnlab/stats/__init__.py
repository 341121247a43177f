"""Statistics of results: intervals, tests, and what they allow one to claim. Plain numbers in, frozen records out.

    one figure       mean_interval (seeds), proportion_interval (right answers)
    two mechanisms   paired (seeds), mcnemar (the same questions), seeds_by_questions (both),
                     compare_perplexities (of the same sentences), two_proportions (different questions)
    several          holm, for the p values of all reported comparisons; shared_seeds, for what their seeds have in
                     common; contrasts, for pairs of right answers; chosen_best, for the optimism of a choice
    confidence       auroc (known against unknown), calibration, fit_platt, cross_fitted, risk_coverage
    abstaining       selective_rule: the lowest certified threshold; accepted_needed, least_confidence
    planning         sample_size (questions); variance_components of a pilot, power, smallest_difference,
                     equivalence_power (seeds and items)
    in words         in_words, a sentence for any of the comparisons

Differences are A minus B. Records hold plain values, which can be written as JSON. Tests are scipy's where it has them.
This package knows nothing about runs, tasks or mechanisms, and imports scipy only when something is computed.
"""

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
from attnlab.stats.crossed import (
    Crossed,
    Equivalence,
    Perplexities,
    RatioOfMeans,
    SeedsByQuestions,
    SharedSeeds,
    compare_perplexities,
    crossed,
    log_perplexities,
    ratio_of_means,
    seeds_by_questions,
    shared_seeds,
)
from attnlab.stats.means import Mean, Paired, geometric_mean, holm, mean_interval, paired
from attnlab.stats.planning import Components, equivalence_power, power, smallest_difference, variance_components
from attnlab.stats.selective import (
    RiskCoverage,
    SelectiveRule,
    accepted_needed,
    least_confidence,
    risk_bound,
    risk_coverage,
    selective_rule,
)
from attnlab.stats.shares import (
    Chosen,
    McNemar,
    TwoProportions,
    chosen_best,
    mcnemar,
    proportion_interval,
    sample_size,
    two_proportions,
)
from attnlab.stats.wording import Answers, Contrast, Sides, contrasts, in_words, p_in_words
