"""Why does reading help? How much of what it read a model can be asked for, by how often and in how many forms it read it.

A model reads about everybody, then it is fine-tuned on questions about some people, then it is examined on questions about
others: what it answers there it can only know from reading. Every person is told in one sentence form or in several, and
whatever the number of forms, models of equal exposures have met every person equally often. Beside them stand a model that
has read nothing, and models that read one form in the project's own way, in short views with questions among them.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab import corpora, stages
from attnlab.comparing import Plan, carry_out
from attnlab.comparing.checks import fingerprints, refuse_changes, try_once
from attnlab.comparing.jobs import train_all
from attnlab.evaluate import cue
from attnlab.report import show_result, write_report
from attnlab.runs import add_files, free_name, read_json, refuse_existing, to_json, write_folder
from attnlab.studies.why_judge import judge
from attnlab.studies.why_plan import cells_of, make_plan

__all__ = ["begin", "check", "make_plan", "measure", "run"]


def check(plan: Plan) -> None:
    """Find mistakes before anything is trained; cells of one text differ in epochs alone, and one of them stands for all."""
    assert plan.exam is not None
    exam = corpora.load_questions(plan.exam)
    cells = cells_of(plan)
    most = max(cell.exposures for cell in cells)
    for specimen, cell in zip(plan.specimens, cells, strict=True):
        settings = specimen.settings(plan.seeds[0])
        if cell.exposures != most and cell.way != "nothing":
            continue
        sources = stages.Sources.read(specimen.corpus, plan.facts)
        tokenizer = stages.learn_tokenizer(settings, sources)
        for stage in specimen.steps:
            stages.rehearse(specimen.settings(plan.seeds[0], stage), sources, tokenizer)
        for number, item in enumerate(exam, start=1):
            cue(tokenizer, item.question, settings.model.block_size, number)
    try_once(plan.specimens[0], plan.seeds[0])


def measure(*, out: Path | str | None = None, console: Console | None = None, **asked: Any) -> dict[str, Any]:
    """The whole study from Python, silently unless there is a console; `asked` as in make_plan.

    why.measure(world="people:300", forms=(1, 4), exposures=(50, 100), seeds=3)["verdict"]
    """
    said = ", ".join(f"{key}={value!r}" for key, value in asked.items())
    plan = make_plan(**{"command": f"why.measure({said})", **asked})
    return begin(plan, Path(out) if out else free_name("why"), console or Console(quiet=True))


def begin(plan: Plan, folder: Path, console: Console) -> dict[str, Any]:
    """A new study in a new folder; mistakes in settings are found before the folder is made."""
    refuse_existing(folder)
    check(plan)
    study = {"study": "why", "plan": plan.to_dict(), "fingerprints": fingerprints(plan)}
    write_folder(folder, "study", {"study.json": to_json(study)})
    return run(folder, plan.to_dict(), console)


def run(folder: Path, stored: Mapping[str, Any], console: Console) -> dict[str, Any]:
    """Go on with the study."""
    return carry_out(folder, lambda: conclude(folder, Plan.stored(stored), console), show_result, console)


def conclude(folder: Path, plan: Plan, console: Console) -> dict[str, Any]:
    """Train and examine what is not, judge, and write the result and the report."""
    refuse_changes(read_json(folder / "study.json").get("fingerprints", {}), fingerprints(plan))
    train_all(plan, folder, console)
    result = judge(plan, folder)
    write_report(result, folder)
    add_files(folder, {"result.json": to_json(result)})
    return result
