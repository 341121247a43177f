"""The runs of a comparison: each is trained and measured in its own process, here or on a cluster, and read again.

A process of its own makes the peak memory that of one run. Figures go to measured.json, and what the tests need per sentence
or question to CSV files next to it. When stopped, all runs are saved and can be resumed.
"""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import cached_property
from pathlib import Path
from statistics import fmean
from typing import Any, TypeVar

import numpy as np
import torch
from rich.console import Console
from rich.progress import BarColumn, Progress, TaskID, TextColumn, TimeElapsedColumn

from attnlab.config import Settings
from attnlab.errors import AttnlabError, Diverged, Interrupted
from attnlab.lm import perplexity, stages
from attnlab.lm.decoding import sample
from attnlab.lm.evaluate import encode_question, examine
from attnlab.lm.exams import Score
from attnlab.lm.flops import flops_per_token
from attnlab.lm.model import LanguageModel, load_model
from attnlab.lm.perplexity import Probe, SentenceLosses
from attnlab.lm.progress import say
from attnlab.lm.tokenizers import UNKNOWN, Tokenizer, split_words
from attnlab.report.words import roughly
from attnlab.store import records
from attnlab.store.folders import add_files, is_written, read_bytes, read_json, write_folder
from attnlab.store.listing import last_step
from attnlab.store.runs import Run, RunResult
from attnlab.studies.compare.plan import DIVERGED, Grid
from attnlab.studies.compare.records import Quality, Readings, Texts
from attnlab.studies.study import load
from attnlab.studies.workers import PAUSE, Attempts, Command, exit_code_of, lock_when_free, opened, stop_all
from attnlab.tasks import task_class

T = TypeVar("T")

_READ_TWICE, _FEWEST_TWICE = 200, 20  # texts that are also read word by word
_SQUARED = 1e7  # characters squared, over all of these texts
_SAMPLES, _KEPT_SAMPLES = 20, 6  # texts that each model writes, with the same seeds; and those that are kept
_DISTINCT = 400  # words in which distinct ones are counted: the share falls with the number of words
_TYPICAL = 500  # texts whose mean length is used
_LONG = 200  # documents that are read with longer contexts

Files = dict[str, bytes]


# Measurements


@dataclass(frozen=True)
class Measured:
    """The content of measured.json: on text, or on questions."""

    values: dict[str, float]  # figures by key
    word_by_word: Readings
    measuring: float  # seconds
    text: Texts | None = None
    answers: Score | None = None
    long: tuple[int, ...] = ()  # the numbers of the documents that were read with longer contexts


def read_measured(folder: Path) -> Measured:
    """The measurements in a folder."""
    return records.read(Measured, folder / "measured.json")


def some(lines: Sequence[T], count: int) -> list[T]:
    """At most `count` lines (or their clusters), the same for every run, in order."""
    if len(lines) <= count:
        return list(lines)
    picked = np.random.default_rng(0).choice(len(lines), count, replace=False)
    return [lines[at] for at in sorted(picked.tolist())]


def read_twice(lines: Sequence[str]) -> int:
    """How many texts are also read word by word: fewer of long ones, since the time grows with the square of the length."""
    return max(_FEWEST_TWICE, min(_READ_TWICE, int(_SQUARED / fmean(len(line) ** 2 for line in lines))))


def _measure(plan: Grid[Any], run: Run, target: Path) -> None:
    """Measure a finished run, and write all figures at once."""
    began = time.perf_counter()
    model, tokenizer = load_model(run.model)
    torch.set_num_threads(stages.stored_config(run).train.threads or 1)
    lines: Sequence[str] = [f"{item.question} {item.answer}" for item in plan.questions] if plan.exam else ()
    lines = plan.data.corpus(plan.corpus).lines if plan.corpus else lines
    text: Texts | None = None
    answers: Score | None = None
    width: int | None = None
    long: tuple[int, ...] = ()
    if plan.words:
        text, values, files, sentences, width = _on_text(plan, run, model, tokenizer, lines)
        if plan.lengths:
            long, in_context = _in_context(plan, model, tokenizer)
            files |= in_context
    else:
        answers, files, sentences = _on_questions(plan, model, tokenizer)
        values = {"accuracy": answers.accuracy} if answers.accuracy is not None else {}
    readings, more = _read_twice(model, tokenizer, sentences, width)
    # The arithmetic per token depends on the length: here, the mean length of the corpus.
    typical = some(lines, _TYPICAL)
    length = round(sum(len(tokenizer.encode(line)) + 1 for line in typical) / len(typical))
    length = max(2, min(model.config.block_size, length))
    norms = [step.norm for step in run.metrics() if step.norm is not None]
    values |= {"gradient_norm": fmean(norms)} if norms else {}
    values["flops_per_token"] = flops_per_token(model, length, training=True).total
    measured = Measured(values, readings, round(time.perf_counter() - began, 1), text, answers, long)
    write_folder(target, "measurement", {**files, **more, "measured.json": records.encode(measured)})


def _on_questions(plan: Grid[Any], model: LanguageModel, tokenizer: Tokenizer) -> tuple[Score, Files, list[list[int]]]:
    """Exact match per question; and questions with their answers as token ids, to be read twice."""
    exam, block = plan.questions, model.config.block_size
    examination = examine(model, tokenizer, exam)
    right = "".join(f"{line}\n" for line in ("right", *map(int, examination.right)))
    asked = []
    for item in exam[:_READ_TWICE]:
        question, answer = encode_question(tokenizer, item.question, block), tokenizer.encode(item.answer or "")
        asked.append([*question, *answer, tokenizer.mask][:block])
    return examination.score(), {"right.csv": right.encode(), "predictions.txt": examination.lines()}, asked


def _on_text(
    plan: Grid[Any], run: Run, model: LanguageModel, tokenizer: Tokenizer, lines: Sequence[str]
) -> tuple[Texts, dict[str, float], Files, list[list[int]], int | None]:
    """Probes and samples, perplexities of sentences trained on and not; and sentences to be read twice, with their width."""
    task = run.record.task
    reading = task.longest, task.padded
    begin = (tokenizer.pad,) if run.record.running_text else ()  # in running text, `□` begins a document
    longest = min(task.longest or model.config.block_size, model.config.block_size)
    dev = plan.sentences

    def read_probes(spaces: bool = False) -> tuple[Probe, ...]:
        return tuple(perplexity.probe(model, tokenizer, plan.probe or perplexity.PROBES, *reading, spaces=spaces))

    values, files = {}, {}
    for part, texts in (("dev", dev), ("train", some(lines, len(dev)))):
        losses = perplexity.sentence_losses(model, tokenizer, texts, *reading, begin=begin)
        values[f"{part}_token_perplexity"] = losses.token_perplexity
        values[f"{part}_sentence_perplexity"] = losses.sentence_perplexity
        files[f"{part}.csv"] = losses.to_csv()
    # Models of pieces have no start symbol, unless they read running text.
    prompt = "" if tokenizer.start is not None or begin else "The"
    texts = sample(model, tokenizer, prompt, _SAMPLES, temperature=1.0, limit=longest)
    measured = Texts(
        read_probes(),
        tuple(texts[: 2 if begin else _KEPT_SAMPLES]),  # of running text each is long
        quality([_split(text, tokenizer) for text in texts]),
        quality([_split(tokenizer.decode(tokenizer.encode(text)), tokenizer) for text in dev]),
        read_probes(spaces=True) if tokenizer.words else (),
    )
    few = [[*begin, *tokenizer.sentence(line, longest)][:longest] for line in some(dev, read_twice(dev))]
    return measured, values, files, few, longest if task.padded else None


def _in_context(plan: Grid[Any], model: LanguageModel, tokenizer: Tokenizer) -> tuple[tuple[int, ...], Files]:
    """The documents that have the longest context, and the losses of their tokens after the block with each that is read."""
    block = model.config.block_size
    most = block * max(plan.lengths) + 1
    encoded = {at: [tokenizer.pad, *tokenizer.sentence(line, most)][:most] for at, line in enumerate(plan.sentences)}
    long = some([at for at, ids in encoded.items() if len(ids) == most], _LONG)
    documents, tokens, unknown = [encoded[at] for at in long], (most - 1 - block,) * len(long), (0,) * len(long)
    files = {}
    for length in context_lengths(block, plan.lengths):
        if length <= model.longest:
            losses = perplexity.context_losses(model, documents, tokenizer.pad, block, length)
            files[_context_file(length)] = SentenceLosses(tuple(losses), tokens, unknown).to_csv()
    return tuple(long), files


def context_lengths(block: int, multiples: Sequence[int]) -> list[int]:
    """The lengths of context that are compared, in tokens: the block, and its multiples."""
    return [block * multiple for multiple in sorted({1, *multiples})]


def _context_file(length: int) -> str:
    return f"context-{length}.csv"


def _read_twice(
    model: LanguageModel, tokenizer: Tokenizer, sentences: Sequence[list[int]], width: int | None
) -> tuple[Readings, Files]:
    """Read the same texts whole and word by word; the losses differ only if the model sees the future."""
    tokens, unknown = tuple(len(ids) - 1 for ids in sentences), (0,) * len(sentences)
    whole = SentenceLosses(tuple(perplexity.whole_losses(model, sentences, tokenizer.pad, width)), tokens, unknown)
    apart = SentenceLosses(tuple(perplexity.prefix_losses(model, sentences)), tokens, unknown)
    files = {"whole.csv": whole.to_csv(), "word_by_word.csv": apart.to_csv()}
    return Readings(len(sentences), whole.token_perplexity, apart.token_perplexity), files


def _split(text: str, tokenizer: Tokenizer) -> list[str]:
    """Split a text into words; a word tokenizer has done so already."""
    return text.split() if tokenizer.words else split_words(text)


def quality(texts: Sequence[Sequence[str]]) -> Quality:
    """Count unknown words, punctuation and distinct words in texts given as words."""
    words = [word for text in texts for word in text]
    count = max(1, len(words))
    return Quality(
        tokens=len(words),
        unknown_share=words.count(UNKNOWN) / count,
        punctuation_share=sum(not any(map(str.isalnum, word)) for word in words) / count,
        distinct_share=len(set(words[:_DISTINCT])) / min(count, _DISTINCT),
        mean_length=len(words) / max(1, len(texts)),
    )


# One run, in its own process


def work(folder: Path, name: str, seed: int) -> None:
    """Train and measure a run, as far as that is not done."""
    plan = stored_plan(folder)
    plan.refuse_changes(folder)
    target = plan.measured(folder, name, seed)
    if target.exists() and not is_written(plan.path(folder, name, seed) / "result.json"):
        shutil.rmtree(target)  # of a run that was removed
    run = _train(plan, folder, name, seed)
    if not target.exists():
        _measure(plan, run, target)


def _train(plan: Grid[Any], folder: Path, name: str, seed: int) -> Run:
    """Train a run as far as that is not done."""
    path = plan.path(folder, name, seed)
    if plan.runs:
        return Run.open(path)
    variant = plan.find(name)
    steps = plan.stages(variant)
    run: Run | None = None
    for stage in steps:
        # The run that is measured has the plain name, however many stages precede it.
        place = path if stage == steps[-1] else path.with_name(f"{path.name}-{stage}")
        if place.exists():
            run = stages.resume(Run.open(place))
            continue
        settings = variant.settings(seed, stage)
        asks = stage != "pretrain" or task_class(settings.task).reads_questions
        running = stages.reads_running_text(settings)
        sources = plan.data.sources(variant.corpus or plan.corpus, plan.facts if asks else None, running=running)
        if plan.validated and plan.dev:
            dev = plan.data.text(plan.dev) if running else plan.data.corpus(plan.dev)
            sources = replace(sources, dev=dev, dev_source=plan.dev)
        run = stages.begin(settings, stage, sources, run, place)
    assert run is not None
    return run


def stored_plan(folder: Path) -> Grid[Any]:
    """The plan stored in a folder, with the values chosen by tuning."""
    plan = load(folder)
    assert isinstance(plan, Grid)
    return plan.as_trained(folder)


def main(arguments: list[str]) -> int:
    """Do one job: FOLDER VARIANT SEED; errors are reported in one line."""
    folder, name, seed = Path(arguments[0]), arguments[1], int(arguments[2])

    def work_alone() -> None:
        with lock_when_free(folder / "logs", f"{stored_plan(folder).find(name).folder}-seed-{seed}.lock"):
            work(folder, name, seed)

    return exit_code_of(work_alone)


# All runs


@dataclass
class _Job:
    """A task that trains and measures one run."""

    name: str
    seed: int
    run: Path
    task: Attempts
    bar: TaskID
    began: float = field(default_factory=time.monotonic)

    @property
    def label(self) -> str:
        """Its name in messages."""
        return f"{self.name}, seed {self.seed}"

    def progress(self) -> tuple[float, str]:
        """The share that is done, and the state."""
        last = last_step(self.run / "metrics.jsonl")
        if not last:  # the first of two stages
            last = last_step(self.run.with_name(f"{self.run.name}-pretrain") / "metrics.jsonl")
        state = f"loss {last.loss:.3f}" if last else "starting"
        return last.progress if last else 0.0, "measuring" if (self.run / "result.json").is_file() else state

    @property
    def diverged(self) -> bool:
        """Whether its loss was not finite."""
        return self.task.code == Diverged.exit_code


def _command(plan: Grid[Any], folder: Path, name: str, seed: int) -> Command:
    """The command of a run."""
    folder = folder.resolve()
    log = folder / "logs" / f"{plan.find(name).folder}-seed-{seed}.txt"
    log.parent.mkdir(exist_ok=True)
    train = plan.find(name).settings(seed).train
    return Command(__name__, (str(folder), name, str(seed)), log, train.threads or 1, train.device.startswith("cuda"))


def _done(plan: Grid[Any], folder: Path, name: str, seed: int) -> bool:
    """Whether a run is complete and measured."""
    complete = is_written(plan.path(folder, name, seed) / "result.json")
    return complete and plan.measured(folder, name, seed).exists()


def train_all(plan: Grid[Any], folder: Path, console: Console) -> None:
    """Train and measure every run that is not done yet, as many at a time as `plan.workers` says, in the order of the plan.

    The other runs are finished even if one fails. Those that diverged are listed in diverged.json and not tried again.
    """
    failed = try_all(plan, folder, console)
    refuse_failed([job for job in failed if not job.diverged], plan, folder)
    if failed:
        lost = {**plan.diverged(folder), **{f"{job.name}/{job.seed}": job.task.failure() for job in failed}}
        add_files(folder, {DIVERGED: records.encode(lost)})
    if not any(read_records(plan, folder).values()):
        reason = next(iter(plan.diverged(folder).values()))
        raise AttnlabError(f"every run diverged ({reason}): start a new comparison with a lower learning rate")


def refuse_failed(failed: Sequence[_Job], plan: Grid[Any], folder: Path) -> None:
    """Raise an error that says what to do about runs that failed."""
    if not failed:
        return
    first = failed[0]
    raise AttnlabError(
        f"{len(failed)} of {len(plan.order())} runs failed, the first {first.label}: {first.task.failure()} (its output:"
        f" {first.task.command.log}); the others are kept, and `attnlab resume {folder}` tries again"
    )


def try_all(plan: Grid[Any], folder: Path, console: Console) -> list[_Job]:
    """Train and measure what is not done yet; return the jobs that failed."""
    lost = plan.diverged(folder)
    waiting = [run for run in plan.order() if not _done(plan, folder, *run) and "{}/{}".format(*run) not in lost]
    if not waiting:
        return []
    total, todo, began = len(plan.order()), len(waiting), time.monotonic()
    running: list[_Job] = []
    failed: list[_Job] = []
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[state]}"), TimeElapsedColumn())
    hidden = not console.is_terminal
    with (
        opened(plan.at_a_time or plan.workers) as workers,
        Progress(*columns, console=console, refresh_per_second=4, disable=hidden) as bars,
    ):
        many = f"{plan.workers} run at a time" if plan.at_a_time else f"the others run on {workers.place}"
        say(console, f"{total - todo} of {total} runs are done; {many}, one line each when done")
        try:
            while waiting or running:
                while waiting and len(running) < workers.at_a_time:
                    name, seed = waiting.pop(0)
                    label = f"{name}, seed {seed}"
                    bar = bars.add_task(label, total=1.0, state="starting")
                    task = Attempts(workers, _command(plan, folder, name, seed), label, console)
                    running.append(_Job(name, seed, plan.path(folder, name, seed), task, bar))
                time.sleep(PAUSE)
                for job in list(running):
                    code = job.task.poll()
                    if code is None:
                        if not hidden:
                            share, state = job.progress()
                            bars.update(job.bar, completed=share, state=state)
                        continue
                    running.remove(job)
                    bars.remove_task(job.bar)
                    if code == Interrupted.exit_code:
                        raise Interrupted(job.task.failure())
                    if code != 0:
                        failed.append(job)
                        say(console, f"{job.label} failed: {job.task.failure()}")
                        continue
                    left = len(waiting) + len(running)
                    worked = todo - left + sum(each.progress()[0] for each in running)
                    rest = roughly((time.monotonic() - began) * (todo - worked) / worked)
                    took, loss = time.monotonic() - job.began, Run(job.run).result.final_loss
                    outcome = f"{job.label} done in {took:.0f} s, final loss {loss:.3f}"
                    more = f"; about {rest} left" if left else ""
                    say(console, f"{total - left - len(failed)} of {total}: {outcome}{more}")
        finally:
            stop_all([job.task for job in running])
    return failed


# Finished runs


@dataclass(frozen=True)
class Record:
    """One finished run with the folder of its measurements."""

    seed: int
    run: Run
    folder: Path

    @cached_property
    def measured(self) -> Measured:
        """The measurements."""
        return read_measured(self.folder)

    @cached_property
    def values(self) -> dict[str, float]:
        """Its figures by key, as far as they are known."""
        values = asdict(whole_result(self.run)) | self.measured.values
        return {key: float(value) for key, value in values.items() if isinstance(value, int | float)}

    @property
    def total_seconds(self) -> float:
        """The time of training, earlier stages included, and measuring."""
        return whole_result(self.run).seconds + self.measured.measuring

    @property
    def text(self) -> Texts:
        """The measurements on text."""
        assert self.measured.text is not None
        return self.measured.text

    def answers(self) -> list[bool]:
        """Whether each answer is correct."""
        return [line == "1" for line in read_bytes(self.folder / "right.csv").decode().splitlines()[1:]]

    def losses(self, name: str) -> SentenceLosses:
        """The losses of the sentences in one of its files."""
        return SentenceLosses.from_csv(read_bytes(self.folder / name).decode())


@dataclass(frozen=True)
class Reading(Record):
    """A run whose losses are those of long documents with this length of context."""

    length: int

    @property
    def known(self) -> bool:
        """Whether its model reads so many tokens."""
        return is_written(self.folder / _context_file(self.length))

    @cached_property
    def values(self) -> dict[str, float]:
        """Its figure."""
        return {"dev_token_perplexity": self.losses("").token_perplexity}

    def losses(self, name: str) -> SentenceLosses:
        """The losses of the documents, whatever the file."""
        return super().losses(_context_file(self.length))


Records = Mapping[str, Sequence[Record]]  # by variant, in the order of the seeds


def read_records(plan: Grid[Any], folder: Path) -> dict[str, list[Record]]:
    """All runs by variant, in the order of the seeds, without those that diverged."""
    lost = plan.diverged(folder)
    return {
        variant.name: [
            Record(seed, Run.open(plan.path(folder, variant.name, seed)), plan.measured(folder, variant.name, seed))
            for seed in plan.seeds
            if f"{variant.name}/{seed}" not in lost
        ]
        for variant in plan.variants
    }


def whole_result(run: Run) -> RunResult:
    """The result of a run, including the time and tokens of the runs that it started from."""
    result, base = run.result, run.record.base
    if base:
        before = whole_result(Run.open(run.path / base))
        seconds, tokens = result.seconds + before.seconds, result.tokens + before.tokens
        # Seconds are rounded, so that very short runs took none.
        rate = tokens / seconds if seconds else result.tokens_per_second
        memory = max(result.peak_memory or 0, before.peak_memory or 0) or None
        result = replace(result, seconds=seconds, tokens=tokens, tokens_per_second=rate, peak_memory=memory)
    return result


def settings_without_seed(run: Run) -> Settings:
    """The settings of a run without its seed."""
    return {key: value for key, value in run.record.settings.items() if key != "seed"}


def notes_on(records: Records) -> list[str]:
    """Notes on the runs as a whole."""
    every = [record.run for rows in records.values() for record in rows]
    places = {json.dumps(read_json(run.path / "env.json"), sort_keys=True) for run in every}
    ways = {(run.result.processes, run.result.threads) for run in every}
    notes = []
    if len(places) > 1 or len(ways) > 1:
        notes.append(
            "Not all runs were made on the same machine with the same versions and threads: do not compare their times."
        )
    if len(next(iter(records.values()))) == 2:
        notes.append(
            "With two seeds the test rests on one degree of freedom, and only very large differences can be shown: train"
            " five."
        )
    return notes
