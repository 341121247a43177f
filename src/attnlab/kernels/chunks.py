"""The recurrence of scan.py in plain torch, chunk by chunk, by products of matrices.

Within a chunk, outputs are weighted averages of what its tokens add to the state; from one chunk to the next, the state is
multiplied by a matrix. Gradients are written out: autograd would keep every intermediate tensor.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnlab import ops
from attnlab.kernels.counting import counted

LEAST = -1000.0  # logarithm of a factor that is zero in float64: finite, so that differences of sums are
# FLOPs for each number of the state and token, if nothing is erased and if it is; the same in all forms.
FORWARD, BACKWARD = (4, 6), (10, 14)
_CHUNK = 32
_AT_ONCE = 1 << 17  # features of keys per piece of a text: what is computed for a piece stays in the processor's cache
# Tokens of a block are compared at once by scaling rows and keys by decays to the middle of the block, by exp(20) at most:
# more would lose digits, and at last overflow. Where decays are heavier, blocks are smaller.
_MODERATE = -40.0


@ops.in_float32
def by_chunks(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H T K"],
    v: Float[Tensor, "B H T E"],
    decay: Float[Tensor, "B H T #K"] | None = None,
    erase: Float[Tensor, "B H T #K"] | None = None,
    write: Float[Tensor, "B H T 1"] | None = None,
    state: Float[Tensor, "B H K E"] | None = None,
    scale: float = 1.0,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H K E"]]:
    """The same by products of matrices, chunk by chunk; gradients are of first order only."""
    batch, n_head, tokens, width = q.shape
    q, v = q * scale, v if write is None else v * write
    erase = None if erase is None else erase * k
    if state is None:
        state = v.new_zeros(batch, n_head, width, v.shape[-1])
    size = min(_CHUNK, 1 << (tokens - 1).bit_length())
    piece = max(1, _AT_ONCE // (batch * n_head * width * size)) * size
    inputs = (q, k, v, decay, erase)
    pieces = [[x] * -(-tokens // piece) if x is None else x.split(piece, dim=2) for x in inputs]
    outputs = []
    for parts in zip(*pieces, strict=True):
        numbers = parts[2].numel() * width
        filled = (None if x is None else ops.fill(x, rows=-x.shape[2] % size).unflatten(2, (-1, size)) for x in parts)
        output, state = _Chunks.apply(numbers, *filled, state)  # type: ignore[no-untyped-call]
        outputs.append(output.flatten(2, 3))
    return torch.cat(outputs, dim=2)[:, :, :tokens], state


class _Level(NamedTuple):
    """Comparison of every second block of a chunk with the block before it."""

    rows: list[Float[Tensor, "G N b K"]]  # of the second blocks, decayed from their start
    keys: Float[Tensor, "G N b K"]  # of the first blocks, decayed to their end
    first: Float[Tensor, "G N 1 #K"]  # the decay of the whole block
    second: Float[Tensor, "G N 1 #K"]


class _Compared(NamedTuple):
    """Rows and keys of chunks compared."""

    scores: list[Float[Tensor, "G C C"]]  # products of rows with the keys before them, decayed
    rows: list[Float[Tensor, "G C K"]]  # decayed from the start of the chunk
    keys: Float[Tensor, "G C K"]  # decayed to its end
    total: Float[Tensor, "G 1 #K"] | None  # the decay of the chunk
    within: tuple[list[Tensor], Tensor]  # rows and keys [G, N, b, K] of blocks compared at once, scaled to the middle
    scales: tuple[Tensor, ...] | None  # of rows and keys to the middle, of rows from the start, of keys to the end
    levels: list[_Level]


def _compare(
    rows: list[Float[Tensor, "G C K"]], keys: Float[Tensor, "G C K"], decay: Float[Tensor, "G C #K"] | None
) -> _Compared:
    """Multiply rows with the keys before them: within blocks at once, then block with block, in pairs of growing size."""
    if decay is None:
        within = [row[:, None] for row in rows], keys[:, None]
        return _Compared([row @ keys.mT for row in rows], rows, keys, None, within, None, [])
    size = keys.shape[1]
    decay, block = decay.clamp_min(LEAST), size
    passed = decay.cumsum(dim=1)[:, None]
    while block > 1 and passed[:, :, -1].amin() < _MODERATE:
        block //= 2
        passed = decay.unflatten(1, (-1, block)).cumsum(dim=2)
    total = passed[:, :, -1:]
    middle = (passed - total / 2).clamp(_MODERATE, -_MODERATE)  # the limits matter to blocks of one token
    up = middle.exp()
    scales = up, down, start, end = up, up.reciprocal(), passed.exp(), (total - passed).exp()
    total = total.exp()
    blocks = [x.unflatten(1, (-1, block)) for x in (*rows, keys)]
    within = [row * up for row in blocks[:-1]], blocks[-1] * down
    products = [row @ within[1].mT for row in within[0]]
    scores = [x[:, 0] if block == size else x.new_zeros(len(x), size, size) for x in products]
    if block < size:
        for score, part in zip(scores, products, strict=True):
            _diagonal_blocks(score, block).copy_(part)
    levels = []
    while block < size:
        firsts, seconds = zip(*(_halves(x) for x in (start, end, total)), strict=True)
        left = _halves(blocks[-1])[0] * firsts[1]
        right = [_halves(x)[1] * seconds[0] for x in blocks[:-1]]
        for score, row in zip(scores, right, strict=True):
            _left_blocks(score, block).copy_(row @ left.mT)
        levels.append(_Level(right, left, firsts[2], seconds[2]))
        start = torch.cat([firsts[0], seconds[0] * firsts[2]], dim=2)
        end = torch.cat([firsts[1] * seconds[2], seconds[1]], dim=2)
        total, block = firsts[2] * seconds[2], 2 * block
        blocks = [x.flatten(1, 2).unflatten(1, (-1, block)) for x in blocks]
    start, end, total = start[:, 0], end[:, 0], total[:, 0]
    return _Compared(scores, [row * start for row in rows], keys * end, total, within, scales, levels)


def _compare_backward(
    compared: _Compared,
    d_scores: list[Float[Tensor, "G C C"]],
    d_rows: list[Float[Tensor, "G C K"]],
    d_keys: Float[Tensor, "G C K"],
) -> None:
    """Turn gradients of decayed rows and keys into those of the rows and keys, in place."""
    for level in reversed(compared.levels):
        block = level.keys.shape[2]
        d_left = _halves(d_keys.unflatten(1, (-1, block)))[0].mul_(level.second)
        for d_score, d_row, row in zip(d_scores, d_rows, level.rows, strict=True):
            d_block = _left_blocks(d_score, block).contiguous()
            _halves(d_row.unflatten(1, (-1, block)))[1].mul_(level.first).add_(d_block @ level.keys)
            d_left.add_(d_block.mT @ row)
    below = compared.within[1]
    block = below.shape[2]
    d_below = d_keys.unflatten(1, (-1, block))
    if compared.scales is not None:
        up, down, start, end = compared.scales
        d_below.mul_(end)
    for d_score, d_row, row in zip(d_scores, d_rows, compared.within[0], strict=True):
        d_block, d_row = _diagonal_blocks(d_score, block).contiguous(), d_row.unflatten(1, (-1, block))
        if compared.scales is None:
            d_row.add_(d_block @ below)
            d_below.add_(d_block.mT @ row)
        else:
            d_row.mul_(start).addcmul_(d_block @ below, up)
            d_below.addcmul_(d_block.mT @ row, down)


def _halves(blocks: Float[Tensor, "G N b K"]) -> tuple[Float[Tensor, "G M b K"], Float[Tensor, "G M b K"]]:
    """The first and the second of every pair of blocks."""
    first, second = blocks.unflatten(1, (-1, 2)).unbind(2)
    return first, second


def _diagonal_blocks(scores: Float[Tensor, "G C C"], block: int) -> Float[Tensor, "G N b b"]:
    """The blocks on the diagonal, a view."""
    return scores.unflatten(2, (-1, block)).unflatten(1, (-1, block)).diagonal(dim1=1, dim2=3).movedim(-1, 1)


def _left_blocks(scores: Float[Tensor, "G C C"], block: int) -> Float[Tensor, "G M b b"]:
    """The block to the left of every second block of the diagonal, a view."""
    return _diagonal_blocks(scores, 2 * block)[:, :, block:, :block]


class _Chunks(torch.autograd.Function):
    """The recurrence of a text in chunks [B, H, N, C, ...].

    With es, qs the decayed rows and kd the decayed keys of a chunk, and S the state before it:
    (I + A) u = v - es S, output = scores u + qs S, next S = total S + kdᵀ u. So the next state is a matrix times S and a term.
    The gradient of a decay is the sum of q·dq + erase·d erase - k·dk over the tokens from its own to the end of the chunk, and
    S·dS there: a decay scales what is read after it, and all that was written before.
    """

    @staticmethod
    @counted
    def forward(
        ctx: Any,
        numbers: int,
        q: Float[Tensor, "B H N C K"],
        k: Float[Tensor, "B H N C K"],
        v: Float[Tensor, "B H N C E"],
        decay: Float[Tensor, "B H N C #K"] | None,
        erase: Float[Tensor, "B H N C K"] | None,
        state: Float[Tensor, "B H K E"],
    ) -> tuple[Float[Tensor, "B H N C E"], Float[Tensor, "B H K E"]]:
        ctx.shape, ctx.numbers, ctx.flops = v.shape, numbers, FORWARD[erase is not None] * numbers
        q, k, v = (x.flatten(0, 2) for x in (q, k, v))
        decay, erase = (None if x is None else x.flatten(0, 2) for x in (decay, erase))
        rows = [q] if erase is None else [q, erase]
        compared = _compare(rows, k, decay)
        compared.scores[0].tril_()
        transition = None if compared.total is None else compared.total.mT
        inverse, removed, u = None, None, v
        if erase is not None:
            unit = torch.eye(k.shape[1], dtype=k.dtype, device=k.device).expand_as(compared.scores[1])
            inverse = torch.linalg.solve_triangular(compared.scores[1], unit, upper=False, unitriangular=True)
            removed = inverse @ compared.rows[1]
            u = inverse @ v
            kept = 1.0 if compared.total is None else compared.total[:, 0]
            transition = (compared.keys.mT @ removed).neg_()
            transition.diagonal(dim1=1, dim2=2).add_(kept)
        states = _states(state.flatten(0, 1), transition, compared.keys.mT @ u)
        before = states[:, :-1].flatten(0, 1)
        if removed is not None:
            u = u.baddbmm_(removed, before, alpha=-1)
        output = (compared.rows[0] @ before).baddbmm_(compared.scores[0], u)
        ctx.compared = compared
        ctx.save_for_backward(q, k, decay, erase, transition, inverse, removed, u, states)
        return output.view(ctx.shape), states[:, -1].clone().view_as(state)  # a view would keep all states

    @staticmethod
    @once_differentiable
    @counted
    def backward(ctx: Any, d_output: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
        q, k, decay, erase, transition, inverse, removed, u, states = ctx.saved_tensors
        ctx.flops = BACKWARD[erase is not None] * ctx.numbers
        compared, d_output = ctx.compared, d_output.flatten(0, 2)
        d_u = compared.scores[0].mT @ d_output
        d_before = compared.rows[0].mT @ d_output
        if erase is not None:
            d_before.sub_(removed.mT @ d_u)
        d_states = _states(d_last.flatten(0, 1), transition, d_before, backward=True)
        before, d_after = states[:, :-1].flatten(0, 1), d_states[:, 1:].flatten(0, 1)
        d_u.baddbmm_(compared.keys, d_after)
        d_scores, d_rows, d_k = [d_output @ u.mT], [d_output @ before.mT], u @ d_after.mT
        d_scores[0].tril_()
        if erase is not None:
            d_u = inverse.mT @ d_u
            d_scores.append((d_u @ u.mT).neg_().tril_(-1))
            d_rows.append((d_u @ before.mT).neg_())
        _compare_backward(compared, d_scores, d_rows, d_k)
        d_decay = None
        if decay is not None:
            parts = torch.addcmul(q * d_rows[0], k, d_k, value=-1)
            if erase is not None:
                parts.addcmul_(erase, d_rows[1])
            parts[:, -1] += (states[:, 1:].flatten(0, 1) * d_after).sum(dim=-1)
            if decay.shape[-1] == 1:
                parts = parts.sum(dim=-1, keepdim=True)
            d_decay = parts.new_ones(k.shape[1], k.shape[1]).triu() @ parts
        gradients = (d_rows[0], d_k, d_u, d_decay, None if erase is None else d_rows[1])
        in_chunks = (None if x is None else x.unflatten(0, ctx.shape[:3]) for x in gradients)
        return None, *in_chunks, d_states[:, 0].unflatten(0, ctx.shape[:2])


def _states(
    state: Float[Tensor, "X K E"],
    transition: Float[Tensor, "G K _"] | None,
    additions: Float[Tensor, "G K E"],
    backward: bool = False,
) -> Float[Tensor, "X M K E"]:
    """States before, between and after chunks: each is the last, scaled or multiplied by a matrix, plus an addition."""
    chunks = (len(state), -1)
    added = additions.unflatten(0, chunks).unbind(1)
    factors = [None] * len(added) if transition is None else transition.unflatten(0, chunks).unbind(1)
    states = [state]
    for factor, addition in list(zip(factors, added, strict=True))[:: -1 if backward else 1]:
        if factor is None:
            state = addition + state
        elif factor.shape[-1] == 1:
            state = torch.addcmul(addition, factor, state)
        else:
            state = torch.baddbmm(addition, factor.mT if backward else factor, state)
        states.append(state)
    return torch.stack(states[:: -1 if backward else 1], dim=1)
