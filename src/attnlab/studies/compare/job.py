"""One run of a comparison in its own process, so that its peak memory is its own: trained or resumed, then measured.

Figures go to measured.json, and what the tests need per sentence or question to CSV files next to it.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from attnlab.lm import perplexity, stages
from attnlab.lm.evaluate import encode_question, examine, sample
from attnlab.lm.exams import Score
from attnlab.lm.flops import flops_per_token
from attnlab.lm.model import LanguageModel, load_model
from attnlab.lm.perplexity import SentenceLosses
from attnlab.lm.tokenizers import UNKNOWN, Tokenizer, split_words
from attnlab.store.folders import is_written, write_folder
from attnlab.store.records import encode
from attnlab.store.runs import Run
from attnlab.studies.compare.plan import Grid, stages_of
from attnlab.studies.compare.records import READ_TWICE, Measured, OnText, Quality, Readings, some
from attnlab.studies.compare.tuning import stored_plan
from attnlab.studies.workers import exit_code_of, lock_when_free
from attnlab.tasks import task_class

_SAMPLES, _KEPT_SAMPLES = 20, 6  # texts that each model writes, with the same seeds; and those that are kept
_DISTINCT = 400  # words in which distinct ones are counted: the share falls with the number of words
_TYPICAL = 500  # texts whose mean length is used

Files = dict[str, bytes]


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
    steps = stages_of(variant, plan)
    run: Run | None = None
    for stage in steps:
        # The run that is measured has the plain name, however many stages precede it.
        place = path if stage == steps[-1] else path.with_name(f"{path.name}-{stage}")
        if place.exists():
            run = stages.resume(Run.open(place))
            continue
        settings = variant.settings(seed, stage)
        asks = stage != "pretrain" or task_class(settings.task).reads_questions
        sources = plan.data.sources(variant.corpus or plan.corpus, plan.facts if asks else None)
        run = stages.begin(settings, stage, sources, run, place)
    assert run is not None
    return run


def _measure(plan: Grid[Any], run: Run, target: Path) -> None:
    """Measure a finished run, and write all figures at once."""
    began = time.perf_counter()
    model, tokenizer = load_model(run.model)
    torch.set_num_threads(stages.stored_config(run).train.threads or 1)
    lines: Sequence[str] = [f"{item.question} {item.answer}" for item in plan.questions] if plan.exam else ()
    lines = plan.data.corpus(plan.corpus).lines if plan.corpus else lines
    text: OnText | None = None
    answers: Score | None = None
    if plan.words:
        text, files, sentences, width = _on_text(plan, run, model, tokenizer, lines)
    else:
        answers, files, sentences = _on_questions(plan, model, tokenizer)
        width = None
    readings, more = _read_twice(model, tokenizer, sentences, width)
    # The arithmetic per token depends on the length: here, the mean length of the corpus.
    typical = some(lines, _TYPICAL)
    length = round(sum(len(tokenizer.encode(line)) + 1 for line in typical) / len(typical))
    length = max(2, min(model.config.block_size, length))
    flops = flops_per_token(model, length, training=True).total
    measured = Measured(readings, flops, round(time.perf_counter() - began, 1), length, text, answers)
    write_folder(target, "measurement", {**files, **more, "measured.json": encode(measured)})


def _on_questions(plan: Grid[Any], model: LanguageModel, tokenizer: Tokenizer) -> tuple[Score, Files, list[list[int]]]:
    """Exact match per question; and questions with their answers as token ids, to be read twice."""
    exam, block = plan.questions, model.config.block_size
    examination = examine(model, tokenizer, exam)
    files = {
        "right.csv": "".join(f"{line}\n" for line in ("right", *map(int, examination.right))).encode(),
        "predictions.txt": examination.lines(),
    }
    asked = [
        [
            *encode_question(tokenizer, item.question, block),
            *tokenizer.encode(item.answer or ""),
            tokenizer.mask,
        ][:block]
        for item in exam[:READ_TWICE]
    ]
    return examination.score(), files, asked


def _on_text(
    plan: Grid[Any], run: Run, model: LanguageModel, tokenizer: Tokenizer, lines: Sequence[str]
) -> tuple[OnText, Files, list[list[int]], int | None]:
    """Losses of sentences trained on and not, probes and samples; and sentences to be read twice, with their width."""
    task = run.record.task
    reading = task.longest, task.padded
    longest = min(task.longest or model.config.block_size, model.config.block_size)
    dev = plan.sentences
    of_dev, of_train = (
        perplexity.sentence_losses(model, tokenizer, part, *reading) for part in (dev, some(lines, len(dev)))
    )
    # Models of pieces have no start symbol.
    prompt = "" if tokenizer.start is not None else "The"
    texts = sample(model, tokenizer, prompt, _SAMPLES, temperature=1.0, limit=longest)
    measured = OnText(
        of_dev.summary(),
        of_train.summary(),
        tuple(perplexity.probe(model, tokenizer, plan.probes, *reading)),
        tuple(texts[:_KEPT_SAMPLES]),
        quality([_split(text, tokenizer) for text in texts]),
        quality([_split(tokenizer.decode(tokenizer.encode(text)), tokenizer) for text in dev]),
        tuple(perplexity.probe(model, tokenizer, plan.probes, *reading, spaces=True)) if tokenizer.words else (),
    )
    few = [tokenizer.sentence(line, longest) for line in some(dev, READ_TWICE)]
    files = {"dev.csv": of_dev.to_csv(), "train.csv": of_train.to_csv()}
    return measured, files, few, longest if task.padded else None


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


def main(arguments: list[str]) -> int:
    """Do one job: FOLDER VARIANT SEED; errors are reported in one line."""
    folder, name, seed = Path(arguments[0]), arguments[1], int(arguments[2])

    def work_alone() -> None:
        with lock_when_free(folder / "logs", f"{stored_plan(folder).find(name).folder}-seed-{seed}.lock"):
            work(folder, name, seed)

    return exit_code_of(work_alone)
