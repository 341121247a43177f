"""Does it know what it does not know? A model that never read 200 of the lines is asked about them too.

Since training takes minutes, who is known is known by construction: 200 people's lines are withheld, a model is trained on
the rest and calibrated on held-out questions, and its confidence is then measured on people that it read about, on the
withheld ones, and on invented names.
"""

from __future__ import annotations

import time
from dataclasses import asdict, dataclass, replace
from datetime import date
from pathlib import Path
from typing import Any

from rich.console import Console

from attnlab import corpora, stages, trust
from attnlab.comparing import carry_out
from attnlab.comparing.checks import refuse_changes
from attnlab.config import RunConfig, Stage
from attnlab.corpora import Corpus
from attnlab.errors import DataError, UserError
from attnlab.evaluate import cue
from attnlab.report import show_result, write_report
from attnlab.runs import Run, add_files, environment, read_json, refuse_existing, to_json, verify, write_folder
from attnlab.studies.training import Training, describe_run, fingerprints, invite, lasting, train
from attnlab.studies.trust_measures import measure
from attnlab.studies.trust_world import Pools, World, make_world

GROUPS = ("known", "withheld", "invented")
STRANGERS = 0.3  # names of nobody in an epoch, for every document
RISKS = (0.05, 0.1, 0.2)  # for which the report has rules, beside the one asked for


@dataclass(frozen=True)
class Plan(Training):
    """What the study is about; everything that it needs to be done again. Questions that are None are split off the facts."""

    corpus: str = "people"
    facts: str = "people:train"
    calibration: str | None = "people:dev"
    known: str | None = "people:test"
    withheld: int = 200
    max_risk: float = 0.1
    command: str = "attnlab run trust"
    quick: bool = False

    def settings(self, stage: Stage) -> RunConfig:
        """As in every study; where views are read, strangers are among them unless told otherwise."""
        chosen = super().settings(stage)
        if chosen.task.name != "recall" or "strangers" in chosen.task.options:
            return chosen
        options = {**chosen.task.options, "strangers": STRANGERS}
        return replace(chosen, task=replace(chosen.task, options=options))

    @property
    def seed(self) -> int:
        """The seed of the run also draws the world."""
        return self.settings("pretrain").seed

    def world(self) -> World:
        """Who is known, withheld and invented."""
        corpus = corpora.load_corpus(self.corpus)
        loaded = (corpora.load_questions(one) if one else None for one in (self.calibration, self.known))
        facts = corpora.load_questions(self.facts)
        blank = next((one for one in facts if one.answer is None), None)
        if blank is not None:
            raise DataError(
                f"the question {blank.question!r} has no answer: training needs `question<TAB>answer` lines"
            )
        return make_world(corpus, Pools(facts, *loaded), self.withheld, self.seed)


def begin(plan: Plan, folder: Path, console: Console) -> dict[str, Any]:
    """A new study in a new folder; mistakes in data and settings are found before the folder is made."""
    refuse_existing(folder)
    if not 0 < plan.max_risk < 1:
        raise UserError(f"--max-risk must lie between 0 and 1, such as 0.1, not {plan.max_risk:g}")
    plan = lasting(plan, "corpus", "facts", "calibration", "known")
    world = plan.world()
    check(plan, world)
    study = {"study": "trust", "plan": asdict(plan), "fingerprints": fingerprints(plan)}
    stored = {"study.json": to_json(study)}
    write_folder(folder, "study", {**stored, **world.files()})
    return run(folder, asdict(plan), console)


def check(plan: Plan, world: World) -> None:
    """Find mistakes before anything is trained: settings, data, questions that are too long or have no answers."""
    sources = stages.Sources(Corpus(plan.corpus, world.lines), world.facts, {})
    config = plan.settings("pretrain")
    tokenizer = stages.learn_tokenizer(config, sources)
    stages_of: tuple[Stage, ...] = ("pretrain", "finetune")
    for stage in stages_of:
        stages.rehearse(plan.settings(stage), sources, tokenizer)
    examined = (*world.calibration, *world.known, *world.withheld)
    for number, item in enumerate((*examined, *world.invented), start=1):
        cue(tokenizer, item.question, config.model.block_size, number)
    if any(item.answer is None for item in examined):
        raise DataError("the questions to be examined on have no answers, and confidence is measured by them: add them")
    if not world.known or not world.calibration:
        raise DataError("no questions are left to calibrate with or to be examined on: give more")


def run(folder: Path, stored: dict[str, Any], console: Console) -> dict[str, Any]:
    """Go on with the study."""
    result = carry_out(folder, lambda: conclude(folder, Plan(**stored), console), show_result, console)
    invite(folder, result["groups"][0]["examples"][0]["question"], console)
    return result


def conclude(folder: Path, plan: Plan, console: Console) -> dict[str, Any]:
    """Train what is not trained, calibrate, ask everybody, and write the result and the report."""
    verify(folder)
    refuse_changes(read_json(folder / "study.json").get("fingerprints", {}), fingerprints(plan))
    read = {name: corpora.load_questions(folder / f"{name}.tsv") for name in ("facts", "calibration", "known")}
    # Nobody may be withheld, or no name be left to invent: an empty file is none.
    read |= {name: corpora.load_questions(path) for name, path in others(folder).items()}
    console.print(
        f"{len(read['facts']):,} training questions, {len(read['calibration']):,} to calibrate with; asked about:"
        f" {len(read['known']):,} known names, {len(read.get('withheld', ())):,} withheld,"
        f" {len(read.get('invented', ())):,} invented"
    )
    runs = train_both(plan, folder, console)
    began = time.perf_counter()
    calibrated = trust.calibrate(runs["finetune"], read["calibration"])
    told = (*read["facts"], *read["calibration"], *read["known"])
    measured = measure(
        trust.Witness(runs["finetune"]), {name: read.get(name, ()) for name in GROUPS}, told, plan.max_risk
    )
    result = {
        "kind": "trust",
        "study": "trust",
        "title": "Does it know what it does not know?",
        "command": plan.command,
        "finished": date.today().isoformat(),
        "world": describe_world(plan, folder, {name: len(items) for name, items in read.items()}),
        "max_risk": plan.max_risk,
        **measured,
        "calibration": calibrated.summary(RISKS),
        "runs": {name: describe_run(one) for name, one in runs.items()},
        "environment": environment(),
    }
    training = sum(one.result["seconds"] for one in runs.values())
    result["seconds"] = round(training + time.perf_counter() - began, 1)
    write_report(result, folder)
    add_files(folder, {"result.json": to_json(result)})
    return result


def others(folder: Path) -> dict[str, Path]:
    """The files of names that nobody read about, where there are any."""
    paths = {name: folder / f"{name}.tsv" for name in GROUPS[1:]}
    return {name: path for name, path in paths.items() if path.stat().st_size}


def train_both(plan: Plan, folder: Path, console: Console) -> dict[str, Run]:
    """The model, pretrained and fine-tuned on the world of the study."""
    corpus, facts = str(folder / "corpus.txt"), str(folder / "facts.tsv")
    pretrained = train(plan, folder / "pretrain", "pretrain", corpus, facts, console)
    final = train(plan, folder / "finetune", "finetune", corpus, facts, console, pretrained)
    return {"pretrain": pretrained, "finetune": final}


def describe_world(plan: Plan, folder: Path, counts: dict[str, int]) -> dict[str, Any]:
    """The data in numbers."""
    lines = corpora.load_corpus(folder / "corpus.txt").lines
    return {
        "corpus": Path(plan.corpus).name,
        "documents": len(lines),
        "characters": sum(len(line) + 1 for line in lines),
        **{name: counts.get(name, 0) for name in ("facts", "calibration", *GROUPS)},
        "seed": plan.seed,
        "quick": plan.quick,
    }
