"""What a model could have answered: the exact probability of every known answer to a question, and of anything else.

The answers of a question file can be counted, so that nothing has to be sampled. They are laid out as a trie of tokens, which
is walked level by level: a beginning that several answers share is read once, with what the model keeps of the question.
An answer's probability is that of its tokens and of a closing symbol; what leaves the trie is summed up as one more outcome.

It knows models and tokens, not what is true, nor what follows for the person who asks: attnlab.stats judges confidences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, pairwise
from typing import TYPE_CHECKING

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from attnlab import stats
from attnlab.errors import DataError, UserError
from attnlab.evaluate import encode_question
from attnlab.model import LanguageModel
from attnlab.taps import eval_mode
from attnlab.tokenizers import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

    _Numbers = NDArray[np.float64]

ROWS = 2048  # beginnings of answers read at once
_FLOORED = 32  # questions at once where unlikely beginnings are left: few are read on


class AnswerTrie:
    """Every answer by its tokens, beginnings shared.

    Nodes are numbered level by level, the root 0, and the children of a node follow one another; `ends` is the answer that
    may be closed at a node, or -1. Behind a node lie the answers from `low` to `high` in the order of their tokens, and
    `order` leads from the order of `answers` to that one.
    """

    def __init__(self, tokenizer: Tokenizer, answers: Sequence[str]) -> None:
        self.answers = tuple(dict.fromkeys(answer.strip() for answer in answers))
        if not self.answers:
            raise DataError("there are no answers to choose from: give at least one")
        coded = [(_spelled(tokenizer, answer), place) for place, answer in enumerate(self.answers)]
        coded.sort()
        for (ids, place), (others, other) in pairwise(coded):
            if ids == others:
                both = f"{self.answers[place]!r} and {self.answers[other]!r}"
                raise DataError(f"the answers {both} are written alike by this tokenizer: keep one of them")
        sequences = [ids for ids, _ in coded]
        self.order = torch.tensor([place for _, place in coded]).argsort()
        self.depth = max(map(len, sequences))
        nodes = [(0, 0, len(sequences))]  # token, low, high
        first, count, ends = [], [], []
        begin = 0
        for depth in range(self.depth + 1):
            level = nodes[begin:]
            begin = len(nodes)
            for _, low, high in level:
                closed = len(sequences[low]) == depth
                first.append(len(nodes))
                nodes.extend(_children(sequences, depth, low + closed, high))
                count.append(len(nodes) - first[-1])
                ends.append(low if closed else -1)
        self.token, self.low, self.high = (torch.tensor(column) for column in zip(*nodes, strict=True))
        self.first, self.count, self.ends = torch.tensor(first), torch.tensor(count), torch.tensor(ends)

    def __len__(self) -> int:
        """How many answers there are; also the column of anything else."""
        return len(self.answers)

    @cached_property
    def index(self) -> dict[str, int]:
        """The column of every answer."""
        return {answer: place for place, answer in enumerate(self.answers)}

    def columns(self, answers: Sequence[str | None]) -> list[int]:
        """The columns of answers in a table of outcomes, the last one for any that is not in the trie."""
        return [len(self) if answer is None else self.index.get(answer.strip(), len(self)) for answer in answers]

    def below(self, nodes: Int[Tensor, " R"]) -> tuple[Int[Tensor, " E"], Int[Tensor, " E"]]:
        """The children of some nodes, each with the place of its parent among them."""
        count = self.count[nodes]
        parent = torch.arange(len(nodes)).repeat_interleave(count)
        rank = torch.arange(len(parent)) - (count.cumsum(0) - count)[parent]
        return parent, self.first[nodes][parent] + rank


def _spelled(tokenizer: Tokenizer, answer: str) -> list[int]:
    """The tokens of an answer, refused where a model could never write them as one."""
    ids = tokenizer.encode(answer)
    if not ids:
        raise DataError("an answer is empty: leave it out")
    if set(ids) & set(tokenizer.stops):
        raise DataError(f"the answer {answer!r} has a character that this tokenizer lacks: leave it out")
    return ids


def _children(sequences: list[list[int]], depth: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """The tokens that come next in some sorted sequences, each with the part of them that it leads to."""
    for token, part in groupby(range(low, high), key=lambda place: sequences[place][depth]):
        places = list(part)
        yield token, places[0], places[-1] + 1


@dataclass(frozen=True, eq=False)
class AnswerDistribution:
    """Log probabilities of all outcomes by question: a column for every answer, and a last one for anything else."""

    answers: tuple[str, ...]
    table: _Numbers  # [questions, answers + 1]

    @property
    def logp(self) -> _Numbers:
        """Log probabilities of the answers, [questions, answers]."""
        return self.table[:, :-1]

    @property
    def outside(self) -> _Numbers:
        """The probability of anything that is no known answer, by question."""
        return np.exp(self.table[:, -1])

    @property
    def likeliest(self) -> NDArray[np.int64]:
        """The column of the likeliest answer to each question, the first of equals."""
        return self.logp.argmax(axis=1)

    @property
    def confidence(self) -> _Numbers:
        """The probability of the likeliest answer to each question."""
        return np.exp(self.logp.max(axis=1))

    def best(self) -> list[tuple[str, float]]:
        """The likeliest answer to each question with its probability."""
        return [
            (self.answers[place], float(value)) for place, value in zip(self.likeliest, self.confidence, strict=True)
        ]

    def entropy(self) -> _Numbers:
        """How undecided the model is about each question, in nats, anything else being one outcome."""
        from scipy.special import entr

        return np.asarray(entr(np.exp(self.table)).sum(axis=1))

    def tempered(self, temperature: float) -> AnswerDistribution:
        """The same at another temperature of whole outcomes, as `stats.fit_temperature` finds it."""
        return AnswerDistribution(self.answers, stats.tempered(self.table, temperature))

    def if_known(self, chance: _Numbers) -> AnswerDistribution:
        """The same where each question's answers count only so far as its name is known; the rest is anything else."""
        with np.errstate(divide="ignore"):
            share = np.log(np.clip(chance, 0.0, 1.0))[:, None]
            outside = np.log1p(-np.clip(np.exp(self.logp + share).sum(axis=1), 0.0, 1.0))
        return AnswerDistribution(self.answers, np.concatenate([self.logp + share, outside[:, None]], axis=1))

    def prior(self) -> _Numbers:
        """The mean distribution over the questions: what the model says when it does not listen to the name."""
        return np.exp(self.table).mean(axis=0)

    def others(self) -> _Numbers:
        """For each question the mean distribution over all others."""
        questions = len(self.table)
        if questions < 2:
            raise UserError("one question has no others to be compared with: give the prior of some")
        chances = np.exp(self.table)
        rest = np.maximum(0.0, chances.sum(axis=0) - chances)
        return np.asarray(rest / (questions - 1))

    def distance(self, prior: _Numbers | None = None) -> _Numbers:
        """How far each question lies from a prior (that of the other questions, unless given): 0 alike, 1 nothing shared.

        It is the total variation: the probability that would have to move.
        """
        return np.asarray(np.abs(np.exp(self.table) - (self.others() if prior is None else prior)).sum(axis=1) / 2)

    def divergence(self, prior: _Numbers | None = None) -> _Numbers:
        """The same as a Kullback-Leibler divergence from the prior, in nats: what the name told the model."""
        from scipy.special import rel_entr

        expected = self.others() if prior is None else prior
        return np.asarray(rel_entr(np.exp(self.table), expected).sum(axis=1))


def answer_distribution(
    model: LanguageModel,
    tokenizer: Tokenizer,
    questions: Sequence[str],
    trie: AnswerTrie,
    temperature: float = 1.0,
    *,
    floor: float = 0.0,
    use_cache: bool = True,
) -> AnswerDistribution:
    """The probability of every answer of the trie to every question, and of anything else.

    A beginning less likely than `floor` is not read on, and its probability is shared out evenly among its answers, none of
    which is then off by more than `floor`; 0 reads everything. Without the cache every beginning is read from the first
    token of the question on: the readable reference.
    """
    cues = [
        encode_question(tokenizer, text, model.config.block_size, number)
        for number, text in enumerate(questions, start=1)
    ]
    for number, ids in enumerate(cues, start=1):
        if len(ids) + trie.depth > model.config.block_size:
            raise DataError(
                f"question {number} ({questions[number - 1][:40]!r}) takes {len(ids)} tokens, the longest answer"
                f" {trie.depth}, and the block of this model holds {model.config.block_size}: shorten the question"
            )
    if not cues:
        raise UserError("there is no question to answer: give at least one")
    if not 0 <= floor <= 1:
        raise UserError(f"the floor of probabilities must lie in [0, 1], not {floor}")
    table = torch.full((len(cues), len(trie) + 1), -math.inf, dtype=torch.float64)
    at_once = max(_FLOORED if floor > 0 else 1, ROWS // len(trie))
    by_length = sorted(range(len(cues)), key=lambda place: len(cues[place]))
    with eval_mode(model), torch.inference_mode():
        for _, group in groupby(by_length, key=lambda place: len(cues[place])):
            places = list(group)
            for begin in range(0, len(places), at_once):
                rows = places[begin : begin + at_once]
                asked = torch.tensor([cues[row] for row in rows])
                table[rows] = outcomes(model, asked, trie, tokenizer.stops, floor, use_cache)
    return AnswerDistribution(trie.answers, stats.tempered(table.numpy(), temperature))


def outcomes(
    model: LanguageModel,
    cues: Int[Tensor, "Q T"],
    trie: AnswerTrie,
    stops: tuple[int, ...],
    floor: float = 0.0,
    use_cache: bool = True,
) -> Float[Tensor, "Q A+1"]:
    """Log probabilities of all outcomes for questions of one length, by a walk down the trie.

    A row is one beginning of answers to one question. On each level every row is closed where an answer ends, goes on to its
    children, and loses what leads out of the trie.
    """
    closing = torch.tensor(stops)
    closed = torch.full((len(cues), len(trie)), -math.inf, dtype=torch.float64)
    outside = torch.zeros(len(cues), dtype=torch.float64)
    question, node = torch.arange(len(cues)), torch.zeros(len(cues), dtype=torch.int64)
    reached = torch.zeros(len(cues), dtype=torch.float64)
    empty = model.new_caches()
    caches = empty if use_cache and empty and all(hasattr(cache, "select") for cache in empty) else None
    ids = new = cues
    while len(node):
        scores = model.head(model.hidden(new, caches=caches)[:, -1])
        scores -= scores.amax(dim=-1, keepdim=True)
        parent, child = trie.below(node)
        edges = parent, trie.token[child]
        ending = (trie.ends[node] >= 0).nonzero().flatten()
        chosen, ended = scores[edges], scores[ending[:, None], closing].logsumexp(dim=-1)
        weights = scores.exp_()
        total = weights.sum(dim=-1)
        weights[edges] = 0
        weights[ending[:, None], closing] = 0
        outside.index_add_(0, question, reached.exp() * (weights.sum(dim=-1) / total).double())
        total = total.log()
        chosen, ended = chosen - total[parent], ended - total[ending]
        closed[question[ending], trie.ends[node[ending]]] = reached[ending] + ended.double()
        reached = reached[parent] + chosen.double()
        question, node = question[parent], child
        likely = reached >= (math.log(floor) if floor > 0 else -math.inf)
        if not likely.all():
            _share_out(closed, trie, question[~likely], node[~likely], reached[~likely])
            parent, question, node, reached = parent[likely], question[likely], node[likely], reached[likely]
        if caches is None:
            ids = new = torch.cat([ids[parent], trie.token[node][:, None]], dim=1)
        else:
            caches, new = [cache.select(parent) for cache in caches], trie.token[node][:, None]
    return torch.cat([closed[:, trie.order], outside.log()[:, None]], dim=1)


def _share_out(
    closed: Float[Tensor, "Q A"],
    trie: AnswerTrie,
    question: Int[Tensor, " R"],
    node: Int[Tensor, " R"],
    reached: Float[Tensor, " R"],
) -> None:
    """Give each answer behind a node an equal part of the node's probability."""
    count = trie.high[node] - trie.low[node]
    row = torch.arange(len(node)).repeat_interleave(count)
    rank = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
    closed[question[row], trie.low[node][row] + rank] = (reached - count.double().log())[row]
