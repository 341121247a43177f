"""What recurrent mechanisms are made of: a state per head that every token decays, corrects, writes to and reads.

    q, k, v = projections of x, mixed with the tokens before by a short convolution
    S <- decay · S;  S <- S + k (write · v - Sᵀ (erase · k))ᵀ;  output = Sᵀ q      (kernels/scan.py)

A mechanism is a `Recurrent` that defines its `gates`. The output of each head is normalised, multiplied by a gate and
projected. The order of tokens is in the state, so no positions are added.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.inside.taps import Tap
from attnlab.kernels.scan import scan, weights

NORM_EPSILON = 1e-6  # of queries, keys and outputs, inside the root, as in released models


class Gates(NamedTuple):
    """What a token does to the state of each head; None means a factor of one, and without `erase` nothing is read first."""

    decay: Float[Tensor, "B T H #K"] | None = None  # logarithm of the factor that the state keeps
    write: Float[Tensor, "B T H"] | None = None  # strength of the new value
    erase: Float[Tensor, "B T H #K"] | None = None  # strength with which the old value of the key is removed


class RecurrentCache:
    """The state after a text and the last inputs of the convolution: their size does not grow with the text."""

    def __init__(self) -> None:
        self.length = 0
        self.state: Tensor | None = None
        self.recent: Tensor | None = None

    def select(self, rows: Int[Tensor, " R"]) -> RecurrentCache:
        """A cache of these texts, which may be repeated: to continue one text in several ways."""
        chosen = RecurrentCache()
        chosen.length = self.length
        chosen.state = None if self.state is None else self.state[rows]
        chosen.recent = None if self.recent is None else self.recent[rows]
        return chosen


class ShortConvolution(nn.Module):
    """Each channel becomes a weighted sum of its last `width` tokens."""

    def __init__(self, channels: int, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, width).uniform_(-(width**-0.5), width**-0.5))

    def forward(self, x: Float[Tensor, "B T D"], recent: Float[Tensor, "B R D"] | None) -> tuple[Tensor, Tensor]:
        """Return the sums, and the inputs that the next tokens need."""
        width = self.weight.shape[1]
        before = x.new_zeros(len(x), width - 1, x.shape[-1]) if recent is None else recent
        inputs = torch.cat([before, x], dim=1)
        parts = (inputs[:, shift : shift + x.shape[1]] * self.weight[:, shift] for shift in range(width))
        return sum(parts, torch.zeros(())), inputs[:, x.shape[1] :]


class Decay(nn.Module):
    """Decays from the input, exp(-exp(rate) softplus(projection + bias)), per head or per channel.

    Biases begin so that the softplus is spread log-uniformly over [0.001, 0.1], and factors `exp(rate)` uniformly over
    [1, 16]: then memories of different heads last from one token to a thousand.
    """

    def __init__(self, n_embd: int, n_head: int, channels: int = 1, rank: int = 0) -> None:
        super().__init__()
        self.n_head = n_head
        self.down = nn.Linear(n_embd, rank, bias=False) if rank else None
        self.up = nn.Linear(rank or n_embd, n_head * channels, bias=False)
        step = torch.empty(n_head * channels).uniform_(math.log(1e-3), math.log(0.1)).exp()
        self.bias = nn.Parameter(step + (-(-step).expm1()).log())  # the inverse of softplus
        self.rate = nn.Parameter(torch.empty(n_head).uniform_(1, 16).log())

    def steps(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T H K"]:
        """The positive step size of every token."""
        projected = self.up(x if self.down is None else self.down(x))
        return F.softplus(ops.single(projected) + self.bias).unflatten(-1, (self.n_head, -1))

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T H K"]:
        """Return the logarithms of the decays."""
        return -self.rate.exp()[:, None] * self.steps(x)


class Recurrent(nn.Module):
    """Projections, short convolution, recurrence, gated output: a mechanism adds its `gates`. Abstract.

    `hook_pattern` shows the weights of the closed form, and when it is watched they compute the outputs.
    """

    bounded = False

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        *,
        conv: int = 0,
        activation: Literal["silu", "none"] = "silu",
        unit: bool = False,
        gate: Literal["silu", "sigmoid", "none"] = "silu",
        key_width: int = 0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if conv < 0:
            raise ConfigError(f"conv is the width of the short convolution, 0 for none, not {conv}")
        width = n_embd // n_head
        self.n_head, self.key_width, self.unit = n_head, key_width or width, unit
        keys = n_head * self.key_width
        self.query = nn.Linear(n_embd, keys, bias=bias)
        self.key = nn.Linear(n_embd, keys, bias=bias)
        self.value = nn.Linear(n_embd, n_embd, bias=bias)
        self.conv = ShortConvolution(2 * keys + n_embd, conv) if conv else None
        self.activation = F.silu if activation == "silu" else None
        self.norm = nn.Parameter(torch.ones(width))
        self.gate = None if gate == "none" else nn.Linear(n_embd, n_embd, bias=bias)
        self.gate_activation = F.silu if gate == "silu" else torch.sigmoid
        self.out = nn.Linear(n_embd, n_embd, bias=bias)
        self.hook_q, self.hook_k, self.hook_v = Tap(), Tap(), Tap()
        self.hook_pattern, self.hook_z = Tap(), Tap()

    def gates(self, x: Float[Tensor, "B T D"]) -> Gates:
        """Return what every token does to the state."""
        raise NotImplementedError

    def new_cache(self) -> RecurrentCache:
        """An empty cache for generation."""
        return RecurrentCache()

    def forward(
        self, x: Float[Tensor, "B T D"], padding: Bool[Tensor, "B S"] | None = None, cache: RecurrentCache | None = None
    ) -> Float[Tensor, "B T D"]:
        """Return the output of the mechanism for every token."""
        hidden = None if padding is None else padding[:, -x.shape[1] :, None]
        q, k, v = self.project(x, hidden, cache)
        z = self.attend(q, k, v, self.gates(x), hidden, cache)
        if cache is not None:
            cache.length += x.shape[1]
        return self.finish(z.transpose(1, 2), x)

    def project(
        self, x: Float[Tensor, "B T D"], hidden: Bool[Tensor, "B T 1"] | None, cache: RecurrentCache | None
    ) -> list[Float[Tensor, "B T H C"]]:
        """Queries, keys and values, each token mixed with those before it; hidden tokens are mixed into none."""
        mixed = torch.cat([self.query(x), self.key(x), self.value(x)], dim=-1)
        if hidden is not None:
            mixed = mixed.masked_fill(hidden, 0.0)
        if self.conv is not None:
            mixed, recent = self.conv(mixed, None if cache is None else cache.recent)
            if cache is not None:
                cache.recent = recent.detach()
        mixed = mixed if self.activation is None else self.activation(mixed)
        keys = self.n_head * self.key_width
        parts = [part.unflatten(-1, (self.n_head, -1)) for part in mixed.split([keys, keys, x.shape[-1]], dim=-1)]
        if self.unit:
            parts[:2] = (part * (part.square().sum(-1, keepdim=True) + NORM_EPSILON).rsqrt() for part in parts[:2])
        return [tap(part) for tap, part in zip((self.hook_q, self.hook_k, self.hook_v), parts, strict=True)]

    def attend(
        self,
        q: Float[Tensor, "B T H K"],
        k: Float[Tensor, "B T H K"],
        v: Float[Tensor, "B T H C"],
        gates: Gates,
        hidden: Bool[Tensor, "B T 1"] | None,
        cache: RecurrentCache | None,
    ) -> Float[Tensor, "B H T C"]:
        """What every head reads from its state."""
        decay, write, erase = gates
        if hidden is not None:
            k = k.masked_fill(hidden[..., None], 0.0)
            decay = None if decay is None else decay.masked_fill(hidden[..., None], 0.0)
        by_head = partial(torch.transpose, dim0=1, dim1=2)
        return self.read(
            by_head(q * self.key_width**-0.5),
            by_head(k),
            by_head(v),
            None if decay is None else by_head(decay),
            None if erase is None else by_head(k * erase),
            None if write is None else by_head(write[..., None]),
            cache,
        )

    @ops.in_float32
    def read(
        self,
        q: Float[Tensor, "B H T K"],
        k: Float[Tensor, "B H T K"],
        v: Float[Tensor, "B H T C"],
        decay: Float[Tensor, "B H T #K"] | None,
        erase: Float[Tensor, "B H T K"] | None,
        write: Float[Tensor, "B H T 1"] | None,
        cache: RecurrentCache | None,
    ) -> Float[Tensor, "B H T C"]:
        """The outputs by the closed form if it is watched, else by the recurrence."""
        if cache is None and self.hook_pattern.watched:
            pattern = weights(q, k, decay, erase)
            return self.hook_pattern(pattern if write is None else pattern * write.transpose(-2, -1)) @ v
        v = v if write is None else v * write
        z, state = scan(q, k, v, decay, erase, None if cache is None else cache.state)
        if cache is not None:
            cache.state = state.detach()
        return z

    def finish(self, z: Float[Tensor, "B T H C"], x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Normalise the outputs of the heads, multiply them by their gates, and project."""
        z = F.rms_norm(ops.single(z), z.shape[-1:], self.norm, NORM_EPSILON)
        if self.gate is not None:
            z = z * self.gate_activation(self.gate(x)).unflatten(-1, (self.n_head, -1))
        return self.out(self.hook_z(z).flatten(2))
