"""Commands about data: corpus show, find and export."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import App
from rich.text import Text

from attnlab.cli.common import DATA, app, say, show_json
from attnlab.config import Stage, TaskConfig, merge, resolve
from attnlab.errors import UserError
from attnlab.pictures import picture_kind, write_picture
from attnlab.studies import options as opt
from attnlab.studies.options import NONE, SETTINGS_HINT, about, at_least_one, collect, default

if TYPE_CHECKING:
    from attnlab.lm.stages import WordCounts

_corpus_app = App(
    name="corpus", help="Show data as a task sees it, find a name, or export the built-in data.", group=DATA
)
app.command(_corpus_app)


@_corpus_app.command(name="show", help_epilogue=SETTINGS_HINT)
def corpus_show(
    *,
    corpus: Annotated[opt.Corpus, about("Text: a file, people:300:x4, prose or stories.")] = "people",
    facts: opt.Facts | None = None,
    task: Annotated[
        str | None,
        about("Task, as of attnlab pretrain."),
        default("spans, or of --preset"),
    ] = None,
    preset: Annotated[
        opt.Preset | None, about("Preset of the tokenizer."), default("mingpt, nano-words or small, by task")
    ] = None,
    n: Annotated[opt.Whole, about("Number of examples.")] = 5,
    seed: opt.Seed = 0,
    picture: Annotated[Path | None, about("Draw the sentence lengths of task words: PNG, SVG or PDF.")] = None,
    json: opt.Json = False,
    given: opt.Settings = NONE,
) -> None:
    """Show the examples that a task makes of the data, and the rows that training sees.

    A row is what training computes with: x is read, and y is learned, one token ahead. Rows are
    padded with □ to the longest of their batch, and ░ in y is a token that is not learned.
    """
    from attnlab import corpora
    from attnlab.lm.stages import preview
    from attnlab.report.charts import outline_picture
    from attnlab.report.parts import lengths_chart
    from attnlab.report.words import legend
    from attnlab.tasks import task_class
    from attnlab.tasks.guess import guess_task

    at_least_one("n", n)
    task = task or (resolve(preset).task.name if preset else "spans")
    chosen = task_class(TaskConfig(task))
    if facts is None and chosen.reads == "questions" and corpora.is_built_in(corpus):
        facts = "people:train"
    options = guess_task(corpus).options if chosen.reads == "running text" else {}
    settings = merge({"task": {"name": task, "options": options}}, collect(given, seed=seed))
    stage: Stage = "finetune" if chosen.reads == "questions" else "pretrain"
    config = resolve(preset or chosen.preset, stage, given=settings)
    if picture and chosen.reads != "sentences":
        raise UserError("--picture draws the lengths of sentences: add --task words")
    kind = picture_kind(picture) if picture else ""
    shown = preview(config, corpus, facts, n)
    if picture and shown.words:
        write_picture(picture, outline_picture(lengths_chart(shown.words.lengths), kind))
    if json:
        show_json(shown)
        return
    say(
        f"{shown.documents:,} documents, {shown.characters:,} characters, {shown.symbols:,} symbols;"
        f" {shown.examples_per_epoch:,} examples and {shown.tokens_per_epoch:,} tokens per epoch"
    )
    if shown.words:
        _show_words(shown.words, shown.symbols)
    for example in shown.examples:
        say(*(Text.assemble((f"{name:8}", "bold"), text) for name, text in vars(example).items()), "")
    say(*filter(None, [legend(*(text for example in shown.examples for text in vars(example).values()))]))


def _show_words(words: WordCounts, symbols: int) -> None:
    say(
        f"{words.sentences:,} sentences, {words.tokens:,} tokens, {words.distinct:,} distinct words; {symbols:,}"
        f" known with the special ones, {100 * words.unknown_share:.1f} % of the tokens unknown",
        "words per sentence:",
    )
    most = max(bar.sentences for bar in words.lengths)
    for bar in words.lengths:
        if bar.most <= 100:
            drawn = "█" * round(50 * bar.sentences / most)
            say(f"{bar.least:5}-{bar.most:<4} {bar.sentences:8,}  {drawn}".rstrip())
    beyond = sum(bar.sentences for bar in words.lengths if bar.most > 100)
    if beyond:
        say(f"   over 100 {beyond:7,}")


@_corpus_app.command(name="find")
def corpus_find(
    name: Annotated[str, about("Name that a line starts with, such as 'Hank Aaron'.")],
    /,
    *,
    corpus: Annotated[opt.Corpus, about("Text, one document per line: a file, or people.")] = "people",
    n: Annotated[opt.Whole, about("Number of similar names.")] = 5,
    json: opt.Json = False,
) -> None:
    """Print the lines about a name, or the most similar names."""
    from attnlab import corpora

    at_least_one("n", n)
    if not name.strip():
        raise UserError("the name is empty: write one, such as 'Hank Aaron'")
    loaded = corpora.load_corpus(corpus, lookup=True)
    lines = loaded.find(name.strip())
    nearest = () if lines else loaded.nearest(name, n)
    if json:
        show_json({"name": name, "corpus": corpus, "lines": lines, "nearest": nearest})
        return
    for line in lines:
        say(line.text)
    if not lines:
        say(f"no line is about '{name}'" + ("; the most similar names:" if nearest else " or a similar name"))
    for near in nearest:
        say(f"{100 * near.similarity:5.0f} %  {near.name}")


@_corpus_app.command(name="export")
def corpus_export(
    folder: Annotated[Path, about("Folder to write; must not exist.")],
    /,
    *,
    corpus: Annotated[str, about("Data: people, people:300:x4, prose or stories.")] = "people",
) -> None:
    """Write the built-in data as files: corpus.txt and train, dev and test."""
    from attnlab import corpora

    say(*map(str, corpora.export(corpus, folder)))
