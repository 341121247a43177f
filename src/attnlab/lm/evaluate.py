"""Evaluate a model: greedy decoding, sampling, exact match, and the most likely answers."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import takewhile
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlab.config import require_seed
from attnlab.corpora import Question
from attnlab.errors import DataError, UserError
from attnlab.inside.taps import eval_mode
from attnlab.lm.batches import batches_by_length
from attnlab.lm.exams import Examination
from attnlab.lm.model import LanguageModel
from attnlab.lm.tokenizers import Tokenizer

ROWS = 256  # questions answered at once

_Choose = Callable[[Float[Tensor, "B V"]], Int[Tensor, " B"]]  # chooses the next token of every row from its logits


def _likeliest(scores: Float[Tensor, "B V"]) -> Int[Tensor, " B"]:
    return scores.argmax(dim=-1)


@torch.inference_mode()
def continuation(
    model: LanguageModel,
    ids: Int[Tensor, "B T"],
    limit: int,
    stops: tuple[int, ...] = (),
    use_cache: bool = True,
    choose: _Choose = _likeliest,
    beyond: bool = False,
) -> Iterator[Int[Tensor, " B"]]:
    """Yield the next token of every row, until each had a stop symbol, up to `limit` tokens or the end of the block.

    With the cache, each step computes only the new token; without it, everything is recomputed (the reference). `beyond` the
    block, rows are continued from the last half of a block; longer ones, where the model reads them, from all of their tokens.
    """
    caches = model.new_caches() if use_cache else None
    new = ids = ids.to(model.device)
    running = torch.ones(len(ids), dtype=torch.bool, device=ids.device)
    start, block = ids.shape[1], model.config.block_size
    if start >= block:
        block = min(model.longest, start + limit)
    seen = start  # tokens that the model sees
    for _ in range(limit if beyond else min(limit, block - start)):
        if seen == block:
            caches, seen = model.new_caches() if use_cache else None, block // 2
            new = ids[:, -seen:]
        chosen = choose(model.head(model.hidden(new, caches=caches)[:, -1]))
        yield chosen
        ids, seen = torch.cat([ids, chosen[:, None]], dim=1), seen + 1
        new = ids[:, -seen:] if caches is None else chosen[:, None]
        for stop in stops:
            running &= chosen != stop
        if not running.any():
            break


def generate(
    model: LanguageModel, ids: Int[Tensor, "B T"], limit: int, stops: tuple[int, ...] = (), **options: Any
) -> list[list[int]]:
    """Continue each row as `continuation` does, with its options, up to a stop symbol (not included)."""
    steps = list(continuation(model, ids, limit, stops, **options))
    rows = torch.stack(steps, dim=1).tolist() if steps else [[] for _ in ids]
    return [list(takewhile(lambda token: token not in stops, row)) for row in rows]


def _by_chance(tokenizer: Tokenizer, rows: int, temperature: float, top_k: int, seed: int) -> _Choose:
    """Sample from the model's probabilities at a temperature, among the `top_k` most likely tokens (0: all).

    Every row has its own generator, so that a sample does not depend on the other rows.
    """
    seeds = [np.random.SeedSequence([seed, row]).generate_state(1).item() for row in range(rows)]
    generators = [torch.Generator().manual_seed(seed) for seed in seeds]
    never = [token for token in (tokenizer.start, tokenizer.pad) if token is not None and token != tokenizer.stop]

    def choose(scores: Tensor) -> Tensor:
        scores = scores[:, : tokenizer.size].clone()  # a model may have more output rows than the tokenizer has symbols
        for token in never:
            scores[:, token] = -math.inf
        if temperature == 0:
            return _likeliest(scores)
        if 0 < top_k < scores.shape[1]:
            scores[scores < scores.topk(top_k).values[:, -1:]] = -math.inf
        chances = (scores / temperature).softmax(dim=-1).cpu()  # where the generators are
        drawn = [torch.multinomial(row, 1, generator=rng) for row, rng in zip(chances, generators, strict=True)]
        return torch.cat(drawn).to(scores.device)

    return choose


def sample(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str = "",
    count: int = 5,
    *,
    temperature: float = 0.8,
    top_k: int = 0,
    seed: int = 0,
    limit: int = 100,
    use_cache: bool = True,
) -> list[str]:
    """Sample continuations of a prompt, each up to a stop symbol or `limit` new tokens; models of words stop at the block."""
    require_seed(seed)
    if count < 1 or limit < 1:
        raise UserError("samples need a count and a limit of at least 1")
    if not (math.isfinite(temperature) and temperature >= 0) or top_k < 0:
        raise UserError(f"temperature and top_k must not be negative, but are {temperature} and {top_k}")
    begin = tokenizer.opening(prompt) or [tokenizer.pad]
    if len(begin) >= model.longest:
        raise UserError(
            f"the prompt has {len(begin)} tokens, but the model's block holds {model.config.block_size}: shorten it"
        )
    choose = _by_chance(tokenizer, count, temperature, top_k, seed)
    beyond = not tokenizer.words  # sentences end with the block
    options = {"use_cache": use_cache, "choose": choose, "beyond": beyond}
    with eval_mode(model):
        written = generate(model, torch.tensor([begin] * count), limit, tokenizer.stops, **options)
    first = len(begin) - len(tokenizer.encode(prompt))
    return [tokenizer.decode([*begin[first:], *ids]) for ids in written]


def encode_question(tokenizer: Tokenizer, question: str, block_size: int, number: int = 1) -> list[int]:
    """Encode a question as a prompt: `question ⁇`."""
    ids = [*tokenizer.encode(question), tokenizer.mask]
    if len(ids) >= block_size:
        raise DataError(
            f"question {number} ({question[:40]!r}) has {len(ids)} tokens, but the model's block holds {block_size}:"
            " shorten it"
        )
    return ids


def encode_questions(tokenizer: Tokenizer, questions: Iterable[str], block_size: int) -> list[list[int]]:
    """Encode questions as prompts; one that does not fit into the block is an error."""
    return [encode_question(tokenizer, text, block_size, number) for number, text in enumerate(questions, start=1)]


def answer_all(model: LanguageModel, tokenizer: Tokenizer, questions: Sequence[str]) -> list[str]:
    """Answer every question greedily; questions of the same length are batched."""
    model.eval()
    cues = encode_questions(tokenizer, questions, model.config.block_size)
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
    start = encode_question(tokenizer, question, model.config.block_size)
    stops = torch.tensor([tokenizer.mask, tokenizer.pad])
    width = max(width, 2 * count)
    beams: list[tuple[list[int], float]] = [([], 0.0)]
    ended: dict[str, float] = defaultdict(float)
    for _ in range(model.config.block_size - len(start)):
        rows = torch.tensor([start + ids for ids, _ in beams], device=model.device)
        scores = model.head(model.hidden(rows)[:, -1]).log_softmax(dim=-1).cpu().double()
        total = scores + torch.tensor([[logp] for _, logp in beams], dtype=torch.float64)
        for (ids, _), ending in zip(beams, total[:, stops].logsumexp(dim=-1).tolist(), strict=True):
            ended[tokenizer.decode(ids).strip()] += math.exp(ending)
        total[:, stops] = -math.inf
        values, places = total.flatten().topk(min(width, total.numel() - len(beams) * len(stops)))
        best = zip(values.tolist(), places.tolist(), strict=True)
        beams = [([*beams[place // total.shape[1]][0], place % total.shape[1]], value) for value, place in best]
        certain = sorted(ended.values(), reverse=True)[:count]
        if len(certain) == count and math.exp(beams[0][1]) < certain[-1]:
            break
    return sorted(ended.items(), key=lambda item: -item[1])[:count]


def examine(model: LanguageModel, tokenizer: Tokenizer, questions: Sequence[Question]) -> Examination:
    """Answer every question of an exam."""
    return Examination(tuple(questions), tuple(answer_all(model, tokenizer, [item.question for item in questions])))
