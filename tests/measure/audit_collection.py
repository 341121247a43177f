"""Modules with a known fault, and sound modules that look suspicious, to measure what the audit catches.

    python tests/measure/audit_collection.py

prints a row for every module and counts the faults that were caught under the right name and the sound modules that passed.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from attnlab import registry
from attnlab.measure.audit import Report, audit_mechanism, audit_module
from attnlab.registry import Entry

WIDTH = 8
FUTURE = ("future", "gradient", "prefix")
Extra = Callable[["Base", Tensor], Tensor]


class Base(nn.Module):
    """Causal attention of one head, written out."""

    def __init__(self, n_embd: int = WIDTH, n_head: int = 1, block_size: int = 600, dropout: float = 0.0) -> None:
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(n_embd, n_embd) for _ in range(3))
        self.n_head, self.p, self.calls = n_head, dropout, 0
        self.memory: Tensor | None = None

    def past(self, x: Tensor) -> Tensor:
        return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()

    def scores(self, x: Tensor) -> Tensor:
        return self.query(x) @ self.key(x).transpose(1, 2) / x.shape[-1] ** 0.5

    def weights(self, x: Tensor) -> Tensor:
        return self.scores(x).masked_fill(~self.past(x), float("-inf")).softmax(-1)

    def forward(self, x: Tensor) -> Tensor:
        return self.weights(x) @ self.value(x)


def ahead(x: Tensor) -> Tensor:
    """The next token, nothing for the last."""
    return F.pad(x, (0, 0, 0, 1))[:, 1:]


def behind(x: Tensor) -> Tensor:
    """The token before, nothing for the first."""
    return F.pad(x, (0, 0, 1, 0))[:, :-1]


def mean(x: Tensor) -> Tensor:
    """The mean of the past."""
    return x.cumsum(1) / torch.arange(1, x.shape[1] + 1, dtype=x.dtype)[:, None]


def plus(extra: Extra) -> Callable[[], nn.Module]:
    """Sound attention and something more."""

    class Plus(Base):
        def forward(self, x: Tensor) -> Tensor:
            return super().forward(x) + extra(self, x)

    return Plus


def only(when: Callable[[Base, Tensor], bool], size: float = 0.01) -> Callable[[], nn.Module]:
    """Sound attention, and a little of the next token under a condition."""
    return plus(lambda module, x: size * ahead(x) if when(module, x) else torch.zeros_like(x))


def instead(forward: Extra) -> Callable[[], nn.Module]:
    """Something in place of attention."""

    class Instead(Base):
        def forward(self, x: Tensor) -> Tensor:
            return forward(self, x)

    return Instead


def chosen(mask: Extra) -> Callable[[], nn.Module]:
    """Attention with another mask."""

    class Chosen(Base):
        def past(self, x: Tensor) -> Tensor:
            return mask(self, x)

    return Chosen


class Padded(Base):
    """Attention that takes padding."""

    def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
        mask = self.past(x) if padding is None else self.past(x) & ~padding[:, None]
        weights = self.scores(x).masked_fill(~mask, float("-inf")).softmax(-1)
        return weights.masked_fill(~mask.any(-1, keepdim=True), 0) @ self.value(x)


def padded(forward: Callable[[Padded, Tensor, Tensor], Tensor]) -> Callable[[], nn.Module]:
    """Attention with another path for padding."""

    class Other(Padded):
        def forward(self, x: Tensor, padding: Tensor | None = None) -> Tensor:
            return super().forward(x) if padding is None else forward(self, x, padding)

        def plain(self, x: Tensor, padding: Tensor) -> Tensor:
            return super().forward(x, padding)

    return Other


class Packed(Base):
    """Attention that keeps the documents of a row apart."""

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        mask = self.past(x) if documents is None else self.past(x) & (documents[:, :, None] == documents[:, None])
        return self.scores(x).masked_fill(~mask, float("-inf")).softmax(-1) @ self.value(x)


class Cached(Base):
    """Attention with a cache of all tokens."""

    def new_cache(self) -> list[Tensor]:
        return []

    def seen(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        cache.append(x)
        return torch.cat(cache, 1)

    def forward(self, x: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        seen = x if cache is None else self.seen(x, cache)
        return super().forward(seen)[:, -x.shape[1] :]


def cached(seen: Callable[[Cached, Tensor, list[Tensor]], Tensor]) -> Callable[[], nn.Module]:
    """Attention whose cache is wrong."""

    class Other(Cached):
        def seen(self, x: Tensor, cache: list[Tensor]) -> Tensor:
            return seen(self, super().seen(x, cache), cache)

    return Other


# Faults


def equal_tokens(module: Base, x: Tensor) -> Tensor:
    return torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril() | (x[:, :, None] == x[:, None]).all(-1)


def highest(module: Base, x: Tensor) -> Tensor:
    kept = module.scores(x).topk(min(3, x.shape[1]), dim=-1).indices
    return (torch.zeros(x.shape[0], x.shape[1], x.shape[1]).scatter(2, kept, 1) > 0) & torch.ones(
        x.shape[1], x.shape[1], dtype=torch.bool
    ).tril() | torch.eye(x.shape[1], dtype=torch.bool)


def circular(module: Base, x: Tensor) -> Tensor:
    kernel = torch.exp(-torch.arange(x.shape[1], dtype=x.dtype) / 4)
    return torch.fft.irfft(torch.fft.rfft(x, dim=1) * torch.fft.rfft(kernel)[:, None], x.shape[1], dim=1)


def global_maximum(module: Base, x: Tensor) -> Tensor:
    k = (module.key(x) - module.key(x).amax((1, 2), keepdim=True)).exp() + 1e-4
    return (k * module.value(x)).cumsum(1) / k.cumsum(1)


def denominator(module: Base, x: Tensor) -> Tensor:
    return module.scores(x).softmax(-1).tril() @ module.value(x)


class Dropped(Base):
    """The path with dropout forgets the mask."""

    def __init__(self, *sizes: int, dropout: float = 0.0) -> None:
        super().__init__(*sizes)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.drop.p > 0:
            return self.drop(self.scores(x).softmax(-1)) @ self.value(x)
        return super().forward(x)


class DroppedByName(Base):
    """The same with a rate that no attribute called dropout holds."""

    def forward(self, x: Tensor) -> Tensor:
        if self.training and self.p > 0:
            return F.dropout(self.scores(x).softmax(-1), self.p) @ self.value(x)
        return super().forward(x)


class TwoWays(Base):
    """A recurrent network that reads in both directions."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.gru = nn.GRU(WIDTH, WIDTH // 2, batch_first=True, bidirectional=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.gru(x)[0]


class Centred(nn.Conv1d):
    """A convolution that sees both neighbours."""

    def __init__(self) -> None:
        super().__init__(WIDTH, WIDTH, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x.transpose(1, 2)).transpose(1, 2)


class BatchNorm(Base):
    """Statistics of the batch."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.norm = nn.BatchNorm1d(WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(super().forward(x).transpose(1, 2)).transpose(1, 2)


class Unpacked(Packed):
    """Forgets where documents begin."""

    def forward(self, x: Tensor, documents: Tensor | None = None) -> Tensor:
        return super().forward(x)


def zeroed_keys(module: Padded, x: Tensor, padding: Tensor) -> Tensor:
    k, v = (part(x).masked_fill(padding[..., None], 0) for part in (module.key, module.value))
    scores = (module.query(x) @ k.transpose(1, 2)).masked_fill(~module.past(x), float("-inf"))
    return scores.softmax(-1) @ v


def without_order(module: Padded, x: Tensor, padding: Tensor) -> Tensor:
    """Forgets the order of tokens in rows with padding."""
    weights = module.scores(x).masked_fill(padding[:, None], -1e9).softmax(-1)
    return torch.where(padding.any(1)[:, None, None], weights @ module.value(x), module.plain(x, padding))


def undefined(module: Padded, x: Tensor, padding: Tensor) -> Tensor:
    return module.scores(x).masked_fill(~(module.past(x) & ~padding[:, None]), float("-inf")).softmax(
        -1
    ) @ module.value(x)


class Unmasked(Cached):
    """With a cache, new tokens see each other."""

    def forward(self, x: Tensor, cache: list[Tensor] | None = None) -> Tensor:
        if cache is None:
            return super().forward(x)
        seen = self.seen(x, cache)
        return (self.query(x) @ self.key(seen).transpose(1, 2) / WIDTH**0.5).softmax(-1) @ self.value(seen)


class HeldByModule(Cached):
    """The tokens are held by the module, and the cache only says whether there are any."""

    def seen(self, x: Tensor, cache: list[Tensor]) -> Tensor:
        self.memory = torch.cat([self.memory, x], 1) if cache and self.memory is not None else x
        cache.append(x)
        return self.memory


class OneForAll(Cached):
    """Every cache is the same list."""

    shared: ClassVar[list[Tensor]] = []

    def new_cache(self) -> list[Tensor]:
        return self.shared


class Shared(Base):
    """Adds what the previous layer or call left in an attribute of the class."""

    left: ClassVar[dict[str, Tensor]] = {}

    def forward(self, x: Tensor) -> Tensor:
        before = self.left.get("value")
        self.left["value"] = self.value(x).detach()
        return super().forward(x) + (0.1 * before if before is not None and before.shape == x.shape else 0)


_GLOBAL: dict[str, Tensor] = {}


def global_state(module: Base, x: Tensor) -> Tensor:
    before, _GLOBAL["mean"] = _GLOBAL.get("mean"), x.detach().mean()
    return x * (0 if before is None else 0.1 * before.to(x))


def previous_call(module: Base, x: Tensor) -> Tensor:
    before, module.memory = module.memory, x.detach()
    return torch.zeros_like(x) if before is None or before.shape != x.shape else 0.1 * before


def first_call(module: Base, x: Tensor) -> Tensor:
    """Keeps the mean of the first text that it reads."""
    first = module.memory is None
    module.memory = x.detach().mean() if module.memory is None else module.memory
    return torch.zeros_like(x) if first else x * module.memory.to(x)


def own_weights(module: Base, x: Tensor) -> Tensor:
    with torch.no_grad():
        module.value.weight.data = module.value.weight.data * 1.001
    return torch.zeros_like(x)


def own_input(module: Base, x: Tensor) -> Tensor:
    if not x.requires_grad:
        x.mul_(0.999)
    return torch.zeros_like(x)


class OwnGenerator(Base):
    """Noise from a generator of its own, in eval() too."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.drawn = 0

    def forward(self, x: Tensor) -> Tensor:
        self.drawn += 1
        noise = torch.randn(x.shape, generator=torch.Generator().manual_seed(self.drawn)).to(x)
        return super().forward(x) + 0.1 * noise


def seeding(module: Base, x: Tensor) -> Tensor:
    torch.manual_seed(0)
    return 0.1 * torch.randn(x.shape).to(x)


@dataclass(frozen=True)
class Faulty:
    """A module and the checks that may name its fault; no others may fail, except those in `also`."""

    build: Callable[..., nn.Module]
    checks: tuple[str, ...] = FUTURE
    also: tuple[str, ...] = ()
    length: int = 12
    as_mechanism: bool = False


_ONES = torch.ones(600, 600, dtype=torch.bool)
# Where a mechanism knows of no documents, those of a row are called as a batch: what mixes a batch mixes them as well.
BATCH = ("batch", "packing")

FAULTS: dict[str, Faulty] = {
    "no mask": Faulty(chosen(lambda module, x: _ONES[: x.shape[1], : x.shape[1]])),
    "mask one too far": Faulty(chosen(lambda module, x: _ONES[: x.shape[1], : x.shape[1]].tril(1))),
    "mask transposed": Faulty(chosen(lambda module, x: _ONES[: x.shape[1], : x.shape[1]].triu())),
    "mask after the softmax": Faulty(instead(denominator)),
    "softmax over queries": Faulty(instead(lambda m, x: m.scores(x).softmax(1).tril() @ m.value(x))),
    "keys centred over the row": Faulty(
        instead(lambda m, x: (m.query(x) * (m.key(x) - m.key(x).mean(1, keepdim=True)) * m.value(x)).cumsum(1))
    ),
    "normalised over time": Faulty(
        instead(lambda m, x: Base.forward(m, x / (x.std(1, keepdim=True, correction=0) + 1e-3)))
    ),
    "layer norm of the whole row": Faulty(instead(lambda m, x: Base.forward(m, F.layer_norm(x, x.shape[1:])))),
    "mean of the row": Faulty(plus(lambda m, x: 0.1 * x.mean(1, keepdim=True))),
    "maximum of the row": Faulty(plus(lambda m, x: 0.1 * x.amax(1, keepdim=True))),
    "temperature from the row": Faulty(instead(lambda m, x: Base.forward(m, x * x.abs().amax((1, 2), keepdim=True)))),
    "maximum of all keys and an epsilon": Faulty(instead(global_maximum)),
    "running sum one too far": Faulty(instead(lambda m, x: ahead(mean(x)))),
    "running sum reversed": Faulty(instead(lambda m, x: x.flip(1).cumsum(1).flip(1))),
    "token shift the wrong way": Faulty(plus(lambda m, x: 0.5 * ahead(x))),
    "token shift that wraps": Faulty(plus(lambda m, x: 0.5 * x.roll(1, 1))),
    "end of a chunk peeks": Faulty(
        plus(lambda m, x: 0.1 * ahead(x) * (torch.arange(x.shape[1]) % 8 == 7).to(x)[:, None])
    ),
    "all see the last token": Faulty(plus(lambda m, x: 1e-3 * x[:, -1:])),
    "only the last but one peeks": Faulty(
        plus(lambda m, x: 0.1 * ahead(x) * (torch.arange(x.shape[1]) == x.shape[1] - 2).to(x)[:, None])
    ),
    "argmax of all tokens": Faulty(plus(lambda m, x: 0.1 * x.sum(-1).argmax(1).to(x)[:, None, None].expand_as(x))),
    "ranks among all tokens": Faulty(plus(lambda m, x: 0.1 * x.argsort(1).argsort(1).to(x))),
    "highest keys of the whole row": Faulty(chosen(highest)),
    "median of the row": Faulty(plus(lambda m, x: 0.1 * x.median(1, keepdim=True).values)),
    "length of the row": Faulty(plus(lambda m, x: 0.01 * x.shape[1] * x), ("prefix",)),
    "sign of the sum, without gradient": Faulty(plus(lambda m, x: 0.01 * x.detach().sum(1, keepdim=True).sign())),
    "gradient alone": Faulty(
        plus(lambda m, x: x.sum(1, keepdim=True) - x.sum(1, keepdim=True).detach()), ("gradient",)
    ),
    "rounded next token": Faulty(plus(lambda m, x: 0.01 * (4 * ahead(x)).round())),
    "convolution of both neighbours": Faulty(Centred),
    "circular convolution": Faulty(instead(circular)),
    "recurrent in both directions": Faulty(TwoWays),
    "equal tokens only": Faulty(chosen(equal_tokens)),
    "dropout path without mask": Faulty(Dropped, also=("padding",), as_mechanism=True),
    "dropout path without mask, built": Faulty(lambda: Dropped(WIDTH, 1, 64, dropout=0.1)),
    "dropout rate under another name": Faulty(DroppedByName, as_mechanism=True),
    "float64 only": Faulty(only(lambda m, x: x.dtype == torch.float64)),
    "float32 only, small": Faulty(only(lambda m, x: x.dtype == torch.float32, 1e-4)),
    "autocast only": Faulty(only(lambda m, x: torch.is_autocast_enabled("cpu"))),
    "inference mode only": Faulty(only(lambda m, x: torch.is_inference_mode_enabled())),
    "train() only": Faulty(only(lambda m, x: m.training), also=("train_eval",)),
    "eval() only": Faulty(only(lambda m, x: not m.training), also=("train_eval",)),
    "batches of three or more": Faulty(only(lambda m, x: len(x) > 2), also=("batch",)),
    "large inputs only": Faulty(only(lambda m, x: bool(x.abs().max() > 30)), also=BATCH),
    "four heads or more": Faulty(only(lambda m, x: m.n_head >= 4), as_mechanism=True),
    "width of 64 or more": Faulty(only(lambda m, x: x.shape[-1] >= 64), as_mechanism=True),
    "rows with padding": Faulty(padded(without_order), (*FUTURE, "batch"), also=("padding",)),
    "beyond 128 tokens": Faulty(only(lambda m, x: x.shape[1] > 128), length=140),
    "means of the batch": Faulty(
        plus(lambda m, x: 0.1 * x.mean(0, keepdim=True)), ("batch",), ("packing", "train_eval")
    ),
    "maximum of the batch": Faulty(
        plus(lambda m, x: 0.1 * x.amax(0, keepdim=True)), ("batch",), ("packing", "train_eval")
    ),
    "earlier rows of the batch": Faulty(plus(lambda m, x: 0.1 * x.cumsum(0)), ("batch",), also=("packing",)),
    "next row of the batch": Faulty(plus(lambda m, x: 0.1 * x.roll(1, 0)), ("batch",), also=("packing",)),
    "documents of a row": Faulty(Unpacked, ("packing",)),
    "batch norm": Faulty(BatchNorm, ("batch",), also=("packing", "train_eval", "repeat", *FUTURE)),
    "padding ignored": Faulty(padded(lambda m, x, hidden: m.plain(x, torch.zeros_like(hidden))), ("padding",)),
    "padding inverted": Faulty(padded(lambda m, x, hidden: m.plain(x, ~hidden)), ("padding",), also=("batch",)),
    "hidden keys count as zeros": Faulty(padded(zeroed_keys), ("padding",), also=("batch",)),
    "hidden tokens in a sum": Faulty(
        padded(lambda m, x, hidden: m.plain(x, hidden) + 0.1 * mean(x)), ("padding",), also=("batch",)
    ),
    "nothing to see is not a number": Faulty(padded(undefined), ("masked",)),
    "cache without mask": Faulty(Unmasked, ("cache",)),
    "cache of 128 tokens": Faulty(cached(lambda m, seen, cache: seen[:, -128:]), ("cache",), length=140),
    "cache wrong after 256 tokens": Faulty(
        cached(lambda m, seen, cache: seen if seen.shape[1] <= 256 else seen.flip(2)), ("cache",), length=270
    ),
    "cache without the first token": Faulty(
        cached(lambda m, seen, cache: seen[:, 1:] if len(cache) > 1 else seen), ("cache",)
    ),
    "cache in the module": Faulty(HeldByModule, ("cache",)),
    "one cache for all": Faulty(OneForAll, ("cache",)),
    "functional dropout in eval()": Faulty(instead(lambda m, x: F.dropout(Base.forward(m, x), 0.1)), ("repeat",)),
    "noise in eval()": Faulty(
        plus(lambda m, x: 0 * x if m.training else 0.1 * torch.randn_like(x)), ("repeat",), ("train_eval",)
    ),
    "own generator": Faulty(OwnGenerator, ("repeat",)),
    "seeds the generator": Faulty(plus(seeding), ("repeat",), also=("prefix", "cache", "batch")),
    "state of the class": Faulty(Shared, ("repeat",), (*FUTURE, *BATCH, "train_eval"), as_mechanism=True),
    "global state": Faulty(plus(global_state), ("repeat",), also=(*FUTURE, *BATCH, "train_eval")),
    "previous call": Faulty(plus(previous_call), ("repeat",), also=(*FUTURE, *BATCH, "train_eval")),
    "first call": Faulty(plus(first_call), ("repeat",)),
    "changes its weights": Faulty(plus(own_weights), ("repeat",), also=(*FUTURE, *BATCH, "train_eval")),
    "changes its input": Faulty(plus(own_input), ("repeat",), also=(*FUTURE, *BATCH, "train_eval")),
    "twice as large in train()": Faulty(plus(lambda m, x: x if m.training else 0 * x), ("train_eval",)),
    "exponential without its maximum": Faulty(
        instead(lambda m, x: m.scores(4 * x).exp().tril() @ m.value(x)), ("large",)
    ),
    "ignores its input": Faulty(instead(lambda m, x: torch.ones_like(x) + 0 * m.value(x)), ("responds",)),
}


# Sound modules


def kernel_of(x: Tensor, tokens: int) -> Tensor:
    places = torch.arange(tokens, dtype=x.dtype)
    return torch.exp(-places / 8) * torch.cos(places)


def convolved(x: Tensor) -> Tensor:
    """A causal convolution by FFT, with room so that nothing wraps."""
    tokens = x.shape[1]
    spectrum = torch.fft.rfft(x, 2 * tokens, dim=1) * torch.fft.rfft(kernel_of(x, tokens), 2 * tokens)[:, None]
    return torch.fft.irfft(spectrum, 2 * tokens, dim=1)[:, :tokens]


def half(kind: torch.dtype) -> Callable[[], nn.Module]:
    """Attention that computes in another precision."""

    def forward(module: Base, x: Tensor) -> Tensor:
        q, k, v = (part(x).to(kind) for part in (module.query, module.key, module.value))
        scores = (q @ k.transpose(1, 2)).float() / WIDTH**0.5
        weights = scores.masked_fill(~module.past(x), float("-inf")).softmax(-1)
        return (weights.to(kind) @ v).to(x.dtype)

    return instead(forward)


def linear_attention(module: Base, x: Tensor) -> Tensor:
    q, k = F.elu(module.query(x)) + 1.01, F.elu(module.key(x)) + 1.01
    sums = torch.einsum("btc,btd->btcd", k, module.value(x)).cumsum(1)
    return torch.einsum("btc,btcd->btd", q, sums) / (q * k.cumsum(1)).sum(-1, keepdim=True)


def chunked(module: Base, x: Tensor) -> Tensor:
    """Linear attention in chunks of 8: what came before as a sum, the chunk itself token by token."""
    q, k, v = F.elu(module.query(x)) + 1, F.elu(module.key(x)) + 1, module.value(x)
    state, parts = x.new_zeros(len(x), x.shape[2], x.shape[2]), []
    for a, b, c in zip(q.split(8, 1), k.split(8, 1), v.split(8, 1), strict=True):
        parts.append(a @ state + (a @ b.transpose(1, 2)).tril() @ c)
        state = state + b.transpose(1, 2) @ c
    return torch.cat(parts, 1)


def past_only(scores: Tensor) -> Tensor:
    return scores.masked_fill(~_ONES[: scores.shape[1], : scores.shape[1]].tril(), float("-inf"))


def highest_of_past(module: Base, x: Tensor) -> Tensor:
    scores = past_only(module.scores(x))
    least = scores.topk(min(3, x.shape[1]), dim=-1).values[..., -1:]
    return scores.masked_fill(scores < least, float("-inf")).softmax(-1) @ module.value(x)


def sorted_past(module: Base, x: Tensor) -> Tensor:
    """The weights of the past, sorted, times the values in their order."""
    ranked = past_only(module.scores(x)).softmax(-1).sort(-1, descending=True)
    values = module.value(x)[:, None].expand(-1, x.shape[1], -1, -1)
    order = ranked.indices[..., None].expand(-1, -1, -1, x.shape[-1])
    return (ranked.values[..., None] * values.gather(2, order)).sum(2)


def time_mix(module: Base, x: Tensor) -> Tensor:
    """A decaying average with a token shift, as in RWKV."""
    mixed = 0.5 * x + 0.5 * behind(x)
    k, v, top, bottom, outputs = module.key(mixed).clamp(-9, 9).exp(), module.value(mixed), 0.0, 1e-6, []
    for step in range(x.shape[1]):
        top, bottom = 0.9 * top + k[:, step] * v[:, step], 0.9 * bottom + k[:, step]
        outputs.append(top / bottom)
    return module.query(x).sigmoid() * torch.stack(outputs, 1)


def alibi(module: Base, x: Tensor) -> Tensor:
    places = torch.arange(x.shape[1], dtype=x.dtype)
    return past_only(module.scores(x) - 0.3 * (places[:, None] - places)).softmax(-1) @ module.value(x)


def cancelling(module: Base, x: Tensor) -> Tensor:
    """A stabiliser of the whole text that cancels, but for rounding."""
    much = 30 * x.float().sum((1, 2), keepdim=True)
    return ((Base.forward(module, x).float() + much) - much).to(x.dtype)


def features(module: Base, x: Tensor) -> Tensor:
    drawn = torch.randn(x.shape[-1], 16, generator=torch.Generator().manual_seed(3)).to(x)
    q, k = (torch.cos(part(x) @ drawn) + 1.1 for part in (module.query, module.key))
    weights = (q @ k.transpose(1, 2)).tril()
    return weights / weights.sum(-1, keepdim=True) @ module.value(x)


def convolution(module: Base, x: Tensor) -> Tensor:
    return sum(
        (weight * F.pad(x, (0, 0, step, 0))[:, : x.shape[1]] for step, weight in enumerate((1.0, 0.5, 0.2))), 0 * x
    )


class OneWay(TwoWays):
    """A recurrent network that reads forward."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.gru = nn.GRU(WIDTH, WIDTH, batch_first=True)


class Places(Base):
    """Learned positions."""

    def __init__(self, *sizes: int) -> None:
        super().__init__(*sizes)
        self.places = nn.Parameter(torch.randn(600, WIDTH))

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x + self.places[: x.shape[1]])


class State(Base):
    """A running sum with a cache of one sum."""

    def new_cache(self) -> dict[str, Tensor]:
        return {}

    def forward(self, x: Tensor, padding: Tensor | None = None, cache: dict[str, Tensor] | None = None) -> Tensor:
        v = self.value(x)
        if padding is not None:
            v = v.masked_fill(padding[:, -x.shape[1] :, None], 0)
        v = v.cumsum(1) + (0 if cache is None else cache.get("sum", 0))
        if cache is not None:
            cache["sum"] = v[:, -1:]
        return v


class DropoutOfItsOwn(Dropped):
    """Dropout of the weights, of those that are masked."""

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.weights(x)) @ self.value(x)


SOUND: dict[str, Callable[[], Any]] = {
    "attention": Base,
    "attention with padding": Padded,
    "attention with a cache": Cached,
    "attention within documents": Packed,
    "attention with dropout": lambda: DropoutOfItsOwn(WIDTH, 1, 64, dropout=0.1),
    "functional dropout in train()": instead(lambda m, x: F.dropout(Base.forward(m, x), 0.1, m.training)),
    "noise in train()": plus(lambda m, x: 0.1 * torch.randn_like(x) if m.training else 0 * x),
    "convolution by FFT": instead(lambda m, x: convolved(m.value(x))),
    "convolution by FFT in float32": instead(lambda m, x: convolved(m.value(x).float()).to(x.dtype)),
    "convolution by FFT, a function": lambda: convolved,
    "bfloat16 inside": half(torch.bfloat16),
    "outputs rounded to float16": instead(lambda m, x: Base.forward(m, x).half().to(x.dtype)),
    "outputs in bfloat16": instead(lambda m, x: Base.forward(m, x).bfloat16()),
    "linear attention": instead(linear_attention),
    "linear attention in chunks": instead(chunked),
    "running sums in float32": instead(lambda m, x: linear_attention(m, x).float().to(x.dtype)),
    "sliding window": chosen(lambda m, x: _ONES[: x.shape[1], : x.shape[1]].tril().triu(-3)),
    "seeded random features": instead(features),
    "highest of the past": instead(highest_of_past),
    "sorting of the past": instead(sorted_past),
    "hard choice of the past": instead(
        lambda m, x: F.one_hot(past_only(m.scores(x)).argmax(-1), x.shape[1]).to(x) @ m.value(x)
    ),
    "time mix": instead(time_mix),
    "recurrent": OneWay,
    "convolution of the past": instead(convolution),
    "running maximum": instead(lambda m, x: m.value(x).cummax(1).values),
    "mean of the past": instead(lambda m, x: mean(m.value(x))),
    "distances as a bias": instead(alibi),
    "learned positions": Places,
    "running sum with cache and padding": State,
    "very large outputs": instead(lambda m, x: 1e8 * Base.forward(m, x)),
    "very small outputs": instead(lambda m, x: 1e-8 * Base.forward(m, x)),
    "a large constant": instead(lambda m, x: Base.forward(m, x) + 1000),
    "a stabiliser that cancels": instead(cancelling),
    "the token itself": instead(lambda m, x: m.value(x).tanh()),
    "strictly the past": instead(lambda m, x: behind(mean(m.value(x)))),
}


def build(kind: Callable[[], Any]) -> Any:
    """A module with the same weights every time."""
    torch.manual_seed(0)
    return kind()


def audit_faulty(name: str) -> Report:
    """The audit of a module with a fault."""
    _GLOBAL.clear()
    OneForAll.shared.clear()
    Shared.left.clear()
    case = FAULTS[name]
    if not case.as_mechanism:
        return audit_module(build(case.build), n_embd=WIDTH, length=case.length)
    registry.add(Entry("mechanism", "crafted", case.build))
    try:
        return audit_mechanism("crafted", n_embd=WIDTH, n_head=1, length=case.length)
    finally:
        del registry._entries["mechanism", "crafted"]


def audit_sound(name: str) -> Report:
    """The audit of a sound module; by FFT also a longer text."""
    return audit_module(build(SOUND[name]), n_embd=WIDTH, length=150 if "FFT" in name else 12)


def is_caught(name: str, report: Report) -> bool:
    """Whether the fault was found, and under a name that describes it."""
    case, found = FAULTS[name], set(report.faults)
    return bool(found & set(case.checks)) and found <= {*case.checks, *case.also}


def main() -> None:
    """Audit all, print."""
    caught = passed = 0
    for name in FAULTS:
        report = audit_faulty(name)
        caught += is_caught(name, report)
        print(f"{'caught' if is_caught(name, report) else 'MISSED':8}{name:36}{', '.join(report.faults)}", flush=True)
    for name in SOUND:
        report = audit_sound(name)
        passed += report.verdict == "pass"
        print(f"{report.verdict:8}{name:36}{'; '.join(f'{k}: {v}' for k, v in report.faults.items())}", flush=True)
    print(f"caught {caught} of {len(FAULTS)} faults, passed {passed} of {len(SOUND)} sound modules")


if __name__ == "__main__":
    main()
