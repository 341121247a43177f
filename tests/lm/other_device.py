"""A device without hardware: tensors that say they are elsewhere, hold their numbers on the CPU, and mix with no CPU tensor.

torch's FakeTensorMode cannot do it on a CPU build: autograd aborts on its "cuda" tensors, and fake tensors have no numbers to
branch on. The device is called "meta", the only one beside the CPU for which such a build has what autograd needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_map

ELSEWHERE = torch.device("meta")
_aten = torch.ops.aten
_MOVES = (_aten._to_copy.default, _aten.copy_.default)


class Elsewhere(Tensor):
    """A tensor of the other device."""

    @staticmethod
    def __new__(cls, held: Tensor) -> Elsewhere:
        return Tensor._make_wrapper_subclass(  # type: ignore[attr-defined]
            cls, held.shape, strides=held.stride(), dtype=held.dtype, device=ELSEWHERE
        )

    def __init__(self, held: Tensor) -> None:
        self.held = held

    def __repr__(self, **_: Any) -> str:
        return f"Elsewhere({self.held})"

    def tolist(self) -> Any:
        return self.held.tolist()

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: Any, kwargs: dict[str, Any]) -> Any:
    given = [one for one in tree_flatten((args, kwargs))[0] if isinstance(one, Tensor)]
    asked = kwargs.get("device")
    there = any(isinstance(one, Elsewhere) for one in given)
    if func not in _MOVES and there and any(not isinstance(one, Elsewhere) and one.ndim for one in given):
        raise RuntimeError(f"{func}: tensors of two devices meet")
    if asked is not None:
        there, kwargs = torch.device(asked) == ELSEWHERE, {**kwargs, "device": torch.device("cpu")}
    if func is _aten.copy_.default:
        there = isinstance(args[0], Elsewhere)
    held = tree_map(lambda one: one.held if isinstance(one, Elsewhere) else one, (args, kwargs))
    out = func(*held[0], **held[1])
    known = {id(one.held): one for one in given if isinstance(one, Elsewhere)}

    def placed(one: Any) -> Any:
        if not isinstance(one, Tensor) or not there:
            return one
        with torch.inference_mode(False):  # a view must be of the kind of its base, and weights are normal tensors
            return known[id(one)] if id(one) in known else Elsewhere(one)

    return tree_map(placed, out)


class _Made(TorchDispatchMode):
    """What is made on the other device is made here."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


class _Listed(TorchFunctionMode):
    """torch.tensor leaves out the numbers of a meta tensor before any mode sees them."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.tensor and kwargs.get("device") == ELSEWHERE:
            return Elsewhere(func(*args, **{**kwargs, "device": None}))
        return func(*args, **kwargs)


@contextmanager
def other_device() -> Iterator[None]:
    """While active, tensors can be made on the other device, and moved to and from it."""
    with _Made(), _Listed():
        yield


def moved(module: nn.Module) -> nn.Module:
    """Move a module there, in place."""
    for one in module.modules():
        for name, parameter in one._parameters.items():
            if parameter is not None:
                one._parameters[name] = nn.Parameter(Elsewhere(parameter.detach()), parameter.requires_grad)
        for name, buffer in one._buffers.items():
            if buffer is not None:
                one._buffers[name] = Elsewhere(buffer)
    return module
