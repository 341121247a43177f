"""The command line: verbs of a few lines each, no logic. Heavy libraries are imported inside the verbs that need them."""

from __future__ import annotations

import json as json_module
import os
import shlex
import signal
import sys
from collections.abc import Sequence
from dataclasses import field, fields, is_dataclass, make_dataclass
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, CycloptsError, Group, Parameter
from rich.console import Console
from rich.table import Table
from rich.text import Text

from attnlab import __version__
from attnlab.config import RunConfig, describe_type, from_text, load_preset, preset_names, resolve, type_hints, walk
from attnlab.design.commands import check, design
from attnlab.errors import AttnlabError, UserError
from attnlab.runs import speaks

console = Console(markup=False)  # what is printed is mostly the user's own text


def as_written(name: str) -> str:
    """Option names as they stand in the code and in settings files."""
    return name


app = App(
    name="attnlab",
    version=__version__,
    help="An attention laboratory: design attention with proofs, train small language models, see what they know.",
    help_format="plaintext",
    default_parameter=Parameter(name_transform=as_written),
)
corpus_app = App(name="corpus", help="Look at data as a task sees it, or write the built-in data to files.")
app.command(corpus_app)
app.command(design)
app.command(check)


def settings_class(cls: type[Any]) -> type[Any]:
    """A settings class as command-line options: every one optional, taken as text and read by the settings' own rules."""
    entries: list[tuple[str, Any, Any]] = []
    for one in fields(cls):
        kind = type_hints(cls)[one.name]
        if is_dataclass(kind) and isinstance(kind, type):
            nested = settings_class(kind)
            group = Group(f"{one.metadata['help'].capitalize()} settings (a file given by --config has the same names)")
            entries.append((one.name, Annotated[nested, Parameter(group=group)], field(default=nested())))
        else:
            text: Any = {dict[str, Any]: dict[str, str], dict[str, dict[str, Any]]: dict[str, dict[str, str]]}.get(
                kind, str
            )
            meaning = one.metadata["help"] + ("" if text is not str or kind is str else f" ({describe_type(kind)})")
            entries.append((one.name, Annotated[text | None, Parameter(help=meaning)], field(default=None)))
    made = make_dataclass(f"{cls.__name__}Given", entries, frozen=True)
    made.__module__ = __name__  # cyclopts takes a class of module `types` for a built-in
    return made


def given_class() -> type[Any]:
    """The settings that any training verb takes by hand, beside --preset and --seed."""
    made = settings_class(RunConfig)
    chosen = [one for one in fields(made) if one.name not in ("preset", "seed")]
    given = make_dataclass("Given", [(one.name, one.type, field(default=one.default)) for one in chosen], frozen=True)
    given.__module__ = __name__
    return given


def whole(_kind: object, tokens: Sequence[Any]) -> int:
    """A whole number, and nothing that merely rounds to one."""
    return int(tokens[0].value)


Given: Any = given_class()
Settings = Annotated[Given, Parameter(name="*")]
Whole = Annotated[int, Parameter(converter=whole)]
NONE = Given()


def collect(given: Any, mechanism: str | None, seed: int | None) -> dict[str, Any]:
    """What was really given, as nested settings of the right types."""

    def read(cls: type[Any], values: Any) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for one in fields(values):
            kind, value = type_hints(cls)[one.name], getattr(values, one.name)
            if is_dataclass(value):
                found[one.name] = read(kind, value)
            elif value is not None:
                found[one.name] = from_text(value, kind)
        return {key: value for key, value in found.items() if value != {}}

    values = read(RunConfig, given)
    if mechanism is not None:
        values.setdefault("model", {})["mechanism"] = mechanism
    if seed is not None:
        values["seed"] = seed
    return values


def show_json(value: Any) -> None:
    """Print for programs."""
    sys.stdout.write(json_module.dumps(value, ensure_ascii=False, indent=1) + "\n")


@app.command
def run(
    study: str = "recall",
    /,
    *,
    corpus: str | None = None,
    facts: str | None = None,
    exam: str | None = None,
    out: Path | None = None,
    preset: str | None = None,
    config: Path | None = None,
    mechanism: str | None = None,
    seed: Whole | None = None,
    quick: bool = False,
    given: Settings = NONE,
) -> None:
    """Do a whole study and write its report; without a name, the main job on the built-in people.

    Settings of training and task given by hand are those of pretraining; a file given by --config may hold tables
    [finetune.train] and [scratch.train] for the other two trainings.

    Parameters
    ----------
    study
        The study: recall.
    corpus
        Text, one document a line: a file, or people (built in).
    facts
        Training questions, question<TAB>answer a line: a file, or people:train.
    exam
        Questions to be examined on, with or without answers: a file, or people:test.
    out
        Folder for everything; must not exist. Default: runs/STUDY-N.
    preset
        Where the settings start from. Default: small.
    config
        A TOML file with settings that lie over the preset.
    mechanism
        Attention mechanism; short for model.mechanism.
    seed
        Seed of weights, order and views.
    quick
        A smaller world and model: the same story in about a minute.
    """
    from attnlab import runs, studies

    runs.refuse_several("a study")
    studies.find(study)
    world = "people:300" if quick else "people"
    if (corpus is None) != (facts is None) or (corpus is None) != (exam is None):
        raise UserError("--corpus, --facts and --exam go together: give all three, or none for the built-in people")
    plan = studies.recall.Plan(
        corpus=corpus or world,
        facts=facts or f"{world}:train",
        exam=exam or f"{world}:test",
        preset=preset or ("quick" if quick else "small"),
        file=str(config) if config else None,
        given=collect(given, mechanism, seed),
        command="attnlab " + shlex.join(sys.argv[1:]),
        quick=quick,
    )
    studies.recall.begin(plan, out or runs.free_name(study), console)


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
        Text, one document a line: a file, or people (built in).
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


@app.command
def evaluate(folder: Path, /, *, exam: str = "people:test", out: Path | None = None, json: bool = False) -> None:
    """Examine a run: greedy answers, exact match, one prediction a line in DIR/predictions.txt.

    Parameters
    ----------
    folder
        The run.
    exam
        Questions with or without answers: a file, or people:test.
    out
        Folder for predictions.txt and result.json; must not exist. Default: runs/evaluate-N.
    json
        Print for programs.
    """
    from attnlab import corpora, evaluate
    from attnlab.model import load_model
    from attnlab.runs import Run, free_name, refuse_existing, refuse_several, to_json, write_folder

    refuse_several("an examination")
    opened, target = Run.open(folder), out or free_name("evaluate")
    refuse_existing(target)
    examination = evaluate.examine(*load_model(opened.model), corpora.load_questions(exam))
    summary = {"run": str(folder), "exam": exam, **examination.summary()}
    predictions = "".join(line + "\n" for line in examination.predictions)
    write_folder(target, {"predictions.txt": predictions.encode(), "result.json": to_json(summary)})
    if json:
        show_json({**summary, "out": str(target)})
        return
    console.print(examination.sentence())
    console.print(f"commonest answer: {summary['commonest_prediction']} ({100 * summary['commonest_share']:.1f} %)")
    console.print(f"predictions: {target / 'predictions.txt'}", soft_wrap=True)


@app.command
def ask(folder: Path, question: str, /, *, top: Whole = 5, json: bool = False) -> None:
    """Ask a run one question: the likeliest answers with their probabilities.

    Parameters
    ----------
    folder
        The run.
    question
        The question, as the training questions are phrased.
    top
        How many answers.
    json
        Print for programs.
    """
    from attnlab import evaluate, stages
    from attnlab.model import load_model
    from attnlab.runs import Run

    if not question.strip():
        raise UserError("the question is empty: write one, such as 'Where was Hank Aaron born?'")
    if top < 1:
        raise UserError(f"--top must be at least 1, not {top}")
    opened = Run.open(folder)
    answers = evaluate.top_answers(*load_model(opened.model), question, top)
    read = stages.documents_read(opened, question)
    if json:
        found = [{"answer": a, "probability": p} for a, p in answers]
        show_json({"question": question, "answers": found, "documents": read})
        return
    for answer, probability in answers:
        console.print(f"{100 * probability:5.1f} %  {answer}")
    if read == []:
        console.print("(no document that it read is about a name in this question: the answers are guesses)")


@corpus_app.command(name="show")
def corpus_show(
    *,
    corpus: str = "people",
    facts: str | None = None,
    task: str = "spans",
    preset: str | None = None,
    n: Whole = 5,
    seed: Whole = 0,
    json: bool = False,
) -> None:
    """Print what a task makes of the data: examples as input and target, special symbols shown.

    Parameters
    ----------
    corpus
        Text, one document a line: a file, or people (built in).
    facts
        Questions, question<TAB>answer a line.
    task
        spans, recall or questions.
    preset
        Whose tokenizer and block to use. Default: mingpt for spans, small for others.
    n
        How many examples.
    seed
        Seed of the examples.
    json
        Print for programs.
    """
    from attnlab import corpora, stages

    if n < 1:
        raise UserError(f"--n must be at least 1, not {n}")
    preset = preset or ("mingpt" if task == "spans" else "small")
    facts = facts or ("people:train" if task == "questions" and corpora.is_built_in(corpus) else None)
    preview = stages.preview(resolve(preset, given={"task": {"name": task}}), corpus, facts, n, seed)
    if json:
        show_json(preview)
        return
    console.print(
        f"{preview['documents']:,} documents, {preview['characters']:,} characters, {preview['symbols']:,} symbols;"
        f" {preview['examples_per_epoch']:,} examples and {preview['tokens_per_epoch']:,} tokens an epoch",
    )
    for pair in preview["examples"]:
        console.print(Text.assemble(("input   ", "bold"), pair["input"]), soft_wrap=True)
        console.print(Text.assemble(("target  ", "bold"), pair["target"], "\n"), soft_wrap=True)


@corpus_app.command(name="export")
def corpus_export(folder: Path, /, *, corpus: str = "people") -> None:
    """Write the built-in data as files: corpus.txt, train.tsv, dev.tsv, test.tsv.

    Parameters
    ----------
    folder
        Where to.
    corpus
        people, or people:300 for a subset.
    """
    from attnlab import corpora

    for path in corpora.export(corpus, folder):
        console.print(str(path))


@app.command
def params(preset: str = "small", /, *, config: Path | None = None, json: bool = False, given: Settings = NONE) -> None:
    """Count the parameters of a preset by part.

    Parameters
    ----------
    preset
        The preset.
    config
        A TOML file with settings that lie over it.
    json
        Print for programs.
    """
    from attnlab.model import count_parameters, on_paper

    parts = count_parameters(on_paper(resolve(preset, "pretrain", config, collect(given, None, None)).model))
    if json:
        show_json({"preset": preset, "parts": parts, "total": sum(parts.values())})
        return
    table = Table("part", "parameters", title=preset)
    table.columns[1].justify = "right"
    for part, count in parts.items():
        table.add_row(part, f"{count:,}")
    table.add_section()
    table.add_row("total", f"{sum(parts.values()):,}", style="bold")
    console.print(table)


@app.command
def mechanisms(*, json: bool = False) -> None:
    """List the attention mechanisms.

    Parameters
    ----------
    json
        Print for programs.
    """
    from attnlab import registry

    entries = [registry.find("mechanism", name) for name in registry.names("mechanism")]
    if json:
        keys = ("name", "card", "paper", "cost", "causal", "defect")
        show_json([{key: getattr(entry, key) for key in keys} for entry in entries])
        return
    table = Table("name", "what it does", "cost", "paper")
    for entry in entries:
        table.add_row(entry.name, entry.card.split("\n")[0], entry.cost, entry.paper)
    console.print(table)


@app.command
def settings(preset: str = "small", /, *, json: bool = False) -> None:
    """List every setting with its meaning and its value in a preset.

    Parameters
    ----------
    preset
        The preset.
    json
        Print for programs.
    """
    values = resolve(preset).to_dict()
    if json:
        show_json(values)
        return
    meanings = dict(meanings_of(RunConfig))
    stages = load_preset(preset)
    table = Table("setting", preset, "meaning")
    special = {stage: dict(walk(stages.get(stage, {}))) for stage in ("finetune", "scratch")}
    for name, value in walk(values):
        other = "".join(f"\n{stage}: {special[stage][name]}" for stage in special if name in special[stage])
        table.add_row(name, str(value) + other, meanings.get(name, ""))
    console.print(table)
    console.print(f"presets: {', '.join(preset_names())}")


def meanings_of(cls: type[Any], prefix: str = "") -> list[tuple[str, str]]:
    """Every setting's dotted name and meaning."""
    found: list[tuple[str, str]] = []
    for one in fields(cls):
        kind = type_hints(cls)[one.name]
        if is_dataclass(kind) and isinstance(kind, type):
            found += meanings_of(kind, f"{prefix}{one.name}.")
        else:
            found.append((prefix + one.name, one.metadata["help"]))
    return found


def share_the_machine() -> None:
    """Have idle OpenMP threads sleep soon instead of spinning, unless the user says otherwise; read when torch loads.

    Costs nothing measurable on a quiet machine, and beside another program training is several times faster.
    """
    if "OMP_WAIT_POLICY" not in os.environ:
        os.environ.setdefault("GOMP_SPINCOUNT", "1000")


def main(arguments: list[str] | None = None) -> None:
    """Run a verb; mistakes end in one line on standard error and an exit code."""
    share_the_machine()
    signal.signal(signal.SIGTERM, lambda *_: signal.raise_signal(signal.SIGINT))  # both ask to stop, and both are heard
    try:
        app(arguments, exit_on_error=False, print_error=False, result_action="return_value")
    except CycloptsError as error:
        fail(" ".join(str(error).split()), 2)
    except AttnlabError as error:
        fail(str(error), error.exit_code)
    except KeyboardInterrupt:
        fail("stopped; a run that was under way goes on with: attnlab resume FOLDER", 130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(141)


def fail(message: str, code: int) -> None:
    """One line on standard error, and out."""
    if speaks():
        sys.stderr.write(f"attnlab: {message}\n")
    sys.exit(code)
