"""Additive attention over whole texts without storing its n² pairs: compiled, or in plain torch if it cannot be compiled.

    z_t = sum_s softmax_s(w · tanh(a_t + b_s)) v_s

Both forms recompute the pairs in the backward pass, so that memory grows with the length and not with its square. The plain
form takes a few queries at a time. It uses tanh(a + b) = 1 - 2 r with r = 1 / (1 + e^{2a} e^{2b}): the exponentials are per
token, and a pair costs one product and one reciprocal. The constant cancels in the softmax, and the derivative of tanh is
4 r (1 - r).
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnlab import ops
from attnlab.kernels import build, in_parts
from attnlab.kernels.counting import counted_as, pairs_seen

# FLOPs per pair: per channel, and per coordinate of the values; the same in both forms. A channel takes a sum, a tanh
# (counted as one) and a multiply-add; in the backward pass these again, and six from the score to a, b and w.
FORWARD, BACKWARD = (4, 2), (10, 4)
ALONE = 2**20  # sums; for a smaller problem a second thread only costs time
_FAR = 40.0  # beyond, e^{2a} leaves float32, and every pair takes its own exponential
_PAIRS = 2**18  # pairs times channels per piece of the plain form, to stay in the cache
_QUERIES = 32  # of a piece at most

Gradients = tuple[Tensor, Tensor, Tensor, Tensor]  # of a, b, w and v


@ops.in_float32  # 16 bits are too coarse for exponentials
def additive_attention(
    a: Float[Tensor, "B H T K"],
    b: Float[Tensor, "B H S K"],
    w: Float[Tensor, " K"],
    v: Float[Tensor, "B H S E"],
    padding: Bool[Tensor, "B S"] | None,
    causal: bool,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T E"]:
    """Return the weighted averages of the values; the queries are the last tokens of the keys.

    A query that sees nothing gets zeros.
    """
    seed = int(torch.randint(2**62, ())) if dropout else 0
    compiled = a.is_cpu and a.dtype == torch.float32 and build.load("additive") is not None
    return AdditiveAttention.apply(compiled, a, b, w, v, padding, causal, dropout, seed)  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Problem:
    """What both forms compute from; all tensors are contiguous."""

    a: Float[Tensor, "B H T K"]
    b: Float[Tensor, "B H S K"]
    w: Float[Tensor, " K"]
    v: Float[Tensor, "B H S E"]
    padding: Bool[Tensor, "B S"] | None
    causal: bool
    dropout: float
    seed: int

    def flops(self, each: tuple[int, int]) -> int:
        """FLOPs of one direction, without the pairs hidden by causality."""
        batch, heads, asked, width = self.a.shape
        seen, values = self.v.shape[2:]
        pairs = batch * heads * pairs_seen(asked, seen, self.causal, before=seen - asked)
        return pairs * (each[0] * width + each[1] * values)


class AdditiveAttention(torch.autograd.Function):
    """Additive attention in one of the two forms."""

    @staticmethod
    def forward(ctx: Any, compiled: bool, *inputs: Any) -> Tensor:
        """Return the averages of a Problem of these inputs; only the logarithm of every row's sum is saved with them."""
        contiguous: list[Any] = [x.contiguous() if isinstance(x, Tensor) else x for x in inputs]
        problem = Problem(*contiguous)
        with counted_as(lambda: problem.flops(FORWARD)):
            out, logsum = compiled_forward(problem) if compiled else plain_forward(problem)
        ctx.save_for_backward(problem.a, problem.b, problem.w, problem.v, problem.padding, out, logsum)
        ctx.compiled, ctx.rest = compiled, (problem.causal, problem.dropout, problem.seed)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of a, b, w and v."""
        *tensors, out, logsum = ctx.saved_tensors
        problem = Problem(*tensors, *ctx.rest)
        with counted_as(lambda: problem.flops(BACKWARD)):
            if ctx.compiled:
                gradients = compiled_backward(problem, out, logsum, gradient.contiguous())
            else:
                gradients = plain_backward(problem, gradient)
        return None, *gradients, None, None, None, None


# Compiled


class _Arguments(ctypes.Structure):
    """The struct of additive.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "v", "w", "hidden", "out", "logsum", "gradient")),
        *((name, ctypes.c_void_p) for name in ("da", "db", "dv", "dw")),
        *((name, ctypes.c_int64) for name in ("heads", "asked", "seen", "width", "values", "causal")),
        *((name, ctypes.c_uint64) for name in ("seed", "dropped")),
    )


def solve(function: str, problem: Problem, **results: Tensor) -> None:
    """Run a function of the library over all rows, in as many threads as torch uses."""
    batch, heads, asked, width = problem.a.shape
    seen, values = problem.v.shape[2:]
    sizes = {"heads": heads, "asked": asked, "seen": seen, "width": width, "values": values, "causal": problem.causal}
    tensors = {"a": problem.a, "b": problem.b, "w": problem.w, "v": problem.v, "hidden": problem.padding, **results}
    pointers = {name: tensor.data_ptr() for name, tensor in tensors.items() if tensor is not None}
    arguments = _Arguments(**pointers, **sizes, seed=problem.seed, dropped=int(problem.dropout * 2**32))
    threads = 1 if batch * heads * asked * seen * width < ALONE else torch.get_num_threads()
    call = build.function("additive", function, _Arguments)
    if any(in_parts(lambda begin, end: call(arguments, begin, end), batch * heads, threads)):
        raise MemoryError("the additive kernel found no memory: use a smaller batch")


def compiled_forward(problem: Problem) -> tuple[Tensor, Tensor]:
    """The averages, and the logarithm of every row's sum."""
    logsum = problem.a.new_empty(problem.a.shape[:3])
    out = problem.a.new_empty(*logsum.shape, problem.v.shape[-1])
    solve("additive_forward", problem, out=out, logsum=logsum)
    return out, logsum


def compiled_backward(problem: Problem, out: Tensor, logsum: Tensor, gradient: Tensor) -> Gradients:
    """The gradients, given those of the averages."""
    da, db, dv = (torch.empty_like(x) for x in (problem.a, problem.b, problem.v))
    dw = problem.w.new_empty(problem.a.shape[:2].numel(), len(problem.w))  # one row per head and text
    solve("additive_backward", problem, out=out, logsum=logsum, gradient=gradient, da=da, db=db, dv=dv, dw=dw)
    return da, db, dw.sum(dim=0), dv


# In plain torch. Rows are one per head and text.


class _Piece(NamedTuple):
    """Some queries of some rows, the keys visible to them, and the r of all pairs: [rows, queries, keys, channels]."""

    rows: slice
    asked: slice
    seen: slice
    r: Tensor
    pattern: Tensor
    weights: Tensor  # the pattern after dropout
    kept: Tensor | None  # dropout mask of the pattern, scaled


def _pieces(problem: Problem) -> Iterator[_Piece]:
    """All pairs, piece by piece, always in the same order and with the same dropout."""
    a, b = problem.a.flatten(0, 1), problem.b.flatten(0, 1)
    hidden = None if problem.padding is None else problem.padding.repeat_interleave(problem.a.shape[1], dim=0)
    far = any(bool((x.abs() > _FAR).any()) for x in (a, b))
    left, right = (a, b) if far else ((2 * a).exp(), (2 * b).exp())
    unit, chance = left.new_ones(()), torch.Generator().manual_seed(problem.seed)
    for rows, asked, seen in _cuts(problem):
        x, y = left[rows, asked, None], right[rows, None, seen]
        r = torch.sigmoid(-2 * (x + y)) if far else torch.addcmul(unit, x, y).reciprocal_()
        padding = None if hidden is None else hidden[rows, seen]
        mask = ops.visible(r.shape[1], r.shape[2], padding, problem.causal, r.device)
        pattern = ops.masked_softmax((r @ (-2 * problem.w))[:, None], mask)[:, 0]
        kept = None
        if problem.dropout:
            kept = (torch.rand(pattern.shape, generator=chance) >= problem.dropout).to(r) / (1 - problem.dropout)
        yield _Piece(rows, asked, seen, r, pattern, pattern if kept is None else pattern * kept, kept)


def _cuts(problem: Problem) -> Iterator[tuple[slice, slice, slice]]:
    """The rows, queries and keys of each piece."""
    batch, heads, queries, width = problem.a.shape
    count, keys, causal, begin = batch * heads, problem.b.shape[2], problem.causal, 0
    while begin < queries:
        reach = begin + keys - queries + 1 if causal else keys
        end = min(queries, begin + max(1, min(_QUERIES, _PAIRS // (reach * width))))
        seen = end + keys - queries if causal else keys
        step = max(1, _PAIRS // ((end - begin) * seen * width))
        for row in range(0, count, step):
            yield slice(row, min(count, row + step)), slice(begin, end), slice(seen)
        begin = end


def plain_forward(problem: Problem) -> tuple[Tensor, None]:
    """The averages; nothing else is saved."""
    values = problem.v.flatten(0, 1)
    out = problem.a.new_empty(*problem.a.shape[:3], values.shape[-1])
    for piece in _pieces(problem):
        out.flatten(0, 1)[piece.rows, piece.asked] = piece.weights @ values[piece.rows, piece.seen]
    return out, None


def plain_backward(problem: Problem, gradient: Tensor) -> Gradients:
    """The gradients, given those of the averages."""
    v, gradient = problem.v.flatten(0, 1), gradient.flatten(0, 1)
    da, db, dv = (torch.zeros_like(x.flatten(0, 1)) for x in (problem.a, problem.b, problem.v))
    dw = torch.zeros_like(problem.w)
    for piece in _pieces(problem):
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
    da, db = 4 * problem.w * da, 4 * problem.w * db
    return da.view_as(problem.a), db.view_as(problem.b), dw, dv.view_as(problem.v)


def matches_plain() -> bool:
    """Whether the compiled form gives the values and gradients of the plain one: short and long texts, with padding."""
    random = torch.Generator().manual_seed(0)
    for asked, seen, width, values, causal, size in (
        (19, 19, 5, 3, True, 1.0),
        (33, 90, 16, 17, True, 3.0),
        (70, 70, 33, 16, False, 1.0),
        (150, 150, 8, 40, True, 30.0),
    ):
        shapes = ((2, 2, asked, width), (2, 2, seen, width), (width,), (2, 2, seen, values), (2, 2, asked, values))
        a, b, w, v, gradient = (torch.randn(shape, generator=random) for shape in shapes)
        problem = Problem(a * size, b * size, w, v, torch.rand(2, seen, generator=random) < 0.3, causal, 0.0, 0)
        out, logsum = compiled_forward(problem)
        compiled = out, *compiled_backward(problem, out, logsum, gradient)
        plain = plain_forward(problem)[0], *plain_backward(problem, gradient)
        if not all(torch.allclose(*pair, rtol=1e-3, atol=1e-3) for pair in zip(compiled, plain, strict=True)):
            return False
    return True
