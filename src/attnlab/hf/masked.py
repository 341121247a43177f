"""Pretraining by masked tokens on transformers' Trainer: the loss, validation, a learning rate that follows the clock.

RobertaForMaskedLM computes the scores of all words for every token, and then the loss at the masked ones: with 15 % of the
tokens masked, 85 % of that work is wasted. Here the head, and of the last layer what follows its attention, are computed for
the masked tokens only, with the same loss and gradients. Blocks are full, so that there is no padding to hide.
Imports transformers, and is therefore imported late.
"""

from __future__ import annotations

import math
import time
from pathlib import Path
from typing import Any, TypedDict

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional
from torch.optim.lr_scheduler import LambdaLR
from torch.utils.data import Dataset
from transformers import DataCollatorForLanguageModeling, RobertaConfig, RobertaForMaskedLM

from attnlab.config import TrainConfig
from attnlab.errors import DataError
from attnlab.hf import trainer
from attnlab.hf.encoders import SYMBOLS, Ids, Material, Point, Score
from attnlab.hf.settings import EncoderConfig
from attnlab.kernels import vocabulary
from attnlab.lm import optim
from attnlab.lm.stages import Show
from attnlab.report.words import percent

_IGNORED = -100  # the label of a token that is not masked
_MASKED_IN_VALIDATION = 0.15


class _Batch(TypedDict):
    input_ids: Tensor
    labels: Tensor


# Loss and validation


def masked_loss_reference(model: RobertaForMaskedLM, input_ids: Tensor, labels: Tensor) -> Tensor:
    """The mean loss of the masked tokens, as transformers computes it."""
    loss: Tensor = model(input_ids=input_ids, labels=labels).loss
    return loss


def _masked_features(model: RobertaForMaskedLM, input_ids: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """The input of the last map of the head at the masked tokens, and the tokens themselves."""
    chosen = labels != _IGNORED
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
    """The same as the reference, computed for the masked tokens only and never with all scores in memory."""
    features, targets = _masked_features(model, input_ids, labels)
    decoder = model.lm_head.decoder
    if decoder.out_features < vocabulary.LARGE:
        return functional.cross_entropy(decoder(features), targets, reduction="sum") / max(1, len(targets))
    # The bias is one more column, whose input is always one.
    widened = torch.cat((features, features.new_ones(len(features), 1)), dim=1)
    weight = torch.cat((decoder.weight, decoder.bias[:, None]), dim=1)
    return vocabulary.summed_losses(widened, weight, targets) / max(1, len(targets))


class _Blocks(Dataset[dict[str, Tensor]]):
    """Blocks of tokens; every epoch masks others."""

    def __init__(self, blocks: Ids) -> None:
        self.blocks = torch.from_numpy(blocks)

    def __len__(self) -> int:
        return len(self.blocks)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        ids = self.blocks[index].long()
        return {"input_ids": ids, "special_tokens_mask": (ids < len(SYMBOLS)).long()}


def _mask_once(blocks: Ids, mask: DataCollatorForLanguageModeling, seed: int) -> _Batch:
    """Blocks with the same tokens masked in every validation."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        masked: Any = mask([_Blocks(blocks)[at] for at in range(len(blocks))])
    return {"input_ids": masked["input_ids"], "labels": masked["labels"]}


def log_frequencies(train: Ids, vocab_size: int) -> NDArray[np.float64]:
    """The logarithm of every token's frequency, with one added to each count; special tokens, never masked, count as one."""
    counts = np.bincount(train.ravel(), minlength=vocab_size).astype(np.float64)
    counts[: len(SYMBOLS)] = 0
    shares: NDArray[np.float64] = np.log(counts + 1) - np.log((counts + 1).sum())
    return shares


def score_unigram(shares: NDArray[np.float64], labels: Tensor) -> Score:
    """Loss and accuracy of guessing by frequency alone."""
    targets = labels[labels != _IGNORED].numpy()
    return {"loss": float(-shares[targets].mean()), "accuracy": float((targets == shares.argmax()).mean())}


@torch.no_grad()
def start_from_frequencies(model: RobertaForMaskedLM, shares: NDArray[np.float64]) -> None:
    """Have a new model guess by frequency, which it would otherwise need its first hundreds of steps to learn."""
    model.lm_head.decoder.bias.copy_(torch.from_numpy(shares))


@torch.no_grad()
def measure(model: RobertaForMaskedLM, validation: _Batch, size: int) -> Score:
    """Mean loss of the masked tokens of validation, and the share of them that is predicted."""
    model.train(False)
    loss, found, total = 0.0, 0, 0
    for ids, labels in zip(validation["input_ids"].split(size), validation["labels"].split(size), strict=True):
        features, targets = _masked_features(model, ids, labels)
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
    return trainer.make_optimizer(
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


class _Clock(trainer.Watch):
    """Shows every step; progress follows the steps, or the clock if that is further."""

    def __init__(self, show: Show, config: EncoderConfig) -> None:
        super().__init__(show.step)
        self.limit, self.warmup = 60 * config.minutes, config.warmup
        self.began = time.monotonic()

    def seconds(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.began

    def progress(self, step: int, steps: int) -> float:
        """The finished share of the run, 0 to 1."""
        return min(1.0, max(step / steps, self.seconds() / self.limit if self.limit else 0.0))

    def rate(self, step: int, steps: int) -> float:
        """The share of the peak learning rate: it rises, then falls in a straight line."""
        return optim.rate_at(self.progress(step, steps), TrainConfig(warmup=self.warmup, decay=1.0))


class _MaskedTrainer(trainer.QuietTrainer):
    """transformers' Trainer with the loss and the validation of above."""

    def __init__(self, clock: _Clock, validation: _Batch, guess: Score, show: Show, **given: Any) -> None:
        super().__init__(clock, **given)
        self.clock, self.validation, self.guess, self.show = clock, validation, guess, show
        self.history: list[Point] = []
        self.targets = int((validation["labels"] != _IGNORED).sum())

    def compute_loss(
        self, model: Any, inputs: Any, return_outputs: bool = False, num_items_in_batch: Any = None
    ) -> Any:
        """The mean loss of the masked tokens of a batch."""
        loss = masked_loss(model, inputs["input_ids"], inputs["labels"])
        self.clock.loss = float(loss.detach())
        self.clock.tokens += inputs["input_ids"].numel()
        return (loss, {}) if return_outputs else loss

    def evaluate(self, *_: Any, **__: Any) -> dict[str, float]:
        """Loss and accuracy on the held-out blocks, recorded and shown."""
        found = measure(self.model, self.validation, self.args.per_device_eval_batch_size)  # type: ignore[arg-type]
        if not self.history or self.history[-1]["step"] != self.state.global_step:
            epoch, seconds = round(float(self.state.epoch or 0.0), 3), round(self.clock.seconds(), 1)
            self.history.append({"epoch": epoch, "step": self.state.global_step, "seconds": seconds, **found})
            self.show.line(
                f"epoch {epoch:.2f}: loss of masked tokens {found['loss']:.3f}, {percent(found['accuracy'])} found"
                f" (by frequency alone {self.guess['loss']:.3f}, {percent(self.guess['accuracy'])})"
            )
        return {"eval_loss": found["loss"], "eval_accuracy": found["accuracy"]}


def new_model(config: EncoderConfig, vocab_size: int) -> RobertaForMaskedLM:
    """A new RoBERTa, without dropout: it costs time and does not help when every text is seen a few times only."""
    numbers = {symbol: number for number, symbol in enumerate(SYMBOLS)}
    return RobertaForMaskedLM(
        RobertaConfig(
            vocab_size=vocab_size,
            hidden_size=config.n_embd,
            num_hidden_layers=config.n_layer,
            num_attention_heads=config.n_head,
            intermediate_size=4 * config.n_embd,
            max_position_embeddings=config.block_size + numbers["<pad>"] + 1,  # RoBERTa counts positions from there
            type_vocab_size=1,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            bos_token_id=numbers["<s>"],
            pad_token_id=numbers["<pad>"],
            eos_token_id=numbers["</s>"],
        )
    )


def train(
    material: Material, work: Path, config: EncoderConfig, show: Show
) -> tuple[RobertaForMaskedLM, _MaskedTrainer]:
    """A model trained on blocks, and its finished trainer."""
    model = new_model(config, len(material.tokenizer))
    mask, mask_fewer = (
        DataCollatorForLanguageModeling(material.tokenizer, mlm_probability=share)
        for share in (config.hidden, _MASKED_IN_VALIDATION)
    )
    validation = _mask_once(material.validation, mask_fewer, config.seed)
    if not (validation["labels"] != _IGNORED).any():
        raise DataError("the corpus is too small to validate with: not one held-out token is masked; give more text")
    shares = log_frequencies(material.train, len(material.tokenizer))
    start_from_frequencies(model, shares)
    steps = math.ceil(math.ceil(len(material.train) / config.blocks_per_batch) * config.epochs)
    optimizer, clock = make_optimizer(model, config), _Clock(show, config)
    masked = _MaskedTrainer(
        clock,
        validation,
        score_unigram(shares, validation["labels"]),
        show,
        model=model,
        args=trainer.arguments(
            str(work / "trainer"),
            config.blocks_per_batch,
            config.seed,
            max_steps=steps,
            max_grad_norm=1.0,
            save_strategy="no",
            logging_strategy="no",
            use_cpu=True,
            remove_unused_columns=False,
        ),
        data_collator=mask,
        train_dataset=_Blocks(material.train),
        eval_dataset=_Blocks(material.validation),
        optimizers=(optimizer, LambdaLR(optimizer, lambda step: clock.rate(step, steps))),
    )
    masked.train()
    masked.evaluate()
    return model, masked
