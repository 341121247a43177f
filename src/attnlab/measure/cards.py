"""The card of a mechanism: its docstring, and measured figures: parameters, memory in training, cache in generation.

Shown by `attnlab mechanisms show`, and the source of docs/mechanisms.md.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnlab import registry
from attnlab.errors import ConfigError, UserError
from attnlab.measure import patterns
from attnlab.measure.approximation import chance
from attnlab.measure.bench.cases import saved_bytes
from attnlab.registry import Entry, Option
from attnlab.report.document import Cell, Code, Column, Document, Facts, Notice, Row, Section, Table, Text
from attnlab.report.text import markdown_table

_N_EMBD, _N_HEAD, _BLOCK = 256, 8, 128  # the layer whose parameters and cache are counted
_SHORT, _LONG = 2048, 4096  # tokens whose memory is compared; in shorter texts sparse mechanisms use all pairs
_WEIGHTS = {
    "own": "not an approximation of dot-product attention",
    "exact": "those of dot-product attention, given the same queries and keys",
    "sparse": "those of dot-product attention, over fewer pairs",
    "low rank": "an approximation of dot-product attention, by few rows",
    "kernel": "an approximation of dot-product attention, by features",
}
_PACKAGE = "attnlab.mechanisms."
_DOCS_WIDTH = 100


@dataclass(frozen=True)
class Parameters:
    """The parameters of a layer of these sizes, and those of a layer of dot."""

    n_embd: int
    n_head: int
    block_size: int
    layer: int
    dot: int


@dataclass(frozen=True)
class MechanismCard:
    """A mechanism as its docstring describes it, with what was measured by running it."""

    name: str
    summary: str
    description: str
    costs: str
    cannot: str
    cost: str
    paper: str
    causal: bool
    defect: str
    weights: str
    link: str
    knobs: tuple[str, ...]
    options: tuple[Option, ...]
    parameters: Parameters
    memory: str  # what training retains of a text grows with: n or n²
    cache: dict[str, int]  # numbers retained in generation, by tokens read; empty if there is no cache
    usage: str  # a command that trains with the mechanism and shows how its main option is set


def entries() -> list[Entry]:
    """All mechanisms."""
    return [registry.find("mechanism", name) for name in registry.names("mechanism")]


def link(paper: str) -> str:
    """The address of a paper."""
    return f"https://arxiv.org/abs/{paper.removeprefix('arXiv:')}" if paper.startswith("arXiv:") else paper


def _usage(entry: Entry) -> str:
    command, options = f"attnlab pretrain --mechanism {entry.name}", entry.described()
    if not options:
        return command
    first = next((option for option in options if option.name in entry.knobs), options[0])
    return f"{command} --model.options.{entry.short_name}.{first.name} {_example(entry, first)}"


def _example(entry: Entry, option: Option) -> object:
    """A value to show how an option is set: another choice, or a number that fits."""
    if option.choices:
        return next((choice for choice in option.choices if choice != option.default), option.choices[0])
    if isinstance(option.default, float):
        return option.default
    return 2 * option.default + 1 if option.default else 64 if option.name in entry.knobs else 2


# Measuring


@functools.cache
def card(entry: Entry) -> MechanismCard:
    """The card of a mechanism; a user's class that cannot be run is refused in one line."""
    parts = entry.parts
    try:
        dot = _count_parameters(registry.find("mechanism", "dot"))
        return MechanismCard(
            entry.name,
            parts.summary,
            parts.body,
            parts.costs,
            parts.cannot,
            entry.cost,
            entry.paper,
            entry.causal,
            entry.defect,
            entry.weights,
            link(entry.paper),
            entry.knobs,
            tuple(entry.described()),
            Parameters(_N_EMBD, _N_HEAD, _BLOCK, _count_parameters(entry), dot),
            _memory_growth(entry),
            _cache_sizes(entry),
            _usage(entry),
        )
    except RuntimeError as error:
        if ".py:" not in entry.name:
            raise
        reason = " ".join(str(error).split())
        raise ConfigError(f"{entry.name} cannot be run ({reason}): attnlab audit {entry.name} says where") from None


def _make(entry: Entry, n_embd: int = _N_EMBD, n_head: int = _N_HEAD, block_size: int = _BLOCK) -> nn.Module:
    """A layer at its defaults, causal if possible, always with the same weights."""
    with chance("card"):
        module: nn.Module = entry.make((n_embd, n_head, block_size), causal=entry.causal)
    return module.eval()


def _count_parameters(entry: Entry) -> int:
    return sum(parameter.numel() for parameter in _make(entry).parameters())


def _saved_for_training(module: nn.Module, tokens: int, width: int) -> int:
    """The bytes retained of a text for the backward pass, without the parameters."""
    x = torch.ones(1, tokens, width, requires_grad=True)
    return saved_bytes(lambda: module(x), module.parameters())


def _memory_growth(entry: Entry) -> str:
    """Whether what training retains of a text grows with its length or with the square of it."""
    width = 8
    module = _make(entry, width, 1, _LONG).train()
    ratio = _saved_for_training(module, _LONG, width) / _saved_for_training(module, _SHORT, width)
    return "n²" if ratio > 3 else "n"


def _numbers_in(kept: object) -> int:
    if isinstance(kept, Tensor):
        return kept.numel()
    if isinstance(kept, dict):
        return sum(map(_numbers_in, kept.values()))
    if isinstance(kept, list | tuple):
        return sum(map(_numbers_in, kept))
    return _numbers_in(vars(kept)) if hasattr(kept, "__dict__") else 0


@torch.no_grad()
def _cache_sizes(entry: Entry) -> dict[str, int]:
    """The numbers that a layer retains of a text after half a block and a block; empty if it has no cache."""
    module = _make(entry)
    if not entry.causal or not hasattr(module, "new_cache"):
        return {}
    cache, sizes = module.new_cache(), {}  # type: ignore[operator]
    for tokens in (_BLOCK // 2, _BLOCK):
        module(torch.ones(1, _BLOCK // 2, _N_EMBD), cache=cache)
        sizes[str(tokens)] = _numbers_in(cache)
    return sizes


# Reports


def _cache_words(sizes: Mapping[str, int]) -> str:
    if not sizes:
        return "none"
    half, whole = sizes.values()
    return f"{whole:,} numbers" + (", however long the text" if half == whole else f" at {_BLOCK} tokens, growing")


def _causal_words(card: MechanismCard) -> str:
    if not card.causal:
        return "no: it cannot be trained as a language model"
    return f"meant to be, and is not: attnlab audit {card.name}" if card.defect else "yes"


def document(card: MechanismCard) -> Document:
    """A card as a report."""
    sizes = card.parameters
    facts = {
        "Costs": card.costs,
        "Cannot": card.cannot,
        "Weights": _WEIGHTS[card.weights],
        "Time": card.cost,
        "Memory": f"grows with {card.memory} in training (measured)",
        "Cache": _cache_words(card.cache),
        "Parameters": (
            f"{sizes.layer:,} per layer of width {sizes.n_embd}, {sizes.n_head} heads, block {sizes.block_size};"
            f" dot has {sizes.dot:,}"
        ),
        "Causal": _causal_words(card),
        "Paper": card.link,
    }
    sections = [Section("Card", [Facts("", [(name, value) for name, value in facts.items() if value])])]
    if card.description:
        sections.insert(0, Section("What it does", [Text([line]) for line in card.description.split("\n")]))
    if card.options:
        columns = [Column(title, number=False) for title in ("option", "type", "default", "meaning")]
        rows = [
            Row(Cell(option.name), [Cell(option.type), Cell(str(option.default)), Cell(option.meaning)])
            for option in card.options
        ]
        sections.append(Section("Options", [Table("Options", "", columns, rows)]))
    sections.append(Section("Use", [Code(card.usage)]))
    notices = [Notice("Defect, on purpose:", f"{card.defect}.", "leaks")] if card.defect else []
    return Document("mechanism", card.name, [card.summary], sections, notices)


def illustrated(entry: Entry) -> Document:
    """The card of a mechanism with its patterns, if it has any, after what it does."""
    report = document(card(entry))
    try:
        shown = Section("Patterns", [patterns.heads(entry)])
    except UserError:  # a plugin or a user's class may have no pattern
        return report
    place = 1 if entry.parts.body else 0
    return replace(report, sections=[*report.sections[:place], shown, *report.sections[place:]])


def list_document(entries: Sequence[Entry]) -> Document:
    """The mechanisms as a table."""
    rows = []
    for entry in entries:
        under = f"Defect, on purpose: {entry.defect}." if entry.defect else ""
        cells = [Cell(entry.parts.summary, under=under), Cell(entry.cost)]
        rows.append(Row(Cell(entry.name, tone="bad" if entry.defect else "strong"), cells))
    columns = [Column(title, number=False) for title in ("name", "what it does", "cost")]
    more = "attnlab mechanisms show NAME prints the whole card, with its paper and its options."
    sections = [Section("Mechanisms", [Table("Mechanisms", "", columns, rows), Text([more])])]
    return Document("mechanisms", "Attention mechanisms", [], sections)


# docs/mechanisms.md: the texts of the cards are Markdown already.

_INTRODUCTION = f"""# The mechanisms

Generated from the cards by `make docs`; do not edit. `attnlab mechanisms show NAME` prints a card.
With `--error` it measures the distance from exact attention on random queries, keys and values, or
with `--run RUN` on those of a trained model; with `--out DIR` it draws patterns and errors.

Time is that of the paper, in tokens n, width d, and the mechanism's own sizes. Memory is measured:
how the memory that training keeps per text grows from {_SHORT:,} to {_LONG:,} tokens. Cache and
parameters are those of one layer of width {_N_EMBD} with {_N_HEAD} heads, made for {_BLOCK} tokens;
the cache is what generation keeps of such a text."""


def page() -> str:
    """The page of all mechanisms that come with the package, without those of plugins and users' files."""
    cards = [card(entry) for entry in entries() if entry.build.__module__.startswith(_PACKAGE)]
    rows = [
        (
            f"[{card.name}](#{card.name})",
            card.cost,
            card.memory,
            "yes" if card.causal else "no",
            _cache_words(card.cache),
            f"{card.parameters.layer:,}",
            card.defect,
        )
        for card in cards
    ]
    table = markdown_table(("name", "time", "memory", "causal", "cache", "parameters", "defect"), rows)
    return "\n\n".join([_INTRODUCTION, table, *map(_section, cards)]) + "\n"


def _section(card: MechanismCard) -> str:
    paper = f" Paper: [{card.paper}]({card.link})." if card.paper else ""
    paragraphs = [card.summary + paper]
    if card.defect:
        paragraphs.append(f"**Defect:** {card.defect}.")
    paragraphs += card.description.split("\n") if card.description else []
    paragraphs += [f"**Costs:** {card.costs}", f"**Cannot:** {card.cannot}"]
    paragraphs.append(f"**Its weights:** {_WEIGHTS[card.weights]}.")
    wrapped = [textwrap.fill(text, _DOCS_WIDTH, break_long_words=False, break_on_hyphens=False) for text in paragraphs]
    if card.options:
        rows = [(option.name, option.type, str(option.default), option.meaning) for option in card.options]
        wrapped.append(markdown_table(("option", "type", "default", "meaning"), rows))
    return "\n\n".join([f"## {card.name}", *wrapped, f"```bash\n{card.usage}\n```"])
