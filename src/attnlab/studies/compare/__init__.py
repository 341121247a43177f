"""Compare mechanisms, or any one setting, so that the result can be cited.

    plan      specimens that differ in one thing, seeds, data (specimens)
    jobs      the runs, several at a time, each trained and measured in its own process (job)
    records   finished runs with their figures; those that do not belong together are refused
    judge     intervals, tests, Holm's correction, and verdicts in words

Every specimen is audited first.
"""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab.folders import add_files, is_written, read_json, to_json
from attnlab.measure import audit
from attnlab.model import load_model
from attnlab.progress import say
from attnlab.report.comparison import document
from attnlab.runs import Run, unused_path
from attnlab.studies.compare.jobs import train_all
from attnlab.studies.compare.judge import judge
from attnlab.studies.compare.plan import Data, Plan, advise, check, fingerprints, make_plan, small_model
from attnlab.studies.study import Result, Study

__all__ = ["STUDY", "Data", "Plan", "advise", "check", "compare", "make_plan"]

_AUDITS = "audits.json"


def compare(*specimens: str, out: Path | str | None = None, console: Console | None = None, **asked: Any) -> Result:
    """Compare specimens by name, silently without a console; `asked` as in make_plan, with data by name.

    attnlab.compare("dot", "additive", task="words", seeds=3)["verdict"]
    """
    data = Data(**{key: asked.pop(key) for key in ("corpus", "dev", "facts", "exam") if key in asked})
    named = {key: value for key, value in asdict(data).items() if value} | asked
    said = [*map(repr, specimens), *(f"{key}={value!r}" for key, value in named.items())]
    plan = make_plan(specimens, data=data, **{"command": f"attnlab.compare({', '.join(said)})", **asked})
    return STUDY.begin(plan, Path(out) if out else unused_path("compare"), console or Console(quiet=True))


def _train(plan: Plan, folder: Path, console: Console) -> None:
    if not is_written(folder / _AUDITS):
        _audit_all(plan, folder, console)
    train_all(plan, folder, console)


def _audit_all(plan: Plan, folder: Path, console: Console) -> None:
    """Audit every specimen's model, before training."""
    found = {}
    for specimen in plan.specimens:
        if plan.runs:
            model = load_model(Run.open(plan.path(folder, specimen.name, plan.seeds[0])).model)[0]
        else:
            model = small_model(specimen, plan.seeds[0])
        report = audit.audit_module(model, name=specimen.name)
        found[specimen.name] = report.to_dict()
        words = f"wrong as declared: {report.defect}" if report.verdict == "declared" else report.verdict
        reasons = {"fail": report.faults.values(), "not tested": [report.untested.get("future", "")]}
        for reason in reasons.get(report.verdict, ()):
            words += f"; {reason}"
        say(console, f"audit of {specimen.name}: {words}")
    add_files(folder, {_AUDITS: to_json(found)})


STUDY = Study(
    plan=Plan,
    name=lambda plan: plan.study,
    check=check,
    fingerprints=fingerprints,
    train=_train,
    judge=lambda plan, folder, _: judge(plan, folder, read_json(folder / _AUDITS)),
    document=document,
    sources=("corpus", "dev", "facts", "exam"),
)
