"""Verbs that question a run, and show the data it learns from: evaluate, ask, corpus."""

from __future__ import annotations

from pathlib import Path

from cyclopts import App
from rich.text import Text

from attnlab.cli.common import Whole, app, console, show_json
from attnlab.config import resolve
from attnlab.errors import UserError

corpus_app = App(name="corpus", help="Look at data as a task sees it, or write the built-in data to files.")
app.command(corpus_app)


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
