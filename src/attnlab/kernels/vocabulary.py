"""The loss over a large vocabulary, a few tokens at a time, so that the logits stay in the cache.

The logits of a batch, tokens times words, are by far the largest tensor of a word-level model: written to memory and read
back several times, they take most of a step. Here they are computed for a few tokens, turned into the loss and its
gradients, and overwritten: compiled (vocabulary.cpp), or in plain torch if it cannot be compiled. The numbers are those of
`ops.token_losses` of the head's logits, within rounding.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor
from torch.nn import functional as F

from attnlab import ops
from attnlab.kernels import build, in_parts
from attnlab.kernels.counting import counted_as

LARGE = 4096  # words; for smaller vocabularies it does not pay
CHUNK = 2**21  # logits at a time: 8 MB
ALONE = 2**24  # logits; for a smaller problem a second thread only costs time
_LANES = 16  # the widest vector of any processor


class Expected(NamedTuple):
    """Expectations under the softmax over all words, per token and per word."""

    logsum: Tensor  # logarithm of the summed exponentials per token, [N]
    of_hidden: Tensor  # mean of the words per token, weighted by their probability, [N, D]
    of_weight: Tensor  # sum of the tokens per word, weighted by its probability, [V, D]


# In plain torch


def plain_expected(hidden: Float[Tensor, "N D"], weight: Float[Tensor, "V D"], gradients: bool = True) -> Expected:
    """The reference; without `gradients`, only the logarithms of the sums are computed, and the rest is zero."""
    size = max(16, CHUNK // len(weight))  # tokens whose logits are in memory together
    buffer = hidden.new_empty(min(size, len(hidden)), len(weight))
    expected = Expected(hidden.new_empty(len(hidden)), torch.zeros_like(hidden), torch.zeros_like(weight))
    for at in range(0, len(hidden), size):
        here = slice(at, at + size)
        scores = torch.mm(hidden[here], weight.t(), out=buffer[: len(hidden[here])])
        height = scores.amax(dim=1)
        sums = scores.sub_(height[:, None]).exp_().sum(dim=1)
        expected.logsum[here] = sums.log() + height
        if gradients:
            expected.of_hidden[here] = (scores @ weight).div_(sums[:, None])
            expected.of_weight.addmm_(scores.t(), hidden[here] / sums[:, None])
    return expected


# Compiled


class _Arguments(ctypes.Structure):
    """The struct of vocabulary.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("hidden", "weight", "logsum", "of_hidden", "of_weight")),
        *((name, ctypes.c_int64) for name in ("words", "width")),
    )


def compiled_expected(hidden: Float[Tensor, "N D"], weight: Float[Tensor, "V D"], gradients: bool = True) -> Expected:
    """The compiled version, with the tokens divided among as many threads as torch uses."""
    width = hidden.shape[1]
    hidden, weight = (ops.fill(x, -width % _LANES).contiguous() for x in (hidden, weight))
    logsum, of_hidden = hidden.new_empty(len(hidden)), torch.zeros_like(hidden)
    call = build.function("vocabulary", "vocabulary_softmax", _Arguments)

    def work(begin: int, end: int) -> tuple[int, Tensor]:
        of_weight = torch.zeros_like(weight)  # one per thread, so that none writes into another's
        pointers = [x.data_ptr() for x in (hidden, weight, logsum, of_hidden, of_weight)]
        if not gradients:
            pointers[3:] = 0, 0
        return call(_Arguments(*pointers, len(weight), hidden.shape[1]), begin, end), of_weight

    threads = 1 if len(hidden) * len(weight) < ALONE else torch.get_num_threads()
    failed, parts = zip(*in_parts(work, len(hidden), threads), strict=True)
    if any(failed):
        raise MemoryError("the vocabulary kernel found no memory: use a smaller batch")
    return Expected(logsum, of_hidden[:, :width], sum(parts[1:], parts[0])[:, :width])


def matches_plain() -> bool:
    """Whether the compiled version gives the numbers of the plain one, over several chunks, for small and large logits."""
    random = torch.Generator().manual_seed(0)
    for tokens, words, width, size in ((300, 501, 24, 0.3), (35, 97, 100, 3.0), (5, 1000, 200, 30.0)):
        hidden = size * torch.randn(tokens, width, generator=random)
        weight = torch.randn(words, width, generator=random)
        for gradients in (True, False):
            forms = compiled_expected(hidden, weight, gradients), plain_expected(hidden, weight, gradients)
            if not all(torch.allclose(*pair, rtol=1e-3, atol=1e-3) for pair in zip(*forms, strict=True)):
                return False
    return True


# Losses


def expected(hidden: Float[Tensor, "N D"], weight: Float[Tensor, "V D"], gradients: bool = True) -> Expected:
    """Use the compiled version if there is one."""
    fits = hidden.is_cpu and hidden.dtype == weight.dtype == torch.float32 and len(weight) >= LARGE
    form = compiled_expected if fits and build.load("vocabulary") is not None else plain_expected
    products = 3 if gradients else 1
    with counted_as(lambda: 2 * products * len(hidden) * weight.numel()):
        return form(hidden, weight, gradients)


def _losses_of(logsum: Tensor, hidden: Tensor, aims: Tensor) -> Tensor:
    """The loss of every target, given the row of its word; rounding never makes it negative."""
    return (logsum - (hidden * aims).sum(dim=1)).clamp_min(0.0)


class _SummedLosses(torch.autograd.Function):
    """The summed loss of all targets; the forward pass computes the gradients too."""

    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
        """Return the sum of the losses."""
        logsum, of_hidden, of_weight = expected(hidden, weight)
        aims = weight[targets]
        # The gradient of a logit is its probability, minus one for the target.
        of_hidden.sub_(aims)
        of_weight.index_add_(0, targets, hidden, alpha=-1)
        ctx.save_for_backward(of_hidden, of_weight)
        return _losses_of(logsum, hidden, aims).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None]:
        """Return the stored gradients, scaled."""
        of_hidden, of_weight = ctx.saved_tensors
        return of_hidden * gradient, of_weight * gradient, None


def summed_losses(
    hidden: Float[Tensor, "N D"], weight: Float[Tensor, "V D"], targets: Int[Tensor, " N"]
) -> Float[Tensor, ""]:
    """Return the summed loss of all targets, for training: dense where there is no processor's cache to stay in."""
    if not hidden.is_cpu:
        return ops.token_losses(F.linear(hidden, weight), targets).sum()
    with torch.autocast("cpu", enabled=False):
        total: Tensor = _SummedLosses.apply(ops.single(hidden), weight, targets)  # type: ignore[no-untyped-call]
        return total


@torch.no_grad()
def token_losses(
    hidden: Float[Tensor, "N D"], weight: Float[Tensor, "V D"], targets: Int[Tensor, " N"]
) -> Float[Tensor, " N"]:
    """Return the loss of every target, for evaluation."""
    hidden = ops.single(hidden)
    return _losses_of(expected(hidden, weight, gradients=False).logsum, hidden, weight[targets])
