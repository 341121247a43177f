"""Verbs that train: resume, pretrain, finetune."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from attnlab.cli.common import NONE, Seed, Settings, TrustCode, app, collect, console
from attnlab.config import resolve
from attnlab.errors import UserError
from attnlab.runs import speaks


@app.command
def resume(folder: Path, /, *, trust_code: TrustCode = False) -> None:
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
        studies.resume(folder, console, trust_code=trust_code)
        return
    opened = Run.open(folder)
    with display(folder.name, console) as show:
        stages.resume(opened, show, trust_code=trust_code)
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
    seed: Seed | None = None,
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
    seed: Seed | None = None,
    trust_code: TrustCode = False,
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
        done = stages.finetune(settings, start, facts, corpus, out, show, trust_code=trust_code)
    tell(done)


def tell(done: Any) -> None:
    """What a training verb ends with."""
    if speaks():
        result = done.result
        console.print(
            f"{result['steps']:,} steps, {result['tokens']:,} tokens in {result['seconds']:.0f} s"
            f" ({result['tokens_per_second']:,} tokens/s), loss {result['final_loss']:.3f}: {done.path}",
        )
