"""Compare mechanisms, or any one setting, so that the result can be cited.

    plan      variants that differ in one thing, seeds, data (variants)
    tuning    settings that are tuned for every variant by itself
    planning  what a planned comparison would find, from a finished one (the pilot)
    jobs      the runs, several at a time, each trained and measured in its own process (job)
    records   finished runs with their figures; those that do not belong together are refused
    judge     intervals, tests, Holm's correction, and verdicts in words
    document  the report

Every variant is audited first.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab.errors import UserError
from attnlab.lm.model import load_model
from attnlab.lm.progress import say
from attnlab.measure import audit
from attnlab.report.document import strict
from attnlab.store.folders import add_files, is_written, locked, read_json, reporting_damage, to_json, unlist
from attnlab.store.records import plain, restored
from attnlab.store.runs import Run, unused_path
from attnlab.studies.compare import jobs
from attnlab.studies.compare.document import document
from attnlab.studies.compare.judge import judge
from attnlab.studies.compare.plan import Data, Plan, check, fingerprints, make_plan, seed_numbers, small_model
from attnlab.studies.compare.planning import plan_from_pilot
from attnlab.studies.compare.records import AuditSummary, ComparisonResult
from attnlab.studies.compare.tuning import tune, with_choice
from attnlab.studies.legacy import Result, Study

__all__ = ["STUDY", "Data", "Plan", "add_seeds", "check", "compare", "make_plan", "plan_from_pilot"]

_AUDITS = "audits.json"


def compare(*variants: str, out: Path | str | None = None, console: Console | None = None, **asked: Any) -> Result:
    """Compare variants by name, silently without a console; `asked` as in make_plan, with data by name.

    attnlab.compare("dot", "additive", task="words", seeds=3)["verdict"]
    """
    data = Data(**{key: asked.pop(key) for key in ("corpus", "dev", "facts", "exam") if key in asked})
    named = {key: value for key, value in asdict(data).items() if value} | asked
    said = [*map(repr, variants), *(f"{key}={value!r}" for key, value in named.items())]
    plan = make_plan(variants, data=data, **{"command": f"attnlab.compare({', '.join(said)})", **asked})
    return STUDY.begin(plan, Path(out) if out else unused_path("compare"), console or Console(quiet=True))


def _train(plan: Plan, folder: Path, console: Console) -> None:
    if not is_written(folder / _AUDITS):
        _audit_all(plan, folder, console)
    if plan.tune:
        tune(plan, folder, console)
    jobs.train_all(with_choice(plan, folder), folder, console)


def add_seeds(folder: Path, seeds: int | Sequence[int]) -> None:
    """Add seeds to a finished comparison, so that resuming trains them and judges all; its report counts the looks."""
    stored = read_json(folder / "study.json")
    if "variants" not in stored.get("plan", {}):
        raise UserError(f"{folder} is not a comparison: seeds can be added to comparisons only")
    if not is_written(folder / "result.json"):
        raise UserError(f"{folder} is not finished: resume it first, without --seeds")
    if read_json(folder / "result.json").get("kind") != "comparison":
        raise UserError(f"{folder} is not a comparison: seeds can be added to comparisons only")
    plan = restored(Plan, stored["plan"])
    wanted = seed_numbers(seeds)
    if plan.runs or not set(wanted) > set(plan.seeds):
        had = ", ".join(map(str, plan.seeds))
        if plan.runs:
            raise UserError(f"{folder} compares finished runs: compare them with further ones in a new comparison")
        raise UserError(f"{folder} has seeds {had}: name more, such as --seeds {max(plan.seeds) + 4}")
    both = (*plan.seeds, *(seed for seed in wanted if seed not in plan.seeds))
    longer = replace(plan, seeds=both, looks=(*plan.looks, plan.seeds))
    with locked(folder):
        unlist(folder, "result.json")  # judged again when resumed
        add_files(folder, {"study.json": to_json({**stored, "plan": plain(longer)})})


def _audit_all(plan: Plan, folder: Path, console: Console) -> None:
    """Audit every variant's model, before training."""
    audits = {}
    for variant in plan.variants:
        if plan.runs:
            model = load_model(Run.open(plan.path(folder, variant.name, plan.seeds[0])).model)[0]
        else:
            model = small_model(variant, plan.seeds[0])
        report = audit.audit_module(model, name=variant.name)
        audits[variant.name] = AuditSummary(
            report.verdict, report.causal_leak, tuple(report.leak_by_position), report.defect, report.faults
        )
        words = f"wrong as declared: {report.defect}" if report.verdict == "declared" else report.verdict
        reasons = {"fail": report.faults.values(), "not tested": [report.untested.get("future", "")]}
        for reason in reasons.get(report.verdict, ()):
            words += f"; {reason}"
        say(console, f"audit of {variant.name}: {words}")
    add_files(folder, {_AUDITS: to_json(strict(plain(audits)))})


def _read_audits(folder: Path) -> dict[str, AuditSummary]:
    with reporting_damage(folder / _AUDITS):
        return {name: restored(AuditSummary, audit) for name, audit in read_json(folder / _AUDITS).items()}


STUDY = Study(
    plan=Plan,
    name=lambda plan: plan.study,
    check=check,
    fingerprints=fingerprints,
    train=_train,
    judge=lambda plan, folder, _: judge(plan, folder, _read_audits(folder)),
    document=lambda result: document(restored(ComparisonResult, result)),
    sources=("corpus", "dev", "facts", "exam", "tune_on"),
)
