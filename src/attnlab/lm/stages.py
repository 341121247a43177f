"""The stages of training: pretrain, fine-tune, resume. Settings and data in, a run folder out.

`preview` shows what the first epoch of a stage would read, without training.
"""

from __future__ import annotations

import hashlib
import os
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
from attnlab.config import ModelConfig, RunConfig, Stage, restore
from attnlab.corpora import Corpus, Question, RunningText
from attnlab.errors import CheckpointError, ConfigError, DataError, UserError
from attnlab.lm import devices, shards
from attnlab.lm.batches import IGNORED, DevSet, collate, count_ids, make_epoch
from attnlab.lm.model import LanguageModel, load_model, meta_model
from attnlab.lm.processes import Ranks, process_group, restarted
from attnlab.lm.progress import QUIET, Show, require_packages
from attnlab.lm.tokenizers import LengthBar, Tokenizer, count_words, word_lengths
from attnlab.lm.train import Trainer, choose_threads
from attnlab.machine import cores, retain_freed_memory
from attnlab.mechanisms.conventions import conventions_of
from attnlab.store import usercode
from attnlab.store.folders import locked, refuse_existing
from attnlab.store.runs import FORMAT, DataSource, Run, RunRecord, movable, unused_path
from attnlab.tasks import Example, Task, TaskData, UniformExamples, make_task, show_example, task_class

NO_TARGET = "░"  # shown for a token that is not learned
_Key = tuple[str, str, str, int, int]  # checksums of corpus and questions, kind, vocab_size, min_count


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
            held_out = corpora.load_questions(dev) if corpora.has_questions(dev, text=corpus is not None) else load(dev)
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
    if facts and not task_class(config.task).reads_questions:
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


def reads_running_text(config: RunConfig) -> bool:
    """Whether the task of a run reads running text, of any size."""
    return task_class(config.task).reads == "running text"


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
            f"resuming from step {trainer.at.step}"
            if trainer.at.step
            else "no checkpoint yet: training from the beginning"
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
        trainer.make_epoch()
        if ranks.first:
            settings = replace(config, model=trainer.model.config).to_dict()
            corpus, facts, dev = (data and movable(data, run.path) for data in sources.recorded)
            path = os.path.relpath(base.path, run.path) if base else None
            record = RunRecord(stage, settings, trainer.task.traits(), corpus, facts, path, dev)
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
    shared = f" in each of {ranks.world} processes" if ranks.world > 1 else ""
    show.line(
        f"{sum(p.numel() for p in model.parameters()):,} parameters, vocabulary {tokenizer.size:,},"
        f" threads {torch.get_num_threads()}{shared}, {config.train.precision} on {devices.describe(device)}"
    )
    for name in dict.fromkeys(config.model.mechanisms):
        if defect := registry.find("mechanism", name).defect:
            show.line(f"{name} is wrong on purpose, its loss is invalid: {defect}")
    for convention in conventions_of(model):
        show.line(convention)
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
        share = task.held_out()
        return DevSet(share) if share else None
    if (
        isinstance(dev, Corpus)
        and isinstance(sources.corpus, Corpus)
        and (known := set(dev.lines) & set(sources.corpus.lines))
    ):
        show.line(f"note: {len(known):,} of {len(dev.lines):,} held-out lines are in the training text too")
    if isinstance(dev, RunningText) and sources.corpus and dev.sha256 == sources.corpus.sha256:
        show.line("note: the held-out text is the training text")
    examples = make_task(config.task, TaskData(tokenizer, block, dev)).validation()
    if not examples:
        raise DataError(f"task '{config.task.name}' makes no examples from {sources.dev_source}: give other --dev data")
    return DevSet(examples)


# Before training


@dataclass(frozen=True)
class WordCounts:
    """Statistics of a corpus of sentences; `lengths` are the bars of a histogram of words per sentence."""

    sentences: int
    tokens: int
    distinct: int
    unknown_share: float
    lengths: tuple[LengthBar, ...]


@dataclass(frozen=True)
class ShownExample:
    """An example as texts: what is read and what is asked for; and the same as the row x, y of its batch."""

    input: str
    target: str
    x: str
    y: str


@dataclass(frozen=True)
class Preview:
    """What a task makes of the data."""

    documents: int
    characters: int
    symbols: int
    examples_per_epoch: int
    tokens_per_epoch: int
    examples: tuple[ShownExample, ...]
    words: WordCounts | None = None


def preview(config: RunConfig, corpus: str, facts: str | None, count: int) -> Preview:
    """Show what a task makes of the data: counts, and examples of the first epoch."""
    sources = Sources.read(corpus, facts, running=reads_running_text(config))
    text, tokenizer = sources.corpus, learn_tokenizer(config, sources)
    task = make_task(config.task, TaskData(tokenizer, config.model.block_size, text, sources.facts))
    examples, batches = make_epoch(task, config, 0)
    if isinstance(examples, UniformExamples):  # in random order already
        chosen = list(range(min(count, len(examples))))
    else:
        chosen = np.random.default_rng(config.seed).permutation(len(examples))[:count].tolist()
    lines = text.lines if isinstance(text, Corpus) else ()
    return Preview(
        documents=task.count_documents(text),
        characters=text.size if isinstance(text, RunningText) else sum(len(line) + 1 for line in lines),
        symbols=tokenizer.size,
        examples_per_epoch=len(examples),
        tokens_per_epoch=count_ids(examples),
        examples=tuple(_shown_example(examples, batches, index, tokenizer) for index in chosen),
        words=_word_counts(lines, tokenizer) if tokenizer.words else None,
    )


def _shown_example(
    examples: Sequence[Example], batches: Sequence[Sequence[int]], index: int, tokenizer: Tokenizer
) -> ShownExample:
    batch = next(batch for batch in batches if index in batch)
    rows = collate([examples[place] for place in batch], tokenizer.pad)
    ids, targets = (tensor[batch.index(index)].tolist() for tensor in rows)
    between = " " if tokenizer.words else ""
    y = between.join(
        between.join(NO_TARGET for _ in group) if ignored else tokenizer.decode(list(group))
        for ignored, group in groupby(targets, key=IGNORED.__eq__)
    )
    return ShownExample(*show_example(examples[index], tokenizer), tokenizer.decode(ids), y)


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
