"""The plan of a comparison: variants, seeds, data and the order of the runs, and its checks. Nothing is trained here."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar

import numpy as np
import torch

from attnlab import corpora
from attnlab.config import (
    RunConfig,
    Settings,
    Stage,
    TaskConfig,
    absolute_given,
    code_named_in,
    load_preset,
    merge,
    overlay,
)
from attnlab.corpora import Question
from attnlab.errors import UserError
from attnlab.lm import stages
from attnlab.lm.evaluate import encode_questions
from attnlab.lm.model import LanguageModel
from attnlab.lm.perplexity import PROBES
from attnlab.report.parts import StudyResult
from attnlab.store.runs import Run, lineage
from attnlab.studies import options as opt
from attnlab.studies.compare.variants import (
    Variant,
    from_runs,
    is_run,
    make_variants,
    read_values,
    refuse_other_text,
)
from attnlab.studies.options import MOST_SEEDS, about, default, seed_numbers
from attnlab.studies.study import Study, checksums_of_files
from attnlab.studies.workers import read_workers
from attnlab.tasks import task_class

T = TypeVar("T")
R = TypeVar("R", bound=StudyResult)

_PROSE_EPOCHS = 10.0  # the built-in prose is a twelfth of the corpus that nano-words is made for
_QUICK_EPOCHS = 2.0
_SEEDS, _QUICK_SEEDS = 5, 3
_FEW_WORDS = 97  # vocabulary of a model that is only tried out
_CHOOSING = 3  # one in so many sentences or questions is for choosing tuned settings
_FEW_DOCUMENTS = 20  # with fewer, sentences are taken one by one
_TUNING_SEED = 1000  # the first seed of tuning: not one of those that are judged


@dataclass(frozen=True)
class Tuned:
    """A setting that is tuned for every variant by itself, and the values to try."""

    setting: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Published:
    """Published figures of one variant, with their source."""

    name: str
    values: dict[str, float]
    source: str


@dataclass(frozen=True, kw_only=True)
class Grid(Study[R]):
    """Runs of several variants with several seeds each, measured on the same text or questions."""

    seeds: Annotated[opt.SeedNumbers, default("5; with --quick 3")] = ()
    corpus: opt.Corpus | None = None
    dev: opt.Hidden[str | None] = None
    facts: opt.Facts | None = None
    exam: Annotated[opt.Exam | None, about("Test questions with answers: a file, or people:dev.")] = None
    preset: Annotated[opt.Preset | None, default("that of the task")] = None
    config: opt.Config | None = None
    workers: opt.Workers = "0"
    given: opt.Hidden[Settings] = field(default_factory=dict)  # settings given as options
    variants: opt.Hidden[tuple[Variant, ...]] = ()
    runs: opt.Hidden[dict[str, str]] = field(default_factory=dict)  # finished runs to measure, by variant/seed

    sources: ClassVar[tuple[str, ...]] = ("corpus", "dev", "facts", "exam")

    @property
    def words(self) -> bool:
        """Whether perplexity on text is measured, not answers to questions."""
        return self.exam is None

    @property
    def probes(self) -> tuple[str, ...]:
        """Sentences to show with their losses."""
        return PROBES

    @cached_property
    def sentences(self) -> list[str]:
        """The sentences to measure."""
        assert self.dev is not None
        return list(self.data.corpus(self.dev).lines)

    @cached_property
    def questions(self) -> list[Question]:
        """The questions to ask."""
        assert self.exam is not None
        return list(self.data.questions(self.exam))

    @property
    def at_a_time(self) -> int:
        """How many runs are trained at a time on this machine; 0: a cluster decides."""
        return int(self.workers) if self.workers.isdigit() else 0

    def find(self, name: str) -> Variant:
        """The variant of this name."""
        return next(variant for variant in self.variants if variant.name == name)

    def path(self, folder: Path, name: str, seed: int) -> Path:
        """The folder of a run."""
        finished = self.runs.get(f"{name}/{seed}")
        return Path(finished) if finished else folder / self.find(name).folder / f"seed-{seed}"

    def measured(self, folder: Path, name: str, seed: int) -> Path:
        """The folder of the measurements of a run."""
        return folder / "measured" / self.find(name).folder / f"seed-{seed}"

    def order(self) -> list[tuple[str, int]]:
        """All runs in the order of their start: seed by seed, each seed starting with a different variant.

        If the machine gets slower or faster during a comparison, this affects all variants alike.
        """
        names = [variant.name for variant in self.variants]
        turned = [names[at % len(names) :] + names[: at % len(names)] for at in range(len(self.seeds))]
        return [(name, seed) for seed, row in zip(self.seeds, turned, strict=True) for name in row]

    def fingerprints(self) -> dict[str, str]:
        """Return checksums of everything that could change before a resume: data and the user's files."""
        sums = super().fingerprints()
        sums |= {name: self.data.corpus(name).sha256 for name in {variant.corpus for variant in self.variants} if name}
        files = [Path(variant.file) for variant in self.variants if variant.file]
        for variant in self.variants if not self.runs else ():
            named = code_named_in({"file": variant.file, "given": variant.given})
            files += [Path(name.rpartition(":")[0]).resolve() for name in named]
        return sums | checksums_of_files(list(dict.fromkeys(files)))


@dataclass(frozen=True, kw_only=True)
class Plan(Grid[Any]):
    """A comparison with everything needed to repeat it. The first variant is the reference."""

    task: Annotated[str | None, about("Task: words, recall, spans or questions."), default("that of the preset")] = None
    vary: Annotated[str | None, about("One setting with its values, such as train.lr=0.001,0.002.")] = None
    dev: opt.Dev | None = None
    probe: Annotated[
        tuple[str, ...], about("Sentence to show with its loss; repeatable."), default("four sentences")
    ] = ()
    all_pairs: Annotated[bool, about("Test every pair, not only each against the first.")] = False
    margin: Annotated[float | None, about("Test equivalence within this share, such as 0.01.")] = None
    tune: Annotated[tuple[str, ...], about("Setting to tune for each, such as train.lr=0.001,0.002; repeatable.")] = ()
    tune_on: Annotated[str | None, about("Data to choose tuned settings on."), default("a third of the dev data")] = (
        None
    )
    tune_seeds: Annotated[opt.Whole, about("Seeds per value tried.")] = 1
    hypothesis: Annotated[str, about("What you expect, stored before training."), default("a difference")] = ""
    names: opt.Hidden[tuple[str, ...]] = ()  # of variants, as the user gives them
    varied: opt.Hidden[str] = ""  # the setting in which variants differ
    started: opt.Hidden[str] = field(default_factory=lambda: date.today().isoformat())
    looks: opt.Hidden[tuple[tuple[int, ...], ...]] = ()  # seeds of each earlier result, after which seeds were added
    choosing: opt.Hidden[bool] = False  # whether these are trials, measured on the part for choosing tuned settings

    question: ClassVar[str] = ""
    headline: ClassVar[str] = ""
    usual: ClassVar[Settings] = {}  # settings that those of the user override

    @property
    def title(self) -> str:
        """The title of the report."""
        run = next(iter(self.runs.values()), None)
        settings = stages.stored_config(Run.open(run)) if run else self.variants[0].settings(0)
        names = ", ".join(variant.name for variant in self.variants)
        return self.headline or f"{names}: which is better at {settings.task.name}?"

    def published(self) -> tuple[Published, ...]:
        """Return published figures of the same experiment."""
        return ()

    @property
    def probes(self) -> tuple[str, ...]:
        """Sentences to show with their losses."""
        return self.probe or PROBES

    @property
    def part(self) -> Literal["all", "choosing", "judging"]:
        """The part of the held-out data that is measured."""
        if self.choosing:
            return "choosing"
        return "judging" if self.tune and not self.tune_on else "all"

    @cached_property
    def tuned(self) -> tuple[Tuned, ...]:
        """The settings to tune for every variant by itself."""
        return _read_tuned(self.tune, self.varied)

    @cached_property
    def sentences(self) -> list[str]:
        """The sentences to measure."""
        assert self.dev is not None
        return self._of_part(self.data.corpus(self.dev).lines)

    @cached_property
    def questions(self) -> list[Question]:
        """The questions to ask."""
        assert self.exam is not None
        return self._of_part(self.data.questions(self.exam))

    @cached_property
    def clusters(self) -> tuple[int, ...] | None:
        """A number per item that sentences of one document, or questions about one person, share; None: all are alone."""
        numbers = self._of_part(self._all_clusters)
        return tuple(numbers) if len(set(numbers)) < len(numbers) else None

    @property
    def few_documents(self) -> str:
        """A note if the sentences belong to so few documents that they are taken one by one."""
        documents = set(self.data.corpus(self.dev).documents or ()) if self.dev and not self.exam else set()
        if not 0 < len(documents) < _FEW_DOCUMENTS:
            return ""
        return (
            f"The held-out text has {len(documents)} documents, too few to be compared as such: its sentences are taken as"
            " independent, so that p is too small if those of one document are alike."
        )

    @cached_property
    def _all_clusters(self) -> list[int]:
        if self.exam is None:
            assert self.dev is not None
            corpus = self.data.corpus(self.dev)
            documents = corpus.documents if corpus.documents and len(set(corpus.documents)) >= _FEW_DOCUMENTS else None
            return list(documents or range(len(corpus.lines)))
        about = self.data.corpus(self.corpus) if self.corpus else None
        subjects: dict[object, int] = {}
        numbers = []
        for item in self.data.questions(self.exam):
            matches = corpora.documents_about(about, item.question) if about else []
            numbers.append(subjects.setdefault(matches[0] if matches else item.question, len(subjects)))
        return numbers

    def _of_part(self, items: Sequence[T]) -> list[T]:
        """The items of this part; a cluster is in one part as a whole."""
        if self.part == "all":
            return list(items)
        groups = np.unique(self._all_clusters)
        chosen = np.random.default_rng(0).permutation(groups)[: max(1, len(groups) // _CHOOSING)]
        choosing = np.isin(self._all_clusters, chosen)
        return [item for item, side in zip(items, choosing, strict=True) if side == (self.part == "choosing")]

    def compared(self) -> list[tuple[str, str]]:
        """The pairs that are tested: each variant with the first, or each with each."""
        names = [variant.name for variant in self.variants]
        if self.all_pairs:
            return [(b, a) for at, a in enumerate(names) for b in names[at + 1 :]]
        return [(name, names[0]) for name in names[1:]]

    def with_absolute_paths(self) -> Self:
        """Return the plan with paths that are valid in any folder."""
        return replace(super().with_absolute_paths(), tune_on=stages.absolute(self.tune_on) if self.tune_on else None)

    def fingerprints(self) -> dict[str, str]:
        """Return checksums of data and files, with the data for tuning."""
        sums = super().fingerprints()
        if self.tune_on:
            (sums["tune_on"],) = self.data.checksums({"dev" if self.words else "exam": self.tune_on}).values()
        return sums

    def completed(self) -> Self:
        """Resolve the names of variants to settings, and fill in the defaults that depend on other options."""
        if self.variants:
            return self
        if self.margin is not None and not 0 < self.margin < 1:
            raise UserError(f"--margin is a share between 0 and 1, such as 0.01 for one per cent, not {self.margin:g}")
        if any(map(is_run, self.names)):
            return self._of_finished_runs()
        usual = task_class(TaskConfig(self.task)).preset if self.task else "small"
        preset = self.preset or ("quick" if self.quick and usual == "small" else usual)
        chosen = overlay(load_preset(preset), {"task": {"name": self.task}})["task"] if self.task else {}
        settings = merge({"task": chosen} if chosen else {}, merge(self.usual, self.given))
        variants, varied = make_variants(self.names, self.vary, preset, self.config, settings)
        for variant in variants:
            _refuse_running_text(variant.settings(0))
        plan = self._with_data(variants[0].settings(0).task)
        if plan.words:
            refuse_other_text(varied)
        elif self.probe:
            raise UserError("--probe is for task words: sentences are measured there")
        if plan.corpus == "prose:train":
            epochs = _QUICK_EPOCHS if self.quick else _PROSE_EPOCHS
            variants = tuple(variant.with_default("train", "epochs", epochs) for variant in variants)
        seeds = self.seeds or seed_numbers(_QUICK_SEEDS if self.quick else _SEEDS)
        tuned = _read_tuned(self.tune, varied)
        if tuned and not 1 <= self.tune_seeds <= MOST_SEEDS:
            raise UserError(f"--tune-seeds must be a number from 1 to {MOST_SEEDS}, not {self.tune_seeds}")
        if (self.tune_on or self.tune_seeds != 1) and not tuned:
            raise UserError("--tune-on and --tune-seeds need --tune: add settings, such as --tune train.lr=0.001,0.002")
        trials = len(variants) * self.tune_seeds * math.prod(len(setting.values) for setting in tuned) if tuned else 0
        threads = max(variant.settings(0).train.threads or 1 for variant in variants)
        workers = read_workers(self.workers, threads, max(len(variants) * len(seeds), trials))
        return replace(
            plan,
            names=(),
            given=absolute_given(self.given) if self.given else {},
            config=self.config.resolve() if self.config else None,
            variants=variants,
            varied=varied,
            seeds=seeds,
            workers=str(workers),
        )

    def _with_data(self, task: TaskConfig) -> Self:
        """The plan with built-in data if none is named."""
        named = (self.corpus, self.dev, self.facts, self.exam)
        if self.quick and any(named):
            raise UserError("--quick is for built-in data: with your own, use less of it, or fewer --train.epochs")
        if task_class(task).tested == "sentences":
            if self.facts or self.exam:
                raise UserError(f"task {task.name} measures text: give --corpus and --dev, and no --facts or --exam")
            if (self.corpus is None) != (self.dev is None):
                raise UserError("--corpus and --dev go together: training text, and other text to measure on")
            return self if self.corpus else replace(self, corpus="prose:train", dev="prose:dev")
        if self.dev:
            raise UserError(f"task {task.name} is examined with questions: give --exam instead of --dev")
        if self.corpus and self.facts and self.exam:
            return self
        if any(named):
            raise UserError("--corpus, --facts and --exam go together: give all three, or none for the built-in people")
        world = "people:300" if self.quick else "people"
        return replace(self, corpus=world, facts=f"{world}:train", exam=f"{world}:dev")

    def _of_finished_runs(self) -> Self:
        """The comparison of finished runs, with the data that they were trained on."""
        extra = [name for name in ("task", "vary", "preset", "config", "seeds", "quick", "tune") if getattr(self, name)]
        if extra := [*extra, *self.given]:
            raise UserError(f"finished runs are compared as they are: leave out {', '.join(extra)}")
        if other := next((name for name in self.names if not is_run(name)), None):
            raise UserError(
                f"{other} is not a run, and finished runs are compared with finished runs only: name its folder"
            )
        variants, varied, seeds, runs = from_runs(self.names)
        first = Run.open(self.names[0])
        _refuse_running_text(stages.stored_config(first))
        words, corpus = first.record.task.tested == "sentences", _corpus_of(first)
        held_out = self.dev if words else self.exam
        if words:
            refuse_other_text(varied)
        if held_out is None:
            if corpus is None or not corpora.is_built_in(corpus) or (words and not corpus.endswith(":train")):
                raise UserError(
                    "name what to measure the runs on: --dev FILE with other sentences, or --exam FILE with questions"
                )
            held_out = f"{corpus.removesuffix(':train')}:dev"
        facts = first.record.facts.source if first.record.facts else None
        return replace(
            self,
            names=(),
            variants=variants,
            varied=varied,
            seeds=seeds,
            runs=runs,
            corpus=corpus,
            workers=str(read_workers(self.workers)),
            dev=held_out if words else None,
            facts=None if words else facts,
            exam=None if words else held_out,
        )

    def check(self) -> None:
        """Find errors before training: settings of every variant and stage, data, questions that are too long."""
        sources = self.data.sources(self.corpus, self.facts)
        exam = self.questions if self.exam else []
        if self.exam and any(item.answer is None for item in exam):
            raise UserError(f"{self.exam} has questions without answers: a comparison needs them all")
        seen, asked = seen_before(self)
        if seen == asked:
            raise UserError(
                f"all of {self.dev or self.exam} is in the training data: measure on other text or questions"
            )
        if not (self.sentences if self.words else self.questions):
            raise UserError(
                f"{self.dev or self.exam} is too small to choose on one part and judge on another: use --tune-on"
            )
        if self.runs:
            return
        if self.tune:
            choosing = tuning_plan(self)
            shared = set(choosing.sentences) & set(self.sentences) if self.words else _asked(choosing) & _asked(self)
            if shared:
                raise UserError(
                    f"{len(shared):,} of the sentences or questions to choose on are those of the verdict: give other data to"
                    " --tune-on"
                )
            choosing.check()
        config = self.variants[0].settings(self.seeds[0])
        tokenizer = stages.learn_tokenizer(config, sources)
        encode_questions(tokenizer, (item.question for item in exam), config.model.block_size)
        for variant in self.variants:
            for stage in stages_of(variant, self):
                stages.check_settings(variant.settings(self.seeds[0], stage), sources, tokenizer)
            try_once(variant, self.seeds[0])


def _read_tuned(texts: Sequence[str], varied: str) -> tuple[Tuned, ...]:
    """The settings to tune, from SETTING=VALUE,VALUE,..."""
    tuned = tuple(Tuned(*read_values("--tune", text)) for text in texts)
    for choice in tuned:
        if len(set(choice.values)) < 2 or len(set(choice.values)) < len(choice.values):
            raise UserError(f"--tune {choice.setting} needs at least two different values, such as 0.001,0.002")
        if choice.setting == varied:
            raise UserError(f"{varied} is what is compared: tune another setting")
        if choice.setting.startswith(("task.", "tokenizer.", "model.vocab_size", "train.order_seed")):
            raise UserError(f"{choice.setting} changes the data, not how they are learned: tune another setting")
    if len({choice.setting for choice in tuned}) < len(tuned):
        raise UserError("--tune names a setting twice: give all its values at once")
    return tuned


def trials_of(plan: Plan) -> list[tuple[Variant, dict[str, Any], Variant]]:
    """The trials of tuning: a variant, the values tried, and the variant with these values."""
    settings = [tuned.setting for tuned in plan.tuned]
    tried = itertools.product(*(tuned.values for tuned in plan.tuned))
    trials = []
    for values in (dict(zip(settings, point, strict=True)) for point in tried):
        for variant in plan.variants:
            name = ", ".join([variant.name, *(f"{key}={value}" for key, value in values.items())])
            trials.append((variant, values, variant.with_settings(name, values)))
    return trials


def tuning_plan(plan: Plan) -> Plan:
    """The trials of a comparison as a plan, with other seeds and other data than those that are judged."""
    dev, exam = plan.dev, plan.exam
    if plan.tune_on:
        dev, exam = (plan.tune_on, None) if plan.words else (None, plan.tune_on)
    free = (seed for seed in itertools.count(_TUNING_SEED) if seed not in plan.seeds)
    return replace(
        plan,
        dev=dev,
        exam=exam,
        choosing=not plan.tune_on,
        variants=tuple(trial for _, _, trial in trials_of(plan)),
        seeds=tuple(itertools.islice(free, plan.tune_seeds)),
        tune=(),
        tune_on=None,
    )


def _refuse_running_text(config: RunConfig) -> None:
    """Refuse a task that reads running text: a comparison counts losses of sentences, or answers."""
    if stages.reads_running_text(config):
        raise UserError(
            f"a comparison measures sentences or answers, and task {config.task.name} reads running text:"
            " use --task words, with one sentence per line"
        )


def _corpus_of(run: Run) -> str | None:
    """The text that a run was trained on, or else the run it was fine-tuned from; None if there is none, or running text."""
    for ancestor in lineage(run):
        if ancestor.record.corpus:
            return None if ancestor.record.running_text else ancestor.record.corpus.source
    return None


def stages_of(variant: Variant, plan: Grid[Any]) -> tuple[Stage, ...]:
    """The training stages of a variant: fine-tuning only if questions are asked that its pretraining does not read."""
    if variant.steps:
        return variant.steps
    reads = task_class(variant.settings(plan.seeds[0]).task).reads_questions
    return ("pretrain",) if plan.words or reads else ("pretrain", "finetune")


def _asked(plan: Plan) -> set[str]:
    return {item.question for item in plan.questions}


def try_once(variant: Variant, seed: int) -> None:
    """Let a variant's model read two words, so that a class that cannot is found before training."""
    model = small_model(variant, seed)
    try:
        with torch.no_grad():
            model(torch.zeros(1, 2, dtype=torch.long))
    except Exception as error:  # whatever a user's class may raise
        raise UserError(
            f"{variant.name} cannot read a text: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from None


def small_model(variant: Variant, seed: int) -> LanguageModel:
    """A fresh model of a variant with a small vocabulary, for checks that do not depend on it."""
    config = variant.settings(seed).model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LanguageModel(replace(config, vocab_size=_FEW_WORDS, zero_init=False))


def seen_before(plan: Plan) -> tuple[int, int]:
    """How many of the measured sentences or questions are in the training data, and how many there are."""
    data = plan.data
    if plan.words:
        known = set(data.corpus(plan.corpus).lines) if plan.corpus else set()
        measured = plan.sentences
    else:
        known = {item.question for item in data.questions(plan.facts)} if plan.facts else set()
        measured = [item.question for item in plan.questions]
    return sum(item in known for item in measured), len(measured)
