"""The exact probability of every known answer to a question, and of anything else.

The possible answers are known, so that nothing has to be sampled. They form a trie of tokens, which is walked level by
level: a prefix shared by several answers is computed once, with the cache of the question. An answer's probability is that
of its tokens and of a stop symbol; everything outside the trie is summed as one more outcome.

It knows models and tokens, but not which answer is correct; attnlab.stats judges confidences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby, pairwise

import numpy as np
import torch
from jaxtyping import Float, Int
from numpy.typing import NDArray
from torch import Tensor

from attnlab.errors import DataError, UserError
from attnlab.inside.taps import eval_mode
from attnlab.lm.batches import batches_by_length
from attnlab.lm.evaluate import encode_questions
from attnlab.lm.model import LanguageModel
from attnlab.lm.tokenizers import Tokenizer

_Numbers = NDArray[np.float64]

ROWS = 2048  # answer prefixes per batch
_NAMES = 1024  # names per batch
_FLOORED = 32  # minimum questions per batch with a floor, which leaves few prefixes


class AnswerTrie:
    """A trie of the answers' tokens.

    Nodes are numbered level by level from the root, 0, and the children of a node are consecutive; `ends` is the answer that
    ends at a node, or -1. Below a node are the answers from `low` to `high`, sorted by tokens, and
    `order` maps the order of `answers` to that order.
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
                raise DataError(f"the answers {both} have the same tokens: keep one of them")
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
        """The number of answers; also the column of anything else."""
        return len(self.answers)

    def below(self, nodes: Int[Tensor, " R"]) -> tuple[Int[Tensor, " E"], Int[Tensor, " E"]]:
        """Return the children of nodes, each with the index of its parent."""
        count = self.count[nodes]
        parent = torch.arange(len(nodes)).repeat_interleave(count)
        rank = torch.arange(len(parent)) - (count.cumsum(0) - count)[parent]
        return parent, self.first[nodes][parent] + rank


def _spelled(tokenizer: Tokenizer, answer: str) -> list[int]:
    """Encode an answer; one that a model cannot generate is an error."""
    ids = tokenizer.encode(answer)
    if not ids:
        raise DataError("an answer is empty: leave it out")
    if set(ids) & set(tokenizer.stops):
        raise DataError(f"the answer {answer!r} has a character unknown to the tokenizer: leave it out")
    return ids


def _children(sequences: list[list[int]], depth: int, low: int, high: int) -> Iterator[tuple[int, int, int]]:
    """Yield the next tokens of sorted sequences, each with the range of sequences that continue with it."""
    for token, part in groupby(range(low, high), key=lambda place: sequences[place][depth]):
        places = list(part)
        yield token, places[0], places[-1] + 1


@dataclass(frozen=True, eq=False)
class AnswerDistribution:
    """Log probabilities per question: one column per answer, and a last one for anything else."""

    answers: tuple[str, ...]
    table: _Numbers  # [questions, answers + 1]

    @property
    def logp(self) -> _Numbers:
        """Log probabilities of the answers, [questions, answers]."""
        return self.table[:, :-1]

    @property
    def likeliest(self) -> NDArray[np.int64]:
        """The column of the most likely answer per question; the first one in a tie."""
        return self.logp.argmax(axis=1)

    @property
    def confidence(self) -> _Numbers:
        """The probability of the most likely answer per question."""
        return np.exp(self.logp.max(axis=1))

    def best(self) -> list[tuple[str, float]]:
        """Return the most likely answer to each question with its probability."""
        return [
            (self.answers[place], float(value)) for place, value in zip(self.likeliest, self.confidence, strict=True)
        ]

    def entropy(self) -> _Numbers:
        """Return the entropy per question in nats, with anything else as one outcome."""
        from scipy.special import entr

        return np.asarray(entr(np.exp(self.table)).sum(axis=1))

    def if_known(self, chance: _Numbers) -> AnswerDistribution:
        """Scale each question's answers by the probability that its name is known; the rest goes to anything else."""
        with np.errstate(divide="ignore"):
            share = np.log(np.clip(chance, 0.0, 1.0))[:, None]
            outside = np.log1p(-np.clip(np.exp(self.logp + share).sum(axis=1), 0.0, 1.0))
        return AnswerDistribution(self.answers, np.concatenate([self.logp + share, outside[:, None]], axis=1))

    def with_confidence(self, chance: _Numbers) -> AnswerDistribution:
        """Give the most likely answer of each question this probability, and keep the order of all answers.

        Where it falls, the other answers fall with it, and the rest goes to anything else; where it rises, everything else
        shares the loss.
        """
        rows, best, before = np.arange(len(self.table)), self.likeliest, self.confidence
        falls = chance <= before
        shares = np.exp(self.table)
        with np.errstate(divide="ignore", invalid="ignore"):
            shares *= np.where(falls, chance / before, (1 - chance) / (1 - before))[:, None]
            shares[rows, best] = chance
            shares[falls, -1] = np.maximum(0.0, 1 - shares[falls, :-1].sum(axis=1))
            return AnswerDistribution(self.answers, np.log(shares))

    def prior(self) -> _Numbers:
        """Return the mean distribution over the questions: what the model says regardless of the name."""
        return np.exp(self.table).mean(axis=0)

    def distance(self, prior: _Numbers) -> _Numbers:
        """Return the total variation distance from a prior per question, 0 to 1: the probability that would have to move."""
        return np.asarray(np.abs(np.exp(self.table) - prior).sum(axis=1) / 2)


def answer_distribution(
    model: LanguageModel,
    tokenizer: Tokenizer,
    questions: Sequence[str],
    trie: AnswerTrie,
    *,
    floor: float = 0.0,
    use_cache: bool = True,
) -> AnswerDistribution:
    """Compute the probability of every answer in the trie for every question, and of anything else.

    A prefix less likely than `floor` is not continued, and its probability is divided evenly among its answers, none of
    which is then off by more than `floor`; 0 computes everything. Without the cache, every prefix is recomputed from the first
    token of the question: the reference.
    """
    from scipy.special import log_softmax

    cues = encode_questions(tokenizer, questions, model.longest)
    for number, ids in enumerate(cues, start=1):
        if len(ids) + trie.depth > model.longest:
            raise DataError(
                f"question {number} ({questions[number - 1][:40]!r}) has {len(ids)} tokens, the longest answer"
                f" {trie.depth}, but the model's block holds {model.longest}: shorten the question"
            )
    if not cues:
        raise UserError("there are no questions: give at least one")
    if not 0 <= floor <= 1:
        raise UserError(f"the floor of probabilities must lie in [0, 1], not {floor}")
    table = torch.full((len(cues), len(trie) + 1), -math.inf, dtype=torch.float64)
    at_once = max(_FLOORED if floor > 0 else 1, ROWS // len(trie))
    with eval_mode(model), torch.inference_mode():
        for rows in batches_by_length(list(map(len, cues)), rows=at_once):
            asked = torch.tensor([cues[row] for row in rows], device=model.device)
            table[rows] = outcomes(model, asked, trie, tokenizer.stops, floor, use_cache)
    return AnswerDistribution(trie.answers, np.asarray(log_softmax(table.numpy(), axis=-1)))


def outcomes(
    model: LanguageModel,
    cues: Int[Tensor, "Q T"],
    trie: AnswerTrie,
    stops: tuple[int, ...],
    floor: float = 0.0,
    use_cache: bool = True,
) -> Float[Tensor, "Q A+1"]:
    """Compute the log probabilities of all outcomes for questions of equal length by walking down the trie.

    A row is one answer prefix for one question. On each level a row ends if an answer ends there, continues to its
    children, and loses the probability of leaving the trie.
    """
    closing = torch.tensor(stops)
    closed = torch.full((len(cues), len(trie)), -math.inf, dtype=torch.float64)
    outside = torch.zeros(len(cues), dtype=torch.float64)
    question, node = torch.arange(len(cues)), torch.zeros(len(cues), dtype=torch.int64)
    reached = torch.zeros(len(cues), dtype=torch.float64)
    empty = model.new_caches()
    caches = empty if use_cache and empty and all(hasattr(cache, "select") for cache in empty) else None
    ids = new = cues.cpu()
    while len(node):
        scores = model.head(model.hidden(new.to(model.device), caches=caches)[:, -1]).cpu()
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
            caches, new = [cache.select(parent.to(model.device)) for cache in caches], trie.token[node][:, None]
    return torch.cat([closed[:, trie.order], outside.log()[:, None]], dim=1)


def _share_out(
    closed: Float[Tensor, "Q A"],
    trie: AnswerTrie,
    question: Int[Tensor, " R"],
    node: Int[Tensor, " R"],
    reached: Float[Tensor, " R"],
) -> None:
    """Divide the probability of each node evenly among the answers below it."""
    count = trie.high[node] - trie.low[node]
    row = torch.arange(len(node)).repeat_interleave(count)
    rank = torch.arange(len(row)) - (count.cumsum(0) - count)[row]
    closed[question[row], trie.low[node][row] + rank] = (reached - count.double().log())[row]


def familiarity(model: LanguageModel, tokenizer: Tokenizer, names: Sequence[str]) -> _Numbers:
    """Return the model's own probability that it has read about each name; 1 if the model cannot read so long a name.

    Every person in the corpus occurs in training by the bare name, `name ⁇ something ⁇`. If training also contained
    strangers, invented names with an empty answer, the probability of a nonempty answer is the confidence that the name is
    known. Questions could not teach this: there, a person without a training question looks like a stranger. For a model
    trained without strangers every name is familiar, and nothing changes.
    """
    cues = [[*tokenizer.encode(name), tokenizer.mask] for name in names]
    shares = np.ones(len(cues))
    with eval_mode(model), torch.inference_mode():
        for rows in batches_by_length(list(map(len, cues)), rows=_NAMES):
            if len(cues[rows[0]]) <= model.longest:
                asked = torch.tensor([cues[row] for row in rows], device=model.device)
                scores = model.head(model.hidden(asked)[:, -1]).cpu()
                nothing = scores.softmax(dim=-1)[:, list(tokenizer.stops)].sum(dim=-1)
                shares[rows] = 1 - nothing.double().numpy()
    return shares
