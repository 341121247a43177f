"""attnlab's mechanisms inside models of transformers: `attn_implementation="attnlab:performer"`.

transformers computes queries, keys and values per head; a mechanism does the rest. A mask is understood as padding and a
direction, never as a matrix: any other mask is refused. Texts padded on the left are read from their first token on, so that
the result is the same as without padding.

Random parts of a mechanism are seeded by the number of the layer, the same in every process, so that nothing needs to be
saved. Learned weights must be part of the model, where `equip` puts them: weights made later would not be trained or saved.
Knows nothing about attnlab's own models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakKeyDictionary

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from attnlab import registry
from attnlab.errors import UserError, refuse
from attnlab.inside.taps import capture, eval_mode
from attnlab.lm.model import read_tensors
from attnlab.mechanisms.heads import Attention

_PLACE = "attnlab_attention"  # name of a mechanism with learned weights inside an attention layer
_PREFIX = "attnlab:"
_FOREIGN = ("position_bias", "softcap", "sliding_window", "s_aux")  # what some models require beside the mask

Model = TypeVar("Model", bound=nn.Module)
Group = tuple[Tensor, int]  # rows that begin at the same position, and that position


@dataclass(frozen=True)
class _Choice:
    """A mechanism as it is registered with transformers."""

    entry: registry.Entry
    name: str
    block_size: int | None = None
    options: dict[str, object] = field(default_factory=dict)


_layers: WeakKeyDictionary[nn.Module, Any] = WeakKeyDictionary()  # mechanisms without learned weights
_equipping: ContextVar[bool] = ContextVar("equipping", default=False)


def register(mechanism: str, name: str | None = None, *, block_size: int | None = None, **options: Any) -> str:
    """Offer a mechanism, or `my_file.py:MyClass`, to transformers as `attnlab:NAME`, and return that name.

    `options` are the mechanism's own; `block_size` is the longest text, by default the model's max_position_embeddings.
    """
    entry = registry.find("mechanism", mechanism)
    choice = _Choice(entry, _PREFIX + (name or entry.short_name), block_size, entry.check(options))
    AttentionInterface.register(choice.name, partial(_attend, choice))
    AttentionMaskInterface.register(choice.name, partial(_hide_padding, choice))
    return choice.name


def register_all() -> None:
    """Offer every mechanism; those that cannot work on foreign queries and keys say why when they are used."""
    for name in registry.names("mechanism"):
        register(name)


def equip(model: Model, folder: Path | str | None = None) -> Model:
    """Put the learned weights of an attnlab mechanism into a model's layers before training, or load them from a folder.

    Only for mechanisms with weights of their own. `from_pretrained` ignores these weights: name the folder here again.
    """
    token = _equipping.set(True)
    try:
        with eval_mode(model), torch.no_grad():
            two = torch.ones(1, 2, dtype=torch.long, device=next(model.parameters()).device)
            model(input_ids=torch.zeros_like(two), attention_mask=two)
    finally:
        _equipping.reset(token)
    own = [name for name, _ in model.named_parameters() if f".{_PLACE}." in name]
    if not own:
        raise UserError("this model's attention has no weights of its own from attnlab: leave equip out")
    if folder is not None:
        tensors: dict[str, Tensor] = {}
        for path in sorted(Path(folder).glob("*.safetensors")):
            stored = read_tensors(path, written_by_attnlab=False)
            tensors |= {name: tensor for name, tensor in stored.items() if f".{_PLACE}." in name}
        if missing := set(own) - set(tensors):
            raise UserError(
                f"{folder} has no weights for {min(missing)}: it was saved without them, so train them again"
            )
        model.load_state_dict(tensors, strict=False)
    return model


# What transformers calls


def _hide_padding(
    choice: _Choice,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: Tensor | None = None,
    **_: Any,
) -> Bool[Tensor, "B 1 1 S"] | None:
    """The mask as transformers asks for it: which tokens may be seen, or None for all. The direction is the layer's."""
    causal = mask_function is causal_mask_function
    reasons = {
        "hides the future and padding, and this model needs another mask (a window, or several texts in a row):"
        ' use attn_implementation="sdpa" for it': not causal and mask_function is not bidirectional_mask_function,
        "needs a cache that grows with the text: leave cache_implementation out of generate": (
            causal and int(q_offset) + q_length != kv_offset + kv_length
        ),
    }
    refuse(choice.name, reasons)
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask[:, None, None, kv_offset : kv_offset + kv_length].bool()


def _attend(
    choice: _Choice,
    module: nn.Module,
    query: Float[Tensor, "B H T C"],
    key: Float[Tensor, "B G S C"],
    value: Float[Tensor, "B G S C"],
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    **asked: Any,
) -> tuple[Float[Tensor, "B T H C"], Float[Tensor, "B H T S"] | None]:
    """One layer's attention by a mechanism, as transformers calls it; with the pattern if attentions are asked for."""
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    causal = causal and getattr(getattr(module, "config", None), "is_causal", True) is not False
    foreign = next((argument for argument in _FOREIGN if asked.get(argument) is not None), None)
    mask = attention_mask
    reasons = {
        f'has no {foreign}, which this model needs: use attn_implementation="eager"': foreign,
        'attends within one text, and this layer attends to another text: use "sdpa" for it': (
            not causal and query.shape[2] != key.shape[2]
        ),
        "takes a mask of padding, [batch, tokens]: leave the mask of pairs out": (
            mask is not None and (mask.ndim != 4 or mask.dtype != torch.bool or mask.shape[2] != 1)
        ),
    }
    refuse(choice.name, reasons)
    repeat = query.shape[1] // key.shape[1]
    if repeat > 1:
        key, value = key.repeat_interleave(repeat, dim=1), value.repeat_interleave(repeat, dim=1)
    if scaling is not None and scaling != query.shape[-1] ** -0.5:
        query = query * (scaling * query.shape[-1] ** 0.5)
    layer = _layer_for(choice, module, query, causal)
    if key.shape[2] > layer.block_size:
        raise UserError(
            f"{key.shape[2]} tokens are too many for {choice.name}, which was made for {layer.block_size}:"
            f" attnlab.exchange.register('{choice.entry.short_name}', block_size={key.shape[2]})"
        )
    layer.dropout = dropout
    layer.train(dropout > 0)
    hidden = None if mask is None else ~mask[:, 0, 0, -key.shape[2] :]
    groups = list(rows_by_start(hidden, len(query), key.shape[2], query.device))
    show = bool(asked.get("output_attentions"))

    def attend(group: Group, first: int, padding: Tensor | None) -> dict[str, Tensor]:
        rows, left = group
        with watch(layer, ["hook_pattern"] if show else []) as seen:
            z = layer.dispatch(query[rows, :, first:], key[rows, :, left:], value[rows, :, left:], padding)
        return {**seen, "z": z.transpose(1, 2)}

    tensors = read_groups(groups, hidden, (len(query), query.shape[2], key.shape[2]), attend)
    return tensors["z"].contiguous(), tensors.get("hook_pattern")


# Texts that begin at different positions


def watch(module: nn.Module, taps: list[str]) -> AbstractContextManager[dict[str, Tensor]]:
    """Capture these taps; without any, nothing."""
    return capture(module, taps) if taps else nullcontext({})


def rows_by_start(hidden: Bool[Tensor, "B S"] | None, batch: int, seen: int, device: torch.device) -> Iterator[Group]:
    """The rows that begin at the same position, and that position, without rows of padding alone if there are others."""
    if hidden is None or bool(hidden.all()):
        yield torch.arange(batch, device=device), 0
        return
    begins = hidden.int().argmin(dim=1).masked_fill(hidden.all(dim=1), seen)
    for left in begins.unique().tolist():
        if left < seen:
            yield (begins == left).nonzero()[:, 0], left


def read_groups(
    groups: Sequence[Group],
    hidden: Bool[Tensor, "B S"] | None,
    sizes: tuple[int, int, int],
    read: Callable[[Group, int, Tensor | None], dict[str, Tensor]],
) -> dict[str, Tensor]:
    """Read every group from its first token on, as if it were alone, and join the tensors, with zeros before that token.

    `sizes` are the rows, the tokens asked, which are the last of those seen, and the tokens seen. `read` gets a group, its
    first asked token and its padding, if any; it returns patterns as [b, H, t, s], and all else as [b, t, ...].
    """
    batch, asked, total = sizes
    parts = []
    for rows, left in groups:
        first = max(0, left - (total - asked))
        padding = None if hidden is None or not hidden[rows, left:].any() else hidden[rows, left:]
        parts.append((rows, first, left, read((rows, left), first, padding)))
    if len(parts) == 1 and len(groups[0][0]) == batch and parts[0][1] == 0:
        return {name: tensor.expand(batch, *tensor.shape[1:]) for name, tensor in parts[0][3].items()}
    joined = {}
    for name, tensor in parts[0][3].items():
        pattern, (_, second, *others) = name.endswith("hook_pattern"), tensor.shape
        joined[name] = tensor.new_zeros((batch, second, asked, total) if pattern else (batch, asked, *others))
        for rows, first, left, tensors in parts:
            if pattern:
                joined[name][rows, :, first:, left:] = tensors[name].expand(len(rows), -1, -1, -1)
            else:
                joined[name][rows, first:] = tensors[name]
    return joined


# The mechanism of a layer


def _layer_for(choice: _Choice, module: nn.Module, query: Tensor, causal: bool) -> Any:
    """The mechanism of a layer: the one it was equipped with, or one built when the layer is first used."""
    key = (choice, causal, query.shape[1], query.shape[-1], query.dtype)  # if any of it changes, another one is built
    for layer in (getattr(module, _PLACE, None), _layers.get(module)):
        if layer is not None and layer.made_for == key:
            return layer.to(query.device)
    layer = _build_layer(choice, module, query, causal)
    layer.made_for = key
    if not any(True for _ in layer.parameters()):
        _layers[module] = layer
    elif _equipping.get():
        module.add_module(_PLACE, layer)
    else:
        own = ", ".join(sorted({name.split(".")[0] for name, _ in layer.named_parameters()}))
        raise UserError(
            f"{choice.name} has weights of its own ({own}) that must be part of the model: call"
            " attnlab.exchange.equip(model) before training it, and equip(model, folder) after loading it"
        )
    return layer


def _build_layer(choice: _Choice, module: nn.Module, query: Tensor, causal: bool) -> Any:
    """A mechanism for the shapes of a layer, without projections; what cannot be built is refused."""
    entry, (heads, width) = choice.entry, (query.shape[1], query.shape[-1])
    reasons = {
        f"is wrong on purpose ({entry.defect}): use attnlab:dot": entry.defect,
        "sees the future, and this model must not: choose a causal mechanism": causal and not entry.causal,
        "is causal only, and this encoder is bidirectional: use it in a causal model": (
            not causal and not entry.accepts("causal")
        ),
    }
    refuse(choice.name, reasons)
    config = getattr(module, "config", None)
    block_size = choice.block_size or getattr(config, "max_position_embeddings", None)
    if not block_size:
        fix = f"attnlab.exchange.register('{entry.short_name}', block_size=512)"
        raise UserError(f"the longest text of this model is not known: {fix}")
    with torch.random.fork_rng(devices=[]), torch.device("cpu"):
        torch.manual_seed(getattr(module, "layer_idx", None) or 0)
        layer = entry.make((heads * width, heads, int(block_size)), choice.options, causal=causal)
    if not isinstance(layer, Attention):
        raise UserError(f"{choice.name} is not an attnlab Attention, and does not accept queries, keys and values")
    if layer.reads_input:
        raise UserError(
            f"{choice.name} also reads the input of its layer, and the model gives it queries, keys and values only"
        )
    reasons = {
        "groups heads by its projections: set num_key_value_heads of the model instead": layer.heads.kv_heads != heads,
        "derives keys or values from its query projection, and the projections belong to the model": (
            layer.heads.key is None or layer.heads.value is None
        ),
    }
    refuse(choice.name, reasons)
    layer = layer.to(query).eval()
    layer.out = None  # type: ignore[assignment]
    layer.heads.query = layer.heads.key = layer.heads.value = None  # type: ignore[assignment]
    token = torch.zeros_like(query[:1, :, :1])
    try:
        with torch.no_grad():
            layer.dispatch(token, token, token, None)
    except TypeError:
        raise UserError(
            f"{choice.name} needs the query projection of its layer for more than the tokens' queries, and that belongs to the"
            " model"
        ) from None
    return layer
