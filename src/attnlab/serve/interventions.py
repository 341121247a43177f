"""Tasks of the view "ask" that change activations inside a model and compare what it then says.

They run in the worker of models.py. Everything is computed without caches, so that a position of the text is the same
position in every pass.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from attnlab.errors import UserError
from attnlab.serve.models import TAPS, Opened, open_once, prompt, taps_in

if TYPE_CHECKING:
    from torch import Tensor

    from attnlab.inside.taps import Change

_SHOWN = 8  # alternatives


@dataclass(frozen=True)
class Intervention:
    """One change: an activation of one head or all, at one token or all, becomes zero, its mean or another text's."""

    layer: int
    tap: str = "z"
    head: int | None = None
    position: int | None = None
    by: str = "zero"
    other: str = ""

    @property
    def name(self) -> str:
        """The name of the tap."""
        return f"blocks.{self.layer}.{TAPS[self.tap]}"


@dataclass(frozen=True)
class _Said:
    """What a model says: the probabilities of answers or next tokens, and what it writes."""

    chances: dict[str, float]
    written: str


def intervene(
    folder: str, trust_code: bool, text: str, asking: bool, changes: Sequence[Mapping[str, Any]]
) -> dict[str, Any]:
    """What the model says without and with the changes."""
    opened = open_once(folder, trust_code)
    ids = prompt(opened, text, asking)
    made = _changes_of(opened, ids, asking, [Intervention(**one) for one in changes])
    before, after = (_say(opened, text, ids, asking, some) for some in ({}, made))
    first, then = (sorted(one.chances, key=lambda name: -one.chances[name]) for one in (before, after))
    kept = list(dict.fromkeys([*first[:_SHOWN], *then[:_SHOWN]]))
    rows = [{"answer": name, "before": before.chances.get(name), "after": after.chances.get(name)} for name in kept]
    return {
        "answer": first[0],
        "before": before.chances[first[0]],
        "after": after.chances.get(first[0]),
        "then": then[0],
        "written_before": before.written,
        "written_after": after.written,
        "rows": rows,
    }


def each_head_off(folder: str, trust_code: bool, text: str, asking: bool) -> Iterator[dict[str, Any]]:
    """Yield how likely the model's answer is, first unchanged, then with each head switched off, if that is possible."""
    opened = open_once(folder, trust_code)
    ids = prompt(opened, text, asking)
    chance_of = _chance(opened, text, ids, asking)
    yield {"layer": None, "head": None, "probability": chance_of()}
    for layer in range(opened.model.config.n_layer):
        for head in range(opened.model.config.n_head):
            if "z" not in taps_in(opened.model, layer):
                yield {"layer": layer, "head": head, "probability": None}
                continue
            made = _changes_of(opened, ids, asking, [Intervention(layer, head=head)])
            with _patched(opened, made):
                yield {"layer": layer, "head": head, "probability": chance_of()}


def _patched(opened: Opened, changes: Mapping[str, Change]) -> Any:
    from attnlab.inside.taps import patch

    return patch(opened.model, changes) if changes else nullcontext()


def _changes_of(opened: Opened, ids: Sequence[int], asking: bool, wanted: Sequence[Intervention]) -> dict[str, Change]:
    """The functions that make the changes, by tap; several changes of one tap are made in order."""
    from attnlab.inside.look import refuse_bottleneck
    from attnlab.inside.taps import taps_of

    refuse_bottleneck(opened.model)
    names, found = taps_of(opened.model), defaultdict[str, list["Change"]](list)
    for one in wanted:
        if one.name not in names:
            raise UserError(f"layer {one.layer + 1} has no such activation: its mechanism has no {one.name}")
        if one.position is not None and one.position >= len(ids):
            raise UserError(f"there is no token {one.position + 1}: the text has {len(ids)}")
        found[one.name].append(_change(one, _source(opened, ids, asking, one)))
    return {name: _in_order(made) for name, made in found.items()}


def _in_order(changes: Sequence[Change]) -> Change:
    def change(value: Tensor) -> Tensor:
        for one in changes:
            value = one(value)
        return value

    return change


def _source(opened: Opened, ids: Sequence[int], asking: bool, one: Intervention) -> Tensor | None:
    """What replaces an activation, per token of the text; None for zeros."""
    if one.by == "zero":
        return None
    if one.by == "mean":
        values = _captured(opened, ids, one.name)
        return values.mean(dim=0, keepdim=True).expand_as(values)
    other = prompt(opened, one.other, asking)
    if len(other) != len(ids):
        raise UserError(
            f"the other text has {len(other)} tokens and this one {len(ids)}: choose one with as many tokens"
        )
    return _captured(opened, other, one.name)


def _captured(opened: Opened, ids: Sequence[int], name: str) -> Tensor:
    import torch

    from attnlab.inside.taps import capture, eval_mode

    with eval_mode(opened.model), torch.no_grad(), capture(opened.model, [name]) as seen:
        opened.model(torch.tensor([ids], device=opened.model.device))
    return seen[name][0]


def _change(one: Intervention, source: Tensor | None) -> Change:
    """The function that makes one change in a value laid out [batch, token, ...], in which the text comes first."""

    def change(value: Tensor) -> Tensor:
        if one.tap == "z" and one.head is not None and one.head >= value.shape[2]:
            raise UserError(f"layer {one.layer + 1} has {value.shape[2]} heads here: choose one of them")
        length = value.shape[1] if source is None else len(source)
        tokens = slice(one.position, one.position + 1) if one.position is not None else slice(0, length)
        some: tuple[Any, ...] = (slice(None), tokens)
        if one.tap == "z" and one.head is not None:
            some = (*some, one.head)
        value[some] = 0 if source is None else source[some[1:]].to(value)
        return value

    return change


def _say(opened: Opened, text: str, ids: Sequence[int], asking: bool, changes: Mapping[str, Change]) -> _Said:
    """What the model says with some changes."""
    import torch

    from attnlab.inside.taps import eval_mode
    from attnlab.lm.evaluate import generate

    with _patched(opened, changes), eval_mode(opened.model):
        limit = opened.model.config.block_size if asking else 20
        written = generate(opened.model, torch.tensor([ids]), limit, opened.tokenizer.stops, use_cache=False)[0]
        chances = _answers(opened, text) if asking else _next(opened, ids)
    return _Said(chances, opened.tokenizer.decode(written).strip())


def _answers(opened: Opened, text: str) -> dict[str, float]:
    """The model's own probability of every answer."""
    import numpy as np

    from attnlab.lm.evaluate import top_answers
    from attnlab.trust.answers import answer_distribution
    from attnlab.trust.asking import checked_question
    from attnlab.trust.calibrating import FLOOR

    question, oracle = checked_question(text), opened.oracle
    assert oracle is not None
    if oracle.trie is None:
        return dict(top_answers(opened.model, opened.tokenizer, question, 2 * _SHOWN))
    found = answer_distribution(opened.model, opened.tokenizer, [question], oracle.trie, floor=FLOOR, use_cache=False)
    return dict(zip(found.answers, np.exp(found.logp[0]).tolist(), strict=True))


def _next(opened: Opened, ids: Sequence[int]) -> dict[str, float]:
    """The probability of every next token; of several that look the same, all but the first have their number."""
    import torch

    with torch.no_grad():
        scores = opened.model(torch.tensor([ids], device=opened.model.device))[0, -1, : opened.tokenizer.size]
    found: dict[str, float] = {}
    for token, chance in enumerate(scores.softmax(dim=-1).tolist()):
        piece = opened.tokenizer.piece(token)
        found[f"{piece} (token {token})" if piece in found else piece] = chance
    return found


def _chance(opened: Opened, text: str, ids: Sequence[int], asking: bool) -> Callable[[], float]:
    """A function that measures how likely the answer is that the unchanged model gives."""
    from attnlab.inside.taps import eval_mode
    from attnlab.trust.answers import AnswerTrie, answer_distribution
    from attnlab.trust.asking import checked_question

    with eval_mode(opened.model):
        chances = _answers(opened, text) if asking else _next(opened, ids)
    best = max(chances, key=lambda name: chances[name])
    if not asking:
        return lambda: _next(opened, ids)[best]
    question, trie = checked_question(text), AnswerTrie(opened.tokenizer, [best])

    def measure() -> float:
        found = answer_distribution(opened.model, opened.tokenizer, [question], trie, use_cache=False)
        return float(found.confidence[0])

    return measure
