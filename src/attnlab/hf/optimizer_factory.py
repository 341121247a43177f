"""The optimizers that fine-tuning can use, each with a learning rate that suits it. Knows models, not tables."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import Tensor, nn

from attnlab.hf.settings import RATES, FineTuning
from attnlab.optim import Muon, OptimizerPair

MOMENTUM = 0.9  # of SGD


def make_optimizer(model: nn.Module, decayed: Collection[str], settings: FineTuning) -> torch.optim.Optimizer:
    """The optimizer of a run; weight decay falls on the parameters of the given names only."""
    matrices = {id(weight) for weight in inner_matrices(model)} if settings.optimizer == "muon" else set()
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad and id(one) not in matrices]
    groups: list[dict[str, Any]] = [
        {"params": [one for name, one in named if name in decayed], "weight_decay": settings.weight_decay},
        {"params": [one for name, one in named if name not in decayed], "weight_decay": 0.0},
    ]
    if settings.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=settings.rate, momentum=MOMENTUM)
    if settings.optimizer == "adagrad":
        return torch.optim.Adagrad(groups, lr=settings.rate)
    if settings.optimizer == "adamw":
        return torch.optim.AdamW(groups, lr=settings.rate, fused=True)
    inner = [one for one in model.parameters() if id(one) in matrices and one.requires_grad]
    return OptimizerPair(
        Muon(inner, settings.rate, weight_decay=settings.weight_decay),
        # The rest keeps the pace that it has beside Muon by default, faster or slower by the same factor.
        torch.optim.AdamW(groups, lr=RATES["adamw"] * settings.rate / RATES["muon"], fused=True),
    )


def inner_matrices(model: nn.Module) -> list[Tensor]:
    """The weights of the linear maps inside the encoder's layers, which are what stands in lists of modules."""
    lists = [module for module in model.modules() if isinstance(module, nn.ModuleList)]
    linear = [module for one in lists for module in one.modules() if isinstance(module, nn.Linear)]
    found = {id(one.weight): one.weight for one in linear if min(one.weight.shape) > 1}
    assert found, "an encoder without layers"
    return list(found.values())
