"""Where the queries, keys and values of a comparison come from: drawn at random, or looked up in a trained model."""

from __future__ import annotations

import functools
import hashlib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, ParamSpec, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from attnlab import corpora, ops, registry
from attnlab.errors import UserError
from attnlab.model import load_model
from attnlab.runs import Run
from attnlab.taps import capture
from attnlab.tokenizers import Tokenizer

P = ParamSpec("P")
R = TypeVar("R")
TEXTS = 8  # of a run's corpus


class QKV(NamedTuple):
    """One draw: what every sample attends with."""

    q: Float[Tensor, "S H T C"]
    k: Float[Tensor, "S H T C"]
    v: Float[Tensor, "S H T C"]


@dataclass(frozen=True)
class Source:
    """Some samples with names, drawn as often as wanted; all of one shape, and all causal or none."""

    names: tuple[str, ...]
    draw: Callable[[int], QKV]
    heads: int
    tokens: int
    width: int
    causal: bool
    words: str

    @property
    def mask(self) -> Bool[Tensor, "1 1 T T"] | None:
        """Who may see whom."""
        return ops.visible(self.tokens, self.tokens, None, self.causal)


def seed_of(purpose: str, seed: int, number: int) -> int:
    """A seed for every purpose and draw: a mechanism drawn from the numbers of its own queries would not be random to them."""
    return int.from_bytes(hashlib.sha256(f"{purpose} {seed} {number}".encode()).digest()[:6])


def seeded(purpose: str, seed: int, number: int) -> torch.Generator:
    """Random numbers of their own, which leave torch's alone."""
    return torch.Generator().manual_seed(seed_of(purpose, seed, number))


@contextmanager
def chance(purpose: str, seed: int, number: int) -> Iterator[None]:
    """Torch's own random numbers from a seed for a while, and then as they were."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_of(purpose, seed, number))
        yield


def isolated(function: Callable[P, R]) -> Callable[P, R]:
    """Have a function leave torch's own random numbers as it found them, and not depend on them."""

    @functools.wraps(function)
    def wrapped(*args: P.args, **kwargs: P.kwargs) -> R:
        with chance("alone", 0, 0):
            return function(*args, **kwargs)

    return wrapped


def random_source(
    spreads: tuple[float, ...] = (0.5, 1.0, 2.0),
    tokens: int = 256,
    width: int = 32,
    causal: bool = False,
    seed: int = 0,
) -> Source:
    """Normal queries and keys of some spreads, and standard normal values; the spreads of one draw differ in scale only."""
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
    """The queries, keys and values of every layer of a trained model on texts of its corpus, and random ones beside them."""
    run = Run.open(folder)
    model, tokenizer = load_model(run.model, trust_code=trust_code)
    strange = {name for name in model.config.mechanisms if registry.find("mechanism", name).weights != "exact"}
    if strange or model.config.bottleneck:
        met = ", ".join(sorted(strange)) or "a bottleneck"
        raise UserError(f"{folder} attends by {met}, where no exact pattern is to be had: name a run of mechanism dot")
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
    config: dict[str, Any] = run.config
    while not config["data"]["corpus"]:
        if not config["base"]:
            raise UserError(f"{run.path} has read no corpus: name a pretrained run")
        run = Run.open(run.path / config["base"])
        config = run.config
    return corpora.load_corpus(config["data"]["corpus"]["source"]).lines


def longest(lines: tuple[str, ...], tokenizer: Tokenizer, block: int) -> Tensor:
    """The longest texts, cut to one length, so that there is no padding."""
    picked = sorted(lines, key=len, reverse=True)[: 4 * TEXTS]
    ids = sorted((tokenizer.encode(line)[:block] for line in picked), key=len, reverse=True)[:TEXTS]
    return torch.tensor([one[: len(ids[-1])] for one in ids])


def _captured(seen: dict[str, Tensor], prefix: str) -> QKV:
    """Queries, keys and values of a layer, every head with keys and values of its own."""
    q, k, v = (seen[f"{prefix}{name}"].transpose(1, 2) for name in "qkv")
    times = q.shape[1] // k.shape[1]
    return QKV(q, k.repeat_interleave(times, dim=1), v.repeat_interleave(times, dim=1))
