"""Decoding: texts continued greedily, by sampling or by beam search; how much they repeat and how diverse they are."""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice, takewhile
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlab.config import require_seed
from attnlab.errors import UserError
from attnlab.inside.taps import eval_mode
from attnlab.lm.model import LanguageModel
from attnlab.lm.tokenizers import Tokenizer, split_words

_COLDEST = 1e-6  # temperature, below which scores overflow
_Choose = Callable[[Float[Tensor, "B V"]], Int[Tensor, " B"]]  # chooses the next token of every row from its scores


class Rows:
    """Rows of tokens that a model continues, by up to `limit` tokens.

    With the cache, each step computes only the new tokens; without it, everything is recomputed (the reference). Rows that
    fill the block are continued from their last half; rows that begin so long, where the model reads them, from all of it.
    """

    def __init__(self, model: LanguageModel, ids: Int[Tensor, "B T"], limit: int, use_cache: bool = True) -> None:
        self.model, self.ids = model, ids.to(model.device)
        self._use_cache = use_cache
        start, self.block = ids.shape[1], model.config.block_size
        if start >= self.block:
            self.block = min(model.longest, start + limit)
        self._begin(start)

    def _begin(self, tokens: int) -> None:
        """Let the model see the last tokens only, with an empty cache."""
        self._caches = self.model.new_caches() if self._use_cache else None
        self._seen = self._new = tokens

    def scores(self) -> Float[Tensor, "B V"]:
        """Compute the scores of the next token of every row."""
        if self._seen == self.block:
            self._begin(self._seen // 2)
        return self.model.head(self.model.hidden(self.ids[:, -self._new :], caches=self._caches)[:, -1])

    def append(self, tokens: Int[Tensor, " R"], parents: Int[Tensor, " R"] | None = None) -> None:
        """Append a token to every row, or to copies of the rows `parents`, which replace all rows."""
        tokens = tokens.to(self.ids.device)
        if parents is not None:
            parents = parents.to(self.ids.device)
            self.ids = self.ids[parents]
            if self._caches is not None:
                can_select = all(hasattr(cache, "select") for cache in self._caches)
                self._caches = [cache.select(parents) for cache in self._caches] if can_select else None
        self.ids = torch.cat([self.ids, tokens[:, None]], dim=1)
        self._seen += 1
        self._new = self._seen if self._caches is None else 1


@torch.inference_mode()
def continuation(
    model: LanguageModel,
    ids: Int[Tensor, "B T"],
    limit: int,
    stops: tuple[int, ...] = (),
    use_cache: bool = True,
    choose: _Choose = lambda scores: scores.argmax(dim=-1),
    beyond: bool = False,
) -> Iterator[Int[Tensor, " B"]]:
    """Yield the next token of every row, until each had a stop symbol, up to `limit` tokens or the end of the block.

    `beyond` the block, rows are continued from the last half of a block.
    """
    rows = Rows(model, ids, limit, use_cache)
    running = torch.ones(len(ids), dtype=torch.bool, device=model.device)
    for _ in range(limit if beyond else min(limit, rows.block - ids.shape[1])):
        chosen = choose(rows.scores())
        yield chosen
        rows.append(chosen)
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


# Sampling


def keep_likely(scores: Float[Tensor, "B V"], top_k: int = 0, top_p: float = 1.0) -> Float[Tensor, "B V"]:
    """Remove all but the `top_k` likeliest tokens (0: none; ties stay), then all but the nucleus: their scores become -inf.

    The nucleus is the smallest set of likeliest tokens whose probabilities sum to at least `top_p`.
    """
    if 0 < top_k < scores.shape[1]:
        scores = scores.masked_fill(scores < scores.topk(top_k).values[:, -1:], -math.inf)
    if top_p < 1:
        ordered, places = scores.sort(dim=-1, descending=True)
        chances = ordered.softmax(dim=-1)
        before = chances.cumsum(dim=-1) - chances
        scores = scores.masked_fill((before >= top_p).scatter(1, places, before >= top_p), -math.inf)
    return scores


def _writable(scores: Float[Tensor, "B V"], tokenizer: Tokenizer) -> Float[Tensor, "B S"]:
    """The scores of the tokenizer's symbols, on the CPU, without those that never occur within a text."""
    scores = scores[:, : tokenizer.size].cpu()  # a model may have more output rows than the tokenizer has symbols
    never = [token for token in (tokenizer.start, tokenizer.pad) if token is not None and token != tokenizer.stop]
    return scores.index_fill(1, torch.tensor(never, dtype=torch.int64), -math.inf)


def sample(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str = "",
    count: int = 5,
    *,
    temperature: float = 0.8,
    top_k: int = 0,
    top_p: float = 1.0,
    seed: int = 0,
    limit: int = 100,
    use_cache: bool = True,
) -> list[str]:
    """Sample continuations of a prompt, each up to a stop symbol or `limit` new tokens; models of words stop at the block.

    Tokens are drawn at the temperature, among the `top_k` likeliest (0: all), and of these among the likeliest that together
    have the probability `top_p`.
    """
    require_seed(seed)
    if not (temperature == 0 or _COLDEST <= temperature < math.inf) or top_k < 0:
        raise UserError(
            f"temperature must be 0 or at least {_COLDEST:g}, and top_k not negative, but they are {temperature} and {top_k}"
        )
    if not 0 < top_p <= 1:
        raise UserError(f"top_p is a share of the probability, above 0 and at most 1, not {top_p}")
    begin = _opening(model, tokenizer, prompt, count, limit)
    seeds = [np.random.SeedSequence([seed, row]).generate_state(1).item() for row in range(count)]
    generators = [torch.Generator().manual_seed(number) for number in seeds]  # so that no text depends on the others

    def choose(scores: Tensor) -> Tensor:
        scores = _writable(scores, tokenizer)
        if temperature == 0:
            return scores.argmax(dim=-1).to(model.device)
        chances = keep_likely(scores / temperature, top_k, top_p).softmax(dim=-1)
        drawn = [torch.multinomial(row, 1, generator=rng) for row, rng in zip(chances, generators, strict=True)]
        return torch.cat(drawn).to(model.device)

    options = {"use_cache": use_cache, "choose": choose, "beyond": not tokenizer.words}  # sentences end with the block
    with eval_mode(model):
        written = generate(model, torch.tensor([begin] * count), limit, tokenizer.stops, **options)
    return [_text(tokenizer, prompt, begin, [*begin, *ids]) for ids in written]


def _opening(model: LanguageModel, tokenizer: Tokenizer, prompt: str, count: int, limit: int) -> list[int]:
    """The tokens of a prompt that `count` texts of up to `limit` tokens continue."""
    if count < 1 or limit < 1:
        raise UserError("samples need a count and a limit of at least 1")
    begin = tokenizer.opening(prompt) or [tokenizer.pad]
    if len(begin) >= model.longest:
        raise UserError(f"the prompt has {len(begin)} tokens, but the model's block holds {model.longest}: shorten it")
    return begin


def _text(tokenizer: Tokenizer, prompt: str, begin: list[int], ids: list[int]) -> str:
    """The text of a prompt with what was written, without the symbol that begins it."""
    return tokenizer.decode(ids[len(begin) - len(tokenizer.encode(prompt)) :])


# Beam search


@dataclass(frozen=True)
class Beam:
    """A text found by beam search; its stop symbol, if it has one, counts among the tokens and in the log probability."""

    text: str
    score: float  # log probability / tokens^length_penalty
    log_probability: float
    tokens: int  # new ones


def extensions(
    rows: Rows, width: int, stops: Sequence[int], allowed: Callable[[Tensor], Tensor]
) -> Iterator[tuple[list[list[int]], list[float], list[float]]]:
    """Extend rows by every token that is allowed, and keep the `width` likeliest, step by step.

    Yields the rows before each step, the log probabilities that they end there, and those of the rows that are kept.
    """
    total = torch.zeros(1, dtype=torch.float64)
    while len(total):
        scores = total[:, None] + allowed(rows.scores()).cpu().double().log_softmax(dim=-1)
        before, ending = rows.ids.tolist(), scores[:, stops].logsumexp(dim=-1).tolist()
        scores[:, stops] = -math.inf
        total, places = scores.flatten().topk(min(width, scores.numel()))
        total, places = total[total > -math.inf], places[total > -math.inf]
        rows.append(places % scores.shape[1], places // scores.shape[1])
        yield before, ending, total.tolist()


@torch.inference_mode()
def beam_search(
    model: LanguageModel,
    tokenizer: Tokenizer,
    prompt: str = "",
    count: int = 1,
    *,
    beams: int = 4,
    length_penalty: float = 0.0,
    limit: int = 100,
    use_cache: bool = True,
) -> list[Beam]:
    """Find the continuations of highest score, log probability / tokens^length_penalty, keeping `beams` unfinished texts.

    A text ends with a stop symbol (all of them count as one) or after `limit` tokens; models of words stop at the block. Each
    step extends every kept text by every token and keeps the likeliest; what ends competes by score. With as many beams as
    there are texts the result is exact. The search stops early only where no kept text can enter the result.
    """
    if beams < 1 or not 0 <= length_penalty <= 10:
        raise UserError(f"beams must be at least 1, and length_penalty 0 to 10, not {beams} and {length_penalty}")
    begin = _opening(model, tokenizer, prompt, count, limit)
    rows = Rows(model, torch.tensor([begin]), limit, use_cache)
    longest = min(limit, rows.block - len(begin)) if tokenizer.words else limit
    ended: list[tuple[float, float, int, list[int]]] = []  # score, log probability, tokens, ids

    def best(texts: list[list[int]], totals: list[float], tokens: int) -> list[tuple[float, float, int, list[int]]]:
        """The best of what has ended, and of these texts if they end here."""
        new = zip(totals, texts, strict=True)
        return heapq.nlargest(count, [*ended, *((x / tokens**length_penalty, x, tokens, ids) for x, ids in new)])

    with eval_mode(model):
        steps = extensions(rows, beams, tokenizer.stops, partial(_writable, tokenizer=tokenizer))
        for tokens, (texts, ending, kept) in enumerate(islice(steps, longest), 1):
            ended = best(texts, ending, tokens)
            if not kept or (len(ended) == count and kept[0] / longest**length_penalty <= ended[-1][0]):
                break
        else:
            ended = best(rows.ids.tolist(), kept, longest)
    return [Beam(_text(tokenizer, prompt, begin, ids), score, total, tokens) for score, total, tokens, ids in ended]


# Repetition and diversity


@dataclass(frozen=True)
class Variety:
    """How much texts repeat themselves and how diverse they are; None where no text is long enough."""

    repetition: float | None
    diversity: float | None

    def __str__(self) -> str:
        shares = (
            "too short" if share is None else f"{100 * share:.1f} %" for share in (self.repetition, self.diversity)
        )
        return "repetition (seq-rep-4) {}, diversity (distinct-2) {}".format(*shares)


def variety(texts: Sequence[str], prompt: str = "") -> Variety:
    """Measure texts by their words after the prompt.

    Repetition is seq-rep-4, the mean over texts of the share of 4-grams that occurred before in the same text. Diversity is
    distinct-2, the number of distinct pairs of neighbours in all texts over the number of all pairs.
    """
    start = len(split_words(prompt))
    words = [split_words(text)[start:] for text in texts]
    repeated = [1 - len(set(grams)) / len(grams) for row in words if (grams := _ngrams(row, 4))]
    pairs = [pair for row in words for pair in _ngrams(row, 2)]
    return Variety(sum(repeated) / len(repeated) if repeated else None, len(set(pairs)) / len(pairs) if pairs else None)


def _ngrams(words: Sequence[str], n: int) -> list[tuple[str, ...]]:
    return list(zip(*(words[i:] for i in range(n)), strict=False))
