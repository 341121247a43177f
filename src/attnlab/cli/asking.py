"""Verbs that examine a run, and show the data it learns from: evaluate, generate, corpus."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

from cyclopts import App
from rich.text import Text

from attnlab.cli.common import Seed, TrustCode, Whole, app, console, errors, indexing, show_json
from attnlab.config import resolve
from attnlab.errors import UserError

if TYPE_CHECKING:
    from attnlab.corpora.index import Index

corpus_app = App(
    name="corpus", help="Look at data as a task sees it, look a name up, or write the built-in data to files."
)
app.command(corpus_app)


@app.command
def evaluate(
    folder: Path,
    /,
    *,
    exam: str | None = None,
    corpus: str | None = None,
    probe: list[str] | None = None,
    out: Path | None = None,
    trust_code: TrustCode = False,
    json: bool = False,
) -> None:
    """Examine a run: greedy answers, exact match, one prediction a line in DIR/predictions.txt; or measure it on text.

    With --corpus: the loss of every sentence in DIR/losses.csv, and two perplexities. The sentence perplexity is that of the
    course reports, the mean over sentences of exp(mean loss); the token perplexity is exp(mean loss of all tokens).

    Parameters
    ----------
    folder
        The run.
    exam
        Questions with or without answers: a file, or people:test (the default).
    corpus
        Text to be measured on, a sentence a line: a file, or prose:dev.
    probe
        A sentence to be shown with its loss, may be given several times. Default: the four of the course reports.
    out
        Folder for predictions.txt or losses.csv, and result.json; must not exist. Default: runs/evaluate-N.
    json
        Print for programs.
    """
    if corpus is not None or probe:
        if exam is not None:
            raise UserError("--exam asks questions, --corpus and --probe measure text: give one, then the other")
        measure(folder, corpus, probe, out, trust_code, json)
        return
    exam = "people:test" if exam is None else exam
    from attnlab import corpora, evaluate
    from attnlab.model import load_model
    from attnlab.runs import Run, free_name, refuse_existing, refuse_several, to_json, write_folder

    refuse_several("an examination")
    opened, target = Run.open(folder), out or free_name("evaluate")
    refuse_existing(target)
    model, tokenizer = load_model(opened.model, trust_code=trust_code)
    examination = evaluate.examine(model, tokenizer, corpora.load_questions(exam))
    summary = {"run": str(folder), "exam": exam, **examination.summary()}
    predictions = "".join(line + "\n" for line in examination.predictions)
    write_folder(target, "evaluation", {"predictions.txt": predictions.encode(), "result.json": to_json(summary)})
    if json:
        show_json({**summary, "out": str(target)})
        return
    console.print(examination.sentence())
    console.print(f"commonest answer: {summary['commonest_prediction']} ({100 * summary['commonest_share']:.1f} %)")
    console.print(f"predictions: {target / 'predictions.txt'}", soft_wrap=True)


def measure(
    folder: Path, corpus: str | None, probes: list[str] | None, out: Path | None, trust_code: bool, json: bool
) -> None:
    """What `evaluate` does with text."""
    from attnlab import corpora, perplexity, stages
    from attnlab.model import load_model
    from attnlab.runs import Run, free_name, refuse_existing, refuse_several, to_json, write_folder

    refuse_several("a measurement")
    opened, target = Run.open(folder), out or free_name("evaluate")
    refuse_existing(target)
    text = corpora.load_corpus(corpus) if corpus is not None else None
    (model, tokenizer), reading = load_model(opened.model, trust_code=trust_code), stages.reading_of(opened)
    summary: dict[str, Any] = {"run": str(folder), "corpus": corpus, **reading}
    summary["probes"] = perplexity.probe(model, tokenizer, probes or perplexity.PROBES, **reading)
    files = {}
    if text is not None:
        measured = perplexity.sentence_losses(model, tokenizer, text.lines, **reading)
        summary |= {"sha256": text.sha256, "seen": stages.seen(opened, text), **measured.summary()}
        files["losses.csv"] = measured.to_csv()
    write_folder(target, "evaluation", {**files, "result.json": to_json(summary)})
    if json:
        show_json({**summary, "out": str(target)})
        return
    tell_measured(summary)
    console.print(f"written: {target}", soft_wrap=True)


def tell_measured(summary: dict[str, Any]) -> None:
    """Losses and perplexities for people."""
    if summary["corpus"] is not None:
        console.print(
            f"{summary['sentences']:,} sentences, {summary['tokens']:,} tokens"
            f" ({100 * summary['unknown_share']:.1f} % unknown): loss {summary['loss']:.3f}\n"
            f"token perplexity     {summary['token_perplexity']:10,.1f}   exp(mean loss of a token)\n"
            f"sentence perplexity  {summary['sentence_perplexity']:10,.1f}   mean of exp(a sentence's mean loss)",
        )
        if summary["seen"]:
            console.print(f"({summary['seen']:,} of these sentences were in its training text)")
    for one in summary["probes"]:
        console.print(
            f"loss {one['loss']:6.3f}  perplexity {one['perplexity']:10,.1f}  {one['sentence']}", soft_wrap=True
        )


@app.command
def generate(
    folder: Path,
    prompt: str = "",
    /,
    *,
    n: Whole = 5,
    temperature: float = 0.8,
    top_k: Whole = 0,
    seed: Seed = 0,
    longest: Whole = 100,
    trust_code: TrustCode = False,
    json: bool = False,
) -> None:
    """Let a run's model write: texts drawn by its own probabilities.

    Parameters
    ----------
    folder
        The run.
    prompt
        How the texts begin. Models of words need none.
    n
        How many texts.
    temperature
        Below 1 the likely words become likelier, 0 takes the likeliest always.
    top_k
        Draw among so many likeliest tokens only; 0: among all.
    seed
        Seed of the draws.
    longest
        Tokens a text after the prompt, if it does not end before.
    json
        Print for programs.
    """
    from attnlab import evaluate
    from attnlab.model import load_model
    from attnlab.runs import Run

    model, tokenizer = load_model(Run.open(folder).model, trust_code=trust_code)
    texts = evaluate.sample(model, tokenizer, prompt, n, temperature=temperature, top_k=top_k, seed=seed, limit=longest)
    if json:
        settings = {"temperature": temperature, "top_k": top_k, "seed": seed}
        show_json({"run": str(folder), "prompt": prompt, **settings, "samples": texts})
        return
    for text in texts:
        console.print(text, soft_wrap=True)


@corpus_app.command(name="show")
def corpus_show(
    *,
    corpus: str = "people",
    facts: str | None = None,
    task: str = "spans",
    preset: str | None = None,
    n: Whole = 5,
    seed: Seed = 0,
    json: bool = False,
) -> None:
    """Print what a task makes of the data: examples as input and target, special symbols shown.

    Parameters
    ----------
    corpus
        Text, one document a line: a file, or people or prose (built in); people:300:x4 is 300 people, in four forms each.
    facts
        Questions, question<TAB>answer a line.
    task
        spans, recall, questions or words.
    preset
        Whose tokenizer and block to use. Default: mingpt for spans, nano-words for words, small for others.
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
    preset = preset or {"spans": "mingpt", "words": "nano-words"}.get(task, "small")
    if facts is None and task == "questions" and corpora.is_built_in(corpus):
        facts = "people:train"
    preview = stages.preview(resolve(preset, given={"task": {"name": task}}), corpus, facts, n, seed)
    if json:
        show_json(preview)
        return
    console.print(
        f"{preview['documents']:,} documents, {preview['characters']:,} characters, {preview['symbols']:,} symbols;"
        f" {preview['examples_per_epoch']:,} examples and {preview['tokens_per_epoch']:,} tokens an epoch",
    )
    if "words" in preview:
        tell_words(preview["words"], preview["symbols"])
    for pair in preview["examples"]:
        console.print(Text.assemble(("input   ", "bold"), pair["input"]), soft_wrap=True)
        console.print(Text.assemble(("target  ", "bold"), pair["target"], "\n"), soft_wrap=True)


def tell_words(words: dict[str, Any], symbols: int) -> None:
    """A corpus of sentences for people: words, and how long the sentences are."""
    console.print(
        f"{words['sentences']:,} sentences, {words['tokens']:,} tokens, {words['distinct']:,} distinct words; {symbols:,}"
        f" known with the special ones, {100 * words['unknown_share']:.1f} % of the tokens unknown",
    )
    console.print("words in a sentence:")
    most = max(bar["sentences"] for bar in words["lengths"])
    for bar in words["lengths"]:
        if bar["to"] <= 100:
            drawn = "█" * round(50 * bar["sentences"] / most)
            console.print(f"{bar['from']:5}-{bar['to']:<4} {bar['sentences']:8,}  {drawn}".rstrip())
    beyond = sum(bar["sentences"] for bar in words["lengths"] if bar["to"] > 100)
    if beyond:
        console.print(f"   over 100 {beyond:7,}")


def open_index(corpus: str, verify: bool = False) -> Index:
    """The index of a corpus; that it is built, which happens once, is said on standard error."""
    from attnlab.corpora.index import index_corpus

    started = perf_counter()
    with indexing() as progress:
        index = index_corpus(corpus, progress=progress, verify=verify)
    if index.built:
        said = f"indexed {len(index):,} lines in {perf_counter() - started:.1f} s, once: {index.folder}"
        errors.print(said, soft_wrap=True)
    elif verify:
        errors.print(f"every file of the index has its checksum: {index.folder}", soft_wrap=True)
    return index


@corpus_app.command(name="find")
def corpus_find(
    name: str, /, *, corpus: str = "people", n: Whole = 5, verify: bool = False, json: bool = False
) -> None:
    """Print the lines about a name; where there are none, the names most like it. The first time an index is built.

    Parameters
    ----------
    name
        The heading of a line, such as 'Hank Aaron'.
    corpus
        Text, one document a line: a file, or people (built in).
    n
        How many names.
    verify
        Check every byte of the index first, and build it again if it is damaged.
    json
        Print for programs.
    """
    if n < 1:
        raise UserError(f"--n must be at least 1, not {n}")
    if not name.strip():
        raise UserError("the name is empty: write one, such as 'Hank Aaron'")
    index = open_index(corpus, verify)
    lines = index.find(name.strip())
    nearest = () if lines else index.nearest(name, n)
    if json:
        found = {"lines": [asdict(line) for line in lines], "nearest": [asdict(one) for one in nearest]}
        show_json({"name": name, "corpus": corpus, **found})
        return
    for line in lines:
        console.print(line.text, soft_wrap=True)
    if not lines:
        console.print(f"no line is about exactly '{name}'" + ("; the nearest names:" if nearest else ", nor like it"))
    for one in nearest:
        console.print(f"{100 * one.similarity:5.0f} %  {one.name}", soft_wrap=True)


@corpus_app.command(name="export")
def corpus_export(folder: Path, /, *, corpus: str = "people") -> None:
    """Write the built-in data as files: corpus.txt, train.tsv, dev.tsv, test.tsv; of prose train.txt, dev.txt, test.txt.

    Parameters
    ----------
    folder
        Where to.
    corpus
        people, people:300 for a subset, people:x4 for everybody in four sentence forms, or prose.
    """
    from attnlab import corpora

    for path in corpora.export(corpus, folder):
        console.print(str(path))
