"""Queries, keys and values for a comparison: random, or captured in a trained model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlab import corpora, ops, registry
from attnlab.errors import UserError
from attnlab.inside.taps import capture
from attnlab.lm.model import load_model
from attnlab.lm.tokenizers import Tokenizer
from attnlab.mechanisms.heads import Attention
from attnlab.store.runs import Run, lineage

_TEXTS = 8  # of a run's corpus, to measure on
_TAUGHT = 24  # others, to train on


class QKV(NamedTuple):
    """Queries, keys and values of one draw, for every sample."""

    q: Float[Tensor, "S H T C"]
    k: Float[Tensor, "S H T C"]
    v: Float[Tensor, "S H T C"]


@dataclass(frozen=True)
class Source:
    """Named samples, drawn as often as needed; all of one shape, and all causal or none."""

    names: tuple[str, ...]
    draw: Callable[[int], QKV]
    teach: Callable[[int], QKV]  # draws that are never measured, to train on
    heads: int
    tokens: int
    width: int
    causal: bool
    words: str
    trained: tuple[Attention, ...] = ()  # the layers of a run, of the first samples

    @property
    def mask(self) -> Bool[Tensor, "1 1 T T"] | None:
        """Which tokens may see which."""
        return ops.visible(self.tokens, self.tokens, None, self.causal)


def seed_of(purpose: str, seed: int, number: int) -> int:
    """A seed per purpose and draw: a mechanism must not be drawn from the same numbers as its queries."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {seed} {number}".encode()).digest()[:6])


def seeded(purpose: str, seed: int, number: int) -> torch.Generator:
    """A separate generator, which leaves torch's own as it is."""
    return torch.Generator().manual_seed(seed_of(purpose, seed, number))


@contextmanager
def chance(purpose: str, seed: int, number: int) -> Iterator[None]:
    """Seed torch's own generator, and restore its state afterwards; also a decorator."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(purpose, seed, number))
        yield


def random_source(
    spreads: tuple[float, ...] = (0.5, 1.0, 2.0),
    tokens: int = 256,
    width: int = 32,
    causal: bool = False,
    seed: int = 0,
) -> Source:
    """Normal queries and keys of some standard deviations, and standard normal values; a draw differs in scale only."""
    if not spreads or min(spreads) <= 0:
        raise UserError("--std takes numbers above 0, such as --std 0.5 --std 2")
    scale = torch.tensor(spreads)[:, None, None, None]

    def draw(number: int, purpose: str = "sample") -> QKV:
        q, k, v = torch.randn(3, 1, 1, tokens, width, generator=seeded(purpose, seed, number))
        return QKV(q * scale, k * scale, v.expand(len(spreads), -1, -1, -1))

    words = (
        f"{tokens} tokens, one head of width {width}, {'causal' if causal else 'bidirectional'}; entries of queries and"
        " keys normal with the std given, entries of values with std 1"
    )
    names, teach = tuple(f"std {spread:g}" for spread in spreads), partial(draw, purpose="teaching")
    return Source(names, draw, teach, 1, tokens, width, causal, words)


def run_source(
    folder: Path, seed: int = 0, *, mechanism: str = "dot", teaching: bool = False, trust_code: bool = False
) -> Source:
    """Queries, keys and values of every layer of a trained model on texts of its corpus, and random ones.

    The run attends exactly, or by the `mechanism` that is measured; its layers are then part of the source. `teaching` takes
    more texts, to train on.
    """
    run = Run.open(folder)
    model, tokenizer = load_model(run.model, trust_code=trust_code)
    strange = {name for name in model.config.mechanisms if registry.find("mechanism", name).weights != "exact"}
    own = set(model.config.mechanisms) == {mechanism}
    if (strange and not own) or model.config.bottleneck:
        met = ", ".join(sorted(strange)) or "a bottleneck"
        both = f"dot or {mechanism}" if mechanism != "dot" else "dot"
        raise UserError(f"{folder} attends by {met}, which has no exact pattern: name a run of mechanism {both}")
    count = _TEXTS + _TAUGHT * teaching
    ids = (windows if run.record.running_text else longest)(corpus_of(run), tokenizer, model.config.block_size, count)
    if teaching and len(ids) <= _TEXTS:
        raise UserError(f"{folder} has read {len(ids)} texts, too few to measure and to train on: leave out --fit")
    with torch.no_grad(), capture(model, "") as seen:
        model(ids)
    layers = [_captured(seen, f"blocks.{layer}.attn.hook_") for layer in range(model.config.n_layer)]
    heads, tokens, width = layers[0].q.shape[1:]
    found = QKV(*(torch.stack(part) for part in zip(*layers, strict=True)))  # layer, text, head, token, width

    def draw(number: int, purpose: str = "sample", first: int = 0, last: int = _TEXTS) -> QKV:
        noise = torch.randn(3, 1, heads, tokens, width, generator=seeded(purpose, seed, number))
        texts = (part[:, first + number % (min(last, len(ids)) - first)] for part in found)
        return QKV(*(torch.cat(pair) for pair in zip(texts, noise, strict=True)))

    names = (*(f"layer {layer}" for layer in range(1, len(layers) + 1)), "random")
    words = (
        f"{min(len(ids), _TEXTS)} texts of its corpus, {tokens} tokens each, {heads} heads of width {width}, causal;"
        " random: entries of queries, keys and values normal with std 1"
    )
    teach = partial(draw, purpose="teaching", first=_TEXTS, last=count)
    trained = tuple(one for one in model.mechanisms if own and strange and isinstance(one, Attention))
    return Source(names, draw, teach, heads, tokens, width, True, f"{folder}: {words}", trained)


def corpus_of(run: Run) -> tuple[str, ...]:
    """The lines that a run, or the run it started from, has read."""
    for one in lineage(run):
        if corpus := one.record.corpus:
            return corpora.load_corpus(corpus.source).lines
    raise UserError(f"{run.path} has read no corpus: name a pretrained run")


def longest(lines: tuple[str, ...], tokenizer: Tokenizer, block: int, count: int = _TEXTS) -> Tensor:
    """The longest texts, cut to one length, so that there is no padding."""
    picked = sorted(lines, key=len, reverse=True)[: 4 * count]
    ids = sorted((tokenizer.encode(line)[:block] for line in picked), key=len, reverse=True)[:count]
    return torch.tensor([one[: len(ids[-1])] for one in ids])


def windows(lines: tuple[str, ...], tokenizer: Tokenizer, block: int, count: int = _TEXTS) -> Tensor:
    """The first texts of one block each, from running text."""
    ids: list[int] = []
    for line in lines:
        ids += [tokenizer.pad, *tokenizer.encode(line)]
        if len(ids) >= block * count:
            break
    block = min(block, len(ids))
    return torch.tensor(ids[: len(ids) // block * block][: block * count]).view(-1, block)


def _captured(seen: dict[str, Tensor], prefix: str) -> QKV:
    """Queries, keys and values of a layer; shared keys and values are repeated per head."""
    q, k, v = (seen[f"{prefix}{name}"].transpose(1, 2) for name in "qkv")
    times = q.shape[1] // k.shape[1]
    return QKV(q, k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1))
