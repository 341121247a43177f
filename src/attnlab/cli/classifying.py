"""The verb that sorts texts into classes: classify."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated, Any, Literal

from cyclopts import Group, Parameter

from attnlab.classify.settings import FineTuning
from attnlab.cli.common import app, console, errors, settings_class, show_json
from attnlab.errors import UserError

Given: Any = settings_class(FineTuning)
Options = Annotated[Given, Parameter(name="*", group=Group("How it is fine-tuned"))]
DEFAULTS = Given()


@app.command
def classify(
    train: Path | None = None,
    dev: Path | None = None,
    /,
    *,
    model: str,
    test: Path | None = None,
    out: Path | None = None,
    labels: str | None = None,
    column: Literal["label-first", "text-first"] | None = None,
    explain_batch: Annotated[bool, Parameter(name=("--explain-batch", "--explain_batch"), negative=())] = False,
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
        A model of the hub such as roberta-base, the folder of one, or bag-of-words for the baseline.
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
    json
        Print the result for programs.
    """
    from dataclasses import asdict

    from attnlab.classify import batches, describe_tables, make_classifier
    from attnlab.classify.settings import from_given
    from attnlab.corpora import labelled
    from attnlab.progress import display
    from attnlab.report import classified_screen as screen
    from attnlab.report.classified_batch import tell_batch
    from attnlab.runs import free_name, refuse_existing, refuse_several

    refuse_several("a classification")
    settings = from_given(asdict(given))
    if (train is None) != (dev is None) or (train is None and (test or labels or column)):
        raise UserError(
            "classify takes a table to learn from and one to choose on: TRAIN DEV; without files, none at all"
        )
    names = labelled.parse_names(labels)
    tables = labelled.read_tables(train, dev, test, column, names) if train and dev else labelled.built_in_tables()
    target, shown = out or free_name("classify"), errors if json else console
    if not explain_batch:
        refuse_existing(target)
    screen.tell_tables(describe_tables(tables), shown)
    if explain_batch:
        found = batches.explain_batch(model, tables, settings)
        show_json(found) if json else tell_batch(found, shown)
        return
    with display("classify", shown) as show:
        result = make_classifier(model, tables, settings, target, show, "attnlab " + shlex.join(sys.argv[1:]))
    if json:
        show_json(result)
        return
    screen.tell_result(result, target, shown)
