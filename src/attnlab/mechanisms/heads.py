"""The parts of mechanisms: queries, keys and values by head, caches for generation, and `Attention`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Literal, TypedDict

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab import ops
from attnlab.errors import ConfigError
from attnlab.inside.taps import Tap
from attnlab.kernels.prefix import State

_Share = Literal["nothing", "qk", "qkv"]


class Shared(TypedDict, total=False):
    """What the backbone supplies; a mechanism takes all of it as `**shared`, or names what it can use."""

    causal: bool
    rotary: bool
    rotation: ops.Rotary
    qk_norm: bool
    bias: bool
    dropout: float


class PositionTable(nn.Module):
    """A vector per position, stored for the block and computed beyond it."""

    table: Tensor

    def __init__(self, compute: Callable[..., Float[Tensor, "T C"]], block_size: int) -> None:
        super().__init__()
        self.compute = compute
        self.register_buffer("table", compute(block_size), persistent=False)

    def forward(self, start: int, tokens: int) -> Float[Tensor, "T C"]:
        """Return the vectors of positions from `start` on."""
        if start + tokens <= len(self.table):
            return self.table[start : start + tokens]
        return self.compute(tokens, start=start).to(self.table)


class Rotation(nn.Module):
    """Rotate the first coordinates of heads by their positions; without rotary positions, do nothing."""

    def __init__(self, block_size: int, width: int, rotary: bool, rotation: ops.Rotary) -> None:
        super().__init__()
        compute = partial(ops.rotary_table, width=rotation.width(width), base=rotation.base)
        self.angles = PositionTable(compute, block_size) if rotary else None
        self.rotation = rotation

    def forward(self, x: Float[Tensor, "B H T C"], start: int) -> Float[Tensor, "B H T C"]:
        """Return the rotated heads of tokens at positions from `start` on."""
        return x if self.angles is None else ops.rotate(x, self.angles(start, x.shape[2]), self.rotation.layout)


class Heads(nn.Module):
    """Three projections, split into heads, with rotary positions and normalised queries and keys if asked for.

    With `share`, the keys, or the keys and the values, use the projection of the queries; with `kv_heads`, there are fewer
    heads of keys and values than of queries; with `width`, heads are not as wide as n_embd / n_head.
    """

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        *,
        rotary: bool = False,
        rotation: ops.Rotary = ops.ROTARY,
        qk_norm: bool = False,
        bias: bool = False,
        kv_heads: int | None = None,
        share: _Share = "nothing",
        width: int | None = None,
    ) -> None:
        super().__init__()
        self.n_head = n_head
        self.kv_heads = kv_heads or n_head
        self.rotary = rotary
        self.rotation = rotation
        self.qk_norm = qk_norm
        width = width or n_embd // n_head
        narrow = width * self.kv_heads
        self.query = nn.Linear(n_embd, width * n_head, bias=bias)
        self.key = None if share in ("qk", "qkv") else nn.Linear(n_embd, narrow, bias=bias)
        self.value = None if share == "qkv" else nn.Linear(n_embd, narrow, bias=bias)
        self.query_norm, self.key_norm = (
            nn.RMSNorm(width, ops.EPSILON, elementwise_affine=False) if qk_norm else nn.Identity() for _ in range(2)
        )
        self.rotate = Rotation(block_size, width, rotary, rotation)

    def forward(
        self, x: Float[Tensor, "B T D"], start: int = 0, source: Float[Tensor, "B S D"] | None = None
    ) -> tuple[Float[Tensor, "B H T C"], Float[Tensor, "B G S C"], Float[Tensor, "B G S C"]]:
        """Queries, keys and values of tokens at positions from `start` on; keys and values of `source` if given."""
        source = x if source is None else source
        q = ops.split_heads(self.query(x), self.n_head)
        k = ops.split_heads((self.key or self.query)(source), self.kv_heads)
        v = ops.split_heads((self.value or self.query)(source), self.kv_heads)
        q, k = self.query_norm(q), self.key_norm(k)
        q, k = self.rotate(q, start), self.rotate(k, start)
        return q.to(v.dtype), k.to(v.dtype), v  # under autocast, norms and angles are float32


class KeyValueCache:
    """The keys, values and whatever else is kept per token, of all tokens seen or the last `keep`."""

    def __init__(self, keep: int | None = None) -> None:
        self.length = 0
        self.keep = keep
        self._stored: list[Tensor] = []

    def append(self, *new: Float[Tensor, "B G T _"]) -> list[Float[Tensor, "B G S _"]]:
        """Append what is kept of new tokens, such as keys and values; return it for all tokens that were kept."""
        self.length += new[0].shape[2]
        seen = [torch.cat(parts, dim=2) for parts in zip(self._stored, new, strict=True)] if self._stored else [*new]
        start = 0 if self.keep is None else max(0, seen[0].shape[2] - self.keep)
        self._stored = [part[:, :, start:] for part in seen]
        return seen

    def select(self, rows: Int[Tensor, " R"]) -> KeyValueCache:
        """A cache of these texts, which may be repeated: to continue one text in several ways."""
        chosen = KeyValueCache(self.keep)
        chosen.length = self.length
        chosen._stored = [part.index_select(0, rows) for part in self._stored]
        return chosen


class StateCache:
    """Sums over all tokens seen, whose size does not grow with the text."""

    def __init__(self) -> None:
        self.length = 0
        self.state: State | None = None

    def append(self, tokens: int, state: State) -> None:
        """Replace the sums by those that include `tokens` more tokens."""
        self.length += tokens
        self.state = state

    def select(self, rows: Int[Tensor, " R"]) -> StateCache:
        """A cache of these texts, which may be repeated: to continue one text in several ways."""
        chosen = StateCache()
        chosen.length = self.length
        if self.state is not None:
            chosen.state = State(self.state.peak[rows], self.state.total[rows])
        return chosen


class Attention(nn.Module):
    """Heads, weights over tokens, output projection: a mechanism adds its `pattern` and a `fast` path.

    Abstract. `pattern` is the readable reference, also for new tokens of a text (fewer queries than keys); it is used when
    `hook_pattern` is watched. `fast` gives the same averages for a whole text. What a mechanism reads from its input
    besides, such as gates or the keys of an indexer, it adds to the queries and keys as more channels, in `project`; so it is
    in the cache as well.
    """

    bounded = False  # whether it has something for every position of the block, and so takes no longer texts
    reads_input = False  # whether queries, keys and values of other projections are not enough for it
    linear_output = True  # whether what a head writes is a linear map of the tokens that it averages

    def __init__(
        self,
        n_embd: int,
        n_head: int,
        block_size: int,
        kv_heads: int | None = None,
        share: _Share = "nothing",
        width: int | None = None,
        *,
        causal: bool = True,
        rotary: bool = False,
        rotation: ops.Rotary = ops.ROTARY,
        qk_norm: bool = False,
        bias: bool = False,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        if not 0 <= dropout < 1:
            raise ConfigError(f"dropout must lie in [0, 1), not {dropout}")
        self.causal = causal
        self.dropout = dropout
        self.block_size = block_size
        self.heads = Heads(
            n_embd,
            n_head,
            block_size,
            rotary=rotary,
            rotation=rotation,
            qk_norm=qk_norm,
            bias=bias,
            kv_heads=kv_heads,
            share=share,
            width=width,
        )
        self.out = nn.Linear(n_head * (width or n_embd // n_head), n_embd, bias=bias)
        self.hook_q, self.hook_k, self.hook_v = Tap(), Tap(), Tap()
        self.hook_pattern, self.hook_z = Tap(), Tap()

    def new_cache(self) -> Any:
        """An empty cache for generation."""
        return KeyValueCache()

    def forward(
        self, x: Float[Tensor, "B T D"], padding: Bool[Tensor, "B S"] | None = None, cache: Any = None
    ) -> Float[Tensor, "B T D"]:
        """Return the output of attention for every token."""
        start = cache.length if cache is not None else 0
        if self.bounded and start + x.shape[1] > self.block_size:
            raise ValueError(f"{start + x.shape[1]} tokens are too many: this layer was made for {self.block_size}")
        if cache is not None and not self.causal:
            raise ValueError(
                "a cache is for generation, and a bidirectional layer cannot generate: call it without one"
            )
        q, k, v = self.project(x, start)
        if cache is None:
            return self.finish(self.dispatch(q, k, v, padding), x)
        return self.finish(self.decode_step(q, k, v, padding, cache), x)

    def project(self, x: Float[Tensor, "B T D"], start: int) -> list[Float[Tensor, "B _ T _"]]:
        """Queries, keys and values of tokens at positions from `start` on."""
        return self.tapped(*self.heads(x, start))

    def across(
        self,
        x: Float[Tensor, "B T D"],
        source: Float[Tensor, "B S D"],
        mask: Bool[Tensor, "#B 1 T N"],
        cache: KeyValueCache | None = None,
    ) -> Float[Tensor, "B T D"]:
        """Return cross-attention to another sequence, where the mask allows it, by the pattern."""
        q, k, v = self.tapped(*self.heads(x, source=source))
        if cache is not None:
            k, v = cache.append(k, v)
        return self.finish(self.weigh(q, k, v, mask), x)

    def tapped(self, q: Tensor, k: Tensor, v: Tensor) -> list[Tensor]:
        """Pass through the taps, whose layout is [batch, token, head, ...], as is usual in the field."""
        taps = zip((self.hook_q, self.hook_k, self.hook_v), (q, k, v), strict=True)
        return [tap(x.transpose(1, 2)).transpose(1, 2) for tap, x in taps]

    def finish(self, z: Tensor, x: Tensor) -> Tensor:
        """Concatenate and project the averages of the heads; `x` is the input, for gates."""
        return self.out(self.hook_z(z.transpose(1, 2)).flatten(2))

    def decode_step(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None, cache: Any) -> Tensor:
        """The averages for new tokens; earlier ones are in the cache."""
        k, v = cache.append(k, v)
        return self.dispatch(q, k, v, None if padding is None else padding[:, -k.shape[2] :])

    def dispatch(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """The averages, by the pattern if it is watched or there are earlier tokens, else by the fast path."""
        if self.hook_pattern.watched or q.shape[2] != k.shape[2]:
            return self.reference(q, k, v, padding)
        return self.fast(q, k, v, padding)

    def reference(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """The averages by the pattern."""
        return self.weigh(q, k, v, ops.visible(q.shape[2], k.shape[2], padding, self.causal, q.device))

    def weigh(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> Tensor:
        """The averages by the pattern, where the mask allows it."""
        return self.averages(self.pattern(q, k, mask), v)

    def averages(self, pattern: Tensor, v: Tensor) -> Tensor:
        """The values weighted by a pattern; heads of one group share theirs."""
        return F.dropout(self.hook_pattern(pattern), self.dropout, self.training) @ ops.repeat_heads(
            v, pattern.shape[1]
        )

    def pattern(
        self, q: Float[Tensor, "B H T C"], k: Float[Tensor, "B G S C"], mask: Bool[Tensor, "#B 1 T S"] | None
    ) -> Float[Tensor, "#B H T S"]:
        """Return the weight of every token's value in every average; `mask` is True where a token is visible.

        If a row of the mask is all False, the row of weights is zero, as `ops.masked_softmax` does.
        """
        raise NotImplementedError

    def fast(self, q: Tensor, k: Tensor, v: Tensor, padding: Tensor | None) -> Tensor:
        """Return the same averages faster; by default, the reference."""
        return self.reference(q, k, v, padding)
