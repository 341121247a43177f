"""Masked-language training on transformers' Trainer: a rate that follows the clock, validation.

Imports transformers; nobody imports this module at start-up.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn
from transformers import PrinterCallback, RobertaForMaskedLM, Trainer, TrainerCallback

from attnlab import optim
from attnlab.config import TrainConfig
from attnlab.hf.encoder_settings import EncoderConfig
from attnlab.hf.masked import Row, masked_loss, measure
from attnlab.train import Step


def make_optimizer(model: RobertaForMaskedLM, config: EncoderConfig) -> torch.optim.Optimizer:
    """The optimizer of a run; weight decay falls on the linear maps only."""
    maps = [one for one in model.modules() if isinstance(one, nn.Linear) and one is not model.lm_head.decoder]
    inner = [one.weight for one in maps]
    chosen = {id(weight) for weight in inner}
    rest = [weight for weight in model.parameters() if id(weight) not in chosen]
    adam: dict[str, Any] = {"lr": config.lr, "betas": (0.9, 0.98), "eps": 1e-6, "fused": True}
    if config.optimizer == "adamw":
        groups = [{"params": inner, "weight_decay": config.weight_decay}, {"params": rest, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, **adam)
    muon = optim.Muon(inner, config.muon_lr, weight_decay=config.weight_decay)
    return optim.OptimizerPair(muon, torch.optim.AdamW(rest, weight_decay=0.0, **adam))


@dataclass
class Pace:
    """How far a run has come, 0 to 1: by its steps, or by the clock where that is further."""

    steps: int
    seconds: float  # 0: no limit
    warmup: float
    begun: float = field(default_factory=time.monotonic)

    def elapsed(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.begun

    def progress(self, step: int) -> float:
        """The share of the run that is over after a number of steps."""
        return min(1.0, max(step / self.steps, self.elapsed() / self.seconds if self.seconds else 0.0))

    def rate(self, step: int) -> float:
        """The share of the peak learning rate: up, then down in a straight line."""
        return optim.rate_at(self.progress(step), TrainConfig(warmup=self.warmup, decay=1.0))


class Watch(TrainerCallback):
    """Ends a run when its time is over, and shows every step."""

    def __init__(self, pace: Pace, step: Callable[[Step], None]) -> None:
        self.pace, self.step = pace, step
        self.loss, self.tokens = 0.0, 0  # of the last batch, and read so far

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> Any:
        """After every update."""
        done, at = self.pace.progress(state.global_step), state.global_step
        rate = self.pace.rate(at)
        self.step(Step(at, done, state.epoch or 0.0, self.loss, rate, self.tokens, self.pace.elapsed()))
        if done >= 1.0:
            control.should_training_stop = True
        return control


class MaskedTrainer(Trainer):
    """transformers' Trainer with the loss and the validation of above."""

    def __init__(
        self, *, watch: Watch, validation: Row, told: Callable[[dict[str, float]], None], **given: Any
    ) -> None:
        super().__init__(callbacks=[watch], **given)
        self.remove_callback(PrinterCallback)
        self.watch, self.validation, self.told = watch, validation, told
        self.history: list[dict[str, float]] = []

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The mean loss of the hidden tokens of a batch."""
        loss = masked_loss(model, inputs["input_ids"], inputs["labels"])
        self.watch.loss = float(loss.detach())
        self.watch.tokens += inputs["input_ids"].numel()
        return (loss, {}) if return_outputs else loss

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Loss and accuracy of the held-out blocks, kept and told."""
        assert self.model is not None
        found = measure(self.model, self.validation, self.args.per_device_eval_batch_size)  # type: ignore[arg-type]
        point = {
            "epoch": round(float(self.state.epoch or 0.0), 3),
            "step": self.state.global_step,
            "seconds": round(self.watch.pace.elapsed(), 1),
            **found,
        }
        if not self.history or self.history[-1]["step"] != point["step"]:
            self.history.append(point)
            self.told(point)
        return {f"eval_{name}": value for name, value in found.items()}
