"""What recurrent mechanisms are made of: a state per head that every token decays, corrects, writes to and reads.

    q, k, v = projections of x, mixed with the tokens before by a short convolution
    S <- decay · S;  S <- S + k (write · v - Sᵀ (erase · k))ᵀ;  output = Sᵀ q / √width      (kernels/scan.py)

A mechanism is a `Recurrent` that defines its `gates`. The output of each head is normalised, multiplied by a gate and
projected. The order of tokens is in the state, so a mechanism is registered as `ordered`: its layers get no rotary positions.
"""

from __future__ import annotations

import math
from typing import Literal, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch._compile import _disable_dynamo
from torch.nn import functional as F

from attnlab import ops
from attnlab.errors import ConfigError, UserError
from attnlab.inside.taps import Tap
from attnlab.kernels.scan import scan, stored, weights

NORM_EPSILON = 1e-6  # of queries, keys and outputs, inside the root, as in released models


class Gates(NamedTuple):
    """What a token does to the state of each head; None means a factor of one, and without `erase` nothing is read first."""

    decay: Float[Tensor, "B T H #K"] | None = None  # logarithm of the factor that the state keeps
    write: Float[Tensor, "B T H 1"] | None = None  # strength of the new value
    erase: Float[Tensor, "B T H #K"] | None = None  # strength with which the old value of the key is removed
    skip: Float[Tensor, " H"] | None = None  # share of its own value that is added to the output of a token


def _by_head(name: str, gate: Tensor | None, k: Float[Tensor, "B T H K"]) -> Float[Tensor, "B H T _"] | None:
    """A gate by head, in the data type of the keys; the compiled recurrence does not check what it reads."""
    if gate is None:
        return None
    shapes = [[*k.shape[:-1], width] for width in ((1,) if name == "write" else (1, k.shape[-1]))]
    if list(gate.shape) not in shapes:
        wanted = " or ".join(map(str, shapes))
        raise UserError(f"gates() returned a tensor of shape {list(gate.shape)} as {name}: return {wanted}")
    return gate.to(ops.single(k).dtype).transpose(1, 2)


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

    def __init__(self, channels: int, width: int, bias: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(channels, width).uniform_(-(width**-0.5), width**-0.5))
        self.bias = nn.Parameter(torch.zeros(channels)) if bias else None

    def forward(self, x: Float[Tensor, "B T D"], recent: Float[Tensor, "B R D"] | None) -> tuple[Tensor, Tensor]:
        """Return the sums, and the inputs that the next tokens need."""
        width = self.weight.shape[1]
        before = x.new_zeros(len(x), width - 1, x.shape[-1]) if recent is None else recent
        inputs = torch.cat([before, x], dim=1)
        parts = (inputs[:, shift : shift + x.shape[1]] * self.weight[:, shift] for shift in range(width))
        return sum(parts, torch.zeros(()) if self.bias is None else self.bias), inputs[:, x.shape[1] :]


def projection(inputs: int, outputs: int, rank: int = 0, bias: bool = False) -> nn.Module:
    """A matrix, or the product of two that meet in `rank` channels."""
    if not rank:
        return nn.Linear(inputs, outputs, bias=bias)
    return nn.Sequential(nn.Linear(inputs, rank, bias=False), nn.Linear(rank, outputs, bias=bias))


class Decay(nn.Module):
    """Decays from the input, exp(-exp(rate) softplus(projection + bias)), per head or per channel.

    Biases begin so that the softplus is spread log-uniformly over [0.001, 0.1], and factors `exp(rate)` uniformly over
    [1, 16]: then memories of different heads last from one token to a thousand. With a `floor`, decays are
    floor · sigmoid(exp(rate) (projection + bias)), factors begin at one, and no logarithm is below the floor.
    """

    def __init__(self, n_embd: int, n_head: int, channels: int = 1, rank: int = 0, floor: float = 0.0) -> None:
        super().__init__()
        if floor > 0:
            raise ConfigError(f"the floor of the logarithms of decays must be negative, or 0 for none, not {floor}")
        self.n_head, self.floor = n_head, floor
        self.projection = projection(n_embd, n_head * channels, rank)
        step = torch.empty(n_head * channels).uniform_(math.log(1e-3), math.log(0.1)).exp()
        self.bias = nn.Parameter(step + (-(-step).expm1()).log())  # the inverse of softplus
        self.rate = nn.Parameter(torch.zeros(n_head) if floor else torch.empty(n_head).uniform_(1, 16).log())

    def steps(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T H K"]:
        """The positive step size of every token."""
        return F.softplus(self.raw(x))

    def raw(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T H K"]:
        """The projection and its bias."""
        return (ops.single(self.projection(x)) + self.bias).unflatten(-1, (self.n_head, -1))

    def over(self, steps: Float[Tensor, "B T H K"]) -> Float[Tensor, "B T H K"]:
        """The logarithms of the decays over steps of these sizes."""
        return -self.rate.exp()[:, None] * steps

    def forward(self, x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T H K"]:
        """Return the logarithms of the decays."""
        if self.floor:
            return self.floor * (self.rate.exp()[:, None] * self.raw(x)).sigmoid()
        return self.over(self.steps(x))


class Recurrent(nn.Module):
    """Projections, short convolution, recurrence, gated output: a mechanism adds its `gates`. Abstract.

    `hook_pattern` shows the weights of the closed form, and when it is watched they compute the outputs. `hook_state` shows
    what the state after the text returns for the key of every token, as weights of all values; no output depends on it.

    Parameters
    ----------
    conv, conv_bias
        width of the short convolution, 0 for none, and whether it adds a bias
    silu, unit, scaled
        whether queries, keys and values pass through SiLU, whether queries and keys are scaled to length one, and whether
        queries are divided by the root of their width
    gate, gate_rank
        activation of the gate of the output, and the rank of its projection, 0 for full
    norm
        what is normalised: the output of each head, that of all heads together, or all heads after the gate
    key_heads, key_width, value_width
        heads of queries and keys, each for as many heads of values, 0 for one each; channels per head, 0 for n_embd / n_head
    """

    bounded = False
    ordered = True

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        *,
        conv: int = 0,
        conv_bias: bool = False,
        silu: bool = True,
        unit: bool = False,
        scaled: bool = True,
        gate: Literal["silu", "sigmoid", "none"] = "silu",
        gate_rank: int = 0,
        norm: Literal["head", "all", "gated"] = "head",
        key_heads: int = 0,
        key_width: int = 0,
        value_width: int = 0,
        bias: bool = False,
    ) -> None:
        super().__init__()
        if min(conv, key_heads, key_width, value_width) < 0:
            raise ConfigError("widths and numbers of heads must be at least 1, or 0 for the default")
        self.n_head, self.key_heads = n_head, key_heads or n_head
        if n_head % self.key_heads:
            raise ConfigError(
                f"{n_head} heads cannot share {key_heads} heads of keys: choose a number that divides them"
            )
        self.key_width, width = key_width or n_embd // n_head, value_width or n_embd // n_head
        self.unit, self.norm_after_gate, self.epsilon = unit, norm == "gated", NORM_EPSILON
        self.scale = self.key_width**-0.5 if scaled else 1.0
        keys, values = self.key_heads * self.key_width, n_head * width
        self.query = nn.Linear(n_embd, keys, bias=bias)
        self.key = nn.Linear(n_embd, keys, bias=bias)
        self.value = nn.Linear(n_embd, values, bias=bias)
        self.conv = ShortConvolution(2 * keys + values, conv, conv_bias) if conv else None
        self.activation = F.silu if silu else None
        self.norm = nn.Parameter(torch.ones(width) if norm == "head" else torch.ones(n_head, width))
        self.output_gate = None if gate == "none" else projection(n_embd, values, gate_rank, bias)
        self.gate_activation = F.silu if gate == "silu" else torch.sigmoid
        self.out = nn.Linear(values, n_embd, bias=bias)
        self.hook_q, self.hook_k, self.hook_v = Tap(), Tap(), Tap()
        self.hook_pattern, self.hook_state, self.hook_z = Tap(), Tap(), Tap()

    def gates(self, x: Float[Tensor, "B T D"]) -> Gates:
        """Return what every token does to the state."""
        raise NotImplementedError

    def encode(self, part: Float[Tensor, "B T H K"], start: int) -> Float[Tensor, "B T H K"]:
        """Queries or keys of tokens from position `start` on as the state meets them."""
        if not self.unit:
            return part
        part = ops.single(part)  # rounded to a length above one, keys could make a state grow
        return part * (part.square().sum(-1, keepdim=True) + NORM_EPSILON).rsqrt()

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
    ) -> list[Float[Tensor, "B T H _"]]:
        """Queries, keys and values, each token mixed with those before it; hidden tokens are mixed into none."""
        mixed = torch.cat([self.query(x), self.key(x), self.value(x)], dim=-1)
        if hidden is not None:
            mixed = mixed.masked_fill(hidden, 0.0)
        if self.conv is not None:
            mixed, recent = self.conv(mixed, None if cache is None else cache.recent)
            if cache is not None:
                cache.recent = recent.detach().clone()  # a view would keep the whole text
        mixed = mixed if self.activation is None else self.activation(mixed)
        keys, start = self.key_heads * self.key_width, 0 if cache is None else cache.length
        q, k, v = mixed.split([keys, keys, mixed.shape[-1] - 2 * keys], dim=-1)
        q, k = (self.encode(part.unflatten(-1, (self.key_heads, -1)), start) for part in (q, k))
        if self.key_heads < self.n_head:
            q, k = (part.repeat_interleave(self.n_head // self.key_heads, dim=2) for part in (q, k))
        return [self.hook_q(q), self.hook_k(k), self.hook_v(v.unflatten(-1, (self.n_head, -1)))]

    @_disable_dynamo  # the compiler would unroll the loop over chunks
    def attend(
        self,
        q: Float[Tensor, "B T H K"],
        k: Float[Tensor, "B T H K"],
        v: Float[Tensor, "B T H C"],
        gates: Gates,
        hidden: Bool[Tensor, "B T 1"] | None,
        cache: RecurrentCache | None,
    ) -> Float[Tensor, "B H T C"]:
        """What every head reads from its state: by the closed form if it is watched, else by the recurrence."""
        if self.hook_state.changes:
            raise UserError(
                "hook_state can only be read: patch hook_k, hook_v or hook_pattern, from which outputs follow"
            )

        decay, erase, write = (_by_head(name, getattr(gates, name), k) for name in ("decay", "erase", "write"))
        q, k, v = (ops.single(part).transpose(1, 2) for part in (q, k, v))
        if hidden is not None:  # such a token does nothing to the state
            k = k.masked_fill(hidden[:, None], 0.0)
            decay = None if decay is None else decay.masked_fill(hidden[:, None], 0.0)
        skip = None if gates.skip is None else ops.single(gates.skip)[:, None, None]
        with ops.without_autocast(q):
            if cache is None and self.hook_state.watched:
                self.hook_state(stored(k, decay, erase, write))
            if cache is None and self.hook_pattern.watched:
                pattern = weights(q, k, decay, erase, write, self.scale)
                pattern = pattern if skip is None else pattern + skip * torch.eye(q.shape[2]).to(q)
                return self.hook_pattern(pattern) @ v
            state = None if cache is None else cache.state
            z, state = scan(q, k, v, decay, erase, write, state, self.scale)
            if cache is not None:
                cache.state = state.detach()
            return z if skip is None else z + skip * v

    def finish(self, z: Float[Tensor, "B T H C"], x: Float[Tensor, "B T D"]) -> Float[Tensor, "B T D"]:
        """Normalise the outputs of the heads, multiply them by their gates, and project."""
        gate = None
        if self.output_gate is not None:
            gate = self.gate_activation(ops.single(self.output_gate(x))).unflatten(-1, z.shape[2:])
        if gate is not None and self.norm_after_gate:
            z = z * gate
        z = F.rms_norm(z, self.norm.shape, ops.single(self.norm), self.epsilon)
        if gate is not None and not self.norm_after_gate:
            z = z * gate
        return self.out(self.hook_z(z.to(x.dtype)).flatten(2))
