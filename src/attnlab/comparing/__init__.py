"""Compare mechanisms, or any one setting, so that the result can be cited.

    plan      specimens that differ in one thing, seeds, data (specimens, checks)
    jobs      the runs, several at a time and in turn, each in a process of its own (job, measure)
    records   finished runs, read; those that do not belong together are refused
    judge     figures with intervals, tests, Holm's correction (figures)
    explain   verdicts, and what a leak is worth, in sentences made from the numbers

Every specimen is audited first. A comparison is a study folder: stopped, it goes on where it was.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab import audit, stages
from attnlab.comparing.checks import check, fingerprints, refuse_changes, small_model
from attnlab.comparing.jobs import train_all
from attnlab.comparing.judge import judge
from attnlab.comparing.plan import Data, Plan, advise, make_plan
from attnlab.errors import Interrupted
from attnlab.model import LanguageModel, load_model
from attnlab.progress import say
from attnlab.report import show_result, write_report
from attnlab.runs import (
    Run,
    add_files,
    free_name,
    is_written,
    locked,
    read_json,
    refuse_existing,
    to_json,
    write_folder,
)

__all__ = ["Data", "Plan", "advise", "begin", "carry_out", "check", "compare", "make_plan", "run"]


def compare(
    *specimens: str, out: Path | str | None = None, console: Console | None = None, **asked: Any
) -> dict[str, Any]:
    """Compare specimens by name, silently unless there is a console; `asked` as in make_plan, and data as texts by name.

    attnlab.compare("dot", "additive", task="words", seeds=3)["verdict"]
    """
    data = Data(**{key: asked.pop(key) for key in ("corpus", "dev", "facts", "exam") if key in asked})
    named = {key: value for key, value in asdict(data).items() if value} | asked
    said = [*map(repr, specimens), *(f"{key}={value!r}" for key, value in named.items())]
    plan = make_plan(specimens, data=data, **{"command": f"attnlab.compare({', '.join(said)})", **asked})
    return begin(plan, Path(out) if out else free_name("compare"), console or Console(quiet=True))


def begin(plan: Plan, folder: Path, console: Console) -> dict[str, Any]:
    """A new comparison in a new folder; mistakes in data and settings are found before the folder is made."""
    refuse_existing(folder)
    named: dict[str, Any] = {
        key: stages.lasting(name) for key in ("corpus", "dev", "facts", "exam") if (name := getattr(plan, key))
    }
    lasting = replace(plan, **named)
    check(lasting)
    study = {"study": plan.study, "plan": lasting.to_dict(), "fingerprints": fingerprints(lasting)}
    write_folder(folder, "study", {"study.json": to_json(study)})
    return run(folder, lasting.to_dict(), console)


def run(folder: Path, stored: Mapping[str, Any], console: Console) -> dict[str, Any]:
    """Go on with a comparison."""
    return carry_out(folder, lambda: conclude(folder, Plan.stored(stored), console), show_result, console)


def carry_out(
    folder: Path,
    work: Callable[[], dict[str, Any]],
    show: Callable[[dict[str, Any], Console], None],
    console: Console,
) -> dict[str, Any]:
    """Do what is not done yet, and show the result; stopped at any point, say how to go on."""
    finished = folder / "result.json"
    try:
        with locked(folder):
            result = read_json(finished) if is_written(finished) else work()
    except (Interrupted, KeyboardInterrupt):
        command = f"attnlab resume {shlex.quote(str(folder))}"
        raise Interrupted(f"stopped; all is saved. Go on with: {command}") from None
    show(result, console)
    console.print(f"report: {folder / 'report.html'}", soft_wrap=True)
    return result


def conclude(folder: Path, plan: Plan, console: Console) -> dict[str, Any]:
    """Audit, train, measure, judge; write the result and the report."""
    refuse_changes(read_json(folder / "study.json").get("fingerprints", {}), fingerprints(plan))
    audits = audit_all(folder, plan, console)
    train_all(plan, folder, console)
    result = judge(plan, folder, audits)
    write_report(result, folder)
    add_files(folder, {"result.json": to_json(result)})
    return result


def audit_all(folder: Path, plan: Plan, console: Console) -> dict[str, Any]:
    """The audit of every specimen's model, before anything is trained; done once."""
    path = folder / "audits.json"
    if is_written(path):
        return read_json(path)
    found = {}
    for specimen in plan.specimens:
        model = to_be_audited(plan, folder, specimen.name)
        report = audit.audit_module(model, name=specimen.name)
        found[specimen.name] = report.to_dict()
        words = f"wrong as declared: {report.defect}" if report.verdict == "declared" else report.verdict
        reasons = {"fail": report.faults.values(), "not tested": [report.untested.get("future", "")]}
        for reason in reasons.get(report.verdict, ()):
            words += f"; {reason}"
        say(console, f"audit of {specimen.name}: {words}")
    add_files(folder, {path.name: to_json(found)})
    return found


def to_be_audited(plan: Plan, folder: Path, name: str) -> LanguageModel:
    """The model of a specimen: of a finished run its own, else a fresh one with few words."""
    if plan.runs:
        return load_model(Run.open(plan.path(folder, name, plan.seeds[0])).model)[0]
    return small_model(plan.find(name), plan.seeds[0])
