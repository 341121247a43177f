"""Performer: the softmax kernel estimated by random features (FAVOR+)."""

from __future__ import annotations

import math
from typing import Literal, Unpack

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.kernels.prefix import AT_ONCE, hide, pooled_attention, prefix_attention
from attnlab.mechanisms.heads import Attention, Shared, StateCache
from attnlab.registry import mechanism


def draw_directions(count: int, width: int, orthogonal: bool) -> Float[Tensor, "M C"]:
    """Draw random directions, each normally distributed; orthogonal ones in groups as large as the width."""
    normal = torch.randn(count, width)
    if not orthogonal:
        return normal
    frames, upper = torch.linalg.qr(torch.randn(-(-count // width), width, width))
    # Without these signs the frames prefer some directions, and positive features are biased.
    frames = frames * upper.diagonal(dim1=-2, dim2=-1).sign()[:, None]
    return frames.transpose(-2, -1).reshape(-1, width)[:count] * normal.norm(dim=-1, keepdim=True)


@mechanism("performer", paper="arXiv:2009.14794", cost="n·m·d", causal=True, weights="kernel", knobs=("features",))
class Performer(Attention):
    """exp(query·key) is estimated by products of random features, so that keys and values are summed once.

    Positive features exp(w·x - |x|²/2) cannot give negative weights; hyperbolic ones use w and -w together; trigonometric
    ones, sin and cos, are unbiased too, but where the true weight is small their error is larger than the weight, and the
    sum of weights may vanish. Orthogonal directions reduce the error of all three.

    The running sums of a causal text are kept in range by a running maximum, which cancels: the future does not leak,
    except that trigonometric weights which nearly cancel amplify rounding errors, and with them traces of the future.

    Costs: time and memory grow with length times features; generation keeps one matrix per head, however long the text.
    Cannot: be exact: `attnlab mechanisms show performer --error` shows the error, and that for queries and keys of large
    norm it is worse than the plain mean. There is no dropout on weights, since they are never computed.

    Parameters
    ----------
    features
        number of random features; 0: width·ln(width) of a head
    kind
        positive, hyperbolic or trigonometric features
    directions
        orthogonal, or iid: drawn independently
    redraw
        training steps between new directions; 0: keep the first ones
    """

    directions: Tensor
    steps: Tensor

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        *,
        features: int = 0,
        kind: Literal["positive", "hyperbolic", "trigonometric"] = "positive",
        directions: Literal["orthogonal", "iid"] = "orthogonal",
        redraw: int = 0,
        **shared: Unpack[Shared],
    ) -> None:
        shared["dropout"] = 0.0
        super().__init__(n_embd, n_head, block_size, **shared)
        if features < 0 or redraw < 0:
            raise ConfigError("performer.features and performer.redraw must not be negative")
        width = n_embd // n_head
        features = features or math.ceil(width * math.log(max(3, width)))
        if kind != "positive" and features % 2:
            features += 1  # they come in pairs
        self.kind, self.orthogonal, self.redraw, self.count = kind, directions == "orthogonal", redraw, features
        count = features if kind == "positive" else features // 2
        self.register_buffer("directions", draw_directions(count, width, self.orthogonal))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        self.begun: bool | None = None  # whether a step has begun and is not yet counted; None: every call is a step

    def begin_step(self) -> None:
        """Announce a training step: of the calls until the next one, only the first counts."""
        self.begun = True

    def new_cache(self) -> StateCache:
        """An empty cache of one matrix per head."""
        return StateCache()

    def prepare(self) -> None:
        """Count a training step, and draw new directions when they are due."""
        if self.training and self.redraw and self.begun is not False:
            self.begun = None if self.begun is None else False
            self.steps += 1
            if self.steps % self.redraw == 0:
                count, width = self.directions.shape
                self.directions = draw_directions(count, width, self.orthogonal).to(self.directions)

    def dispatch(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """The averages, after drawing new directions if they are due."""
        self.prepare()
        return super().dispatch(q, k, v, padding)

    def features(self, x: Tensor) -> tuple[Tensor, Tensor | None]:
        """The logarithms of the features, and their signs if they are not positive."""
        x = x * x.shape[-1] ** -0.25
        along = x @ self.directions.to(x.dtype).T
        half_square = x.square().sum(dim=-1, keepdim=True) / 2
        if self.kind == "positive":
            return along - half_square, None
        if self.kind == "hyperbolic":
            return torch.cat([along, -along], dim=-1) - half_square, None
        waves = torch.cat([along.cos(), along.sin()], dim=-1)
        return half_square.expand_as(waves), waves

    @ops.in_float32
    def pattern(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        """The estimated kernel, normalised to a sum of one."""
        (log_q, signs_q), (log_k, signs_k) = self.features(q), self.features(k)
        if signs_q is None or signs_k is None:
            return ops.feature_pattern(log_q, log_k, mask)
        size = log_k[..., 0].unsqueeze(-2) if mask is None else log_k[..., 0].unsqueeze(-2).where(mask, float("-inf"))
        size = (size - size.detach().amax(dim=-1, keepdim=True).clamp_min(-1e30)).exp()
        kernel = signs_q @ signs_k.transpose(-2, -1) * size
        weight = kernel.sum(dim=-1, keepdim=True)
        return kernel / torch.where(weight.abs() < 1e-30, 1e-30, weight)

    @ops.in_float32
    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """The same by summing keys and values first, a few heads at a time."""
        together = max(1, AT_ONCE // (q[:, 0, :, 0].numel() * self.count))
        parts = zip(q.split(together, dim=1), k.split(together, dim=1), v.split(together, dim=1), strict=True)
        return torch.cat([self.summed(*part, padding=padding) for part in parts], dim=1)

    def summed(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """The averages by sums over features."""
        (log_q, signs_q), (log_k, signs_k) = self.features(q), self.features(k)
        signs = None if signs_q is None or signs_k is None else (signs_q, signs_k)
        log_k = hide(log_k, padding)
        if self.causal:
            return prefix_attention(log_q, log_k, v, signs=signs)[0]
        return pooled_attention(log_q, log_k, v, signs)

    @ops.in_float32
    def decode_step(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, cache: StateCache) -> Tensor:
        """The averages for new tokens; earlier ones are in the sums."""
        (log_q, signs_q), (log_k, signs_k) = self.features(q), self.features(k)
        signs = None if signs_q is None or signs_k is None else (signs_q, signs_k)
        hidden = None if padding is None else padding[:, -k.shape[2] :]
        z, state = prefix_attention(log_q, hide(log_k, hidden), v, cache.state, signs)
        cache.append(k.shape[2], state)
        return z
