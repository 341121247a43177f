"""Names for tensors on their way: a Tap is an identity with a name, and `capture` collects what passes through.

    with capture(model) as seen:
        model(ids)
    seen["blocks.0.attn.hook_pattern"]

A fast path that never forms a tensor asks `tap.watched` and takes the readable path when somebody looks.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from torch import Tensor, nn


class Tap(nn.Module):
    """An identity that can be watched."""

    @property
    def watched(self) -> bool:
        """Whether somebody captures what passes here."""
        return bool(self._forward_hooks)

    def forward(self, value: Tensor) -> Tensor:
        """The value itself."""
        return value


@contextmanager
def capture(model: nn.Module, ending: str = "") -> Iterator[dict[str, Tensor]]:
    """What passes the taps whose names end in `ending`; the last pass wins. Raises when nothing passed."""
    seen: dict[str, Tensor] = {}

    def watch(name: str, tap: Tap) -> None:
        def keep(_module: nn.Module, _inputs: object, value: Tensor) -> None:
            seen[name] = value.detach()

        handles.append(tap.register_forward_hook(keep))

    handles: list[object] = []
    for name, module in model.named_modules():
        if isinstance(module, Tap) and name.endswith(ending):
            watch(name, module)
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()  # type: ignore[attr-defined]
    if not seen:
        raise RuntimeError(f"nothing passed a tap ending in '{ending}': run the plain, uncompiled model inside capture")
