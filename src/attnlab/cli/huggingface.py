"""Commands that need transformers: classify, export and import."""

from __future__ import annotations

import math
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from cyclopts import Group, Parameter

from attnlab.cli.common import HUGGING_FACE, app, console, errors, output_folder, say, show_json
from attnlab.errors import UserError
from attnlab.hf import BAG_OF_WORDS, FineTuning
from attnlab.machine import require_single_process
from attnlab.store import records
from attnlab.store.folders import refuse_existing, write_folder
from attnlab.store.runs import located, unused_path
from attnlab.studies import options as opt
from attnlab.studies.options import about, default, read_seeds, seed_numbers, settings_class, typed_command

if TYPE_CHECKING:
    from attnlab.studies.study import Study

_TRAINING = Group("Training")
_GivenTuning: Any = settings_class(FineTuning)
_NO_TUNING = _GivenTuning()


@app.command(group=HUGGING_FACE)
def classify(
    train: Annotated[Path | None, about("Training table.")] = None,
    dev: Annotated[Path | None, about("Validation table, on which the best epoch is chosen.")] = None,
    /,
    *,
    model: Annotated[
        str | None, about("Model of the hub such as roberta-base, a folder, minilm, or bag-of-words.")
    ] = None,
    test: Annotated[Path | None, about("Test table, measured once when everything is chosen.")] = None,
    predict: Annotated[
        Path | None, about("Label these texts, one per line, with a saved --model; no training.")
    ] = None,
    out: Annotated[opt.Out | None, default("runs/classify-N")] = None,
    labels: Annotated[str | None, about("Names for labels, such as 1=positive,0=negative.")] = None,
    column: Annotated[Literal["label-first", "text-first"] | None, about("Column order, if not detected.")] = None,
    explain_batch: Annotated[
        bool, about("Show the first batch, and count padding and truncation; no training.")
    ] = False,
    optimizers: Annotated[str | None, about("Compare optimizers, such as adamw,sgd,muon or adamw=3e-5,sgd.")] = None,
    seeds: Annotated[opt.Seeds | None, about("With --optimizers: trainings of each, or their seeds: 3,4,5.")] = None,
    search: Annotated[bool, about("Search batch sizes, rates and epochs, and keep the best model.")] = False,
    trials: Annotated[
        opt.Whole | None, about("With --search: maximum trials."), default("12, or none with --minutes")
    ] = None,
    minutes: Annotated[float | None, about("With --search: start no new trial after so many minutes.")] = None,
    json: opt.Json = False,
    given: Annotated[_GivenTuning, Parameter(name="*", group=_TRAINING)] = _NO_TUNING,
) -> None:
    """Fine-tune a pretrained encoder to classify texts.

    The best epoch on the validation table is kept.
    Tables hold one label and one text per line, with a tab between them, in either order.
    Without files: sentences of the Python documentation by topic.
    --predict labels other texts with what was trained, with the probability of every label.
    Learning rates by default: adamw 5e-5, sgd 1e-2, adagrad 5e-4, muon 1.5e-3.
    """
    from attnlab.hf.loading import locate, require_reachable

    if model is not None and located(model).is_dir():
        model = str(located(model))
    settings_given = {f"--{name.replace('_', '-')}": value for name, value in asdict(given).items()}
    if predict is not None:
        training: dict[str, object] = {"TRAIN": train, "--test": test, "--labels": labels, "--column": column}
        training |= {"--explain-batch": explain_batch, "--optimizers": optimizers, "--seeds": seeds, "--search": search}
        training |= {"--trials": trials, "--minutes": minutes, **settings_given}
        _predict(predict, model, [name for name, value in training.items() if value not in (None, False)], out, json)
        return
    if model is None:
        raise UserError("--model is required: bag-of-words, minilm, roberta-base or a folder")
    _check_studies(search, optimizers, seeds, trials, minutes)
    unused = [name for name, value in settings_given.items() if value is not None and name != "--seed"]
    if model == BAG_OF_WORDS and unused:
        raise UserError(f"{BAG_OF_WORDS} has no epochs and no optimizer: leave {unused[0]} out")
    if (train is None) != (dev is None) or (train is None and (test or labels or column)):
        raise UserError(
            "classify takes a training and a validation table: TRAIN DEV; give both, or none for the built-in sentences"
        )
    settings = FineTuning.from_options(asdict(given))
    if model != BAG_OF_WORDS and not search and not optimizers:  # studies check their options first
        require_reachable(locate(model))  # before torch and transformers are imported, which takes seconds

    from attnlab.corpora.labelled import parse_names
    from attnlab.hf.classify import describe_tables, make_classifier
    from attnlab.hf.documents import batch_document, classification_document, tables_document
    from attnlab.hf.tuning import TableFiles
    from attnlab.lm.progress import display
    from attnlab.report.screen import show, show_all

    require_single_process("a classification")
    texts = TableFiles(train, dev, test, column, parse_names(labels))
    plan: dict[str, Any] = {"model": model, "texts": texts, "settings": settings, "command": typed_command()}
    study: Study[Any] | None = None
    if search:
        from attnlab.hf.search import Search

        study = Search(**plan, trials=trials or 0, minutes=minutes or 0.0)
    elif optimizers is not None:
        from attnlab.hf.optimizers import Optimizers, read_rates

        study = Optimizers(**plan, rates=read_rates(optimizers), seeds=seed_numbers(read_seeds(seeds)))
    target, shown = out or unused_path(study.name if study else "classify"), errors if json else console
    if not explain_batch:
        refuse_existing(target)
    show_all(tables_document(describe_tables(texts.tables)), shown)
    if explain_batch:
        explained = batch_document(model, texts.tables, settings)
        show_json(explained) if json else show_all(explained, shown)
        return
    if study:
        result = study.begin(target, shown).result
    else:
        with display("classify", shown) as progress:
            result = make_classifier(model, texts.tables, settings, target, progress, typed_command())
        show(classification_document(result), shown)
        shown.print(f"report: {target / 'report.html'}", soft_wrap=True)
    if json:
        show_json(result)


def _check_studies(
    search: bool, optimizers: str | None, seeds: str | None, trials: int | None, minutes: float | None
) -> None:
    """Refuse options of a study that is not asked for, and two studies at once."""
    if seeds is not None and optimizers is None:
        raise UserError("--seeds needs --optimizers; for one training use --seed")
    if not search and (trials is not None or minutes is not None):
        raise UserError("--trials and --minutes are the budget of --search: add it, or leave them out")
    if trials is not None and trials < 1:
        raise UserError(f"--trials must be at least 1, not {trials}")
    if minutes is not None and not 0 < minutes < math.inf:
        raise UserError(f"--minutes must be above 0, not {minutes:g}")
    if search and optimizers is not None:
        raise UserError(
            "--search tunes one optimizer, named by --optimizer: search for each, then compare with --optimizers"
        )


def _predict(file: Path, model: str | None, unused: list[str], out: Path | None, json: bool) -> None:
    """Label texts with a saved classifier, and write them with their probabilities."""
    from attnlab.hf.classify import predict, read_texts
    from attnlab.hf.documents import predictions_document
    from attnlab.report.screen import show_all

    if model is None or model == BAG_OF_WORDS:
        raise UserError("--predict needs a saved classifier: add --model FOLDER, such as runs/classify-1")
    if unused:
        raise UserError(f"--predict trains nothing: leave {unused[0]} out")
    target = output_folder(out, "predict", "labelling texts")
    predictions = predict(model, read_texts(file))
    summary = {"run": model, "source": str(file), "labels": predictions.labels, "counts": predictions.counts}
    files = {"predictions.tsv": predictions.to_tsv(), "result.json": records.encode(summary)}
    write_folder(target, "predictions", files, about="labels for texts")
    if json:
        show_json({**summary, "texts": predictions.texts, "out": str(target)})
        return
    show_all(predictions_document(predictions, file.name), console)
    say(f"predictions: {target / 'predictions.tsv'}")


@app.command(group=HUGGING_FACE)
def export(
    source: Annotated[Path, about("Run, or model folder.")],
    folder: Annotated[Path, about("Folder to write; must not exist.")],
    /,
    *,
    trust_code: opt.TrustCode = False,
    json: opt.Json = False,
) -> None:
    """Export a model as a folder that transformers loads, with a model card.

    A mingpt with dot-product attention is written as a GPT-2; others load with trust_remote_code=True
    where attnlab is installed. Needs transformers: pip install 'attnlab[hf]'.
    """
    from attnlab.hf.exchange import export

    require_single_process("an export")
    written = export(source, folder, trust_code=trust_code)
    if json:
        show_json(written)
        return
    trust = ", trust_remote_code=True" if written["needs_attnlab"] else ""
    console.print(f"{written['parameters']:,} parameters in the layout of {written['layout']}")
    say(f"load it in Python: AutoModelForCausalLM.from_pretrained({str(folder)!r}{trust})")
    if trust:
        say("attnlab must be installed there; after `import attnlab.exchange` it loads without trust_remote_code")
    console.print(f"model card: {folder / 'README.md'}", soft_wrap=True)


@app.command(name="import", group=HUGGING_FACE)
def import_(
    source: Annotated[Path, about("Folder of transformers, or file of nanoGPT, minGPT or CS224N.")],
    /,
    out: Annotated[opt.Out | None, default("runs/import-N")] = None,
    *,
    chars: Annotated[Path | None, about("File: the text whose characters are its symbols, as in nanoGPT.")] = None,
    corpus: Annotated[Path | None, about("File: the same, with the symbols □ and ⁇ before them, as in CS224N.")] = None,
    tokenizer: Annotated[Path | None, about("File: tokenizer.json of GPT-2's pieces, or the folder it is in.")] = None,
    n_head: Annotated[opt.Whole | None, about("File: heads of its attention, if it does not say.")] = None,
    activation: Annotated[Literal["gelu", "gelu_tanh"] | None, about("File: another activation than usual.")] = None,
    trust_code: opt.TrustCode = False,
    json: opt.Json = False,
) -> None:
    """Import a model of transformers, nanoGPT or minGPT as a run.

    A folder holds a GPT-2, or what export wrote, and needs transformers: pip install 'attnlab[hf]'.
    A file is a ckpt.pt of nanoGPT, or weights of minGPT or Stanford's CS224N (.pt, .params); no code
    in it is run. Scores stay equal; what attnlab's model cannot represent is refused.
    """
    target = output_folder(out, "import", "an import")
    given: dict[str, Any] = {"chars": chars, "corpus": corpus, "tokenizer": tokenizer}
    given |= {"n_head": n_head, "activation": activation}
    if source.is_dir():
        if unused := [name for name, value in given.items() if value is not None]:
            raise UserError(f"--{unused[0].replace('_', '-')} is for files, and a folder says it: leave it out")
        from attnlab.hf.exchange import import_model

        run = import_model(source, target, trust_code=trust_code)
    else:
        from attnlab.hf.checkpoints import import_checkpoint

        run = import_checkpoint(source, target, **given)
    if json:
        show_json({"run": str(run.path), **run.result.known()})
        return
    model = run.record.settings["model"]
    console.print(f"{run.result.parameters:,} parameters: {model['n_head']} heads, activation {model['activation']}")
    console.print(f"run folder: {run.path}", soft_wrap=True)
