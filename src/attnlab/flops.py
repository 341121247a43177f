"""FLOPs of a token, by part of the model: counted by running it, not by a rule of thumb.

What counts, and as how much, is said in kernels/counting.py. A text is sent through the model by the fast paths, and with
`training` through the loss and back by the path of the training loop, dropout included: attention weights that are dropped are
formed, and all pairs with them. The count of a token is the mean over the places of the text, each of which is predicted; the
step of the optimizer is left out, since its share depends on the batch. Knows no mechanism by name.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from attnlab.errors import UserError
from attnlab.kernels.counting import Counter
from attnlab.model import LanguageModel
from attnlab.taps import taps_of
from attnlab.train import SummedLoss

# The taps of a block at which a part ends; what lies before another tap of the backbone is a part without a name.
_ENDS = {"hook_attn_out": "attention", "hook_mlp_out": "mlp"}
_BACKBONE = re.compile(r"(?:blocks\.\d+\.)?(hook_\w+)")


@dataclass(frozen=True)
class Flops:
    """The FLOPs of a token, by part; in training forward and backward together."""

    attention: float
    mlp: float
    head: float
    other: float

    @property
    def total(self) -> float:
        """All parts together."""
        return self.attention + self.mlp + self.head + self.other

    def to_dict(self) -> dict[str, float]:
        """Plain values, ready for JSON."""
        return {"total": self.total, **asdict(self)}


def flops_per_token(model: LanguageModel, tokens: int, *, training: bool = False) -> Flops:
    """The FLOPs of a token in a text of so many tokens: forward, or forward and backward as in training.

    The model is left as it is, random numbers too. A multiply-add is two FLOPs; in additive attention every channel of a pair
    takes a sum, its tanh, counted as one, and a multiply-add.
    """
    if not 1 <= tokens <= model.config.block_size:
        raise UserError(
            f"a text of {tokens} tokens does not fit: give 1 to {model.config.block_size}, the block of the model"
        )
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.set_grad_enabled(training):
        torch.manual_seed(0)
        twin = copy.deepcopy(model).requires_grad_().train(training)
        ids, targets = torch.randint(model.config.vocab_size, (2, 1, tokens))
        with _counted_by_part(twin) as parts:
            result = SummedLoss(twin)(ids, targets) if training else twin(ids)
            parts.end("head", result)
            if training:
                result.backward()
                parts.end(parts.now)
    return Flops(**{part: count / tokens for part, count in parts.counts.items()})


class _Parts:
    """Whose FLOPs are counted: forward those since the last part ended, backward those of the part that made the node."""

    def __init__(self, counter: Counter) -> None:
        self.counts = {"attention": 0, "mlp": 0, "head": 0, "other": 0}
        self.now = "other"  # on the way back
        self._counter, self._counted = counter, 0
        self._known: set[Node] = set()

    def end(self, part: str, result: Tensor | None = None) -> None:
        """Give a part all that was counted since the last end, and the nodes of its result that are nobody's."""
        total = self._counter.total
        self.counts[part] += total - self._counted
        self._counted = total
        waiting = [] if result is None else [result.grad_fn]
        while waiting:
            node = waiting.pop()
            if node is not None and node not in self._known:
                self._known.add(node)
                node.register_prehook(partial(self._enter, part))
                waiting += [before for before, _ in node.next_functions]

    def _enter(self, part: str, _gradients: Any) -> None:
        self.end(self.now)
        self.now = part


@contextmanager
def _counted_by_part(model: LanguageModel) -> Iterator[_Parts]:
    """Count while the model runs; its taps say where a part ends."""
    with Counter() as counter:
        parts = _Parts(counter)

        def watch(part: str, _tap: object, _inputs: object, value: Tensor) -> None:
            parts.end(part, value)

        for name, tap in taps_of(model).items():
            if found := _BACKBONE.fullmatch(name):
                tap.register_forward_hook(partial(watch, _ENDS.get(found[1], "other")))
        yield parts
