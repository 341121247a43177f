"""Additive attention in plain torch, a few queries at a time.

tanh(a + b) = 1 - 2 r with r = 1 / (1 + e^{2a} e^{2b}): the exponentials are per token, and a pair costs one product and one
reciprocal. The constant cancels in the softmax, and the derivative of tanh is 4 r (1 - r).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnlab import ops
from attnlab.kernels.counting import counted_as, pairs_seen

# FLOPs per pair: per channel, and per coordinate of the values; the same in both versions. A channel takes a sum, a tanh
# (counted as one) and a multiply-add; in the backward pass these again, and six from the score to a, b and w.
FORWARD, BACKWARD = (4, 2), (10, 4)
_FAR = 40.0  # beyond, e^{2a} leaves float32, and every pair takes its own exponential
_PAIRS = 2**18  # pairs times channels per piece, to stay in the cache
_QUERIES = 32  # of a piece at most


def flops(each: tuple[int, int], a: Tensor, b: Tensor, v: Tensor, causal: bool) -> int:
    """FLOPs of one direction, without the pairs hidden by causality."""
    asked, seen = a.shape[2], b.shape[2]
    pairs = a.shape[:2].numel() * pairs_seen(asked, seen, causal, before=seen - asked)
    return pairs * (each[0] * a.shape[3] + each[1] * v.shape[3])


@dataclass(frozen=True)
class _Piece:
    """Some queries of some rows, the keys visible to them, and the r of all pairs: [rows, queries, keys, channels]."""

    rows: slice
    asked: slice
    seen: slice
    r: Tensor
    pattern: Tensor
    kept: Tensor | None  # dropout mask of the pattern, scaled

    @property
    def weights(self) -> Tensor:
        """The pattern after dropout."""
        return self.pattern if self.kept is None else self.pattern * self.kept


@dataclass(frozen=True)
class _Problem:
    """Rows (one per head and text), and what both directions need."""

    a: Tensor
    b: Tensor
    w: Tensor
    padding: Tensor | None
    causal: bool
    dropout: float
    seed: int

    def pieces(self) -> Iterator[_Piece]:
        """All pairs, piece by piece, always in the same order and with the same dropout."""
        far = any(bool((x.abs() > _FAR).any()) for x in (self.a, self.b))
        left, right = (self.a, self.b) if far else ((2 * self.a).exp(), (2 * self.b).exp())
        unit, chance = left.new_ones(()), torch.Generator().manual_seed(self.seed)
        for rows, asked, seen in self.cuts():
            x, y = left[rows, asked, None], right[rows, None, seen]
            r = torch.sigmoid(-2 * (x + y)) if far else torch.addcmul(unit, x, y).reciprocal_()
            pattern = self.soften(r @ (-2 * self.w), rows, seen)
            kept = None
            if self.dropout:
                kept = (torch.rand(pattern.shape, generator=chance) >= self.dropout).to(r) / (1 - self.dropout)
            yield _Piece(rows, asked, seen, r, pattern, kept)

    def cuts(self) -> Iterator[tuple[slice, slice, slice]]:
        """The rows, queries and keys of each piece."""
        (count, queries, width), keys = self.a.shape, self.b.shape[1]
        begin = 0
        while begin < queries:
            reach = begin + keys - queries + 1 if self.causal else keys
            end = min(queries, begin + max(1, min(_QUERIES, _PAIRS // (reach * width))))
            seen = end + keys - queries if self.causal else keys
            step = max(1, _PAIRS // ((end - begin) * seen * width))
            for row in range(0, count, step):
                yield slice(row, min(count, row + step)), slice(begin, end), slice(seen)
            begin = end

    def soften(self, scores: Tensor, rows: slice, seen: slice) -> Tensor:
        """The softmax over the visible keys."""
        padding = None if self.padding is None else self.padding[rows, seen]
        mask = ops.visible(scores.shape[1], scores.shape[2], padding, self.causal, scores.device)
        if mask is None:
            return scores.softmax(dim=-1)
        mask = mask[:, 0]
        pattern = scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)
        return pattern.masked_fill(~mask.any(dim=-1, keepdim=True), 0.0)


class PlainAdditive(torch.autograd.Function):
    """The plain torch version."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        w: Tensor,
        v: Tensor,
        padding: Tensor | None,
        causal: bool,
        dropout: float,
        seed: int,
    ) -> Tensor:
        """Return the averages."""
        ctx.save_for_backward(a, b, w, v)
        ctx.heads = a.shape[1]
        rows = None if padding is None else padding.repeat_interleave(ctx.heads, dim=0)
        ctx.rest = (rows, causal, dropout, seed)
        values, out = v.flatten(0, 1), a.new_empty(*a.shape[:3], v.shape[-1])
        with counted_as(lambda: flops(FORWARD, a, b, v, causal)):
            for piece in _Problem(a.flatten(0, 1), b.flatten(0, 1), w, *ctx.rest).pieces():
                out.flatten(0, 1)[piece.rows, piece.asked] = piece.weights @ values[piece.rows, piece.seen]
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of a, b, w and v."""
        a, b, w, v = ctx.saved_tensors
        with counted_as(lambda: flops(BACKWARD, a, b, v, ctx.rest[1])):
            da, db, dw, dv = _gradients(
                _Problem(a.flatten(0, 1), b.flatten(0, 1), w, *ctx.rest), v.flatten(0, 1), gradient.flatten(0, 1)
            )
        da, db, dv = (x.unflatten(0, (-1, ctx.heads)) for x in (da, db, dv))
        return da, db, dw, dv, None, None, None, None


def _gradients(problem: _Problem, v: Tensor, gradient: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Those of a, b, w and v."""
    da, db, dw, dv = (torch.zeros_like(x) for x in (problem.a, problem.b, problem.w, v))
    for piece in problem.pieces():
        arriving = gradient[piece.rows, piece.asked]
        dv[piece.rows, piece.seen] += piece.weights.transpose(1, 2) @ arriving
        through = arriving @ v[piece.rows, piece.seen].transpose(1, 2)
        if piece.kept is not None:
            through = through * piece.kept
        dscore = piece.pattern * (through - (piece.pattern * through).sum(dim=-1, keepdim=True))
        dw -= 2 * (dscore.flatten() @ piece.r.flatten(0, 2))
        slope = torch.addcmul(piece.r, piece.r, piece.r, value=-1).mul_(dscore[..., None])
        da[piece.rows, piece.asked] = slope.sum(dim=2)
        db[piece.rows, piece.seen] += slope.sum(dim=1)
    return 4 * problem.w * da, 4 * problem.w * db, dw, dv
