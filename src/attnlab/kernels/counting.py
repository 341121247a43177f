"""Counting FLOPs by one rule for everything that runs, whichever kernel does it.

    with Counter() as counter:
        model(ids)
    counter.total

A multiply-add of a matrix product, attention or convolution is two FLOPs; elementwise operations (softmax, norms,
activations, rotary positions, dropout) and the optimizer are not counted. What is computed counts, even if it is masked: a
mask saves nothing, and of the future of a causal text only what a kernel skips is left out. Torch's fused kernel skips whole
tiles of 512 keys: up to 512 tokens it computes all pairs, at 1,024 three quarters of them, in long texts half. The additive
kernel skips single pairs (up to less than a vector of them, which depends on the processor and is not counted).

Forward and backward are counted where torch dispatches an operation. A kernel that torch does not dispatch, or whose count
must not depend on the implementation, states its FLOPs with `counted_as`; a user's kernel may do the same. Torch's
FlopCounterMode is not used, only its formulas: it does not know the CPU's attention, and fails on views made without
gradients. Knows tensors, not models.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any, TypeVar, cast

import torch
from torch import Tensor
from torch.utils import flop_counter
from torch.utils._python_dispatch import TorchDispatchMode

_F = TypeVar("_F", bound=Callable[..., Any])
TILE = 512  # keys per tile of torch's fused kernel for CPUs

_active: list[Counter] = []


class Counter(TorchDispatchMode):
    """Counts the FLOPs of everything that runs inside it."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0

    def __enter__(self) -> Counter:
        _active.append(self)
        super().__enter__()  # type: ignore[no-untyped-call]
        return self

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        _active.remove(self)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        formula = FORMULAS.get(func.overloadpacket)
        if formula is None and torch.is_inference_mode_enabled():
            with self:  # operations arrive here before they are decomposed
                result = func.decompose(*args, **kwargs)
            if result is not NotImplemented:
                return result
        result = func(*args, **kwargs)
        if formula is not None:
            self.total += formula(*args, **kwargs, out_val=result)
        return result


@contextmanager
def counted_as(flops: Callable[[], int]) -> Iterator[None]:
    """Count what runs inside as `flops()` FLOPs, whatever torch dispatches; called only while a Counter is active."""
    before = [(counter, counter.total) for counter in _active]
    yield
    for counter, total in before:
        counter.total = total + flops()


def counted(direction: _F) -> _F:
    """Decorate a direction of an autograd function to count the `flops` that it writes into its context."""

    @wraps(direction)
    def run(ctx: Any, *given: Any) -> Any:
        with counted_as(lambda: ctx.flops):
            return direction(ctx, *given)

    return cast("_F", run)


def pairs_seen(asked: int, seen: int, causal: bool, *, before: int = 0, tile: int = 1) -> int:
    """Pairs of a query and a key up to it, with `before` keys before the first query; keys in whole tiles."""
    if not causal:
        return asked * seen
    return sum(min(seen, -(-reach // tile) * tile) for reach in range(before + 1, before + asked + 1))


def _fused_pairs(query: Tensor, key: Tensor, causal: bool) -> int:
    """Pairs that torch's fused kernel computes."""
    batch, heads, asked, _ = query.shape
    return batch * heads * pairs_seen(asked, key.shape[2], causal, tile=TILE)


def _fused_forward(
    query: Tensor, key: Tensor, value: Tensor, _dropout: float = 0.0, is_causal: bool = False, **_rest: Any
) -> int:
    """Scores and averages."""
    return 2 * _fused_pairs(query, key, is_causal) * (query.shape[-1] + value.shape[-1])


def _fused_backward(_gradient: Tensor, query: Tensor, key: Tensor, value: Tensor, *rest: Any, **_rest: Any) -> int:
    """Scores again, the gradients of queries and keys, the gradients of weights and values."""
    _out, _sums, _dropout, is_causal = rest
    return 2 * _fused_pairs(query, key, is_causal) * (3 * query.shape[-1] + 2 * value.shape[-1])


def _product(left: Tensor, right: Tensor, *_rest: Any, **_named: Any) -> int:
    """A product of matrices, [..., n, k] by [..., k, m], or with a vector of k."""
    return 2 * left.numel() * (right.shape[-1] if right.ndim > 1 else 1)


def _product_added(_to: Tensor, left: Tensor, right: Tensor, *_rest: Any, **_named: Any) -> int:
    """A product that is added to something."""
    return _product(left, right)


def _triangular_solve(system: Tensor, right: Tensor, *, left: bool = True, **_rest: Any) -> int:
    """Substitution in an n by n triangle: n²/2 multiply-adds for each right-hand side of n numbers."""
    return right.numel() * system.shape[-1]


_aten = torch.ops.aten
FORMULAS: dict[Any, Callable[..., int]] = {
    **flop_counter.flop_registry,
    _aten._scaled_dot_product_flash_attention_for_cpu: _fused_forward,
    _aten._scaled_dot_product_flash_attention_for_cpu_backward: _fused_backward,
    _aten.linalg_solve_triangular: _triangular_solve,
    **dict.fromkeys((_aten.mm, _aten.bmm, _aten.mv, _aten.dot, _aten.vdot), _product),
    **dict.fromkeys((_aten.addmm, _aten.addmm_, _aten._addmm_activation, _aten.addmv, _aten.addmv_), _product_added),
    **dict.fromkeys((_aten.baddbmm, _aten.baddbmm_, _aten.addbmm, _aten.addbmm_), _product_added),
}
