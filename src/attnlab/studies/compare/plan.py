"""The plan of a comparison: variants, seeds, data and the order of the runs, and its checks. Nothing is trained here.

A Grid is what other studies share that train several variants with several seeds; a Plan is a comparison.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal, Self, TypeVar, cast

import numpy as np

from attnlab import corpora
from attnlab.config import (
    RunConfig,
    Settings,
    Stage,
    TaskConfig,
    absolute_given,
    diff,
    load_preset,
    merge,
    overlay,
)
from attnlab.corpora import Question
from attnlab.errors import ConfigError, UserError
from attnlab.lm import stages
from attnlab.lm.tokenizers import Tokenizer
from attnlab.report.parts import StudyResult
from attnlab.store import records
from attnlab.store.folders import is_written
from attnlab.store.runs import Run, lineage
from attnlab.studies import options as opt
from attnlab.studies.compare.variants import (
    OTHER_TEXT,
    Tuned,
    Tuning,
    Variant,
    from_runs,
    is_run,
    make_variants,
    read_values,
)
from attnlab.studies.options import MOST_SEEDS, about, default, seed_numbers
from attnlab.studies.study import Study, checksums_of_files, files_named_in
from attnlab.studies.training import check_training
from attnlab.studies.workers import read_workers
from attnlab.tasks import task_class

T = TypeVar("T")
R = TypeVar("R", bound=StudyResult)

ALPHA = 0.05  # error probability over all pairs
_PROSE_EPOCHS = 10.0  # the built-in prose is a twelfth of the corpus that nano-words is made for
_QUICK_EPOCHS = 2.0
_QUICK_WORLDS = {"people": "people:300", "stories": "stories:1000", "addition": "addition:2"}
_SEEDS, _QUICK_SEEDS = 5, 3
_CHOOSING = 3  # one in so many sentences or questions is for choosing tuned settings
TUNING, DIVERGED = "tuning.json", "diverged.json"
_BLOCK = "model.block_size"
_TUNING_SEED = 1000  # the first seed of tuning: not one of those that are judged


@dataclass(frozen=True, kw_only=True)
class Grid(Study[R]):
    """Runs of several variants with several seeds each, measured on the same text or questions."""

    seeds: Annotated[opt.SeedNumbers, default("5; with --quick 3")] = ()
    corpus: opt.Corpus | None = None
    dev: opt.Hidden[str | None] = None
    probe: opt.Hidden[tuple[str, ...]] = ()  # sentences to show with their losses; none: the usual ones
    lengths: opt.Hidden[tuple[int, ...]] = ()  # of longer contexts to measure, as multiples of the block
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

    @cached_property
    def sentences(self) -> list[str]:
        """The sentences to measure."""
        assert self.dev is not None
        return self.of_part(self.data.corpus(self.dev).lines)

    @cached_property
    def questions(self) -> list[Question]:
        """The questions to ask."""
        assert self.exam is not None
        return self.of_part(self.data.questions(self.exam))

    def of_part(self, items: Sequence[T]) -> list[T]:
        """The items of the held-out data that are measured."""
        return list(items)

    @property
    def validated(self) -> bool:
        """Whether runs are validated on the measured sentences, so that the best checkpoint is kept."""
        return False

    @property
    def at_a_time(self) -> int:
        """How many runs are trained at a time on this machine; 0: a cluster decides."""
        return int(self.workers) if self.workers.isdigit() else 0

    def find(self, name: str) -> Variant:
        """The variant of this name."""
        return next(variant for variant in self.variants if variant.name == name)

    def stages(self, variant: Variant) -> tuple[Stage, ...]:
        """The training stages of a variant: fine-tuning only if questions are asked that its pretraining does not read."""
        if variant.steps:
            return variant.steps
        reads = task_class(variant.settings(self.seeds[0]).task).reads_questions
        return ("pretrain",) if self.words or reads else ("pretrain", "finetune")

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

    def check(self) -> None:
        """Find errors before training: settings of every variant and stage, questions that are too long."""
        for variant in self.variants:
            settings = [variant.settings(self.seeds[0], stage) for stage in self.stages(variant)]
            running = stages.reads_running_text(settings[0])
            sources = self.data.sources(variant.corpus or self.corpus, self.facts, running=running)
            check_training(settings, sources, self.questions if self.exam else ())
            variant.try_once(self.seeds[0])

    def as_trained(self, folder: Path) -> Self:
        """Return the plan with what was decided after the study began, such as tuned settings."""
        return self

    def diverged(self, folder: Path) -> dict[str, str]:
        """The runs that diverged, as variant/seed, with the reasons."""
        return records.read(dict[str, str], folder / DIVERGED) if is_written(folder / DIVERGED) else {}

    def refuse_other_runs(self, folder: Path) -> None:
        """Refuse runs whose stages or settings are not those of their variant and seed: they were moved or changed.

        Finished runs that the user names have settings of their own.
        """
        lost = self.diverged(folder)
        for name, seed in () if self.runs else self.order():
            if f"{name}/{seed}" in lost:
                continue
            variant, runs = self.find(name), lineage(Run.open(self.path(folder, name, seed)))
            steps = tuple(run.record.stage for run in reversed(runs))
            differences = set() if steps == self.stages(variant) else {"stages"}
            for run in runs:
                settings = variant.settings(seed, cast(Stage, run.record.stage))
                # The vocabulary may follow from the text, and the number of threads from the machine.
                chosen = {"model.vocab_size"} if settings.train.threads else {"model.vocab_size", "train.threads"}
                differences |= diff(stages.stored_config(run), settings).keys() - chosen
            if differences:
                raise UserError(
                    f"{runs[0].path} is not the run of {name} with seed {seed}: it differs in"
                    f" {', '.join(sorted(differences))}; remove it with its earlier stages and resume"
                )

    def fingerprints(self) -> dict[str, str]:
        """Return checksums of everything that could change before a resume: data and the user's files."""
        sums = super().fingerprints()
        sums |= {name: self.data.corpus(name).sha256 for name in {variant.corpus for variant in self.variants} if name}
        files = [path for variant in self.variants for path in files_named_in(variant.file, variant.given)]
        return sums | checksums_of_files(list(dict.fromkeys(files)))


@dataclass(frozen=True, kw_only=True)
class Plan(Grid[Any]):
    """A comparison with everything needed to repeat it. The first variant is the reference."""

    task: Annotated[str | None, about("Task: words, text, recall, addition ..."), default("that of the preset")] = None
    vary: Annotated[str | None, about("One setting with its values, such as train.lr=0.001,0.002.")] = None
    dev: opt.Dev | None = None
    probe: opt.Probe = ()
    lengths: Annotated[opt.Numbers, about("Also read running text so many blocks long: 2,4,8."), default("none")] = ()
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
    source: ClassVar[str] = ""  # of published figures
    usual: ClassVar[Settings] = {}  # settings that those of the user override

    @property
    def varied_settings(self) -> tuple[str, ...]:
        """The settings in which variants differ."""
        return tuple(self.varied.split(","))

    @property
    def title(self) -> str:
        """The title of the report."""
        run = next(iter(self.runs.values()), None)
        settings = stages.stored_config(Run.open(run)) if run else self.variants[0].settings(0)
        names = ", ".join(variant.name for variant in self.variants)
        return self.headline or f"{names}: which is better at {settings.task.name}?"

    def published(self) -> dict[str, dict[str, float]]:
        """Return published figures of the same experiment, by variant."""
        return {}

    def compared(self) -> list[tuple[str, str]]:
        """The pairs that are tested: each variant with the first, or each with each."""
        pairs = itertools.combinations([variant.name for variant in self.variants], 2)
        return [(b, a) for a, b in pairs if self.all_pairs or a == self.variants[0].name]

    # The data that is measured

    @property
    def items(self) -> list[str]:
        """What is measured, as texts: the sentences, or the questions without their answers."""
        return self.sentences if self.words else [item.question for item in self.questions]

    @property
    def noun(self) -> str:
        """What the items are called."""
        return "sentences" if self.words else "questions"

    @property
    def seen_before(self) -> int:
        """How many of the items are in the training data."""
        if self.words:
            known = set(self.data.corpus(self.corpus).lines) if self.corpus else set()
        else:
            known = {item.question for item in self.data.questions(self.facts)} if self.facts else set()
        return sum(item in known for item in self.items)

    @cached_property
    def clusters(self) -> tuple[int, ...] | None:
        """A number per item that sentences of one document, or questions about one person, share; None: all are alone."""
        numbers = self.of_part(self._all_clusters)
        return tuple(numbers) if len(set(numbers)) < len(numbers) else None

    @cached_property
    def _all_clusters(self) -> list[int]:
        if self.exam is None:
            assert self.dev is not None
            corpus = self.data.corpus(self.dev)
            return list(corpus.documents or range(len(corpus.lines)))
        about = self.data.corpus(self.corpus) if self.corpus else None
        subjects: dict[object, int] = {}
        numbers = []
        for item in self.data.questions(self.exam):
            matches = corpora.documents_about(about, item.question) if about else []
            numbers.append(subjects.setdefault(matches[0] if matches else item.question, len(subjects)))
        return numbers

    @property
    def part(self) -> Literal["all", "choosing", "judging"]:
        """The part of the held-out data that is measured."""
        if self.choosing:
            return "choosing"
        return "judging" if self.tune and not self.tune_on else "all"

    @property
    def validated(self) -> bool:
        """Not where settings are tuned on another part of the held-out text: neither part may tell about the other."""
        return self.words and self.part == "all"

    def of_part(self, items: Sequence[T]) -> list[T]:
        """The items of this part; a cluster is in one part as a whole."""
        if self.part == "all":
            return list(items)
        groups = np.unique(self._all_clusters)
        chosen = np.random.default_rng(0).permutation(groups)[: max(1, len(groups) // _CHOOSING)]
        choosing = np.isin(self._all_clusters, chosen)
        return [item for item, side in zip(items, choosing, strict=True) if side == (self.part == "choosing")]

    # Tuning

    @cached_property
    def tuned(self) -> tuple[Tuned, ...]:
        """The settings to tune for every variant by itself."""
        tuned = tuple(Tuned(*read_values("--tune", text)) for text in self.tune)
        for choice in tuned:
            if len(set(choice.values)) < max(2, len(choice.values)):
                raise UserError(f"--tune {choice.setting} needs at least two different values, such as 0.001,0.002")
            if choice.setting in self.varied_settings:
                raise UserError(f"{choice.setting} is what is compared: tune another setting")
            if choice.setting.startswith((*OTHER_TEXT, "train.order_seed")):
                raise UserError(f"{choice.setting} changes the data, not how they are learned: tune another setting")
        if len({choice.setting for choice in tuned}) < len(tuned):
            raise UserError("--tune names a setting twice: give all its values at once")
        return tuned

    def trials(self) -> list[tuple[Variant, dict[str, Any], Variant]]:
        """The trials of tuning: a variant, the values tried, and the variant with these values."""
        trials = []
        for point in itertools.product(*(tuned.values for tuned in self.tuned)):
            values = {tuned.setting: value for tuned, value in zip(self.tuned, point, strict=True)}
            for variant in self.variants:
                name = ", ".join([variant.name, *(f"{key}={value}" for key, value in values.items())])
                trials.append((variant, values, variant.with_settings(name, values)))
        return trials

    def tuning_plan(self) -> Self:
        """The trials as a plan, with other seeds and other data than those that are judged."""
        held_out: dict[str, Any] = {"dev" if self.words else "exam": self.tune_on} if self.tune_on else {}
        free = (seed for seed in itertools.count(_TUNING_SEED) if seed not in self.seeds)
        return replace(
            self,
            **held_out,
            choosing=not self.tune_on,
            variants=tuple(trial for _, _, trial in self.trials()),
            seeds=tuple(itertools.islice(free, self.tune_seeds)),
            lengths=(),
            tune=(),
            tune_on=None,
        )

    def choice(self, folder: Path) -> Tuning | None:
        """The stored choice; None if nothing is tuned, or not yet."""
        return records.read(Tuning, folder / TUNING) if self.tune and is_written(folder / TUNING) else None

    def as_trained(self, folder: Path) -> Self:
        """Return the plan with the values chosen for every variant."""
        tuning = self.choice(folder)
        if tuning is None:
            return self
        chosen = (variant.with_settings(variant.name, tuning.chosen[variant.name]) for variant in self.variants)
        return replace(self, variants=tuple(chosen))

    # Starting

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
        if self.task and task_class(TaskConfig(self.task)).reads == "running text":
            settings = merge({"task": {"options": {"documents": "lines"}}}, settings)
        variants, varied = self.make_variants(preset, settings)
        _refuse_other_text([variant.settings(0) for variant in variants], varied.split(","))
        plan = self._with_data(variants[0].settings(0).task)
        if self.probe and not plan.words:
            raise UserError("--probe is for tasks words and text: sentences are measured there")
        if plan.corpus == "prose:train":
            epochs = _QUICK_EPOCHS if self.quick else _PROSE_EPOCHS
            variants = tuple(variant.with_default("train", "epochs", epochs) for variant in variants)
        plan = replace(
            plan,
            names=(),
            given=absolute_given(self.given) if self.given else {},
            config=self.config.resolve() if self.config else None,
            variants=variants,
            varied=varied,
            seeds=self.seeds or seed_numbers(_QUICK_SEEDS if self.quick else _SEEDS),
        )
        if plan.tuned and not 1 <= self.tune_seeds <= MOST_SEEDS:
            raise UserError(f"--tune-seeds must be a number from 1 to {MOST_SEEDS}, not {self.tune_seeds}")
        if (self.tune_on or self.tune_seeds != 1) and not plan.tuned:
            raise UserError("--tune-on and --tune-seeds need --tune: add settings, such as --tune train.lr=0.001,0.002")
        threads = max(variant.settings(0).train.threads or 1 for variant in variants)
        trials = len(plan.trials()) * self.tune_seeds if plan.tuned else 0
        return replace(plan, workers=str(read_workers(self.workers, threads, max(len(plan.order()), trials))))

    def make_variants(self, preset: str, settings: Settings) -> tuple[tuple[Variant, ...], str]:
        """Return the variants, and the setting in which they differ."""
        return make_variants(self.names, self.vary, preset, self.config, settings)

    def _with_data(self, task: TaskConfig) -> Self:
        """The plan with built-in data if none is named."""
        named = (self.corpus, self.dev, self.facts, self.exam)
        if self.quick and any(named):
            raise UserError("--quick is for built-in data: with your own, use less of it, or fewer --train.epochs")
        built_in = task_class(task).built_in
        world = _QUICK_WORLDS.get(built_in, built_in) if self.quick else built_in
        if task_class(task).tested != "answers":
            if self.facts or self.exam:
                raise UserError(f"task {task.name} measures text: give --corpus and --dev, and no --facts or --exam")
            if (self.corpus is None) != (self.dev is None):
                raise UserError("--corpus and --dev go together: training text, and other text to measure on")
            return self if self.corpus else replace(self, corpus=f"{world}:train", dev=f"{world}:dev")
        if self.dev:
            raise UserError(f"task {task.name} is examined with questions: give --exam instead of --dev")
        if self.corpus and self.facts and self.exam:
            return self
        if any(named):
            raise UserError("--corpus, --facts and --exam go together: give all three, or none for built-in data")
        return replace(self, corpus=corpora.training_text(world), facts=f"{world}:train", exam=f"{world}:dev")

    def _of_finished_runs(self) -> Self:
        """The comparison of finished runs, with the data that they were trained on."""
        extra = [name for name in ("task", "vary", "preset", "config", "seeds", "quick", "tune") if getattr(self, name)]
        if extra := [*extra, *self.given]:
            raise UserError(f"finished runs are compared as they are: leave out {', '.join(extra)}")
        if other := next((name for name in self.names if not is_run(name)), None):
            raise UserError(
                f"{other} is not a run, and finished runs are compared with finished runs only: name its folder"
            )
        opened = [Run.open(name) for name in self.names]
        varied, runs = from_runs(opened)
        first, corpus = opened[0], _corpus_of(opened[0])
        _refuse_other_text([stages.stored_config(first)], [varied])
        words = first.record.task.tested != "answers"
        held_out = self.dev if words else self.exam
        if held_out is None:
            if corpus is None or not corpora.is_built_in(corpus) or (words and not corpus.endswith(":train")):
                raise UserError(
                    "name what to measure the runs on: --dev FILE with other sentences, or --exam FILE with questions"
                )
            held_out = f"{corpus.removesuffix(':train')}:dev"
        facts = first.record.facts.source if first.record.facts else None
        names, seeds = (list(dict.fromkeys(part)) for part in zip(*runs, strict=True))
        if lacking := [f"{name} with seed {seed}" for name in names for seed in seeds if (name, seed) not in runs]:
            raise UserError(f"no run of {', '.join(lacking)}: every variant needs the same seeds")
        return replace(
            self,
            names=(),
            variants=tuple(map(Variant, names)),
            varied=varied,
            seeds=tuple(sorted(seeds)),
            runs={f"{name}/{seed}": str(path.resolve()) for (name, seed), path in runs.items()},
            corpus=corpus,
            workers=str(read_workers(self.workers)),
            dev=held_out if words else None,
            facts=None if words else facts,
            exam=None if words else held_out,
        )

    def check(self) -> None:
        """Find errors before training: settings of every variant and stage, data, questions that are too long."""
        if self.lengths:
            self._check_lengths()
        if self.exam and any(item.answer is None for item in self.questions):
            raise UserError(f"{self.exam} has questions without answers: a comparison needs them all")
        held_out = self.dev or self.exam
        if not self.items:
            raise UserError(f"{held_out} is too small to choose on one part and judge on another: use --tune-on")
        if self.seen_before == len(self.items):
            raise UserError(f"all of {held_out} is in the training data: measure on other text or questions")
        if self.runs:
            return
        if self.tune:
            choosing = self.tuning_plan()
            if shared := set(choosing.items) & set(self.items):
                raise UserError(
                    f"{len(shared):,} of the {self.noun} to choose on are those of the verdict: give other data to --tune-on"
                )
            choosing.check()
        super().check()

    def _check_lengths(self) -> None:
        """Refuse lengths of what is not running text, of blocks that differ, and that no measured document has."""
        opt.require_distinct("lengths", self.lengths)
        if max(self.lengths) < 2:
            raise UserError("--lengths are multiples of the block: give one above 1, such as 2,4,8")
        run = Run.open(next(iter(self.runs.values()))) if self.runs else None
        config = stages.stored_config(run) if run else self.variants[0].settings(self.seeds[0])
        if not stages.reads_running_text(config):
            raise UserError(f"--lengths is for running text, not for task {config.task.name}: use --task text")
        if _BLOCK in (*self.varied_settings, *(tuned.setting for tuned in self.tuned)):
            raise UserError(f"--lengths are multiples of the block, so {_BLOCK} must be the same: vary another setting")
        if run:
            tokenizer = Tokenizer.load(run.model / "tokenizer.json")
        else:
            tokenizer = stages.learn_tokenizer(config, self.data.sources(self.corpus, None, running=True))
        block, longest = config.model.block_size, max(len(tokenizer.encode(line)) + 1 for line in self.sentences)
        if longest <= block * max(self.lengths):
            raise UserError(
                f"--lengths {','.join(map(str, self.lengths))}: the longest document of {self.dev} has {longest:,} tokens, and"
                f" {max(self.lengths)} blocks are {block * max(self.lengths):,}: give smaller lengths or longer documents"
            )


def _refuse_other_text(configs: Sequence[RunConfig], varied: Sequence[str]) -> None:
    """Refuse running text whose lines are no documents, and perplexities of different texts."""
    if task_class(configs[0].task).tested == "answers":
        return
    for config in configs:
        if stages.reads_running_text(config) and config.task.options.get("documents") != "lines":
            raise UserError(
                "a comparison measures every line by itself, so in running text each must be a document: set"
                " --task.options.documents lines, or use --task words"
            )
    if other := next((name for name in varied if name.startswith(OTHER_TEXT)), None):
        raise ConfigError(
            f"{other} changes what is predicted, and perplexities of different texts cannot be compared: vary another setting"
        )


def _corpus_of(run: Run) -> str | None:
    """The text that a run was trained on, or else the run it was fine-tuned from; None if there is none, or it has no lines."""
    for ancestor in lineage(run):
        if ancestor.record.corpus:
            by_line = stages.stored_config(ancestor).task.options.get("documents") == "lines"
            return ancestor.record.corpus.source if by_line or not ancestor.record.running_text else None
    return None
