"""Additive attention over whole texts without storing its n² pairs: compiled, or plain torch if it cannot be compiled.

    z_t = sum_s softmax_s(w · tanh(a_t + b_s)) v_s

Both forms recompute the pairs in the backward pass, so that memory grows with the length and not with its square.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnlab.kernels import build, in_parts
from attnlab.kernels.additive_plain import BACKWARD, FORWARD, PlainAdditive, flops
from attnlab.kernels.counting import counted_as
from attnlab.ops import in_float32

ALONE = 2**20  # sums; for a smaller problem a second thread only costs time


@in_float32  # 16 bits are too coarse for exponentials
def additive_attention(
    a: Float[Tensor, "B H T K"],
    b: Float[Tensor, "B H S K"],
    w: Float[Tensor, " K"],
    v: Float[Tensor, "B H S E"],
    padding: Bool[Tensor, "B S"] | None,
    causal: bool,
    dropout: float = 0.0,
) -> Float[Tensor, "B H T E"]:
    """Return the weighted averages of the values; the queries are the last tokens of the keys.

    A query that sees nothing gets zeros.
    """
    seed = int(torch.randint(2**62, ())) if dropout else 0
    compiled = a.is_cpu and a.dtype == torch.float32 and build.load("additive") is not None
    apply = CompiledAdditive.apply if compiled else PlainAdditive.apply
    return apply(a, b, w, v, padding, causal, dropout, seed)  # type: ignore[no-untyped-call]


class _Problem(ctypes.Structure):
    """The struct of additive.cpp."""

    _fields_ = (
        *((name, ctypes.c_void_p) for name in ("a", "b", "v", "w", "hidden", "out", "logsum", "gradient")),
        *((name, ctypes.c_void_p) for name in ("da", "db", "dv", "dw")),
        *((name, ctypes.c_int64) for name in ("heads", "asked", "seen", "width", "values", "causal")),
        *((name, ctypes.c_uint64) for name in ("seed", "dropped")),
    )


def solve(function: str, settings: dict[str, int], tensors: dict[str, Tensor | None]) -> None:
    """Run a function of the library over all rows, in as many threads as torch uses."""
    library = build.load("additive")
    assert library is not None
    present = {name: tensor for name, tensor in tensors.items() if tensor is not None}
    assert all(tensor.is_contiguous() for tensor in present.values())
    problem = _Problem(**settings, **{name: tensor.data_ptr() for name, tensor in present.items()})
    foreign = library[function]
    foreign.argtypes = [ctypes.POINTER(_Problem), ctypes.c_int64, ctypes.c_int64]
    rows = present["logsum"].shape[:2].numel()
    sums = rows * problem.asked * problem.seen * problem.width
    failed = in_parts(
        lambda begin, end: foreign(problem, begin, end), rows, 1 if sums < ALONE else torch.get_num_threads()
    )
    if any(failed):
        raise MemoryError("the additive kernel found no memory: use a smaller batch")


class CompiledAdditive(torch.autograd.Function):
    """The compiled version."""

    @staticmethod
    def forward(
        ctx: Any,
        a: Tensor,
        b: Tensor,
        w: Tensor,
        v: Tensor,
        padding: Tensor | None,
        causal: bool,
        dropout: float,
        seed: int,
    ) -> Tensor:
        """Return the averages; only the logarithm of every row's sum is saved with them."""
        a, b, w, v = (x.contiguous() for x in (a, b, w, v))
        hidden = None if padding is None else padding.contiguous()
        batch, heads, asked, width = a.shape
        out, logsum = a.new_empty(batch, heads, asked, v.shape[-1]), a.new_empty(batch, heads, asked)
        ctx.settings = {
            "heads": heads,
            "asked": asked,
            "seen": b.shape[2],
            "width": width,
            "values": v.shape[-1],
            "causal": int(causal),
            "seed": seed,
            "dropped": int(dropout * 2**32),
        }
        ctx.save_for_backward(a, b, w, v, hidden, out, logsum)
        names = ("a", "b", "w", "v", "hidden", "out", "logsum")
        tensors = dict(zip(names, (a, b, w, v, hidden, out, logsum), strict=True))
        with counted_as(lambda: flops(FORWARD, a, b, v, causal)):
            solve("additive_forward", ctx.settings, tensors)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        """Return the gradients of a, b, w and v."""
        a, b, w, v, hidden, out, logsum = ctx.saved_tensors
        da, db, dv = torch.empty_like(a), torch.empty_like(b), torch.empty_like(v)
        dw = w.new_empty(a.shape[:2].numel(), len(w))
        tensors = {"a": a, "b": b, "w": w, "v": v, "hidden": hidden, "out": out, "logsum": logsum}
        tensors |= {"gradient": gradient.contiguous(), "da": da, "db": db, "dv": dv, "dw": dw}
        with counted_as(lambda: flops(BACKWARD, a, b, v, bool(ctx.settings["causal"]))):
            solve("additive_backward", ctx.settings, tensors)
        return da, db, dw.sum(dim=0), dv, None, None, None, None


def matches_plain() -> bool:
    """Whether the compiled version gives the values and gradients of the plain one: short and long texts, with padding."""
    random = torch.Generator().manual_seed(0)

    def agree(asked: int, seen: int, width: int, values: int, causal: bool, size: float) -> bool:
        a, b, w, v, weight = (
            torch.randn(shape, generator=random)
            for shape in ((2, 2, asked, width), (2, 2, seen, width), (width,), (2, 2, seen, values), (values,))
        )
        inputs = [x.requires_grad_() for x in (a * size, b * size, w, v)]
        padding = torch.rand(2, seen, generator=random) < 0.3
        results = []
        for form in (CompiledAdditive, PlainAdditive):
            out = form.apply(*inputs, padding, causal, 0.0, 0)  # type: ignore[no-untyped-call]
            results.append([out, *torch.autograd.grad((out * weight).sum(), inputs)])
        return all(torch.allclose(first, other, rtol=1e-3, atol=1e-3) for first, other in zip(*results, strict=True))

    problems = (
        (19, 19, 5, 3, True, 1.0),
        (33, 90, 16, 17, True, 3.0),
        (70, 70, 33, 16, False, 1.0),
        (150, 150, 8, 40, True, 30.0),
    )
    return all(agree(*problem) for problem in problems)
