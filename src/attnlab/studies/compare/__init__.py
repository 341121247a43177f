"""Compare mechanisms, or any one setting, so that the result can be cited.

study     the study: audits, runs, verdict, report
plan      variants that differ in one thing, seeds, data (variants)
tuning    settings that are tuned for every variant by itself
planning  what a planned comparison would find, from a finished one (the pilot)
jobs      the runs, several at a time, each trained and measured in its own process (job)
records   measurements, finished runs and results; runs that do not belong together are refused
judge     intervals, tests, Holm's correction, and verdicts in words
document  the report
"""

from attnlab.studies.compare.plan import Plan
from attnlab.studies.compare.planning import plan_from_pilot
from attnlab.studies.compare.study import Compare, add_seeds, compare

__all__ = ["Compare", "Plan", "add_seeds", "compare", "plan_from_pilot"]
