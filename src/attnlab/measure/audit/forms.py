"""The forms in which a mechanism is audited: as it is built, as backbones use it, with its options, and both ways."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal, get_args, get_origin

import torch
from torch import nn

from attnlab.errors import ConfigError
from attnlab.measure.audit.report import one_line
from attnlab.measure.audit.subject import Subject, awaken, own_copy
from attnlab.registry import Entry

BACKBONE = {"rotary": True, "qk_norm": True, "bias": True}


@dataclass(frozen=True)
class Size:
    """How large specimens are made; `length` is their block."""

    n_embd: int = 32
    n_head: int = 2
    length: int = 320

    def __post_init__(self) -> None:
        for name in ("n_embd", "n_head", "length"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if self.n_embd % (2 * self.n_head):
            raise ConfigError(f"n_embd ({self.n_embd}) must be an even multiple of n_head ({self.n_head})")


def build(entry: Entry, size: Size, seed: int, arguments: dict[str, Any]) -> nn.Module:
    """A new specimen with the arguments that it takes."""
    torch.manual_seed(seed)
    given = {name: value for name, value in arguments.items() if entry.accepts(name)}
    try:
        module = entry.build(size.n_embd, size.n_head, size.length, **given)
    except ConfigError:
        raise
    except Exception as error:  # whatever a user's class may raise
        raise ConfigError(
            f"mechanism '{entry.name}' cannot be built as Mechanism(n_embd, n_head, block_size): {one_line(error)};"
            " build it yourself, and call attnlab.audit_module(module, n_embd=...)"
        ) from None
    if not isinstance(module, nn.Module):
        raise ConfigError(f"mechanism '{entry.name}' must be an nn.Module, not {type(module).__name__}")
    return module


def alternatives(entry: Entry) -> Iterator[dict[str, Any]]:
    """Every option that names one of a few, at each value that is not its default."""
    try:
        hints = typing.get_type_hints(entry.build.__init__ if inspect.isclass(entry.build) else entry.build)
    except Exception:  # annotations that cannot be read say nothing of options
        return
    for name, parameter in entry.options.items():
        kind = hints.get(name)
        values = get_args(kind) if get_origin(kind) is Literal else (True, False) if kind is bool else ()
        yield from ({name: value} for value in values if value != parameter.default)


def all_forms(entry: Entry, size: Size) -> tuple[list[Subject], list[str]]:
    """All forms of a mechanism, and notes on those that cannot be built. All but the first are awake."""
    asked: list[dict[str, Any]] = [{"causal": True}, {"causal": True, **BACKBONE}]
    asked += [{"causal": True, **option} for option in alternatives(entry)]
    if not entry.causal:
        asked = []
    if entry.accepts("causal") or not entry.causal:
        asked += [{"causal": False, **one} for one in ({}, *alternatives(entry))]
    subjects, notes = [], []
    for seed, arguments in enumerate(asked):
        options = [
            name if value is True else f"{name}={value}" for name, value in arguments.items() if name != "causal"
        ]
        form = " ".join(["causal" if arguments["causal"] else "bidirectional", *options])
        try:
            module = own_copy(build(entry, size, seed, {**arguments, "dropout": 0.0}))
        except ConfigError as error:
            if seed == 0:
                raise
            notes.append(f"not audited as {form}: {error}")
            continue
        if seed:
            awaken(module)
        subjects.append(Subject(module, size.n_embd, causal=arguments["causal"], form=form))
    return subjects, notes
