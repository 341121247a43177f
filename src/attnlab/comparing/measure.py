"""What is measured of a finished run: perplexities of text, probes, samples; or answers to questions.

Figures go to measured.json, what statistics need of every sentence or question to CSV files beside it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from attnlab import corpora, perplexity, stages
from attnlab.comparing.plan import Plan
from attnlab.corpora import Question
from attnlab.english import split_words
from attnlab.evaluate import examine, sample
from attnlab.flops import flops_per_token
from attnlab.model import LanguageModel, load_model
from attnlab.runs import Run, to_json, write_folder
from attnlab.taps import at_rest
from attnlab.tokenizers import UNKNOWN, Tokenizer

SAMPLES = 20  # texts that a model writes, the same draws for all
WORD_BY_WORD = 200  # sentences that are read again with nothing after each word
AT_ONCE = 4096  # tokens
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
    write_folder(target, {**files, "measured.json": to_json(figures)})


def work(plan: Plan, model: LanguageModel, tokenizer: Tokenizer) -> Figures:
    """The arithmetic of a token in training, in a text as long as those of the corpus are on average."""
    assert plan.corpus is not None
    lines = some(corpora.load_corpus(plan.corpus).lines, TYPICAL)
    tokens = round(sum(len(tokenizer.encode(line)) + 1 for line in lines) / len(lines))
    tokens = max(2, min(model.config.block_size, tokens))
    return {"flops_per_token": flops_per_token(model, tokens, training=True).total, "flops_length": tokens}


def on_questions(plan: Plan, model: LanguageModel, tokenizer: Tokenizer) -> tuple[Figures, dict[str, bytes]]:
    """Exact match, question by question."""
    assert plan.exam is not None
    exam: tuple[Question, ...] = corpora.load_questions(plan.exam)
    examination = examine(model, tokenizer, exam)
    right = "".join(f"{int(one)}\n" for one in examination.right).encode()
    predictions = "".join(prediction + "\n" for prediction in examination.predictions).encode()
    return examination.summary(), {"right.csv": b"right\n" + right, "predictions.txt": predictions}


def on_text(plan: Plan, run: Run, model: LanguageModel, tokenizer: Tokenizer) -> tuple[Figures, dict[str, bytes]]:
    """The losses of sentences, seen in training and not; probes; samples; and whether the model looks ahead."""
    assert plan.corpus is not None
    assert plan.dev is not None
    reading = stages.reading_of(run)
    dev, train = corpora.load_corpus(plan.dev).lines, corpora.load_corpus(plan.corpus).lines
    files: dict[str, bytes] = {}
    figures: Figures = {}
    for part, lines in (("dev", dev), ("train", some(train, len(dev)))):
        losses = perplexity.sentence_losses(model, tokenizer, lines, **reading)
        files[f"{part}.csv"] = losses.to_csv()
        figures[part] = losses.summary()
    texts = sample(model, tokenizer, "", SAMPLES, temperature=1.0, limit=reading.get("longest", 100))
    few = some(dev, WORD_BY_WORD)
    figures |= {
        "probes": perplexity.probe(model, tokenizer, plan.probes, **reading),
        "samples": texts,
        "sample_quality": quality([spelled(text, tokenizer) for text in texts]),
        "text_quality": quality([spelled(tokenizer.decode(tokenizer.encode(text)), tokenizer) for text in dev]),
        "word_by_word": {
            "sentences": len(few),
            "whole": perplexity.sentence_losses(model, tokenizer, few, **reading).token_perplexity,
            "word_by_word": word_by_word(model, tokenizer, few, reading.get("longest", 0)),
        },
    }
    return figures, files


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
        "distinct_share": len(set(words)) / count,
        "mean_length": len(words) / max(1, len(texts)),
    }


@torch.inference_mode()
def word_by_word(model: LanguageModel, tokenizer: Tokenizer, lines: Sequence[str], longest: int) -> float:
    """Token perplexity where each word is predicted from a text that ends before it, as when the model writes.

    A model that cannot see the future has the same perplexity as when it reads the sentences whole.
    """
    longest = min(longest or model.config.block_size, model.config.block_size)
    sentences = [tokenizer.sentence(line, longest) for line in lines]
    prefixes: dict[int, list[tuple[list[int], int]]] = {}
    for ids in sentences:
        for at in range(1, len(ids)):
            prefixes.setdefault(at, []).append((ids[:at], ids[at]))
    total, count = 0.0, 0
    with at_rest(model):
        for length, pairs in prefixes.items():
            rows = max(1, AT_ONCE // length)
            for at in range(0, len(pairs), rows):
                batch = pairs[at : at + rows]
                hidden = model.hidden(torch.tensor([ids for ids, _ in batch]))[:, -1]
                scores = model.head(hidden).log_softmax(dim=-1)
                aims = torch.tensor([aim for _, aim in batch])
                total -= scores.gather(1, aims[:, None]).double().sum().item()
                count += len(batch)
    return math.exp(total / count)
