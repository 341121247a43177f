"""Pretraining by hidden tokens on transformers' Trainer: the loss, validation, a learning rate that follows the clock.

RobertaForMaskedLM scores every word at every place, and then looks at the hidden ones: with 15 % of the tokens hidden 85 % of
that work is thrown away. Here the head, and of the last layer what follows its attention, are computed where something is
hidden, with the same loss and gradients. Blocks are full, so that there is no padding to mask.
Imports transformers, and is therefore imported late.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset
from transformers import DataCollatorForLanguageModeling, RobertaConfig, RobertaForMaskedLM

from attnlab import optim
from attnlab.config import TrainConfig
from attnlab.errors import DataError
from attnlab.hf import training
from attnlab.hf.encoders import SYMBOLS, Ids, Material
from attnlab.hf.settings import EncoderConfig
from attnlab.kernels import vocabulary
from attnlab.stages import Show
from attnlab.train import Step

NOTHING = -100  # a label that is not counted
VALIDATION_HIDES = 0.15

Row = dict[str, Tensor]


# Loss and validation


def masked_loss_reference(model: RobertaForMaskedLM, input_ids: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of the hidden tokens, as transformers computes it."""
    loss: Tensor = model(input_ids=input_ids, labels=labels).loss
    return loss


def _hidden_features(model: RobertaForMaskedLM, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """What the last map of the head sees at the hidden tokens, and the tokens themselves."""
    chosen = labels != NOTHING
    states = model.roberta.embeddings(input_ids=input_ids)
    layers: Any = model.roberta.encoder.layer
    *first, last = layers
    for layer in first:
        states = layer(states)
    mixed, _ = last.attention.self(states)
    states = last.feed_forward_chunk(last.attention.output(mixed[chosen], states[chosen]))
    head = model.lm_head
    return head.layer_norm(functional.gelu(head.dense(states))), labels[chosen]


def masked_loss(model: RobertaForMaskedLM, input_ids: Tensor, labels: Tensor) -> Tensor:
    """The same as the reference, computed for the hidden tokens only and never with all scores in memory."""
    features, targets = _hidden_features(model, input_ids, labels)
    decoder = model.lm_head.decoder
    if decoder.out_features < vocabulary.LARGE:
        return functional.cross_entropy(decoder(features), targets, reduction="sum") / max(1, len(targets))
    # The bias is one more column, seen with a one.
    widened = torch.cat((features, features.new_ones(len(features), 1)), dim=1)
    weight = torch.cat((decoder.weight, decoder.bias[:, None]), dim=1)
    return vocabulary.summed_losses(widened, weight, targets) / max(1, len(targets))


class _Blocks(Dataset[Row]):
    """Blocks of tokens, of which every epoch hides others."""

    def __init__(self, blocks: Ids) -> None:
        self.blocks = torch.from_numpy(blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> Row:
        ids = self.blocks[index].long()
        return {"input_ids": ids, "special_tokens_mask": (ids < len(SYMBOLS)).long()}


def _hidden_once(blocks: Ids, hide: DataCollatorForLanguageModeling, seed: int) -> Row:
    """Blocks with tokens hidden once and for all: validation asks the same each time."""
    state = torch.get_rng_state()
    torch.manual_seed(seed)
    hidden: Any = hide([_Blocks(blocks)[at] for at in range(len(blocks))])
    torch.set_rng_state(state)
    return {"input_ids": hidden["input_ids"], "labels": hidden["labels"]}


def frequencies(train: Ids, vocab_size: int) -> NDArray[np.float64]:
    """The logarithm of every token's share, as if each had been seen once more; special ones, never hidden, as if once."""
    counts = np.bincount(train.ravel(), minlength=vocab_size).astype(np.float64)
    counts[: len(SYMBOLS)] = 0
    shares: NDArray[np.float64] = np.log(counts + 1) - np.log((counts + 1).sum())
    return shares


def unigram(shares: NDArray[np.float64], labels: Tensor) -> dict[str, float]:
    """Loss and accuracy of who knows how frequent every token is, and nothing else."""
    targets = labels[labels != NOTHING].numpy()
    return {"loss": float(-shares[targets].mean()), "accuracy": float((targets == shares.argmax()).mean())}


@torch.no_grad()
def begin_at(model: RobertaForMaskedLM, shares: NDArray[np.float64]) -> None:
    """Have a fresh model guess by frequency: it need not spend its first hundreds of steps on finding that out."""
    model.lm_head.decoder.bias.copy_(torch.from_numpy(shares))


@torch.no_grad()
def measure(model: RobertaForMaskedLM, validation: Row, size: int) -> dict[str, float]:
    """Mean loss of the hidden tokens of validation, and the share of them that is found."""
    model.train(False)
    loss, found, total = 0.0, 0, 0
    for ids, labels in zip(validation["input_ids"].split(size), validation["labels"].split(size), strict=True):
        features, targets = _hidden_features(model, ids, labels)
        scores = model.lm_head.decoder(features)
        loss += float(functional.cross_entropy(scores, targets, reduction="sum"))
        found += int((scores.argmax(dim=-1) == targets).sum())
        total += len(targets)
    return {"loss": loss / total, "accuracy": found / total}


# The trainer


def make_optimizer(model: RobertaForMaskedLM, config: EncoderConfig) -> torch.optim.Optimizer:
    """The optimizer of a run; weight decay applies to the linear maps only."""
    linear = [one for one in model.modules() if isinstance(one, nn.Linear) and one is not model.lm_head.decoder]
    inner = {id(one.weight) for one in linear}
    return training.make_optimizer(
        model,
        config.optimizer,
        config.lr if config.optimizer == "adamw" else config.muon_lr,
        decayed={name for name, weight in model.named_parameters() if id(weight) in inner},
        weight_decay=config.weight_decay,
        matrices=[one.weight for one in linear],
        adamw_rate=config.lr,
        betas=(0.9, 0.98),
        eps=1e-6,
    )


@dataclass
class _Pace:
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


class _Clock(training.Watch):
    """Ends a run when its time is over, and shows every step."""

    def __init__(self, pace: _Pace, step: Callable[[Step], None]) -> None:
        super().__init__(step)
        self.pace = pace

    def seconds(self) -> float:
        """Seconds since the beginning."""
        return self.pace.elapsed()

    def progress(self, state: Any) -> float:
        """By steps or by the clock."""
        return self.pace.progress(state.global_step)

    def rate(self, state: Any) -> float:
        """The share of the peak rate."""
        return self.pace.rate(state.global_step)


class _MaskedTrainer(training.QuietTrainer):
    """transformers' Trainer with the loss and the validation of above."""

    def __init__(
        self, *, watch: _Clock, validation: Row, told: Callable[[dict[str, float]], None], **given: Any
    ) -> None:
        super().__init__(watch, **given)
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


def new_model(config: EncoderConfig, vocab_size: int) -> RobertaForMaskedLM:
    """A fresh RoBERTa; dropout, which costs time and helps nobody who sees every text a few times, is left out for now."""
    numbers = {symbol: number for number, symbol in enumerate(SYMBOLS)}
    return RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=vocab_size,
            hidden_size=config.n_embd,
            num_hidden_layers=config.n_layer,
            num_attention_heads=config.n_head,
            intermediate_size=4 * config.n_embd,
            max_position_embeddings=config.block_size + numbers["<pad>"] + 1,  # RoBERTa counts places from there
            type_vocab_size=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            bos_token_id=numbers["<s>"],
            pad_token_id=numbers["<pad>"],
            eos_token_id=numbers["</s>"],
        )
    )


def make_trainer(
    model: RobertaForMaskedLM, material: Material, work: Path, config: EncoderConfig, show: Show
) -> tuple[_MaskedTrainer, dict[str, float]]:
    """Everything put together, and what who knows only frequencies would reach in validation."""
    hide, hide_fewer = (
        DataCollatorForLanguageModeling(material.tokenizer, mlm_probability=share)
        for share in (config.hidden, VALIDATION_HIDES)
    )
    validation = _hidden_once(material.validation, hide_fewer, config.seed)
    shares = frequencies(material.train, len(material.tokenizer))
    if not (validation["labels"] >= 0).any():
        raise DataError("the corpus is too small to validate with: not one held-out token is hidden; give more text")
    guess = unigram(shares, validation["labels"])
    begin_at(model, shares)
    steps = math.ceil(math.ceil(len(material.train) / config.blocks_per_batch) * config.epochs)
    optimizer = make_optimizer(model, config)
    pace = _Pace(steps, 60 * config.minutes, config.warmup)
    given = training.arguments(
        str(work / "trainer"),
        config.blocks_per_batch,
        config.seed,
        max_steps=steps,
        max_grad_norm=1.0,
        save_strategy="no",
        logging_strategy="no",
        use_cpu=True,
        remove_unused_columns=False,
    )

    def told(point: dict[str, float]) -> None:
        show.line(
            f"epoch {point['epoch']:.2f}: loss of hidden tokens {point['loss']:.3f}, {point['accuracy']:.1%} found"
            f" (by frequency alone {guess['loss']:.3f}, {guess['accuracy']:.1%})"
        )

    trainer = _MaskedTrainer(
        watch=_Clock(pace, show.step),
        validation=validation,
        told=told,
        model=model,
        args=given,
        data_collator=hide,
        train_dataset=_Blocks(material.train),
        eval_dataset=_Blocks(material.validation),
        optimizers=(optimizer, LambdaLR(optimizer, pace.rate)),
    )
    return trainer, guess


def outcome(trainer: _MaskedTrainer, config: EncoderConfig) -> dict[str, Any]:
    """What a run came to."""
    seconds, steps = trainer.watch.pace.elapsed(), trainer.state.global_step
    tokens = trainer.watch.tokens
    assert trainer.model is not None
    return {
        "config": asdict(config),
        "parameters": sum(weight.numel() for weight in trainer.model.parameters()),
        "steps": steps,
        "tokens": tokens,
        "seconds": round(seconds, 1),
        "tokens_per_second": round(tokens / seconds),
        "threads": torch.get_num_threads(),
        "validation_targets": int((trainer.validation["labels"] >= 0).sum()),
        "history": trainer.history,
    }
