"""Examine a model: generate greedily, compare exactly, list the likeliest answers."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from attnlab import stats
from attnlab.corpora import Question
from attnlab.errors import DataError
from attnlab.model import LanguageModel
from attnlab.tasks import cut_at
from attnlab.tokenizers import Tokenizer

ROWS = 256  # questions answered at once


@torch.inference_mode()
def generate(
    model: LanguageModel, ids: Int[Tensor, "B T"], limit: int, stops: tuple[int, ...] = (), use_cache: bool = True
) -> list[list[int]]:
    """The likeliest continuation of each row, token by token, up to a stop symbol (left out) or `limit` tokens.

    With the cache each step computes the new token only; without it, everything again: the readable reference.
    """
    caches = model.new_caches() if use_cache else None
    new = ids
    running = torch.ones(len(ids), dtype=torch.bool)
    start = ids.shape[1]
    for _ in range(min(limit, model.config.block_size - start)):
        scores = model.head(model.hidden(new, caches=caches)[:, -1])
        chosen = scores.argmax(dim=-1)
        ids = torch.cat([ids, chosen[:, None]], dim=1)
        new = chosen[:, None] if use_cache else ids
        for stop in stops:
            running &= chosen != stop
        if not running.any():
            break
    return [cut_at(row, stops) for row in ids[:, start:].tolist()]


def cue(tokenizer: Tokenizer, question: str, block_size: int, number: int = 1) -> list[int]:
    """The ids that ask a question: `question ⁇`."""
    ids = [*tokenizer.encode(question), tokenizer.mask]
    if len(ids) >= block_size:
        raise DataError(
            f"question {number} ({question[:40]!r}) takes {len(ids)} tokens, and the block of this model holds {block_size}:"
            " shorten it"
        )
    return ids


def answer_all(model: LanguageModel, tokenizer: Tokenizer, questions: Sequence[str]) -> list[str]:
    """The greedy answer to every question, in order; questions of one length are answered together."""
    model.eval()
    by_length: dict[int, list[int]] = {}
    cues = [cue(tokenizer, text, model.config.block_size, number) for number, text in enumerate(questions, start=1)]
    for index, ids in enumerate(cues):
        by_length.setdefault(len(ids), []).append(index)
    answers = [""] * len(cues)
    stops = (tokenizer.mask, tokenizer.pad)
    for indices in by_length.values():
        for begin in range(0, len(indices), ROWS):
            rows = indices[begin : begin + ROWS]
            written = generate(model, torch.tensor([cues[row] for row in rows]), model.config.block_size, stops)
            for row, ids in zip(rows, written, strict=True):
                answers[row] = " ".join(tokenizer.decode(ids).strip().splitlines())  # one prediction a line
    return answers


@torch.inference_mode()
def top_answers(
    model: LanguageModel, tokenizer: Tokenizer, question: str, count: int = 5, width: int = 16
) -> list[tuple[str, float]]:
    """The likeliest whole answers with their probabilities, by beam search over at least twice as many beginnings."""
    model.eval()
    start = cue(tokenizer, question, model.config.block_size)
    stops = torch.tensor([tokenizer.mask, tokenizer.pad])
    width = max(width, 2 * count)
    beams: list[tuple[list[int], float]] = [([], 0.0)]
    ended: dict[str, float] = defaultdict(float)
    for _ in range(model.config.block_size - len(start)):
        rows = torch.tensor([start + ids for ids, _ in beams])
        scores = model.head(model.hidden(rows)[:, -1]).log_softmax(dim=-1).double()
        total = scores + torch.tensor([[logp] for _, logp in beams], dtype=torch.float64)
        for (ids, _), ending in zip(beams, total[:, stops].logsumexp(dim=-1).tolist(), strict=True):
            ended[tokenizer.decode(ids).strip()] += math.exp(ending)
        total[:, stops] = -math.inf
        values, places = total.flatten().topk(min(width, total.numel() - len(beams) * len(stops)))
        found = zip(values.tolist(), places.tolist(), strict=True)
        beams = [([*beams[place // total.shape[1]][0], place % total.shape[1]], value) for value, place in found]
        certain = sorted(ended.values(), reverse=True)[:count]
        if len(certain) == count and math.exp(beams[0][1]) < certain[-1]:
            break
    return sorted(ended.items(), key=lambda item: -item[1])[:count]


@dataclass(frozen=True)
class Examination:
    """Predictions, and how they compare with the answers, if there are any."""

    questions: tuple[Question, ...]
    predictions: tuple[str, ...]

    @property
    def answered(self) -> bool:
        """Whether the right answers are known."""
        return all(item.answer is not None for item in self.questions)

    @property
    def right(self) -> list[bool]:
        """Exact match, question by question."""
        return [
            prediction == (item.answer or "").strip()
            for item, prediction in zip(self.questions, self.predictions, strict=True)
        ]

    def summary(self) -> dict[str, Any]:
        """Counts, accuracy with its interval, and the share of the commonest prediction."""
        commonest, times = Counter(self.predictions).most_common(1)[0]
        summary: dict[str, Any] = {
            "questions": len(self.predictions),
            "commonest_prediction": commonest,
            "commonest_share": times / len(self.predictions),
            "distinct_predictions": len(set(self.predictions)),
        }
        if self.answered:
            correct = sum(self.right)
            low, high = stats.proportion_interval(correct, len(self.predictions))
            summary |= {"correct": correct, "accuracy": correct / len(self.predictions), "low": low, "high": high}
        return summary

    def sentence(self) -> str:
        """The line that the course's script prints, with the interval behind it."""
        summary = self.summary()
        if not self.answered:
            return f"Predicted: {summary['questions']} answers (the examination has none to compare with)"
        share, low, high = (100 * summary[key] for key in ("accuracy", "low", "high"))
        return (
            f"Correct: {summary['correct']} out of {summary['questions']}: {share:.1f}%"
            f" (95 % interval {low:.1f} to {high:.1f} %)"
        )


def examine(model: LanguageModel, tokenizer: Tokenizer, questions: Sequence[Question]) -> Examination:
    """Ask every question."""
    return Examination(tuple(questions), tuple(answer_all(model, tokenizer, [item.question for item in questions])))


def majority(train: Sequence[Question], exam: Sequence[Question]) -> Examination:
    """The baseline that always gives the commonest training answer."""
    commonest = Counter(item.answer for item in train if item.answer is not None).most_common(1)[0][0]
    return Examination(tuple(exam), (commonest,) * len(exam))
