"""Queries, keys and values for a comparison: random, or captured in a trained model."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlab import corpora, ops, registry
from attnlab.errors import UserError
from attnlab.model import load_model
from attnlab.runs import Run, lineage
from attnlab.taps import capture
from attnlab.tokenizers import Tokenizer

_TEXTS = 8  # of a run's corpus


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
    heads: int
    tokens: int
    width: int
    causal: bool
    words: str

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

    def draw(number: int) -> QKV:
        q, k, v = torch.randn(3, 1, 1, tokens, width, generator=seeded("sample", seed, number))
        return QKV(q * scale, k * scale, v.expand(len(spreads), -1, -1, -1))

    words = (
        f"{tokens} tokens, one head of width {width}, {'causal' if causal else 'bidirectional'}; entries of queries and"
        " keys normal with the std given, entries of values with std 1"
    )
    return Source(tuple(f"std {spread:g}" for spread in spreads), draw, 1, tokens, width, causal, words)


def run_source(folder: Path, seed: int = 0, *, trust_code: bool = False) -> Source:
    """Queries, keys and values of every layer of a trained model on texts of its corpus, and random ones."""
    run = Run.open(folder)
    model, tokenizer = load_model(run.model, trust_code=trust_code)
    strange = {name for name in model.config.mechanisms if registry.find("mechanism", name).weights != "exact"}
    if strange or model.config.bottleneck:
        met = ", ".join(sorted(strange)) or "a bottleneck"
        raise UserError(f"{folder} attends by {met}, which has no exact pattern: name a run of mechanism dot")
    ids = longest(corpus_of(run), tokenizer, model.config.block_size)
    with torch.no_grad(), capture(model, "") as seen:
        model(ids)
    layers = [_captured(seen, f"blocks.{layer}.attn.hook_") for layer in range(model.config.n_layer)]
    heads, tokens, width = layers[0].q.shape[1:]
    own = QKV(*(torch.stack(part) for part in zip(*layers, strict=True)))  # layer, text, head, token, width

    def draw(number: int) -> QKV:
        noise = torch.randn(3, 1, heads, tokens, width, generator=seeded("sample", seed, number))
        texts = (part[:, number % len(ids)] for part in own)
        return QKV(*(torch.cat(pair) for pair in zip(texts, noise, strict=True)))

    names = (*(f"layer {layer}" for layer in range(1, len(layers) + 1)), "random")
    words = (
        f"{len(ids)} texts of its corpus, {tokens} tokens each, {heads} heads of width {width}, causal;"
        " random: entries of queries, keys and values normal with std 1"
    )
    return Source(names, draw, heads, tokens, width, True, f"{folder}: {words}")


def corpus_of(run: Run) -> tuple[str, ...]:
    """The lines that a run, or the run it started from, has read."""
    for one in lineage(run):
        if corpus := one.record.corpus:
            return corpora.load_corpus(corpus.source).lines
    raise UserError(f"{run.path} has read no corpus: name a pretrained run")


def longest(lines: tuple[str, ...], tokenizer: Tokenizer, block: int) -> Tensor:
    """The longest texts, cut to one length, so that there is no padding."""
    picked = sorted(lines, key=len, reverse=True)[: 4 * _TEXTS]
    ids = sorted((tokenizer.encode(line)[:block] for line in picked), key=len, reverse=True)[:_TEXTS]
    return torch.tensor([one[: len(ids[-1])] for one in ids])


def _captured(seen: dict[str, Tensor], prefix: str) -> QKV:
    """Queries, keys and values of a layer; shared keys and values are repeated per head."""
    q, k, v = (seen[f"{prefix}{name}"].transpose(1, 2) for name in "qkv")
    times = q.shape[1] // k.shape[1]
    return QKV(q, k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1))
