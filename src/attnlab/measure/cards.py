"""The card of a mechanism: its docstring, measured figures (parameters, memory in training, cache in generation), patterns.

Shown by `attnlab mechanisms show` and by the page; tools/mechanism_cards.py writes docs/mechanisms.md from them.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from attnlab import ops, registry
from attnlab.errors import ConfigError, UserError
from attnlab.inside.taps import capture
from attnlab.measure.approximation import (
    EXACT,
    QKV,
    Source,
    attend,
    chance,
    knob_settings,
    relative,
    takes_queries,
)
from attnlab.registry import Entry, Option
from attnlab.report.document import Cell, Code, Column, Document, Facts, Head, Heads, Notice, Row, Section, Table, Text

N_EMBD, N_HEAD, BLOCK = 256, 8, 128  # the layer whose parameters and cache are counted
SHORT, LONG = 2048, 4096  # tokens whose memory is compared; in shorter texts sparse mechanisms use all pairs
WEIGHTS = {
    "own": "not an approximation of dot-product attention",
    "exact": "those of dot-product attention, given the same queries and keys",
    "sparse": "those of dot-product attention, over fewer pairs",
    "low rank": "an approximation of dot-product attention, by few rows",
    "kernel": "an approximation of dot-product attention, by features",
}
_TOY = 32  # tokens of the toy text whose patterns are shown, few enough to name each; and its width


@dataclass(frozen=True)
class Figures:
    """What was measured by running a layer of a mechanism."""

    parameters: int
    memory: str  # what training retains of a text grows with: n or n²
    cache: dict[str, int]  # numbers retained in generation, by tokens read; empty if there is no cache


def entries() -> list[Entry]:
    """All mechanisms."""
    return [registry.find("mechanism", name) for name in registry.names("mechanism")]


def link(paper: str) -> str:
    """The address of a paper."""
    return f"https://arxiv.org/abs/{paper.removeprefix('arXiv:')}" if paper.startswith("arXiv:") else paper


def usage(entry: Entry) -> str:
    """A command that trains with the mechanism and shows how its main option is set."""
    command, options = f"attnlab pretrain --mechanism {entry.name}", entry.described()
    if not options:
        return command
    first = next((option for option in options if option.name in entry.knobs), options[0])
    return f"{command} --model.options.{entry.short_name}.{first.name} {_example(entry, first)}"


def _example(entry: Entry, option: Option) -> object:
    """A value to show how an option is set: another choice, or a number that fits."""
    if option.choices:
        return next((choice for choice in option.choices if choice != option.default), option.choices[0])
    if isinstance(option.default, bool):
        return str(not option.default).lower()
    if isinstance(option.default, float):
        return option.default
    return 2 * option.default + 1 if option.default else 64 if option.name in entry.knobs else 2


# Measuring


@functools.cache
def figures(entry: Entry) -> Figures:
    """The figures of a mechanism; a user's class that cannot be run is refused in one line."""
    try:
        return Figures(_count_parameters(entry), _memory_growth(entry), _cache_sizes(entry))
    except RuntimeError as error:
        if ".py:" not in entry.name:
            raise
        reason = " ".join(str(error).split())
        raise ConfigError(f"{entry.name} cannot be run ({reason}): attnlab audit {entry.name} says where") from None


def _make(entry: Entry, n_embd: int = N_EMBD, n_head: int = N_HEAD, block_size: int = BLOCK) -> nn.Module:
    """A layer at its defaults, causal if possible, always with the same weights."""
    with chance("card"):
        module: nn.Module = entry.make((n_embd, n_head, block_size), causal=entry.causal)
    return module.eval()


def _count_parameters(entry: Entry) -> int:
    return sum(parameter.numel() for parameter in _make(entry).parameters())


def _memory_growth(entry: Entry) -> str:
    """Whether what training retains of a text grows with its length or with the square of it."""
    module = _make(entry, 8, 1, LONG).train()
    short, long = (_saved_bytes(module, torch.ones(1, tokens, 8, requires_grad=True)) for tokens in (SHORT, LONG))
    return "n²" if long > 3 * short else "n"


def _saved_bytes(module: nn.Module, x: Tensor) -> int:
    """The bytes that a forward pass retains for the backward pass, without the parameters."""
    known = {parameter.untyped_storage().data_ptr() for parameter in module.parameters()}
    saved: dict[int, int] = {}

    def save(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in known:
            saved[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(save, lambda tensor: tensor):
        output = module(x)
    del output  # only now: the address of a freed storage is used again
    return sum(saved.values())


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
    for tokens in (BLOCK // 2, BLOCK):
        module(torch.ones(1, BLOCK // 2, N_EMBD), cache=cache)
        sizes[str(tokens)] = _numbers_in(cache)
    return sizes


# Patterns over a toy text


@torch.no_grad()
@chance("alone")  # leaves torch's random numbers as they were
def patterns(entry: Entry) -> Heads:
    """The exact pattern first, then a line per form and knob at a small, a medium and a large value."""
    source = _toy_source(entry.causal)
    drawn = source.draw(0)
    exact = ops.attention_pattern(drawn.q, drawn.k, source.mask)
    sentence = f"The weights of dot-product attention over {source.words}: rows look at columns."
    shown, inexact = [Head(1, 1, exact[0, 0].tolist(), sentence, "exact", group="dot product")], list[int]()
    names = [str(number) for number in range(1, _TOY + 1)]
    if not takes_queries(entry, source):
        with chance("mechanism"):
            module = entry.make((_TOY, 1, _TOY), causal=entry.causal).eval()
        with capture(module, "hook_pattern") as seen:
            module(drawn.k[0])
        sentence = "Its weights where the keys of the toy text are its input. Learned parts have their initial values."
        own = Head(2, 1, seen["hook_pattern"][0, 0].tolist(), sentence, "its pattern", group=entry.name)
        return Heads(names, [*shown, own], _TOY - 1, cell=15.0, chosen=1)
    # One line per form and knob; without a knob, one line of all forms.
    lines = itertools.groupby(knob_settings(entry, source), key=lambda setting: setting.knob and setting[:2])
    for layer, (key, group) in enumerate(lines, start=2):
        settings = list(group)
        last = len(settings) - 1
        for number, place in enumerate(
            dict.fromkeys((last // 4, last // 2, last)) if key else range(last + 1), start=1
        ):
            setting = settings[place]
            _, weights = attend(entry, source, setting, drawn, 0, 0)
            error = float(relative(weights, exact))
            if layer == 2 and error > EXACT:
                inexact.append(len(shown))
            title = f"{setting.knob} {setting.value}" if key else setting.form or "its pattern"
            name = setting.form if key and setting.form else entry.name
            shown.append(Head(layer, number, weights[0, 0].tolist(), _distance(entry, error), title, group=name))
    inexact = inexact or [1]
    return Heads(names, shown, _TOY - 1, cell=15.0, chosen=inexact[len(inexact) // 2])


def _toy_source(causal: bool) -> Source:
    """A text whose exact pattern is easy to recognise: neighbours, a look 12 tokens back, and two salient tokens."""
    place = torch.arange(_TOY, dtype=torch.float32)

    def waves(shift: float, count: int) -> Tensor:
        frequency = 0.1 + 1.4 * (0.618034 * torch.arange(1, count + 1) % 1)  # no two waves meet again soon
        angle = (place[:, None] - shift) * frequency
        return torch.cat([angle.cos(), angle.sin()], dim=-1) * count**-0.5

    salient = torch.zeros(_TOY, 1)
    salient[[4, 16]] = 1.0
    k = torch.cat([waves(0, 7), waves(0, 8), salient, torch.zeros(_TOY, 1)], dim=-1)
    q = torch.cat([6 * waves(0, 7), 5 * waves(12, 8), 4 * torch.ones(_TOY, 1), torch.zeros(_TOY, 1)], dim=-1)
    scale = _TOY**0.25 * (q.std() / k.std()).sqrt()  # the same scores, from queries and keys of one size
    drawn = QKV(*(part[None, None] for part in (q * _TOY**0.5 / scale, k * scale, torch.eye(_TOY))))
    words = f"a toy text of {_TOY} tokens, {'causal' if causal else 'bidirectional'}"
    return Source(("toy",), lambda _: drawn, 1, _TOY, _TOY, causal, words)


def _distance(entry: Entry, error: float) -> str:
    """How far a pattern is from the exact one, where it is meant to be near it."""
    if entry.weights in ("own", "exact"):
        return "Learned parts have their initial values." if entry.weights == "own" else ""
    return f"Its distance from the exact pattern is {100 * error:.0f} % of that pattern's norm."


# Reports


def cache_words(sizes: Mapping[str, int]) -> str:
    """The size of a cache in words."""
    if not sizes:
        return "none"
    half, whole = sizes.values()
    return f"{whole:,} numbers" + (", however long the text" if half == whole else f" at {BLOCK} tokens, growing")


def document(entry: Entry) -> Document:
    """The card of a mechanism as a report."""
    text, measured, options = entry.parts, figures(entry), entry.described()
    causal = f"meant to be, and is not: attnlab audit {entry.name}" if entry.defect else "yes"
    facts = {
        "Costs": text.costs,
        "Cannot": text.cannot,
        "Weights": WEIGHTS[entry.weights],
        "Time": entry.cost,
        "Memory": f"grows with {measured.memory} in training (measured)",
        "Cache": cache_words(measured.cache),
        "Parameters": (
            f"{measured.parameters:,} per layer of width {N_EMBD}, {N_HEAD} heads, block {BLOCK};"
            f" dot has {_count_parameters(registry.find('mechanism', 'dot')):,}"
        ),
        "Causal": causal if entry.causal else "no: it cannot be trained as a language model",
        "Paper": link(entry.paper),
    }
    sections = [Section("Card", [Facts("", [(name, value) for name, value in facts.items() if value])])]
    if text.body:
        sections.insert(0, Section("What it does", [Text([line]) for line in text.body.split("\n")]))
    if options:
        columns = [Column(title, number=False) for title in ("option", "type", "default", "meaning")]
        rows = [
            Row(Cell(option.name), [Cell(option.type), Cell(str(option.default)), Cell(option.meaning)])
            for option in options
        ]
        sections.append(Section("Options", [Table("Options", "", columns, rows)]))
    sections.append(Section("Use", [Code(usage(entry))]))
    notices = [Notice("Defect, on purpose:", f"{entry.defect}.", "leaks")] if entry.defect else []
    return Document("mechanism", entry.name, [text.summary], sections, notices)


def illustrated(entry: Entry) -> Document:
    """The card of a mechanism with its patterns, if it has any, after what it does."""
    report = document(entry)
    try:
        shown = Section("Patterns", [patterns(entry)])
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
