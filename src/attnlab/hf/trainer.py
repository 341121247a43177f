"""What fine-tuning and pretraining share of transformers' Trainer: the optimizers, a callback that shows every step, defaults.

Imports transformers, and is therefore imported late.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PrinterCallback, Trainer, TrainerCallback, TrainingArguments

from attnlab.lm.optim import Muon, OptimizerPair
from attnlab.lm.train import Step

_MOMENTUM = 0.9  # of SGD


def make_optimizer(
    model: nn.Module,
    kind: str,
    rate: float,
    *,
    decayed: Collection[str],
    weight_decay: float,
    matrices: Sequence[Tensor] = (),
    adamw_rate: float = 0.0,
    **adam: Any,
) -> torch.optim.Optimizer:
    """An optimizer by name; weight decay applies to the parameters named in `decayed`.

    Muon updates the `matrices`, and AdamW the rest at `adamw_rate`.
    """
    chosen = {id(weight) for weight in matrices} if kind == "muon" else set()
    named = [(name, one) for name, one in model.named_parameters() if one.requires_grad and id(one) not in chosen]
    groups = [
        {"params": [one for name, one in named if name in decayed], "weight_decay": weight_decay},
        {"params": [one for name, one in named if name not in decayed], "weight_decay": 0.0},
    ]
    if kind == "sgd":
        return torch.optim.SGD(groups, lr=rate, momentum=_MOMENTUM)
    if kind == "adagrad":
        return torch.optim.Adagrad(groups, lr=rate)
    if kind == "adamw":
        return torch.optim.AdamW(groups, lr=rate, fused=True, **adam)
    inner = [one for one in model.parameters() if one.requires_grad and id(one) in chosen]
    rest = torch.optim.AdamW(groups, lr=adamw_rate, fused=True, **adam)
    return OptimizerPair(Muon(inner, rate, weight_decay=weight_decay), rest)


class Watch(TrainerCallback):
    """Shows every step; a subclass measures the time, and records what it needs."""

    def __init__(self, step: Callable[[Step], None]) -> None:
        self.step = step
        self.loss, self.tokens = 0.0, 0  # of the last batch, and read so far

    def seconds(self) -> float:
        """Seconds of training so far."""
        raise NotImplementedError

    def progress(self, step: int, steps: int) -> float:
        """The finished share of the training."""
        return step / steps

    def rate(self, step: int, steps: int) -> float:
        """The learning rate to show; 0 for none."""
        return 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """After every update."""
        at = state.global_step, state.max_steps
        done, epoch = self.progress(*at), state.epoch or 0.0
        self.step(Step(state.global_step, done, epoch, self.loss, self.rate(*at), self.tokens, self.seconds()))
        if done >= 1.0:
            control.should_training_stop = True


class QuietTrainer(Trainer):
    """transformers' Trainer with one callback, the only one that prints."""

    def __init__(self, watch: Watch, **options: Any) -> None:
        super().__init__(callbacks=[watch], **options)
        self.remove_callback(PrinterCallback)


def arguments(folder: str, batch_size: int, seed: int, **others: Any) -> TrainingArguments:
    """The arguments of Trainer, with what is the same in fine-tuning and pretraining."""
    return TrainingArguments(
        output_dir=folder,
        per_device_train_batch_size=batch_size,
        per_device_eval_batch_size=batch_size,
        seed=seed,
        eval_strategy="epoch",
        report_to="none",
        disable_tqdm=True,
        **others,
    )
