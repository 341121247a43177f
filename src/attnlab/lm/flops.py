"""FLOPs per token by part of the model, counted by running it instead of by a rule of thumb.

kernels/counting.py defines what each operation costs. A text goes through the model on its fast paths and, with
`training`, through the loss and backward as in the training loop, dropout included: dropout on attention weights forms
them, and therefore all pairs. The count per token is the mean over the positions of the text, each of which is predicted;
the optimizer step is excluded, since its share depends on the batch. Knows no mechanism by name.
"""

from __future__ import annotations

import copy
import re
import sys
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.autograd.graph import Node

from attnlab.errors import UserError
from attnlab.inside.taps import taps_of
from attnlab.kernels.counting import Counter
from attnlab.lm.model import LanguageModel
from attnlab.lm.train import SummedLoss

# The taps of a block at which a part ends; what precedes any other tap of the backbone counts as "other".
_ENDS = {"hook_attn_out": "attention", "hook_mlp_out": "mlp"}
_BACKBONE = re.compile(r"(?:blocks\.\d+\.)?(hook_\w+)")


@dataclass(frozen=True)
class Flops:
    """FLOPs per token by part; in training, forward plus backward."""

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
    """Count the FLOPs per token in a text of `tokens` tokens: forward, or forward and backward as in training.

    The model and the random state are unchanged. A multiply-add is two FLOPs; in additive attention each channel of a pair
    costs an addition, a tanh (counted as one) and a multiply-add.
    """
    if not 1 <= tokens <= model.longest:
        most = (
            f"1 to {model.longest}, the longest that the model reads" if model.longest < sys.maxsize else "at least 1"
        )
        raise UserError(f"a text of {tokens} tokens does not fit: give {most}")
    with torch.random.fork_rng(devices=[]), torch.inference_mode(False), torch.set_grad_enabled(training):
        torch.manual_seed(0)
        twin = copy.deepcopy(model).cpu()  # counted alike for every device
        twin.requires_grad_().train(training)
        ids, targets = torch.randint(model.config.vocab_size, (2, 1, tokens))
        with Counter() as counter:
            parts = _Parts(counter)
            for name, tap in taps_of(twin).items():
                if match := _BACKBONE.fullmatch(name):
                    tap.register_forward_hook(partial(parts.watch, _ENDS.get(match[1], "other")))
            result = SummedLoss(twin)(ids, targets) if training else twin(ids)
            parts.end("head", result)
            if training:
                result.backward()
                parts.end(parts.now)
    return Flops(**{part: count / tokens for part, count in parts.counts.items()})


class _Parts:
    """Assigns FLOPs to parts: forward since the last part ended, backward by the part that created the autograd node."""

    def __init__(self, counter: Counter) -> None:
        self.counts = {"attention": 0, "mlp": 0, "head": 0, "other": 0}
        self.now = "other"  # in the backward pass
        self._counter, self._counted = counter, 0
        self._known: set[Node] = set()

    def end(self, part: str, result: Tensor | None = None) -> None:
        """Assign a part everything counted since the last end, and the unassigned autograd nodes of its result."""
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

    def watch(self, part: str, _tap: object, _inputs: object, value: Tensor) -> None:
        """End a part where its value passes a tap."""
        self.end(part, value)

    def _enter(self, part: str, _gradients: Any) -> None:
        self.end(self.now)
        self.now = part
