"""The study: every variant is audited, trained with every seed, measured and judged; seeds can be added later."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from attnlab.errors import ConfigError, UserError
from attnlab.lm.model import load_model
from attnlab.lm.progress import say
from attnlab.measure import audit
from attnlab.report.document import Document
from attnlab.store import records
from attnlab.store.folders import add_files, is_written, locked, unlist
from attnlab.store.runs import Run, unused_path
from attnlab.studies.compare import jobs
from attnlab.studies.compare.document import document
from attnlab.studies.compare.judge import judge
from attnlab.studies.compare.plan import Plan, small_model
from attnlab.studies.compare.records import AuditSummary, ComparisonResult
from attnlab.studies.compare.tuning import tune, with_choice
from attnlab.studies.options import seed_numbers
from attnlab.studies.study import Outcome, StoredStudy, load, study

_AUDITS = "audits.json"


@study("compare", own_command=True)
class Compare(Plan):
    """Compare mechanisms, or any one setting, with several seeds each and a statistical test.

    Compares mechanisms (dot additive, path.py:Class), presets or settings files that differ in one
    setting, or finished runs; or the values of one setting, with --vary. Each is audited first.
    Resume a stopped comparison with `attnlab resume`.
    """

    def train(self, folder: Path, console: Console) -> None:
        """Audit every variant, tune settings, and train and measure every run that is not done yet."""
        if not is_written(folder / _AUDITS):
            self._audit(folder, console)
        if self.tune:
            tune(self, folder, console)
        jobs.train_all(with_choice(self, folder), folder, console)

    def judge(self, folder: Path, console: Console) -> ComparisonResult:
        """Test and describe the differences between the variants."""
        return judge(self, folder, records.read(dict[str, AuditSummary], folder / _AUDITS))

    def document(self, result: ComparisonResult) -> Document:
        """Return the report."""
        return document(result)

    def _audit(self, folder: Path, console: Console) -> None:
        """Audit every variant's model."""
        audits = {}
        for variant in self.variants:
            if self.runs:
                model = load_model(Run.open(self.path(folder, variant.name, self.seeds[0])).model)[0]
            else:
                model = small_model(variant, self.seeds[0])
            report = audit.audit_module(model, name=variant.name)
            leaks = tuple(report.leak_by_position)
            audits[variant.name] = AuditSummary(report.verdict, report.causal_leak, leaks, report.defect, report.faults)
            words = f"wrong as declared: {report.defect}" if report.verdict == "declared" else report.verdict
            reasons = {"fail": report.faults.values(), "not tested": [report.untested.get("future", "")]}
            say(console, f"audit of {variant.name}: {'; '.join([words, *reasons.get(report.verdict, ())])}")
        add_files(folder, {_AUDITS: records.encode(audits)})


def compare(
    *variants: str,
    out: Path | str | None = None,
    console: Console | None = None,
    seeds: int | Sequence[int] | None = None,
    **options: Any,
) -> Outcome[ComparisonResult]:
    """Compare variants by name, silently without a console; `options` are the fields of Compare.

    attnlab.compare("dot", "additive", task="words", seeds=3).result.verdict
    """
    fields = options if seeds is None else {**options, "seeds": seeds}
    arguments = [*map(repr, variants), *(f"{key}={value!r}" for key, value in fields.items())]
    options.setdefault("command", f"attnlab.compare({', '.join(arguments)})")
    try:
        plan = Compare(names=variants, seeds=() if seeds is None else seed_numbers(seeds), **options)
    except TypeError as error:
        raise UserError(f"attnlab.compare: {error}; see help(attnlab.compare)") from None
    return plan.begin(Path(out) if out else unused_path("compare"), console or Console(quiet=True))


def add_seeds(folder: Path, seeds: int | Sequence[int]) -> None:
    """Add seeds to a finished comparison, so that resuming trains them and judges all; its report counts the looks."""
    try:
        plan = load(folder)
    except ConfigError:
        plan = None
    if not isinstance(plan, Compare):
        raise UserError(f"{folder} is not a comparison: seeds can be added to comparisons only")
    if not is_written(folder / "result.json"):
        raise UserError(f"{folder} is not finished: resume it first, without --seeds")
    if plan.runs:
        raise UserError(f"{folder} compares finished runs: compare them with further ones in a new comparison")
    wanted = seed_numbers(seeds)
    if not set(wanted) > set(plan.seeds):
        had = ", ".join(map(str, plan.seeds))
        raise UserError(f"{folder} has seeds {had}: name more, such as --seeds {max(plan.seeds) + 4}")
    both = (*plan.seeds, *(seed for seed in wanted if seed not in plan.seeds))
    longer = replace(plan, seeds=both, looks=(*plan.looks, plan.seeds))
    with locked(folder):
        stored = records.read(StoredStudy, folder / "study.json")
        unlist(folder, "result.json")  # judged again when resumed
        stored = replace(stored, plan=msgspec.Raw(records.encode(longer)))
        add_files(folder, {"study.json": records.encode(stored)})
