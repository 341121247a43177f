"""What is varied when a mechanism is measured: its forms, the values of its knobs, and the work that they take.

Knows no mechanism by name: the knobs stand in the registry, and the forms are the values of its options that are a choice
among names.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from attnlab import ops
from attnlab.errors import ConfigError, UserError
from attnlab.kernels.counting import Counter
from attnlab.measure.approximation.samples import Drawn, Source
from attnlab.mechanisms.heads import Attention
from attnlab.registry import Entry
from attnlab.taps import capture

Key = tuple[str, str, int]  # form, knob, value


class Setting(NamedTuple):
    """One form of a mechanism at one value of one knob; without a knob, at its defaults."""

    form: tuple[tuple[str, str], ...]
    knob: str
    value: int

    @property
    def options(self) -> dict[str, Any]:
        """What is given to the constructor."""
        return dict(self.form) | ({self.knob: self.value} if self.knob else {})

    @property
    def key(self) -> Key:
        """What its errors are filed under; the form in words."""
        return " ".join(value for _, value in self.form), self.knob, self.value


def forms_of(entry: Entry) -> list[tuple[tuple[str, str], ...]]:
    """Every combination of the options that are a choice among names."""
    choices = [[(option.name, value) for value in option.choices] for option in entry.described() if option.choices]
    return list(itertools.product(*choices))


def refuse_others(entry: Entry, entries: list[Entry]) -> None:
    """Say why there is no error to show, where there is none."""
    if entry.weights == "own":
        others = ", ".join(one.name for one in entries if one.weights not in ("own", "exact"))
        raise UserError(
            f"{entry.name} is not an approximation of dot-product attention: no error to show; these are: {others}"
        )
    if entry.weights == "exact":
        raise UserError(f"{entry.name} weighs as dot-product attention does, given the same queries and keys: no error")


def build(
    entry: Entry, n_embd: int, n_head: int, block_size: int, causal: bool, options: Mapping[str, Any] | None = None
) -> nn.Module:
    """One layer of a mechanism, or an error that says why there is none."""
    given = {"causal": causal} if entry.accepts("causal") else {}
    try:
        module: nn.Module = entry.build(n_embd, n_head, block_size, **given, **(options or {}))
    except TypeError as error:
        raise ConfigError(f"{entry.name} is not built as Mechanism(n_embd, n_head, block_size): {error}") from None
    if not isinstance(module, nn.Module):
        raise ConfigError(f"{entry.name} must build an nn.Module, not {type(module).__name__}")
    return module.eval()


def make(entry: Entry, source: Source, options: Mapping[str, Any]) -> Attention:
    """A mechanism for the shapes of a source."""
    module = build(entry, source.heads * source.width, source.heads, source.tokens, source.causal, options)
    if not isinstance(module, Attention):
        raise UserError(f"{entry.name} is no attnlab.mechanisms.heads.Attention: it has no pattern to look at")
    return module


def settings_of(entry: Entry, source: Source) -> Iterator[Setting]:
    """Every form at doubling values of every knob; where a mechanism refuses a value, at the next one that it takes.

    Up to the number of tokens, where exact attention is cheaper; features up to twice that, to show how slowly they gain.
    """
    last = source.tokens * (2 if entry.weights == "kernel" else 1)
    for form in forms_of(entry):
        if not entry.knobs:
            yield Setting(form, "", 0)
        for knob in entry.knobs:
            value = 2
            while value <= last:
                for near in (value, value + 1):
                    setting = Setting(form, knob, near)
                    try:
                        make(entry, source, setting.options)
                    except ConfigError:
                        continue
                    yield setting
                    break
                value *= 2


def learned_parts(module: Attention) -> tuple[str, ...]:
    """The parameters of a mechanism that are not projections of queries, keys, values and output."""
    names = (name for name, _ in module.named_parameters())
    return tuple(name for name in names if not name.startswith(("heads.", "out.")))


@torch.no_grad()
def work(entry: Entry, source: Source, setting: Setting) -> float:
    """Work over that of exact attention: the pairs looked at, or the FLOPs of the fast path over those of the fused kernel."""
    module = make(entry, source, setting.options)
    blank = Drawn(
        *torch.zeros(3, 1, source.heads, source.tokens, source.width)
    )  # every weight is seen, and none rounds away
    if entry.weights == "sparse":  # at a few hundred tokens the fast path may look at all pairs, since that is faster
        with capture(module, "hook_pattern") as seen:
            module.dispatch(*blank, None)
        pairs = source.tokens**2 if source.mask is None else int(source.mask.sum())
        return int((seen["hook_pattern"] > 0).sum()) / (source.heads * pairs)
    with Counter() as exact:
        ops.fused_attention(*blank, None, source.causal)
    with Counter() as own:
        module.fast(*blank, None)
    return own.total / exact.total
