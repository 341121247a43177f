"""The plan of a comparison: variants, seeds, data and the order of the runs, and its checks. Nothing is trained here."""

from __future__ import annotations

import inspect
import itertools
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch

from attnlab import corpora
from attnlab.config import RunConfig, Settings, Stage, TaskConfig, load_preset, merge, overlay, require_seed, shortened
from attnlab.corpora import Question
from attnlab.errors import UserError, unknown
from attnlab.lm import stages
from attnlab.lm.evaluate import encode_questions
from attnlab.lm.model import LanguageModel
from attnlab.lm.perplexity import PROBES
from attnlab.store import usercode
from attnlab.store.runs import Run, lineage
from attnlab.studies.compare.variants import (
    Variant,
    from_runs,
    is_run,
    make_variants,
    read_values,
    refuse_other_text,
)
from attnlab.studies.legacy import Datasets, all_or_none, sums_of_files
from attnlab.studies.workers import read_workers
from attnlab.tasks import task_class

T = TypeVar("T")

_PROSE_EPOCHS = 10.0  # the built-in prose is a twelfth of the corpus that nano-words is made for
_QUICK_EPOCHS = 2.0
_SEEDS, _QUICK_SEEDS = 5, 3
_MOST_SEEDS = 1000
_FEW_WORDS = 97  # vocabulary of a model that is only tried out
# Fields of a plan that make_plan passes on.
_MORE = ("probes", "all_pairs", "study", "title", "question", "command", "published", "margin", "hypothesis")
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


@dataclass(frozen=True)
class Plan:
    """A comparison with everything needed to repeat it. The first variant is the reference."""

    variants: tuple[Variant, ...]
    varied: str
    seeds: tuple[int, ...] = (0, 1, 2)
    corpus: str | None = None
    dev: str | None = None
    facts: str | None = None
    exam: str | None = None
    probes: tuple[str, ...] = PROBES
    workers: int | str = 1  # runs at a time, or a cluster: read_workers
    all_pairs: bool = False
    study: str = "compare"
    title: str = ""
    question: str = ""
    command: str = "attnlab compare"
    quick: bool = False
    published: tuple[Published, ...] = ()  # figures of the same experiment
    runs: dict[str, str] = field(default_factory=dict)  # finished runs to compare as they are, by variant/seed
    started: str = ""  # date
    hypothesis: str = ""  # in the user's words
    margin: float | None = None  # of equivalence: a share of right answers, or of the perplexity
    looks: tuple[tuple[int, ...], ...] = ()  # the seeds of each earlier result, after which seeds were added
    tune: tuple[Tuned, ...] = ()
    tune_seeds: int = 1
    tune_on: str | None = None  # data for choosing; None: a part of dev or exam
    part: Literal["all", "choosing", "judging"] = "all"  # of dev or exam

    @cached_property
    def data(self) -> Datasets:
        """What the comparison has read."""
        return Datasets()

    @property
    def words(self) -> bool:
        """Whether perplexity on text is measured, not answers to questions."""
        return self.exam is None

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
            found = corpora.documents_about(about, item.question) if about else []
            numbers.append(subjects.setdefault(found[0] if found else item.question, len(subjects)))
        return numbers

    def _of_part(self, items: Sequence[T]) -> list[T]:
        """The items of this part; a cluster is in one part as a whole."""
        if self.part == "all":
            return list(items)
        groups = np.unique(self._all_clusters)
        chosen = np.random.default_rng(0).permutation(groups)[: max(1, len(groups) // _CHOOSING)]
        choosing = np.isin(self._all_clusters, chosen)
        return [item for item, side in zip(items, choosing, strict=True) if side == (self.part == "choosing")]

    @property
    def at_a_time(self) -> int:
        """How many runs are trained at a time on this machine; 0: a cluster decides."""
        return self.workers if isinstance(self.workers, int) else 0

    def find(self, name: str) -> Variant:
        """The variant of this name."""
        return next(one for one in self.variants if one.name == name)

    def path(self, folder: Path, name: str, seed: int) -> Path:
        """The folder of a run."""
        given = self.runs.get(f"{name}/{seed}")
        return Path(given) if given else folder / self.find(name).folder / f"seed-{seed}"

    def measured(self, folder: Path, name: str, seed: int) -> Path:
        """The folder of the measurements of a run."""
        return folder / "measured" / self.find(name).folder / f"seed-{seed}"

    def order(self) -> list[tuple[str, int]]:
        """All runs in the order of their start: seed by seed, each seed starting with a different variant.

        If the machine gets slower or faster during a comparison, this affects all variants alike.
        """
        names = [one.name for one in self.variants]
        turned = [names[at % len(names) :] + names[: at % len(names)] for at in range(len(self.seeds))]
        return [(name, seed) for seed, row in zip(self.seeds, turned, strict=True) for name in row]

    def compared(self) -> list[tuple[str, str]]:
        """The pairs that are tested: each variant with the first, or each with each."""
        names = [one.name for one in self.variants]
        if self.all_pairs:
            return [(b, a) for at, a in enumerate(names) for b in names[at + 1 :]]
        return [(name, names[0]) for name in names[1:]]


@dataclass(frozen=True)
class Data:
    """The names of the texts and questions of a comparison."""

    corpus: str | None = None
    dev: str | None = None
    facts: str | None = None
    exam: str | None = None

    def complete(self, task: TaskConfig, quick: bool) -> Data:
        """Fill in built-in data if none is named."""
        if quick and any(asdict(self).values()):
            raise UserError("--quick is for built-in data: with your own, use less of it, or fewer --train.epochs")
        if task_class(task).tested == "sentences":
            if self.facts or self.exam:
                raise UserError(f"task {task.name} measures text: give --corpus and --dev, and no --facts or --exam")
            if (self.corpus is None) != (self.dev is None):
                raise UserError("--corpus and --dev go together: training text, and other text to measure on")
            return self if self.corpus else Data("prose:train", "prose:dev")
        if self.dev:
            raise UserError(f"task {task.name} is examined with questions: give --exam instead of --dev")
        world = "people:300" if quick else "people"
        return (
            self
            if all_or_none(self.corpus, self.facts, self.exam)
            else Data(world, None, f"{world}:train", f"{world}:dev")
        )


def make_plan(
    names: Sequence[str],
    *,
    task: str | None = None,
    vary: str | None = None,
    preset: str | None = None,
    config: Path | None = None,
    given: Settings | None = None,
    seeds: int | Sequence[int] | None = None,
    data: Data | None = None,
    workers: int | str = 0,
    quick: bool = False,
    tune: str | Sequence[str] = (),
    tune_on: str | None = None,
    tune_seeds: int = 1,
    trust_code: bool = False,
    **more: Any,
) -> Plan:
    """Make the plan of a comparison; `more` are further fields of the plan, such as probes or title."""
    data, more = data or Data(), {"started": date.today().isoformat(), **more}
    for name in more:
        if name not in (*_MORE, "started"):
            raise UserError(unknown("argument", name, (*_MORE, *inspect.signature(make_plan).parameters)))
    margin = more.get("margin")
    if margin is not None and not 0 < margin < 1:
        raise UserError(f"--margin is a share between 0 and 1, such as 0.01 for one per cent, not {margin:g}")
    if any(map(is_run, names)):
        asked: dict[str, object] = {"task": task, "vary": vary, "preset": preset, "config": config, "seeds": seeds}
        asked |= {"quick": quick, "tune": tune}
        _refuse_for_runs([*(name for name, value in asked.items() if value), *(given or {})])
        with usercode.trusting(trust_code):
            return _plan_of_runs(names, data, workers, **more)
    usual = task_class(TaskConfig(task)).preset if task else "small"
    preset = preset or ("quick" if quick and usual == "small" else usual)
    values = overlay(load_preset(preset), {"task": {"name": task}})["task"] if task else {}
    values = merge({"task": values} if values else {}, given or {})
    variants, varied = make_variants(names, vary, preset, config, values)
    for one in variants:
        _refuse_running_text(one.settings(0))
    chosen = variants[0].settings(0).task
    data = data.complete(chosen, quick)
    if task_class(chosen).tested == "sentences":
        refuse_other_text(varied)
    elif "probes" in more:
        raise UserError("--probe is for task words: sentences are measured there")
    if data.corpus == "prose:train":
        epochs = _QUICK_EPOCHS if quick else _PROSE_EPOCHS
        variants = tuple(one.with_default("train", "epochs", epochs) for one in variants)
    numbers = seed_numbers(seeds, _QUICK_SEEDS if quick else _SEEDS)
    tuned = _read_tuned([tune] if isinstance(tune, str) else tune, varied)
    if tuned and not 1 <= tune_seeds <= _MOST_SEEDS:
        raise UserError(f"--tune-seeds must be a number from 1 to {_MOST_SEEDS}, not {tune_seeds}")
    if (tune_on or tune_seeds != 1) and not tuned:
        raise UserError("--tune-on and --tune-seeds need --tune: add settings, such as --tune train.lr=0.001,0.002")
    trials = len(variants) * tune_seeds * math.prod(len(one.values) for one in tuned) if tuned else 0
    threads = max(one.settings(0).train.threads or 1 for one in variants)
    workers = read_workers(workers, threads, max(len(variants) * len(numbers), trials))
    fields = {
        **asdict(data),
        "workers": workers,
        "quick": quick,
        "title": _default_title(variants, chosen.name),
        **more,
    }
    if tuned:
        fields |= {"tune": tuned, "tune_on": tune_on, "tune_seeds": tune_seeds}
        fields["part"] = "all" if tune_on else "judging"
    return Plan(variants, varied, numbers, **fields)


def _read_tuned(texts: Sequence[str], varied: str) -> tuple[Tuned, ...]:
    """The settings to tune, from SETTING=VALUE,VALUE,..."""
    found = tuple(Tuned(*read_values("--tune", text)) for text in texts)
    for one in found:
        if len(set(one.values)) < 2 or len(set(one.values)) < len(one.values):
            raise UserError(f"--tune {one.setting} needs at least two different values, such as 0.001,0.002")
        if one.setting == varied:
            raise UserError(f"{varied} is what is compared: tune another setting")
        if one.setting.startswith(("task.", "tokenizer.", "model.vocab_size", "train.order_seed")):
            raise UserError(f"{one.setting} changes the data, not how they are learned: tune another setting")
    if len({one.setting for one in found}) < len(found):
        raise UserError("--tune names a setting twice: give all its values at once")
    return found


def trials_of(plan: Plan) -> list[tuple[Variant, dict[str, Any], Variant]]:
    """The trials of tuning: a variant, the values tried, and the variant with these values."""
    names = [one.setting for one in plan.tune]
    points = [dict(zip(names, values, strict=True)) for values in itertools.product(*(one.values for one in plan.tune))]
    return [
        (
            one,
            point,
            one.with_settings(", ".join([one.name, *(f"{key}={value}" for key, value in point.items())]), point),
        )
        for point in points
        for one in plan.variants
    ]


def tuning_plan(plan: Plan) -> Plan:
    """The trials of a comparison as a plan, with other seeds and other data than those that are judged."""
    dev, exam = plan.dev, plan.exam
    if plan.tune_on:
        dev, exam = (plan.tune_on, None) if plan.words else (None, plan.tune_on)
    return replace(
        plan,
        dev=dev,
        exam=exam,
        part="all" if plan.tune_on else "choosing",
        variants=tuple(trial for _, _, trial in trials_of(plan)),
        seeds=tuple(
            itertools.islice(
                (seed for seed in itertools.count(_TUNING_SEED) if seed not in plan.seeds), plan.tune_seeds
            )
        ),
        tune=(),
        tune_on=None,
        study="tuning",
    )


def seed_numbers(seeds: int | Sequence[int] | None, usual: int = _SEEDS) -> tuple[int, ...]:
    """The seeds 0 to n - 1 for a number n, which is `usual` for None; a list of seeds unchanged."""
    if isinstance(seeds, int) and not 1 <= seeds <= _MOST_SEEDS:
        raise UserError(
            f"--seeds must be a number from 1 to {_MOST_SEEDS}, or seeds such as 3,4,5, not {shortened(seeds)}"
        )
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(range(usual) if seeds is None else seeds)
    if not numbers or len(set(numbers)) < len(numbers):
        raise UserError(f"--seeds must be a number of at least 1, or different seeds such as 3,4,5, not {seeds}")
    for one in numbers:
        require_seed(one)
    return numbers


def _refuse_for_runs(asked: Sequence[str]) -> None:
    """Refuse settings for finished runs, which have their own."""
    if asked:
        raise UserError(f"finished runs are compared as they are: leave out {', '.join(asked)}")


def _refuse_running_text(config: RunConfig) -> None:
    """Refuse a task that reads running text: a comparison counts losses of sentences, or answers."""
    if stages.reads_running_text(config):
        raise UserError(
            f"a comparison measures sentences or answers, and task {config.task.name} reads running text:"
            " use --task words, with one sentence per line"
        )


def _plan_of_runs(names: Sequence[str], data: Data, workers: int | str, **more: Any) -> Plan:
    """Compare finished runs, with the data that they were trained on."""
    if other := next((name for name in names if not is_run(name)), None):
        raise UserError(
            f"{other} is not a run, and finished runs are compared with finished runs only: name its folder"
        )
    variants, varied, seeds, runs = from_runs(names)
    first = Run.open(names[0])
    _refuse_running_text(stages.stored_config(first))
    words, corpus = first.record.task.tested == "sentences", _corpus_of(first)
    facts = first.record.facts.source if first.record.facts else None
    held_out = data.dev if words else data.exam
    if words:
        refuse_other_text(varied)
    if held_out is None:
        if corpus is None or not corpora.is_built_in(corpus) or (words and not corpus.endswith(":train")):
            raise UserError(
                "name what to measure the runs on: --dev FILE with other sentences, or --exam FILE with questions"
            )
        held_out = f"{corpus.removesuffix(':train')}:dev"
    fields: dict[str, Any] = {
        "corpus": corpus,
        "workers": read_workers(workers),
        "runs": runs,
        "title": _default_title(variants, stages.stored_config(first).task.name),
    }
    fields |= {"dev": held_out} if words else {"facts": facts, "exam": held_out}
    return Plan(variants, varied, seeds, **fields | more)


def _corpus_of(run: Run) -> str | None:
    """The text that a run was trained on, or else the run it was fine-tuned from; None if there is none, or running text."""
    for one in lineage(run):
        if one.record.corpus:
            return None if one.record.running_text else one.record.corpus.source
    return None


def _default_title(variants: Sequence[Variant], task: str) -> str:
    return f"{', '.join(one.name for one in variants)}: which is better at {task}?"


def stages_of(variant: Variant, plan: Plan) -> tuple[Stage, ...]:
    """The training stages of a variant: fine-tuning only if questions are asked that its pretraining does not read."""
    if variant.steps:
        return variant.steps
    reads = task_class(variant.settings(plan.seeds[0]).task).reads_questions
    return ("pretrain",) if plan.words or reads else ("pretrain", "finetune")


# Checks


def check(plan: Plan) -> None:
    """Find errors before training: settings of every variant and stage, data, questions that are too long."""
    sources = plan.data.sources(plan.corpus, plan.facts)
    exam = plan.questions if plan.exam else []
    if plan.exam and any(item.answer is None for item in exam):
        raise UserError(f"{plan.exam} has questions without answers: a comparison needs them all")
    seen, asked = seen_before(plan)
    if seen == asked:
        raise UserError(f"all of {plan.dev or plan.exam} is in the training data: measure on other text or questions")
    if not (plan.sentences if plan.words else plan.questions):
        raise UserError(
            f"{plan.dev or plan.exam} is too small to choose on one part and judge on another: use --tune-on"
        )
    if plan.runs:
        return
    if plan.tune:
        choosing = tuning_plan(plan)
        shared = set(choosing.sentences) & set(plan.sentences) if plan.words else _asked(choosing) & _asked(plan)
        if shared:
            raise UserError(
                f"{len(shared):,} of the sentences or questions to choose on are those of the verdict: give other data to"
                " --tune-on"
            )
        check(choosing)
    config = plan.variants[0].settings(plan.seeds[0])
    tokenizer = stages.learn_tokenizer(config, sources)
    encode_questions(tokenizer, (item.question for item in exam), config.model.block_size)
    for variant in plan.variants:
        for stage in stages_of(variant, plan):
            stages.check_settings(variant.settings(plan.seeds[0], stage), sources, tokenizer)
        try_once(variant, plan.seeds[0])


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
    return sum(one in known for one in measured), len(measured)


def fingerprints(plan: Plan) -> dict[str, str]:
    """Checksums of everything that could change during a comparison: data and the user's files."""
    found = plan.data.checksums({key: getattr(plan, key) for key in ("corpus", "dev", "facts", "exam")})
    if plan.tune_on:
        corpus, questions = plan.data.corpus, plan.data.questions
        found["tune_on"] = corpus(plan.tune_on).sha256 if plan.words else stages.checksum(questions(plan.tune_on))
    found |= {one: plan.data.corpus(one).sha256 for one in {each.corpus for each in plan.variants} if one}
    if not plan.runs:
        for one in plan.variants:
            found |= sums_of_files(one.file, one.given)
    return found
