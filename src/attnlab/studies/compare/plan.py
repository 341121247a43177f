"""A comparison as it is asked for: specimens, seeds, data, the order of the runs, and mistakes. Nothing is trained here."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from attnlab import corpora, stages, stats, usercode
from attnlab.config import Settings, Stage, load_preset, merge, overlay, require_seed, shortened
from attnlab.errors import UserError, unknown
from attnlab.evaluate import encode_question
from attnlab.folders import reporting_damage
from attnlab.machine import cores
from attnlab.model import LanguageModel
from attnlab.perplexity import PROBES
from attnlab.runs import Run
from attnlab.studies.compare.specimens import Specimen, from_runs, is_run, make_specimens, refuse_other_text
from attnlab.studies.study import sums_of_files

PRESETS = {"words": "nano-words", "spans": "mingpt"}  # of a task, where the user names none; else small
PROSE_EPOCHS = 10.0  # the built-in prose is a twelfth of the news that nano-words reads once
QUICK_EPOCHS = 2.0
SEEDS = 3
MOST_SEEDS = 1000
FEW_WORDS = 97  # of a model that is only tried
# Fields of a plan that are taken as they are given.
MORE = ("probes", "all_pairs", "study", "title", "question", "command", "theirs")


@dataclass(frozen=True)
class Plan:
    """A whole comparison; everything that it needs to be done again. The first specimen is what the others are held against."""

    specimens: tuple[Specimen, ...]
    varied: str
    seeds: tuple[int, ...] = (0, 1, 2)
    corpus: str | None = None
    dev: str | None = None
    facts: str | None = None
    exam: str | None = None
    probes: tuple[str, ...] = PROBES
    jobs: int = 1
    all_pairs: bool = False
    study: str = "compare"
    title: str = ""
    question: str = ""
    command: str = "attnlab compare"
    quick: bool = False
    theirs: tuple[dict[str, Any], ...] = ()  # published figures of the same experiment, to stand beside ours
    runs: dict[str, str] = field(
        default_factory=dict
    )  # finished ones, which are compared as they are, by specimen and seed

    @classmethod
    @reporting_damage(Path("study.json"))
    def stored(cls, values: Mapping[str, Any]) -> Plan:
        """What to_dict gave."""
        lists = {key: tuple(values[key]) for key in ("seeds", "probes", "theirs") if key in values}
        specimens = tuple(Specimen(**{**one, "steps": tuple(one.get("steps", ()))}) for one in values["specimens"])
        return cls(**{**values, **lists, "specimens": specimens})

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON."""
        return asdict(self)

    @property
    def words(self) -> bool:
        """Whether perplexity on text is measured, instead of answers to questions."""
        return self.exam is None

    def find(self, name: str) -> Specimen:
        """The specimen of this name."""
        return next(one for one in self.specimens if one.name == name)

    def text_of(self, name: str) -> str | None:
        """The corpus that a specimen reads."""
        return self.find(name).corpus or self.corpus

    def path(self, folder: Path, name: str, seed: int) -> Path:
        """The folder of a run that is measured."""
        given = self.runs.get(f"{name}/{seed}")
        return Path(given) if given else folder / self.find(name).folder / f"seed-{seed}"

    def measured(self, folder: Path, name: str, seed: int) -> Path:
        """Where the figures of a run are kept."""
        return folder / "measured" / self.find(name).folder / f"seed-{seed}"

    def order(self) -> list[tuple[str, int]]:
        """All runs as they are started: every seed in turn, beginning with another specimen each time.

        A machine that slows down or speeds up in the course of a comparison then does so for all specimens alike.
        """
        names = [one.name for one in self.specimens]
        turned = [names[at % len(names) :] + names[: at % len(names)] for at in range(len(self.seeds))]
        return [(name, seed) for seed, row in zip(self.seeds, turned, strict=True) for name in row]

    def compared(self) -> list[tuple[str, str]]:
        """The pairs that are tested: each with the first, or each with each."""
        names = [one.name for one in self.specimens]
        if self.all_pairs:
            return [(b, a) for at, a in enumerate(names) for b in names[at + 1 :]]
        return [(name, names[0]) for name in names[1:]]


@dataclass(frozen=True)
class Data:
    """The texts and questions of a comparison, by name."""

    corpus: str | None = None
    dev: str | None = None
    facts: str | None = None
    exam: str | None = None

    def complete(self, task: str, quick: bool) -> Data:
        """With built-in data where nothing is named."""
        if quick and any(asdict(self).values()):
            raise UserError("--quick is for built-in data: of your own, take less, or fewer --train.epochs")
        if task == "words":
            if self.facts or self.exam:
                raise UserError("task words measures text: give --corpus and --dev, and no --facts or --exam")
            if (self.corpus is None) != (self.dev is None):
                raise UserError("--corpus and --dev go together: text to learn, and other text to be measured on")
            return self if self.corpus else Data("prose:train", "prose:dev")
        if self.dev:
            raise UserError(f"task {task} is examined with questions: give --exam instead of --dev")
        named = [self.corpus, self.facts, self.exam]
        if None in named and any(named):
            raise UserError("--corpus, --facts and --exam go together: give all three, or none for the built-in people")
        world = "people:300" if quick else "people"
        return self if self.corpus else Data(world, None, f"{world}:train", f"{world}:dev")


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
    jobs: int = 0,
    quick: bool = False,
    trust_code: bool = False,
    **more: Any,
) -> Plan:
    """A comparison from what a user says; `more` are further fields of the plan, such as probes or title."""
    data = data or Data()
    for name in more:
        if name not in MORE:
            raise UserError(unknown("argument", name, (*MORE, *inspect.signature(make_plan).parameters)))
    if jobs < 0:
        raise UserError(f"--jobs must be at least 1, or 0 for one per core, not {jobs}")
    if any(map(is_run, names)):
        asked = {"task": task, "vary": vary, "preset": preset, "config": config, "seeds": seeds, "quick": quick}
        refuse_for_runs([*(name for name, value in asked.items() if value), *(given or {})])
        with usercode.trusting(trust_code):
            return plan_of_runs(names, data, jobs, **more)
    preset = preset or PRESETS.get(task or "", "quick" if quick else "small")
    values = overlay(load_preset(preset), {"task": {"name": task}})["task"] if task else {}
    values = merge({"task": values} if values else {}, given or {})
    specimens, varied = make_specimens(names, vary, preset, config, values)
    task = specimens[0].settings(0).task.name
    data = data.complete(task, quick)
    if task == "words":
        refuse_other_text(varied)
    elif "probes" in more:
        raise UserError("--probe is for task words: sentences are measured there")
    if data.corpus == "prose:train":
        epochs = QUICK_EPOCHS if quick else PROSE_EPOCHS
        specimens = tuple(one.unless_said("train", "epochs", epochs) for one in specimens)
    threads = max(one.settings(0).train.threads or 1 for one in specimens)
    numbers = seed_numbers(seeds)
    jobs = jobs or max(1, min(cores() // threads, len(specimens) * len(numbers)))
    fields = {**asdict(data), "jobs": jobs, "quick": quick, "title": title_of(specimens, task), **more}
    return Plan(specimens, varied, numbers, **fields)


def seed_numbers(seeds: int | Sequence[int] | None) -> tuple[int, ...]:
    """Seeds from their number, or as they are."""
    if isinstance(seeds, int) and not 1 <= seeds <= MOST_SEEDS:
        raise UserError(
            f"--seeds must be a number from 1 to {MOST_SEEDS}, or seeds such as 3,4,5, not {shortened(seeds)}"
        )
    numbers = tuple(range(seeds)) if isinstance(seeds, int) else tuple(range(SEEDS) if seeds is None else seeds)
    if not numbers or len(set(numbers)) < len(numbers):
        raise UserError(f"--seeds must be a number of at least 1, or different seeds such as 3,4,5, not {seeds}")
    for one in numbers:
        require_seed(one)
    return numbers


def refuse_for_runs(asked: Sequence[str]) -> None:
    """Refuse settings where finished runs are compared, which have theirs."""
    if asked:
        raise UserError(f"finished runs are compared as they are: leave out {', '.join(asked)}")


def plan_of_runs(names: Sequence[str], data: Data, jobs: int, **more: Any) -> Plan:
    """A comparison of finished runs, on the data that they were trained on."""
    if not all(map(is_run, names)):
        raise UserError(
            "finished runs are compared with finished runs only: name folders of runs, or specimens to train"
        )
    specimens, varied, seeds, runs = from_runs(names)
    first = Run.open(names[0])
    task, read = stages.stored_config(first).task.name, first.config["data"]
    sources = {key: entry["source"] if entry else None for key, entry in read.items()}
    words, corpus = task == "words", sources["corpus"] or ""
    held_out = data.dev if words else data.exam
    if words:
        refuse_other_text(varied)
    if held_out is None:
        if not corpora.is_built_in(corpus) or (words and not corpus.endswith(":train")):
            raise UserError(
                "say what the runs are measured on: --dev FILE with other sentences, or --exam FILE with questions"
            )
        held_out = f"{corpus.removesuffix(':train')}:dev"
    fields: dict[str, Any] = {
        "corpus": corpus,
        "jobs": jobs or cores(),
        "runs": runs,
        "title": title_of(specimens, task),
    }
    fields |= {"dev": held_out} if words else {"facts": sources["facts"], "exam": held_out}
    return Plan(specimens, varied, seeds, **fields | more)


def title_of(specimens: Sequence[Specimen], task: str) -> str:
    """What a comparison is called that has no name."""
    return f"{', '.join(one.name for one in specimens)}: which is better at {task}?"


def stages_of(specimen: Specimen, plan: Plan) -> tuple[Stage, ...]:
    """How a specimen is trained: on text alone; and on questions too, where they are asked and were not in the text."""
    if specimen.steps:
        return specimen.steps
    reads = stages.reads_questions(specimen.settings(plan.seeds[0]))
    return ("pretrain",) if plan.words or reads else ("pretrain", "finetune")


def advise(plan: Plan, difference: float | None = None) -> list[str]:
    """What a comparison can find, and what it would take to find more, one line a fact."""
    told = {"seeds": len(plan.seeds), "comparisons": len(plan.compared())}
    if plan.words:
        if difference is not None:
            raise UserError("--difference is a share of right answers: it is for tasks with questions")
        assert plan.dev is not None
        lines = stats.advice(**told)
        sentences = len(corpora.load_corpus(plan.dev).lines)
        return [
            *lines,
            f"{sentences:,} dev sentences: how far perplexity hangs on them, the test counts with the seeds",
        ]
    assert plan.exam is not None
    return stats.advice(questions=len(corpora.load_questions(plan.exam)), difference=difference, **told)


# Mistakes, and what could change


def check(plan: Plan) -> None:
    """Find mistakes before anything is trained: settings of every specimen and stage, data, questions that are too long."""
    sources = stages.Sources.read(plan.corpus, plan.facts)
    exam = corpora.load_questions(plan.exam) if plan.exam else ()
    if plan.exam and any(item.answer is None for item in exam):
        raise UserError(f"{plan.exam} has questions without answers: a comparison needs them all")
    seen, asked = seen_before(plan)
    if seen == asked:
        raise UserError(
            f"all of {plan.dev or plan.exam} is in what is learned from: measure on text or questions that are not"
        )
    if plan.runs:
        return
    config = plan.specimens[0].settings(plan.seeds[0])
    tokenizer = stages.learn_tokenizer(config, sources)
    for number, item in enumerate(exam, start=1):
        encode_question(tokenizer, item.question, config.model.block_size, number)
    for specimen in plan.specimens:
        for stage in stages_of(specimen, plan):
            stages.check_settings(specimen.settings(plan.seeds[0], stage), sources, tokenizer)
        try_once(specimen, plan.seeds[0])


def try_once(specimen: Specimen, seed: int) -> None:
    """Have a specimen's model read two words, so that a class that cannot is found before an hour is spent."""
    model = small_model(specimen, seed)
    try:
        with torch.no_grad():
            model(torch.zeros(1, 2, dtype=torch.long))
    except Exception as error:  # whatever a user's class may raise
        raise UserError(
            f"{specimen.name} cannot read a text: {type(error).__name__}: {' '.join(str(error).split())}"
        ) from None


def small_model(specimen: Specimen, seed: int) -> LanguageModel:
    """A fresh model of a specimen with few words: what is asked of it before training does not depend on the vocabulary."""
    config = specimen.settings(seed).model
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return LanguageModel(replace(config, vocab_size=FEW_WORDS, zero_init=False))


def seen_before(plan: Plan) -> tuple[int, int]:
    """How many of the sentences or questions that are measured were learned from, and of how many."""
    if plan.words:
        assert plan.dev is not None
        known = set(corpora.load_corpus(plan.corpus).lines) if plan.corpus else set()
        measured: Sequence[str] = corpora.load_corpus(plan.dev).lines
    else:
        assert plan.exam is not None
        known = {item.question for item in corpora.load_questions(plan.facts)} if plan.facts else set()
        measured = [item.question for item in corpora.load_questions(plan.exam)]
    return sum(one in known for one in measured), len(measured)


def fingerprints(plan: Plan) -> dict[str, str]:
    """Checksums of everything that a comparison is made of and that could change under it: data, the user's own files."""
    learned = stages.Sources.read(plan.corpus, plan.facts).described
    found = {key: entry["sha256"] for key, entry in learned.items() if entry}
    if plan.dev:
        found["dev"] = corpora.load_corpus(plan.dev).sha256
    if plan.exam:
        found["exam"] = stages.checksum(corpora.load_questions(plan.exam))
    found |= {one: corpora.load_corpus(one).sha256 for one in {each.corpus for each in plan.specimens} if one}
    if not plan.runs:
        for one in plan.specimens:
            found |= sums_of_files(one.file, one.given)
    return found
