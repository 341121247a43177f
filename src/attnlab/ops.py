"""Pure tensor functions, and the legend of shape letters used in every signature.

B batch   T query tokens   S key tokens   D width of the residual stream   H heads   C width of a head
G heads of keys and values   V vocabulary   N targets
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import wraps
from typing import Literal, ParamSpec, TypeVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

EPSILON = torch.finfo(torch.float32).eps  # of norms: torch's default would differ with the dtype
_P = ParamSpec("_P")
_R = TypeVar("_R", Tensor, tuple[Tensor, Tensor])


def single(x: Tensor) -> Tensor:
    """Return bfloat16 and float16 as float32, anything else as it is."""
    return x.float() if x.dtype in (torch.bfloat16, torch.float16) else x


def without_autocast(x: Tensor) -> AbstractContextManager[object]:
    """A block without autocast on the device of a tensor."""
    kind = x.device.type
    return torch.autocast(kind, enabled=False) if torch.amp.is_autocast_available(kind) else nullcontext()


def in_float32(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """Decorate a function to compute in float32 without autocast; the result has the dtype of 16-bit arguments."""

    @wraps(function)
    def computed(*given: _P.args, **named: _P.kwargs) -> _R:
        tensors = [value for value in given if isinstance(value, Tensor) and value.is_floating_point()]
        kind = tensors[0].device.type
        coarse = [tensor.dtype for tensor in tensors if tensor.itemsize == 2]
        if not coarse and not (torch.amp.is_autocast_available(kind) and torch.is_autocast_enabled(kind)):
            return function(*given, **named)
        with torch.autocast(kind, enabled=False):
            out = function(*(single(value) if isinstance(value, Tensor) else value for value in given), **named)  # type: ignore[arg-type]
        if not coarse:
            return out
        return out.to(coarse[0]) if isinstance(out, Tensor) else (out[0].to(coarse[0]), out[1].to(coarse[0]))

    return computed


def split_heads(x: Float[Tensor, "B T D"], n_head: int) -> Float[Tensor, "B H T C"]:
    """Split the width into heads."""
    batch, tokens, width = x.shape
    return x.view(batch, tokens, n_head, width // n_head).transpose(1, 2)


RotaryLayout = Literal["half", "interleaved"]


@dataclass(frozen=True)
class Rotary:
    """How rotary positions rotate a head: its pairs of coordinates, the base of their frequencies, and the rotated share.

    Pairs are (i, i + R/2) in the layout `half`, as in Llama, and (2i, 2i + 1) in `interleaved`, as in GPT-J, among the first
    R coordinates.
    """

    layout: RotaryLayout = "half"
    base: float = 10_000.0
    fraction: float = 1.0

    def width(self, head: int) -> int:
        """The number of rotated coordinates of a head of this width: whole pairs, at least one."""
        return max(2, 2 * round(head * self.fraction / 2))


ROTARY = Rotary()


def _angles(tokens: int, width: int, base: float, start: int) -> Float[Tensor, "T P"]:
    """The angle of every pair of coordinates at positions from `start` on."""
    frequency = base ** -(torch.arange(0, width, 2, dtype=torch.float64) / width)
    return torch.outer(torch.arange(start, start + tokens, dtype=torch.float64), frequency)


def rotary_table(tokens: int, width: int, base: float = 10_000.0, start: int = 0) -> Float[Tensor, "T R"]:
    """Cosines, then sines, of the rotary angle per position and pair of coordinates (arXiv:2104.09864)."""
    angle = _angles(tokens, width, base, start)
    return torch.cat([angle.cos(), angle.sin()], dim=-1).float()


def sinusoidal_table(tokens: int, width: int, start: int = 0) -> Float[Tensor, "T D"]:
    """Sine and cosine of the angle of a position, in turn, for every pair of coordinates (arXiv:1706.03762)."""
    angle = _angles(tokens, width, 10_000.0, start)
    return torch.stack([angle.sin(), angle.cos()], dim=-1).flatten(1)[:, :width].float()


def rotate(
    x: Float[Tensor, "B H T C"], table: Float[Tensor, "T R"], layout: RotaryLayout = "half"
) -> Float[Tensor, "B H T C"]:
    """Rotate every pair of the first R coordinates by the angle of its position."""
    cosine, sine = table.chunk(2, dim=-1)
    rotated, rest = x.split([table.shape[-1], x.shape[-1] - table.shape[-1]], dim=-1)
    pairs = rotated.unflatten(-1, (2, -1) if layout == "half" else (-1, 2))
    left, right = pairs.unbind(-2 if layout == "half" else -1)
    left, right = left * cosine - right * sine, left * sine + right * cosine
    if layout == "half":
        return torch.cat([left, right, rest], dim=-1)
    return torch.cat([torch.stack([left, right], dim=-1).flatten(-2), rest], dim=-1)


def convert_rotary(
    weight: Float[Tensor, "N ..."], heads: int, layout: RotaryLayout, fraction: float = 1.0
) -> Float[Tensor, "N ..."]:
    """Permute the weight or bias of queries or keys, so that `layout` gives the scores that the other layout gave before.

    `heads` are those of this projection; the values and the output projection stay as they are.
    """
    parts = weight.unflatten(0, (heads, -1))
    order = torch.arange(parts.shape[1], device=weight.device)
    rotated = order[: Rotary(fraction=fraction).width(len(order))]
    pairs = rotated.view(-1, 2) if layout == "half" else rotated.view(2, -1)
    return parts[:, torch.cat([pairs.T.flatten(), order[len(rotated) :]])].flatten(0, 1)


def rms_norm(x: Float[Tensor, "... C"]) -> Float[Tensor, "... C"]:
    """Scale to a root mean square of one."""
    return F.rms_norm(x, (x.shape[-1],), eps=EPSILON)


def blank(x: Float[Tensor, "B H T C"], padding: Bool[Tensor, "B T"] | None) -> Float[Tensor, "B H T C"]:
    """Set padded positions to zero."""
    return x if padding is None else x.masked_fill(padding[:, None, :, None], 0.0)


def fill(x: Tensor, columns: int = 0, rows: int = 0, value: float = 0.0) -> Tensor:
    """Pad with columns and rows of one value; without padding return the same tensor, which F.pad would copy."""
    return F.pad(x, (0, columns, 0, rows), value=value) if columns or rows else x


def visible(
    asked: int,
    seen: int,
    padding: Bool[Tensor, "B S"] | None,
    causal: bool,
    device: torch.device | None = None,
) -> Bool[Tensor, "#B 1 T S"] | None:
    """Return the attention mask (True: visible), or None for all; the queries are the last of the keys' tokens."""
    mask = None
    if causal and asked > 1:
        mask = torch.ones(asked, seen, dtype=torch.bool, device=device).tril(seen - asked)[None, None]
    if padding is not None:
        kept = ~padding[:, None, None, :]
        mask = kept.expand(-1, 1, asked, -1) if mask is None else mask & kept
    return mask


def masked_softmax(
    scores: Float[Tensor, "#B H T S"], mask: Bool[Tensor, "#B 1 T S"] | None
) -> Float[Tensor, "#B H T S"]:
    """Softmax over the visible tokens; a row that sees nothing is zero."""
    if mask is None:
        return scores.softmax(dim=-1)
    blind = ~mask.any(dim=-1, keepdim=True)  # zeroed after the softmax: masked before, the gradient would be NaN
    return scores.masked_fill(~(mask | blind), float("-inf")).softmax(dim=-1).masked_fill(blind, 0.0)


def repeat_heads(x: Float[Tensor, "B G T C"], heads: int) -> Float[Tensor, "B H T C"]:
    """Repeat the keys or values of a group for each of its heads; without groups return the same tensor."""
    return x if x.shape[1] >= heads else x.repeat_interleave(heads // x.shape[1], dim=1)


def dot_scores(q: Float[Tensor, "B H T C"], k: Float[Tensor, "B G S C"]) -> Float[Tensor, "B H T S"]:
    """Return the products of queries and keys over the root of their width."""
    return q @ repeat_heads(k, q.shape[1]).transpose(-2, -1) / q.shape[-1] ** 0.5


def attention_pattern(
    q: Float[Tensor, "B H T C"], k: Float[Tensor, "B G S C"], mask: Bool[Tensor, "#B 1 T S"] | None
) -> Float[Tensor, "B H T S"]:
    """Return the weights of scaled dot-product attention."""
    return masked_softmax(dot_scores(q, k), mask)


def feature_pattern(
    q: Float[Tensor, "B H T M"], k: Float[Tensor, "B H S M"], mask: Bool[Tensor, "#B 1 T S"] | None
) -> Float[Tensor, "B H T S"]:
    """Return the weights of a positive feature kernel, exp(q)·exp(k), given the logarithms of the features."""
    rows = [
        (row[:, :, :, None] + k[:, :, None]).logsumexp(dim=-1) for row in q.split(16, dim=2)
    ]  # in slices, to bound memory
    return masked_softmax(torch.cat(rows, dim=2), mask)


def summary_pattern(
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B H S C"],
    mask: Bool[Tensor, "#B 1 T S"] | None,
    block: int,
    mixtures: Callable[[int], tuple[Tensor, Tensor]],
) -> Float[Tensor, "B H T S"]:
    """Return the weights of blockwise causal attention: over the own block, and over rows that summarise all before it.

    `mixtures` gives, for the start of a block, how the rows mix the keys and values before it; the weight of a row is passed
    on to the tokens by its mixture of values.
    """
    asked, seen = q.shape[2], k.shape[2]
    start = seen - asked
    parts = []
    for first in range(start // block * block, seen, block):
        last, queries = min(first + block, seen), slice(max(first, start) - start, min(first + block, seen) - start)
        mix_keys, mix_values = (mix[..., : mix.shape[-2] if first else 0, :] for mix in mixtures(first))
        rows = mix_keys.shape[-2]
        own = torch.ones(last - first, last - first, dtype=torch.bool, device=q.device).tril()
        may = own[None, None, -(queries.stop - queries.start) :]
        if mask is not None:
            may = may & mask[:, :, queries, first:last]
        keys = torch.cat([mix_keys @ k[:, :, :first], k[:, :, first:last]], dim=2)
        weights = attention_pattern(q[:, :, queries], keys, F.pad(may, (rows, 0), value=True))
        before = weights[..., :rows] @ mix_values
        parts.append(F.pad(torch.cat([before, weights[..., rows:]], dim=-1), (0, seen - last)))
    return torch.cat(parts, dim=2)


def fused_attention(
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B G S C"],
    v: Float[Tensor, "B G S E"],
    padding: Bool[Tensor, "B S"] | None,
    causal: bool,
    dropout: float = 0.0,
    scale: float | None = None,
    mask: Bool[Tensor, "#B 1 T S"] | None = None,
) -> Float[Tensor, "B H T E"]:
    """Scaled dot-product attention by torch's fused kernel, which never forms the pattern; causal only for whole texts.

    A `mask` takes the place of padding and direction.

    The kernel needs values as wide as keys, or torch forms the pattern after all: the narrower ones are padded with zeros.
    """
    assert not causal or q.shape[2] == k.shape[2]
    if padding is not None:
        mask = visible(q.shape[2], k.shape[2], padding, causal, q.device)
    width = max(q.shape[-1], v.shape[-1])
    width = width if q.shape[-1] == v.shape[-1] else -(-width // 8) * 8
    wide_q, wide_k, wide_v = (fill(x, width - x.shape[-1]) for x in (q, k, v))
    z = F.scaled_dot_product_attention(
        wide_q,
        wide_k,
        wide_v,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=causal and mask is None,
        scale=q.shape[-1] ** -0.5 if scale is None else scale,
        enable_gqa=q.shape[1] != k.shape[1],
    )
    return z[..., : v.shape[-1]]


_SCORES = 1 << 22  # at a time; larger allocations are mapped anew by the system every time


def slices_of_queries(
    heads: int, tokens: int, padding: Bool[Tensor, "B T"] | None, causal: bool, device: torch.device
) -> Iterator[tuple[slice, slice, Bool[Tensor, "#B 1 R S"] | None]]:
    """Slices of the queries of a whole text, of the keys that each may see, and its mask; `heads` are those of all texts."""
    rows = min(max(16, _SCORES // (heads * tokens)), tokens)
    for first in range(0, tokens, rows):
        last = min(first + rows, tokens)
        seen = slice(0, last if causal else tokens)
        yield (
            slice(first, last),
            seen,
            visible(last - first, seen.stop, None if padding is None else padding[:, seen], causal, device),
        )


def attend_in_slices(
    attend: Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor],
    q: Float[Tensor, "B H T C"],
    k: Float[Tensor, "B G T K"],
    v: Float[Tensor, "B G T N"],
    padding: Bool[Tensor, "B T"] | None,
    causal: bool,
) -> Float[Tensor, "B H T E"]:
    """Attend with a slice of the queries at a time, to the keys that it may see and with its mask, for a whole text.

    Where a text is not causal, the queries of a slice are not the last of the keys' tokens: `attend` must not assume it.
    Slices are computed again in the backward pass, so that memory is linear in the length.
    """
    slices = slices_of_queries(q.shape[0] * q.shape[1], q.shape[2], padding, causal, q.device)
    parts = [
        checkpoint(attend, q[:, :, rows], k[:, :, seen], v[:, :, seen], mask, use_reentrant=False)
        for rows, seen, mask in slices
    ]
    return torch.cat(parts, dim=2)


def token_losses(logits: Float[Tensor, "N V"], targets: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Return the negative log probability of every target."""
    return F.cross_entropy(single(logits), targets, reduction="none")
