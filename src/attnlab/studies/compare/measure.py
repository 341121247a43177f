"""What is measured of a finished run: perplexities of text, probes, samples; or answers to questions.

Figures go to measured.json, what statistics need of every sentence or question to CSV files beside it.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnlab import corpora, perplexity, stages
from attnlab.corpora import Question
from attnlab.evaluate import encode_question, examine, sample
from attnlab.flops import flops_per_token
from attnlab.folders import to_json, write_folder
from attnlab.model import LanguageModel, load_model
from attnlab.perplexity import SentenceLosses
from attnlab.runs import Run
from attnlab.studies.compare.plan import Plan
from attnlab.tokenizers import UNKNOWN, Tokenizer
from attnlab.word_split import split_words

SAMPLES, SHOWN = 20, 6  # texts that a model writes, the same draws for all; and those that are kept
DISTINCT = 400  # words among which different ones are counted: in more of them, the share is smaller
TWICE = 200  # texts that are read again with nothing after each word
TYPICAL = 500  # texts whose mean length stands for all

Figures = dict[str, Any]


def measure(plan: Plan, run: Run, target: Path) -> None:
    """Measure a finished run, and write all figures at once."""
    began = time.perf_counter()
    model, tokenizer = load_model(run.model)
    torch.set_num_threads(stages.stored_config(run).train.threads or 1)
    figures, files = on_text(plan, run, model, tokenizer) if plan.words else on_questions(plan, model, tokenizer)
    figures |= work(plan, model, tokenizer)
    figures["measuring"] = round(time.perf_counter() - began, 1)
    write_folder(target, "measurement", {**files, "measured.json": to_json(figures)})


def work(plan: Plan, model: LanguageModel, tokenizer: Tokenizer) -> Figures:
    """The arithmetic of a token in training, in a text as long as those of the corpus are on average."""
    assert plan.corpus is not None
    lines = some(corpora.load_corpus(plan.corpus).lines, TYPICAL)
    tokens = round(sum(len(tokenizer.encode(line)) + 1 for line in lines) / len(lines))
    tokens = max(2, min(model.config.block_size, tokens))
    return {"flops_per_token": flops_per_token(model, tokens, training=True).total, "flops_length": tokens}


def on_questions(plan: Plan, model: LanguageModel, tokenizer: Tokenizer) -> tuple[Figures, dict[str, bytes]]:
    """Exact match, question by question; and whether the model looks ahead in a question with its answer."""
    assert plan.exam is not None
    exam: tuple[Question, ...] = corpora.load_questions(plan.exam)
    examination = examine(model, tokenizer, exam)
    right = "".join(f"{int(one)}\n" for one in examination.right).encode()
    predictions = "".join(prediction + "\n" for prediction in examination.predictions).encode()
    files = {"right.csv": b"right\n" + right, "predictions.txt": predictions}
    asked = [
        [
            *encode_question(tokenizer, item.question, model.config.block_size),
            *tokenizer.encode(item.answer or ""),
            tokenizer.mask,
        ]
        for item in exam[:TWICE]
    ]
    read, more = twice(model, tokenizer, [ids[: model.config.block_size] for ids in asked], None)
    return {**examination.summary(), **read}, {**files, **more}


def on_text(plan: Plan, run: Run, model: LanguageModel, tokenizer: Tokenizer) -> tuple[Figures, dict[str, bytes]]:
    """The losses of sentences, seen in training and not; probes; samples; and whether the model looks ahead."""
    assert plan.corpus is not None
    assert plan.dev is not None
    reading = stages.reading_options(run)
    longest = min(reading.get("longest") or model.config.block_size, model.config.block_size)
    dev, train = corpora.load_corpus(plan.dev).lines, corpora.load_corpus(plan.corpus).lines
    files: dict[str, bytes] = {}
    figures: Figures = {}
    for part, lines in (("dev", dev), ("train", some(train, len(dev)))):
        losses = perplexity.sentence_losses(model, tokenizer, lines, **reading)
        files[f"{part}.csv"] = losses.to_csv()
        figures[part] = losses.summary()
    # Models of pieces have no symbol that begins a text.
    prompt = "" if tokenizer.start is not None else "The"
    texts = sample(model, tokenizer, prompt, SAMPLES, temperature=1.0, limit=longest)
    few = [tokenizer.sentence(line, longest) for line in some(dev, TWICE)]
    read, more = twice(model, tokenizer, few, longest if reading.get("padded") else None)
    figures |= {
        "probes": perplexity.probe(model, tokenizer, plan.probes, **reading),
        "samples": texts[:SHOWN],
        "sample_quality": quality([spelled(text, tokenizer) for text in texts]),
        "text_quality": quality([spelled(tokenizer.decode(tokenizer.encode(text)), tokenizer) for text in dev]),
    }
    return {**figures, **read}, {**files, **more}


def twice(
    model: LanguageModel, tokenizer: Tokenizer, sentences: Sequence[list[int]], width: int | None
) -> tuple[Figures, dict[str, bytes]]:
    """The same texts read whole, and word by word; they differ only where a model sees the future."""
    tokens, nothing = tuple(len(ids) - 1 for ids in sentences), (0,) * len(sentences)
    whole = SentenceLosses(tuple(perplexity.whole_losses(model, sentences, tokenizer.pad, width)), tokens, nothing)
    apart = SentenceLosses(tuple(perplexity.prefix_losses(model, sentences)), tokens, nothing)
    figures = {"sentences": len(sentences), "whole": whole.token_perplexity, "word_by_word": apart.token_perplexity}
    return {"word_by_word": figures}, {"whole.csv": whole.to_csv(), "word_by_word.csv": apart.to_csv()}


def some(lines: Sequence[str], count: int) -> list[str]:
    """So many lines, the same for every run, in their order."""
    if len(lines) <= count:
        return list(lines)
    picked = np.random.default_rng(0).choice(len(lines), count, replace=False)
    return [lines[at] for at in sorted(picked.tolist())]


def spelled(text: str, tokenizer: Tokenizer) -> list[str]:
    """The words of a text; those of a vocabulary of words stand apart already."""
    return text.split() if tokenizer.words else split_words(text)


def quality(texts: Sequence[Sequence[str]]) -> Figures:
    """How texts are made: shares of unknown words, of punctuation and of different words, and their length."""
    words = [word for text in texts for word in text]
    count = max(1, len(words))
    return {
        "tokens": len(words),
        "unknown_share": words.count(UNKNOWN) / count,
        "punctuation_share": sum(not any(map(str.isalnum, word)) for word in words) / count,
        "distinct_share": len(set(words[:DISTINCT])) / min(count, DISTINCT),
        "mean_length": len(words) / max(1, len(texts)),
    }
