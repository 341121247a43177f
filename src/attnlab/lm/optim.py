"""Optimizers: Muon for the matrices of the blocks, AdamW for the rest, and the moving average of the weights.

Their state is stored without pickling.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from attnlab.config import TrainConfig
from attnlab.lm.model import LanguageModel, require_fit
from attnlab.lm.processes import ALONE, Ranks, spread

# The quintic of Keller Jordan's Muon: steep at zero, so that five iterations bring singular values close to one.
QUINTIC = (3.4445, -4.7750, 2.0315)


def orthogonalize(matrices: Float[Tensor, "K M N"], rounds: int = 5) -> Float[Tensor, "K M N"]:
    """Approximate the nearest orthogonal matrices of a stack by Newton-Schulz iterations.

    Most singular values end up in [0.7, 1.2].

    In float32: bfloat16 is slower on CPUs, and an illegal instruction on some. The iterations are polynomials in the
    Gram matrix: for wide matrices they are multiplied there, where it is small, and applied once.
    """
    a, b, c = QUINTIC
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.transpose(-2, -1) if tall else matrices
    x = x / (x.flatten(1).norm(dim=1)[:, None, None] + 1e-7)
    if x.shape[-1] < 2 * x.shape[-2]:
        for _ in range(rounds):
            x = _polynomial(x @ x.transpose(-2, -1), a, b, c) @ x
    else:
        gram = x @ x.transpose(-2, -1)
        total = _polynomial(gram, a, b, c)
        last = total
        for _ in range(rounds - 1):
            gram = last @ gram @ last
            last = _polynomial(gram, a, b, c)
            total = last @ total
        x = total @ x
    return x.transpose(-2, -1) if tall else x


def _polynomial(gram: Tensor, a: float, b: float, c: float) -> Tensor:
    """a + b·gram + c·gram²."""
    value = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
    value.diagonal(dim1=-2, dim2=-1).add_(a)
    return value


class Muon(torch.optim.Optimizer):
    """Orthogonalised momentum: all directions of a matrix are updated at the same rate."""

    def __init__(
        self,
        params: Iterable[Tensor],
        lr: float,
        momentum: float = 0.95,
        weight_decay: float = 0.0,
        ranks: Ranks = ALONE,
    ) -> None:
        self.ranks = ranks
        super().__init__(params, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update once; matrices of the same shape are orthogonalised together, of several processes each a share."""
        for group in self.param_groups:
            shapes: dict[torch.Size, list[Tensor]] = {}
            for parameter in group["params"]:
                if parameter.grad is not None:
                    shapes.setdefault(parameter.shape, []).append(parameter)
            for (rows, columns), parameters in shapes.items():
                averages = [self._momentum(p, group["momentum"]) for p in parameters]
                updates = spread(orthogonalize, averages, self.ranks)
                rate = group["lr"] * math.sqrt(max(1.0, rows / columns))
                for parameter, update in zip(parameters, updates, strict=True):
                    parameter.mul_(1 - group["lr"] * group["weight_decay"]).add_(update, alpha=-rate)

    def _momentum(self, parameter: Tensor, momentum: float) -> Tensor:
        state = self.state[parameter]
        if "momentum" not in state:
            state["momentum"] = torch.zeros_like(parameter)
        gradient = parameter.grad
        assert gradient is not None
        average: Tensor = state["momentum"]
        average.lerp_(gradient, 1 - momentum)
        return gradient.lerp(average, momentum)


class OptimizerPair(torch.optim.Optimizer):
    """Two optimizers that step together, with all parameter groups in one list for learning rate schedulers."""

    def __init__(self, first: torch.optim.Optimizer, second: torch.optim.Optimizer) -> None:
        self.inner = (first, second)
        self.split = len(first.param_groups)
        super().__init__([*first.param_groups, *second.param_groups], {})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """Update with both, at the current rates of their groups."""
        # Schedulers may replace the groups, so they are passed on at every step.
        parts = (self.param_groups[: self.split], self.param_groups[self.split :])
        for optimizer, groups in zip(self.inner, parts, strict=True):
            optimizer.param_groups = groups
            optimizer.step()


def make_optimizers(
    model: LanguageModel, config: TrainConfig, ranks: Ranks = ALONE
) -> dict[str, torch.optim.Optimizer]:
    """Make the optimizers of a run by name; weight decay applies to the matrices of the blocks and the head only.

    A matrix is the weight of a linear layer. Other parameters of a mechanism, such as latents or position tables, must not be
    orthogonalised, and go to AdamW.
    """
    linear = [module for module in model.blocks.modules() if isinstance(module, nn.Linear)]
    inner = [module.weight for module in linear if min(module.weight.shape) > 1]
    chosen = {id(p) for p in inner}
    rest = [p for p in model.parameters() if id(p) not in chosen and p is not model.head.weight]
    decayed = [model.head.weight]
    optimizers: dict[str, torch.optim.Optimizer] = {}
    if config.optimizer == "muon":
        optimizers["muon"] = Muon(inner, config.muon_lr, weight_decay=config.weight_decay, ranks=ranks)
    else:
        decayed += inner
    groups = [{"params": decayed, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
    optimizers["adamw"] = torch.optim.AdamW(groups, lr=config.lr, betas=(config.beta1, config.beta2), fused=True)
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["peak"] = group["lr"]
    return optimizers


def rate_at(progress: float, config: TrainConfig, epochs: float | None = None) -> float:
    """Return the learning rate at a point of the run (0 to 1), after so many epochs, as a share of the peak.

    A cosine with a horizon is that of the course reports: after its minimum it rises again.
    """
    rise = min(1.0, progress / config.warmup) if config.warmup else 1.0
    if config.schedule == "constant":
        return rise
    if config.schedule == "inverse_sqrt":
        return rise * min(1.0, math.sqrt(config.warmup / progress)) if progress else 0.0
    begin = 1.0 - config.decay
    fallen = min(1.0, max(0.0, (progress - begin) / config.decay)) if config.decay else 0.0
    if config.schedule == "linear":
        return rise * (1.0 - fallen)
    if config.schedule == "sqrt":
        return rise * (1.0 - math.sqrt(fallen))
    if config.horizon:
        passed = epochs if config.steps and epochs is not None else progress * config.epochs
        fallen = passed / config.horizon
    return rise * max(0.1, 0.5 * (1.0 + math.cos(math.pi * fallen)))


def set_rates(optimizers: dict[str, torch.optim.Optimizer], share: float) -> None:
    """Set every learning rate to a share of its peak."""
    for optimizer in optimizers.values():
        for group in optimizer.param_groups:
            group["lr"] = group["peak"] * share


def state_tensors(optimizers: Mapping[str, torch.optim.Optimizer]) -> dict[str, Tensor]:
    """Return the state of the optimizers as named tensors.

    Parameters that were never used have zeros, the state in which their optimizer begins.
    """
    tensors = {}
    for name, optimizer in optimizers.items():
        for index, parameter in enumerate(p for group in optimizer.param_groups for p in group["params"]):
            state = optimizer.state.get(parameter, {})
            for key in ("momentum",) if name == "muon" else ("step", "exp_avg", "exp_avg_sq"):
                empty = torch.zeros(()) if key == "step" else torch.zeros_like(parameter)
                tensors[f"{name}/{index}/{key}"] = state.get(key, empty)
    return tensors


def load_state(optimizers: Mapping[str, torch.optim.Optimizer], tensors: Mapping[str, Tensor]) -> None:
    """Load named tensors into the optimizers; wrong shapes and non-finite values are errors."""
    require_fit(tensors, state_tensors(optimizers), "the tensors of the optimizer")
    states: dict[str, dict[int, dict[str, Any]]] = {name: {} for name in optimizers}
    for name, value in tensors.items():
        optimizer, index, key = name.split("/")
        states[optimizer].setdefault(int(index), {})[key] = value
    for name, target in optimizers.items():
        target.load_state_dict({**target.state_dict(), "state": states[name]})


class Average:
    """The exponential moving average of the weights, which is validated and saved in their place.

    Early in a run the decay is smaller, (1 + step) / (10 + step), so that the random weights of the start are soon forgotten.
    """

    def __init__(self, model: LanguageModel, decay: float) -> None:
        self.decay = decay
        self.weights = dict(model.named_parameters())
        self.tensors = {name: weight.detach().clone() for name, weight in self.weights.items()}

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take in the weights after a step, counted from 1."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.tensors.values()), list(self.weights.values()), 1 - decay)

    @torch.no_grad()
    def swap(self) -> None:
        """Exchange the average and the weights, in place."""
        for name, weight in self.weights.items():
            kept = weight.detach().clone()
            weight.copy_(self.tensors[name])
            self.tensors[name].copy_(kept)

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        """Restore the average of a checkpoint."""
        require_fit(tensors, self.tensors, "the averaged weights")
        self.tensors = {name: tensors[name].to(weight.device) for name, weight in self.weights.items()}
