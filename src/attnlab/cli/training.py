"""Verbs that train: run, resume, pretrain, finetune."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

from attnlab.cli.common import NONE, Settings, Whole, app, collect, console, read_numbers, read_seeds
from attnlab.config import resolve
from attnlab.errors import UserError
from attnlab.runs import speaks


@app.command
def run(
    study: str = "recall",
    /,
    *,
    corpus: str | None = None,
    dev: str | None = None,
    facts: str | None = None,
    exam: str | None = None,
    out: Path | None = None,
    preset: str | None = None,
    config: Path | None = None,
    mechanism: str | None = None,
    seed: Whole | None = None,
    seeds: str | None = None,
    jobs: Whole = 0,
    forms: str | None = None,
    exposures: str | None = None,
    quick: bool = False,
    given: Settings = NONE,
) -> None:
    """Do a whole study and write its report; without a name, the main job on the built-in people.

    recall              what does a small model remember of what it read?
    why                 why does reading help? Right answers by exposures and by sentence forms
    additive-vs-dot     additive attention beside dot-product attention, on sentences
    shared-projections  one projection for queries and keys, or for all three
    masking             zeros after the softmax: a gain that is a leak
    efficient           what every mechanism remembers, in which time and memory

    Of recall, settings of training and task given by hand are those of pretraining; a file given by --config may hold tables
    [finetune.train] and [scratch.train] for the other two trainings; so of why. The others are comparisons: see
    `attnlab compare`.

    Parameters
    ----------
    study
        The study.
    corpus
        Text, one sentence or document a line: a file, or people, prose:train (built in); of why people:300 and the like.
    dev
        Other text to be measured on: a file, or prose:dev (additive-vs-dot, shared-projections, masking).
    facts
        Training questions, question<TAB>answer a line: a file, or people:train (recall, efficient).
    exam
        Questions to be examined on: a file, or people:test (recall, efficient).
    out
        Folder for everything; must not exist. Default: runs/STUDY-N.
    preset
        Where the settings start from. Default: small, nano-words for sentences, quick for efficient, reader for why.
    config
        A TOML file with settings that lie over the preset.
    mechanism
        Attention mechanism of recall; short for model.mechanism.
    seed
        Seed of weights, order and views (recall).
    seeds
        How many runs of each specimen, or their seeds: 3,4,5 (comparisons and why; default 3).
    jobs
        Runs at a time (comparisons and why). Default: one a core.
    forms
        In how many sentence forms everybody is told: 1,2,4,8 (why).
    exposures
        How often everybody is met in reading: 8,24,48 (why).
    quick
        A smaller world: the same story in about a minute, of comparisons and why in a few.
    """
    from attnlab import comparing, runs, studies

    runs.refuse_several("a study")
    studies.find(study)
    values, command = collect(given, mechanism, seed), "attnlab " + shlex.join(sys.argv[1:])
    folder = out or runs.free_name(study)
    shared: dict[str, Any] = {
        "preset": preset,
        "config": config,
        "given": values,
        "seeds": read_seeds(seeds) if seeds else None,
        "jobs": jobs,
        "quick": quick,
        "command": command,
    }
    if study == "why":
        if dev or facts or exam:
            raise UserError("study why asks about the people that --corpus names: leave --dev, --facts and --exam out")
        numbers: dict[str, Any] = {
            "forms": read_numbers(forms, "forms"),
            "exposures": read_numbers(exposures, "exposures"),
        }
        studies.why.begin(studies.why.make_plan(world=corpus, **numbers, **shared), folder, console)
        return
    if forms is not None or exposures is not None:
        raise UserError("--forms and --exposures are for the study why: attnlab run why --forms 1,4")
    if study in studies.ready.READY:
        if seed is not None:
            raise UserError("a comparison needs several seeds: --seeds 3, or --seeds 7,8,9")
        data = comparing.Data(corpus, dev, facts, exam)
        comparing.begin(studies.ready.ready_plan(study, data, **shared), folder, console)
        return
    if seeds is not None or jobs or dev is not None:
        raise UserError(
            "--seeds, --jobs and --dev are for comparisons and why: recall takes --seed, --facts and --exam"
        )
    world = "people:300" if quick else "people"
    if (corpus is None) != (facts is None) or (corpus is None) != (exam is None):
        raise UserError("--corpus, --facts and --exam go together: give all three, or none for the built-in people")
    studies.recall.begin(
        studies.recall.Plan(
            corpus=corpus or world,
            facts=facts or f"{world}:train",
            exam=exam or f"{world}:test",
            preset=preset or ("quick" if quick else "small"),
            file=str(config) if config else None,
            given=values,
            command=command,
            quick=quick,
        ),
        folder,
        console,
    )


@app.command
def resume(folder: Path, /) -> None:
    """Go on with a run or a study that was stopped or killed.

    Parameters
    ----------
    folder
        The folder of the run or study.
    """
    from attnlab import stages, studies
    from attnlab.progress import display
    from attnlab.runs import Run, refuse_several

    if (folder / "study.json").is_file():
        refuse_several("a study")
        studies.resume(folder, console)
        return
    opened = Run.open(folder)
    with display(folder.name, console) as show:
        stages.resume(opened, show)
    console.print(f"done: {folder}")


@app.command
def pretrain(
    *,
    corpus: str = "people",
    facts: str | None = None,
    out: Path | None = None,
    preset: str = "small",
    config: Path | None = None,
    mechanism: str | None = None,
    seed: Whole | None = None,
    given: Settings = NONE,
) -> None:
    """Train a fresh model on a corpus.

    Parameters
    ----------
    corpus
        Text, one document a line: a file, or people or prose (built in).
    facts
        Training questions to mix in, question<TAB>answer a line (task recall).
    out
        Run folder; must not exist. Default: runs/pretrain-PRESET-N.
    preset
        Where the settings start from.
    config
        A TOML file with settings that lie over the preset.
    mechanism
        Attention mechanism; short for model.mechanism.
    seed
        Seed of weights, order and views.
    """
    from attnlab import stages
    from attnlab.progress import display

    settings = resolve(preset, "pretrain", config, collect(given, mechanism, seed))
    with display("pretrain", console) as show:
        done = stages.pretrain(settings, corpus, facts, out, show)
    tell(done)


@app.command
def finetune(
    base: Path | None = None,
    /,
    *,
    facts: str = "people:train",
    corpus: str | None = None,
    out: Path | None = None,
    preset: str | None = None,
    config: Path | None = None,
    seed: Whole | None = None,
    given: Settings = NONE,
) -> None:
    """Train on questions, from a pretrained run; without one, from scratch (the baseline without pretraining).

    Parameters
    ----------
    base
        The pretrained run to start from.
    facts
        Training questions, question<TAB>answer a line: a file, or people:train.
    corpus
        Text for the tokenizer when there is no run to start from, and for tasks that read.
    out
        Run folder; must not exist. Default: runs/finetune-PRESET-N.
    preset
        Where the settings start from. Default: the preset of the run, or small.
    config
        A TOML file with settings that lie over the preset.
    seed
        Seed of weights and order.
    """
    from attnlab import stages
    from attnlab.progress import display
    from attnlab.runs import Run

    start = Run.open(base) if base else None
    preset = preset or (start.config["config"]["preset"] if start else "small")
    values = collect(given, None, seed)
    if start and "model" in values:
        raise UserError("the model comes from the run: leave out --model settings, or pretrain another run with them")
    settings = resolve(preset, "finetune" if start else "scratch", config, values)
    with display("finetune", console) as show:
        done = stages.finetune(settings, start, facts, corpus, out, show)
    tell(done)


def tell(done: Any) -> None:
    """What a training verb ends with."""
    if speaks():
        result = done.result
        console.print(
            f"{result['steps']:,} steps, {result['tokens']:,} tokens in {result['seconds']:.0f} s"
            f" ({result['tokens_per_second']:,} tokens/s), loss {result['final_loss']:.3f}: {done.path}",
        )
