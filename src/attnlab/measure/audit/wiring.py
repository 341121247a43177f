"""Wiring: weights that two layers share without saying so. Looks at names and objects, and at one pass through them.

A head tied to the embedding is no fault: what is looked for is one object, or one tensor, in several layers.
"""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Sequence

from torch import nn

from attnlab.measure.audit.probes import Finding


def layers_of(name: str) -> tuple[str, ...]:
    """The numbers in a dotted name, which say in which layer it stands."""
    return tuple(re.findall(r"(?:^|\.)(\d+)(?=\.|$)", name))


def in_several_layers(names: Sequence[str], depth: int | None = None) -> bool:
    """Whether names stand in different layers, counting layers within layers down to a depth."""
    return len({layers_of(name)[:depth] for name in names if layers_of(name)}) > 1


def shared(module: nn.Module, between_layers: bool) -> list[tuple[str, ...]]:
    """The names of every object with weights that stands in several places, and of every weight in several layers.

    Or, for a list of layers, in several of these only: what is shared within one is its author's choice.
    """
    depth = 1 if between_layers else None
    places: defaultdict[object, list[str]] = defaultdict(list)
    for name, one in module.named_modules(remove_duplicate=False):
        if any(True for _ in one.parameters()):
            places[id(one)].append(name)
    found = [
        tuple(names)
        for names in places.values()
        if len(names) > 1 and (in_several_layers(names, depth) or not between_layers)
    ]
    inside = tuple(f"{name}." for names in found for name in names)
    weights: defaultdict[object, list[str]] = defaultdict(list)
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if parameter.numel() and not name.startswith(inside):
            weights[parameter.data_ptr()].append(name)
    found += [tuple(names) for names in weights.values() if in_several_layers(names, depth)]
    return [names for names in found if not any(names[0].startswith(f"{above[0]}.") for above in found)]


def called_again(module: nn.Module, run: Callable[[], object]) -> list[tuple[str, int]]:
    """Blocks (modules made of several with weights) that one pass goes through more than once, and how often."""
    counts: Counter[str] = Counter()

    def watch(name: str) -> Callable[..., None]:
        def count(*_: object) -> None:
            counts[name] += 1

        return count

    handles = []
    for name, one in module.named_modules():
        parts = [part for part in one.modules() if part._parameters]
        if name and len(parts) > 1:
            handles.append(one.register_forward_pre_hook(watch(name)))
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    again = [(name, number) for name, number in counts.items() if number > 1]
    return [(name, number) for name, number in again if not any(name.startswith(f"{above}.") for above, _ in again)]


def shared_wires(module: nn.Module, run: Callable[[], object] | None = None, between_layers: bool = False) -> Finding:
    """How many objects or weights serve in several places, or in several layers only, and which."""
    found = shared(module, between_layers)
    lines = [f"the same weights serve as {listed(names)}" for names in found]
    if run is not None and not found:
        lines += [f"one pass goes {number} times through {name}" for name, number in called_again(module, run)]
    return Finding(len(lines), "; ".join(first(lines, 3)))


def listed(names: Sequence[str]) -> str:
    """A few names as words."""
    return ", ".join(first(list(names), 4))


def first(items: list[str], most: int) -> Iterator[str]:
    """The first few, and how many more there are."""
    yield from items[:most]
    if len(items) > most:
        yield f"{len(items) - most} more"
