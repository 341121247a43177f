"""Follow one token through a model: every number between the text and the prediction of the next token.

    steps = trace(model, tokenizer, "Where was Hank Aaron born?", question=True)
    steps.layers[0].heads[1].weights                      # of every token, at the token that is followed
    [point.guesses[0] for point in steps.points]          # what the model would predict after each part: the logit lens

A layer without weights over tokens has its influence instead, as in attnlab.inside.look. A model and a text in, a record out;
knows nothing about folders or screens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack

import torch
from jaxtyping import Float
from torch import Tensor

from attnlab import ops
from attnlab.errors import AttnlabError, UserError
from attnlab.inside import HeadTrace, Intervention, LayerTrace, Numbers, Point, Trace
from attnlab.inside.ablation import Subject
from attnlab.inside.look import Layer, guesses_of, layer_of
from attnlab.inside.taps import capture
from attnlab.lm.model import Block, LanguageModel
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
    seen: dict[str, Tensor] = {}
    with subject.changed(subject.changes(changes)), torch.no_grad(), ExitStack() as hooks:
        ids = [*subject.ids, *subject.written(model.config.block_size if question else limit)]
        place = len(subject.ids) - 1 if token is None else token
        if not 0 <= place < len(ids):
            raise UserError(f"there is no token {place + 1}: the text has {len(ids)}, with what the model writes")
        for number, block in enumerate(model.blocks):
            if isinstance(block, Block) and block.mlp is not None:
                hooks.enter_context(block.mlp.out.register_forward_pre_hook(_keep(f"blocks.{number}.hidden", seen)))
        with capture(model) as captured:
            scores = model(torch.tensor([ids], device=model.device))[0, place, : tokenizer.size]
        seen |= captured
        maps = [layer_of(model, number, seen) for number in range(model.config.n_layer)]
    if not scores.isfinite().all():
        raise AttnlabError("the model computed a number that is not finite: it may have diverged")
    points = _points(model, tokenizer, seen, place, int(scores.argmax()))
    return Trace(
        tokens=[tokenizer.piece(each) for each in ids],
        ids=ids,
        given=len(subject.ids),
        token=place,
        embeddings=[_numbers(row) for row in seen["hook_embed"][0, max(0, place + 1 - _ROWS) : place + 1]],
        position=_numbers(seen["hook_pos_embed"][0, place]) if "hook_pos_embed" in seen else [],
        points=points,
        layers=[_layer(layer, f"blocks.{number}.", seen, place) for number, layer in enumerate(maps)],
        scores=_numbers(scores.topk(len(points[-1].guesses)).values),
    )


def _keep(name: str, seen: dict[str, Tensor]) -> Callable[[object, tuple[Tensor]], None]:
    """A hook that keeps what a module reads: there is no tap in an MLP."""

    def keep(_: object, inputs: tuple[Tensor]) -> None:
        seen[name] = inputs[0].detach()

    return keep


def _points(model: LanguageModel, tokenizer: Tokenizer, seen: dict[str, Tensor], place: int, best: int) -> list[Point]:
    """The residual stream after the embedding and after every part of every layer, read by the head of the model."""
    names = {"the embedding": "blocks.0.hook_resid_pre"}
    for number in range(model.config.n_layer):
        names[f"attention of layer {number + 1}"] = f"blocks.{number}.hook_resid_mid"
        if model.config.mlp_ratio:
            names[f"the MLP of layer {number + 1}"] = f"blocks.{number}.hook_resid_post"
    stream = torch.stack([seen[name][0, place] for name in names.values()])
    with torch.no_grad():
        chances = model.head(model.norm(stream))[:, : tokenizer.size].log_softmax(dim=-1)
    return [
        Point(
            after,
            _numbers(values),
            [(guess.token, guess.probability) for guess in guesses_of(row, tokenizer, _TOP)],
            row[best].exp().item(),
        )
        for after, values, row in zip(names, stream, chances, strict=True)
    ]


def _layer(layer: Layer, name: str, seen: dict[str, Tensor], place: int) -> LayerTrace:
    """What one layer computes at the followed token."""
    weights = layer.shares()[:, place]
    taps = [seen.get(f"{name}attn.hook_{part}") for part in "qkvz"]
    q, k, v, z = (_by_head(tap, layer) for tap in taps)
    products = None
    if q is not None and k is not None and q.shape[-1] == k.shape[-1]:
        products = (q[:, place, None] * k[:, : place + 1]).sum(dim=-1) / q.shape[-1] ** 0.5
    averages = None if v is None else torch.einsum("hs,hsc->hc", weights.to(v), v)
    heads = []
    for head, row in enumerate(weights):
        strongest = row[: place + 1].abs().topk(min(_ROWS, place + 1)).indices.sort().values
        heads.append(
            HeadTrace(
                weights=_numbers(row),
                rows=strongest.tolist(),
                products=[] if products is None else _numbers(products[head]),
                query=[] if q is None else _numbers(q[head, place]),
                keys=[] if k is None else [_numbers(key) for key in k[head, strongest]],
                values=[] if v is None else [_numbers(value) for value in v[head, strongest]],
                output=[] if z is None else _numbers(z[head, place]),
            )
        )
    return LayerTrace(
        mechanism=layer.mechanism,
        kind=layer.kind,
        heads=heads,
        softmax=products is not None and _close(products.softmax(dim=-1), weights[:, : place + 1]),
        averages=averages is not None and z is not None and _close(averages, z[:, place]),
        attention=_numbers(seen[f"{name}hook_attn_out"][0, place]),
        hidden=_numbers(seen[f"{name}hidden"][0, place]) if f"{name}hidden" in seen else [],
        mlp=_numbers(seen[f"{name}hook_mlp_out"][0, place]) if f"{name}hook_mlp_out" in seen else [],
    )


def _by_head(tap: Tensor | None, layer: Layer) -> Float[Tensor, "H T C"] | None:
    """A tap [1, T, heads, C] by the heads of the pattern, of which several may share keys and values; else None."""
    heads, tokens = layer.maps.shape[:2]
    if layer.kind != "pattern" or tap is None or tap.ndim != 4 or tap.shape[1] != tokens or heads % tap.shape[2]:
        return None
    return ops.repeat_heads(tap.transpose(1, 2), heads)[0]


def _close(one: Tensor, other: Tensor) -> bool:
    return one.shape == other.shape and torch.allclose(one, other.to(one), atol=_CLOSE)


def _numbers(values: Tensor) -> Numbers:
    """A vector as numbers of five digits."""
    return [float(f"{value:.5g}") for value in values.tolist()]
