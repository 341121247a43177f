"""Commands that train: run with its studies, pretrain, finetune, resume; and the list of settings."""

from __future__ import annotations

import os
import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import Annotated

from rich.table import Table

from attnlab import registry, studies
from attnlab.cli.common import TRAIN, app, console, say, show_json
from attnlab.config import RunConfig, Stage, flatten, load_preset, preset_names, resolve
from attnlab.errors import UserError
from attnlab.machine import cores, is_main_process, require_single_process
from attnlab.store.folders import kind_of
from attnlab.store.runs import Run, located, unused_path
from attnlab.studies import options as opt
from attnlab.studies.options import NONE, SETTINGS_HINT, about, at_least_one, collect, default, read_seeds

_BUILT_IN = default("that of the task")


@app.command(group=TRAIN, help_epilogue=SETTINGS_HINT)
def pretrain(
    text: Annotated[str | None, about("Text to train on; the task is guessed from it.")] = None,
    /,
    *,
    corpus: Annotated[opt.Corpus | None, about("Text, one document per line: a file, or people."), _BUILT_IN] = None,
    facts: Annotated[opt.Facts | None, about("Training questions to mix in, QUESTION<TAB>ANSWER per line.")] = None,
    dev: opt.Validate | None = None,
    out: Annotated[opt.Out | None, default("runs/pretrain-PRESET-N")] = None,
    preset: Annotated[opt.Preset | None, default("small; text for running text")] = None,
    config: opt.Config | None = None,
    mechanism: opt.Mechanism | None = None,
    seed: opt.Seed | None = None,
    processes: opt.Processes = 1,
    given: opt.Settings = NONE,
) -> None:
    """Train a new model on a text or a corpus.

    TEXT is running text, or one document per line; JSONL, parquet and datasets folders are read too.
    """
    from attnlab.corpora import training_text
    from attnlab.lm import stages
    from attnlab.lm.progress import display
    from attnlab.tasks import task_class
    from attnlab.tasks.guess import guess_settings

    if text is not None and corpus is not None:
        raise UserError("the text is named twice: give TEXT or --corpus")
    values, reason = collect(given, mechanism, seed), ""
    if text is not None and preset is None and config is None and "name" not in values.get("task", {}):
        preset, values, reason = guess_settings(text, values, share=dev is None)
    settings, dev = _held_out(resolve(preset or "small", "pretrain", config, values), dev)
    _in_processes(processes, out, f"pretrain-{settings.preset}")
    with display("pretrain", console) as show:
        if reason:
            show.line(reason)
        corpus = text or corpus or training_text(task_class(settings.task).built_in)
        done = stages.pretrain(settings, corpus, facts, out, show, dev=dev)
    _report_training(done)


def _held_out(settings: RunConfig, dev: str | None) -> tuple[RunConfig, str | None]:
    """The settings and the data to validate on; a share of the text is an option of its task."""
    try:
        share = float(dev or "")
    except ValueError:
        return settings, dev
    if not 0 <= share < 1:
        raise UserError(f"--dev takes a share of the text from 0 up to, but not including, 1, or a file, not {dev}")
    if "held_out" in registry.find("task", settings.task.name).options:
        options = {**settings.task.options, "held_out": share}
        return replace(settings, task=replace(settings.task, options=options)), None
    if share:
        raise UserError("a share can be held out of running text only: name a file of held-out text or questions")
    return settings, None


def _in_processes(count: int, out: Path | None = None, stem: str = "") -> None:
    """Run this command again in several processes, and end with their exit code; return if it is one of them."""
    at_least_one("processes", count)
    is_one_of_several = int(os.environ.get("WORLD_SIZE", "1")) > 1
    if count == 1 and not is_one_of_several:
        return
    from attnlab.lm.processes import join_launch, launch

    if is_one_of_several:
        join_launch()
        return
    if count > cores():
        sys.stderr.write(f"note: {count} processes on {cores()} cores will be slower than {cores()}\n")
    # All processes, and those that are started again, write the same folder.
    folder = ["--out", str(unused_path(stem))] if stem and out is None else []
    sys.exit(launch(count, [*sys.argv[1:], *folder]))


@app.command(group=TRAIN, help_epilogue=SETTINGS_HINT)
def finetune(
    base: Annotated[Path | None, about("Pretrained run to start from.")] = None,
    /,
    *,
    facts: Annotated[opt.Facts, about("Training questions, QUESTION<TAB>ANSWER per line.")] = "people:train",
    corpus: Annotated[opt.Corpus | None, about("Text for the tokenizer if there is no run to start from.")] = None,
    dev: Annotated[opt.Validate | None, about("Held-out questions to validate on.")] = None,
    out: Annotated[opt.Out | None, default("runs/finetune-PRESET-N")] = None,
    preset: Annotated[opt.Preset | None, default("that of the run, or small")] = None,
    config: opt.Config | None = None,
    seed: opt.Seed | None = None,
    processes: opt.Processes = 1,
    trust_code: opt.TrustCode = False,
    given: opt.Settings = NONE,
) -> None:
    """Train on questions, from a pretrained run or from scratch."""
    from attnlab.lm import stages
    from attnlab.lm.progress import display

    start = Run.open(base) if base else None
    preset = preset or (start.record.settings["preset"] if start else "small")
    values = collect(given, None, seed)
    if start and "model" in values:
        raise UserError("the model comes from the run: leave out --model settings, or pretrain another run with them")
    stage: Stage = "finetune" if start else "scratch"
    settings = resolve(preset, stage, config, values)
    _in_processes(processes, out, f"{stage}-{preset}")
    with display("finetune", console) as show:
        done = stages.finetune(settings, start, facts, corpus, out, show, dev=dev, trust_code=trust_code)
    _report_training(done)


def _report_training(done: Run) -> None:
    if is_main_process():
        result = done.result
        best = ""
        if result.best_dev_loss is not None:
            best = (
                f", best validation loss {result.best_dev_loss:.3f} at step {result.best_step:,} ({done.path / 'best'})"
            )
        steps = "1 step" if result.steps == 1 else f"{result.steps:,} steps"
        loss = "" if result.final_loss is None else f", loss {result.final_loss:.3f}"
        say(
            f"{steps}, {result.tokens:,} tokens in {result.seconds:.0f} s"
            f" ({result.tokens_per_second:,.0f} tokens/s){loss}{best}: {done.path}"
        )


@app.command(group=TRAIN)
def resume(
    folder: Annotated[Path, about("Folder of the run or study.")],
    /,
    *,
    seeds: Annotated[
        opt.Seeds | None, about("Total number of seeds, including new ones."), default("as they are")
    ] = None,
    processes: opt.Processes = 1,
    device: Annotated[str | None, about("Device to resume on."), default("as before")] = None,
    trust_code: opt.TrustCode = False,
) -> None:
    """Resume a run or a study that was stopped or killed, or add seeds to a comparison."""
    from attnlab.lm import stages
    from attnlab.lm.progress import display

    folder = located(folder)
    is_study = kind_of(folder) == "study"
    if seeds is not None and folder.exists() and not is_study:
        raise UserError(f"{folder} is not a comparison: seeds can be added to comparisons only")
    if is_study:
        require_single_process("a study")
        if wanted := read_seeds(seeds):
            from attnlab.studies.compare import add_seeds

            add_seeds(folder, wanted)
        studies.resume(folder, console, trust_code=trust_code)
        return
    opened = Run.open(folder)
    _in_processes(processes)
    with display(folder.name, console) as show:
        done = stages.resume(opened, show, trust_code=trust_code, device=device)
    _report_training(done)


@app.command(group=TRAIN)
def settings(preset: Annotated[str, about("Preset to show.")] = "small", /, *, json: opt.Json = False) -> None:
    """List every setting with its meaning and its value in a preset."""
    values = resolve(preset).to_dict()
    if json:
        show_json(values)
        return
    meanings = {item.name: item.metadata["help"] for item in fields(RunConfig)}
    for part in fields(RunConfig):
        if isinstance(part.default_factory, type):
            inner = fields(part.default_factory)
            meanings |= {f"{part.name}.{item.name}": item.metadata["help"] for item in inner}
    for option in registry.find("task", values["task"]["name"]).described():
        values["task"]["options"].setdefault(option.name, option.default)
        meanings[f"task.options.{option.name}"] = option.meaning
    stages = load_preset(preset)
    table = Table("setting", preset, "meaning")
    special = {stage: dict(flatten(stages.get(stage, {}))) for stage in ("finetune", "scratch")}
    for name, value in flatten(values):
        other = "".join(f"\n{stage}: {special[stage][name]}" for stage in special if name in special[stage])
        table.add_row(name, str(value) + other, meanings.get(name, ""))
    console.print(table)
    say(f"presets: {', '.join(preset_names())}")
