"""Named tensors inside a model: a Tap is an identity module with a name. Capture its value, patch it, or measure influence.

    with capture(model) as seen, patch(model, {"blocks.0.attn.hook_z": without_head_0}):
        model(ids)
    seen["blocks.0.attn.hook_pattern"]
    influence(model, ids)

A fast path that never computes a tensor checks `tap.watched`, and the readable path is used if the tap is watched. Knows
modules and tensors, not the models that contain taps; docs/looking.md lists their taps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import product

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from attnlab.errors import UserError, unknown

Change = Callable[[Tensor], Tensor]
Choice = str | Iterable[str] | Callable[[str], bool]

_COPIES = 32  # of a text per forward pass of `influence`


class Tap(nn.Module):
    """An identity module whose value can be captured or replaced."""

    def __init__(self) -> None:
        super().__init__()
        self.changes: list[Change] = []

    @property
    def watched(self) -> bool:
        """Whether the value is captured or changed."""
        return bool(self._forward_hooks or self.changes)

    def forward(self, value: Tensor) -> Tensor:
        """Return the value, patched if asked; hooks run after this, so a capture sees the patched value."""
        for change in self.changes:
            value = change(value)
        return value


def taps_of(module: nn.Module) -> dict[str, Tap]:
    """Return all taps by name."""
    return {name: part for name, part in module.named_modules() if isinstance(part, Tap)}


@contextmanager
def capture(model: nn.Module, ending: Choice = "") -> Iterator[dict[str, Tensor]]:
    """Capture the values of the taps whose names end in `ending`, detached; the last forward pass wins.

    Instead of an ending: a list of full names, all of which must be reached, or a function that selects names. Raises if
    no tap was reached.
    """
    chosen = _choose(taps_of(model), ending)
    if not chosen:
        raise RuntimeError("nothing can be captured: no tap was chosen")
    seen: dict[str, Tensor] = {}

    def watch(name: str, tap: Tap) -> torch.utils.hooks.RemovableHandle:
        def keep(_module: nn.Module, _inputs: object, value: Tensor) -> None:
            seen[name] = value.detach()

        return tap.register_forward_hook(keep)

    handles = [watch(name, tap) for name, tap in chosen.items()]
    try:
        yield seen
    finally:
        for handle in handles:
            handle.remove()
    by_name = not isinstance(ending, str) and not callable(ending)
    _require_passed([name for name in chosen if name not in seen] if by_name or not seen else [])


@contextmanager
def patch(model: nn.Module, changes: Mapping[str, Change]) -> Iterator[None]:
    """Replace the value of each named tap by the result of its function, which may change its argument in place.

    Several patches of one tap are applied in the order in which they were entered. Raises if a tap was never reached.
    """
    taps = _choose(taps_of(model), list(changes))
    waiting = set(taps)

    def checked(name: str) -> Change:
        def change(value: Tensor) -> Tensor:
            waiting.discard(name)
            # A copy, in case the model has two names for one tensor, such as a key that is the query.
            changed = changes[name](value.clone())
            if not isinstance(changed, Tensor):
                raise UserError(f"the patch of {name} returned {type(changed).__name__}: return the changed tensor")
            if changed.shape != value.shape or changed.dtype != value.dtype:
                raise UserError(
                    f"the patch of {name} returned {_kind(changed)}, where {_kind(value)} passes: return a tensor of the same"
                    " shape and type"
                )
            return changed

        return change

    entered = [(taps[name], checked(name)) for name in taps]
    for tap, change in entered:
        tap.changes.append(change)
    try:
        yield
    finally:
        for tap, change in entered:
            tap.changes.remove(change)
    _require_passed([name for name in taps if name in waiting])


def influence(
    module: nn.Module,
    inputs: Int[Tensor, "*B T"] | Float[Tensor, "*B T D"],
    *,
    source: str | None = None,
    target: str | None = None,
    samples: int | None = None,
    seed: int = 0,
) -> Float[Tensor, "*B T T"]:
    """Return how much every output depends on every input: entry [t, s] is the norm of the derivative of output t by input s.

    The norm is the Frobenius norm, with the module in `eval` mode. Given the ids of a text or of several texts of one
    length, input s is the embedding of token s (`hook_embed`) and output t the input of the head at token t (`hook_final`);
    given vectors, as for a mechanism alone, inputs and outputs are those of the module. `source` and `target` name other
    taps instead, with the layout [batch, pos, ...].

    Exact by default, with one backward pass per token and coordinate of the output. With `samples`, outputs are projected
    on that many random directions: zeros stay zero, the square of an entry is unbiased, and the standard deviation of an
    entry is at most 1/√(2·samples) of it, less if a derivative has more than one direction.
    """
    ids = not inputs.is_floating_point()
    ends = (source or ("hook_embed" if ids else None), target or ("hook_final" if ids else None))
    if samples is not None and samples < 1:
        raise UserError(f"samples must be at least 1, not {samples}; leave it out for the exact influence")
    single = inputs.ndim == (1 if ids else 2)
    with eval_mode(module), torch.inference_mode(False), torch.enable_grad():
        texts = inputs.detach().clone()
        maps = [_derivative_norms(module, text, ends, samples, seed) for text in (texts[None] if single else texts)]
    return maps[0] if single else torch.stack(maps)


def _derivative_norms(
    module: nn.Module, text: Tensor, ends: tuple[str | None, str | None], samples: int | None, seed: int
) -> Float[Tensor, "T T"]:
    """The influence within one text: copies of it pass through the module, each differentiated at another output."""
    begin, end = _forward_between(module, text.expand(_COPIES, *text.shape).contiguous(), ends)
    tokens, width = len(text), end.shape[2:].numel()
    directions = _directions(width, samples, seed).to(end)
    squares = end.new_zeros(tokens, tokens)
    pulls = list(product(range(tokens), directions))
    for some in (pulls[start : start + _COPIES] for start in range(0, len(pulls), _COPIES)):
        cotangent = end.new_zeros(_COPIES, tokens, width)
        for copy, (token, direction) in enumerate(some):
            cotangent[copy, token] = direction
        (slope,) = torch.autograd.grad(end, begin, cotangent.view_as(end), retain_graph=True, materialize_grads=True)
        rows = torch.tensor([token for token, _ in some], device=squares.device)
        squares.index_add_(0, rows, slope[: len(some)].flatten(2).square().sum(-1))
    return squares.sqrt()


def _forward_between(
    module: nn.Module, batch: Tensor, ends: tuple[str | None, str | None]
) -> tuple[Float[Tensor, "B T ..."], Float[Tensor, "B T ..."]]:
    """One forward pass; return the tensors between which the derivative is taken."""
    met: dict[str | None, Tensor] = {}
    source, target = ends

    def start(value: Tensor) -> Tensor:
        met[source] = value.detach().requires_grad_()
        return met[source]

    def arrive(value: Tensor) -> Tensor:
        met[target] = value
        return value

    stations = {name: do for name, do in ((source, start), (target, arrive)) if name is not None}
    if source == target and source is not None:
        raise UserError(f"source and target of an influence are both {source}: choose two taps")
    with patch(module, stations):
        out = module(start(batch) if source is None else batch)
    begin, end = met[source], out if target is None else met[target]
    for name, value in ((source, begin), (target, end)):
        if value.shape[:2] != batch.shape[:2] or (name or "").endswith("hook_pattern"):
            raise UserError(
                f"{name or 'the output'} has no vector for each token: choose a tap laid out [batch, pos, ...]"
            )
    return begin, end


def _directions(width: int, samples: int | None, seed: int) -> Float[Tensor, "K E"]:
    """The directions on which an output is projected: all, or a few random orthogonal ones, scaled to compensate."""
    if samples is None or samples >= width:
        return torch.eye(width)
    gaussian = torch.randn(width, samples, generator=torch.Generator().manual_seed(seed))
    return torch.linalg.qr(gaussian).Q.T * (width / samples) ** 0.5


@contextmanager
def eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a module into `eval` mode; afterwards restore the mode of every part."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in modes:
            part.training = training


def _choose(taps: Mapping[str, Tap], choice: Choice) -> dict[str, Tap]:
    """The chosen taps, or an error with the most similar names."""
    if isinstance(choice, str):
        matching = {name: tap for name, tap in taps.items() if name.endswith(choice)}
        if not matching:
            endings = {name.rpartition(".")[2] for name in taps}
            raise RuntimeError(f"nothing can be captured: {unknown('ending of a tap', choice, endings)}")
        return matching
    names = [name for name in taps if choice(name)] if callable(choice) else list(choice)
    for name in names:
        if name not in taps:
            raise UserError(unknown("tap", name, taps))
    return {name: taps[name] for name in names}


def _require_passed(missed: list[str]) -> None:
    """Raise if taps that had to be reached were not."""
    if missed:
        several = f" and {len(missed) - 1} more" if len(missed) > 1 else ""
        raise RuntimeError(f"nothing passed {missed[0]}{several}: run the plain, uncompiled model inside the block")


def _kind(value: Tensor) -> str:
    """The shape and type of a tensor, for messages."""
    return f"{list(value.shape)} of {str(value.dtype).removeprefix('torch.')}"
