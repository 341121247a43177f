"""The card of a mechanism: what it says of itself, and what can be counted: parameters, memory in training, what it keeps in
generation. From here come `attnlab mechanisms show` and the page docs/mechanisms.md.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnlab import registry
from attnlab.errors import ConfigError
from attnlab.measure.approximation.samples import chance
from attnlab.registry import Entry, Option
from attnlab.report.document import Cell, Code, Column, Document, Facts, Notice, Row, Section, Table, Text
from attnlab.report.text import markdown_table

N_EMBD, N_HEAD, BLOCK = 256, 8, 128  # the layer whose parameters and cache are counted
SHORT, LONG = 2048, 4096  # texts whose memory is compared; in shorter ones sparse mechanisms look at all pairs
WEIGHTS = {
    "own": "not an approximation of dot-product attention",
    "exact": "those of dot-product attention, given the same queries and keys",
    "sparse": "those of dot-product attention, over fewer pairs",
    "low rank": "an approximation of dot-product attention, by few rows",
    "kernel": "an approximation of dot-product attention, by features",
}


HOME = "attnlab.mechanisms."


@dataclass(frozen=True)
class Counted:
    """The parameters of one layer of a given size, and those of `dot`."""

    n_embd: int
    n_head: int
    block_size: int
    layer: int
    dot: int


@dataclass(frozen=True)
class MechanismCard:
    """What a mechanism says of itself, and what was counted by running it."""

    name: str
    summary: str
    description: str
    costs: str
    cannot: str
    cost: str
    paper: str
    link: str
    causal: bool
    defect: str
    weights: str
    knobs: Sequence[str]
    options: Sequence[Option]
    parameters: Counted
    memory: str  # what training keeps of a text grows with: n or n²
    cache: Mapping[str, int]  # numbers kept in generation, by tokens read
    usage: str


def entries() -> list[Entry]:
    """Every mechanism there is."""
    return [registry.find("mechanism", name) for name in registry.names("mechanism")]


# Counting


def _make(entry: Entry, n_embd: int = N_EMBD, n_head: int = N_HEAD, block_size: int = BLOCK) -> nn.Module:
    """A layer at its defaults, causal where it can be, the same each time."""
    with chance("card", 0, 0):
        module: nn.Module = entry.make((n_embd, n_head, block_size), causal=entry.causal)
    return module.eval()


def _count_parameters(entry: Entry) -> int:
    return sum(parameter.numel() for parameter in _make(entry).parameters())


def _saved_for_training(module: nn.Module, tokens: int, width: int) -> int:
    """How many bytes are kept of a text for the backward pass, parameters aside."""
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


def _memory_growth(entry: Entry) -> str:
    """Whether what training keeps of a text grows with its length or with the square of it: measured."""
    width = 8
    module = _make(entry, width, 1, LONG).train()
    ratio = _saved_for_training(module, LONG, width) / _saved_for_training(module, SHORT, width)
    return "n²" if ratio > 3 else "n"


def _numbers_in(kept: Any) -> int:
    if isinstance(kept, Tensor):
        return kept.numel()
    if isinstance(kept, dict):
        return sum(_numbers_in(one) for one in kept.values())
    if isinstance(kept, list | tuple):
        return sum(_numbers_in(one) for one in kept)
    return _numbers_in(vars(kept)) if hasattr(kept, "__dict__") else 0


@torch.no_grad()
def _cache_sizes(entry: Entry) -> dict[str, int]:
    """The numbers that a layer keeps of a text under way, half a block and a block long; nothing where it has no cache."""
    module = _make(entry).eval()
    if not entry.causal or not hasattr(module, "new_cache"):
        return {}
    cache, sizes = module.new_cache(), {}  # type: ignore[operator]
    for tokens in (BLOCK // 2, BLOCK):
        module(torch.ones(1, BLOCK // 2, N_EMBD), cache=cache)
        sizes[str(tokens)] = _numbers_in(cache)
    return sizes


def link(paper: str) -> str:
    """The address of a paper."""
    return f"https://arxiv.org/abs/{paper.removeprefix('arXiv:')}" if paper.startswith("arXiv:") else paper


def _example(entry: Entry, option: Option) -> Any:
    """A value to show how an option is set: another choice, or a number that fits."""
    if option.choices:
        return next((one for one in option.choices if one != option.default), option.choices[0])
    if isinstance(option.default, float):
        return option.default
    return 2 * option.default + 1 if option.default else 64 if option.name in entry.knobs else 2


def _usage(entry: Entry) -> str:
    command = f"attnlab pretrain --mechanism {entry.name}"
    options = entry.described()
    if not options:
        return command
    first = next((one for one in options if one.name in entry.knobs), options[0])
    return f"{command} --model.options.{entry.name}.{first.name} {_example(entry, first)}"


@functools.cache
def card(entry: Entry) -> MechanismCard:
    """The card of a mechanism; a user's class that cannot be run is refused in one line."""
    try:
        return _filled(entry)
    except RuntimeError as error:
        if ".py:" not in entry.name:
            raise
        said = " ".join(str(error).split())
        raise ConfigError(f"{entry.name} cannot be run ({said}): attnlab audit {entry.name} says where") from None


def _filled(entry: Entry) -> MechanismCard:
    parts = entry.parts
    dot = _count_parameters(registry.find("mechanism", "dot"))
    return MechanismCard(
        name=entry.name,
        summary=parts.summary,
        description=parts.body,
        costs=parts.costs,
        cannot=parts.cannot,
        cost=entry.cost,
        paper=entry.paper,
        link=link(entry.paper),
        causal=entry.causal,
        defect=entry.defect,
        weights=entry.weights,
        knobs=list(entry.knobs),
        options=entry.described(),
        parameters=Counted(N_EMBD, N_HEAD, BLOCK, _count_parameters(entry), dot),
        memory=_memory_growth(entry),
        cache=_cache_sizes(entry),
        usage=_usage(entry),
    )


# In words


def _cache_words(sizes: Mapping[str, int]) -> str:
    if not sizes:
        return "none"
    half, whole = sizes.values()
    return f"{whole:,} numbers" + (", however long the text" if half == whole else f" at {BLOCK} tokens, growing")


def _causal_words(one: MechanismCard) -> str:
    if not one.causal:
        return "no: it cannot be trained as a language model"
    return f"meant to be, and is not: attnlab audit {one.name}" if one.defect else "yes"


def document(one: MechanismCard) -> Document:
    """A card as a report."""
    size = one.parameters
    facts = {
        "Costs": one.costs,
        "Cannot": one.cannot,
        "Weights": WEIGHTS[one.weights],
        "Time": one.cost,
        "Memory": f"grows with {one.memory} in training (measured)",
        "Cache": _cache_words(one.cache),
        "Parameters": (
            f"{size.layer:,} per layer of width {size.n_embd}, {size.n_head} heads, block {size.block_size};"
            f" dot has {size.dot:,}"
        ),
        "Causal": _causal_words(one),
        "Paper": one.link,
    }
    sections = [Section("Card", [Facts("", [(name, value) for name, value in facts.items() if value])])]
    if one.description:
        sections.insert(0, Section("What it does", [Text([line]) for line in one.description.split("\n")]))
    if one.options:
        columns = [Column(title, number=False) for title in ("option", "type", "default", "meaning")]
        rows = [
            Row(Cell(option.name), [Cell(option.type), Cell(str(option.default)), Cell(option.meaning)])
            for option in one.options
        ]
        sections.append(Section("Options", [Table("Options", "", columns, rows)]))
    sections.append(Section("Use", [Code(one.usage)]))
    notices = [Notice("Defect, on purpose:", f"{one.defect}.", "leaks")] if one.defect else []
    return Document("mechanism", one.name, [one.summary], sections, notices)


def list_document(some: Sequence[Entry]) -> Document:
    """Every mechanism in a row or two."""
    rows = []
    for one in some:
        under = f"Defect, on purpose: {one.defect}." if one.defect else ""
        cells = [Cell(one.parts.summary, under=under), Cell(one.cost)]
        rows.append(Row(Cell(one.name, tone="bad" if one.defect else "strong"), cells))
    columns = [Column(title, number=False) for title in ("name", "what it does", "cost")]
    more = "attnlab mechanisms show NAME prints the whole card, with its paper and its options."
    sections = [Section("Mechanisms", [Table("Mechanisms", "", columns, rows), Text([more])])]
    return Document("mechanisms", "Attention mechanisms", [], sections)


# docs/mechanisms.md: the texts of the cards are Markdown already.

INTRODUCTION = f"""# The mechanisms

Made from the cards by `make docs`; do not edit. `attnlab mechanisms show NAME` prints a card,
`attnlab mechanisms show NAME --error` measures how far a mechanism lies from exact attention, and with `--out DIR` draws it.

Time is that of the paper, in tokens n, width d, and the mechanism's own sizes. Memory is measured: how what training keeps
of a text grows from {SHORT:,} to {LONG:,} tokens. Cache and parameters are those of one layer of width {N_EMBD} with
{N_HEAD} heads, made for {BLOCK} tokens: the cache is what it keeps of such a text while it generates."""


def page() -> str:
    """The page of all mechanisms that come with the package; those of plugins and of users' files are not on it."""
    cards = [card(entry) for entry in entries() if entry.build.__module__.startswith(HOME)]
    rows = [
        (
            f"[{one.name}](#{one.name})",
            one.cost,
            one.memory,
            "yes" if one.causal else "no",
            _cache_words(one.cache),
            f"{one.parameters.layer:,}",
            one.defect,
        )
        for one in cards
    ]
    table = markdown_table(("name", "time", "memory", "causal", "cache", "parameters", "defect"), rows)
    return "\n\n".join([INTRODUCTION, table, *(_section(one) for one in cards)]) + "\n"


def _section(one: MechanismCard) -> str:
    paper = f" Paper: [{one.paper}]({one.link})." if one.paper else ""
    parts = [f"## {one.name}", one.summary + paper]
    if one.defect:
        parts.append(f"**Defect:** {one.defect}.")
    parts += one.description.split("\n") if one.description else []
    parts += [f"**Costs:** {one.costs}", f"**Cannot:** {one.cannot}", f"**Its weights:** {WEIGHTS[one.weights]}."]
    if one.options:
        rows = [(o.name, o.type, str(o.default), o.meaning) for o in one.options]
        parts.append(markdown_table(("option", "type", "default", "meaning"), rows))
    return "\n\n".join([*parts, f"```bash\n{one.usage}\n```"])
