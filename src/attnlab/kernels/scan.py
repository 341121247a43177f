"""One recurrence for gated and delta rules: a state per head that every token decays, corrects, writes to and reads.

    S <- Diag(exp(decay)) S                          decay: the logarithm of a factor in [0, 1]; -inf forgets all
    S <- S + k (write · v - Sᵀ (erase · k))ᵀ         what is stored under the key is replaced, or only added to
    output = scale · Sᵀ q

Decay and erase are given per head or per channel of the keys, write per head. Without `erase`, nothing is read before
writing. `by_steps` is the readable reference. `by_compiled` takes the same steps, compiled (scan.cpp). `by_chunks` (chunks.py)
computes the same in plain torch, where nothing can be compiled or tensors are not on a CPU. `weights` is the closed form of the
outputs as averages of the values. A token that is hidden has a decay of zero and zero keys. Knows nothing about mechanisms.
"""

from __future__ import annotations

import ctypes
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor
from torch.autograd.function import once_differentiable

from attnlab import ops
from attnlab.kernels import build, in_parts
from attnlab.kernels.chunks import BACKWARD, FORWARD, LEAST, by_chunks
from attnlab.kernels.counting import counted

_FEW = 5  # tokens: up to here steps are faster than chunks
_KEPT = 32  # tokens between the states that the compiled form keeps for the backward pass
_WIDEST = 16  # numbers of a vector of any processor: what is kept is filled up to whole vectors
_ALONE = 1 << 20  # numbers of all states of all tokens; for fewer, a second thread only costs time


def scan(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H T K"],
    v: Float[Tensor, "B H T E"],
    decay: Float[Tensor, "B H T #K"] | None = None,
    erase: Float[Tensor, "B H T #K"] | None = None,
    write: Float[Tensor, "B H T 1"] | None = None,
    state: Float[Tensor, "B H K E"] | None = None,
    scale: float = 1.0,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H K E"]]:
    """Return the outputs of all tokens and the state after the last; `state` is that before the first."""
    # Reading one token takes less time than calling the library.
    if q.is_cpu and q.shape[2] != 1 and build.load("scan") is not None:
        return by_compiled(q, k, v, decay, erase, write, state, scale)
    return (by_steps if q.shape[2] <= _FEW else by_chunks)(q, k, v, decay, erase, write, state, scale)


def by_steps(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H T K"],
    v: Float[Tensor, "B H T E"],
    decay: Float[Tensor, "B H T #K"] | None = None,
    erase: Float[Tensor, "B H T #K"] | None = None,
    write: Float[Tensor, "B H T 1"] | None = None,
    state: Float[Tensor, "B H K E"] | None = None,
    scale: float = 1.0,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H K E"]]:
    """The reference, token by token."""
    now = v.new_zeros(*k.shape[:2], k.shape[-1], v.shape[-1]) if state is None else state
    outputs = []
    for token in range(q.shape[2]):
        if decay is not None:
            now = now * decay[:, :, token, :, None].exp()
        key, change = k[:, :, token, :, None], v[:, :, token]
        if write is not None:
            change = write[:, :, token] * change
        if erase is not None:
            change = change - (now * erase[:, :, token, :, None] * key).sum(dim=2)
        now = now + key * change[:, :, None]
        outputs.append(scale * (now * q[:, :, token, :, None]).sum(dim=2))
    return torch.stack(outputs, dim=2) if outputs else v, now


def weights(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H T K"],
    decay: Float[Tensor, "B H T #K"] | None = None,
    erase: Float[Tensor, "B H T #K"] | None = None,
    write: Float[Tensor, "B H T 1"] | None = None,
    scale: float = 1.0,
) -> Float[Tensor, "B H T T"]:
    """The weight of every token's value in every output of a text, by the closed form.

    A token adds u = v - Σ (erase · decayed key) u to the state, summed over the tokens before it. That is a triangular
    system of equations, so the outputs are (q · decayed keys) times its inverse, times the values.
    """
    passed = _passed(decay)
    return _corrected(scale * _decayed_products(q, k, passed).tril(), k, passed, erase, write)


def stored(
    k: Float[Tensor, "B H T K"],
    decay: Float[Tensor, "B H T #K"] | None = None,
    erase: Float[Tensor, "B H T #K"] | None = None,
    write: Float[Tensor, "B H T 1"] | None = None,
) -> Float[Tensor, "B H T T"]:
    """What the state after a text returns for the key of every token (row): the weight of every token's value (column).

    The state is read with the key divided by its squared length. Then a value that alone is stored under its key has a weight
    of one there, and one that was forgotten or overwritten has zero. Other weights in a row are values that are mixed in.
    """
    passed = _passed(decay)
    left = k if passed is None else k * (passed[:, :, -1:] - passed).exp().to(k.dtype)
    probe = k / k.square().sum(dim=-1, keepdim=True).clamp_min(1e-30)
    return _corrected(probe @ left.transpose(-2, -1), k, passed, erase, write)


def _passed(decay: Float[Tensor, "B H T #K"] | None) -> Float[Tensor, "B H T #K"] | None:
    """The sum of the logarithms of all decays up to each token."""
    return None if decay is None else decay.double().clamp_min(LEAST).cumsum(dim=2)


def _corrected(
    scores: Float[Tensor, "B H T T"],
    k: Float[Tensor, "B H T K"],
    passed: Float[Tensor, "B H T #K"] | None,
    erase: Float[Tensor, "B H T #K"] | None,
    write: Float[Tensor, "B H T 1"] | None,
) -> Float[Tensor, "B H T T"]:
    """Weights of what tokens add to the state as weights of their values."""
    if erase is not None:
        system = _decayed_products(erase * k, k, passed).tril(-1)
        scores = torch.linalg.solve_triangular(system, scores, upper=False, left=False, unitriangular=True)
    return scores if write is None else scores * write.transpose(-2, -1)


def _decayed_products(
    rows: Float[Tensor, "B H T K"], k: Float[Tensor, "B H S K"], passed: Float[Tensor, "B H S #K"] | None
) -> Float[Tensor, "B H T S"]:
    """Products of rows with keys, decayed from the token of the key to that of the row; not defined above the diagonal."""
    if passed is None:
        return rows @ k.transpose(-2, -1)
    if passed.shape[-1] == 1:
        lost = (passed - passed.transpose(-2, -1)).clamp_max(0.0)
        return rows @ k.transpose(-2, -1) * lost.exp().to(k.dtype)
    parts = []
    for some, at in zip(rows.split(16, dim=2), passed.split(16, dim=2), strict=True):  # in slices, to bound memory
        lost = (at[:, :, :, None] - passed[:, :, None]).clamp_max(0.0).exp().to(k.dtype)
        parts.append(torch.einsum("bhtk,bhtsk,bhsk->bhts", some, lost, k))
    return torch.cat(parts, dim=2)


# Compiled


_INPUTS = ("q", "k", "v", "decay", "erase", "write")


class _Rows(ctypes.Structure):
    """Of scan.cpp: a tensor [texts, heads, tokens, channels] whose channels are side by side."""

    _fields_ = (("data", ctypes.c_void_p), *((name, ctypes.c_int64) for name in ("text", "head", "token")))


class _Problem(ctypes.Structure):
    """Of scan.cpp, field by field."""

    _fields_ = (
        *((name, _Rows) for name in (*_INPUTS, "out", "added", "d_out", *(f"d_{name}" for name in _INPUTS))),
        *((name, ctypes.c_void_p) for name in ("state", "last", "d_last", "d_state", "kept")),
        *((name, ctypes.c_int64) for name in ("heads", "tokens", "keys", "values", "decays", "erases", "chunk")),
        ("scale", ctypes.c_double),
    )


@ops.in_float32
def by_compiled(
    q: Float[Tensor, "B H T K"],
    k: Float[Tensor, "B H T K"],
    v: Float[Tensor, "B H T E"],
    decay: Float[Tensor, "B H T #K"] | None = None,
    erase: Float[Tensor, "B H T #K"] | None = None,
    write: Float[Tensor, "B H T 1"] | None = None,
    state: Float[Tensor, "B H K E"] | None = None,
    scale: float = 1.0,
) -> tuple[Float[Tensor, "B H T E"], Float[Tensor, "B H K E"]]:
    """The same by the steps, compiled; gradients are of first order only."""
    outputs: tuple[Tensor, Tensor] = _Compiled.apply(scale, state, q, k, v, decay, erase, write)  # type: ignore[no-untyped-call]
    return outputs


class _Compiled(torch.autograd.Function):
    """The recurrence of whole texts by scan.cpp."""

    @staticmethod
    @counted
    def forward(ctx: Any, scale: float, state: Tensor | None, *given: Tensor | None) -> tuple[Tensor, Tensor]:
        inputs: dict[str, Any] = dict(zip(_INPUTS, given, strict=True))
        if inputs["decay"] is not None:
            inputs["decay"] = inputs["decay"].exp()
        inputs = {name: None if x is None else _side_by_side(x) for name, x in inputs.items()}
        k, v = inputs["k"], inputs["v"]
        erases, ctx.scale = inputs["erase"] is not None, scale
        ctx.flops = FORWARD[erases] * v.numel() * k.shape[-1]
        out, last = _empty_like(v), v.new_empty(*v.shape[:2], k.shape[-1], v.shape[-1])
        start = None if state is None else state.to(v.dtype).expand_as(last).contiguous()
        added, kept = _empty_like(v) if erases else None, None
        if any(ctx.needs_input_grad):
            widths = (-(-width // _WIDEST) * _WIDEST for width in (v.shape[-1], k.shape[-1]))
            kept = v.new_empty(*v.shape[:2], -(-v.shape[2] // _KEPT), *widths)
            ctx.save_for_backward(*inputs.values(), added, kept)
        _run("forward", scale, **inputs, state=start, out=out, added=added, last=last, kept=kept)
        return out, last

    @staticmethod
    @once_differentiable
    @counted
    def backward(ctx: Any, d_out: Tensor, d_last: Tensor) -> tuple[Tensor | None, ...]:
        *saved, added, kept = ctx.saved_tensors
        inputs = dict(zip(_INPUTS, saved, strict=True))
        ctx.flops = BACKWARD[inputs["erase"] is not None] * inputs["v"].numel() * inputs["k"].shape[-1]
        gradients = {f"d_{name}": None if x is None else _empty_like(x) for name, x in inputs.items()}
        d_out, d_last = _side_by_side(d_out), d_last.contiguous()
        d_state = torch.empty_like(d_last)
        others = {"added": added, "kept": kept, "d_out": d_out, "d_last": d_last, "d_state": d_state}
        _run("backward", ctx.scale, **inputs, **gradients, **others)
        return None, d_state if ctx.needs_input_grad[1] else None, *gradients.values()


def _side_by_side(x: Tensor) -> Tensor:
    """The tensor, or a copy in which the channels of a token are side by side."""
    return x if x.stride(-1) == 1 else x.contiguous()


def _empty_like(x: Tensor) -> Tensor:
    """Memory for a tensor laid out alike; of rows that overlap, torch may put the channels apart."""
    return _side_by_side(torch.empty_like(x))


def _run(name: str, scale: float, **tensors: Tensor | None) -> None:
    """Run a function of the library over all heads of all texts, in as many threads as torch uses."""
    widths = {field: 0 if x is None else x.shape[-1] for field, x in tensors.items()}
    v: Any = tensors["v"]
    batch, n_head, tokens, values = v.shape
    problem = _Problem(heads=n_head, tokens=tokens, keys=widths["k"], values=values, chunk=_KEPT, scale=scale)
    problem.decays, problem.erases = widths["decay"], widths["erase"]
    for field, x in tensors.items():
        if x is not None:
            rows = isinstance(getattr(problem, field), _Rows)
            assert x.dtype == v.dtype, field
            assert x.is_cpu, field
            assert x.shape[:3] == v.shape[:3] or not rows, field
            setattr(problem, field, _Rows(x.data_ptr(), *x.stride()[:3]) if rows else x.data_ptr())
    threads = 1 if v.numel() * widths["k"] < _ALONE else torch.get_num_threads()
    call = build.function("scan", f"{name}_{'double' if v.dtype == torch.float64 else 'float'}", _Problem)
    if any(in_parts(lambda begin, end: call(problem, begin, end), batch * n_head, threads)):
        raise MemoryError("the scan kernel found no memory: use a smaller batch")


def matches_plain() -> bool:
    """Whether the compiled form gives values and gradients of the steps: narrow and wide, short and long."""
    random = torch.Generator().manual_seed(0)
    for tokens, keys, values, decays, erases in ((5, 3, 2, 0, 1), (70, 16, 20, 1, 0), (45, 33, 8, 33, 33)):
        widths = (keys, keys, values, decays, erases, 1)
        q, k, v, decay, erase, write = (torch.randn(2, 2, tokens, width, generator=random) for width in widths)
        given = (q, k / k.norm(dim=-1, keepdim=True), v, -decay.abs(), erase.sigmoid(), write)
        inputs: list[Any] = [x.requires_grad_() if x.numel() else None for x in given]
        results = []
        for method in (by_compiled, by_steps):
            output, last = method(*inputs)
            goal = output.square().sum() + last.sum()
            results.append([output, *torch.autograd.grad(goal, [x for x in inputs if x is not None])])
        if not all(torch.allclose(ours, theirs, rtol=1e-3, atol=1e-3) for ours, theirs in zip(*results, strict=True)):
            return False
    return True
