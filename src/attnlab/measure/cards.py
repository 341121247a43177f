"""The card of a mechanism: what it says of itself, and what can be counted: parameters, memory in training, what it keeps in
generation. From here come `attnlab mechanisms show` and the page docs/mechanisms.md.
"""

from __future__ import annotations

import functools
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

from attnlab import registry
from attnlab.errors import ConfigError
from attnlab.measure.approximation.forms import build
from attnlab.measure.approximation.samples import chance
from attnlab.registry import Entry, Option

N_EMBD, N_HEAD, BLOCK = 256, 8, 128  # the layer whose parameters and cache are counted
SHORT, LONG = 2048, 4096  # texts whose memory is compared; in shorter ones sparse mechanisms look at all pairs
WEIGHTS = {
    "own": "not an approximation of dot-product attention",
    "exact": "those of dot-product attention, given the same queries and keys",
    "sparse": "those of dot-product attention, over fewer pairs",
    "low rank": "an approximation of dot-product attention, by few rows",
    "kernel": "an approximation of dot-product attention, by features",
}


def entries() -> list[Entry]:
    """Every mechanism there is."""
    return [registry.find("mechanism", name) for name in registry.names("mechanism")]


def make(entry: Entry, n_embd: int = N_EMBD, n_head: int = N_HEAD, block_size: int = BLOCK) -> nn.Module:
    """A layer at its defaults, causal where it can be, the same each time."""
    with chance("card", 0, 0):
        return build(entry, n_embd, n_head, block_size, entry.causal)


def count_parameters(entry: Entry) -> int:
    """The parameters of a layer."""
    return sum(parameter.numel() for parameter in make(entry).parameters())


def saved_for_training(module: nn.Module, tokens: int, width: int) -> int:
    """How many numbers are kept of a text for the way back, parameters aside."""
    own = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    kept: dict[int, int] = {}

    def keep(x: Tensor) -> Tensor:
        storage = x.untyped_storage()
        if storage.data_ptr() not in own:
            kept[storage.data_ptr()] = storage.nbytes()
        return x

    with torch.autograd.graph.saved_tensors_hooks(keep, lambda x: x):
        held = module(torch.ones(1, tokens, width, requires_grad=True))
    del held  # only now: a storage that is freed gives its address to another
    return sum(kept.values())


def memory_growth(entry: Entry) -> str:
    """Whether what training keeps of a text grows with its length or with the square of it: measured."""
    width = 8
    module = make(entry, width, 1, LONG).train()
    ratio = saved_for_training(module, LONG, width) / saved_for_training(module, SHORT, width)
    return "n²" if ratio > 3 else "n"


def numbers_in(kept: Any) -> int:
    """How many numbers a cache holds."""
    if isinstance(kept, Tensor):
        return kept.numel()
    if isinstance(kept, dict):
        return sum(numbers_in(one) for one in kept.values())
    if isinstance(kept, list | tuple):
        return sum(numbers_in(one) for one in kept)
    return numbers_in(vars(kept)) if hasattr(kept, "__dict__") else 0


@torch.no_grad()
def cache_sizes(entry: Entry) -> dict[str, int]:
    """The numbers that a layer keeps of a text under way, half a block and a block long; nothing where it has no cache."""
    module = make(entry).eval()
    if not entry.causal or not hasattr(module, "new_cache"):
        return {}
    cache, sizes = module.new_cache(), {}  # type: ignore[operator]
    for tokens in (BLOCK // 2, BLOCK):
        module(torch.ones(1, BLOCK // 2, N_EMBD), cache=cache)
        sizes[str(tokens)] = numbers_in(cache)
    return sizes


def cache_words(sizes: dict[str, int]) -> str:
    """What is kept in generation, in words."""
    if not sizes:
        return "none"
    half, whole = sizes.values()
    return f"{whole:,} numbers" + (", however long the text" if half == whole else f" at {BLOCK} tokens, growing")


def link(paper: str) -> str:
    """Where a paper is to be read."""
    return f"https://arxiv.org/abs/{paper.removeprefix('arXiv:')}" if paper.startswith("arXiv:") else paper


def example(entry: Entry, option: Option) -> Any:
    """A value to show how an option is set: another choice, or a number that fits."""
    if option.choices:
        return next((one for one in option.choices if one != option.default), option.choices[0])
    if isinstance(option.default, float):
        return option.default
    return 2 * option.default + 1 if option.default else 64 if option.name in entry.knobs else 2


def usage(entry: Entry) -> str:
    """How to train with it, on the command line."""
    command = f"attnlab pretrain --mechanism {entry.name}"
    options = entry.described()
    if not options:
        return command
    first = next((one for one in options if one.name in entry.knobs), options[0])
    return f"{command} --model.options.{entry.name}.{first.name} {example(entry, first)}"


@functools.cache
def card(entry: Entry) -> dict[str, Any]:
    """Everything on the card as plain values; a user's class that cannot be run is refused in one line."""
    try:
        return filled(entry)
    except RuntimeError as error:
        if ".py:" not in entry.name:
            raise
        said = " ".join(str(error).split())
        raise ConfigError(f"{entry.name} cannot be run ({said}): attnlab audit {entry.name} says where") from None


def filled(entry: Entry) -> dict[str, Any]:
    """The card with all that is counted by running it."""
    parts = entry.parts
    return {
        "name": entry.name,
        "summary": parts.summary,
        "description": parts.body,
        "costs": parts.costs,
        "cannot": parts.cannot,
        "cost": entry.cost,
        "paper": entry.paper,
        "link": link(entry.paper),
        "causal": entry.causal,
        "defect": entry.defect,
        "weights": entry.weights,
        "knobs": list(entry.knobs),
        "options": [asdict(option) for option in entry.described()],
        "parameters": {
            "n_embd": N_EMBD,
            "n_head": N_HEAD,
            "block_size": BLOCK,
            "layer": count_parameters(entry),
            "dot": count_parameters(registry.find("mechanism", "dot")),
        },
        "memory": memory_growth(entry),
        "cache": cache_sizes(entry),
        "usage": usage(entry),
    }
