"""Evaluate a model: answers to questions, exact match, and the most likely answers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import islice

import torch

from attnlab.corpora import Question
from attnlab.errors import DataError
from attnlab.lm.batches import batches_by_length
from attnlab.lm.decoding import Rows, extensions, generate
from attnlab.lm.exams import Examination
from attnlab.lm.model import LanguageModel
from attnlab.lm.tokenizers import Tokenizer

ROWS = 256  # questions answered at once


def encode_question(tokenizer: Tokenizer, question: str, longest: int, number: int = 1) -> list[int]:
    """Encode a question as a prompt: `question ⁇`."""
    ids = [*tokenizer.encode(question), tokenizer.mask]
    if len(ids) >= longest:
        raise DataError(
            f"question {number} ({question[:40]!r}) has {len(ids)} tokens, but the model's block holds {longest}:"
            " shorten it"
        )
    return ids


def encode_questions(tokenizer: Tokenizer, questions: Iterable[str], longest: int) -> list[list[int]]:
    """Encode questions as prompts; one that leaves no room for an answer is an error."""
    return [encode_question(tokenizer, text, longest, number) for number, text in enumerate(questions, start=1)]


def answer_all(model: LanguageModel, tokenizer: Tokenizer, questions: Sequence[str]) -> list[str]:
    """Answer every question greedily; questions of the same length are batched."""
    model.eval()
    cues = encode_questions(tokenizer, questions, model.longest)
    answers = [""] * len(cues)
    stops = (tokenizer.mask, tokenizer.pad)
    for rows in batches_by_length(list(map(len, cues)), rows=ROWS):
        written = generate(model, torch.tensor([cues[row] for row in rows]), model.config.block_size, stops)
        for row, ids in zip(rows, written, strict=True):
            answers[row] = " ".join(tokenizer.decode(ids).strip().splitlines())  # one prediction per line
    return answers


@torch.inference_mode()
def top_answers(
    model: LanguageModel, tokenizer: Tokenizer, question: str, count: int = 5, width: int = 16
) -> list[tuple[str, float]]:
    """Find the most likely complete answers with their probabilities by beam search, at least twice as wide as `count`."""
    model.eval()
    start = encode_question(tokenizer, question, model.longest)
    rows = Rows(model, torch.tensor([start]), model.config.block_size, use_cache=False)
    steps = extensions(rows, max(width, 2 * count), (tokenizer.mask, tokenizer.pad), lambda scores: scores)
    ended: dict[str, float] = defaultdict(float)
    for texts, ending, kept in islice(steps, rows.block - len(start)):
        for ids, logp in zip(texts, ending, strict=True):
            ended[tokenizer.decode(ids[len(start) :]).strip()] += math.exp(logp)
        certain = sorted(ended.values(), reverse=True)[:count]
        if len(certain) == count and kept and math.exp(kept[0]) < certain[-1]:
            break
    return sorted(ended.items(), key=lambda item: -item[1])[:count]


def examine(model: LanguageModel, tokenizer: Tokenizer, questions: Sequence[Question]) -> Examination:
    """Answer every question of an exam."""
    return Examination(tuple(questions), tuple(answer_all(model, tokenizer, [item.question for item in questions])))
