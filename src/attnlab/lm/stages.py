"""The stages of training: pretrain, fine-tune, resume. Settings and data in, a run folder out."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnlab import corpora, registry
from attnlab.config import ModelConfig, RunConfig, Settings, Stage, merge, restore
from attnlab.corpora import Corpus, Question, RunningText
from attnlab.corpora.running import split_lines
from attnlab.errors import CheckpointError, ConfigError, DataError, UserError
from attnlab.lm import devices, shards
from attnlab.lm.model import LanguageModel, load_model, meta_model
from attnlab.lm.perplexity import SentenceLosses
from attnlab.lm.processes import Ranks, process_group, restarted
from attnlab.lm.tokenizers import Tokenizer, count_words
from attnlab.lm.trackers import require_packages
from attnlab.lm.train import (
    IGNORED,
    DevSet,
    Step,
    Trainer,
    choose_threads,
    collate,
    example_losses,
    make_epoch,
    uniform_length,
)
from attnlab.lm.word_split import word_lengths
from attnlab.machine import cores, retain_freed_memory
from attnlab.store import usercode
from attnlab.store.folders import locked, note_without_manifest, refuse_existing
from attnlab.store.records import optional
from attnlab.store.runs import FORMAT, DataSource, Run, RunRecord, movable, unused_path
from attnlab.tasks import Example, Task, TaskData, make_task
from attnlab.tasks import show as show_example

_Announce = Callable[[str], None]
_Key = tuple[str, str, str, int, int]  # checksums of corpus and questions, kind, vocab_size, min_count

NO_TARGET = "░"  # shown for a token that is not learned


def silent(_: object) -> None:
    """Ignore the argument."""


@dataclass(frozen=True)
class Show:
    """Callbacks of a stage: lines for people, and for a progress bar every step and the share of a text made into tokens."""

    line: _Announce = silent
    step: Callable[[Step], None] = silent
    reading: Callable[[float], None] = silent


QUIET = Show()


@dataclass(frozen=True)
class Sources:
    """The data of a stage, read and checked."""

    corpus: Corpus | RunningText | None
    facts: tuple[Question, ...]
    facts_source: str | None = None
    dev: Corpus | RunningText | tuple[Question, ...] | None = None  # held-out text, or questions
    dev_source: str | None = None
    tokenizers: dict[_Key, Tokenizer] = field(default_factory=dict, compare=False)  # learned so far

    @classmethod
    def read(
        cls,
        corpus: str | None,
        facts: str | None,
        dev: str | None = None,
        *,
        running: bool = False,
        reading: Callable[[float], None] | None = None,
    ) -> Sources:
        """Read the named data; running text is only opened."""
        load = partial(corpora.open_text, progress=reading) if running else corpora.load_corpus
        questions = corpora.load_questions(facts) if facts is not None else ()
        held_out: Corpus | RunningText | tuple[Question, ...] | None = None
        if dev is not None:
            held_out = corpora.load_questions(dev) if corpora.has_questions(dev) else load(dev)
        return cls(load(corpus) if corpus is not None else None, questions, facts, held_out, dev)

    @property
    def recorded(self) -> tuple[DataSource | None, DataSource | None, DataSource | None]:
        """Corpus, facts and dev as a run stores them; with absolute paths, so that it can be resumed from anywhere."""

        def recorded(source: str | None, data: Any) -> DataSource | None:
            if not source:
                return None
            return DataSource(absolute(source), checksum(data) if isinstance(data, tuple) else data.sha256)

        corpus = recorded(self.corpus.source, self.corpus) if self.corpus else None
        return corpus, recorded(self.facts_source, self.facts), recorded(self.dev_source, self.dev)

    def texts(self) -> list[str]:
        """Return all texts that the tokenizer is trained on."""
        lines = list(self.corpus.lines) if isinstance(self.corpus, Corpus) else []
        for item in self.facts:
            lines += [item.question, item.answer or ""]
        return lines


def absolute(source: str) -> str:
    """Make a path absolute; names of built-in data stay."""
    return source if corpora.is_built_in(source) else str(Path(source).resolve())


def checksum(questions: tuple[Question, ...]) -> str:
    """Return the sha256 of questions and answers."""
    return hashlib.sha256("\n".join(corpora.as_table(questions)).encode()).hexdigest()


def pretrain(
    config: RunConfig,
    corpus: str,
    facts: str | None = None,
    out: Path | str | None = None,
    show: Show = QUIET,
    *,
    dev: str | None = None,
) -> Run:
    """Train a fresh model on a corpus, with training questions mixed in when `facts` are given; validate it on `dev`."""
    if facts and not reads_questions(config):
        raise DataError(f"task '{config.task.name}' uses no questions: leave --facts out, or choose --task.name recall")
    sources = Sources.read(corpus, facts, dev, running=reads_running_text(config), reading=show.reading)
    return begin(config, "pretrain", sources, None, Path(out) if out else None, show)


def finetune(
    config: RunConfig,
    base: Run | None,
    facts: str,
    corpus: str | None = None,
    out: Path | str | None = None,
    show: Show = QUIET,
    *,
    dev: str | None = None,
    trust_code: bool = False,
) -> Run:
    """Train on questions, from the model of a run or, as the baseline without pretraining, from scratch."""
    with usercode.trusting(trust_code):
        sources = Sources.read(corpus, facts, dev)
        return begin(config, "finetune" if base else "scratch", sources, base, Path(out) if out else None, show)


def reads_questions(config: RunConfig) -> bool:
    """Whether the task of a run uses questions."""
    return bool(registry.find("task", config.task.name).build.reads_questions)  # type: ignore[attr-defined]


def reads_running_text(config: RunConfig) -> bool:
    """Whether the task of a run reads running text, of any size."""
    return bool(getattr(registry.find("task", config.task.name).build, "reads_running_text", False))


_SHARE = 0.05  # of running text that is held out unless other data are given
_SHORT = 2000  # bytes of text of which no share is held out
_DOCUMENTS = {"file": "one document per file", "lines": "each a document", "blank": "blank lines separate documents"}


def guess_settings(source: str, given: Settings, share: bool = True) -> tuple[str, Settings, str]:
    """Guess the preset and the task for a text from its beginning, hold out a share of running text, and say so."""
    guess = corpora.guess_task(source)
    said, changes = f"task {guess.task}: {guess.reason}", ["--task.name"]
    if guess.task != "text":
        return "small", given, f"{said} (--task.name changes this)"
    chosen = given.get("task", {}).get("options", {})
    options = {**guess.options, **chosen}
    if "documents" in guess.options and "documents" not in chosen:
        documents = guess.options["documents"]
        said += f", {_DOCUMENTS[documents]}"
        changes += ["--task.options.documents"] if documents == "lines" else []
    if share and "held_out" not in chosen:
        changes.append("--dev")
        if corpora.open_text(source).size < _SHORT:
            said += "; it is short, so nothing is held out"
        else:
            options["held_out"] = _SHARE
            said += f"; the last {100 * _SHARE:.0f} % are held out"
    said += f" ({', '.join(changes)} change{'s' if len(changes) == 1 else ''} this)"
    return "text", merge(given, {"task": {"options": options}}), said


def stored_config(run: Run) -> RunConfig:
    """Restore the settings of a run."""
    record = run.record
    if record.format != FORMAT:
        raise CheckpointError(f"{run.path} has format {record.format}, but this version reads {FORMAT}: train again")
    try:
        if not record.settings:
            raise ConfigError("it has no settings")
        return restore(run.path, record.settings, str(run.path / "config.json"))
    except ConfigError as error:
        raise CheckpointError(f"{run.path / 'config.json'} is damaged or of another version: {error}") from None


def count_seen_lines(run: Run, lines: Sequence[str], tokenizer: Tokenizer) -> int | None:
    """Count the lines that a run was trained on; None if its own text cannot be read, or is no longer what it read."""
    corpus, config = run.record.corpus, stored_config(run)
    if corpus is None:
        return None
    try:
        if not run.record.running_text:
            own = frozenset(corpora.load_corpus(corpus.source).lines)
            return sum(line in own for line in lines)
        text = corpora.open_text(corpus.source)
        if text.sha256 != corpus.sha256:
            return None
        task = make_task(config.task, TaskData(tokenizer, config.model.block_size, text))
    except DataError:
        return None
    wanted = frozenset(lines)
    read = Counter(line for line in text.each_line() if line in wanted)
    seen = read - Counter(split_lines(getattr(task, "held_out_text", str)()))
    return sum(line in seen for line in lines)


def running_losses(run: Run, model: LanguageModel, tokenizer: Tokenizer, text: RunningText) -> SentenceLosses:
    """Measure the loss of running text in windows, one after the other, as validation does."""
    examples = _to_validate(stored_config(run), tokenizer, text)
    if not examples:
        raise DataError(f"{text.source} has no token to predict: give a longer text")
    losses = example_losses(model, examples, tokenizer.pad)
    targets = (np.asarray(one.ids[one.start : one.end]) for one in examples)
    counts = [(len(ids), 0 if tokenizer.unknown is None else int((ids == tokenizer.unknown).sum())) for ids in targets]
    return SentenceLosses(tuple(losses), *(tuple(column) for column in zip(*counts, strict=True)))


def reading_options(run: Run) -> dict[str, Any]:
    """Return the arguments of perplexity.sentence_losses that match the training of a run: truncation and padding."""
    task = stored_config(run).task
    if task.name != "words":
        return {}
    entry = registry.find("task", "words")
    options = {name: one.default for name, one in entry.options.items()} | entry.check(task.options)
    return {name: options[name] for name in ("longest", "padded")}


def check_settings(config: RunConfig, sources: Sources, tokenizer: Tokenizer) -> None:
    """Find errors in the settings and the data without training."""
    meta_model(fit_vocabulary(config, tokenizer))
    make_task(config.task, TaskData(tokenizer, config.model.block_size, sources.corpus, sources.facts))


def learn_tokenizer(config: RunConfig, sources: Sources) -> Tokenizer:
    """Train the tokenizer of a run on all its texts; sources that share `tokenizers` train each only once."""
    kind, size, min_count = config.tokenizer.kind, config.model.vocab_size, config.tokenizer.min_count
    if isinstance(sources.corpus, RunningText):
        return shards.learn_tokenizer(sources.corpus, kind, size, min_count)
    key = (sources.corpus.sha256 if sources.corpus else "", checksum(sources.facts), kind, size, min_count)
    if key not in sources.tokenizers:
        sources.tokenizers[key] = Tokenizer.train(kind, sources.texts(), size, min_count=min_count)
    return sources.tokenizers[key]


def fit_vocabulary(config: RunConfig, tokenizer: Tokenizer) -> ModelConfig:
    """Return the model settings with the tokenizer's vocab_size, if the corpus decides it: for 0, words and running text.

    For words and running text, vocab_size is a maximum, since rows for symbols that do not occur would be wasted.
    """
    follows = config.model.vocab_size == 0 or tokenizer.words or reads_running_text(config)
    return replace(config.model, vocab_size=tokenizer.size) if follows else config.model


@dataclass(frozen=True)
class WordCounts:
    """Statistics of a corpus of sentences; `lengths` are the bars of a histogram of words per sentence."""

    sentences: int
    tokens: int
    distinct: int
    unknown_share: float
    lengths: tuple[dict[str, int], ...]  # from, to, sentences


@dataclass(frozen=True)
class Preview:
    """What a task makes of the data."""

    documents: int
    characters: int
    symbols: int
    examples_per_epoch: int
    tokens_per_epoch: int
    examples: tuple[dict[str, str], ...]  # input, target; and x, y: the same as a row of its batch
    words: WordCounts | None = optional()


def preview(config: RunConfig, corpus: str, facts: str | None, count: int) -> Preview:
    """Show what a task makes of the data: counts, and examples of the first epoch as pairs of texts."""
    sources = Sources.read(corpus, facts, running=reads_running_text(config))
    tokenizer = learn_tokenizer(config, sources)
    task = make_task(config.task, TaskData(tokenizer, config.model.block_size, sources.corpus, sources.facts))
    examples, batches = make_epoch(task, config, 0)
    text = sources.corpus
    if isinstance(text, RunningText):  # windows are in random order already
        lines: Sequence[str] = ()
        documents, characters = task.shard.documents, text.size  # type: ignore[attr-defined]
        picked, tokens = list(range(min(count, len(examples)))), uniform_length(examples) * len(examples)
    else:
        lines = text.lines if text else ()
        documents, characters = len(lines), sum(len(line) + 1 for line in lines)
        picked = np.random.default_rng(config.seed).permutation(len(examples))[:count].tolist()
        tokens = sum(len(example.ids) for example in examples)
    return Preview(
        documents=documents,
        characters=characters,
        symbols=tokenizer.size,
        examples_per_epoch=len(examples),
        tokens_per_epoch=tokens,
        examples=tuple(_shown_example(examples, batches, index, tokenizer) for index in picked),
        words=_word_counts(lines, tokenizer) if tokenizer.words else None,
    )


def _shown_example(
    examples: Sequence[Example], batches: Sequence[Sequence[int]], index: int, tokenizer: Tokenizer
) -> dict[str, str]:
    """One example as input and target, and as the row x, y of its batch, which is what training computes with."""
    given, wanted = show_example(examples[index], tokenizer)
    batch = next(one for one in batches if index in one)
    ids, targets = (one[batch.index(index)].tolist() for one in collate([examples[at] for at in batch], tokenizer.pad))
    between = " " if tokenizer.words else ""
    y = between.join(
        between.join(NO_TARGET for _ in run) if ignored else tokenizer.decode(list(run))
        for ignored, run in groupby(targets, key=IGNORED.__eq__)
    )
    return {"input": given, "target": wanted, "x": tokenizer.decode(ids), "y": y}


def _word_counts(lines: Sequence[str], tokenizer: Tokenizer) -> WordCounts:
    counts = count_words(lines)
    known = tokenizer.backend.get_vocab()
    return WordCounts(
        sentences=len(lines),
        tokens=counts.total(),
        distinct=len(counts),
        unknown_share=sum(count for word, count in counts.items() if word not in known) / max(1, counts.total()),
        lengths=word_lengths(lines),
    )


def resume(run: Run, show: Show = QUIET, *, trust_code: bool = False, device: str | None = None) -> Run:
    """Resume a run from its last checkpoint, on another device if asked; a complete run is left unchanged."""
    if run.complete:
        show.line(f"{run.path} is already complete")
        return run
    with usercode.trusting(trust_code):
        config = stored_config(run)
        threads = min(config.train.threads, max(1, cores() // int(os.environ.get("LOCAL_WORLD_SIZE", "1"))))
        if threads < config.train.threads:
            show.line(
                f"note: {threads} instead of {config.train.threads} threads per process: losses are rounded differently"
            )
        config = replace(config, train=replace(config.train, device=device or config.train.device, threads=threads))
        with process_group(_choose_device(config)) as ranks:
            return _resume(run, config, ranks, show)


def _resume(run: Run, config: RunConfig, ranks: Ranks, show: Show) -> Run:
    with locked(run.path) if ranks.first else nullcontext():
        if run.complete:
            return run
        note_without_manifest(run.path)
        record = run.record
        base = Run.open(run.path / record.base) if record.base else None
        stored = record.corpus, record.facts, record.dev
        if record.corpus is None and record.facts is None:
            raise CheckpointError(f"{run.path / 'config.json'} is damaged (it names no data): train again")
        named = [data.source if data else None for data in stored]
        sources = Sources.read(*named, running=reads_running_text(config), reading=show.reading)
        for now, before in zip(sources.recorded, stored, strict=True):
            if now and before and now.sha256 != before.sha256:
                raise DataError(f"{now.source} has changed since the run began: restore the file, or start a new run")
        trainer = _prepare(run, config, sources, base, ranks, show)
        for damage in trainer.restore():
            show.line(f"note: falling back to an older checkpoint: {damage}")
        show.line(
            f"resuming from step {trainer.step}" if trainer.step else "no checkpoint yet: training from the beginning"
        )
        trainer.fit(show.step, show.line)
    return run


def _choose_device(config: RunConfig) -> torch.device:
    """The device of a run, which must be able to compute in its precision."""
    device = devices.choose_device(config.train.device)
    devices.check_precision(device, config.train.precision)
    return device


def _interrupted(path: Path | None, stem: str, config: RunConfig) -> Run | None:
    """The run that this process was training before it was started again; it may even be complete."""
    if not restarted():
        return None
    number = int(unused_path(stem).name.rsplit("-", 1)[1]) - 1
    run = Run(path or unused_path(stem).with_name(f"{stem}-{number}"))
    return run if run.path.exists() and replace(stored_config(run), model=config.model) == config else None


def begin(
    config: RunConfig, stage: Stage, sources: Sources, base: Run | None, out: Path | None = None, show: Show = QUIET
) -> Run:
    """Start a stage; everything is built before the folder is created, so that an error leaves none behind."""
    if base is not None:
        of_base = stored_config(base)
        config = replace(config, model=of_base.model, tokenizer=of_base.tokenizer)
    # The number of threads is stored, since results depend on it.
    threads = choose_threads(config.model, config.train.threads)
    config = replace(config, train=replace(config.train, threads=threads))
    require_packages(config.train.loggers)
    with process_group(_choose_device(config)) as ranks:
        stem = f"{stage}-{config.preset}"
        if interrupted := _interrupted(out, stem, config):
            return _resume(interrupted, config, ranks, show)
        run = Run(out or unused_path(stem))
        refuse_existing(run.path)
        ranks.wait()  # all processes have checked before the first creates the folder
        trainer = _prepare(run, config, sources, base, ranks, show)
        if ranks.first:
            settings = replace(config, model=trainer.model.config).to_dict()
            corpus, facts, dev = (data and movable(data, run.path) for data in sources.recorded)
            path = os.path.relpath(base.path, run.path) if base else None
            record = RunRecord(stage, settings, corpus, facts, path, dev)
            Run.create(run.path, record, usercode.code_files(trainer.model.config.mechanism, config.task.name))
        ranks.wait()
        show.line(f"run folder: {run.path}")
        with locked(run.path) if ranks.first else nullcontext():
            trainer.fit(show.step, show.line)
    return run


def _prepare(run: Run, config: RunConfig, sources: Sources, base: Run | None, ranks: Ranks, show: Show) -> Trainer:
    """Build the model, tokenizer and task of a stage."""
    retain_freed_memory()
    torch.set_num_threads(config.train.threads)
    torch.manual_seed(config.seed)
    if base is None:
        tokenizer = learn_tokenizer(config, sources)
        model = LanguageModel(fit_vocabulary(config, tokenizer))
    else:
        model, tokenizer = load_model(base.model)
    device = _choose_device(config)
    model.to(device, devices.dtype_of(config.train.precision))
    task = make_task(config.task, TaskData(tokenizer, model.config.block_size, sources.corpus, sources.facts))
    if not task.examples(np.random.default_rng([config.seed, 0])):
        raise DataError(f"task '{config.task.name}' makes no examples from this data: check its options and the files")
    shared = f" in each of {ranks.world} processes" if ranks.world > 1 else ""
    show.line(
        f"{sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {tokenizer.size:,},"
        f" threads {torch.get_num_threads()}{shared}, {config.train.precision} on {devices.describe(device)}"
    )
    for name in dict.fromkeys(config.model.mechanisms):
        if defect := registry.find("mechanism", name).defect:
            show.line(f"{name} is wrong on purpose, its loss is invalid: {defect}")
    dev = _dev_set(config, sources, task, tokenizer, show)
    if config.train.patience and not dev:
        raise UserError("train.patience needs held-out data to stop by: give --dev")
    return Trainer(run, model, tokenizer, task, config, ranks, dev)


def _dev_set(config: RunConfig, sources: Sources, task: Task, tokenizer: Tokenizer, show: Show) -> DevSet | None:
    """The held-out data of a run, as examples of its task; None if there are none."""
    dev, block = sources.dev, config.model.block_size
    if isinstance(dev, tuple):
        return DevSet(TaskData(tokenizer, block, questions=dev).answered, dev)
    if dev is None:
        kept: Sequence[Example] = getattr(task, "held_out", tuple)()
        return DevSet(kept) if kept else None
    if (
        isinstance(dev, Corpus)
        and isinstance(sources.corpus, Corpus)
        and (known := set(dev.lines) & set(sources.corpus.lines))
    ):
        show.line(f"note: {len(known):,} of {len(dev.lines):,} held-out lines are in the training text too")
    if isinstance(dev, RunningText) and sources.corpus and dev.sha256 == sources.corpus.sha256:
        show.line("note: the held-out text is the training text")
    examples = _to_validate(config, tokenizer, dev)
    if not examples:
        raise DataError(f"task '{config.task.name}' makes no examples from {sources.dev_source}: give other --dev data")
    return DevSet(examples)


def _to_validate(config: RunConfig, tokenizer: Tokenizer, text: Corpus | RunningText) -> Sequence[Example]:
    """The examples of a text that is kept for validation."""
    made = make_task(config.task, TaskData(tokenizer, config.model.block_size, text))
    found: Sequence[Example] = getattr(made, "validation", partial(made.examples, np.random.default_rng(0)))()
    return found
