"""The loss over a large vocabulary, some tokens at a time, so that the scores of all words stay in the cache.

The scores of a batch, tokens times words, are by far the largest tensor of a word-level model: written to memory and read
back several times, they take most of a step. Here they are made for a few tokens, turned into the loss and its gradients,
and overwritten. The same numbers as `ops.token_losses` of the head's scores, within rounding.
"""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

LARGE = 4096  # words from which on it pays
CHUNK = 2**21  # scores at a time: 8 MB


def rows_at_once(words: int) -> int:
    """Tokens whose scores are in memory together."""
    return max(16, CHUNK // words)


def exponentials(scores: Float[Tensor, "N V"], targets: Int[Tensor, " N"]) -> tuple[Tensor, Tensor]:
    """The loss of every target, and the sums of each row's exponentials, which take the place of the scores."""
    height = scores.amax(dim=1)
    aimed = scores.gather(1, targets[:, None])[:, 0]
    sums = scores.sub_(height[:, None]).exp_().sum(dim=1)
    return sums.log() + height - aimed, sums


class SummedLosses(torch.autograd.Function):
    """The loss of all targets, with its gradients computed on the way."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """The sum of the losses."""
        size = rows_at_once(len(weight))
        buffer = hidden.new_empty(min(size, len(hidden)), len(weight))
        of_hidden, of_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        total = hidden.new_zeros(())
        for at in range(0, len(hidden), size):
            some, aims = hidden[at : at + size], targets[at : at + size]
            scores = torch.mm(some, weight.t(), out=buffer[: len(some)])
            losses, sums = exponentials(scores, aims)
            total += losses.sum()
            # The gradient of a score is its probability, less one for the target.
            torch.mm(scores, weight, out=of_hidden[at : at + size])
            of_hidden[at : at + size].div_(sums[:, None]).sub_(weight[aims])
            of_weight.addmm_(scores.t(), some / sums[:, None])
        of_weight.index_add_(0, targets, hidden, alpha=-1)
        ctx.save_for_backward(of_hidden, of_weight)
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """The gradients that were kept, scaled."""
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden * gradient, of_weight * gradient, None


def summed_losses(
    hidden: Float[Tensor, "N D"], weight: Float[Tensor, "V D"], targets: Int[Tensor, " N"]
) -> Float[Tensor, ""]:
    """The loss of all targets, for training."""
    total: Tensor = SummedLosses.apply(hidden, weight, targets)  # type: ignore[no-untyped-call]
    return total


@torch.no_grad()
def token_losses(
    hidden: Float[Tensor, "N D"], weight: Float[Tensor, "V D"], targets: Int[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """The loss of every target, for evaluation."""
    size = rows_at_once(len(weight))
    pairs = zip(hidden.split(size), targets.split(size), strict=True)
    return torch.cat([exponentials(some @ weight.t(), aims)[0] for some, aims in pairs])
