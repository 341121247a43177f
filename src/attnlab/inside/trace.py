"""Follow one token through a model: every number between the text and the prediction of the next token.

    steps = trace(model, tokenizer, "Where was Hank Aaron born?", question=True)
    steps.layers[0].weights[1]                            # of head 2: the weight of every token at the followed one
    [point.guesses[0] for point in steps.points]          # what the model would predict after each part: the logit lens

A layer without weights over tokens has its influence instead, as in attnlab.inside.look. A model and a text in, a record out;
knows nothing about folders or screens.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab import ops
from attnlab.errors import AttnlabError, UserError
from attnlab.inside import Intervention, LayerTrace, Point, Trace
from attnlab.inside.ablation import Subject
from attnlab.inside.look import Layer, guesses_of, layer_of
from attnlab.inside.taps import capture
from attnlab.lm.model import LanguageModel
from attnlab.lm.tokenizers import Tokenizer

_ROWS = 24  # tokens whose keys and values are kept per head: those with the largest weights
_TOP = 6  # guesses per point
_CLOSE = 1e-5  # difference up to which weights count as a softmax, and outputs as averages


def trace(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str,
    *,
    question: bool = False,
    changes: Sequence[Intervention] = (),
    token: int | None = None,
    limit: int = 20,
) -> Trace:
    """Follow a token, by default the last of the text, through a model that reads the text and up to `limit` tokens it writes.

    With `changes`, everything is as the changed model computes it, also what it writes.
    """
    subject = Subject(model, tokenizer, text, question, None)
    with subject.changed(subject.changes(changes)), torch.no_grad():
        ids = [*subject.ids, *subject.written(model.config.block_size if question else limit)]
        place = len(subject.ids) - 1 if token is None else token
        if not 0 <= place < len(ids):
            raise UserError(f"there is no token {place + 1}: the text has {len(ids)}, with what the model writes")
        with capture(model) as seen:
            model(torch.tensor([ids], device=model.device))
        layers = [
            _layer(layer_of(model, number, seen), f"blocks.{number}.", seen, place)
            for number in range(model.config.n_layer)
        ]
        taps = [
            "blocks.0.hook_resid_pre",
            *(name for name in seen if name.endswith(("hook_resid_mid", "hook_resid_post"))),
        ]
        taps = taps if model.config.mlp_ratio else [name for name in taps if not name.endswith("post")]
        stream = torch.stack([seen[name][0, place] for name in taps])
        scores = model.head(model.norm(stream))[:, : tokenizer.size]
    if not scores.isfinite().all():
        raise AttnlabError("the model computed a number that is not finite: it may have diverged")
    chances, best = scores.log_softmax(dim=-1), int(scores[-1].argmax())
    return Trace(
        tokens=[tokenizer.piece(each) for each in ids],
        ids=ids,
        given=len(subject.ids),
        token=place,
        embeddings=_numbers(seen["hook_embed"][0, max(0, place + 1 - _ROWS) : place + 1]),
        position=_numbers(seen["hook_pos_embed"][0, place]) if "hook_pos_embed" in seen else [],
        points=[
            Point(
                tap=name,
                values=_numbers(values),
                guesses=[(guess.token, guess.probability) for guess in guesses_of(row, tokenizer, _TOP)],
                final=row[best].exp().item(),
            )
            for name, values, row in zip(taps, stream, chances, strict=True)
        ],
        layers=layers,
        scores=_numbers(scores[-1].topk(min(_TOP, tokenizer.size)).values),
    )


def _layer(layer: Layer, name: str, seen: dict[str, Tensor], place: int) -> LayerTrace:
    """What one layer computes at the followed token."""
    weights = layer.shares()[:, place].float()
    q, k, v, z = (_by_head(seen.get(f"{name}attn.hook_{part}"), layer) for part in "qkvz")
    products = weights.new_zeros(len(weights), 0)
    if q.shape[-1] == k.shape[-1] > 0:
        products = (q[:, place, None] * k[:, : place + 1]).sum(dim=-1) / q.shape[-1] ** 0.5
    rows = weights[:, : place + 1].abs().topk(min(_ROWS, place + 1)).indices.sort().values
    every = torch.arange(len(weights))[:, None]
    return LayerTrace(
        mechanism=layer.mechanism,
        kind=layer.kind,
        weights=_numbers(weights),
        products=_numbers(products),
        queries=_numbers(q[:, place]),
        rows=rows.tolist(),
        keys=_numbers(k[every, rows]),
        values=_numbers(v[every, rows]),
        outputs=_numbers(z[:, place]),
        softmax=_close(products.softmax(dim=-1), weights[:, : place + 1]),
        averages=_close(torch.einsum("hs,hsc->hc", weights, v), z[:, place]),
        attention=_numbers(seen[f"{name}hook_attn_out"][0, place]),
        hidden=_numbers(seen[f"{name}mlp.hook_post"][0, place]) if f"{name}mlp.hook_post" in seen else [],
        mlp=_numbers(seen[f"{name}hook_mlp_out"][0, place]) if f"{name}hook_mlp_out" in seen else [],
    )


def _by_head(tap: Tensor | None, layer: Layer) -> Float[Tensor, "H T C"]:
    """A tap [1, T, heads, C] by the heads of the pattern, of which several may share keys and values; else no channels."""
    heads, tokens = layer.maps.shape[:2]
    if layer.kind != "pattern" or tap is None or tap.ndim != 4 or tap.shape[1] != tokens or heads % tap.shape[2]:
        return layer.maps.new_zeros(heads, layer.maps.shape[-1], 0)
    return ops.repeat_heads(tap.transpose(1, 2), heads)[0].float()


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and one.numel() > 0 and torch.allclose(one, other, atol=_CLOSE)


def _numbers(values: Tensor) -> list[Any]:
    """A tensor as numbers of five decimals."""
    return values.double().round(decimals=5).tolist()
