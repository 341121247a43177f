"""The card of a mechanism: its docstring, and measured figures: parameters, memory in training, cache in generation.

Shown by `attnlab mechanisms show`, and the source of docs/mechanisms.md.
"""

from __future__ import annotations

import functools
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import torch
from torch import Tensor, nn

from attnlab import registry
from attnlab.errors import ConfigError
from attnlab.measure.approximation.samples import chance
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
class MechanismCard:
    """A mechanism with what was measured by running it; numbers of parameters are those of one layer."""

    entry: Entry
    parameters: int
    dot_parameters: int
    memory: str  # what training retains of a text grows with: n or n²
    cache: Mapping[str, int]  # numbers retained in generation, by tokens read

    @property
    def link(self) -> str:
        """The address of the paper."""
        return link(self.entry.paper)

    @property
    def usage(self) -> str:
        """A command that trains with the mechanism and shows how its main option is set."""
        command, options = f"attnlab pretrain --mechanism {self.entry.name}", self.entry.described()
        if not options:
            return command
        first = next((one for one in options if one.name in self.entry.knobs), options[0])
        return f"{command} --model.options.{self.entry.short_name}.{first.name} {_example(self.entry, first)}"

    def to_dict(self) -> dict[str, object]:
        """Plain values for JSON."""
        entry, parts = self.entry, self.entry.parts
        return {
            "name": entry.name,
            "summary": parts.summary,
            "description": parts.body,
            "costs": parts.costs,
            "cannot": parts.cannot,
            **{key: getattr(entry, key) for key in ("cost", "paper", "causal", "defect", "weights")},
            "link": self.link,
            "knobs": list(entry.knobs),
            "options": [asdict(option) for option in entry.described()],
            "parameters": {
                "n_embd": _N_EMBD,
                "n_head": _N_HEAD,
                "block_size": _BLOCK,
                "layer": self.parameters,
                "dot": self.dot_parameters,
            },
            "memory": self.memory,
            "cache": dict(self.cache),
            "usage": self.usage,
        }


def entries() -> list[Entry]:
    """All mechanisms."""
    return [registry.find("mechanism", name) for name in registry.names("mechanism")]


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


# Measuring


@functools.cache
def card(entry: Entry) -> MechanismCard:
    """The card of a mechanism; a user's class that cannot be run is refused in one line."""
    try:
        dot = _count_parameters(registry.find("mechanism", "dot"))
        return MechanismCard(entry, _count_parameters(entry), dot, _memory_growth(entry), _cache_sizes(entry))
    except RuntimeError as error:
        if ".py:" not in entry.name:
            raise
        reason = " ".join(str(error).split())
        raise ConfigError(f"{entry.name} cannot be run ({reason}): attnlab audit {entry.name} says where") from None


def _make(entry: Entry, n_embd: int = _N_EMBD, n_head: int = _N_HEAD, block_size: int = _BLOCK) -> nn.Module:
    """A layer at its defaults, causal if possible, always with the same weights."""
    with chance("card", 0, 0):
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


def _causal_words(entry: Entry) -> str:
    if not entry.causal:
        return "no: it cannot be trained as a language model"
    return f"meant to be, and is not: attnlab audit {entry.name}" if entry.defect else "yes"


def document(one: MechanismCard) -> Document:
    """A card as a report."""
    entry, parts = one.entry, one.entry.parts
    facts = {
        "Costs": parts.costs,
        "Cannot": parts.cannot,
        "Weights": _WEIGHTS[entry.weights],
        "Time": entry.cost,
        "Memory": f"grows with {one.memory} in training (measured)",
        "Cache": _cache_words(one.cache),
        "Parameters": (
            f"{one.parameters:,} per layer of width {_N_EMBD}, {_N_HEAD} heads, block {_BLOCK};"
            f" dot has {one.dot_parameters:,}"
        ),
        "Causal": _causal_words(entry),
        "Paper": one.link,
    }
    sections = [Section("Card", [Facts("", [(name, value) for name, value in facts.items() if value])])]
    if parts.body:
        sections.insert(0, Section("What it does", [Text([line]) for line in parts.body.split("\n")]))
    if options := entry.described():
        columns = [Column(title, number=False) for title in ("option", "type", "default", "meaning")]
        rows = [
            Row(Cell(option.name), [Cell(option.type), Cell(str(option.default)), Cell(option.meaning)])
            for option in options
        ]
        sections.append(Section("Options", [Table("Options", "", columns, rows)]))
    sections.append(Section("Use", [Code(one.usage)]))
    notices = [Notice("Defect, on purpose:", f"{entry.defect}.", "leaks")] if entry.defect else []
    return Document("mechanism", entry.name, [parts.summary], sections, notices)


def list_document(some: Sequence[Entry]) -> Document:
    """The mechanisms as a table."""
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

_INTRODUCTION = f"""# The mechanisms

Generated from the cards by `make docs`; do not edit. `attnlab mechanisms show NAME` prints a card.
With `--error` it measures the distance from exact attention, and with `--out DIR` it draws
pictures. `--run RUN` takes queries, keys and values from a trained model, of `dot` or of the
mechanism itself, whose layers are then measured as they were trained; `--fit 100` trains learned
parts (the projections of Linformer, the latents of Perceiver) to be near exact attention.

Time is that of the paper, in tokens n, width d, and the mechanism's own sizes. Memory is measured:
how the memory that training keeps per text grows from {_SHORT:,} to {_LONG:,} tokens. Cache and
parameters are those of one layer of width {_N_EMBD} with {_N_HEAD} heads, made for {_BLOCK} tokens;
the cache is what generation keeps of such a text."""


def page() -> str:
    """The page of all mechanisms that come with the package, without those of plugins and users' files."""
    cards = [card(entry) for entry in entries() if entry.build.__module__.startswith(_PACKAGE)]
    rows = [
        (
            f"[{one.entry.name}](#{one.entry.name})",
            one.entry.cost,
            one.memory,
            "yes" if one.entry.causal else "no",
            _cache_words(one.cache),
            f"{one.parameters:,}",
            one.entry.defect,
        )
        for one in cards
    ]
    table = markdown_table(("name", "time", "memory", "causal", "cache", "parameters", "defect"), rows)
    return "\n\n".join([_INTRODUCTION, table, *(_section(one) for one in cards)]) + "\n"


def _section(one: MechanismCard) -> str:
    entry, parts = one.entry, one.entry.parts
    paper = f" Paper: [{entry.paper}]({one.link})." if entry.paper else ""
    paragraphs = [parts.summary + paper]
    if entry.defect:
        paragraphs.append(f"**Defect:** {entry.defect}.")
    paragraphs += parts.body.split("\n") if parts.body else []
    paragraphs += [f"**Costs:** {parts.costs}", f"**Cannot:** {parts.cannot}"]
    paragraphs.append(f"**Its weights:** {_WEIGHTS[entry.weights]}.")
    wrapped = [textwrap.fill(text, _DOCS_WIDTH, break_long_words=False, break_on_hyphens=False) for text in paragraphs]
    if options := entry.described():
        rows = [(option.name, option.type, str(option.default), option.meaning) for option in options]
        wrapped.append(markdown_table(("option", "type", "default", "meaning"), rows))
    return "\n\n".join([f"## {entry.name}", *wrapped, f"```bash\n{one.usage}\n```"])
