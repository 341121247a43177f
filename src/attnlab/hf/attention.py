"""attnlab's mechanisms inside models of transformers: `attn_implementation="attnlab:performer"`.

transformers hands over queries, keys and values by head; what is left of a mechanism is what it does with them. Masks are
taken as what they mean, hidden tokens and a direction, never as a matrix: whoever asks for another mask is refused. Texts that
are padded on the left are read from their first token on, so that they get what they would get alone.

Knows nothing of attnlab's own models.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import bidirectional_mask_function, causal_mask_function

from attnlab import registry
from attnlab.errors import UserError
from attnlab.hf.layers import PLACE, Choice, equipping, layer_for
from attnlab.mechanisms.heads import Attention
from attnlab.model import read_tensors
from attnlab.taps import capture, eval_mode

PREFIX = "attnlab:"
FOREIGN = ("position_bias", "softcap", "sliding_window", "s_aux")  # what some models ask of attention beside the mask

Model = TypeVar("Model", bound=nn.Module)
Watching = AbstractContextManager[dict[str, Tensor]]


def register(mechanism: str, name: str | None = None, *, block_size: int | None = None, **options: Any) -> str:
    """Offer a mechanism, or `my_file.py:MyClass`, to transformers as `attnlab:NAME`, and return that name.

    `options` are the mechanism's own; `block_size` is the longest text, by default the model's max_position_embeddings.
    """
    entry = registry.find("mechanism", mechanism)
    choice = Choice(entry, PREFIX + (name or entry.short_name), block_size, entry.check(options))
    AttentionInterface.register(choice.name, partial(attend, choice))
    AttentionMaskInterface.register(choice.name, partial(hide_padding, choice))
    return choice.name


def register_all() -> None:
    """Offer every mechanism; those that cannot work on foreign queries and keys say why when they are asked."""
    for name in registry.names("mechanism"):
        register(name)


def equip(model: Model, folder: Path | str | None = None) -> Model:
    """Put the learned weights of an attnlab mechanism into a model's layers, before it is trained; from a saved model's folder.

    Only for mechanisms with weights of their own. `from_pretrained` does not know these weights: name the folder here again.
    """
    token = equipping.set(True)
    try:
        with eval_mode(model), torch.no_grad():
            model(input_ids=torch.zeros(1, 2, dtype=torch.long), attention_mask=torch.ones(1, 2, dtype=torch.long))
    finally:
        equipping.reset(token)
    own = [name for name, _ in model.named_parameters() if f".{PLACE}." in name]
    if not own:
        raise UserError("this model's attention has no weights of its own from attnlab: leave equip out")
    if folder is not None:
        found: dict[str, Tensor] = {}
        for path in sorted(Path(folder).glob("*.safetensors")):
            found |= {name: tensor for name, tensor in read_tensors(path).items() if f".{PLACE}." in name}
        if missing := set(own) - set(found):
            raise UserError(
                f"{folder} has no weights for {min(missing)}: it was saved without them, so train them again"
            )
        model.load_state_dict(found, strict=False)
    return model


def hide_padding(
    choice: Choice,
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    mask_function: Any = causal_mask_function,
    attention_mask: Tensor | None = None,
    **_: Any,
) -> Bool[Tensor, "B 1 1 S"] | None:
    """What transformers asks for a mask: which tokens may be seen, or None for all. The direction is the layer's own."""
    if mask_function is not causal_mask_function and mask_function is not bidirectional_mask_function:
        raise UserError(
            f"{choice.name} hides the future and padding, and this model asks for another mask (a window, or several texts in"
            ' a row): use attn_implementation="sdpa" for it'
        )
    if mask_function is causal_mask_function and int(q_offset) + q_length != kv_offset + kv_length:
        raise UserError(
            f"{choice.name} needs a cache that grows with the text: leave cache_implementation out of generate"
        )
    if attention_mask is None or bool(attention_mask.all()):
        return None
    return attention_mask[:, None, None, kv_offset : kv_offset + kv_length].bool()


def attend(
    choice: Choice,
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
    """One layer's attention by a mechanism, as transformers calls it; the pattern too where it asks for attentions."""
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    causal = causal and getattr(getattr(module, "config", None), "is_causal", True) is not False
    refuse(choice, query, key, causal, attention_mask, asked)
    repeat = query.shape[1] // key.shape[1]
    if repeat > 1:
        key, value = key.repeat_interleave(repeat, dim=1), value.repeat_interleave(repeat, dim=1)
    if scaling is not None and scaling != query.shape[-1] ** -0.5:
        query = query * (scaling * query.shape[-1] ** 0.5)
    layer = layer_for(choice, module, query, causal)
    if key.shape[2] > layer.block_size:
        raise UserError(
            f"{key.shape[2]} tokens are too many for {choice.name}, which was made for {layer.block_size}:"
            f" attnlab.exchange.register('{choice.entry.short_name}', block_size={key.shape[2]})"
        )
    layer.dropout = dropout
    layer.train(dropout > 0)
    hidden = None if attention_mask is None else ~attention_mask[:, 0, 0, -key.shape[2] :]
    z, pattern = read(layer, query, key, value, hidden, bool(asked.get("output_attentions")))
    return z.transpose(1, 2).contiguous(), pattern


def refuse(
    choice: Choice, query: Tensor, key: Tensor, causal: bool, mask: Tensor | None, asked: dict[str, Any]
) -> None:
    """Say what a mechanism is asked for and cannot do."""
    name = choice.name
    if query.device.type != "cpu":
        raise UserError(f"{name} runs on the CPU, and this model is on {query.device}: model.to('cpu')")
    for one in FOREIGN:
        if asked.get(one) is not None:
            raise UserError(f'{name} knows no {one}, which this model needs: use attn_implementation="eager"')
    if not causal and query.shape[2] != key.shape[2]:
        raise UserError(f'{name} looks at one text, and this layer looks from one text at another: use "sdpa" for it')
    if mask is not None and (mask.ndim != 4 or mask.dtype != torch.bool or mask.shape[2] != 1):
        raise UserError(f"{name} takes a mask of padding, [batch, tokens]: leave the mask of pairs out")


def read(
    layer: Attention, q: Tensor, k: Tensor, v: Tensor, hidden: Bool[Tensor, "B S"] | None, show: bool
) -> tuple[Float[Tensor, "B H T C"], Float[Tensor, "B H T S"] | None]:
    """The averages, and the pattern where it is to be shown; rows with padding on the left from their first token on."""
    asked, seen = q.shape[2], k.shape[2]
    groups = list(by_beginning(hidden, len(q), seen))
    if not show and len(groups) == 1 and len(groups[0][0]) == len(q) and groups[0][1] == 0:
        return layer.dispatch(q, k, v, hidden), None
    z = q.new_zeros(*q.shape[:3], v.shape[-1])
    pattern = q.new_zeros(*q.shape[:3], seen) if show else None
    for rows, left in groups:
        first = max(0, left - (seen - asked))  # the asked tokens are the last of those seen
        if first >= asked:
            continue
        some = None if hidden is None else hidden[rows, left:]
        watching: Watching = capture(layer, "hook_pattern") if show else nullcontext({})
        with watching as weights:
            found = layer.dispatch(
                q[rows, :, first:],
                k[rows, :, left:],
                v[rows, :, left:],
                some if some is not None and some.any() else None,
            )
        z[rows, :, first:] = found
        if pattern is not None:
            pattern[rows, :, first:, left:] = weights["hook_pattern"].expand(len(rows), -1, -1, -1)
    return z, pattern


def by_beginning(hidden: Bool[Tensor, "B S"] | None, batch: int, seen: int) -> Iterator[tuple[Tensor, int]]:
    """The rows that begin at the same place, and that place; rows of nothing but padding are left out."""
    if hidden is None:
        yield torch.arange(batch), 0
        return
    begins = hidden.int().argmin(dim=1).masked_fill(hidden.all(dim=1), seen)
    for left in begins.unique().tolist():
        if left < seen:
            yield (begins == left).nonzero()[:, 0], left
