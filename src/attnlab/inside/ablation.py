"""Change activations inside a model and compare what it answers: head ablation and activation patching.

    head = Intervention(layer=0, head=1)                                   # its output becomes zero
    result = ablate(model, tokenizer, "Where was Hank Aaron born?", [head], question=True)
    result.answer, result.before, result.after
    for effect in ablate_heads(model, tokenizer, "The cat sat on the"): ...

Everything is computed without caches, so that a token has the same position in every pass. A model and a text in, records
out; knows nothing about folders or screens.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch import Tensor

from attnlab.errors import AttnlabError, UserError
from attnlab.inside import TAPS, Ablation, Alternative, HeadEffect, Intervention, TapName
from attnlab.inside.look import encode, refuse_bottleneck
from attnlab.inside.taps import Change, capture, eval_mode, patch, taps_of
from attnlab.lm.decoding import generate
from attnlab.lm.evaluate import encode_question, top_answers
from attnlab.lm.model import LanguageModel
from attnlab.lm.tokenizers import Tokenizer
from attnlab.trust.answers import AnswerTrie, answer_distribution
from attnlab.trust.asking import checked_question
from attnlab.trust.calibrating import FLOOR

_SHOWN = 8  # alternatives before, and as many after
_WRITTEN = 20  # tokens that continue a text


def ablate(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str,
    changes: Sequence[Intervention],
    *,
    question: bool = False,
    answers: AnswerTrie | Sequence[str] | None = None,
) -> Ablation:
    """Compare what a model says about a text without and with changes of its activations.

    A `question` is asked as in training, and complete answers are compared: the given `answers`, or those that a beam search
    finds. Otherwise the text is continued, and next tokens are compared.
    """
    subject = Subject(model, tokenizer, text, question, answers)
    before, written_before = subject.respond([])
    after, written_after = subject.respond(subject.changes(changes))
    answer, then = next(iter(before)), next(iter(after))
    shown = dict.fromkeys([*islice(before, _SHOWN), *islice(after, _SHOWN)])
    return Ablation(
        answer=answer,
        before=before[answer],
        after=after.get(answer),
        then=then,
        written_before=written_before,
        written_after=written_after,
        rows=tuple(Alternative(name, before.get(name), after.get(name)) for name in shown),
    )


def ablate_heads(
    model: LanguageModel,
    tokenizer: Tokenizer,
    text: str,
    *,
    question: bool = False,
    answers: AnswerTrie | Sequence[str] | None = None,
) -> Iterator[HeadEffect]:
    """Yield the probability of the model's own answer, first unchanged, then with each head switched off in turn."""
    subject = Subject(model, tokenizer, text, question, answers)
    best = next(iter(subject.chances()))
    yield HeadEffect(None, None, subject.chance_of(best, []))
    for layer in range(model.config.n_layer):
        for head in range(model.config.n_head):
            chance = None
            if "z" in taps_in(model, layer):
                chance = subject.chance_of(best, subject.changes([Intervention(layer, head=head)]))
            yield HeadEffect(layer, head, chance)


def taps_in(model: LanguageModel, layer: int) -> list[TapName]:
    """The activations of a layer that can be replaced."""
    names = taps_of(model)
    return [short for short, end in TAPS.items() if f"blocks.{layer}.{end}" in names]


def encode_prompt(model: LanguageModel, tokenizer: Tokenizer, text: str, question: bool) -> list[int]:
    """The tokens of a question as in training, or of the beginning of a text."""
    if not question:
        return encode(tokenizer, text, False, model.longest)
    asked = checked_question(text)
    encode(tokenizer, asked, True, model.longest)  # refuses symbols that the model does not have
    return encode_question(tokenizer, asked, model.longest)


@contextmanager
def switched_off(model: LanguageModel, intervention: Intervention) -> Iterator[None]:
    """Replace an activation by zeros, of all tokens or one."""
    with patch(model, {intervention.name: _change(intervention, None)}):
        yield


# Making changes


def _change(intervention: Intervention, source: Tensor | None) -> Change:
    """The function that makes one change in a value laid out [batch, token, ...], in which the text comes first."""
    head = intervention.head if intervention.tap == "z" else None
    place = intervention.position

    def change(value: Tensor) -> Tensor:
        if head is not None and not 0 <= head < value.shape[2]:
            raise UserError(f"layer {intervention.layer + 1} has {value.shape[2]} heads: choose one of them")
        every = slice(0, value.shape[1] if source is None else len(source))
        tokens = every if place is None else slice(place, place + 1)
        region: tuple[Any, ...] = (tokens,) if head is None else (tokens, head)
        value[(slice(None), *region)] = 0 if source is None else source[region].to(value)
        return value

    return change


def _finite(chance: float) -> float:
    if not math.isfinite(chance):
        raise AttnlabError("the model computed a number that is not finite: it may have diverged")
    return chance


class Subject:
    """A model and the text that it reads."""

    def __init__(
        self,
        model: LanguageModel,
        tokenizer: Tokenizer,
        text: str,
        question: bool,
        answers: AnswerTrie | Sequence[str] | None,
    ) -> None:
        refuse_bottleneck(model)
        self.model, self.tokenizer, self.question = model, tokenizer, question
        self.ids = encode_prompt(model, tokenizer, text, question)
        self.text = checked_question(text) if question else text
        if answers is not None and not isinstance(answers, AnswerTrie):
            answers = AnswerTrie(tokenizer, answers)
        self.trie = answers

    def changes(self, interventions: Sequence[Intervention]) -> list[tuple[str, Change]]:
        """The functions that make the changes, each with its tap, in order."""
        names, changes = taps_of(self.model), []
        for each in interventions:
            if each.name not in names:
                raise UserError(f"layer {each.layer + 1} has no such activation: its mechanism has no {each.name}")
            if each.position is not None and not 0 <= each.position < len(self.ids):
                raise UserError(f"there is no token {each.position + 1}: the text has {len(self.ids)}")
            changes.append((each.name, _change(each, self._source(each))))
        return changes

    def _source(self, intervention: Intervention) -> Tensor | None:
        """What replaces an activation, per token of the text; None for zeros."""
        if intervention.by == "zero":
            return None
        if intervention.by == "mean":
            values = self._capture(self.ids, intervention.name)
            return values.mean(dim=0, keepdim=True).expand_as(values)
        other = encode_prompt(self.model, self.tokenizer, intervention.other, self.question)
        if len(other) != len(self.ids):
            raise UserError(
                f"the other text has {len(other)} tokens and this one {len(self.ids)}: choose one with as many tokens"
            )
        return self._capture(other, intervention.name)

    def _capture(self, ids: Sequence[int], name: str) -> Tensor:
        with eval_mode(self.model), torch.no_grad(), capture(self.model, [name]) as seen:
            self.model(torch.tensor([ids], device=self.model.device))
        return seen[name][0]

    @contextmanager
    def changed(self, changes: Sequence[tuple[str, Change]]) -> Iterator[None]:
        """The model with some changes, in `eval` mode."""
        with ExitStack() as stack, eval_mode(self.model):
            for name, change in changes:
                stack.enter_context(patch(self.model, {name: change}))
            yield

    def respond(self, changes: Sequence[tuple[str, Change]]) -> tuple[dict[str, float], str]:
        """The probabilities of what the model may say with some changes, and what it writes."""
        limit = self.model.config.block_size if self.question else _WRITTEN
        with self.changed(changes):
            return self.chances(), self.tokenizer.decode(self.written(limit)).strip()

    def written(self, limit: int) -> list[int]:
        """The tokens that the model writes after the text, up to `limit`."""
        ids = torch.tensor([self.ids])
        [written] = generate(self.model, ids, limit, self.tokenizer.stops, use_cache=False)
        return written

    def chances(self) -> dict[str, float]:
        """The probabilities of answers or next tokens, the likeliest first."""
        with eval_mode(self.model):
            chances = self._answers() if self.question else self._next_tokens()
        return dict(sorted(chances.items(), key=lambda pair: -pair[1]))

    def chance_of(self, answer: str, changes: Sequence[tuple[str, Change]]) -> float:
        """The probability of one answer or next token with some changes."""
        with self.changed(changes):
            if not self.question:
                return self._next_tokens()[answer]
            trie = AnswerTrie(self.tokenizer, [answer])
            asked = answer_distribution(self.model, self.tokenizer, [self.text], trie, use_cache=False)
            return _finite(float(asked.confidence[0]))

    def _answers(self) -> dict[str, float]:
        """The model's own probability of every answer."""
        if self.trie is None:
            chances = dict(top_answers(self.model, self.tokenizer, self.text, 2 * _SHOWN))
        else:
            asked = answer_distribution(
                self.model, self.tokenizer, [self.text], self.trie, floor=FLOOR, use_cache=False
            )
            chances = dict(zip(asked.answers, np.exp(asked.logp[0]).tolist(), strict=True))
        return {answer: _finite(chance) for answer, chance in chances.items()}

    def _next_tokens(self) -> dict[str, float]:
        """The probability of every next token; of several that look the same, all but the first have their number."""
        with torch.no_grad():
            ids = torch.tensor([self.ids], device=self.model.device)
            scores = self.model(ids)[0, -1, : self.tokenizer.size]
        chances: dict[str, float] = {}
        for token, chance in enumerate(scores.softmax(dim=-1).tolist()):
            piece = self.tokenizer.piece(token)
            chances[f"{piece} (token {token})" if piece in chances else piece] = _finite(chance)
        return chances
