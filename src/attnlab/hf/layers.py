"""A mechanism for a layer of somebody else's model: without projections, made for its shapes, or the reason why not.

What a mechanism draws by chance is drawn by the number of the layer, the same in every process, so that nothing need be saved.
Weights that are learned belong into the model, where `equip` puts them: made on the way they would not be trained or saved.
"""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from attnlab import registry
from attnlab.errors import UserError
from attnlab.mechanisms.heads import Attention

PLACE = "attnlab_attention"  # what the learned weights of a mechanism are called inside an attention layer


@dataclass(frozen=True)
class Choice:
    """A mechanism as it is registered with transformers."""

    entry: registry.Entry
    name: str
    block_size: int | None = None
    options: dict[str, Any] = field(default_factory=dict)


_layers: WeakKeyDictionary[nn.Module, tuple[object, Attention]] = WeakKeyDictionary()
equipping: ContextVar[bool] = ContextVar("equipping", default=False)


def layer_for(choice: Choice, module: nn.Module, query: Tensor, causal: bool) -> Attention:
    """The mechanism of a layer: the one it was equipped with, or one made for it when it is first used."""
    key = describe(choice, query, causal)
    held = getattr(module, PLACE, None)
    if held is not None and getattr(held, "made_for", None) == key:
        assert isinstance(held, Attention)
        return held
    known = _layers.get(module)
    if known is not None and known[0] == key:
        return known[1]
    layer = make(choice, module, query, causal)
    if any(True for _ in layer.parameters()):
        if not equipping.get():
            own = ", ".join(sorted({name.split(".")[0] for name, _ in layer.named_parameters()}))
            raise UserError(
                f"{choice.name} has weights of its own ({own}) that must be part of the model: call"
                " attnlab.exchange.equip(model) before training it, and equip(model, folder) after loading it"
            )
        layer.made_for = key  # type: ignore[assignment]
        module.add_module(PLACE, layer)
    else:
        _layers[module] = (key, layer)
    return layer


def describe(choice: Choice, query: Tensor, causal: bool) -> tuple[object, ...]:
    """What a layer is made for: another one is made where any of it changes."""
    options = tuple(sorted((name, str(value)) for name, value in choice.options.items()))
    return choice.name, choice.block_size, options, causal, query.shape[1], query.shape[-1], query.dtype


def make(choice: Choice, module: nn.Module, query: Tensor, causal: bool) -> Attention:
    """A mechanism for the shapes of a layer, without projections, or the reason why there is none."""
    entry, (heads, width) = choice.entry, (query.shape[1], query.shape[-1])
    if entry.defect:
        raise UserError(f"{choice.name} is wrong on purpose ({entry.defect}): use attnlab:dot")
    if causal and not entry.causal:
        raise UserError(f"{choice.name} sees the future, and this model must not: choose a causal mechanism")
    if not causal and not entry.accepts("causal"):
        raise UserError(f"{choice.name} looks back only, and this encoder looks both ways: use it in a causal model")
    offered = {"causal": causal} if entry.accepts("causal") else {}
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(getattr(module, "layer_idx", None) or 0)
        layer = entry.build(heads * width, heads, longest(choice, module), **offered, **choice.options)
    if not isinstance(layer, Attention):
        raise UserError(f"{choice.name} is not an attnlab Attention, and cannot be handed queries, keys and values")
    if layer.heads.kv_heads != heads:
        raise UserError(f"{choice.name} groups heads by its projections: set num_key_value_heads of the model instead")
    if layer.heads.key is None or layer.heads.value is None:
        raise UserError(
            f"{choice.name} makes keys or values by the projection of its queries, and the projections belong to the model"
        )
    return without_projections(choice, layer.to(query.dtype), query)


def without_projections(choice: Choice, layer: Attention, query: Tensor) -> Attention:
    """A mechanism that is left with what it does to queries, keys and values."""
    layer.out = None  # type: ignore[assignment]
    layer.heads.query = layer.heads.key = layer.heads.value = None  # type: ignore[assignment]
    one = torch.zeros_like(query[:1, :, :1])
    try:
        with torch.no_grad():
            layer.eval().dispatch(one, one, one, None)
    except TypeError:
        raise UserError(
            f"{choice.name} needs the query projection of its layer for more than the tokens' queries, and that belongs to the"
            " model"
        ) from None
    return layer


def longest(choice: Choice, module: nn.Module) -> int:
    """The longest text of a model."""
    found = choice.block_size or getattr(getattr(module, "config", None), "max_position_embeddings", None)
    if not found:
        raise UserError(
            f"the longest text of this model is not known: attnlab.exchange.register('{choice.entry.short_name}',"
            " block_size=512)"
        )
    return int(found)
