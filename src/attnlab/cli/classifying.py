"""The verb that sorts texts into classes: classify."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from attnlab.classify.settings import FineTuning
from attnlab.cli.common import Whole, app, console, errors, read_seeds, settings_class, show_json
from attnlab.errors import UserError

if TYPE_CHECKING:
    from rich.console import Console

Given: Any = settings_class(FineTuning, defaults=True)
Options = Annotated[Given, Parameter(name="*", group=Group("How it is fine-tuned"))]
DEFAULTS = Given()


@app.command
def classify(
    train: Path | None = None,
    dev: Path | None = None,
    /,
    *,
    model: str | None = None,
    test: Path | None = None,
    out: Path | None = None,
    labels: str | None = None,
    column: Literal["label-first", "text-first"] | None = None,
    explain_batch: Annotated[bool, Parameter(name=("--explain-batch", "--explain_batch"), negative=())] = False,
    optimizers: str | None = None,
    seeds: str | None = None,
    search: Annotated[bool, Parameter(negative=())] = False,
    trials: Whole | None = None,
    minutes: float | None = None,
    json: bool = False,
    given: Options = DEFAULTS,
) -> None:
    """Fine-tune a pretrained encoder to tell texts apart, choose its best epoch on validation, and measure it.

    Tables have a label and a text a line, with a tab between them, in either order. Without files: sentences of the Python
    documentation by topic. By default 10 epochs of AdamW at 5e-5, in batches of 64, texts cut at 512 tokens.

    Parameters
    ----------
    train
        The table to learn from.
    dev
        The table on which the best epoch is chosen.
    model
        A model of the hub such as roberta-base, the folder of one, minilm (carried by a package), or bag-of-words.
    test
        A table that is measured once, when everything is chosen.
    out
        Folder for model, result and report; must not exist. Default: runs/classify-N.
    labels
        Names for labels, such as 1=positive,0=negative.
    column
        Where the label stands, if it is not recognised: label-first or text-first.
    explain_batch
        Train nothing: show what tokenizer and loader make of the first batch, and count padding and cuts in the whole table.
    optimizers
        Compare optimizers on validation, such as adamw,sgd,muon; each with its default rate, or with yours: adamw=3e-5,sgd.
    seeds
        With --optimizers: how many trainings of each (default 3), or their seeds: 3,4,5.
    search
        Try batch sizes, rates and epochs on validation, the given ones first, and keep the model of the best.
    trials
        With --search: how many at most. Default: 12, or no limit where there are --minutes.
    minutes
        With --search: no new trial after so long.
    json
        Print the result for programs.
    """
    from dataclasses import asdict

    from attnlab.classify.settings import BAG_OF_WORDS, from_given
    from attnlab.encoders.loading import reached
    from attnlab.encoders.places import locate

    if model is None:
        raise UserError("with which model? Add --model bag-of-words, minilm, roberta-base or a folder")
    studied = search or any(one is not None for one in (optimizers, seeds, trials, minutes))
    if model != BAG_OF_WORDS and not studied:  # studies check their options first
        reached(locate(model))  # before torch and transformers are imported, which takes seconds

    from attnlab.classify import batches, describe_tables, make_classifier
    from attnlab.corpora import labelled
    from attnlab.progress import display
    from attnlab.report import classified_screen as screen
    from attnlab.report.classified_batch import tell_batch
    from attnlab.runs import free_name, refuse_existing, refuse_several

    refuse_several("a classification")
    settings = from_given(asdict(given))
    useless = [name for name, value in asdict(given).items() if value is not None and name != "seed"]
    if model == BAG_OF_WORDS and useless:
        raise UserError(f"{BAG_OF_WORDS} has no epochs and no optimizer: leave --{useless[0]} out")
    if (train is None) != (dev is None) or (train is None and (test or labels or column)):
        raise UserError(
            "classify takes a table to learn from and one to choose on: TRAIN DEV; without files, none at all"
        )
    names = labelled.parse_names(labels)
    tables = labelled.read_tables(train, dev, test, column, names) if train and dev else labelled.built_in_tables()
    files = (str(path) if path else None for path in (train, dev, test))
    asked = (model, settings, *files, column, names, "attnlab " + shlex.join(sys.argv[1:]))
    study = make_study(asked, optimizers, seeds, search, trials, minutes)
    target, shown = out or free_name(study[0] if study else "classify"), errors if json else console
    if not explain_batch:
        refuse_existing(target)
    screen.tell_tables(describe_tables(tables), shown)
    if explain_batch:
        found = batches.explain_batch(model, tables, settings)
        show_json(found) if json else tell_batch(found, shown)
        return
    if study:
        found = study[1](target, shown)
        if json:
            show_json(found)
        return
    with display("classify", shown) as show:
        result = make_classifier(model, tables, settings, target, show, "attnlab " + shlex.join(sys.argv[1:]))
    if json:
        show_json(result)
        return
    screen.tell_result(result, target, shown)


def make_study(
    asked: tuple[Any, ...],
    optimizers: str | None,
    seeds: str | None,
    search: bool,
    trials: int | None,
    minutes: float | None,
) -> tuple[str, Callable[[Path, Console], dict[str, Any]]] | None:
    """The study that is asked for instead of one training, if any, by its name; wrong options are refused."""
    if seeds is not None and optimizers is None:
        raise UserError("--seeds goes with --optimizers; one training has --seed")
    if not search and (trials is not None or minutes is not None):
        raise UserError("--trials and --minutes go with --search: they are its budget")
    if search and optimizers is not None:
        raise UserError(
            "--search tunes one optimizer, named by --optimizer: search for each, then compare with --optimizers"
        )
    if not search and optimizers is None:
        return None
    from functools import partial

    from attnlab.studies import fine_tuning
    from attnlab.studies import optimizers as optimizing
    from attnlab.studies import search as searching

    wanted = fine_tuning.Asked(*asked)
    if search:
        return "search", partial(searching.begin, searching.make_plan(wanted, trials, minutes))
    assert optimizers is not None
    plan = optimizing.make_plan(wanted, optimizers, read_seeds(seeds) if seeds else None)
    return "optimizers", partial(optimizing.begin, plan)
